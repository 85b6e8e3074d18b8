"""A lying hub that names other lists of sites in a sum by masks: smaller, larger, repeated, or different for each site.

As in `test_masks`, attacks run against unmodified sites, and again with the one check patched away.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.support.masks import Federation, places

from kohort.crypto.sums import mask_messages, masks
from kohort.crypto.sums.mask_hub import MaskingHub
from kohort.crypto.sums.mask_keys import derive
from kohort.crypto.sums.mask_messages import BOX, own_mask, pair_mask
from kohort.crypto.sums.mask_streams import masked
from kohort.crypto.sums.masks import _MaskingSite
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import SumContext
from kohort.errors import IntegrityError, KohortError, RefusedError


@cache
def federation(count: int) -> Federation:
    return Federation(count).set_up()


def test_the_threshold_is_of_the_session_and_not_of_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub lets few sites mask with each other, so that a threshold of those would be small."""
    made = federation(12)
    context = made.context()
    vectors = made.vectors(context)

    def shrink(left: int) -> bytes:
        sides, hub, _ = made.begin(context, vectors, until=1)
        for member in range(left, 12):
            del hub.shares[member]
        boxes = {f"s{member}": _inbox(hub, member) for member in range(left)}
        return sides["s0"].reply(1, boxes["s0"], vectors["s0"])

    assert made.keys["s0"].threshold == 9
    assert shrink(9)
    with pytest.raises(RefusedError, match="8 sites are left in a secure sum, 9 are needed"):
        shrink(8)
    monkeypatch.setattr(_MaskingSite, "_check_list", lambda *_: None)
    assert shrink(4), "four of twelve sites would mask, and three of them open"


def _inbox(hub: MaskingHub, recipient: int) -> bytes:
    """The masking list of those whose shares the hub admits to, and their boxes."""
    listed = sorted(hub.shares)
    boxes = b"".join(hub.shares[sender].boxes[recipient].tobytes() for sender in listed if sender != recipient)
    return places(*listed) + boxes


def test_a_masking_list_is_part_of_the_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Different masking lists for two groups: the masks of pairs across the groups do not cancel."""
    made = federation(6)
    context = made.context()
    vectors = made.vectors(context)

    def added() -> list[int]:
        """What the hub gets by adding vectors of sites with different lists, self masks taken off by an oracle."""
        sides, hub, _ = made.begin(context, vectors, until=1)
        whole = {member: _inbox(hub, member) for member in range(5)}
        del hub.shares[5]
        fewer = {member: _inbox(hub, member) for member in range(5)}
        total = np.zeros(5, dtype=object)
        for member in range(5):
            side: Any = sides[f"s{member}"]
            # One site is told a list with s5 on it, which gives its round keys to the hub: it colludes.
            inbox, masking = (whole, range(6)) if member == 0 else (fewer, range(5))
            sent = np.frombuffer(side.reply(1, inbox[member], vectors[f"s{member}"]), dtype="<u8")
            listed = masks.list_hash(side.keys.digest, context.transcript, np.asarray(masking, dtype="<u4"))
            minus = [own_mask(side._secret("self seed"), listed)]
            if member == 0:
                minus.append(pair_mask(derive(made.keys["s5"].pairs[0].secret, b"round key", _name(context)), listed))
            total = (total + masked(sent, [], minus, P61).astype(object)) % P61
        return [int(number) for number in total]

    five = [sum(int(vectors[f"s{member}"][at]) for member in range(5)) % P61 for at in range(5)]
    assert not set(added()) & set(five)
    monkeypatch.setattr(masks, "list_hash", lambda session, transcript, _: session + transcript[:16])
    assert added() == five


def _name(context: SumContext) -> bytes:
    return mask_messages.round_name(context)


@pytest.mark.parametrize(
    "listed", [(0, 1, 2, 3, 3), (0, 1, 2, 3, 4, 4), (0, 1, 2, 3, 4, 6), (1, 2, 3, 4, 5), (0, 2, 1, 3, 4), (0, 1, 2, 3)]
)
@pytest.mark.parametrize("step", [1, 2])
def test_larger_repeated_and_shrunk_lists_are_refused(listed: tuple[int, ...], step: int) -> None:
    made = federation(6)
    context = made.context()
    vectors = made.vectors(context)
    sides, hub, inboxes = made.begin(context, vectors, until=step)
    boxes = b"".join(hub.shares[min(sender, 5)].boxes[0].tobytes() for sender in listed if sender)
    lie = places(*listed) + (boxes if step == 1 else b"")
    with pytest.raises(KohortError):
        sides["s0"].reply(step, lie, vectors["s0"])
    assert sides["s0"].reply(step, inboxes["s0"], vectors["s0"])


def test_survivors_are_among_those_that_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = federation(6)
    context = made.context()
    vectors = made.vectors(context)
    sides, hub, _ = made.begin(context, vectors, until=1)
    del hub.shares[5]
    sides["s0"].reply(1, hub.inboxes(0)["s0"], vectors["s0"])
    with pytest.raises(IntegrityError, match="names a site that did not mask"):
        sides["s0"].reply(2, places(*range(6)), None)
    assert sides["s0"].reply(2, places(*range(5)), None)


def test_a_site_masks_with_every_site_on_the_list_or_not_at_all() -> None:
    """A box left out, or one more: the site does not quietly mask with the others."""
    made = federation(6)
    context = made.context()
    vectors = made.vectors(context)
    sides, _, inboxes = made.begin(context, vectors, until=1)
    for lie in (inboxes["s0"][:-BOX], inboxes["s0"] + inboxes["s0"][-BOX:], inboxes["s0"][:-1]):
        with pytest.raises(RefusedError, match="no share for this site"):
            sides["s0"].reply(1, lie, vectors["s0"])
    with pytest.raises(IntegrityError, match="was altered"):
        sides["s0"].reply(1, inboxes["s0"][:-BOX] + bytes(BOX), vectors["s0"])
    assert sides["s0"].reply(1, inboxes["s0"], vectors["s0"])


def test_a_vector_is_masked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice, with one site fewer the second time, the hub would have the vector under two sets of masks."""
    made = federation(6)
    context = made.context()
    vectors = made.vectors(context)
    sides, hub, inboxes = made.begin(context, vectors, until=1)
    sides["s0"].reply(1, inboxes["s0"], vectors["s0"])
    del hub.shares[5]
    fewer = hub.inboxes(0)["s0"]
    for again in (fewer, inboxes["s0"]):
        with pytest.raises(IntegrityError, match="masked once"):
            sides["s0"].reply(1, again, vectors["s0"])
    monkeypatch.setattr(sides["s0"], "masking", None)
    assert sides["s0"].reply(1, fewer, vectors["s0"])


def test_a_site_opens_once_and_for_what_it_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = federation(6)
    context = made.context()
    sides, _, inboxes = made.begin(context, made.vectors(context), until=3)
    assert sides["s0"].reply(3, inboxes["s0"], None)
    with pytest.raises(IntegrityError, match="opens once"):
        sides["s0"].reply(3, inboxes["s0"], None)
    assert sides["s0"].shares.size == 0, "the shares are gone"  # type: ignore[attr-defined]
