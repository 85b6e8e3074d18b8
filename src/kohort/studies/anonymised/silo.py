"""Chapters 6 and 7: three silos of Adult, each anonymised alone, against the same rows as they are, and pooled.

The thesis leaves the comparison of learning on pooled anonymised rows with federated learning to future work; here it
is made in time, privacy and accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any, Final

import numpy as np
import polars as pl

from kohort.anonymity.loss import association
from kohort.anonymity.risk.reidentification import assess_risk
from kohort.evaluate.utility import evaluate_model
from kohort.methods.silo import Anonymise, anonymise_rows, encode_anonymised
from kohort.models.network_model import NetworkModel
from kohort.models.rows import Rows, encode_rows, stack
from kohort.protocol.table_payload import pack_table
from kohort.rng import Streams
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run
from kohort.runs.simulation import Population, populate
from kohort.studies.anonymised.charts import association_bars, scores_by_round
from kohort.studies.anonymised.loss import row
from kohort.studies.anonymised.paper import FEDERATED, SILO_LOSS
from kohort.studies.anonymised.release import release, told_by_column
from kohort.studies.anonymised.tables import VARIANTS, Case
from kohort.studies.registry import Say
from kohort.tables.encoder import Encoder, learn_domain

__all__ = ["chapter_seven", "silo_plan"]

MEASURES: Final = ("accuracy", "precision", "recall", "f1")
RUNS: Final = {
    "fedavg": ("none", "Federated learning on rows as they are", "Table 7.1"),
    "silo": ("k3", "Federated learning, each silo 3-anonymous", "Table 7.2"),
    "thesis": ("k3", "Federated learning, each silo 3-anonymous by the thesis's algorithm", "Table 7.2"),
}


def silo_plan(method: str, *, rounds: int = 100, anonymise: dict[str, Any] | None = None) -> Plan:
    """Adult over three silos, a five-layer network, SGD at 0.01, batches of 32."""
    own = {"anonymise": {"k": 3, **(anonymise or {})}} if method == "silo" else {}
    return load_plan(
        {
            "data": {
                "table": "adult",
                "target": "income",
                "quasi": [
                    "age", "workclass", "education", "education_num", "marital_status", "occupation", "relationship",
                    "race", "sex", "native_country",
                ],
                "sensitive": ["income"],
                "drop": ["fnlwgt"],
                "missing": "category",
                "encoding": "onehot",
                "test": 0.3,
            },
            "sites": {"count": 3, "split": "iid"},
            "model": {"kind": "mlp", "hidden": [64, 32, 16]},
            "train": {"rounds": rounds, "local_epochs": 1, "batch": 32, "optimizer": "sgd", "lr": 0.01},
            "method": {"name": method, **own},
            "policy": {"min_k": 3},
        }
    )  # fmt: skip


def chapter_seven(
    out: Path, adult: Case, *, rounds: int, seeds: Sequence[int], say: Say
) -> tuple[list[dict[str, Any]], list[Path], list[str]]:
    """Tables 7.1 and 7.2, Figures 7.1-7.6, and the comparison with pooled learning."""
    plans = {
        "fedavg": silo_plan("fedavg", rounds=rounds),
        "silo": silo_plan("silo", rounds=rounds),
        "thesis": silo_plan("silo", rounds=rounds, anonymise={"algorithm": "thesis"}),
    }
    loss_table, figures = _silo_losses(out, adult, populate(plans["silo"], Streams.seeded(seeds[0])))
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in plans}
    history: list[dict[str, Any]] = []
    for seed in seeds:
        for name, plan in plans.items():
            label = RUNS[name][1]
            say(f"Chapter 7: {label}, {rounds} rounds, seed {seed}")
            outcome = run(plan, seed=seed)
            results[name].append(outcome.to_mapping())
            if seed == seeds[0]:
                history += [
                    {"run": label, "round": point["round"], "accuracy": point["accuracy"]} for point in outcome.history
                ]
    figures.append(
        scores_by_round(out / "figure-7-rounds.svg", title="Adult, three silos: accuracy by round", rows=history)
    )
    tables = [_federated_table(name, results[name]) for name in plans]
    tables += [_drop_table(results), loss_table, _pooled_table(plans["silo"], results, seeds, say)]
    note = (
        "Chapter 7: the thesis prints neither the widths of its layers nor the rounds nor its encoding; here they are "
        f"64, 32 and 16 units, {rounds} rounds, and one indicator a category, a generalised cell being the mean of the "
        "values it could stand for. Pooled learning makes as many passes over all rows and ends with its last one; the "
        "spread over the seeds shows how much steadier averaged weights are."
    )
    return tables, figures, [note]


def _silo_losses(out: Path, adult: Case, population: Population) -> tuple[dict[str, Any], list[Path]]:
    """Section 7.1 and Figures 7.1-7.6: each silo's association by column, before and after the thesis's recoding."""
    rows, figures = [], []
    for place, (begin, end) in enumerate(pairwise(population.starts.tolist()), start=1):
        silo = population.frame[begin:end]
        before = association(silo, columns=adult.quasi, target=adult.target)
        for variant in (VARIANTS["k3"], VARIANTS["k3-exact"]):
            after = told_by_column(release(silo, adult, variant), adult)
            loss = 1.0 - sum(after.values()) / sum(before.values())
            rows.append(row(f"silo {place}, {variant.label}", SILO_LOSS[place - 1], loss))
            if variant.key == "k3-exact":
                shown = {"as it is": before, "3-anonymous": after}
        top = max(value for values in shown.values() for value in values.values())
        for number, (when, values) in enumerate(shown.items(), start=2 * place - 1):
            path = out / f"figure-7-{number}.svg"
            title = f"Silo {place}: association by column, {when}"
            figures.append(association_bars(path, title=title, values=values, top=top))
    return {"name": "Information loss of the silos", "source": "Section 7.1", "rows": rows}, figures


def _federated_table(name: str, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    key, title, source = RUNS[name]
    rows = []
    for measure in MEASURES:
        values = [float(result["metrics"][measure]) for result in results]
        rows.append(_line(measure, FEDERATED[key][measure], values))
    return {"name": title, "source": source, "rows": rows}


def _drop_table(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    paper = FEDERATED["none"]["accuracy"] - FEDERATED["k3"]["accuracy"]
    rows = []
    for name, label in (("silo", "accuracy lost by anonymising"), ("thesis", "the same by the thesis's algorithm")):
        pairs = zip(results["fedavg"], results[name], strict=True)
        drops = [float(plain["metrics"]["accuracy"] - silo["metrics"]["accuracy"]) for plain, silo in pairs]
        rows.append(_line(label, paper, drops))
    return {"name": "What anonymising the silos costs", "source": "Tables 7.1 and 7.2", "rows": rows}


def _line(setting: str, paper: float | None, values: Sequence[float]) -> dict[str, Any]:
    return row(setting, paper, fmean(values), sd=stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True, kw_only=True)
class _Pooled:
    """One way of learning from pooled rows: what the hub is given, and what comes of it."""

    accuracy: float
    seconds: float
    shipped: int
    risk: float


def _pooled_table(
    plan: Plan, federated: dict[str, list[dict[str, Any]]], seeds: Sequence[int], say: Say
) -> dict[str, Any]:
    """Pooled and federated learning beside each other; the thesis prints none of it."""
    pooled: dict[str, list[_Pooled]] = {}
    for seed in seeds:
        population = populate(plan, Streams.seeded(seed))
        for label, parts, config in (
            ("pooled rows as they are", 1, None),
            ("pooled rows, anonymised together", 1, plan.config.anonymise),
            ("pooled rows, anonymised silo by silo", 3, plan.config.anonymise),
        ):
            say(f"Chapter 7: {label}, seed {seed}")
            pooled.setdefault(label, []).append(_learn_pooled(plan, population, parts, config, seed))
    rows = []
    for label, found in pooled.items():
        rows.append(_line(f"{label}: accuracy", None, [item.accuracy for item in found]))
        rows.append(_line(f"{label}: seconds", None, [item.seconds for item in found]))
        rows.append(_line(f"{label}: megabytes that leave the silos", None, [item.shipped / 1e6 for item in found]))
        rows.append(_line(f"{label}: highest risk to find a row the hub holds", None, [item.risk for item in found]))
    for method, label in (("fedavg", "federated, rows as they are"), ("silo", "federated, silos anonymised")):
        results = federated[method]
        rows.append(_line(f"{label}: accuracy", None, [float(item["metrics"]["accuracy"]) for item in results]))
        spent = [float(item["seconds"]["slowest_site"] + item["seconds"]["hub"]) for item in results]
        rows.append(_line(f"{label}: seconds, silos side by side", None, spent))
        rows.append(
            _line(f"{label}: megabytes that leave the silos", None, [item["bytes"]["up"] / 1e6 for item in results])
        )
        rows.append(row(f"{label}: rows the hub holds", None, 0))
    return {"name": "Pooled against federated learning", "source": "Section 8.2, future work", "rows": rows}


def _learn_pooled(plan: Plan, population: Population, parts: int, config: Anonymise | None, seed: int) -> _Pooled:
    schema = population.schema
    domain = learn_domain(population.frame, schema, missing=plan.data.missing)
    encoder = Encoder(schema, domain, encoding=plan.data.encoding, dtype=plan.model.dtype)
    began = perf_counter()
    bounds = population.starts.tolist() if parts > 1 else [0, population.frame.height]
    silos = [population.frame[begin:end] for begin, end in pairwise(bounds)]
    if config is None:
        given, encoded = silos, [encode_rows(encoder, silo) for silo in silos]
    else:
        made = [anonymise_rows(silo, schema, config) for silo in silos]
        given = [item.frame for item in made]
        encoded = [encode_anonymised(encoder, item, silo) for item, silo in zip(made, silos, strict=True)]
    rows = Rows(np.concatenate([part.x for part in encoded]), np.concatenate([part.y for part in encoded]))
    model = _trained(plan, encoder, rows, Streams.seeded(seed))
    seconds = perf_counter() - began
    return _Pooled(
        accuracy=float(evaluate_model(model, population.test)["accuracy"]),
        seconds=seconds,
        shipped=sum(len(pack_table(frame)) for frame in given),
        risk=assess_risk(pl.concat(given, how="vertical_relaxed"), quasi=schema.quasi).prosecutor_max,
    )


def _trained(plan: Plan, encoder: Encoder, rows: Rows, streams: Streams) -> NetworkModel:
    """The plan's network on one participant's rows, one epoch after another."""
    network = plan.model.network(encoder)
    weights = network.start(streams.generator("start"))
    together = stack([rows])
    for round_number in range(plan.train.rounds):
        fitted = network.fit(
            weights,
            together,
            training=plan.train.training(),
            keys=np.array([streams.key("rows")], dtype=np.uint64),
            round=round_number,
        )
        weights = fitted.weights[0]
    return NetworkModel(network, weights, encoder)
