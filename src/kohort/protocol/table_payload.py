"""Tables on the wire: columns as arrays, so that no parser of a foreign format reads untrusted bytes.

Guarantee: `unpack_table(pack_table(frame))` has the same columns, values and nulls (numbers as 64-bit integers or
floats, dates in days, times in microseconds, lists as lists of text without their nulls, everything else as text).
Malformed bytes give an IntegrityError.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from kohort.anonymity.relational.codes import ranked
from kohort.errors import IntegrityError
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.wire import Payload, decode, encode

__all__ = ["pack_table", "unpack_table"]

_NUMBERS: dict[str, tuple[Any, pl.DataType]] = {
    "integer": (np.int64, pl.Int64()),
    "number": (np.float64, pl.Float64()),
    "date": (np.int64, pl.Date()),
    "time": (np.int64, pl.Datetime("us")),
}
"""Kinds of columns that are arrays of numbers: the array's type, and the column's."""


def pack_table(frame: pl.DataFrame) -> bytes:
    """Encode a table.

    Args:
        frame: The table.

    Returns:
        Its bytes, in the wire format.
    """
    columns: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for index, column in enumerate(frame.get_columns()):
        place = f"c{index}"
        if column.dtype.is_integer() and column.dtype != pl.UInt64:
            kind, values = "integer", _filled(column.cast(pl.Int64))
        elif column.dtype.is_numeric():
            kind, values = "number", _filled(column.cast(pl.Float64))
        elif column.dtype == pl.Date:
            kind, values = "date", column.to_physical().cast(pl.Int64).fill_null(0).to_numpy()
        elif isinstance(column.dtype, pl.Datetime):
            kind, values = "time", column.dt.cast_time_unit("us").to_physical().fill_null(0).to_numpy()
        elif column.dtype == pl.List:
            lists = column.list.drop_nulls()
            lengths = lists.list.len().fill_null(0)
            kind, values = "lists", lengths.cast(pl.Int64).to_numpy()
            arrays[f"i{index}"], known = _coded(lists.filter(lengths > 0).list.explode())
        else:
            kind = "text"
            values, known = _coded(column)
        arrays[place] = values
        arrays[f"n{index}"] = column.is_null().to_numpy() if column.null_count() else np.zeros(len(column), np.bool_)
        columns.append({"name": column.name, "kind": kind, "values": known if kind in {"lists", "text"} else []})
    return encode(Payload(arrays=arrays, blobs={"columns": canonical(columns).encode()}))


def unpack_table(data: bytes, *, expect: Sequence[str] | None = None) -> pl.DataFrame:
    """Decode a table from an untrusted source.

    Args:
        data: The bytes.
        expect: The column names it must have, in order; None for any.

    Returns:
        The table.

    Raises:
        IntegrityError: The bytes are malformed, or the columns are not the expected ones.
    """
    payload = decode(data)
    try:
        columns = json.loads(payload.blobs["columns"])
        made = [_column(payload, index, column) for index, column in enumerate(columns)]
        frame = pl.DataFrame(made)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError, pl.exceptions.PolarsError) as error:
        raise IntegrityError("a received table is malformed") from error
    if expect is not None and frame.columns != list(expect):
        raise IntegrityError(f"a received table has {frame.width} columns that are not the {len(expect)} expected ones")
    return frame


def _coded(column: pl.Series) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Cells as indices into the sorted distinct texts, and those texts; a null has index 0."""
    codes, values = ranked(column.cast(pl.String))
    missing = values.null_count()  # 1 where there is a null, which comes first
    return np.maximum(codes.astype(np.int32) - np.int32(missing), 0), values[missing:].to_list()


def _filled(column: pl.Series) -> np.ndarray[Any, Any]:
    """The numbers of a column, 0 in place of nulls."""
    return (column.fill_null(0) if column.null_count() else column).to_numpy()


def _column(payload: Payload, index: int, description: dict[str, Any]) -> pl.Series:
    values, absent = payload.arrays[f"c{index}"], payload.arrays[f"n{index}"]
    if values.ndim != 1 or absent.shape != values.shape or absent.dtype != np.bool_:
        raise IntegrityError("a received table is malformed")
    if description["kind"] == "text":
        series = _texts(values, absent, description)
    elif description["kind"] == "lists":
        series = _lists(values, payload.arrays[f"i{index}"], description)
    elif description["kind"] in _NUMBERS:
        wanted, dtype = _NUMBERS[description["kind"]]
        if values.dtype != wanted or not np.isfinite(values).all():
            raise IntegrityError("a received table is malformed")
        series = pl.Series(values)
        series = series.cast(pl.Int32).cast(dtype) if dtype == pl.Date else series.cast(dtype)
    else:
        raise IntegrityError("a received table is malformed")
    if absent.any():
        series = pl.DataFrame({"v": series, "n": absent}).select(pl.when(~pl.col("n")).then(pl.col("v"))).to_series()
    return series.alias(str(description["name"]))


def _texts(codes: np.ndarray[Any, Any], absent: np.ndarray[Any, Any], description: dict[str, Any]) -> pl.Series:
    known = pl.Series([str(value) for value in description["values"]], dtype=pl.String)
    used = codes[~absent]
    if codes.dtype != np.int32 or (len(used) and (used.min() < 0 or used.max() >= len(known))):
        raise IntegrityError("a received table is malformed")
    series = known[np.where(absent, 0, codes)] if len(known) else pl.Series([None] * len(codes))
    return series.cast(pl.String)


def _lists(lengths: np.ndarray[Any, Any], codes: np.ndarray[Any, Any], description: dict[str, Any]) -> pl.Series:
    """A column of lists: row i takes the next `lengths[i]` items of `codes`."""
    if lengths.dtype != np.int64 or codes.ndim != 1 or (lengths < 0).any() or (lengths > len(codes)).any():
        raise IntegrityError("a received table is malformed")
    if int(lengths.sum()) != len(codes):
        raise IntegrityError("a received table is malformed")
    items = _texts(codes, np.zeros(len(codes), dtype=np.bool_), description)
    pairs = pl.DataFrame({"row": np.repeat(np.arange(len(lengths)), lengths), "item": items})
    rows = pl.DataFrame({"row": np.arange(len(lengths))})
    listed = rows.join(pairs.group_by("row").agg("item"), on="row", how="left", maintain_order="left")["item"]
    return listed.cast(pl.List(pl.String)).fill_null([])
