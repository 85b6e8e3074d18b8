"""Partially-federated learning: the two ends of the dial, the three ways to count, and what goes out."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.errors import ConfigError, RefusedError
from kohort.privacy.ledger.verify import verify_ledger
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run

SEED = 5
DECLARED: dict[str, Any] = {
    "bounds": {"age": (20, 70), "hours": (0, 79)},
    "categories": {"sex": ["f", "m"], "y": ["high", "low"]},
}
"""Methods that learn domains in different ways are compared over the same ones."""


def table(rows: int = 1500) -> pl.DataFrame:
    generator = np.random.default_rng(3)
    age = generator.choice([20, 30, 40, 50, 60, 70], rows, p=[0.3, 0.25, 0.2, 0.15, 0.07, 0.03])
    sex = generator.choice(["f", "m"], rows)
    hours = generator.integers(0, 80, rows)
    score = 0.05 * (age - 40) + 0.03 * (hours - 40) + 0.5 * (sex == "m") + generator.normal(0, 0.6, rows)
    return pl.DataFrame({"age": age, "sex": sex, "hours": hours, "y": np.where(score > 0, "high", "low")})


def outcome(method: str = "partial", *, out: Path | None = None, many: bool = True, **parts: Any) -> Outcome:
    gate = {"k": 20, "count": "secure", "released": "raw", "release_k": 5, **parts.pop("gate", {})}
    if gate.get("rule") == "paper-l":  # which counts by l alone
        del gate["k"]
    own = {"gate": gate, **parts.pop("own", {})} if method == "partial" else {}
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "quasi": ["age", "sex"], "sensitive": ["y"],
                     "features": ["hours"], **DECLARED, **parts.pop("data", {})},
            "sites": {"count": 4, "split": "iid", **parts.pop("sites", {})},
            "train": {"rounds": 4, "optimizer": "sgd", "lr": 0.3, "batch": 32, **parts.pop("train", {})},
            "policy": {"raw": True, "trust_counts": True, "min_rows": 1, "min_k": 2, **parts.pop("policy", {})},
            "method": {"name": method, **own},
        }
    )  # fmt: skip
    return run(plan, seed=SEED, out=out, tables={"": parts.pop("frame", table())}, many=many)


def same_model(one: Outcome, other: Outcome) -> bool:
    return np.array_equal(one.model.weights, other.model.weights)


@pytest.mark.parametrize("train", [{}, {"optimizer": "adam", "lr": 0.01, "state": "keep"}, {"hub": "fedadam:lr=0.05"}])
def test_k_of_one_is_central_learning_exactly(train: dict[str, Any]) -> None:
    for count in ("secure", "local", "global"):
        assert same_model(outcome(gate={"k": 1, "count": count}, train=train), outcome("central", train=train))


@pytest.mark.parametrize(
    "train", [{}, {"correction": "fedprox:0.1"}, {"correction": "scaffold"}, {"aggregate": "median"}]
)
def test_k_above_the_largest_group_is_federated_averaging_exactly(train: dict[str, Any]) -> None:
    found = outcome(gate={"k": 100_000}, train=train)
    assert same_model(found, outcome("fedavg", train=train))
    assert found.received is None
    assert any("federated averaging" in warning for warning in found.warnings)


def shared_keys(found: Outcome) -> pl.DataFrame:
    assert found.received is not None
    return found.received.select("age", "sex", "hours", "y", "sender").sort("sender", "age", "sex", "hours", "y")


@pytest.mark.parametrize("rule", [{"rule": "k-anonymity", "k": 60}, {"rule": "paper-l", "l": 40}])
def test_the_secure_count_shares_what_the_count_in_clear_shares_and_a_local_one_less(rule: dict[str, Any]) -> None:
    secure = outcome(gate={**rule, "count": "secure"})
    assert shared_keys(secure).equals(shared_keys(outcome(gate={**rule, "count": "global"})))
    local = outcome(gate={**rule, "count": "local"})
    assert (0 if local.received is None else local.received.height) < shared_keys(secure).height


def test_the_secure_count_equals_the_oracle_row_by_row() -> None:
    k = 60
    found = outcome(gate={"k": k})
    from kohort.rng import Streams
    from kohort.runs.simulation import populate

    rows = populate(found.plan, Streams.seeded(SEED), tables={"": table()}).frame
    wanted = rows.filter(pl.len().over("age", "sex") >= k)
    assert shared_keys(found).height == wanted.height
    strict = outcome(gate={"k": int(rows.group_by("age", "sex").len()["len"].max()), "strict": True})
    assert strict.received is None


def test_generalised_batches_hold_k_and_l_for_each_sender() -> None:
    found = outcome(gate={"k": 20, "released": "generalised", "release_k": 7, "release_l": 2})
    assert found.received is not None
    seen = measure(found.received, quasi=["age", "sex", "hours", "sender", "batch"], sensitive=["y"])
    assert seen.k >= 7
    assert seen.l_distinct is not None
    assert seen.l_distinct >= 2
    kinds = {item.kind for item in found.disclosed}
    assert "k-anonymous" in kinds
    assert "raw" not in kinds
    assert found.accuracy > 0.6


def test_the_last_day_of_shared_rows_stands_beside_them(tmp_path: Path) -> None:
    outcome(gate={"released": "generalised", "keep_days": 7}, out=tmp_path / "out")
    dates = json.loads((tmp_path / "out" / "hub" / "received.json").read_bytes())
    assert (date.fromisoformat(dates["keep_until"]) - date.fromisoformat(dates["received"])).days == 7
    outcome(gate={"k": 100_000}, out=tmp_path / "nothing")
    assert not (tmp_path / "nothing" / "hub" / "received.json").exists()


def test_a_policy_wins() -> None:
    with pytest.raises(RefusedError, match="forbids raw"):
        outcome(policy={"raw": False})
    with pytest.raises(RefusedError, match="does not trust counts"):
        outcome(policy={"trust_counts": False})
    outcome(gate={"count": "local"}, policy={"trust_counts": False})
    strict = outcome(
        gate={"released": "generalised", "release_k": 5}, policy={"raw": False, "trust_counts": False, "min_k": 5}
    )
    assert strict.received is not None
    alone = outcome(gate={"k": 20}, policy={"min_gate_k": 10_000})
    assert alone.received is None


def test_raw_runs_say_how_many_rows_are_unique() -> None:
    found = outcome()
    assert found.received is not None
    alone = int(found.received.select("age", "sex", "hours", "y").is_unique().sum())
    share = f"{alone / found.received.height:.1%}"
    said = f"{alone:,} of {found.received.height:,} shipped rows ({share}) are unique on the shipped columns"
    assert said in found.notes


def test_persons_are_counted_once() -> None:
    frame = table().with_columns(person=pl.lit("the same"))
    # One person, known to each of four sites; nobody is left to test on.
    four = {"data": {"identifiers": ["person"], "test": 0}, "sites": {"split": "sorted"}, "frame": frame}
    assert outcome(gate={"k": 5}, **four).received is None
    assert outcome(gate={"k": 2}, **four).received is not None
    assert outcome(gate={"k": 2, "overlap": 4}, **four).received is None
    everyone = table().with_row_index("person").with_columns(pl.col("person").cast(pl.String))
    one = outcome(gate={"k": 20}, data={"identifiers": ["person"]}, frame=everyone)
    assert shared_keys(one).equals(shared_keys(outcome(gate={"k": 20})))


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(RefusedError, match="three sites"):
        outcome(sites={"count": 2})


@pytest.mark.parametrize("rule", [{"rule": "l-diversity", "l": 2}, {"rule": "t-closeness", "t": 0.3}])
def test_numbers_are_counted_by_all_and_variety_by_each(rule: dict[str, Any]) -> None:
    plain = outcome(gate={"k": 20})
    for count in ("secure", "local"):
        varied = outcome(gate={**rule, "k": 20, "count": count})
        assert plain.received is not None
        if varied.received is not None:
            assert varied.received.height <= plain.received.height
            for _, part in varied.received.group_by("sender", "age", "sex"):
                assert part["y"].n_unique() >= rule.get("l", 1)


def test_sites_that_drop_out_of_the_count_do_not_stop_it() -> None:
    found = outcome(gate={"k": 20}, sites={"count": 8, "faults": {"drop": 0.03}, "quorum": 0.3})
    assert found.rounds == 4


def test_the_ledger_names_every_step_and_resuming_gives_the_same_bytes(tmp_path: Path) -> None:
    whole = outcome(out=tmp_path / "whole", gate={"released": "generalised"})
    verify_ledger(tmp_path / "whole")
    kinds = {item.what: item.kind for item in whole.disclosed}
    assert kinds["partial.share"] == "k-anonymous"
    assert {"partial.count.secret", "partial.count.size", "partial.count.table", "train"} <= set(kinds)

    def stop(progress: Any) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(whole.plan, seed=SEED, out=tmp_path / "cut", tables={"": table()}, watch=stop)
    run(whole.plan, seed=SEED, out=tmp_path / "cut", tables={"": table()}, resume=True)
    for name in ("model/model.safetensors", "ledger/ledger.jsonl", "ledger/receipts.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_one_by_one_is_the_same(tmp_path: Path) -> None:
    one = outcome(gate={"released": "generalised"}, out=tmp_path / "a")
    other = outcome(gate={"released": "generalised"}, out=tmp_path / "b", many=False)
    assert same_model(one, other)
    assert (tmp_path / "a/ledger/ledger.jsonl").read_bytes() == (tmp_path / "b/ledger/ledger.jsonl").read_bytes()


ARRIVING = {"count": 4, "arrive": "25%/2 rounds"}


@pytest.mark.parametrize("released", ["raw", "generalised"])
def test_rows_that_arrive_are_gated_and_never_shipped_twice(released: str) -> None:
    frame = table().with_columns(hours=pl.int_range(pl.len()) % 80, mark=pl.int_range(pl.len()))
    parts = {"gate": {"k": 20, "released": released}, "train": {"rounds": 8}, "frame": frame}
    found = outcome(sites=ARRIVING, data={"features": ["hours", "mark"]}, **parts)
    assert found.received is not None
    assert set(found.received["batch"].unique()) <= {1, 2, 3, 4}
    assert found.received["batch"].n_unique() > 1
    if released == "raw":
        assert found.received["mark"].is_unique().all()
    else:
        seen = measure(found.received, quasi=["age", "sex", "hours", "mark", "sender", "batch"], sensitive=["y"])
        assert seen.k >= 5
    at_once = outcome(gate={"k": 20, "released": released}, data={"features": ["hours", "mark"]}, frame=frame)
    assert at_once.received is not None
    assert found.received.height <= at_once.received.height


def test_all_rows_at_once_is_an_arrival_of_everything() -> None:
    assert same_model(outcome(), outcome(sites={"arrive": "100%/1 round"}))


def test_an_interrupted_run_with_arrivals_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole = outcome(out=tmp_path / "whole", sites=ARRIVING, train={"rounds": 8, "optimizer": "adam", "state": "keep"})

    def stop(progress: Any) -> None:
        if progress.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(whole.plan, seed=SEED, out=tmp_path / "cut", tables={"": table()}, watch=stop)
    run(whole.plan, seed=SEED, out=tmp_path / "cut", tables={"": table()}, resume=True)
    for name in ("model/model.safetensors", "ledger/ledger.jsonl", "ledger/receipts.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_only_methods_that_gate_take_arrivals_and_the_schedule_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"does not read sites\.arrive"):
        outcome("fedavg", sites=ARRIVING)
    with pytest.raises(ConfigError, match="20%/10 rounds"):
        outcome(sites={"arrive": "sometimes"})
