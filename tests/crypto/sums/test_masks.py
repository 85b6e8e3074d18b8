"""Double masking: the total opens to the last bit, drop-outs are taken out, and altered messages are noticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.masks import Federation, confirmed, places
from tests.support.sums import routed

from kohort.crypto.sums.mask_hub import MaskingHub
from kohort.crypto.sums.mask_keys import least_sites, threshold_for
from kohort.crypto.sums.mask_messages import CONFIRMED, SharesMessage
from kohort.crypto.sums.masks import SCHEME
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import FixedPoint, Integers, SumContext, find_scheme
from kohort.crypto.sums.shamir import LIMBS
from kohort.errors import IntegrityError, KohortError, RefusedError, SiteError
from kohort.privacy.guarantee import Public, SecureSum
from kohort.rng import Streams

Tamper = Callable[[int, str, bytes], bytes | None]


@cache
def federation(count: int, colluders: int = 1) -> Federation:
    return Federation(count, colluders).set_up()


def converse(
    made: Federation,
    context: SumContext,
    vectors: Mapping[str, Integers],
    *,
    drops: Mapping[str, int] | None = None,
    tamper: Tamper = lambda _step, _site, reply: reply,
) -> tuple[Integers, tuple[str, ...]]:
    """Run the conversation; `drops` says after how many steps a site falls silent."""
    sides, hub, inboxes = made.sides(context), MaskingHub(context), dict.fromkeys(made.keys, b"")
    for step in range(SCHEME.steps):
        replies = {}
        for site, inbox in inboxes.items():
            if (drops or {}).get(site, 99) > step:
                changed = tamper(step, site, sides[site].reply(step, inbox, vectors[site]))
                if changed is not None:
                    replies[site] = changed
        inboxes = routed(hub, step, replies)
    return hub.total()


def plain(vectors: Mapping[str, Integers], sites: tuple[str, ...], modulus: int) -> list[int]:
    columns = zip(*(vectors[site].tolist() for site in sites), strict=True)
    return [sum(column) % (modulus or 2**64) for column in columns]


@pytest.mark.parametrize("modulus", [0, P61])
@pytest.mark.parametrize("count", [3, 4, 10, 33])
def test_the_total_is_the_plain_sum_to_the_last_bit(count: int, modulus: int) -> None:
    made = federation(count)
    context = made.context(modulus=modulus)
    vectors = made.vectors(context)
    total, survivors = converse(made, context, vectors)
    assert survivors == made.names
    assert total.tolist() == plain(vectors, survivors, modulus)


def test_many_sums_run_over_one_agreement() -> None:
    made = federation(5)
    for number in range(3):
        context = made.context(round=number)
        vectors = made.vectors(context, seed=number)
        assert converse(made, context, vectors)[0].tolist() == plain(vectors, made.names, P61)


def test_a_session_over_some_of_the_plans_sites_adds_their_vectors() -> None:
    made = Federation(8).set_up(["s0", "s2", "s3", "s5", "s7"])
    context = made.context()
    vectors = made.vectors(context)
    total, survivors = converse(made, context, vectors)
    assert survivors == ("s0", "s2", "s3", "s5", "s7")
    assert total.tolist() == plain(vectors, survivors, P61)


def test_sites_of_the_fips_suite_add_up() -> None:
    made = Federation(3, suite="fips").set_up()
    context = made.context()
    vectors = made.vectors(context)
    assert converse(made, context, vectors)[0].tolist() == plain(vectors, made.names, P61)


@given(st.integers(4, 12), st.integers(0, 2), st.integers(0, 2**32), st.data())
@examples(20, 40)
def test_drop_outs_give_the_survivors_sum_or_a_clean_abort(
    count: int, colluders: int, seed: int, data: st.DataObject
) -> None:
    made = federation(count, colluders)
    context = made.context(length=3)
    vectors = made.vectors(context, seed)
    drops = {site: data.draw(st.sampled_from([0, 1, 2, 3, 99, 99, 99])) for site in made.names}
    left = sum(step > 3 for step in drops.values())
    if left < threshold_for(count, colluders):
        with pytest.raises(SiteError, match="in a secure sum"):
            converse(made, context, vectors, drops=drops)
        return
    total, survivors = converse(made, context, vectors, drops=drops)
    assert survivors == tuple(site for site, step in drops.items() if step > 1)
    assert total.tolist() == plain(vectors, survivors, P61)


def test_what_the_hub_sees_of_one_site_looks_uniform_whatever_the_vector() -> None:
    made = federation(3)
    context = made.context(length=2000, modulus=0)

    def chi_square(words: Integers) -> float:
        counts = np.bincount((words >> np.uint64(60)).astype(int), minlength=16)
        return float(((counts - 125) ** 2 / 125).sum())  # 15 degrees of freedom

    bare = np.full(2000, 50, dtype=np.uint64)
    assert chi_square(bare) > 45, "the test notices an unmasked vector"
    for vector in (bare, np.zeros(2000, dtype=np.uint64)):
        sides, _, inboxes = made.begin(context, dict.fromkeys(made.names, vector), until=1)
        seen = np.frombuffer(sides["s0"].reply(1, inboxes["s0"], vector), dtype="<u8")
        assert chi_square(seen) < 45


def test_a_late_vector_of_a_site_declared_dropped_stays_under_its_self_mask() -> None:
    made = federation(6)
    context = made.context()
    vectors = made.vectors(context)
    late: dict[str, bytes] = {}

    def hold_back(step: int, site: str, reply: bytes) -> bytes | None:
        if step == 1 and site == "s1":
            late[site] = reply
            return None
        return reply

    total, survivors = converse(made, context, vectors, tamper=hold_back)
    assert survivors == ("s0", "s2", "s3", "s4", "s5")
    assert total.tolist() == plain(vectors, survivors, P61)
    # The difference of the total with and without the late vector is masked.
    with_late = (total.astype(object) + np.frombuffer(late["s1"], dtype="<u8").astype(object)) % P61
    assert not set(with_late.tolist()) & set(plain(vectors, made.names, P61))


def test_one_kind_of_share_leaves_for_each_site_and_it_leaves_once() -> None:
    made = federation(6)
    context = made.context()
    sides, hub, inboxes = made.begin(context, vectors := made.vectors(context), until=1)
    vector_replies = {site: sides[site].reply(1, inbox, vectors[site]) for site, inbox in inboxes.items()}
    held = {site: sides[site].shares.copy() for site in made.names}  # type: ignore[attr-defined]
    inboxes = routed(hub, 1, {site: reply for site, reply in vector_replies.items() if site != "s5"})
    inboxes = routed(hub, 2, {site: sides[site].reply(2, inbox, None) for site, inbox in inboxes.items()})
    for site, inbox in inboxes.items():
        opened = np.frombuffer(sides[site].reply(3, inbox, None), dtype="<u8").reshape(6, LIMBS)
        assert (opened[:5] == held[site][:5, :LIMBS]).all(), "self seeds of survivors"
        assert (opened[5] == held[site][5, LIMBS:]).all(), "the wrap key of the one that dropped"
        with pytest.raises(IntegrityError, match="opens once"):
            sides[site].reply(3, inbox, None)


def test_steps_come_in_order_and_once() -> None:
    made = federation(4)
    context = made.context()
    sides, _, inboxes = made.begin(context, vectors := made.vectors(context), until=1)
    fresh, begun, vector = made.side("s0", context), sides["s0"], vectors["s0"]
    for step in (1, 2, 3, 4):
        with pytest.raises(IntegrityError):
            fresh.reply(step, inboxes["s0"], vector)
    with pytest.raises(IntegrityError, match="second time"):
        begun.reply(0, b"", None)
    for wrong in (None, vector[:-1]):
        with pytest.raises(IntegrityError, match="agreed length"):
            begun.reply(1, inboxes["s0"], wrong)
    begun.reply(1, inboxes["s0"], vector)
    with pytest.raises(IntegrityError, match="masked once"):
        begun.reply(1, inboxes["s0"], vector)
    with pytest.raises(IntegrityError, match="opens once"):
        begun.reply(3, confirmed({}), None)


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_altered_messages_give_no_total(step: int) -> None:
    made = federation(5)
    context = made.context()

    def flip(at: int, site: str, reply: bytes) -> bytes:
        if at == step and site in {"s1", "s2"}:
            return reply[:-1] if step == 1 else reply[:-1] + bytes([reply[-1] ^ 1])
        return reply

    with pytest.raises(IntegrityError):
        converse(made, context, made.vectors(context), tamper=flip)


@pytest.mark.parametrize("part", ["seed_commitment", "wrap_commitment", "deposit"])
def test_a_recovered_secret_must_be_the_one_committed_to(part: str) -> None:
    made = federation(6)
    context = made.context()
    vectors = made.vectors(context)
    drops = {} if part == "seed_commitment" else {"s2": 1}

    def change(step: int, site: str, reply: bytes) -> bytes:
        if step or site != "s2":
            return reply
        shares = SharesMessage.unpack(reply, 6)
        old: bytes = getattr(shares, part)
        return reply.replace(old, bytes([old[0] ^ 1]) + old[1:])

    with pytest.raises(IntegrityError, match=r"committed to|deposit"):
        converse(made, context, vectors, drops=drops, tamper=change)
    assert converse(made, context, vectors, drops=drops)[0].tolist() == plain(
        vectors, tuple(site for site in made.names if site not in drops), P61
    )


def test_an_opening_share_that_is_altered_gives_no_total() -> None:
    made = federation(5)
    context = made.context()

    def lie(step: int, site: str, reply: bytes) -> bytes:
        return bytes([reply[0] ^ 1]) + reply[1:] if step == 3 and site == "s1" else reply

    with pytest.raises(IntegrityError, match="committed to"):
        converse(made, context, made.vectors(context), tamper=lie)


def test_what_no_honest_site_sends_is_named_at_the_hub() -> None:
    made = federation(4)
    context = made.context()
    _, hub, _ = made.begin(context, made.vectors(context), until=2)
    with pytest.raises(IntegrityError, match="another size"):
        hub.take(0, "s0", b"short")
    with pytest.raises(IntegrityError, match="not asked for"):
        hub.take(1, "s0", bytes(40))
    with pytest.raises(IntegrityError, match="other survivors"):
        hub.take(2, "s0", bytes(16))
    with pytest.raises(IntegrityError, match="other sites"):
        hub.take(3, "s0", bytes(160))
    other = MaskingHub(context)
    other.shares[0] = hub.shares[0]
    with pytest.raises(IntegrityError, match="outside the agreed range"):
        other.take(1, "s0", b"\xff" * 40)
    with pytest.raises(SiteError, match="not opened"):
        other.total()


def test_a_site_that_sends_nothing_usable_is_not_waited_for_in_vain() -> None:
    with pytest.raises(SiteError, match="0 of 4 sites shared"):
        MaskingHub(federation(4).context()).inboxes(0)


def test_the_threshold_follows_members_and_colluders() -> None:
    table = {(3, 1): 3, (4, 1): 3, (5, 1): 4, (10, 1): 7, (10, 4): 8, (10, 8): 10, (500, 1): 334, (500, 200): 351}
    assert {key: threshold_for(*key) for key in table} == table
    for count in range(3, 60):
        for colluders in range(count - 1):
            threshold = threshold_for(count, colluders)
            assert 2 * threshold - count > colluders, "two groups share an honest site"
            assert threshold <= count


def test_claims_name_the_session_the_threshold_and_the_plans_colluders() -> None:
    made = federation(10, 4)
    side = made.side("s0", made.context())
    assert side.claim(1, 50) == SecureSum(sites=10, threshold=8, colluders=4, opens="hub: the total")
    assert side.claim(0, 50) == side.claim(3, 50) == side.claim(1, 50)
    assert isinstance(side.claim(2, 50), Public)
    assert SCHEME.claim(3, 50) == SecureSum(sites=3, threshold=3, colluders=1, opens="hub: the total")


def test_the_least_number_of_sites_is_the_largest_of_all_minima() -> None:
    assert least_sites(Federation(3, 0, 2).trust("s0")) == 3
    assert least_sites(Federation(9, 4, 2).trust("s0")) == 6
    assert least_sites(Federation(9, 1, 7).trust("s0")) == 7
    assert least_sites(Federation(9, 1, 3, 8).trust("s0")) == 8


@pytest.mark.parametrize("made", [Federation(9, 1, 8), Federation(9, 1, 3, 8)])
def test_the_sites_own_minimum_and_the_plans_quorum_hold_for_both_lists(made: Federation) -> None:
    made.set_up()
    context = made.context()
    assert made.keys["s0"].threshold == 7
    vectors = made.vectors(context)
    sides, _, _ = made.begin(context, vectors, until=2)
    with pytest.raises(RefusedError, match="7 sites are left in a secure sum, 8 are needed"):
        sides["s0"].reply(2, places(*range(7)), None)
    assert sides["s0"].reply(2, places(*range(8)), None)
    with pytest.raises(RefusedError, match="7 sites are left"):
        converse(made, context, vectors, drops={"s8": 0, "s7": 0})


def test_without_keys_of_a_set_up_nobody_masks() -> None:
    made = federation(3)
    context, trust = made.context(), made.trust("s0")
    with pytest.raises(RefusedError, match="nobody to mask with"):
        SCHEME.site_side(context, "s0", Streams.seeded(0), trust)
    with pytest.raises(RefusedError, match="nobody to mask with"):
        SCHEME.site_side(context, "s0", Streams.seeded(0), trust, made.keys["s1"])
    with pytest.raises(RefusedError, match="other sites"):
        SCHEME.site_side(context, "s0", Streams.seeded(0), trust, made.made_keys("s0"))
    with pytest.raises(RefusedError, match="other sites"):
        made.side("s0", made.context(sites=("s0", "s1", "s3")))


def test_a_restarted_site_gives_the_same_bytes() -> None:
    made = federation(5)
    context = made.context()
    vectors = made.vectors(context)
    sides, _, inboxes = made.begin(context, vectors, until=0)
    first, hub = sides["s0"], MaskingHub(context)
    other = Federation(5).set_up()
    again = other.side("s0", context)
    for step in range(SCHEME.steps):
        replies = {site: sides[site].reply(step, inbox, vectors[site]) for site, inbox in inboxes.items()}
        assert again.reply(step, inboxes["s0"], vectors["s0"]) == replies["s0"]
        inboxes = routed(hub, step, replies)
    assert again is not first


@pytest.mark.parametrize("inbox", [b"", b"\1", b"\3\0\0\0" + bytes(12), places(0, 2, 1), places(0, 1, 2, 9), places()])
def test_lists_that_cannot_be_right_are_refused(inbox: bytes) -> None:
    made = federation(4)
    context = made.context()
    sides, _, _ = made.begin(context, made.vectors(context), until=2)
    with pytest.raises(KohortError, match="cannot be right"):
        sides["s0"].reply(2, inbox, None)


def test_confirmations_of_another_size_are_refused() -> None:
    made = federation(4)
    context = made.context()
    sides, _, inboxes = made.begin(context, made.vectors(context), until=3)
    with pytest.raises(IntegrityError, match="another size"):
        sides["s0"].reply(3, inboxes["s0"] + b"x", None)
    assert len(inboxes["s0"]) == 3 * CONFIRMED.itemsize
    assert sides["s0"].reply(3, inboxes["s0"], None)


def test_what_would_overflow_is_clipped_and_settings_without_headroom_are_refused() -> None:
    fixed = FixedPoint(bound=100.0, scale=2**20, sites=3)
    numbers = fixed.decode(fixed.encode(np.array([101.0, -1e300, np.nan, np.inf, 1.5])))
    assert numbers.tolist() == [100.0, -100.0, 0.0, 100.0, 1.5]
    with pytest.raises(RefusedError, match="64 bits"):
        FixedPoint(bound=1e9, scale=2**40, sites=10)


def test_the_scheme_is_discovered() -> None:
    assert find_scheme("masks") is SCHEME
