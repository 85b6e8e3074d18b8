"""Reading and validating the runs that a report shows.

A run is the JSON object of `kohort run`, from Python or from a run folder. A run that did not finish is an object with
`method` and `error`.

Guarantee: files are not trusted. A run is shown only if its file validates; if there is a ledger beside it, that ledger
must verify, end in the head that the run names, and hold the hashes of all files of the run. What left, what was spent
and how many bytes were sent comes from the ledger, not from the run's file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from kohort.crypto.identity.user import user_pins
from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.ledger.bound import UNKNOWN_SIGNER
from kohort.privacy.ledger.summary import with_ledger_figures
from kohort.privacy.ledger.verify import verify_ledger
from kohort.report import words
from kohort.report.measured import Calibration, GroupScores, MeasuredRisk
from kohort.report.sealed import described
from kohort.report.words import printable

__all__ = [
    "FAILED_FILE",
    "RUN_FILE",
    "AttackRow",
    "DisclosureRow",
    "LedgerCheck",
    "Run",
    "check_run",
    "read_runs",
    "read_shared_plan",
]

RUN_FILE = "run.json"
PLAN_FILE = "plan.json"
FAILED_FILE = "failed.json"
"""Takes the place of `run.json` in the folder of a run that ended with an error."""

Count = Annotated[int, Ge(0)]
Bounds = dict[str, tuple[float, float] | None]
Measures = dict[str, float | Bounds | None]


@dataclass(frozen=True, kw_only=True)
class DisclosureRow:
    """What one recipient received from all sites, in one task and under one guarantee."""

    recipient: str
    kind: str
    guarantee: str
    rows: Count
    what: str = ""
    releases: Count = 1
    size: Count = 0
    in_words: str = ""
    """The guarantee as an officer reads it; empty without a ledger."""
    shown_as: str = ""
    """The kind that a page shows where the ledger's does not tell it: sealed totals, and what was told of them."""

    @property
    def holds_rows(self) -> bool:
        """Whether the bytes can hold rows or their classes: a guarantee about rows also covers counts of them."""
        return self.kind in words.KINDS_OF_ROWS and self.held != "counts"

    @property
    def held(self) -> str:
        """Whether the bytes held "counts" or "classes" of the rows that they are about; empty for all else."""
        return words.held(self.kind, rows=self.rows, size=self.size, releases=self.releases)

    @property
    def shown(self) -> words.Kind:
        """Its kind, as a page shows it."""
        return words.kind_named(self.shown_as or self.kind)

    @property
    def label(self) -> str:
        """What the bytes held, in a few words."""
        return f"{self.held} of {self.shown.label}" if self.held else self.shown.label


@dataclass(frozen=True, kw_only=True)
class LedgerCheck:
    """What a ledger that verified contains: counts of its lines, releases and refusals."""

    lines: Count
    releases: Count
    refusals: Count
    signed_by: str = ""
    """Whose signature was checked; empty when the signer is not known here."""
    signer: str = ""
    """The fingerprint of the key that signed."""
    notes: list[str] = field(default_factory=list)
    """What the reader must be told of it."""


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """What one attack of `kohort audit` found, or why it was not made; see `evaluate.attacks.finding.Finding`."""

    attack: str
    family: str
    on: str
    by: str
    verdict: str
    measure: str = ""
    success: float | None = None
    guess: float | None = None
    interval: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as the report reads it: the keys of the JSON object of `kohort run`; unknown keys are ignored."""

    method: str
    name: str = ""
    """Distinguishes runs of the same method; empty for the method's name."""
    error: str = ""
    """Why the run did not finish; empty for a finished run."""
    engine: str = "local"
    seed: int | None = None
    sites: Count = 0
    site_rows: dict[str, int] = field(default_factory=dict)
    rows_held: Count = 0
    """Training rows of all sites, where those of each are not told."""
    absent: Count = 0
    """Sites that took no part, where they are not named."""
    rounds: Count = 0
    stopped_by: str = ""
    metrics: dict[str, float | list[list[int]] | dict[str, Measures] | Bounds | None] = field(default_factory=dict)
    history: list[dict[str, float | None]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    watt_hours: float | None = None
    disclosed: list[DisclosureRow] = field(default_factory=list)
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    dp: dict[str, bool | float | str | None] | None = None
    """The scope of the privacy budget, whom it trusts, and epsilon by other accountants."""
    refused: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_out: list[dict[str, str | float | None]] = field(default_factory=list)
    """Rows, values or columns that were not used, with why and how many."""
    baselines: dict[str, dict[str, float | str | None]] = field(default_factory=dict)
    """What predicting without a model gives, by name."""
    curves: dict[str, Any] | None = None
    """What `kohort.report.curves.curves_of_model` says of its model; None where the model has no curves."""
    ledger_head: str = ""
    ledger: LedgerCheck | None = None
    """None when there was no ledger to verify."""
    attacks: list[AttackRow] = field(default_factory=list)
    """What `kohort audit` found; empty for a run that was not audited."""
    risk: MeasuredRisk | None = None
    """Re-identification risk before and after, where an audit counted it."""
    calibration: Calibration | None = None
    groups: list[GroupScores] | None = None

    @property
    def rows(self) -> int:
        """Training rows of all sites; 0 where they are not known."""
        return sum(self.site_rows.values()) or self.rows_held

    @property
    def only_classes_left(self) -> bool:
        """Whether classes of generalised rows left, and no rows by themselves."""
        released = {item.held for item in self.disclosed if item.holds_rows}
        return released == {"classes"}

    @property
    def attacked(self) -> list[AttackRow]:
        """The attacks that were made."""
        return [one for one in self.attacks if one.success is not None]

    @property
    def unattacked(self) -> list[AttackRow]:
        """What was not attacked; the notes say why."""
        return [one for one in self.attacks if one.success is None]

    @property
    def membership(self) -> float | None:
        """The largest area under the curve of a membership attack; None where none was made."""
        return max((one.success or 0.0 for one in self.attacked if one.family == "membership"), default=None)

    @property
    def label(self) -> str:
        """The name of the run on the page."""
        return self.name or self.method

    @property
    def budget(self) -> str:
        """The privacy budget in words, with its conditions; empty without differential privacy."""
        return words.budget({"epsilon": self.epsilon, "delta": self.delta, "unit": self.unit, "dp": self.dp})

    @property
    def is_classifier(self) -> bool:
        """Whether the model predicts classes rather than a number."""
        return "r2" not in self.metrics

    @property
    def score(self) -> float | None:
        """Accuracy of a classifier, R² of a regression; None when nothing was measured."""
        return self.score_of(self.metrics)

    def score_of(self, metrics: Mapping[str, Any]) -> float | None:
        """The same score out of other measures, such as those of one site."""
        value = metrics.get("accuracy" if self.is_classifier else "r2")
        return float(value) if isinstance(value, int | float) else None

    def interval(self, measure: str) -> tuple[float, float] | None:
        """The 95 % bootstrap interval of a measure, when the run has one."""
        found = self.metrics.get("intervals")
        bounds = found.get(measure) if isinstance(found, dict) else None
        return bounds if isinstance(bounds, tuple) else None

    @property
    def by_site(self) -> dict[str, Measures]:
        """Measures on the test rows of each site; empty when test rows are not assigned to sites."""
        found = self.metrics.get("by_site")
        return {name: item for name, item in found.items() if isinstance(item, dict)} if isinstance(found, dict) else {}


def check_run(raw: object, *, where: str) -> Run:
    """Validate the JSON object of a run.

    Args:
        raw: The decoded JSON.
        where: What errors call it, such as the path of its file.

    Returns:
        The run, with unprintable characters in its texts escaped.

    Raises:
        IntegrityError: It is not a run. The error names the key that is wrong and never shows its value.
    """
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
    # Without test rows a run measures nothing, neither at its end nor after a round.
    unmeasured = raw.get("metrics") == {} and not any("accuracy" in point for point in run.history)
    if not run.error and run.score is None and not unmeasured:
        raise IntegrityError(f"{where} is damaged: 'metrics' is missing or malformed", hint="Run the plan again")
    return run


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """Read the run of a run folder, or every run one level below `folder`, each named after its folder.

    Args:
        folder: The `--out` folder of a run, or a folder that holds several of them.

    Returns:
        The JSON objects as stored, except that `ledger` holds what verifying the ledger found here; None without one.
        Of several, a folder with a ledger and no run is one that did not finish.

    Raises:
        ConfigError: `folder` holds no run or cannot be read.
        IntegrityError: A run or its ledger was changed.
    """
    if _holds_run(folder):
        return [_read_run(folder)]
    found = [place for place in _folders_in(folder) if _holds_run(place)]
    if not found:
        raise ConfigError(
            f"{folder} holds no {RUN_FILE}", hint="Give the --out folder of a run, or one that holds several"
        )
    begun = [place for place in _folders_in(folder) if place in found or (place / "ledger").is_dir()]
    return [{**_read_one_of_several(place), "name": place.name} for place in begun]


def _read_one_of_several(place: Path) -> dict[str, Any]:
    """A run beside others; what is wrong with it is said with its name."""
    if not _holds_run(place):
        return {"method": "unknown", "error": f"it did not finish, or its {RUN_FILE} is missing"}
    try:
        return _read_run(place)
    except IntegrityError as error:
        raise IntegrityError(f"{place.name}: {error.message}", hint=error.hint) from error


def read_shared_plan(folder: Path) -> dict[str, Any] | None:
    """The keys and values that the plans of all runs of `folder` have in common.

    Args:
        folder: As in `read_runs`.

    Returns:
        A plan with these keys only; None when no plan is stored there.

    Raises:
        ConfigError: A plan cannot be read.
        IntegrityError: A plan is not a JSON object.
    """
    places = [folder] if _holds_run(folder) else _folders_in(folder)
    found = [_read_object(place / PLAN_FILE) for place in places if (place / PLAN_FILE).is_file()]
    if not found:
        return None
    shared = found[0]
    for other in found[1:]:
        shared = _common_keys(shared, other)
    return shared


def _common_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that have the same value in both, section by section."""
    result: dict[str, Any] = {}
    for key in first.keys() & second.keys():
        one, other = first[key], second[key]
        if one == other:
            result[key] = one
        elif isinstance(one, Mapping) and isinstance(other, Mapping):
            result[key] = _common_keys(one, other)
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
        if (folder / "model").exists():
            raise IntegrityError(
                f"{folder / 'ledger'} is missing: nothing says what the run's files were", hint="Run the plan again"
            )
        return {**raw, "ledger": None, "curves": None}  # what the file itself claims about its ledger is not evidence
    found = verify_ledger(folder, pins=user_pins())
    if finished and found.head != run.ledger_head:
        raise IntegrityError(
            f"the ledger in {folder} is not the one {RUN_FILE} names", hint="Compare with the head that was printed"
        )
    checked = {**vars(found), "notes": [*([] if found.pinned else [UNKNOWN_SIGNER]), *found.notes]}
    if not finished:
        return {**raw, "ledger": checked, "curves": None}
    figures = with_ledger_figures(raw, folder)
    plan = _read_object(folder / PLAN_FILE) if (folder / PLAN_FILE).is_file() else None
    return {**figures, "disclosed": described(figures["disclosed"], plan), "ledger": checked, "curves": None}


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
