"""Counting opaque keys: against a plain count, over many random federations; and the group's secret."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.crypto.counting import (
    SKETCH,
    _places,
    _places_of,
    cells_for,
    estimate,
    fingerprints,
    peel,
    sketch,
    table,
)
from kohort.crypto.group_secret import _BOX, STEPS, GroupHub, GroupSite, least_agreed
from kohort.crypto.identity.parties import Identity
from kohort.crypto.sums.checked import CHECKS, proven_total, with_check
from kohort.crypto.sums.modular import P61, add
from kohort.errors import IntegrityError, RefusedError
from kohort.rng import Streams

SECRET = b"s" * 32
BOX = _BOX.size


def approved(sites: list[Counter[bytes]], cap: int, secret: bytes = SECRET, cells: int | None = None) -> set[bytes]:
    """What the protocol lets through, without the masks."""
    distinct = len(set().union(*sites)) if sites else 0
    size = cells_for(distinct) if cells is None else cells
    total = np.zeros(4 * size, dtype=np.uint64)
    for site in sites:
        if site:
            prints = fingerprints(secret, list(site))
            counts = np.minimum(np.array(list(site.values())), cap)
            total = add(total, table(prints, counts, size), P61)
    counted = peel(total, size)
    good = {(int(f), int(h)) for f, h, n in zip(counted.f, counted.h, counted.totals, strict=True) if n >= cap}
    result = set()
    for key in set().union(*sites) if sites else set():
        prints = fingerprints(secret, [key])
        if (int(prints.f[0]), int(prints.h[0])) in good:
            result.add(key)
    return result


def plain(sites: list[Counter[bytes]], cap: int) -> set[bytes]:
    total: Counter[bytes] = Counter()
    for site in sites:
        total.update(site)
    return {key for key, count in total.items() if count >= cap}


federations = st.lists(
    st.dictionaries(st.integers(0, 60).map(lambda n: str(n).encode()), st.integers(1, 12), max_size=30).map(Counter),
    min_size=3,
    max_size=8,
)


@given(federations, st.integers(1, 20), st.binary(min_size=32, max_size=32))
@examples(40, 150)
def test_no_false_approval_and_hardly_a_false_refusal(sites: list[Counter[bytes]], cap: int, secret: bytes) -> None:
    assert approved(sites, cap, secret) <= plain(sites, cap)


def test_over_a_thousand_federations_at_most_one_in_a_hundred_keys_is_withheld() -> None:
    generator = np.random.default_rng(4)
    wanted = lost = false = 0
    for number in range(1000):
        keys = [str(key).encode() for key in range(int(generator.integers(1, 40)))]
        sites = [
            Counter({key: int(generator.integers(1, 6)) for key in keys if generator.random() < 0.6}) for _ in range(4)
        ]
        secret = number.to_bytes(32, "little")
        right, got = plain(sites, 8), approved(sites, 8, secret)
        wanted, lost, false = wanted + len(right), lost + len(right - got), false + len(got - right)
    assert false == 0
    assert lost <= 0.01 * wanted


@given(st.lists(st.integers(1, P61 - 1), min_size=1, max_size=20), st.integers(1, 10_000))
def test_the_places_of_one_key_are_those_of_many(keys: list[int], size: int) -> None:
    together = np.stack(_places(np.array(keys, dtype=np.uint64), 3 * size), axis=1)
    assert together.tolist() == [_places_of(key, 3 * size) for key in keys]


def test_ten_thousand_keys_peel() -> None:
    generator = np.random.default_rng(5)
    keys = [str(key).encode() for key in range(10_000)]
    sites = [
        Counter({key: int(count) for key, count in zip(keys, generator.integers(0, 9, 10_000), strict=True) if count})
        for _ in range(3)
    ]
    assert approved(sites, 10) == plain(sites, 10)


def test_a_table_that_is_too_small_withholds_and_never_approves_wrongly() -> None:
    keys = [str(key).encode() for key in range(500)]
    sites = [Counter(dict.fromkeys(keys, 3)) for _ in range(3)]
    assert approved(sites, 10, cells=300) == set()
    assert approved(sites, 9, cells=300) <= plain(sites, 9)


def test_two_keys_in_one_cell_are_not_taken_for_one() -> None:
    """The check must be able to fail: with a wrong Q, as if it were not looked at, a mixed cell would pass."""
    prints = fingerprints(SECRET, [b"a", b"b"])
    total = table(prints, np.array([5, 5]), 3)  # one cell per table: both keys in all of them
    assert len(peel(total, 3).f) == 0
    forged = total.reshape(4, 3).copy()
    for cell in range(3):
        count, once = int(forged[0, cell]), int(forged[1, cell])
        forged[2, cell] = once * once * pow(count, -1, P61) % P61
    counted = peel(forged.reshape(-1), 3)
    assert not set(counted.f.tolist()) & set(prints.f.tolist())


@pytest.mark.parametrize("keys", [10, 1000, 20_000])
def test_the_sketch_tells_about_how_many_keys_there_are(keys: int) -> None:
    prints = fingerprints(SECRET, [str(key).encode() for key in range(keys)])
    found = estimate(add(sketch(prints), sketch(prints), P61))
    assert keys <= found <= 1.3 * keys + 40


def group(count: int, strangers: frozenset[str] = frozenset()) -> dict[str, GroupSite]:
    """The sites of a group; nobody has `strangers` on the roster."""
    names = tuple(f"s{i}" for i in range(count))
    identities = {name: Identity.from_secret(name, Streams.seeded(i).bytes("id")) for i, name in enumerate(names)}
    roster = {name: identity.public for name, identity in identities.items() if name not in strangers}
    return {
        name: GroupSite(names, name, b"run", Streams.seeded(i), identities[name], roster.get, number=i)
        for i, name in enumerate(names)
    }


def make_secrets(count: int, tamper: object = None, silent: dict[str, int] | None = None) -> list[bytes | None]:
    sites = group(count)
    names = tuple(sites)
    hub = GroupHub(names)
    inboxes = dict.fromkeys(names, b"")
    for step in range(STEPS):
        answers = {
            name: sites[name].reply(step, inbox)
            for name, inbox in inboxes.items()
            if (silent or {}).get(name, 99) > step
        }
        inboxes = hub.route(step, answers)
        if callable(tamper):
            inboxes = tamper(step, inboxes)
    return [site.secret for name, site in sites.items() if name not in (silent or {})]


def test_all_sites_derive_one_secret_and_others_another() -> None:
    secrets = make_secrets(5)
    assert len(set(secrets)) == 1
    assert secrets[0] is not None
    assert make_secrets(6)[0] != secrets[0]


def test_every_site_hears_what_the_others_tell() -> None:
    sites = group(4)
    boxes = GroupHub(tuple(sites)).route(0, {name: site.reply(0, b"") for name, site in sites.items()})
    for name, site in sites.items():
        site.reply(1, boxes[name])
        assert site.numbers == {"s0": 0, "s1": 1, "s2": 2, "s3": 3}


def test_a_site_that_leaves_before_contributing_or_comparing_is_left_out() -> None:
    for step in (0, 1):
        secrets = make_secrets(5, silent={"s4": step})
        assert len(set(secrets)) == 1
        assert None not in secrets


@pytest.mark.parametrize(("sites", "colluders", "least"), [(3, 1, 3), (5, 1, 4), (10, 1, 7), (10, 8, 10), (4, 2, 4)])
def test_two_groups_that_agree_have_an_honest_site_in_common(sites: int, colluders: int, least: int) -> None:
    assert least_agreed(sites, colluders) == least
    assert 2 * least - sites > colluders or least == sites


def test_a_hub_that_keeps_a_contribution_back_is_noticed() -> None:
    def keep_back(step: int, inboxes: dict[str, bytes]) -> dict[str, bytes]:
        return {**inboxes, "s0": inboxes["s0"][:-BOX]} if step == 0 else inboxes

    with pytest.raises(IntegrityError, match="same secret"):
        make_secrets(5, keep_back)


def test_an_altered_contribution_is_noticed_and_two_sites_are_too_few() -> None:
    def alter(place: int) -> object:
        def change(step: int, inboxes: dict[str, bytes]) -> dict[str, bytes]:
            data = bytearray(inboxes.get("s0", bytes(BOX)))
            data[place] ^= 1
            return {**inboxes, "s0": bytes(data)} if step == 0 else inboxes

        return change

    for place in (10, BOX - 1):  # in the sealed part, and in the signature
        with pytest.raises(IntegrityError, match="altered"):
            make_secrets(4, alter(place))
    with pytest.raises(RefusedError, match="fewer than three"):
        make_secrets(2)


def test_a_site_that_is_on_nobodys_roster_gets_nothing() -> None:
    with pytest.raises(RefusedError, match="'s3' is not on this site's roster"):
        group(4, strangers=frozenset({"s3"}))


@pytest.mark.parametrize("length", [1, 7, 100])
def test_a_checked_total_passes_and_everything_else_does_not(length: int) -> None:
    generator = np.random.default_rng(length)
    sites = ("a", "b", "c")
    vectors = {site: generator.integers(0, P61, length).astype(np.uint64) for site in sites}
    added = np.zeros(length + CHECKS, dtype=np.uint64)
    for site, vector in vectors.items():
        added = add(added, with_check(SECRET, b"t", site, vector), P61)
    assert (proven_total(SECRET, b"t", sites, added) == added[:-CHECKS]).all()
    one_more = added.copy()
    one_more[0] = (int(one_more[0]) + 1) % P61
    thrice = np.asarray([3 * int(number) % P61 for number in added], dtype=np.uint64)
    less = add(added, np.asarray([P61 - int(n) for n in with_check(SECRET, b"t", "c", vectors["c"])], np.uint64), P61)
    lies = [
        (b"t", sites, one_more),
        (b"t", sites, thrice),
        (b"t", sites, less),
        (b"t", ("a", "b"), added),
        (b"t", (*sites, "d"), added),
        (b"t", (*sites, "a"), added),
        (b"u", sites, added),
        (b"t", sites, added[:0]),
        (b"t", sites, np.zeros(length + CHECKS, dtype=np.uint64)),
        (b"t", sites, np.append(added[:-1], np.uint64(int(added[-1]) + P61))),
    ]
    for transcript, listed, total in lies:
        with pytest.raises(IntegrityError):
            proven_total(SECRET, transcript, listed, total)
    assert (proven_total(SECRET, b"t", ("b", "a"), less) == less[:-CHECKS]).all()


def test_a_full_sketch_tells_of_many_keys_and_an_empty_one_of_hardly_any() -> None:
    full, empty = np.ones(SKETCH, dtype=np.uint64), np.zeros(SKETCH, dtype=np.uint64)
    assert estimate(full) > estimate(np.where(np.arange(SKETCH) == 0, 0, full).astype(np.uint64)) > SKETCH
    assert estimate(empty) == 4
