"""What a checkpoint costs: writing one after a round, against the round itself, at 1,000 sites."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from bench.harness import Row, best_of
from bench.setup_federation import Federation, run_kohort
from kohort.protocol.checkpoint import Checkpoint, Checkpoints

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "checkpoint"
SUMMARY = (
    "Writing a checkpoint (weights, hub state, history of 100 rounds) against one warm round of 1,000 sites x 200 rows."
)
TARGET = 0.05


def measure() -> list[Row]:
    federation = Federation(sites=1_000, rows=200, rounds=8)
    timed = run_kohort(federation)
    checkpoint = Checkpoint(
        round=100,
        state={"weights": timed.weights, "patience": np.zeros(3)},
        sites={},
        ledger_lines=102_000,
        facts={
            "history": [{"round": number, "accuracy": 0.8123456789} for number in range(100)],
            "costs": {"bytes_up": 1, "bytes_down": 1},
            "excluded": [],
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        files = Checkpoints(Path(folder))

        def save() -> float:
            began = perf_counter()
            files.save(checkpoint)
            return perf_counter() - began

        saved = best_of(20, save)
    return [
        Row.within(
            "one checkpoint at 1,000 sites",
            ours=saved,
            peer="one warm round",
            theirs=timed.warm_round,
            unit="s",
            target=TARGET,
        )
    ]
