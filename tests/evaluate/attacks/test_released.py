"""The three questions to a released table: a copy answers them, rows of other persons do not, and k hides persons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from kohort import anonymize
from kohort.evaluate.attacks.finding import Finding, area_interval, beside_control, found_at, share_interval, worst
from kohort.evaluate.attacks.homogeneity import in_one_class
from kohort.evaluate.attacks.inference import infer
from kohort.evaluate.attacks.linkability import link
from kohort.evaluate.attacks.overlap import both_together
from kohort.evaluate.attacks.rebuilt import rebuilt_finding
from kohort.evaluate.attacks.released import Attacked, Released
from kohort.evaluate.attacks.singling_out import single_out

COLUMNS = ("age", "ward", "height", "job", "illness")
NAMES = {"on": "a table", "by": "hub"}


def people(rows: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": random.integers(18, 90, rows),
            "ward": random.choice(list("abcdefgh"), rows),
            "height": random.normal(170, 10, rows).round(1),
            "job": random.choice([f"job {number}" for number in range(20)], rows),
            "illness": random.choice(["one", "two", "three", "four"], rows),
        }
    )


MEMBERS, OTHERS = people(400, 1), people(400, 2)


def asked(table: pl.DataFrame, described: Sequence[str] = COLUMNS) -> list[Finding]:
    """All three questions."""
    release = Attacked(table=Released.of(table, MEMBERS), members=MEMBERS, others=OTHERS, **NAMES)
    return [
        single_out(release, columns=described),
        link(release, columns=COLUMNS),
        infer(release, secret="illness", known=COLUMNS[:-1]),
    ]


def test_a_copy_of_the_rows_singles_out_links_and_tells() -> None:
    alone, linked, inferred = asked(MEMBERS)
    assert alone.success == 1.0
    assert linked.success is not None
    assert linked.success > 0.3
    assert linked.guess is not None
    assert linked.guess < 0.05
    assert inferred.success is not None
    assert inferred.success > 0.95
    assert all(one.exposed for one in (alone, linked, inferred))


def test_rows_of_other_persons_tell_nothing_of_the_members() -> None:
    assert not any(one.exposed for one in asked(people(400, 3)))


def test_classes_of_ten_single_nobody_out_by_what_k_protects_and_link_nobody() -> None:
    made = anonymize(MEMBERS, quasi=["age", "ward", "height", "job"], sensitive=["illness"], k=10)
    alone, linked, inferred = asked(made.frame, described=COLUMNS[:-1])
    assert not alone.exposed
    assert "nothing to bet on" in alone.note
    assert not linked.exposed
    assert inferred.success is not None
    assert inferred.success < 0.6


def test_a_class_of_one_value_tells_it_and_dealt_values_do_not() -> None:
    table = pl.DataFrame({"ward": ["a"] * 10 + ["b"] * 10, "illness": ["one"] * 10 + ["two"] * 10})
    mixed = table.with_columns(pl.Series("illness", ["one", "two"] * 10))
    found = [in_one_class(Released.of(one, one), quasi=["ward"], secret="illness", **NAMES) for one in (table, mixed)]
    assert [one.success for one in found] == [1.0, 0.0]
    assert [one.exposed for one in found] == [True, False]


def test_intervals_that_overlap_isolate_persons_together() -> None:
    members = pl.DataFrame({"age": [20, 24, 26, 29, 31, 34, 36, 39] * 3})
    first = pl.DataFrame({"age": ["[20, 29]"] * 12 + ["[30, 39]"] * 12})
    second = pl.DataFrame({"age": ["[20, 24]"] * 6 + ["[25, 34]"] * 12 + ["[35, 39]"] * 6})
    both = both_together(*(Released.of(one, members) for one in (first, second)), members, quasi=["age"], **NAMES)
    same = both_together(*(Released.of(first, members) for _ in range(2)), members, quasi=["age"], **NAMES)
    assert both.details == {"k": 6.0, "promised": 6.0}
    assert not both.exposed
    narrow = pl.DataFrame({"age": ["[20, 33]"] * 15 + ["[34, 39]"] * 9})
    third = both_together(*(Released.of(one, members) for one in (first, narrow)), members, quasi=["age"], **NAMES)
    assert third.details == {"k": 3.0, "promised": 9.0}
    assert third.exposed
    assert not same.exposed


def test_naming_rows_that_occur_twice_counts_for_nothing() -> None:
    twice = np.array([[0.0, 1.0], [0.0, 1.0]])
    found = rebuilt_finding("any", [twice], [twice], near=0.01, **NAMES)
    assert found.success is None
    assert "more than once" in found.note


def test_claims_that_fit_any_site_are_no_better_than_chance() -> None:
    random = np.random.default_rng(0)
    truth = [random.random((30, 2)) for _ in range(2)]
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 30), np.linspace(0, 1, 30)), axis=-1).reshape(-1, 2)
    assert not rebuilt_finding("any", truth, [grid, grid], near=0.05, **NAMES).exposed
    assert rebuilt_finding("any", truth, truth, near=0.05, **NAMES).exposed


@pytest.mark.parametrize(("hits", "of"), [(0, 10), (5, 10), (10, 10), (1, 1000)])
def test_intervals_hold_the_share(hits: int, of: int) -> None:
    low, high = share_interval(hits, of)
    assert 0.0 <= low <= hits / of <= high <= 1.0
    wide = beside_control(hits, of, 3, 10)
    assert wide[0] <= low
    assert wide[1] >= high


def test_the_interval_of_wilson() -> None:
    assert share_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # Wilson (1927), as statsmodels has it


def test_areas_and_members_found() -> None:
    random = np.random.default_rng(0)
    same, apart = random.normal(0, 1, 2_000), random.normal(1, 1, 2_000)
    area, (low, high) = area_interval(apart, random.normal(0, 1, 2_000))
    assert low < 0.7602 < high  # Phi(1 / sqrt 2) = 0.7602
    assert low < area < high
    assert area_interval(same[:1_000], same[1_000:])[1][0] < 0.5
    assert found_at(np.array([3.0, 0.0]), np.arange(100) / 100, 0.01) == 0.5


def test_the_worst_of_a_family_is_the_one_furthest_above_its_guess() -> None:
    near = Finding(attack="a", family="linkage", on="", by="", success=0.9, guess=0.85)
    far = Finding(attack="b", family="linkage", on="", by="", success=0.5, guess=0.1)
    assert worst([near, far], "linkage") is far
    assert worst([near, far], "attribute") is None
