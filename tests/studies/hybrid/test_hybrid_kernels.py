"""Training by kernels alone gives the weights of a run through doors and ledgers, column by column."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.studies.hybrid.test_hybrid_study import SMALL, cell, plan_of, small_census

from kohort.rng import Streams
from kohort.runs.run import run
from kohort.runs.simulation import populate
from kohort.studies.harness.runs import SharedRows, declared
from kohort.studies.hybrid.kernels import encode_sites, train
from kohort.studies.hybrid.plans import (
    FL,
    HYBRID,
    HYBRID_STEPS,
    LOW_RISK,
    NO_DP_COLUMN,
    ONCE,
    PEERS_ONLY,
    STEPS,
    HybridColumn,
)

COLUMNS = (NO_DP_COLUMN, LOW_RISK, PEERS_ONLY, FL, HYBRID, STEPS, ONCE, HYBRID_STEPS)


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """The n-th key of a site's noise, whatever it is asked for, so that both ways draw the same noise."""
    asked: Counter[bytes] = Counter()
    real = Streams.bytes

    def counted(streams: Streams, *names: str | int, **options: Any) -> bytes:
        if names and names[0] == "dp":
            asked[streams.root] += 1
            return real(streams, "dp", asked[streams.root], **options)
        return real(streams, *names, **options)

    monkeypatch.setattr(Streams, "bytes", counted)
    return asked


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_kernels_alone_train_what_a_run_trains(column: HybridColumn, same_noise: Counter[bytes]) -> None:
    plan = plan_of(column, cell(SMALL, epsilon=1.0 if column.private else None))
    population = declared(populate(plan, Streams.seeded(3), tables={"rows": small_census(2400)}), plan)
    outcome = run(plan, seed=3, backend=SharedRows(population=population))
    drawn = Counter(same_noise)
    same_noise.clear()
    found = train(plan, population, encode_sites(plan, population), 3)
    assert same_noise == drawn
    assert bool(drawn) is column.private
    if column is PEERS_ONLY:
        models = [outcome.site_models[name].weights for name in population.names]  # type: ignore[attr-defined]
        expected = np.stack(models)
    else:
        expected = np.asarray(outcome.model.weights)  # type: ignore[attr-defined]
    assert found.weights == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert found.accuracy == pytest.approx(outcome.accuracy, abs=2e-3)
    curve = [point["accuracy"] for point in outcome.history if "accuracy" in point]
    assert found.curve == pytest.approx(curve, abs=2e-3)


def test_rows_of_a_site_that_cannot_train_are_judged_where_there_is_a_common_model() -> None:
    """A small site may lose all its rows to the test rows; what its peers have is not its own model."""
    plan = plan_of(LOW_RISK, cell(SMALL))
    population = declared(populate(plan, Streams.seeded(3), tables={"rows": small_census(2400)}), plan)
    assert population.test_sites is not None
    gone = population.test_sites[0]
    absent = replace(population, test_sites=tuple("gone" if name == gone else name for name in population.test_sites))
    sites = encode_sites(plan, absent)
    assert int((sites.test_sites == -1).sum()) == population.test_sites.count(gone)
    assert train(plan, absent, sites, 3).accuracy == train(plan, population, encode_sites(plan, population), 3).accuracy
    peers = plan_of(PEERS_ONLY, cell(SMALL))
    found = train(peers, absent, encode_sites(peers, absent), 3).accuracy
    assert found != train(peers, population, encode_sites(peers, population), 3).accuracy
