"""The book of openings: what one opened total hides, two can show.

Counts, sums and products of the same rows are one family. A participant notes for every opened total of a family which
sites were in it, over all runs and plans. It takes part in a further one only if every atom (the sites that were in
exactly the same openings) spans at least max(3, colluders + 2) sites. Pairwise differences are not enough: totals over
all ten sites, then without {1, 2, 3}, {3, 4, 5} and {1, 2, 4, 5}, give one site's numbers.

A site whose rows changed since an opening would be an atom by itself: the difference of the two totals is its change.
It refuses, whoever else takes part. Plans with a budget need no book: their noise covers every difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from kohort.errors import IntegrityError, RefusedError
from kohort.files import disk_errors, write_whole

__all__ = ["OpeningBook", "smallest_atom"]


def smallest_atom(openings: Iterable[frozenset[str]]) -> frozenset[str]:
    """The smallest set of sites that were in exactly the same openings.

    Args:
        openings: The sites of each opened total.

    Returns:
        The sites of that atom; empty when nothing was opened.

    Example:
        >>> sorted(smallest_atom([frozenset("abcde"), frozenset("abcd")]))
        ['e']
    """
    atoms: dict[tuple[bool, ...], set[str]] = {}
    listed = list(openings)
    for site in sorted(frozenset[str]().union(*listed)):
        atoms.setdefault(tuple(site in opening for opening in listed), set()).add(site)
    smallest = min(map(frozenset, atoms.values()), key=len, default=frozenset[str]())
    return frozenset(smallest)


class OpeningBook:
    """The openings that one participant took part in; append-only.

    Args:
        path: The file that keeps it over all runs; None keeps it in memory, for simulation.

    Raises:
        IntegrityError: The file was damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._openings: dict[str, list[frozenset[str]]] = {}
        self._versions: dict[str, str] = {}
        self._known: dict[tuple[str, str], frozenset[str]] = {}
        if path is not None and path.exists():
            with disk_errors(path):
                lines = path.read_bytes().splitlines()
            for line in lines:
                self._note(*_read(line))

    def admit(self, family: str, name: str, sites: Sequence[str], *, version: str, least: int) -> None:
        """Note an opening before the site's share of it leaves, or refuse it.

        Args:
            family: What belongs together: statistics of the same rows.
            name: Which opening it is: run, plan, task and round. The same one may come again, over the same sites.
            sites: The sites in the total.
            version: The version of the participant's own rows; empty for a participant without rows.
            least: The fewest sites of an atom.

        Raises:
            RefusedError: Together with earlier openings it would show too few sites.
        """
        opening = frozenset(sites)
        known = self._known.get((family, name))
        if known is not None and known != opening:
            raise RefusedError("the same total was noted over other sites before", hint="Begin a new run")
        if known is not None:
            return
        if self._versions.get(family, version) != version:
            raise RefusedError(
                "rows here changed since an earlier total was opened, and the difference of two totals would show them",
                hint="Let new rows take part as a batch with those of other sites, or set a budget",
            )
        earlier = self._openings.get(family, [])
        atom = smallest_atom([*earlier, opening])
        if len(atom) < least:
            raise RefusedError(
                f"together with earlier totals this one would show {len(atom)} sites: {', '.join(sorted(atom))}",
                hint="Wait for the missing sites, let a larger group leave, or set a budget",
            )
        self._append(family, name, opening, version)
        self._note(family, name, opening, version)

    def _note(self, family: str, name: str, sites: frozenset[str], version: str) -> None:
        self._known[family, name] = sites
        known = self._openings.setdefault(family, [])
        if sites not in known:
            known.append(sites)
        self._versions[family] = version

    def _append(self, family: str, name: str, sites: frozenset[str], version: str) -> None:
        if self._path is None:
            return
        line = json.dumps([family, name, sorted(sites), version], separators=(",", ":"))
        with disk_errors(self._path):
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "wb", buffering=0) as file:
                write_whole(file, line.encode() + b"\n")
                os.fsync(file.fileno())


def _read(line: bytes) -> tuple[str, str, frozenset[str], str]:
    try:
        family, name, sites, version = json.loads(line)
        return str(family), str(name), frozenset(map(str, sites)), str(version)
    except (ValueError, TypeError) as error:
        raise IntegrityError(
            "the book of openings was damaged", hint="Restore the site's folder; without it no total is opened"
        ) from error
