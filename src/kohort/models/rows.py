"""Encoded rows of one site, and of many sites side by side without padding.

Numbers to predict are trained on the scale [0, 1] of the column's domain, so that one learning rate suits them all.

Guarantees: `stack` copies no row when the sites are slices of the same arrays, in whatever order they come, and
`StackedRows.take` never does; so a thousand sites cut out of one table cost no memory beyond the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.models.options import DType, FloatArray
from kohort.models.soft import SoftColumn
from kohort.tables.domain import number
from kohort.tables.encoder import Encoder
from kohort.tables.schema import Role, Schema

__all__ = [
    "Rows",
    "StackedRows",
    "encode_rows",
    "encode_test_rows",
    "person_of_rows",
    "read_only",
    "scaled_target",
    "stack",
    "target_range",
    "with_target",
]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows ready for training: features `x` [n, d], target `y` [n], and a weight per row, or None for all ones.

    `y` has the dtype of `x`: class codes 0, 1, ... as floats, or numbers.
    """

    x: FloatArray
    y: FloatArray
    weight: FloatArray | None = None
    soft: tuple[SoftColumn, ...] = ()
    """Columns with generalised cells, which models on bins spread over all values that they could stand for."""
    person: pl.Series | None = None
    """The identifier of each row's person, where persons are told apart. It never leaves."""
    # What `stack` has to know of each of many sites, asked for once: NumPy takes its time to answer.
    _kind: tuple[int, str, int] = field(init=False, repr=False)
    _place: _Place = field(init=False, repr=False)

    def __post_init__(self) -> None:
        arrays = (self.x, self.y) if self.weight is None else (self.x, self.y, self.weight)
        if self.x.ndim != 2 or any(array.shape != (self.x.shape[0],) for array in arrays[1:]):
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise DataError(f"rows of shapes {shapes} do not fit together", hint="Use x [n, d], y [n], weight [n]")
        if self.x.dtype not in (np.float32, np.float64) or any(a.dtype != self.x.dtype for a in arrays):
            names = ", ".join(array.dtype.name for array in arrays)
            raise DataError(f"rows of types {names} cannot be trained on", hint="Use Rows.of, which converts them")
        if not all(array.flags.c_contiguous for array in arrays):
            raise DataError("rows are not contiguous in memory", hint="Use Rows.of, which copies them into order")
        object.__setattr__(self, "_kind", (self.x.shape[1], self.x.dtype.char, len(arrays)))
        object.__setattr__(self, "_place", _place_of(arrays))

    @classmethod
    def of(cls, x: Any, y: Any, *, weight: Any = None, dtype: DType = "float32") -> Rows:
        """Rows from anything NumPy reads; copies only what has another type or layout."""
        return cls(
            np.ascontiguousarray(x, dtype=dtype),
            np.ascontiguousarray(y, dtype=dtype),
            None if weight is None else np.ascontiguousarray(weight, dtype=dtype),
        )

    @property
    def count(self) -> int:
        """How many rows."""
        return int(self.x.shape[0])

    def part(self, begin: int, end: int) -> Rows:
        """Rows `begin` to `end` without copying them."""
        weight = None if self.weight is None else self.weight[begin:end]
        soft = tuple(column.part(begin, end) for column in self.soft)
        person = None if self.person is None else self.person[begin:end]
        return Rows(self.x[begin:end], self.y[begin:end], weight, soft, person)

    def take(self, chosen: NDArray[Any]) -> Rows:
        """Some rows, copied: those at these places, or those that a mask marks. Generalised cells are not taken."""
        weight = None if self.weight is None else np.ascontiguousarray(self.weight[chosen])
        places = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        person = None if self.person is None else self.person[places]
        return Rows(np.ascontiguousarray(self.x[chosen]), np.ascontiguousarray(self.y[chosen]), weight, person=person)


@dataclass(frozen=True, eq=False)
class StackedRows:
    """Rows of many sites in shared arrays: site s owns rows `starts[s]` to `starts[s] + counts[s]`."""

    x: FloatArray
    y: FloatArray
    weight: FloatArray | None
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        # The compiled kernel does not check bounds, so a range outside the arrays must not get that far.
        ends = self.starts + self.counts
        if self.starts.shape != self.counts.shape or self.starts.ndim != 1:
            raise DataError(
                "every site needs one start and one count", hint="Make stacks with kohort.models.rows.stack"
            )
        if len(ends) and (min(self.starts.min(), self.counts.min()) < 0 or ends.max() > self.x.shape[0]):
            raise DataError("a site reaches outside the stacked rows", hint="Make stacks with kohort.models.rows.stack")
        # Checks shapes, types and layout of the shared arrays.
        Rows(self.x, self.y, self.weight)

    @property
    def sites(self) -> int:
        """How many sites."""
        return int(self.starts.shape[0])

    @property
    def count(self) -> int:
        """How many rows all sites own together."""
        return int(self.counts.sum())

    @cached_property
    def for_kernels(self) -> tuple[NDArray[Any], ...]:
        """x, y, weight (empty for all ones), starts and counts, as compiled functions take them."""
        weight = self.y[:0] if self.weight is None else self.weight
        ranges = (read_only(self.starts, np.int64), read_only(self.counts, np.int64))
        return read_only(self.x), read_only(self.y), read_only(weight), *ranges

    def take(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> StackedRows:
        """The sites at `indices`, in that order; rows are shared, not copied."""
        chosen = np.asarray(indices, dtype=np.int64)
        return StackedRows(self.x, self.y, self.weight, self.starts[chosen], self.counts[chosen])

    def site(self, index: int) -> Rows:
        """The rows of one site; shared, not copied."""
        begin = int(self.starts[index])
        part = slice(begin, begin + int(self.counts[index]))
        return Rows(self.x[part], self.y[part], None if self.weight is None else self.weight[part])


def target_range(encoder: Encoder) -> tuple[float, float]:
    """Offset and width of a numeric target.

    Args:
        encoder: Knows the target and its bounds.

    Returns:
        (0, 1) for classes.

    Raises:
        ConfigError: A number has no bounds.
    """
    if encoder.classes is not None or encoder.schema.target is None:
        return 0.0, 1.0
    bounds = encoder.domain.columns[encoder.schema.target].bounds
    if bounds is None:
        raise ConfigError(f"target {encoder.schema.target!r} has no bounds", hint="Declare them in data.bounds")
    low, high = bounds
    return low, (high - low) or 1.0


def encode_rows(encoder: Encoder, frame: pl.DataFrame, *, generalised: bool = False) -> Rows:
    """Rows ready for training: inputs scaled to [0, 1], classes as codes, a numeric target scaled to [0, 1].

    Args:
        encoder: Knows the columns, their domains and the target.
        frame: The rows, with all inputs and the target. A target outside its bounds counts at the nearer end, as inputs
            do; `encode_test_rows` leaves it as it is.
        generalised: Whether text columns may hold the cell forms of `kohort.tables.cells`.

    Returns:
        The rows, in the order of the table.

    Raises:
        DataError: A column is absent, a cell cannot be read or is outside its domain, or a weight is missing or below
            0.
        ConfigError: A numeric target has no bounds.
    """
    return with_target(encoder, encoder.transform(frame, generalised=generalised), frame, bounded=True)


def encode_test_rows(encoder: Encoder, frame: pl.DataFrame) -> Rows:
    """Rows to judge a model by: as `encode_rows`, but categories that no training row had are read too.

    Args:
        encoder: Knows the columns, their domains and the target.
        frame: The rows, with all inputs and the target. A numeric target may lie outside its bounds, so outside [0, 1]
            when scaled.

    Returns:
        The rows, in the order of the table.

    Raises:
        DataError: A column is absent, a cell cannot be read, or a category is unknown and unknown ones are errors.
        ConfigError: A numeric target has no bounds.
    """
    return with_target(encoder, encoder.inputs(frame)[0], frame)


def person_of_rows(schema: Schema, frame: pl.DataFrame) -> pl.Series | None:
    """The identifier of each row's person; None where persons are not told apart.

    Args:
        schema: The roles of the columns.
        frame: The rows.

    Returns:
        A column of the table.
    """
    if not schema.identifiers or schema.identifiers[0] not in frame.columns:
        return None
    return frame[schema.identifiers[0]]


def with_target(encoder: Encoder, x: FloatArray, frame: pl.DataFrame, *, bounded: bool = False) -> Rows:
    """Rows of inputs that were encoded already: target, weights and persons of the rows come from `frame`.

    Args:
        encoder: Knows the target and its bounds.
        x: The inputs.
        frame: The rows.
        bounded: Whether a number outside the bounds of the target counts at the nearer end.

    Returns:
        The rows.
    """
    target = scaled_target(encoder, frame)
    if bounded and encoder.classes is None and encoder.schema.target is not None:
        target = np.clip(target, 0.0, 1.0)
    weight, person = _weights(encoder, target, frame), person_of_rows(encoder.schema, frame)
    return Rows(x, np.ascontiguousarray(target), weight, person=person)


def scaled_target(encoder: Encoder, frame: pl.DataFrame) -> FloatArray:
    """The target of every row: a class code, or a number as a share of the range between its bounds.

    Args:
        encoder: Knows the target and its bounds.
        frame: The rows.

    Returns:
        One number per row.
    """
    low, width = target_range(encoder)
    target = encoder.target(frame)
    if (low, width) != (0.0, 1.0):
        target = ((target.astype(np.float64) - low) / width).astype(target.dtype)
    return target


def _weights(encoder: Encoder, target: FloatArray, frame: pl.DataFrame) -> FloatArray | None:
    """The weight of every row: that of its class, times its own where the table has a column of weights."""
    by_class = encoder.row_weights(target)
    name = next(iter(encoder.schema.with_role(Role.WEIGHT)), None)
    if name is None or name not in frame.columns:  # rows to predict have no weight
        return by_class
    own = number(frame[name])
    if own.null_count() or not bool((own >= 0).all()):
        hint = "Give every row a weight of 0 or more"
        raise DataError(f"column {name!r} holds weights that are missing or below 0", hint=hint)
    weights: FloatArray = own.to_numpy().astype(target.dtype)
    return weights if by_class is None else weights * by_class


def read_only(array: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """A view of an array that cannot be written to, copied only when its type or layout is another.

    Arrays from files and wires come read-only or unaligned; Numba would compile kernels anew for each such kind.

    Args:
        array: The array, which stays writable if it was.
        dtype: The type of the view; None for that of the array.

    Returns:
        A contiguous, aligned array that cannot be written to.
    """
    view = np.ascontiguousarray(array, dtype=dtype)
    flags = view.flags
    if not flags.aligned:
        view = view.copy()
    elif not flags.writeable:
        return view
    elif view is array:
        view = array.view()
    view.flags.writeable = False
    return view


def stack(sites: Sequence[Rows]) -> StackedRows:
    """Many sites side by side; without a copy when all are slices of the same arrays, else concatenated.

    Args:
        sites: The rows of each.

    Returns:
        The rows of all.

    Raises:
        DataError: There is no site, or they differ in columns, number type or weights.
    """
    if not sites:
        raise DataError("there is no site to stack", hint="Give at least one")
    kinds = {rows._kind for rows in sites}
    if len({kind[:2] for kind in kinds}) > 1:
        raise DataError("sites differ in columns or number type", hint="Encode every site with the same encoder")
    if len(kinds) > 1:
        raise DataError("some sites have row weights and some have none", hint="Weight the rows of all sites or none")
    counts = np.array([rows._place.count for rows in sites], dtype=np.int64)
    return _share(sites, counts) or _concatenate(sites, counts)


@dataclass(frozen=True)
class _Place:
    """Where the arrays of some rows live: in which owners of memory, and how many items from their beginning."""

    count: int
    owners: tuple[NDArray[Any], ...]
    owner_ids: tuple[int, ...]
    offsets: tuple[int, ...]


def _place_of(arrays: Sequence[NDArray[Any]]) -> _Place:
    found = [_owner_and_offset(array) for array in arrays]
    owners = tuple(owner for owner, _ in found)
    return _Place(len(arrays[0]), owners, tuple(map(id, owners)), tuple(offset for _, offset in found))


def _owner_and_offset(array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    begin = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    usable = owner.flags.c_contiguous and owner.dtype == array.dtype and begin % array.itemsize == 0
    return (owner, begin // array.itemsize) if usable else (array, 0)


def _share(sites: Sequence[Rows], counts: NDArray[np.int64]) -> StackedRows | None:
    """The stack as a view of the arrays the sites were cut from; None when they do not line up."""
    places = [rows._place for rows in sites if rows._place.count]
    if len({place.owner_ids for place in places}) != 1:
        return None
    filled = counts > 0
    width = sites[0].x.shape[1]
    offsets = np.array([place.offsets for place in places], dtype=np.int64)
    lowest = offsets.min(axis=0)
    starts, rest = np.divmod(offsets[:, 0] - lowest[0], max(width, 1))
    # Features, targets and weights must be cut at the same rows, or one start per site could not serve all three.
    if rest.any() or (offsets[:, 1:] - lowest[1:] != starts[:, None]).any():
        return None
    size = int((starts + counts[filled]).max())
    shared = [
        owner.reshape(-1)[low : low + size * (width if position == 0 else 1)]
        for position, (owner, low) in enumerate(zip(places[0].owners, lowest.tolist(), strict=True))
    ]
    all_starts = np.zeros(len(sites), dtype=np.int64)
    all_starts[filled] = starts
    weight = shared[2] if len(shared) == 3 else None
    return StackedRows(shared[0].reshape(size, width), shared[1], weight, all_starts, counts)


def _concatenate(sites: Sequence[Rows], counts: NDArray[np.int64]) -> StackedRows:
    weights = [rows.weight for rows in sites if rows.weight is not None]
    starts = np.zeros(len(sites), dtype=np.int64)
    np.cumsum(counts[:-1], out=starts[1:])
    return StackedRows(
        np.concatenate([rows.x for rows in sites]),
        np.concatenate([rows.y for rows in sites]),
        np.concatenate(weights) if weights else None,
        starts,
        counts,
    )
