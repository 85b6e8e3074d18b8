"""The book of openings: what one opened total hides, two can show.

Counts, sums and products of the same rows are one family; totals of training are another. A participant notes for every
opened total of a family which parts were in it, over all runs and plans. A part is a site with a batch of rows: a site
whose rows changed adds a part, it never starts a new book. A participant takes part in a further total only if every
atom (the parts that were in exactly the same openings) spans at least max(3, colluders + 2) sites. Pairwise differences
are not enough: totals over all ten sites, then without {1, 2, 3}, {3, 4, 5} and {1, 2, 4, 5}, give one site's numbers.

Openings can be chosen so that no site was in all of them. So the sites of a session exchange their books, signed with
their keys, before they add anything, and each keeps what it received. Two totals that share no site would still be
hidden from each other: all ten, then {1, 2, 3, 4}, then {5, 6, 7, 8, 9} leave site 10 alone. Hence a total that takes
part of an atom takes more than (its sites + colluders) / 2 of them: of any two such totals, an honest site is in both.
A key-holder is in all openings, so under encryption its own book is enough. But it knows nothing of totals by masks,
and sites do not see whom it left out of a total. So the totals of a family are opened by masks or by a key-holder, at
one site never by both: all ten by masks, then nine of ten by a key-holder, would leave the tenth.

Books are compared when a session begins. A hub that begins three sessions before anything is open, and then opens one
after the other, would show each of them to books that know nothing of the others. So a site takes part in a total only
while its book is the one that it announced in that session, but for totals over the same sites.

Plans with a budget need no book: their noise covers every difference.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from kohort.errors import IntegrityError, RefusedError
from kohort.files import disk_errors, write_whole

__all__ = ["NO_BOOK", "OpeningBook", "book_digest", "smallest_atom"]

_HEARD = "heard:"
_BY_SITES, _BY_KEY_HOLDER = "sites", "key-holder"
"""Who knows which sites are in a total: those that confirmed the list, or the key-holder that opened it."""
NO_BOOK = b""
"""The book of a participant that took part in nothing."""
_Family = frozenset[frozenset[str]]


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
    return min(map(_sites, _atoms(tuple(openings))), key=len, default=frozenset[str]())


@lru_cache(maxsize=8)
def _atoms(openings: tuple[frozenset[str], ...]) -> tuple[frozenset[str], ...]:
    """The parts that were in exactly the same openings; simulated sites of one process find them once."""
    atoms: dict[tuple[bool, ...], set[str]] = {}
    for part in sorted(frozenset[str]().union(*openings)):
        atoms.setdefault(tuple(part in opening for opening in openings), set()).add(part)
    return tuple(frozenset(atom) for atom in atoms.values())


@lru_cache(maxsize=64)
def _sites(parts: frozenset[str]) -> frozenset[str]:
    return frozenset(part.partition("#")[0] for part in parts)


@lru_cache(maxsize=8)
def _parts(sites: tuple[str, ...], batches: frozenset[tuple[str, int]]) -> frozenset[str]:
    """All batches of rows of these sites; the first is named like its site. Simulated sites of one process share it."""
    last = dict(batches)
    return frozenset(f"{site}#{batch}" if batch else site for site in sites for batch in range(last.get(site, 0) + 1))


def book_digest(book: bytes) -> bytes:
    """What a site signs of its book.

    Args:
        book: As `OpeningBook.shared` gives it.

    Returns:
        A hash of 32 bytes.
    """
    return hashlib.blake2b(book, digest_size=32, person=b"kohort-openings").digest()


class OpeningBook:
    """The openings that one participant took part in or heard of; append-only.

    Args:
        path: The file that keeps it over all runs; None keeps it in memory, for simulation.

    Raises:
        IntegrityError: The file was damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._openings: dict[str, list[frozenset[str]]] = {}
        self._versions: dict[str, list[str]] = {}
        self._known: dict[tuple[str, str], frozenset[str]] = {}
        self._first: dict[tuple[str, frozenset[str]], str] = {}
        """The run, with its plan, in which an opening was noted first. A hub chooses the names of runs."""
        self._witnesses: dict[str, set[str]] = {}
        """Who knows which sites were in the totals of a family; books of older versions do not say."""
        if path is not None and path.exists():
            with disk_errors(path):
                lines = path.read_bytes().splitlines()
            for line in lines:
                self._note(*_read(line))

    def batch(self, family: str, version: str) -> int:
        """How often the participant's rows changed between openings of a family.

        Args:
            family: What belongs together.
            version: The version of its rows.

        Returns:
            The number of that version, from 0.
        """
        versions = self._versions.get(family, [])
        return versions.index(version) if version in versions else len(versions)

    def shared(self, version: str, run: str = "") -> bytes:
        """What the participant tells the others of a session: its openings, and the batch its rows are.

        Args:
            version: The version of its rows.
            run: The run of the session, with its plan ("run:plan"). What was noted in it is left out: a restarted site
                tells the same.

        Returns:
            The book as bytes; `NO_BOOK` when there is nothing to tell.
        """
        earlier = {
            family: sorted(sorted(parts) for parts in openings if not run or self._first[family, parts] != run)
            for family, openings in sorted(self._openings.items())
        }
        shown = {family: [self.batch(family, version), openings] for family, openings in earlier.items() if openings}
        return json.dumps(shown, separators=(",", ":")).encode() if shown else NO_BOOK

    def receive(self, book: bytes, run: str = "") -> dict[str, int]:
        """Keep what another participant tells.

        Args:
            book: What its `shared` gave.
            run: The run of the session, with its plan.

        Returns:
            Its batch, by family.

        Raises:
            IntegrityError: It cannot be read.
        """
        received = _read_book(book)
        for family, (_, openings) in received.items():
            known = frozenset(self._openings.get(family, ()))
            for parts in sorted(openings - known, key=sorted):
                self._append(family, _HEARD + run, parts, "")
                self._note(family, _HEARD + run, parts, "")
        return {family: batch for family, (batch, _) in received.items()}

    def require_one_witness(self, family: str, *, key_holder: bool) -> None:
        """Refuse a total before anything of it leaves, where earlier ones were opened in the other way.

        Args:
            family: What belongs together.
            key_holder: Whether a key-holder opens it.

        Raises:
            RefusedError: Nobody would know of all totals of these rows.
        """
        by, before = ("a key-holder", "masks") if key_holder else ("masks", "a key-holder")
        if self._witnesses.get(family, set()) - {_witness(key_holder)}:
            raise RefusedError(
                f"totals of these rows were opened by {before} before; those by {by} would be in another book",
                hint="Keep to the method.secure.sum of earlier plans, or set a budget",
            )

    def admit(
        self,
        family: str,
        name: str,
        sites: Sequence[str],
        *,
        version: str,
        least: int,
        site: str = "",
        batches: Mapping[str, int] | None = None,
        colluders: int = 1,
        announced: bytes = NO_BOOK,
    ) -> None:
        """Note an opening before the site's share of it leaves, or refuse it.

        Args:
            family: What belongs together: statistics of the same rows.
            name: Which opening it is: run, plan, task and round. The same one may come again, over the same sites.
            sites: The sites in the total.
            version: The version of the participant's own rows; empty for a participant without rows.
            least: The fewest sites of an atom.
            site: The participant's own name; empty for one without rows.
            batches: How often the rows of other sites changed, as they said in this session; None where a key-holder,
                who is in all openings, keeps a book, and nobody else has to know of all.
            colluders: How many sites may collude with the hub.
            announced: The book that the participant announced in this session; not read where a key-holder keeps one.

        Raises:
            RefusedError: Together with earlier openings it would show too few sites, or the others of the session do
                not know of all of them.
        """
        own = self.batch(family, version)
        changed = {**(batches or {}), site: own}  # of batches that it does not know, the first
        opening = _parts(tuple(sites), frozenset(item for item in changed.items() if item[1]))
        known = self._known.get((family, name))
        if known is not None and known != opening:
            raise RefusedError("the same total was noted over other sites before", hint="Begin a new run")
        if known is not None:
            return
        earlier = self._openings.get(family, [])
        if own and site not in sites:
            raise _changed()
        _refuse_few(earlier, opening, least, changed=bool(own and opening not in earlier))
        if batches is not None:
            self._refuse_unannounced(family, name, opening, announced)
            _refuse_minorities(earlier, opening, colluders)
        witness = _witness(batches is None)
        self._append(family, name, opening, version, witness)
        self._note(family, name, opening, version, witness)

    def _refuse_unannounced(self, family: str, name: str, opening: frozenset[str], announced: bytes) -> None:
        """Refuse if totals were opened that the announced book does not list."""
        known = _read_book(announced).get(family, (0, frozenset[frozenset[str]]()))[1] | {opening}
        if any(
            parts not in known for parts in self._openings.get(family, ()) if self._first[family, parts] != _run(name)
        ):
            raise RefusedError(
                "other totals of these rows were opened after the sites of this sum had compared their books",
                hint="Begin the run again when the other one has ended, or set a budget",
            )

    def _note(self, family: str, name: str, parts: frozenset[str], version: str, witness: str = "") -> None:
        known = self._openings.setdefault(family, [])
        if parts not in known:
            known.append(parts)
            self._first[family, parts] = _run(name)
        if name.startswith(_HEARD):
            return
        self._known[family, name] = parts
        self._witnesses.setdefault(family, set()).update({witness} - {""})
        versions = self._versions.setdefault(family, [])
        if version not in versions:
            versions.append(version)

    def _append(self, family: str, name: str, sites: frozenset[str], version: str, witness: str = "") -> None:
        if self._path is None:
            return
        known = [witness] if witness else []
        line = json.dumps([family, name, sorted(sites), version, *known], separators=(",", ":"))
        with disk_errors(self._path):
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "wb", buffering=0) as file:
                write_whole(file, line.encode() + b"\n")
                os.fsync(file.fileno())


def _refuse_few(earlier: Sequence[frozenset[str]], opening: frozenset[str], least: int, *, changed: bool) -> None:
    """Refuse an opening after which some atom spans too few sites."""
    atom = smallest_atom([*earlier, opening])
    if len(atom) >= least:
        return
    if changed:
        raise _changed()
    raise RefusedError(
        f"together with earlier totals this one would show {len(atom)} sites: {', '.join(sorted(atom))}",
        hint="Wait for the missing sites, let a larger group leave, or set a budget",
    )


def _changed() -> RefusedError:
    return RefusedError(
        "rows here changed since an earlier total was opened, and the difference of two totals would show them",
        hint="Let new rows take part as a batch with those of other sites, or set a budget",
    )


def _refuse_minorities(earlier: Sequence[frozenset[str]], opening: frozenset[str], colluders: int) -> None:
    """Refuse an opening of a minority of an atom's sites: a second opening of the others could stay unknown to it."""
    if opening in earlier:
        return
    for atom in _atoms(tuple(earlier)):
        inside = atom & opening
        few, all_of_it = len(_sites(inside)), len(_sites(atom))
        if inside and inside != atom and 2 * few <= all_of_it + colluders:
            raise RefusedError(
                f"this total takes {few} of {all_of_it} sites that were added up together before, and "
                "another one over the others would be hidden from them",
                hint="Wait for the missing sites, let a smaller group leave, or set a budget",
            )


def _run(name: str) -> str:
    """The run and the plan in an opening's name."""
    return ":".join(name.removeprefix(_HEARD).split(":")[:2])


def _witness(key_holder: bool) -> str:
    return _BY_KEY_HOLDER if key_holder else _BY_SITES


def _read(line: bytes) -> tuple[str, str, frozenset[str], str, str]:
    try:
        family, name, sites, version, *witness = json.loads(line)
        return str(family), str(name), frozenset(map(str, sites)), str(version), str(*witness)
    except (ValueError, TypeError) as error:
        raise IntegrityError(
            "the book of openings was damaged", hint="Restore the site's folder; without it no total is opened"
        ) from error


@lru_cache(maxsize=64)
def _read_book(book: bytes) -> dict[str, tuple[int, _Family]]:
    """A book that a site sent; simulated sites of one process read each once."""
    if book == NO_BOOK:
        return {}
    try:
        return {
            str(family): (_batch(batch), frozenset(frozenset(map(str, parts)) for parts in openings))
            for family, (batch, openings) in json.loads(book).items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError("a site's book of openings cannot be read") from error


def _batch(number: object) -> int:
    if not isinstance(number, int) or not 0 <= number < _MOST_BATCHES:
        raise ValueError("no batch")
    return number


_MOST_BATCHES = 10_000
"""Openings list every batch of a site's rows."""
