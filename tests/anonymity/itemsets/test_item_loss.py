"""Losses of items against the printed formulas, on tables small enough to count by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.anonymity.itemsets.loss import item_losses
from kohort.errors import ConfigError, DataError
from kohort.tables.hierarchy import Hierarchy


def sets(rows: list[list[str]]) -> pl.DataFrame:
    return pl.DataFrame({"codes": pl.Series(rows, dtype=pl.List(pl.String))})


def test_loss_counts_exact_grouped_and_suppressed_items() -> None:
    """Four items in the table: exact 0, one of two 2/4, gone 1."""
    before = sets([["A", "B"], ["C"], ["D", "A"], []])
    after = sets([["A", "{B, C}"], ["{B, C}"], ["A"], []])
    found = item_losses(before, after, items="codes")
    assert (found.occurrences, found.suppressed, found.added) == (5, 1, 0)
    assert found.item_loss == pytest.approx((0 + 0.5 + 0.5 + 1 + 0) / 5)
    assert found.information_loss == pytest.approx((0.5 + 0.5 + 1) / 5)


def test_two_items_of_a_row_in_one_group_both_pay() -> None:
    found = item_losses(sets([["A", "B"], ["C"]]), sets([["{A, B}"], ["C"]]), items="codes")
    assert found.item_loss == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)


def test_a_cell_that_stands_for_no_item_of_its_row_is_counted() -> None:
    found = item_losses(sets([["A"], ["B"]]), sets([["B"], ["B"]]), items="codes")
    assert (found.suppressed, found.added) == (1, 1)


def test_labels_are_read_by_their_hierarchy() -> None:
    tree = Hierarchy.of("codes", {"A": ("AB", "*"), "B": ("AB", "*"), "C": ("C?", "*"), "unused": ("AB", "*")})
    before, after = sets([["A"], ["B"], ["C"]]), sets([["<AB>"], ["<AB>"], ["<C?>"]])
    assert item_losses(before, after, items="codes", hierarchy=tree).item_loss == pytest.approx((2 / 3) * 2 / 3)
    with pytest.raises(ConfigError, match="released as labels"):
        item_losses(before, after, items="codes")


def test_weights_and_kept_rows() -> None:
    before, after = sets([["A"], ["B"], ["A"]]), sets([["A"], ["A"]])
    found = item_losses(before, after, items="codes", kept=[0, 2], weights={"B": 0.5})
    assert found.item_loss == pytest.approx(0.5 / 2.5)
    with pytest.raises(DataError, match="3 rows became 2"):
        item_losses(before, after, items="codes")


def loss_of_row(groups: Sequence[tuple[int, float]]) -> float:
    """The utility loss of one row, released in groups of so many items that weigh so much."""
    items = [[f"code {place}-{number}" for number in range(size)] for place, (size, _) in enumerate(groups)]
    weights = {item: weight for group, (_, weight) in zip(items, groups, strict=True) for item in group}
    cells = ["{" + ", ".join(group) + "}" if len(group) > 1 else group[0] for group in items]
    before, after = sets([[item for group in items for item in group]]), sets([cells])
    return item_losses(before, after, items="codes", weights=weights).utility_loss


def test_utility_loss_is_equation_five() -> None:
    """By hand: groups of 1, 1 and 4 items: (1 + 1 + 15) / (2^6 - 1)."""
    assert loss_of_row([(1, 1.0), (1, 1.0), (4, 1.0)]) == pytest.approx(17 / 63)
    assert loss_of_row([(2, 0.5)]) == pytest.approx(0.5)
    assert loss_of_row([(3, 0.0)]) == 0.0
    assert item_losses(sets([[]]), sets([[]]), items="codes").utility_loss == 0.0


@given(st.lists(st.tuples(st.integers(1, 12), st.floats(0.01, 1.0)), min_size=1, max_size=5))
def test_logarithms_agree_with_the_printed_formula(groups: list[tuple[int, float]]) -> None:
    printed = sum((2**size - 1) * weight for size, weight in groups) / (2 ** sum(size for size, _ in groups) - 1)
    assert loss_of_row(groups) == pytest.approx(printed)


def test_long_sets_do_not_overflow() -> None:
    assert loss_of_row([(5000, 1.0)]) == pytest.approx(1.0)
    assert loss_of_row([(1, 1.0)] * 5000) == pytest.approx(0.0)
    many = [f"code {number}" for number in range(3000)]
    found = item_losses(sets([many, many]), sets([["{" + ", ".join(many) + "}"]] * 2), items="codes")
    assert found.utility_loss == pytest.approx(1.0)
    assert np.isfinite(found.item_loss)


def test_the_tables_utility_loss_is_the_mean_over_rows() -> None:
    before = sets([["A", "B"], ["C"], []])
    after = sets([["{A, B}"], ["C"], []])
    assert item_losses(before, after, items="codes").utility_loss == pytest.approx((3 / 3 + 1 / 1 + 0) / 3)
