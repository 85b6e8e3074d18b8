"""Key files, run keys, rotation, rosters and approvals."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.crypto.identity.certificates import make_node_key
from kohort.crypto.identity.keys import (
    Approvals,
    Roster,
    Rotation,
    RunKey,
    accept_rotation,
    accept_run_key,
    announce_run_key,
    load_identity,
    public_from_text,
    public_text,
    rotate,
    save_identity,
)
from kohort.crypto.sealed import Identity, SequenceMemory, open_sealed, seal
from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError

SUITES = ("standard", "fips")
ANN, BOB, EVE = (Identity.from_secret(name, name.encode() * 32) for name in ("ann", "bob", "eve"))
ROSTER = Roster.of([ANN.public, BOB.public])
PLAN = "ab" * 32


# Key files


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("passphrase", [None, "öpen sesame"])
def test_keys_come_back_from_their_file(tmp_path: Path, suite: str, passphrase: str | None) -> None:
    path, made = tmp_path / "keys" / "ann.key", Identity.generate("ann", suite=suite)
    save_identity(path, made, passphrase=passphrase)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = load_identity(path, passphrase=passphrase)
    assert found.public == made.public
    assert found.sign(b"x", purpose="test") == made.sign(b"x", purpose="test")
    other = Identity.generate("bob", suite=suite)
    assert found.agreed_with(other.public).sealing == other.agreed_with(made.public).sealing


def test_a_passphrase_hides_the_keys_and_must_be_right(tmp_path: Path) -> None:
    path = tmp_path / "ann.key"
    save_identity(path, ANN, passphrase="sesame")
    assert "secret" not in json.loads(path.read_bytes())
    for wrong in (None, "", "Sesame"):
        with pytest.raises(ConfigError, match="passphrase"):
            load_identity(path, passphrase=wrong)
    save_identity(path, ANN, force=True)
    with pytest.raises(ConfigError, match="has no passphrase"):
        load_identity(path, passphrase="sesame")
    with pytest.raises(ConfigError, match="empty"):
        save_identity(path, ANN, passphrase="", force=True)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_key_that_others_can_read_is_not_used(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "ann.key"
    save_identity(path, ANN)
    path.chmod(mode)
    with pytest.raises(RefusedError, match="chmod 600") as caught:
        load_identity(path)
    assert caught.value.exit_code == 4


def test_a_key_is_not_overwritten_and_its_absence_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "ann.key"
    with pytest.raises(ConfigError, match="kohort site init"):
        load_identity(path)
    save_identity(path, ANN)
    with pytest.raises(ConfigError, match="exists"):
        save_identity(path, BOB)
    assert load_identity(path).public == ANN.public


def test_a_damaged_key_file_gives_no_other_keys(tmp_path: Path) -> None:
    path = tmp_path / "ann.key"
    save_identity(path, ANN)
    content = path.read_bytes()

    @given(st.integers(0, len(content) - 1), st.integers(0, 255), st.booleans())
    @examples(50, 200)
    def check(place: int, byte: int, cut: bool) -> None:
        path.write_bytes(content[:place] + (b"" if cut else bytes([byte]) + content[place + 1 :]))
        try:
            found = load_identity(path)
        except KohortError:
            return
        assert (found.public.signing, found.public.exchange) == (ANN.public.signing, ANN.public.exchange)

    check()


@pytest.mark.parametrize("change", [{"version": 2}, {"version": "1"}, {"kohort": "roster"}, {"kohort": None}])
def test_a_file_of_another_kind_or_version_is_no_key_file(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "ann.key"
    save_identity(path, ANN)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    with pytest.raises(IntegrityError, match="not a kohort key file"):
        load_identity(path)


def test_swapped_keys_in_a_file_are_noticed(tmp_path: Path) -> None:
    for name, identity in (("ann", ANN), ("bob", BOB)):
        save_identity(tmp_path / name, identity)
    records = {name: json.loads((tmp_path / name).read_bytes()) for name in ("ann", "bob")}
    records["ann"]["secret"] = records["bob"]["secret"]
    (tmp_path / "ann").write_text(json.dumps(records["ann"]))
    with pytest.raises(IntegrityError, match="damaged"):
        load_identity(tmp_path / "ann")


def test_public_identities_travel_as_text() -> None:
    for suite in SUITES:
        public = Identity.generate("ännchen", suite=suite).public
        assert public_from_text(public_text(public)) == public
    text = public_text(ANN.public)
    assert public_from_text(text).fingerprint == ANN.public.fingerprint
    other = text.replace(ANN.public.exchange.hex(), BOB.public.exchange.hex())
    for bad in (other, "", "[]", "{}", "1", text[:-1], text.replace('"ann"', "1"), b"\xff"):
        with pytest.raises(IntegrityError, match="not a site's public identity"):
            public_from_text(bad)


# Run keys


def accepted(key: RunKey, **changes: Any) -> Any:
    here = {"run": "run-1", "plan_hash": PLAN, "roster_hash": ROSTER.hash(), "roster": ROSTER, "owner": ANN.public}
    return accept_run_key(key, **{**here, **changes})


def test_run_keys_are_fresh_signed_and_used_to_seal() -> None:
    run = ANN.for_run()
    key = announce_run_key(run, run="run-1", plan_hash=PLAN, roster_hash=ROSTER.hash())
    public = accepted(RunKey.from_bytes(key.to_bytes()))
    assert public == run.public
    assert public.exchange not in {ANN.public.exchange, ANN.for_run().public.exchange}
    box = seal(b"hi", sender=BOB, recipient=public, run="run-1", round=1, sequence=1, plan_hash=PLAN)
    here: dict[str, Any] = {"sender": BOB.public, "run": "run-1", "round": 1, "plan_hash": PLAN}
    assert open_sealed(box, recipient=run, memory=SequenceMemory(), **here) == b"hi"
    with pytest.raises(IntegrityError):  # the lasting key does not open what was sealed to the run's
        open_sealed(box, recipient=ANN, memory=SequenceMemory(), **here)


def test_a_run_key_holds_for_its_occasion_only() -> None:
    key = announce_run_key(ANN.for_run(), run="run-1", plan_hash=PLAN, roster_hash=ROSTER.hash())
    cases: list[tuple[str, dict[str, Any]]] = [
        ("'ann' is for another run", {"run": "run-2"}),
        ("'ann' is for another plan", {"plan_hash": "cd" * 32}),
        ("'ann' was made under another roster", {"roster_hash": "0" * 64}),
        ("'bob' is of another site", {"owner": BOB.public}),
        ("'eve' is not on this site's roster", {"owner": EVE.public}),
        ("'ann' has a revoked key", {"roster": ROSTER.revoke(ANN.public.fingerprint)}),
        ("'ann' has another key", {"owner": replace(EVE.public, name="ann")}),
    ]
    for words, change in cases:
        with pytest.raises(IntegrityError, match=words):
            accepted(key, **change)
    forged = announce_run_key(replace(EVE, name="ann"), run="run-1", plan_hash=PLAN, roster_hash=ROSTER.hash())
    for bad in (forged, replace(key, exchange=EVE.public.exchange), replace(key, signature=b"")):
        with pytest.raises(IntegrityError, match="'ann' is not signed by it"):
            accepted(bad)


@given(data=st.data())
@examples(40, 150)
def test_an_altered_run_key_is_refused(data: st.DataObject) -> None:
    run = ANN.for_run(b"r" * 32)
    sent = announce_run_key(run, run="run-1", plan_hash=PLAN, roster_hash=ROSTER.hash()).to_bytes()
    place = data.draw(st.integers(0, len(sent) - 1))
    altered = bytearray(sent)
    altered[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != sent[place]))
    with pytest.raises(IntegrityError):
        accepted(RunKey.from_bytes(bytes(altered)))


# Rotation and revocation


def test_new_keys_take_the_place_of_the_old_ones() -> None:
    new = Identity.generate("ann")
    changed = accept_rotation(ROSTER, Rotation.from_bytes(rotate(ANN, new).to_bytes()))
    assert changed.knows("ann", new.public)
    assert not changed.knows("ann", ANN.public)
    assert changed.knows("bob", BOB.public)
    assert changed.hash() != ROSTER.hash()
    with pytest.raises(RefusedError, match="revoked"):
        changed.remove("ann").trust("ann", ANN.public.fingerprint)
    with pytest.raises(IntegrityError):  # the old announcement does not work twice, nor backwards
        accept_rotation(changed, rotate(ANN, new))
    with pytest.raises(RefusedError, match="revoked"):
        accept_rotation(changed, rotate(new, ANN))


def test_a_rotation_needs_both_signatures_and_a_trusted_old_key() -> None:
    new, good = Identity.generate("ann"), rotate(ANN, Identity.generate("ann"))
    posing = replace(EVE, name="ann")
    for bad in (
        rotate(posing, new),  # signed by a key that is not trusted
        replace(rotate(posing, new), old=ANN.public),
        replace(good, by_new=good.by_old),
        replace(good, new=new.public),
        rotate(ANN, Identity.generate("bob")),  # one site takes another's name
        rotate(EVE, new),
    ):
        with pytest.raises(IntegrityError):
            accept_rotation(ROSTER, bad)
    with pytest.raises(IntegrityError, match="revoked"):
        accept_rotation(ROSTER.revoke(ANN.public.fingerprint), good)
    for data in (b"", b"[]", b"[1,2,3,4]", good.to_bytes()[:-2]):
        with pytest.raises(IntegrityError, match="malformed"):
            Rotation.from_bytes(data)


def test_a_revoked_fingerprint_voids_the_roster_hash() -> None:
    revoked = ROSTER.revoke(ANN.public.fingerprint)
    assert not revoked.knows("ann", ANN.public)
    assert revoked.hash() != ROSTER.hash()
    assert revoked.hash(["bob"]) == ROSTER.hash(["bob"])  # others are not touched
    with pytest.raises(RefusedError, match="'ann'"):
        revoked.hash(["ann", "bob"])
    assert ROSTER.revoke("00" * 32).hash() == ROSTER.hash()


# Rosters


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
    lambda name: name.isprintable() and name == name.strip()
)
prints = st.binary(min_size=32, max_size=32).map(bytes.hex)


@given(
    st.dictionaries(names, prints, max_size=6).filter(lambda d: len(set(d.values())) == len(d)),
    st.sets(prints, max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_a_roster_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, peers: dict[str, str], revoked: set[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "peers.toml"
    roster = Roster(peers, frozenset(revoked))
    roster.save(path)
    found = Roster.load(path)
    assert (found.peers, found.revoked, found.hash()) == (roster.peers, roster.revoked, roster.hash())


def test_a_hub_cannot_invent_or_double_a_site(tmp_path: Path) -> None:
    assert Roster.load(tmp_path / "absent.toml") == Roster()
    assert ROSTER.knows("ann", ANN.public)
    assert not ROSTER.knows("bob", ANN.public)
    assert not ROSTER.knows("ann", replace(ANN.public, name="bob"))
    assert not ROSTER.knows("eve", EVE.public)
    assert not ROSTER.knows("ann", ANN.for_run().public)
    with pytest.raises(RefusedError, match="count as two"):
        ROSTER.trust("ann-2", ANN.public.fingerprint)
    with pytest.raises(RefusedError, match="another fingerprint"):
        ROSTER.trust("ann", EVE.public.fingerprint)
    assert ROSTER.trust("ann", ANN.public.fingerprint.upper()) == ROSTER
    spaced = " ".join(EVE.public.fingerprint[i : i + 4] for i in range(0, 64, 4))
    assert ROSTER.trust("eve", spaced).knows("eve", EVE.public)
    with pytest.raises(ConfigError, match="Did you mean 'ann'"):
        ROSTER.remove("anne")
    for bad in ("", "ab", "g" * 64):
        with pytest.raises(ConfigError, match="64 hexadecimal digits"):
            ROSTER.trust("eve", bad)
    for name in ("", " eve", "e\nve", "e" * 65):
        with pytest.raises(ConfigError, match="printable"):
            ROSTER.trust(name, EVE.public.fingerprint)


def test_the_roster_hash_depends_on_members_not_on_order() -> None:
    other_way = Roster.of([BOB.public, ANN.public])
    assert other_way.hash() == ROSTER.hash() == ROSTER.hash(["bob", "ann"])
    assert ROSTER.trust("eve", EVE.public.fingerprint).hash() != ROSTER.hash()
    assert ROSTER.trust("eve", EVE.public.fingerprint).hash(["ann", "bob"]) == ROSTER.hash()
    with pytest.raises(RefusedError, match="kohort site trust"):
        ROSTER.hash(["ann", "eve"])


@pytest.mark.parametrize(
    "content",
    [
        "[peers",
        'people = "x"',
        "peers = 1",
        "[peers]\nann = 1",
        'revoked = "x"',
        "revoked = [1]",
        '[peers]\nann = "ab"',
    ],
)
def test_a_damaged_roster_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "peers.toml"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError):
        Roster.load(path)


def test_a_roster_that_others_can_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    ROSTER.save(path)
    path.chmod(0o620)
    with pytest.raises(RefusedError, match="others may change"):
        Roster.load(path)


# Approvals


def test_only_approved_plans_pass(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.toml")
    with pytest.raises(RefusedError, match=f"kohort site approve {PLAN}") as caught:
        approvals.require(PLAN)
    assert caught.value.exit_code == 4
    approvals.approve(PLAN, note='the "first" study')
    approvals.approve("cd" * 32)
    again = Approvals(tmp_path / "approved.toml")
    again.require(PLAN)
    assert again.listed() == {PLAN: 'the "first" study', "cd" * 32: ""}
    again.withdraw(PLAN)
    assert not approvals.is_approved(PLAN)
    assert approvals.is_approved("cd" * 32)
    with pytest.raises(ConfigError, match="not approved"):
        approvals.withdraw(PLAN)
    for bad in ("", "AB" * 32, "ab"):
        with pytest.raises(ConfigError, match="64 hexadecimal"):
            approvals.approve(bad)
    with pytest.raises(ConfigError, match="printable"):
        approvals.approve(PLAN, note="two\nlines")
    (tmp_path / "approved.toml").chmod(0o666)
    with pytest.raises(RefusedError, match="others may change"):
        approvals.is_approved("cd" * 32)


def test_what_a_site_trusts_and_approves_is_on_the_disk_when_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    usual = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(handle) or usual(handle))
    approvals = Approvals(tmp_path / "approved.toml")
    saves: list[Callable[[], object]] = [
        lambda: ROSTER.save(tmp_path / "peers.toml"),
        lambda: approvals.approve(PLAN),
        lambda: approvals.withdraw(PLAN),
        lambda: save_identity(tmp_path / "ann.key", ANN),
        lambda: make_node_key(tmp_path / "node"),  # of two files
    ]
    counts = []
    for save in saves:
        flushed.clear()
        save()
        counts.append(len(flushed))
    one = counts[0]
    assert one > 0
    assert counts == [one, one, one, one, 2 * one]
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir() if path.suffix in {".toml", ".key"}} == {0}
