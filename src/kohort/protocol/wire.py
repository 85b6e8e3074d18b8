"""The wire format: arrays, metrics and blobs as bytes that round-trip exactly.

Layout (little-endian, every part padded with zeros to 8 bytes):

    "KHRT" | version u32 | header length u64 | header JSON | metrics, 8 bytes each | arrays | blobs

The header holds the names and sizes of the parts and no values, so sites that answer the same request send the same
header, and their replies stack into one matrix. A payload has exactly one encoding, and an encoding one payload.

Guarantee: malformed bytes give an IntegrityError. Sizes are checked against the bytes that are really there before an
array is made, arrays are views of the received buffer, and nothing is ever executed.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError

__all__ = ["EncodedReplies", "Payload", "PayloadLayout", "Scalar", "decode", "encode", "encode_many", "stack_encoded"]

Scalar = int | float | bool
_MAGIC, _VERSION, _PREFIX = b"KHRT", 1, struct.Struct("<4sIQ")
# One spelling per type ("|i1", never "<i1"), or a payload would have two encodings.
_DTYPES = {
    name: np.dtype(name) for name in ("<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
}
_SCALARS = {"f": "<d", "i": "<q", "b": "<q"}
_METRIC_KINDS = {"f": "f", "i": "i", "u": "i", "b": "b"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,63}")
_LARGEST_HEADER, _MOST_PARTS, _MOST_AXES = 1 << 20, 4096, 8
_NONE: Mapping[str, NDArray[Any]] = MappingProxyType({})
_LAYOUTS_KEPT = 32  # a run uses a handful; malicious headers must not fill the memory


@dataclass(frozen=True, kw_only=True)
class Payload:
    """The content of a message: named arrays, numbers (metrics) and byte strings (blobs)."""

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=lambda: MappingProxyType({}))
    metrics: Mapping[str, Scalar] = field(default_factory=lambda: MappingProxyType({}))
    blobs: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, eq=False)
class PayloadLayout:
    """The offsets of all parts of a payload with a given header, and its total size."""

    header: bytes
    metrics: tuple[tuple[str, str, int], ...]
    arrays: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]
    blobs: tuple[tuple[str, int, int], ...]
    size: int

    @cached_property
    def header_bytes(self) -> NDArray[np.uint8]:
        """The header as an array."""
        return np.frombuffer(self.header, dtype=np.uint8)

    @cached_property
    def padding(self) -> tuple[slice, ...]:
        """The slices that hold padding zeros. A boolean metric is the first byte of its eight."""
        ends = [at + 1 for _, kind, at in self.metrics if kind == "b"]
        ends += [at + dtype.itemsize * math.prod(shape) for _, dtype, shape, at in self.arrays]
        return tuple(slice(end, _padded(end)) for end in ends if end % 8)

    @cached_property
    def record(self) -> np.dtype[Any]:
        """The NumPy record type of a payload's bytes, with one field per metric or array."""
        parts = [(name, np.dtype("|b1" if kind == "b" else _SCALARS[kind]), (), at) for name, kind, at in self.metrics]
        names, types, shapes, offsets = zip(*parts, *self.arrays, strict=True) if parts or self.arrays else [()] * 4
        formats = list(zip(types, shapes, strict=True))
        try:
            return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": self.size})
        except ValueError as error:
            raise IntegrityError("parts of a payload share a name, or one is too long to be stacked") from error


def encode(payload: Payload) -> bytes:
    """Encode a payload.

    Args:
        payload: What to send.

    Returns:
        Its only encoding.

    Raises:
        IntegrityError: A name is not valid, or a value has a type that cannot be encoded.
    """
    layout = _layout_for(
        tuple([(name, _scalar_kind(name, value)) for name, value in payload.metrics.items()]),
        tuple([(name, array.dtype, array.shape) for name, array in payload.arrays.items()]),
        tuple([(name, len(blob)) for name, blob in payload.blobs.items()]),
    )
    out = bytearray(layout.size)
    out[: len(layout.header)] = layout.header
    for name, kind, at in layout.metrics:
        try:
            struct.pack_into(_SCALARS[kind], out, at, payload.metrics[name])
        except struct.error as error:
            raise IntegrityError(f"metric {name!r} does not fit 64 bits") from error
    for name, dtype, _, at in layout.arrays:
        data = payload.arrays[name].astype(dtype, copy=False).tobytes()
        out[at : at + len(data)] = data
    for name, length, at in layout.blobs:
        out[at : at + length] = payload.blobs[name]
    return bytes(out)


def decode(data: bytes | memoryview) -> Payload:
    """Decode bytes from an untrusted source.

    Args:
        data: The received bytes.

    Returns:
        The payload; its arrays are read-only views of `data`.

    Raises:
        IntegrityError: The bytes are not the encoding of a payload.
    """
    layout = _read_layout(data)
    metrics = {name: _read_scalar(data, kind, at) for name, kind, at in layout.metrics}
    arrays = {}
    for name, dtype, shape, at in layout.arrays:
        array = np.frombuffer(data, dtype=dtype, count=math.prod(shape), offset=at).reshape(shape)
        if dtype.kind == "b":
            _refuse_untruths(array.view(np.uint8))
        array.flags.writeable = False
        arrays[name] = array
    blobs = {name: bytes(data[at : at + length]) for name, length, at in layout.blobs}
    payload = Payload(arrays=arrays, metrics=metrics, blobs=blobs)
    _refuse_dirty_padding(data, layout)
    return payload


class EncodedReplies:
    """The encodings of many replies that share one header, one after the other in one buffer."""

    def __init__(
        self, flat: NDArray[np.uint8], layout: PayloadLayout, parts: Mapping[str, NDArray[Any]] = _NONE
    ) -> None:
        """Wrap a buffer.

        Args:
            flat: The bytes of all replies.
            layout: Their common layout.
            parts: Values by part name that are written into the buffer first.
        """
        self.flat = flat
        self.layout = layout
        self._parts: NDArray[Any] = flat.view(layout.record)
        for name, values in parts.items():
            self._parts[name] = values
        self._parts.flags.writeable = False

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def matrix(self) -> NDArray[np.uint8]:
        """The bytes as a matrix, one row per reply."""
        return self.flat.reshape(len(self), self.layout.size)

    def views(self) -> list[memoryview]:
        """The bytes of each reply, without copying."""
        flat, size = memoryview(self.flat.data), self.layout.size
        return [flat[start : start + size] for start in range(0, len(flat), size)]

    def take(self, indices: Sequence[int]) -> EncodedReplies:
        """Select some replies.

        Args:
            indices: Their positions.

        Returns:
            A copy with those replies, in that order.
        """
        return EncodedReplies(self.matrix[list(indices)].reshape(-1), self.layout)

    def array(self, name: str) -> NDArray[Any]:
        """Stack one array over all replies.

        Args:
            name: The array's name.

        Returns:
            A read-only view of the replies' bytes; the first axis is the reply.

        Raises:
            KeyError: The replies have no such array.
        """
        try:
            stack: NDArray[Any] = self._parts[name]
        except ValueError:
            raise KeyError(name) from None
        return stack

    def metric(self, name: str) -> NDArray[Any]:
        """One metric over all replies, read-only.

        Args:
            name: The metric's name.

        Returns:
            One value per reply.
        """
        return self.array(name)


def encode_many(arrays: Mapping[str, NDArray[Any]], metrics: Mapping[str, NDArray[Any]]) -> EncodedReplies:
    """Encode the replies of many sites at once.

    Guarantee: row i holds exactly the bytes that `encode` gives for site i's own arrays and metrics.

    Args:
        arrays: Stacked arrays; the first axis is the site.
        metrics: Stacked metrics, one value per site.

    Returns:
        The encoded replies.
    """
    layout = _layout_for(
        tuple([(name, _METRIC_KINDS[values.dtype.kind]) for name, values in metrics.items()]),
        tuple([(name, stack.dtype, stack.shape[1:]) for name, stack in arrays.items()]),
        (),
    )
    count = len(next(iter((*arrays.values(), *metrics.values()))))
    flat = np.empty(count * layout.size, dtype=np.uint8)
    matrix = flat.reshape(count, layout.size)
    matrix[:, : len(layout.header)] = layout.header_bytes
    for unused in layout.padding:
        matrix[:, unused] = 0
    return EncodedReplies(flat, layout, {**metrics, **arrays})


def stack_encoded(data: Sequence[bytes | memoryview]) -> EncodedReplies | None:
    """Stack replies that share one header, with the same checks as `decode`.

    Args:
        data: The bytes of each reply.

    Returns:
        The stacked replies; None when their headers differ or they hold blobs (then decode them one by one).

    Raises:
        IntegrityError: A reply is malformed.
    """
    if not data or len({len(item) for item in data}) != 1:
        return None
    layout = _read_layout(data[0])
    end = len(layout.header)
    if layout.blobs or any(bytes(item[:end]) != layout.header for item in data):
        return None
    for item in data:
        _refuse_dirty_padding(item, layout)
    encoded = EncodedReplies(np.frombuffer(b"".join(data), dtype=np.uint8), layout)
    for _, kind, at in layout.metrics:
        if kind == "b":
            _refuse_untruths(np.ascontiguousarray(encoded.matrix[:, at : at + 8]).view("<u8"))
    for _, dtype, shape, at in layout.arrays:
        if dtype.kind == "b":
            _refuse_untruths(encoded.matrix[:, at : at + math.prod(shape)])
    return encoded


def _scalar_kind(name: str, value: Scalar) -> str:
    if isinstance(value, bool | np.bool_):
        return "b"
    if isinstance(value, int | np.integer):
        return "i"
    if isinstance(value, float | np.floating):
        return "f"
    raise IntegrityError(f"metric {name!r} is not a number")


def _read_scalar(data: bytes | memoryview, kind: str, at: int) -> Scalar:
    value: Scalar = struct.unpack_from(_SCALARS[kind], data, at)[0]
    if kind == "b":
        if value not in {0, 1}:
            raise IntegrityError("a boolean value is neither 0 nor 1")
        return bool(value)
    return value


def _refuse_untruths(values: NDArray[Any]) -> None:
    """Refuse booleans other than 0 and 1, which would be second encodings of true."""
    if (values > 1).any():
        raise IntegrityError("a boolean value is neither 0 nor 1")


def _padded(length: int) -> int:
    return (length + 7) & ~7


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _layout_for(
    metrics: tuple[tuple[str, str], ...],
    arrays: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...],
    blobs: tuple[tuple[str, int], ...],
) -> PayloadLayout:
    """The layout of parts of these types and sizes; arrays of any byte order are sent as little-endian."""
    travelling = [(name, dtype.newbyteorder("<").str, shape) for name, dtype, shape in arrays]
    for name, kind, _ in travelling:
        if kind not in _DTYPES:
            raise IntegrityError(f"array {name!r} has a type that cannot be sent", hint="Send numbers or booleans")
    return _layout_of(metrics, tuple(travelling), blobs)


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _layout_of(
    metrics: tuple[tuple[str, str], ...],
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...],
    blobs: tuple[tuple[str, int], ...],
) -> PayloadLayout:
    parts: dict[str, list[list[Any]]] = {
        "a": [[name, kind, list(shape)] for name, kind, shape in arrays],
        "b": [[name, length] for name, length in blobs],
        "m": [[name, kind] for name, kind in metrics],
    }
    names = [part[0] for group in parts.values() for part in group]
    if len(set(names)) != len(names) or not all(_NAME.fullmatch(str(name)) for name in names):
        raise IntegrityError("the parts of a payload must have distinct names of plain characters")
    text = json.dumps(parts, separators=(",", ":"), ensure_ascii=True).encode()
    text = text.ljust(_padded(len(text)))
    if len(text) > _LARGEST_HEADER or len(names) > _MOST_PARTS:
        raise IntegrityError("a payload has too many parts")
    header = _PREFIX.pack(_MAGIC, _VERSION, len(text)) + text
    at = len(header)
    placed_metrics, placed_arrays, placed_blobs = [], [], []
    for name, kind in metrics:
        placed_metrics.append((name, kind, at))
        at += 8
    for name, dtype_name, shape in arrays:
        dtype = _DTYPES[dtype_name]
        placed_arrays.append((name, dtype, shape, at))
        at += _padded(dtype.itemsize * math.prod(shape))
    for name, length in blobs:
        placed_blobs.append((name, length, at))
        at += _padded(length)
    return PayloadLayout(header, tuple(placed_metrics), tuple(placed_arrays), tuple(placed_blobs), at)


def _read_layout(data: bytes | memoryview) -> PayloadLayout:
    if len(data) < _PREFIX.size:
        raise IntegrityError("a payload is cut short")
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise IntegrityError("these bytes are not a kohort payload")
    if version != _VERSION:
        raise IntegrityError(
            f"a received payload has format {version}, but this version of kohort reads format {_VERSION}"
        )
    if length > _LARGEST_HEADER or _PREFIX.size + length > len(data):
        raise IntegrityError("a payload's header is cut short")
    header = bytes(data[: _PREFIX.size + length])
    layout = _parse_header(header)
    if layout.size != len(data):
        raise IntegrityError("a payload's size is not what its header says")
    return layout


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _parse_header(header: bytes) -> PayloadLayout:
    try:
        parts = json.loads(header[_PREFIX.size :])
        metrics = tuple((str(name), str(kind)) for name, kind in parts["m"])
        arrays = tuple((str(name), str(kind), tuple(shape)) for name, kind, shape in parts["a"])
        blobs = tuple((str(name), length) for name, length in parts["b"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise IntegrityError("a payload's header is malformed") from error
    sizes = [length for _, length in blobs] + [axis for _, _, shape in arrays for axis in shape]
    if (
        any(type(size) is not int or not 0 <= size < 1 << 48 for size in sizes)
        or any(kind not in _SCALARS for _, kind in metrics)
        or any(kind not in _DTYPES or len(shape) > _MOST_AXES for _, kind, shape in arrays)
        # NumPy counts the axes beside an empty one, too: (0, 2^47, 2^47) holds nothing and is still too large for it.
        or any(math.prod(axis or 1 for axis in shape) >= 1 << 48 for _, _, shape in arrays)
    ):
        raise IntegrityError("a payload's header is malformed")
    layout = _layout_of(metrics, arrays, blobs)
    if layout.header != header:
        raise IntegrityError("a payload's header is not in canonical form")
    return layout


def _refuse_dirty_padding(data: bytes | memoryview, layout: PayloadLayout) -> None:
    """Refuse padding that is not zero: it would be a second encoding, and could hide data."""
    ends = [(at + dtype.itemsize * math.prod(shape)) for _, dtype, shape, at in layout.arrays]
    ends += [at + length for _, length, at in layout.blobs]
    for end in ends:
        if end % 8 and any(data[end : _padded(end)]):
            raise IntegrityError("a payload's padding is not zero")
