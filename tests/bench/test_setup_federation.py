"""What the benchmarks of rounds measure is a run: the engine trains the model of the bare kernel."""

from __future__ import annotations

import numpy as np
from bench.overhead import run_bare
from bench.setup_federation import Federation, run_kohort


def test_a_benchmarked_run_trains_the_model_of_the_bare_kernel() -> None:
    federation = Federation(sites=3, rows=120, rounds=2)
    timed, plain = run_kohort(federation), run_bare(federation)
    assert np.array_equal(timed.weights, plain.weights)
    assert len(timed.rounds) == len(plain.rounds) == 2
