"""Generalised cells in bins: shares by hand, sums that do not depend on who holds the rows, and a slow reference."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.models.additive.bins import make_bins
from kohort.models.additive.cells import codes_of, columns_of
from kohort.models.additive.design import count_cells, design_of
from kohort.models.rows import Rows, encode_rows
from kohort.models.soft import GRID, ItemProbability, covered, shares_of, soft_columns
from kohort.tables.blocks import Spread
from kohort.tables.encoder import Encoder, learn_domain
from kohort.tables.schema import Schema

NO_EDGES = np.zeros(0)


class _Coast:
    def leaves(self, label: str) -> tuple[str, ...]:
        return {"coast": ("east", "west")}[label]


def _rows() -> tuple[Encoder, Rows]:
    """60 rows of which about half have a generalised age or ward."""
    generator = np.random.default_rng(1)
    exact = pl.DataFrame(
        {
            "age": pl.Series(generator.integers(20, 80, 60)),
            "ward": generator.choice(["east", "north", "south", "west"], 60),
            "ill": generator.choice(["no", "yes"], 60),
        }
    )
    schema = Schema.of(target="ill", features=("age", "ward"))
    encoder = Encoder(schema, learn_domain(exact, schema))
    cells = exact.with_columns(
        age=pl.Series([text if row % 3 else "[30, 50]" for row, text in enumerate(exact["age"].cast(pl.String))]),
        ward=pl.Series([("<coast>", "{north, west}", "*", text)[row % 4] for row, text in enumerate(exact["ward"])]),
    )
    taxonomies = {"ward": _Coast()}
    x = encoder.transform(cells, generalised=True, hierarchies=taxonomies)
    plain = encode_rows(encoder, exact)
    return encoder, Rows(x, plain.y, soft=soft_columns(encoder, cells, x, taxonomies, ("age", "ward")))


def test_shares_of_a_marginal_are_those_by_hand() -> None:
    spreads = (Spread(codes=(0, 2)), Spread(codes=(1, 2, 3)), ItemProbability((0.25, 0.75)))
    assert shares_of(spreads[:2], NO_EDGES, np.ones(4)).tolist() == [[512, 0, 512, 0], [0, 342, 341, 341]]
    bins, counts = np.asarray([0, 1, 1, 2]), np.asarray([30.0, 20.0, 10.0])
    found = shares_of(spreads[:2], NO_EDGES, np.ones(4), bins=bins, counts=counts)
    # Bin 1 has two categories, so 10 of its 20 rows stand for each: 30 to 10, and 20 to 10.
    assert found.tolist() == [[768, 256, 0], [0, 683, 341]]
    item = shares_of(spreads[2:], NO_EDGES, np.ones(2), bins=np.arange(2), counts=np.asarray([1.0, 99.0]))
    assert item.tolist() == [[256, 768]]


def test_a_marginal_that_never_saw_the_values_leaves_them_equally_likely() -> None:
    spreads, counts = (Spread(codes=(0, 1)),), np.asarray([0.0, 0.0, 9.0])
    assert shares_of(spreads, NO_EDGES, np.ones(3), bins=np.arange(3), counts=counts).tolist() == [[512, 512, 0]]


def test_ranges_cover_every_cell_they_touch_and_missing_is_the_last() -> None:
    edges = np.asarray([0.25, 0.5, 0.75])
    assert covered(Spread(ranges=((0.3, 0.6),)), edges, 4).tolist() == [0, 1, 1, 0]
    assert covered(Spread(ranges=((0.25, 0.25), (1.0, 1.0)), missing=True), edges, 5).tolist() == [1, 0, 0, 1, 1]


def test_exact_cells_of_a_generalised_column_stay_exact() -> None:
    _, rows = _rows()
    assert [column.first for column in rows.soft] == [0, 1]
    assert ((rows.soft[0].of_row < 0) == (np.arange(60) % 3 > 0)).all()
    assert ((rows.soft[1].of_row < 0) == (np.arange(60) % 4 == 3)).all()


def test_counts_and_sums_are_those_of_rows_split_into_shares() -> None:
    encoder, rows = _rows()
    columns = columns_of(encoder)
    codes = codes_of(columns, rows.x)
    counted = count_cells(columns, rows, codes, None, units=GRID)
    assert [int(own.sum()) for own in counted] == [60 * GRID] * 2
    # Without any knowledge, "[30, 50]" is all cells between the two, by their widths.
    inside = np.asarray(covered(rows.soft[0].spreads[0], columns[0].edges, columns[0].cells), dtype=bool)
    assert counted[0][~inside].sum() % GRID == 0
    bins = make_bins(columns, [own / GRID for own in counted], bins=8, least=4)
    counts = np.concatenate(
        [np.bincount(own, weights=part / GRID) for own, part in zip(bins.of_cell, counted, strict=True)]
    )
    design = design_of(bins, counts, rows)
    numbers = np.random.default_rng(3).integers(-(2**28), 2**28, (60, 2))
    values = np.random.default_rng(4).normal(0, 1, (bins.total, 2))
    summed, scores = np.zeros((bins.total, 2), dtype=np.int64), np.zeros((60, 2))
    for number, (column, soft) in enumerate(zip(columns, rows.soft, strict=True)):
        start, size = int(bins.starts[number]), int(bins.sizes[number])
        shares = shares_of(
            soft.spreads, column.edges, column.widths, bins=bins.of_cell[number], counts=counts[start : start + size]
        )
        for row in range(60):
            kind = int(soft.of_row[row])
            if kind < 0:
                place = start + int(bins.of_cell[number][codes[number, row]])
                summed[place] += numbers[row]
                scores[row] += values[place]
                continue
            for place in range(size):
                summed[start + place] += np.trunc(numbers[row] / GRID).astype(np.int64) * shares[kind, place]
                scores[row] += shares[kind, place] / GRID * values[start + place]
    assert (design.summed(numbers) == summed).all()
    assert np.abs(design.scores(values, np.zeros(2)) - scores).max() < 1e-12
    parts = [design_of(bins, counts, rows.part(*cut)).summed(numbers[slice(*cut)]) for cut in ((0, 17), (17, 60))]
    assert (parts[0] + parts[1] == summed).all()


def test_generalised_cells_are_never_counted_as_whole_ones() -> None:
    encoder, rows = _rows()
    columns = columns_of(encoder)
    with pytest.raises(ValueError, match="in shares"):
        count_cells(columns, rows, codes_of(columns, rows.x), None, units=1)
