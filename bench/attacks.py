"""Attacks: 64 shadow models against a torch loop, and the three questions to a table against anonymeter.

Peers may be in an environment of their own: set KOHORT_PEER_PYTHON to its interpreter (`pip install torch anonymeter`).
Processor seconds are compared, because machines are shared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import polars as pl

from bench.harness import NOT_INSTALLED, Row
from kohort.evaluate.attacks.inference import infer
from kohort.evaluate.attacks.linkability import link
from kohort.evaluate.attacks.membership import sureness
from kohort.evaluate.attacks.released import Released
from kohort.evaluate.attacks.shadow import as_target_trained, likelihood_ratios, shadow_scores, train_shadows
from kohort.evaluate.attacks.singling_out import single_out
from kohort.models.rows import encode_test_rows
from kohort.rng import Streams
from kohort.runs.config import load_plan
from kohort.runs.run import run
from kohort.runs.simulation import populate
from kohort.tables.datasets.catalogue import open_table

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "attacks"
SUMMARY = (
    "LiRA with 64 shadow models (MLP 12-12-2, Adam, 60 passes over halves of Adult's 30,162 rows) in processor "
    "seconds, against one torch model after the other, two of them measured and multiplied by 32. Then the three "
    "questions to a released table, against anonymeter on the same tables: differences of success rates."
)
PEER = os.environ.get("KOHORT_PEER_PYTHON", sys.executable)
SHADOWS, PASSES, MEASURED = 64, 60, 2
LIMIT, FASTER = 60.0, 20.0
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
    return [*_shadows(), *_questions()]


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
    train_shadows(network, rows, training=as_target_trained(training, passes=1), shadows=4, threads=1)  # compiled now
    begin = process_time()
    weights, seen = train_shadows(network, rows, training=training, shadows=SHADOWS, threads=1)
    trained = process_time() - begin
    likelihood_ratios(sureness(model, rows), shadow_scores(network, weights, rows), seen)
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


def _questions() -> list[Row]:
    table = open_table("adult:train").frame.select(COLUMNS).drop_nulls().unique(maintain_order=True)
    table = table.sample(fraction=1.0, shuffle=True, seed=0)
    members, control, others = (table[begin * ROWS : (begin + 1) * ROWS] for begin in range(3))
    rows = []
    for name, released in (("a copy", members), ("rows of other persons", others)):
        release = Released.of(released, members)
        on: Any = {"on": "", "by": ""}
        ours = {
            "singling out": single_out(release, members, control, columns=COLUMNS, **on),
            "linkability": link(release, members, control, columns=COLUMNS, **on),
            "inference": infer(release, members, control, secret=COLUMNS[-1], known=COLUMNS[:-1], **on),
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
