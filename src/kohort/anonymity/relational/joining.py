"""Join classes that a rule about the population does not allow with those that lose least by it.

A class of k rows may have too few candidates in the population while most others have enough. Larger classes everywhere
would cost all of them; here only those the checker names are joined, each with the class whose rows lose least.

Guarantee: none; the checker judges what comes out. Every class given is within one class of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.classes import ClassOptions, FormedClasses, with_partition
from kohort.anonymity.relational.population import PopulationRule
from kohort.anonymity.relational.problem import Partition, Problem
from kohort.anonymity.relational.verify import ReleaseVerdict

__all__ = ["join_classes", "joined_until_met"]

ROUNDS = 20
# Values of a category up to which a class is known by which of them it has; beyond, by the range of their codes.
LISTED = 256


def joined_until_met(
    problem: Problem,
    options: ClassOptions,
    made: FormedClasses,
    people: PopulationRule,
    judge: Callable[[FormedClasses], ReleaseVerdict],
    person: str | None,
) -> tuple[FormedClasses, ReleaseVerdict] | None:
    """Classes joined until the checker finds nothing wrong beside the population.

    Args:
        problem: The coded table and the rule.
        options: How the classes were formed.
        made: Classes that meet the rule.
        people: What must hold beside the population.
        judge: The checker's verdict.
        person: The column that says whom a row is about.

    Returns:
        The classes and the verdict; None where joining does not help, or rows may be left out.
    """
    from kohort.anonymity.checker.population import rows_unmet_in_population

    quasi = [column.name for column in problem.table.columns]
    for _ in range(0 if options.suppression_limit or people.frame is None else ROUNDS):
        verdict = judge(made)
        if not verdict.problems:
            return made, verdict
        wrong_rows = rows_unmet_in_population(
            verdict.frame, people.frame, quasi=quasi, hierarchies=made.hierarchies, persons=person, k_map=people.k_map,
            presence=people.presence,
        )  # fmt: skip
        wrong = np.zeros(made.partition.count, np.bool_)
        wrong[made.partition.labels[wrong_rows]] = True
        if not wrong.any() or made.partition.count == 1:
            return None
        made = with_partition(problem, made, options, join_classes(problem, made.partition, wrong))
    return None


def join_classes(problem: Problem, partition: Partition, wrong: NDArray[np.bool_]) -> Partition:
    """Each class marked in `wrong` joined with another, the smallest first.

    Args:
        problem: The coded table.
        partition: Its classes.
        wrong: Which classes to join.

    Returns:
        The fewer classes.
    """
    spreads = [_Spread.of(problem, place, partition) for place in range(len(problem.table.columns))]
    sizes = partition.sizes.astype(np.float64)
    into = np.arange(partition.count)
    alive = np.ones(partition.count, np.bool_)
    waiting = wrong.copy()
    for j in np.argsort(sizes, kind="stable").tolist():
        if not (waiting[j] and alive[j]) or alive.sum() == 1:
            continue
        own = _summed(spread.alone() for spread in spreads)
        joined = _summed(spread.with_class(j) for spread in spreads)
        added = (sizes + sizes[j]) * joined - sizes * own
        added[~alive] = np.inf
        added[j] = np.inf
        home = int(np.argmin(added))
        for spread in spreads:
            spread.take(home, j)
        sizes[home] += sizes[j]
        into[into == j] = home
        alive[j] = waiting[home] = False
    return Partition.of_labels(into[partition.labels])


def _summed(parts: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.sum(list(parts), axis=0)
    return found


@dataclass(frozen=True, eq=False)
class _Spread:
    """What each class has of one column: the range of its numbers or codes, or which of the values."""

    weight: float
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    held: NDArray[np.bool_] | None

    @classmethod
    def of(cls, problem: Problem, place: int, partition: Partition) -> _Spread:
        column, codes = problem.table.columns[place], problem.table.codes[place][partition.order]
        points = column.points if column.is_number else np.arange(column.distinct) / max(column.distinct - 1, 1)
        placed, first = points[codes], partition.starts[:-1]
        held = None
        if not column.is_number and column.distinct <= LISTED:
            held = np.zeros((partition.count, column.distinct), np.bool_)
            held[np.repeat(np.arange(partition.count), partition.sizes), codes] = True
        return cls(problem.weight(place), np.minimum.reduceat(placed, first), np.maximum.reduceat(placed, first), held)

    def alone(self) -> NDArray[np.float64]:
        """What a row of each class loses."""
        return self._loss(self.low, self.high, self.held)

    def with_class(self, j: int) -> NDArray[np.float64]:
        """What a row of each class would lose together with class j."""
        held = None if self.held is None else self.held | self.held[j]
        return self._loss(np.minimum(self.low, self.low[j]), np.maximum(self.high, self.high[j]), held)

    def _loss(
        self, low: NDArray[np.float64], high: NDArray[np.float64], held: NDArray[np.bool_] | None
    ) -> NDArray[np.float64]:
        if held is None:
            return np.minimum(high - low, 1.0) * self.weight
        values = held.sum(axis=1)
        return np.where(values > 1, values / held.shape[1], 0.0) * self.weight

    def take(self, home: int, j: int) -> None:
        """Let class j be a part of another."""
        self.low[home], self.high[home] = min(self.low[home], self.low[j]), max(self.high[home], self.high[j])
        if self.held is not None:
            self.held[home] |= self.held[j]
