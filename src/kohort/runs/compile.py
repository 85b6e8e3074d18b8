"""Compile kernels ahead of their first use, in as many processes as there are cores.

Kernels are compiled when they are first called and kept on disk. Their callers alone know with which types, so each
method runs once, for one round, on the plan of the demo; and where asked, each maker of anonymous tables releases a few
rows of the embedded table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

import polars as pl

from kohort.errors import KohortError
from kohort.methods.registry import find_method, methods
from kohort.report.charts import get_ready
from kohort.runs.demo import demo_plan
from kohort.runs.run import run

__all__ = ["compile_kernels"]

_ROWS: Final = 300
_QUASI: Final = ("age", "sex", "race", "marital_status")
_RULES: Final[Mapping[str, Any]] = {"sensitive": ("income",), "l": 2, "t": 0.6}
_LIMIT: Final[Mapping[str, Any]] = {"suppression_limit": 0.05}
RELEASES: Final[Mapping[str, tuple[Mapping[str, Any], ...]]] = {
    "tables": (
        {"algorithm": "cluster"},
        {"algorithm": "cluster", **_RULES},
        {"algorithm": "exact-cluster", **_LIMIT},
        {"algorithm": "mondrian"},
        {"algorithm": "mondrian", **_RULES},
        {"algorithm": "thesis"},
        {"algorithm": "lattice"},
        {"algorithm": "lattice", **_RULES},
        {},
        _RULES,
    ),
    "items": (
        {"items": "codes"},
        {"items": "codes", "rare": "suppress"},
        {"items": "codes", "m": 3},
        {"items": "codes", "item_hierarchy": "icd9", "rare": "recode"},
    ),
    "labels without some rows": (
        {"algorithm": "lattice", **_LIMIT},
        {"algorithm": "lattice", **_LIMIT, **_RULES},
    ),
}
"""What each process releases; makers that share kernels stand together, so that none is compiled twice at once. The
last one needs what tables compiled first."""


def compile_kernels(workers: int | None = None, *, releases: bool = False) -> tuple[str, ...]:
    """Run every method for one round, and start the renderer of charts, so that what they compile is on disk.

    Args:
        workers: Number of processes; by default the number of cores.
        releases: Whether to compile what `kohort anonymize` runs, too.

    Returns:
        Names of what could not run, whose kernels are compiled when they are needed.
    """
    # What most others need comes first, in two processes: the kernel of fedavg, and those that make tables.
    names = sorted(methods(), key=lambda name: (name == "fedavg", name), reverse=True)
    made: dict[str, Callable[[], object]] = {name: partial(_run, name) for name in names}
    first, *others = made.items()
    tables, *later = ((f"release by {name}", partial(_release, name)) for name in RELEASES)
    tasks = dict([first, tables, *others, *later] if releases else made.items())
    tasks["charts"] = get_ready
    context = get_context("spawn")  # a fork would take over threads of libraries that do not survive it
    with ProcessPoolExecutor(max_workers=workers or os.cpu_count(), mp_context=context) as pool:
        done = list(pool.map(_succeeds, tasks.values()))
    return tuple(name for name, well in zip(tasks, done, strict=True) if not well)


def _succeeds(task: Callable[[], object]) -> bool:
    try:
        task()
    except KohortError:
        return False
    return True


def _run(name: str) -> None:
    run(demo_plan(find_method(name), rounds=1), seed=0, baselines=False)


def _release(name: str) -> None:
    from kohort.anonymity.itemsets.kkm import anonymise_items
    from kohort.anonymity.relational.anonymise import anonymise
    from kohort.tables.datasets.catalogue import load_dataset

    codes = pl.int_range(_ROWS)
    frame = load_dataset("adult:train").frame.head(_ROWS)
    for options in RELEASES[name]:
        if "items" in options:
            listed = pl.concat_list([(250 + codes % 3).cast(pl.String), (401 + codes % 4).cast(pl.String)])
            anonymise_items(frame.with_columns(codes=listed), quasi=_QUASI[:2], k=5, **options)
        else:
            anonymise(frame.select(*_QUASI, "income"), quasi=_QUASI, k=5, **options)
