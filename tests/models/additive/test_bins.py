"""Bins hold enough persons each, heavy cells stay alone, and the rest is merged with neighbours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from kohort.errors import IntegrityError
from kohort.models.additive.bins import Bins, isotonic, make_bins
from kohort.models.additive.cells import Column, codes_of, columns_of
from kohort.models.additive.descent import Metric
from kohort.models.additive.labels import labels_of
from kohort.models.additive.noisy import bins_of_noisy
from kohort.models.rows import encode_rows
from kohort.tables.domain import learn_domain
from kohort.tables.encoder import Encoder
from kohort.tables.schema import Schema


def made(frame: pl.DataFrame, *, nullable: tuple[str, ...] = ()) -> tuple[Encoder, Bins, list[np.ndarray], np.ndarray]:
    """Encoder, bins, counts of bins and the rows' bins of a table with the target y."""
    names = [name for name in frame.columns if name != "y"]
    schema = Schema.of(features=names, target="y", nullable=nullable)
    encoder = Encoder(schema, learn_domain(frame, schema, missing="category"))
    columns = columns_of(encoder)
    codes = codes_of(columns, encode_rows(encoder, frame).x)
    pairs = list(zip(columns, codes, strict=True))
    counts = [np.bincount(own, minlength=column.cells).astype(float) for column, own in pairs]
    bins = make_bins(columns, counts, bins=8, least=20)
    held = [np.bincount(own, weights=count) for own, count in zip(bins.of_cell, counts, strict=True)]
    return encoder, bins, held, bins.of_rows(codes)


def table(rows: int = 2000) -> pl.DataFrame:
    random = np.random.default_rng(3)
    gain = np.where(random.random(rows) < 0.7, 0.0, random.exponential(3000, rows))
    town = random.choice(["a", "b", "c", "d", "e"], rows, p=[0.5, 0.3, 0.19, 0.006, 0.004])
    age = random.integers(18, 90, rows)
    return pl.DataFrame({"age": age, "gain": gain, "town": town, "y": ["p", "q"] * (rows // 2)})


def test_every_bin_holds_enough_persons_and_there_are_no_more_than_asked_for() -> None:
    _, bins, held, _ = made(table())
    assert all(min(own) >= 20 for own in held)
    assert 5 <= bins.sizes[0] <= 9
    assert max(held[0]) < 2 * 2000 / 7


def test_a_heavy_cell_stays_alone() -> None:
    frame = table()
    _, bins, held, places = made(frame)
    zero = frame["gain"].to_numpy() == 0
    assert held[1][0] == zero.sum()
    assert set(places[1][zero] - bins.starts[1]) == {0}
    assert 0 not in set(places[1][~zero] - bins.starts[1])


def ordered(counts: np.ndarray, *, missing: bool = False) -> list[int]:
    """The bins of the cells of one ordered column, eight at most, of 20 persons at least."""
    column = Column(name="x", first=0, features=1, kind="steps", cells=len(counts), missing=missing, ordered=True)
    found: list[int] = make_bins((column,), [counts.astype(float)], bins=8, least=20).of_cell[0].tolist()
    return found


@pytest.mark.parametrize(
    "heavy",
    [[300, 0, 0, 400], [40, 0, 30, 300, 0, 0, 0, 400, 90], [0, 0, 500, 0, 500, 0, 0], [25, 24, 23, 0, 400, 0, 300, 22]],
)
def test_no_edge_says_whether_few_persons_or_none_are_between_heavy_cells(heavy: list[int]) -> None:
    counts = np.asarray(heavy)
    usual, empty = ordered(counts), np.flatnonzero(counts == 0)
    for cell in empty:
        for persons in (1, 2, 19):
            more = counts.copy()
            more[cell] = persons
            assert ordered(more) == usual
    between = [cell for cell in empty if counts[:cell].max(initial=0) >= 300 and counts[cell:].max() >= 300]
    for cell in between:
        more = counts.copy()
        more[cell] = 20  # a bin of its own
        assert max(ordered(more)) == max(usual) + 1


def test_bins_of_ordered_cells_hold_enough_persons_and_are_numbered_without_gaps() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        counts = np.where(random.random(40) < 0.5, 0, random.integers(0, random.choice([3, 30, 300]), 40))
        found = np.asarray(ordered(counts))
        assert (np.diff(found) >= 0).all()
        assert set(found) == set(range(found.max() + 1))
        assert found.max() == 0 or np.bincount(found, weights=counts).min() >= 20


def test_few_persons_of_rare_categories_join_the_nearest_bin() -> None:
    _, bins, held, _ = made(table())
    assert bins.of_cell[2].tolist()[:3] == [0, 1, 2]
    assert bins.of_cell[2][3] == bins.of_cell[2][4] in {2, 3}
    assert min(held[2]) >= 20


def test_missing_values_have_a_bin_of_their_own_if_they_are_frequent() -> None:
    frame = table()
    many = frame.with_columns(pl.when(pl.int_range(pl.len()) % 10 == 0).then(None).otherwise("age").alias("age"))
    _, bins, held, places = made(many, nullable=("age",))
    last = bins.sizes[0] - 1
    assert held[0][last] == 200
    assert (places[0][::10] == last).all()
    assert not bins.joined[last], "missing is no neighbour of the highest number"
    few = frame.with_columns(pl.when(pl.int_range(pl.len()) < 5).then(None).otherwise("age").alias("age"))
    assert min(made(few, nullable=("age",))[2][0]) >= 20


def test_bins_read_back_from_one_array_and_others_are_refused() -> None:
    _, bins, _, _ = made(table())
    again = Bins.of_flat(bins.columns, bins.flat())
    assert (again.flat() == bins.flat()).all()
    with pytest.raises(IntegrityError):
        Bins.of_flat(bins.columns, bins.flat()[:-1])
    gap = bins.flat().copy()
    gap[gap == gap.max()] += 1
    with pytest.raises(IntegrityError):
        Bins.of_flat(bins.columns, gap)


def test_isotonic_values_never_fall_and_keep_the_mean() -> None:
    values, weights = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), np.array([1.0, 2.0, 1.0, 1.0, 3.0])
    fitted = isotonic(values, weights)
    assert (np.diff(fitted) >= 0).all()
    assert np.isclose((fitted * weights).sum(), (values * weights).sum())
    assert np.allclose(fitted, [5 / 3, 5 / 3, 2.0, 4.25, 4.25])


def _coded(codes: list[str], counts: list[int]) -> tuple[tuple[Column, ...], list[np.ndarray]]:
    """One column of codes, and how many persons have each of them, in the order of the cells."""
    frame = pl.DataFrame({"code": codes, "y": (["p", "q"] * len(codes))[: len(codes)]})
    schema = Schema.of(features=["code"], target="y")
    domain = learn_domain(frame, schema, missing="category")
    by_name = replace(domain.columns["code"], categories=tuple(sorted(codes)))
    columns = columns_of(Encoder(schema, replace(domain, columns={**domain.columns, "code": by_name})))
    held = dict(zip(codes, counts, strict=True))
    return columns, [np.asarray([held[code] for code in sorted(codes)], dtype=float)]


def test_under_a_budget_rare_categories_join_rare_neighbours_of_the_code_list() -> None:
    codes = ["100", "20", "9", "1000", "30", "110", "10"]
    columns, counts = _coded(codes, [500, 16, 900, 20, 16, 18, 16])
    bins, sizes = bins_of_noisy(columns, counts, bins=32, least=20, noise=8.0)
    of = dict(zip(sorted(codes), bins.of_cell[0].tolist(), strict=True))
    assert len({of["9"], of["100"]}) == 2, "frequent ones stay alone"
    assert of["10"] == of["20"] == of["30"], "by number, not by name: 100 and 1000 stand between 10 and 20"
    assert of["110"] == of["1000"], "what is left at the end joins the nearest bin"
    assert sizes.sum() == sum(counts[0])


def test_under_a_budget_names_that_are_no_numbers_are_joined_in_their_order_and_missing_ones_come_last() -> None:
    columns, counts = _coded(["d", "a", "c", "b"], [30, 30, 30, 30])
    bins, _ = bins_of_noisy(columns, counts, bins=32, least=20, noise=13.0)
    assert bins.of_cell[0].tolist() == [0, 0, 1, 1]
    everything, _ = bins_of_noisy(columns, counts, bins=32, least=20, noise=100.0)
    assert everything.total == 1, "noise beyond all counts leaves one bin"


def test_rare_categories_join_rare_neighbours_of_the_code_list_as_few_as_hold_enough() -> None:
    codes = ["9", "10", "11", "100", "101", "102", "900", "901"]
    columns, counts = _coded(codes, [90, 12, 12, 70, 19, 1, 3, 3])
    bins = make_bins(columns, counts, bins=32, least=20)
    of = dict(zip(sorted(codes), bins.of_cell[0].tolist(), strict=True))
    assert [of[code] for code in codes] == [0, 1, 1, 2, 3, 3, 3, 3], "in the order of the list, by number"
    assert bins.chained.tolist() == [False, True, True, True]
    assert not bins.joined.any(), "categories have no order, whatever their codes"


def test_values_on_no_list_are_no_neighbours_and_two_bins_are_not_chained() -> None:
    (column,), _ = _coded(["1", "2", "3", "4"], [50, 50, 50, 50])
    apart = replace(column, listed=(0, 1, 2))
    bins = make_bins((apart,), [np.asarray([50.0, 40.0, 30.0, 60.0])], bins=8, least=20)
    assert bins.chained.tolist() == [False, True, True, False]
    assert not make_bins((apart,), [np.asarray([50.0, 60.0, 0.0, 0.0])], bins=8, least=20).chained.any()


def test_neighbours_of_a_code_list_are_pulled_together_by_the_penalty() -> None:
    columns, counts = _coded(["1", "2", "3"], [50, 50, 50])
    bins = make_bins(columns, counts, bins=8, least=20)
    w = np.asarray([[1.0], [4.0], [2.0], [7.0]])
    pulled = Metric(bins, counts[0], 150.0, 0.15, 0.5, 3.0, 2.0).penalty_times(w)
    chain = 2.0 * np.asarray([[-3.0], [5.0], [-2.0], [0.0]])
    assert np.allclose(pulled, np.vstack([0.5 * w[:3], [[0.0]]]) + chain)


def test_bins_of_merged_categories_are_named_by_the_first_of_them() -> None:
    frame = pl.DataFrame({"code": [f"{code:03d}" for code in range(8)] * 2, "y": ["p", "q"] * 8})
    schema = Schema.of(features=["code"], target="y")
    encoder = Encoder(schema, learn_domain(frame, schema, missing="category"))
    (column,) = columns_of(encoder)
    places = np.asarray([0, 1, 1, 2, 3, 3, 3, 2] + [3] * (column.cells - 8), dtype=np.int32)
    assert labels_of(encoder, column, places) == ["000", "001, 002", "003, 007", "004 and 2 more"]
