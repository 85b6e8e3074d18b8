"""Sites exchange their books of openings when they set a session of secure sums up (`kohort.privacy.openings`).

Each site signs the digest of its book with its run key. The hub carries the books; it can neither change one nor leave
one out, because every member compares them with what the others signed. What a site hears it keeps.

What is learned: which sites were in which earlier totals, and how often a site's rows changed between them; no value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kohort.crypto.sums.scheme import NO_NOTE
from kohort.errors import IntegrityError
from kohort.privacy.openings import NO_BOOK, book_digest
from kohort.protocol.site import Site

__all__ = ["announced_book", "join_books", "note_of", "own_book", "receive_books"]

_SIZE = 4


def own_book(site: Site) -> bytes:
    """What a site tells of its book; nothing in a plan whose noise covers every difference.

    Args:
        site: The site.

    Returns:
        The book.
    """
    return site.openings.shared(site.data_version, _run_of(site)) if site.plan.keeps_book else NO_BOOK


def announced_book(site: Site, members: Sequence[str], notes: Sequence[bytes], data: bytes) -> bytes:
    """The book that a site announced when the session was set up, as the hub handed it back; it may have grown since.

    Args:
        site: The site.
        members: The members of the session.
        notes: What each of them signed.
        data: What `join_books` made at the hub.

    Returns:
        The book.

    Raises:
        IntegrityError: It is missing.
    """
    note = notes[members.index(site.name)]
    return NO_BOOK if note == NO_NOTE else _find({book_digest(book): book for book in _split(data)}, note)


def note_of(book: bytes) -> bytes:
    """The digest of a book that the site signs.

    Args:
        book: The book.

    Returns:
        Its digest; `NO_NOTE` where there is nothing to tell.
    """
    return NO_NOTE if book == NO_BOOK else book_digest(book)


def join_books(books: Iterable[bytes]) -> bytes:
    """The books of all members, each once.

    Args:
        books: One per member.

    Returns:
        What every member gets.
    """
    distinct = sorted({book for book in books if book != NO_BOOK})
    return b"".join(len(book).to_bytes(_SIZE, "little") + book for book in distinct)


def receive_books(site: Site, members: Sequence[str], notes: Sequence[bytes], data: bytes) -> dict[str, dict[str, int]]:
    """Keep what the other members tell.

    Args:
        site: The site.
        members: The members of the session.
        notes: What each of them signed.
        data: What `join_books` made at the hub.

    Returns:
        How often the rows of each member changed, by family.

    Raises:
        IntegrityError: A member's book is missing, or cannot be read.
    """
    books = {book_digest(book): book for book in _split(data)}
    batches: dict[str, dict[str, int]] = {}
    if not site.plan.keeps_book:
        return batches
    received: dict[bytes, dict[str, int]] = {NO_NOTE: {}}
    for note in dict.fromkeys(notes):
        if note != NO_NOTE:
            received[note] = site.openings.receive(_find(books, note), _run_of(site))
    for member, note in zip(members, notes, strict=True):
        for family, batch in received[note].items():
            batches.setdefault(family, {})[member] = batch
    return batches


def _run_of(site: Site) -> str:
    """Run and plan: a hub may give runs of two plans one name."""
    return f"{site.plan.run}:{site.plan.plan_hash}"


def _find(books: dict[bytes, bytes], note: bytes) -> bytes:
    book = books.get(note)
    if book is None:
        raise IntegrityError("a site's book of openings is missing, or is not the one that it signed")
    return book


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + _SIZE + int.from_bytes(data[at : at + _SIZE], "little")
        yield data[at + _SIZE : end]
        at = end
