"""Partially-federated learning (Fisichella, Lax, Russo: Partially-federated learning: A new approach to achieving
privacy and effectiveness, Information Sciences 614, 2022): Figures 3-8 and Tables 1-2, ours beside the paper's, in the
paper's setting and with a tuned optimiser; then what the paper leaves open.

KOHORT_PROCESSES sets how many runs are made side by side; the figures do not depend on it, and running times are always
measured alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from kohort.models.dense.network import Init
from kohort.studies.harness.lines import row, row_of
from kohort.studies.harness.side_by_side import processes_here
from kohort.studies.partial.figures import (
    Part,
    accuracy_by_threshold,
    both,
    by_batch,
    encodings,
    error_components,
    load_reduction,
    marks_of,
)
from kohort.studies.partial.paper import ACCURACY, LARGEST
from kohort.studies.partial.release import Case, by_start, counts, other_aggregators, releases
from kohort.studies.partial.runs import E2_WIDTH, PAPER, START, TUNED, Letter, Runs, Training, paper_gate
from kohort.studies.partial.times import running_times
from kohort.studies.registry import Say, Study

__all__ = ["FULL", "QUICK", "STUDY", "Depth", "run_study"]

ABOVE: Final = LARGEST["k"] + 1
LEVEL: Final = 0.81
"""The accuracy by whose first round speed is compared; FedAvg reaches it late in the paper's setting."""
TOLERANCE: Final = 0.005


@dataclass(frozen=True, kw_only=True)
class Depth:
    """How much of the study is run."""

    seeds: tuple[int, ...]
    variant_seeds: tuple[int, ...]
    """Of the other aggregators."""
    rounds: int
    ks: tuple[int, ...]
    ls: tuple[int, ...]
    tuned_ks: tuple[int, ...]
    tuned_ls: tuple[int, ...]
    component_ls: tuple[int, ...]
    epochs: tuple[int, ...]
    """Of Figure 3."""
    batches: tuple[int, ...]
    starts: tuple[Init, ...]
    """Ways to start weights; the study's own, or that and others."""
    timed_ks: tuple[int, ...]
    timed_ls: tuple[int, ...]
    repetitions: int
    releases: tuple[Case, ...]


DIAL_K: Final = (1, 100, 200, 300, 400, 500, ABOVE)
DIAL_L: Final = (1, 50, 100, 150, 200, 250, 300, 350, LARGEST["l"])
FULL = Depth(
    seeds=(0, 1, 2, 3, 4),
    variant_seeds=(0, 1, 2, 3, 4),
    rounds=100,
    ks=DIAL_K,
    ls=DIAL_L,
    tuned_ks=DIAL_K,
    tuned_ls=DIAL_L,
    component_ls=DIAL_L,
    epochs=(10, 50, 100, 200, 400),
    batches=(32, 64, 128),
    starts=("he", "glorot", "pytorch"),
    timed_ks=DIAL_K,
    timed_ls=(100, 200, 300),
    repetitions=3,
    releases=(
        ("interval:age", PAPER, (60, 100)),
        ("interval:age", TUNED, (20,)),
        ("iid", PAPER, (60, 100)),
        ("iid", TUNED, (20,)),
    ),
)
QUICK = Depth(
    seeds=(0, 1),
    variant_seeds=(0,),
    rounds=100,
    ks=DIAL_K,
    ls=(1, 100, 200, 300, LARGEST["l"]),
    tuned_ks=(1, 100, ABOVE),
    tuned_ls=(1, LARGEST["l"]),
    component_ls=(1, 200, LARGEST["l"]),
    epochs=(20, 60),
    batches=(64,),
    starts=(START,),
    timed_ks=(1, 300, ABOVE),
    timed_ls=(),
    repetitions=1,
    releases=(("interval:age", PAPER, (60,)), ("interval:age", TUNED, (20,))),
)


def run_study(out: Path, quick: bool, say: Say) -> dict[str, Any]:
    """Run it all; figures go into `out`."""
    depth = QUICK if quick else FULL
    runs = Runs(depth.seeds, processes=processes_here())
    rounds, first = depth.rounds, depth.seeds[0]
    by_k = accuracy_by_threshold(out, runs, "k", both(depth.ks, depth.tuned_ks), rounds=rounds, say=say)
    by_l = accuracy_by_threshold(out, runs, "l", both(depth.ls, depth.tuned_ls), rounds=rounds, say=say)
    parts = [
        Part(tables=(_ends(runs, depth),)),
        encodings(out, epochs=depth.epochs, seed=first, processes=runs.processes, say=say),
        load_reduction(out, runs, depth.ks, depth.ls, rounds=rounds),
        by_k,
        by_l,
        by_batch(runs, batches=depth.batches, rounds=rounds, say=say),
        by_start(runs, starts=depth.starts, rounds=rounds, say=say),
        error_components(out, runs, depth.component_ls, rounds=rounds, say=say),
        running_times(out, ks=depth.timed_ks, ls=depth.timed_ls, rounds=rounds, repetitions=depth.repetitions, say=say),
        Part(tables=(_conclusions(runs, depth), _speed(runs, depth))),
        releases(runs, depth.releases, say=say),
        other_aggregators(runs, seeds=depth.variant_seeds, rounds=rounds, mark=min(60, rounds), say=say),
        counts(seed=first, say=say),
    ]
    return {
        "name": STUDY.name,
        "tables": [table for part in parts for table in part.tables],
        "figures": [path.name for part in parts for path in part.figures],
        "notes": [*_notes(runs, depth), *(note for part in parts for note in part.notes)],
    }


def _ends(runs: Runs, depth: Depth) -> dict[str, Any]:
    """The two ends of the dial, which the paper's text gives as numbers, after 20, 60 and all rounds."""
    rows = []
    for training in (PAPER, TUNED):
        for name, k, printed in (("central", 1, ACCURACY["central"]), ("FedAvg", ABOVE, ACCURACY["fedavg"])):
            found = runs.of(paper_gate(training, "k", k, rounds=depth.rounds))
            for mark in marks_of(depth.rounds):
                values = [item.curve[mark - 1] for item in found]
                rows.append(row_of(f"{name}, {training.name}, {mark} rounds", printed, values))
    return {"name": "Central learning and FedAvg on ten age sites", "source": "Section 6, after 100", "rows": rows}


def _mean(runs: Runs, training: Training, letter: Letter, threshold: int, rounds: int) -> float:
    return fmean(runs.accuracies(paper_gate(training, letter, threshold, rounds=rounds)))


def _conclusions(runs: Runs, depth: Depth) -> dict[str, Any]:
    """What the paper concludes, and whether it holds here."""
    rounds = depth.rounds
    curves = [runs.curve(paper_gate(PAPER, "k", k, rounds=rounds)) for k in depth.ks]
    by_k = [curve[-1] for curve in curves]
    by_l = {threshold: _mean(runs, PAPER, "l", threshold, rounds) for threshold in depth.ls}
    central, fedavg = by_k[0], by_k[-1]
    printed = (ACCURACY["central"] - ACCURACY["fedavg"]) / ACCURACY["fedavg"]
    falls = {
        mark: all(later[mark - 1] <= earlier[mark - 1] + TOLERANCE for earlier, later in pairwise(curves))
        for mark in marks_of(rounds)[1:]
    }
    rows = [
        row(f"central learning gains over FedAvg, {rounds} rounds, relative", printed, (central - fedavg) / fedavg),
        *(
            row(f"accuracy does not rise with k (within half a point), {mark} rounds", "yes", _yes(holds))
            for mark, holds in falls.items()
        ),
        row("by l the accuracy falls below FedAvg and comes back", "yes",
            _yes(min(by_l.values()) < by_l[LARGEST["l"]] - TOLERANCE)),
        row("l = 300 is below FedAvg", "yes", _yes(by_l[300] < by_l[LARGEST["l"]])),
        row("lowest accuracy at l = ", None, min(by_l, key=by_l.__getitem__)),
    ]  # fmt: skip
    for threshold in (100, 200):
        curve = runs.curve(paper_gate(PAPER, "l", threshold, rounds=rounds))
        worse = max(curve[: max(1, rounds // 5)]) > curve[-1] + TOLERANCE
        rows.append(row(f"l = {threshold} falls after its first epochs", "yes", _yes(worse)))
    tuned = {k: _mean(runs, TUNED, "k", k, rounds) for k in (1, ABOVE)}
    gap = (tuned[1] - tuned[ABOVE]) / tuned[ABOVE]
    rows.append(row(f"the same gain tuned, {rounds} rounds, relative", None, gap))
    return {"name": "What the paper concludes", "source": "Sections 5.4 and 6", "rows": rows}


def _speed(runs: Runs, depth: Depth) -> dict[str, Any]:
    """What the gate buys: rounds until a level, and how often the sites went over the rows till then."""
    rows = []
    for training, ks in ((PAPER, depth.ks), (TUNED, depth.tuned_ks)):
        for k in ks:
            plan = paper_gate(training, "k", k, rounds=depth.rounds)
            needed = _first_at(runs.curve(plan), LEVEL)
            kept = 1 - fmean(found.share for found in runs.of(plan))
            rows.append(row(f"{training.name}, k = {k}: rounds until {LEVEL}", None, needed))
            work = None if needed is None else needed * kept
            rows.append(row(f"{training.name}, k = {k}: passes over the table at the sites till then", None, work))
    return {"name": "What the gate buys", "source": "Section 5.4", "rows": rows}


def _first_at(curve: Sequence[float], level: float) -> int | None:
    return next((place for place, value in enumerate(curve, start=1) if value >= level), None)


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _notes(runs: Runs, depth: Depth) -> list[str]:
    rounds = depth.rounds
    ends = {
        (training, k): runs.curve(paper_gate(training, "k", k, rounds=rounds))
        for training in (PAPER, TUNED)
        for k in (1, ABOVE)
    }
    told = "; ".join(
        f"{training.name} {ends[training, 1][mark - 1]:.3f} and {ends[training, ABOVE][mark - 1]:.3f} after {mark}"
        for training in (PAPER, TUNED)
        for mark in marks_of(rounds)
    )
    gap = 100 * (ends[TUNED, 1][-1] - ends[TUNED, ABOVE][-1])
    notes = [
        f"Central learning and FedAvg on ten age sites: {told} rounds. What the gate buys is fewer rounds and less "
        f"work at the sites, not a better end point: tuned, {gap:.1f} points are left between the two.",
        f"Paper's setting: Adam at 0.001, restarted every round at hub and sites, batches of {PAPER.batch}, one epoch "
        "a round, one hidden layer as wide as the input. The paper prints neither batch nor restart nor how weights "
        "start, and FedAvg's end point depends on all of them: see the tables by batch and by starting weights. Its "
        "simulator is built on TensorFlow, which starts by Glorot; PyTorch's start was taken as it comes nearer to the "
        "paper's two ends. After 60 rounds FedAvg has the paper's 0.80, after the paper's 100 one point more. "
        f"Tuned: plain SGD at {TUNED.lr} in batches of {TUNED.batch}.",
        "Thresholds are on the paper's scale, counts over all 30,162 rows. Sites hold the 70 % they train on, so the "
        "runs ask for 0.7 times as many rows; the tables of load reductions show both shares. The tables on releases "
        "and on counting take k = 100 over the training rows, as `kohort run` does, or 70 where they say so.",
        "Counts are at least k here, as Algorithms 1 and 2 print. The text says more than k, and its thresholds 554 "
        "and 402 follow from that: see the last lines of the load reductions. Line 8 of Algorithm 2 prints k for l.",
        "Encoding E2 has 86 features by the paper's words (six columns as indicators), not 95. Here they are "
        f"{E2_WIDTH}: sex is two indicators, and one work class occurs in no complete row.",
        "Hours are cut at 25, 40 and 60, gain and loss into none, low and high at the median of the positive values, "
        "as in the package the paper cites; the paper prints no cut points.",
        "The paper's figures are curves without values. Beside ours stand the values its text and tables give.",
        "Figure 8: component 1 is measured as the loss when as many rows as Algorithm 2 ships are drawn at random, "
        "component 2 is the rest. The paper calls its own curves ideal.",
        "Tables 1 and 2 are seconds of this machine and a compiled kernel; the paper's are TensorFlow's. Compare the "
        "lines with central = 1, on a machine that does nothing else: they are seconds of the clock. The hub's seconds "
        "contain the averaging.",
        "Raw rows counted in clear need sites that trust the counts of others; the default is a secure count and "
        "generalised rows. Most raw rows are unique on what is shipped, at k = 100 too.",
        "Tuned curves with a gate can jump: where an epoch leaves the hub a last batch of one row, a whole step of "
        f"{TUNED.lr} follows that row.",
    ]
    if depth is QUICK:
        notes.append(
            f"Quick: {len(depth.seeds)} seeds, fewer thresholds, one batch, Figure 3 to {depth.epochs[-1]} epochs, no "
            "running time by l, no releases on iid sites."
        )
    return notes


STUDY = Study(
    name="partial",
    summary="Rows that hide in a crowd go to the hub: accuracy, load and running time by k and l, and safe releases.",
    cites="Fisichella, Lax, Russo 2022",
    run=run_study,
)
