"""Ledgers written line by line, with real signatures: what the verifier takes and what it refuses of each format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.forger import fresh_signer, hashed
from tests.support.ledger_lines import HUB, NORTH, SOUTH, TEN, Book, hand_over, sign, site_head

from kohort.errors import IntegrityError
from kohort.privacy.guarantee import DP
from kohort.privacy.ledger.checks import START, canonical_bytes, ends_digest
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.verify import checked_chain, checked_receipts, read_head
from kohort.purposes import Purpose


@pytest.fixture
def book(tmp_path: Path) -> Book:
    made = Book(tmp_path)
    made.open()
    return made


# ---- heads and receipts of both formats --------------------------------------------------------------------------


def test_heads_and_receipts_from_before_signatures_had_purposes_still_verify(book: Book) -> None:
    _, own = book.release("a")
    book.receipt("a", [["north", 2, own]], version=1)
    found = book.verify(book.head(version=1))
    assert (found.sites, found.lines, found.releases, found.receipts) == (1, 2, 1, 1)
    assert (found.signer, found.pinned) == (NORTH.public, False)
    for wrong in (
        {**book.head(version=1), "signature": book.head(version=1, by=SOUTH)["signature"]},
        {**book.head(version=1), "signature": sign(NORTH, b"else", None)},
        {**book.head(version=1), "signature": 7},
    ):
        book.refused("signature of the ledger head is invalid", wrong)
    book.refused("signature of the ledger head is invalid", {**book.head(version=1), "run": "another"})


def test_a_head_is_one_line_in_canonical_form_of_a_known_version(book: Book) -> None:
    head = book.head()
    book.verify(head)
    place = book.folder / "head.json"
    for content in (b"", canonical_bytes(head) + b"\n" + canonical_bytes(head) + b"\n"):
        place.write_bytes(content)
        with pytest.raises(IntegrityError, match="exactly one line"):
            read_head(place)
    place.write_bytes(json.dumps(head).encode() + b"\n")
    with pytest.raises(IntegrityError, match="not in canonical form"):
        read_head(place)
    for wrong in (True, "2", 2.0, 3, 1, None):
        place.write_bytes(canonical_bytes({**head, "version": wrong}) + b"\n")
        with pytest.raises(IntegrityError, match="not a ledger head of this version"):
            read_head(place)
    older = book.head(version=1)
    place.write_bytes(canonical_bytes({**older, "version": True}) + b"\n")  # true equals 1, and is no version
    with pytest.raises(IntegrityError, match="not a ledger head of this version"):
        read_head(place)


def test_receipts_name_all_lines_of_their_request_and_carry_both_signatures(book: Book) -> None:
    book.open("south")
    ends = [["north", *book.release("a")], ["south", *book.release("a", site="south")]]
    book.receipt("a", ends)
    assert book.verify().receipts == 1
    for change in (
        {"sites": 1},
        {"heads": ends_digest(ends[:1])},
        {"site_signature": sign(SOUTH, ends_digest(ends).encode(), Purpose.LEDGER_HEAD)},
        {"site_signature": sign(NORTH, ends_digest(ends).encode(), Purpose.RECEIPT)},
        {"hub_signature": sign(NORTH, canonical_bytes([START, "a", ends_digest(ends)]), Purpose.RECEIPT)},
        {"hub_signature": sign(HUB, canonical_bytes([START, "a", ends_digest(ends)]), None)},
    ):
        book.receipts, book.last = [], START
        book.receipt("a", ends, **change)
        book.refused("does not match the ledger lines|a signature is invalid")


def test_receipts_are_numbered_and_chained(book: Book) -> None:
    book.receipt("a", [["north", *book.release("a")]])
    for change in ({"seq": 0}, {"seq": 2}, {"prev": START}):
        first, last = list(book.receipts), book.last
        book.receipt("b", [["north", *book.release("b")]], **change)
        book.refused("the chain of receipts is broken")
        with pytest.raises(IntegrityError, match="the chain of receipts is broken"):
            checked_receipts(book.folder / "receipts.jsonl")
        book.receipts, book.last = first, last
    book.verify()
    assert [line["request"] for line in checked_receipts(book.folder / "receipts.jsonl")] == ["a"]


def test_a_receipt_of_a_real_site_is_about_the_line_of_its_request_or_a_later_one(book: Book) -> None:
    early = book.ends["north"]
    asked = list(book.release("a"))
    later = list(book.release("b"))
    for end, against in (
        (asked, ""),
        (later, ""),
        (early, "older than the ledger line"),
        ([3, asked[1]], "not in the ledger"),
    ):
        book.receipts, book.last = [], START
        book.receipt("a", [["north", *end]], end=end)
        if against:
            book.refused(against)
        else:
            assert book.verify().receipts == 1
    book.receipts, book.last = [], START
    book.receipt("nothing", [["north", *later]], end=later)  # no line of that request
    book.refused("older than the ledger line")


# ---- keys that were handed over ----------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
def test_receipts_are_signed_by_the_key_of_their_time(book: Book, plain: bool) -> None:
    before, between, now = SOUTH, fresh_signer(4), NORTH
    for number, (by, old, new) in enumerate(((before, before, between), (between, between, now), (now, now, now))):
        book.receipt(str(number), [["north", *book.release(str(number))]], by=by)
        if old is not new:
            book.note("keys", hand_over(old, new, plain=plain))
    assert book.verify().receipts == 3
    book.receipt("late", [["north", *book.release("late")]], by=between)
    book.refused("a signature is invalid")


def test_a_key_that_was_not_handed_over_signs_no_earlier_receipt(book: Book) -> None:
    book.receipt("a", [["north", *book.release("a")]], by=SOUTH)
    book.refused("a signature is invalid")
    for what, text in (
        ("keys", hand_over(SOUTH, NORTH, by=NORTH)),
        ("keys", hand_over(SOUTH, fresh_signer(4))),
        ("other", hand_over(SOUTH, NORTH)),
        ("keys", ""),
    ):
        book.note(what, text)
        book.refused("a signature is invalid")
    book.note("keys", hand_over(SOUTH, NORTH))
    assert book.verify().receipts == 1


# ---- the heads of sites in a hub's ledger ------------------------------------------------------------------------


@pytest.fixture
def hubs(tmp_path: Path) -> Book:
    """A hub's ledger: the chain is about a site that signs the ends of its own."""
    made = Book(tmp_path)
    made.open(identity=dict(NORTH.record))
    return made


def test_heads_of_sites_are_counted_and_known_sites_named(hubs: Book) -> None:
    assert hubs.verify().site_heads == 0
    for number, (length, last) in enumerate(((5, "a" * 64), (5, "a" * 64), (9, "b" * 64))):
        hubs.release(str(number), site_head=site_head(length, last))
    hubs.note("train", "the site was late")
    found = hubs.verify()
    assert (found.site_heads, found.known_sites) == (3, [])
    known = Pins(sites={"north": NORTH.record["fingerprint"]})
    assert hubs.verify(hubs.head(by=HUB), known).known_sites == ["north"]
    with pytest.raises(IntegrityError, match="signed by another key than the site's"):
        hubs.verify(hubs.head(by=HUB), Pins(sites={"north": SOUTH.record["fingerprint"]}))


@pytest.mark.parametrize(
    ("head", "against"),
    [
        (None, "the head of the site's own ledger is missing"),
        (site_head(6, "a" * 64, by=SOUTH), "is not signed by the site"),
        (site_head(6, "a" * 64, site="south"), "is not signed by the site"),
        ([6, "b" * 64, site_head(6, "a" * 64)[2]], "is not signed by the site"),
        (site_head(4, "a" * 64), "went back"),
        (site_head(5, "b" * 64), "went back"),
        (["6", "a" * 64, ""], "out of place"),
        ([True, "a" * 64, ""], "out of place"),
    ],
)  # fmt: skip
def test_a_head_of_a_site_is_its_own_and_never_goes_back(hubs: Book, head: Any, against: str) -> None:
    hubs.release("a", site_head=site_head(5, "a" * 64))
    hubs.release("b", **({} if head is None else {"site_head": head}))
    hubs.refused(against)


def test_a_ledger_that_is_no_hubs_holds_no_heads_of_sites(book: Book) -> None:
    book.release("a", site_head=site_head(5, "a" * 64))
    book.refused("out of place")


def test_only_releases_need_the_head_of_the_site(hubs: Book) -> None:
    said = {"what": "train", "to": "hub", "via": "", "round": 0, "request": "a", "reason": "no"}
    hubs.add("refusal", guarantee=json.loads(TEN.text), **said)
    found = hubs.verify()
    assert (found.refusals, found.releases, found.site_heads) == (1, 0, 0)


# ---- lines and chains --------------------------------------------------------------------------------------------


def test_a_chain_has_one_opening_line_and_it_is_the_first(tmp_path: Path) -> None:
    unopened = Book(tmp_path)
    unopened.release("a")
    unopened.refused("must begin with its one opening line")
    twice = Book(tmp_path)
    twice.open()
    twice.open()
    twice.refused("must begin with its one opening line")


def test_every_chain_ends_where_the_head_says_and_the_head_names_every_chain(book: Book) -> None:
    book.open("south")
    assert book.verify().sites == 2
    ends = dict(book.ends)
    for wrong, against in (
        ({"north": ends["north"]}, "1 chains are not covered"),
        ({**ends, "east": [0, START]}, ""),
        ({**ends, "east": [1, START]}, "does not end where"),
        ({**ends, "south": [2, ends["south"][1]]}, "does not end where"),
        ({**ends, "south": [1, START]}, "does not end where"),
    ):
        book.ends = wrong
        if against:
            book.refused(against)
        else:
            book.verify()
    book.ends = ends
    book.lines.reverse()
    book.refused("not in the order they were written in")


def test_chains_are_checked_without_heads_too(book: Book) -> None:
    book.release("a")
    path = book.folder / "ledger.jsonl"
    path.write_bytes(b"".join(book.lines))
    assert [line["event"] for line in checked_chain(path)] == ["open", "release"]
    opening, release = book.lines
    for changed in ([release], [opening, opening], [opening, hashed({**json.loads(release), "seq": 2})[0]]):
        path.write_bytes(b"".join(changed))
        with pytest.raises(IntegrityError, match="the chain is broken"):
            checked_chain(path)


# ---- what releases claim and what was paid -----------------------------------------------------------------------


def noisy(epsilon: Any, delta: Any = 1e-6, **more: Any) -> dict[str, Any]:
    return {**json.loads(DP(epsilon=1.0, delta=1e-6).text), "epsilon": epsilon, "delta": delta, **more}


@pytest.mark.parametrize(
    ("claim", "against"),
    [
        (noisy(float("inf")), "epsilon is not a finite number"),
        (noisy(-0.5), "epsilon is not a finite number"),
        (noisy(0.5, charge=float("inf")), "epsilon is not a finite number"),
        (noisy(0.5, charge=-0.5), "epsilon is not a finite number"),
        (noisy(0.5, 1.5), "delta is not a number from 0 to 1"),
        (noisy(0.5, -1e-9), "delta is not a number from 0 to 1"),
        (noisy(0.5, delta_charge=1.5), "delta is not a number from 0 to 1"),
        (noisy(0.5, delta_charge=-1e-9), "delta is not a number from 0 to 1"),
        (noisy(0.5, charge=0.4), "epsilon 0.5 is claimed, but only 0.4 was paid"),
        (noisy(0.5, delta_charge=1e-7), "epsilon 0.5 is claimed, but only 0.5 was paid"),
        (noisy(0.5, charge=0.5, account="x"), ""),
        (noisy(0.5, charge=0.5 * (1 - 1e-12)), ""),
        (noisy(0.5, charge=0.5 * (1 - 1e-6)), "is claimed"),
        (noisy(0.5, delta_charge=1e-6 * (1 - 1e-12)), ""),
        (noisy(0, 1), ""),
        (noisy(0, 0), ""),
    ],
)  # fmt: skip
def test_a_private_claim_is_a_possible_one_and_is_paid_for(book: Book, claim: dict[str, Any], against: str) -> None:
    book.release("a", guarantee=claim)
    if against:
        book.refused(against)
    else:
        assert book.verify().releases == 1


def test_an_account_is_paid_for_in_parts_and_covers_what_they_add_up_to(book: Book) -> None:
    book.release("a", guarantee=noisy(0.25, 1e-7, charge=0.25, delta_charge=1e-7, account="x"))
    book.release("b", guarantee=noisy(0.75, 3e-7, charge=0.5, delta_charge=2e-7, account="x"), round=1)
    book.release("c", guarantee=noisy(0.75, 3e-7, charge=0.0, account="x"), round=2)
    found = book.verify()
    assert (found.epsilon, found.delta) == (pytest.approx(0.75), pytest.approx(3e-7))
    book.release("d", guarantee=noisy(0.75, 3e-7, charge=0.0, account="x"), round=2)
    book.refused("the same round was answered twice for one payment")


@pytest.mark.parametrize("more", [{"round": 3}, {"to": "peers"}, {"what": "judge"}])
def test_another_round_recipient_or_task_is_another_answer(book: Book, more: dict[str, Any]) -> None:
    book.release("a", guarantee=noisy(0.5, account="x"))
    book.release("b", guarantee=noisy(0.5, charge=0.0, account="x"), **more)
    assert book.verify().releases == 2
    book.release("c", guarantee=noisy(0.5, charge=0.0, account="y"), round=9)
    book.refused("only 0 was paid for it")


def test_a_round_that_is_paid_for_again_may_be_answered_again(book: Book) -> None:
    book.release("a", guarantee=noisy(0.5, account="x"))
    book.release("b", guarantee=noisy(0.5, account="x"))
    assert book.verify().epsilon == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("limits", "against"),
    [
        ({"epsilon": 0.8}, ""),
        ({"epsilon": 0.8 * (1 - 1e-12)}, ""),
        ({"epsilon": 0.79}, "epsilon 0.8 is spent, more than the 0.79 the site's policy allows"),
        ({"epsilon": 0}, "more than the 0 the site's policy allows"),
        ({"delta": 2e-6}, ""),
        ({"delta": 1.9e-6}, "delta 2e-06 is spent, more than the 1.9e-06"),
        ({"epsilon": None, "delta": None}, ""),
    ],
)
def test_what_is_spent_stays_within_the_policy_the_chain_was_opened_under(
    tmp_path: Path, limits: dict[str, Any], against: str
) -> None:
    book = Book(tmp_path)
    book.open(policy=limits)
    book.open("south", policy={"epsilon": 0.1})  # each site has its own
    book.release("a", guarantee=noisy(0.3))
    book.release("b", guarantee=noisy(0.5), round=1)
    if against:
        book.refused(against)
    else:
        assert book.verify().epsilon == pytest.approx(0.8)


def test_a_void_claim_needs_a_policy_that_allows_it(tmp_path: Path) -> None:
    for number, (policy, is_sound) in enumerate(
        (({"void_dp": True}, True), ({"void_dp": False}, False), ({"raw": True}, False))
    ):
        book = Book(tmp_path / str(number))
        book.folder.mkdir()
        book.open(policy=policy)
        book.release("a", guarantee=noisy(0.5, 0.5, void=True))
        if is_sound:
            book.verify()
        else:
            book.refused("a release had a void claim")


def test_totals_are_those_of_the_site_that_spent_most_and_refusals_spend_nothing(book: Book) -> None:
    book.open("south")
    book.release("a", guarantee=noisy(0.5, 1e-6))
    book.release("a", site="south", guarantee=noisy(0.2, 3e-6))
    said = {"what": "train", "to": "hub", "via": "", "round": 1, "request": "b", "reason": "no"}
    book.add("refusal", guarantee=noisy(9.0), **said)
    found = book.verify()
    assert (found.epsilon, found.delta, found.refusals) == (0.5, 3e-6, 1)
