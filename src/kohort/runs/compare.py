"""Several settings of one plan side by side: every combination of the swept values, each with several seeds.

Guarantee: every run is a run of `kohort run`, with its own ledger; what looking at all of them costs is told, not what
the chosen one costs alone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, get_args

from kohort.errors import ConfigError, KohortError, ResourceError, nearest
from kohort.evaluate.choice import (
    COSTS,
    Figures,
    cheapest,
    figures_of,
    front,
    intervals_of,
    objectives,
    parse_conditions,
)
from kohort.files import disk_errors, require_new, write_atomic
from kohort.models.files import find_model, read_model
from kohort.privacy.dp.tuning import cost_of_choice
from kohort.privacy.guarantee import DP
from kohort.privacy.ledger.summary import spent_by_site
from kohort.report.audits import AUDIT_FILE, write_audits
from kohort.rng import Streams
from kohort.runs.auditing.audit import audit_folders
from kohort.runs.auditing.on_model import loss_threshold_of
from kohort.runs.backend import Simulation
from kohort.runs.cluster import dask_cluster
from kohort.runs.config import Plan
from kohort.runs.folder import RunFolder, stored_result
from kohort.runs.low_risk import LowRiskSimulation
from kohort.runs.private_choice import select
from kohort.runs.run import run
from kohort.runs.sweeps import Variant

__all__ = ["COMPARISON_FILE", "Options", "Rows", "choose_privately", "compare"]

Rows = Literal["all", "low-risk"]
COMPARISON_FILE: Final = "compare.json"
MOST_RUNS: Final = 10_000
ATTACKS_ENDING: Final = ".attacks.json"
LONGEST_WORD, LONGEST_NAME = 32, 200


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a comparison is carried out.

    Attributes:
        seeds: How many seeds each setting is run with: 0, 1, ...
        rows: "all", or "low-risk" to try settings out on rows of low risk alone.
        attack: Whether every model is attacked by membership inference, as one more figure and axis.
        shadows: Above 0: every run is audited whole, with so many shadow models.
        jobs: Runs at a time, each in a process of its own.
        dask: The address of a Dask scheduler whose workers make the runs; empty for this machine.
        keep_going: List settings that fail, and go on with the others.
        resume: Keep the runs that are finished there and go on with the others.
        force: Replace what is in the folder.
    """

    seeds: int = 1
    rows: Rows = "all"
    attack: bool = False
    shadows: int = 0
    jobs: int = 1
    dask: str = ""
    keep_going: bool = False
    resume: bool = False
    force: bool = False


def compare(
    settings: Sequence[Variant],
    *,
    out: Path,
    choose: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Run every setting with seeds 0, 1, ... into folders below `out`.

    Args:
        settings: The plans, with the keys that were swept.
        out: The folder of all runs.
        choose: Conditions; the cheapest setting that fulfils them is chosen. None: none is.
        say: Takes lines about progress.
        options: How it is carried out.

    Returns:
        The JSON object of `kohort compare`.

    Raises:
        ConfigError: There is nothing to compare, too many runs, or `out` is taken.
        KohortError: A run failed, and failures are not to be listed; or all of them failed.
    """
    _check(settings, options)
    conditions = () if choose is None else parse_conditions(choose)
    if not options.resume:
        require_new(out, force=options.force)
        _clear(out)
    jobs = _jobs(settings, out.resolve() if options.dask else out, options)
    done: dict[int, dict[str, Any]] = {}
    lost: dict[str, str] = {}
    for job, made in _carried_out(jobs, options, say):
        if isinstance(made, KohortError):
            lost.setdefault(_words(settings[job.setting].chosen), str(made))
            continue
        done[job.number] = made
        if len(done) == 1:  # what cannot be judged is known now, and not only when all runs are made
            first = [figures_of([made])]
            front(first)
            cheapest(first, conditions)
    kept = [place for place in range(len(settings)) if all(job.number in done for job in jobs if job.setting == place)]
    if not kept:
        raise ConfigError(
            f"no setting could be run; the first said: {next(iter(lost.values()))}", hint="Change the plan"
        )
    result = _result([settings[place] for place in kept], [_of(jobs, done, place) for place in kept], choose, options)
    result["left_out"] = [{"what": what, "why": why, "count": 1} for what, why in lost.items()]
    if options.attack or options.shadows:
        pairs = zip(result["runs"], result["folders"], strict=True)
        write_audits(out / AUDIT_FILE, [_audit_of(found, out / folder) for found, folder in pairs])
    write_atomic(out / COMPARISON_FILE, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())
    return result


@dataclass(frozen=True)
class _Job:
    """One run of one setting."""

    number: int
    setting: int
    seed: int
    plan: Plan
    folder: Path
    words: str


def _check(settings: Sequence[Variant], options: Options) -> None:
    if options.rows not in get_args(Rows):
        raise ConfigError(f"cannot compare on {options.rows!r} rows", hint=nearest(str(options.rows), get_args(Rows)))
    if options.dask and options.jobs != 1:
        raise ConfigError("the workers of a Dask cluster are its own", hint="Drop --jobs, or --dask")
    if options.shadows and options.rows != "all":
        raise ConfigError("whole audits repeat runs on all rows", hint="Drop --shadows, or use --rows all")
    if not settings or not 1 <= len(settings) * options.seeds <= MOST_RUNS:
        hint = f"Sweep fewer values or seeds; at most {MOST_RUNS:,} runs"
        raise ConfigError(f"{len(settings)} settings with {options.seeds} seeds are no comparison", hint=hint)


def _jobs(settings: Sequence[Variant], out: Path, options: Options) -> list[_Job]:
    count, found = len(settings) * options.seeds, []
    for place, setting in enumerate(settings):
        for seed in range(options.seeds):
            number = place * options.seeds + seed + 1
            more = [] if options.seeds == 1 else [f"seed={seed}"]
            more += [] if options.rows == "all" else [options.rows]  # runs on other rows must not be gone on with
            folder = out / f"run-{number:0{len(str(count))}d}{_slug(setting.chosen, more)}"
            words = f"{number} of {count}: {_words(setting.chosen)}, seed {seed}"
            found.append(_Job(number, place, seed, setting.plan, folder, words))
    return found


def _carried_out(
    jobs: Sequence[_Job], options: Options, say: Callable[[str], None]
) -> Iterator[tuple[_Job, dict[str, Any] | KohortError]]:
    """Every run, in order; an error ends them unless failures are to be listed."""
    if options.dask:
        with dask_cluster(options.dask) as submit:
            begun = [(job, submit(_one_run, job, options)) for job in jobs]
            for job, result in begun:
                say(job.words)
                yield job, _tried(result, options)
        return
    if options.jobs == 1:
        for job in jobs:
            say(job.words)
            yield job, _tried(partial(_one_run, job, options), options)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = [(job, pool.submit(_one_run, job, options)) for job in jobs]
        try:
            for job, future in waiting:
                say(job.words)
                yield job, _tried(future.result, options)
        finally:
            for _, future in waiting:
                future.cancel()


def _tried(make: Callable[[], dict[str, Any]], options: Options) -> dict[str, Any] | KohortError:
    try:
        return make()
    except ResourceError:
        raise
    except KohortError as error:
        if not options.keep_going:
            raise
        return error


def _one_run(job: _Job, options: Options) -> dict[str, Any]:
    """A run, made or kept, and the attacks on it."""
    made = _run_of(job.plan, job.folder, job.seed, options.rows, resume=options.resume, force=options.force)
    if not (options.attack or options.shadows):
        return made
    found = _stored_attacks(job, made, options) or _attacks(job, options)
    kept = {"ledger_head": made["ledger_head"], "shadows": options.shadows, "attacks": found}
    write_atomic(_attacks_file(job), (json.dumps(kept, indent=1, allow_nan=False) + "\n").encode())
    return {**made, **({"audited": True} if options.shadows else {}), "attacks": found}


def _attacks(job: _Job, options: Options) -> list[dict[str, Any]]:
    """The findings of a whole audit, or of the loss threshold alone."""
    if options.shadows:
        return [one.to_mapping() for one in audit_folders([job.folder], shadows=options.shadows).findings]
    return [_attacked(job.plan, job.folder, job.seed, options.rows)]


def _attacks_file(job: _Job) -> Path:
    """Beside the run's folder, whose ledger names every file in it."""
    return job.folder.with_name(f"{job.folder.name}{ATTACKS_ENDING}")


def _stored_attacks(job: _Job, made: Mapping[str, Any], options: Options) -> list[dict[str, Any]] | None:
    """What attacks on the same run found before an interruption."""
    path = _attacks_file(job)
    if not options.resume or not path.is_file():
        return None
    try:
        known = json.loads(path.read_bytes())
    except ValueError:
        return None
    same = known.get("ledger_head") == made["ledger_head"] and known.get("shadows") == options.shadows
    return list(known["attacks"]) if same else None


def _of(jobs: Sequence[_Job], done: Mapping[int, dict[str, Any]], place: int) -> list[tuple[Path, dict[str, Any]]]:
    """The runs of one setting."""
    return [(job.folder, done[job.number]) for job in jobs if job.setting == place]


def _result(
    settings: Sequence[Variant],
    made: Sequence[Sequence[tuple[Path, dict[str, Any]]]],
    choose: str | None,
    options: Options,
) -> dict[str, Any]:
    """What a comparison says of the settings that ran."""
    seeds = options.seeds
    each = [[run for _, run in own] for own in made]
    folders = [folder for own in made for folder, _ in own]
    figures = [figures_of(own) for own in each]
    best = None if choose is None else cheapest(figures, parse_conditions(choose))
    cost = cost_of_choice([_spent(folder, run) for own in made for folder, run in own])
    return {
        "runs": [run for own in each for run in own],
        "folders": [folder.name for folder in folders],
        "settings": [
            {
                "set": setting.chosen,
                "protection": setting.protection,
                "runs": list(range(index * seeds, (index + 1) * seeds)),
                "figures": _reported(known),
                "intervals": {name: list(ends) for name, ends in intervals_of(own).items()},
            }
            for index, (setting, known, own) in enumerate(zip(settings, figures, each, strict=True))
        ],
        "objectives": list(objectives(figures)),
        "pareto": [index * seeds + seed for index in front(figures) for seed in range(seeds)],
        "chosen": None if best is None else best * seeds,
        "rows": options.rows,
        "tuning": None if cost is None else {**cost.to_mapping(), "rows": options.rows},
    }


def _spent(folder: Path, made: Mapping[str, Any]) -> dict[str, list[DP]]:
    """By site, what a run spent: by its ledger, or, where the hub added the noise, by what the run says of itself."""
    found = spent_by_site(folder)
    if found or made["epsilon"] is None:
        return found
    scope, void = made["dp"]["scope"], made["dp"]["void"]
    claim = DP(epsilon=made["epsilon"], delta=made["delta"], unit=made["unit"], scope=scope, void=void)
    return {site: [claim] for site in made["site_rows"]}


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
            {
                "set": setting.chosen,
                "runs": [0] if own else [],
                "figures": _reported(figures_of([kept])) if own else None,
            }
            for setting, own in ((setting, index == found.setting) for index, setting in enumerate(settings))
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
    backend = LowRiskSimulation() if rows == "low-risk" else Simulation()
    return run(plan, out=folder, seed=seed, resume=resume, force=force, backend=backend).to_mapping()


def _attacked(plan: Plan, folder: Path, seed: int, rows: Rows) -> dict[str, Any]:
    """The loss threshold on the model of a finished run, as a report shows it."""
    backend = LowRiskSimulation() if rows == "low-risk" else Simulation()
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
            if folder.is_dir() and (earlier := RunFolder(folder)).holds_run:
                earlier.take()
                shutil.rmtree(folder)
                earlier.release()
            elif folder.name.endswith(ATTACKS_ENDING):
                folder.unlink()


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
