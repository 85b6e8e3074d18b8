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
    """A total that is opened as soon as its sites have compared their books."""
    book.admit("rows", name, sites, version=version, least=least, batches={}, announced=book.shared(version))


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


def numbered(*numbers: int) -> tuple[str, ...]:
    return tuple(f"site-{number}" for number in numbers)


def test_a_heard_opening_counts_like_an_own_one(tmp_path: Path) -> None:
    """Four totals, of which the last one's sites were in at most three each: nobody alone could know."""
    elsewhere, here = OpeningBook(), OpeningBook(tmp_path / "openings.jsonl")
    admit(elsewhere, "0", TEN)
    admit(elsewhere, "1", without(1, 2, 3))
    admit(here, "0", TEN)
    assert here.receive(elsewhere.shared("v1")) == {"rows": 0}
    again = OpeningBook(tmp_path / "openings.jsonl")  # what was heard outlives the run
    assert again.shared("v1") == elsewhere.shared("v1")
    for book in (here, again):
        with pytest.raises(RefusedError, match="would show 1 sites: site-3"):
            admit(book, "2", without(3, 4, 5))
    fresh = OpeningBook()
    admit(fresh, "0", TEN)
    admit(fresh, "2", without(3, 4, 5))  # without hearing it, site 6 would take part


def test_a_total_takes_most_of_what_was_added_up_before() -> None:
    """All ten, {1, 2, 3, 4} and {5, 6, 7, 8, 9} leave site 10; the last two share nobody who could tell."""
    for part in (numbered(1, 2, 3, 4), numbered(5, 6, 7, 8, 9)):
        book = OpeningBook()
        admit(book, "0", TEN)
        with pytest.raises(RefusedError, match="and another one over the others would be hidden"):
            admit(book, "1", part)
    book = OpeningBook()
    admit(book, "0", TEN)
    admit(book, "1", without(1, 2, 3, 4))  # six of ten meet six others in two sites, of which one may collude
    with pytest.raises(RefusedError, match="of 6 sites that were added up together"):
        admit(book, "2", numbered(5, 6, 7))


def test_new_rows_of_a_group_are_a_part_of_their_own() -> None:
    for changed, allowed in (({"site-1", "site-2", "site-3"}, True), ({"site-1", "site-2"}, False)):
        book = OpeningBook()
        book.admit("rows", "0", TEN, version="v1", least=3, site="site-1")
        batches = {name: 1 for name in changed if name != "site-1"}
        if allowed:
            shared = book.shared("v2")
            book.admit("rows", "1", TEN, version="v2", least=3, site="site-1", batches=batches, announced=shared)
            assert book.batch("rows", "v2") == 1
        else:
            with pytest.raises(RefusedError, match="rows here changed"):
                book.admit("rows", "1", TEN, version="v2", least=3, site="site-1", batches=batches)


def test_what_cannot_be_a_book_is_refused() -> None:
    for shared in (b"{", b"[]", b'{"rows":1}', b'{"rows":[-1,[]]}', b'{"rows":["1",[]]}', b'{"rows":[0,5]}'):
        with pytest.raises(IntegrityError, match="cannot be read"):
            OpeningBook().receive(shared)


openings_of_six = st.lists(st.frozensets(st.sampled_from("abcdefghi"), min_size=3), min_size=1, max_size=7)


@given(openings_of_six, st.lists(st.integers(0, 3), min_size=7, max_size=7), st.booleans())
def test_whatever_a_hub_opens_no_difference_shows_fewer_than_three(
    asked: list[frozenset[str]], waits: list[int], one_name: bool
) -> None:
    """Sites that exchange books with those they meet, and nobody else: global atoms stay large.

    The hub lets a session wait after its books were exchanged, while others open, and may give all runs one name.
    """
    books = {site: OpeningBook() for site in "abcdefghi"}
    opened: list[frozenset[str]] = []
    shared: dict[int, dict[str, bytes]] = {}
    begins = sorted(range(len(asked)), key=lambda number: (max(0, number - waits[number]), number))
    for number, sites in enumerate(asked):
        while begins and max(0, begins[0] - waits[begins[0]]) <= number:
            now = begins.pop(0)
            run = f"{'run' if one_name else now}:{now}"
            shared[now] = {site: books[site].shared("v", run) for site in asked[now]}
            for site in asked[now]:
                for book in shared[now].values():
                    books[site].receive(book, run)
        name, given = f"{'run' if one_name else number}:{number}:task:0", {"version": "v", "least": 3, "colluders": 0}
        try:
            for site in sorted(sites):
                own = {"site": site, "announced": shared[number][site], **given}
                books[site].admit("rows", name, tuple(sites), batches={}, **own)
        except RefusedError:
            continue  # one of them refuses: nothing opens; those who noted it are only more careful
        opened.append(sites)
    assert not opened or len(smallest_atom(opened)) >= 3


def test_a_session_that_waited_opens_nothing_new() -> None:
    """What others opened in between is unknown to the sites that the session compared books with."""
    book = OpeningBook()
    shared = book.shared("v1", "run 1:plan")
    admit(book, "run 2:plan:task:0", numbered(1, 2, 3, 4, 5))
    with pytest.raises(RefusedError, match="after the sites of this sum had compared their books"):
        book.admit("rows", "run 1:plan:task:0", TEN, version="v1", least=3, batches={}, announced=shared)
    same = OpeningBook()
    admit(same, "run 2:plan:task:0", TEN)
    same.admit("rows", "run 1:plan:task:0", TEN, version="v1", least=3, batches={}, announced=shared)
    same.admit("rows", "run 1:plan:task:1", TEN, version="v1", least=3, batches={}, announced=shared)
    assert same.shared("v1", "run 2:plan") != same.shared("v1", "run 2:other plan"), "a hub chooses the names of runs"


@pytest.mark.parametrize("key_holder", [True, False])
def test_totals_of_a_family_are_in_one_kind_of_book(key_holder: bool, tmp_path: Path) -> None:
    book = OpeningBook(tmp_path / "book.jsonl")
    book.admit("rows", "run:1", TEN, version="v", least=3, batches=None if key_holder else {})
    for known in (book, OpeningBook(tmp_path / "book.jsonl")):
        known.require_one_witness("rows", key_holder=key_holder)
        known.require_one_witness("training", key_holder=not key_holder)
        with pytest.raises(RefusedError, match="would be in another book"):
            known.require_one_witness("rows", key_holder=not key_holder)


def test_a_book_of_an_older_version_does_not_say_who_knows(tmp_path: Path) -> None:
    (tmp_path / "book.jsonl").write_text('["rows","run:1",["a","b","c"],"v"]\n')
    book = OpeningBook(tmp_path / "book.jsonl")
    for key_holder in (True, False):
        book.require_one_witness("rows", key_holder=key_holder)


def test_simulated_sites_share_one_opening() -> None:
    """Else 20,000 sites of one process would each keep a set of 20,000 names."""
    sites = tuple(f"site-{number}" for number in range(50))
    books = [OpeningBook() for _ in range(3)]
    for book in books:
        admit(book, "first", tuple(name for name in sites))
    kept = {id(opening) for book in books for opening in book._openings["rows"]}
    assert len(kept) == 1
