"""The six rows of Choudhury et al. (2020), Figure 1, at k = 2 and m = 3."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from tests.reference.kkm import attacker_view

from kohort.anonymity.checker.measures import km_anonymity, satisfies
from kohort.anonymity.itemsets.kkm import KKmResult, anonymise_items
from kohort.methods.syntactic.mapping.assign import map_rows
from kohort.methods.syntactic.mapping.build import mapping_of, union
from kohort.tables.hierarchy import Hierarchy

QUASI = ["age", "gender", "place"]

# Figure 1 (a); the printed table lists row 6 before row 5.
GIVEN = pl.DataFrame(
    {
        "id": [1, 2, 3, 4, 6, 5],
        "age": [24, 32, 40, 40, 48, 54],
        "gender": ["Male", "Female", "Male", "Male", "Female", "Female"],
        "place": ["France", "Italy", "Japan", "China", "Ethiopia", "Kenya"],
        "diagnoses": [
            ["A", "B", "D"],
            ["A", "B", "F"],
            ["B", "G", "H"],
            ["B", "H", "I"],
            ["A", "C", "E", "F", "H"],
            ["A", "D", "E", "H"],
        ],
    }
)

# Figure 1 (b), with groups written as sets.
PRINTED = pl.DataFrame(
    {
        "age": ["[21:40]", "[21:40]", "40", "40", "[41:60]", "[41:60]"],
        "gender": ["All", "All", "Male", "Male", "Female", "Female"],
        "place": ["Europe", "Europe", "Asia", "Asia", "Africa", "Africa"],
        "diagnoses": [["A", "B", "{C, D, E, F}"]] * 2 + [["B", "{G, I}", "H"]] * 2 + [["A", "{C, D, E, F}", "H"]] * 2,
    }
)

CONTINENTS = {
    "France": "Europe",
    "Italy": "Europe",
    "Japan": "Asia",
    "China": "Asia",
    "Ethiopia": "Africa",
    "Kenya": "Africa",
}

# Figure 1 (c).
HIERARCHIES = {
    "age": Hierarchy.of("age", {str(age): ("[21:40]" if age <= 40 else "[41:60]", "*") for age in range(21, 61)}),
    "gender": Hierarchy.of("gender", {"Male": ("All",), "Female": ("All",)}),
    "place": Hierarchy.of("place", {place: (continent, "Any") for place, continent in CONTINENTS.items()}),
}


def made(**options: Any) -> KKmResult:
    asked: dict[str, Any] = {"quasi": QUASI, "items": "diagnoses", "k": 2, "m": 3, "hierarchies": HIERARCHIES}
    return anonymise_items(GIVEN, **(asked | options))


def rule(frame: pl.DataFrame) -> bool:
    return satisfies(frame, quasi=QUASI, items="diagnoses", k=2, m=3)


def test_the_checker_refuses_the_given_rows_and_accepts_the_printed_ones() -> None:
    assert not rule(GIVEN)
    assert rule(PRINTED)
    assert km_anonymity(PRINTED, items="diagnoses", m=3, quasi=QUASI) == 2


@pytest.mark.parametrize("groups", ["per-cluster", "table-wide"])
@pytest.mark.parametrize("merge", ["paying", "all", "printed", "none"])
def test_our_release_has_the_classes_of_the_figure(groups: str, merge: str) -> None:
    """Golden: ages [21:40], 40, [41:60]; gender All, Male, Female; place by continent; classes {1,2}, {3,4}, {5,6}.

    The paper does not print its delta. The three classes lose 0.33, and any two of them joined at least 0.64.
    """
    found = made(groups=groups, merge=merge, delta=0.6)
    assert rule(found.frame)
    assert attacker_view(found.frame.select(QUASI).rows(), found.frame["diagnoses"].to_list(), 3) >= 2
    members: dict[int, set[int]] = {}
    for cluster, number in zip(found.cluster.tolist(), GIVEN["id"].to_list(), strict=True):
        members.setdefault(cluster, set()).add(number)
    assert sorted(map(sorted, members.values())) == [[1, 2], [3, 4], [5, 6]]
    assert found.frame["age"].to_list() == ["[21, 40]"] * 2 + ["40"] * 2 + ["[41, 60]"] * 2
    assert found.frame["gender"].to_list() == ["<All>"] * 2 + ["Male"] * 2 + ["Female"] * 2
    assert found.frame["place"].to_list() == ["<Europe>"] * 2 + ["<Asia>"] * 2 + ["<Africa>"] * 2


def test_items_are_grouped_as_far_as_two_rows_need_it() -> None:
    """In a class of two rows and with m = 3 both rows must show the same items."""
    shown = made(merge="none").frame["diagnoses"].to_list()
    assert shown[0] == shown[1] == ["A", "B", "{D, F}"]
    assert shown[2] == shown[3] == ["B", "H", "{G, I}"]
    assert shown[4] == shown[5]
    assert {"A", "E", "H"} <= set(shown[4])


def test_without_hierarchies_the_classes_are_the_same() -> None:
    found = made(hierarchies=None)
    assert rule(found.frame)
    assert found.frame["age"].to_list() == ["[24, 32]"] * 2 + ["40"] * 2 + ["[48, 54]"] * 2


@pytest.mark.parametrize("merge", ["all", "printed"])
def test_a_larger_delta_joins_classes_of_the_figure(merge: str) -> None:
    assert made(merge=merge, delta=0.65).report.classes == 2
    assert made(merge=merge, delta=1.0).report.classes == 1


@pytest.mark.parametrize("merge", ["paying", "all", "printed", "none"])
def test_the_sample_of_the_paper_maps_to_a_class_of_the_release(merge: str) -> None:
    """(25, Male, France, {A}) fits the class of Europe alone, M1; with a class that shows A alone, that one, M3."""
    found = made(merge=merge, delta=0.6)
    classes = {"site": "one", "schema": "s", "data_version": "1", "k": 2, "m": 3, "quasi": QUASI, "items": "diagnoses"}
    own = mapping_of(found.frame, classes=found.cluster, hierarchies=HIERARCHIES, **classes)  # type: ignore[arg-type]
    sample = pl.DataFrame({"age": [25], "gender": ["Male"], "place": ["France"], "diagnoses": [["A"]]})
    mapped = map_rows(sample, own)
    assert mapped.legitimate.tolist() == [1]
    assert own.cells[2][int(mapped.class_of[0])] == "<Europe>"
    europe = found.frame.filter(pl.col("place") == "<Europe>").with_columns(diagnoses=pl.lit(["A"]))
    m3 = mapping_of(europe, hierarchies=HIERARCHIES, **(classes | {"site": "two"}))  # type: ignore[arg-type]
    joint = union([own, m3])
    assert joint.sites[map_rows(sample, joint).site_of[0]] == "two"
