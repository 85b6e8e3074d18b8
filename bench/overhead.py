"""What the door, the ledger and the wire add to the bare kernel.

Ours is a whole round of the real engine: request, training, encoding, door, ledger on the disk, signed receipt,
validation, mean. The bare kernel trains the same stacked rows from the same weights and takes the same mean, with
nothing in between. Both kernels run on one thread, in turns, and the best round of each counts. While its kernel runs,
the engine signs the receipt of the round before on a second thread: on a machine with one core that time comes on top.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from bench.harness import Row
from bench.setup_federation import BATCH, LR, NETWORK, Federation, Timed, run_kohort
from kohort.federation.aggregate import weighted_mean
from kohort.learn.rows import StackedRows
from kohort.learn.training import Training, fit_many

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "overhead"
SUMMARY = (
    "A warm round through engine, door, ledger (on disk) and wire, against the bare kernel on the same stacked rows "
    "plus the weighted mean; best round of several runs in turns, one thread each, and one more that signs the last "
    "receipt meanwhile. No evaluation, no checkpoints."
)
TARGET = 1.2


def measure() -> list[Row]:
    return [
        _compare(Federation(sites=10, rows=2_000, rounds=60), runs=25),
        _compare(Federation(sites=1_000, rows=200, rounds=20), runs=12),
    ]


def _compare(federation: Federation, *, runs: int) -> Row:
    ours, bare = [], []
    for _ in range(runs):
        timed = run_kohort(federation)
        plain = run_bare(federation)
        if not np.array_equal(timed.weights, plain.weights):
            raise RuntimeError("the engine and the bare kernel did not train the same model")
        ours += timed.rounds[1:]
        bare += plain.rounds[1:]
    added = min(ours) - min(bare)
    return Row.within(
        f"{federation.sites:,} sites x {federation.rows:,} rows, one round",
        ours=min(ours),
        peer="bare kernel and mean",
        theirs=min(bare),
        unit="s",
        target=TARGET,
        note=f"{federation.sites:,} sites: {added * 1e3:.2f} ms a round added.",
    )


def run_bare(federation: Federation) -> Timed:
    """The kernel alone, round after round."""
    counts = np.full(federation.sites, federation.rows, dtype=np.int64)
    starts = np.arange(federation.sites, dtype=np.int64) * federation.rows
    rows = StackedRows(federation.x, federation.y, None, starts, counts)
    training = Training(batch=BATCH, optimizer="sgd", lr=LR)
    keys, weights = federation.keys, federation.start
    marks = [perf_counter()]
    for number in range(federation.rounds):
        fitted = fit_many(NETWORK, weights, rows, training=training, keys=keys, round=number, keep_state=False)
        weights = weighted_mean(fitted.weights, counts).astype(np.float32)
        marks.append(perf_counter())
    return Timed(weights=weights, total=marks[-1] - marks[0], rounds=np.diff(marks).tolist())
