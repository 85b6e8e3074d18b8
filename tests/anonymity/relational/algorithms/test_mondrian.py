"""Mondrian: the compiled loop cuts where the slow form cuts, and every class meets the rule."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.partitions import class_loss, meets, strict_mondrian
from tests.support.anonymity_tables import RULES, as_sets, problem_of, tables
from tests.support.examples import examples

from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.problem import Partition, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns
from kohort.errors import ConfigError


@examples(40, 150)
@given(frame=tables(), rule=st.sampled_from(RULES))
def test_strict_median_cuts_as_by_hand(frame, rule):
    problem = problem_of(frame, Rule(**rule))
    assert as_sets(mondrian(problem)) == strict_mondrian(problem)


@examples(25, 100)
@given(frame=tables(dyadic=True), rule=st.sampled_from(RULES))
def test_look_ahead_cuts_as_by_hand(frame, rule):
    problem = problem_of(frame, Rule(**rule))
    assert as_sets(mondrian(problem, split="look-ahead")) == strict_mondrian(problem, look_ahead=True)


@examples(40, 150)
@given(
    frame=tables(),
    rule=st.sampled_from(RULES),
    relaxed=st.booleans(),
    split=st.sampled_from(["median", "look-ahead"]),
)
def test_every_class_meets_the_rule_and_every_row_is_in_one(frame, rule, relaxed, split):
    problem = problem_of(frame, Rule(**rule))
    if not meets(problem, range(frame.height)):
        return
    found = mondrian(problem, relaxed=relaxed, split=split)
    assert sorted(found.order.tolist()) == list(range(frame.height))
    assert all(meets(problem, sorted(rows)) for rows in as_sets(found))


@given(frame=tables(least=4))
def test_relaxed_cuts_in_the_middle(frame):
    problem = problem_of(frame, Rule(k=2))
    sizes = mondrian(problem, relaxed=True).sizes
    cut = frame.select("number", "letter", "flag").n_unique() > 1
    assert not cut or sizes.max() < frame.height


def test_only_the_chosen_dimensions_are_cut():
    frame = pl.DataFrame({"a": list(range(8)), "b": list(range(8))[::-1], "c": ["x", "y"] * 4})
    problem = Problem(code_table(frame, ["a", "b", "c"]), SensitiveColumns.of(frame, []), Rule(k=2))
    classes = as_sets(mondrian(problem, dimensions=["c"]))
    assert classes == {frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7})}
    with pytest.raises(ConfigError, match="not a quasi-identifier"):
        mondrian(problem, dimensions=["d"])
    with pytest.raises(ConfigError, match="unknown split"):
        mondrian(problem, split="middle")


def test_parts_of_at_most_stop_rows_are_not_cut():
    frame = pl.DataFrame({"a": list(range(64))})
    problem = Problem(code_table(frame, ["a"]), SensitiveColumns.of(frame, []), Rule(k=2))
    assert set(mondrian(problem, stop_rows=16).sizes.tolist()) == {16}


def test_many_values_need_wide_codes():
    frame = pl.DataFrame({"a": np.arange(70_000), "b": [f"v{i}" for i in range(70_000)]})
    problem = Problem(code_table(frame, ["a", "b"]), SensitiveColumns.of(frame, []), Rule(k=100))
    assert problem.table.codes.dtype == np.uint32
    assert mondrian(problem).sizes.min() >= 100


@examples(20, 50)
@given(frame=tables())
def test_loss_of_classes_is_the_loss_by_hand(frame):
    problem = problem_of(frame, Rule(k=3))
    found = mondrian(problem)
    by_hand = [
        (end - start) * class_loss(problem, found.order[start:end].tolist())
        for start, end in zip(found.starts[:-1], found.starts[1:], strict=True)
    ]
    assert np.allclose(problem.losses(found), by_hand)


def test_labels_and_order_say_the_same():
    found = Partition.of_labels(np.array([7, 3, 7, 3, 9]))
    assert found.labels.tolist() == [1, 0, 1, 0, 2]
    assert as_sets(found) == {frozenset({1, 3}), frozenset({0, 2}), frozenset({4})}
