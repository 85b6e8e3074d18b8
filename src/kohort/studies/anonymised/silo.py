"""Chapters 6 and 7: three silos of Adult, each anonymised alone, against the same rows as they are, and pooled.

The thesis leaves the comparison of learning on pooled anonymised rows with federated learning to future work; here it
is made in time, bytes and accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

from kohort.anonymity.loss import association
from kohort.errors import counted
from kohort.rng import Streams
from kohort.runs.config import Plan, load_plan
from kohort.runs.simulation import Population, populate
from kohort.studies.anonymised.loss import draw_associations
from kohort.studies.anonymised.paper import FEDERATED, SILO_LOSS
from kohort.studies.anonymised.release import association_by_column, release
from kohort.studies.anonymised.tables import QUASI_OF_ADULT, VARIANTS, AnonymisedCase, AnonymisedSession
from kohort.studies.harness.charts import curve_points, line_chart
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.harness.runs import RunSummary

__all__ = ["chapter_seven", "silo_plan"]

MEASURES: Final = ("accuracy", "precision", "recall", "f1")
RUNS: Final = {
    "fedavg": ("none", "Federated learning on rows as they are", "Table 7.1"),
    "silo": ("k3", "Federated learning, each silo 3-anonymous", "Table 7.2"),
    "thesis": ("k3", "Federated learning, each silo 3-anonymous by the thesis's algorithm", "Table 7.2"),
}


def silo_plan(method: str, *, rounds: int = 100, anonymise: dict[str, Any] | None = None, silos: int = 3) -> Plan:
    """A plan on Adult: three silos, a network with three hidden layers, SGD at 0.01, batches of 32.

    Args:
        method: "fedavg", "silo" or "central".
        rounds: The rounds, with one pass over the rows in each.
        anonymise: Keys of `[method.anonymise]` beside k = 3; read for "silo" alone.
        silos: The number of silos.

    Returns:
        The plan.
    """
    own = {"anonymise": {"k": 3, **(anonymise or {})}} if method == "silo" else {}
    data = {"table": "adult", "target": "income", "quasi": list(QUASI_OF_ADULT), "sensitive": ["income"],
            "drop": ["fnlwgt"], "missing": "category", "encoding": "onehot", "test": 0.3}  # fmt: skip
    chosen = {
        "data": data,
        "sites": {"count": silos, "split": "iid"},
        "model": {"kind": "mlp", "hidden": [64, 32, 16]},
        "train": {"rounds": rounds, "local_epochs": 1, "batch": 32, "optimizer": "sgd", "lr": 0.01},
        "method": {"name": method, **own},
        "policy": {"min_k": 3, **({"raw": True} if method == "central" else {})},
    }
    return load_plan(chosen)


def chapter_seven(session: AnonymisedSession, adult: AnonymisedCase) -> Part:
    """Tables 7.1 and 7.2, Figures 7.1-7.6, and the comparison with pooled learning.

    Args:
        session: The running study.
        adult: Adult.

    Returns:
        The tables, figures and a note.
    """
    rounds, seeds = session.depth.rounds, session.depth.seeds
    plans = {
        "fedavg": silo_plan("fedavg", rounds=rounds),
        "silo": silo_plan("silo", rounds=rounds),
        "thesis": silo_plan("silo", rounds=rounds, anonymise={"algorithm": "thesis"}),
    }
    losses = _silo_losses(session, adult, populate(plans["silo"], Streams.seeded(seeds[0])))
    results: dict[str, list[RunSummary]] = {}
    points = []
    for name, plan in plans.items():
        label = RUNS[name][1]
        session.say(f"Chapter 7: {label}, {rounds} rounds, {counted(len(seeds), 'seed')}")
        # One by one, because their time is measured.
        results[name] = [one for seed in seeds for one in session.runs.of(plan, seeds=[seed])]
        points += curve_points("", label, results[name][0].curve)
    figure = line_chart(
        session.out / "figure-7-rounds.svg", title="Adult, three silos: accuracy by round", points=points, x="round",
        y="accuracy on rows as they are",
    )  # fmt: skip
    tables = [
        *(_federated_table(name, found) for name, found in results.items()),
        _drop_table(results),
        *losses.tables,
        _pooled_table(session, results),
    ]
    note = (
        "Chapter 7: the thesis prints neither the widths of its layers nor the rounds nor its encoding; here they are "
        f"64, 32 and 16 units, {rounds} rounds, and one indicator per category. A generalised cell is encoded as the "
        "mean of the values it can stand for. Pooled learning makes as many passes over all rows."
    )
    return Part(tables, [*losses.figures, figure], [note])


def _silo_losses(session: AnonymisedSession, adult: AnonymisedCase, population: Population) -> Part:
    """Section 7.1 and Figures 7.1-7.6: each silo's association by column, before and after the thesis's recoding."""
    rows, figures = [], []
    for place, (begin, end) in enumerate(pairwise(population.starts.tolist()), start=1):
        silo = population.frame[begin:end]
        before = association(silo, columns=adult.quasi, target=adult.target)
        for variant in (VARIANTS["k3"], VARIANTS["k3-exact"]):
            after = association_by_column(release(silo, adult, variant), adult)
            loss = 1.0 - sum(after.values()) / sum(before.values())
            rows.append(Found(f"silo {place}, {variant.label}", loss, SILO_LOSS[place - 1]))
        paths = [session.out / f"figure-7-{number}.svg" for number in (2 * place - 1, 2 * place)]
        # The last variant, with exact values kept, is the thesis's own.
        figures += draw_associations(paths, f"Silo {place}", {"as it is": before, "3-anonymous": after})
    return Part([ResultTable("Information loss of the silos", "Section 7.1", rows)], figures)


def _metric(found: Iterable[RunSummary], name: str) -> list[float]:
    return [float(one.metrics[name]) for one in found]


def _federated_table(name: str, found: list[RunSummary]) -> ResultTable:
    key, title, source = RUNS[name]
    rows = [Found.mean(measure, _metric(found, measure), FEDERATED[key][measure]) for measure in MEASURES]
    return ResultTable(title, source, rows)


def _drop_table(results: dict[str, list[RunSummary]]) -> ResultTable:
    paper = FEDERATED["none"]["accuracy"] - FEDERATED["k3"]["accuracy"]
    rows = []
    for name, label in (("silo", "accuracy lost by anonymising"), ("thesis", "the same by the thesis's algorithm")):
        pairs = zip(_metric(results["fedavg"], "accuracy"), _metric(results[name], "accuracy"), strict=True)
        rows.append(Found.mean(label, [plain - silo for plain, silo in pairs], paper))
    return ResultTable("Cost of anonymising the silos", "Tables 7.1 and 7.2", rows)


def _pooled_table(session: AnonymisedSession, federated: dict[str, list[RunSummary]]) -> ResultTable:
    """Pooled and federated learning beside each other; the thesis prints none of it."""
    rounds, rows = session.depth.rounds, []
    shown = {
        "federated, rows as they are": federated["fedavg"], "federated, silos anonymised": federated["silo"],
        "pooled rows as they are": session.runs.of(silo_plan("central", rounds=rounds)),
        "pooled rows, anonymised together": session.runs.of(silo_plan("silo", rounds=rounds, silos=1)),
    }  # fmt: skip
    for label, found in shown.items():
        rows.append(Found.mean(f"{label}: accuracy", _metric(found, "accuracy")))
        seconds = [one.seconds["slowest_site"] + one.seconds["hub"] for one in found]
        rows.append(Found.mean(f"{label}: seconds, silos in parallel", seconds))
        rows.append(Found.mean(f"{label}: megabytes sent", [one.bytes["up"] / 1e6 for one in found]))
    return ResultTable("Pooled against federated learning", "Section 8.2, future work", rows)
