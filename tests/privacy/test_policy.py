"""The policy judges every kind of guarantee, refuses what it does not know, and is never loosened."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.privacy.test_guarantee import forgotten_after, guarantees

from kohort.privacy.guarantee import (
    DP,
    Aggregate,
    Cells,
    DomainClaim,
    Encrypted,
    Guarantee,
    KAnonymous,
    KKm,
    Pairs,
    Public,
    Raw,
    SecureSum,
)
from kohort.privacy.policy import Policy, after_refusal

CAREFUL = Policy(min_k=5, min_l=2, max_t=0.3, epsilon=1.0, delta=1e-5, min_rows=100, min_sum_sites=3, domain=False)
OPEN = Policy(raw=True, min_rows=1, min_k=2, epsilon=1e7)

LET_OUT: list[tuple[Policy, Guarantee]] = [
    (CAREFUL, Public(what="row count")),
    (CAREFUL, Aggregate(rows=100)),
    (CAREFUL, KAnonymous(k=5, l=2, t=0.3, verified=True)),
    (CAREFUL, KKm(k=5, m=2, verified=True)),
    (CAREFUL, DP(epsilon=1.0, delta=1e-5)),
    (CAREFUL, DP(epsilon=0.0, delta=0.0)),
    (CAREFUL, SecureSum(sites=3, threshold=3, colluders=1, opens="hub")),
    (CAREFUL, Encrypted(scheme="bfv", opens="key-holder")),
    (OPEN, Raw(rows=3)),
    (OPEN, DomainClaim(columns=("age",))),
    (OPEN, DP(epsilon=1e6, delta=1e-3)),
    (Policy(), DP(epsilon=10.0, delta=1e-6)),
]
KEPT_IN: list[tuple[Policy, Guarantee, str]] = [
    (CAREFUL, Raw(rows=10**6), "raw rows"),
    (CAREFUL, DomainClaim(columns=("age", "sex")), "2 columns"),
    (CAREFUL, Aggregate(rows=99), "min_rows 100"),
    (CAREFUL, KAnonymous(k=5, l=2, t=0.3), "not verified"),
    (CAREFUL, KAnonymous(k=4, l=2, t=0.3, verified=True), "min_k 5"),
    (CAREFUL, KAnonymous(k=5, l=1, t=0.3, verified=True), "min_l 2"),
    (CAREFUL, KAnonymous(k=5, l=2, t=0.31, verified=True), "max_t 0.3"),
    (CAREFUL, KAnonymous(k=5, l=2, t=None, verified=True), "max_t 0.3"),
    (CAREFUL, KAnonymous(k=5, l=2, t=float("nan"), verified=True), "max_t 0.3"),
    (CAREFUL, KKm(k=5, m=2), "not verified"),
    (CAREFUL, KKm(k=4, m=2, verified=True), "min_k 5"),
    (CAREFUL, DP(epsilon=1.01, delta=1e-6), "exceeds"),
    (Policy(), DP(epsilon=10.01, delta=1e-6), "exceeds the policy's 10"),
    (CAREFUL, DP(epsilon=0.5, delta=1e-4), "delta"),
    (CAREFUL, SecureSum(sites=2, threshold=2, colluders=0, opens="hub"), "2 sites"),
    (CAREFUL, Encrypted(scheme="bfv", opens="hub"), "hub itself"),
    (CAREFUL, Encrypted(scheme="bfv", opens=""), "hub itself"),
    *[
        (policy, DP(epsilon=epsilon, delta=delta), "no guarantee")
        for policy in (CAREFUL, OPEN)
        for epsilon, delta in [
            (float("nan"), 1e-6),
            (float("inf"), 1e-6),
            (-1.0, 1e-6),
            (0.5, float("nan")),
            (0.5, -1e-6),
            (0.5, 1.5),
        ]
    ],
]


@pytest.mark.parametrize(("policy", "claim"), LET_OUT, ids=lambda value: getattr(value, "kind", ""))
def test_let_out(policy: Policy, claim: Guarantee) -> None:
    assert policy.judge(claim, task="train") is None


@pytest.mark.parametrize(("policy", "claim", "why"), KEPT_IN, ids=lambda value: getattr(value, "kind", ""))
def test_kept_in(policy: Policy, claim: Guarantee, why: str) -> None:
    reason = policy.judge(claim, task="train")
    assert reason is not None
    assert why in reason


def test_every_policy_has_a_cap_on_epsilon_over_all_runs() -> None:
    claim = DP(epsilon=2.0, delta=1e-6)
    assert Policy().judge(claim, task="train", total=(9.9, 1e-6)) is None
    assert "exceeds the policy's 10" in str(Policy().judge(claim, task="train", total=(10.1, 1e-6)))
    assert Policy(epsilon=50.0).tightened(Policy()).epsilon == 10.0
    assert Policy(epsilon=50.0).tightened(Policy(epsilon=40.0)).epsilon == 40.0


def test_every_kind_is_judged_both_ways() -> None:
    every = {Raw, Public, DomainClaim, Aggregate, KAnonymous, KKm, DP, Encrypted, SecureSum}
    assert {type(claim) for _, claim in LET_OUT} == every
    assert {type(claim) for _, claim, _ in KEPT_IN} == every - {Public}  # public by declaration


def test_an_unknown_guarantee_is_refused() -> None:
    with forgotten_after():

        @dataclass(frozen=True, kw_only=True)
        class Trusting(Guarantee):
            kind: ClassVar[str] = "trusting"

        for policy in (Policy(), OPEN):
            reason = policy.judge(Trusting(), task="train")
            assert reason is not None
            assert "'trusting'" in reason


@given(guarantees)
def test_a_task_the_policy_does_not_answer_is_refused_whatever_is_claimed(claim: Guarantee) -> None:
    policy = Policy(tasks=("train", "central.*"), raw=True, min_rows=1)
    assert "does not answer" in str(policy.judge(claim, task="central"))
    assert "does not answer" in str(policy.judge(claim, task="trainer"))


def test_what_was_spent_counts() -> None:
    claim = DP(epsilon=0.6, delta=1e-6)
    assert CAREFUL.judge(claim, task="t", total=(1.0, 2e-6)) is None
    assert CAREFUL.judge(claim, task="t", total=(1.01, 2e-6)) is not None


patterns = st.sampled_from(
    ["*", "train", "train*", "central.ship", "central.*", "?", "[ct]*", "[!x]*", "x", "a*b", "[", "ta?k"]
)
policies = st.builds(
    Policy,
    raw=st.booleans(),
    domain=st.booleans(),
    min_rows=st.integers(1, 300),
    min_k=st.integers(2, 20),
    min_l=st.integers(1, 4),
    max_t=st.floats(0.01, 1),
    min_sum_sites=st.integers(2, 10),
    epsilon=st.floats(0.01, 10),
    delta=st.floats(1e-9, 1),
    public=st.lists(st.sampled_from(["rows", "loss", "time"]), unique=True).map(tuple),
    tasks=st.lists(patterns, min_size=1, max_size=3, unique=True).map(tuple),
    trust_counts=st.booleans(),
)
tasks = st.sampled_from(
    ["train", "train2", "central.ship", "central.", "x", "c", "ab", "axb", "task", "t", "[", "?", "*"]
)
near_claims = st.one_of(
    guarantees,
    st.builds(Aggregate, rows=st.integers(0, 400)),
    st.builds(
        KAnonymous, k=st.integers(1, 25), l=st.integers(1, 5), t=st.none() | st.floats(0, 1), verified=st.just(True)
    ),
    st.builds(DP, epsilon=st.floats(0, 12), delta=st.floats(0, 1)),
    st.builds(SecureSum, sites=st.integers(1, 12), threshold=st.just(2), colluders=st.just(0), opens=st.just("hub")),
)


@given(policies, policies, near_claims, tasks, st.floats(0, 5))
def test_tightened_is_never_looser_than_either(
    one: Policy, other: Policy, claim: Guarantee, task: str, spent: float
) -> None:
    both = one.tightened(other)
    total = (claim.epsilon + spent, claim.delta) if isinstance(claim, DP) else None
    if both.judge(claim, task=task, total=total) is None:
        assert one.judge(claim, task=task, total=total) is None
        assert other.judge(claim, task=task, total=total) is None
    assert set(both.public) <= set(one.public) & set(other.public)
    assert both.trust_counts <= (one.trust_counts and other.trust_counts)


@given(policies)
def test_tightening_with_itself_or_with_nothing_changes_nothing(policy: Policy) -> None:
    assert policy.tightened(policy) == policy
    nothing = Policy(
        raw=True, min_rows=1, min_k=2, max_t=1.0, min_sum_sites=2, delta=1.0, public=policy.public, trust_counts=True
    )
    assert policy.tightened(nothing) == policy
    turned = nothing.tightened(policy)
    assert set(turned.tasks) == set(policy.tasks)
    assert replace(turned, tasks=policy.tasks) == policy


def test_tightening_keeps_what_both_answer() -> None:
    mine, theirs = Policy(tasks=("train", "enrol.*")), Policy(tasks=("enrol.rows", "train*"))
    both = mine.tightened(theirs)
    assert [task for task in ("train", "train2", "enrol.rows", "enrol.other") if both.answers(task)] == [
        "train",
        "enrol.rows",
    ]


def test_every_rule_takes_part_in_tightening() -> None:
    """A rule added to Policy and forgotten in `tightened` would fall back to its default here."""
    strict: dict[str, Any] = {
        "raw": False, "domain": False, "min_rows": 777, "min_k": 77, "min_l": 7, "max_t": 0.07, "min_sum_sites": 70,
        "min_gate_k": 70, "min_cell": 70, "min_sum_cell": 70, "pairs": "rounded",
        "epsilon": 0.7, "delta": 7e-7, "public": (), "tasks": ("seven",), "trust_counts": False, "void_dp": False,
            "overlapping_releases": False,
    }  # fmt: skip
    assert {item.name for item in fields(Policy)} == set(strict), "say here what the strict value of the new rule is"
    loose = Policy(raw=True, pairs="open", min_rows=1, min_k=2, delta=1.0, trust_counts=True, overlapping_releases=True)
    assert loose.tightened(Policy(**strict)) == Policy(**strict)


def test_the_ledger_shows_every_rule() -> None:
    shown = CAREFUL.to_mapping()
    assert set(shown) == {item.name for item in fields(Policy)}
    assert shown["tasks"] == ["*"]


@pytest.mark.parametrize(
    "claim",
    [
        DP(epsilon=-0.5, delta=1e-6, charge=0.5),
        DP(epsilon=0.5, delta=1e-6, charge=-0.5),
        DP(epsilon=0.5, delta=-0.5, delta_charge=1e-6),
        DP(epsilon=0.5, delta=1e-6, delta_charge=-0.5),
        DP(epsilon=0.5, delta=1e-6, delta_charge=1.5),
        DP(epsilon=0.5, delta=1e-6, charge=float("inf")),
    ],
)
def test_a_charge_below_nothing_refills_no_budget(claim: DP) -> None:
    for paid in ((0.0, 0.0), (9.0, 0.9)):
        assert "are no guarantee" in str(OPEN.judge(claim, task="t", paid=paid))


@pytest.mark.parametrize(
    ("policy", "least", "why"),
    [
        (Policy(pairs="open"), 1, None),
        (Policy(), 1, "would open as they are"),
        (Policy(min_cell=5), 5, None),
        (Policy(min_cell=5), 4, "would open from 4 persons on, below the policy's min_cell 5"),
        (Policy(min_cell=1), 2, None),
        (Policy(min_cell=1), 1, "would open as they are"),
    ],
)
def test_small_counts_of_pairs_open_where_the_policy_says_so(policy: Policy, least: int, why: str | None) -> None:
    said = policy.judge(Pairs(least=least), task="t")
    assert said is None if why is None else why in str(said)


@pytest.mark.parametrize(("least", "is_let_out"), [(4, False), (5, True), (6, True)])
def test_cells_of_totals_are_as_large_as_the_policy_says(least: int, is_let_out: bool) -> None:
    assert (Policy(min_sum_cell=5).judge(Cells(least=least), task="t") is None) == is_let_out


@pytest.mark.parametrize(
    ("policy", "claim", "rows", "setting"),
    [
        (CAREFUL, Raw(rows=1), None, "policy.raw = true"),
        (CAREFUL, Aggregate(rows=7), 7, "policy.min_rows = 7"),
        (CAREFUL, Aggregate(rows=0), 0, "policy.min_rows = 1"),
        (CAREFUL, Aggregate(rows=7), None, "policy.min_rows,"),
        (CAREFUL, KAnonymous(k=4, l=2, t=0.3, verified=True), None, "policy.min_k,"),
        (CAREFUL, SecureSum(sites=2, threshold=2, colluders=0, opens="hub"), None, "policy.min_sum_sites,"),
        (Policy(), Pairs(least=1), None, 'policy.pairs = "open"'),
        (CAREFUL, DomainClaim(columns=("age",)), None, "relax [policy] at sites you own"),
    ],
)
def test_after_a_refusal_the_key_that_would_allow_it_is_named(
    policy: Policy, claim: Guarantee, rows: int | None, setting: str
) -> None:
    assert setting in after_refusal(str(policy.judge(claim, task="t")), rows=rows)
