"""Several settings of one plan side by side: every combination of the swept values, each with several seeds.

Guarantee: every run is a run of `kohort run`, with its own ledger; what looking at all of them costs is told, not what
the chosen one costs alone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, get_args

from kohort.errors import ConfigError, nearest
from kohort.evaluate.choice import COSTS, Figures, cheapest, figures_of, front, objectives, parse_conditions
from kohort.files import disk_errors, require_new, write_atomic
from kohort.models.files import find_model, read_model
from kohort.privacy.dp.tuning import cost_of_choice
from kohort.privacy.ledger.summary import spent_by_site
from kohort.report.audits import AUDIT_FILE, write_audits
from kohort.rng import Streams
from kohort.runs.auditing.on_model import loss_threshold_of
from kohort.runs.backend import Simulation
from kohort.runs.config import Plan, read_plan
from kohort.runs.folder import RunFolder, stored_result
from kohort.runs.low_risk import Rehearsal
from kohort.runs.private_choice import select
from kohort.runs.run import run

__all__ = ["COMPARISON_FILE", "Rows", "Sweep", "Variant", "choose_privately", "compare", "variants_of"]

Rows = Literal["all", "low-risk"]
COMPARISON_FILE: Final = "compare.json"
MOST_RUNS: Final = 10_000
LONGEST_WORD, LONGEST_NAME = 32, 200
_OPENING, _CLOSING = "[{(", "]})"


@dataclass(frozen=True)
class Sweep:
    """One key of the plan and the values it takes, as TOML."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """From `a.b=v1,v2`; commas within brackets or quotes belong to a value."""
        key, sign, values = text.partition("=")
        found = _split(values)
        if not sign or not key.strip() or not all(found):
            raise ConfigError(f"cannot read --sweep {text!r}", hint="Write it as section.key=value,value")
        if len(set(found)) < len(found):
            raise ConfigError(f"--sweep {key.strip()} repeats a value", hint="Name every value once")
        return cls(key.strip(), tuple(found))


@dataclass(frozen=True)
class Variant:
    """One combination of swept values, and the plan it makes."""

    chosen: dict[str, str]
    plan: Plan


def variants_of(path: Path, sweeps: Sequence[Sweep], *, overrides: Sequence[str] = ()) -> list[Variant]:
    """Every combination, the last sweep fastest. All plans are checked before the first run begins.

    Args:
        path: The plan file.
        sweeps: The keys to sweep. A sweep over `method.name` leaves out, for each method, the keys it does not read;
            the notes of its runs name them.
        overrides: What `--set` was given.

    Returns:
        One variant for each combination of values.

    Raises:
        ConfigError: A key is swept twice, or a combination is no plan.
    """
    keys = [sweep.key for sweep in sweeps]
    if len(set(keys)) < len(keys):
        raise ConfigError("a key is swept twice", hint="Give all its values in one --sweep")
    made = []
    for values in product(*(sweep.values for sweep in sweeps)):
        chosen = dict(zip(keys, values, strict=True))
        changes = [*overrides, *(f"{key}={value}" for key, value in chosen.items())]
        plan = read_plan(path, overrides=changes, drop_overrides="method.name" in keys)
        made.append(Variant(chosen, plan))
    return made


def compare(
    settings: Sequence[Variant],
    *,
    out: Path,
    seeds: int = 1,
    choose: str | None = None,
    rows: Rows = "all",
    attack: bool = False,
    resume: bool = False,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run every setting with seeds 0, 1, ... into folders below `out`.

    Args:
        settings: The plans, with the keys that were swept.
        out: The folder of all runs.
        seeds: How many seeds each setting is run with.
        choose: Conditions; the cheapest setting that fulfils them is chosen. None: none is.
        rows: "all", or "low-risk" to try settings out on rows of low risk alone.
        attack: Whether every model is attacked by membership inference, as one more figure and axis.
        resume: Keep the runs that are finished there and go on with the others.
        force: Replace what is in `out`.
        say: Takes lines about progress.

    Returns:
        The JSON object of `kohort compare`.

    Raises:
        ConfigError: There is nothing to compare, too many runs, or `out` is taken.
    """
    if rows not in get_args(Rows):
        raise ConfigError(f"cannot compare on {rows!r} rows", hint=nearest(str(rows), get_args(Rows)))
    if not settings or not 1 <= len(settings) * seeds <= MOST_RUNS:
        hint = f"Sweep fewer values or seeds; at most {MOST_RUNS:,} runs"
        raise ConfigError(f"{len(settings)} settings with {seeds} seeds are no comparison", hint=hint)
    conditions = () if choose is None else parse_conditions(choose)
    if not resume:
        require_new(out, force=force)
        _clear(out)
    phases = [(setting, seed) for setting in settings for seed in range(seeds)]
    runs, folders = [], []
    for number, (setting, seed) in enumerate(phases, start=1):
        words = [] if seeds == 1 else [f"seed={seed}"]
        words += [] if rows == "all" else [rows]  # a comparison on other rows must not go on with these runs
        folder = out / f"run-{number:0{len(str(len(phases)))}d}{_slug(setting.chosen, words)}"
        say(f"{number} of {len(phases)}: {_words(setting.chosen)}, seed {seed}")
        made = _run_of(setting.plan, folder, seed, rows, resume=resume, force=force)
        runs.append({**made, "attacks": [_attacked(setting.plan, folder, seed, rows)]} if attack else made)
        folders.append(folder)
        if number == 1:  # what cannot be judged is known now, and not only when all runs are made
            first = [figures_of(runs)]
            front(first)
            cheapest(first, conditions)
    figures = [figures_of(runs[index * seeds : (index + 1) * seeds]) for index in range(len(settings))]
    best = None if choose is None else cheapest(figures, conditions)
    cost = cost_of_choice([spent_by_site(folder) for folder in folders])
    result = {
        "runs": runs,
        "folders": [folder.name for folder in folders],
        "settings": [
            {
                "set": setting.chosen,
                "runs": list(range(index * seeds, (index + 1) * seeds)),
                "figures": _reported(known),
            }
            for index, (setting, known) in enumerate(zip(settings, figures, strict=True))
        ],
        "objectives": list(objectives(figures)),
        "pareto": [index * seeds + seed for index in front(figures) for seed in range(seeds)],
        "chosen": None if best is None else best * seeds,
        "rows": rows,
        "tuning": None if cost is None else {**cost.to_mapping(), "rows": rows},
    }
    if attack:
        write_audits(out / AUDIT_FILE, [_audit_of(found, folder) for found, folder in zip(runs, folders, strict=True)])
    write_atomic(out / COMPARISON_FILE, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())
    return result


def choose_privately(
    settings: Sequence[Variant], *, out: Path, tries: float, seed: int = 0, force: bool = False
) -> dict[str, Any]:
    """Try settings a random number of times, keep the best run alone, and tell what that costs.

    Args:
        settings: The plans, with the keys that were swept.
        out: The folder of the run that is kept.
        tries: The mean number of tries.
        seed: Seed of everything.
        force: Replace what is in `out`.

    Returns:
        The JSON object of `kohort compare`, of the kept run alone: nothing is told of the other tries.

    Raises:
        ConfigError: No private choice among these settings is proved, or `out` is taken.
        RefusedError: The price exceeds a policy.
    """
    if not settings:
        raise ConfigError("there are no settings to choose from", hint="Sweep at least one key")
    require_new(out, force=force)
    _clear(out)
    folder = out / "run-1"
    found = select([setting.plan for setting in settings], out=folder, tries=tries, seed=seed)
    kept = found.outcome.to_mapping()
    result = {
        "runs": [kept],
        "folders": [folder.name],
        "settings": [
            {"set": setting.chosen, "runs": [0], "figures": _reported(figures_of([kept]))}
            if index == found.setting
            else {"set": setting.chosen, "runs": [], "figures": None}
            for index, setting in enumerate(settings)
        ],
        "objectives": ["score", *COSTS],
        "pareto": [],
        "chosen": 0,
        "rows": "all",
        "tuning": found.price.to_mapping(),
    }
    write_atomic(out / COMPARISON_FILE, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())
    return result


def _run_of(plan: Plan, folder: Path, seed: int, rows: Rows, *, resume: bool, force: bool) -> dict[str, Any]:
    known = stored_result(folder, plan, seed) if resume else None
    if known is not None:
        return known
    backend = Rehearsal() if rows == "low-risk" else Simulation()
    return run(plan, out=folder, seed=seed, resume=resume, force=force, backend=backend).to_mapping()


def _attacked(plan: Plan, folder: Path, seed: int, rows: Rows) -> dict[str, Any]:
    """The loss threshold on the model of a finished run, as a report shows it."""
    backend = Rehearsal() if rows == "low-risk" else Simulation()
    population = backend.populate(plan, Streams.seeded(seed))
    return loss_threshold_of(read_model(find_model(folder)), population, seed=seed).to_mapping()


def _audit_of(run: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a report reads of it; see `kohort.runs.auditing.audit.Audit`."""
    return {
        "audited": [folder.name],
        "method": run["method"],
        "ledger_heads": [run["ledger_head"]],
        "findings": run["attacks"],
        "notes": [],
    }


def _clear(out: Path) -> None:
    """Remove the runs of an earlier comparison, of which there may have been more; anything else is left alone."""
    with disk_errors(out):
        for folder in sorted(out.glob("run-*")):
            if RunFolder(folder).holds_run:
                shutil.rmtree(folder)


def _reported(figures: Figures) -> dict[str, float | None]:
    """As JSON can hold them: a setting without noise has no epsilon."""
    return {name: value if isfinite(value) else None for name, value in figures.items()}


def _words(chosen: Mapping[str, str]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in chosen.items()) or "the plan as it is"


def _slug(chosen: Mapping[str, str], more: Sequence[str]) -> str:
    """What a setting is, short and safe in a file name, so that a report of all runs tells them apart."""
    words = [*(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items()), *more]
    safe = [re.sub(r"[^A-Za-z0-9.=-]+", "-", word).strip("-")[:LONGEST_WORD] for word in words]
    return "".join(f"_{word}" for word in safe)[:LONGEST_NAME]


def _split(text: str) -> list[str]:
    """The parts between commas that are in no brackets and no quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        depth += (sign in _OPENING) - (sign in _CLOSING) if not quote else 0
        if sign == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]
