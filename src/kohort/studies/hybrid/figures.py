"""Figure 2 (targets by cluster) and Figures 3 to 5 (accuracy by round at 40 % low-risk rows)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kohort.rng import Streams
from kohort.runs.simulation import populate
from kohort.studies.harness.charts import curve_points, line_chart, stacked_bars
from kohort.studies.harness.runs import Runs, RunSummary, Tables
from kohort.studies.hybrid.paper import SHARES
from kohort.studies.hybrid.plans import FL, HYBRID, NO_DP_COLUMN, HybridCase, HybridCell, HybridChoice, HybridSetting
from kohort.studies.hybrid.tuning import Tuned

__all__ = ["accuracy_by_round", "targets_by_cluster"]

FIGURE_2 = {"dutch": "2a", "income": "2b", "covertype": "2c"}
FIGURES = {"dutch": 3, "income": 4, "covertype": 5}


def targets_by_cluster(out: Path, case: HybridCase, setting: HybridSetting, tables: Tables, *, seed: int) -> Path:
    """Draw Figure 2: the number of training rows of each target in each cluster.

    Args:
        out: The folder to write to.
        case: The table.
        setting: How rows are split over the sites.
        tables: Makes the tables that replace a plan's own.
        seed: Of the split.

    Returns:
        The SVG file.

    Raises:
        AssertionError: The study's plans have no clusters, which is a fault of the study.
    """
    cell = HybridCell(case=case, setting=setting, low=SHARES[-1])
    plan = NO_DP_COLUMN.make(cell, HybridChoice(1.0), HybridChoice(1.0))  # any plan of the table has these rows
    population = populate(plan, Streams.seeded(seed), tables=tables(plan))
    if population.clusters is None:
        raise AssertionError("the study's plans have clusters")
    cluster = np.repeat(population.clusters, np.diff(population.starts))
    target = population.frame[str(population.schema.target)]
    rows: list[dict[str, Any]] = []
    for value in target.unique().sort():
        counts = np.bincount(cluster[(target == value).to_numpy()], minlength=int(cluster.max()) + 1)
        rows += [
            {"panel": "", "bar": place, "part": str(value), "value": int(count)}
            for place, count in enumerate(counts, start=1)
        ]
    title = f"Targets by cluster: {case.title}, alpha {setting.alpha:g} (Figure {FIGURE_2[case.name]})"
    path = out / f"figure-2-{case.name}.svg"
    return stacked_bars(path, title=title, rows=rows, bars="cluster", values="training rows")


def accuracy_by_round(
    out: Path, runs: Runs[RunSummary], tuned: Tuned, case: HybridCase, setting: HybridSetting, epsilons: Sequence[float]
) -> Path:
    """Draw Figure 3, 4 or 5: accuracy by round with the hub without DP, of FL and of P2P+FL; one panel per budget.

    Args:
        out: The folder to write to.
        runs: The runs; those that were not made before are made now.
        tuned: The tuned settings of every column.
        case: The table, which decides the figure.
        setting: How rows are split over the sites, and the delta.
        epsilons: The budgets.

    Returns:
        The SVG file.
    """
    bare, points = HybridCell(case=case, setting=setting, low=SHARES[-1]), []
    for epsilon in epsilons:
        panel, cell = f"epsilon {epsilon:g}", replace(bare, epsilon=epsilon)
        points += curve_points(panel, "no DP", runs.curve(tuned.plan(NO_DP_COLUMN, bare)))
        points += curve_points(panel, "FL", runs.curve(tuned.plan(FL, cell)))
        points += curve_points(panel, "P2P+FL", runs.curve(tuned.plan(HYBRID, cell)))
    title = f"{case.title}, 40 % low-risk, {setting.name} (Figure {FIGURES[case.name]})"
    path = out / f"figure-{FIGURES[case.name]}-{setting.name.split()[0]}.svg"
    return line_chart(path, title=title, points=points, x="round with the hub", y="accuracy on test rows")
