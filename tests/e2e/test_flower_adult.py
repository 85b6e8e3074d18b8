"""Adult over one running federation, with TLS and node keys: the model of one process.

The methods whose rows leave, or that tell rows apart: by items, quasi-identifiers, low risk. The other methods read
these columns as they read those of `test_flower_deployment`, where every method runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.support.flower_federation import Federation, federation, lines_of, method_section, model_of, write_plan

pytest.importorskip("flwr")

from kohort.errors import DataError
from kohort.privacy.ledger.verify import verify_ledger
from kohort.rng import Streams
from kohort.runs.backend import Simulation
from kohort.runs.config import Plan, read_plan
from kohort.runs.run import run
from kohort.runs.simulation import Population
from kohort.tables.datasets.catalogue import open_table

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROWS = 1000
YOUNG = 35
CLUSTERS = {"site-00": "north", "site-01": "north", "site-02": "south"}
PLAN = """
[data]
table = [{tables}]
target = "income"
quasi = ["age", "sex"]
sensitive = ["income"]
features = ["education_num", "hours_per_week", "marital_status"]
items = ["jobs"]
kinds = {{jobs = "items"}}
other = ["jobs"]
bounds = {{age = [0, 100], education_num = [1, 16], hours_per_week = [1, 99]}}
test = "{root}/test.csv"
[sites]
split = "files"
deadline = 120
[train]
rounds = 2
lr = 0.02
[policy]
min_rows = 1
raw = true
min_k = 2
pairs = "open"
overlapping_releases = true
"""


def adult() -> pl.DataFrame:
    """Some columns of Adult; three of its categories are the items of a row."""
    try:
        whole = open_table("adult").frame
    except DataError:
        pytest.skip("needs the Adult table in KOHORT_DATA")
    jobs = pl.concat_str("workclass", "occupation", "relationship", separator="|").alias("jobs")
    columns = ["age", "sex", "education_num", "hours_per_week", "marital_status", "income"]
    return whole.drop_nulls().select(*columns, jobs)


@pytest.fixture(scope="module")
def adults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three sites that call their young rows low-risk and name their clusters.

    Those rows come first in the tables already, so that methods that do not tell rows apart see the order of the file.
    """
    rows = adult()
    root = tmp_path_factory.mktemp("adults")
    tables = {
        name: rows[number * ROWS : (number + 1) * ROWS].sort(pl.col("age") >= YOUNG, maintain_order=True)
        for number, name in enumerate(CLUSTERS)
    }
    rows[len(tables) * ROWS : (len(tables) + 1) * ROWS].write_csv(root / "test.csv")
    plan = root / "plan.toml"
    plan.write_text(PLAN.format(tables=", ".join(f'"{root}/tables/{name}.csv"' for name in tables), root=root))
    says = {name: f'low_risk = "below:age:{YOUNG}"\ncluster = "{cluster}"\n' for name, cluster in CLUSTERS.items()}
    with federation(root, plan, tables, says=says) as made:
        yield made


def plan_for(made: Federation, name: str, method: dict[str, Any]) -> Path:
    """The plan with another method; approved by everybody."""
    path = write_plan(made.root / f"{name}.toml", {**tomllib.loads(made.plan.read_text()), "method": method})
    made.approve(path, *CLUSTERS)
    return path


@pytest.mark.parametrize("method", ["hybrid", "partial", "silo", "syntactic"])
def test_adult_is_learned_as_in_one_process(adults: Federation, method: str) -> None:
    plan = plan_for(adults, method, method_section(method))
    out, local = adults.root / f"{method}-flower", adults.root / f"{method}-local"
    there = adults.run_here(out, plan)
    here = run(read_plan(plan), seed=1, out=local)
    assert (there.sites, there.dropped, there.refused) == (tuple(CLUSTERS), {}, {})
    assert there.accuracy == here.accuracy
    assert here.accuracy > 0.6
    assert model_of(out) == model_of(local)
    assert (there.epsilon, there.delta) == (here.epsilon, here.delta)
    assert verify_ledger(out).releases == verify_ledger(local).releases


@dataclass(frozen=True)
class Declared(Simulation):
    """Simulated sites with the low-risk rows and the clusters the real ones declare."""

    def check(self, plan: Plan) -> None:
        """The sites declare what the plan leaves open."""

    def populate(self, plan: Plan, streams: Streams) -> Population:
        population = super().populate(plan, streams)
        young = (population.frame["age"] < YOUNG).to_numpy()
        bounds = population.starts.tolist()
        return replace(
            population,
            low=np.asarray([young[start:stop].sum() for start, stop in pairwise(bounds)]),
            low_by_row=True,
            clusters=np.asarray([sorted(set(CLUSTERS.values())).index(CLUSTERS[name]) for name in population.names]),
        )


def test_peers_train_on_rows_their_sites_call_low_risk(adults: Federation) -> None:
    method = {
        "name": "hybrid",
        "phases": [
            {"kind": "peers", "rows": "low", "rounds": 1, "optimizer": "sgd", "lr": 0.2},
            {"kind": "server", "rows": "high", "rounds": 1, "batch": 0, "dp": {"epsilon": 2.0, "delta": 1e-5}},
        ],
    }
    plan = plan_for(adults, "low-risk", method)
    there = adults.run_here(adults.root / "low-risk-flower", plan)
    here = run(read_plan(plan), seed=1, out=adults.root / "low-risk-local", backend=Declared())
    assert there.accuracy == here.accuracy
    assert model_of(adults.root / "low-risk-flower") == model_of(adults.root / "low-risk-local")
    assert (there.epsilon, there.delta) == (here.epsilon, here.delta)
    # How many rows carry a low risk is in each site's own ledger. The hub is told no more than the rows of the table.
    rows_exchanged = {
        line["rows"] for line in lines_of(adults.root / "low-risk-flower") if line.get("what") == "peers.exchange"
    }
    assert rows_exchanged == {ROWS}
    to_peers = [
        line
        for line in lines_of(adults.site("site-00"))
        if line.get("what") == "peers.exchange" and line["guarantee"].get("rows", ROWS) < ROWS
    ]
    young = (pl.read_csv(adults.root / "tables" / "site-00.csv")["age"] < YOUNG).sum()
    assert [line["rows"] for line in to_peers] == [young]
    assert {(line["to"], line["via"]) for line in to_peers} == {("peers", "hub")}
