"""Values planted in the sites' tables, and a search for them in whatever a hub has on its disk or was handed.

A text is looked for as UTF-8. A number is looked for as text, in the 8-byte forms of integers and floats of both byte
orders, and as the share of its declared bounds that a model's input is. Databases, Parquet files and archives are
opened: a value could lie across two pages, or be compressed. Arrays in messages are compared element by element, where
the 4-byte forms count, too.
"""

from __future__ import annotations

import gzip
import io
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import IntegrityError
from kohort.protocol.wire import Payload, decode
from kohort.transport.messages import SIGNATURE, split_messages

TAX, WEALTH = (0.0, 1e9), (0.0, 1e6)
"""The declared bounds of the two columns with numbers."""


@dataclass(frozen=True)
class Canaries:
    """What to look for."""

    texts: frozenset[str]
    numbers: dict[float, tuple[float, float]] = field(repr=False)
    """Every number with the bounds its column declares."""

    @property
    def count(self) -> int:
        """How many values were planted."""
        return len(self.texts) + len(self.numbers)

    def patterns(self) -> dict[bytes, str]:
        """The byte strings that would give a canary away, each with its canary."""
        found = {text.encode(): text for text in self.texts}
        for number, (low, high) in self.numbers.items():
            name = repr(number)
            share = (number - low) / (high - low)
            forms = [struct.pack(order + "d", value) for order in "<>" for value in (number, share)]
            forms += [str(share)[:12].encode(), name.removesuffix(".0").encode()]
            if number.is_integer():
                forms += [struct.pack(order + "q", int(number)) for order in "<>"]
            found |= dict.fromkeys(forms, name)
        return found

    def in_bytes(self, content: bytes, patterns: dict[bytes, str] | None = None) -> set[str]:
        """The canaries that stand in these bytes."""
        return {name for form, name in (patterns or self.patterns()).items() if form in content}

    def in_array(self, values: NDArray[Any]) -> set[str]:
        """The canaries among an array's elements, also as 4-byte floats."""
        wanted = {value: repr(number) for number, bounds in self.numbers.items() for value in _values(number, *bounds)}
        known = np.asarray(list(wanted), dtype=np.float64)
        if values.dtype.kind not in "fiu":
            return set()
        if values.dtype == np.float32:
            hits = np.isin(known.astype(np.float32), values)
        else:
            hits = np.isin(known, values.astype(np.float64))
        return {wanted[value] for value in known[hits].tolist()}


def _values(number: float, low: float, high: float) -> tuple[float, float]:
    return number, (number - low) / (high - low)


def plant(sites: int, *, rows: int = 120, marked: int = 16) -> tuple[dict[str, pl.DataFrame], Canaries]:
    """One table a site. The first `marked` rows hold a canary in every column but the target and the age.

    Their quasi-identifiers are theirs alone, so no gate lets these rows out; all other rows are of a few kinds.
    """
    tables: dict[str, pl.DataFrame] = {}
    texts: set[str] = set()
    numbers: dict[float, tuple[float, float]] = {}
    for site in range(sites):
        random = np.random.default_rng(100 + site)
        names = {
            column: [f"canary-{column}-{site}-{mark:016x}" for mark in random.integers(0, 2**62, rows)]
            for column in ("person", "village", "note")
        }
        is_marked = np.arange(rows) < marked
        tax = np.where(is_marked, random.integers(100_000_007, 999_999_937, rows), random.choice([20000, 40000], rows))
        wealth = np.where(is_marked, random.uniform(1e5, 9e5, rows).round(7), random.choice([1000.0, 5000.0], rows))
        age = random.integers(20, 80, rows)
        tables[f"site-{site:02d}"] = pl.DataFrame(
            {
                "person": names["person"],
                "village": np.where(is_marked, names["village"], random.choice(["coast", "hills"], rows)),
                "tax": tax,
                "age": age,
                "note": np.where(is_marked, names["note"], "plain"),
                "wealth": wealth,
                "outcome": np.where(age + random.normal(0, 8, rows) > 50, "ill", "well"),
            }
        )
        texts |= {*names["person"], *names["village"][:marked], *names["note"][:marked]}
        numbers |= dict.fromkeys(tax[:marked].astype(float).tolist(), TAX)
        numbers |= dict.fromkeys(wealth[:marked].tolist(), WEALTH)
    return tables, Canaries(frozenset(texts), numbers)


def search(places: Iterable[Path], canaries: Canaries) -> dict[str, set[str]]:
    """The canaries in files and folders, by file."""
    patterns = canaries.patterns()
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place]) if file.is_file()]
    found = {}
    for file in files:
        here = set().union(*(canaries.in_bytes(part, patterns) for part in opened(file.read_bytes(), file)))
        if here:
            found[str(file)] = here
    return found


def search_messages(messages: Sequence[bytes], canaries: Canaries) -> set[str]:
    """The canaries in what the hub was handed, byte by byte and number by number."""
    patterns = canaries.patterns()
    found: set[str] = set()
    for message in messages:
        found |= canaries.in_bytes(message, patterns)
        for single in split_messages(message):
            for array in arrays_in(single[:-SIGNATURE]):
                found |= canaries.in_array(array)
    return found


def arrays_in(content: bytes) -> Iterator[NDArray[Any]]:
    """Every array and number of a payload and of the payloads it holds."""
    try:
        payload: Payload = decode(content)
    except IntegrityError:
        return
    yield from payload.arrays.values()
    yield np.asarray([float(value) for value in payload.metrics.values()])
    for blob in payload.blobs.values():
        yield from arrays_in(blob)


def opened(content: bytes, file: Path) -> Iterator[bytes]:
    """The bytes of a file, and what they hold if they are a database, a table, an archive or compressed."""
    yield content
    if content.startswith(b"SQLite format 3"):
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
            for (table,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
                for row in database.execute(f'select * from "{table}"'):  # noqa: S608 - the name is the database's own
                    for cell in row:
                        yield from unpacked(cell if isinstance(cell, bytes) else str(cell).encode())
    elif content.startswith(b"PAR1"):
        yield pl.read_parquet(io.BytesIO(content)).write_csv().encode()
    else:
        yield from unpacked(content)


def unpacked(content: bytes) -> Iterator[bytes]:
    """The bytes themselves, and what they hold compressed."""
    yield content
    if content.startswith(b"\x1f\x8b"):
        yield gzip.decompress(content)
    elif content.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                yield archive.read(name)
    elif content[:1] == b"\x78":
        try:
            yield zlib.decompress(content)
        except zlib.error:
            return
