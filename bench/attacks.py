"""Attacks: shadow models against a torch loop and a limit, the risk of a table, and three questions against anonymeter.

Peers may be in an environment of their own: set KOHORT_PEER_PYTHON to its interpreter (`pip install torch anonymeter`).
Processor seconds are compared, because machines are shared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import polars as pl

from bench.harness import NOT_INSTALLED, Row
from kohort import check
from kohort.evaluate.attacks.inference import infer
from kohort.evaluate.attacks.linkability import link
from kohort.evaluate.attacks.released import Attacked, Released
from kohort.evaluate.attacks.shadow import as_target_trained, evidence, halves, likelihood_ratios, train_shadows
from kohort.evaluate.attacks.singling_out import single_out
from kohort.methods.registry import find_method
from kohort.models.rows import encode_test_rows
from kohort.rng import Streams
from kohort.runs.auditing.on_model import membership_findings
from kohort.runs.auditing.replay import repeat
from kohort.runs.config import load_plan
from kohort.runs.demo import demo_plan
from kohort.runs.run import run
from kohort.runs.simulation import populate
from kohort.tables.datasets.catalogue import open_table

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "attacks"
SUMMARY = (
    "LiRA with 64 shadow models (MLP 12-12-2, Adam, 60 passes over halves of Adult's 30,162 rows) in processor "
    "seconds, against one torch model after the other, two of them measured and multiplied by 32; the same attack on "
    "the demo's solved and grown models; re-identification risk of a table of a million rows. Then the three "
    "questions to a released table, against anonymeter on the same tables: differences of success rates."
)
PEER = os.environ.get("KOHORT_PEER_PYTHON", sys.executable)
SHADOWS, PASSES, MEASURED = 64, 60, 2
LIMIT, FASTER, RISK_LIMIT = 60.0, 20.0, 10.0
COLUMNS = ("age", "workclass", "education_num", "occupation", "race", "sex", "hours_per_week", "income")
ROWS, ASKED = 4_000, 500

_TORCH = """
import sys, time, numpy as np, torch
torch.set_num_threads(1)
d = np.load(sys.argv[1]); x = torch.from_numpy(d["x"]); y = torch.from_numpy(d["y"].astype(np.int64))
models, passes = int(sys.argv[2]), int(sys.argv[3])
def train(seed, passes):
    g = torch.Generator().manual_seed(seed)
    half = torch.randperm(len(x), generator=g)[: len(x) // 2]
    a, b = x[half], y[half]
    net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 12), torch.nn.ReLU(), torch.nn.Linear(12, 2))
    opt = torch.optim.Adam(net.parameters(), lr=0.001)
    for _ in range(passes):
        order = torch.randperm(len(a), generator=g)
        for rows, classes in zip(a[order].split(64), b[order].split(64)):
            opt.zero_grad(); torch.nn.functional.cross_entropy(net(rows), classes).backward(); opt.step()
train(0, 1)
begin = time.process_time()
for model in range(models): train(model, passes)
print(time.process_time() - begin)
"""
_ANONYMETER = """
import json, sys, warnings; warnings.filterwarnings("ignore")
import numpy as np, pandas as pd
from anonymeter.evaluators import SinglingOutEvaluator, LinkabilityEvaluator, InferenceEvaluator
ori, syn, control = (pd.read_csv(path) for path in sys.argv[1:4]); n = int(sys.argv[4]); columns = list(ori.columns)
found = {}
one = SinglingOutEvaluator(ori=ori, syn=syn, control=control, n_attacks=n, n_cols=3); one.evaluate(mode="multivariate")
halves = (columns[::2], columns[1::2])
two = LinkabilityEvaluator(ori=ori, syn=syn, control=control, n_attacks=n, aux_cols=halves, n_neighbors=1)
two.evaluate(n_jobs=1)
three = InferenceEvaluator(ori=ori, syn=syn, control=control, n_attacks=n, aux_cols=columns[:-1], secret=columns[-1])
three.evaluate(n_jobs=1)
for name, made in (("singling out", one), ("linkability", two), ("inference", three)):
    rates = made.results(); found[name] = [rates.attack_rate.value, rates.control_rate.value]
print(json.dumps(found))
"""


def measure() -> list[Row]:
    return [*_shadows(), *_solved_and_grown(), _risk(), *_questions()]


def _peer(script: str, *arguments: object) -> str | None:
    """What a script prints in the peers' environment; None where the peer is not installed."""
    command = [PEER, "-c", script, *map(str, arguments)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
    if made.returncode and "ModuleNotFoundError" not in made.stderr:
        raise RuntimeError(made.stderr[-2_000:])
    return None if made.returncode else made.stdout.strip().splitlines()[-1]


def _shadows() -> list[Row]:
    plan = load_plan(
        {
            "data": {
                "table": "adult:train",
                "target": "income",
                "drop": ["fnlwgt", "education"],
                "missing": "drop",
                "encoding": "label",
            },
            "model": {"kind": "mlp", "hidden": [12]},
            "train": {"rounds": 2, "batch": 64, "optimizer": "adam", "lr": 0.001},
            "method": {"name": "fedavg"},
        }
    )
    population, model = populate(plan, Streams.seeded(0)), run(plan, seed=0).model
    rows: Any = encode_test_rows(model.encoder, pl.concat([population.frame, population.test]))
    network: Any = getattr(model, "network")  # noqa: B009 - only a network model has one
    training = as_target_trained(plan.train.training(), passes=PASSES)
    few = halves(rows.count, 4)
    train_shadows(network, rows, few, training=as_target_trained(training, passes=1), threads=1)  # compiled now
    begin = process_time()
    seen = halves(rows.count, SHADOWS)
    weights = train_shadows(network, rows, seen, training=training, threads=1)
    trained = process_time() - begin
    scores = np.array([evidence(replace(model, weights=own), rows) for own in weights])  # type: ignore[type-var]
    likelihood_ratios(evidence(model, rows), scores, seen)
    whole = process_time() - begin
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "rows.npz", x=rows.x, y=rows.y)
        said = _peer(_TORCH, Path(folder) / "rows.npz", MEASURED, PASSES)
    theirs = None if said is None else float(said) * SHADOWS / MEASURED
    return [
        Row.within(f"LiRA, {SHADOWS} shadow models on Adult", ours=whole, peer="limit", theirs=LIMIT, unit="CPU s"),
        Row.faster(
            f"train {SHADOWS} shadow models", ours=trained, peer="torch, one by one", theirs=theirs, target=FASTER
        ),
    ]


def _solved_and_grown() -> list[Row]:
    """The same attack on models that are not trained in steps; the run itself is not counted."""
    found = []
    for name in ("oneshot", "additive", "trees"):
        replay = repeat(demo_plan(find_method(name)), seed=0, tasks=frozenset())
        membership_findings(replay, shadows=4)  # compiled now
        begin = process_time()
        membership_findings(replay, shadows=SHADOWS)
        spent = process_time() - begin
        setting = f"LiRA, {SHADOWS} shadow models of {name} on Adult"
        found.append(Row.within(setting, ours=spent, peer="limit", theirs=LIMIT, unit="CPU s"))
    return found


def _risk() -> Row:
    random, rows = np.random.default_rng(0), 1_000_000
    sizes = {"age": 90, "region": 50, "job": 30, "education": 16, "sex": 2, "children": 6}
    table = pl.DataFrame({name: random.integers(0, size, rows) for name, size in sizes.items()})
    begin = process_time()
    check(table, quasi=list(sizes))
    spent = process_time() - begin
    return Row.within("risk of 1,000,000 rows", ours=spent, peer="limit", theirs=RISK_LIMIT, unit="CPU s")


def _questions() -> list[Row]:
    table = open_table("adult:train").frame.select(COLUMNS).drop_nulls().unique(maintain_order=True)
    table = table.sample(fraction=1.0, shuffle=True, seed=0)
    members, control, others = (table[begin * ROWS : (begin + 1) * ROWS] for begin in range(3))
    rows = []
    for name, released in (("a copy", members), ("rows of other persons", others)):
        asked = Attacked(table=Released.of(released, members), members=members, others=control, on="", by="")
        ours = {
            "singling out": single_out(asked, columns=COLUMNS),
            "linkability": link(asked, columns=COLUMNS),
            "inference": infer(asked, secret=COLUMNS[-1], known=COLUMNS[:-1]),
        }
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{place}.csv" for place in range(3)]
            for part, path in zip((members, released, control), paths, strict=True):
                part.write_csv(path)
            said = _peer(_ANONYMETER, *paths, ASKED)
        theirs = None if said is None else json.loads(said)
        for question, found in ours.items():
            rate = None if theirs is None else theirs[question][0]
            rows.append(
                Row(
                    setting=f"{question}, {name}",
                    ours=found.success or 0.0,
                    peer="anonymeter",
                    peer_value=rate,
                    unit="success",
                    ratio=None if rate is None else (found.success or 0.0) - rate,
                    difference=True,
                    note=NOT_INSTALLED
                    if rate is None
                    else f"control {found.guess:.3f} against {theirs[question][1]:.3f}",
                )
            )
    return rows
