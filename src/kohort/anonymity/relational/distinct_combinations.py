"""Rows that k others equal in every quasi-identifier, in a table that is not held.

Where a rule asks for k rows alone, `exact-cluster` leaves such rows as they are and clusters the others. So a table of
many rows is first counted by its distinct combinations; the rows of large ones are never held one by one, and what is
clustered is what is left. A few bytes are held for each row: which combination it is.

Guarantee: classes and cells are those that the whole table gets where it is held. Where they could be others (rows
would be moved between classes, or too few rows are left), None is returned and the table has to be held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.algorithms.cluster import cluster
from kohort.anonymity.relational.algorithms.refine import passes, too_many_pairs
from kohort.anonymity.relational.classes import needs_moves
from kohort.anonymity.relational.keep_exact import split_exact
from kohort.anonymity.relational.makers import MANY_CELLS, makers_for
from kohort.anonymity.relational.parted import Kinds, PartedTable, RowClasses
from kohort.anonymity.relational.problem import CodedTable, Integers, Partition, Problem, code_table
from kohort.anonymity.relational.recode import set_cells
from kohort.anonymity.relational.rule import Rule, SensitiveColumns
from kohort.tables.parts import free_name

__all__ = ["DistinctCombinations", "classes_of_combinations", "count_combinations", "may_count_combinations"]

MOST_COMBINATIONS = 1 << 20
ALGORITHMS = ("auto", "exact-cluster")


@dataclass(frozen=True, kw_only=True, eq=False)
class DistinctCombinations:
    """The distinct combinations of a table.

    Attributes:
        quasi: The combinations of the quasi-identifiers.
        sizes: Rows of each of these.
        whole: The combinations of quasi-identifiers and target.
        counts: Rows of each of these.
        of_whole: Which combination of quasi-identifiers each of these has.
    """

    quasi: pl.DataFrame = field(repr=False)
    sizes: Integers
    whole: pl.DataFrame = field(repr=False)
    counts: Integers
    of_whole: Integers

    def numbers(self, parts: Iterable[pl.DataFrame], rows: int) -> NDArray[np.int32]:
        """The combination, among `whole`, of each row."""
        columns = self.whole.columns
        number = free_name("number", columns)
        known = self.whole.lazy().with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias(number))
        found, done = np.empty(rows, np.int32), 0
        for part in parts:
            joined = part.lazy().join(known, on=columns, how="left", nulls_equal=True, maintain_order="left")
            numbers = joined.select(number).collect()
            found[done : done + numbers.height] = numbers.to_series().to_numpy()
            done += numbers.height
        return found


def may_count_combinations(
    rows: PartedTable, quasi: Sequence[str], rule: Rule, *, algorithm: str, hierarchies: Any, levels: Any, limit: float
) -> bool:
    """Whether options are such that rows of large combinations need not be held.

    Args:
        rows: The table.
        quasi: The quasi-identifiers.
        rule: What every class must meet.
        algorithm: What forms the classes.
        hierarchies: What labels come from.
        levels: Levels that every row is put on.
        limit: Share of the rows that may be left out.

    Returns:
        True for k rows alone, released as intervals and sets, where no row is left out and dates are no
        quasi-identifiers.
    """
    kinds = [rows.schema[name] for name in quasi]
    plain = not any(kind in (pl.Date, pl.Datetime) or isinstance(kind, pl.List) for kind in kinds)
    asked = rule.k > 1 and not rule.needs_sensitive and limit == 0
    alone = algorithm == "exact-cluster" or rows.rows * len(set(quasi)) > MANY_CELLS
    return plain and asked and alone and algorithm in ALGORITHMS and hierarchies == "auto" and levels is None


def count_combinations(
    parts: Iterable[pl.DataFrame], quasi: Sequence[str], target: str | None
) -> DistinctCombinations | None:
    """Count the combinations of a table.

    Args:
        parts: The quasi-identifiers and the target, part by part.
        quasi: The quasi-identifiers.
        target: The target; None where there is none.

    Returns:
        The combinations; None where they are too many to be held.
    """
    keys = list(dict.fromkeys(quasi))
    columns = list(dict.fromkeys((*keys, *([] if target is None else [target]))))
    count = free_name("count", columns)
    found: pl.DataFrame | None = None
    for part in parts:
        counted = part.lazy().group_by(columns).agg(pl.len().cast(pl.Int64).alias(count)).collect(engine="streaming")
        both = counted if found is None else pl.concat([found, counted])
        found = both if found is None else both.group_by(columns).agg(pl.col(count).sum())
        if found.height > MOST_COMBINATIONS:
            return None
    if found is None:
        return None
    number = free_name("number", columns)
    alone = found.group_by(keys).agg(pl.col(count).sum()).with_row_index(number)
    of_whole = found.join(alone.drop(count), on=keys, how="left", nulls_equal=True, maintain_order="left")[number]
    return DistinctCombinations(
        quasi=alone.select(keys),
        sizes=alone[count].to_numpy(),
        whole=found.select(columns),
        counts=found[count].to_numpy(),
        of_whole=of_whole.to_numpy().astype(np.int64),
    )


def classes_of_combinations(
    rows: PartedTable,
    combinations: DistinctCombinations,
    rule: Rule,
    *,
    algorithm: str,
    weights: Mapping[str, float] | None,
    max_set: int | None,
    keep_exact: bool,
    jobs: int | None = None,
) -> RowClasses | None:
    """The classes of `exact-cluster` where the rule asks for k rows alone.

    Args:
        rows: The table.
        combinations: Its combinations.
        rule: What every class must meet.
        algorithm: "auto" or "exact-cluster".
        weights: How much the loss of a quasi-identifier counts; checked by the caller.
        max_set: Most values that a released set may name.
        keep_exact: Release exact values where rows of a class agree on them.
        jobs: Threads; all cores when None.

    Returns:
        The classes; None where the table has to be held.
    """
    large = combinations.sizes >= rule.k
    left = int(combinations.sizes[~large].sum())
    count = int(large.sum())
    # At most so many classes come of the rows that are left, and rows are moved sooner where classes are fewer.
    if left == rows.rows or 0 < left < rule.k or _moved(rows, count + left // rule.k, algorithm):
        return None
    names = combinations.quasi.columns
    coded = code_table(combinations.quasi, names, counts=combinations.sizes)
    numbers = combinations.numbers(rows.parts(combinations.whole.columns), rows.rows)
    of_row = combinations.of_whole.astype(np.int32)[numbers]
    held = np.flatnonzero(~large[of_row])
    shares = tuple(float(weights.get(name, 1.0)) for name in names) if weights else ()
    problem = _held_problem(coded, of_row[held], rule, shares, max_set)
    others = cluster(problem, jobs=jobs) if len(held) else Partition(held, np.zeros(1, np.int64))
    if _moved(rows, count + others.count, algorithm):
        return None
    notes: tuple[str, ...] = ()
    unmoved = too_many_pairs(rows.rows, count + others.count)
    if keep_exact and len(held):
        others = split_exact(problem, others)
    cells = _cells(coded, problem, np.flatnonzero(large), combinations.sizes[large], others, max_set)
    if algorithm == "auto":
        notes = makers_for(problem, labels=True, rows=rows.rows).notes
        notes += unmoved if needs_moves(problem, cells) else ()
    of_quasi = np.where(large, np.cumsum(large) - 1, -1)
    labels = of_quasi.astype(np.int32)[of_row]
    labels[held] = count + others.labels

    def kinds() -> Kinds:
        whole = np.flatnonzero(large[combinations.of_whole])
        pairs, mine = np.unique(numbers[held].astype(np.int64) * (count + others.count) + labels[held],
                                return_counts=True)  # fmt: skip
        which, classes = np.divmod(pairs, count + others.count)
        return Kinds(
            before=combinations.whole[np.concatenate((whole, which))],
            classes=np.concatenate((of_quasi[combinations.of_whole[whole]], classes)),
            counts=np.concatenate((combinations.counts[whole], mine)),
        )

    return RowClasses(labels=labels, cells=cells, make_kinds=kinds, algorithm="exact-cluster", notes=notes)


def _moved(rows: PartedTable, classes: int, algorithm: str) -> bool:
    """Whether rows would be moved between so many classes."""
    return algorithm == "auto" and passes(rows.rows, classes, sizes_alone=True) > 0


def _held_problem(
    coded: CodedTable, of_row: NDArray[np.integer], rule: Rule, weights: tuple[float, ...], max_set: int | None
) -> Problem:
    """The problem of the rows that are held, in the codes of the whole table."""
    codes: Any = np.ascontiguousarray(coded.codes[:, of_row])
    nobody = SensitiveColumns.of(pl.DataFrame({"row": of_row}), ())
    return Problem(CodedTable(coded.columns, codes), nobody, rule, weights=weights, max_set=max_set)


def _cells(
    coded: CodedTable, problem: Problem, large: Integers, sizes: Integers, others: Partition, max_set: int | None
) -> tuple[Any, ...]:
    """The cells of all classes: a large combination is a class of its own, and stands for its rows."""
    codes: Any = np.concatenate([coded.codes[:, large], problem.table.codes], axis=1)
    both = Partition(
        np.concatenate([np.arange(len(large)), len(large) + others.order]),
        np.concatenate([np.arange(len(large)), len(large) + others.starts]),
    )
    counts = np.concatenate([sizes, np.ones(len(others.order), np.int64)])
    return set_cells(CodedTable(coded.columns, codes), both, max_set=max_set, counts=counts)
