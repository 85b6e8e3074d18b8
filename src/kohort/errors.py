"""Errors a person can act on.

Every error says in one line what went wrong and what to do next, and carries the exit code of the command line.
No error ever holds the value of a cell: columns, counts and file names only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "ConfigError",
    "DataError",
    "IntegrityError",
    "KohortError",
    "RefusedError",
    "ResourceError",
    "SiteError",
    "counted",
    "nearest",
    "nearest_column",
]


class KohortError(Exception):
    """Base of every error kohort raises on purpose. `exit_code` is the exit status of the command line.

    Args:
        message: What went wrong, in one line without a final full stop. It never holds the value of a cell.
        hint: What to do next, such as the key to change; empty when there is nothing to suggest.
        code: The one word that a site may send about it (`kohort.privacy.codes`); by default one for its class.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class ConfigError(KohortError):
    """The command line or the plan is invalid."""

    exit_code = 2


class DataError(KohortError):
    """A table cannot be used as it is."""

    exit_code = 3


class RefusedError(KohortError):
    """A site's policy forbids the request, or the requested privacy cannot be met."""

    exit_code = 4


class SiteError(KohortError):
    """A site or the network failed, or too few sites are left."""

    exit_code = 5


class IntegrityError(KohortError):
    """Data failed an integrity check: a broken hash chain, an invalid signature, a malformed payload."""

    exit_code = 6


class ResourceError(KohortError):
    """The machine ran out of disk, memory or file handles."""

    exit_code = 7


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 row", "2,000 rows".

    Args:
        count: How many.
        noun: Of what, in the singular; the plural ends with an s.

    Returns:
        The words.
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def nearest(word: str, choices: Iterable[str]) -> str:
    """Suggest a correction for a misspelt name.

    Args:
        word: What was typed.
        choices: The valid names.

    Returns:
        "Did you mean ...?" with the closest valid name, or a list of all of them when none is close.
    """
    known = sorted(choices)
    return _close_match(word, known) or f"Valid: {', '.join(known)}"


def nearest_column(word: str, columns: Sequence[str], asked: Iterable[str]) -> str:
    """Suggest a correction for the name of a column.

    Where a table has none of the columns that are asked for, its first line may hold cells, which no error may show.

    Args:
        word: The name that is not there.
        columns: The names that the table's first line gives.
        asked: All names that are asked for.

    Returns:
        As `nearest`, but the list of all names only where at least one of them was asked for.
    """
    if any(name in columns for name in asked):
        return nearest(word, columns)
    unknown = "None of the columns that are named is there: check that the first line of the file names its columns"
    return _close_match(word, columns) or unknown


def _close_match(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else ""
