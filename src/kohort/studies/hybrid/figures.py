"""Figure 2 (targets by cluster) and Figures 3 to 5 (accuracy by round at 40 % low-risk rows)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kohort.rng import Streams
from kohort.runs.simulation import populate
from kohort.studies.hybrid.charts import draw_targets
from kohort.studies.hybrid.paper import SHARES
from kohort.studies.hybrid.plans import Case, Setting, hybrid, no_dp, server_only
from kohort.studies.hybrid.runs import Runs, table_rows
from kohort.studies.partial.charts import draw_lines

__all__ = ["accuracy_by_round", "targets_by_cluster"]

FIGURE_2 = {"dutch": "2a", "income": "2b", "covertype": "2c"}
FIGURES = {"dutch": 3, "income": 4, "covertype": 5}


def targets_by_cluster(out: Path, case: Case, setting: Setting, *, seed: int) -> Path:
    """Figure 2: how many rows of each target each cluster holds."""
    plan = no_dp(case, setting, SHARES[-1])
    population = populate(plan, Streams.seeded(seed), tables={"rows": table_rows(case.table, case.rows)})
    if population.clusters is None:
        raise AssertionError("the study's plans have clusters")
    cluster = np.repeat(population.clusters, np.diff(population.starts))
    target = population.frame[str(population.schema.target)]
    found: list[dict[str, Any]] = []
    for value in target.unique().sort():
        counts = np.bincount(cluster[(target == value).to_numpy()], minlength=int(cluster.max()) + 1)
        found += [
            {"cluster": place + 1, "target": str(value), "rows": int(count)} for place, count in enumerate(counts)
        ]
    title = f"Targets by cluster: {case.title}, alpha {setting.alpha:g} (Figure {FIGURE_2[case.name]})"
    return draw_targets(out / f"figure-2-{case.name}.svg", title=title, rows=found)


def accuracy_by_round(out: Path, runs: Runs, case: Case, setting: Setting) -> Path:
    """Figures 3 to 5: the baseline, FL and P2P+FL by round with the hub, one panel a budget."""
    share = SHARES[-1]
    points = []
    for epsilon in case.epsilons:
        lines = {
            "no DP": no_dp(case, setting, share),
            "FL": server_only(case, setting, share, epsilon),
            "P2P+FL": hybrid(case, setting, share, epsilon),
        }
        for series, plan in lines.items():
            for number, accuracy in enumerate(runs.curve(plan, limit=case.rows), start=1):
                points.append({"panel": f"epsilon {epsilon:g}", "series": series, "x": number, "y": accuracy})
    title = f"{case.title}, 40 % low-risk, {setting.name} (Figure {FIGURES[case.name]})"
    name = f"figure-{FIGURES[case.name]}-{setting.name.split()[0]}.svg"
    return draw_lines(out / name, title=title, rows=points, x="round with the hub", y="accuracy on test rows")
