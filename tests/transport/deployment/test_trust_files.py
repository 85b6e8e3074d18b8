"""Files that decide whom a machine trusts: signed, covered by fingerprints, and refused when others may change them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr")

from kohort.crypto.identity.certificates import make_ca, make_node_key, node_public_key
from kohort.crypto.identity.keys import load_identity, public_text, save_identity
from kohort.crypto.identity.parties import Identity, bound_to
from kohort.crypto.identity.roster import Roster
from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.wire import Payload, encode
from kohort.purposes import Purpose
from kohort.runs.config import read_plan
from kohort.runs.retention import RECEIVED
from kohort.transport.deployment.domains import DomainUpdate
from kohort.transport.deployment.files import Invitation, Registration
from kohort.transport.deployment.hub import FlowerBackend, HubFolder, _forget_rows
from kohort.transport.deployment.renewal import renew_site
from kohort.transport.deployment.rotation import KeyHandover, rotate_site
from kohort.transport.deployment.site import SiteFolder
from kohort.transport.deployment.site_run import hub_schema
from kohort.transport.deployment.waiting import Waiting
from kohort.transport.messages import RequestMessage, fresh_number, read_reply, write_request
from kohort.transport.site_server import SiteServer

PLAN = """
[data]
table = "at the sites"
target = "y"
quasi = ["a"]
features = ["b"]
bounds = {a = [0.0, 9.0]}
[sites]
split = "files"
[method]
name = "fedavg"
secure = "none"
"""


@dataclass(frozen=True)
class Pair:
    """A hub with TLS and two sites that trust each other."""

    root: Path
    hub: HubFolder
    north: SiteFolder
    south: SiteFolder

    @property
    def plan(self) -> Path:
        return self.root / "plan.toml"

    def site(self, name: str) -> SiteFolder:
        return SiteFolder(self.root / name)

    def message(self, run: str = "ab" * 8, task: str = "describe", **changes: Any) -> bytes:
        """A request to north, signed by the hub; the first of a run unless `changes` says otherwise."""
        read = read_plan(self.plan)
        schema = hub_schema(read, None)
        peers = "\n".join(public_text(item.site) for item in self.hub.sites().values()).encode()
        asked = RequestMessage(
            site="north",
            fresh=fresh_number(),
            run=run,
            plan_hash=read.digest(),
            schema=schema.fingerprint(),
            columns=canonical(list(schema.columns)),
            task=task,
            body=encode(Payload()),
            plan=canonical(read.to_mapping()).encode(),
            peers=peers,
        )
        return write_request(replace(asked, **changes), load_identity(self.hub.path / "identity.key"))

    def ask(self, server: SiteServer, message: bytes | None = None) -> tuple[str, str]:
        public = load_identity(self.north.path / "identity.key").public
        answer = read_reply(server.reply(self.message() if message is None else message), site=public)
        return answer.status, answer.code


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    (tmp_path / "plan.toml").write_text(PLAN)
    hub = HubFolder.init(tmp_path / "hub", address="hub.example.org:9092")
    invitation = Invitation.read(hub.path / "invitation.json")
    for name in ("north", "south"):
        table = tmp_path / f"{name}.csv"
        pl.DataFrame({"y": ["n", "p"] * 60, "b": list(range(120)), "a": [1, 2, 3] * 40}).write_csv(table)
        site = SiteFolder.init(
            tmp_path / name, name=name, table=table, invitation=invitation, plan=read_plan(tmp_path / "plan.toml")
        )
        site.approvals.approve(read_plan(tmp_path / "plan.toml").digest())
        hub.add(Registration.read(site.path / "registration.json"))
    made = Pair(tmp_path, hub, SiteFolder(tmp_path / "north"), SiteFolder(tmp_path / "south"))
    made.north.trust("south", hub.sites()["south"].site.fingerprint)
    return made


@pytest.fixture
def server(pair: Pair) -> Iterator[SiteServer]:
    made = pair.north.site_server()
    yield made
    made.close()


def changed(path: Path, place: Path, **texts: str) -> Path:
    place.write_text(json.dumps({**json.loads(path.read_text()), **texts}))
    return place


# Invitations and registrations


def test_a_swapped_authority_address_or_identity_in_an_invitation_is_refused(pair: Pair, tmp_path: Path) -> None:
    genuine = pair.hub.path / "invitation.json"
    other_ca = make_ca(tmp_path / "other", name="kohort hub").public.read_text()
    stranger = Identity.generate("hub", bound=bound_to("hub.example.org:9092", other_ca))
    fingerprint = Invitation.read(genuine).hub.fingerprint
    for swapped in (
        {"ca": other_ca},
        {"address": "elsewhere.example.org:9092"},
        {"ca": ""},
        {"hub": public_text(stranger.public)},
        {"hub": public_text(stranger.public), "ca": other_ca},
        {"signature": ""},
    ):
        with pytest.raises(IntegrityError):
            Invitation.read(changed(genuine, tmp_path / "swapped.json", **swapped))
    hub = load_identity(pair.hub.path / "identity.key")
    Invitation.made(hub, address="hub.example.org:9092", ca=other_ca).write(tmp_path / "uncovered.json")
    with pytest.raises(IntegrityError, match="fingerprint covers"):
        Invitation.read(tmp_path / "uncovered.json")
    # Whoever makes a whole invitation of their own has another fingerprint: also with the hub's own public keys.
    Invitation.made(stranger, address="hub.example.org:9092", ca=other_ca).write(tmp_path / "own.json")
    assert Invitation.read(tmp_path / "own.json").hub.fingerprint != fingerprint
    assert replace(hub, bound=bound_to("hub.example.org:9092", other_ca)).public.fingerprint != fingerprint


def test_a_swapped_node_key_in_a_registration_is_refused(pair: Pair, tmp_path: Path) -> None:
    make_node_key(tmp_path / "other.key")
    other = node_public_key(tmp_path / "other.key").decode().strip()
    genuine = pair.north.path / "registration.json"
    swapped = changed(genuine, tmp_path / "swapped.json", node_key=other)
    with pytest.raises(IntegrityError, match="node key"):
        Registration.read(swapped)
    with pytest.raises(IntegrityError):
        Registration.read(changed(genuine, tmp_path / "unsigned.json", signature="00"))
    Registration.made(load_identity(pair.north.path / "identity.key"), node_key=other).write(tmp_path / "own.json")
    with pytest.raises(IntegrityError, match="fingerprint covers"):
        Registration.read(tmp_path / "own.json")
    unsigned = replace(Registration.read(genuine), signature="")
    pair.hub.forget("north")
    with pytest.raises(IntegrityError):
        pair.hub.add(unsigned)
    assert "north" not in pair.hub.sites()


def test_commands_refuse_another_fingerprint_than_the_one_told(pair: Pair, kohort_here: Callable[..., Any]) -> None:
    fingerprint = Invitation.read(pair.hub.path / "invitation.json").hub.fingerprint
    words = ["--name", "west", "--table", pair.root / "north.csv", "--invitation", pair.hub.path / "invitation.json"]
    code, _, said = kohort_here("site", "init", pair.root / "west", *words, "--fingerprint", "0" * 64)
    assert (code, "another fingerprint" in said) == (6, True)
    assert not (pair.root / "west").exists()
    code, out, _ = kohort_here("site", "init", pair.root / "west", *words, "--fingerprint", fingerprint)
    assert code == 0
    registration = pair.root / "west" / "registration.json"
    assert kohort_here("hub", "add", pair.hub.path, registration, "--fingerprint", "0" * 64)[0] == 6
    assert kohort_here("hub", "add", pair.hub.path, registration, "--fingerprint", out.strip())[0] == 0


@pytest.mark.parametrize("name", ["north hospital", "", "../north", "nörd", "-x", "a" * 65])
def test_names_are_checked_where_they_are_given(pair: Pair, kohort_here: Callable[..., Any], name: str) -> None:
    words = ["--table", pair.root / "north.csv", "--invitation", pair.hub.path / "invitation.json"]
    code, _, said = kohort_here("site", "init", pair.root / "west", f"--name={name}", *words)
    assert (code, "letters, digits, dots, dashes" in said) == (2, True)
    assert not (pair.root / "west").exists()
    if name == "north hospital":
        assert "'north-hospital'" in said
    assert kohort_here("hub", "init", pair.root / "hub2", "--address", "h.example.org:1", f"--name={name}")[0] == 2
    assert kohort_here("site", "trust", pair.north.path, "--", name, "0" * 64)[0] == 2


# Who may change what


@pytest.mark.parametrize("name", ["site.toml", "hub.json", "peers.toml", "approved.toml", "."])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_site_refuses_files_that_others_may_change(pair: Pair, name: str, mode: int) -> None:
    place = pair.north.path / name
    place.chmod(place.stat().st_mode | mode)
    reads = pair.north.approvals.listed if name == "approved.toml" else pair.north.site_server
    with pytest.raises(RefusedError, match="others may"):
        reads()


@pytest.mark.parametrize("name", ["hub.toml", "sites/north.json", "."])
def test_a_hub_refuses_files_that_others_may_change(pair: Pair, name: str) -> None:
    place = pair.hub.path / name
    place.chmod(place.stat().st_mode | 0o022)
    with pytest.raises(RefusedError, match="others may"), pair.hub.backend():
        pass


def test_a_replaced_authority_at_a_site_is_noticed(pair: Pair, tmp_path: Path) -> None:
    (pair.north.path / "ca.pem").write_text(make_ca(tmp_path / "other").public.read_text())
    with pytest.raises(IntegrityError, match=r"ca\.pem"):
        pair.north.site_server()


def test_received_tables_states_and_keys_are_their_owners_whatever_the_umask(pair: Pair, tmp_path: Path) -> None:
    from kohort.runs.run import run

    before = os.umask(0)
    try:
        server = pair.north.site_server()
        assert pair.ask(server)[0] == "answer"
        server.close()
        (tmp_path / "t.csv").write_text("y,b,a\n" + "n,1,1\np,2,2\n" * 60)
        plan = PLAN.replace('"at the sites"', f'"{tmp_path}/t.csv"').replace('split = "files"', "count = 2")
        plan = plan.replace('"fedavg"\nsecure = "none"', '"central"')
        (tmp_path / "ship.toml").write_text(plan + "[policy]\nraw = true\nmin_rows = 1\n")
        run(read_plan(tmp_path / "ship.toml"), seed=1, out=tmp_path / "out")
        frame = pl.DataFrame({"sender": ["north", "south"], "b": [1, 2]})
        (tmp_path / "given" / "hub").mkdir(parents=True)
        frame.write_parquet(tmp_path / "given" / RECEIVED)
        _forget_rows(tmp_path / "given", "north")
    finally:
        os.umask(before)
    kept = [path for path in pair.north.path.rglob("*") if path.is_file() and "runs" in path.parts]
    kept += [pair.north.path / name for name in ("identity.key", "node.key", "ledger.key", "site.toml")]
    kept += [tmp_path / "given" / RECEIVED, tmp_path / "out" / RECEIVED]
    assert len(kept) > 6
    assert [str(path) for path in kept if path.stat().st_mode & 0o077] == []


# Revocation and rotation


def test_a_revocation_ends_open_runs_and_a_new_run_goes_on_without_the_key(pair: Pair, server: SiteServer) -> None:
    assert pair.ask(server) == ("answer", "")
    south = pair.hub.sites()["south"].site.fingerprint
    pair.north.distrust(south)
    assert pair.ask(server) == ("refused", "roster")
    server.close()
    restarted = pair.north.site_server()
    assert pair.ask(restarted) == ("refused", "roster")
    assert "revoked" in restarted.ledger.refusals["north"]
    assert pair.ask(restarted, pair.message(run="cd" * 8)) == ("answer", "")
    restarted.close()


def test_new_keys_of_this_site_end_its_open_runs(pair: Pair, server: SiteServer) -> None:
    assert pair.ask(server) == ("answer", "")
    server.close()
    rotate_site(pair.north)
    pair.hub.replace(KeyHandover.read(pair.north.path / "handover.json"))
    restarted = pair.north.site_server()
    assert pair.ask(restarted) == ("refused", "roster")
    restarted.close()


def test_a_revoked_hub_gets_no_answer(pair: Pair, server: SiteServer) -> None:
    assert pair.ask(server) == ("answer", "")
    pair.north.distrust(Invitation.read(pair.hub.path / "invitation.json").hub.fingerprint)
    assert pair.ask(server) == ("refused", "roster")
    with pytest.raises(IntegrityError, match="hub's fingerprint was revoked"):
        pair.north.site_server()


def test_a_hub_ends_a_run_whose_sites_keys_changed(pair: Pair, kohort_here: Callable[..., Any]) -> None:
    everyone = {name: item.site for name, item in pair.hub.sites().items()}
    identity = load_identity(pair.hub.path / "identity.key")
    backend = FlowerBackend(hub=pair.hub, run=None, identity=identity, everyone=everyone)  # type: ignore[arg-type]
    backend._check_registered()
    registration = Registration.read(pair.north.path / "registration.json")
    pair.hub.add(registration)  # the same again
    backend._check_registered()
    code, _, said = kohort_here("hub", "revoke", pair.hub.path, registration.site.fingerprint)
    assert (code, "north is no longer registered" in said) == (0, True)
    with pytest.raises(IntegrityError, match="north"):
        backend._check_registered()
    with pytest.raises(RefusedError, match="revoked"):
        pair.hub.add(registration)
    rotate_site(pair.north)
    pair.hub.add(Registration.read(pair.north.path / "registration.json"))
    with pytest.raises(IntegrityError, match="north"):
        backend._check_registered()


# Domains


def test_a_refusal_of_another_domain_names_the_column_at_the_site_alone(pair: Pair) -> None:
    settings = (pair.north.path / "site.toml").read_text()
    (pair.north.path / "site.toml").write_text(settings.replace("9.0", "7.0"))
    server = pair.north.site_server()
    assert pair.ask(server) == ("refused", "schema")
    assert "('a': bounds)" in server.ledger.refusals["north"]
    server.close()


def update(pair: Pair, plan: str, *, day: int = 1) -> Path:
    """A signed update for the domains of a plan."""
    (pair.root / "new.toml").write_text(plan)
    now = datetime(2030, 1, day, tzinfo=UTC)
    made = DomainUpdate.of(load_identity(pair.hub.path / "identity.key"), read_plan(pair.root / "new.toml"), now=now)
    made.write(pair.root / "domains.json")
    return pair.root / "domains.json"


def test_domains_change_by_a_signed_file_and_a_command(pair: Pair, kohort_here: Callable[..., Any]) -> None:
    more = 'bounds = {a = [0.0, 19.0], b = [0.0, 200.0]}\ncategories = {y = ["n", "p"]}\n'
    (pair.root / "plan.toml").write_text(PLAN.replace("bounds = {a = [0.0, 9.0]}\n", more))
    place = pair.north.path / "site.toml"
    place.write_text(place.read_text().replace("[policy]", "# a remark of mine\n[policy]"))
    server = pair.north.site_server()
    pair.north.approvals.approve(read_plan(pair.plan).digest())
    assert pair.ask(server) == ("refused", "schema")
    server.close()
    assert kohort_here("hub", "domains", pair.hub.path, pair.plan, "--out", pair.root / "domains.json")[0] == 0
    code, out, _ = kohort_here("site", "domains", pair.north.path, pair.root / "domains.json")
    assert (code, out.split("\n")[:3]) == (0, ["a: bounds", "b: bounds", "y: categories"])
    assert "# a remark of mine" in place.read_text()
    server = pair.north.site_server()
    # The schema is agreed on; with everything declared there is nothing left to describe.
    assert pair.ask(server, pair.message(run="cd" * 8)) == ("refused", "contract")
    server.close()
    assert "same already" in kohort_here("site", "domains", pair.north.path, pair.root / "domains.json")[1]


FORMS = {
    "several lines": "bounds = {a = [\n  0.0,\n  9.0,\n]}",
    "a table": "[data.bounds]\na = [0.0, 9.0]",
    "none": "",
}


@pytest.mark.parametrize("form", FORMS)
def test_domains_are_found_in_every_form_of_toml(pair: Pair, form: str) -> None:
    place = pair.north.path / "site.toml"
    written = next(line for line in place.read_text().splitlines() if line.startswith("bounds ="))
    rest = place.read_text().replace(f"{written}\n", "")
    head, tail = rest.split("\n[policy]")
    place.write_text(f"{head.rstrip()}\n{FORMS[form]}\n\n[policy]{tail}")
    before = pair.north.settings()
    read = DomainUpdate.read(update(pair, PLAN.replace("9.0", "8.0")), hub=pair.north.invitation.hub)
    assert read.apply(pair.north.path) == ["a: bounds"]
    after = pair.north.settings()
    assert after.schema.columns["a"].bounds == (0.0, 8.0)
    assert (after.site, after.policy, after.limits) == (before.site, before.policy, before.limits)


def test_an_update_that_the_hub_did_not_sign_or_that_is_older_is_refused(pair: Pair, tmp_path: Path) -> None:
    hub = pair.north.invitation.hub
    genuine = update(pair, PLAN.replace("9.0", "8.0"), day=2)
    data = json.loads(genuine.read_text())["data"]
    for bad in (
        {"data": data.replace("8.0", "5.0")},
        {"made": "2031-01-01T00:00:00Z"},
        {"signature": ""},
        {"hub": public_text(Identity.generate("hub").public)},
        {"data": '{"target":"a"}'},
        {"made": "yesterday"},
    ):
        with pytest.raises(IntegrityError):
            DomainUpdate.read(changed(genuine, tmp_path / "bad.json", **bad), hub=hub)
    own = DomainUpdate(hub=hub, made="2030-01-02T00:00:00Z", data={"target": "a"})
    signer = load_identity(pair.hub.path / "identity.key")
    signature = signer.sign(canonical(own._texts()).encode(), purpose=Purpose.DOMAINS).hex()
    replace(own, signature=signature).write(tmp_path / "roles.json")
    with pytest.raises(IntegrityError, match="damaged"):  # the hub itself may not change a role
        DomainUpdate.read(tmp_path / "roles.json", hub=hub)
    DomainUpdate.read(genuine, hub=hub).apply(pair.north.path)
    with pytest.raises(RefusedError, match="taken over before"):
        DomainUpdate.read(update(pair, PLAN, day=1), hub=hub).apply(pair.north.path)


# What older versions wrote


def age(pair: Pair) -> None:
    """Make hub and site what an older version left: unbound keys, unsigned files, loose modes."""
    for folder in (pair.hub.path, pair.north.path):
        identity = load_identity(folder / "identity.key")
        save_identity(folder / "identity.key", replace(identity, bound=""), force=True)
    hub = public_text(load_identity(pair.hub.path / "identity.key").public)
    old = {"kohort": "invitation", "version": 1, "address": "hub.example.org:9092", "hub": hub}
    ca = (pair.hub.path / "ca.pem").read_text()
    for place in (pair.hub.path / "invitation.json", pair.north.path / "hub.json"):
        place.write_text(json.dumps({**old, "ca": ca}))
    own = load_identity(pair.north.path / "identity.key").public
    roster = Roster.load(pair.north.path / "peers.toml")
    roster.remove("north").trust("north", own.fingerprint).save(pair.north.path / "peers.toml")
    (pair.north.path / "site.toml").chmod(0o664)


def test_what_an_older_version_wrote_is_renewed_by_commands(pair: Pair, kohort_here: Callable[..., Any]) -> None:
    age(pair)
    with pytest.raises((ConfigError, RefusedError)):
        pair.north.site_server()
    assert kohort_here("hub", "start", pair.hub.path)[0] == 2
    assert kohort_here("site", "renew", pair.north.path)[0] == 2
    code, shown, _ = kohort_here("hub", "renew", pair.hub.path)
    assert code == 0
    words = ["--invitation", pair.hub.path / "invitation.json", "--fingerprint"]
    assert kohort_here("site", "renew", pair.north.path, *words, "0" * 64)[0] == 6
    keys = load_identity(pair.north.path / "identity.key").public.signing
    code, printed, said = kohort_here("site", "renew", pair.north.path, *words, shown.strip())
    assert (code, "covers the node key now" in said) == (0, True)
    own = load_identity(pair.north.path / "identity.key").public
    assert (own.signing, own.fingerprint) == (keys, printed.strip())
    assert pair.north.roster().knows("north", own)
    pair.hub.forget("north")
    pair.hub.add(Registration.read(pair.north.path / "registration.json"))
    assert renew_site(pair.north.path).changes == ()
    server = pair.north.site_server()
    assert pair.ask(server) == ("answer", "")
    server.close()


def test_an_invitation_of_another_hub_renews_nothing(pair: Pair, tmp_path: Path) -> None:
    other = HubFolder.init(tmp_path / "other-hub", address="hub.example.org:9092")
    before = (pair.north.path / "hub.json").read_bytes()
    with pytest.raises(IntegrityError, match="another hub"):
        renew_site(pair.north.path, invitation=Invitation.read(other.path / "invitation.json"))
    assert (pair.north.path / "hub.json").read_bytes() == before


def test_a_changed_address_is_said_before_serving(pair: Pair) -> None:
    place = pair.hub.path / "hub.toml"
    place.write_text(place.read_text().replace("hub.example.org", "new.example.org"))
    with pytest.raises(ConfigError, match="invited to"):
        pair.hub._check_invitation()
    assert pair.hub.renew()
    assert Invitation.read(pair.hub.path / "invitation.json").address == "new.example.org:9092"
    assert not pair.hub.renew()


# What a site says, and what does not end it


def test_a_site_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    node = tmp_path / "node.number"
    waiting = Waiting(said.append, "north", "hub:9092", node, tmp_path / "registration.json", lambda: 0)
    waiting.begin([])
    waiting.look()
    assert said == ["north: waiting for the hub at hub:9092; trusted peers: none yet: kohort site trust"]
    waiting.began -= 60
    waiting.look()
    waiting.look()
    assert "kohort hub add HUB registration.json" in said[1]
    node.write_text("7")
    waiting.look()
    waiting.look()
    assert said[2:] == ["north: connected; waiting for the hub to run a plan (none is approved yet)"]


def test_nothing_that_a_message_holds_ends_the_sites_loop(
    pair: Pair, server: SiteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site's own loop with a SuperNode that hands it every kind of bad message, then a good one."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.runtime import run_clientapp

    from kohort.transport.flower import runner as flower_runner
    from kohort.transport.flower.bundle import bundle
    from kohort.transport.flower.client_app import message_bytes, message_content

    for name, value in {"_run_id": 1, "_task_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    body_is_wrong = pair.message(body=b"KHRT\0 not a payload")
    head_is_wrong = write_request(
        replace(RequestMessage(site="north", fresh="x"), columns="{"), load_identity(pair.hub.path / "identity.key")
    )
    contents = [
        (RecordDict(), "query"),
        (RecordDict({"kohort": ConfigRecord({"letter": "a text"})}), "query"),
        (RecordDict({"kohort": ConfigRecord({"other": b""})}), "query"),
        (message_content(b""), "query"),
        (message_content(b"kohort letters\0" + b"\xff" * 40), "query"),
        (message_content(b"x" * 200), "query"),
        (message_content(body_is_wrong), "query"),
        (message_content(head_is_wrong), "query"),
        (message_content(pair.message(run="12" * 8, columns="[")), "query"),
        (message_content(pair.message(run="34" * 8, plan=b"{")), "query"),
        (message_content(pair.message(run="../..")), "query"),
        (message_content(pair.message()), "train"),
        (message_content(pair.message(run="cd" * 8)), "query"),
    ]
    queue = [Message(content, dst_node_id=7, message_type=kind) for content, kind in contents]
    unreadable = len(queue)
    pushed: list[Any] = []

    def pull(client: Any) -> Any:
        if len(pushed) == unreadable:
            pushed.append(None)
            raise ValueError("bytes that are no message")
        return queue[len(pushed)], None, None, SimpleNamespace(content=bundle())

    monkeypatch.setattr(run_clientapp, "pull_task_input", pull)
    monkeypatch.setattr(run_clientapp, "push_message", lambda client, reply, context: pushed.append(reply))
    monkeypatch.setattr(run_clientapp, "push_task_output", lambda *_: None)
    client = SimpleNamespace(AcquireTask=lambda _: SimpleNamespace(token="t"), close=lambda: None)
    monkeypatch.setattr(flower_runner.SiteRunner, "_client", lambda self: client)
    before, looks = len(server.ledger.hashes), count()
    runner = flower_runner.SiteRunner(
        answer=server.reply,
        refuse=lambda reason: server.record_refusal("app bundle", reason),
        unread=lambda reason: server.record_refusal("message", reason),
        address="127.0.0.1:1",
        secret=b"s",
        alive=lambda: len(pushed) <= unreadable and server.broken is None and next(looks) < 3 * unreadable,
    )
    runner.serve()
    assert len(pushed) > unreadable, "a message was left without an answer"
    assert server.broken is None
    public = load_identity(pair.north.path / "identity.key").public
    answers = [read_reply(message_bytes(reply), site=public) for reply in pushed[:-1] if reply.has_content()]
    assert len(answers) == unreadable - 1, "a message of another type gets an error"
    assert {answer.status for answer in answers[:-1]} <= {"dropped", "refused"}
    assert answers[-1].status == "answer"
    assert len(server.ledger.hashes) > before
