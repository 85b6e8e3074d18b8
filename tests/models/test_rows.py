"""Stacking sites: no copy when they share arrays, the right rows in every case."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.errors import DataError
from kohort.models.rows import Rows, StackedRows, encode_rows, encode_test_rows, stack
from kohort.tables.domain import declared_domain
from kohort.tables.encoder import Encoder
from kohort.tables.schema import Schema


def table(count, width=3, *, weighted=True):
    x = np.arange(count * width, dtype=np.float32).reshape(count, width)
    return Rows(x, np.arange(count, dtype=np.float32), np.arange(count, dtype=np.float32) if weighted else None)


def assert_same_rows(stacked, sites):
    assert stacked.sites == len(sites)
    assert stacked.count == sum(site.count for site in sites)
    for index, site in enumerate(sites):
        own = stacked.site(index)
        assert np.array_equal(own.x, site.x)
        assert np.array_equal(own.y, site.y)
        assert (own.weight is None) == (site.weight is None)
        assert own.weight is None or np.array_equal(own.weight, site.weight)


@given(
    ranges=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=8),
    weighted=st.booleans(),
    nested=st.booleans(),
)
@examples(25, 100)
def test_slices_of_one_table_are_stacked_without_a_copy(ranges, weighted, nested):
    base = table(40, weighted=weighted)
    sites = [base.part(min(pair), max(pair)) for pair in ranges]
    if nested:
        sites = [site.part(site.count // 3, site.count) for site in sites]
    stacked = stack(sites)
    assert_same_rows(stacked, sites)
    if stacked.count:
        assert np.shares_memory(stacked.x, base.x)
        assert np.shares_memory(stacked.y, base.y)
        assert not weighted or np.shares_memory(stacked.weight, base.weight)


def test_one_whole_table_is_shared():
    base = table(10)
    stacked = stack([base])
    assert np.shares_memory(stacked.x, base.x)
    assert_same_rows(stacked, [base])


@pytest.mark.parametrize("weighted", [False, True])
def test_separate_tables_are_concatenated(weighted):
    sites = [table(count, weighted=weighted) for count in (4, 0, 7)]
    stacked = stack(sites)
    assert_same_rows(stacked, sites)
    assert not any(np.shares_memory(stacked.x, site.x) for site in sites if site.count)


def test_targets_cut_at_other_rows_than_features_are_concatenated():
    base = table(20, weighted=False)
    sites = [Rows(base.x[0:5], base.y[0:5]), Rows(base.x[5:10], base.y[6:11])]
    assert_same_rows(stack(sites), sites)


def test_features_cut_in_the_middle_of_a_row_are_concatenated():
    flat = np.arange(40, dtype=np.float32)
    y = np.arange(10, dtype=np.float32)
    sites = [Rows(flat[0:9].reshape(3, 3), y[0:3]), Rows(flat[10:19].reshape(3, 3), y[3:6])]
    assert_same_rows(stack(sites), sites)


def test_slices_of_a_larger_matrix_of_another_type_or_layout_are_concatenated():
    turned = np.asfortranarray(np.arange(24, dtype=np.float32).reshape(8, 3))
    raw = np.arange(64, dtype=np.uint8)
    cut = raw.view(np.float32)[:6].reshape(2, 3)
    for x in (np.ascontiguousarray(turned[:2]), cut):
        sites = [Rows(x, np.zeros(2, np.float32)), Rows(x, np.ones(2, np.float32))]
        assert_same_rows(stack(sites), sites)


def test_take_shares_rows_and_keeps_the_order_asked_for():
    base = table(30)
    sites = [base.part(0, 10), base.part(10, 12), base.part(12, 30)]
    taken = stack(sites).take([2, 0, 2])
    assert np.shares_memory(taken.x, base.x)
    assert_same_rows(taken, [sites[2], sites[0], sites[2]])


def test_of_converts_and_plain_rows_refuse():
    rows = Rows.of([[1, 2], [3, 4]], [0, 1], weight=[1, 1])
    assert rows.x.dtype == rows.y.dtype == rows.weight.dtype == np.float32
    with pytest.raises(DataError, match="int64"):
        Rows(np.zeros((2, 2), np.int64), np.zeros(2, np.int64))
    with pytest.raises(DataError, match="contiguous"):
        Rows(np.zeros((4, 4))[:, :2], np.zeros(4))
    with pytest.raises(DataError, match="fit together"):
        Rows(np.zeros((4, 4)), np.zeros(3))


def test_sites_that_do_not_go_together_are_refused():
    with pytest.raises(DataError, match="no site"):
        stack([])
    with pytest.raises(DataError, match="columns"):
        stack([table(3, 2), table(3, 3)])
    with pytest.raises(DataError, match="weights"):
        stack([table(3), table(3, weighted=False)])


def test_a_stack_that_reaches_outside_its_rows_is_refused():
    base = table(5)
    for start, count in ((3, 3), (-1, 2), (0, -1)):
        with pytest.raises(DataError, match="outside"):
            StackedRows(base.x, base.y, base.weight, np.array([start]), np.array([count]))


def test_a_training_target_outside_its_bounds_counts_at_the_nearer_end() -> None:
    frame = pl.DataFrame({"x": [0.0, 1.0, 2.0], "cost": [-4.0, 5.0, 40.0]})
    schema = Schema.of(features=["x"], target="cost", bounds={"x": (0.0, 2.0), "cost": (0.0, 10.0)})
    domain = declared_domain(schema)
    assert domain is not None
    encoder = Encoder(schema, domain)
    assert encode_rows(encoder, frame).y.tolist() == [0.0, 0.5, 1.0]
    assert encode_test_rows(encoder, frame).y.tolist() == pytest.approx([-0.4, 0.5, 4.0])
