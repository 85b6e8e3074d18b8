"""The set-up of sums by masks: signed run keys, one agreement, and keys that belong to one pair and direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.masks import Federation, identity, names_of

from kohort.crypto.sums import mask_keys
from kohort.crypto.sums.mask_keys import MOST_SITES, MaskKeys
from kohort.crypto.sums.masks import SCHEME
from kohort.crypto.sums.scheme import find_scheme
from kohort.crypto.sums.session import SumSession
from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.rng import Streams


def announced(made: Federation) -> dict[str, bytes]:
    return {name: made.made_keys(name).announcement for name in made.names}


def test_all_members_get_one_digest_and_each_pair_the_same_keys() -> None:
    made = Federation(4).set_up()
    first, second = made.keys["s1"], made.keys["s3"]
    ours, theirs = first.pairs[3], second.pairs[1]
    assert first.digest == second.digest
    assert ours.secret == theirs.secret
    assert (ours.seal_to, ours.seal_from) == (theirs.seal_from, theirs.seal_to)
    assert (ours.confirm_to, ours.confirm_from) == (theirs.confirm_from, theirs.confirm_to)
    every = {
        key
        for site in made.keys.values()
        for pair in site.pairs.values()
        for key in (pair.secret, pair.seal_to, pair.seal_from, pair.confirm_to, pair.confirm_from)
    }
    assert len(every) == 6 * 5, "six pairs: one secret, two sealing keys and two confirmation keys each"
    assert ours.secret.hex() not in repr(ours)


def test_run_keys_are_fresh_per_run_and_plan() -> None:
    streams, trust = Streams.seeded(1), Federation(4).trust("s0")
    sessions = [
        SumSession(run="r", plan_hash="p", members=names_of(4)),
        SumSession(run="q", plan_hash="p", members=names_of(4)),
        SumSession(run="r", plan_hash="q", members=names_of(4)),
    ]
    keys = [MaskKeys(session, "s0", streams, trust).announcement[:32] for session in sessions]
    assert len(set(keys)) == 3
    assert MaskKeys(sessions[0], "s0", streams, trust).announcement[:32] == keys[0]


def test_the_digest_covers_run_plan_roster_members_and_keys() -> None:
    digests = [
        Federation(5).set_up().keys["s0"].digest,
        Federation(5, run="q").set_up().keys["s0"].digest,
        Federation(6).set_up(names_of(5)).keys["s0"].digest,
        Federation(5).set_up(names_of(4)).keys["s0"].digest,
    ]
    assert len(set(digests)) == 4


Change = Callable[[dict[str, bytes]], dict[str, bytes]]


def _other_key(found: dict[str, bytes]) -> dict[str, bytes]:
    """The hub puts a key of its own under the site's signature."""
    return {**found, "s2": bytes(31) + b"\x09" + found["s2"][32:]}


def _signed_by_another(found: dict[str, bytes]) -> dict[str, bytes]:
    return {**found, "s2": found["s3"]}


def _of_another_run(found: dict[str, bytes]) -> dict[str, bytes]:
    return {**found, "s2": announced(Federation(5, run="earlier"))["s2"]}


def _of_another_roster(found: dict[str, bytes]) -> dict[str, bytes]:
    return {**found, "s2": announced(Federation(6))["s2"]}


def _of_another_purpose(found: dict[str, bytes]) -> dict[str, bytes]:
    keys = Federation(5).made_keys("s2")
    text = keys._signed_text("s2", found["s2"][:64])
    return {**found, "s2": found["s2"][:64] + identity("s2").sign(text, purpose="letter")}


def _own_key_changed(found: dict[str, bytes]) -> dict[str, bytes]:
    return {**found, "s0": announced(Federation(5, run="earlier"))["s0"]}


@pytest.mark.parametrize(
    "change",
    [_other_key, _signed_by_another, _of_another_run, _of_another_roster, _of_another_purpose, _own_key_changed],
)
def test_announcements_that_the_hub_changed_are_found_out(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Federation(5)
    changed = SCHEME.gather(change(announced(made)))
    with pytest.raises(IntegrityError, match=r"not signed by it|the hub changed the key"):
        made.made_keys("s0").agree(made.names, changed)
    monkeypatch.setattr(MaskKeys, "_check_announcement", lambda *_: None)
    assert made.made_keys("s0").agree(made.names, changed), "with the check patched away it would pass"


@pytest.mark.parametrize("cut", [slice(0, -128), slice(0, -1), slice(128, None), slice(0, 0)])
def test_there_is_exactly_one_announcement_per_member(cut: slice) -> None:
    made = Federation(5)
    message = SCHEME.gather(announced(made))
    with pytest.raises(IntegrityError, match="one announcement per member"):
        made.made_keys("s0").agree(made.names, message[cut])
    with pytest.raises(IntegrityError, match="one announcement per member"):
        made.made_keys("s0").agree(made.names, message + message[:128])


def test_members_agree_once() -> None:
    made = Federation(5)
    found, keys = announced(made), made.made_keys("s0")
    keys.agree(made.names, SCHEME.gather(found))
    fewer = made.names[:4]
    for members in (made.names, fewer):
        with pytest.raises(IntegrityError, match="agreed on keys before"):
            keys.agree(members, SCHEME.gather({name: found[name] for name in members}))


def test_strangers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Federation(5, strangers={"s0": ["s4"]})
    found = announced(made)
    with pytest.raises(RefusedError, match="not on this site's roster, such as 's4'"):
        made.made_keys("s0").agree(made.names, SCHEME.gather(found))
    rest = made.names[:4]
    assert made.made_keys("s0").agree(rest, SCHEME.gather({name: found[name] for name in rest}))
    # An invented site, with keys that the hub made, passes only where the roster is not asked.
    lenient = replace(made.trust("s0"), find_peer=lambda name: identity(name).public)
    assert MaskKeys(made.session, "s0", made.streams("s0"), lenient).agree(made.names, SCHEME.gather(found))


@pytest.mark.parametrize(
    ("made", "least"), [(Federation(9, 1, 3), 3), (Federation(9, 4, 3), 6), (Federation(9, 1, 7), 7)]
)
def test_too_few_members_are_refused(made: Federation, least: int) -> None:
    found = announced(made)
    for count, good in ((least - 1, False), (least, True)):
        members = made.names[:count]
        keys, message = made.made_keys("s0"), SCHEME.gather({name: found[name] for name in members})
        if good:
            assert keys.agree(members, message)
        else:
            with pytest.raises(RefusedError, match=f"{least} are needed"):
                keys.agree(members, message)


def test_a_site_is_among_the_members_and_nobody_twice() -> None:
    made = Federation(5)
    found = announced(made)
    for members in (made.names[1:], ("s0", "s1", "s1", "s2", "s3")):
        with pytest.raises(RefusedError, match="is not among the members"):
            made.made_keys("s0").agree(members, SCHEME.gather({str(n): found[m] for n, m in enumerate(members)}))


def test_a_copied_run_key_gives_no_equal_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A colluding site that announces the key of another one: masks with both must not cancel each other."""
    made = Federation(4)
    found, copier = announced(made), made.made_keys("s3")
    copied = found["s1"][:64]
    signature = identity("s3").sign(copier._signed_text("s3", copied), purpose="run key of a secure sum")
    victim = made.made_keys("s2")
    victim.agree(made.names, SCHEME.gather({**found, "s3": copied + signature}))
    assert victim.pairs[1].secret != victim.pairs[3].secret

    class Unbound:
        """Packs no places: the keys of a pair then come from the run keys alone."""

        def pack(self, *_: int) -> bytes:
            return b""

    monkeypatch.setattr(mask_keys, "_PAIR", Unbound())
    victim = made.made_keys("s2")
    victim.agree(made.names, SCHEME.gather({**found, "s3": copied + signature}))
    assert victim.pairs[1].secret == victim.pairs[3].secret, "without the places both masks are the same"


def test_a_key_of_small_order_is_refused() -> None:
    made = Federation(4)
    found, liar = announced(made), made.made_keys("s3")
    signature = identity("s3").sign(liar._signed_text("s3", bytes(64)), purpose="run key of a secure sum")
    with pytest.raises(IntegrityError, match="key of site 's3' is not valid"):
        made.made_keys("s0").agree(made.names, SCHEME.gather({**found, "s3": bytes(64) + signature}))


def test_more_sites_than_masks_can_add_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="at most 500 sites, and 501 take part") as caught:
        SCHEME.check_size(MOST_SITES + 1)
    assert caught.value.exit_code == 2
    assert "bfv" in (caught.value.hint or "")
    SCHEME.check_size(MOST_SITES)
    find_scheme("none").check_size(20_000)
    made = Federation(MOST_SITES + 1)
    with pytest.raises(RefusedError, match="at most 500 sites"):
        made.made_keys("s0").agree(made.names, bytes(128 * (MOST_SITES + 1)))


def test_a_session_has_as_many_sites_as_masks_add_up_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_keys, "MOST_SITES", 4)
    Federation(4).set_up()
    with pytest.raises(RefusedError, match="at most 4 sites, and 5 take part"):
        Federation(5).set_up()
