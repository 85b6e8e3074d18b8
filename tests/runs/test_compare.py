"""Comparing settings: the grid, the front, the choice, what choosing costs, and rehearsals on rows of low risk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kohort.cli.app import build
from kohort.errors import ConfigError, DataError
from kohort.evaluate.choice import (
    COSTS,
    Condition,
    cheapest,
    figures_of,
    front,
    intervals_of,
    objectives,
    parse_conditions,
)
from kohort.methods.registry import find_method
from kohort.methods.strengths import Strength
from kohort.privacy.dp.accounting import Event, describe, epsilon_of
from kohort.privacy.dp.tuning import cost_of_choice
from kohort.privacy.guarantee import DP
from kohort.privacy.ledger.summary import spent_by_site
from kohort.privacy.policy import Policy
from kohort.rng import Streams
from kohort.runs import strengths
from kohort.runs.compare import Options, compare
from kohort.runs.config import load_plan
from kohort.runs.folder import RunFolder
from kohort.runs.low_risk import HELD_OUT, low_risk_only
from kohort.runs.simulation import Population, populate
from kohort.runs.sweeps import NOT_READ, Sweep, strong_variants, variants_of

ROWS = 900
PLAN = """
[data]
table = "{table}"
target = "label"
features = ["x", "z"]
bounds = {{x = [-4, 4], z = [-4, 4]}}
categories = {{label = ["no", "yes"]}}
drop = ["number"]
test = 0.2

[sites]
count = 3
split = "iid"
low_risk = 0.4

[model]
kind = "logistic"

[train]
rounds = 2
optimizer = "sgd"
lr = 0.5

[method]
name = "fedavg"

[policy]
min_rows = 20
epsilon = 5
delta = 0.001
"""
DP_SECTION = """
[method.dp]
mechanism = "dp-sgd"
epsilon = 1.0
delta = 1e-5
clip = 1.0
"""


def table(rows: int = ROWS) -> pl.DataFrame:
    random = np.random.default_rng(3)
    x, z = random.normal(size=(2, rows)).clip(-4, 4)
    label = np.where(x + z + 0.3 * random.normal(size=rows) > 0, "yes", "no")
    return pl.DataFrame({"number": np.arange(rows), "x": x, "z": z, "label": label})


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    table().write_parquet(tmp_path / "rows.parquet")
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(table=tmp_path / "rows.parquet"))
    return path


# The grid


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("train.lr=0.1,0.3", "train.lr", ("0.1", "0.3")),
        ("model.hidden=[12],[12, 6]", "model.hidden", ("[12]", "[12, 6]")),
        ('sites.split="iid", "interval:age"', "sites.split", ('"iid"', '"interval:age"')),
        ("method.clusters={a = ['x', 'y']},'labels:2'", "method.clusters", ("{a = ['x', 'y']}", "'labels:2'")),
    ],
)
def test_a_sweep_is_cut_at_the_commas_between_values(text: str, key: str, values: tuple[str, ...]) -> None:
    assert Sweep.parse(text) == Sweep(key, values)


@pytest.mark.parametrize("text", ["train.lr", "=1,2", "train.lr=", "train.lr=1,,2", "train.lr=1,1"])
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Sweep.parse(text)


def test_every_combination_is_a_setting_and_every_plan_is_checked_first(plan: Path) -> None:
    sweeps = [Sweep("train.lr", ("0.1", "0.3")), Sweep("train.rounds", ("1", "2", "3"))]
    found = variants_of(plan, sweeps)
    assert [(made.plan.train.lr, made.plan.train.rounds) for made in found] == list(product((0.1, 0.3), (1, 2, 3)))
    with pytest.raises(ConfigError, match="unknown"):
        variants_of(plan, [Sweep("train.lrr", ("0.1",))])
    with pytest.raises(ConfigError, match="twice"):
        variants_of(plan, [sweeps[0], sweeps[0]])


def test_a_method_that_does_not_read_a_swept_key_runs_once(
    plan: Path, tmp_path: Path, kohort_here: Callable[..., tuple[int, str, str]]
) -> None:
    sweeps = [Sweep("method.name", ("oneshot", "fedavg")), Sweep("train.lr", ("0.1", "0.2"))]
    found = variants_of(plan, sweeps, overrides=["method.secure.sum=none"])
    assert [one.chosen for one in found] == [
        {"method.name": "oneshot", "train.lr": NOT_READ},
        {"method.name": "fedavg", "train.lr": "0.1"},
        {"method.name": "fedavg", "train.lr": "0.2"},
    ]
    assert [one.unread for one in found] == [("train.lr",), (), ()]
    assert "train.lr" in found[0].plan.ignored_note
    swept = ["--sweep", "method.name=oneshot,fedavg", "--sweep", "train.lr=0.1,0.2"]
    swept += ["--set", "method.secure.sum=none", "--set", "policy.pairs=open"]
    code, _, told = kohort_here("compare", plan, *swept, "--out", tmp_path / "out")
    assert code == 0, told
    assert "oneshot does not read train.lr: run once for all values" in told
    result = json.loads((tmp_path / "out" / "compare.json").read_bytes())
    assert len(result["runs"]) == 3


def test_keys_of_the_method_that_only_one_of_two_has_are_swept_for_it_alone(plan: Path) -> None:
    sweeps = [Sweep("method.name", ("oneshot", "additive")), Sweep("method.bins", ("4", "8"))]
    found = variants_of(plan, sweeps, overrides=["method.secure.sum=none"])
    assert [(one.plan.method, one.chosen["method.bins"]) for one in found] == [
        ("oneshot", NOT_READ), ("additive", "4"), ("additive", "8"),
    ]  # fmt: skip


def test_a_swept_key_that_no_run_reads_is_refused(
    plan: Path, tmp_path: Path, kohort_here: Callable[..., tuple[int, str, str]]
) -> None:
    swept = ["--sweep", "method.name=oneshot,additive", "--sweep", "train.lr=0.1,0.2"]
    code, _, told = kohort_here("compare", plan, *swept, "--out", tmp_path / "out")
    assert code == 2
    assert "no run of the sweep reads train.lr" in told
    assert "Drop --sweep train.lr" in told
    assert not (tmp_path / "out").exists()


def test_a_comparison_replaces_no_run_that_is_under_way(plan: Path, tmp_path: Path) -> None:
    settings = variants_of(plan, [Sweep("train.lr", ("0.1",))])
    made = compare(settings, out=tmp_path / "out")
    live = RunFolder(tmp_path / "out" / made["folders"][0])
    live.take()
    with pytest.raises(ConfigError, match="a run is under way"):
        compare(settings, out=tmp_path / "out", options=Options(force=True))
    live.release()
    assert compare(settings, out=tmp_path / "out", options=Options(force=True))["folders"] == made["folders"]


# The front and the choice

figures = st.fixed_dictionaries(
    {
        "accuracy": st.integers(0, 3).map(float),
        "epsilon": st.sampled_from([0.5, 1.0, inf]),
        "rows_released": st.integers(0, 2).map(float),
        "bytes_readable": st.integers(0, 2).map(float),
    }
)


@given(st.lists(figures, min_size=1, max_size=8))
def test_the_front_is_what_its_definition_says(settings: list[dict[str, float]]) -> None:
    """Against the definition, written out once more, pair by pair."""

    def is_beaten(one: dict[str, float], by: dict[str, float]) -> bool:
        as_good = by["accuracy"] >= one["accuracy"] and not any(by[cost] > one[cost] for cost in COSTS)
        return as_good and (by["accuracy"] > one["accuracy"] or any(by[cost] < one[cost] for cost in COSTS))

    found = front(settings)
    assert found == [i for i, one in enumerate(settings) if not any(is_beaten(one, by) for by in settings)]
    assert found


@given(st.lists(figures, min_size=1, max_size=8), st.integers(0, 4))
def test_the_chosen_setting_keeps_the_bound_and_none_that_does_is_cheaper(
    settings: list[dict[str, float]], bound: int
) -> None:
    chosen = cheapest(settings, parse_conditions(f"accuracy>={bound}"))
    good = [one for one in settings if one["accuracy"] >= bound]
    if chosen is None:
        assert not good
        return
    assert settings[chosen]["accuracy"] >= bound
    cost = tuple(settings[chosen][name] for name in COSTS)
    assert cost == min(tuple(one[name] for name in COSTS) for one in good)


def test_conditions_are_read_and_unknown_figures_named() -> None:
    assert parse_conditions("accuracy>=0.81, epsilon < 1") == (
        Condition("accuracy", ">=", 0.81),
        Condition("epsilon", "<", 1.0),
    )
    for text in ("accuracy", "accuracy=0.8", "accuracy>=much", ""):
        with pytest.raises(ConfigError, match="condition"):
            parse_conditions(text)
    with pytest.raises(ConfigError, match="no figure is called 'acuracy'"):
        cheapest([{"accuracy": 1.0}], parse_conditions("acuracy>=0.5"))


def attacked(area: float | None) -> list[dict[str, object]]:
    return [{"family": "membership", "success": area}, {"family": "linkage", "success": 1.0}]


def test_an_attack_is_an_axis_where_all_settings_were_attacked() -> None:
    base = {"accuracy": 0.8, "epsilon": inf, "rows_released": 0.0, "bytes_readable": 1.0}
    leaky, tight = {**base, "accuracy": 0.81, "membership": 0.64}, {**base, "membership": 0.51}
    assert front([leaky, tight]) == [0, 1]
    assert front([leaky, base]) == [0]  # one was not attacked: compared in the rest alone
    assert front([leaky, {**tight, "membership": 0.636}]) == [0]  # less than 0.01 apart
    assert objectives([leaky, tight])[-1] == "membership"
    assert cheapest([leaky, tight], parse_conditions("accuracy>=0.8, membership<=0.52")) == 1
    with pytest.raises(ConfigError, match="membership") as error:
        cheapest([base], parse_conditions("membership<=0.52"))
    assert error.value.hint == "Add --attack"
    counts = {"kind": "k-anonymous", "rows": 500, "size": 88}
    run = {
        "metrics": {"accuracy": 0.8},
        "disclosed": [counts, {**counts, "rows": 40}],
        "epsilon": None,
        "bytes": {"up": 1},
        "rounds": 1,
    }
    assert figures_of([{**run, "attacks": attacked(0.6)}])["membership"] == 0.6
    assert "membership" not in figures_of([{**run, "attacks": attacked(None)}])
    assert figures_of([run])["rows_released"] == 40  # 88 bytes hold no 500 rows


def test_attacks_are_figures_and_survive_an_interruption(plan: Path, tmp_path: Path) -> None:
    settings = variants_of(plan, [Sweep("train.lr", ("0.1", "0.5"))])
    whole = compare(settings, out=tmp_path / "a", choose="accuracy>=0, membership<=0.9", options=Options(attack=True))
    assert all("membership" in line["figures"] for line in whole["settings"])
    assert whole["objectives"][-1] == "membership"
    assert whole["chosen"] is not None
    audits = json.loads((tmp_path / "a" / "audit.json").read_text())["audits"]
    assert [audit["ledger_heads"] for audit in audits] == [[made["ledger_head"]] for made in whole["runs"]]

    said: list[str] = []

    def stop_at_two(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(settings, out=tmp_path / "b", say=stop_at_two, options=Options(attack=True))
    stored = next((tmp_path / "b").glob("run-1*.attacks.json"))
    known = json.loads(stored.read_bytes())
    known["attacks"][0]["note"] = "kept"
    stored.write_text(json.dumps(known))
    again = compare(settings, out=tmp_path / "b", options=Options(attack=True, resume=True))
    assert again["runs"][0]["attacks"][0]["note"] == "kept"  # an attack that was made is not made again
    assert again["runs"][1]["attacks"][0]["note"] == ""
    stored.write_text(json.dumps({**known, "ledger_head": "of another run"}))
    once = compare(settings, out=tmp_path / "b", options=Options(attack=True, resume=True))
    assert once["runs"][0]["attacks"][0]["note"] == ""  # those of another run are not kept
    assert [line["figures"] for line in again["settings"]] == [line["figures"] for line in whole["settings"]]


def test_what_can_be_read_is_one_total_of_a_secure_sum_and_nothing_of_ciphertexts() -> None:
    run = {"metrics": {}, "bytes": {"up": 1}, "rounds": 1, "epsilon": None}
    sums = {"kind": "secure-sum", "rows": 9, "size": 1_000, "guarantee": "secure-sum(sites=10, threshold=7)"}
    shown = [sums, {"kind": "encrypted", "rows": 0, "size": 70}, {"kind": "aggregate", "rows": 3, "size": 40}]
    assert figures_of([{**run, "disclosed": shown}])["bytes_readable"] == 140


def test_the_best_of_all_attacks_is_the_axis_where_runs_were_audited_whole() -> None:
    run = {"metrics": {"accuracy": 0.8}, "disclosed": [], "bytes": {"up": 1}, "rounds": 1, "epsilon": None}
    found = [
        {"family": "membership", "success": 0.6, "guess": 0.5},
        {"family": "linkage", "success": 0.4, "guess": 0.1},
    ]
    audited = figures_of([{**run, "attacks": found, "audited": True}])
    assert audited["advantage"] == pytest.approx(0.3)
    assert objectives([audited])[-1] == "advantage"
    assert "advantage" not in figures_of([{**run, "attacks": found}])


def test_an_attack_whose_interval_holds_the_guess_is_not_above_it() -> None:
    run = {"metrics": {"accuracy": 0.8}, "disclosed": [], "bytes": {"up": 1}, "rounds": 1, "epsilon": None}
    lucky = {"family": "linkage", "success": 1.0, "guess": 0.02, "interval": [0.0, 1.0]}  # one bet, which was right
    shown = {"family": "reconstruction", "success": 0.06, "guess": 0.0, "interval": [0.05, 0.07]}
    assert figures_of([{**run, "attacks": [lucky], "audited": True}])["advantage"] == 0.0
    assert figures_of([{**run, "attacks": [lucky, shown], "audited": True}])["advantage"] == pytest.approx(0.06)


def test_seeds_give_an_interval_around_the_mean_and_one_run_has_that_of_its_test_rows() -> None:
    run = {"disclosed": [], "bytes": {"up": 1}, "rounds": 1, "epsilon": None}
    one = {**run, "metrics": {"accuracy": 0.8, "intervals": {"accuracy": [0.78, 0.82]}}}
    assert intervals_of([one]) == {"accuracy": (0.78, 0.82)}
    low, high = intervals_of([one, {**run, "metrics": {"accuracy": 0.9}}])["accuracy"]
    assert (low + high) / 2 == pytest.approx(0.85)
    assert (high - low) / 2 == pytest.approx(12.706 * 0.05, rel=1e-3)  # Student's t, one degree of freedom
    assert "epsilon" not in intervals_of([one, one])  # infinite without noise


def test_strengths_of_methods_are_settings_and_one_that_a_policy_refuses_is_listed(plan: Path, tmp_path: Path) -> None:
    settings = strong_variants(plan, "additive,central", overrides=["method.min_bin=5"])
    assert [one.protection for one in settings] == ["masks", "epsilon", "epsilon", "none"]
    result = compare([settings[0], settings[3]], out=tmp_path / "out", options=Options(keep_going=True))
    assert [line["set"] for line in result["settings"]] == [{"method": "additive", "protection": "masks"}]
    (left,) = result["left_out"]
    assert left["what"].startswith("method = central")
    assert "raw" in left["why"]
    with pytest.raises(ConfigError, match="no setting could be run"):
        compare(settings[3:], out=tmp_path / "none", options=Options(keep_going=True))
    with pytest.raises(ConfigError, match="no strengths are known"):
        strong_variants(plan, "additve")


def test_strengths_are_those_that_methods_name(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = Strength("two rounds", "none", ("train.rounds=2",))
    known = {
        "fedavg": replace(find_method("fedavg"), strengths=(named,)),
        "silo": replace(find_method("silo"), strengths=()),
    }
    monkeypatch.setattr(strengths, "methods", lambda: known)
    (only,) = strong_variants(plan, "all")
    assert (only.plan.method, only.plan.train.rounds, only.protection) == ("fedavg", 2, "none")
    with pytest.raises(ConfigError, match="no strengths are known"):
        strong_variants(plan, "silo")


def test_a_strength_of_the_plans_own_method_leaves_out_keys_that_it_does_not_read(plan: Path) -> None:
    plan.write_text(plan.read_text().replace("[train]", "[train]\nl2 = 0.001"))
    clear, _, private = (one.plan for one in strong_variants(plan, "fedavg"))
    assert clear.ignored == ()
    assert private.ignored == ("train.l2",)


def test_runs_side_by_side_are_those_one_after_the_other(plan: Path, tmp_path: Path) -> None:
    settings = variants_of(plan, [Sweep("policy.min_rows", ("20", "100000"))])
    alone = compare(settings[:1], out=tmp_path / "one")
    beside = compare(settings, out=tmp_path / "two", options=Options(jobs=2, keep_going=True))
    assert [one["ledger_head"] for one in beside["runs"]] == [one["ledger_head"] for one in alone["runs"]]
    assert "min_rows 100000" in beside["left_out"][0]["why"].replace(",", "")


def test_thousands_of_runs_need_a_yes(plan: Path, tmp_path: Path) -> None:
    call = ["compare", str(plan), "--sweep", "train.lr=0.1,0.2", "--seeds", "600", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(build(), call)
    assert isinstance(result.exception, ConfigError)
    assert "1,200 runs" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_figures_are_means_and_a_run_without_noise_has_no_epsilon() -> None:
    run = {"metrics": {"accuracy": 0.8, "confusion": [[1]]}, "disclosed": [], "bytes": {"up": 10}, "rounds": 2}
    noisy, plain = {**run, "epsilon": 0.5}, {**run, "epsilon": None}
    raw = {**noisy, "metrics": {"accuracy": 0.6}, "disclosed": [{"kind": "raw", "rows": 30}, {"kind": "dp", "rows": 9}]}
    assert figures_of([noisy, raw]) == {
        "accuracy": pytest.approx(0.7), "epsilon": 0.5, "rows_released": 15, "bytes_readable": 0,
        "bytes_up": 10, "rounds": 2,
    }  # fmt: skip
    assert figures_of([noisy, plain])["epsilon"] == inf


# What choosing costs


def claim(*events: Event, delta: float = 1e-5, **changed: object) -> DP:
    made = {"epsilon": epsilon_of(events, delta), "delta": delta, "event": describe(events)}
    return DP(**{**made, **changed})  # type: ignore[arg-type]


def test_choosing_costs_the_composition_of_all_runs_at_the_site_that_pays_most() -> None:
    light, heavy = Event(sigma=20.0, rate=1.0, steps=10), Event(sigma=8.0, rate=0.1, steps=100)
    runs = [{"a": [claim(light)], "b": [claim(heavy)]} for _ in range(3)]
    cost = cost_of_choice(runs)
    assert cost is not None
    both = [epsilon_of([event] * 3, 3e-5) for event in (light, heavy)]
    assert cost.epsilon == pytest.approx(max(both))
    assert cost.delta == pytest.approx(3e-5)
    one = max(claim(light).epsilon, claim(heavy).epsilon)
    assert one < cost.epsilon < 3 * one, "composing costs more than one run and less than the sum"


def test_claims_that_cannot_be_composed_add_up() -> None:
    event = Event(sigma=20.0, rate=1.0, steps=10)
    rows, sites = claim(event), claim(event, unit="site")
    cost = cost_of_choice([{"a": [rows]}, {"a": [sites]}])
    assert cost is not None
    assert cost.epsilon == pytest.approx(rows.epsilon + sites.epsilon)
    assert cost.unit == "row or site"
    nothing_described = cost_of_choice([{"a": [claim(event, event="")]}] * 2)
    assert nothing_described is not None
    assert nothing_described.epsilon == pytest.approx(2 * rows.epsilon)


def test_nothing_is_paid_without_noise() -> None:
    assert cost_of_choice([{}, {}]) is None


# Rows of low risk


def rehearsed(plan: Path, seed: int = 0) -> tuple[Population, Population]:
    made = variants_of(plan, [])[0].plan
    whole = populate(made, Streams.seeded(seed))
    return whole, low_risk_only(whole, Streams.seeded(seed))


@pytest.mark.parametrize("seed", range(4))
def test_a_rehearsal_sees_rows_of_low_risk_alone_each_at_its_site_once(plan: Path, seed: int) -> None:
    whole, small = rehearsed(plan, seed)
    assert whole.low is not None
    assert small.low is not None
    own = [whole.frame[start : start + low] for start, low in zip(whole.starts[:-1], whole.low, strict=True)]
    low = {row: site for site, part in enumerate(own) for row in part.select("x", "z").rows()}
    trained = small.frame.select("x", "z").rows()
    measured = small.test.select("x", "z").rows()
    assert sorted(trained + measured) == sorted(low), "every row of low risk, and no other, exactly once"
    assert len(measured) == round(HELD_OUT * len(low))
    for site, (start, end) in enumerate(zip(small.starts[:-1], small.starts[1:], strict=True)):
        assert {low[row] for row in trained[start:end]} == {site}
        share = whole.low[site] / (whole.starts[site + 1] - whole.starts[site])
        assert small.low[site] == round((end - start) * share), "the same share plays the rows of low risk"


def test_a_rehearsal_keeps_the_rows_of_a_person_together(plan: Path) -> None:
    raw = variants_of(plan, [])[0].plan.to_mapping()
    named = load_plan({**raw, "data": {**raw["data"], "identifiers": ["who"]}}, complete=True)
    visits = table().with_columns(pl.Series("who", np.arange(table().height) // 5))
    whole = populate(named, Streams.seeded(1), tables={"": visits})
    small = low_risk_only(whole, Streams.seeded(1))
    assert small.low is not None
    assert small.low.all()
    assert not set(small.frame["who"]) & set(small.test["who"])
    for start, end, low in zip(small.starts[:-1], small.starts[1:], small.low, strict=True):
        who = small.frame["who"][int(start) : int(end)]
        assert not set(who[: int(low)]) & set(who[int(low) :])


def test_a_rehearsal_needs_rows_of_low_risk(plan: Path) -> None:
    raw = variants_of(plan, [])[0].plan.to_mapping()
    raw["sites"]["low_risk"] = None
    without = load_plan({**raw, "sites": {k: v for k, v in raw["sites"].items() if v is not None}}, complete=True)
    whole = populate(without, Streams.seeded(0))
    with pytest.raises(ConfigError, match="no row that its risk is low"):
        low_risk_only(whole, Streams.seeded(0))
    bare = populate(variants_of(plan, [])[0].plan, Streams.seeded(0), tables={"": table(8)})
    assert bare.low is not None
    with pytest.raises(DataError, match="cannot be tried out on"):
        low_risk_only(_with_low(bare, 1), Streams.seeded(0))


def _with_low(whole: Population, total: int) -> Population:
    assert whole.low is not None
    low = np.zeros_like(whole.low)
    low[0] = total
    return replace(whole, low=low)


# All of it


def test_a_comparison_runs_every_setting_and_names_the_cheapest(plan: Path, tmp_path: Path) -> None:
    settings = variants_of(plan, [Sweep("train.rounds", ("1", "4"))])
    result = compare(settings, out=tmp_path / "out", choose="accuracy>=0", options=Options(seeds=2))
    assert len(result["runs"]) == 4
    assert [run["seed"] for run in result["runs"]] == [0, 1, 0, 1]
    assert result["folders"][2] == "run-3_rounds=4_seed=0"
    assert [line["runs"] for line in result["settings"]] == [[0, 1], [2, 3]]
    assert result["chosen"] == 0, "one round sends a quarter of the bytes"
    assert set(result["pareto"]) >= {0, 1}
    assert result["tuning"] is None
    assert json.loads((tmp_path / "out" / "compare.json").read_bytes()) == result
    with pytest.raises(ConfigError, match="exists"):
        compare(settings, out=tmp_path / "out", options=Options(seeds=2))
    again = compare(settings[:1], out=tmp_path / "out", options=Options(force=True))
    assert [folder.name for folder in sorted((tmp_path / "out").glob("run-*"))] == again["folders"]


def test_an_interrupted_comparison_goes_on(plan: Path, tmp_path: Path) -> None:
    settings = variants_of(plan, [Sweep("train.lr", ("0.1", "0.5"))])
    compare(settings[:1], out=tmp_path / "out")
    finished = tmp_path / "out" / "run-1_lr=0.1" / "run.json"
    first = finished.stat().st_mtime_ns
    result = compare(settings, out=tmp_path / "out", options=Options(resume=True))
    assert finished.stat().st_mtime_ns == first, "a finished run is not made again"
    assert len(result["runs"]) == 2
    whole = compare(settings, out=tmp_path / "whole")
    assert [run["metrics"] for run in whole["runs"]] == [run["metrics"] for run in result["runs"]]


def test_a_comparison_on_other_rows_does_not_go_on_with_finished_runs(plan: Path, tmp_path: Path) -> None:
    settings = variants_of(plan, [])
    whole = compare(settings, out=tmp_path / "out")
    small = compare(settings, out=tmp_path / "out", options=Options(rows="low-risk", resume=True))
    assert sum(small["runs"][0]["site_rows"].values()) < sum(whole["runs"][0]["site_rows"].values()) / 2


@pytest.mark.parametrize(("change", "choose"), [("", "acuracy>=0.5"), ("data.test=0", "epsilon<=1")])
def test_what_cannot_be_judged_is_said_after_the_first_run(
    plan: Path, tmp_path: Path, change: str, choose: str
) -> None:
    settings = variants_of(plan, [Sweep("train.lr", ("0.1", "0.5"))], overrides=[change] if change else [])
    with pytest.raises(ConfigError):
        compare(settings, out=tmp_path / "out", choose=choose)
    assert len(list((tmp_path / "out").glob("run-*"))) == 1


@pytest.mark.parametrize("rows", ["all", "low-risk"])
def test_looking_at_private_runs_is_paid_for(plan: Path, tmp_path: Path, rows: str) -> None:
    plan.write_text(plan.read_text() + DP_SECTION)
    words = ["compare", str(plan), "--sweep", "train.lr=0.1,0.5,1.0", "--rows", rows, "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(build(), [*words, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    cost = found["tuning"]
    assert cost["rows"] == rows
    assert cost["runs"] == 3
    single = max(run["epsilon"] for run in found["runs"])
    assert single <= 1.0
    assert single < cost["epsilon"] < 3 * single
    assert cost["delta"] == pytest.approx(3e-5)
    claims = spent_by_site(tmp_path / "out" / found["folders"][0])
    assert len(claims) == 3
    whole, small = rehearsed(plan)
    used = sum(found["runs"][0]["site_rows"].values())
    assert used == (whole.frame.height if rows == "all" else small.frame.height)


def test_looking_at_runs_with_noise_at_the_hub_is_paid_for(plan: Path, tmp_path: Path) -> None:
    """Such noise stands in no site's ledger: each run's epsilon was shown, and no price of all of them."""
    noise = '[method.dp]\nmechanism = "hub"\nunit = "site"\nepsilon = 2.0\ndelta = 1e-3\n'
    plan.write_text(plan.read_text() + noise)
    found = compare(variants_of(plan, [Sweep("train.lr", ("0.1", "0.5"))]), out=tmp_path / "out")
    single = sum(run["epsilon"] for run in found["runs"])
    assert single == pytest.approx(4.0, rel=0.01)
    assert found["tuning"]["epsilon"] == pytest.approx(single)
    assert found["tuning"]["delta"] == pytest.approx(2e-3)
    assert found["tuning"]["unit"] == "site"


def test_the_command_tells_the_choice_and_its_price(plan: Path, tmp_path: Path) -> None:
    plan.write_text(plan.read_text() + DP_SECTION)
    arguments = [
        "compare",
        str(plan),
        "--sweep",
        "train.lr=0.1,0.5",
        "--choose",
        "accuracy>=2",
        "--out",
        str(tmp_path / "o"),
    ]
    result = CliRunner().invoke(build(), arguments)
    assert result.exit_code == 0, result.output
    assert "none of the settings" in result.output
    assert "Choosing among these 2 runs costs epsilon" in result.output


def test_the_command_compares_strengths_and_says_what_was_left_out(plan: Path, tmp_path: Path) -> None:
    call = ["compare", str(plan), "--out", str(tmp_path / "out"), "--choose", "accuracy>=0"]
    nothing = CliRunner().invoke(build(), call)
    assert isinstance(nothing.exception, ConfigError)
    assert "--strengths all" in nothing.exception.hint
    both = CliRunner().invoke(build(), [*call, "--sweep", "train.lr=0.1,0.2", "--strengths", "central"])
    assert isinstance(both.exception, ConfigError)
    made = CliRunner().invoke(
        build(), [*call, "--strengths", "central,silo", "--set", "policy.raw=true", "--set", "data.quasi=['x']"]
    )
    assert made.exit_code == 0, made.exception
    said = " ".join(made.stdout.split())
    for expected in ("rows as they are", "bytes readable", "accuracy", "Cheapest with accuracy>=0"):
        assert expected in said
    result = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert len(result["settings"]) + len(result["left_out"]) == 4
    if result["tuning"] is None:
        assert "report its score on rows that no run has seen" in said


def test_a_dask_cluster_makes_the_same_runs_as_one_process(plan: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    settings = variants_of(plan, [Sweep.parse("train.lr=0.05,0.1")])
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, protocol="tcp"
    ) as cluster:
        spread = compare(settings, out=tmp_path / "a", options=Options(seeds=2, dask=cluster.scheduler_address))
        lost = compare(
            [*settings, replace(settings[0], plan=replace(settings[0].plan, policy=Policy(min_rows=10**6)))],
            out=tmp_path / "c",
            options=Options(dask=cluster.scheduler_address, keep_going=True),
        )
    alone = compare(settings, out=tmp_path / "b", options=Options(seeds=2))
    assert [run["ledger_head"] for run in spread["runs"]] == [run["ledger_head"] for run in alone["runs"]]
    assert spread["folders"] == alone["folders"]
    assert len(lost["left_out"]) == 1  # errors come back from workers as what they are


def test_a_scheduler_that_is_not_there_is_an_error_that_says_what_to_start(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = variants_of(plan, [Sweep.parse("train.lr=0.05,0.1")])
    with pytest.raises(ConfigError, match="workers of a Dask cluster are its own"):
        compare(settings, out=tmp_path / "a", options=Options(dask="tcp://127.0.0.1:9", jobs=2))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError) as caught:
        compare(settings, out=tmp_path / "a", options=Options(dask="tcp://127.0.0.1:9"))
    assert "kohort[dask]" in str(caught.value.hint)
