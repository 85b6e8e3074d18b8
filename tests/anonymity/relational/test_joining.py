"""Classes joined for a rule about the population, against counting candidates person by person."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.anonymity_tables import as_sets, problem_of
from tests.support.examples import examples

from kohort.anonymity.checker.population import rows_unmet_in_population
from kohort.anonymity.relational import anonymise as module
from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.joining import join_classes
from kohort.anonymity.relational.problem import Partition
from kohort.anonymity.relational.rule import Rule

PEOPLE = st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcd")), min_size=12, max_size=40)
QUASI = ["age", "town"]


def covers(cell: object, value: object) -> bool:
    text = str(cell)
    if text == "*":
        return True
    ends = re.fullmatch(r"\[(-?[\d.]+), (-?[\d.]+)\]", text)
    if ends:
        return float(ends[1]) <= float(str(value)) <= float(ends[2])
    listed = text[1:-1].split(", ") if text.startswith("{") else [text]
    return str(value) in listed


def candidates(cells: tuple[object, ...], people: pl.DataFrame) -> int:
    return sum(all(map(covers, cells, person)) for person in people.iter_rows())


@examples(12, 100)
@given(people=PEOPLE, share=st.sampled_from([0.4, 0.7]), rule=st.sampled_from([{"risk": 0.2}, {"presence": (0, 0.75)}]))
def test_joined_classes_have_enough_candidates_and_lose_no_more_than_larger_ones(people, share, rule):
    population = pl.DataFrame(people, schema=QUASI, orient="row")
    table = population.head(math.ceil(share * population.height))
    made = anonymise(table, quasi=QUASI, k=2, population=population, **rule)
    classes = Counter(made.frame.iter_rows())
    for cells, size in classes.items():
        found = candidates(cells, population)
        assert size >= 2
        assert found >= 5 if "risk" in rule else size / found <= 0.75 + 1e-9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "joined_until_met", lambda *_: None)
        grown = anonymise(table, quasi=QUASI, k=2, population=population, **rule)
    assert made.report.ncp <= grown.report.ncp + 1e-9


def test_only_the_class_that_lacks_candidates_is_joined(monkeypatch):
    monkeypatch.setattr(module, "sizes_to_try", lambda problem, _: iter([problem]))
    often = [(age, town) for age in (10, 20, 30) for town in "ab" for _ in range(6)]
    table = pl.DataFrame([*often, *[(60, "a")] * 2], schema=QUASI, orient="row")
    population = pl.concat([table, table.head(36)])
    made = anonymise(table, quasi=QUASI, k=2, population=population, risk=0.2)
    sizes = sorted(Counter(made.frame.iter_rows()).values())
    assert sizes == [6, 6, 6, 6, 6, 8]
    assert made.report.verified


@examples(30, 200)
@given(people=PEOPLE, k_map=st.integers(2, 6), high=st.sampled_from([0.4, 0.7, 1.0]))
def test_the_checker_names_the_rows_of_classes_that_break_the_rule(people, k_map, high):
    population = pl.DataFrame(people, schema=QUASI, orient="row")
    table = population.head(population.height // 2)
    released = table.with_columns(
        pl.format("[{}, {}]", pl.col("age") // 10 * 10, pl.col("age") // 10 * 10 + 15).alias("age")
    )
    named = rows_unmet_in_population(released, population, quasi=QUASI, k_map=k_map, presence=(0.0, high))
    sizes = Counter(released.iter_rows())
    found = {cells: candidates(cells, population) for cells in sizes}
    wrong = {cells for cells in sizes if found[cells] < max(k_map, sizes[cells])}
    for person in population.iter_rows():
        mine = [cells for cells in sizes if all(map(covers, cells, person))]
        if sum(sizes[cells] / found[cells] for cells in mine) > high + 1e-9:
            wrong.update(mine)
    assert named.tolist() == [cells in wrong for cells in released.iter_rows()]


@examples(20, 100)
@given(people=PEOPLE, wrong=st.sets(st.integers(0, 5), min_size=1))
def test_classes_stay_whole_and_no_marked_class_stays_alone(people, wrong):
    frame = pl.DataFrame(people, schema=QUASI, orient="row")
    before = Partition.of_labels(np.arange(frame.height) % 6)
    marked = np.isin(np.arange(before.count), list(wrong))
    after = as_sets(join_classes(problem_of(frame, Rule(k=2), quasi=QUASI), before, marked))
    given_sets = as_sets(before)
    assert all(any(one <= joined for joined in after) for one in given_sets)
    parts = (before.order[start:end] for start, end in zip(before.starts[:-1], before.starts[1:], strict=True))
    for mark, rows in zip(marked, parts, strict=True):
        assert not mark or frozenset(rows.tolist()) not in after
