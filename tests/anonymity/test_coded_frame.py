"""Codes of values and classes of coded rows, against their definitions."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.anonymity import row_keys
from kohort.anonymity.coded_frame import CodedFrame
from kohort.anonymity.relational.codes import ranked

KINDS = {
    pl.String: st.text(max_size=2),
    pl.Int64: st.one_of(st.integers(-5, 5), st.integers(-(2**40), 2**40)),
    pl.UInt8: st.integers(0, 255),
    pl.UInt64: st.integers(0, 2**64 - 1),
    pl.Boolean: st.booleans(),
    pl.Float64: st.floats(-3, 3, allow_nan=False).map(lambda value: value + 0.0),
    pl.Date: st.dates(),
    pl.Datetime("us"): st.datetimes(datetime(1950, 1, 1), datetime(2050, 1, 1)),
}


@st.composite
def columns(draw: st.DrawFn) -> pl.Series:
    kind = draw(st.sampled_from(list(KINDS)))
    return pl.Series("x", draw(st.lists(st.one_of(st.none(), KINDS[kind]), min_size=1, max_size=20)), dtype=kind)


@examples(80, 500)
@given(column=columns())
def test_a_code_is_the_rank_of_a_value_null_first(column):
    values = column.to_list()
    known = [None] * (None in values) + sorted({value for value in values if value is not None})
    codes, found = ranked(column)
    assert codes.tolist() == [known.index(value) for value in values]
    assert (found.to_list(), found.dtype) == (known, column.dtype)
    frame = CodedFrame(column.to_frame())
    assert frame.codes("x").tolist() == frame.codes("x", np.arange(len(values))).tolist()
    assert len(set(zip(frame.codes("x").tolist(), values, strict=True))) == len(known)
    assert sorted(set(frame.codes("x").tolist())) == list(range(frame.distinct("x"))) == list(range(len(known)))


@examples(40, 200)
@given(rows=st.lists(st.tuples(*[st.one_of(st.none(), st.integers(0, 2))] * 3), min_size=1, max_size=12),
       largest=st.sampled_from([4, 1 << 62]))  # fmt: skip
def test_rows_share_a_class_if_and_only_if_they_share_their_values(rows, largest):
    frame = pl.DataFrame({name: pl.Series([row[at] for row in rows], dtype=pl.Int64) for at, name in enumerate("abc")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_keys, "LARGEST_KEY", largest)
        found = CodedFrame(frame).classes(["a", "b", "c"])
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            assert (found.of_row[i] == found.of_row[j]) == (one == other)
    assert found.count == len(set(rows))
    sizes = found.reduced(np.add, np.ones(len(rows), np.int64))
    assert sizes.tolist() == np.bincount(found.of_row).tolist()
    assert found.reduced(np.minimum, found.of_row[found.order]).tolist() == list(range(found.count))
