"""`features = "bins"`: ridge regression on bins in two rounds, as solved directly, with small pairs rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, RefusedError
from kohort.methods.oneshot.ridge import LEVEL
from kohort.models.additive.cells import codes_of
from kohort.protocol.wire import decode
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run
from kohort.testing import listening


def tables(sites: int = 4, rows: int = 150) -> dict[str, pl.DataFrame]:
    random, made = np.random.default_rng(4), {}
    for number in range(sites):
        age, town = random.integers(20, 80, rows), random.choice(["n", "s", "w"], rows)
        score = np.abs(age - 50) / 8 - 2 + (town == "w")
        ill = random.random(rows) < 1 / (1 + np.exp(-score))
        kind = np.where(random.random(rows) < 0.2, "odd", np.where(ill, "ill", "well"))
        cost = score + random.normal(0, 0.2, rows)
        sick = np.where(ill, "ill", "well")
        made[f"s{number}"] = pl.DataFrame({"age": age, "town": town, "sick": sick, "kind": kind, "cost": cost})
    return made


def plan(target: str = "sick", *, scheme: str = "bfv", policy: dict[str, Any] | None = None, **own: Any) -> Plan:
    classes = {"sick": ["ill", "well"], "kind": ["ill", "odd", "well"]}
    return load_plan(
        {
            "data": {
                "table": "made",
                "target": target,
                "features": "rest",
                "drop": [name for name in ("sick", "kind", "cost") if name != target],
                "bounds": {"age": [0, 100]} | ({"cost": [-5, 10]} if target == "cost" else {}),
                "categories": {"town": ["n", "s", "w"]} | ({target: classes[target]} if target in classes else {}),
            },
            "sites": {"split": "files"},
            "method": {"name": "oneshot", "secure": {"sum": scheme}, "oneshot": {"features": "bins", **own}},
            "policy": {"min_rows": 1, **(policy or {})},
        }
    )


@pytest.mark.parametrize("target", ["sick", "kind", "cost"])
def test_the_model_is_the_ridge_solution_of_pooled_indicators(target: str) -> None:
    outcome = run(plan(target, scheme="masks", policy={"pairs": "open"}), seed=2, tables=tables())
    model = outcome.model
    frame = pl.concat([_kept(outcome, site) for site in tables()])
    places = model.bins.of_rows(codes_of(model.bins.columns, model.encoder.transform(frame)))
    x = np.hstack([(places[:, :, None] == np.arange(model.bins.total)).sum(axis=0), np.ones((frame.height, 1))])
    names = frame[target].to_numpy()
    if target == "cost":
        y = ((names + 5) / 15)[:, None]
    else:
        kept = model.encoder.classes[1:] if target == "sick" else model.encoder.classes
        y = np.where(names[:, None] == np.asarray(kept)[None, :], LEVEL, -LEVEL)
    smooth = 10.0 if target == "kind" else 3.0
    rough = np.diff(np.eye(int(model.bins.sizes[0])), axis=0)
    penalty = np.diag(np.append(np.full(model.bins.total, 1e-3 / 0.0475**2), 0.0))
    penalty[: rough.shape[1], : rough.shape[1]] += smooth * rough.T @ rough
    solved = np.linalg.solve(x.T @ x + penalty, x.T @ y)
    assert np.allclose(model.scores(model.encoder.transform(frame)), x @ solved, atol=1e-6)
    assert outcome.rounds == 2


def _kept(outcome: Any, site: str) -> pl.DataFrame:
    """The rows that the run trained on: all but the test rows, which are told apart by their place."""
    from kohort.rng import Streams
    from kohort.runs.simulation import populate

    population = populate(outcome.plan, Streams.seeded(2), tables=tables())
    at = population.names.index(site)
    return population.frame[int(population.starts[at]) : int(population.starts[at + 1])]


def test_a_key_holder_rounds_pairs_and_the_model_still_predicts() -> None:
    with listening() as carried:
        outcome = run(plan(), seed=2, tables=tables())
    (opened,) = [data for _, task, number, data in carried.replies if (task, number) == ("sum.open", 1)]
    counts = decode(opened).arrays["total"]
    assert set(counts[counts < 10].tolist()) <= {0}
    assert outcome.rounds == 2
    assert outcome.metrics["accuracy"] > 0.65
    assert outcome.model.kind == "additive"


def test_what_bins_do_not_read_is_refused_and_open_pairs_need_the_policy() -> None:
    with pytest.raises(RefusedError, match="pairs"):
        run(plan(scheme="masks"), seed=2, tables=tables())
    with pytest.raises(ConfigError, match=r"method.oneshot.patches"):
        run(plan(patches=3), seed=2, tables=tables())
    with pytest.raises(ConfigError, match=r"method.oneshot.lambda"):
        run(plan(**{"lambda": "folds"}), seed=2, tables=tables())
