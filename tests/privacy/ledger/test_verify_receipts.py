"""What a hub holds of a site: receipts that both signed, and heads and releases that the site's ledger must have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.forger import fresh_signer, hashed
from tests.support.ledger_lines import HUB, NORTH, SOUTH, Book, hand_over, sign, site_head

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.ledger.checks import START, canonical_bytes, ends_digest
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify_receipts import Compared, SiteReceiptsFound, compare_ledgers, verify_site_receipts
from kohort.purposes import Purpose


class Receipts:
    """The receipts of one site at its hub."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.last, self.lines = folder / "receipts.jsonl", START, list[bytes]()

    def add(self, length: int, own: str = "", *, by: Signer = NORTH, ended: bool = True, **changes: Any) -> None:
        """A receipt for the head of the site's chain; without `ended`, as before receipts named it."""
        own = own or f"{length:064x}"
        heads = ends_digest([["north", length, own]])
        line: dict[str, Any] = {"version": 2, "seq": len(self.lines), "prev": self.last, "request": f"r{length}"}
        line |= {"sites": 1, "heads": heads} | ({"end": [length, own]} if ended else {})
        line["site_signature"] = sign(by, heads.encode(), Purpose.LEDGER_HEAD if ended else None)
        line["hub_signature"] = sign(HUB, canonical_bytes([self.last, line["request"], heads]), Purpose.RECEIPT)
        raw, self.last = hashed(line | changes)
        self.lines.append(raw)
        self.path.write_bytes(b"".join(self.lines))

    def verify(self) -> SiteReceiptsFound:
        return verify_site_receipts(self.path, site="north", site_key=NORTH.public, hub_key=HUB.public)

    def refused(self, against: str) -> None:
        with pytest.raises(IntegrityError, match=against):
            self.verify()


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    return Receipts(tmp_path)


def test_receipts_are_counted_and_say_how_long_the_ledger_was(receipts: Receipts) -> None:
    for length in (1, 3, 3, 4):
        receipts.add(length)
    found = receipts.verify()
    assert (found.receipts, found.length, found.former) == (4, 4, 0)
    receipts.path.write_bytes(b"")
    assert receipts.verify() == SiteReceiptsFound()


@pytest.mark.parametrize(
    ("length", "own", "against"),
    [(3, "", ""), (3, "f" * 64, "went back"), (2, "", "went back"), (4, "f" * 64, "")],
)
def test_a_ledger_never_goes_back(receipts: Receipts, length: int, own: str, against: str) -> None:
    receipts.add(3)
    receipts.add(length, own)
    if against:
        receipts.refused(f"line 2: the site's ledger {against}")
    else:
        assert receipts.verify().length == length


def test_a_head_of_no_line_is_none(receipts: Receipts) -> None:
    receipts.add(0, "")
    receipts.refused("went back")  # a ledger of no lines has no last one


def test_receipts_from_before_the_key_was_registered_come_first(receipts: Receipts) -> None:
    receipts.add(1, by=SOUTH)
    receipts.add(2, by=NORTH, ended=False)
    assert receipts.verify().former == 1  # the second is the site's own, in the older form
    receipts.add(3, by=SOUTH)
    receipts.refused("line 3: the site did not sign it")


def test_after_a_former_key_the_registered_one_must_sign(receipts: Receipts) -> None:
    for length, by in ((1, SOUTH), (2, SOUTH), (3, NORTH), (4, NORTH)):
        receipts.add(length, by=by)
    found = receipts.verify()
    assert (found.receipts, found.former, found.length) == (4, 2, 4)
    receipts.add(5, by=SOUTH)
    receipts.refused("line 5: the site did not sign it")


@pytest.mark.parametrize(
    ("change", "against"),
    [
        ({"seq": 0}, "the chain of receipts is broken"),
        ({"seq": 2}, "the chain of receipts is broken"),
        ({"prev": START}, "the chain of receipts is broken"),
        ({"request": "another"}, "the hub did not sign it"),
        ({"hub_signature": ""}, "the hub did not sign it"),
        ({"version": 1}, "the hub did not sign it"),
        ({"end": [3, "0" * 64]}, "about another site or another head"),
        ({"end": [2, f"{3:064x}"]}, "about another site or another head"),
    ],
)
def test_receipts_that_were_changed_are_told(receipts: Receipts, change: dict[str, Any], against: str) -> None:
    receipts.add(1)
    receipts.add(2, **change)
    receipts.refused(f"'north', line 2: .*{against}")


def test_receipts_are_about_the_site_whose_they_are(receipts: Receipts) -> None:
    receipts.add(1)
    with pytest.raises(IntegrityError, match="about another site or another head"):
        verify_site_receipts(receipts.path, site="south", site_key=NORTH.public, hub_key=HUB.public)


def test_receipts_from_before_signatures_had_purposes_are_taken(receipts: Receipts) -> None:
    heads = ends_digest([["north", 1, "a" * 64]])
    message = canonical_bytes([START, "r", heads])
    line = {"seq": 0, "prev": START, "request": "r", "sites": 1, "heads": heads}
    line |= {"site_signature": sign(NORTH, heads.encode(), None), "hub_signature": sign(HUB, message, None)}
    receipts.path.write_bytes(hashed(line)[0])
    assert receipts.verify() == SiteReceiptsFound(receipts=1, length=0, former=0)


# ---- a site's ledger beside what its hub holds -------------------------------------------------------------------


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """A site's own ledger, of an opening line and two releases."""
    folder = tmp_path / "site" / "ledger"
    folder.mkdir(parents=True)
    made = Book(folder)
    made.open()
    for number in range(2):
        made.receipt(str(number), [["north", *made.release(str(number), round=number)]])
    made.verify()
    return made


def ends_of(book: Book) -> list[tuple[int, str]]:
    return [(number, json.loads(raw)["hash"]) for number, raw in enumerate(book.lines, 1)]


def test_heads_that_the_hub_holds_are_lines_of_the_ledger(book: Book, tmp_path: Path) -> None:
    at_hub = Receipts(tmp_path / "hub" / "receipts" / "north")
    for length, own in ends_of(book)[:2]:
        at_hub.add(length, own)
    (book.folder / "receipts.jsonl").write_bytes(b"")
    for against in (tmp_path / "hub", tmp_path / "hub" / "receipts" / "north"):
        assert compare_ledgers(book.folder.parent, against) == Compared(
            heads=2, furthest=2, releases=0, length=3, unacknowledged=1
        )
    for length, own in ((4, "a" * 64), (3, "a" * 64)):
        forged = Receipts(tmp_path / f"other-{length}" / "receipts" / "north")
        forged.add(length, own)
        with pytest.raises(
            IntegrityError, match=f"site 'north' signed at line {length}, and the ledger lacks that line"
        ):
            compare_ledgers(book.folder, tmp_path / f"other-{length}")


def test_a_head_of_no_line_is_lacking_too(book: Book, tmp_path: Path) -> None:
    (book.folder / "receipts.jsonl").write_bytes(b"")
    at_hub = Receipts(tmp_path / "hub" / "receipts" / "north")
    at_hub.add(0, ends_of(book)[-1][1])
    with pytest.raises(IntegrityError, match="signed at line 0, and the ledger lacks"):
        compare_ledgers(book.folder, tmp_path / "hub")


def test_a_head_that_another_key_signed_is_told_and_one_of_a_former_key_taken(book: Book, tmp_path: Path) -> None:
    before = fresh_signer(9)
    length, own = ends_of(book)[0]
    at_hub = Receipts(tmp_path / "hub" / "receipts" / "north")
    at_hub.add(length, own, by=before)
    for what, text in (("keys", ""), ("other", hand_over(before, NORTH)), ("keys", hand_over(before, NORTH, by=NORTH))):
        book.note(what, text)
        book.write()
        (book.folder / "receipts.jsonl").write_bytes(b"")
        with pytest.raises(IntegrityError, match="a head of line 1 that site 'north' did not sign"):
            compare_ledgers(book.folder, tmp_path / "hub")
    lines = list(book.lines), dict(book.ends), book.order
    for plain in (False, True):
        book.lines, book.ends, book.order = list(lines[0]), dict(lines[1]), lines[2]
        book.note("keys", hand_over(before, NORTH, plain=plain))
        book.write()
        (book.folder / "receipts.jsonl").write_bytes(b"")
        assert compare_ledgers(book.folder, tmp_path / "hub").heads == 1


def test_the_receipts_of_the_site_are_the_first_of_those_of_the_hub(book: Book, tmp_path: Path) -> None:
    at_hub = Receipts(tmp_path / "hub" / "receipts" / "north")
    for length, own in ends_of(book):
        at_hub.add(length, own)
    kept = book.folder / "receipts.jsonl"
    for count in range(4):
        kept.write_bytes(b"".join(at_hub.lines[:count]))
        assert compare_ledgers(book.folder, tmp_path / "hub").heads == 3
    for wrong in (at_hub.lines[1:], [*at_hub.lines, at_hub.lines[0]], at_hub.lines[::-1]):
        kept.write_bytes(b"".join(wrong))
        with pytest.raises(IntegrityError, match="the hub lacks receipts that site 'north' holds"):
            compare_ledgers(book.folder, tmp_path / "hub")


def hubs_ledger(folder: Path, book: Book, *, requests: tuple[str, ...] = ("0", "1"), **change: Any) -> Path:
    """The ledger of a hub's run that received these releases of the site."""
    folder.mkdir(parents=True)
    made = Book(folder)
    made.open("south", identity=dict(SOUTH.record))
    made.open(identity=dict(NORTH.record))
    for request in requests:
        own = ends_of(book)[int(request) + 1]
        made.release(request, **{"round": int(request), **change}, site_head=site_head(*own))
    made.release("9", site="south", round=9, site_head=site_head(1, "a" * 64, by=SOUTH, site="south"))
    made.note("train", "a site was late")
    made.verify(made.head(by=HUB))
    return folder


def test_releases_that_the_hub_received_are_in_the_ledger(book: Book, tmp_path: Path) -> None:
    found = compare_ledgers(book.folder, hubs_ledger(tmp_path / "one" / "ledger", book).parent)
    assert found == Compared(heads=2, furthest=3, releases=2, length=3, unacknowledged=0)
    found = compare_ledgers(book.folder, hubs_ledger(tmp_path / "two", book, requests=("0",)))
    assert (found.heads, found.furthest, found.releases, found.unacknowledged) == (1, 2, 1, 1)


@pytest.mark.parametrize("change", [{"round": 7}, {"what": "judge"}, {"to": "peers"}, {"rows": 9}, {"size": 9}])
def test_a_release_that_the_ledger_lacks_is_told(book: Book, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = hubs_ledger(tmp_path / "hub", book, **change)
    with pytest.raises(IntegrityError, match=r"the hub received .* and the ledger of site 'north' lacks it"):
        compare_ledgers(book.folder, folder)


def test_only_the_ledger_of_one_site_is_compared_and_with_what_is_about_it(book: Book, tmp_path: Path) -> None:
    both = Book(tmp_path / "both")
    both.folder.mkdir()
    both.open()
    both.open("south")
    both.verify()
    with pytest.raises(ConfigError, match="is not the ledger of one site"):
        compare_ledgers(both.folder, book.folder)
    alone = Book(tmp_path / "alone")
    alone.folder.mkdir()
    alone.open("south")
    alone.verify()
    with pytest.raises(ConfigError, match="holds nothing about site 'north'"):
        compare_ledgers(book.folder, alone.folder)
