"""Ledgers of hub and sites carry the right signatures; restored or deleted ones stop a site."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("flwr")

from tests.support.deployed import NAMES, Deployed, Servers
from tests.support.forger import Forgery, fresh_signer, read

from kohort.crypto.identity.keys import load_identity
from kohort.crypto.identity.signers import signer_of
from kohort.crypto.identity.user import state_folder
from kohort.errors import IntegrityError, SiteError
from kohort.privacy.ledger.pins import Pins
from kohort.privacy.ledger.results import bind_results
from kohort.privacy.ledger.verify import verify_ledger
from kohort.privacy.ledger.verify_receipts import compare_ledgers
from kohort.runs.retention import note_last_day
from kohort.transport.high_water import LedgerBehindError
from kohort.transport.messages import RequestMessage, fresh_number, read_reply, write_request
from kohort.transport.peer_heads import head_lines

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """After one run; `yesterday` and `state-yesterday` are copies from before a second one."""
    deployed = Deployed.make(tmp_path_factory.mktemp("deployed"))
    deployed.run("first", seed=1)
    for name in (*NAMES, "hub"):
        shutil.copytree(deployed.folder / name, deployed.folder / "yesterday" / name)
    shutil.copytree(state_folder(), deployed.folder / "state-yesterday")
    deployed.run("out", seed=2)
    return deployed


@pytest.fixture
def again(made: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    """A copy to spoil, with the state folder of the user who runs it."""
    folder = tmp_path / "deployed"
    shutil.copytree(made.folder, folder)
    shutil.copytree(state_folder(), tmp_path / "state")
    monkeypatch.setenv("KOHORT_STATE", str(tmp_path / "state"))
    hub = type(made.hub)(folder / "hub")
    return Deployed(folder, hub, {name: type(site)(folder / name) for name, site in made.sites.items()})


def test_every_folder_is_sound_where_its_signer_is_known(made: Deployed, kohort_here: Call) -> None:
    for name in NAMES:
        for place in (made.folder / name, made.folder / name / "ledger"):
            code, _, said = kohort_here("ledger", "verify", place, "--strict")
            assert code == 0, said
            assert said.startswith(f"sound, signed by site '{name}'")
    code, _, said = kohort_here("ledger", "verify", made.hub.path, "--strict")
    assert code == 0
    assert said.startswith("sound, signed by hub 'hub'")
    assert "3 sites" in said
    code, shown, _ = kohort_here("ledger", "verify", made.folder / "out", "--json")
    found = json.loads(shown)
    assert found["signed_by"] == "hub 'hub', which ran here"
    assert found["site_heads"] == found["releases"] > 0
    hub = load_identity(made.hub.path / "identity.key").public
    assert found["signer"] == hub.fingerprint


def test_elsewhere_a_key_or_a_roster_is_named(made: Deployed, again: Deployed, kohort_here: Call) -> None:
    shutil.rmtree(state_folder())
    copy = shutil.copytree(made.folder / "north" / "ledger", again.folder / "copy" / "ledger")
    own = load_identity(made.folder / "north" / "identity.key").public.fingerprint
    other = load_identity(made.folder / "south" / "identity.key").public.fingerprint
    assert "consistent, signer unknown" in kohort_here("ledger", "verify", copy)[2]
    assert kohort_here("ledger", "verify", copy, "--strict")[0] == 6
    assert kohort_here("ledger", "verify", copy, "--key", own)[2].startswith("sound, signed by")
    assert kohort_here("ledger", "verify", copy, "--key", other)[0] == 6
    roster = made.folder / "south" / "peers.toml"
    assert "sound, signed by 'north', by peers.toml" in kohort_here("ledger", "verify", copy, "--roster", roster)[2]
    code, shown, _ = kohort_here("ledger", "verify", made.folder / "out", "--roster", roster, "--json")
    found = json.loads(shown)
    assert (code, found["sound"]) == (0, False)  # the hub is not on a site's roster
    assert found["known_sites"] == list(NAMES)
    wrong = Pins(sites={"north": other})
    with pytest.raises(IntegrityError, match="signed by another key than the site's"):
        verify_ledger(made.folder / "out", pins=wrong)


def test_a_key_that_somebody_put_into_a_folder_vouches_for_nothing(again: Deployed, kohort_here: Call) -> None:
    """A forger's whole folder, key and all, was once "sound, with the key in its folder"."""
    north, hub = again.folder / "north", again.hub.path
    code, shown, _ = kohort_here("ledger", "verify", hub, "--json")
    fingerprint = json.loads(shown)["signer"]
    assert (code, json.loads(shown)["sound"]) == (0, True)
    own = load_identity(north / "identity.key").public.fingerprint
    for path in (state_folder() / "signers.json", *(state_folder() / "sites").iterdir()):
        path.unlink()  # what another user knows
    for place, key in ((north, own), (north / "ledger", own), (hub, fingerprint)):
        code, shown, said = kohort_here("ledger", "verify", place, "--json")
        assert (code, json.loads(shown)["sound"]) == (0, False), said
        assert "consistent, signer unknown" in kohort_here("ledger", "verify", place)[2]
        code, _, said = kohort_here("ledger", "verify", place, "--strict")
        assert code == 6
        assert "--key" in said
        assert kohort_here("ledger", "verify", place, "--strict", "--key", key)[0] == 0
        assert kohort_here("ledger", "verify", place, "--key", "0" * 64)[0] == 6
    roster = again.folder / "north" / "peers.toml"
    assert kohort_here("ledger", "verify", hub, "--key", fingerprint, "--roster", roster, "--strict")[0] == 0
    wrong = again.folder / "wrong.toml"
    east = load_identity(again.folder / "east" / "identity.key").public.fingerprint
    wrong.write_text(roster.read_text().replace(east, "ab" * 32))
    wrong.chmod(0o600)
    assert kohort_here("ledger", "verify", hub, "--roster", wrong)[0] == 6
    assert kohort_here("ledger", "verify", hub, "--against", north)[0] == 2
    # A ledger that the key in the folder did not sign is no less an error for an unknown key.
    Forgery(north / "ledger").sign(fresh_signer(1, "north"))
    assert kohort_here("ledger", "verify", north)[0] == 6


def test_a_run_folder_does_not_become_a_hubs_by_a_file_in_it(again: Deployed, kohort_here: Call) -> None:
    """An empty hub.toml and a public key once made a run with a cut ledger "sound", whatever --key said."""
    out = again.folder / "out"
    code, shown, _ = kohort_here("ledger", "verify", out, "--json")
    key = json.loads(shown)["signer"]
    lines = (out / "ledger" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (out / "ledger" / "ledger.jsonl").write_bytes(b"".join(lines[:3]))
    (out / "hub.toml").write_text("")
    shutil.copy(again.hub.path / "identity.key", out / "identity.key")
    for more in ((), ("--strict",), ("--key", key), ("--strict", "--json")):
        assert kohort_here("ledger", "verify", out, *more)[0] == 6
    shutil.rmtree(out / "ledger")
    for name in ("run.json", "results.jsonl"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "model")
    code, shown, said = kohort_here("ledger", "verify", out, "--json")
    assert (code, json.loads(shown)["sound"]) == (0, False), said
    assert "no registered site has a receipt" in kohort_here("ledger", "verify", out)[2]
    assert kohort_here("ledger", "verify", out, "--strict")[0] == 6


def test_a_site_ledger_signed_again_is_refused_at_the_site(again: Deployed, kohort_here: Call) -> None:
    ledger = again.folder / "north" / "ledger"
    forgery = Forgery(ledger)
    forgery.lines = [line for line in forgery.lines if line.get("what") != "fedavg.train"]
    forgery.sign(fresh_signer(1, "north"))
    code, _, said = kohort_here("ledger", "verify", again.folder / "north")
    assert code == 6
    assert "not by site 'north'" in said
    assert kohort_here("ledger", "show", again.folder / "north")[0] == 6
    shutil.copytree(ledger, again.folder / "copy" / "ledger")
    assert "consistent, signer unknown" in kohort_here("ledger", "verify", again.folder / "copy")[2]


def test_a_ledger_in_the_place_of_another_is_refused(again: Deployed, kohort_here: Call) -> None:
    shutil.rmtree(again.folder / "north" / "ledger")
    shutil.copytree(again.folder / "south" / "ledger", again.folder / "north" / "ledger")
    assert kohort_here("ledger", "verify", again.folder / "north")[0] == 6
    with pytest.raises(LedgerBehindError):
        again.sites["north"].site_server()
    roster = again.folder / "east" / "peers.toml"
    renamed = Forgery(shutil.copytree(again.folder / "east" / "ledger", again.folder / "copy" / "ledger"))
    for line in renamed.lines:
        line["site"] = "north"
    renamed.sign(fresh_signer(2, "east"))
    assert kohort_here("ledger", "verify", again.folder / "copy", "--roster", roster)[0] == 6
    receipts = again.hub.path / "receipts"
    shutil.copy(receipts / "east" / "receipts.jsonl", receipts / "north" / "receipts.jsonl")
    code, _, said = kohort_here("ledger", "verify", again.hub.path)
    assert code == 6
    assert "'north'" in said


def test_receipts_of_the_hub_are_checked_against_its_key_and_its_sites(again: Deployed, kohort_here: Call) -> None:
    path = again.hub.path / "receipts" / "north" / "receipts.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for content in ([*lines[:2], *lines[3:]], [lines[0][:-20] + lines[0][-19:], *lines[1:]], [b"{}\n"]):
        path.write_bytes(b"".join(content))
        assert kohort_here("ledger", "verify", again.hub.path)[0] == 6
    path.write_bytes(b"".join(lines[:-1]))  # a cut end holds by itself; the site has the last receipt but one
    assert kohort_here("ledger", "verify", again.hub.path)[0] == 0
    path.write_bytes(b"".join(lines[:-2]))
    code, _, said = kohort_here("ledger", "verify", again.folder / "north", "--against", again.hub.path)
    assert code == 6
    assert "lacks receipts" in said


def test_a_site_and_its_hub_agree(again: Deployed, kohort_here: Call) -> None:
    for against in (again.hub.path, again.hub.path / "receipts" / "north", again.folder / "out"):
        code, shown, said = kohort_here("ledger", "verify", again.folder / "north", "--against", against, "--json")
        assert code == 0, said
        found = json.loads(shown)["against"]
        assert found["heads"] > 0
        assert found["furthest"] == found["length"]
    code, _, said = kohort_here("ledger", "verify", again.folder / "north", "--against", again.folder / "north.csv")
    assert code == 2
    shutil.rmtree(again.folder / "north" / "ledger")
    shutil.copytree(again.folder / "yesterday" / "north" / "ledger", again.folder / "north" / "ledger")
    assert kohort_here("ledger", "verify", again.folder / "north")[0] == 0  # its own signature, of yesterday
    for against in (again.hub.path, again.folder / "out"):
        code, _, said = kohort_here("ledger", "verify", again.folder / "north", "--against", against)
        assert code == 6
        assert "lacks" in said


def test_a_release_that_the_hub_has_and_the_site_does_not_is_told(again: Deployed) -> None:
    copy = again.folder / "copy"
    forged = Forgery(shutil.copytree(again.folder / "out" / "ledger", copy / "ledger"))
    assert compare_ledgers(again.folder / "north", copy).releases > 0
    line = next(line for line in forged.lines if line["site"] == "north" and line["event"] == "release")
    line["round"] += 1000
    forged.sign(fresh_signer(2, "hub"))
    with pytest.raises(IntegrityError, match=r"the hub received .* and the ledger of site 'north' lacks it"):
        compare_ledgers(again.folder / "north", copy)


def test_a_restored_or_deleted_ledger_folder_stops_the_site(again: Deployed) -> None:
    north, ledger = again.sites["north"], again.folder / "north" / "ledger"
    north.site_server().close()
    shutil.rmtree(ledger)
    with pytest.raises(LedgerBehindError, match=r"copied back from an earlier day, cut or deleted.*ledger\.mark"):
        north.site_server()
    shutil.rmtree(ledger)
    shutil.copytree(again.folder / "yesterday" / "north" / "ledger", ledger)
    with pytest.raises(LedgerBehindError) as caught:
        north.site_server()
    assert "Put the newest copy" in str(caught.value.hint)


def test_a_restored_site_folder_stops_the_site(again: Deployed) -> None:
    shutil.rmtree(again.folder / "north")
    shutil.copytree(again.folder / "yesterday" / "north", again.folder / "north")
    with pytest.raises(LedgerBehindError, match="sites/"):
        again.sites["north"].site_server()


def test_a_restored_machine_is_stopped_by_the_hubs_receipts(again: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(again.folder / "north")
    shutil.copytree(again.folder / "yesterday" / "north", again.folder / "north")
    monkeypatch.setenv("KOHORT_STATE", str(again.folder / "state-yesterday"))
    again.sites["north"].site_server().close()  # nothing on this machine shows it
    before = (again.folder / "north" / "ledger" / "ledger.jsonl").read_bytes()
    servers = Servers(again.sites)
    again.run("third", seed=3, servers=servers)
    assert isinstance(servers.broken["north"], LedgerBehindError)
    assert "a receipt of the hub" in servers.broken["north"].message
    assert (again.folder / "north" / "ledger" / "ledger.jsonl").read_bytes() == before
    received = (again.folder / "third" / "ledger" / "ledger.jsonl").read_text()
    assert not [line for line in received.splitlines() if '"site":"north"' in line and '"event":"release"' in line]


def test_a_damaged_mark_stops_the_site(again: Deployed) -> None:
    (again.folder / "north" / "ledger.mark").write_text("{}")
    with pytest.raises(IntegrityError, match="does not say how far"):
        again.sites["north"].site_server()


def test_a_site_that_went_back_is_not_accepted_by_the_hub(again: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that ignores all marks and receipts, as a lying operator's would."""
    from kohort.transport.site_ledger import SiteLedger

    monkeypatch.setattr(SiteLedger, "check_end", lambda *_, **__: None)
    for name in NAMES:
        shutil.rmtree(again.folder / name)
        shutil.copytree(again.folder / "yesterday" / name, again.folder / name)
    monkeypatch.setenv("KOHORT_STATE", str(again.folder / "state-yesterday"))
    with pytest.raises(SiteError):
        again.run("third", seed=3)
    assert "went back" in (again.folder / "third" / "ledger" / "ledger.jsonl").read_text()


def test_a_restored_machine_is_stopped_by_its_peers_where_the_hub_lost_its_receipts(
    again: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    again.run("third", seed=3)  # the hub hands the heads of the second run around
    head = read(again.hub.path / "receipts" / "north" / "receipts.jsonl")[-1]
    shutil.rmtree(again.hub.path / "receipts")
    shutil.rmtree(again.folder / "north")
    shutil.copytree(again.folder / "yesterday" / "north", again.folder / "north")
    monkeypatch.setenv("KOHORT_STATE", str(again.folder / "state-yesterday"))
    for name in ("east", "south"):  # their receipts go on from those the hub lost: they begin anew with this hub
        (again.folder / name / "ledger" / "receipts.jsonl").write_bytes(b"")
        (state_folder() / "sites" / load_identity(again.folder / name / "identity.key").public.fingerprint).unlink()
    again.run("fourth", seed=4)
    north = [line for line in read(again.folder / "fourth" / "ledger" / "ledger.jsonl") if line["site"] == "north"]
    assert not [line for line in north if line["event"] == "release"]
    assert any("went back" in line.get("reason", "") for line in north)

    # And the site itself stops when the head is returned to it, if it signed that head, and for no other reason.
    hub = load_identity(again.hub.path / "identity.key")
    server = again.sites["north"].site_server()
    returned = (*head["end"], head["site_signature"])
    invented = (returned[0] + 5, returned[1], returned[2])
    for lines, stops in ((head_lines([("north", invented)]), False), (head_lines([("north", returned)]), True)):
        asked = RequestMessage(site="north", fresh=fresh_number(), heads=lines)
        reply = read_reply(server.reply(write_request(asked, hub)), site=again.hub.sites()["north"].site)
        assert (server.broken is not None) is stops
        assert bool(reply.head) is not stops
    assert isinstance(server.broken, LedgerBehindError)
    assert "others returned" in server.broken.message
    server.close()


def test_rows_that_the_hub_drops_are_dropped_with_its_signature(again: Deployed, kohort_here: Call) -> None:
    out = again.folder / "out"
    rows = pl.DataFrame({"sender": ["east", "north", "north"], "dose": [1.0, 2.0, 3.0]})
    (out / "hub").mkdir()
    rows.write_parquet(out / "hub" / "received.parquet")
    note_last_day(out, days=10, today=date(2030, 1, 1))
    hub = load_identity(again.hub.path / "identity.key")
    bind_results(out, signer=signer_of(hub), run="r", last={})
    again.hub.remember_run(out)
    assert kohort_here("ledger", "verify", out)[0] == 0
    assert again.hub.forget("north")
    code, _, said = kohort_here("ledger", "verify", out, "--strict")
    assert code == 0
    assert "changed by the signer: site 'north' left" in said
    assert again.hub.drop_overdue(today=date(2031, 1, 1))
    code, _, said = kohort_here("ledger", "verify", out, "--strict")
    assert code == 0
    assert "their last day is over" in said
    # What somebody else changed before is not covered up by a later change of the hub's.
    rows.write_parquet(out / "hub" / "received.parquet")
    (out / "run.json").write_text((out / "run.json").read_text().replace("fedavg", "central"))
    assert again.hub.drop_overdue(today=date(2031, 1, 1))
    assert kohort_here("ledger", "verify", out)[0] == 6
