"""Groups by labels against a brute force, and classes that are opened from rows of several."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.relational.algorithms import label_groups, refine
from kohort.anonymity.relational.algorithms.cell_shape import cell_shape
from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.hierarchy_builders import data_independent
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels, levels_by_column
from kohort.anonymity.relational.problem import Partition, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns

Group = tuple[tuple[int, ...], float]


def rows(seed: int, count: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": random.normal(45, 15, count).round().astype(int),
            "code": [f"{a}{b}{c}" for a, b, c in random.integers(0, 3, (count, 3))],
            "town": random.choice(list("abcd"), count, p=[0.6, 0.2, 0.1, 0.1]),
        }
    )


def problem_of(frame: pl.DataFrame, k: int) -> tuple[Problem, tuple[HierarchyLevels, ...]]:
    table = code_table(frame, frame.columns)
    steps = levels_by_column(table, data_independent(frame, frame.columns))
    return Problem(table, SensitiveColumns.of(frame, []), Rule(k=k)), steps


def released(steps: tuple[HierarchyLevels, ...], codes: np.ndarray, members: tuple[int, ...]) -> float:
    """What a row of a class loses: in every column the lowest label that all its rows share."""
    total = 0.0
    for levels, line in zip(steps, codes, strict=True):
        for labels, costs in zip(levels.labels, levels.cost, strict=True):
            held = {int(labels[line[row]]) for row in members}
            if len(held) == 1:
                total += float(costs[held.pop()])
                break
    return total


def brute_force(problem: Problem, steps: tuple[HierarchyLevels, ...], bound: float) -> set[Group]:
    """Every set of k rows that share labels below a bound, at the lowest cost that has all of them."""
    found: dict[tuple[int, ...], float] = {}
    codes = problem.table.codes
    for node in product(*(range(levels.count) for levels in steps)):
        held: dict[tuple[int, ...], list[int]] = {}
        for row in range(problem.table.rows):
            pairs = zip(steps, node, codes, strict=True)
            key = tuple(int(levels.labels[level][line[row]]) for levels, level, line in pairs)
            held.setdefault(key, []).append(row)
        for key, inside in held.items():
            cost = sum(float(levels.cost[at][label]) for levels, at, label in zip(steps, node, key, strict=True))
            if len(inside) >= problem.rule.k and cost < bound - 1e-9:
                members = tuple(inside)
                found[members] = min(cost, found.get(members, np.inf))
    return {(members, round(cost, 9)) for members, cost in found.items()}


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_those_of_a_brute_force(seed: int) -> None:
    problem, steps = problem_of(rows(seed, 40), 4)
    cost = np.full(40, 1.2)
    members, starts, costs, left = label_groups.groups_of(
        problem, cell_shape(problem, steps), steps, cost, np.arange(40)
    )
    pairs = zip(starts[:-1], starts[1:], costs, strict=True)
    found = [(tuple(sorted(members[first:end].tolist())), round(float(paid), 9)) for first, end, paid in pairs]
    assert left > 0
    assert len(found) == len(set(found)) > 0
    assert set(found) == brute_force(problem, steps, 1.2)


@pytest.mark.parametrize("seed", range(3))
def test_a_class_comes_before_every_dearer_one(seed: int) -> None:
    problem, steps = problem_of(rows(seed, 60), 4)
    labels = label_groups.by_groups(problem, steps)
    assert labels is not None
    assert (labels < 0).sum() < 4
    assert min(np.bincount(labels[labels >= 0])) >= 4
    for number in range(int(labels.max()) + 1):
        waiting = np.flatnonzero((labels < 0) | (labels >= number))
        own = released(steps, problem.table.codes, tuple(np.flatnonzero(labels == number).tolist()))
        _, _, costs, _ = label_groups.groups_of(
            problem, cell_shape(problem, steps), steps, np.full(60, np.inf), waiting
        )
        assert own <= costs.min() + 1e-9


def test_classes_with_the_same_labels_become_one() -> None:
    frame = pl.DataFrame({"code": ["11", "12", "11", "12", "21", "21"]})
    problem, steps = problem_of(frame, 2)
    found = label_groups.joined_alike(problem.table.codes, steps, np.array([0, 0, 1, 1, 2, -1]))
    assert found[0] == found[1] == found[2] == found[3] != found[4]
    assert found[5] == -1


@pytest.mark.parametrize("room", [0, 5])
@pytest.mark.parametrize("seed", range(4))
def test_opening_classes_keeps_the_rule_and_the_budget_and_lowers_the_loss(seed: int, room: int) -> None:
    problem, steps = problem_of(rows(seed, 300), 5)
    start = np.random.default_rng(seed).permutation(300) % 30
    left = np.flatnonzero(start == 29)
    search = refine._Search.of(problem, Partition.of_labels(start), steps, left=left)
    before, price = search.loss() + 2.0 * len(left), 2.0
    opened = search.open(price, room)
    out = int((search.labels < 0).sum())
    assert opened > 0
    assert out <= len(left) + room
    assert min(np.bincount(search.labels[search.labels >= 0])) >= 5
    whole = sum(
        len(members) * released(steps, problem.table.codes, tuple(members.tolist()))
        for members in (np.flatnonzero(search.labels == number) for number in range(search.count))
    )
    assert search.loss() == pytest.approx(whole)
    assert whole + price * out < before - 0.1


def test_a_budget_buys_more_with_classes_that_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    gained = []
    for seed in range(4):
        frame = rows(seed, 500)
        asked = {"quasi": frame.columns, "k": 5, "suppression_limit": 0.05, "hierarchies": "intervals"}
        made = anonymise(frame, **asked).report
        with monkeypatch.context() as patch:
            patch.setattr(refine._Search, "opens", property(lambda _: False))
            plain = anonymise(frame, **asked).report
        assert made.verified
        assert made.suppressed_rows <= 25
        gained.append(plain.ncp_released - made.ncp_released)
    assert sum(gained) > 0.0


def test_a_table_that_is_too_large_is_left_to_the_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, steps = problem_of(rows(0, 60), 4)
    for name, value in (("MOST_CELLS", 100), ("WORK", 50)):
        with monkeypatch.context() as patch:
            patch.setattr(label_groups, name, value)
            assert label_groups.by_groups(problem, steps) is None
