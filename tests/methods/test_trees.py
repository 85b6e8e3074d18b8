"""Boosted forests over sums: one model wherever the rows are, drop-outs, policies, and what is said about cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, DataError, KohortError, RefusedError
from kohort.methods.trees import NOT_CELL_SAFE, ForestLearner
from kohort.models.rows import encode_rows
from kohort.privacy.guarantee import Cells
from kohort.privacy.policy import Policy
from kohort.rng import Streams
from kohort.rounds.learner import Setting, learn_pooled
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan
from kohort.runs.explain import explain_plan
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import populate

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


def test_what_is_not_cell_safe_is_said_and_a_policy_can_refuse_it() -> None:
    plan = _plan(3)
    assert NOT_CELL_SAFE in _run(plan).notes
    with pytest.raises(RefusedError, match="min_sum_cell 5"):
        _run(_plan(3, policy={"min_sum_cell": 5}))
    assert Policy(min_sum_cell=5).judge(Cells(least=5), task="any") is None
    assert Policy().tightened(Policy(min_sum_cell=7)).min_sum_cell == 7


def test_fewer_than_three_sites_hide_nothing() -> None:
    with pytest.raises(RefusedError, match="fewer than three"):
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
    assert "Not cell-safe" in " ".join(str(explain_plan(_plan(3))).split())
