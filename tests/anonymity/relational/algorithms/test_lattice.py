"""Local recoding with hierarchies: groups as a dictionary finds them, classes within the rule, labels that cover."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.partitions import meets
from tests.support.anonymity_tables import QUASI, RULES, as_sets, problem_of, tables
from tests.support.examples import examples

from kohort.anonymity.loss import ncp
from kohort.anonymity.relational.algorithms.lattice import lattice
from kohort.anonymity.relational.algorithms.lattice_kernel import count_groups
from kohort.anonymity.relational.hierarchy_builders import data_independent
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels, levels_by_column
from kohort.anonymity.relational.problem import Problem, code_table
from kohort.anonymity.relational.recode import label_cells, release
from kohort.anonymity.relational.rule import Rule, SensitiveColumns
from kohort.errors import ConfigError, DataError
from kohort.tables.cells import SUPPRESSED, Interval, Label
from kohort.tables.datasets.catalogue import load_dataset
from kohort.tables.hierarchy import Hierarchy, read_hierarchies


@examples(25, 100)
@given(frame=tables(), data=st.data())
def test_groups_are_those_of_a_dictionary(frame, data):
    problem = problem_of(frame, Rule(k=2))
    steps = levels_by_column(problem.table, data_independent(frame, QUASI))
    node = [data.draw(st.integers(0, levels.count - 1)) for levels in steps]
    flat = np.concatenate([labels for levels in steps for labels in levels.labels]).astype(np.int32)
    begin = iter(
        np.concatenate(([0], np.cumsum([len(labels) for levels in steps for labels in levels.labels]))).tolist()
    )
    base = np.zeros((len(steps), max(levels.count for levels in steps)), np.int64)
    for c, levels in enumerate(steps):
        for level in range(levels.count):
            base[c, level] = next(begin)
    group, counts = np.empty(frame.height, np.int64), np.empty(frame.height, np.int64)
    found, large = count_groups(
        problem.table.codes, flat, base, np.array(node), np.arange(frame.height), frame.height, 2,
        np.empty((frame.height, len(steps)), np.int32), np.empty(128, np.int64), group, counts,
    )  # fmt: skip
    held = [levels.labels[level][codes] for levels, level, codes in zip(steps, node, problem.table.codes, strict=True)]
    keys = [tuple(labels) for labels in np.array(held).T.tolist()]
    by_hand = Counter(keys)
    assert found == len(by_hand)
    assert large == sum(count for count in by_hand.values() if count >= 2)
    assert len(set(zip(keys, group.tolist(), strict=True))) == found


@examples(40, 150)
@given(frame=tables(), rule=st.sampled_from(RULES), budget=st.sampled_from([None, 0, 3]))
def test_every_class_meets_the_rule_and_every_row_is_in_one(frame, rule, budget):
    problem = problem_of(frame, Rule(**rule))
    if not meets(problem, range(frame.height)):
        return
    found = lattice(problem, levels_by_column(problem.table, data_independent(frame, QUASI)), node_budget=budget)
    assert sorted(found.partition.order.tolist()) == list(range(frame.height))
    assert all(meets(problem, sorted(rows)) for rows in as_sets(found.partition))


@examples(25, 100)
@given(frame=tables(least=6), limit=st.sampled_from([0.0, 0.2, 1.0]))
def test_suppression_stays_within_its_limit_and_spares_every_class(frame, limit):
    problem = problem_of(frame, Rule(k=3))
    steps = levels_by_column(problem.table, data_independent(frame, QUASI))
    found = lattice(problem, steps, suppression_limit=limit)
    assert len(found.suppressed) <= limit * frame.height
    released = [rows for rows in as_sets(found.partition) if not rows & set(found.suppressed.tolist())]
    assert all(len(rows) >= 3 for rows in released)
    # Minimum suppression: whoever is left out could not have formed a class with the others who are.
    assert len(found.suppressed) < 3


def test_labels_nest_from_level_to_level():
    frame = load_dataset("adult:train").frame
    coded = code_table(frame, ["age", "education"])
    for levels in levels_by_column(coded, data_independent(frame, ["age", "education"])):
        for fine, coarse in itertools.pairwise(levels.labels):
            assert len(set(zip(fine.tolist(), coarse.tolist(), strict=True))) == len(set(fine.tolist()))


def test_a_label_over_neighbouring_numbers_is_an_interval_and_null_stands_alone():
    frame = pl.DataFrame({"n": [1, 2, 7, 9, None], "c": ["x", "y", "x", "z", None]})
    numbers = Hierarchy.of("n", {"1": ("low", "*"), "2": ("low", "*"), "7": ("high", "*"), "9": ("high", "*")})
    odd = Hierarchy.of("n", {"1": ("odd", "*"), "2": ("even", "*"), "7": ("odd", "*"), "9": ("odd", "*")})
    texts = Hierarchy.of("c", {"x": ("xy",), "y": ("xy",), "z": ("z",)})
    coded = code_table(frame, ["n", "c"])
    first = HierarchyLevels.of(coded.columns[0], numbers)
    assert set(first.cells[1]) == {Interval(1, 2), Interval(7, 9), None}
    assert first.cells[-1] == (Interval(1, 9, missing=True),)
    assert first.cost[1].tolist() == pytest.approx([0.0, 1 / 8, 2 / 8])
    assert Label("odd") in HierarchyLevels.of(coded.columns[0], odd).cells[1]
    second = HierarchyLevels.of(coded.columns[1], texts)
    assert second.cells[-1] == (SUPPRESSED,)
    assert second.count == 3
    assert sorted(second.cost[1].tolist()) == [0.0, 0.0, 2 / 4]


def test_a_hierarchy_must_cover_its_column_and_the_error_shows_no_value():
    frame = pl.DataFrame({"n": ["secret1", "secret2", "known"]})
    coded = code_table(frame, ["n"])
    with pytest.raises(DataError, match=r"'n' lacks 2 value") as error:
        levels_by_column(coded, {"n": Hierarchy.of("n", {"known": ("*",)})})
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigError, match="no hierarchy for: n"):
        levels_by_column(coded, {})


def test_fifteen_and_forty_quasi_identifiers_finish():
    random = np.random.default_rng(1)
    for width in (15, 40):
        frame = pl.DataFrame({f"q{i}": random.integers(0, 40, 400) for i in range(width)})
        problem = Problem(code_table(frame, frame.columns), SensitiveColumns.of(frame, []), Rule(k=5))
        found = lattice(
            problem, levels_by_column(problem.table, data_independent(frame, frame.columns)), node_budget=300
        )
        assert found.partition.sizes.min() >= 5


def test_loss_on_adult_with_the_hierarchies_of_arx_is_within_its_bounds():
    # Bounds: 3.7, 8.2 and 16.2 % for k = 3, 10, 50; ARX's own local recoding reaches 3.9, 8.5 and 16.4 %.
    folder = Path(os.environ.get("KOHORT_DATA", "")) / "hierarchies" / "adult"
    if not folder.is_dir():
        pytest.skip("the ARX hierarchies are not in KOHORT_DATA")
    frame = load_dataset("adult:train").frame.drop_nulls()
    quasi = ["age", "workclass", "education", "marital_status", "occupation", "race", "sex", "native_country"]
    given_ = read_hierarchies(folder)
    coded = code_table(frame, quasi)
    steps = levels_by_column(coded, given_)
    for k, bound in ((3, 0.037), (10, 0.082), (50, 0.162)):
        found = lattice(Problem(coded, SensitiveColumns.of(frame, []), Rule(k=k)), steps)
        out = release(frame, found.partition, label_cells(coded, found.partition, steps))
        assert ncp(frame, out, quasi=quasi, hierarchies=given_) <= bound
