"""Classes of persons: where rows say whom they are about, k, l and t count persons, in maker and checker alike."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.anonymity_tables import QUASI, RULES, tables
from tests.support.examples import examples

from kohort.anonymity.checker.measures import measure, unmet
from kohort.anonymity.relational.anonymise import anonymise
from kohort.errors import ConfigError, DataError, RefusedError

MAKERS: tuple[dict[str, Any], ...] = (
    {"algorithm": "cluster"},
    {"algorithm": "mondrian"},
    {"algorithm": "lattice", "hierarchies": "intervals"},
)


def by_hand(frame: pl.DataFrame, quasi: list[str], sensitive: str) -> tuple[int, int, float, float]:
    """k, distinct l, entropy l and total variation of a table in persons, the slow way."""
    people: dict[Any, set[Any]] = defaultdict(set)
    values: dict[Any, set[Any]] = defaultdict(set)
    table = {(row[sensitive], row["who"]) for row in frame.iter_rows(named=True)}
    overall = Counter(value for value, _ in table)
    for row in frame.iter_rows(named=True):
        key = tuple(row[name] for name in quasi)
        people[key].add(row["who"])
        values[key].add((row[sensitive], row["who"]))
    entropies, distances = [], []
    for pairs in values.values():
        counts = Counter(value for value, _ in pairs)
        shares = {value: count / len(pairs) for value, count in counts.items()}
        entropies.append(math.exp(-sum(p * math.log(p) for p in shares.values())))
        distances.append(sum(abs(shares.get(v, 0) - n / len(table)) for v, n in overall.items()) / 2)
    distinct = min(len({value for value, _ in pairs}) for pairs in values.values())
    return min(map(len, people.values())), distinct, min(entropies), max(distances)


@st.composite
def visits(draw: st.DrawFn) -> pl.DataFrame:
    frame = draw(tables(least=6, most=50))
    people = draw(st.integers(4, 25))
    who = draw(st.lists(st.integers(1, people), min_size=frame.height, max_size=frame.height))
    return frame.with_columns(pl.Series("who", who))


@given(frame=visits())
@examples(40, 500)
def test_the_checker_counts_persons_as_by_hand(frame: pl.DataFrame) -> None:
    quasi = ["letter", "flag"]
    found = measure(frame, quasi=quasi, sensitive=["illness"], persons="who")
    k, distinct, entropy, distance = by_hand(frame, quasi, "illness")
    assert (found.k, found.l_distinct) == (k, distinct)
    assert found.l_entropy == pytest.approx(entropy)
    assert found.t_emd == pytest.approx(distance)


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker["algorithm"])
@given(frame=visits(), rule=st.sampled_from(RULES))
@examples(40, 500)
def test_every_rule_holds_for_persons(maker: dict[str, Any], frame: pl.DataFrame, rule: dict[str, Any]) -> None:
    private = ["illness", "income"] if len(rule) > 1 else []
    try:
        made = anonymise(frame, quasi=QUASI, sensitive=private, person="who", **rule, **maker)
    except RefusedError:
        return
    assert "who" not in made.frame.columns
    judged = made.frame.with_columns(frame["who"][made.kept.tolist()])
    asked = {name: value for name, value in rule.items() if name != "k"}
    assert not unmet(judged, quasi=QUASI, sensitive=private, k=rule["k"], persons="who", **asked)
    if private:
        k, distinct, _, _ = by_hand(judged, QUASI, "illness")
        assert k >= rule["k"]
        assert rule.get("l_kind", "distinct") != "distinct" or distinct >= rule.get("l", 0)


def test_many_visits_of_few_patients_are_not_many_persons() -> None:
    """300 patients with 30 visits each: classes of one patient were once called 10-anonymous."""
    random = np.random.default_rng(4)
    patient = np.repeat(np.arange(300), 30)
    frame = pl.DataFrame({"patient": patient, "age": 20 + patient % 60, "ward": random.integers(0, 8, len(patient))})
    made = anonymise(frame, quasi=["age", "ward"], k=10, person="patient")
    judged = made.frame.with_columns(frame["patient"])
    persons = judged.group_by("age", "ward").agg(pl.col("patient").n_unique())["patient"]
    assert persons.min() >= 10
    assert made.report.k >= 10
    assert made.report.classes > 10
    rows_alone = anonymise(frame.drop("patient"), quasi=["age", "ward"], k=10)
    alone = rows_alone.frame.with_columns(frame["patient"]).group_by("age", "ward").agg(pl.col("patient").n_unique())
    assert alone["patient"].min() < 10  # what counting rows would have released


def test_more_persons_than_there_are_cannot_be_asked_for() -> None:
    frame = pl.DataFrame({"who": [1, 1, 1, 2], "age": [1, 2, 3, 4]})
    with pytest.raises(RefusedError, match="2 persons cannot be 3-anonymous"):
        anonymise(frame, quasi=["age"], k=3, person="who")


def test_rows_that_are_about_nobody_are_refused() -> None:
    frame = pl.DataFrame({"who": [1, None, 1, 2], "age": [1, 2, 3, 4]})
    with pytest.raises(DataError, match="1 rows do not say in column 'who'"):
        anonymise(frame, quasi=["age"], k=2, person="who")
    with pytest.raises(DataError, match="1 rows do not say in column 'who'"):
        measure(frame, quasi=["age"], persons="who")
    with pytest.raises(ConfigError, match="another role"):
        anonymise(frame.drop_nulls(), quasi=["age"], k=2, sensitive=["who"], person="who")
