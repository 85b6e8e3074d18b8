"""A first plan for tables that nobody has described yet: commented, and it runs as it is.

Roles come from the one inference of `kohort.tables.roles`; what cannot be known is a comment that says what to write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from kohort.errors import ConfigError, DataError, nearest
from kohort.methods.registry import methods
from kohort.tables.answers import TargetTask, task_of
from kohort.tables.datasets.catalogue import Dataset, open_table
from kohort.tables.roles import guess_columns, plain_name
from kohort.tables.schema import ColumnSpec

__all__ = ["Goal", "Suggestion", "suggest_plan"]

Goal = Literal["predict", "release"]
DEFAULT_SITES = 5
FEWEST_ROWS = 100
"""Rows per site that the default policy asks for."""
TARGET_NAMES = re.compile(
    r"(.*_)?(target|label|outcome|class|y|diagnosis|severity|died|death|mortality|income|survived|status|readmitted)"
)
QUASI_NAMES = re.compile(
    r"(.*_)?(age|sex|gender|race|ethnicity|zip(_?code)?|post(al)?_?code|city|county|region|birth.*|education|"
    r"marital.*|native_country|country|nationality|occupation|profession)"
)
MANY_CATEGORIES = 200


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A plan, and what was decided for it.

    Attributes:
        text: The plan, as TOML.
        target: The column to predict.
        task: What is learned, and why.
        identifiers: Suspected identifiers, and why.
        person: The column that seems to name the person.
        method: The method.
    """

    text: str
    target: str
    task: TargetTask
    identifiers: Mapping[str, str]
    person: str | None
    method: str


def suggest_plan(tables: Sequence[str], *, target: str | None = None, goal: Goal = "predict") -> Suggestion:
    """A plan for one table that is dealt out to simulated sites, or for one table per site.

    Args:
        tables: Named datasets or paths.
        target: The column to predict; guessed by its name, or the last column, when None.
        goal: "predict" trains a model without showing rows; "release" trains on anonymised rows.

    Returns:
        The plan and what was decided.

    Raises:
        ConfigError: Two tables are given, or an unknown goal.
        DataError: A table cannot be read or lacks the target.
    """
    if not tables:
        raise ConfigError("no table is given", hint="Name one table, or one per site")
    if goal not in ("predict", "release"):
        raise ConfigError(f"unknown goal {goal!r}", hint=nearest(goal, ("predict", "release")))
    opened = [open_table(table) for table in tables]
    first = opened[0].frame
    frame = first if len(opened) == 1 else pl.concat([one.frame for one in opened], how="diagonal_relaxed")
    chosen, how = _target(opened[0], frame, target)
    task = task_of(frame[chosen], ColumnSpec())
    guesses = {guess.name: guess for guess in guess_columns(frame, declared=(chosen,))}
    identifiers = {name: guess.suspicion for name, guess in guesses.items() if guess.suspicion is not None}
    known = opened[0].default_role is not None
    person = _person(frame, identifiers)
    rest = [name for name in frame.columns if name != chosen and name not in identifiers]
    wide = [name for name in rest if guesses[name].shape == "category" and frame[name].n_unique() > MANY_CATEGORIES]
    used = [name for name in rest if name not in wide]
    if not used:
        raise DataError("no column is left to learn from", hint="Every other column looks like an identifier")
    quasi = [name for name in used if QUASI_NAMES.fullmatch(plain_name(name))][:6] or used[:3]
    method = "silo" if goal == "release" else "additive" if "additive" in methods() else "fedavg"
    rows = _rows(opened, frame)
    lines = [
        "# A first plan, made by kohort init. It runs as it is:",
        "#   kohort run PLAN.toml --out out",
        "",
        "[data]",
        f"table = {_toml(tables[0] if len(tables) == 1 else list(tables))}",
        f"target = {_toml(chosen)}  # {how}; {task.task}, because of {task.why}",
        f"# task = {_toml('regression' if task.task == 'classification' else 'classification')}  # if that is wrong",
        *_identifier_lines(identifiers, person),
        *([f"drop = {_toml(wide)}  # texts with more than {MANY_CATEGORIES} values: group them first"] if wide else []),
        *([] if known else ['features = "rest"  # every column without another role']),
        *_quasi_lines(quasi, chosen, goal),
        'missing = "impute"  # or "drop": rows with a missing value are left out, and counted',
        *([] if method == "additive" else ['encoding = "onehot"']),
        "test = 0.3  # share of the rows that no site trains on",
        "",
        *_site_lines(opened, rows),
        *_method_lines(method, classes=task.task == "classification"),
    ]
    return Suggestion(
        text="\n".join(lines) + "\n", target=chosen, task=task, identifiers=identifiers, person=person, method=method
    )


def _target(opened: Dataset, frame: pl.DataFrame, given: str | None) -> tuple[str, str]:
    if given is not None:
        if given not in frame.columns:
            raise DataError(f"the table has no column {given!r}", hint=nearest(given, frame.columns))
        return given, "named"
    if opened.target is not None:
        return opened.target, "the column that is usually predicted"
    named = [name for name in frame.columns if TARGET_NAMES.fullmatch(plain_name(name))]
    if named:
        return named[-1], "guessed by its name"
    return frame.columns[-1], "guessed: the last column"


def _person(frame: pl.DataFrame, identifiers: Mapping[str, str]) -> str | None:
    """The suspected identifier that names persons: the one with the fewest values where rows repeat, else the first."""
    repeated = [name for name in identifiers if frame[name].n_unique() < frame.height]
    counted = sorted(repeated or identifiers, key=lambda name: frame[name].n_unique())
    return counted[0] if counted else None


def _rows(opened: Sequence[Dataset], frame: pl.DataFrame) -> int:
    return min(one.frame.height for one in opened) if len(opened) > 1 else frame.height


def _identifier_lines(identifiers: Mapping[str, str], person: str | None) -> list[str]:
    if not identifiers:
        return ["identifiers = []  # columns that name persons; none is suspected"]
    lines = [f"# {name}: {why}" for name, why in identifiers.items()]
    lines.append(f"identifiers = {_toml(list(identifiers))}  # never learned from, in no output")
    if len(identifiers) > 1:
        lines.append(f"person = {_toml(person)}  # the one that names a person: persons are counted, not rows")
    return lines


def _quasi_lines(quasi: Sequence[str], target: str, goal: Goal) -> list[str]:
    if goal == "release":
        return [
            f"quasi = {_toml(list(quasi))}  # what somebody may know of a person; generalised before it leaves",
            f"sensitive = {_toml([target])}",
        ]
    return [f"# quasi = {_toml(list(quasi))}  # what somebody may know of a person; for methods that release rows"]


def _site_lines(opened: Sequence[Dataset], rows: int) -> list[str]:
    if len(opened) > 1:
        count, lines = len(opened), ["[sites]", 'split = "files"  # one table per site']
        per_site = rows
    else:
        count = max(3, min(DEFAULT_SITES, int(rows * 0.7) // FEWEST_ROWS))
        lines = [
            "[sites]",
            f"count = {count}  # simulated",
            'split = "iid"  # or "column:NAME", a column of site names',
        ]
        per_site = int(rows * 0.7) // count
    lines.append("")
    if per_site < 2 * FEWEST_ROWS:
        lines += [
            "[policy]  # the table is small, so this simulation asks for less than real sites do",
            "min_rows = 1  # real sites: 100",
            f"min_cell = 1  # fewest persons who share a value that is told; real sites: 10, and {count} of them",
            "",
        ]
    return lines


def _method_lines(method: str, *, classes: bool) -> list[str]:
    if method == "additive":
        return ["[method]", 'name = "additive"  # curves per column, over secure sums']
    model = ["[model]", 'kind = "mlp"', "hidden = [24]", ""]
    train = ["[train]", "rounds = 40", "local_epochs = 2", "batch = 64", "lr = 0.005", ""]
    if method == "silo":
        return [*model, *train, "[method]", 'name = "silo"  # each site trains on its own anonymised rows', "",
                "[method.anonymise]", "k = 5"]  # fmt: skip
    del classes
    return [*model, *train, "[method]", 'name = "fedavg"', "",
            "[method.secure]", 'sum = "masks"  # the hub sees totals alone; needs three sites']  # fmt: skip


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
