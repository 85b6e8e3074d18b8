"""New keys for a site: vouched for by the old ones, which are refused from then on; the ledger goes on."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr")

from tests.support.loopback import LoopBackBackend

from kohort.crypto.identity.keys import Rotation, load_identity, rotate
from kohort.crypto.identity.parties import Identity
from kohort.crypto.identity.roster import Roster
from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError
from kohort.privacy.ledger.ledger import canonical
from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol.wire import Payload, encode
from kohort.runs.config import load_plan, read_plan
from kohort.runs.run import run
from kohort.transport.deployment.files import Invitation, Registration, signer_of
from kohort.transport.deployment.hub import HubFolder
from kohort.transport.deployment.rotation import KeyHandover, rotate_site
from kohort.transport.deployment.site import SiteFolder
from kohort.transport.deployment.site_run import hub_schema
from kohort.transport.messages import RequestMessage, fresh_number, read_reply, write_reply, write_request
from kohort.transport.remote_engine import SiteReceipts

PLAN = '[data]\ntable = "at the sites"\ntarget = "y"\nfeatures = ["b"]\n[sites]\nsplit = "files"\n'
PLAN += '[method]\nname = "fedavg"\nsecure = "none"\n'


@dataclass(frozen=True)
class Made:
    hub: HubFolder
    site: SiteFolder

    def sites_key(self) -> Identity:
        return load_identity(self.site.path / "identity.key")

    def ask(self, run: int = 0) -> str:
        """Have the site tell its domain, read the answer with the key the hub knows, and give a receipt for it."""
        plan = read_plan(self.hub.path.parent / "plan.toml")
        self.site.approvals.approve(plan.digest())
        schema, hub = hub_schema(plan, None), load_identity(self.hub.path / "identity.key")
        receipts = SiteReceipts("north", signer=signer_of(hub), folder=self.hub.path / "receipts" / "north")
        asked = RequestMessage(
            site="north",
            fresh=fresh_number(),
            run=f"{run:016x}",
            plan_hash=plan.digest(),
            schema=schema.fingerprint(),
            columns=canonical(list(schema.columns)),
            task="describe",
            round=0,
            body=encode(Payload()),
            plan=canonical(plan.to_mapping()).encode(),
            receipts=receipts.after(None),
        )
        site_server = self.site.site_server()
        try:
            answer = read_reply(site_server.reply(write_request(asked, hub)), site=self.hub.sites()["north"].site)
            if answer.request:
                receipts.acknowledge(answer)
            return answer.status
        finally:
            site_server.close()
            receipts.close()


@pytest.fixture(params=[True, False], ids=["insecure", "tls"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    (tmp_path / "plan.toml").write_text(PLAN)
    pl.DataFrame({"y": ["n", "p"] * 60, "b": list(range(120))}).write_csv(tmp_path / "north.csv")
    hub = HubFolder.init(tmp_path / "hub", address="127.0.0.1:9", insecure=request.param)
    site = SiteFolder.init(
        tmp_path / "north",
        name="north",
        table=tmp_path / "north.csv",
        invitation=Invitation.read(hub.path / "invitation.json"),
        plan=read_plan(tmp_path / "plan.toml"),
    )
    hub.add(Registration.read(site.path / "registration.json"))
    return Made(hub, site)


def test_new_keys_take_over_and_the_ledger_goes_on(made: Made) -> None:
    assert [made.ask(0), made.ask(1)] == ["answer", "answer"]
    old, before = made.sites_key(), verify_ledger(made.site.path)
    registered = made.hub.sites()["north"]
    handover = rotate_site(made.site)
    assert made.sites_key().public == handover.rotation.new != old.public
    with pytest.raises(IntegrityError, match="did not sign"):
        made.ask(1)  # the hub does not know the new key yet
    made.hub.replace(KeyHandover.read(made.site.path / "handover.json"))
    assert made.hub.sites()["north"] == Registration.read(made.site.path / "registration.json")
    assert (made.hub.sites()["north"].node_key == registered.node_key) == (not registered.node_key)
    assert [made.ask(2), made.ask(3)] == ["answer", "answer"]
    after = verify_ledger(made.site.path)  # receipts under the old key and under the new one
    assert (before.receipts, after.receipts) == (1, 3)
    assert (before.releases, after.releases) == (2, 4)
    lines = [json.loads(line) for line in (made.site.path / "ledger" / "ledger.jsonl").read_bytes().splitlines()]
    assert "keys" in [line["what"] for line in lines if line["event"] == "note"]
    assert {path.stat().st_mode & 0o077 for path in made.site.path.glob("*.key")} == {0}
    assert not list(made.site.path.glob("*.next*"))


def test_the_old_key_is_refused_everywhere_afterwards(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.site.path, tmp_path / "backup")
    old = Registration.read(made.site.path / "registration.json")
    handover = rotate_site(made.site)
    made.hub.replace(handover)
    with pytest.raises(RefusedError, match="revoked"):
        made.hub.add(old)
    made.hub.forget("north")
    with pytest.raises(RefusedError, match="revoked"):
        made.hub.add(old)  # not even to a name that is free again
    roster = Roster.load(made.site.path / "peers.toml")
    assert old.site.fingerprint in roster.revoked
    assert roster.knows("north", handover.rotation.new)
    shutil.copy(tmp_path / "backup" / "identity.key", made.site.path / "identity.key")
    with pytest.raises(IntegrityError, match="revoked"):
        made.site.site_server()


def test_an_older_hand_over_is_refused(made: Made) -> None:
    first = rotate_site(made.site)
    made.hub.replace(first)
    with pytest.raises(IntegrityError):
        made.hub.replace(first)
    second = rotate_site(made.site)
    made.hub.replace(second)
    for stale in (first, second):
        with pytest.raises(IntegrityError):
            made.hub.replace(stale)
    back = KeyHandover.of(made.sites_key(), Identity.generate("north"), second.node_key)
    assert made.hub.sites()["north"].site == second.rotation.new
    made.hub.replace(back)  # the current key may hand over; only older ones may not


def test_a_hand_over_needs_every_signature(made: Made) -> None:
    old, new, stranger = made.sites_key(), Identity.generate("north"), Identity.generate("north")
    node = made.hub.sites()["north"].node_key
    good = KeyHandover.of(old, new, node)
    swapped = Rotation(old=old.public, new=stranger.public, by_old=good.rotation.by_old, by_new=good.rotation.by_new)
    renamed = rotate(old, Identity.generate("south"))
    for bad in (
        KeyHandover.of(stranger, new, node),
        replace(good, rotation=swapped),
        replace(good, rotation=renamed),
        replace(good, rotation=replace(good.rotation, by_old=good.rotation.by_new)),
        replace(good, rotation=replace(good.rotation, by_new=good.rotation.by_old)),
        replace(good, node_key=node + " changed"),
        replace(good, by_new=stranger.sign(node.encode(), purpose="node key")),
    ):
        with pytest.raises(KohortError):
            made.hub.replace(bad)
        assert made.hub.sites()["north"].site == old.public
        assert not made.hub.revoked.revoked
    made.hub.replace(good)
    with pytest.raises(ConfigError, match="no site 'west'"):
        made.hub.replace(KeyHandover.of(Identity.generate("west"), Identity.generate("west"), node))


def test_a_rotation_that_was_interrupted_goes_on_where_it_stopped(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.site.site_server().close()
    with monkeypatch.context() as patch:
        patch.setattr(Roster, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            rotate_site(made.site)
    begun = KeyHandover.read(made.site.path / "handover.json")
    finished = rotate_site(made.site)
    assert finished.rotation == begun.rotation
    made.hub.replace(begun)
    assert made.ask() == "answer"
    notes = (made.site.path / "ledger" / "ledger.jsonl").read_text().count('"what":"keys"')
    assert notes == 1
    verify_ledger(made.site.path)


def test_a_change_of_keys_that_the_old_key_did_not_sign_counts_for_nothing(made: Made) -> None:
    """Rewriting the ledger's line of the change, hash and all, leaves the earlier receipts without a key."""
    from kohort.privacy.ledger.verify import _hand_over, _key_at, _Walk

    old, new = Identity.generate("north"), Identity.generate("north")
    from kohort.transport.deployment.rotation import handover_line

    line = handover_line(old, new)
    assert _hand_over(5, line) == [(5, old.public.signing.hex(), new.public.signing.hex())]
    forged = " ".join([line.split()[0], made.sites_key().public.signing.hex(), line.split()[2]])
    assert _hand_over(5, forged) == []
    walk = _Walk(handed_over=_hand_over(5, line))
    last = new.public.signing.hex()
    assert (_key_at(walk, 4, last), _key_at(walk, 6, last)) == (old.public.signing.hex(), last)


def test_a_damaged_hand_over_is_said(made: Made, tmp_path: Path) -> None:
    rotate_site(made.site)
    content = (made.site.path / "handover.json").read_text()
    for bad in ("{", content.replace("handover", "other"), content.replace('"by_new": "', '"by_new": "zz')):
        (tmp_path / "bad.json").write_text(bad)
        with pytest.raises(IntegrityError, match="Ask for it again"):
            KeyHandover.read(tmp_path / "bad.json")


def test_the_commands(made: Made, kohort_here: Any) -> None:
    old = made.sites_key().public.fingerprint
    code, out, _ = kohort_here("site", "rotate", made.site.path)
    new = made.sites_key().public.fingerprint
    assert (code, out.split()) == (0, [old, new])
    code, out, _ = kohort_here("hub", "add", made.hub.path, made.site.path / "handover.json")
    assert (code, out.split()) == (0, [new])
    assert made.hub.sites()["north"].site.fingerprint == new


def test_a_peer_trusts_the_new_key_after_revoking_the_old_one() -> None:
    old, new = "a" * 64, "b" * 64
    roster = Roster().trust("north", old)
    with pytest.raises(RefusedError, match="another fingerprint"):
        roster.trust("north", new)
    changed = roster.revoke(old).trust("north", new)
    assert changed.valid == {"north": new}
    with pytest.raises(RefusedError, match="revoked"):
        changed.trust("north", old)


def test_an_answer_signed_with_a_key_that_was_rotated_out_is_a_line_in_the_hubs_ledger(tmp_path: Path) -> None:
    tables = {}
    for number, name in enumerate(("east", "north", "south")):
        random = np.random.default_rng(number)
        tables[name] = pl.DataFrame({"b": random.normal(size=40), "y": random.choice(["n", "p"], 40)})
    former = Identity.generate("north")

    class Backend(LoopBackBackend):
        def carrier(self) -> Backend:
            return self

        def carry(self, messages: dict[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
            came = {name: self.site_servers[name].reply(message) for name, message in messages.items()}
            if "north" in came:
                own = self.site_servers["north"]._identity
                came["north"] = write_reply(read_reply(came["north"], site=own.public), former)
            return came, {}

    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": ["b"]},
            "sites": {"split": "files"},
            "train": {"rounds": 1},
            "policy": {"min_rows": 1},
        }
    )
    found = run(plan, seed=1, backend=Backend(tables=tables, folder=tmp_path / "sites"), out=tmp_path / "run")
    assert found.sites == ("east", "south")
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger" / "ledger.jsonl").read_bytes().splitlines()]
    notes = [(line["site"], line["reason"]) for line in lines if line["event"] == "note"]
    assert ("north", "a message came in that 'north' did not sign") in notes
    verify_ledger(tmp_path / "run")
