"""The example of the syntactic approach: Figure 1 and the mappings M1, M2, M3 of its sections 3.4 and 3.6.

Source: Choudhury et al., Anonymizing Data for Privacy-Preserving Federated Learning, ECAI 2020.
"""

from __future__ import annotations

import polars as pl
import pytest

from kohort.methods.syntactic.mapping.assign import generalised, map_rows
from kohort.methods.syntactic.mapping.build import mapping_of, union
from kohort.methods.syntactic.mapping.mapping import SiteMapping
from kohort.tables.hierarchy import Hierarchy

QUASI = ["age", "gender", "place"]
CONTINENTS = {
    "France": "Europe", "Italy": "Europe", "Japan": "Asia", "China": "Asia", "Ethiopia": "Africa", "Kenya": "Africa",
}  # fmt: skip
PLACES = {"place": Hierarchy.of("place", {place: [continent, "*"] for place, continent in CONTINENTS.items()})}
EUROPE = ("[21, 40]", "*", "<Europe>")
GROUP = "{C, D, E, F}"

# Figure 1 (b), with the records in the order of its table.
RELEASED = [
    (*EUROPE, ["A", "B", GROUP]),
    (*EUROPE, ["A", "B", GROUP]),
    ("40", "Male", "<Asia>", ["B", "{G, I}", "H"]),
    ("40", "Male", "<Asia>", ["B", "{G, I}", "H"]),
    ("[41, 60]", "Female", "<Africa>", ["A", GROUP, "H"]),
    ("[41, 60]", "Female", "<Africa>", ["A", GROUP, "H"]),
]
# Figure 1 (a).
GIVEN = [
    (24, "Male", "France", ["A", "B", "D"]),
    (32, "Female", "Italy", ["A", "B", "F"]),
    (40, "Male", "Japan", ["B", "G", "H"]),
    (40, "Male", "China", ["B", "H", "I"]),
    (48, "Female", "Ethiopia", ["A", "C", "E", "F", "H"]),
    (54, "Female", "Kenya", ["A", "D", "E", "H"]),
]
M1, M2 = 0, 2


def table(rows: list[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=[*QUASI, "diagnoses"], orient="row")


def mapping(rows: list[tuple[object, ...]], site: str = "one") -> SiteMapping:
    return mapping_of(
        table(rows), site=site, schema="s", data_version="1", k=2, m=3, quasi=QUASI, items="diagnoses",
        hierarchies=PLACES,
    )  # fmt: skip


SAMPLE = table([(25, "Male", "France", ["A"])])


def test_the_classes_are_those_of_the_figure() -> None:
    found = mapping(RELEASED)
    assert list(zip(*found.cells, strict=True)) == [
        EUROPE,
        ("40", "Male", "<Asia>"),
        ("[41, 60]", "Female", "<Africa>"),
    ]
    listed = [[found.groups.labels[g] for g in held] for held in found.groups.of_class]
    assert listed == [["A", "B", GROUP], ["B", "H", "{G, I}"], ["A", "H", GROUP]]
    assert found.sizes == (2, 2, 2)


def test_m1_is_legitimate_for_the_sample_and_m2_is_not() -> None:
    found = map_rows(SAMPLE, mapping(RELEASED))
    assert found.class_of.tolist() == [M1]
    assert found.legitimate.tolist() == [1]
    only_m2 = map_rows(SAMPLE, mapping(RELEASED[4:]))
    assert only_m2.flagged.tolist() == [True]
    assert only_m2.violated.tolist() == [3]  # age, gender and place; A is covered


def test_the_more_precise_m3_is_chosen_before_m1() -> None:
    m3 = mapping([(*EUROPE, ["A"]), (*EUROPE, ["A"])], site="two")
    for order, expected in (([mapping(RELEASED), m3], 3), ([m3, mapping(RELEASED)], 0)):
        joint = union(order)
        found = map_rows(SAMPLE, joint)
        assert found.class_of.tolist() == [expected]
        assert joint.sites[found.site_of[0]] == "two"
        assert found.legitimate.tolist() == [2]


def test_the_given_rows_map_to_the_classes_they_were_released_in() -> None:
    found = map_rows(table(GIVEN), mapping(RELEASED))
    assert found.class_of.tolist() == [0, 0, 1, 1, 2, 2]
    assert not found.flagged.any()
    assert found.loss.tolist() == pytest.approx(
        [
            # Ages run from 21 to 60; All is both genders, a continent 2 of 6 places; a group of 4 items beside A and B.
            (19 / 39 + 1 + 2 / 6) / 3 + 15 / 63,
            (19 / 39 + 1 + 2 / 6) / 3 + 15 / 63,
            (0 + 0 + 2 / 6) / 3 + 3 / 15,
            (0 + 0 + 2 / 6) / 3 + 3 / 15,
            (19 / 39 + 0 + 2 / 6) / 3 + 15 / 63,
            (19 / 39 + 0 + 2 / 6) / 3 + 15 / 63,
        ]
    )


def test_the_model_is_fed_the_released_rows() -> None:
    own = mapping(RELEASED)
    fed = generalised(table(GIVEN), own, map_rows(table(GIVEN), own))
    expected = table(RELEASED).with_columns(pl.col("diagnoses").list.sort())
    assert fed.with_columns(pl.col("diagnoses").list.sort()).equals(expected)
