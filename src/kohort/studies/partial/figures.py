"""Figures 3 to 8: accuracy by epoch, load reduction, accuracy by threshold, and the two components of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import polars as pl

from kohort.anonymity.gate.gate import apply_gate
from kohort.evaluate.utility import accuracy_of
from kohort.models.rows import encode_rows
from kohort.rng import Streams
from kohort.runs.config import Plan
from kohort.runs.run import run
from kohort.runs.simulation import populate
from kohort.studies.harness.lines import row, row_of
from kohort.studies.harness.side_by_side import spread
from kohort.studies.partial.charts import draw_lines
from kohort.studies.partial.paper import ACCURACY, ENCODING_E2, LARGEST
from kohort.studies.partial.runs import (
    PAPER,
    TRUSTING,
    TUNED,
    Letter,
    Runs,
    Training,
    adult_plan,
    gate_for,
    paper_gate,
    random_share,
)
from kohort.studies.registry import Say
from kohort.tables.datasets.catalogue import open_table

__all__ = [
    "Dial",
    "Part",
    "accuracy_by_threshold",
    "both",
    "by_batch",
    "encodings",
    "error_components",
    "load_reduction",
    "marks_of",
]

QUASI: Final = ("age", "race", "sex")
ENCODINGS: Final = {"label": "E1", "onehot": "E2"}
ENDS: Final = {"FedAvg": LARGEST["k"] + 1, "central": 1}
FINE: Final = {"k": (*range(1, 560, 6), 554, 555), "l": (*range(1, 406, 6), 402, 403)}
MARKS: Final = (20, 60)
"""Rounds before the last whose accuracy is printed too."""


def marks_of(rounds: int) -> tuple[int, ...]:
    """The rounds of a run whose accuracy is printed."""
    return (*(mark for mark in MARKS if mark < rounds), rounds)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Tables and figures of one part of the study."""

    tables: tuple[dict[str, Any], ...]
    figures: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


Dial = Mapping[Training, Sequence[int]]
"""The thresholds to run, by setting."""


def encodings(out: Path, *, epochs: Sequence[int], seed: int, processes: int, say: Say) -> Part:
    """Figure 3: training and test accuracy for both encodings, pooled and federated."""
    say(f"Figure 3: both encodings, {epochs[-1]} epochs")
    cases = [(encoding, end, epoch) for encoding in ENCODINGS for end in ENDS for epoch in reversed(epochs)]
    jobs = [
        (paper_gate(PAPER, "k", ENDS[end], rounds=epoch, encoding=encoding), seed) for encoding, end, epoch in cases
    ]
    found = dict(zip(cases, spread(_train_and_test, jobs, processes), strict=True))
    rows, points = [], []
    for encoding, name in ENCODINGS.items():
        for end in ENDS:
            for epoch in epochs:
                trained, tested, _ = found[encoding, end, epoch]
                points.append({"panel": name, "series": f"{end}, training", "x": epoch, "y": trained})
                if epoch in {100, epochs[-1]}:
                    printed = _printed_in_figure_3(name, end, epoch)
                    rows.append(row(f"{name}, {end}, {epoch} epochs: test", printed, tested))
                    rows.append(row(f"{name}, {end}, {epoch} epochs: training", None, trained))
            curve = found[encoding, end, epochs[-1]][2]
            points += [
                {"panel": name, "series": f"{end}, test", "x": place, "y": value}
                for place, value in enumerate(curve, start=1)
            ]
    for end in ENDS:
        lower = found["onehot", end, epochs[-1]][1] < found["label", end, epochs[-1]][1]
        rows.append(row(f"E2 is below E1, {end}, {epochs[-1]} epochs", "yes", "yes" if lower else "no"))
    figure = draw_lines(
        out / "figure-3.svg", title="Accuracy by epoch, paper's setting", rows=points, x="epoch", y="accuracy"
    )
    table = {"name": "Accuracy of the model by encoding, paper's setting", "source": "Figure 3", "rows": rows}
    return Part(tables=(table,), figures=(figure,))


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


def load_reduction(out: Path, runs: Runs, ks: Sequence[int], ls: Sequence[int], *, rounds: int) -> Part:
    """Figure 4: the share of rows the sites are rid of, over the whole table and in the runs of the other figures."""
    frame = complete_rows()
    rows, points = [], []
    for letter, thresholds in (("k", ks), ("l", ls)):
        for threshold in dict.fromkeys([*thresholds, LARGEST[letter]]):
            rows.append(row(f"{letter} = {threshold}, at least", _printed_share(letter, threshold, strict=False),
                            _share(frame, letter, threshold)))  # fmt: skip
        above = _share(frame, letter, LARGEST[letter], strict=True)
        rows.append(row(f"{letter} = {LARGEST[letter]}, more than", 0.0, above))
        points += [
            {"panel": "load reduction", "series": letter, "x": value, "y": _share(frame, letter, value)}
            for value in FINE[letter]
        ]
    used = []
    dials: tuple[tuple[Letter, Sequence[int]], ...] = (("k", ks), ("l", ls))
    for letter, thresholds in dials:
        for threshold in thresholds:
            found = runs.of(paper_gate(PAPER, letter, threshold, rounds=rounds))
            used.append(row_of(f"{letter} = {threshold}", None, [item.share for item in found]))
    figure = draw_lines(
        out / "figure-4.svg", title="Rows the sites are rid of, of 30,162", rows=points, x="threshold", y="share",
        percent=True,
    )  # fmt: skip
    whole = {"name": "Reduction of the sites' load, all rows", "source": "Figure 4", "rows": rows}
    ours = {"name": "Reduction of the sites' load in our runs, training rows", "source": "Figure 4", "rows": used}
    return Part(tables=(whole, ours), figures=(figure,))


def _share(frame: pl.DataFrame, letter: str, threshold: int, *, strict: bool = False) -> float:
    if letter == "k":
        return apply_gate(frame, quasi=QUASI, rule="k-anonymity", k=threshold, strict=strict).share
    return apply_gate(frame, quasi=QUASI, rule="paper-l", sensitive="income", l=threshold, strict=strict).share


def _printed_share(letter: str, threshold: int, *, strict: bool) -> float | None:
    if threshold == 1:
        return 1.0
    if letter == "l" and threshold == 200:
        return 0.5  # Section 5.4: "for l about 200, 50% samples are sent"
    return 0.0 if strict or threshold >= LARGEST[letter] else None


def accuracy_by_threshold(out: Path, runs: Runs, letter: Letter, dial: Dial, *, rounds: int, say: Say) -> Part:
    """Figure 5 (k), or Figures 6 and 7 (l): accuracy by epoch and at the end, in the paper's setting and tuned."""
    points, ends, tables = [], [], []
    for training, thresholds in dial.items():
        say(f"Accuracy by {letter}, {training.name}: {len(thresholds)} thresholds, {len(runs.seeds)} seeds")
        runs.prepare([paper_gate(training, letter, threshold, rounds=rounds) for threshold in thresholds])
        rows = []
        for threshold in thresholds:
            plan = paper_gate(training, letter, threshold, rounds=rounds)
            found = runs.of(plan)
            points += [
                {"panel": training.name, "series": f"{letter} = {threshold}", "x": place, "y": value}
                for place, value in enumerate(runs.curve(plan), start=1)
            ]
            ends.append(
                {"panel": f"after {rounds} epochs", "series": training.name, "x": threshold,
                 "y": fmean(item.accuracy for item in found)}
            )  # fmt: skip
            for mark in marks_of(rounds):
                printed = _printed_end(letter, threshold) if (training, mark) == (PAPER, 100) else None
                values = [item.curve[mark - 1] for item in found]
                rows.append(row_of(f"{letter} = {threshold}, {mark} rounds", printed, values))
        source = "Figure 5" if letter == "k" else "Figures 6 and 7"
        tables.append({"name": f"Accuracy by {letter}, {training.name}", "source": source, "rows": rows})
    number = 5 if letter == "k" else 6
    title = f"Accuracy by epoch and {letter}, ten age sites"
    figures = [draw_lines(out / f"figure-{number}.svg", title=title, rows=points, x="epoch", y="accuracy")]
    if letter == "l":
        path = out / "figure-7.svg"
        figures.append(draw_lines(path, title="Accuracy by l (Algorithm 2)", rows=ends, x="l", y="accuracy", dots=True))
    return Part(tables=tuple(tables), figures=tuple(figures))


def _printed_end(letter: str, threshold: int) -> float | None:
    if threshold == 1:
        return ACCURACY["central"]
    return ACCURACY["fedavg"] if threshold >= LARGEST[letter] else None


def by_batch(runs: Runs, *, batches: Sequence[int], rounds: int, say: Say) -> Part:
    """How the two ends depend on the batch, which the paper does not print."""
    say("Accuracy by batch")
    plans = {
        (batch, end): adult_plan(
            PAPER, rounds=rounds, gate=gate_for("k", threshold), train={"batch": batch}, policy=TRUSTING
        )
        for batch in batches
        for end, threshold in ENDS.items()
    }
    runs.prepare(list(plans.values()))
    rows = []
    for batch in batches:
        for end, threshold in ENDS.items():
            found = runs.of(plans[batch, end])
            for mark in marks_of(rounds):
                printed = _printed_end("k", threshold) if mark == 100 else None
                rows.append(row_of(f"{end}, {batch}, {mark} rounds", printed, [item.curve[mark - 1] for item in found]))
    table = {"name": "Accuracy by batch, else the paper's setting", "source": "Figure 5", "rows": rows}
    return Part(tables=(table,))


def error_components(out: Path, runs: Runs, ls: Sequence[int], *, rounds: int, say: Say) -> Part:
    """Figure 8: the loss against central learning when as many rows go at random, and what Algorithm 2 adds."""
    say("Figure 8: as many rows at random")
    plans = {threshold: paper_gate(PAPER, "l", threshold, rounds=rounds) for threshold in ls}
    central = runs.accuracies(paper_gate(PAPER, "l", 1, rounds=rounds))
    # All rows at random are all rows, and none are none: only in between there is something to draw.
    jobs = [
        (plans[threshold], found.shared, seed)
        for threshold in ls
        for found, seed in zip(runs.of(plans[threshold]), runs.seeds, strict=True)
        if 0 < found.shared < found.rows
    ]
    places = [(plan.digest(), seed) for plan, _, seed in jobs]
    random = dict(zip(places, spread(random_share, jobs, runs.processes), strict=True))
    rows, points = [], []
    for threshold in ls:
        found = runs.of(plans[threshold])
        digest = plans[threshold].digest()
        drawn = [random.get((digest, seed), item.accuracy) for item, seed in zip(found, runs.seeds, strict=True)]
        parts = {
            "component 1": [whole - part for whole, part in zip(central, drawn, strict=True)],
            "component 2": [part - item.accuracy for part, item in zip(drawn, found, strict=True)],
        }
        for name, values in parts.items():
            rows.append(row_of(f"l = {threshold}: {name}", 0.0 if threshold == 1 else None, values))
            points.append({"panel": "accuracy lost", "series": name, "x": threshold, "y": fmean(values)})
    figure = draw_lines(
        out / "figure-8.svg", title="Accuracy lost against central learning (Algorithm 2), measured", rows=points,
        x="l", y="accuracy lost", dots=True,
    )  # fmt: skip
    table = {"name": "The two components of the loss, paper's setting", "source": "Figure 8", "rows": rows}
    return Part(tables=(table,), figures=(figure,))


def both(paper: Sequence[int], tuned: Sequence[int]) -> Dial:
    """The thresholds of the two settings."""
    return {PAPER: tuple(paper), TUNED: tuple(tuned)}
