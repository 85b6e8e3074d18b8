"""k-map and delta-presence by hand: a class of 1 of 4, and one of 2 of 2, of the population's candidates."""

from __future__ import annotations

import polars as pl
import pytest

from kohort.anonymity.checker.population import in_population, rows_unmet_in_population, unmet_in_population
from kohort.errors import ConfigError, DataError
from kohort.tables.hierarchy import Hierarchy

POPULATION = pl.DataFrame({"age": [30, 30, 30, 30, 50, 50]})
RELEASED = pl.DataFrame({"age": [30, 50, 50]})


def test_the_figures_by_hand() -> None:
    found = in_population(RELEASED, POPULATION, quasi=["age"])
    assert found.k_map == 2
    assert found.presence_low == pytest.approx(0.25)
    assert found.presence_high == pytest.approx(1.0)
    assert found.short == 0


@pytest.mark.parametrize(
    ("k_map", "presence", "words"),
    [
        (2, None, []),
        (3, None, ["k-map is 2"]),
        (2, (0.25, 1.0), []),
        (2, (0.0, 1.0), []),
        (2, (0.3, 1.0), ["smallest chance of presence"]),
        (2, (0.25, 0.9), ["largest chance of presence"]),
        (3, (0.3, 0.9), ["k-map", "smallest", "largest"]),
    ],
)
def test_each_rule_is_told_when_it_does_not_hold(k_map: int, presence: tuple | None, words: list[str]) -> None:
    unmet = unmet_in_population(RELEASED, POPULATION, quasi=["age"], k_map=k_map, presence=presence)
    assert len(unmet) == len(words)
    assert all(word in sentence for word, sentence in zip(words, unmet, strict=True))


def test_more_persons_than_candidates_are_told() -> None:
    unmet = unmet_in_population(pl.DataFrame({"age": [50] * 3}), POPULATION, quasi=["age"], k_map=1, presence=None)
    assert any("more persons than the population" in sentence for sentence in unmet)


def test_numbers_in_the_release_and_text_in_the_population_are_refused() -> None:
    with pytest.raises(DataError, match="column 'age' is a number in the release and text in the population"):
        in_population(pl.DataFrame({"age": ["[20, 60]"]}), pl.DataFrame({"age": ["thirty"]}), quasi=["age"])


@pytest.mark.parametrize(
    ("ages", "k_map", "presence", "wrong"),
    [
        ([30, 50, 50], 2, None, [False, False, False]),
        ([30, 50, 50], 3, None, [False, True, True]),
        ([30, 50, 50], 5, None, [True, True, True]),
        ([30, 50, 50], 0, (0.0, 1.0), [False, False, False]),
        ([30, 50, 50], 0, (0.5, 0.9), [False, True, True]),
        ([30, 50, 50], 0, (0.5, 0.2), [True, True, True]),
        ([50, 50, 50, 30], 0, None, [True, True, True, False]),
    ],
)
def test_the_rows_of_classes_that_break_a_rule_are_marked(
    ages: list[int], k_map: int, presence: tuple | None, wrong: list[bool]
) -> None:
    released = pl.DataFrame({"age": ages})
    found = rows_unmet_in_population(released, POPULATION, quasi=["age"], k_map=k_map, presence=presence)
    assert found.tolist() == wrong


OVERLAPPING = pl.DataFrame({"age": ["[20, 40]", "[20, 60]", "[20, 60]", "[20, 60]"], "who": ["a", "b", "c", "c"]})


def test_chances_of_classes_that_overlap_add_up_for_the_upper_bound_alone() -> None:
    found = in_population(OVERLAPPING, POPULATION, quasi=["age"])
    assert (found.k_map, found.short, found.population) == (4, 0, 6)
    assert (found.presence_low, found.presence_high) == (pytest.approx(0.5), pytest.approx(0.75))  # 1/4 and 3/6
    marked = rows_unmet_in_population(OVERLAPPING, POPULATION, quasi=["age"], presence=(0.0, 0.7))
    assert marked.tolist() == [True] * 4  # the persons of 30 are in both classes
    assert (
        rows_unmet_in_population(OVERLAPPING, POPULATION, quasi=["age"], presence=(0.0, 0.75)).tolist() == [False] * 4
    )


def test_persons_are_counted_once_however_many_rows_they_have() -> None:
    found = in_population(OVERLAPPING, POPULATION, quasi=["age"], persons="who")
    assert (found.presence_low, found.presence_high) == (pytest.approx(2 / 6), pytest.approx(1 / 4 + 2 / 6))


def test_labels_intervals_and_sets_cover_what_they_say_and_missing_values_where_they_say_so() -> None:
    people = pl.DataFrame({"place": ["a", "b", "c", None]})
    north = Hierarchy.of("place", {"a": ["north"], "b": ["north"], "c": ["south"]})
    for cell, count in (("<north>", 2), ("<south>", 1), ("*", 4), ("{a, c}", 2), ("a", 1)):
        found = in_population(pl.DataFrame({"place": [cell]}), people, quasi=["place"], hierarchies={"place": north})
        assert found.k_map == count, cell


def test_labels_without_their_hierarchy_are_not_guessed() -> None:
    with pytest.raises(ConfigError, match="'age' holds taxonomy labels and its hierarchy is not given"):
        in_population(pl.DataFrame({"age": ["<old>"]}), pl.DataFrame({"age": ["30"]}), quasi=["age"])
