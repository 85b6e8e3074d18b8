"""Who is not let in and what is said of a mistake, at a hub that is a real process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.flower_federation import Federation, federation, hub_port, plan_with, tables_of

pytest.importorskip("flwr")

from kohort.crypto.identity.certificates import issue_server_certificate, make_node_key, node_public_key
from kohort.transport.deployment.files import Invitation
from kohort.transport.deployment.hub import HubFolder
from kohort.transport.flower.superlink import SECRET_HEADER, node_states

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def hub_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("alone")
    made = Federation(root, plan_with(root), retries=1)
    try:
        made.found(tables_of(3))
        made.start_hub()
        yield made
    finally:
        made.close()


def started(made: Federation, name: str) -> subprocess.CompletedProcess[str]:
    """`kohort site start`, which is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "kohort.cli.main", "site", "start", str(made.site(name)), "--retries", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_key_nobody_registered_is_not_let_in(hub_alone: Federation) -> None:
    name = "site-00"
    make_node_key(hub_alone.site(name) / "node.key", force=True)
    ended = started(hub_alone, name)
    assert ended.returncode == 6, ended.stderr
    assert "does not know its node key" in ended.stderr
    known = {node["key"] for node in node_states(HubFolder(hub_alone.hub).connection)}
    assert not any(node_public_key(hub_alone.site(name) / "node.key").split()[1] in key for key in known)


def test_the_rest_of_the_superlink_answers_to_the_hub_alone(hub_alone: Federation) -> None:
    import httpx

    address = HubFolder(hub_alone.hub).connection.address
    with httpx.Client(verify=False) as outsider:  # noqa: S501 - an outsider would not mind
        for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs"):
            assert outsider.post(f"https://{address}{path}", content=b"").status_code == 404
        wrong = {SECRET_HEADER: "00" * 32}
        assert outsider.post(f"https://{address}/v1/control/list-nodes", headers=wrong).status_code == 404


def test_another_authority_is_not_believed(hub_alone: Federation, tmp_path: Path) -> None:
    HubFolder.init(tmp_path / "impostor", address="127.0.0.1:9")
    name = "site-01"
    (hub_alone.site(name) / "ca.pem").write_bytes((tmp_path / "impostor" / "ca.pem").read_bytes())
    ended = started(hub_alone, name)
    assert ended.returncode == 6, ended.stderr
    assert "certificate" in ended.stderr


def test_an_expired_certificate_is_said_before_serving(tmp_path: Path) -> None:
    made = Federation(tmp_path, tmp_path / "none")
    HubFolder.init(made.hub, address=f"127.0.0.1:{hub_port()}")
    issue_server_certificate(made.hub, ["127.0.0.1"], now=datetime.now(UTC) - timedelta(days=500), force=True)
    assert "expired" in made.kohort("hub", "start", made.hub, code=6)
    made.kohort("hub", "renew", made.hub)


def test_a_hub_that_is_not_there_and_a_port_in_use(hub_alone: Federation, tmp_path: Path) -> None:
    said = hub_alone.kohort("hub", "start", hub_alone.hub, code=5)
    assert "in use" in said
    away = Federation(tmp_path, plan_with(tmp_path), retries=1)
    away.found(tables_of(3))
    ended = started(away, "site-00")
    assert ended.returncode == 5, ended.stderr
    assert (away.site("site-00") / "ledger" / "ledger.jsonl").is_file()
    said = away.kohort("run", away.plan, "--engine", "flower", "--hub", away.hub, "--out", tmp_path / "o", code=5)
    assert "kohort hub start" in said


def test_without_tls_only_on_this_machine(tmp_path: Path) -> None:
    made = Federation(tmp_path, tmp_path / "none")
    said = made.kohort("hub", "init", made.hub, "--address", "hub.example.org:9092", "--insecure", code=4)
    assert "this very machine" in said
    made.kohort("hub", "init", made.hub, "--address", "127.0.0.1:9092", "--insecure")
    tables_of(1)["site-00"].write_csv(tmp_path / "t.csv")
    plan_with(tmp_path, sites=1)
    words = ["--name", "a", "--table", tmp_path / "t.csv", "--plan", tmp_path / "plan.toml"]
    made.kohort("site", "init", tmp_path / "a", *words, "--invitation", made.hub / "invitation.json")
    assert "no TLS" in made.kohort("site", "start", tmp_path / "a", code=2)


@pytest.mark.long
def test_insecure_loopback_works_and_says_so_loudly(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, rounds=1)
    with federation(tmp_path, plan, tables_of(3), insecure=True) as made:
        result = made.run(tmp_path / "out", "--seed", 1)
        assert "INSECURE" in (tmp_path / "site-00.log").read_text()
    assert (result["sites"], result["dropped"]) == (3, {})


def test_registrations_and_invitations_are_checked(tmp_path: Path) -> None:
    HubFolder.init(tmp_path / "hub", address="127.0.0.1:9092")
    invitation = Invitation.read(tmp_path / "hub" / "invitation.json")
    assert invitation.ca.startswith("-----BEGIN CERTIFICATE")
    made = Federation(tmp_path, tmp_path / "none")
    (tmp_path / "old.json").write_text('{"kohort": "registration", "version": 1}')
    assert "older" in made.kohort("hub", "add", tmp_path / "hub", tmp_path / "old.json", code=2)
    (tmp_path / "bad.json").write_text('{"kohort": "registration", "version": 2}')
    assert "damaged" in made.kohort("hub", "add", tmp_path / "hub", tmp_path / "bad.json", code=6)
