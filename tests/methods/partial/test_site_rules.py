"""Rules per site: a site may be stricter than the plan, by the plan itself or by its own policy, and never looser."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.methods.partial import tasks
from kohort.methods.partial.config import Gate, SiteRules, config_of, count_cap, rules_at, threshold_of
from kohort.rng import Streams
from kohort.rounds.counting import FrequentKeys
from kohort.runs.config import Plan, load_plan
from kohort.runs.explain import explain_plan
from kohort.runs.forecast import forecast
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import populate
from kohort.testing.site_servers import ServedSites

SEED, STRICT = 5, "site-02"
RAW: dict[str, Any] = {"k": 60, "released": "raw"}
CLASSES: dict[str, Any] = {"k": 20, "released": "generalised", "release_k": 5}


@cache
def table() -> pl.DataFrame:
    generator = np.random.default_rng(3)
    age = generator.choice([20, 30, 40, 50, 60, 70], 900, p=[0.3, 0.25, 0.2, 0.15, 0.07, 0.03])
    hours = generator.integers(0, 80, 900)
    y = np.where(0.05 * (age - 40) + 0.03 * (hours - 40) + generator.normal(0, 0.6, 900) > 0, "high", "low")
    return pl.DataFrame({"age": age, "hours": hours, "y": y})


def plan(gate: dict[str, Any], *, method: dict[str, Any] | None = None, **policy: Any) -> Plan:
    return load_plan(
        {
            "data": {"table": "memory", "target": "y", "quasi": ["age"], "features": ["hours"], "test": 0,
                     "bounds": {"age": (20, 70), "hours": (0, 79)}, "categories": {"y": ["high", "low"]}},
            "sites": {"count": 4},
            "model": {"kind": "logistic"},
            "train": {"rounds": 1, "optimizer": "sgd", "lr": 0.3, "batch": 0},
            "policy": {"raw": True, "trust_counts": True, "min_rows": 1, "min_k": 2, **policy},
            "method": {"name": "partial", "gate": gate, **(method or {})},
        }
    )  # fmt: skip


def outcome(gate: dict[str, Any], *, out: Path | None = None, served: bool = False, **policy: Any) -> Outcome:
    backend = ServedSites({"": table()}) if served else None
    return run(plan(gate, **policy), seed=SEED, out=out, tables={"": table()}, backend=backend)


def with_rules(gate: dict[str, Any], **rules: Any) -> dict[str, Any]:
    return {**gate, "per_site": {STRICT: rules}}


def ages(found: Outcome, site: str) -> list[int]:
    received = found.received
    return [] if received is None else sorted(received.filter(pl.col("sender") == site)["age"].to_list())


def oracle(k: dict[str, int], *, local: bool) -> dict[str, list[int]]:
    """The ages each site shares, by counting in the open."""
    rows = populate(plan(RAW), Streams.seeded(SEED), tables={"": table()})
    bounds = rows.starts.tolist()
    found = {}
    for number, site in enumerate(rows.names):
        own = rows.frame["age"][bounds[number] : bounds[number + 1]].to_list()
        counted = own if local else rows.frame["age"].to_list()
        found[site] = sorted(age for age in own if counted.count(age) >= k.get(site, k[""]))
    return found


@pytest.mark.parametrize("count", ["secure", "global", "local"])
def test_a_stricter_site_demands_more_of_the_same_counts(count: str) -> None:
    strict, usual = (160, 60) if count != "local" else (50, 30)
    found = outcome(with_rules({**RAW, "k": usual, "count": count}, k=strict))
    wanted = oracle({"": usual, STRICT: strict}, local=count == "local")
    assert {site: ages(found, site) for site in wanted} == wanted
    assert wanted[STRICT] != oracle({"": usual}, local=count == "local")[STRICT]
    assert f"stricter rules than the plan's held at {STRICT} (k = {strict})" in found.notes


def test_behind_servers_the_same_rows_are_shared() -> None:
    gate = with_rules(RAW, k=160)
    here, there = outcome(gate), outcome(gate, served=True)
    assert here.received is not None
    assert there.received is not None
    assert here.received.equals(there.received)


def ledger_claims(folder: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_text().splitlines()]
    return {line["site"]: line["guarantee"] for line in lines if line.get("what") == "partial.share"}


def test_ledger_lines_name_the_k_that_held_at_each_site(tmp_path: Path) -> None:
    found = outcome(with_rules(CLASSES, k=60, release_k=9), out=tmp_path / "out")
    claims = ledger_claims(tmp_path / "out")
    assert {site: (claim["k"], claim["gate_k"]) for site, claim in claims.items()} == {
        site: (9, 60) if site == STRICT else (5, 20) for site in ("site-01", STRICT, "site-03", "site-04")
    }
    assert found.received is not None
    for site, claim in claims.items():
        sent = found.received.filter(pl.col("sender") == site)
        assert measure(sent, quasi=["age", "hours"], sensitive=["y"]).k >= claim["k"]


def test_a_policy_raises_what_the_site_ships(tmp_path: Path) -> None:
    found = outcome(CLASSES, out=tmp_path / "out", min_k=9)
    assert {claim["k"] for claim in ledger_claims(tmp_path / "out").values()} == {9}
    assert found.received is not None
    assert measure(found.received, quasi=["age", "hours", "sender"]).k >= 9
    outcome(CLASSES, out=tmp_path / "l", min_l=2)
    assert {claim["l"] for claim in ledger_claims(tmp_path / "l").values()} == {2}
    with pytest.raises(RefusedError, match="no site released a row"):
        outcome(CLASSES, min_k=10_000)


@pytest.mark.parametrize(("gate", "rules"), [(RAW, {"k": 160}), (CLASSES, {"k": 60, "release_k": 9})])
def test_the_door_refuses_what_was_made_under_the_plans_rules_alone(
    monkeypatch: pytest.MonkeyPatch, gate: dict[str, Any], rules: dict[str, Any]
) -> None:
    monkeypatch.setattr(tasks, "_rules", lambda site: config_of(site.plan).gate)
    found = outcome(with_rules(gate, **rules))
    assert list(found.refused) == [STRICT]
    assert "weaker than what the plan's contract says" in found.refused[STRICT]
    assert not ages(found, STRICT)


def test_only_stricter_rules_that_are_read_are_taken() -> None:
    for rules, said in [
        ({"k": 59}, "per_site.site-02.k = 59 is looser than the plan's 60"),
        ({"release_k": 20}, "release_k is not read"),
        ({"l": 2}, "l is not read: the plan's own gate has no l"),
    ]:
        with pytest.raises(ConfigError, match=said):
            plan(with_rules(RAW, **rules))
    with pytest.raises(ConfigError, match="k is not read"):
        plan(with_rules({**RAW, "rule": "paper-l", "l": 40}, k=200))
    with pytest.raises(ConfigError, match=r"t = 0\.3 is looser than the plan's 0\.2"):
        plan(with_rules({**RAW, "rule": "t-closeness", "t": 0.2, "count": "local"}, t=0.3))
    with pytest.raises(ConfigError, match="'site-99', which is no site of the run"):
        outcome({**RAW, "per_site": {"site-99": {"k": 200}}})
    with pytest.raises(ConfigError, match="per_site"):
        plan({**RAW, "per_site": {STRICT: {"kk": 200}}})


def test_a_stricter_diversity_holds_at_that_site_alone() -> None:
    gate = {**RAW, "rule": "t-closeness", "t": 1.0, "k": 5, "count": "local"}
    found, strict = outcome(gate), outcome(with_rules(gate, t=0.05))
    assert len(ages(strict, STRICT)) < len(ages(found, STRICT))
    assert ages(strict, "site-01") == ages(found, "site-01")


def test_under_a_budget_l_is_not_raised() -> None:
    method = {"kept": "sum", "dp": {"epsilon": 2.0, "delta": 1e-6}, "secure": {"sum": "masks"}}
    gate = {**CLASSES, "count": "local", "release_l": 1}
    with pytest.raises(ConfigError, match="would not hold"):
        plan(with_rules(gate, release_l=2), method=method)
    with pytest.raises(RefusedError, match="below the policy's min_l"):
        run(plan(gate, method=method, min_l=2), seed=SEED, tables={"": table()})


def test_counts_are_cut_off_at_the_strictest_threshold() -> None:
    gate = Gate(k=10, overlap=2, per_site={"a": SiteRules(k=30), "b": SiteRules(release_k=20)})
    assert (threshold_of(gate), count_cap(gate)) == (20, 60)
    assert (rules_at(gate, "a").k, rules_at(gate, "b").release_k, rules_at(gate, "c")) == (30, 20, gate)


def test_counts_in_clear_that_cannot_be_read_approve_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from kohort.methods.partial import method

    monkeypatch.setattr(
        method, "_announced_counts", lambda known, **_: {"f": known.f, "h": known.h, "counts": known.totals[:-1]}
    )
    with pytest.raises(IntegrityError, match="cannot be read"):
        outcome({**RAW, "count": "global"})


def test_proven_totals_are_compared_with_a_sites_own_threshold() -> None:
    numbers = np.asarray([5, 7, 9], dtype=np.uint64)
    assert FrequentKeys(numbers, numbers, numbers).reaching(7).f.tolist() == [7, 9]


def test_the_contract_in_words_names_the_site() -> None:
    said = explain_plan(plan(with_rules(CLASSES, k=60, release_k=9)))
    assert f"at {STRICT}: k-anonymous with k = 9" in " ".join(said.text.split())
    step = next(step for step in said.to_mapping()["steps"] if step["task"] == "partial.share")
    assert step["per_site"][STRICT][0]["gate_k"] == 60
    assert step["claims"][0]["gate_k"] == 20


def test_a_forecast_knows_the_sites_rules() -> None:
    gate = with_rules(CLASSES, k=160)
    said = forecast(plan(gate), seed=SEED, tables={"": table()})
    received = outcome(gate).received
    assert received is not None
    assert said.shared == received.height
