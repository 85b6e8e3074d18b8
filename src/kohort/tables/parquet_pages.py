"""Whether the lengths that a Parquet file declares agree with one another and with the file.

A native reader trusts them: a page that claims two thousand million values makes it ask for more memory than there is,
and the process ends without an exception. So footer and page headers are read here first, in Python, and compared: rows
of the file with those of its row groups, these with the values of each column, these with the values of its pages, and
every place and size with the file. No row is read, and no column is decompressed.

Guarantees: a sound file passes. What is not noticed here: damage inside a page, which readers notice themselves, and
damage in files whose footer is larger than LARGEST_FOOTER, which would take too long to walk.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["lengths_agree"]

MAGIC: Final = b"PAR1"
LARGEST_FOOTER: Final = 1 << 23
DEEPEST: Final = 16
HEADER_ROOM: Final = 1 << 22
# Some old writers leave the header of a dictionary page out of a column's size.
UNCOUNTED: Final = 128

# Fields of the format by their numbers (parquet.thrift).
ROWS, GROUPS = 3, 4
COLUMNS, GROUP_ROWS = 1, 3
CHUNK = 3
VALUES, UNCOMPRESSED, COMPRESSED, DATA_PAGE, DICTIONARY_PAGE = 5, 6, 7, 9, 11
PAGE_UNCOMPRESSED, PAGE_COMPRESSED = 2, 3
PAGES_OF_DATA, PAGE_OF_DICTIONARY = (5, 8), 7
PAGE_VALUES = 1


class _DamagedError(Exception):
    """The bytes are not what they claim to be."""


def lengths_agree(content: bytes | Path) -> bool:
    """Whether the declared lengths of a Parquet file agree.

    Args:
        content: The bytes of the file, or its path.

    Returns:
        False where the file is damaged; True where nothing is wrong with its lengths.

    Raises:
        OSError: The file cannot be opened.
    """
    if isinstance(content, bytes):
        return _agree(content)
    with content.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            return False  # an empty file
        with mapped:
            return _agree(mapped)


def _agree(octets: Any) -> bool:
    try:
        _check_file(octets)
    except (_DamagedError, IndexError, KeyError, TypeError, OverflowError):
        return False
    return True


def _check_file(octets: Any) -> None:
    size = len(octets)
    _require(size >= 12 and octets[:4] == MAGIC and octets[-4:] == MAGIC)
    length = int.from_bytes(octets[size - 8 : size - 4], "little")
    start = size - 8 - length
    _require(start >= 4)
    if length > LARGEST_FOOTER:
        return
    footer, _ = _struct(octets[start : size - 8], 0, 0)
    groups = footer.get(GROUPS, [])
    _require(footer[ROWS] == sum(group[GROUP_ROWS] for group in groups))
    for group in groups:
        _require(group[GROUP_ROWS] >= 0)
        for column in group[COLUMNS]:
            _check_chunk(octets, column[CHUNK], group[GROUP_ROWS], start)


def _check_chunk(octets: Any, chunk: dict[int, Any], rows: int, end_of_pages: int) -> None:
    """The pages of a column fill its bytes, and hold its values: one per row, or more where rows hold lists."""
    _require(chunk[VALUES] >= rows)
    place = min(chunk[DATA_PAGE], chunk.get(DICTIONARY_PAGE) or chunk[DATA_PAGE])
    _require(4 <= place <= place + chunk[COMPRESSED] <= end_of_pages)
    end = min(place + chunk[COMPRESSED] + UNCOUNTED, end_of_pages)
    values, uncompressed = 0, 0
    while place < end and values < chunk[VALUES]:
        header, used = _struct(octets[place : min(end, place + HEADER_ROOM)], 0, 0)
        _require(header[PAGE_UNCOMPRESSED] >= 0 <= header[PAGE_COMPRESSED])
        uncompressed += header[PAGE_UNCOMPRESSED]
        place += used + header[PAGE_COMPRESSED]
        if PAGE_OF_DICTIONARY in header:
            _require(0 <= header[PAGE_OF_DICTIONARY][PAGE_VALUES] <= max(header[PAGE_UNCOMPRESSED], 1))
        for kind in PAGES_OF_DATA:
            if kind in header:
                _require(header[kind][PAGE_VALUES] >= 0)
                values += header[kind][PAGE_VALUES]
        _require(place <= end)
    _require(values == chunk[VALUES] and uncompressed <= chunk[UNCOMPRESSED])


def _require(holds: bool) -> None:
    if not holds:
        raise _DamagedError


def _struct(octets: bytes, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """One structure of Thrift's compact protocol: its fields by number, and where it ends."""
    _require(depth < DEEPEST)
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = octets[place]
        place += 1
        if head == 0:
            return fields, place
        step = head >> 4
        if step:
            number += step
        else:
            number, place = _integer(octets, place)
        fields[number], place = _value(head & 15, octets, place, depth)


def _value(kind: int, octets: bytes, place: int, depth: int) -> tuple[Any, int]:
    if kind in _SIMPLE:
        return _SIMPLE[kind](octets, place)
    if kind == 12:
        return _struct(octets, place, depth + 1)
    if kind in (9, 10):
        return _list(octets, place, depth + 1)
    raise _DamagedError  # maps and unknown kinds: the format has none


def _list(octets: bytes, place: int, depth: int) -> tuple[list[Any], int]:
    _require(depth < DEEPEST)
    head = octets[place]
    count, kind = head >> 4, head & 15
    place += 1
    if count == 15:
        count, place = _unsigned(octets, place)
    _require(count <= len(octets) - place)  # each element takes a byte or more
    found = []
    for _ in range(count):
        element, place = _value(kind, octets, place, depth) if kind > 2 else (octets[place], place + 1)
        found.append(element)
    return found, place


def _unsigned(octets: bytes, place: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        octet = octets[place]
        place += 1
        number |= (octet & 127) << shift
        if octet < 128:
            return number, place
        shift += 7
        _require(shift < 64)


def _integer(octets: bytes, place: int) -> tuple[int, int]:
    number, place = _unsigned(octets, place)
    return (number >> 1) ^ -(number & 1), place


def _binary(octets: bytes, place: int) -> tuple[None, int]:
    length, place = _unsigned(octets, place)
    _require(place + length <= len(octets))
    return None, place + length


_SIMPLE: Final[dict[int, Callable[[bytes, int], tuple[Any, int]]]] = {
    1: lambda _, place: (True, place),
    2: lambda _, place: (False, place),
    3: lambda octets, place: (octets[place], place + 1),
    4: _integer,
    5: _integer,
    6: _integer,
    7: lambda _, place: (None, place + 8),
    8: _binary,
}
