"""Many sites: whatever scheme adds, and however rows are dealt out, the integers of the pooled rows open."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.methods.oneshot.state import FILE, load_state
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run

SITES, ROWS, NAMES = 300, 900, ("blue", "green", "red")
MASKED = 90  # all pairs of sites share masks
GRID = 2**16


def table() -> pl.DataFrame:
    """Shaped like Skin: three numbers of a byte each, two classes."""
    random = np.random.default_rng(5)
    x = random.integers(0, 256, (ROWS, 3))
    skin = np.where(x @ [1, -2, 2] + random.normal(0, 60, ROWS) > 128, "yes", "no")
    return pl.DataFrame(x, schema=list(NAMES)).with_columns(skin=pl.Series(skin))


def plan(scheme: str, split: str, sites: int) -> Plan:
    in_clear = {"min_rows": 1} if scheme == "none" else {}
    return load_plan(
        {
            "data": {
                "table": "memory",
                "target": "skin",
                "features": "rest",
                "bounds": {name: [0, 255] for name in NAMES},
                "categories": {"skin": ["no", "yes"]},
                "test": 0.0,
            },
            "sites": {"count": sites, "split": split},
            "model": {"dtype": "float64"},
            "method": {"name": "oneshot", "secure": {"sum": scheme}, "oneshot": in_clear},
            "policy": {"min_rows": 1, "pairs": "open"},
        }
    )


def opened(scheme: str, split: str) -> tuple[Any, Any]:
    sites = MASKED if scheme == "masks" else SITES
    outcome = run(plan(scheme, split, sites), tables={"": table()}, seed=2)
    (batch,) = load_state(outcome.files[FILE]).batches
    assert len(batch.members) == sites
    return batch.total, outcome.model.weights


def pooled() -> list[int]:
    """The sums over all rows in Python's integers: triu of Z'Z row by row, then Z'y, in units of 4^-16."""
    frame = table()
    columns = [[GRID] * ROWS]
    for name in NAMES:
        # As rows are encoded: a byte is scaled to [0, 1] in float64, mapped to [-1, 1] and rounded to the grid.
        columns.append([round(Fraction(2 * (value / 255) - 1) * GRID) for value in frame[name].to_list()])
    yes = [int(label == "yes") for label in frame["skin"].to_list()]
    gram = [sum(a * b for a, b in zip(columns[i], columns[j], strict=True)) for i in range(4) for j in range(i, 4)]
    return [*gram, *(GRID * sum(a * y for a, y in zip(column, yes, strict=True)) for column in columns)]


@cache
def weights_of_the_hub_that_sees_all() -> Any:
    total, weights = opened("none", "iid")
    assert total.view(np.int64).tolist() == pooled()
    return weights


@pytest.mark.parametrize("scheme", ["none", "bfv", "ckks", "masks"])
def test_every_scheme_opens_the_integers_of_the_pooled_rows(scheme: str) -> None:
    total, weights = opened(scheme, "sorted")
    assert total.view(np.int64).tolist() == pooled()
    assert np.array_equal(weights, weights_of_the_hub_that_sees_all())


def test_more_sites_than_masks_can_add_end_the_plan_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="at most 500 sites, and 501 take part") as caught:
        run(plan("masks", "iid", 501), tables={"": table()}, seed=2)
    assert caught.value.exit_code == 2
    assert "bfv" in str(caught.value)
