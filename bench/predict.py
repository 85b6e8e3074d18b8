"""A million rows through a stored model, from the command line: Parquet in, Parquet out."""

from __future__ import annotations

import subprocess
import sysconfig
import tempfile
from pathlib import Path
from time import perf_counter

import polars as pl

from bench.harness import Row, best_of
from kohort.runs.config import load_plan
from kohort.runs.run import run
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.frames import write_table

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "predict"
SUMMARY = (
    "Wall time of the whole command on Adult, copied to a million rows of 15 columns, with a stored model of 12 hidden "
    "units; start-up, reading and writing included. `kohort evaluate` measures seven figures with 1,000 resamples each."
)
ROWS = 1_000_000
LIMIT = 5.0
REPETITIONS = 3


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        table = open_table("adult:train").frame.drop_nulls()
        write_table(pl.concat([table] * -(-ROWS // table.height)).head(ROWS), place / "rows.parquet")
        for encoding in ("label", "onehot"):
            run(load_plan(_plan(encoding)), out=place / encoding, seed=0)
        rows = []
        for encoding in ("label", "onehot"):
            seconds = _seconds(
                "predict", place / encoding, place / "rows.parquet", "--out", place / "out.parquet", "--force"
            )
            rows.append(_row(f"predict, {encoding} encoding", seconds))
        rows.append(_row("evaluate, label encoding", _seconds("evaluate", place / "label", place / "rows.parquet")))
        rows.append(
            _row("evaluate by sex", _seconds("evaluate", place / "label", place / "rows.parquet", "--by", "sex"))
        )
        return rows


def _plan(encoding: str) -> dict[str, object]:
    return {
        "data": {"table": "adult:train", "target": "income", "drop": ["fnlwgt"], "encoding": encoding},
        "train": {"rounds": 2},
    }


def _row(setting: str, seconds: float) -> Row:
    return Row.within(f"{ROWS:,} rows, {setting}", ours=seconds, peer="limit", theirs=LIMIT, unit="s")


def _seconds(*arguments: object) -> float:
    command = [str(Path(sysconfig.get_path("scripts")) / "kohort"), *map(str, arguments), "--json"]

    def once() -> float:
        began = perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return perf_counter() - began

    return best_of(REPETITIONS, once)
