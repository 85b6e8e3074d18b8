"""k-map and delta-presence by hand: a class of 1 of 4, and one of 2 of 2, of the population's candidates."""

from __future__ import annotations

import polars as pl
import pytest

from kohort.anonymity.checker.population import in_population, unmet_in_population
from kohort.errors import DataError

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
    told = unmet_in_population(RELEASED, POPULATION, quasi=["age"], k_map=k_map, presence=presence)
    assert len(told) == len(words)
    assert all(word in sentence for word, sentence in zip(words, told, strict=True))


def test_more_persons_than_candidates_are_told() -> None:
    told = unmet_in_population(pl.DataFrame({"age": [50] * 3}), POPULATION, quasi=["age"], k_map=1, presence=None)
    assert any("more persons than the population" in sentence for sentence in told)


def test_numbers_in_the_release_and_text_in_the_population_are_refused() -> None:
    with pytest.raises(DataError, match="column 'age' is a number in the release and text in the population"):
        in_population(pl.DataFrame({"age": ["[20, 60]"]}), pl.DataFrame({"age": ["thirty"]}), quasi=["age"])
