"""The rule: judged as the slow form judges, refused exactly when the whole table fails."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.partitions import meets
from tests.support.anonymity_tables import RULES, problem_of, tables
from tests.support.examples import examples

from kohort.anonymity.relational.class_kernel import rows_meet, sort_first
from kohort.anonymity.relational.rule import Rule, SensitiveColumns, require_feasible
from kohort.errors import ConfigError, RefusedError


@examples(50, 200)
@given(frame=tables(), rule=st.sampled_from(RULES), data=st.data())
def test_a_class_is_judged_as_by_hand(frame, rule, data):
    problem = problem_of(frame, Rule(**rule))
    rows = data.draw(st.lists(st.integers(0, frame.height - 1), min_size=1, unique=True))
    others = data.draw(st.lists(st.integers(0, frame.height - 1), min_size=1, unique=True))
    met = problem.rule_test()
    assert met(np.array(rows)) == meets(problem, rows)
    # What the first class left behind does not count for the second.
    assert met(np.array(others)) == meets(problem, others)
    if problem.requirements is not None:
        counts = np.zeros(problem.requirements.offsets[-1], np.int64)
        rows_meet(
            np.ascontiguousarray(problem.columns()[:, rows]),
            problem.requirements,
            counts,
            np.empty(len(rows), np.int64),
        )
        assert not counts.any()


@examples(25, 100)
@given(frame=tables(), rule=st.sampled_from(RULES))
def test_a_rule_is_refused_exactly_when_the_whole_table_fails(frame, rule):
    problem = problem_of(frame, Rule(**rule))
    if meets(problem, range(frame.height)):
        require_feasible(problem.rule, problem.sensitive)
    else:
        with pytest.raises(RefusedError):
            require_feasible(problem.rule, problem.sensitive)


def test_the_refusal_says_what_can_be_met():
    frame = pl.DataFrame({"s": ["a", "b", "a"]})
    private = SensitiveColumns.of(frame, ["s"])
    with pytest.raises(RefusedError, match="k of at most 3"):
        require_feasible(Rule(k=5), private)
    with pytest.raises(RefusedError, match="l of at most 2"):
        require_feasible(Rule(k=1, l=3), private)
    with pytest.raises(RefusedError, match=r"Entropy l of at most 1\.889"):
        require_feasible(Rule(k=1, l=2, l_kind="entropy"), private)
    with pytest.raises(RefusedError, match=r"c above 2\.000"):
        require_feasible(Rule(k=1, l=2, l_kind="recursive", c=1.5), private)
    with pytest.raises(ConfigError, match="none is named"):
        require_feasible(Rule(k=1, l=2), SensitiveColumns.of(frame, []))


@pytest.mark.parametrize(
    "bad",
    [
        {"k": 0},
        {"k": 2, "l": -1},
        {"k": 2, "l": 1.5},
        {"k": 2, "t": -0.1},
        {"k": 2, "t": float("nan")},
        {"k": 2, "c": 0},
        {"k": 2, "l_kind": "distinkt"},
        {"k": 2, "t_kind": "em"},
    ],
)
def test_a_rule_that_means_nothing_is_an_error(bad):
    with pytest.raises(ConfigError):
        Rule(**bad)


@given(st.lists(st.integers(-50, 50)))
def test_sorting_in_place(values):
    array = np.array(values, dtype=np.int64)
    sort_first(array, len(array))
    assert array.tolist() == sorted(values)
