"""The folders of hubs and sites: what is in them, what is refused, and who may read them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("flwr")

from kohort.crypto.identity.certificates import node_key_to_register
from kohort.crypto.identity.keys import load_identity
from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.privacy.ledger.ledger import canonical
from kohort.runs.config import read_plan
from kohort.runs.retention import RECEIVED, note_last_day
from kohort.transport.deployment.files import Invitation, Registration, is_loopback, split_address
from kohort.transport.deployment.hub import HubFolder, _forget_rows
from kohort.transport.deployment.site import Limits, SiteFolder
from kohort.transport.flower.runner import supernode_command
from kohort.transport.flower.superlink import HubSecretMiddleware
from kohort.transport.messages import RequestMessage, fresh_number, read_reply, write_request

PLAN = """
[data]
table = "at the sites"
target = "y"
quasi = ["a"]
features = ["b"]
bounds = {a = [0.0, 9.0]}
[sites]
split = "files"
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture
def hub(tmp_path: Path) -> HubFolder:
    return HubFolder.init(tmp_path / "hub", address="127.0.0.1:9092", insecure=True)


def site_at(tmp_path: Path, hub: HubFolder, plan: Path, name: str = "north") -> SiteFolder:
    table = tmp_path / f"{name}.csv"
    pl.DataFrame({"y": ["n", "p"] * 60, "b": list(range(120)), "a": [1, 2, 3] * 40}).write_csv(table)
    invitation = Invitation.read(hub.path / "invitation.json")
    made = SiteFolder.init(tmp_path / name, name=name, table=table, invitation=invitation, plan=read_plan(plan))
    hub.add(Registration.read(made.path / "registration.json"))
    return made


def asked(hub: HubFolder, site: SiteFolder, plan: Path, **changes: str) -> tuple[str, str]:
    """Status and reason of a site's answer to the first request of a run."""
    from kohort.transport.deployment.site_run import hub_schema

    read = read_plan(plan)
    schema = hub_schema(read, None)
    described = {
        "site": "north",
        "fresh": fresh_number(),
        "run": "ab" * 8,
        "plan_hash": read.digest(),
        "schema": schema.fingerprint(),
        "columns": canonical(list(schema.columns)),
        "task": "prepare",
        **changes,
    }
    from kohort.protocol.wire import Payload, encode

    message = RequestMessage(**described, body=encode(Payload()), plan=canonical(read.to_mapping()).encode())  # type: ignore[arg-type]
    site_server = site.site_server()
    try:
        identity = load_identity(hub.path / "identity.key")
        answer = read_reply(site_server.reply(write_request(message, identity)), site=hub.sites()["north"].site)
    finally:
        site_server.close()
    return answer.status, answer.code


def test_the_template_caps_epsilon(tmp_path: Path, hub: HubFolder, plan: Path) -> None:
    site = site_at(tmp_path, hub, plan)
    assert "epsilon = 10.0  # in total, over all runs" in (site.path / "site.toml").read_text()
    policy = site.settings().policy
    assert policy.epsilon == 10.0
    place = site.path / "site.toml"
    kept = [line for line in place.read_text().splitlines() if not line.startswith("epsilon")]
    place.write_text("\n".join(kept) + "\n")
    with pytest.raises(ConfigError, match=r"names no policy\.epsilon"):
        site.settings()


def test_two_identifiers_need_the_one_that_names_a_person(tmp_path: Path, hub: HubFolder, plan: Path) -> None:
    two = tmp_path / "two.toml"
    two.write_text(
        plan.read_text().replace("[data]", '[data]\nidentifiers = ["patient", "visit"]\nperson = "patient"', 1)
    )
    table = tmp_path / "north.csv"
    visits = {"patient": [f"p{n // 2}" for n in range(120)], "visit": [f"v{n}" for n in range(120)]}
    pl.DataFrame({**visits, "y": ["n", "p"] * 60, "b": list(range(120)), "a": [1, 2, 3] * 40}).write_csv(table)
    invitation = Invitation.read(hub.path / "invitation.json")
    site = SiteFolder.init(tmp_path / "north", name="north", table=table, invitation=invitation, plan=read_plan(two))
    hub.add(Registration.read(site.path / "registration.json"))
    assert 'person = "patient"' in (site.path / "site.toml").read_text()
    assert site.settings().schema.identifiers == ("patient", "visit")
    site.approvals.approve(read_plan(two).digest())
    assert asked(hub, site, two) == ("failed", "failed")  # begun: a prepare without a domain is malformed
    other = tmp_path / "other.toml"
    other.write_text(two.read_text().replace('person = "patient"', 'person = "visit"'))
    site.approvals.approve(read_plan(other).digest())
    assert asked(hub, site, other, run="cd" * 8) == ("refused", "schema")


def test_private_files_are_their_owners_alone(tmp_path: Path, plan: Path) -> None:
    hub = HubFolder.init(tmp_path / "hub", address="hub.example.org:9092")
    site = site_at(tmp_path, hub, plan)
    private = ["identity.key", "ca-key.pem", "server-key.pem", "control.key", "superexec.key"]
    for path in [*(hub.path / name for name in private), site.path / "identity.key", site.path / "node.key"]:
        assert path.stat().st_mode & 0o077 == 0, path
    with pytest.raises(ConfigError, match="exists"):
        HubFolder.init(tmp_path / "hub", address="hub.example.org:9092")


def test_an_unapproved_plan_another_schema_and_a_limit_are_refused(tmp_path: Path, hub: HubFolder, plan: Path) -> None:
    site = site_at(tmp_path, hub, plan)
    assert asked(hub, site, plan) == ("refused", "approval")
    site.approvals.approve(read_plan(plan).digest())
    assert asked(hub, site, plan, schema="0" * 64) == ("refused", "schema")
    assert asked(hub, site, plan) == ("failed", "failed")  # a prepare without a domain is begun, and is malformed
    settings = (site.path / "site.toml").read_text().replace("# runs = 20", "runs = 1")
    (site.path / "site.toml").write_text(settings)
    assert asked(hub, site, plan, run="cd" * 8) == ("refused", "limits")
    lines = [json.loads(line) for line in (site.path / "ledger" / "ledger.jsonl").read_text().splitlines()]
    reasons = [line["reason"] for line in lines if line["event"] == "refusal"]
    assert ["approve" in reasons[0], "another schema" in reasons[1], "limit is 1" in reasons[2]] == [True] * 3


def test_limits_count_answers_of_the_last_month(tmp_path: Path, hub: HubFolder, plan: Path) -> None:
    site = site_at(tmp_path, hub, plan)
    site_server = site.site_server()
    site_server.ledger._times += [("train", int(time.time()))] * 5 + [("train", 0)] * 5
    site._check_limits(Limits(tasks={"train*": 6}), ["prepare", "train"], site_server.ledger, begins=False)
    with pytest.raises(RefusedError, match="5 answers"):
        site._check_limits(Limits(tasks={"train*": 5}), ["prepare", "train"], site_server.ledger, begins=False)
    site_server.close()


def test_a_sites_own_settings_are_checked(tmp_path: Path, hub: HubFolder, plan: Path) -> None:
    site = site_at(tmp_path, hub, plan)
    (site.path / "site.toml").write_text((site.path / "site.toml").read_text() + "runz = 3\n")
    with pytest.raises(ConfigError, match="runz"):
        site.settings()
    with pytest.raises(ConfigError, match="no site"):
        SiteFolder(tmp_path / "nowhere").settings()


def test_a_site_is_added_once_and_forgotten_with_its_rows(tmp_path: Path, hub: HubFolder, plan: Path) -> None:
    site = site_at(tmp_path, hub, plan)
    hub.add(Registration.read(site.path / "registration.json"))
    other = SiteFolder.init(
        tmp_path / "other", name="north", table=tmp_path / "north.csv",
        invitation=Invitation.read(hub.path / "invitation.json"),
    )  # fmt: skip
    with pytest.raises(RefusedError, match="another key"):
        hub.add(Registration.read(other.path / "registration.json"))
    run = tmp_path / "run"
    (run / "hub").mkdir(parents=True)
    pl.DataFrame({"sender": ["north", "south"], "a": [1, 2]}).write_parquet(run / "hub" / "received.parquet")
    hub.remember_run(run)
    assert hub.forget("north") == [str(run / "hub" / "received.parquet")]
    assert pl.read_parquet(run / "hub" / "received.parquet")["sender"].to_list() == ["south"]
    assert _forget_rows(run, "north") == ""
    assert hub.sites() == {}
    with pytest.raises(ConfigError, match="no site"):
        hub.forget("north")


def test_rows_go_when_their_last_day_is_over(tmp_path: Path, hub: HubFolder) -> None:
    run = tmp_path / "run"
    (run / "hub").mkdir(parents=True)
    pl.DataFrame({"sender": ["north"], "a": [1]}).write_parquet(run / RECEIVED)
    hub.remember_run(run)
    assert hub.drop_overdue(today=date(2100, 1, 1)) == [], "rows without a date stay until a site is forgotten"
    note_last_day(run, days=30, today=date(2026, 1, 1))
    assert hub.drop_overdue(today=date(2026, 1, 31)) == []
    assert hub.drop_overdue(today=date(2026, 2, 1)) == [str(run / RECEIVED)]
    assert not (run / RECEIVED).exists()
    assert json.loads((run / "hub" / "received.json").read_bytes()) == {
        "received": "2026-01-01", "keep_until": "2026-01-31", "dropped": "2026-02-01",
    }  # fmt: skip
    assert hub.drop_overdue(today=date(2026, 2, 2)) == []
    (run / "hub" / "received.json").write_text('{"keep_until": "soon"}')
    with pytest.raises(IntegrityError, match="until when"):
        hub.drop_overdue(today=date(2026, 2, 2))


def test_the_hubs_second_thread_waits_until_flower_is_imported(hub: HubFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that import Flower at a time find halves of it."""
    notified = threading.Event()
    seen: list[bool] = []

    def serve(*, before: Callable[[], None], **_: object) -> None:
        seen.append(notified.wait(0.2))
        before()
        seen.append(notified.wait(10))

    monkeypatch.setattr(HubFolder, "_tell_superlink", lambda *_, **__: notified.set())
    monkeypatch.setattr("kohort.transport.deployment.hub.serve_superlink", serve)
    monkeypatch.setattr("kohort.transport.deployment.hub._require_free", lambda *_: None)
    hub.start()
    assert seen == [False, True]


def test_a_hub_knows_its_nodes_before_it_listens_and_keeps_no_messages(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = HubFolder.init(tmp_path / "hub", address="127.0.0.1:9092")
    site_at(tmp_path, hub, plan)
    (hub.path / "state").mkdir(exist_ok=True)
    for name in ("superlink.db", "superlink.db-wal"):  # of an older kohort, with what sites sent
        (hub.path / "state" / name).write_bytes(b"what a site sent")
    served: dict[str, Any] = {}
    monkeypatch.setattr("kohort.transport.deployment.hub.serve_superlink", lambda **given: served.update(given))
    monkeypatch.setattr("kohort.transport.deployment.hub._require_free", lambda *_: None)
    hub.start()
    (registered,) = hub.sites().values()
    assert served["nodes"] == [node_key_to_register(registered.node_key.encode())]
    assert list((hub.path / "state").glob("superlink*")) == []


def test_overdue_rows_go_before_the_next_run(tmp_path: Path, hub: HubFolder) -> None:
    run = tmp_path / "run"
    (run / "hub").mkdir(parents=True)
    pl.DataFrame({"a": [1]}).write_parquet(run / RECEIVED)
    hub.remember_run(run)
    note_last_day(run, days=1, today=date(2020, 1, 1))
    with pytest.raises(ConfigError, match="no site is registered"), hub.backend():
        pass
    assert not (run / RECEIVED).exists()


def test_a_key_holder_has_no_table_and_a_site_has_one(tmp_path: Path, hub: HubFolder) -> None:
    invitation = Invitation.read(hub.path / "invitation.json")
    with pytest.raises(ConfigError, match="needs a table"):
        SiteFolder.init(tmp_path / "a", name="a", table=None, invitation=invitation)
    made = SiteFolder.init(tmp_path / "k", name="key-holder", table=None, invitation=invitation)
    made.site_server().close()


def test_without_tls_is_for_this_machine_alone(tmp_path: Path, hub: HubFolder, plan: Path) -> None:
    with pytest.raises(RefusedError, match="this very machine"):
        HubFolder.init(tmp_path / "h", address="10.0.0.5:9092", insecure=True)
    with pytest.raises(ConfigError, match="no TLS"):
        site_at(tmp_path, hub, plan).start(insecure=False, retries=1)
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert not is_loopback("10.0.0.5")
    for wrong in ("hub", "hub:", "hub:0", "hub:99999"):
        with pytest.raises(ConfigError):
            split_address(wrong)


def test_damaged_files_are_said_to_be(tmp_path: Path, hub: HubFolder) -> None:
    (hub.path / "invitation.json").write_text('{"kohort": "registration"}')
    with pytest.raises(IntegrityError, match="not a kohort invitation"):
        Invitation.read(hub.path / "invitation.json")
    with pytest.raises(ConfigError, match="no registration"):
        Registration.read(tmp_path / "nowhere.json")


def test_only_the_fleet_api_is_open_to_everybody() -> None:
    guard = HubSecretMiddleware(lambda *_: None, b"\1" * 32)  # type: ignore[arg-type,return-value]
    for path, header, may in (
        ("/v1/fleet/pull-messages", b"", True),
        ("/v1/control/start-run", b"", False),
        ("/v1/control/start-run", b"02" * 32, False),
        ("/v1/control/start-run", b"01" * 32, True),
        ("/v1/runtime/acquire-task", b"", False),
        ("/docs", b"", False),
    ):
        assert guard._may({"path": path, "headers": [(b"x-kohort-hub", header)]}) is may, path


def test_no_request_of_a_node_is_answered_whose_address_can_be_read_in_two_ways() -> None:
    """Flower authenticates by the address's path, which is built from Host and path, and answers by the path alone."""
    guard = HubSecretMiddleware(lambda *_: None, b"\1" * 32)  # type: ignore[arg-type,return-value]
    path = "/v1/fleet/pull-object"
    for host in ("hub.example.org", "hub.example.org:9092", "127.0.0.1:9092", "[::1]:9092", "my_hub"):
        assert guard._may({"path": path, "headers": [(b"host", host.encode())]}), host
    for host in ("x/v1/runtime/pull-object?", "x#", "a@b", "x?", "x\\y", "hub:1/a", "", "hub\n"):
        assert not guard._may({"path": path, "headers": [(b"host", host.encode())]}), host
    for other in (
        "/v1/fleet/pull-object?x",
        "/v1/fleet/pull-object#",
        "/v1/fleet/a@b",
        "/v1/fleet/../runtime/x",
        "/v1/fleet/x\n",
    ):
        assert not guard._may({"path": other, "headers": [(b"host", b"hub")]}), other


def test_a_supernode_never_runs_apps_itself(tmp_path: Path) -> None:
    command = supernode_command(
        superlink="h:1", port=5, secret=tmp_path / "s", ca=tmp_path / "ca", key=tmp_path / "k", retries=3
    )
    assert command[command.index("--isolation") + 1] == "process"
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "--insecure" not in command
