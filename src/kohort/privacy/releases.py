"""The release account: which persons were released together, so that two releases do not show more than each alone.

k-anonymity does not compose. Two releases of the same persons in crossing classes put a person into the intersection
of two classes, which may hold nobody else. So a site keeps, over all runs, whom it released in which class, as keyed
digests. A further release of the same persons is admitted only if every class of an earlier one lies in one of its
classes as a whole: it then says nothing of them that the earlier one did not. Whoever has both can also take the
earlier rows out of a class: rows that were added to it since are then alone, and must meet the rule by themselves.

Guarantee: after any sequence of admitted releases, rows that shared a class of the first release they were in cannot
be told apart by the classes of all releases together; of rows that joined earlier ones in a class, as many as the rule
asks for joined at once; and no person is shown again in another row.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import IntegrityError, RefusedError
from kohort.files import disk_errors, write_whole

__all__ = ["ReleaseAccount", "Unit", "units_of"]

_DIGEST = 12


class Unit(NamedTuple):
    """A released row: its own text, equal for the same row in another release, and that of the person it is about."""

    row: str
    person: str


@dataclass(frozen=True, eq=False)
class _Past:
    """An admitted release: the class of each row by its digest, and the digests of the persons."""

    name: str
    class_of: dict[str, int]
    persons: frozenset[str]

    @classmethod
    def of(cls, name: str, classes: Sequence[Sequence[Sequence[str]]]) -> _Past:
        found = {row: label for label, group in enumerate(classes) for row, _ in group}
        return cls(name, found, frozenset(person for group in classes for _, person in group))


class ReleaseAccount:
    """The releases of one holder of rows; append-only.

    Args:
        path: The file that keeps it, made if it is not there; None keeps it in memory, for simulation.

    Raises:
        IntegrityError: The file was damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._past: list[_Past] = []
        key = os.urandom(32)
        self._keyed = _keyed(key)
        if path is None:
            return
        if not path.exists():
            self._append({"key": key.hex()})
            return
        with disk_errors(path):
            lines = path.read_bytes().splitlines()
        try:
            self._keyed = _keyed(bytes.fromhex(json.loads(lines[0])["key"]))
            for line in lines[1:]:
                read = json.loads(line)
                self._past.append(_Past.of(read["name"], read["classes"]))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise IntegrityError(
                "the account of releases was damaged", hint="Restore it: without it nothing more can be released"
            ) from error

    def admit(
        self,
        name: str,
        units: Sequence[Unit],
        classes: NDArray[np.int64],
        *,
        meets: Callable[[NDArray[np.int64]], bool],
        overlap: bool = False,
    ) -> None:
        """Note a release before it leaves, or refuse it.

        Args:
            name: Which release it is. The same one may come again, with the same classes.
            units: Each released row, as `units_of` tells it.
            classes: The class of each released row.
            meets: Whether released rows, by their places, would be a class that meets the rule of the release.
            overlap: Whether a policy allows what crosses earlier releases.

        Raises:
            RefusedError: Together with an earlier release it would tell persons of one class apart.
        """
        groups: dict[int, list[tuple[str, str]]] = {}
        places: dict[int, list[int]] = {}
        for place, (unit, label) in enumerate(zip(units, classes.tolist(), strict=True)):
            groups.setdefault(label, []).append((self._digest("row", unit.row), self._digest("person", unit.person)))
            places.setdefault(label, []).append(place)
        listed = sorted(sorted(group) for group in groups.values())
        new = _Past.of(name, listed)
        known = next((past for past in self._past if past.name == name), None)
        if known is not None:
            if known.class_of != new.class_of:
                raise RefusedError("another release was noted under the same name", hint="Begin a new run")
            return
        crossed = 0 if overlap else sum(_crossing(past, new, listed) for past in self._past)
        if crossed:
            raise RefusedError(
                f"together with an earlier release, {crossed:,} of its classes would be split or shown again with other"
                " rows, which isolates persons",
                hint="Release unions of the earlier classes; a site's policy can allow it by overlapping_releases",
            )
        alone = 0 if overlap else self._alone(groups, places, meets)
        if alone:
            raise RefusedError(
                f"rows were added since an earlier release to {alone:,} of its classes, and do not meet the rule by"
                " themselves: both releases together show them",
                hint="Leave these rows out until more were added; a site's policy can allow it by overlapping_releases",
            )
        self._append({"name": name, "classes": listed})
        self._past.append(new)

    def released(self, units: Sequence[Unit], *, apart_from: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which rows were released before, and which are about a person of whom a row was.

        Args:
            units: Rows, as `units_of` tells them.
            apart_from: The name of a release that is not looked at: the one that is being made, perhaps again.

        Returns:
            Both, by row.
        """
        others = [past for past in self._past if past.name != apart_from]
        rows = set().union(*(past.class_of for past in others))
        persons = set().union(*(past.persons for past in others))
        return (
            np.array([self._digest("row", unit.row) in rows for unit in units], np.bool_),
            np.array([self._digest("person", unit.person) in persons for unit in units], np.bool_),
        )

    def _alone(
        self,
        groups: Mapping[int, Sequence[tuple[str, str]]],
        places: Mapping[int, Sequence[int]],
        meets: Callable[[NDArray[np.int64]], bool],
    ) -> int:
        """Classes with rows of an earlier release and with others, which do not meet the rule by themselves."""
        shown = set().union(*(past.class_of for past in self._past))
        found = 0
        for label, group in groups.items():
            added = [place for place, (row, _) in zip(places[label], group, strict=True) if row not in shown]
            found += 0 < len(added) < len(group) and not meets(np.array(added, np.int64))
        return found

    def with_person(self, person: str) -> tuple[str, ...]:
        """Names of the releases that a person is in.

        Args:
            person: The person's key, as `units_of` tells it.
        """
        digest = self._digest("person", person)
        return tuple(past.name for past in self._past if digest in past.persons)

    def _digest(self, what: str, text: str) -> str:
        state = self._keyed.copy()  # a copy takes less time than a new state, and a release needs two per row
        state.update(f"{what}:{text}".encode())
        return state.hexdigest()

    def _append(self, line: dict[str, object]) -> None:
        if self._path is None:
            return
        with disk_errors(self._path):
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "wb", buffering=0) as file:
                write_whole(file, json.dumps(line, separators=(",", ":")).encode() + b"\n")
                os.fsync(file.fileno())


def _keyed(key: bytes) -> hashlib.blake2b:
    """The state that every digest begins with."""
    return hashlib.blake2b(key=key, digest_size=_DIGEST)


def _crossing(past: _Past, new: _Past, listed: Sequence[Sequence[tuple[str, str]]]) -> int:
    """Classes of the earlier release that the new one splits, and classes of the new one that show an earlier person in
    another row."""
    homes: dict[int, set[int | None]] = {}
    for row, label in past.class_of.items():
        homes.setdefault(label, set()).add(new.class_of.get(row))
    split = sum(len(found) > 1 for found in homes.values())
    again = sum(any(person in past.persons and row not in past.class_of for row, person in group) for group in listed)
    return split + again


def units_of(frame: pl.DataFrame, person: str | None) -> list[Unit]:
    """What a release account knows each row by.

    Args:
        frame: The rows as they are, before they are generalised, with all their columns. Where a table is released in
            batches, the whole table: rows that are equal are then the same in every batch.
        person: The column that says whom a row is about; None where every row is its own person.

    Returns:
        One entry per row. Equal rows are told apart by their order.
    """
    texts = frame.write_ndjson().splitlines()
    seen: dict[str, int] = {}
    rows = []
    for text in texts:
        seen[text] = number = seen.get(text, 0) + 1
        rows.append(f"{number}:{text}")
    if person is None:
        return [Unit(row, row) for row in rows]
    return [Unit(row, str(who)) for row, who in zip(rows, frame[person].to_list(), strict=True)]
