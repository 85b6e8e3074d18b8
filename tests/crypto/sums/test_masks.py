"""Double masking: the total opens, nothing else does, and every deviation is noticed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.sums import routed

from kohort.crypto.identity.parties import Identity
from kohort.crypto.sums.masks import SCHEME, colluders_for, least_survivors, neighbours_of, threshold_for
from kohort.crypto.sums.modular import P61, add, multiply, subtract
from kohort.crypto.sums.scheme import FixedPoint, SiteSide, SumContext, Trust, find_scheme
from kohort.crypto.sums.shamir import PRIME, combine, split
from kohort.errors import IntegrityError, KohortError, RefusedError, SiteError
from kohort.privacy.guarantee import SecureSum
from kohort.rng import Streams

Tamper = Callable[[int, str, bytes], bytes | None]


def context(count: int, length: int = 5) -> SumContext:
    return SumContext(
        run="r",
        round=1,
        request="test",
        sites=tuple(f"s{i}" for i in range(count)),
        length=length,
    )


def fixed(made: SumContext) -> FixedPoint:
    return FixedPoint(bound=100.0, scale=2**20, sites=len(made.sites))


def vectors(made: SumContext, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {site: generator.uniform(-100, 100, made.length) for site in made.sites}


@cache
def identity(site: str) -> Identity:
    return Identity.from_secret(site, Streams.seeded(7).bytes("identity", site))


def site_side(made: SumContext, site: str, *, strangers: Collection[str] = ()) -> SiteSide:
    """A site that has everybody but `strangers` on its roster."""
    return SCHEME.site_side(
        made,
        site,
        Streams.seeded(made.sites.index(site)),
        Trust(identity(site), None, 3, lambda name: None if name in strangers else identity(name).public),
    )


def converse(
    made: SumContext,
    values: dict[str, np.ndarray],
    *,
    drops: dict[str, int] | None = None,
    tamper: Tamper | None = None,
    strangers: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Run the conversation; `drops` says after how many steps a site falls silent."""
    sides = {site: site_side(made, site, strangers=strangers.get(site, ())) for site in made.sites}
    hub = SCHEME.hub_side(made)
    inboxes = dict.fromkeys(made.sites, b"")
    for step in range(SCHEME.steps):
        replies = {}
        for site, inbox in inboxes.items():
            if (drops or {}).get(site, 99) <= step:
                continue
            vector = fixed(made).encode(values[site]) if step == SCHEME.contributes_at else None
            reply = sides[site].reply(step, inbox, vector)
            changed = reply if tamper is None else tamper(step, site, reply)
            if changed is not None:
                replies[site] = changed
        inboxes = routed(hub, step, replies)
    total, survivors = hub.total()
    return fixed(made).decode(total), survivors


@pytest.mark.parametrize("count", [3, 4, 10, 33])
def test_the_total_is_the_plain_sum_to_the_last_bit(count: int) -> None:
    made = context(count)
    values = vectors(made)
    total, survivors = converse(made, values)
    plain = sum((fixed(made).encode(value) for value in values.values()), np.zeros(made.length, dtype=np.uint64))
    assert np.array_equal(total, fixed(made).decode(plain))
    assert survivors == made.sites


def test_above_a_hundred_sites_a_sparse_graph_gives_the_same_total() -> None:
    made = context(130, length=3)
    values = vectors(made)
    gone = {f"s{i}": 1 for i in range(0, 39)}  # 30 % vanish after the key exchange
    total, survivors = converse(made, values, drops=gone)
    assert set(survivors) == set(made.sites) - set(gone)
    np.testing.assert_allclose(total, sum(values[site] for site in survivors), atol=1e-3)


@given(st.integers(4, 12), st.integers(0, 2**32), st.data())
@settings(max_examples=25, deadline=None)
def test_drop_outs_give_the_survivors_sum_or_a_clean_abort(count: int, seed: int, data: st.DataObject) -> None:
    made = context(count, length=3)
    values = vectors(made, seed)
    drops = {site: data.draw(st.sampled_from([0, 1, 2, 3, 99])) for site in made.sites}
    try:
        total, survivors = converse(made, values, drops=drops)
    except (SiteError, RefusedError, IntegrityError):
        silent = [site for site, step in drops.items() if step <= 3]
        assert count - len(silent) < max(threshold_for(count), least_survivors(count))
        return
    assert set(survivors) == {site for site, step in drops.items() if step > 1}
    np.testing.assert_allclose(total, sum(values[site] for site in survivors), atol=1e-3)


def test_what_the_hub_sees_of_one_site_looks_uniform_and_two_inputs_cannot_be_told_apart() -> None:
    made = context(3, length=2000)
    seen: dict[int, np.ndarray] = {}
    for number in (0, 1):
        values = {site: np.full(made.length, 50.0 * number) for site in made.sites}

        def watch(step: int, site: str, reply: bytes, number: int = number) -> bytes:
            if step == 1 and site == "s0":
                seen[number] = np.frombuffer(reply, dtype="<u8")
            return reply

        converse(made, values, tamper=watch)
    for masked in seen.values():
        counts = np.bincount((masked >> np.uint64(60)).astype(int), minlength=16)
        assert ((counts - 125) ** 2 / 125).sum() < 45  # chi-square, 15 degrees, far in the tail
    bare = fixed(made).encode(np.full(made.length, 50.0))
    counts = np.bincount((bare >> np.uint64(60)).astype(int), minlength=16)
    assert ((counts - 125) ** 2 / 125).sum() > 45  # the test does notice an unmasked vector


def test_a_late_vector_of_a_site_declared_dropped_stays_masked() -> None:
    made = context(6, length=4)
    values = vectors(made)
    late: dict[str, bytes] = {}

    def hold_back(step: int, site: str, reply: bytes) -> bytes | None:
        if step == 1 and site == "s1":
            late[site] = reply
            return None
        return reply

    total, survivors = converse(made, values, tamper=hold_back)
    assert "s1" not in survivors
    # The hub now knows s1's pairwise masks. What is left of its late vector is still under its self mask.
    everything = fixed(made).encode(values["s1"])
    assert not np.array_equal(np.frombuffer(late["s1"], dtype="<u8"), everything)
    side = site_side(made, "s1")
    assert side.claim(1, 10) == SecureSum(sites=6, threshold=5, colluders=1, opens="hub: the total")
    np.testing.assert_allclose(total, sum(values[site] for site in survivors), atol=1e-3)


def test_a_site_hands_out_one_kind_of_share_for_each_peer_and_opens_once() -> None:
    made = context(6, length=2)
    opened: dict[str, bytes] = {}

    def watch(step: int, site: str, reply: bytes) -> bytes | None:
        if step == 1 and site == "s5":
            return None
        if step == 3:
            opened[site] = reply
        return reply

    converse(made, vectors(made), tamper=watch)
    for reply in opened.values():
        indices = [int.from_bytes(reply[at : at + 4], "little") for at in range(0, len(reply), 21)]
        kinds = {index: reply[at + 4] for index, at in zip(indices, range(0, len(reply), 21), strict=True)}
        assert len(set(indices)) == len(indices)
        assert kinds[5] == 0
        assert all(kind == 1 for index, kind in kinds.items() if index != 5)


def test_a_hub_that_asks_for_a_second_survivor_list_is_refused() -> None:
    made = context(4)
    sides = {site: site_side(made, site) for site in made.sites}
    hub = SCHEME.hub_side(made)
    inboxes = dict.fromkeys(made.sites, b"")
    for step in range(2):
        replies = {
            site: sides[site].reply(step, inbox, np.zeros(5, dtype=np.uint64) if step == 1 else None)
            for site, inbox in inboxes.items()
        }
        inboxes = routed(hub, step, replies)
    sides["s0"].reply(2, inboxes["s0"], None)
    with pytest.raises(IntegrityError, match="second survivor list"):
        sides["s0"].reply(2, np.asarray([0, 1, 2], dtype="<u4").tobytes(), None)


@pytest.mark.parametrize("step", [0, 2, 3])
def test_altered_messages_are_refused(step: int) -> None:
    made = context(5)

    def flip(at: int, site: str, reply: bytes) -> bytes:
        if at == step and site in {"s1", "s2", "s3"}:
            return reply[:-1] + bytes([reply[-1] ^ 1])
        return reply

    with pytest.raises((IntegrityError, SiteError)):
        converse(made, vectors(made), tamper=flip)


def test_sums_modulo_the_prime_keep_their_meaning() -> None:
    made = SumContext(run="r", round=1, request="prime", sites=("a", "b", "c", "d"), length=50, modulus=P61)
    generator = np.random.default_rng(2)
    values = {site: generator.integers(0, P61, size=50, dtype=np.uint64) for site in made.sites}
    sides = {site: site_side(made, site) for site in made.sites}
    hub = SCHEME.hub_side(made)
    inboxes = dict.fromkeys(made.sites, b"")
    for step in range(SCHEME.steps):
        replies = {
            site: sides[site].reply(step, inbox, values[site] if step == SCHEME.contributes_at else None)
            for site, inbox in inboxes.items()
            if not (site == "b" and step >= SCHEME.contributes_at)
        }
        inboxes = routed(hub, step, replies)
    total, survivors = hub.total()
    assert survivors == ("a", "c", "d")
    assert total.tolist() == [sum(int(values[site][i]) for site in survivors) % P61 for i in range(50)]


@given(st.lists(st.tuples(st.integers(0, P61 - 1), st.integers(0, P61 - 1)), min_size=1, max_size=20))
def test_modular_arithmetic_equals_pythons(pairs: list[tuple[int, int]]) -> None:
    left, right = (np.array(side, dtype=np.uint64) for side in zip(*pairs, strict=True))
    assert multiply(left, right).tolist() == [a * b % P61 for a, b in pairs]
    assert add(left, right, P61).tolist() == [(a + b) % P61 for a, b in pairs]
    assert subtract(left, right, P61).tolist() == [(a - b) % P61 for a, b in pairs]


def test_too_few_sites_are_refused() -> None:
    with pytest.raises(RefusedError, match="fewer than three"):
        site_side(context(2), "s0")
    with pytest.raises(RefusedError, match="nobody to mask with"):
        SCHEME.site_side(context(3), "s0", Streams.seeded(0))
    with pytest.raises(KohortError):
        converse(context(6), vectors(context(6)), drops=dict.fromkeys(["s0", "s1", "s2", "s3"], 1))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_keys_the_hub_swapped_are_found_out(part: int) -> None:
    """Each of the three announced keys is covered by the seal of every share."""
    made = context(5)

    def swap(step: int, site: str, reply: bytes) -> bytes:
        if step == 0 and site == "s2":
            at = 32 * part
            return reply[:at] + bytes([reply[at] ^ 1]) + reply[at + 1 :]
        return reply

    with pytest.raises(IntegrityError, match="share of site 's2' was altered"):
        converse(made, vectors(made), tamper=swap)


def test_strangers_get_no_share_and_the_total_is_still_right() -> None:
    made = context(9)
    values = vectors(made)
    shares = site_side(made, "s0", strangers=["s4"]).reply(0, b"", None)
    assert len(shares) == len(site_side(made, "s0").reply(0, b"", None)) - 52
    total, survivors = converse(made, values, strangers={"s0": ["s4"]}, drops={"s4": 1})
    assert set(survivors) == set(made.sites) - {"s4"}
    np.testing.assert_allclose(total, sum(values[site] for site in survivors), atol=1e-3)
    with pytest.raises(RefusedError, match="on this site's roster"):
        site_side(made, "s0", strangers=["s4", "s5", "s6"]).reply(0, b"", None)


def test_strangers_do_not_count_among_the_survivors() -> None:
    made = context(10)  # five must survive
    side = site_side(made, "s0", strangers=["s7", "s8", "s9"])
    with pytest.raises(RefusedError, match="of the roster"):
        side.reply(2, np.asarray([0, 1, 2, 3, 7, 8, 9], dtype="<u4").tobytes(), None)
    assert side.reply(2, np.asarray([0, 1, 2, 3, 4], dtype="<u4").tobytes(), None)


def test_a_vector_is_masked_once() -> None:
    """Twice, with fewer peers the second time, the difference would be the masks with the others."""
    made = context(4)
    sides = {site: site_side(made, site) for site in made.sites}
    inboxes = routed(SCHEME.hub_side(made), 0, {site: side.reply(0, b"", None) for site, side in sides.items()})
    vector = np.zeros(made.length, dtype=np.uint64)
    few, all_of_them = inboxes["s0"][: len(inboxes["s0"]) // 3 * 2], inboxes["s0"]
    assert sides["s0"].reply(1, few, vector)
    with pytest.raises(IntegrityError, match="a second time"):
        sides["s0"].reply(1, all_of_them, vector)


def test_no_two_sums_share_a_key() -> None:
    """A hub that names other sites for the same sum meets other seeds, so shares of one open nothing of the other."""
    first, second = context(4), context(5)
    announced = [site_side(made, "s0").reply(0, b"", None)[:96] for made in (first, second)]
    parts = [part[at : at + 32] for part in announced for at in (0, 32, 64)]
    assert len(set(parts)) == 6


def test_overflow_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(RefusedError, match="outside the public bound"):
        fixed(context(3)).encode(np.array([101.0]))
    with pytest.raises(RefusedError, match="64 bits"):
        FixedPoint(bound=1e9, scale=2**40, sites=10)
    with pytest.raises(RefusedError):
        fixed(context(3)).encode(np.array([np.nan]))


@given(st.integers(0, PRIME - 1), st.integers(2, 8), st.integers(0, 5), st.randoms(use_true_random=False))
def test_shares_open_at_the_threshold_and_not_below(secret: int, threshold: int, extra: int, random: object) -> None:
    draw = random.randrange  # type: ignore[attr-defined]
    points = list(range(1, threshold + extra + 1))
    shares = split(secret, points, threshold, [draw(PRIME) for _ in range(threshold - 1)])
    chosen = dict(random.sample(sorted(shares.items()), threshold))  # type: ignore[attr-defined]
    assert combine(chosen, threshold) == secret
    with pytest.raises(IntegrityError):
        combine(dict(list(chosen.items())[:-1]), threshold)


def test_the_graph_is_symmetric_and_regular() -> None:
    graph = neighbours_of(500, b"s" * 32)
    assert {len(found) for found in graph} == {80}
    assert all(site in graph[other] for site, found in enumerate(graph) for other in found)
    assert threshold_for(500) == 29
    assert colluders_for(500) == 50


def test_the_scheme_is_discovered() -> None:
    assert find_scheme("masks") is SCHEME
