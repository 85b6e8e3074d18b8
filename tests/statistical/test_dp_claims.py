"""A headline epsilon is what an accountant that shares nothing with kohort's computes for the same releases."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import polars as pl
import pytest
from dp_accounting import pld

from kohort.errors import ConfigError, KohortError, RefusedError
from kohort.privacy.dp.accounting import Event, PrivateEvent, calibrate, epsilon_of
from kohort.privacy.dp.budget import Budget
from kohort.privacy.guarantee import DP
from kohort.privacy.ledger.verify import verify_ledger
from kohort.report.words import budget as headline
from kohort.runs.config import load_plan, only_read
from kohort.runs.run import Outcome, run

EPSILON, DELTA = 0.5, 1e-5
PEERS: dict[str, Any] = {"kind": "peers", "rows": "low", "rounds": 1, "batch": 0}
SERVER: dict[str, Any] = {"kind": "server", "rounds": 2, "batch": 0}


def budget(epsilon: float = EPSILON, **more: Any) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": 0.0 if more.get("mechanism") in {"output", "objective"} else DELTA, **more}


def table(rows: int = 1500) -> pl.DataFrame:
    random = np.random.default_rng(7)
    x = random.uniform(-1, 1, rows)
    return pl.DataFrame(
        {
            "visit": np.arange(rows),
            "patient": np.arange(rows) // 2,
            "x": x,
            "y": np.where(x + random.normal(size=rows) > 0, "yes", "no"),
        }
    )


def carry_out(method: dict[str, Any], *, out: Path | None = None, **sections: Any) -> Outcome:
    """Run a plan over three sites of 500 rows."""
    drop = [] if "visit" in sections.get("data", {}).get("identifiers", ()) else ["visit"]
    raw = {
        "data": {
            "table": "memory", "target": "y", "features": ["x"], "identifiers": ["patient"], "drop": drop, "test": 0.0,
            "bounds": {"x": [-1, 1]}, "categories": {"y": ["no", "yes"]}, **sections.pop("data", {}),
        },
        "sites": {"count": 3, "split": "iid", "low_risk": 0.4, "clusters": 1, **sections.pop("sites", {})},
        "model": {"kind": "logistic"},
        "train": {"optimizer": "sgd", "lr": 0.5, "rounds": 2, "batch": 0, "l2": 0.01, **sections.pop("train", {})},
        "method": method,
        "policy": {"min_rows": 1, **sections},
    }  # fmt: skip
    return run(load_plan(only_read(raw)), seed=5, tables={"all": table()}, out=out)


def hybrid(*phases: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "hybrid", "phases": list(phases), **more}


def independent(gaussians: list[tuple[float, int]], delta: float, *, pure: tuple[float, ...] = ()) -> float:
    """Epsilon of (noise multiplier, releases) and of pure releases, by dp-accounting alone."""
    total = pld.privacy_loss_distribution.identity(value_discretization_interval=1e-4)
    for sigma, count in gaussians:
        one = pld.privacy_loss_distribution.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4)
        total = total.compose(one.self_compose(count))
    for epsilon in pure:
        parameters = pld.common.DifferentialPrivacyParameters(epsilon, 0.0)
        total = total.compose(pld.privacy_loss_distribution.from_privacy_parameters(parameters, 1e-4))
    return float(total.get_epsilon_for_delta(delta))


def test_dp_noise_at_the_hub_needs_one_common_start() -> None:
    """After peers each cluster starts elsewhere: contributions of 6.4 to 7.5 were added under a clip of 0.1."""
    noisy = {**SERVER, "dp": {"epsilon": 5.0, "delta": 1e-3, "mechanism": "hub", "unit": "site", "clip": 0.1}}
    with pytest.raises(ConfigError, match="phase 2: noise at the hub"):
        carry_out(hybrid(PEERS, noisy))
    plain = {**SERVER, "rows": "low"}
    found = carry_out(hybrid(PEERS, plain, {**noisy, "rows": "high"}))
    assert found.epsilon == pytest.approx(5.0, rel=0.01)
    said = "for each site, rows of high risk, against everybody but the hub; rows of low risk: no guarantee"
    assert said in headline(found.to_mapping())


HUB: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-3, "mechanism": "hub", "unit": "site", "clip": 0.1}


def test_dp_noise_at_the_hub_composes_over_phases() -> None:
    """Of two phases with epsilon 2, the last one's was printed alone: 2.0 for what is 2.8 at the sum of both deltas."""
    phase = {**SERVER, "dp": HUB}
    found = carry_out(hybrid(phase, {**phase, "rounds": 3}))
    sigmas = [calibrate(epsilon=2.0, delta=1e-3, rate=1.0, steps=steps) for steps in (2, 3)]
    true = independent([(sigmas[0], 2), (sigmas[1], 3)], 2e-3)
    assert true > 2.5
    assert found.delta == pytest.approx(2e-3)
    assert found.epsilon == pytest.approx(true, rel=0.005)
    assert found.dp is not None
    assert found.dp["scope"] == "all sites, against everybody but the hub"


@pytest.mark.parametrize(
    "other", [SERVER, {**SERVER, "dp": budget(1.0)}, {**SERVER, "dp": budget(1.0, mechanism="after", unit="site")}]
)
def test_dp_noise_at_the_hub_hides_no_site_that_another_phase_shows(other: dict[str, Any]) -> None:
    """A phase without it tells everybody the mean of what sites sent; "all sites" was printed."""
    for rows, there in (("all", "all"), ("high", "high"), ("all", "high"), ("high", "all")):
        noisy = {**SERVER, "rows": rows, "dp": HUB}
        if (rows, there) == ("all", "high"):  # rows of low risk are in one phase alone
            said = carry_out(hybrid({**other, "rows": there}, noisy)).dp
            assert said is not None
            assert "no guarantee" in said["scope"]
            continue
        for phases in ([{**other, "rows": there}, noisy], [noisy, {**other, "rows": there}]):
            with pytest.raises(ConfigError, match="another phase trains on the same rows without it"):
                carry_out(hybrid(*phases))


def test_dp_noise_at_the_hub_hides_no_rows_that_judge_without_it() -> None:
    noisy = {**SERVER, "rows": "low", "dp": HUB}
    with pytest.raises(ConfigError, match="another phase trains on the same rows without it"):
        carry_out(hybrid(noisy, {**noisy, "rounds": 1}, judge={"rows": "low"}))


def test_dp_rows_that_judge_with_noise_hide_no_site() -> None:
    """A count of right predictions changes by one with a row, and by as many as it has with a site: 2.2 was printed."""
    noisy = {**SERVER, "rows": "high", "dp": budget(2.0, mechanism="after", unit="site")}
    paid = {"rows": "high", "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(ConfigError, match="noise that hides a row, and the phases hide whole sites"):
        carry_out(hybrid(PEERS, noisy, judge=paid))
    assert carry_out(hybrid(PEERS, noisy, judge={"rows": "low"})).unit == "site"


@pytest.mark.parametrize("method", ["fedavg", "additive", "hybrid"])
def test_dp_no_budget_covers_counts_that_balance_the_classes(method: str) -> None:
    """Every row is weighed by the counts of all, without noise: epsilon 0.5 was printed."""
    own = hybrid({**SERVER, "dp": budget()}) if method == "hybrid" else {"name": method, "dp": budget()}
    with pytest.raises(ConfigError, match="the budget does not cover that"):
        carry_out(own, train={"class_weights": "balanced"})
    if method == "fedavg":
        carry_out(own, train={"class_weights": {"yes": 2.0}})


def test_dp_a_budget_covers_no_control_variates() -> None:
    with pytest.raises(ConfigError, match="a second release of every site"):
        carry_out({"name": "fedavg", "dp": budget()}, train={"correction": "scaffold"})


def test_dp_gaussian_noise_beside_output_perturbation_is_judged_where_a_row_is_replaced() -> None:
    """The ledger said 0.987 for what is 1.53 where a row is replaced."""
    sigma = calibrate(epsilon=EPSILON, delta=DELTA, rate=1.0, steps=1)
    events = [Event(sigma=sigma), PrivateEvent(epsilon=EPSILON, relation="replace-one")]
    true = independent([(sigma / 2, 1)], DELTA, pure=(EPSILON,))
    assert true == pytest.approx(1.53, abs=0.01)
    assert epsilon_of(events, DELTA, relation="replace-one") == pytest.approx(true, rel=0.005)
    with pytest.raises(ConfigError, match="replaced"):
        epsilon_of(events, DELTA)


@pytest.mark.parametrize("pure", ["output", "objective"])
def test_dp_a_plan_of_both_keeps_its_epsilon_where_a_row_is_replaced(pure: str, tmp_path: Path) -> None:
    outcome = carry_out(
        hybrid(
            {**SERVER, "rows": "all", "dp": budget(mechanism="after", clip=0.1)},
            {**SERVER, "rows": "all", "rounds": 1, "dp": budget(mechanism=pure)},
        ),
        out=tmp_path / "run",
    )
    claim = reserved(tmp_path / "run")
    assert claim.relation == "replace-one"
    gaussian = next(event for event in events_of(claim) if isinstance(event, Event))
    true = independent([(gaussian.sigma / 2, gaussian.steps)], DELTA, pure=(EPSILON,))
    assert outcome.epsilon == pytest.approx(true, rel=0.005)
    assert true <= 2 * EPSILON


def test_dp_sampled_batches_beside_output_perturbation_are_refused() -> None:
    sampled = {**SERVER, "rows": "all", "batch": 32, "dp": budget()}
    with pytest.raises(ConfigError, match=r"phases 2 and 1 use different neighbouring relations \(replace, remove\)"):
        carry_out(hybrid(sampled, {**SERVER, "rows": "all", "rounds": 1, "dp": budget(mechanism="output")}))


def test_dp_a_person_at_three_sites_is_worth_more_than_the_headline_unless_it_is_declared(tmp_path: Path) -> None:
    """Three independent releases of epsilon 0.5 are not 0.5."""
    method = {"name": "fedavg", "dp": budget(unit="person")}
    alone = carry_out(method, out=tmp_path / "alone")
    sigma, steps = gaussian_of(tmp_path / "alone")
    assert alone.epsilon == pytest.approx(independent([(sigma, steps)], DELTA), rel=0.005)
    assert independent([(sigma, 3 * steps)], 3 * DELTA) == pytest.approx(0.84, abs=0.01)
    assert "for each person at one site" in headline(alone.to_mapping())
    carry_out({"name": "fedavg", "dp": budget(unit="person", overlap=3)}, out=tmp_path / "three")
    sigma, steps = gaussian_of(tmp_path / "three")
    claim = reserved(tmp_path / "three")
    assert claim.epsilon == pytest.approx(independent([(sigma, steps)], DELTA), rel=0.005)
    assert steps == 3 * 2  # two rounds at each of three sites
    assert claim.epsilon <= EPSILON
    assert "for each person at up to 3 sites" in claim.shown


def test_dp_a_person_adds_to_one_total_once_per_site() -> None:
    """In a sum, three rows of one person move the total three times as far, not sqrt(3) times."""
    from kohort.rounds.plan_account import plan_account

    plain, three = (
        plan_account(approved({"name": "fedavg", "dp": budget(unit="person", **more), "secure": {"sum": "masks"}}))
        for more in ({}, {"overlap": 3})
    )
    assert three.sigmas[0] == pytest.approx(3 * plain.sigmas[0], rel=1e-6)
    assert three.events == plain.events


def test_dp_sampled_batches_of_a_person_at_several_sites_share_the_budget() -> None:
    """Sites differ in rate and noise: each takes its part of epsilon and delta, and parts add up."""
    from kohort.rounds.plan_account import plan_account

    plan = approved({"name": "fedavg", "dp": budget(unit="person", overlap=2)}, batch=50)
    own = plan_account(plan, counts=lambda phase: 250).events[0]
    assert isinstance(own, Event)
    event = dp_accounting.PoissonSampledDpEvent(own.rate, dp_accounting.GaussianDpEvent(own.sigma))
    account = pld.PLDAccountant()
    account.compose(event, own.steps)
    assert account.get_epsilon(DELTA / 2) == pytest.approx(EPSILON / 2, rel=0.01)


def test_dp_overlap_is_a_persons_and_needs_declared_domains() -> None:
    with pytest.raises(ConfigError, match="overlap"):
        carry_out({"name": "fedavg", "dp": budget(overlap=2)})
    with pytest.raises(ConfigError, match=r"dp\.overlap"):
        carry_out({"name": "fedavg", "dp": budget(unit="person", overlap=2)}, data={"bounds": {}})


def test_dp_of_several_identifiers_the_declared_one_names_the_person() -> None:
    method = {"name": "fedavg", "dp": budget(unit="person")}
    with pytest.raises(ConfigError, match="person"):
        carry_out(method, data={"identifiers": ["visit", "patient"]})
    rows = {}
    for person in ("visit", "patient"):
        outcome = carry_out(method, data={"identifiers": ["visit", "patient"], "person": person})
        rows[person] = next(item.rows for item in outcome.disclosed if item.what == "train.phase")
    assert rows["patient"] < 0.9 * rows["visit"]  # two visits of a patient at one site count once


def test_dp_rows_without_noise_are_named_in_the_headline() -> None:
    outcome = carry_out(hybrid(PEERS, {**SERVER, "rows": "high", "dp": budget()}))
    assert "rows of low risk: no guarantee" in headline(outcome.to_mapping())


def test_dp_rows_that_judge_without_noise_have_no_guarantee() -> None:
    """Both phases add noise; the rows of low risk are then counted without any."""
    low, high = ({**SERVER, "rows": part, "dp": budget()} for part in ("low", "high"))
    outcome = carry_out(hybrid(low, high, judge={"rows": "low"}))
    assert "rows of high risk; rows of low risk: no guarantee" in headline(outcome.to_mapping())


def test_dp_units_do_not_mix() -> None:
    with pytest.raises(ConfigError, match="different units"):
        carry_out(hybrid({**SERVER, "dp": budget(unit="person")}, {**SERVER, "dp": budget()}))


def test_dp_labels_are_not_counted_on_rows_that_a_budget_protects() -> None:
    with pytest.raises(ConfigError, match="clusters by labels"):
        carry_out(hybrid({**PEERS, "dp": budget()}, SERVER, clusters="labels:2"))


def test_dp_phases_compose_in_the_policy_as_they_do_in_the_ledger(tmp_path: Path) -> None:
    """Two phases of 0.5 are 0.73, not 1.0: a cap between them admits the plan, and the ledger verifies under it."""
    phases = [{**SERVER, "rows": "all", "dp": budget()} for _ in range(2)]
    sigma = calibrate(epsilon=EPSILON, delta=DELTA, rate=1.0, steps=2)
    true = independent([(sigma, 4)], 2 * DELTA)
    with pytest.raises(RefusedError, match="refuse the plan"):
        carry_out(hybrid(*phases), epsilon=true * 0.97)
    outcome = carry_out(hybrid(*phases), epsilon=true * 1.01, out=tmp_path / "run")
    assert outcome.epsilon == pytest.approx(true, rel=0.005)
    assert verify_ledger(tmp_path / "run").epsilon == pytest.approx(true, rel=0.005)


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_dp_runs_and_recipients_compose(relation: str) -> None:
    sigma = calibrate(epsilon=EPSILON, delta=DELTA, rate=1.0, steps=1)
    account = Budget()
    for number in range(4):
        claim = DP(
            epsilon=EPSILON, delta=DELTA, relation=relation, event=f"1 x gaussian(sigma={sigma!r}, rate=1)",
            account=f"run-{number}",
        )  # fmt: skip
        account.charge(claim, to=f"site-{number % 2}")
    true = independent([(sigma / (2 if relation == "replace-one" else 1), 4)], 4 * DELTA)
    assert account.epsilon == pytest.approx(min(true, 4 * EPSILON), rel=0.005)
    assert account.delta == pytest.approx(4 * DELTA)


def test_dp_claims_of_both_relations_are_added_where_a_unit_is_replaced() -> None:
    account = Budget()
    account.charge(DP(epsilon=1.0, delta=1e-6, event="50 x gaussian(sigma=5, rate=0.1)", account="a"), to="hub")
    pure = DP(epsilon=0.3, delta=0.0, relation="replace-one", event="private(epsilon=0.3, delta=0, replace-one)")
    account.charge(pure, to="hub")
    assert account.epsilon == pytest.approx(2 * 1.0 + 0.3)  # group privacy of two, and the pure one
    assert account.delta == pytest.approx((1 + math.e) * 1e-6)


@pytest.mark.parametrize(
    ("method", "more", "code", "said"),
    [
        ({"name": "fedavg", "dp": budget(-1.0)}, {}, 2, "epsilon"),
        ({"name": "fedavg", "dp": budget(0.0)}, {}, 2, "epsilon"),
        (hybrid(SERVER, {**SERVER, "dp": budget(delta=0.01)}), {"delta": 0.5}, 4, "phase 2: delta 0.01 is above"),
        ({"name": "fedavg", "dp": budget(unit="person")}, {"data": {"identifiers": [], "drop": ["visit", "patient"]}},
         2, "tells persons apart"),
        ({"name": "fedavg", "dp": budget()}, {"train": {"batch": 900}}, 4, "batch of 900 rows"),
        (hybrid({**SERVER, "dp": budget()}, {**SERVER, "dp": budget()}), {"epsilon": 0.6}, 4, "policy's 0.6"),
    ],
    ids=["negative", "zero", "delta", "person", "batch", "phases"],
)  # fmt: skip
def test_dp_budgets_that_cannot_be_kept_are_refused(
    method: dict[str, Any], more: dict[str, Any], code: int, said: str
) -> None:
    with pytest.raises(KohortError, match=said) as caught:
        carry_out(method, **more)
    assert caught.value.exit_code == code


def approved(method: dict[str, Any], *, batch: int = 0) -> Any:
    from kohort.runs.agreed import approved_plan_for
    from kohort.tables.schema import Schema

    schema = Schema.of(
        target="y", features=("x",), identifiers=("patient",), bounds={"x": (-1, 1)}, categories={"y": ["no", "yes"]}
    )
    raw = {
        "data": {"table": "memory", "target": "y"},
        "train": {"optimizer": "sgd", "rounds": 2, "batch": batch},
        "method": method,
    }
    return approved_plan_for(load_plan(raw), schema=schema, run="r", sites=("a", "b", "c"))


def reserved(folder: Path) -> DP:
    import json

    from kohort.privacy.guarantee import parse_guarantee

    lines = map(json.loads, (folder / "ledger" / "ledger.jsonl").read_text().splitlines())
    claim = parse_guarantee(next(line["guarantee"] for line in lines if line.get("what") == "dp.reserve"))
    assert isinstance(claim, DP)
    return claim


def events_of(claim: DP) -> tuple[Any, ...]:
    from kohort.privacy.dp.events import parse_events

    return parse_events(claim.event)


def gaussian_of(folder: Path) -> tuple[float, int]:
    (event,) = events_of(reserved(folder))
    return event.sigma, event.steps


def test_dp_the_headline_says_whom_it_relies_on() -> None:
    """With sums in clear the hub sees each site's share: 0.5 was printed as if sites had to collude for more."""
    said = {}
    for scheme in ("none", "masks"):
        found = carry_out({"name": "fedavg", "dp": budget(), "secure": {"sum": scheme, "colluders": 0}})
        assert found.dp is not None
        assert found.dp["epsilon_all"] > 0.7
        said[scheme] = headline(found.to_mapping())
    assert "; relies on the hub, which sees every site's own share, epsilon " in said["none"]
    assert "collude" not in said["none"]
    assert ", if at most 0 of 3 sites collude with the hub, 3 answer; epsilon " in said["masks"]


def test_dp_what_phases_ask_for_too_much_names_phase_and_key() -> None:
    two = [{**SERVER, "rows": "all", "dp": budget()}] * 2
    with pytest.raises(RefusedError, match=r"policy\.epsilon.*phase 1 epsilon 0\.5, .*phase 2 epsilon 0\.5"):
        carry_out(hybrid(*two), epsilon=0.6)
    with pytest.raises(RefusedError, match=r"policy\.delta.*phase 1 .*phase 2 "):
        carry_out(hybrid(*two), delta=1.5e-5)
    with pytest.raises(RefusedError, match=r"phase 2: a batch of 5000 rows is more than .*train\.batch"):
        carry_out(hybrid(two[0], {**two[1], "batch": 5000}))
    with pytest.raises(RefusedError, match=r"phase 2: delta 0\.009 is above 1/\(10 n\)"):
        carry_out(hybrid(two[0], {**two[1], "dp": {**budget(), "delta": 0.009}}), delta=0.1)
