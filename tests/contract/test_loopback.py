"""Law 4 across engines: behind letters, desks and Flower's ClientApps every method gives the bits of the local engine.

The hub's ledger of such a run says what the sites' own ledgers say, line by line, and both verify.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from suite import SITE_SIZES, Ran, carry_out, listening, plan_of, tables

pytest.importorskip("flwr")

from kohort.config import load_plan
from kohort.deployment_loopback import LoopBackVenue
from kohort.errors import RefusedError
from kohort.experiment import run
from kohort.methods.registry import methods
from kohort.privacy.verify import verify_ledger

ALL = sorted(methods())
TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keep": {"state": "keep", "fraction": 0.75, "optimizer": "adam"},
}


def _same(local: Ran, folder: Path, plan: Any) -> LoopBackVenue:
    venue = LoopBackVenue(tables=tables())
    outcome = run(plan, out=folder, seed=local.seed, venue=venue)
    assert outcome.model.weights.tobytes() == local.outcome.model.weights.tobytes()
    assert outcome.history == local.outcome.history
    assert outcome.metrics == local.outcome.metrics
    assert outcome.bytes == local.outcome.bytes
    assert outcome.disclosed == local.outcome.disclosed
    assert (outcome.engine, local.outcome.engine) == ("loopback", "local")
    return venue


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("method", ALL)
def test_letters_change_no_bit(method: str, training: str, tmp_path: Path) -> None:
    plan = plan_of(method, train=TRAININGS[training])
    local = carry_out(plan, tmp_path / "local", many=False)
    venue = _same(local, tmp_path / "loopback", plan)
    hub = verify_ledger(tmp_path / "loopback")
    assert hub.releases == len(local.carried.replies)
    own = [line for desk in venue.desks.values() for line in desk.book.lines]
    assert sum('"event":"release"' in line for line in own) == hub.releases


@pytest.mark.parametrize("scheme", ["none", "masks", "bfv", "ckks"])
def test_secure_sums_and_their_key_holder_pass_letters_too(scheme: str, tmp_path: Path) -> None:
    described = plan_of("partial").to_mapping()
    described["method"]["secure"]["sum"] = scheme
    plan = load_plan(described)
    venue = _same(carry_out(plan, tmp_path / "local", many=False), tmp_path / "loopback", plan)
    assert ("key-holder" in venue.desks) == (scheme in {"bfv", "ckks"})
    verify_ledger(tmp_path / "loopback")


@pytest.mark.parametrize("method", ALL)
def test_a_policy_that_answers_nothing_lets_no_byte_out(method: str, tmp_path: Path) -> None:
    plan = plan_of(method, policy={"tasks": ["no-such-task"]})
    venue = LoopBackVenue(tables=tables())
    with listening() as carried, pytest.raises(RefusedError):
        run(plan, out=tmp_path / "run", seed=1, venue=venue)
    assert carried.replies == []
    for desk in venue.desks.values():
        events = [line.split('"event":"')[1].split('"')[0] for line in desk.book.lines]
        assert events == ["open", "refusal"]
    assert set(venue.desks) == set(SITE_SIZES)
    assert verify_ledger(tmp_path / "run").refusals == len(SITE_SIZES)
