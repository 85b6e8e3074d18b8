"""A first plan for tables that nobody has described yet: commented, and it runs as it is.

Roles come from the one inference of `kohort.tables.roles`; what cannot be known is a comment that says what to write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import polars as pl

from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.answers import TargetTask, task_of
from kohort.tables.datasets.catalogue import Dataset, open_table
from kohort.tables.dialect import ReadingOptions
from kohort.tables.domain import category_text
from kohort.tables.harmonise.profiles import missing_codes
from kohort.tables.harmonise.words import NO, YES
from kohort.tables.reading import declare_missing
from kohort.tables.roles import (
    FREE_TEXT,
    MANY_CATEGORIES,
    ColumnGuess,
    guess_columns,
    is_measured,
    plain_name,
    wide_texts,
)
from kohort.tables.schema import ColumnSpec

__all__ = ["Goal", "Suggestion", "suggest_plan"]

Goal = Literal["predict", "release"]
DEFAULT_SITES = 5
FEWEST_ROWS = 100
"""Rows per site that the default policy asks for."""
FEWEST_TESTED = 20
"""Below so many rows none is kept for testing."""
FEWEST_IN_BIN = 20
"""Persons of a bin, and of a class, that an additive model asks for."""
TARGET_NAMES = re.compile(
    r"(.*_)?(target|label|outcome|class|y|diagnosis|severity|died|death|mortality|income|survived|status|readmitted)"
)
QUASI_NAMES = re.compile(
    r"(.*_)?(age|sex|gender|race|ethnicity|zip(_?code)?|post(al)?_?code|city|county|region|birth.*|education|"
    r"marital.*|native_country|country|nationality|occupation|profession)"
)

_EVENTS = re.compile("encounter|visit|admission|hadm|stay|episode|order")
"""Words in names of identifiers of what happens to a person."""


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
        reading: How the tables were read: delimiter, encoding, decimal commas, missing markers.
        null_values: Numbers such as -999 that the plan reads as missing values, by column.
    """

    text: str
    target: str
    task: TargetTask
    identifiers: Mapping[str, str]
    person: str | None
    method: str
    reading: tuple[str, ...] = ()
    null_values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def suggest_plan(
    tables: Sequence[str], *, target: str | None = None, goal: Goal = "predict", epsilon: float | None = None
) -> Suggestion:
    """A plan for one table that is dealt out to simulated sites, or for one table per site.

    Args:
        tables: Named datasets or paths.
        target: The column to predict; guessed by its name, or the last column that can be, when None.
        goal: "predict" trains a model without showing rows; "release" trains on anonymised rows.
        epsilon: A privacy budget for "predict": what is learned gets noise.

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
    if epsilon is not None and not 0 < epsilon < inf:
        raise ConfigError(f"epsilon {epsilon:g} is no budget", hint="Give a number above 0, such as 1.0")
    if epsilon is not None and goal == "release":
        raise ConfigError("a budget is for the goal predict", hint="Drop one of the two")
    opened = [open_table(table) for table in tables]
    first = opened[0].frame
    frame = first if len(opened) == 1 else pl.concat([one.frame for one in opened], how="diagonal_relaxed")
    guesses = {guess.name: guess for guess in guess_columns(frame)}
    nulls = {} if opened[0].default_role is not None else _null_values(opened, guesses)
    frame, _ = declare_missing(frame, ReadingOptions(null_values=nulls))
    chosen, how = _target(opened[0], frame, target, guesses)
    task = task_of(frame[chosen], ColumnSpec())
    identifiers = {name: one.suspicion for name, one in guesses.items() if one.suspicion is not None and name != chosen}
    known = opened[0].default_role is not None
    person = _person(frame, identifiers)
    rest = [name for name in frame.columns if name != chosen and name not in identifiers]
    sets = [name for name in rest if guesses[name].shape == "items"]
    wide = wide_texts(frame.select(rest))
    empty = [name for name in rest if frame[name].null_count() == frame.height]
    used = [name for name in rest if name not in {*wide, *sets, *empty}]
    if not used:
        raise DataError(
            f"no column is left to learn {chosen} from",
            hint=f"{_why_none(identifiers, wide, sets, empty)}. Name another --target, or add a column",
        )
    quasi = [name for name in used if QUASI_NAMES.fullmatch(plain_name(name))][:6] or used[:3]
    method = "silo" if goal == "release" else "additive"
    dropped = {
        **{name: _why_wide(frame[name]) for name in wide},
        **({} if goal == "release" or not sets else dict.fromkeys(sets, "sets of items: for method syntactic")),
        **dict.fromkeys(empty, "no value at all"),
    }
    layout = _Layout.of(opened, frame, chosen, task)
    lines = [
        "# A first plan, made by kohort init. It runs as it is:",
        "#   kohort run PLAN.toml --out out",
        "",
        "[data]",
        f"table = {_toml(tables[0] if len(tables) == 1 else list(tables))}",
        f"target = {_toml(chosen)}  # {how}; {task.task}, because of {task.why}",
        _task_line(task, layout),
        *_class_lines(chosen, frame[chosen], task),
        *_identifier_lines(identifiers, person),
        *_drop_lines(dropped),
        *_null_lines(nulls),
        *([] if known else ['features = "rest"  # every column without another role']),
        *_quasi_lines(quasi, chosen, goal),
        'missing = "impute"  # or "drop": rows with a missing value are left out, and counted',
        *([] if method == "additive" else ['encoding = "onehot"']),
        "test = 0.3  # share of the rows that no site trains on"
        if layout.tests
        else f"test = 0  # {layout.rows} rows are too few to keep some for testing: nothing is measured",
        "",
        *_site_lines(opened, layout),
        *_method_lines(method, layout, epsilon),
    ]
    return Suggestion(
        text="\n".join(lines) + "\n",
        target=chosen,
        task=task,
        identifiers=identifiers,
        person=person,
        method=method,
        reading=_reading(tables, opened),
        null_values=nulls,
    )


def _null_values(opened: Sequence[Dataset], guesses: Mapping[str, ColumnGuess]) -> dict[str, tuple[int, ...]]:
    """Numbers that mean a missing value by the rule of `kohort harmonise`, for columns that all tables have."""
    found: dict[str, tuple[int, ...]] = {}
    for name, guess in guesses.items():
        if guess.suspicion is None and all(name in one.frame.columns for one in opened):
            codes = {code for one in opened for code in missing_codes(one.frame[name])}
            found |= {name: tuple(sorted(codes))} if codes else {}
    return found


def _reading(tables: Sequence[str], opened: Sequence[Dataset]) -> tuple[str, ...]:
    """How the tables were read, with the name of the table where there are several."""
    alone = len(tables) == 1
    return tuple(
        said if alone else f"{table}: {said}"
        for table, one in zip(tables, opened, strict=True)
        for said in (*one.notes, *one.reading)
    )


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """How many rows and sites there are, and how few rows a class has."""

    rows: int
    """Rows with a target: of all tables, or of the smallest one if each site has its own."""
    sites: int
    per_site: int
    rarest: int
    """Rows of the rarest class; all rows where the target is a number."""

    @classmethod
    def of(cls, opened: Sequence[Dataset], frame: pl.DataFrame, target: str, task: TargetTask) -> _Layout:
        answered = frame[target].drop_nulls()
        if answered.is_empty():
            raise DataError(f"column {target!r} has no values to predict", hint="Name another one with --target")
        rarest = int(answered.value_counts()["count"].min()) if task.task == "classification" else len(answered)  # type: ignore[arg-type]
        if len(opened) > 1:
            least = min(len(one.frame[target].drop_nulls()) for one in opened if target in one.frame.columns)
            return cls(rows=len(answered), sites=len(opened), per_site=int(least * 0.7), rarest=rarest)
        rows = len(answered)
        sites = max(3, min(DEFAULT_SITES, int(rows * 0.7) // FEWEST_ROWS)) if rows >= 3 else 1
        return cls(rows=rows, sites=sites, per_site=int(rows * 0.7) // sites, rarest=rarest)

    @property
    def tests(self) -> bool:
        return self.rows >= FEWEST_TESTED

    @property
    def is_small(self) -> bool:
        return self.per_site < 2 * FEWEST_ROWS

    @property
    def min_bin(self) -> int:
        """What an additive model can ask of a bin and of a class in a small table."""
        return max(1, min(FEWEST_IN_BIN, self.rows // 20, self.rarest // 3))


def _why_wide(column: pl.Series) -> str:
    if is_measured(column.drop_nulls()):
        how = f'[data.mapping.columns.{_toml(column.name)}] type = "number" reads them'
        return f"numbers with a unit, written as text: {how}"
    return f"texts with more than {MANY_CATEGORIES} values: group them first"


def _why_none(identifiers: Mapping[str, str], wide: Sequence[str], sets: Sequence[str], empty: Sequence[str]) -> str:
    """What every other column is."""
    parts = {"identifiers": identifiers, "texts with many values": wide, "sets of items": sets, "empty": empty}
    said = [f"{', '.join(names)} ({what})" for what, names in parts.items() if names]
    return f"The others are: {'; '.join(said)}" if said else "There is no other column"


def _target(
    opened: Dataset, frame: pl.DataFrame, given: str | None, guesses: Mapping[str, ColumnGuess]
) -> tuple[str, str]:
    if given is not None:
        if given not in frame.columns:
            raise DataError(f"the table has no column {given!r}", hint=nearest(given, frame.columns))
        return given, "named"
    if opened.target is not None:
        return opened.target, "the column that is usually predicted"
    can_be = [name for name in frame.columns if _can_be_target(frame[name], guesses[name])]
    named = [name for name in can_be if TARGET_NAMES.fullmatch(plain_name(name))]
    if named:
        return named[-1], "guessed by its name; another one: --target"
    if can_be:
        return can_be[-1], "guessed: the last column that can be predicted; another one: --target"
    return frame.columns[-1], "guessed: the last column; another one: --target"


def _can_be_target(column: pl.Series, guess: ColumnGuess) -> bool:
    """Neither an identifier, nor a set, nor a date, with two values at least and mostly there."""
    known = column.drop_nulls()
    fits = guess.suspicion is None and guess.shape not in ("items", "date", "text")
    return fits and 2 * len(known) > len(column) and known.n_unique() > 1


def _person(frame: pl.DataFrame, identifiers: Mapping[str, str]) -> str | None:
    """The suspected identifier that names persons.

    No free text, in every row, rather one with an identifier's name, with the fewest values, no visit's.
    """

    def rank(name: str) -> tuple[bool, bool, bool, int, bool]:
        column, why = frame[name], identifiers[name]
        events = bool(_EVENTS.search(name.lower()))
        unnamed = not why.startswith("is named like")
        return why == FREE_TEXT, column.null_count() > 0, unnamed, column.n_unique(), events

    counted = sorted(identifiers, key=rank)
    return counted[0] if counted else None


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


def _task_line(task: TargetTask, layout: _Layout) -> str:
    """A comment; but sites of a few rows each cannot tell classes that are numbers from a number."""
    if layout.is_small and "whole numbers" in task.why:
        return f"task = {_toml(task.task)}"
    other = "regression" if task.task == "classification" else "classification"
    return f"# task = {_toml(other)}  # if that is wrong"


def _class_lines(target: str, column: pl.Series, task: TargetTask) -> list[str]:
    """The order of two classes such as ja and nein, where yes would come first: measures are those of the last one."""
    texts = sorted(category_text(column.drop_nulls().unique()).to_list())
    if task.task != "classification" or len(texts) != 2 or column.dtype != pl.String:
        return []
    first, last = (text.strip().casefold() for text in texts)
    if first not in YES or last not in NO:
        return []
    ordered = _toml([texts[1], texts[0]])
    return [f"categories = {{{_toml(target)} = {ordered}}}  # F1, precision and recall are those of the last one"]


def _drop_lines(dropped: Mapping[str, str]) -> list[str]:
    return [
        *(f"# {name}: {why}" for name, why in dropped.items()),
        *([f"drop = {_toml(list(dropped))}"] if dropped else []),
    ]


def _null_lines(nulls: Mapping[str, Sequence[int]]) -> list[str]:
    if not nulls:
        return []
    by_column = ", ".join(f"{_toml(name)} = {list(codes)}" for name, codes in nulls.items())
    return [
        "# far from the other numbers of its column, so read as a missing value; remove it if it was measured",
        f"reading = {{null_values = {{{by_column}}}}}",
    ]


def _site_lines(opened: Sequence[Dataset], layout: _Layout) -> list[str]:
    if len(opened) > 1:
        lines = ["[sites]", 'split = "files"  # one table per site']
    else:
        lines = [
            "[sites]",
            f"count = {layout.sites}  # simulated",
            'split = "iid"  # or "column:NAME", a column of site names',
        ]
    lines.append("")
    if layout.is_small:
        lines += [
            "[policy]  # the table is small, so this simulation asks for less than real sites do",
            "min_rows = 1  # real sites: 100",
            "min_cell = 1  # fewest persons, over all sites, who share a value that is told; real sites: 10",
            "",
        ]
    return lines


def _method_lines(method: str, layout: _Layout, epsilon: float | None) -> list[str]:
    if method == "silo":
        return [
            *["[model]", 'kind = "mlp"', "hidden = [24]", ""],
            *["[train]", "rounds = 40", "local_epochs = 2", "batch = 64", "lr = 0.005", ""],
            *["[method]", 'name = "silo"  # each site trains on its own anonymised rows', ""],
            *["[method.anonymise]", "k = 5  # persons that share the values somebody may know"],
        ]
    lines = ["[method]", 'name = "additive"  # one curve per column, over secure sums; kohort explain shows them']
    if layout.is_small and epsilon is None and layout.min_bin < FEWEST_IN_BIN:
        lines.append(f"min_bin = {layout.min_bin}  # fewest persons of a bin and of a class; by default 20")
    if epsilon is not None:
        lines.append(f"dp = {epsilon:g}  # epsilon: the smaller, the more noise and the better hidden each person")
    if layout.sites < 3:
        lines += ["", "[method.secure]", 'sum = "none"  # nothing can be hidden in a sum of fewer than three sites']
    return lines


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
