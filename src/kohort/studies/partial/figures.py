"""Figures 3 to 8: accuracy by epoch, load reduction, accuracy by threshold, and the two components of the loss."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
import polars as pl

from kohort.anonymity.gate.gate import apply_gate
from kohort.evaluate.utility import accuracy_of
from kohort.models.rows import encode_rows
from kohort.rng import Streams
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run
from kohort.runs.simulation import populate
from kohort.studies.harness.charts import curve_points, line_chart, point
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.harness.parallel import in_parallel
from kohort.studies.partial.paper import ACCURACY, ENCODING_E2, LARGEST
from kohort.studies.partial.plans import ABOVE, PAPER, Letter, PartialSession, marks_of, paper_gate
from kohort.tables.datasets.catalogue import open_table

__all__ = ["accuracy_by_threshold", "by_batch", "encodings", "error_components", "gate_share", "load_reduction",
           "random_share"]  # fmt: skip

QUASI: Final = ("age", "race", "sex")
ENCODINGS: Final = {"label": "E1", "onehot": "E2"}
ENDS: Final = {"FedAvg": ABOVE, "central": 1}
FINE: Final[dict[Letter, Sequence[int]]] = {
    "k": (*range(1, 560, 6), 554, 555),
    "l": (*range(1, 406, 6), 402, 403),
}
"""The thresholds at which Figure 4 is drawn."""


def encodings(session: PartialSession) -> Part:
    """Figure 3: training and test accuracy for both encodings, central and federated.

    Args:
        session: The running study; its depth says after how many epochs.

    Returns:
        One table, and the figure. Training accuracy takes a run of its own for every number of epochs.
    """
    epochs, seed = session.depth.epochs, session.depth.seeds[0]
    last = epochs[-1]
    session.say(f"Figure 3: both encodings, {last} epochs")
    cases = [(encoding, end, epoch) for encoding in ENCODINGS for end in ENDS for epoch in reversed(epochs)]
    jobs = [
        (paper_gate(PAPER, "k", ENDS[end], rounds=epoch, encoding=encoding), seed) for encoding, end, epoch in cases
    ]
    found = dict(zip(cases, in_parallel(_train_and_test, jobs, session.runs.processes), strict=True))
    rows, points = [], []
    for (encoding, name), end in ((item, end) for item in ENCODINGS.items() for end in ENDS):
        for epoch in epochs:
            trained, tested, _ = found[encoding, end, epoch]
            points.append(point(name, f"{end}, training", epoch, trained))
            if epoch in {100, last}:
                where = f"{name}, {end}, {epoch} epochs"
                rows.append(Found(f"{where}: test", tested, _printed_in_figure_3(name, end, epoch)))
                rows.append(Found(f"{where}: training", trained))
        points += curve_points(name, f"{end}, test", found[encoding, end, last][2])
    for end in ENDS:
        lower = found["onehot", end, last][1] < found["label", end, last][1]
        rows.append(Found(f"E2 is below E1, {end}, {last} epochs", lower, True))
    figure = line_chart(
        session.out / "figure-3.svg", title="Accuracy by epoch, paper's setting", points=points, x="epoch", y="accuracy"
    )
    return Part([ResultTable("Accuracy of the model by encoding, paper's setting", "Figure 3", rows)], [figure])


def _train_and_test(plan: Plan, seed: int) -> tuple[float, float, list[float]]:
    """Accuracy on the training rows and on the test rows at the end, and on the test rows after every round."""
    outcome = run(plan, seed=seed)
    rows = encode_rows(outcome.model.encoder, populate(plan, Streams.seeded(seed)).frame)
    return accuracy_of(outcome.model, rows), outcome.accuracy, [point["accuracy"] for point in outcome.history]


def _printed_in_figure_3(encoding: str, end: str, epoch: int) -> float | None:
    if encoding == "E2":
        return ENCODING_E2.get(epoch) if end == "FedAvg" else None
    return ACCURACY["fedavg" if end == "FedAvg" else "central"] if epoch == 100 else None


def complete_rows() -> pl.DataFrame:
    """The 30,162 rows of Adult's training part without a missing value."""
    return open_table("adult:train").frame.drop_nulls()


def load_reduction(session: PartialSession) -> Part:
    """Figure 4: the share of rows that leave the sites, over the whole table and in the runs of the other figures.

    Args:
        session: The running study.

    Returns:
        Two tables and the figure. Shares of the whole table are counted; those of training rows are of our runs.
    """
    frame, depth = complete_rows(), session.depth
    rows, used, points = [], [], []
    for letter in FINE:
        thresholds, largest = depth.thresholds(letter)[PAPER], LARGEST[letter]
        for threshold in dict.fromkeys([*thresholds, largest]):
            printed = _printed_share(letter, threshold)
            rows.append(Found(f"{letter} = {threshold}, at least", gate_share(frame, letter, threshold), printed))
        above = gate_share(frame, letter, largest, strict=True)
        rows.append(Found(f"{letter} = {largest}, more than", above, 0.0))
        points += [point("load reduction", letter, value, gate_share(frame, letter, value)) for value in FINE[letter]]
        for threshold in thresholds:
            shares = session.runs.values(
                paper_gate(PAPER, letter, threshold, rounds=depth.rounds), lambda one: one.share
            )
            used.append(Found.mean(f"{letter} = {threshold}", shares))
    figure = line_chart(
        session.out / "figure-4.svg", title="Share of 30,162 rows that the sites hand over", points=points,
        x="threshold", y="share", y_format="%", zero=True,
    )  # fmt: skip
    tables = [
        ResultTable("Reduction of the sites' load, all rows", "Figure 4", rows),
        ResultTable("Reduction of the sites' load in our runs, training rows", "Figure 4", used),
    ]
    return Part(tables, [figure])


def gate_share(frame: pl.DataFrame, letter: Letter, threshold: int, *, strict: bool = False) -> float:
    """The share of rows that the paper's gate lets through.

    Args:
        frame: The rows to count.
        letter: The gate: k, or the paper's l on income.
        threshold: The smallest group that passes, on the scale of these rows.
        strict: Groups must be larger than the threshold.

    Returns:
        From 0 to 1.
    """
    if letter == "k":
        return apply_gate(frame, quasi=QUASI, rule="k-anonymity", k=threshold, strict=strict).share
    return apply_gate(frame, quasi=QUASI, rule="paper-l", sensitive="income", l=threshold, strict=strict).share


def _printed_share(letter: Letter, threshold: int) -> float | None:
    if threshold == 1:
        return 1.0
    if letter == "l" and threshold == 200:
        return 0.5  # Section 5.4: "for l about 200, 50% samples are sent"
    return 0.0 if threshold >= LARGEST[letter] else None


def accuracy_by_threshold(session: PartialSession, letter: Letter) -> Part:
    """Figure 5 (k), or Figures 6 and 7 (l): accuracy by epoch and at the end, in the paper's setting and tuned.

    Args:
        session: The running study.
        letter: The gate: k or l.

    Returns:
        One table per setting, and one or two figures.
    """
    runs, rounds, out = session.runs, session.depth.rounds, session.out
    points, ends, tables = [], [], []
    for training, thresholds in session.depth.thresholds(letter).items():
        session.say(f"Accuracy by {letter}, {training.name}: {len(thresholds)} thresholds, {len(runs.seeds)} seeds")
        plans = {threshold: paper_gate(training, letter, threshold, rounds=rounds) for threshold in thresholds}
        runs.prepare(list(plans.values()))
        rows = []
        for threshold, plan in plans.items():
            points += curve_points(training.name, f"{letter} = {threshold}", runs.curve(plan))
            ends.append(point(f"after {rounds} epochs", training.name, threshold, runs.mean(plan)))
            for mark in marks_of(rounds):
                printed = _printed_end(letter, threshold) if (training, mark) == (PAPER, 100) else None
                rows.append(runs.found(f"{letter} = {threshold}, {mark} rounds", plan, printed, after=mark))
        source = "Figure 5" if letter == "k" else "Figures 6 and 7"
        tables.append(ResultTable(f"Accuracy by {letter}, {training.name}", source, rows))
    path = out / f"figure-{5 if letter == 'k' else 6}.svg"
    title = f"Accuracy by epoch and {letter}, ten age sites"
    figures = [line_chart(path, title=title, points=points, x="epoch", y="accuracy")]
    if letter == "l":
        title = "Accuracy by l (Algorithm 2)"
        figures.append(line_chart(out / "figure-7.svg", title=title, points=ends, x="l", y="accuracy", dots=True))
    return Part(tables, figures)


def _printed_end(letter: Letter, threshold: int) -> float | None:
    if threshold == 1:
        return ACCURACY["central"]
    return ACCURACY["fedavg"] if threshold >= LARGEST[letter] else None


def by_batch(session: PartialSession) -> Part:
    """Accuracy of central learning and FedAvg by batch size, which the paper does not print.

    Args:
        session: The running study; its depth says which sizes.

    Returns:
        One table.
    """
    session.say("Accuracy by batch")
    runs, rounds = session.runs, session.depth.rounds
    plans = {
        (batch, end): paper_gate(PAPER, "k", threshold, rounds=rounds, train={"batch": batch})
        for batch in session.depth.batches
        for end, threshold in ENDS.items()
    }
    runs.prepare(list(plans.values()))
    rows = []
    for (batch, end), plan in plans.items():
        for mark in marks_of(rounds):
            printed = _printed_end("k", ENDS[end]) if mark == 100 else None
            rows.append(runs.found(f"{end}, {batch}, {mark} rounds", plan, printed, after=mark))
    return Part([ResultTable("Accuracy by batch, else the paper's setting", "Figure 5", rows)])


def error_components(session: PartialSession) -> Part:
    """Figure 8: the loss when as many rows are sent at random (component 1), and what Algorithm 2 adds (component 2).

    Args:
        session: The running study; its depth says for which l.

    Returns:
        One table and the figure. Losses are in accuracy, against central learning.
    """
    session.say("Figure 8: as many rows at random")
    runs, rounds = session.runs, session.depth.rounds
    plans = {threshold: paper_gate(PAPER, "l", threshold, rounds=rounds) for threshold in session.depth.component_ls}
    central = runs.accuracies(paper_gate(PAPER, "l", 1, rounds=rounds))
    # Where all rows are sent or none, a random draw is the gate's own.
    jobs = [
        (plan, found.shared, seed)
        for plan in plans.values()
        for found, seed in zip(runs.of(plan), runs.seeds, strict=True)
        if 0 < found.shared < found.rows
    ]
    places = [(plan.digest(), seed) for plan, _, seed in jobs]
    random = dict(zip(places, in_parallel(random_share, jobs, runs.processes), strict=True))
    rows, points = [], []
    for threshold, plan in plans.items():
        gated = runs.accuracies(plan)
        drawn = [random.get((plan.digest(), seed), own) for own, seed in zip(gated, runs.seeds, strict=True)]
        parts = {
            "component 1": [whole - part for whole, part in zip(central, drawn, strict=True)],
            "component 2": [part - own for part, own in zip(drawn, gated, strict=True)],
        }
        for name, values in parts.items():
            rows.append(Found.mean(f"l = {threshold}: {name}", values, 0.0 if threshold == 1 else None))
            points.append(point("accuracy lost", name, threshold, fmean(values)))
    figure = line_chart(
        session.out / "figure-8.svg", title="Accuracy lost against central learning (Algorithm 2), measured",
        points=points, x="l", y="accuracy lost", dots=True,
    )  # fmt: skip
    return Part([ResultTable("The two components of the loss, paper's setting", "Figure 8", rows)], [figure])


def random_share(plan: Plan, shared: int, seed: int) -> float:
    """Accuracy when the hub receives rows drawn at random instead of those that pass the gate.

    The hub takes part in the mean like a site, so this is federated averaging with one more site, whose table is the
    drawn rows. Sites left without a row take no part.

    Args:
        plan: The plan with the gate; everything else stays as in it.
        shared: How many rows the hub receives.
        seed: The seed of the run and of the draw.

    Returns:
        Accuracy on the plan's test rows.
    """
    population = populate(plan, Streams.seeded(seed))
    drawn = np.zeros(population.frame.height, dtype=bool)
    generator = Streams.seeded(seed).generator("random share")
    drawn[generator.permutation(len(drawn))[:shared]] = True
    tables = {
        name: population.frame[begin:end].filter(pl.Series(~drawn[begin:end]))
        for name, (begin, end) in zip(population.names, pairwise(population.starts.tolist()), strict=True)
    }
    tables["hub"] = population.frame.filter(pl.Series(drawn))
    columns = population.schema.columns
    mapping = plan.to_mapping()
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / "test.parquet"
        population.test.write_parquet(test)
        mapping["data"] |= {
            "table": "memory",
            "test": str(test),
            "features": "rest",
            "drop": [],
            "unseen": "error",  # the same test rows as the gate's run, which leaves out categories that no site has
            "categories": {name: spec.categories for name, spec in columns.items() if spec.categories is not None},
            "bounds": {name: spec.bounds for name, spec in columns.items() if spec.bounds is not None},
        }
        mapping["sites"] = {key: value for key, value in mapping["sites"].items() if key != "count"} | {
            "split": "files"
        }
        mapping["method"] = {"name": "fedavg"}
        kept = {name: part for name, part in tables.items() if part.height}
        return run(load_plan(mapping, complete=True), seed=seed, tables=kept).accuracy
