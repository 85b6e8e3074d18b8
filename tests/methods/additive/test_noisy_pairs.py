"""Surfaces under a budget: when it pays for them, what a row adds to their sums, and what they hold."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import sqrt
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, IntegrityError
from kohort.methods.additive.method import start
from kohort.methods.additive.private import PrivateLearner
from kohort.models.additive.model import AdditiveModel
from kohort.models.additive.noisy_pairs import COUNT_WEIGHT, grid_for
from kohort.models.rows import Rows, encode_rows
from kohort.rng import Streams
from kohort.rounds.totals.learner import RowCache, Setting
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import populate
from kohort.tables.domain import declared_domain
from kohort.tables.encoder import Encoder

GRID = 2.0**28
SITES = 4
LARGE_ENOUGH, TOO_SMALL = 8.0, 1.0


@cache
def table(*, together: bool = True, rows: int = 400) -> dict[str, pl.DataFrame]:
    """One table per site. With `together`, the class is whether `a` and `b` are on the same side; `c` adds a little."""
    random, made = np.random.default_rng(4), {}
    for number in range(SITES):
        a, b, c = random.random((3, rows)).round(3)
        score = 5.0 * np.sign((a - 0.5) * (b - 0.5)) * together + 4.0 * (a - 0.5) * (not together) + 2.0 * (c - 0.5)
        found = random.random(rows) < 1 / (1 + np.exp(-score))
        made[f"s{number}"] = pl.DataFrame({"a": a, "b": b, "c": c, "y": np.where(found, "yes", "no")})
    return made


def plan(epsilon: float = LARGE_ENOUGH, **own: Any) -> Plan:
    return load_plan(
        {
            "data": {
                "table": "made",
                "target": "y",
                "features": "rest",
                "bounds": {name: [0, 1] for name in "abc"},
                "categories": {"y": ["no", "yes"]},
            },
            "sites": {"split": "files"},
            "method": {"name": "additive", "dp": {"epsilon": epsilon, "delta": 1e-4}, **own},
            "policy": {"min_rows": 1, "epsilon": 20.0},
        }
    )


def fitted(epsilon: float = LARGE_ENOUGH, *, together: bool = True, **own: Any) -> Outcome:
    return run(plan(epsilon, **own), seed=5, tables=table(together=together))


def pairs_of(outcome: Outcome) -> list[str]:
    assert isinstance(outcome.model, AdditiveModel)
    bins = outcome.model.bins
    return list(bins.names[len(bins.columns) :])


@pytest.mark.parametrize(("scheme", "epsilon"), [("masks", LARGE_ENOUGH), ("none", 2 * LARGE_ENOUGH)])
def test_columns_that_act_together_get_a_surface(scheme: str, epsilon: float) -> None:
    with_surfaces, without = (fitted(epsilon, secure={"sum": scheme}, **own) for own in ({}, {"pairs": 0}))
    assert "a x b" in pairs_of(with_surfaces)
    assert pairs_of(without) == []
    assert with_surfaces.metrics["accuracy"] > without.metrics["accuracy"] + 0.2
    assert with_surfaces.epsilon == pytest.approx(epsilon, rel=0.01)
    assert with_surfaces.rounds == without.rounds == 11


def test_columns_that_do_not_get_none() -> None:
    assert pairs_of(fitted(together=False)) == []


@pytest.mark.parametrize(
    ("epsilon", "own"),
    [
        (TOO_SMALL, {}),
        (LARGE_ENOUGH, {"rounds": 9}),
        (LARGE_ENOUGH, {"monotone": {"a": "up"}}),
    ],
)
def test_no_surface_where_the_budget_is_small_or_totals_are_few_or_a_curve_must_rise(
    epsilon: float, own: dict[str, Any]
) -> None:
    assert "a x b" not in pairs_of(fitted(epsilon, **own))


def test_a_plan_with_a_budget_cannot_ask_for_more_surfaces_than_it_pays_for() -> None:
    for asked in (4, "acyclic"):
        with pytest.raises(ConfigError, match="no budget"):
            plan(pairs=asked)


def test_the_rule_for_grids() -> None:
    # 2 sqrt(0.15 x 100,000) = 244.9; over the groups, twice what rows alone make the sum of a cell vary by
    assert grid_for(100_000, 0.15, 20.0) == 6, "never more"
    assert grid_for(100_000, 0.15, 45.0) == 5
    assert grid_for(100_000, 0.15, 49.1) == 0, "four groups are too few"
    assert grid_for(100_000, 0.15, 1e9) == 0
    assert grid_for(-5.0, 0.15, 1.0) == 0, "noisy counts may be negative"


def begun(**own: Any) -> tuple[PrivateLearner, Rows]:
    """The learner before the first total, and all rows."""
    made, whole = plan(**own), pl.concat(table().values())
    schema = populate(made, Streams.seeded(5), tables=table()).schema
    approved = approved_plan_for(made, schema=schema, run="twin", sites=tuple(table()))
    domain = declared_domain(approved.schema, missing=approved.missing)
    assert domain is not None
    encoder = Encoder(approved.schema, domain, dtype=approved.model.dtype)
    learner = start(Setting(approved=approved, encoder=encoder, seed=bytes(16), members=SITES, sigma=0.5))
    assert isinstance(learner, PrivateLearner)
    return learner, encode_rows(encoder, whole)


def moved(learner: PrivateLearner, rows: Rows, until: int) -> PrivateLearner:
    memory = RowCache()
    while learner.number < until:
        learner = learner.after(learner.contribution(rows, memory), SITES)
    return learner


def norm_of_one(learner: PrivateLearner, rows: Rows, row: int) -> float:
    return float(np.linalg.norm(learner.contribution(rows.part(row, row + 1), RowCache()).astype(float)))


def test_one_row_adds_no_more_than_the_sensitivity_while_pairs_are_looked_at_and_afterwards() -> None:
    learner, rows = begun()
    looking = moved(learner, rows, 4)
    assert looking.looking is not None
    assert looking.sensitivity == pytest.approx(GRID * sqrt(0.64 * (3 + 3) + 3 * COUNT_WEIGHT**2))
    after = moved(looking, rows, 6)
    assert after.looking is None
    surfaces = len(after.known_bins.pairs)
    assert surfaces >= 1
    assert after.sensitivity == pytest.approx(GRID * 0.8 * sqrt(3 + surfaces))
    for at in (looking, after):
        sure = replace(at, w=np.vstack([at.w[:-1], [[9.0]]]))  # of one class, whatever the row
        norms = [norm_of_one(sure, rows, row) for row in range(60)]
        assert max(norms) <= sure.sensitivity
        assert max(norms) >= 0.999 * sure.sensitivity, "the bound is not loose"


def test_shares_of_the_budget_add_up_to_all_of_it() -> None:
    learner, rows = begun()
    spent = 0.0
    for number in range(11):
        spent += learner.share
        learner = moved(learner, rows, number + 1)
    assert learner.finished
    assert spent == pytest.approx(1.0)


def test_a_restored_learner_asks_for_the_same_total_with_the_same_noise() -> None:
    learner, rows = begun()
    for number in (4, 5, 8):
        at = moved(learner, rows, number)
        again = learner.restored(at.checkpoint())
        assert (again.length, again.sensitivity, again.share) == (at.length, at.sensitivity, at.share)
        assert (again.contribution(rows, RowCache()) == at.contribution(rows, RowCache())).all()
        assert moved(again, rows, 11).mean.tobytes() == moved(at, rows, 11).mean.tobytes()
    earlier = {name: array for name, array in at.checkpoint().items() if name != "pairs"}
    with pytest.raises(IntegrityError, match="earlier version"):
        learner.restored(earlier)


def test_bins_of_a_site_follow_the_pairs_whatever_it_kept() -> None:
    """What a site keeps of its rows between totals is made again once there are pairs."""
    learner, rows = begun()
    memory = RowCache()
    while not learner.finished:
        added = learner.contribution(rows, memory)
        assert (added == learner.contribution(rows, RowCache())).all()
        learner = learner.after(added, SITES)


def test_a_surface_holds_what_curves_of_its_columns_cannot_say() -> None:
    learner, rows = begun()
    end = moved(learner, rows, 11)
    bins = end.known_bins
    names = bins.names[3:]
    begin = int(bins.starts[3 + names.index("a x b")])
    pair = bins.pairs[names.index("a x b")]
    held = end.counts[begin : begin + pair.size].reshape(pair.cells.shape)
    values = end.mean[begin : begin + pair.size, 0].reshape(pair.cells.shape)
    for axis in (0, 1):
        means = (held * values).sum(axis=axis) / held.sum(axis=axis)
        assert np.abs(means).max() < 0.1 * np.abs(values).max()
    half = pair.cells.shape[0] // 2
    assert values[:half, :half].mean() > 0.5 > -0.5 > values[:half, -half:].mean()
