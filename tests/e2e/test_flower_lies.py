"""What real sites and a real key-holder refuse: a lying hub, a plan nobody approved, an altered bundle."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.support.flower_federation import (
    Federation,
    lines_of,
    model_of,
    tables_of,
    variant,
)

pytest.importorskip("flwr")

from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol.enrolment import PREPARE
from kohort.protocol.hub import Ask, Replies
from kohort.protocol.wire import Payload
from kohort.rounds.totals.summed import SummedPhases
from kohort.rounds.training import TRAIN
from kohort.runs.config import read_plan
from kohort.runs.run import run
from kohort.transport.deployment.hub import HubFolder
from kohort.transport.deployment.site import SiteFolder
from kohort.transport.flower import run as flower_runs
from kohort.transport.flower.bundle import bundle
from kohort.transport.remote_engine import RemoteEngine

pytestmark = pytest.mark.e2e


def test_sums_that_only_a_key_holder_opens(three: Federation) -> None:
    plan = variant(three, "bfv", ["method.name=oneshot", 'method.secure={sum = "bfv"}', "method.oneshot.rounds=2"])
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

    inputs = SummedPhases.inputs

    def another_total(self: SummedPhases, number: int) -> dict[str, bytes]:
        said = inputs(self, number)
        return {**said, "total": bytes(len(said["total"]))} if number else said

    with monkeypatch.context() as patch:
        patch.setattr(SummedPhases, "inputs", another_total)
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
