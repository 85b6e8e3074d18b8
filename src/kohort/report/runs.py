"""What a report is made from: finished runs, checked before a word of them is shown.

A run is the JSON object of `kohort run`, from Python or from a run folder. One that did not finish is an object with
`method` and `error`. What lies on a disk is trusted no further than it checks out: the file must hold a run, and the
ledger beside it must verify and end in the head the run names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.ledger.verify import verify_ledger
from kohort.report import words
from kohort.report.words import printable

__all__ = ["FAILED_FILE", "RUN_FILE", "Given", "Run", "Sound", "check_run", "read_runs", "read_shared_plan"]

RUN_FILE = "run.json"
PLAN_FILE = "plan.json"
FAILED_FILE = "failed.json"
"""Stands in for `run.json` where a run ended with an error that is worth reporting."""

Count = Annotated[int, Ge(0)]
Bounds = dict[str, tuple[float, float] | None]
Measures = dict[str, float | Bounds | None]


@dataclass(frozen=True, kw_only=True)
class Given:
    """What one recipient was given by all sites, in one task under one kind of guarantee."""

    recipient: str
    kind: str
    guarantee: str
    rows: Count
    what: str = ""
    releases: Count = 1
    size: Count = 0


@dataclass(frozen=True, kw_only=True)
class Sound:
    """What verifying a ledger found."""

    lines: Count
    releases: Count
    refusals: Count


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as the report reads it; keys it does not know are left alone."""

    method: str
    name: str = ""
    """What tells this run from others of the same method; the method's name when empty."""
    error: str = ""
    """Why the run did not finish; empty for one that did."""
    engine: str = "local"
    seed: int | None = None
    sites: Count = 0
    site_rows: dict[str, int] = field(default_factory=dict)
    rounds: Count = 0
    stopped_by: str = ""
    metrics: dict[str, float | list[list[int]] | dict[str, Measures] | Bounds | None] = field(default_factory=dict)
    history: list[dict[str, float | None]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    watt_hours: float | None = None
    disclosed: list[Given] = field(default_factory=list)
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    dp: dict[str, bool | float | str | None] | None = None
    """Scope, trust and other accounts of the budget."""
    refused: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ledger_head: str = ""
    ledger: Sound | None = None
    """None when there was no ledger to verify."""

    @property
    def label(self) -> str:
        """What the page calls it."""
        return self.name or self.method

    @property
    def budget(self) -> str:
        """The privacy budget with everything it must not be read without; empty when nothing was noised."""
        return words.budget({"epsilon": self.epsilon, "delta": self.delta, "unit": self.unit, "dp": self.dp})

    @property
    def is_classifier(self) -> bool:
        """Whether classes were predicted, rather than a number."""
        return "r2" not in self.metrics

    @property
    def score(self) -> float | None:
        """Accuracy, or R2 for a number; none when the run did not finish."""
        return self.score_of(self.metrics)

    def score_of(self, metrics: Mapping[str, Any]) -> float | None:
        """The same figure out of other measures, such as one site's."""
        value = metrics.get("accuracy" if self.is_classifier else "r2")
        return float(value) if isinstance(value, int | float) else None

    def interval(self, measure: str) -> tuple[float, float] | None:
        """Between which figures a measure would lie on other test rows, when the run says so."""
        found = self.metrics.get("intervals")
        bounds = found.get(measure) if isinstance(found, dict) else None
        return bounds if isinstance(bounds, tuple) else None

    @property
    def by_site(self) -> dict[str, Measures]:
        """Measures on the test rows of each site; empty when the test rows belong to no site."""
        found = self.metrics.get("by_site")
        return {name: item for name, item in found.items() if isinstance(item, dict)} if isinstance(found, dict) else {}


def check_run(raw: object, *, where: str) -> Run:
    """`raw` as a run with printable names; if it is none, IntegrityError names the key that is wrong, not its value."""
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(raw, Mapping):
        raise IntegrityError(f"{where} does not hold a run", hint="Run the plan again")
    try:
        run = TypeAdapter(Run).validate_python(printable(raw))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"][:1])
        raise IntegrityError(
            f"{where} is damaged: {key!r} is missing or malformed", hint="Run the plan again"
        ) from None
    # Without test rows a run measures nothing, neither in the end nor after a round.
    unmeasured = raw.get("metrics") == {} and not any("accuracy" in point for point in run.history)
    if not run.error and run.score is None and not unmeasured:
        raise IntegrityError(f"{where} is damaged: 'metrics' is missing or malformed", hint="Run the plan again")
    return run


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """The run of a run folder, or every run one level below `folder`, each named after its folder."""
    if _holds_run(folder):
        return [_read_run(folder)]
    found = [place for place in _folders_in(folder) if _holds_run(place)]
    if not found:
        raise ConfigError(
            f"{folder} holds no {RUN_FILE}", hint="Give the --out folder of a run, or one that holds several"
        )
    return [{**_read_run(place), "name": place.name} for place in found]


def read_shared_plan(folder: Path) -> dict[str, Any] | None:
    """What the plans of all runs of `folder` agree on; none when no plan lies there."""
    places = [folder] if _holds_run(folder) else _folders_in(folder)
    found = [_read_object(place / PLAN_FILE) for place in places if (place / PLAN_FILE).is_file()]
    if not found:
        return None
    shared = found[0]
    for other in found[1:]:
        shared = _agreed(shared, other)
    return shared


def _agreed(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The keys on which both agree, section by section."""
    result: dict[str, Any] = {}
    for key in first.keys() & second.keys():
        one, other = first[key], second[key]
        if one == other:
            result[key] = one
        elif isinstance(one, Mapping) and isinstance(other, Mapping):
            result[key] = _agreed(one, other)
    return {key: result[key] for key in first if key in result}


def _holds_run(folder: Path) -> bool:
    return (folder / RUN_FILE).is_file() or (folder / FAILED_FILE).is_file()


def _folders_in(folder: Path) -> Sequence[Path]:
    try:
        return sorted(place for place in folder.iterdir() if place.is_dir())
    except OSError as error:
        raise ConfigError(
            f"{folder} is not a folder that can be read", hint="Give the --out folder of a run"
        ) from error


def _read_run(folder: Path) -> dict[str, Any]:
    finished = (folder / RUN_FILE).is_file()
    path = folder / (RUN_FILE if finished else FAILED_FILE)
    raw = _read_object(path)
    run = check_run(raw, where=str(path))
    if bool(run.error) == finished:
        raise IntegrityError(f"{path} does not say how the run ended", hint="Run the plan again")
    if not (folder / "ledger").is_dir():
        return {**raw, "ledger": None}  # a file does not vouch for itself
    found = verify_ledger(folder)
    if finished and found.head != run.ledger_head:
        raise IntegrityError(
            f"the ledger in {folder} is not the one {RUN_FILE} names", hint="Compare with the head that was printed"
        )
    return {**raw, "ledger": dict(vars(found))}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", hint="Check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path} is not JSON", hint="Run the plan again") from error
    if not isinstance(raw, dict):
        raise IntegrityError(f"{path} does not hold a JSON object", hint="Run the plan again")
    return raw
