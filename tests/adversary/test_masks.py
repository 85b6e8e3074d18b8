"""A lying hub, with colluding sites, against unmodified sites of a sum by masks.

Each attack worked on an earlier protocol, or would work with one check less. It is run twice: against the sites as they
are, where it gets nothing, and with that one check patched away, where it reads a vector or gets one step further.
The hub of these tests knows what a real one knows: what sites sent it, and all keys of the colluding sites.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.support.masks import Federation, confirmations, confirmed, places
from tests.support.sums import routed

from kohort.crypto.sums import mask_hub, masks
from kohort.crypto.sums.mask_hub import MaskingHub
from kohort.crypto.sums.mask_keys import MaskKeys
from kohort.crypto.sums.mask_messages import NONCE, ROUND_KEY, box_header, list_hash, own_mask, pair_mask
from kohort.crypto.sums.mask_streams import masked
from kohort.crypto.sums.masks import _MaskingSite
from kohort.crypto.sums.scheme import Integers, SiteSide, SumContext
from kohort.crypto.sums.shamir import LIMBS, combine, join_secret
from kohort.errors import IntegrityError


@cache
def federation(count: int, colluders: int = 1) -> Federation:
    return Federation(count, colluders).set_up()


def names(*members: int) -> list[str]:
    return [f"s{member}" for member in members]


def opened(replies: Mapping[int, bytes], listed: int) -> Integers:
    """What t opening messages give: one row of limbs per listed site."""
    senders = sorted(replies)
    rows = np.stack([np.frombuffer(replies[sender], dtype="<u8") for sender in senders])
    return combine(senders, rows).reshape(listed, LIMBS)


def confirm(sides: Mapping[str, SiteSide], survivors: Sequence[int], *, by: Collection[int]) -> dict[int, bytes]:
    """Let some sites confirm a survivor list; their messages by sender."""
    return {member: sides[f"s{member}"].reply(2, places(*survivors), None) for member in by}


def open_shares(
    sides: Mapping[str, SiteSide], sent: Mapping[int, bytes], survivors: Sequence[int], *, by: Collection[int]
) -> dict[int, bytes]:
    """Deliver confirmations to some sites; their opening messages."""
    meant = {sender: confirmations(reply, sender, survivors) for sender, reply in sent.items()}
    return {
        member: sides[f"s{member}"].reply(
            3, confirmed({sender: macs[member] for sender, macs in meant.items() if sender != member}), None
        )
        for member in by
    }


def stripped(vector: bytes, context: SumContext, *, plus: list[bytes], minus: list[bytes]) -> list[int]:
    return masked(np.frombuffer(vector, dtype="<u8"), plus, minus, context.modulus).tolist()


def test_boxes_of_an_earlier_round_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub delivers the boxes of round 1 in round 2, so that shares of round 1 are handed out again."""
    made = federation(5)
    first, second = made.context(round=1), made.context(round=2)
    _, _, earlier = made.begin(first, made.vectors(first), until=1)
    vectors = made.vectors(second)
    sides, _, _ = made.begin(second, vectors, until=1)
    with pytest.raises(IntegrityError, match="is of another sum"):
        sides["s0"].reply(1, earlier["s0"], vectors["s0"])
    # Boxes that are bound to nothing but the pair pass.
    monkeypatch.setattr(masks, "box_header", lambda *_: b"")
    monkeypatch.setattr(_MaskingSite, "_seal", _seal_without_transcript)
    monkeypatch.setattr(_MaskingSite, "_unseal", _unseal_without_transcript)
    _, _, earlier = made.begin(first, made.vectors(first), until=1)
    sides, _, _ = made.begin(second, vectors, until=1)
    assert sides["s0"].reply(1, earlier["s0"], vectors["s0"])


def _seal_without_transcript(self: Any, recipient: int, content: bytes) -> bytes:
    return AESGCM(self.keys.pairs[recipient].seal_to).encrypt(NONCE, content, b"")


def _unseal_without_transcript(self: Any, sender: int, box: bytes) -> bytes:
    return AESGCM(self.keys.pairs[sender].seal_from).decrypt(NONCE, box, b"")


@pytest.mark.parametrize(("sender", "recipient"), [(1, 2), (2, 1), (0, 1)])
def test_a_box_opens_for_its_recipient_from_its_sender(sender: int, recipient: int) -> None:
    """The hub delivers to s0, in place of the box of s1, a box of another way, or one that s0 made itself."""
    made = federation(5)
    context = made.context()
    vectors = made.vectors(context)
    sides, hub, inboxes = made.begin(context, vectors, until=1)
    own, wrong = hub.shares[1].boxes[0].tobytes(), hub.shares[sender].boxes[recipient].tobytes()
    assert own in inboxes["s0"]
    with pytest.raises(IntegrityError, match="share of site 's1' was altered"):
        sides["s0"].reply(1, inboxes["s0"].replace(own, wrong), vectors["s0"])
    assert sides["s0"].reply(1, inboxes["s0"], vectors["s0"])


def drop_in_one_sum(made: Federation, first: SumContext, second: SumContext) -> tuple[list[int], list[int]]:
    """In the second sum the hub drops s4, gets the keys of its pair masks there, and tries them on the first sum, in
    which s4 survived and its self seed was opened. What it reads of s4's first vector, and that vector."""
    vectors = made.vectors(first)
    sides, hub, inboxes = made.begin(first, vectors, until=1)
    sent = {site: sides[site].reply(1, inbox, vectors[site]) for site, inbox in inboxes.items()}
    inboxes = routed(hub, 1, sent)
    inboxes = routed(hub, 2, {site: sides[site].reply(2, inbox, None) for site, inbox in inboxes.items()})
    shares = {int(site[1:]): sides[site].reply(3, inbox, None) for site, inbox in inboxes.items()}
    seed = join_secret(opened(dict(list(shares.items())[:4]), 5)[4])
    assert seed is not None
    listed = list_hash(made.keys["s0"].digest, first.transcript, np.arange(5, dtype="<u4"))
    keys = dropped_round_keys(made, second)
    pairs = [pair_mask(keys[place], listed) for place in range(4)]  # s4 took all of them off: the others come before
    read = stripped(sent["s4"], first, plus=pairs, minus=[own_mask(seed, listed)])
    return read, vectors["s4"].tolist()


def dropped_round_keys(made: Federation, context: SumContext) -> list[bytes]:
    """The keys of the pair masks of s4 in a sum in which the hub drops it."""
    vectors = made.vectors(context)
    sides, hub, _ = made.begin(context, vectors, until=2)
    survivors = range(4)
    replies = open_shares(sides, confirm(sides, survivors, by=survivors), survivors, by=survivors)
    wrap = join_secret(opened(replies, 5)[4])
    assert wrap is not None
    header = box_header(hub.session, context.transcript, 4, 4)
    deposit = AESGCM(wrap).decrypt(NONCE, hub.shares[4].deposit, header)
    return [deposit[ROUND_KEY * place : ROUND_KEY * (place + 1)] for place in range(5)]


def test_two_sums_of_one_round_have_different_round_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks of one round: dropping a site in one must not give the masks of the other."""
    made = federation(5)
    first, second = made.context(request="p:gram"), made.context(request="p:moments")
    read, vector = drop_in_one_sum(made, first, second)
    assert not set(read) & set(vector)
    monkeypatch.setattr(masks, "round_name", lambda context: str(context.round).encode())
    read, vector = drop_in_one_sum(made, first, second)
    assert read == vector, "named by the round alone, the keys of one sum open the other"


def test_seeds_of_one_run_open_no_earlier_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shared lives for one sum: dropping a site in round 2 opens nothing of round 1."""
    made = federation(5)
    first, second = made.context(round=1), made.context(round=2)
    read, vector = drop_in_one_sum(made, first, second)
    assert not set(read) & set(vector)
    monkeypatch.setattr(masks, "round_name", lambda _: b"once per run")
    read, vector = drop_in_one_sum(made, first, second)
    assert read == vector, "keys that are shared once per run open every round"


def test_secrets_of_two_sums_differ_whatever_differs_between_them() -> None:
    made = federation(4)
    contexts = [
        made.context(),
        *(made.context(**change) for change in ({"round": 2}, {"request": "p:u"}, {"length": 6}, {"view": b"other"})),
        made.context(modulus=0),
    ]
    sides: list[Any] = [made.side("s0", context) for context in contexts]
    wider = Federation(5).set_up(made.names)  # the same run and members, in a plan with one site more
    assert wider.context().transcript == contexts[0].transcript
    sides.append(wider.side("s0", wider.context()))
    secrets = {side._secret(what) for side in sides for what in ("self seed", "wrap key", "coefficients")}
    assert len(secrets) == 3 * 7


def test_a_site_confirms_one_survivor_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lists, both confirmed by all, would give both secrets of a site: its self seed and its wrap key."""
    made = federation(6)
    context = made.context()
    sides, _, _ = made.begin(context, made.vectors(context), until=2)
    confirm(sides, range(6), by=range(6))
    for again in (places(*range(6)), places(*range(5))):
        with pytest.raises(IntegrityError, match="second survivor list"):
            sides["s0"].reply(2, again, None)
    # A site that forgets what it confirmed and opened hands out both secrets of s5: its vector is read.
    vectors = made.vectors(context)
    sides, hub, inboxes = made.begin(context, vectors, until=1)
    sent = {site: sides[site].reply(1, inbox, vectors[site]) for site, inbox in inboxes.items()}
    both: list[bytes] = []
    held = {site: side.shares for site, side in sides.items()}  # type: ignore[attr-defined]
    for survivors in (range(6), range(5)):
        replies = open_shares(sides, confirm(sides, survivors, by=range(5)), survivors, by=range(5))
        secret = join_secret(opened(replies, 6)[5])
        assert secret is not None
        both.append(secret)
        for site, side in sides.items():
            monkeypatch.setattr(side, "survivors", None)
            monkeypatch.setattr(side, "opened", False)
            monkeypatch.setattr(side, "shares", held[site])
    listed = list_hash(hub.session, context.transcript, np.arange(6, dtype="<u4"))
    deposit = AESGCM(both[1]).decrypt(NONCE, hub.shares[5].deposit, box_header(hub.session, context.transcript, 5, 5))
    pairs = [pair_mask(deposit[ROUND_KEY * at : ROUND_KEY * (at + 1)], listed) for at in range(5)]
    assert stripped(sent["s5"], context, plus=pairs, minus=[own_mask(both[0], listed)]) == vectors["s5"].tolist()


def two_lists(made: Federation, colluders: Sequence[int]) -> tuple[int, int]:
    """The hub shows half of the honest sites a list with the last site, and the other half one without it; colluding
    sites confirm and open both. How many opening messages it has for each list in the end."""
    context = made.context()
    count = made.count
    sides, _, _ = made.begin(context, made.vectors(context), until=2)
    twins, _, _ = made.begin(context, made.vectors(context), until=2)  # the colluders' second answers
    honest = [member for member in range(count - 1) if member not in colluders]
    half = (len(honest) + 1) // 2
    found = []
    shown = ((range(count), [*honest[:half], count - 1], sides), (range(count - 1), honest[half:], twins))
    for survivors, listed, colluding in shown:
        acting = {**sides, **{f"s{member}": colluding[f"s{member}"] for member in colluders}}
        by = sorted({*listed, *colluders})
        sent = confirm(acting, survivors, by=by)
        replies = 0
        for member in by:
            try:
                open_shares(acting, sent, survivors, by=[member])
                replies += 1
            except IntegrityError:
                replies += member in colluders  # a colluding site gives what it has
        found.append(replies)
    return found[0], found[1]


@pytest.mark.parametrize(("count", "colluders"), [(6, 1), (10, 1), (10, 3), (9, 2), (13, 4)])
def test_two_survivor_lists_shown_to_two_halves_open_nothing(count: int, colluders: int) -> None:
    made = federation(count, colluders)
    with_it, without = two_lists(made, range(colluders))
    threshold = made.keys["s0"].threshold
    assert min(with_it, without) < threshold
    assert with_it <= colluders or without <= colluders, "the honest sites of one half at least opened nothing"


def test_a_threshold_of_a_half_would_open_two_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaskKeys, "threshold", property(lambda self: len(self.members) // 2))
    made = Federation(10, 1).set_up()
    with_it, without = two_lists(made, [0])
    assert with_it >= 5
    assert without >= 5


def test_confirmations_are_not_reflected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub sends a site's own confirmations back to it, as if they were its peers'."""
    made = federation(6)
    context = made.context()

    def reflect() -> bytes:
        sides, _, _ = made.begin(context, made.vectors(context), until=2)
        own = confirmations(confirm(sides, range(6), by=[0])[0], 0, range(6))
        return sides["s0"].reply(3, confirmed(own), None)

    with pytest.raises(IntegrityError, match="1 sites confirmed"):
        reflect()
    # With one key per pair and no direction in the text, they pass.
    real = masks._mac
    secrets = {
        key: pair.secret
        for keys in made.keys.values()
        for pair in keys.pairs.values()
        for key in (pair.confirm_to, pair.confirm_from)
    }
    monkeypatch.setattr(masks, "_mac", lambda key, text: real(secrets[key], text))
    with pytest.raises(IntegrityError, match="1 sites confirmed"):
        reflect()  # sender and recipient in the text are enough
    monkeypatch.setattr(_MaskingSite, "_route", lambda *_: b"")
    assert reflect()


Confirmed = Mapping[str, SiteSide]


def _of_the_same_lists(made: Federation) -> Confirmed:
    context = made.context()
    return made.begin(context, made.vectors(context), until=2)[0]


def _after_another_masking_list(made: Federation) -> Confirmed:
    """s6 is on no list, and the survivors are the same."""
    context = made.context()
    vectors = made.vectors(context)
    sides, hub, _ = made.begin(context, vectors, until=1)
    del hub.shares[6]
    for site, inbox in hub.inboxes(0).items():
        sides[site].reply(1, inbox, vectors[site])
    return sides


def _of_another_sum(made: Federation) -> Confirmed:
    context = made.context(round=2)
    return made.begin(context, made.vectors(context), until=2)[0]


@pytest.mark.parametrize(
    ("make", "survivors"),
    [(_of_the_same_lists, 7), (_after_another_masking_list, 6), (_of_another_sum, 6)],
    ids=["other survivors", "other masking list", "other sum"],
)
def test_a_confirmation_of_other_lists_does_not_count(make: Callable[[Federation], Confirmed], survivors: int) -> None:
    """Seven sites mask, and s0 confirms six survivors; five confirmations are needed, its own included."""
    made = federation(7)
    sides = _of_the_same_lists(made)
    sent = confirm(sides, range(6), by=range(6))
    good = {sender: confirmations(sent[sender], sender, range(6))[0] for sender in range(1, 6)}
    twins = make(made)
    listed = range(survivors)
    other = confirmations(confirm(twins, listed, by=[5])[5], 5, listed)[0]
    few = {sender: good[sender] for sender in (1, 2, 3)}
    for inbox in (
        confirmed({**few, 5: other}),
        confirmed({**few, 5: bytes(16)}),
        confirmed({**few, 5: good[1]}),
        confirmed(few) + confirmed(few),
    ):
        with pytest.raises(IntegrityError, match="4 sites confirmed the survivors of a secure sum, 5 must"):
            sides["s0"].reply(3, inbox, None)
    assert sides["s0"].reply(3, confirmed({**few, 5: good[5]}), None)


def test_only_sites_that_were_masked_with_count_as_confirming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colluding sites that are in no list sign whatever the hub wants: with them the hub needs fewer honest ones.

    Ten members, three of them collude and send no shares: they are not on the masking list, and hold MAC keys with
    every honest site. The hub shows one honest site a survivor list of its own.
    """
    made = federation(10, 1)
    context = made.context()
    colluding, listed = (7, 8, 9), range(7)
    vectors = made.vectors(context)

    def attack() -> bytes:
        sides, hub, _ = made.begin(context, vectors, until=1)
        for member in colluding:
            del hub.shares[member]
        inboxes = hub.inboxes(0)
        for member in listed:
            sides[f"s{member}"].reply(1, inboxes[f"s{member}"], vectors[f"s{member}"])
        sent = confirm(sides, listed, by=range(1, 5))
        records = {sender: confirmations(reply, sender, listed).get(0, b"") for sender, reply in sent.items()}
        victim: Any = sides["s0"]
        victim.reply(2, places(*listed), None)
        text = victim._confirmed_text(victim.masking, victim.survivors)
        for member in colluding:  # with the keys that they have
            key = made.keys[f"s{member}"].pairs[0].confirm_to
            records[member] = masks._mac(key, victim._route(member, 0) + text)
        return sides["s0"].reply(3, confirmed(records), None)

    with pytest.raises(IntegrityError, match="5 sites confirmed the survivors of a secure sum, 7 must"):
        attack()
    monkeypatch.setattr(_MaskingSite, "_may_confirm", lambda self, _: set(self.keys.pairs))
    assert attack(), "counting any signer, the shares leave"


def test_a_site_that_was_told_something_else_masks_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead weights for all but one site, so that the total is that site's own update."""
    made = federation(5)
    vectors = {**dict.fromkeys(made.names, np.zeros(5, dtype=np.uint64)), "s0": made.vectors(made.context())["s0"]}

    def attack() -> Integers:
        alike, other = made.context(view=b"dead weights"), made.context(view=b"the model")
        sides = {**made.sides(alike), "s0": made.side("s0", other)}
        hub, inboxes = MaskingHub(alike), dict.fromkeys(made.names, b"")
        for step in range(4):
            replies = {site: sides[site].reply(step, inbox, vectors[site]) for site, inbox in inboxes.items()}
            inboxes = routed(hub, step, replies)
        return hub.total()[0]

    with pytest.raises(IntegrityError, match="told other public inputs"):
        attack()
    monkeypatch.setattr(SumContext, "transcript", b"bound to nothing" * 2)
    assert attack().tolist() == vectors["s0"].tolist(), "without the transcript the total is the one site's vector"


def test_even_with_boxes_that_open_different_views_do_not_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks themselves are bound to what the sites were told, not only the boxes."""
    made = federation(5)
    alike, other = made.context(view=b"dead weights"), made.context(view=b"the model")
    vectors = {**dict.fromkeys(made.names, np.zeros(5, dtype=np.uint64)), "s0": made.vectors(other)["s0"]}
    monkeypatch.setattr(masks, "box_header", lambda *_: b"")
    monkeypatch.setattr(_MaskingSite, "_seal", _seal_without_transcript)
    monkeypatch.setattr(_MaskingSite, "_unseal", _unseal_without_transcript)
    monkeypatch.setattr(mask_hub, "is_commitment", lambda *_: True)
    sides = {**made.sides(alike), "s0": made.side("s0", other)}
    hub, inboxes = MaskingHub(alike), dict.fromkeys(made.names, b"")
    for step in range(4):
        replies = {site: sides[site].reply(step, inbox, vectors[site]) for site, inbox in inboxes.items()}
        inboxes = routed(hub, step, replies)
    assert not set(hub.total()[0].tolist()) & set(vectors["s0"].tolist())


@pytest.mark.parametrize("colluders", [0, 1, 4, 8])
def test_as_many_confirmations_are_needed_as_the_plans_colluders_demand(colluders: int) -> None:
    made = federation(10, colluders)
    context = made.context()
    needed = {0: 7, 1: 7, 4: 8, 8: 10}[colluders]
    sides, _, inboxes = made.begin(context, made.vectors(context), until=3)
    size = len(inboxes["s0"]) // 9
    with pytest.raises(IntegrityError, match=f"{needed - 1} sites confirmed .* {needed} must"):
        sides["s0"].reply(3, inboxes["s0"][: size * (needed - 2)], None)
    assert sides["s0"].reply(3, inboxes["s0"][: size * (needed - 1)], None)
