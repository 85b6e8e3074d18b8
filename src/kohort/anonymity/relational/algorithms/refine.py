"""Better classes from good ones: rows move to classes where they cost less, and a budget of rows is left out.

`refine` is a local search: a row leaves its class if both classes still meet the rule and the summed loss falls; the
rows of a whole class are shared out where that lowers the loss; a class that has become large enough is cut. It is what
makes rules about sensitive values cheap: a class that was made too wide to meet them gives its rows away.

`leave_out` spends a budget of rows where it buys most, one row or one whole class at a time, by what is saved per row.
ARX's balance says what a suppressed row costs: 0 nothing (the budget is spent as long as it lowers the loss of the
rows that are left), 0.5 as much as a row of suppressed cells, 1 everything (only rows that no class can take are
suppressed). Between them both weights change as in ARX: up to 0.5 the price of a suppressed row rises from 0 to 1,
above it what generalising costs falls from 1 to 0. Cells come after rows: where rows that were left out can be classes
among themselves, and their generalised and suppressed cells cost less than suppressed rows do, they are released so.
The budget that is free again is spent again. On tables that are not too large, more than the budget is then left out
for a while: classes close up, and the rows that cost least without the others come back.

Guarantee: classes that meet the rule still do; no step raises the loss. Same table, same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.algorithms.cell_shape import Steps, cell_shape
from kohort.anonymity.relational.algorithms.compile_beside import wait_for_search
from kohort.anonymity.relational.algorithms.label_groups import by_groups, groups_of, joined_alike, too_large
from kohort.anonymity.relational.algorithms.mondrian import cut_classes
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import CodedTable, Integers, Partition, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns

__all__ = ["compile_search", "few_pairs", "group_classes", "leave_out", "loss_of", "passes", "refine", "too_many_pairs"]

PASSES = 2
# Rows times classes that may be compared; a larger table is refined in fewer passes, or not at all.
PAIRS = 1_000_000_000
# The same where classes need no more than k rows, which their makers are good at.
PAIRS_OF_SIZES = 120_000_000
# The same for sharing classes out and replacing rows there, which take longer than all else and gain least.
PAIRS_THOROUGH = 60_000_000
# Rows times classes that sharing classes out may compare where every class is judged by a rule about its values.
PAIRS_SHARED = 12_000_000
# Of the budget that is left, the share spent before gains are computed again.
STEP = 4
# How often rows that were left out are looked at again.
AGAIN = 2
# Times the budget that are left out at first, one after another; the best found is kept.
OVERSPENT = (3.0, 2.0, 1.5, 1.25)
# Of the price of a row, what is enough to leave it out for a while.
OVERSPENT_FLOOR = 0.2
# How often the price at which rows come back is halved.
HALVINGS = 12
# Rows times classes up to which it is tried.
PAIRS_OVERSPENT = 12_000_000
LEAST = 1e-9


def too_many_pairs(rows: int, classes: int) -> tuple[str, ...]:
    """A note for the user where the table is too large for `refine`, which then leaves the classes as they are.

    Args:
        rows: Rows of the table.
        classes: How many classes there are.

    Returns:
        One sentence; none where `refine` runs.
    """
    if rows * classes <= PAIRS:
        return ()
    return (f"rows were not moved between classes to lower the loss: {rows:,} rows x {classes:,} classes is too many",)


def few_pairs(problem: Problem, partition: Partition) -> bool:
    """Whether `refine` is quick enough to try it on several partitions of a table.

    Args:
        problem: The coded table.
        partition: One of the partitions.

    Returns:
        True up to `PAIRS_OVERSPENT` pairs of a row and a class.
    """
    return problem.table.rows * partition.count <= PAIRS_OVERSPENT


def refine(
    problem: Problem,
    partition: Partition,
    steps: Steps | None = None,
    *,
    cuts: Problem | None = None,
    left: Integers | None = None,
) -> Partition:
    """Move rows between classes and share classes out while the loss falls, and cut classes that are large enough.

    Args:
        problem: The coded table and the rule.
        partition: Classes that meet the rule.
        steps: Hierarchy levels of the columns released as labels, None for a column or all that are not.
        cuts: The problem with codes in the order in which classes are cut; the same one when None.
        left: Rows that are left out: they form a class of the partition that is not released, and stay in it.

    Returns:
        Classes that meet the rule and lose no more; the same ones where there are too many rows and classes.
    """
    if _passes(problem, partition.count) < 1:
        return partition
    search = _Search.of(problem, partition, steps, left=left, cuts=cuts)
    search.improve()
    return search.partition()


def compile_search(width: int, with_values: bool) -> None:
    """Compile the loops of `refine` for tables of a kind, on a few rows made for it.

    Args:
        width: Bytes of a code of the table.
        with_values: Whether the rule is about sensitive values.
    """
    made = pl.DataFrame({"age": [21, 22, 23, 24, 47, 48, 49, 50], "sex": ["f", "m"] * 4, "ill": ["no", "yes"] * 4})
    table = code_table(made, ["age", "sex"])
    codes: Any = table.codes.astype(np.dtype(f"u{width}"))
    private = SensitiveColumns.of(made, ["ill"] if with_values else [])
    problem = Problem(CodedTable(table.columns, codes), private, Rule(k=2, l=2 if with_values else 0))
    halves = Partition.of_labels(np.repeat(np.arange(2), made.height // 2))
    search = _Search.of(problem, halves, None)
    search.move()
    search.dissolve()
    if not with_values:
        search.refill()


def group_classes(problem: Problem, steps: Sequence[HierarchyLevels]) -> Partition | None:
    """Classes in the order of what their labels cost; the few rows that are left join where they cost least.

    Args:
        problem: The coded table and the rule.
        steps: Hierarchy levels of all columns.

    Returns:
        Classes that meet the rule; None where it is about more than k rows, or the table is too large.
    """
    labels = by_groups(problem, steps) if problem.requirements is None else None
    if labels is None:
        return None
    search = _Search(problem, problem, cell_shape(problem, steps), labels, int(labels.max()) + 1)
    search.admit(np.inf)
    return search.partition()


def passes(rows: int, classes: int, *, sizes_alone: bool) -> int:
    """How often `refine` compares every row with every class; 0 where it leaves classes as they are.

    Args:
        rows: Rows of the table.
        classes: How many classes there are.
        sizes_alone: Whether the rule asks for k rows alone.

    Returns:
        2 for a small table, down to 0.
    """
    pairs = min(PAIRS, PAIRS_OF_SIZES) if sizes_alone else PAIRS
    return min(PASSES, pairs // max(rows * classes, 1)) if classes > 1 else 0


def _passes(problem: Problem, classes: int) -> int:
    return passes(problem.table.rows, classes, sizes_alone=problem.requirements is None)


def loss_of(problem: Problem, partition: Partition, steps: Steps | None) -> float:
    """Mean loss over rows and quasi-identifiers of classes whose cells are labels in some columns.

    Args:
        problem: The coded table.
        partition: Its classes.
        steps: Hierarchy levels of the columns released as labels, None for a column or all that are not.

    Returns:
        The loss.
    """
    whole = _Search.of(problem, partition, steps).loss()
    return whole / (problem.table.rows * len(problem.table.columns))


@dataclass
class _Search:
    """Labelled rows, -1 for those that are left out, and what a step needs to know."""

    problem: Problem
    cuts: Problem
    shape: Any
    labels: Integers
    count: int
    steps: tuple[HierarchyLevels, ...] = ()
    """Hierarchy levels of the columns, where all are released as labels and a rule is about k rows alone."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        partition: Partition,
        steps: Steps | None,
        *,
        left: Integers | None = None,
        cuts: Problem | None = None,
    ) -> _Search:
        labels = partition.labels.copy()
        if left is not None:
            labels[left] = -1
        given = tuple(levels for levels in steps or () if levels is not None)
        named = len(given) == len(problem.table.columns) and problem.requirements is None
        found = cls(problem, cuts or problem, cell_shape(problem, steps), labels, 0, given if named else ())
        found.relabel(labels)
        return found

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What every loop is given."""
        problem = self.problem
        return (problem.table.codes, problem.sensitive.codes, self.labels, self.count, self.shape, problem.rule.k,
                problem.requirements)  # fmt: skip

    def copy(self) -> _Search:
        """A search to try something with."""
        return replace(self, labels=self.labels.copy())

    def partition(self) -> Partition:
        """The classes; rows that are left out are the last one."""
        return Partition.of_labels(np.where(self.labels < 0, self.count, self.labels))

    def relabel(self, labels: Integers) -> None:
        """Take other labels, without gaps; -1 stays."""
        inside = labels >= 0
        known, dense = np.unique(labels[inside], return_inverse=True)
        self.labels[inside], self.count = dense, len(known)

    def improve(self, *, thoroughly: bool = True) -> None:
        """Move rows and cut classes; thoroughly: also share classes out and replace rows."""
        if not self.move():
            return
        self._cut()
        if not thoroughly:
            return
        sizes_alone = self.problem.requirements is None
        if sizes_alone and self.problem.table.rows * self.count > PAIRS_THOROUGH:
            self.move()
            return
        self.dissolve()
        self._cut()
        if self.move() and sizes_alone:
            self.refill()
            self.move()

    def move(self) -> bool:
        """Move rows; False where there are too many to compare, or one class."""
        from kohort.anonymity.compiled import first_call
        from kohort.anonymity.relational.algorithms.refine_kernel import move_rows

        times = _passes(self.problem, self.count)
        if times < 1:
            return False
        wait_for_search()
        with first_call(move_rows):
            move_rows(*self.arguments, times)
        self.relabel(self.labels)
        return True

    def dissolve(self) -> None:
        from kohort.anonymity.compiled import first_call
        from kohort.anonymity.relational.algorithms.refine_kernel import dissolve_classes

        with first_call(dissolve_classes):
            dissolve_classes(*self.arguments, PAIRS if self.problem.requirements is None else PAIRS_SHARED)
        self.relabel(self.labels)

    def refill(self) -> None:
        from kohort.anonymity.compiled import first_call
        from kohort.anonymity.relational.algorithms.refine_kernel import replace_rows

        with first_call(replace_rows):
            replace_rows(*self.arguments)

    def _cut(self) -> None:
        inside = np.flatnonzero(self.labels >= 0)
        self.labels[inside] = cut_classes(self.cuts, self.partition(), only=self.count).labels[inside]
        self.relabel(self.labels)

    def units(self) -> NDArray[np.float64]:
        """What a row of each class loses."""
        return self.drops(np.ones(self.count, np.bool_), _Drops.of(self.count)).unit

    def loss(self) -> float:
        """The summed loss of the rows in classes."""
        return float(self.units()[self.labels[self.labels >= 0]].sum())

    def drops(self, dirty: NDArray[np.bool_], known: _Drops) -> _Drops:
        """What is saved best in each class; computed again for those marked in `dirty`."""
        from kohort.anonymity.relational.algorithms.refine_kernel import best_drops

        best_drops(*self.arguments, dirty, known.unit, known.gain, known.row)
        return known

    def admit(self, most: float) -> None:
        """Let rows that are left out into classes where that costs less than `most`."""
        from kohort.anonymity.relational.algorithms.refine_kernel import admit_rows

        admit_rows(*self.arguments, np.flatnonzero(self.labels < 0), most)

    @property
    def opens(self) -> bool:
        """Whether classes can be opened from rows of several: by labels, on a table that is not too large."""
        return bool(self.steps) and _passes(self.problem, self.count) > 0 and not too_large(self.problem)

    def open(self, price: float, room: int) -> int:
        """Open classes from rows of several, and from rows that are left out, at `price` each; the number opened.

        `room` more rows may be left out.
        """
        from kohort.anonymity.compiled import first_call
        from kohort.anonymity.relational.algorithms.label_groups_kernel import label_groups
        from kohort.anonymity.relational.algorithms.opening_kernel import open_classes

        self.relabel(joined_alike(self.problem.table.codes, self.steps, self.labels))
        sizes, units = np.bincount(self.labels[self.labels >= 0], minlength=self.count), self.units()
        inside = self.labels >= 0
        cost = np.where(inside, units[self.labels], price)
        spare = inside & (sizes[self.labels] > self.problem.rule.k)
        with first_call(label_groups, open_classes):
            members, starts, costs, _ = groups_of(
                self.problem, self.shape, self.steps, cost, np.arange(len(cost)), spare, least=LEAST
            )
            self.count += len(costs)
            opened: int = open_classes(*self.arguments, members, starts, costs, price, room)
        self.relabel(self.labels)
        return opened

    def regroup(self, most: float) -> None:
        """Make classes of rows that are left out, where a row of them costs less than `most`."""
        left = np.flatnonzero(self.labels < 0)
        if not len(left) or not self.problem.rule_test()(left):
            return
        self.labels[left] = self.count
        self.count += 1
        parts = cut_classes(self.cuts, self.partition(), least=self.count - 1).labels
        self.labels[left] = parts[left] + self.count
        self.relabel(self.labels)
        wide = self.units() >= most
        rows = left[wide[self.labels[left]]]
        self.labels[rows] = -1
        self.relabel(self.labels)


@dataclass(frozen=True)
class _Drops:
    """Of each class: what a row loses, what is saved per row left out, and that row, or -1 for the whole class."""

    unit: NDArray[np.float64]
    gain: NDArray[np.float64]
    row: Integers

    @classmethod
    def of(cls, count: int) -> _Drops:
        return cls(np.zeros(count), np.zeros(count), np.full(count, -1, np.int64))


def leave_out(
    problem: Problem,
    partition: Partition,
    steps: Steps | None = None,
    *,
    rows: int,
    balance: float,
    already: Integers,
    cuts: Problem | None = None,
) -> tuple[Partition, Integers]:
    """The classes without the rows whose suppression saves most.

    Args:
        problem: The coded table and the rule.
        partition: Classes that meet the rule.
        steps: Hierarchy levels of the columns released as labels, None for a column or all that are not.
        rows: How many rows may be left out in all.
        balance: What a suppressed row costs, from 0 (nothing) to 1 (everything).
        already: Rows that are left out already; they are in no class that is released.
        cuts: The problem with codes in the order in which classes are cut; the same one when None.

    Returns:
        The classes, and all rows to leave out, rising, which are a class of their own. The rows that are left still
        meet the rule about class sizes and l.
    """
    search = _Search.of(problem, partition, steps, left=already, cuts=cuts)
    generalising, suppressing = min(1.0, 2.0 - 2.0 * balance), min(1.0, 2.0 * balance)
    whole = sum(problem.weight(position) for position in range(len(problem.table.columns)))
    # Below the mean loss, what is left would lose more than before.
    price = max(suppressing * whole, search.loss() / max(int((search.labels >= 0).sum()), 1))
    weights = generalising, price

    def value(found: _Search) -> float:
        return generalising * found.loss() + price * int((found.labels < 0).sum())

    last = _spend(search, rows, *weights)
    best = value(search)
    opens = search.opens
    for again in range((1 if opens else AGAIN) if generalising > 0.0 else 0):
        other = search.copy()
        if opens:
            # What the dearest row that is kept loses is what a place among those that are left out is worth.
            last = max(float(other.units().max(initial=0.0)), price / generalising)
            other.open(last, rows - int((other.labels < 0).sum()))
            other.improve(thoroughly=False)
        else:
            other.improve(thoroughly=again == 0)
        other.admit(min(last, whole))
        other.regroup(price / generalising)
        last = _spend(other, rows, *weights)
        found = value(other)
        if found >= best - LEAST:
            break
        search, best = other, found
    for times in OVERSPENT if generalising > 0.0 and problem.table.rows * search.count <= PAIRS_OVERSPENT else ():
        other = _overspent(search, rows, times, *weights)
        if int((other.labels < 0).sum()) <= rows and value(other) < best - LEAST:
            search, best = other, value(other)
    left = np.flatnonzero(search.labels < 0)
    return (search.partition(), left) if len(left) < problem.table.rows else (partition, already)


def _overspent(search: _Search, rows: int, times: float, generalising: float, floor: float) -> _Search:
    """Leave out more rows than allowed, let classes close up without them, and let back in those that then cost least.

    A row that is hard to place keeps classes around it wide; which rows those are shows only once they are gone.
    """
    closed = search.copy()
    _spend(closed, int(times * rows), generalising, OVERSPENT_FLOOR * floor)
    closed.improve(thoroughly=False)
    most = 4.0 * closed.problem.rule.k * sum(map(closed.problem.weight, range(len(closed.problem.table.columns))))
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tried = closed.copy()
        tried.admit(middle)
        low, high = (middle, high) if int((tried.labels < 0).sum()) > rows else (low, middle)
    closed.admit(high)
    closed.improve(thoroughly=False)
    _spend(closed, rows, generalising, OVERSPENT_FLOOR * floor)
    return closed


def _spend(search: _Search, rows: int, generalising: float, floor: float) -> float:
    """Leave out rows, the best first, while they are fewer than `rows` and each saves more than `floor`.

    Returns:
        The least that a row saved.
    """
    labels, count = search.labels, search.count
    dirty, known = np.ones(count, np.bool_), _Drops.of(count)
    budget, last = rows - int((labels < 0).sum()), np.inf
    while budget > 0:
        search.drops(dirty, known)
        dirty[:] = False
        spent, enough = 0, max(budget // STEP, 1)
        for j in np.argsort(-known.gain, kind="stable").tolist():
            if spent >= enough or generalising * known.gain[j] <= floor:
                break
            going = np.flatnonzero(labels == j) if known.row[j] < 0 else known.row[j : j + 1]
            if len(going) <= budget - spent:
                labels[going] = -1
                spent += len(going)
                dirty[j] = True
                last = min(last, float(known.gain[j]))
            known.gain[j] = 0.0
        if not spent:
            break
        budget -= spent
    search.relabel(labels)
    return last if np.isfinite(last) else floor
