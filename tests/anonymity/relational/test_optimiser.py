"""Suppression as a budget, weights, the choice of a maker, and rules that bound every value: held by brute force."""

from __future__ import annotations

import math
from collections import Counter
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.partitions import meets
from tests.reference.releases import broken_rules
from tests.support.anonymity_tables import QUASI, problem_of, tables
from tests.support.examples import examples

from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.algorithms.refine import refine
from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.population import k_of_risk
from kohort.anonymity.relational.problem import Partition
from kohort.anonymity.relational.rule import Rule
from kohort.errors import ConfigError, RefusedError
from kohort.tables.datasets.catalogue import load_dataset

BOUNDS = (
    {"alpha": 0.7},
    {"beta": 1.0},
    {"beta": 1.0, "beta_kind": "enhanced"},
    {"delta": 1.5},
    {"alpha": 0.8, "l": 2},
    {"t": 0.3},
)
WAYS = ({}, {"algorithm": "mondrian"}, {"hierarchies": "intervals"}, {"suppression_limit": 0.3})


def broken(released: pl.DataFrame, rule: dict) -> list[str]:
    """Which bounds on shares some class breaks, straight from their definitions."""
    groups: dict[tuple, list[int]] = {}
    for row, key in enumerate(released.select(QUASI).iter_rows()):
        groups.setdefault(key, []).append(row)
    found = []
    for name in ("illness", "income"):
        values = released[name].to_list()
        table = {value: count / len(values) for value, count in Counter(values).items()}
        for rows in groups.values():
            held = Counter(values[row] for row in rows)
            share = {value: held.get(value, 0) / len(rows) for value in table}
            gain = {value: (share[value] - q) / q for value, q in table.items()}
            if max(share.values()) > rule.get("alpha", 1.0) + 1e-9:
                found.append("alpha")
            most = rule.get("beta", math.inf)
            bound = {value: min(most, -math.log(q)) if "beta_kind" in rule else most for value, q in table.items()}
            if any(gain[value] > bound[value] + 1e-9 for value in table):
                found.append("beta")
            if "delta" in rule and any(
                p == 0 or abs(math.log(p / table[value])) >= rule["delta"] for value, p in share.items()
            ):
                found.append("delta")
            if len(held) < rule.get("l", 1):
                found.append("l")
    return found


@examples(30, 500)
@given(frame=tables(), rule=st.sampled_from(BOUNDS), way=st.sampled_from(WAYS))
def test_every_bound_holds_by_brute_force(frame, rule, way) -> None:
    try:
        made = anonymise(frame, quasi=QUASI, sensitive=["illness", "income"], k=2, **rule, **way)
    except RefusedError:
        whole = frame.with_columns(pl.lit("*").alias(name) for name in QUASI)
        assert frame.height < 2 or broken(whole, rule)
        return
    assert made.report.verified
    assert made.report.k >= 2
    assert broken(made.frame, rule) == []
    assert made.report.suppressed_rows <= way.get("suppression_limit", 0) * frame.height


@examples(20, 100)
@given(frame=tables(least=4), bounds=st.sampled_from(BOUNDS))
def test_moving_rows_keeps_the_rule_and_never_adds_loss(frame, bounds) -> None:
    problem = problem_of(frame, Rule(k=2, **bounds))
    start = mondrian(problem)
    found = refine(problem, start)
    assert problem.mean_loss(found) <= problem.mean_loss(start) + 1e-9
    parts = zip(found.starts[:-1], found.starts[1:], strict=True)
    if meets(problem, range(frame.height)):
        assert all(meets(problem, found.order[a:b].tolist()) for a, b in parts)


def _without_bounds(marks: Any, covered: Any, least: float, least_by_bit: Any) -> tuple[Any, ...]:
    del least
    return marks, covered, 0.0, np.zeros_like(least_by_bit)


@pytest.mark.parametrize("labelled", [False, True])
def test_the_filter_of_classes_changes_no_move(labelled, monkeypatch) -> None:
    random = np.random.default_rng(3)
    frame = pl.DataFrame({name: random.integers(0, 60, 300) for name in "ab"}).with_columns(
        pl.Series("c", random.choice(list("uvwxyz"), 300)), pl.Series("ill", random.choice(["no", "no", "yes"], 300))
    )
    options = {"hierarchies": "intervals"} if labelled else {}

    def made() -> Any:
        return anonymise(frame, quasi=["a", "b", "c"], sensitive=["ill"], k=4, t=0.2, **options)

    filtered = made()
    module = "kohort.anonymity.relational.algorithms.cell_shape"
    for marks in ("_value_marks", "_label_marks"):
        used = getattr(import_module(module), marks)
        monkeypatch.setattr(f"{module}.{marks}", lambda *given, used=used: _without_bounds(*used(*given)))
    assert made().classes.tolist() == filtered.classes.tolist()


def test_a_table_too_large_to_refine_is_noted(monkeypatch) -> None:
    frame = pl.DataFrame({"a": list(range(40)), "ill": ["no", "yes"] * 20})
    given = {"quasi": ["a"], "sensitive": ["ill"], "k": 4, "l": 2}
    assert anonymise(frame, **given).report.notes == ()
    monkeypatch.setattr("kohort.anonymity.relational.algorithms.refine.PAIRS", 10)
    for options in ({}, {"hierarchies": "intervals"}):
        (note,) = anonymise(frame, **given, **options).report.notes
        assert "40 rows" in note


def test_classes_of_k_rows_alone_are_moved_out_of_sets_that_would_be_suppressed() -> None:
    frame = load_dataset("adult:train").frame.drop_nulls().head(3000)
    given = {"quasi": ["age", "education", "occupation", "marital_status"], "k": 45, "max_set": 4}
    moved, made = (anonymise(frame, **given, algorithm=algorithm).report for algorithm in ("auto", "cluster"))
    assert moved.ncp < 0.99 * made.ncp


def outliers() -> pl.DataFrame:
    """300 rows close together, and twenty-four far away from everything."""
    near = [(20 + i % 10, "ab"[i % 2]) for i in range(300)]
    far = [(60 + 7 * i, "cdefgh"[i % 6]) for i in range(24)]
    return pl.DataFrame(near + far, schema=["age", "town"], orient="row")


def test_the_budget_goes_to_the_rows_that_cost_most() -> None:
    """`--suppression` once never dropped k or more rows."""
    without = anonymise(outliers(), quasi=["age", "town"], k=5).report
    made = anonymise(outliers(), quasi=["age", "town"], k=5, suppression_limit=0.08)
    report = made.report
    assert 5 <= report.suppressed_rows <= 25
    assert set(range(324)) - set(made.kept.tolist()) <= set(range(300, 324))
    assert report.ncp_released < without.ncp_released / 2
    assert report.ncp == pytest.approx((report.ncp_released * report.rows_out + report.suppressed_rows) / 324)


def test_the_balance_says_what_a_suppressed_row_costs() -> None:
    counts = [
        anonymise(
            outliers(), quasi=["age", "town"], k=5, suppression_limit=0.08, balance=balance
        ).report.suppressed_rows
        for balance in (0.0, 0.5, 1.0)
    ]
    assert counts[0] > counts[1] >= counts[2] == 0


def test_a_weight_keeps_its_column_finer() -> None:
    random = np.random.default_rng(5)
    frame = pl.DataFrame({"a": random.integers(0, 100, 400), "b": random.integers(0, 100, 400)})

    def width(made: pl.DataFrame) -> float:
        groups = (
            pl.DataFrame({"class": made.classes, "a": frame["a"]})
            .group_by("class")
            .agg(wide=pl.col("a").max() - pl.col("a").min(), rows=pl.len())
        )
        return float((groups["wide"] * groups["rows"]).sum())

    assert width(anonymise(frame, quasi=["a", "b"], k=5, weights={"a": 5.0})) < 0.7 * width(
        anonymise(frame, quasi=["a", "b"], k=5)
    )


def test_auto_says_what_it_tried_and_keeps_the_least() -> None:
    report = anonymise(outliers(), quasi=["age", "town"], k=5).report
    assert set(report.tried) == {"exact-cluster", "cluster", "mondrian", "lattice"}
    assert report.algorithm == min(report.tried, key=report.tried.get)


def test_a_hierarchy_for_one_column_leaves_the_others_automatic() -> None:
    from kohort.tables.hierarchy import Hierarchy

    frame = pl.DataFrame({"town": ["x", "y"] * 20, "age": [20 + i % 40 for i in range(40)]})
    own = {"town": Hierarchy.of("town", {"x": ("north", "*"), "y": ("north", "*")})}
    made = anonymise(frame, quasi=["town", "age"], k=8, hierarchies=own)
    assert made.report.k >= 8
    assert set(made.hierarchies) == {"town", "age"}


def test_a_risk_is_a_size_of_classes() -> None:
    assert k_of_risk(0.0, None, 100) == 1
    assert k_of_risk(0.05, None, 100) == 20
    assert k_of_risk(0.05, 1000, 100) == 2
    assert anonymise(outliers(), quasi=["age", "town"], k=2, risk=0.1).report.k >= 10


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"weights": {"nobody": 2.0}}, ConfigError),
        ({"weights": {"age": 0.0}}, ConfigError),
        ({"balance": 2.0}, ConfigError),
        ({"suppression_limit": 1.5}, ConfigError),
        ({"risk": 2.0}, ConfigError),
        ({"risk": 0.05, "population": 3}, ConfigError),
        ({"alpha": 0.4, "sensitive": ["town"], "quasi": ["age"]}, RefusedError),
        ({"beta": -1.0}, ConfigError),
        ({"k": 1000}, RefusedError),
    ],
)
def test_what_cannot_be_met_is_refused(change, error) -> None:
    with pytest.raises(error):
        anonymise(outliers(), **{"quasi": ["age", "town"], "k": 2, **change})


@examples(20, 200)
@given(frame=tables(least=4), k=st.integers(2, 4))
def test_sharing_classes_out_and_replacing_rows_never_adds_loss(frame, k) -> None:
    """For k rows alone a class is also given up whole, or gives a row away and takes another."""
    problem = problem_of(frame, Rule(k=k))
    if frame.height < k:
        return
    start = mondrian(problem)
    found = refine(problem, start)
    assert problem.mean_loss(found) <= problem.mean_loss(start) + 1e-9
    assert found.sizes.min() >= k
    assert sorted(found.order.tolist()) == list(range(frame.height))


def test_classes_without_a_row_to_spare_still_get_better() -> None:
    """Sizes are k everywhere, so that no row can move alone; two classes of two towns each are crossed."""
    frame = pl.DataFrame({"town": ["a", "b", "a", "b", "a", "b", "c"], "age": [1, 1, 1, 1, 1, 1, 1]})
    problem = problem_of(frame, Rule(k=3), quasi=["town", "age"])
    crossed = Partition.of_labels(np.array([0, 0, 0, 1, 1, 1, 1]))
    assert problem.mean_loss(refine(problem, crossed)) < problem.mean_loss(crossed)


def test_rows_left_out_come_back_as_classes_where_cells_cost_less() -> None:
    """Six rows far away from all others are dear in any class; among themselves they agree on their town."""
    near = [(20 + i % 4, "ab"[i % 2], "x") for i in range(60)]
    far = [(90, "z", letter) for letter in "pqrstu"]
    frame = pl.DataFrame(near + far, schema=["age", "town", "job"], orient="row")
    given = {"quasi": ["age", "town", "job"], "k": 5, "suppression_limit": 0.1}
    half = anonymise(frame, **given, balance=0.5)
    assert half.report.suppressed_rows == 0
    assert half.frame.filter(pl.col("town") == "z").height == 6


@pytest.mark.parametrize("bounds", [{"l": 2}, *BOUNDS], ids=str)
def test_refined_classes_hold_by_brute_force(bounds) -> None:
    """The search itself keeps the rule: `anonymise` would hide a broken one behind another maker."""
    random = np.random.default_rng(9)
    frame = pl.DataFrame({"number": random.integers(0, 40, 120), "letter": random.choice(list("abcd"), 120),
                          "flag": random.random(120) < 0.5, "constant": ["same"] * 120,
                          "illness": random.choice(["flu", "flu", "cold", "gout"], 120),
                          "income": random.integers(0, 3, 120)})  # fmt: skip
    problem = problem_of(frame, Rule(k=3, **bounds))
    found = refine(problem, mondrian(problem))
    keys = [(label,) for label in found.labels.tolist()]
    private = {name: frame[name].to_list() for name in ("illness", "income")}
    assert broken_rules(keys, list(range(120)), private, {"k": 3, **bounds}) == []
