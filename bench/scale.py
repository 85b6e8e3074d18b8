"""Large tables: processor seconds and peak memory of whole commands.

Limits for `kohort check`, `gate` and `anonymize`, in processor seconds (user and system), which other work on the
machine changes less than the time on a clock. `growth.py` measures how costs grow.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from bench.harness import Row
from kohort.tables.datasets.catalogue import load_dataset

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "scale"
SUMMARY = (
    "`kohort check` on 10M rows of 8 columns in a Parquet file: drawn from Adult, and of six random numbers and two "
    "texts, where nearly every row is unique. Processor seconds and peak memory of the whole process. Peak memory of "
    "`kohort anonymize` with k = 10 on the rows drawn from Adult, and of `kohort check` and `kohort gate` on 50M of "
    "them."
)
QUASI = "age,workclass,education,marital_status,occupation,race,sex"
TEN_MILLION = 10_000_000
ANONYMIZE_GB = 0.6
FIFTY_MILLION, FIFTY_MILLION_GB = 50_000_000, 2.0
PIECE = 1_000_000

_PROGRAM = r"""
import re, resource, sys
from pathlib import Path
from kohort.cli.main import main
sys.argv = ["kohort", *sys.argv[1:]]
try:
    main()
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    status = Path("/proc/self/status")  # where there is none, the peak may be that of the process that started this one
    found = re.search(r"VmHWM:\s+(\d+)", status.read_text()) if status.exists() else None
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) if found is None else int(found[1]) * 1024
    print("COST", used.ru_utime + used.ru_stime, peak / 1e9, file=sys.stderr, flush=True)
"""


class Cost(NamedTuple):
    """What a command took: processor seconds, and gigabytes at its peak."""

    seconds: float
    memory: float


def command_cost(*words: str) -> Cost:
    """The cost of a command in a process of its own."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=True)
    _, seconds, memory = done.stderr.splitlines()[-1].split()
    return Cost(float(seconds), float(memory))


def measure() -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        for name, make, roles, limits in (
            ("drawn from Adult", adult_rows, ("--quasi", QUASI, "--sensitive", "income"), Cost(5.0, 0.6)),
            ("nearly all unique", unique_rows, ("--quasi", "c0,c1,c2,c3,c4,c5,place", "--sensitive", "illness"),
             Cost(12.0, 2.0)),
        ):  # fmt: skip
            _write(path, make, TEN_MILLION)
            cost = command_cost("check", str(path), *roles, "--json")
            setting = f"kohort check, 10M rows, {name}"
            rows.append(Row.within(setting, ours=cost.seconds, peer="limit", theirs=limits.seconds, unit="s"))
            rows.append(Row.within(setting, ours=cost.memory, peer="limit", theirs=limits.memory, unit="GB"))
            if make is adult_rows:
                out = ("--k", "10", "--out", str(Path(folder) / "released.parquet"), "--json")
                memory = command_cost("anonymize", str(path), *roles, *out).memory
                setting = f"kohort anonymize in parts, k = 10, 10M rows, {name}"
                rows.append(Row.within(setting, ours=memory, peer="limit", theirs=ANONYMIZE_GB, unit="GB"))
        _write(path, adult_rows, FIFTY_MILLION)
        for command, words in (("check", ("--json",)), ("gate", ("--rule", "k-anonymity", "--k", "100", "--json"))):
            memory = command_cost(command, str(path), "--quasi", QUASI, "--sensitive", "income", *words).memory
            setting = f"kohort {command}, 50M rows, drawn from Adult"
            rows.append(Row.within(setting, ours=memory, peer="limit", theirs=FIFTY_MILLION_GB, unit="GB"))
    return rows


def adult_rows(count: int, random: np.random.Generator) -> pl.DataFrame:
    """Rows drawn from Adult."""
    table = load_dataset("adult:train").frame.select(*QUASI.split(","), "income")
    return table[random.integers(0, table.height, count)]


def unique_rows(count: int, random: np.random.Generator) -> pl.DataFrame:
    """Rows of which hardly two are alike."""
    numbers = {f"c{place}": random.integers(0, 1000, count).astype(np.int32) for place in range(6)}
    texts = {"place": random.integers(0, 5000, count), "illness": random.integers(0, 50, count)}
    return pl.DataFrame({**numbers, **texts}).with_columns(pl.col("place", "illness").cast(pl.String))


def _write(path: Path, make: Callable[[int, np.random.Generator], pl.DataFrame], rows: int) -> None:
    """Write rows in pieces, so that making them takes less memory than reading them."""
    import pyarrow.parquet as pq

    random, writer = np.random.default_rng(1), None
    for start in range(0, rows, PIECE):
        piece = make(min(PIECE, rows - start), random).to_arrow()
        writer = writer or pq.ParquetWriter(path, piece.schema)
        writer.write_table(piece, row_group_size=250_000)
    if writer is not None:
        writer.close()
