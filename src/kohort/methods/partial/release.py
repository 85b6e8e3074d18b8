"""Generalise a batch of rows before it is sent: inputs are equal within classes of at least k rows, or k persons.

Classes are formed by clustering on a public grid, so no boundary of a class discloses a value. A number is released as
the mean of its class, rounded to 1/50 of the public range. Where fewer than three persons of the class are above the
lower end of the range, or one person makes up most of the mean, single values could be computed from the mean; the
middle of the class's grid cells is released instead. Columns with public bins are released as a bin, categories as the
most frequent value of the class, item sets as the items that more than half of the class have. A value that most of a
class lacks is missing for the whole class.

Sensitive columns, the target among them, keep the value of each row. Numbers among them go out as the middle of a
range of the public grid that at least k persons fall into.

Guarantee: the batch by itself meets k and, over every sensitive column, l; no number of a sensitive column is rarer
than k. Where rows say whom they are about, all of this counts persons. The checker, which shares no code with this
file, has verified the rows that are returned. A batch too small for that is not released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.classes import sorted_distinct
from kohort.anonymity.checker.measures import rarest_value, unmet
from kohort.anonymity.relational.algorithms.cluster import cluster
from kohort.anonymity.relational.codes import ranked
from kohort.anonymity.relational.problem import Partition, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns, require_feasible
from kohort.errors import IntegrityError, RefusedError
from kohort.tables.domain import ColumnDomain, Domain, category_text, item_lists, number
from kohort.tables.schema import Schema

__all__ = ["GRID", "generalise_batch", "require_releasable", "sensitive_of", "sets_as_text"]

GRID = 50
DOMINANT = 0.5
"""If one person has more than this share of a class's total, the mean is not released."""
FEW = 3

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_PERSON = "\0person"
_BETWEEN_ITEMS = "\0"


def sensitive_of(schema: Schema) -> tuple[str, ...]:
    """The columns of a batch whose values rows keep, and which l is about.

    Args:
        schema: The roles of the columns.

    Returns:
        The target, and the inputs that are declared sensitive.
    """
    return (str(schema.target), *(name for name in schema.inputs if name in schema.sensitive))


def generalise_batch(
    frame: pl.DataFrame,
    *,
    schema: Schema,
    domain: Domain,
    k: int,
    l: int,  # noqa: E741 - the literature's own letter
    persons: Integers | None = None,
) -> pl.DataFrame:
    """Generalise the inputs of a batch of rows; sensitive columns keep their values, numbers on a public grid.

    Args:
        frame: The rows.
        schema: The roles of their columns.
        domain: Public ranges and categories of the columns.
        k: Fewest rows, or persons, per class.
        l: Fewest values of every sensitive column per class.
        persons: A number for whom each row is about, without gaps; None where every row is its own person.

    Returns:
        The generalised rows, verified by the checker.

    Raises:
        RefusedError: k or l cannot be met.
        IntegrityError: The checker found that the result does not meet them.
    """
    private = sensitive_of(schema)
    columns = [name for name in schema.inputs if name not in private]
    who = np.arange(frame.height, dtype=np.int64) if persons is None else persons
    kept, sensitive, rule = _kept_columns(frame, schema=schema, domain=domain, k=k, l=l, persons=persons)
    on_grid = frame.select(_on_grid(frame[name], schema, domain.columns[name]) for name in columns)
    classes = _Classes(cluster(Problem(code_table(on_grid, columns), sensitive, rule)), who)
    cells = {name: _released(frame[name], classes, schema, domain.columns[name]) for name in columns}
    released = pl.DataFrame([*cells.values(), *kept]).select(*schema.inputs, str(schema.target))
    _verify(released, columns, private, domain, k, l, persons)
    return released


def require_releasable(
    frame: pl.DataFrame,
    *,
    schema: Schema,
    domain: Domain,
    k: int,
    l: int,  # noqa: E741 - the literature's own letter
    persons: Integers | None = None,
) -> None:
    """Refuse a batch that `generalise_batch` would refuse, without generalising it.

    Args:
        frame: The rows.
        schema: The roles of their columns.
        domain: Public ranges and categories of the columns.
        k: Fewest rows, or persons, per class.
        l: Fewest values of every sensitive column per class.
        persons: A number for whom each row is about; None where every row is its own person.

    Raises:
        RefusedError: k or l cannot be met.
    """
    _kept_columns(frame, schema=schema, domain=domain, k=k, l=l, persons=persons)


def _kept_columns(
    frame: pl.DataFrame,
    *,
    schema: Schema,
    domain: Domain,
    k: int,
    l: int,  # noqa: E741 - the literature's own letter
    persons: Integers | None,
) -> tuple[list[pl.Series], SensitiveColumns, Rule]:
    """The sensitive columns as they are released, and the rule for classes, which all rows in one class would meet.

    Raises:
        RefusedError: They would not.
    """
    private = sensitive_of(schema)
    if all(name in private for name in schema.inputs):
        raise RefusedError("every input is sensitive, so there is nothing to form classes of", hint="Keep such rows")
    if frame.height == 0:
        raise RefusedError("no row is left to release", hint="They wait for more rows")
    who = np.arange(frame.height, dtype=np.int64) if persons is None else persons
    kept = [_kept(frame[name], domain.columns[name], k, who) for name in private]
    rule = Rule(k=k, l=l if l > 1 else 0)
    sensitive = SensitiveColumns.of(pl.DataFrame(kept), private, persons=persons)
    require_feasible(rule, sensitive)
    return kept, sensitive, rule


def _verify(
    released: pl.DataFrame,
    columns: Sequence[str],
    private: Sequence[str],
    domain: Domain,
    k: int,
    l: int,  # noqa: E741 - the literature's own letter
    persons: Integers | None,
) -> None:
    """Let the checker judge the rows as they would leave.

    Raises:
        IntegrityError: They do not hold what is claimed of them.
    """
    judged, who = sets_as_text(released), None
    if persons is not None:
        judged, who = judged.with_columns(pl.Series(_PERSON, persons)), _PERSON
    asked = l if l > 1 else None
    broken = list(unmet(judged, quasi=columns, sensitive=private if asked else (), k=k, l=asked, persons=who))
    numbers = [name for name in private if domain.columns[name].kind == "number"]
    broken += [f"a number of {name!r} is rarer" for name in numbers if rarest_value(judged, name, who) < k]
    if broken:
        raise IntegrityError(f"the generalised batch does not hold what it claims: {'; '.join(broken)}")


def sets_as_text(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns of item sets as one text per cell, the same for the same set; other columns as they are.

    Args:
        frame: Rows, some columns of which may hold lists of text.

    Returns:
        The rows, without lists.
    """
    return frame.select(_set_text(column) if isinstance(column.dtype, pl.List) else column for column in frame)


def _set_text(column: pl.Series) -> pl.Series:
    """A text per item set, the same for the same set."""
    return item_lists(column).list.sort().list.join(_BETWEEN_ITEMS)


@dataclass(frozen=True, eq=False)
class _Classes:
    """The classes of a batch, and whom each row is about."""

    partition: Partition
    persons: Integers

    def sums(self, values: Floats) -> Floats:
        """The sum of each class."""
        found: Floats = np.add.reduceat(values[self.partition.order], self.partition.starts[:-1])
        return found

    def of_persons(self, values: Floats) -> tuple[Integers, Floats]:
        """The class and the sum of every person in it: one entry per class and person."""
        people = int(self.persons.max()) + 1
        pairs, place = np.unique(self.partition.labels * people + self.persons, return_inverse=True)
        return pairs // people, np.bincount(place, weights=values).astype(np.float64)


def _range(domain: ColumnDomain) -> tuple[float, float]:
    low, high = domain.bounds if domain.bounds is not None else (0.0, 1.0)
    return low, (high - low) or 1.0


def _bin_codes(column: pl.Series, bins: Sequence[float]) -> tuple[Integers, NDArray[np.bool_]]:
    """The public bin of each value, 0 where it is missing, and where none is."""
    values = number(column)
    known = values.is_not_null().to_numpy() if values.null_count() else np.ones(len(values), dtype=bool)
    codes = np.searchsorted(np.asarray(bins), values.to_numpy(), side="left").astype(np.int64)
    return np.where(known, codes, 0), known


def _with_nulls(codes: Integers, known: NDArray[np.bool_]) -> pl.Series:
    """Codes as a column, null where they are not known."""
    column = pl.Series(codes)
    return column if known.all() else pl.select(pl.when(pl.Series(known)).then(column)).to_series()


def _cell_of(values: Floats, low: float, width: float) -> Integers:
    return np.clip(np.floor((values - low) / width * GRID), 0, GRID - 1).astype(np.int64)


def _known_numbers(column: pl.Series) -> tuple[Floats, NDArray[np.bool_]]:
    """The numbers of a column, 0 where one is missing, and where none is."""
    values = number(column).to_numpy()  # what is missing is no number
    known = ~np.isnan(values)
    return np.where(known, values, 0.0), known


def _on_grid(column: pl.Series, schema: Schema, domain: ColumnDomain) -> pl.Series:
    """The column as clustering sees it: grid cells of numbers, bins, categories or item sets; missing is a value."""
    bins = schema.columns[column.name].bins
    if bins is not None:
        return _with_nulls(*_bin_codes(column, bins)).alias(column.name)
    if domain.kind == "number":
        values, known = _known_numbers(column)
        return _with_nulls(_cell_of(values, *_range(domain)), known).alias(column.name)
    return _set_text(column) if domain.kind == "items" else category_text(column)


def _kept(column: pl.Series, domain: ColumnDomain, k: int, persons: Integers) -> pl.Series:
    """A sensitive column: categories as they are, numbers as the middle of a public range of at least k persons."""
    if domain.kind != "number":
        return column
    values, known = _known_numbers(column)
    low, width = _range(domain)
    cells = _cell_of(values, low, width)
    if not known.all():  # what is missing joins the commonest cell: a mark of its own would be rare
        cells[~known] = np.bincount(cells[known], minlength=1).argmax()
    first, last = _wide_enough(cells, k, persons)
    return pl.Series(column.name, low + (first + last + 1)[cells] / 2 / GRID * width)


def _wide_enough(cells: Integers, k: int, persons: Integers) -> tuple[Integers, Integers]:
    """For each cell of the grid, the first and the last cell of its range; every range holds at least k persons."""
    first, last = np.arange(GRID), np.arange(GRID)
    begin = 0
    for end in range(GRID):
        inside = (cells >= begin) & (cells <= end)
        if len(np.unique(persons[inside])) >= k:
            first[begin : end + 1], last[begin : end + 1] = begin, end
            begin = end + 1
    if begin < GRID:  # too few are left for a range of their own: they join the one before
        start = int(first[begin - 1]) if begin else 0
        first[start:], last[start:] = start, GRID - 1
    return first, last


def _released(column: pl.Series, classes: _Classes, schema: Schema, domain: ColumnDomain) -> pl.Series:
    bins = schema.columns[column.name].bins
    if bins is not None:
        return _released_bins(column, classes, bins)
    if domain.kind == "number":
        return _released_numbers(column, classes, domain)
    if domain.kind == "items":
        return _released_items(column, classes)
    return _released_categories(category_text(column), classes)


def _with_missing(name: str, shown: Floats, known: NDArray[np.bool_], classes: _Classes) -> pl.Series:
    """One value per class for its rows; missing where most of the class lacks one."""
    lacking = 2 * classes.sums(known.astype(float)) < classes.partition.sizes
    if not lacking.any():
        return pl.Series(name, shown[classes.partition.labels])
    column = pl.Series(name, shown)
    return pl.select(pl.when(~pl.Series(lacking)).then(column)).to_series().gather(classes.partition.labels).alias(name)


def _released_bins(column: pl.Series, classes: _Classes, bins: Sequence[float]) -> pl.Series:
    """The bin nearest to the class's mean bin, as a number inside that bin."""
    codes, known = _bin_codes(column, bins)
    means = classes.sums(codes.astype(float)) / np.maximum(classes.sums(known.astype(float)), 1)
    inside = np.asarray([*bins, bins[-1] + 1.0], dtype=float)
    return _with_missing(column.name, inside[np.rint(means).astype(np.int64)], known, classes)


def _released_numbers(column: pl.Series, classes: _Classes, domain: ColumnDomain) -> pl.Series:
    low, width = _range(domain)
    values, known = _known_numbers(column)
    part = classes.partition
    shifted = np.where(known, np.abs(values - low), 0.0)
    of_class, own = classes.of_persons(shifted)
    off_the_end = np.bincount(of_class, weights=own > 0, minlength=part.count)
    largest = np.zeros(part.count)
    np.maximum.at(largest, of_class, own)
    cells = _cell_of(values, low, width)
    first = np.minimum.reduceat(np.where(known, cells, GRID - 1)[part.order], part.starts[:-1])
    last = np.maximum.reduceat(np.where(known, cells, 0)[part.order], part.starts[:-1])
    middles = low + (np.minimum(first, last) + np.maximum(first, last) + 1) / 2 / GRID * width
    there = np.maximum(classes.sums(known.astype(float)), 1)
    means = low + np.rint(classes.sums(np.where(known, values - low, 0.0)) / there / width * GRID) / GRID * width
    telling = (off_the_end < FEW) | (largest > DOMINANT * np.maximum(classes.sums(shifted), 1e-300))
    return _with_missing(column.name, np.where(telling, middles, means), known, classes)


def _released_categories(column: pl.Series, classes: _Classes) -> pl.Series:
    """The value most persons of each class have; among equally frequent ones the first in alphabetical order."""
    labels = classes.partition.labels
    codes, values = ranked(column)
    pairs = labels * len(values) + codes
    people = int(classes.persons.max()) + 1
    each = sorted_distinct(pairs * people + classes.persons) // people  # a person counts once per class and value
    found, persons = np.unique(each, return_counts=True)
    of_class, code = np.divmod(found, len(values))
    last = code + len(values) * (code < values.null_count())  # null, which is coded first, after all others
    order = np.lexsort((last, -persons, of_class))
    first = np.flatnonzero(np.diff(of_class[order], prepend=-1))
    return values[code[order][first][labels]].alias(column.name)


def _released_items(column: pl.Series, classes: _Classes) -> pl.Series:
    """The items that more than half of the persons of each class have, in alphabetical order."""
    labels = classes.partition.labels
    rows = pl.DataFrame({"class": labels, "item": item_lists(column), "who": classes.persons})
    persons = rows.group_by("class").agg(pl.col("who").n_unique().alias("persons"))
    tally = rows.explode("item").drop_nulls("item").unique().group_by("class", "item").len()
    common = tally.join(persons, on="class").filter(2 * pl.col("len") > pl.col("persons")).sort("item")
    lists = common.group_by("class", maintain_order=True).agg("item")
    each: list[list[str]] = [[] for _ in range(classes.partition.count)]
    for number_of_class, items in lists.iter_rows():
        each[number_of_class] = items
    return pl.Series(column.name, each, dtype=pl.List(pl.String)).gather(labels)
