"""What keeping to a contract costs, and a secure sum over more sites than masks can add.

The share of the contract: the CPU time in which a site finds the step of a request, admits it and notes the answer,
over that of whole rounds through the engine. Two runs are compared, one with more rounds: what start and end cost
cancels out.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time
from typing import Any

import numpy as np
import polars as pl

from bench.harness import Row
from bench.setup_federation import Federation, run_kohort
from kohort.protocol import answers
from kohort.runs.config import load_plan
from kohort.runs.run import run

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "trust"
SITES, ROWS = 20_000, 240_000
ENCRYPTED_LIMIT = 150.0
DOWN_LIMIT = 0.7
SHARE_LIMIT = 0.05
SUMMARY = (
    "CPU time on one core. Contract checks (find, admit, note) as a share of whole rounds of federated averaging, with "
    f"door and ledger. A whole one-shot fit of 3 numbers and 2 classes by bfv over {SITES:,} sites of 12 rows: "
    "hub, key-holder and all sites in one process; and what was sent to the sites."
)
COLUMNS = ("blue", "green", "red")


def measure() -> list[Row]:
    """The share of contract checks, and one encrypted sum over many sites."""
    rows = [_share(sites=10, rows=2_000), _share(sites=1_000, rows=200)]
    seconds, sent = _encrypted_run()
    return [
        *rows,
        _row(f"{SITES:,} sites, one-shot fit by bfv, all parties", seconds, ENCRYPTED_LIMIT, "s"),
        _row(f"{SITES:,} sites, one-shot fit by bfv, sent to all sites", sent / 1e9, DOWN_LIMIT, "GB"),
    ]


def _row(setting: str, ours: float, limit: float, unit: str) -> Row:
    return Row.within(setting, ours=ours, peer="limit", theirs=limit, unit=unit)


def _share(*, sites: int, rows: int) -> Row:
    """The best of several: other work on the machine makes either part slower."""
    run_kohort(Federation(sites=sites, rows=rows, rounds=2))
    found = []
    for _ in range(5):
        few, many = (_timed(Federation(sites=sites, rows=rows, rounds=rounds)) for rounds in (5, 45))
        found.append((many[0] - few[0]) / (many[1] - few[1]))
    return _row(f"{sites:,} sites x {rows:,} rows, contract checks per round", min(found), SHARE_LIMIT, "ratio")


def _timed(federation: Federation) -> tuple[float, float]:
    """CPU seconds in checks, and in all."""
    _ = federation.frame
    gc.collect()
    with _measured() as spent:
        began = process_time()
        run_kohort(federation)
        return sum(spent), process_time() - began


@contextmanager
def _measured() -> Iterator[list[float]]:
    """What is spent in the functions that admit a request and note its answer."""
    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            began = process_time()
            try:
                return function(*given)
            finally:
                spent.append(process_time() - began)

        return call

    admit, note = answers._admit, answers._Admitted.note
    answers._admit, answers._Admitted.note = timed(admit), timed(note)
    try:
        yield spent
    finally:
        answers._admit, answers._Admitted.note = admit, note


def _encrypted_run() -> tuple[float, int]:
    """CPU seconds of all parties, and the bytes that all sites were sent."""
    random = np.random.default_rng(5)
    x = random.integers(0, 256, (ROWS, len(COLUMNS)))
    label = np.where(x @ [1, -2, 2] + random.normal(0, 60, ROWS) > 128, "yes", "no")
    table = pl.DataFrame(x, schema=list(COLUMNS)).with_columns(label=pl.Series(label))
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "label", "features": "rest", "test": 0.0,
                     "bounds": {name: [0, 255] for name in COLUMNS}, "categories": {"label": ["no", "yes"]}},
            "sites": {"count": SITES},
            "method": {"name": "oneshot", "secure": {"sum": "bfv"}},
            "policy": {"min_rows": 1, "pairs": "open"},
        }
    )  # fmt: skip
    began = process_time()
    outcome = run(plan, tables={"": table}, seed=2)
    spent = process_time() - began
    if outcome.model is None or len(outcome.sites) != SITES:
        raise RuntimeError("what was measured did not give the right result")
    return spent, outcome.bytes["down"]
