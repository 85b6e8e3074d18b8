"""What the door, the ledger and the wire add to the bare kernel.

Ours is a whole round of the real engine: request, training, encoding, door, ledger on the disk, signed receipt,
validation, mean. The bare kernel trains the same stacked rows from the same weights and takes the same mean, with
nothing in between. Both kernels run on one thread, in turns. The best round of each counts, once it has stayed the
best for a while: other work on the machine makes a round slower, never faster.
"""

from __future__ import annotations

from math import inf
from time import perf_counter

import numpy as np

from bench.harness import Row
from bench.setup_federation import BATCH, LR, NETWORK, Federation, Timed, run_kohort
from kohort.models.dense.training import Training, fit_many
from kohort.models.rows import StackedRows
from kohort.rounds.aggregators.mean import weighted_mean

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "overhead"
SUMMARY = (
    "A warm round through engine, door, ledger (on disk) and wire, against the bare kernel on the same stacked rows "
    "plus the weighted mean; in turns until the best round of each stays the best, one thread each. "
    "No evaluation, no checkpoints."
)
TARGET = 1.5
NOTEWORTHY = 0.005
"""A best round that is better by less than this share is none to go on for."""
MOST = 6
"""Times the steady runs, on a machine that never comes to rest."""


def measure() -> list[Row]:
    return [
        _compare(Federation(sites=10, rows=2_000, rounds=60), steady=20),
        _compare(Federation(sites=1_000, rows=200, rounds=20), steady=8),
    ]


def _compare(federation: Federation, *, steady: int) -> Row:
    """Runs in turns, until `steady` of them in a row improved on neither side's best round."""
    ours = bare = inf
    left = steady
    for _ in range(MOST * steady):
        timed, plain = run_kohort(federation), run_bare(federation)
        if not np.array_equal(timed.weights, plain.weights):
            raise RuntimeError("the engine and the bare kernel did not train the same model")
        is_better = timed.warm_round < ours * (1 - NOTEWORTHY) or plain.warm_round < bare * (1 - NOTEWORTHY)
        ours, bare = min(ours, timed.warm_round), min(bare, plain.warm_round)
        left = steady if is_better else left - 1
        if left == 0:
            break
    added = ours - bare
    return Row.within(
        f"{federation.sites:,} sites x {federation.rows:,} rows, one round",
        ours=ours,
        peer="bare kernel and mean",
        theirs=bare,
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
