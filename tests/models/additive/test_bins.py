"""Bins hold enough persons each, heavy cells stay alone, and the rest is merged with neighbours or becomes "other"."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.errors import IntegrityError
from kohort.models.additive.bins import Bins, isotonic, make_bins
from kohort.models.additive.cells import codes_of, columns_of
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


def test_rare_categories_are_one_bin_or_join_the_rarest_frequent_one() -> None:
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
