"""Figure 2 (targets by cluster) and Figures 3 to 5 (accuracy by round at 40 % low-risk rows)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kohort.rng import Streams
from kohort.runs.simulation import populate
from kohort.studies.harness.charts import curve_points, line_chart, stacked_bars
from kohort.studies.harness.runs import Runs, RunSummary, Tables
from kohort.studies.hybrid.paper import SHARES
from kohort.studies.hybrid.plans import Case, Setting, hybrid, no_dp, server_only

__all__ = ["accuracy_by_round", "targets_by_cluster"]

FIGURE_2 = {"dutch": "2a", "income": "2b", "covertype": "2c"}
FIGURES = {"dutch": 3, "income": 4, "covertype": 5}


def targets_by_cluster(out: Path, case: Case, setting: Setting, tables: Tables, *, seed: int) -> Path:
    """Figure 2: the number of rows of each target in each cluster."""
    plan = no_dp(case, setting, SHARES[-1])
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


def accuracy_by_round(out: Path, runs: Runs[RunSummary], case: Case, setting: Setting) -> Path:
    """Figures 3 to 5: the baseline, FL and P2P+FL by round with the hub, one panel per budget."""
    share = SHARES[-1]
    points = []
    for epsilon in case.epsilons:
        panel = f"epsilon {epsilon:g}"
        points += curve_points(panel, "no DP", runs.curve(no_dp(case, setting, share)))
        points += curve_points(panel, "FL", runs.curve(server_only(case, setting, share, epsilon)))
        points += curve_points(panel, "P2P+FL", runs.curve(hybrid(case, setting, share, epsilon)))
    title = f"{case.title}, 40 % low-risk, {setting.name} (Figure {FIGURES[case.name]})"
    path = out / f"figure-{FIGURES[case.name]}-{setting.name.split()[0]}.svg"
    return line_chart(path, title=title, points=points, x="round with the hub", y="accuracy on test rows")
