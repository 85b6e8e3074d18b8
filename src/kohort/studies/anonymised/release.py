"""Anonymising as the thesis does: its Mondrian, its optimisation step, its automatic groups, by product functions.

Every partition is a class. `label_cells`, which `kohort anonymize --algorithm thesis` uses too, gives a class the value
its rows share, else the group they share, else nothing: `*`, or for a number the whole range. The groups come from
Algorithms 1 and 2; each column takes the rho that loses least, of equally good ones the smallest. A test compares this
with the release of `anonymise(algorithm="thesis")`.

Guarantee: a release was verified by the checker, which shares no code with the anonymisers; only the optimisation step
as the thesis prints it is not, because it does not keep k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.measures import unmet
from kohort.anonymity.relational.algorithms.mondrian import thesis_mondrian
from kohort.anonymity.relational.hierarchy_builders import RHOS, TargetAssociation, frequent_targets, group_values
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.keep_exact import split_exact
from kohort.anonymity.relational.problem import CodedColumn, CodedTable, Partition, Problem, code_table
from kohort.anonymity.relational.recode import ColumnCells, label_cells
from kohort.anonymity.relational.recode import release as recode
from kohort.anonymity.relational.rule import Rule, SensitiveColumns, require_feasible
from kohort.errors import IntegrityError
from kohort.studies.anonymised.tables import AnonymisedCase, AnonymisedVariant
from kohort.tables.cells import SUPPRESSED, Interval
from kohort.tables.encoder import Encoder
from kohort.tables.hierarchy import ROOT_LABEL, Hierarchy

__all__ = [
    "GeneralisedRelease",
    "association_by_column",
    "education_groups",
    "entropy_coefficient",
    "release",
    "whole_release",
]

Integers = NDArray[np.int64]
HIDDEN: Final = -1


@dataclass(frozen=True, eq=False, kw_only=True)
class GeneralisedRelease:
    """A generalised table, the partitions it was made of, and the groups its labels stand for."""

    frame: pl.DataFrame
    partitions: int
    """Before the optimisation step, as the thesis counts them."""
    hierarchies: Mapping[str, Hierarchy]
    codes: Mapping[str, Integers]
    """Cells of each quasi-identifier as codes; HIDDEN where the cell says nothing."""

    def encode(self, encoder: Encoder) -> NDArray[np.floating[Any]]:
        """The rows as numbers: a label is the mean of its values, a suppressed cell the mean of all."""
        return encoder.transform(self.frame, generalised=True, hierarchies=self.hierarchies)


@cache
def whole_release(case: AnonymisedCase, variant: AnonymisedVariant) -> GeneralisedRelease:
    """The whole table anonymised, made once.

    Args:
        case: The table.
        variant: How to anonymise it.

    Returns:
        As `release` gives it; the same arguments are anonymised once.

    Raises:
        IntegrityError: The checker finds that the release is not what the variant asks for.
    """
    return release(case.frame, case, variant)


def release(frame: pl.DataFrame, case: AnonymisedCase, variant: AnonymisedVariant) -> GeneralisedRelease:
    """Anonymise rows of a case's table on their own. Rows and their order stay.

    Args:
        frame: The rows.
        case: The table they are from, which says which columns are quasi-identifiers and which is sensitive.
        variant: How to anonymise them.

    Returns:
        The release, with the partitions and groups it was made of.

    Raises:
        RefusedError: All rows as one class do not meet the variant's k, l and t.
        IntegrityError: The checker finds that the release is not what the variant asks for. The optimisation step as
            printed ("thesis") is not checked.
    """
    rule = Rule(k=variant.k, l=variant.l, t=variant.t, t_kind="kl")
    problem = Problem(code_table(frame, case.quasi, by_value=True), SensitiveColumns.of(frame, [case.target]), rule)
    require_feasible(rule, problem.sensitive)
    partition = classes = thesis_mondrian(problem)
    if variant.keep_exact != "no":
        classes = split_exact(problem, partition, guarded=variant.keep_exact == "yes")
    target = _codes(frame[case.target])
    chosen = {}
    for place, column in enumerate(problem.table.columns):
        alone = CodedTable((column,), problem.table.codes[place : place + 1])
        found = frequent_targets(frame, column.name, case.target)
        chosen[column.name] = _least_loss(alone, classes, found, target)
    made = recode(frame, classes, [cells for _, cells in chosen.values()])
    if variant.keep_exact != "thesis":
        _verify(made, case, variant)
    return GeneralisedRelease(
        frame=made,
        partitions=partition.count,
        hierarchies={name: hierarchy for name, (hierarchy, _) in chosen.items()},
        codes={column.name: _shown(column, chosen[column.name][1])[classes.labels] for column in problem.table.columns},
    )


def education_groups(adult: AnonymisedCase, *, rho: float) -> set[frozenset[str]]:
    """The groups of education by Algorithms 1 and 2.

    Args:
        adult: Adult.
        rho: The width of the algorithms' buckets, in per cent.

    Returns:
        The groups, each with the values in it.

    Raises:
        ConfigError: rho is not above 0 and at most 100.
    """
    return {frozenset(group) for group in group_values(frequent_targets(adult.frame, "education", adult.target), rho)}


def entropy_coefficient(cells: Integers, target: Integers, *, hidden: int | None = None) -> float:
    """I(cell; target) / H(target), in which a suppressed cell carries no information about the target.

    Counted as a value like any other, a suppression mark would show where classes had to be large, which is where one
    target value is rare.

    Args:
        cells: The code of each row's cell.
        target: The code of each row's target, from 0 on.
        hidden: The code of a suppressed cell; None counts it as a value too.

    Returns:
        From 0 to 1; 0 for a constant target.
    """
    values, codes = np.unique(cells, return_inverse=True)
    counts = np.bincount(codes * (target.max() + 1) + target, minlength=len(values) * (target.max() + 1))
    counts = counts.reshape(len(values), -1).astype(np.float64)
    share = counts.sum(axis=0) / counts.sum()
    within = counts / counts.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = np.where(counts > 0, within * np.log(within / share), 0.0).sum(axis=1)
        entropy = float(-np.where(share > 0, share * np.log(share), 0.0).sum())
    weight = counts.sum(axis=1) / counts.sum() * (values != hidden)
    return float(weight @ surprise) / entropy if entropy else 0.0


def association_by_column(made: GeneralisedRelease, case: AnonymisedCase, *, counted: bool = False) -> dict[str, float]:
    """The entropy coefficient of each released quasi-identifier and the target.

    Args:
        made: The release.
        case: The table it was made of.
        counted: Count the suppression mark as a value.

    Returns:
        The coefficient by column, from 0 to 1.
    """
    target, hidden = _codes(made.frame[case.target]), None if counted else HIDDEN
    return {name: entropy_coefficient(codes, target, hidden=hidden) for name, codes in made.codes.items()}


def _codes(column: pl.Series) -> Integers:
    return np.unique(column.to_numpy(), return_inverse=True)[1].astype(np.int64)


def _least_loss(
    alone: CodedTable, classes: Partition, found: Sequence[TargetAssociation], target: Integers
) -> tuple[Hierarchy, ColumnCells]:
    """One column under the rho whose cells are most associated with the target."""
    (column,), best = alone.columns, None
    for rho in RHOS:
        groups = enumerate(group_values(found, rho), start=1)
        chains = {value: (f"group {number} at {rho:g}%", ROOT_LABEL) for number, group in groups for value in group}
        hierarchy = Hierarchy.of(column.name, chains or {"-": ("-", ROOT_LABEL)})
        (cells,) = label_cells(alone, classes, [HierarchyLevels.of(column, hierarchy)])
        kept = entropy_coefficient(cells.of_class[classes.labels], target)
        if best is None or kept > best[0] + 1e-12:
            best = kept, hierarchy, cells
    assert best is not None  # noqa: S101 - there are rhos
    return best[1:]


def _shown(column: CodedColumn, cells: ColumnCells) -> Integers:
    """The cell of each class as a code, HIDDEN where it says nothing."""
    known = column.values.drop_nulls()
    ends = known.cast(pl.Float64).to_numpy() if column.is_number else np.empty(0)
    low, high = ends.min(initial=np.inf), ends.max(initial=-np.inf)
    says_nothing = [
        cell is SUPPRESSED or (isinstance(cell, Interval) and len(ends) and cell.low <= low and high <= cell.high)
        for cell in cells.cells
    ]
    return np.where(np.array(says_nothing)[cells.of_class], HIDDEN, cells.of_class)


def _verify(made: pl.DataFrame, case: AnonymisedCase, variant: AnonymisedVariant) -> None:
    broken = unmet(made, quasi=case.quasi, sensitive=[case.target], k=variant.k, l=variant.l or None,
                   t=variant.t or None, t_kind="kl")  # fmt: skip
    if broken:
        raise IntegrityError(f"the release of {case.title} does not verify: {'; '.join(broken)}")
