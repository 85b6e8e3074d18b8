"""Rare combinations taken apart row by row: judged by the definition, and step by step by the slow form."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.kkm import attacker_view, suppress_slowly
from tests.support.examples import examples

from kohort.anonymity.itemsets.generalise import suppress_rare
from kohort.anonymity.itemsets.kkm import anonymise_items
from kohort.errors import ConfigError, RefusedError


def table(seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    height = int(random.integers(20, 70))
    popular = 1.0 / np.arange(1, 11)
    lists = [
        random.choice(list("ABCDEFGHIJ"), int(random.integers(0, 6)), replace=False, p=popular / popular.sum()).tolist()
        for _ in range(height)
    ]
    return pl.DataFrame(
        {
            "age": random.integers(20, 40, height),
            "who": random.integers(0, height, height),
            "codes": pl.Series(lists, dtype=pl.List(pl.String)),
        }
    )


def release(frame: pl.DataFrame, *, k: int, m: int, **options: Any) -> Any:
    return anonymise_items(frame, quasi=["age"], items="codes", k=k, m=m, rare="suppress", **options)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_no_attacker_is_left_with_fewer_than_k(m: int) -> None:
    for seed in range(24):
        k = (2, 4, 8)[seed % 3]
        made = release(
            table(seed).drop("who"),
            k=k,
            m=m,
            groups=("per-cluster", "table-wide")[seed % 2],
            merge=("all", "paying", "none")[seed % 3],
            item_hierarchy=("none", "auto")[seed // 2 % 2],
        )
        assert attacker_view(made.frame.select("age").rows(), made.frame["codes"].to_list(), m) >= k


@pytest.mark.parametrize("m", [2, 3])
def test_persons_are_counted_and_not_rows(m: int) -> None:
    for seed in range(12):
        frame = table(seed)
        made = release(frame, k=3, m=m, identifier="who")
        seen = attacker_view(
            made.frame.select("age").rows(), made.frame["codes"].to_list(), m, persons=frame["who"].to_list()
        )
        assert seen >= 3


rows_of_items = st.lists(st.lists(st.integers(-1, 5), max_size=5), min_size=1, max_size=24)


@examples(40, 150)
@given(rows_of_items, st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_the_fast_form_takes_the_steps_of_the_slow_one(
    rows: list[list[int]], k: int, m: int, classes: int, persons_differ: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    of_class = random.integers(0, classes, len(rows))
    persons = np.arange(len(rows)) if persons_differ else random.integers(0, max(len(rows) // 2, 1), len(rows))
    node = np.array([item for row in rows for item in row], dtype=np.int64)
    row = np.repeat(np.arange(len(rows)), [len(items) for items in rows])
    left = suppress_rare(node, row, of_class, persons, k=k, m=m)
    assert ((left == node) | (left == -1)).all()
    shown = [set(left[(row == number) & (left >= 0)].tolist()) for number in range(len(rows))]
    assert shown == suppress_slowly(rows, of_class.tolist(), persons.tolist(), k=k, m=m)


def test_only_rows_with_a_rare_combination_lose_an_item() -> None:
    lists = [["A", "B"]] * 5 + [["B", "C"]] * 5 + [["A", "C"]]
    frame = pl.DataFrame({"age": [30] * 11, "codes": lists})
    made = release(frame, k=3, m=2)
    assert made.frame["codes"].to_list()[:10] == lists[:10]
    assert len(made.frame["codes"].to_list()[10]) == 1
    assert made.suppressed_items == 1
    whole = anonymise_items(frame, quasi=["age"], items="codes", k=3, m=2)
    assert whole.frame["codes"].to_list()[:10] != lists[:10]  # groups, or an item that nobody has any more


def test_what_is_suppressed_is_limited_and_an_unknown_word_refused() -> None:
    frame = pl.DataFrame({"age": [30] * 11, "codes": [["A", "B"]] * 5 + [["B", "C"]] * 5 + [["A", "C"]]})
    with pytest.raises(RefusedError, match="1 of 22 items would be suppressed"):
        release(frame, k=3, m=2, suppression_limit=0.01)
    with pytest.raises(ConfigError, match="unknown rare"):
        anonymise_items(frame, quasi=["age"], items="codes", k=3, rare="drop")  # type: ignore[arg-type]
