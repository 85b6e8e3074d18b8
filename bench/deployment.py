"""A deployment on Flower from its start to a model: a hub and three sites, real processes, an additive model by masks.

The processes are those of `kohort hub start`, `kohort site start` and `kohort run --engine flower`, over TLS on
loopback, all on this machine; on machines of their own the sites would not share its cores. The model has to be that of
one process.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from tests.support.flower_federation import federation, model_of

from bench.harness import Row
from kohort.runs.config import read_plan
from kohort.runs.run import run
from kohort.tables.datasets.catalogue import open_table

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "deployment"
SITES = ("north", "south", "west")
LIMIT = 30.0
SUMMARY = (
    "Adult's training rows at three sites, its test rows at the hub: an additive model of twelve rounds over sums by "
    "masks, bins learned, on Flower with TLS and node keys. Seconds of `kohort run --engine flower`, and from `kohort "
    "hub start` on, until the model is written. The keys of hub and sites were made before."
)
PLAN = """
[data]
table = [{tables}]
target = "income"
missing = "category"
drop = ["fnlwgt", "education"]
features = {features}
test = "{root}/test.csv"
[sites]
split = "files"
[method]
name = "additive"
[method.secure]
sum = "masks"
[policy]
raw = true
min_rows = 1
"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        whole, alone, exchanges = _deployed(Path(folder))
    return [
        Row.within(
            "kohort run --engine flower, three sites by masks",
            ours=alone,
            peer="limit",
            theirs=LIMIT,
            unit="s",
            note=f"{exchanges} exchanges of a message and its answer with every site",
        ),
        Row.within("the same, from the start of the hub on", ours=whole, peer="limit", theirs=LIMIT, unit="s"),
    ]


def _deployed(root: Path) -> tuple[float, float, int]:
    """Seconds from the hub's start and of the run alone, and how often every site was asked something."""
    rows = open_table("adult:train").frame
    share = -(-len(rows) // len(SITES))
    tables = {name: rows[place * share : (place + 1) * share] for place, name in enumerate(SITES)}
    open_table("adult:test").frame.write_csv(root / "test.csv")
    places = ", ".join(json.dumps(str(root / "tables" / f"{name}.csv")) for name in SITES)
    features = [column for column in rows.columns if column not in {"income", "fnlwgt", "education"}]
    plan = root / "plan.toml"
    plan.write_text(PLAN.format(tables=places, features=json.dumps(features), root=root))
    os.environ["OMP_NUM_THREADS"] = "1"
    began: list[float] = []
    with federation(root, plan, tables, founded=lambda: began.append(time.perf_counter())) as made:
        asked = time.perf_counter()
        made.run(root / "out", "--seed", "1", "--wait", "60")
        ended = time.perf_counter()
    run(read_plan(plan), seed=1, out=root / "local")
    if model_of(root / "out") != model_of(root / "local"):
        raise AssertionError("the deployed model is not that of one process")
    lines = (root / "out" / "ledger" / "ledger.jsonl").read_text().splitlines()
    return ended - began[0], ended - asked, sum('"event":"release"' in line for line in lines) // len(SITES)
