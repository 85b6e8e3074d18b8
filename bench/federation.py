"""Federated averaging in process, against Flower's simulation and a plain torch loop on the same rows.

All three start from the same weights and read the same rows in the same order, so they must end at the same weights;
a run that does not is an error, not a figure. The clock starts when rows are in memory and code is imported and
compiled. Ours runs the real engine on one thread: sites, approval, enrolment, encoding, door, ledger on the disk, wire.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bench.harness import Row
from bench.setup_federation import Federation, Timed, run_kohort

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "federation"
SUMMARY = (
    "FedAvg of an MLP 12-12-2, batch 32, SGD 0.1, without evaluation. kohort (one thread) writes its ledger to the "
    "disk; Flower simulates with Ray on all cores; the torch loop only trains and averages. Times are inside the run, "
    "imports and compilation excluded on both sides; a warm round is the best of all rounds but the first."
)
SMALL = Federation(sites=10, rows=2_000, rounds=20)
LARGE = Federation(sites=1_000, rows=200, rounds=20)
LARGE_PEER_ROUNDS = 3
"""A round of 1,000 Flower clients takes many seconds."""
REPETITIONS = 5
LARGEST_DIFFERENCE = 1e-3
"""Rounding differs, which hundreds of steps across the kinks of ReLU can amplify."""
FLOWER, TORCH = "Flower simulation", "torch loop"

Peer = Callable[[Federation, int], Timed]


def measure() -> list[Row]:
    return [*_small(), *_large()]


def _small() -> list[Row]:
    setting = "10 sites x 2,000 rows"
    ours = _best([run_kohort(SMALL) for _ in range(REPETITIONS)])
    torch = _peer(_torch, SMALL, SMALL.rounds, repetitions=2)
    flower = _peer(_flower, SMALL, SMALL.rounds, repetitions=2)
    note = _agreement(SMALL, ours, {TORCH: torch, FLOWER: flower})
    return [
        _row(f"{setting}, 20 rounds in total", FLOWER, ours, flower, "total", 100, note),
        _row(f"{setting}, a warm round", FLOWER, ours, flower, "warm_round", 40),
        _row(f"{setting}, 20 rounds in total", TORCH, ours, torch, "total", 15),
        _row(f"{setting}, a warm round", TORCH, ours, torch, "warm_round"),
    ]


def _large() -> list[Row]:
    setting = "1,000 sites x 200 rows, a warm round"
    ours = _best([run_kohort(LARGE) for _ in range(REPETITIONS)])
    short = Federation(sites=LARGE.sites, rows=LARGE.rows, rounds=LARGE_PEER_ROUNDS)
    torch = _peer(_torch, short, LARGE_PEER_ROUNDS, repetitions=2)
    flower = _peer(_flower, short, LARGE_PEER_ROUNDS, repetitions=1)
    note = _agreement(short, run_kohort(short), {TORCH: torch, FLOWER: flower})
    return [
        _row(setting, FLOWER, ours, flower, "warm_round", 200, note),
        _row(setting, TORCH, ours, torch, "warm_round"),
    ]


def _torch(federation: Federation, rounds: int) -> Timed:
    from bench.torch_loop import run_torch

    return run_torch(federation, rounds)


def _flower(federation: Federation, rounds: int) -> Timed:
    from bench.flower_peer import run_flower

    return run_flower(federation, rounds)


def _peer(run: Peer, federation: Federation, rounds: int, *, repetitions: int) -> Timed | None:
    """The peer's best run; None when it is not installed."""
    try:
        return _best([run(federation, rounds) for _ in range(repetitions)])
    except ImportError as error:
        if str(error.name).startswith(("kohort", "bench")):
            raise
        return None


def _best(runs: list[Timed]) -> Timed:
    """The least of each figure over several runs of the same thing."""
    rounds = min((run.rounds for run in runs), key=lambda rounds: min(rounds[1:]))
    return Timed(weights=runs[0].weights, total=min(run.total for run in runs), rounds=rounds)


def _row(
    setting: str,
    peer: str,
    ours: Timed,
    theirs: Timed | None,
    figure: str,
    target: float | None = None,
    note: str = "",
) -> Row:
    return Row.faster(
        setting,
        ours=getattr(ours, figure),
        peer=peer,
        theirs=None if theirs is None else getattr(theirs, figure),
        target=target,
        note=note,
    )


def _agreement(federation: Federation, ours: Timed, peers: dict[str, Timed | None]) -> str:
    """Say how equal the trained models are; a peer that trained another model cannot be compared with."""
    parts = []
    for name, theirs in peers.items():
        if theirs is None:
            continue
        apart = float(np.abs(ours.weights - theirs.weights).max())
        if apart > LARGEST_DIFFERENCE:
            raise RuntimeError(f"{name} and kohort trained different models: weights differ by {apart:.2g}")
        parts.append(f"{name} {apart:.0e} (accuracy {federation.accuracy(theirs.weights):.4f})")
    size = f"{federation.sites:,} sites, {federation.rounds} rounds"
    own = f"{federation.accuracy(ours.weights):.4f}"
    return f"Same model, {size}: accuracy {own}; largest difference of a weight to {', '.join(parts)}." if parts else ""
