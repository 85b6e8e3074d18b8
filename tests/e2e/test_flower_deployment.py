"""A hub and its sites as real processes: every method, drop-outs, crashes, and what the hub gets to see."""

from __future__ import annotations

import json
import random
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.flower_federation import (
    Federation,
    federation,
    inline,
    lines_of,
    method_section,
    model_of,
    plan_with,
    tables_of,
    write_plan,
)

pytest.importorskip("flwr")

from kohort.errors import IntegrityError, RefusedError
from kohort.methods.registry import methods
from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol.enrolment import PREPARE
from kohort.protocol.hub import Ask, Replies
from kohort.protocol.wire import Payload
from kohort.rounds.summed import _Training
from kohort.rounds.training import TRAIN
from kohort.runs.config import apply_overrides, read_plan
from kohort.runs.run import run
from kohort.transport.deployment.hub import HubFolder
from kohort.transport.deployment.site import SiteFolder
from kohort.transport.flower import run as flower_runs
from kohort.transport.flower.bundle import bundle
from kohort.transport.remote_engine import RemoteEngine

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three sites and a key-holder."""
    root = tmp_path_factory.mktemp("three")
    plan = plan_with(root, rounds=2)
    made = Federation(root, plan)
    try:
        made.found(tables_of(3))
        made.join_key_holder(*tables_of(3))
        made.start_hub()
        made.start_sites(*tables_of(3), "key-holder")
        yield made
    finally:
        made.close()


def variant(made: Federation, name: str, changes: list[str]) -> Path:
    """The plan with keys changed, as a file; approved by everybody."""
    described = apply_overrides(tomllib.loads(made.plan.read_text()), changes)
    toml = write_plan(made.root / f"{name}.toml", described)
    made.approve(toml, *tables_of(3), "key-holder")
    return toml


def method_plan(made: Federation, method: str) -> Path:
    return variant(made, method, [f"method.{key}={inline(value)}" for key, value in method_section(method).items()])


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_gives_the_model_of_one_process(three: Federation, method: str) -> None:
    plan = method_plan(three, method)
    out, local = three.root / f"{method}-flower", three.root / f"{method}-local"
    over_flower = three.run_here(out, plan)
    here = run(read_plan(plan), seed=1, out=local)
    assert over_flower.metrics["accuracy"] == here.accuracy
    assert model_of(out) == model_of(local)
    assert over_flower.bytes == here.bytes
    assert verify_ledger(out).releases == verify_ledger(local).releases


def test_sums_that_only_a_key_holder_opens(three: Federation) -> None:
    plan = variant(three, "bfv", ["method.name=partial", 'method.secure={sum = "bfv"}', "method.gate={k = 3}"])
    over_flower = three.run_here(three.root / "bfv", plan)
    here = run(read_plan(plan), seed=1, out=three.root / "bfv-local")
    assert model_of(three.root / "bfv") == model_of(three.root / "bfv-local")
    assert over_flower.dropped == {}
    assert verify_ledger(three.site("key-holder")).releases > 0
    # Pads come from the parties' own keys, so compressed ciphertexts differ by some bytes.
    assert here.bytes == pytest.approx(over_flower.bytes, rel=1e-3)


def test_a_lying_hub_gets_one_word_and_leaves_a_line_at_every_site(
    three: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for plain training in a plan with masks, announces a total that is not the sites', and gets nothing."""
    plan = variant(three, "masked", ["method.name=fedavg", 'method.secure={sum = "masks"}'])
    honest = RemoteEngine.exchange

    def asks_for_weights(self: RemoteEngine, ask: Ask) -> Replies:
        replies = honest(self, ask)
        if ask.task is not PREPARE:
            return replies
        lie = Payload(arrays={"weights": np.zeros(4, dtype=np.float32)})
        return honest(self, Ask(task=TRAIN, to=replies.sites, payload=lie))

    with monkeypatch.context() as patch:
        patch.setattr(RemoteEngine, "exchange", asks_for_weights)
        with pytest.raises(RefusedError, match=r"does not ask for this now \(contract\)"):
            three.run_here(three.root / "lie-1", plan)
    for name in tables_of(3):
        last = lines_of(three.site(name))[-1]
        assert (last["event"], last["what"]) == ("refusal", "train")
        assert "asks for no 'train'" in last["reason"]

    inputs = _Training.inputs

    def another_total(self: _Training, number: int) -> dict[str, bytes]:
        said = inputs(self, number)
        return {**said, "total": bytes(len(said["total"]))} if number else said

    with monkeypatch.context() as patch:
        patch.setattr(_Training, "inputs", another_total)
        with pytest.raises(IntegrityError, match="tampered"):
            three.run_here(three.root / "lie-2", plan, seed=3)


def test_a_plan_nobody_approved_is_refused_and_both_sides_say_so(three: Federation) -> None:
    changed = variant(three, "unapproved", ["train.rounds=3"])
    for name in tables_of(3):
        SiteFolder(three.site(name)).approvals.withdraw(read_plan(changed).digest())
    before = {name: verify_ledger(three.site(name)).refusals for name in tables_of(3)}
    said = three.kohort("run", changed, "--engine", "flower", "--hub", three.hub, "--out", three.root / "no", code=4)
    assert "approve" in said
    for name in tables_of(3):
        assert verify_ledger(three.site(name)).refusals == before[name] + 1
    assert sum(line["event"] == "refusal" for line in lines_of(three.root / "no")) == 3


def test_the_hub_never_sees_who_a_row_is_about(three: Federation) -> None:
    canaries = [value.encode() for table in tables_of(3).values() for value in table["person"][:67]]
    assert len(canaries) > 200

    def found_in(folder: Path) -> set[bytes]:
        files = [path for path in folder.rglob("*") if path.is_file()]
        contents = [path.read_bytes() for path in files]
        return {canary for canary in canaries if any(canary in content for content in contents)}

    assert found_in(three.root / "tables") == set(canaries), "the scan would not find them anywhere"
    if not (three.root / "partial-flower").exists():  # when this test runs alone
        three.run_here(three.root / "partial-flower", method_plan(three, "partial"))
    seen = [three.hub, *three.root.glob("*-flower")]
    assert [found_in(place) for place in seen] == [set()] * len(seen)
    logs = [three.root / "hub.process.log"]
    assert not any(canary in path.read_bytes() for path in logs for canary in canaries)


def test_an_altered_bundle_is_turned_away_unopened(
    three: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "it-ran"
    genuine = bundle()
    (tmp_path / "genuine.zip").write_bytes(genuine)
    with zipfile.ZipFile(tmp_path / "genuine.zip") as old, zipfile.ZipFile(tmp_path / "altered.zip", "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, f"open({str(marker)!r}, 'w')\n".encode() if name.endswith(".py") else text)
    altered = (tmp_path / "altered.zip").read_bytes()
    monkeypatch.setattr(flower_runs, "bundle", lambda: altered)
    victims = tables_of(3)
    with HubFolder(three.hub).backend(wait=60) as backend:
        numbers = {name: backend.run.nodes[name] for name in victims}
        assert backend.run.exchange(dict.fromkeys(numbers.values(), b"message"), deadline=60) == {}
    for name in victims:
        assert three.processes[name].wait(60) == 6
        notes = [line for line in lines_of(three.site(name)) if line["event"] == "note"]
        assert notes[-1]["what"] == "app bundle"
        assert "nothing of it was unpacked" in notes[-1]["reason"]
        verify_ledger(three.site(name))
    assert not marker.exists()
    for name in victims:
        three.kill(name)


# Drop-outs and crashes


@pytest.mark.long
def test_ten_sites_lose_three_in_a_round_and_get_them_back(tmp_path: Path) -> None:
    deadline = 30.0
    plan = plan_with(tmp_path, sites=10, rounds=8, deadline=deadline)
    lost = ("site-02", "site-05", "site-09")
    with federation(tmp_path, plan, tables_of(10)) as made:
        running = made.spawn(
            "run", "run", plan, "--engine", "flower", "--hub", made.hub, "--out", tmp_path / "out", "--json",
            "--wait", 240,
        )  # fmt: skip
        made.wait_for(lambda: made.round() >= 1, "the second round", 300)
        at = made.round()
        for name in lost:
            made.kill(name)
        made.wait_for(lambda: made.round() > at + 1 or running.poll() is not None, "a round without the three", 120)
        made.start_sites(*lost)
        assert running.wait(400) == 0, made.logs()
    # From the hub's own clock: no request, of all the run, was waited for beyond the deadline.
    longest = json.loads((tmp_path / "out" / "run.json").read_bytes())["seconds"]["longest_exchange"]
    assert 0 < longest < deadline + 10
    lines = lines_of(tmp_path / "out")
    silent = {line["site"] for line in lines if line["event"] == "note"}
    assert silent == set(lost)
    back = {
        line["site"] for line in lines if line["event"] == "release" and line["round"] == 7 and line["what"] == "train"
    }
    assert back >= set(lost), "the three did not come back"
    assert verify_ledger(tmp_path / "out").sites == 10
    for name in lost:
        verify_ledger(made.site(name))


@pytest.mark.long
def test_a_hub_killed_at_a_random_round_goes_on_to_the_same_model(tmp_path: Path) -> None:
    rounds = 6
    plan = plan_with(tmp_path, rounds=rounds)
    at = random.SystemRandom().randrange(1, rounds - 1)
    words = ["run", plan, "--engine", "flower", "--out", tmp_path / "out", "--seed", 1, "--json"]
    with federation(tmp_path, plan, tables_of(3)) as made:
        made.spawn("run", *words, "--hub", made.hub)
        made.wait_for(lambda: made.round() >= at, f"round {at}", 300)
        made.kill("run")
        made.kill("hub.process")
        assert not (tmp_path / "out" / "run.json").exists()
        made.start_hub()
        result = json.loads(made.kohort(*words, "--hub", made.hub, "--resume", "--wait", 120, timeout=400))
    run(read_plan(plan), seed=1, out=tmp_path / "local")
    assert result["rounds"] == rounds
    assert model_of(tmp_path / "out") == model_of(tmp_path / "local"), f"killed in round {at}"
    assert verify_ledger(tmp_path / "out").releases == verify_ledger(tmp_path / "local").releases
    for name in tables_of(3):
        assert verify_ledger(made.site(name)).releases == rounds + 2
