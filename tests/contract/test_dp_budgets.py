"""Every method with a budget: its noise is fresh and in what leaves, and its claims follow from their events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from tests.support.wire import gaussian_events

from kohort.methods.registry import find_method, methods
from kohort.privacy.ledger.verify import verify_ledger
from kohort.testing.federation import carry_out, plan_of
from kohort.testing.noise import SMALL, drawn_noise

DP = {"epsilon": 2.0, "delta": 1e-4}
SERVER = {"kind": "server", "rounds": 2, "batch": 0, "optimizer": "sgd", "lr": 0.1}
SINGLE = {"kind": "server", "rounds": 2, "lr": 0.1, "rows": "all", "dp": {**DP, "mechanism": "ftrl"}}
GATE = {"k": 5, "release_k": 5, "release_l": 1, "count": "local"}
BUDGETS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fedavg": ("fedavg", {"dp": DP}, {}),
    "fedavg-after": ("fedavg", {"dp": {**DP, "mechanism": "after"}}, {}),
    "fedavg-ftrl": ("fedavg", {"dp": {**DP, "mechanism": "ftrl"}}, {}),
    "fedavg-quantile": ("fedavg", {"dp": {**DP, "quantile": 0.5}}, {"optimizer": "sgd"}),
    "fedavg-shares": ("fedavg", {"dp": DP, "secure": {"sum": "masks"}}, {"batch": 0, "optimizer": "sgd"}),
    "hybrid": ("hybrid", {"phases": [{**SERVER, "rows": "all", "dp": DP}], "clusters": "given"}, {}),
    "hybrid-ftrl": ("hybrid", {"phases": [SINGLE], "clusters": "given"}, {}),
    "additive": ("additive", {"dp": {**DP, "epsilon": 8.0}, "min_bin": 5}, {}),
    "oneshot": ("oneshot", {"dp": DP, "secure": {"sum": "masks"}}, {}),
    "partial": ("partial", {"dp": DP, "kept": "sum", "gate": GATE}, {"batch": 0, "optimizer": "sgd"}),
}


def _has_budget(config: Any) -> bool:
    """Whether a method's configuration has a place for a budget, of its own or in a part."""
    names = {field.name for field in fields(config)} if is_dataclass(config) else set()
    return "dp" in names or "phases" in names


def test_dp_every_method_with_a_budget_is_here() -> None:
    ours = {name for name in methods() if find_method(name).config.__module__.startswith("kohort.")}
    assert {name for name in ours if _has_budget(find_method(name).config)} == {name for name, _, _ in BUDGETS.values()}


@pytest.mark.parametrize("name", BUDGETS)
def test_dp_claims_follow_from_their_events_and_noise_is_fresh(name: str, tmp_path: Path) -> None:
    method, own, train = BUDGETS[name]
    plan = plan_of(method, own=own, train=train, policy={"epsilon": 20.0, "delta": 0.1, "min_rows": 1, "min_cell": 1})
    with drawn_noise() as draws:
        made = carry_out(plan, tmp_path / "run")
    assert draws
    keys = [(draw.key, draw.label) for draw in draws if draw.label != b"noise"]
    again = Counter(keys).values()
    # Correlated noise of a round is made of that of all rounds before it, so the first draws come again.
    assert max(again, default=1) == (plan.train.rounds if name == "fedavg-ftrl" else 2 if name == "hybrid-ftrl" else 1)
    lines = [json.loads(line) for line in (tmp_path / "run/ledger/ledger.jsonl").read_text().splitlines()]
    claims = [line["guarantee"] for line in lines if line.get("what") == "dp.reserve"]
    assert claims
    for claim in claims:
        assert independent(claim) <= claim["epsilon"] * 1.005
    epsilon = max(claim["epsilon"] for claim in claims)
    assert made.outcome.epsilon == pytest.approx(epsilon)
    assert verify_ledger(tmp_path / "run").epsilon == pytest.approx(epsilon)


@pytest.mark.parametrize("name", ["fedavg", "fedavg-after", "fedavg-ftrl", "additive", "oneshot"])
def test_dp_the_noise_is_in_what_leaves(name: str, tmp_path: Path) -> None:
    method, own, train = BUDGETS[name]
    own = {**own, "secure": {"sum": "none"}} if "secure" in own or method == "additive" else own
    plan = plan_of(method, own=own, train=train, policy={"epsilon": 20.0, "delta": 0.1, "min_rows": 1, "min_cell": 1})
    sent = []
    for word in (SMALL, SMALL, None):
        with drawn_noise(word):
            sent.append(carry_out(plan, tmp_path / str(len(sent))).carried.replies)
    assert sent[0] == sent[1]
    noisy = [one for one, other in zip(sent[0], sent[2], strict=True) if one != other]
    assert noisy, "what leaves does not depend on the noise"


def independent(claim: Mapping[str, Any]) -> float:
    """The epsilon of a claim's events by dp-accounting alone."""
    account = PLDAccountant(value_discretization_interval=1e-3)
    events = gaussian_events(claim)
    whole = sqrt(sum(steps / sigma**2 for steps, sigma, rate in events if rate == 1))
    if whole:
        account.compose(GaussianDpEvent(1 / whole))
    for steps, sigma, rate in events:
        if rate < 1:
            account.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
    return float(account.get_epsilon(claim["delta"]))
