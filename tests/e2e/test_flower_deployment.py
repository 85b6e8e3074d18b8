"""A hub and its sites as real processes: every method, drop-outs, crashes, and what the hub gets to see."""

from __future__ import annotations

import json
import random
from pathlib import Path

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
    variant,
)

pytest.importorskip("flwr")

from kohort.methods.registry import methods
from kohort.privacy.ledger.verify import verify_ledger
from kohort.runs.config import read_plan
from kohort.runs.run import run

pytestmark = pytest.mark.e2e


def method_plan(made: Federation, method: str) -> Path:
    return variant(made, method, [f"method.{key}={inline(value)}" for key, value in method_section(method).items()])


SHORT = {"fedavg", "oneshot"}
"""One method per kind of secure sum: by masks, and by encryption with a key-holder. The loop-back of the contract suite
carries the messages of all methods in CI."""


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in sorted(methods())]
)
def test_every_method_gives_the_model_of_one_process(three: Federation, method: str) -> None:
    plan = method_plan(three, method)
    out, local = three.root / f"{method}-flower", three.root / f"{method}-local"
    over_flower = three.run_here(out, plan)
    here = run(read_plan(plan), seed=1, out=local)
    assert over_flower.metrics["accuracy"] == here.accuracy
    assert model_of(out) == model_of(local)
    # Real sites also tell which totals they opened in the runs before this one, in some bytes each.
    more = {way: over_flower.bytes[way] - here.bytes[way] for way in ("up", "down")}
    assert all(0 <= size < 100 * len(tables_of(3)) for size in more.values()), more
    assert verify_ledger(out).releases == verify_ledger(local).releases


@pytest.mark.long
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


# Drop-outs and crashes


@pytest.mark.long
def test_seven_sites_lose_two_in_a_round_and_get_them_back(tmp_path: Path) -> None:
    deadline, rounds = 30.0, 40  # as many as go by while the two start again, and more
    plan = plan_with(tmp_path, sites=7, rounds=rounds, deadline=deadline)
    lost = ("site-02", "site-05")
    with federation(tmp_path, plan, tables_of(7)) as made:
        running = made.spawn(
            "run", "run", plan, "--engine", "flower", "--hub", made.hub, "--out", tmp_path / "out", "--json",
            "--wait", 240,
        )  # fmt: skip
        made.wait_for(lambda: made.round() >= 1, "the second round", 300)
        at = made.round()
        for name in lost:
            made.kill(name)
        made.wait_for(lambda: made.round() > at + 1 or running.poll() is not None, "a round without the two", 120)
        made.start_sites(*lost)
        assert running.wait(400) == 0, made.logs()
    # From the hub's own clock: no request, of all the run, was waited for beyond the deadline.
    longest = json.loads((tmp_path / "out" / "run.json").read_bytes())["seconds"]["longest_exchange"]
    assert 0 < longest < deadline + 10
    lines = lines_of(tmp_path / "out")
    silent = {line["site"] for line in lines if line["event"] == "note"}
    assert silent == set(lost)
    back = {
        line["site"]
        for line in lines
        if line["event"] == "release" and line["round"] == rounds - 1 and line["what"] == "train"
    }
    assert back >= set(lost), "the two did not come back"
    assert verify_ledger(tmp_path / "out").sites == 7
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
    whole = verify_ledger(tmp_path / "local").releases
    assert [verify_ledger(made.site(name)).releases for name in tables_of(3)] == [whole // 3] * 3
