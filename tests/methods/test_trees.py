"""Boosted forests over sums: one model wherever the rows are, drop-outs, policies, and what is said about cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.api import Federation
from kohort.errors import ConfigError, DataError, IntegrityError, KohortError, RefusedError, SiteError
from kohort.methods.trees.method import METHOD, NOT_CELL_SAFE, ForestLearner
from kohort.models.rows import encode_rows
from kohort.models.trees.growth import Growth
from kohort.models.trees.level import LevelSplits
from kohort.privacy.guarantee import Cells
from kohort.privacy.policy import Policy
from kohort.rng import Streams
from kohort.rounds.totals.learner import RowCache, Setting, learn_pooled
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan
from kohort.runs.explain import explain_plan
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import populate
from kohort.tables.encoder import Encoder, learn_domain

SMALL = {"steps": 2, "depth": 3, "trees": 3, "bins": 16, "min_leaf": 5}


def _table(rows: int = 1200) -> pl.DataFrame:
    generator = np.random.default_rng(2)
    age, ward = generator.uniform(0, 90, rows), generator.choice(["north", "south", "west"], rows)
    chance = 0.1 + 0.6 * ((age > 50) & (ward != "north"))
    dose = pl.Series(np.where(generator.random(rows) < 0.1, np.nan, generator.normal(0, 1, rows))).fill_nan(None)
    ill = np.where(generator.random(rows) < chance, "ill", "well")
    return pl.DataFrame({"age": age, "dose": dose, "ward": ward, "outcome": ill})


TABLE = _table()
DECLARED = {
    "bounds": {"age": [0, 100], "dose": [-5, 5]},
    "categories": {"ward": ["north", "south", "west"], "outcome": ["ill", "well"]},
    "nullable": ["dose"],
    "missing": "category",
}


def _plan(count: int, scheme: str = "masks", *, method: Any = None, **sections: Any) -> Plan:
    made: dict[str, Any] = {
        "data": {"table": "in-memory table", "target": "outcome", "features": "rest", "test": 0.25, **DECLARED},
        "sites": {"count": count},
        "method": {"name": "trees", "secure": {"sum": scheme}, **SMALL, **(method or {})},
        "policy": {"min_rows": 1},
    }
    for name, keys in sections.items():
        made[name] = {**made.get(name, {}), **keys}
    return load_plan(made)


def _run(plan: Plan, **options: Any) -> Outcome:
    return run(plan, seed=3, tables={"in-memory table": TABLE}, **options)


def _bytes(outcome: Outcome) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in outcome.model.save().arrays.items()}


def test_pooled_rows_three_sites_and_ten_masked_sites_give_the_same_bytes() -> None:
    pooled = _run(_plan(1, "none"))
    assert pooled.accuracy > 0.75
    for sites, scheme in ((3, "masks"), (10, "masks"), (10, "none")):
        assert _bytes(_run(_plan(sites, scheme))) == _bytes(pooled), (sites, scheme)


@pytest.mark.parametrize("scheme", ["masks", "bfv"])
def test_two_sites_may_collude(scheme: str) -> None:
    """What sites say of a sealed total claims as much as the total: over so many sites that two may be the hub's."""
    outcome = _run(_plan(6, method={"secure": {"sum": scheme, "colluders": 2}}))
    assert _bytes(outcome) == _bytes(_run(_plan(1, "none")))


def test_the_pooled_twin_is_the_same_learner() -> None:
    plan = _plan(4)
    outcome = _run(plan)
    streams = Streams.choose(3, secure=False)
    population = populate(plan, streams, tables={"in-memory table": TABLE})
    encoder = outcome.model.encoder
    approved = approved_plan_for(plan, schema=population.schema, run="any", sites=population.names)
    seed = Streams(streams.bytes("hub"), streams.seed).bytes("start", length=16)
    setting = Setting(approved=approved, encoder=encoder, seed=seed, members=4)
    twin = learn_pooled(ForestLearner.start, setting, [encode_rows(encoder, population.frame)], 100)
    model = twin.model
    assert model is not None
    assert {name: array.tobytes() for name, array in model.save().arrays.items()} == _bytes(outcome)


def test_sites_that_missed_rounds_catch_up() -> None:
    outcome = _run(_plan(12, "none", sites={"faults": {"drop": 0.15}, "quorum": 0.3}))
    assert outcome.dropped
    assert outcome.accuracy > 0.7


def test_masked_sites_that_are_lost_end_the_run_with_their_number_and_no_model() -> None:
    with pytest.raises(SiteError, match="6 of 9 sites are in groups of which all shared their secrets") as caught:
        _run(_plan(12, "masks", sites={"faults": {"drop": 0.05}, "quorum": 0.3}))
    assert "Begin a new run" in str(caught.value.hint)


def test_what_is_not_cell_safe_is_said_and_a_policy_can_refuse_it() -> None:
    plan = _plan(3)
    assert NOT_CELL_SAFE in _run(plan).notes
    with pytest.raises(RefusedError, match="min_sum_cell 5"):
        _run(_plan(3, policy={"min_sum_cell": 5}))
    assert Policy(min_sum_cell=5).judge(Cells(least=5), task="any") is None
    assert Policy().tightened(Policy(min_sum_cell=7)).min_sum_cell == 7


def test_fewer_than_three_sites_hide_nothing() -> None:
    with pytest.raises(RefusedError, match="needs three sites"):
        _run(_plan(2))


def test_keys_that_a_forest_does_not_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not read"):
        _plan(3, train={"lr": 0.1})


def test_too_few_rows_are_a_clear_error() -> None:
    with pytest.raises(DataError, match="too few rows over all sites"):
        _run(_plan(3, method={"min_leaf": 600}))


def test_a_class_weight_beyond_the_grid_is_refused() -> None:
    with pytest.raises(KohortError, match="class weight is too large"):
        _run(_plan(3, "none", train={"class_weights": {"ill": 5000.0}}))


def test_too_many_classes_are_refused() -> None:
    names = [f"class {number}" for number in range(101)]
    table = TABLE.with_columns(outcome=pl.Series([names[row % 101] for row in range(TABLE.height)]))
    plan = _plan(3, "none", data={"categories": {**DECLARED["categories"], "outcome": names}})
    with pytest.raises(KohortError, match="at most 100 classes"):
        run(plan, seed=3, tables={"in-memory table": table})


def test_facts_tell_the_steps_and_the_loss_on_held_out_rows() -> None:
    facts = _run(_plan(3)).facts["trees"]
    assert facts["steps"] <= 2
    assert len(facts["holdout_loss"]) >= facts["steps"] + 1
    assert facts["holdout_loss"][-1] < facts["holdout_loss"][0]


def test_the_explanation_of_a_plan_warns_of_small_cells() -> None:
    assert "may hold a single person's numbers" in " ".join(str(explain_plan(_plan(3))).split())


def _opened_cells(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, list[np.ndarray]]:
    """A run, and the rows of every group of cells in all totals of gradients that sites read."""
    seen: list[np.ndarray] = []
    real = Growth.take

    def watch(self: Growth, total: np.ndarray) -> LevelSplits | None:
        if not self.counting:
            seen.append(total.reshape(-1, 3)[:, 2].copy())
        return real(self, total)

    monkeypatch.setattr(Growth, "take", watch)
    return _run(plan), seen


def test_withheld_cells_open_with_enough_rows_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan(3, method={"min_cell": 8}, policy={"min_sum_cell": 8})
    outcome, opened = _opened_cells(plan, monkeypatch)
    assert opened
    counts = np.concatenate(opened)
    assert not ((counts > 0) & (counts < 8)).any()
    _, open_ones = _opened_cells(_plan(3), monkeypatch)
    small = np.concatenate(open_ones)
    assert ((small > 0) & (small < 8)).any(), "the same table has small cells where none is withheld"
    assert outcome.accuracy > 0.75
    assert any("fewer than 8 rows were joined" in note for note in outcome.notes)
    assert NOT_CELL_SAFE not in outcome.notes


def test_withheld_forests_are_those_of_pooled_rows() -> None:
    plan = _plan(3, method={"min_cell": 8, "steps": 1})
    outcome = _run(plan)
    streams = Streams.choose(3, secure=False)
    population = populate(plan, streams, tables={"in-memory table": TABLE})
    encoder = outcome.model.encoder
    approved = approved_plan_for(plan, schema=population.schema, run="any", sites=population.names)
    seed = Streams(streams.bytes("hub"), streams.seed).bytes("start", length=16)
    setting = Setting(approved=approved, encoder=encoder, seed=seed, members=3)
    model = learn_pooled(ForestLearner.start, setting, [encode_rows(encoder, population.frame)], 100).model
    assert model is not None
    assert {name: array.tobytes() for name, array in model.save().arrays.items()} == _bytes(outcome)


@pytest.mark.parametrize("least", [1, 8])
def test_the_hub_is_told_no_count_of_a_cell(least: int) -> None:
    plan = _plan(3, method={"min_cell": least})
    said = " ".join(str(explain_plan(plan)).split())
    assert "sites alone can read the totals" in said
    assert ("may hold a single person's numbers" in said) is (least == 1)
    assert Cells(least=least) in METHOD.claims(plan.config, 100)
    learner = ForestLearner.start(_setting(plan))
    assert learner.sealed
    assert set(learner.tells) >= {"bins.codes", "rows"}
    assert not any("count" in name for name in learner.tells)


def _setting(plan: Plan) -> Setting:
    population = populate(plan, Streams.choose(3, secure=False), tables={"in-memory table": TABLE})
    encoder = Encoder(population.schema, learn_domain(population.frame, population.schema, missing="category"))
    approved = approved_plan_for(plan, schema=population.schema, run="any", sites=population.names)
    return Setting(approved=approved, encoder=encoder, seed=b"sixteen bytes ok", members=3)


def test_what_sites_tell_must_fit() -> None:
    setting = _setting(_plan(3, method={"min_cell": 8}))
    learner = ForestLearner.start(setting)
    rows = encode_rows(setting.encoder, TABLE)
    after = learner.after(learner.contribution(rows, RowCache()), 3)
    told = after.disclosed()
    assert learner.informed(told).length == after.length
    with pytest.raises(IntegrityError, match="do not fit"):
        learner.informed({**told, "bins.cells": told["bins.cells"] + 1})
    counted = after.after(after.contribution(rows, RowCache()), 3)
    layout = counted.disclosed()["layout"]
    assert after.informed(counted.disclosed()).length == counted.length
    with pytest.raises(IntegrityError, match="do not fit"):
        after.informed({**counted.disclosed(), "layout": layout[:-1]})


def test_cells_cannot_be_withheld_from_a_hub_that_sees_each_site() -> None:
    with pytest.raises(ConfigError, match="none can be withheld"):
        _plan(3, "none", method={"min_cell": 5})


@pytest.mark.parametrize(
    ("policy", "kind", "why"),
    [
        ({}, "additive", "at least 10 persons"),
        ({"min_cell": 1, "min_sum_cell": 5}, "additive", "at least 5 persons"),
        ({"min_cell": 1}, "trees", "no minimum cell"),
    ],
)
def test_an_automatic_model_is_additive_where_the_policy_has_a_minimum_cell(
    policy: dict[str, int], kind: str, why: str
) -> None:
    plan = load_plan({"data": {"table": "adult"}, "model": {"kind": "auto"}, "policy": policy})
    assert (plan.method, plan.model.kind) == (kind, kind)
    assert any(why in note for note in plan.notes)
    silo = load_plan({"data": {"table": "adult"}, "model": {"kind": "auto"}, "method": {"name": "silo"}})
    assert silo.model.kind == "additive"
    federation = Federation(TABLE, target="outcome", sites=3, policy=policy)
    assert federation.plan(model="auto").method == kind
    assert load_plan({"data": {"table": "adult"}, "model": {"kind": "trees"}}).method == "trees"


def test_columns_that_are_all_alike_are_a_clear_error() -> None:
    alike = TABLE.with_columns(age=pl.lit(40), dose=pl.lit(1.0), ward=pl.lit("north"))
    with pytest.raises(DataError, match="no column can be split"):
        run(_plan(3), seed=3, tables={"in-memory table": alike})


def test_a_site_with_one_class_takes_part() -> None:
    frames = {f"s{place}": TABLE[place::3] for place in range(3)}
    frames["s0"] = frames["s0"].with_columns(outcome=pl.lit("ill"))
    sections = {
        "data": {"table": "made", "target": "outcome", "features": "rest", "test": 0.25, **DECLARED},
        "sites": {"split": "files"},
        "method": {"name": "trees", **SMALL},
        "policy": {"min_rows": 1},
    }
    assert run(load_plan(sections), seed=3, tables=frames).metrics["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"rate": 0.2}, "method.rate is 0.2"),
        ({"steps": 101}, "method.steps is 101"),
        ({"l2": 0.0}, "method.l2 is 0"),
        ({"l2": 5.5}, "method.l2 is 5.5"),
    ],
)
def test_over_a_secure_sum_steps_are_neither_many_nor_small(own: dict[str, Any], said: str) -> None:
    """From 900 steps at a rate of 0.005 the hub solved for every count of a column."""
    given = {"data": {"table": "adult", "target": "income"}, "method": {"name": "trees", **own}}
    with pytest.raises(ConfigError, match=said):
        load_plan(given)
    given["method"] |= {"secure": {"sum": "none"}}
    assert load_plan(given).config.secure.sum == "none"
