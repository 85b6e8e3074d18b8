"""The gate against one Polars group-by over the same columns, and ten million rows from Parquet to two files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import polars as pl

from bench.harness import Row, best_of
from kohort.anonymity.gate.gate import apply_gate

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "gate"
SUMMARY = (
    "The mask of `k-anonymity`, k = 100, from three columns in memory (a number and two texts) against "
    "`frame.group_by(columns).len()`; then `kohort gate` on 10M rows of six columns, Parquet in, shared and kept rows "
    "out as Parquet: wall time and peak memory of the whole process."
)
MILLION = 1_000_000
TEN_MILLION = 10_000_000
QUASI = ("age", "race", "sex")
TARGET = 1.5
SECONDS, GIGABYTES = 10.0, 1.5
REPETITIONS = 9

_PROGRAM = """
import resource, sys
from kohort.cli.main import main
sys.argv = ["kohort", *sys.argv[1:]]
try:
    main()
finally:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(peak * (1 if sys.platform == "darwin" else 1024), flush=True)
"""


def measure() -> list[Row]:
    rows = [_against_group_by(ages) for ages in (74, 1_000, 10_000, 100_000)]
    return [*rows, *_whole_files()]


def _people(rows: int, ages: int) -> pl.DataFrame:
    random = np.random.default_rng(0)
    race = random.choice(5, rows, p=[0.85, 0.09, 0.03, 0.02, 0.01])
    races = pl.Series(["White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other"])
    return pl.DataFrame(
        {
            "age": random.integers(0, ages, rows),
            "race": races.gather(race),
            "sex": pl.Series(["Male", "Female"]).gather(random.integers(0, 2, rows)),
        }
    )


def _against_group_by(ages: int) -> Row:
    frame = _people(MILLION, ages)
    counted = frame.group_by(QUASI).len()
    gated = apply_gate(frame, quasi=QUASI, rule="k-anonymity", k=100)
    assert gated.groups == counted.height
    assert gated.shared == counted.filter(pl.col("len") >= 100)["len"].sum()
    ours, theirs = _best_of_both(
        lambda: apply_gate(frame, quasi=QUASI, rule="k-anonymity", k=100), lambda: frame.group_by(QUASI).len()
    )
    setting = f"{MILLION:,} rows, {gated.groups:,} groups"
    return Row.within(setting, ours=ours, peer="Polars group_by", theirs=theirs, unit="s", target=TARGET)


def _best_of_both(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Taken in turns, so that a busy moment of the machine meets both."""
    pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(REPETITIONS)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def _seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _whole_files() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        random = np.random.default_rng(1)
        frame = _people(TEN_MILLION, 74).with_columns(
            hours=pl.Series(random.integers(1, 100, TEN_MILLION)),
            wage=pl.Series(random.normal(20, 5, TEN_MILLION).round(2)),
            income=pl.Series(["<=50K", ">50K"]).gather(random.integers(0, 2, TEN_MILLION)),
        )
        frame.write_parquet(place / "rows.parquet")
        del frame
        command = [
            sys.executable, "-c", _PROGRAM, "gate", str(place / "rows.parquet"), "--quasi", ",".join(QUASI),
            "--rule", "k-anonymity", "--k", "5000", "--out-shared", str(place / "shared.parquet"),
            "--out-kept", str(place / "kept.parquet"), "--force", "--json",
        ]  # fmt: skip
        peaks: list[float] = []

        def once() -> float:
            began = perf_counter()
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            taken = perf_counter() - began
            result, peak = done.stdout.splitlines()
            assert 0 < json.loads(result)["shared"] < TEN_MILLION
            peaks.append(int(peak) / 1e9)
            return taken

        seconds = best_of(3, once)
    setting = f"{TEN_MILLION:,} rows, Parquet to two files"
    return [
        Row.within(setting, ours=seconds, peer="limit", theirs=SECONDS, unit="s"),
        Row.within(f"{setting}, memory", ours=max(peaks), peer="limit", theirs=GIGABYTES, unit="GB"),
    ]
