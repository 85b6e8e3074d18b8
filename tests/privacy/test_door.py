"""The door: asks the policy, writes the line, and only then lets out. A refusal leaves a line and no byte."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.contracts import ANY_STEP
from tests.support.ledgers import Written, open_ledger

from kohort.privacy.contract import Step
from kohort.privacy.door import Refusal, door
from kohort.privacy.guarantee import (
    DP,
    Aggregate,
    DomainClaim,
    Encrypted,
    Guarantee,
    KAnonymous,
    Public,
    Raw,
    SecureSum,
)
from kohort.privacy.ledger.ledger import LedgerContext
from kohort.privacy.ledger.verify import verify_ledger
from kohort.privacy.policy import Policy

TRAIN = LedgerContext(what="train", request="ab" * 32, round=3)
SUM = SecureSum(sites=5, threshold=4, colluders=1, opens="hub")


def in_memory(policy: Policy, names: tuple[str, ...] = ("a", "b", "c")) -> Written:
    return open_ledger(None, policy=policy, names=names)


def last_line(written: Written) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(written.ledger.lines[-1])
    return line


def pass_one(
    written: Written,
    claim: Guarantee,
    *,
    rows: int = 150,
    metrics: tuple[str, ...] = (),
    data: bytes = b"the bytes",
) -> Refusal | None:
    [verdict] = door(
        written.sites[:1],
        [data],
        ledger=written.ledger,
        ledger_context=TRAIN,
        step=ANY_STEP,
        guarantees=[claim],
        rows=[rows],
        metrics=metrics,
    )
    return verdict


def test_what_is_let_out_has_a_line_that_describes_it() -> None:
    written = in_memory(Policy())
    assert pass_one(written, Aggregate(rows=150)) is None
    line = last_line(written)
    key = b"a".ljust(32)
    assert line["digest"] == hashlib.blake2b(b"the bytes", key=key, digest_size=32).hexdigest()
    assert line["digest"] != hashlib.blake2b(b"the bytes", digest_size=32).hexdigest()
    assert (line["event"], line["size"], line["rows"], line["round"]) == ("release", 9, 150, 3)
    assert line["guarantee"] == {"kind": "aggregate", "rows": 150}


def test_a_refusal_leaves_a_line_and_no_byte() -> None:
    written = in_memory(Policy())
    verdict = pass_one(written, Raw(rows=150), data=b"secret cells")
    assert verdict == Refusal("a", "the policy forbids raw rows")
    line = last_line(written)
    assert (line["event"], line["reason"]) == ("refusal", "the policy forbids raw rows")
    # Of the reason, which nobody who knows the head alone can try out; nothing is there of the payload.
    assert line["digest"] == hashlib.blake2b(line["reason"].encode(), key=b"a".ljust(32), digest_size=32).hexdigest()
    assert "size" not in line
    assert not any("secret" in text for text in written.ledger.lines)
    assert written.ledger.disclosures() == []
    assert written.ledger.refusals == {"a": "the policy forbids raw rows"}


def test_each_site_is_judged_by_its_own_policy_in_one_call() -> None:
    written = in_memory(Policy())
    written.sites[1].policy = Policy(min_rows=1000)
    encoded = [b"1", b"22", b"333"]
    claims = [Aggregate(rows=150)] * 3
    verdicts = door(
        written.sites,
        encoded,
        ledger=written.ledger,
        ledger_context=TRAIN,
        step=ANY_STEP,
        guarantees=claims,
        rows=[150, 150, 150],
    )
    assert [verdict is None for verdict in verdicts] == [True, False, True]
    events = [(json.loads(text)["site"], json.loads(text)["event"]) for text in written.ledger.lines[3:]]
    assert events == [("a", "release"), ("b", "refusal"), ("c", "release")]


def test_together_and_one_by_one_write_the_same_lines() -> None:
    def build() -> Written:
        made = in_memory(Policy(epsilon=1.0), names=("a", "b", "c", "d", "e"))
        made.sites[0].policy = Policy(min_rows=1000)
        made.sites[3].policy = Policy(tasks=("other",))
        return made

    claims: list[Guarantee] = [Aggregate(rows=150), DP(epsilon=0.5, delta=0), SUM, SUM, Aggregate(rows=150)]
    encoded = [bytes([index]) * index for index in range(5)]
    together, alone = build(), build()
    rows = [150] * 5
    verdicts = door(
        together.sites,
        encoded,
        ledger=together.ledger,
        ledger_context=TRAIN,
        step=ANY_STEP,
        guarantees=claims,
        rows=rows,
    )
    singles = []
    for site, data, claim in zip(alone.sites, encoded, claims, strict=True):
        singles += door(
            [site], [data], ledger=alone.ledger, ledger_context=TRAIN, step=ANY_STEP, guarantees=[claim], rows=[150]
        )
    assert verdicts == singles
    assert together.ledger.lines == alone.ledger.lines
    assert together.ledger.fingerprint() == alone.ledger.fingerprint()
    assert together.ledger.disclosures() == alone.ledger.disclosures()


_NOISE = DP(epsilon=0.4, delta=0.0)
_UPDATE = Aggregate(rows=150)


@pytest.mark.parametrize(
    ("policies", "claims", "rows", "held", "reason"),
    [
        ([Policy(), Policy(min_rows=160)], [_UPDATE] * 2, [150, 150], [200, 200], "min_rows 160"),
        ([Policy()] * 2, [_UPDATE, replace(SUM, sites=2)], [150, 150], [200, 200], "a secure sum over 2 sites"),
        ([Policy()] * 2, [Public(what="x")] * 2, [150, 201], [200, 200], "speaks of 201 rows"),
        ([Policy()] * 2, [_UPDATE] * 2, [150, 150], [200, 149], "the site holds 149"),
        ([Policy(epsilon=0.5)] * 2, [_NOISE] * 2, [150, 150], [200, 200], "which exceeds the policy"),
    ],
    ids=["policy", "claim", "rows", "rows-held", "budget"],
)
def test_neighbours_that_differ_in_one_thing_are_each_judged(
    policies: list[Policy], claims: list[Guarantee], rows: list[int], held: list[int], reason: str
) -> None:
    written = in_memory(Policy(), ("a", "b"))
    for site, policy, count in zip(written.sites, policies, held, strict=True):
        site.policy, site.count = policy, count
    written.sites[1].chain.budget.charge(DP(epsilon=0.3, delta=0.0), to="hub", what="earlier", round=0)
    first, second = pass_both(written, ANY_STEP, claims, rows)
    assert first is None
    assert second is not None
    assert reason in second.reason


def test_neighbours_with_rules_of_their_own_are_each_judged() -> None:
    stricter = (("b", (SUM,)),)
    step = Step(task="train", says="x", claims=(Aggregate(rows=0),), per_site=stricter)
    first, second = pass_both(in_memory(Policy(), ("a", "b")), step, [_UPDATE, _UPDATE], [150, 150])
    assert first is None
    assert second is not None
    assert "weaker than what the plan" in second.reason


def pass_both(written: Written, step: Step, claims: list[Guarantee], rows: list[int]) -> list[Refusal | None]:
    return door(
        written.sites,
        [b"one", b"two"],
        ledger=written.ledger,
        ledger_context=TRAIN,
        step=step,
        guarantees=claims,
        rows=rows,
    )


@pytest.mark.parametrize("rows", [-1, 201, 10**12])
def test_more_rows_than_the_site_holds_are_refused(rows: int) -> None:
    written = in_memory(Policy())
    verdict = pass_one(written, Public(what="row count"), rows=rows)
    assert verdict is not None
    assert "holds 200" in verdict.reason


@pytest.mark.parametrize("claim", [Aggregate(rows=200), Raw(rows=149)])
def test_a_claim_about_other_rows_than_the_release_is_refused(claim: Guarantee) -> None:
    verdict = pass_one(in_memory(Policy(raw=True)), claim, rows=150)
    assert verdict is not None
    assert "the claim speaks of" in verdict.reason


@pytest.mark.parametrize(
    "claim",
    [
        DP(epsilon=0.1, delta=0.0),
        SUM,
        Encrypted(scheme="bfv", opens="key-holder"),
        Public(what="row count"),
        DomainClaim(columns=("age",)),
    ],
    ids=lambda claim: claim.kind,
)
def test_metrics_beside_a_protected_payload_must_be_public(claim: Guarantee) -> None:
    written = in_memory(Policy())
    assert pass_one(written, claim, metrics=("rows",)) is None
    verdict = pass_one(written, claim, metrics=("rows", "loss"))
    assert verdict is not None
    assert "loss" in verdict.reason
    assert "rows" not in verdict.reason.split(" would ")[0]
    declared = in_memory(Policy(public=("rows", "loss")))
    assert pass_one(declared, claim, metrics=("rows", "loss")) is None
    closed = in_memory(Policy(public=()))
    assert pass_one(closed, claim, metrics=("rows",)) is not None


@pytest.mark.parametrize(
    "claim", [Aggregate(rows=150), Raw(rows=150), KAnonymous(k=9, verified=True)], ids=lambda claim: claim.kind
)
def test_metrics_of_an_unprotected_payload_share_its_claim(claim: Guarantee) -> None:
    assert pass_one(in_memory(Policy(raw=True, public=())), claim, metrics=("rows", "loss")) is None


epsilons = st.lists(st.floats(0, 0.8), min_size=1, max_size=30)


@given(epsilons, st.floats(0.1, 3))
def test_the_budget_is_never_exceeded(asked: list[float], budget: float) -> None:
    written = in_memory(Policy(epsilon=budget), names=("a",))
    spent = 0.0
    for number, epsilon in enumerate(asked):
        ledger_context = LedgerContext(what="train", to=("hub", "peer")[number % 2], round=number)
        [verdict] = door(
            written.sites,
            [b"x"],
            ledger=written.ledger,
            ledger_context=ledger_context,
            step=ANY_STEP,
            guarantees=[DP(epsilon=epsilon, delta=0.0)],
            rows=[1],
        )
        if verdict is None:
            spent += epsilon
        else:
            assert spent + epsilon > budget  # no refusal without need
    chain = written.sites[0].chain
    assert spent <= budget * (1 + 1e-9)
    assert sum(chain.spent.values()) == pytest.approx(spent)
    released = [json.loads(text) for text in written.ledger.lines if '"event":"release"' in text]
    assert sum(line["guarantee"]["epsilon"] for line in released) == pytest.approx(spent)


@pytest.mark.parametrize("epsilon", [float("nan"), -5.0, float("inf")])
def test_a_senseless_epsilon_does_not_refill_the_budget(epsilon: float) -> None:
    written = in_memory(Policy(epsilon=1.0))
    assert pass_one(written, DP(epsilon=0.9, delta=0.0)) is None
    assert pass_one(written, DP(epsilon=epsilon, delta=0.0)) is not None
    assert pass_one(written, DP(epsilon=0.2, delta=0.0)) is not None
    assert written.sites[0].chain.spent == {"hub": 0.9}


def test_parcels_and_claims_must_be_one_a_site() -> None:
    written = in_memory(Policy())
    with pytest.raises(ValueError, match="zip"):
        door(
            written.sites,
            [b"x"] * 3,
            ledger=written.ledger,
            ledger_context=TRAIN,
            step=ANY_STEP,
            guarantees=[SUM],
            rows=[1, 1, 1],
        )


def test_the_line_is_on_the_disk_before_the_door_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that cannot be written lets nothing out."""
    written = open_ledger(tmp_path, policy=Policy())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kohort.privacy.ledger.ledger.write_whole", full)
    with pytest.raises(Exception, match="no space left"):
        pass_one(written, Aggregate(rows=150))


def test_what_passed_verifies(tmp_path: Path) -> None:
    written = open_ledger(tmp_path, policy=Policy())
    pass_one(written, Aggregate(rows=150))
    written.receipts.issue(written.ledger, [written.sites[0].chain], TRAIN)
    later = LedgerContext(what="train", request="cd" * 32, round=4)
    door(
        written.sites[:1],
        [b"x"],
        ledger=written.ledger,
        ledger_context=later,
        step=ANY_STEP,
        guarantees=[Raw(rows=150)],
        rows=[150],
    )
    written.seal()
    seen = verify_ledger(tmp_path)
    assert (seen.releases, seen.refusals, seen.receipts) == (1, 1, 1)
