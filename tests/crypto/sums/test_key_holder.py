"""The key-holder opens the total over exactly the claimed, rostered sites, once; nobody else holds a secret."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kohort.crypto.identity.parties import Identity, PublicIdentity
from kohort.crypto.sums import encrypted, he
from kohort.crypto.sums.checks import BOX
from kohort.crypto.sums.encrypted import EncryptedHub, EncryptedSum, join_ciphertexts, split_ciphertexts
from kohort.crypto.sums.key_book import KeyBook
from kohort.crypto.sums.key_holder import KeyHolder, Offered
from kohort.crypto.sums.modular import P61, add
from kohort.crypto.sums.packing import Packing
from kohort.crypto.sums.scheme import KEY_HOLDER, Integers, SumContext, Trust, find_scheme
from kohort.errors import IntegrityError, RefusedError, ResourceError
from kohort.rng import Streams

NAMES = tuple(f"site-{number}" for number in range(5))
ROOT = Streams.seeded(3)
IDENTITIES = {name: Identity.from_secret(name, ROOT.bytes(name)) for name in (*NAMES, KEY_HOLDER, "stranger")}
SCHEMES = ["bfv", "ckks"]


def context(**changes: Any) -> SumContext:
    made = SumContext(run="run", round=0, request="plan:task", sites=NAMES, length=9)
    return replace(made, **changes)


def scheme_of(word: str) -> EncryptedSum:
    found = find_scheme(word)
    assert isinstance(found, EncryptedSum)
    return found


def holder(*, min_sites: int = 3, roster: tuple[str, ...] = NAMES, book: KeyBook | None = None) -> KeyHolder:
    def find(name: str) -> PublicIdentity | None:
        return IDENTITIES[name].public if name in roster else None

    return KeyHolder(
        identity=IDENTITIES[KEY_HOLDER], streams=ROOT, find_site=find, min_sites=min_sites, book=book or KeyBook()
    )


def vector(site: str, about: SumContext) -> Integers:
    random = np.random.default_rng(NAMES.index(site))
    if about.modulus:
        return random.integers(0, P61, about.length).astype(np.uint64)
    return random.integers(-(2**30), 2**30, about.length).view(np.uint64)


def contribution(scheme: EncryptedSum, about: SumContext, site: str, offer: Offered, **trust: Any) -> bytes:
    inbox = offer.inbox(about.index[site])
    relies = replace(Trust(IDENTITIES[site], IDENTITIES[KEY_HOLDER].public, 3), **trust)
    return scheme.site_side(about, site, Streams(ROOT.bytes("site", site), 3), relies).reply(
        0, inbox, vector(site, about)
    )


def added(scheme: EncryptedSum, about: SumContext, offer: Offered, sites: tuple[str, ...]) -> EncryptedHub:
    hub = scheme.encrypted_hub(about)
    for site in sites:
        hub.take(0, site, contribution(scheme, about, site, offer))
    return hub


def plain_sum(about: SumContext, sites: tuple[str, ...]) -> Integers:
    total: Integers = np.zeros(about.length, dtype=np.uint64)
    for site in sites:
        total = add(total, vector(site, about), about.modulus)
    return total


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("changes", [{}, {"length": 5000}, {"modulus": P61}, {"bits": 64}], ids=str)
def test_the_total_is_the_plain_one_also_without_those_who_dropped(word: str, changes: dict[str, int]) -> None:
    scheme, about, keys = scheme_of(word), context(**changes), holder()
    survivors = NAMES[:2] + NAMES[3:]
    hub = added(scheme, about, keys.offer(scheme.ring, about), survivors)
    hub.set_total(keys.open(scheme.ring, about, list(hub.claimed), hub.totals()))
    total, members = hub.total()
    assert members == survivors
    assert np.array_equal(total, plain_sum(about, survivors))


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize(
    ("inside", "claimed"),
    [
        (NAMES[:4], NAMES),
        (NAMES, NAMES[:4]),
        (NAMES[:3], NAMES[1:4]),
        (NAMES[:1], NAMES[:3]),
    ],
    ids=["one less", "one more", "another", "one alone"],
)
def test_another_set_than_the_claimed_one_does_not_open(
    word: str, inside: tuple[str, ...], claimed: tuple[str, ...]
) -> None:
    scheme, about, keys = scheme_of(word), context(), holder()
    totals = added(scheme, about, keys.offer(scheme.ring, about), inside).totals()
    with pytest.raises(IntegrityError, match="check"):
        keys.open(scheme.ring, about, claimed, totals)


@pytest.mark.parametrize("word", SCHEMES)
def test_the_check_covers_the_second_ciphertext_too(word: str) -> None:
    scheme, about, keys = scheme_of(word), context(length=5000), holder()
    offer = keys.offer(scheme.ring, about)
    whole, alone = added(scheme, about, offer, NAMES[:3]).totals(), added(scheme, about, offer, NAMES[:1]).totals()
    with pytest.raises(IntegrityError, match="check"):
        keys.open(scheme.ring, about, NAMES[:3], [*whole[:-1], alone[-1]])


def test_a_site_counted_twice_does_not_open() -> None:
    scheme, about, keys = scheme_of("bfv"), context(), holder()
    offer = keys.offer(scheme.ring, about)
    partial = he.CiphertextSum(Packing.of(scheme.ring, about).ring)
    for site in (NAMES[0], NAMES[0], NAMES[1]):
        partial.add(split_ciphertexts(contribution(scheme, about, site, offer))[0])
    with pytest.raises(IntegrityError, match="check"):
        keys.open(scheme.ring, about, NAMES[:3], [partial.ciphertext()])


def test_an_altered_or_foreign_total_does_not_open() -> None:
    scheme, about = scheme_of("bfv"), context()
    offers = [holder().offer(scheme.ring, about), holder().offer(scheme.ring, context(round=1))]
    good = added(scheme, about, offers[0], NAMES).totals()[0]
    altered = good[:25_000] + bytes([good[25_000] ^ 1]) + good[25_001:]
    foreign = he.CiphertextSum(Packing.of(scheme.ring, about).ring)
    for site in NAMES:
        foreign.add(split_ciphertexts(contribution(scheme, context(round=1), site, offers[1]))[0])
    for bad in (altered, foreign.ciphertext(), good[:-1], b""):
        keys = holder()
        keys.offer(scheme.ring, about)
        with pytest.raises(IntegrityError):
            keys.open(scheme.ring, about, NAMES, [bad])


def test_a_sum_opens_once_over_one_set_and_never_again() -> None:
    scheme, about, keys = scheme_of("bfv"), context(), holder()
    hub = added(scheme, about, keys.offer(scheme.ring, about), NAMES)
    with pytest.raises(RefusedError, match="over other sites"):
        keys.offer(scheme.ring, context(sites=NAMES[:4]))
    secrets = [pending.secret for pending in keys._pending.values()]
    keys.open(scheme.ring, about, NAMES, hub.totals())
    assert [secret._opener for secret in secrets] == [None]
    with pytest.raises(RefusedError, match="opened already"):
        keys.open(scheme.ring, about, NAMES, hub.totals())
    for again in (about, context(sites=NAMES[:4]), context(view=b"other"), context(length=8)):
        with pytest.raises(RefusedError, match="opened already"):
            keys.offer(scheme.ring, again)


def test_a_sum_opens_only_as_it_was_begun() -> None:
    scheme, about, keys = scheme_of("bfv"), context(), holder()
    hub = added(scheme, about, keys.offer(scheme.ring, about), NAMES)
    for other in (context(view=b"other"), context(sites=NAMES[:4]), context(length=3), context(bits=20)):
        with pytest.raises(RefusedError, match="no key for this sum"):
            keys.open(scheme.ring, other, NAMES[:4], hub.totals())
    assert np.array_equal(keys.open(scheme.ring, about, NAMES, hub.totals()), plain_sum(about, NAMES))


def test_a_failed_opening_destroys_the_key_too() -> None:
    scheme, about, keys = scheme_of("bfv"), context(), holder()
    hub = added(scheme, about, keys.offer(scheme.ring, about), NAMES)
    with pytest.raises(IntegrityError):
        keys.open(scheme.ring, about, NAMES[:4], hub.totals())
    with pytest.raises(RefusedError):
        keys.open(scheme.ring, about, NAMES, hub.totals())


def test_a_restarted_key_holder_goes_by_its_book(tmp_path: Path) -> None:
    scheme, about, path = scheme_of("bfv"), context(), tmp_path / "openings"
    holder(book=KeyBook(path)).offer(scheme.ring, about)
    with pytest.raises(RefusedError, match="other sites, numbers or public inputs"):
        holder(book=KeyBook(path)).offer(scheme.ring, context(view=b"other"))
    keys = holder(book=KeyBook(path))
    hub = added(scheme, about, keys.offer(scheme.ring, about), NAMES)  # never opened, so it may go on
    keys.open(scheme.ring, about, NAMES, hub.totals())
    for again in (about, context(sites=NAMES[:4]), context(view=b"other")):
        with pytest.raises(RefusedError, match="opened already"):
            holder(book=KeyBook(path)).offer(scheme.ring, again)
    failing = context(round=1)
    keys.offer(scheme.ring, failing)
    with pytest.raises(IntegrityError):
        keys.open(scheme.ring, failing, NAMES, [b""])
    with pytest.raises(RefusedError, match="failed in this run"):
        holder(book=KeyBook(path)).offer(scheme.ring, context(round=2))


def test_an_opening_is_in_the_book_before_anything_is_decrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, about, path = scheme_of("bfv"), context(), tmp_path / "openings"
    keys = holder(book=KeyBook(path))
    hub = added(scheme, about, keys.offer(scheme.ring, about), NAMES)
    real, seen = he.SecretKey.open, []

    def opened(self: he.SecretKey, ciphertext: bytes, *, sites: int) -> he.Slots:
        seen.append(path.read_bytes().count(b"open "))
        return real(self, ciphertext, sites=sites)

    monkeypatch.setattr(he.SecretKey, "open", opened)
    keys.open(scheme.ring, about, NAMES, hub.totals())
    assert seen == [1]


def test_a_key_holder_whose_book_cannot_be_written_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, about = scheme_of("bfv"), context()
    keys = holder(book=KeyBook(tmp_path / "openings"))
    hub = added(scheme, about, keys.offer(scheme.ring, about), NAMES)
    (secret,) = [pending.secret for pending in keys._pending.values()]

    def full(_: int) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError):
        keys.open(scheme.ring, about, NAMES, hub.totals())
    assert secret._opener is None
    with pytest.raises(ResourceError):
        keys.offer(scheme.ring, context(round=1))


def test_a_sum_that_must_be_over_certain_sites_opens_over_all_of_them_or_not_at_all() -> None:
    scheme, about = scheme_of("bfv"), context()
    keys = holder()
    offer = keys.offer(scheme.ring, about, least=5)
    hub = added(scheme, about, offer, NAMES[:4])
    assert contribution(scheme, about, NAMES[4], offer, quorum=5)
    with pytest.raises(RefusedError, match="below 5"):
        keys.open(scheme.ring, about, NAMES[:4], hub.totals())
    with pytest.raises(RefusedError, match="below 6"):
        holder().offer(scheme.ring, about, least=6)
    lower = holder(min_sites=4).offer(scheme.ring, about, least=3)  # never below the key-holder's own minimum
    assert contribution(scheme, about, NAMES[0], lower, min_sites=4)


def test_too_few_sites_and_strangers_are_refused() -> None:
    scheme = scheme_of("bfv")
    with pytest.raises(RefusedError, match="below 3"):
        holder().offer(scheme.ring, context(sites=NAMES[:2]))
    with pytest.raises(RefusedError, match="does not know site 'stranger'"):
        holder().offer(scheme.ring, context(sites=(*NAMES, "stranger")))
    about, keys = context(), holder(min_sites=4)
    hub = added(scheme, about, keys.offer(scheme.ring, about), NAMES[:3])
    with pytest.raises(RefusedError, match="below 4"):
        keys.open(scheme.ring, about, NAMES[:3], hub.totals())
    with pytest.raises(IntegrityError, match="cannot be right"):
        holder().offer(scheme.ring, context(sites=(*NAMES, NAMES[0])))


def test_a_site_encrypts_only_under_a_key_its_own_key_holder_made_for_this_sum() -> None:
    scheme, about = scheme_of("bfv"), context()
    impostor = replace(holder(), identity=IDENTITIES["stranger"], _pending={}, book=KeyBook())
    good = holder().offer(scheme.ring, about)
    for offer in (
        impostor.offer(scheme.ring, about),
        holder().offer(scheme.ring, context(round=1)),
        holder().offer(scheme.ring, context(sites=NAMES[:4])),
        holder().offer(scheme_of("ckks").ring, about),
        holder().offer(scheme.ring, context(view=b"other")),
        Offered(good.offer[:-1], good.boxes),
        Offered(b"", b""),
        Offered(good.offer, good.boxes[BOX:] + good.boxes[:BOX]),
        Offered(good.offer, holder().offer(scheme.ring, context(round=1)).boxes),
        Offered(good.offer, b""),
    ):
        with pytest.raises(IntegrityError):
            contribution(scheme, about, NAMES[0], offer)
    for stricter in ({"min_sites": 4}, {"colluders": 2}, {"quorum": 4}):
        with pytest.raises(RefusedError, match="fewer than this site allows"):
            contribution(scheme, about, NAMES[0], good, **stricter)
        with pytest.raises(RefusedError, match="in none below 4"):
            contribution(scheme, context(sites=NAMES[:3]), NAMES[0], good, **stricter)
        enough = holder(min_sites=4).offer(scheme.ring, about)
        assert contribution(scheme, about, NAMES[0], enough, **stricter)
    with pytest.raises(RefusedError, match="knows no key-holder"):
        scheme.site_side(about, NAMES[0], ROOT)


def test_the_hub_names_the_site_whose_ciphertext_is_broken() -> None:
    scheme, about = scheme_of("bfv"), context()
    good = contribution(scheme, about, NAMES[0], holder().offer(scheme.ring, about))
    flipped = good[:9000] + bytes([good[9000] ^ 1]) + good[9001:]
    parts = split_ciphertexts(good)
    for bad in (good[:-1], flipped, b"", join_ciphertexts([*parts, *parts]), join_ciphertexts([parts[0][:-9]])):
        with pytest.raises(IntegrityError, match="site-0"):
            scheme.encrypted_hub(about).take(0, NAMES[0], bad)
    hub = scheme.encrypted_hub(about)
    hub.take(0, NAMES[0], good)
    with pytest.raises(IntegrityError, match="no part"):
        hub.take(0, NAMES[0], good)


def test_the_same_question_gets_the_same_bytes() -> None:
    scheme, about = scheme_of("bfv"), context()
    offer = holder().offer(scheme.ring, about)
    assert offer == holder().offer(scheme.ring, about)
    first = contribution(scheme, about, NAMES[0], offer)
    assert first == contribution(scheme, about, NAMES[0], offer)


def shares_randomness(ring: he.Ring, one: bytes, two: bytes) -> bool:
    """Equal randomness cancels in the difference, which leaves the second polynomial empty: plaintexts in clear."""
    first, second = (he._ciphertext(ring, data) for data in (one, two))
    difference = he._api().Ciphertext()
    with suppress(RuntimeError):  # how a library says it that was built to notice
        he._api().Evaluator(he._context(ring)).sub(first, second, difference)
    return bool(difference.is_transparent())


@pytest.mark.parametrize("word", SCHEMES)
@pytest.mark.parametrize("length", [9, 5000])
def test_no_two_plaintexts_of_a_site_share_randomness(word: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, about = scheme_of(word), context(length=length)
    ring, offer = Packing.of(scheme.ring, about).ring, holder().offer(scheme.ring, about)

    def ciphertexts() -> list[bytes]:
        """Two vectors of one number everywhere, so that the ciphertexts of one message are of equal numbers too."""
        side = scheme.site_side(about, NAMES[0], ROOT, Trust(IDENTITIES[NAMES[0]], IDENTITIES[KEY_HOLDER].public, 3))
        vectors = [np.full(length, number, dtype=np.uint64) for number in (1, 2)]
        return [item for own in vectors for item in split_ciphertexts(side.reply(0, offer.inbox(0), own))]

    made = ciphertexts()
    assert len(made) == (2 if length == 9 else 4 if word == "bfv" else 6)
    assert not any(shares_randomness(ring, *pair) for pair in combinations(made, 2))
    # A seed that depends on the site and the sum alone is found out.
    monkeypatch.setattr(encrypted._EncryptingSite, "_seed", lambda self, offer, number, row: bytes(64))
    assert all(shares_randomness(ring, *pair) for pair in combinations(ciphertexts(), 2))


def within(item: object, seen: set[int]) -> Iterator[object]:
    """Everything reachable from an object, as an attribute, an element or a value in a closure."""
    if id(item) in seen or isinstance(item, str | bytes | int | float | type(None) | np.ndarray | type):
        return
    seen.add(id(item))
    yield item
    inside: list[object] = list(vars(item).values()) if hasattr(item, "__dict__") else []
    if isinstance(item, dict):
        inside += [*item.keys(), *item.values()]
    elif isinstance(item, list | tuple | set | frozenset):
        inside += list(item)
    inside += [cell.cell_contents for cell in getattr(item, "__closure__", None) or ()]
    for found in inside:
        yield from within(found, seen)


def secrets_in(item: object) -> list[str]:
    return [
        type(found).__name__
        for found in within(item, set())
        if isinstance(found, he.SecretKey | KeyHolder) or type(found).__name__ in {"SecretKey", "Decryptor"}
    ]


def test_no_object_of_the_hub_or_a_site_holds_a_secret_key() -> None:
    scheme, about, keys = scheme_of("bfv"), context(), holder()
    offer = keys.offer(scheme.ring, about)
    side = scheme.site_side(about, NAMES[0], ROOT, Trust(IDENTITIES[NAMES[0]], IDENTITIES[KEY_HOLDER].public, 3))
    side.reply(0, offer.inbox(0), vector(NAMES[0], about))
    hub = added(scheme, about, offer, NAMES)
    public = he.PublicKey(
        Packing.of(scheme.ring, about).ring, offer.offer[64 + 4 + 2 + 32 :]
    )  # after signature, minimum and exchange key
    assert secrets_in(keys), "the scan finds the secret where it is"
    for party in (side, hub, public, offer, scheme, hub.totals()):
        assert secrets_in(party) == []
