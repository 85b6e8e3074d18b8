"""Rows that agree: as classes of their own, before the others are clustered, and in a large table without the rest."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.partitions import meets
from tests.support.anonymity_tables import RULES, as_sets, problem_of, tables
from tests.support.examples import examples

from kohort.anonymity import row_keys
from kohort.anonymity.relational import makers
from kohort.anonymity.relational.algorithms.cluster import cluster, cluster_rest
from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.equal_rows import equal_rows, exact_classes
from kohort.anonymity.relational.rule import Rule


@examples(40, 200)
@given(frame=tables(most=25), largest=st.sampled_from([6, 1 << 62]))
def test_rows_share_a_number_if_and_only_if_all_their_codes_are_equal(frame, largest):
    table = problem_of(frame, Rule(k=2)).table
    rows = [tuple(codes) for codes in table.codes.T.tolist()]
    groups = np.arange(len(rows)) % 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_keys, "LARGEST_KEY", largest)
        found = equal_rows(table, groups, np.arange(len(rows)))
        alike = exact_classes(table).labels
    for i, j in product(range(len(rows)), repeat=2):
        assert (found[i] == found[j]) == (rows[i] == rows[j] and groups[i] == groups[j])
        assert (alike[i] == alike[j]) == (rows[i] == rows[j])


@examples(40, 200)
@given(frame=tables(), rule=st.sampled_from(RULES))
def test_rows_that_agree_stay_as_they_are_and_every_class_meets_the_rule(frame, rule):
    problem = problem_of(frame, Rule(**rule))
    if not meets(problem, range(frame.height)):
        return
    found = cluster_rest(problem, jobs=1)
    assert sorted(found.order.tolist()) == list(range(frame.height))
    assert all(meets(problem, sorted(rows)) for rows in as_sets(found))
    exact = {rows for rows in as_sets(exact_classes(problem.table)) if len(rows) >= problem.rule.k}
    rest = frame.height - sum(map(len, exact))
    if problem.requirements is None and not 0 < rest < problem.rule.k:
        assert exact <= as_sets(found)
    else:
        assert as_sets(found) == as_sets(cluster(problem, jobs=1))


def wide(rows: int) -> pl.DataFrame:
    random = np.random.default_rng(5)
    return pl.DataFrame(
        {"a": random.integers(0, 40, rows), "b": random.integers(0, 9, rows), "ill": ["no", "yes"] * (rows // 2)}
    )


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, {"exact-cluster", "cluster", "mondrian", "mdav", "lattice"}),
        ({"l": 2}, {"cluster", "mondrian", "lattice"}),
        ({"means": ["a"]}, {"exact-cluster", "cluster", "mondrian", "mdav"}),
    ],
)
def test_auto_tries_what_fits_and_keeps_the_least_loss(rule, expected):
    report = anonymise(wide(60), quasi=["a", "b"], sensitive=["ill"], k=3, **rule).report
    assert set(report.tried) == expected
    assert report.tried[report.algorithm] == min(report.tried.values())
    assert report.ncp == pytest.approx(min(report.tried.values()))
    assert report.notes == ()


def test_auto_names_what_a_large_table_did_not_get(monkeypatch):
    monkeypatch.setattr(makers, "MANY_CELLS", 100)
    monkeypatch.setattr(makers, "FEW_CELLS", 50)
    report = anonymise(wide(60), quasi=["a", "b"], sensitive=["ill"], k=3).report
    assert (report.algorithm, report.tried) == ("exact-cluster", {})
    (note,) = report.notes
    assert note == "auto did not try cluster, mondrian, mdav, lattice: 60 rows x 2 quasi-identifiers are too many"
