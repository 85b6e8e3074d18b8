"""The book of openings: atoms of opened totals, over runs, and rows that changed in between."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.openings import OpeningBook, smallest_atom

TEN = tuple(f"site-{number}" for number in range(1, 11))


def without(*numbers: int) -> tuple[str, ...]:
    return tuple(name for name in TEN if name not in {f"site-{number}" for number in numbers})


def admit(book: OpeningBook, name: str, sites: tuple[str, ...], *, version: str = "v1", least: int = 3) -> None:
    book.admit("rows", name, sites, version=version, least=least)


def test_the_same_sites_open_again_and_a_single_leaver_is_refused() -> None:
    book = OpeningBook()
    admit(book, "first", TEN)
    admit(book, "second", TEN)
    with pytest.raises(RefusedError, match="would show 1 sites: site-4"):
        admit(book, "third", without(4))
    admit(book, "fourth", without(4, 5, 6))
    book.admit("other", "fifth", TEN[:9], version="v1", least=3)


def test_pairwise_differences_are_not_enough() -> None:
    """All ten, then without {1, 2, 3}, {3, 4, 5} and {1, 2, 4, 5}: every two differ by three sites or more."""
    openings = [TEN, without(1, 2, 3), without(3, 4, 5), without(1, 2, 4, 5)]
    assert min(len(set(a) ^ set(b)) for a, b in combinations(openings, 2)) >= 3
    book = OpeningBook()
    admit(book, "0", openings[0])
    admit(book, "1", openings[1])
    with pytest.raises(RefusedError, match="would show 1 sites: site-3"):
        admit(book, "2", openings[2])


def test_a_repeated_opening_is_the_same_one() -> None:
    book = OpeningBook()
    admit(book, "first", TEN)
    admit(book, "first", TEN)
    with pytest.raises(RefusedError, match="noted over other sites"):
        admit(book, "first", without(4, 5, 6))


def test_changed_rows_are_an_atom_of_their_own() -> None:
    book = OpeningBook()
    admit(book, "first", TEN)
    with pytest.raises(RefusedError, match="rows here changed"):
        admit(book, "second", TEN, version="v2")


def test_more_colluders_need_larger_atoms() -> None:
    book = OpeningBook()
    admit(book, "first", TEN, least=5)
    with pytest.raises(RefusedError, match="would show 3 sites"):
        admit(book, "second", without(1, 2, 3), least=5)


def test_the_book_outlives_a_run_and_its_loss_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "openings.jsonl"
    admit(OpeningBook(path), "run 1", TEN)
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(RefusedError, match="would show 1 sites"):
        admit(OpeningBook(path), "run 2", without(10))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(IntegrityError, match="damaged"):
        OpeningBook(path)


@given(st.lists(st.frozensets(st.sampled_from("abcdefg"), min_size=1), min_size=1, max_size=5))
def test_atoms_as_by_hand(openings: list[frozenset[str]]) -> None:
    """Sites are in one atom iff no opening tells them apart."""
    found = smallest_atom(openings)
    classes = [
        {other for other in "abcdefg" if all((other in o) == (site in o) for o in openings)}
        for site in "abcdefg"
        if any(site in o for o in openings)
    ]
    assert len(found) == min(map(len, classes))
    assert set(found) in classes
