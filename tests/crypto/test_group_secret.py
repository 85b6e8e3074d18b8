"""What a site refuses before it shares a secret with a group, and while it does."""

from __future__ import annotations

import hashlib

import pytest

from kohort.crypto.group_secret import _BOX, _HASH, KEYS_CLAIM, SEALED_CLAIM, GroupHub, GroupSite, least_agreed
from kohort.crypto.identity.parties import Identity
from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.guarantee import Encrypted, Public
from kohort.rng import Streams

NAMES = ("s0", "s1", "s2", "s3", "s4")
IDENTITIES = {name: Identity.from_secret(name, Streams.seeded(i).bytes("id")) for i, name in enumerate(NAMES)}
ROSTER = {name: identity.public for name, identity in IDENTITIES.items()}


def site(name: str, sites: tuple[str, ...] = NAMES, *, colluders: int = 1) -> GroupSite:
    stream = Streams.seeded(NAMES.index(name))
    return GroupSite(sites, name, b"run", stream, IDENTITIES[name], ROSTER.get, colluders=colluders, number=7)


@pytest.fixture
def group() -> dict[str, GroupSite]:
    return {name: site(name) for name in NAMES}


def boxes_of(group: dict[str, GroupSite]) -> dict[str, bytes]:
    return GroupHub(NAMES).route(0, {name: one.reply(0, b"") for name, one in group.items()})


def hashes_of(group: dict[str, GroupSite]) -> dict[str, bytes]:
    boxes = boxes_of(group)
    return GroupHub(NAMES).route(1, {name: one.reply(1, boxes[name]) for name, one in group.items()})


@pytest.mark.parametrize("sites", [("s1", "s2", "s3", "s4"), (*NAMES, "s1"), (*NAMES, "s0")])
def test_a_list_without_this_site_or_with_one_twice_is_refused(sites: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError, match="cannot be right"):
        site("s0", sites)


@pytest.mark.parametrize(("sites", "colluders", "least"), [(10, 5, 8), (9, 1, 7), (3, 1, 3), (6, 5, 7)])
def test_so_many_must_derive_the_same_that_two_groups_have_an_honest_site_in_common(
    sites: int, colluders: int, least: int
) -> None:
    assert least_agreed(sites, colluders) == least


@pytest.mark.parametrize(("count", "colluders", "enough"), [(2, 0, False), (3, 0, True), (4, 2, True), (4, 3, False)])
def test_a_group_has_three_sites_and_two_more_than_may_collude(count: int, colluders: int, enough: bool) -> None:
    if enough:
        assert site("s0", NAMES[:count], colluders=colluders).secret is None
    else:
        with pytest.raises(RefusedError, match="fewer than three sites"):
            site("s0", NAMES[:count], colluders=colluders)


def test_contributions_are_sealed_and_hashes_public(group: dict[str, GroupSite]) -> None:
    assert [group["s0"].claim(step) for step in range(3)] == [SEALED_CLAIM, KEYS_CLAIM, KEYS_CLAIM]
    assert isinstance(SEALED_CLAIM, Encrypted)
    assert isinstance(KEYS_CLAIM, Public)


def test_each_site_seals_one_box_to_every_other_and_the_hub_names_the_sender(group: dict[str, GroupSite]) -> None:
    own = group["s1"].reply(0, b"")
    assert [receiver for receiver, _, _ in _BOX.iter_unpack(own)] == [0, 2, 3, 4]
    boxes = boxes_of(group)
    assert {name: [sender for sender, _, _ in _BOX.iter_unpack(data)] for name, data in boxes.items()} == {
        name: [number for number in range(5) if number != index] for index, name in enumerate(NAMES)
    }


def test_steps_come_in_order_once_and_there_are_three(group: dict[str, GroupSite]) -> None:
    with pytest.raises(IntegrityError, match="before its contributions"):
        group["s0"].reply(2, b"")
    boxes = boxes_of(group)["s0"]
    group["s0"].reply(1, boxes)
    with pytest.raises(IntegrityError, match="a second time"):
        group["s0"].reply(1, boxes)
    with pytest.raises(IntegrityError, match="three steps"):
        group["s0"].reply(3, b"")


def test_a_contribution_comes_once_whole_and_from_a_peer(group: dict[str, GroupSite]) -> None:
    boxes = boxes_of(group)["s0"]
    first = boxes[: _BOX.size]
    stranger = _BOX.pack(5, *_BOX.unpack(first)[1:])
    own = _BOX.pack(0, *_BOX.unpack(first)[1:])
    for inbox, against in (
        (boxes + first, "came in twice"),
        (boxes + own, "came in twice"),
        (boxes + stranger, "no peer"),
        (boxes[:-1], "cut short"),
        (boxes + b"0", "cut short"),
    ):
        with pytest.raises(IntegrityError, match=against):
            group["s0"].reply(1, inbox)
        assert not group["s0"].derived


def test_too_few_contributions_make_no_secret(group: dict[str, GroupSite]) -> None:
    boxes = boxes_of(group)["s0"]  # of 5 sites, 4 must derive the same
    with pytest.raises(RefusedError, match="3 of 5 sites are left to share a secret, 4 are needed"):
        group["s0"].reply(1, boxes[: 2 * _BOX.size])
    assert not group["s0"].derived
    group["s0"].reply(1, boxes[: 3 * _BOX.size])
    assert set(group["s0"].numbers.items()) == {(name, 7) for name in NAMES[:4]}


def test_a_secret_is_there_when_enough_sites_derived_the_same(group: dict[str, GroupSite]) -> None:
    message = hashes_of(group)["s0"]
    own = _HASH.unpack_from(message)
    assert own[0] == 0
    assert len(message) == 5 * _HASH.size
    with pytest.raises(RefusedError, match="3 of 5 sites are left"):
        group["s0"].reply(2, message[: 3 * _HASH.size])
    assert group["s0"].secret is None
    assert group["s0"].reply(2, message[_HASH.size : 4 * _HASH.size]) == b""  # its own counts without being sent back
    assert group["s0"].secret is not None


def test_hashes_of_others_secrets_strangers_and_repeated_ones_are_noticed(group: dict[str, GroupSite]) -> None:
    message = hashes_of(group)["s0"]
    made = [digest for _, digest in _HASH.iter_unpack(message)]
    for wrong in (_HASH.pack(1, made[2]), _HASH.pack(5, made[1]), _HASH.pack(4, bytes(32))):
        with pytest.raises(IntegrityError, match="did not derive the same secret"):
            group["s0"].reply(2, message[: 4 * _HASH.size] + wrong)
        assert group["s0"].secret is None


def test_a_site_whose_contribution_was_left_out_proves_nothing(group: dict[str, GroupSite]) -> None:
    boxes = {name: data for name, data in boxes_of(group).items() if name != "s4"}
    kept = {
        name: b"".join(_BOX.pack(*box) for box in _BOX.iter_unpack(data) if box[0] != 4) for name, data in boxes.items()
    }
    hashes = [group[name].reply(1, inbox) for name, inbox in kept.items()]
    stranger = _HASH.pack(4, group["s0"]._hash_of(4))  # the right hash, from a site that contributed nothing
    message = b"".join(_HASH.pack(index, made) for index, made in enumerate(hashes))
    with pytest.raises(IntegrityError, match="did not derive the same secret"):
        group["s0"].reply(2, message + stranger)
    group["s0"].reply(2, message)
    group["s1"].reply(2, message)
    assert group["s0"].secret == group["s1"].secret


def test_the_hub_passes_on_hashes_alone_and_nothing_after_the_last_step() -> None:
    hub = GroupHub(NAMES[:3])
    answers = {"s2": b"c" * 32, "s0": b"a" * 32, "s1": b"short"}
    routed = hub.route(1, answers)
    assert routed == dict.fromkeys(NAMES[:3], _HASH.pack(0, b"a" * 32) + _HASH.pack(2, b"c" * 32))
    assert hub.route(2, answers) == {}
    with pytest.raises(IntegrityError, match="cut short"):
        hub.route(0, {"s0": b"x"})


def test_a_secret_is_the_hash_of_framed_contributions_in_the_order_of_the_list(group: dict[str, GroupSite]) -> None:
    """A site of another version must derive the same."""
    for name, message in hashes_of(group).items():
        group[name].reply(2, message)
    number = [
        index.to_bytes(4, "little") + group[name].contribution + (7).to_bytes(8, "little")
        for index, name in enumerate(NAMES)
    ]
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in (b"secret", b"run", *number))
    wanted = hashlib.blake2b(framed, digest_size=32, person=b"kohort-group").digest()
    assert {one.secret for one in group.values()} == {wanted}
