"""Folds of a one-shot fit are opened one by one: a category must be frequent in each, or it is in none of them.

Without the count in folds, the Gram matrix of a fold shows the records of persons whose category is rare in that fold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.methods.oneshot import cells
from kohort.methods.oneshot.design import Layout
from kohort.runs.config import load_plan
from kohort.runs.run import run

SITES, ROWS, MIN_CELL = 4, 600, 10


def table() -> pl.DataFrame:
    """One ward has 30 patients: enough in all, too few in most of five folds."""
    random = np.random.default_rng(3)
    ward = np.asarray(["north", "south", "west"] * (SITES * ROWS // 3))
    ward[random.choice(len(ward), 30, replace=False)] = "rare"
    dose = random.random(len(ward))
    outcome = np.where(dose + random.normal(0, 0.3, len(ward)) > 0.5, "ill", "well")
    return pl.DataFrame({"ward": ward, "dose": dose, "outcome": outcome})


def opened_folds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The totals of every fold that the hub opened, with their layout."""
    seen: list[Any] = []
    from kohort.methods.oneshot import method

    honest = method.decoded

    def listen(layout: Layout, total: Any) -> Any:
        values = honest(layout, total)
        seen.append((layout, values))
        return values

    monkeypatch.setattr(method, "decoded", listen)
    run(
        load_plan(
            {
                "data": {
                    "table": "memory", "target": "outcome", "features": ["ward", "dose"], "encoding": "onehot",
                    "test": 0, "bounds": {"dose": [0, 1]},
                    "categories": {"ward": ["north", "south", "west", "rare"], "outcome": ["ill", "well"]},
                },
                "sites": {"count": SITES},
                "policy": {"min_rows": 1, "pairs": "open"},
                "method": {
                    "name": "oneshot",
                    "oneshot": {"lambda": "folds", "folds": 5, "min_cell": MIN_CELL},
                    "secure": {"sum": "masks"},
                },
            }
        ),
        seed=4,
        tables={"": table()},
    )  # fmt: skip
    return seen


def least_indicator(layout: Layout, values: Any) -> float:
    """The smallest number of rows that any indicator column has in any opened fold, 0 left aside."""
    from kohort.models.closed_form.statistics import unpack

    counts = []
    for fold in values[0]:
        grams = unpack(layout.design, fold).grams
        gram = grams.sum(axis=0) if len(grams) > 1 else grams[0]
        diagonal = np.diag(gram)[1:]
        inside = gram[0, 1:]
        plain = np.isclose(diagonal, inside, rtol=1e-3)  # an indicator is its own square
        counts += [float(total) for total in inside[plain]]
    return min(count for count in counts if count > 0.5)


def test_every_category_is_frequent_in_every_opened_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    [(layout, values)] = opened_folds(monkeypatch)
    assert values.shape[1] == 5
    assert least_indicator(layout, values) >= MIN_CELL


def test_counted_over_the_whole_table_a_fold_shows_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = cells.section_of
    monkeypatch.setattr(cells, "section_of", lambda approved: replace(honest(approved), lambda_=1e-3))
    [(layout, values)] = opened_folds(monkeypatch)
    assert 0 < least_indicator(layout, values) < MIN_CELL
