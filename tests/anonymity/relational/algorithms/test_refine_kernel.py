"""The steps of the local search against slow forms of them: which row moves where, which is left out or comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.reference.local_search import LocalSearch
from tests.reference.partitions import class_loss, meets
from tests.support.anonymity_tables import QUASI, problem_of, tables
from tests.support.examples import examples

from kohort.anonymity.relational.algorithms import class_state
from kohort.anonymity.relational.algorithms import refine_kernel as kernel
from kohort.anonymity.relational.algorithms.cell_shape import cell_shape
from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.hierarchy_builders import data_independent
from kohort.anonymity.relational.hierarchy_levels import levels_by_column
from kohort.anonymity.relational.problem import Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns

LEAST = 1e-9
RULES = ({"k": 2}, {"k": 3}, {"k": 2, "l": 2}, {"k": 2, "t": 0.4})


class Slow:
    """Classes as lists of rows."""

    def __init__(self, problem: Problem, labels: list[int], count: int, people: list[int] | None = None) -> None:
        self.problem, self.labels, self.count, self.people = problem, labels, count, people

    def meets(self, rows: Sequence[int]) -> bool:
        """Whether rows may be a class: k persons where they are known, and the rule about values."""
        if self.people is None:
            return meets(self.problem, sorted(rows))
        persons = {self.people[row] for row in rows}
        illness = {int(self.problem.sensitive.codes[0, row]) for row in rows}
        return len(persons) >= self.problem.rule.k and len(illness) >= self.problem.rule.l

    def rows(self, j: int) -> list[int]:
        return [row for row, label in enumerate(self.labels) if label == j]

    def unit(self, rows: list[int]) -> float:
        return class_loss(self.problem, rows) if rows else 0.0

    def loss(self) -> float:
        return sum(len(rows) * self.unit(rows) for rows in map(self.rows, range(self.count)))

    def home(self, row: int, bound: float) -> int:
        """The other class that row costs least, looked for from the own one on, if that is less than the bound."""
        own, best, chosen = self.labels[row], bound, -1
        first = max(own, 0)
        for at in range(first, first + self.count):
            j = at % self.count
            rows = self.rows(j)
            if j == own or not rows or not self.meets([*rows, row]):
                continue
            added = (len(rows) + 1) * self.unit([*rows, row]) - len(rows) * self.unit(rows)
            if added < best - 1e-12:
                best, chosen = added, j
        return chosen

    def moved(self, row: int) -> bool:
        a = self.labels[row]
        rows = self.rows(a) if a >= 0 else []
        rest = [other for other in rows if other != row]
        if a < 0 or len(rest) < self.problem.rule.k or not self.unit(rows) or not self.meets(rest):
            return False
        b = self.home(row, len(rows) * self.unit(rows) - len(rest) * self.unit(rest) - LEAST)
        if b >= 0:
            self.labels[row] = b
        return b >= 0

    def dissolved(self, j: int) -> bool:
        before, added, rows = len(self.rows(j)) * self.unit(self.rows(j)), 0.0, self.rows(j)
        for row in rows:
            b = self.home(row, before - added - LEAST)
            if b < 0:
                return False
            added -= len(self.rows(b)) * self.unit(self.rows(b))
            self.labels[row] = b
            added += len(self.rows(b)) * self.unit(self.rows(b))
        return True

    def replaced(self, row: int) -> bool:
        """Whether a row of a class of k rows leaves it and another one takes its place, and both gain."""
        start, a, k = self.loss(), self.labels[row], self.problem.rule.k
        if a < 0 or len(self.rows(a)) != k:
            return False
        for other, c in enumerate(self.labels):
            if c < 0 or c == a or len(self.rows(c)) <= k:
                continue
            for b in range(self.count):
                if b == a or not self.rows(b):
                    continue
                tried = Slow(self.problem, list(self.labels), self.count, self.people)
                tried.labels[other], tried.labels[row] = a, b
                if tried.loss() < start - 2 * LEAST:
                    return True
        return False


def arguments(slow: Slow) -> tuple[object, ...]:
    problem = slow.problem
    return (problem.table.codes, problem.sensitive.codes, np.array(slow.labels), slow.count, cell_shape(problem, None),
            problem.rule.k, problem.requirements)  # fmt: skip


@st.composite
def started(draw: st.DrawFn, rules: tuple[dict, ...] = RULES, *, counted: bool = False) -> Slow:
    frame = draw(tables(dyadic=True, least=8, most=16))
    rule, people = draw(st.sampled_from(rules)), None
    problem = problem_of(
        frame, Rule(**rule), quasi=draw(st.sampled_from([QUASI, ["number", "letter"], ["letter", "flag"]]))
    )
    if counted:
        people = draw(st.lists(st.integers(0, 4), min_size=frame.height, max_size=frame.height))
        known = np.unique(people, return_inverse=True)[1].astype(np.int64)
        problem = replace(problem, sensitive=SensitiveColumns.of(frame, ["illness"], persons=known))
    whole = Slow(problem, [0] * frame.height, 1, people)
    assume(whole.meets(range(frame.height)))
    # Rows dealt out to the classes of a cut table: most of them in the wrong place.
    found = mondrian(problem)
    labels = found.labels.copy()
    for one, other in draw(st.lists(st.tuples(*[st.integers(0, frame.height - 1)] * 2), max_size=6)):
        labels[one], labels[other] = labels[other], labels[one]
    assume(all(whole.meets(np.flatnonzero(labels == j).tolist()) for j in range(found.count)))
    return Slow(problem, labels.tolist(), found.count, people)


def leave_some(slow: Slow, numbers: list[int]) -> None:
    for row in numbers:
        rest = [other for other in slow.rows(slow.labels[row]) if other != row] if slow.labels[row] >= 0 else []
        if slow.meets(rest):
            slow.labels[row] = -1


ANY = st.one_of(started(), started(({"k": 2, "l": 2}, {"k": 3, "l": 2}), counted=True))


@examples(30, 200)
@given(slow=ANY, out=st.lists(st.integers(0, 7), max_size=3))
def test_rows_move_as_by_hand(slow, out):
    leave_some(slow, out)
    given = arguments(slow)
    moves = kernel.move_rows(*given, 5)
    by_hand = 0
    for _ in range(5):
        now = sum(slow.moved(row) for row in range(len(slow.labels)))
        by_hand += now
        if not now:
            break
    assert given[2].tolist() == slow.labels
    assert moves == by_hand


@examples(30, 200)
@given(slow=ANY, out=st.lists(st.integers(0, 7), max_size=2))
def test_what_is_saved_by_leaving_out_is_the_best_by_hand(slow, out):
    leave_some(slow, out)
    unit, gain, row = np.zeros(slow.count), np.full(slow.count, -5.0), np.full(slow.count, -7)
    dirty = np.arange(slow.count) % 3 != 1
    kernel.best_drops(*arguments(slow), dirty, unit, gain, row)
    for j in range(slow.count):
        rows, found = slow.rows(j), -1
        if not dirty[j]:
            assert (unit[j], gain[j], row[j]) == (0.0, -5.0, -7)
            continue
        best = slow.unit(rows)
        assert unit[j] == pytest.approx(best)
        for one in rows if len(rows) > slow.problem.rule.k and best > 0 else ():
            rest = [other for other in rows if other != one]
            saved = len(rows) * slow.unit(rows) - len(rest) * slow.unit(rest)
            if saved > best + LEAST and slow.meets(rest):
                best, found = saved, one
        assert (gain[j], row[j]) == (pytest.approx(best), found)


@examples(20, 100)
@given(slow=ANY, pairs=st.sampled_from([0, 10**6]))
def test_classes_are_shared_out_while_one_can_be(slow, pairs):
    given = arguments(slow)
    before, gone = slow.loss(), kernel.dissolve_classes(*given, pairs)
    after = Slow(slow.problem, given[2].tolist(), slow.count, slow.people)
    left = [after.rows(j) for j in range(slow.count)]
    assert gone == sum(not rows for rows in left)
    assert all(slow.meets(rows) for rows in left if rows)
    assert after.loss() <= before + 1e-9 if not gone else after.loss() < before - LEAST / 2
    if not pairs:
        assert after.labels == slow.labels
        return
    if not gone:
        for j in range(slow.count):
            tried = Slow(slow.problem, list(after.labels), slow.count, slow.people)
            assert not tried.unit(tried.rows(j)) or not tried.dissolved(j)


@examples(20, 100)
@given(slow=started(({"k": 2}, {"k": 3})))
def test_rows_are_replaced_only_at_a_gain(slow):
    given = arguments(slow)
    before, replaced = slow.loss(), kernel.replace_rows(*given)
    after = Slow(slow.problem, given[2].tolist(), slow.count, slow.people)
    assert all(len(after.rows(j)) >= slow.problem.rule.k for j in range(slow.count))
    assert (after.loss() < before - LEAST / 2) == bool(replaced)
    if replaced:
        assert any(slow.replaced(row) for row in range(len(slow.labels)))
    else:
        assert after.labels == slow.labels


@examples(20, 100)
@given(slow=ANY, out=st.lists(st.integers(0, 7), min_size=1, max_size=4), most=st.sampled_from([0.0, 0.5, 2.0, 9.0]))
def test_rows_come_back_where_they_cost_least_and_less_than_the_price(slow, out, most):
    leave_some(slow, out)
    given = arguments(slow)
    rows = np.flatnonzero(given[2] < 0)
    kernel.admit_rows(*given, rows, most)
    for row in rows.tolist():
        slow.labels[row] = slow.home(row, most)
    assert given[2].tolist() == slow.labels


def test_a_class_that_lacks_the_most_frequent_value_still_takes_a_row():
    """Row 3 is far from its class by its number, and its letter, the first of the marked bits, is new to the other."""
    frame = pl.DataFrame({"number": [0, 0, 0, 8, 8, 8, 8, 4, 4, 4], "letter": [*"aaaabbbccd"]})
    problem = problem_of(frame, Rule(k=3), quasi=["number", "letter"])
    slow = Slow(problem, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2], 3)
    given = arguments(slow)
    assert kernel.move_rows(*given, 1) == 1
    assert given[2].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_two_rows_of_one_person_are_not_two_persons():
    """Row 2 would move to where it costs nothing, but its class would keep three rows of one person alone."""
    frame = pl.DataFrame({"number": [0, 0, 8, 8, 8, 0], "illness": [*"fcfcfc"]})
    people = np.array([0, 0, 1, 2, 3, 0])
    private = SensitiveColumns.of(frame, ["illness"], persons=people)
    problem = Problem(code_table(frame, ["number"]), private, Rule(k=2, l=2))
    slow = Slow(problem, [0, 0, 0, 1, 1, 0], 2, people.tolist())
    given = arguments(slow)
    assert kernel.move_rows(*given, 2) == 0
    assert given[2].tolist() == slow.labels


def _label_moves(seed: int, *, bounded: bool) -> list[int]:
    """Rows moved between random classes over labels, with the bound per bit or without it."""
    random = np.random.default_rng(seed)
    rows = 240
    frame = pl.DataFrame({
        "age": random.integers(20, 60, rows),
        "place": [f"p{code}" for code in random.integers(0, 9, rows)],
        "sex": [f"s{code}" for code in random.integers(0, 2, rows)],
        "illness": [f"i{code}" for code in random.integers(0, 3, rows)],
    })  # fmt: skip
    quasi = ["age", "place", "sex"]
    problem = Problem(
        code_table(frame, quasi), SensitiveColumns.of(frame, ["illness"]), Rule(k=3, l=1.2, l_kind="entropy")
    )
    steps = levels_by_column(problem.table, data_independent(frame, quasi))
    shape = cell_shape(problem, steps)
    assert np.isfinite(shape.least_by_bit).any()
    if not bounded:
        shape = shape._replace(least_by_bit=np.empty(0))
    labels = random.integers(0, 20, rows)
    kernel.move_rows(
        problem.table.codes, problem.sensitive.codes, labels, 20, shape, problem.rule.k, problem.requirements, 2
    )
    return [int(label) for label in labels]


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_per_bit_leaves_no_better_class_out(seed: int) -> None:
    assert _label_moves(seed, bounded=True) == _label_moves(seed, bounded=False)


def test_a_row_is_replaced_by_one_of_a_class_that_has_one_to_spare():
    """Row 1 leaves a class of two rows for its like, and one of the three rows that are like row 0 takes its place."""
    frame = pl.DataFrame({"number": [0, 9, 0, 0, 0, 9, 9]})
    slow = Slow(problem_of(frame, Rule(k=2), quasi=["number"]), [0, 0, 1, 1, 1, 2, 2], 3)
    given = arguments(slow)
    assert kernel.replace_rows(*given) == 1
    assert given[2].tolist() == [0, 2, 0, 1, 1, 2, 2]
    assert kernel.replace_rows(*given) == 0


LINK, UNLINK = (getattr(step, "py_func", step) for step in (class_state.link, class_state.unlink))
"""As they are written: compiled, they are called by other compiled steps alone."""


class Chains(NamedTuple):
    """As much of the classes as chains of rows need."""

    label: np.ndarray
    head: np.ndarray
    after: np.ndarray
    before: np.ndarray


def test_a_chain_holds_the_rows_that_were_put_there_last() -> None:
    random = np.random.default_rng(4)
    state = Chains(np.full(6, -1), np.full(3, -1), np.full(6, -1), np.full(6, -1))
    by_hand: list[list[int]] = [[], [], []]
    for row, to in random.integers(0, (6, 3), (300, 2)).tolist():
        if state.label[row] >= 0:
            by_hand[state.label[row]].remove(row)
            UNLINK(state, state.label[row], row)
        by_hand[to].insert(0, row)
        LINK(state, to, row)
        for j, rows in enumerate(by_hand):
            at, found = int(state.head[j]), list[int]()
            while at >= 0 and len(found) <= 6:
                found.append(at)
                at = int(state.after[at])
            assert found == rows


def dealt_out(seed: int) -> tuple[Problem, np.ndarray, int]:
    """A table whose rows are in classes by chance, most of them in the wrong one; some are left out."""
    random = np.random.default_rng(seed)
    rows, classes = int(random.integers(10, 30)), int(random.integers(2, 6))
    frame = pl.DataFrame({
        "number": [0.0, 8.0, *random.integers(0, 9, rows - 2).tolist()],
        "letter": [*"abcd", *(str(letter) for letter in random.choice([*"abcd"], rows - 4))],
        "illness": random.choice([*"fch"], rows),
    })  # fmt: skip
    quasi = (["number", "letter"], ["letter"], ["number"])[seed % 3]
    rule = Rule(
        **({"k": 2}, {"k": 3}, {"k": 2, "l": 2}, {"k": 2, "t": 0.4}, {"k": 3, "l": 1.5, "l_kind": "entropy"})[seed % 5]
    )
    labels = random.integers(0, classes, rows)
    labels[random.integers(0, rows, seed % 4)] = -1
    private = SensitiveColumns.of(frame, ["illness"])
    return Problem(code_table(frame, quasi), private, rule), labels, classes


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_moves_and_shared_out_classes_are_those_of_lists_of_rows(first: int) -> None:
    for seed in range(first, first + 25):
        problem, labels, classes = dealt_out(seed)
        slow = Slow(problem, labels.tolist(), classes)
        given, by_hand = arguments(slow), LocalSearch(problem, labels.tolist(), classes)
        assert (kernel.move_rows(*given, 4), given[2].tolist()) == (by_hand.move(4), by_hand.labels), seed
        by_hand = LocalSearch(problem, labels.tolist(), classes)
        units = [by_hand.unit(rows) for rows in by_hand.classes]
        if len(set(units)) == len(units):  # or the order of classes is open
            given = arguments(slow)
            assert (kernel.dissolve_classes(*given, 10**6), given[2].tolist()) == (
                by_hand.dissolve(),
                by_hand.labels,
            ), seed


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_rows_that_replace_one_another_are_those_of_lists_of_rows(first: int) -> None:
    found = 0
    for seed in range(first, first + 100, 5):
        for problem, labels, classes in (dealt_out(seed), dealt_out(seed + 1)):  # rules about k rows alone
            given = arguments(Slow(problem, labels.tolist(), classes))
            by_hand = LocalSearch(problem, labels.tolist(), classes)
            replaced = kernel.replace_rows(*given)
            assert (replaced, given[2].tolist()) == (by_hand.replace(), by_hand.labels), seed
            found += replaced
    assert found > 0
