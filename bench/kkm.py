"""(k, k^m)-anonymity of rows with item sets: time and memory on generated tables, and the checker's time on them."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import polars as pl

from bench.harness import Row, best_of
from kohort.anonymity.checker.measures import km_anonymity
from kohort.anonymity.itemsets.kkm import anonymise_items

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "kkm"
SUMMARY = (
    "(10, 10^2)-anonymity of generated rows: age, sex and region, and 2 to 8 of 500 items of which the n-th is drawn "
    "in proportion to 1 / n. CPU seconds with verification and all losses, compiled code in place. A million rows run "
    "in a process of their own, whose peak memory is measured, the table included."
)
QUASI = ["age", "sex", "region"]
ITEMS = 500
K = 10

_MILLION = """
from bench.kkm import QUASI, K, cpu_seconds, drawn_rows, peak_bytes
from kohort.anonymity.itemsets.kkm import anonymise_items
from kohort.anonymity.checker.measures import km_anonymity
anonymise_items(drawn_rows(2_000), quasi=QUASI, items="codes", k=K)
table = drawn_rows(1_000_000)
made = []
seconds = cpu_seconds(lambda: made.append(anonymise_items(table, quasi=QUASI, items="codes", k=K)))
peak = peak_bytes()
checked = cpu_seconds(lambda: km_anonymity(made[0].frame, items="codes", m=2, quasi=QUASI))
print(seconds, peak, checked)
"""


def measure() -> list[Row]:
    return [*_hundred_thousand(), _recoded(), *_million()]


def drawn_rows(rows: int) -> pl.DataFrame:
    """Rows with three quasi-identifiers and two to eight items, some items far more common than others."""
    random = np.random.default_rng(11)
    lengths = random.integers(2, 9, rows)
    common = np.cumsum(1.0 / np.arange(1, ITEMS + 1))
    drawn = np.searchsorted(common, random.random(int(lengths.sum())) * common[-1]).clip(0, ITEMS - 1)
    names = pl.Series([f"code {number:03d}" for number in range(ITEMS)])
    pairs = pl.DataFrame({"row": np.repeat(np.arange(rows), lengths), "codes": names.gather(drawn)})
    sets = pairs.set_sorted("row").group_by("row", maintain_order=True).agg("codes")
    return pl.DataFrame(
        {
            "age": random.integers(18, 91, rows),
            "sex": random.choice(["f", "m"], rows),
            "region": random.choice([f"region {number}" for number in range(10)], rows),
            "codes": sets["codes"],
        }
    )


def cpu_seconds(work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return process_time() - began


def peak_bytes() -> int:
    """Most memory this process has held."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found * (1 if sys.platform == "darwin" else 1024)


def _hundred_thousand() -> list[Row]:
    table = drawn_rows(100_000)
    made = anonymise_items(table, quasi=QUASI, items="codes", k=K)
    seconds = best_of(3, lambda: cpu_seconds(lambda: anonymise_items(table, quasi=QUASI, items="codes", k=K)))
    note = (
        f"100,000 rows: {made.report.classes:,} classes, relational loss {made.relational_loss:.4f}, "
        f"item loss {made.item_loss:.4f}, {made.suppressed_items:,} of {made.loss.occurrences:,} items suppressed."
    )
    setting = "anonymise_items, 100,000 rows, k = 10, m = 2"
    checked = best_of(3, lambda: cpu_seconds(lambda: km_anonymity(made.frame, items="codes", m=2, quasi=QUASI)))
    return [
        Row.within(setting, ours=seconds, peer="limit", theirs=2.0, unit="s", note=note),
        Row.within("checking k^2 of it", ours=checked, peer="making it", theirs=seconds, unit="s"),
    ]


def _recoded() -> Row:
    """Local recoding up a hierarchy of runs of 2, 4, 8, ... items."""
    options: dict[str, Any] = {"quasi": QUASI, "items": "codes", "k": K, "item_hierarchy": "auto", "rare": "recode"}
    table = drawn_rows(100_000)
    made = anonymise_items(table, **options)
    seconds = best_of(3, lambda: cpu_seconds(lambda: anonymise_items(table, **options)))
    note = (
        f"{made.report.classes:,} classes, relational loss {made.relational_loss:.4f}, item loss {made.item_loss:.4f}, "
        f"{made.suppressed_items:,} of {made.loss.occurrences:,} items suppressed."
    )
    setting = "items recoded row by row, 100,000 rows, k = 10, m = 2"
    return Row.within(setting, ours=seconds, peer="limit", theirs=4.0, unit="s", note=note)


def _million() -> list[Row]:
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", _MILLION], cwd=root, capture_output=True, text=True, check=True)
    seconds, peak, checked = map(float, done.stdout.split())
    setting = "anonymise_items, 1,000,000 rows, k = 10, m = 2"
    return [
        Row.within(setting, ours=seconds, peer="limit", theirs=20.0, unit="s"),
        Row.within(setting, ours=peak / 1e9, peer="limit", theirs=4.0, unit="GB"),
        Row.within("checking k^2 of it", ours=checked, peer="making it", theirs=seconds, unit="s"),
    ]
