"""The key-holder's book: one context and one opening for each sum, also after a restart; a failed check ends a run."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from kohort.crypto.sums.key_book import KeyBook, SumName
from kohort.errors import IntegrityError, RefusedError

SUM = SumName("run", "plan:task", 0)
HERE, THERE = bytes(32), b"\1" * 32


@pytest.fixture(params=["memory", "file", "restarted"])
def book(request: pytest.FixtureRequest, tmp_path: Path) -> KeyBook:
    """A book in memory, in a file, or in a file that is read anew after every line."""
    path = None if request.param == "memory" else tmp_path / "folder" / "openings"
    if request.param != "restarted":
        return KeyBook(path)

    class Restarted(KeyBook):
        def _append(self, *words: str) -> None:
            super()._append(*words)
            self.__init__(path)  # type: ignore[misc]

    return Restarted(path)


def test_a_sum_is_offered_for_one_context_and_opened_once(book: KeyBook) -> None:
    book.offer(SUM, HERE)
    book.offer(SUM, HERE)
    with pytest.raises(RefusedError, match="over other sites, numbers or public inputs"):
        book.offer(SUM, THERE)
    book.open(SUM)
    for again in (HERE, THERE):
        with pytest.raises(RefusedError, match="opened already"):
            book.offer(SUM, again)
    with pytest.raises(RefusedError, match="opened already"):
        book.open(SUM)
    for other in (SUM._replace(round=1), SUM._replace(request="plan:other"), SUM._replace(run="other")):
        book.offer(other, THERE)
        book.open(other)


def test_nothing_of_a_run_is_opened_after_a_failed_check(book: KeyBook) -> None:
    book.offer(SUM, HERE)
    book.end("run")
    for name in (SUM, SUM._replace(round=1)):
        with pytest.raises(RefusedError, match="failed in this run"):
            book.offer(name, HERE)
        with pytest.raises(RefusedError, match="failed in this run"):
            book.open(name)
    book.offer(SUM._replace(run="next"), HERE)


def test_a_line_is_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flushed = tmp_path / "openings", []
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append(path.read_bytes()))
    book = KeyBook(path)
    book.offer(SUM, HERE)
    book.open(SUM)
    assert [data.count(b"\n") for data in flushed] == [1, 2]
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"run" not in path.read_bytes()

    def fails(_: int) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(Exception, match="cannot write"):
        book.open(SUM._replace(round=1))


def test_a_line_cut_short_by_a_crash_is_dropped_and_any_other_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "openings"
    book = KeyBook(path)
    book.offer(SUM, HERE)
    book.open(SUM)
    whole = path.read_bytes()
    path.write_bytes(whole + b"open 00")
    again = KeyBook(path)
    again.open(SUM._replace(round=1))
    assert path.read_bytes().startswith(whole)
    with pytest.raises(RefusedError, match="opened already"):
        KeyBook(path).open(SUM)
    for damaged in (whole.replace(b"open", b"oped"), whole[3:], whole + b"\n", whole.upper()):
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match="book was altered"):
            KeyBook(path)


def test_the_hashes_in_a_book_are_over_framed_texts(tmp_path: Path) -> None:
    """A later version must read the books of an earlier one."""
    made = KeyBook(tmp_path / "book")
    made.offer(SUM, HERE)
    framed = b"".join(len(text).to_bytes(8, "little") + text for text in (b"run", b"plan:task", b"0"))
    named = hashlib.blake2b(framed, digest_size=32, person=b"kohort-book").hexdigest()
    assert named in (tmp_path / "book").read_text()
