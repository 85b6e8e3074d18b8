"""The budget of a site: paid before anything leaves, never exceeded, never refilled, alive after a crash."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.contracts import ANY_STEP
from tests.support.ledgers import FakeSite, record_one

from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.door import Refusal, door
from kohort.privacy.dp.accounting import Event, describe, epsilon_of
from kohort.privacy.dp.budget import Budget, account_name, dp_facts
from kohort.privacy.guarantee import DP, parse_guarantee
from kohort.privacy.ledger.ledger import Ledger, LedgerContext
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.reopen import drop_cut_lines, reopen
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.summary import summarise
from kohort.privacy.ledger.verify import verify_ledger
from kohort.privacy.policy import Policy
from kohort.protocol.engine import LocalEngine
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site, SiteTable
from kohort.report import words
from kohort.rng import Streams
from kohort.tables.schema import Schema

ACCOUNT = account_name("run", "p" * 64)
FIRST = DP(epsilon=0.5, delta=1e-5, charge=0.5, account=ACCOUNT)
LATER = DP(epsilon=0.5, delta=1e-5, charge=0.0, account=ACCOUNT)


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@dataclass
class Opened:
    ledger: Ledger
    receipts: Receipts
    site: FakeSite

    def send(self, claim: DP, number: int = 0, *, to: str = "hub", data: bytes = b"x") -> Refusal | None:
        ledger_context = LedgerContext(what="train", to=to, request=f"{to}{number:060x}", round=number)
        [verdict] = door(
            [self.site],
            [data],
            ledger=self.ledger,
            ledger_context=ledger_context,
            step=ANY_STEP,
            guarantees=[claim],
            rows=[10],
        )
        self.receipts.issue(self.ledger, [self.site.chain], ledger_context)
        return verdict

    @property
    def budget(self) -> Budget:
        return self.site.chain.budget

    def seal(self) -> None:
        self.ledger.seal(receipts=(self.receipts.length, self.receipts.head), hub_key=self.receipts.public)
        self.ledger.close()
        self.receipts.close()


def opened(
    folder: Path | None = None, *, policy: Policy | None = None, again: bool = False, before: Budget | None = None
) -> Opened:
    policy = policy or Policy(epsilon=1.0)
    if again and folder is not None:
        drop_cut_lines(folder)
    ledger = Ledger(signer=Signer.from_secret(b"s" * 32), folder=folder, run="run")
    receipts = Receipts(signer=Signer.from_secret(b"h" * 32), folder=folder)
    if again and folder is not None:
        reopen(folder, ledger, receipts)
    chain = ledger.open_chain("a", secret=b"k" * 32, binding={"policy": policy.to_mapping()}, budget=before)
    return Opened(ledger, receipts, FakeSite("a", policy, chain))


def test_the_first_release_pays_for_the_plan_and_the_later_ones_nothing() -> None:
    site = opened(policy=Policy(epsilon=0.5, delta=1e-5))
    assert site.send(FIRST) is None
    assert all(site.send(LATER, number) is None for number in range(1, 30))
    assert site.budget.spent == {"hub": 0.5}
    assert site.budget.delta == 1e-5
    assert site.budget.paid == {ACCOUNT: (0.5, 1e-5)}


@pytest.mark.parametrize(
    "claim",
    [
        LATER,
        DP(epsilon=0.5, delta=1e-5, charge=0.0),
        DP(epsilon=0.5, delta=1e-5, charge=0.1, account=ACCOUNT),
        DP(epsilon=0.5, delta=1e-5, charge=0.1),
        DP(epsilon=0.5, delta=1e-5, charge=-0.5, account=ACCOUNT),
        DP(epsilon=0.5, delta=1e-5, charge=float("nan"), account=ACCOUNT),
        DP(epsilon=0.5, delta=1e-5, charge=float("inf"), account=ACCOUNT),
    ],
    ids=["never paid", "no account", "paid in part", "part without account", "negative", "nan", "infinite"],
)
def test_what_was_not_paid_for_stays_inside(claim: DP) -> None:
    site = opened(policy=Policy())
    assert site.send(claim) is not None
    assert site.budget == Budget()


@pytest.mark.parametrize(
    "claim",
    [
        DP(epsilon=0.6, delta=1e-5, charge=0.0, account=ACCOUNT),
        DP(epsilon=0.5, delta=2e-5, charge=0.0, account=ACCOUNT),
        DP(epsilon=0.5, delta=1e-5, charge=0.0, account=ACCOUNT + "/other"),
    ],
    ids=["more epsilon", "more delta", "another account"],
)
def test_an_account_covers_what_it_paid_and_no_more(claim: DP) -> None:
    site = opened()
    assert site.send(FIRST) is None
    assert site.send(LATER, 1) is None
    assert site.send(claim, 2) is not None


def test_a_round_is_answered_once_for_one_payment() -> None:
    site = opened()
    assert site.send(FIRST) is None
    assert site.send(LATER, 1) is None
    verdict = site.send(LATER, 1)
    assert verdict is not None
    assert "round 1 was answered" in verdict.reason
    assert site.send(LATER, 1, to="peer") is None  # one noisy result may go to several
    assert site.send(FIRST) is None  # or be paid for again
    assert site.budget.epsilon == 1.0


def test_an_account_can_be_topped_up() -> None:
    site = opened()
    assert site.send(FIRST) is None
    assert site.send(DP(epsilon=0.8, delta=1e-5, charge=0.3, account=ACCOUNT), 1) is None
    assert site.send(DP(epsilon=0.8, delta=2e-5, charge=0.0, account=ACCOUNT), 2) is None
    assert site.budget.epsilon == pytest.approx(0.8)


def test_delta_adds_up_too() -> None:
    site = opened(policy=Policy(delta=2.5e-5))
    assert site.send(DP(epsilon=0.1, delta=1e-5)) is None
    assert site.send(DP(epsilon=0.1, delta=1e-5), 1, to="peer") is None
    verdict = site.send(DP(epsilon=0.1, delta=1e-5), 2)
    assert verdict is not None
    assert "delta" in verdict.reason
    assert site.budget.delta == 2e-5


claims = st.builds(
    DP,
    epsilon=st.sampled_from([0.0, 0.1, 0.3, 0.5]),
    delta=st.sampled_from([0.0, 1e-6, 1e-5]),
    charge=st.sampled_from([None, 0.0, 0.1, 0.3, 0.5, 0.7]),
    account=st.sampled_from(["", "run/p", "run/q"]),
)


def spent_by_lines(lines: list[dict[str, Any]], *, site: str) -> Budget:
    """What one site spent, from ledger lines alone."""
    budget = Budget()
    for line in lines:
        if line["event"] == "release" and line["site"] == site:
            claim = parse_guarantee(line["guarantee"])
            assert isinstance(claim, DP)
            budget.charge(claim, to=line["to"], what=line["what"], round=line["round"])
    return budget


@given(st.lists(claims, max_size=25), st.sampled_from([0.1, 0.5, 1.0, 2.0]))
def test_the_budget_never_decreases_and_is_never_exceeded(asked: list[DP], limit: float) -> None:
    """And the lines alone tell what was spent."""
    site = opened(policy=Policy(epsilon=limit, delta=3e-5))
    before = (0.0, 0.0)
    for number, claim in enumerate(asked):
        let_out = site.send(claim, number, to=("hub", "peer")[number % 2]) is None
        after = (site.budget.epsilon, site.budget.delta)
        assert after[0] >= before[0]
        assert after[1] >= before[1]
        assert let_out or after == before
        before = after
    assert before[0] <= limit * (1 + 1e-9)
    assert before[1] <= 3e-5 * (1 + 1e-9)
    lines = [json.loads(line) for line in site.ledger.lines]
    released = [line["guarantee"] for line in lines if line["event"] == "release"]
    charges = [claim["epsilon"] if claim.get("charge") is None else claim["charge"] for claim in released]
    assert sum(charges) == pytest.approx(before[0])
    assert spent_by_lines(lines, site="a") == site.budget
    assert spent_by_lines(lines, site="b") == Budget()


@pytest.mark.parametrize("cut", [0, 1, 40])
def test_what_was_paid_is_known_after_a_crash(tmp_path: Path, cut: int) -> None:
    """A replayed request costs nothing twice; a line that was cut in the middle let nothing out."""
    policy = Policy(epsilon=0.5, delta=1e-5)
    site = opened(tmp_path, policy=policy)
    assert site.send(FIRST) is None
    assert site.send(LATER, 1) is None
    site.ledger.close()
    site.receipts.close()
    if cut:
        for name in ("ledger.jsonl", "receipts.jsonl"):
            with (tmp_path / name).open("ab") as file:
                file.write(b'{"site":"a","seq":3,"prev":"0000000000000000000000000'[:cut])
    site = opened(tmp_path, policy=policy, again=True)
    assert site.budget.epsilon == 0.5
    assert site.send(FIRST) is None
    assert site.send(LATER, 1) is None
    assert site.send(LATER, 2) is None
    assert (site.budget.epsilon, site.budget.delta) == (0.5, 1e-5)
    assert site.send(DP(epsilon=0.1, delta=0.0), 3) is not None
    with pytest.raises(IntegrityError):  # fresh noise for an answered request
        site.send(LATER, 1, data=b"other")
    site.seal()
    found = verify_ledger(tmp_path)
    assert (found.epsilon, found.delta, found.releases) == (0.5, 1e-5, 3)


def test_other_runs_of_the_data_set_count() -> None:
    first = opened()
    assert first.send(DP(epsilon=0.7, delta=1e-5)) is None
    spent = spent_by_lines([json.loads(line) for line in first.ledger.lines], site="a")
    second = opened(before=spent)
    assert second.budget.epsilon == 0.7
    assert second.send(FIRST) is not None
    assert second.send(DP(epsilon=0.3, delta=1e-5)) is None
    assert spent.epsilon == 0.7  # what was handed in is not changed


def test_a_void_claim_is_judged_like_none() -> None:
    claim = DP(epsilon=0.5, delta=1e-4, void=True)
    verdict = opened().send(claim)
    assert verdict is not None
    assert "void" in verdict.reason
    assert opened(policy=Policy(void_dp=True)).send(claim) is None
    assert not Policy(void_dp=True).tightened(Policy()).void_dp
    assert Policy(void_dp=True).tightened(Policy(void_dp=True)).void_dp


# --- verify ---------------------------------------------------------------------------------------------------------


def written(folder: Path, claims: list[DP], *, policy: Policy | None = None, rounds: Callable[[int], int]) -> None:
    """A ledger that is sound in every hash and signature, written past the door."""
    site = opened(folder, policy=policy)
    for number, claim in enumerate(claims):
        ledger_context = LedgerContext(what="train", request=f"{number:064x}", round=rounds(number))
        chain = site.site.chain
        record_one(site.ledger, chain, ledger_context, claim, 10, b"x")
        site.receipts.issue(site.ledger, [chain], ledger_context)
    site.seal()


@pytest.mark.parametrize(
    ("claims", "policy", "message"),
    [
        ([LATER], Policy(), "0 was paid"),
        ([FIRST, DP(epsilon=0.6, delta=1e-5, charge=0.0, account=ACCOUNT)], Policy(), "0.5 was paid"),
        ([FIRST, DP(epsilon=0.5, delta=2e-5, charge=0.0, account=ACCOUNT)], Policy(), "was paid"),
        ([DP(epsilon=0.5, delta=1e-5, charge=0.1)], Policy(), "0.1 was paid"),
        ([DP(epsilon=0.5, delta=0, charge=-1.0)], Policy(), "not a finite number"),
        ([DP(epsilon=0.6, delta=0), DP(epsilon=0.6, delta=0)], Policy(epsilon=1.0), "1.2 is spent"),
        ([DP(epsilon=0.6, delta=2e-5)], Policy(delta=1e-5), "delta 2e-05 is spent"),
        ([DP(epsilon=0.6, delta=2e-5, void=True)], Policy(), "void"),
    ],
)
def test_verify_recounts_the_budget(tmp_path: Path, claims: list[DP], policy: Policy, message: str) -> None:
    written(tmp_path, claims, policy=policy, rounds=lambda number: number)
    with pytest.raises(IntegrityError, match=message):
        verify_ledger(tmp_path)


def test_verify_finds_a_round_answered_twice(tmp_path: Path) -> None:
    written(tmp_path / "once", [FIRST, LATER, LATER], rounds=lambda number: number)
    assert verify_ledger(tmp_path / "once").epsilon == 0.5
    written(tmp_path / "twice", [FIRST, LATER, LATER], rounds=lambda number: min(number, 1))
    with pytest.raises(IntegrityError, match="twice"):
        verify_ledger(tmp_path / "twice")


# --- what people see ------------------------------------------------------------------------------------------------


def test_totals_count_what_was_charged_and_name_simulated_noise(tmp_path: Path) -> None:
    site = opened(tmp_path)
    site.send(FIRST)
    site.send(LATER, 1)
    site.seal()
    [total] = summarise(tmp_path)
    assert (total.epsilon, total.delta, total.releases) == (0.5, 1e-5, 2)
    assert total.guarantee.startswith("DP(simulated)")
    assert site.ledger.disclosures()[0].guarantee == total.guarantee
    assert DP(epsilon=1, delta=0, simulated=False).shown.startswith("DP: epsilon 1, delta 0")


@given(claims)
def test_a_claim_survives_the_ledger(claim: DP) -> None:
    back = parse_guarantee(json.loads(claim.text))
    assert back == claim
    assert back.text == claim.text


def test_a_void_claim_is_the_weakest_of_all() -> None:
    assert min([DP(epsilon=8, delta=1e-5), DP(epsilon=1, delta=1e-2, void=True)], key=lambda claim: claim.strength).void


def test_facts_beside_an_epsilon() -> None:
    event = describe([Event(sigma=40.0, steps=20), Event(sigma=50.0, steps=20)])
    claim = DP(epsilon=0.5, delta=1e-5, event=event, scope="high-risk rows", epsilon_all=0.9)
    facts: dict[str, Any] = dp_facts([claim, DP(epsilon=0.1, delta=1e-5, simulated=False)])
    assert facts["scope"] == "high-risk rows; all rows"
    assert facts["simulated"]
    assert not facts["void"]
    assert facts["epsilon_all"] == 0.9
    assert 0.4 < facts["rdp"] < facts["basic"]
    said = words.budget({"epsilon": 0.5, "delta": 1e-5, "unit": "row", "dp": facts})
    assert said.startswith("DP(simulated): epsilon 0.5, delta 1e-05 for each row, high-risk rows")
    assert words.budget({"epsilon": None}) == ""
    own_words = dp_facts([DP(epsilon=0.5, delta=0.0, event="a mechanism of its own")])
    assert own_words["rdp"] is own_words["basic"] is None


# --- approval -------------------------------------------------------------------------------------------------------


def make_engine(policy: Policy) -> LocalEngine:
    streams = Streams.seeded(4)
    ledger = Ledger(signer=Signer.from_secret(b"s" * 32), run="r")
    frame = pl.DataFrame({"x": np.arange(20), "y": ["p", "q"] * 10})
    schema = Schema.of(target="y", features=("x",)).resolve(["x", "y"], None)
    site = Site(name="a", table=SiteTable(frame, 0, 20), schema=schema, policy=policy, streams=streams, ledger=ledger)
    approved = ApprovedPlan(run="r", plan_hash="p" * 64, method="m", config=None, schema=schema)
    receipts = Receipts(signer=Signer.from_secret(b"h" * 32))
    return LocalEngine(sites={"a": site}, approved=approved, streams=streams, receipts=receipts)


def test_two_phases_that_exceed_the_budget_are_refused_before_training() -> None:
    phases = (DP(epsilon=0.3, delta=1e-5), DP(epsilon=0.3, delta=1e-5))
    with pytest.raises(RefusedError, match=r"0\.3 makes 0\.6 in all runs"):
        make_engine(Policy(epsilon=0.5)).approve(lambda rows: phases)
    with pytest.raises(RefusedError, match="delta"):
        make_engine(Policy(delta=1.5e-5)).approve(lambda rows: phases)
    assert make_engine(Policy(epsilon=0.6)).approve(lambda rows: phases) == ("a",)
    assert make_engine(Policy(epsilon=0.5)).approve(lambda rows: (FIRST, LATER)) == ("a",)
    with pytest.raises(RefusedError, match="does not cover"):
        make_engine(Policy(epsilon=0.5)).approve(lambda rows: (LATER,))


def test_a_resumed_plan_is_not_charged_for_what_it_paid() -> None:
    own = account_name("r", "p" * 64)
    plan = (DP(epsilon=0.5, delta=1e-5),)
    for account, agrees in ((own, True), (own + "/peer", True), (own + "x", False), ("s/" + "p" * 16, False)):
        engine = make_engine(Policy(epsilon=0.5))
        engine.sites["a"].chain.budget.charge(DP(epsilon=0.5, delta=1e-5, account=account), to="hub")
        if agrees:
            assert engine.approve(lambda rows: plan) == ("a",)
        else:
            with pytest.raises(RefusedError):
                engine.approve(lambda rows: plan)


def test_budgets_of_other_runs_are_added_account_by_account() -> None:
    here, there = Budget(), Budget()
    here.charge(DP(epsilon=0.5, delta=1e-6, account="x"), to="hub", what="a")
    there.charge(DP(epsilon=0.25, delta=3e-6, account="x"), to="hub", what="b", round=1)
    there.charge(DP(epsilon=0.125, delta=1e-7), to="peer")
    here.add(there)
    assert here.paid == {"x": (0.75, 4e-6)}
    assert here.spent == {"hub": 0.75, "peer": 0.125}
    assert here.answered == {"x": {("hub", "a", 0), ("hub", "b", 1)}}
    assert len(here.payments) == 3
    assert here.epsilon == pytest.approx(0.875)
    assert here.delta == pytest.approx(4.1e-6)


def noisy(epsilon: float, *, relation: str = "add-or-remove-one", unit: str = "row", overlap: int = 1) -> DP:
    """A claim of ten full batches with noise 20."""
    event = describe([Event(sigma=20.0, steps=10)])
    return DP(epsilon=epsilon, delta=1e-6, event=event, relation=relation, unit=unit, overlap=overlap)


def spent_on(*claims: DP) -> tuple[float, float]:
    budget = Budget()
    for claim in claims:
        budget.charge(claim, to="hub")
    return budget.epsilon, budget.delta


def test_known_events_are_composed_and_a_single_payment_is_what_it_says() -> None:
    assert spent_on(noisy(0.9)) == (0.9, 1e-6)
    epsilon, delta = spent_on(noisy(0.9), noisy(0.9))
    assert delta == pytest.approx(2e-6)
    assert epsilon == pytest.approx(epsilon_of([Event(sigma=20.0, steps=20)], 2e-6))
    assert 0.9 < epsilon < 1.8
    assert spent_on(noisy(0.3), noisy(0.3))[0] == pytest.approx(0.6)  # the sum where that is less


def test_payments_of_other_units_and_without_events_are_added_up() -> None:
    assert spent_on(noisy(0.9), noisy(0.9, unit="person")) == pytest.approx((1.8, 2e-6))
    assert spent_on(noisy(0.9, unit="person"), noisy(0.9, unit="person", overlap=2))[0] == pytest.approx(1.8)
    assert spent_on(noisy(0.9), DP(epsilon=0.5, delta=1e-6, event="some noise")) == pytest.approx((1.4, 2e-6))


def test_where_a_unit_is_replaced_in_one_release_it_is_removed_and_added_in_the_others() -> None:
    whole = spent_on(noisy(0.9), noisy(0.9, relation="replace-one"))
    assert whole[1] == pytest.approx((1 + math.exp(0.9)) * 1e-6 + 1e-6)
    both = [Event(sigma=20.0, steps=20)]
    assert whole[0] == pytest.approx(min(2.7, epsilon_of(both, whole[1], relation="replace-one")))
