"""Tables on the wire: values and nulls come back exactly, malformed bytes give an IntegrityError."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from kohort.errors import IntegrityError
from kohort.protocol.table_payload import pack_table, unpack_table
from kohort.protocol.wire import Payload, decode, encode

integers = st.none() | st.integers(-(2**63), 2**63 - 1)
floats = st.none() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.none() | st.text(max_size=6)
lists = st.none() | st.lists(st.text(max_size=3), max_size=3)


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    rows = draw(st.integers(0, 6))
    names = draw(st.lists(st.text(max_size=5), unique=True, max_size=4))
    columns = []
    for name in names:
        kinds = [(integers, pl.Int64), (floats, pl.Float64), (texts, pl.String), (lists, pl.List(pl.String))]
        values, dtype = draw(st.sampled_from(kinds))
        columns.append(pl.Series(name, draw(st.lists(values, min_size=rows, max_size=rows)), dtype=dtype))
    return pl.DataFrame(columns)


@given(frames())
def test_round_trip(frame: pl.DataFrame) -> None:
    data = pack_table(frame)
    back = unpack_table(data, expect=frame.columns)
    assert_frame_equal(back, frame)
    assert pack_table(back) == data


def test_other_types_travel_as_numbers_or_text() -> None:
    frame = pl.DataFrame(
        {
            "small": pl.Series([1, None], dtype=pl.Int8),
            "large": pl.Series([1, 2], dtype=pl.UInt64),
            "short": pl.Series([0.5, None], dtype=pl.Float32),
            "truth": [True, None],
            "items": [["a", "b;c", None], []],
            "codes": [None, [2, 1]],
            "nothing": pl.Series([None, None], dtype=pl.Null),
        }
    )
    back = unpack_table(pack_table(frame))
    assert back.to_dict(as_series=False) == {
        "small": [1, None],
        "large": [1.0, 2.0],
        "short": [0.5, None],
        "truth": ["true", None],
        "items": [["a", "b;c"], []],
        "codes": [None, ["2", "1"]],
        "nothing": [None, None],
    }


GOOD = pl.DataFrame({"n": [1, 2, 3], "t": ["a", None, "b"], "f": [0.5, 1.5, None]})


def changed(arrays: dict[str, Any] | None = None, columns: Any = None) -> bytes:
    payload = decode(pack_table(GOOD))
    described = json.loads(payload.blobs["columns"]) if columns is None else columns
    blob = described if isinstance(described, bytes) else json.dumps(described).encode()
    return encode(Payload(arrays={**payload.arrays, **(arrays or {})}, blobs={"columns": blob}))


def column(name: str, kind: str, values: Any = ()) -> dict[str, Any]:
    return {"name": name, "kind": kind, "values": values}


THREE = [column("n", "integer"), column("t", "text", ["a", "b"]), column("f", "number")]


def test_the_bending_itself_is_sound() -> None:
    assert_frame_equal(unpack_table(changed()), GOOD)
    assert_frame_equal(unpack_table(changed(columns=THREE)), GOOD)


BENT = {
    "no payload": b"garbage",
    "no description": encode(Payload()),
    "description is no JSON": changed(columns=b"{"),
    "deep description": changed(columns=b"[" * 100_000),
    "description is null": changed(columns=b"null"),
    "description is a number": changed(columns=b"7"),
    "columns are numbers": changed(columns=[1, 2, 3]),
    "columns are text": changed(columns="abc"),
    "a column more": changed(columns=[*THREE, column("z", "integer")]),
    "name twice": changed(columns=[THREE[0], {**THREE[1], "name": "n"}, THREE[2]]),
    "unknown kind": changed(columns=[column("n", "object"), *THREE[1:]]),
    "integers that are floats": changed({"c0": np.zeros(3)}),
    "numbers that are integers": changed({"c2": np.zeros(3, dtype=np.int64)}),
    "not finite": changed({"c2": np.array([np.nan, 0, 0])}),
    "infinite": changed({"c2": np.array([np.inf, 0, 0])}),
    "longer": changed({"c0": np.zeros(4, dtype=np.int64)}),
    "longer with its nulls": changed({"c0": np.zeros(4, dtype=np.int64), "n0": np.zeros(4, dtype=bool)}),
    "two axes": changed({"c0": np.zeros((3, 1), dtype=np.int64), "n0": np.zeros((3, 1), dtype=bool)}),
    "nulls are numbers": changed({"n0": np.zeros(3, dtype=np.int8)}),
    "code too large": changed({"c1": np.array([0, 0, 2], dtype=np.int32)}),
    "code negative": changed({"c1": np.array([-1, 0, 1], dtype=np.int32)}),
    "code of another type": changed({"c1": np.array([0, 0, 1], dtype=np.int64)}),
    "codes are floats and all null": changed({"c1": np.array([np.nan] * 3), "n1": np.ones(3, dtype=bool)}),
    "no categories": changed(columns=[THREE[0], column("t", "text"), THREE[2]]),
    "categories are a number": changed(columns=[THREE[0], column("t", "text", 5), THREE[2]]),
    "categories are null": changed(columns=[THREE[0], column("t", "text", None), THREE[2]]),
}


@pytest.mark.parametrize("name", BENT)
def test_bent_tables_are_refused(name: str) -> None:
    with pytest.raises(IntegrityError):
        unpack_table(BENT[name], expect=GOOD.columns)


LISTED = pl.DataFrame({"l": [["a", "b"], [], None, ["b"]]})


@pytest.mark.parametrize(
    "arrays",
    [
        {"c0": np.array([2, 0, 0, 2])},
        {"c0": np.array([4, 0, -2, 1])},
        {"c0": np.array([2, 0, 0, 1], dtype=np.int32)},
        {"c0": np.array([2**62, 2**62, 2**62, 2**62 + 3])},
        {"i0": np.array([0, 1], dtype=np.int32)},
        {"i0": np.array([0, 1, 2], dtype=np.int32)},
        {"i0": np.array([0, -1, 1], dtype=np.int32)},
        {"i0": np.array([0, 1, 1])},
        {"i0": np.array([[0], [1], [1]], dtype=np.int32)},
    ],
    ids=str,
)
def test_bent_lists_are_refused(arrays: dict[str, Any]) -> None:
    payload = decode(pack_table(LISTED))
    assert_frame_equal(unpack_table(encode(payload)), LISTED)
    with pytest.raises(IntegrityError):
        unpack_table(encode(Payload(arrays={**payload.arrays, **arrays}, blobs=payload.blobs)))
    without = {name: array for name, array in payload.arrays.items() if name != next(iter(arrays))}
    with pytest.raises(IntegrityError):
        unpack_table(encode(Payload(arrays=without, blobs=payload.blobs)))


def test_other_columns_than_expected_are_refused_by_count_not_by_name() -> None:
    with pytest.raises(IntegrityError, match="3 columns that are not the 2 expected"):
        unpack_table(pack_table(GOOD), expect=["n", "t"])
    with pytest.raises(IntegrityError):
        unpack_table(pack_table(GOOD), expect=["t", "n", "f"])


@given(st.data())
def test_flipped_bytes_give_a_table_or_an_integrity_error(data: st.DataObject) -> None:
    good = bytearray(pack_table(GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(good) - 1))
        good[place] ^= data.draw(st.integers(1, 255))
    try:
        found = unpack_table(bytes(good))
    except IntegrityError:
        return
    assert isinstance(found, pl.DataFrame)
