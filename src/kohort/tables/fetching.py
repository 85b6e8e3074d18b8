"""The bytes of a table: a file, standard input or an open stream.

Guarantees: the ending is looked at before anything is read; a device, which may have no end, is not opened; and what is
larger than the memory that is free is an error, also where nobody knows its size before.
"""

from __future__ import annotations

import errno
import stat
import sys
from pathlib import Path
from typing import IO, Final, Literal

from kohort.errors import ConfigError, DataError
from kohort.files import OUT_OF_RESOURCES
from kohort.tables.memory import ARROW_HELD, LIBRARIES, TEXT_HELD, require_address_space, require_memory

__all__ = ["ENDINGS", "SMALLER", "Format", "fetch", "format_of"]

Format = Literal["csv", "tsv", "parquet", "arrow"]
ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
SMALLER: Final = (
    "Give fewer rows or columns, or more memory; check, gate and anonymize read large Parquet files in parts"
)


_CHUNK: Final = 1 << 24
"""Bytes that are read at once where nobody knows how many there are."""


def fetch(source: str | Path | IO[bytes]) -> tuple[bytes, str, Format]:
    """The bytes of a table.

    Args:
        source: A path (format by ending), an open binary stream, or `-` for CSV on standard input.

    Returns:
        The bytes, what errors call the table, and its format.

    Raises:
        DataError: There is no file, it is a folder or a device, or its ending is unknown.
        ResourceError: It is larger than the memory that is free.
    """
    if not isinstance(source, (str, Path)):
        return source.read(), "the stream", "csv"
    if str(source) == "-":
        return _read_all(sys.stdin.buffer, "standard input"), "standard input", "csv"
    path = Path(source)
    name = repr(str(source))
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise DataError(f"{name} is a folder", hint="Name a table inside it")
        chosen = format_of(path, DataError)
        if stat.S_ISCHR(found.st_mode):
            raise DataError(f"{name} is a device", hint="Name a file, or - for CSV on standard input")
        require_memory(found.st_size, name, hint=SMALLER)
        held = {"parquet": 1, "arrow": ARROW_HELD}.get(chosen, TEXT_HELD)
        require_address_space(found.st_size * held, name, reserved=LIBRARIES)
        with path.open("rb") as file:
            content = file.read() if stat.S_ISREG(found.st_mode) else _read_all(file, name)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"no file {name}", hint="Check the path") from None
    except OSError as problem:
        if problem.errno in {*OUT_OF_RESOURCES, errno.ENAMETOOLONG}:
            raise
        raise DataError(f"cannot open {name} ({type(problem).__name__})", hint="Check its permissions") from None
    return content, name, chosen


def _read_all(stream: IO[bytes], name: str) -> bytes:
    """All of a stream that may have no end, unless it does not fit into memory."""
    parts, size = [], 0
    while part := stream.read(_CHUNK):
        parts.append(part)
        size += len(part)
        require_memory(size + _CHUNK, name, hint=SMALLER)  # the parts are joined in the end
    return b"".join(parts)


def format_of(path: Path, error: type[ConfigError] | type[DataError]) -> Format:
    """The format that a path's ending says.

    Args:
        path: The path.
        error: What is raised where the ending is unknown.

    Returns:
        The format.

    Raises:
        ConfigError: The ending is unknown, and that is the error asked for.
        DataError: The same.
    """
    found = ENDINGS.get(path.suffix.lower())
    if found is None:
        raise error(f"{str(path)!r} has no known ending", hint=f"Use one of {', '.join(ENDINGS)}")
    return found
