"""Keep-exact: guarded it never breaks the rule; as printed it does."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.partitions import class_loss, meets
from tests.support.anonymity_tables import RULES, as_sets, problem_of, tables
from tests.support.examples import examples

from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.keep_exact import split_exact
from kohort.anonymity.relational.problem import Partition, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns


@examples(50, 200)
@given(frame=tables(least=4), rule=st.sampled_from(RULES), stop=st.sampled_from([0, 20, 100]))
def test_guarded_keeps_the_rule_and_loses_no_more(frame, rule, stop):
    problem = problem_of(frame, Rule(**rule))
    if not meets(problem, range(frame.height)):
        return
    before = mondrian(problem, stop_rows=stop)
    after = split_exact(problem, before)
    assert all(meets(problem, sorted(rows)) for rows in as_sets(after))
    assert problem.mean_loss(after) <= problem.mean_loss(before) + 1e-12
    # What was split off is exact, and a class is never spread over two old ones.
    for rows in as_sets(after):
        assert len({int(before.labels[row]) for row in rows}) == 1
    assert sum(class_loss(problem, sorted(rows)) > 0 for rows in as_sets(after)) <= before.count


def test_as_printed_it_leaves_fewer_than_k_rows():
    frame = pl.DataFrame({"a": [1, 1, 1, 5]})
    problem = Problem(code_table(frame, ["a"]), SensitiveColumns.of(frame, []), Rule(k=2))
    whole = Partition.of_labels(np.zeros(4, np.int64))
    assert as_sets(split_exact(problem, whole, guarded=False)) == {frozenset({0, 1, 2}), frozenset({3})}
    assert as_sets(split_exact(problem, whole)) == {frozenset({0, 1, 2, 3})}


def test_the_smallest_group_comes_back_where_the_rest_needs_it():
    frame = pl.DataFrame({"a": [1, 1, 1, 2, 2, 9]})
    problem = Problem(code_table(frame, ["a"]), SensitiveColumns.of(frame, []), Rule(k=2))
    whole = Partition.of_labels(np.zeros(6, np.int64))
    assert as_sets(split_exact(problem, whole)) == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}
