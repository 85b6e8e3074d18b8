"""Minima and signatures that no other check would miss as a rule: each alone must hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.adversary.test_counting import SITES, identities, roster, site_of
from tests.support.masks import Federation, places

from kohort.crypto.group_secret import _BOX, GroupHub
from kohort.errors import IntegrityError, RefusedError


@pytest.mark.parametrize("minimum", [{"min_sites": 6}, {"quorum": 6}, {"colluders": 4}], ids=str)
def test_survivors_are_as_many_as_policy_plan_and_colluders_demand(minimum: dict[str, int]) -> None:
    made = Federation(6, **minimum).set_up()
    context = made.context()
    sides, _, _ = made.begin(context, made.vectors(context), until=2)
    with pytest.raises(RefusedError, match="5 sites are left in a secure sum, 6 are needed"):
        sides["s0"].reply(2, places(0, 1, 2, 3, 4), None)
    with pytest.raises(RefusedError, match="are needed"):
        Federation(6, **minimum).set_up(members=made.names[:5])


def test_a_site_opens_no_total_without_itself() -> None:
    made = Federation(6).set_up()
    context = made.context()
    sides, _, _ = made.begin(context, made.vectors(context), until=2)
    with pytest.raises(IntegrityError, match="this site is not on it"):
        sides["s0"].reply(2, places(1, 2, 3, 4, 5), None)


def test_a_site_takes_no_offer_below_its_own_minimum() -> None:
    attacks = pytest.importorskip("tests.adversary.test_encrypted_sums")
    hub = attacks.LyingHub("bfv")
    offered = hub.keys()
    victim = hub.sites[attacks.VICTIM]
    victim.policy = replace(victim.policy, min_sum_sites=4)
    with pytest.raises(attacks.Refused, match="opens totals over 3 sites, fewer than this site allows"):
        hub.ciphertext(attacks.VICTIM, offered)


def test_a_contribution_to_a_group_secret_is_signed() -> None:
    keys = identities(0)
    sites = {name: site_of(name, keys, roster(keys)) for name in SITES}
    boxes = {name: site.reply(0, b"") for name, site in sites.items()}
    inbox = GroupHub(SITES).route(0, boxes)["a"]
    sender, sealed, signature = _BOX.unpack_from(inbox)
    forged = _BOX.pack(sender, sealed, bytes(len(signature))) + inbox[_BOX.size :]
    with pytest.raises(IntegrityError, match="altered"):
        sites["a"].reply(1, forged)
