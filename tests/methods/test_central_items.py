"""Central learning sees the same rows as the sites do, sets of items included."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.runs.config import load_plan
from kohort.runs.run import run


@pytest.mark.parametrize("other", [[], ["items"]], ids=["declared", "with a place for unknown items"])
def test_central_learning_and_one_site_see_the_same_items(other: list[str]) -> None:
    generator = np.random.default_rng(0)
    held = generator.random((120, 4)) < 0.4
    frame = pl.DataFrame(
        {
            "a": generator.random(120),
            "items": [[name for name, has in zip("pqrs", row, strict=True) if has] for row in held],
            "y": np.where(held[:, 0] & ~held[:, 1], "yes", "no"),
        }
    )

    def weights(method: str) -> np.ndarray:
        plan = load_plan(
            {
                "data": {"table": "memory", "target": "y", "features": ["a"], "items": ["items"], "other": other},
                "sites": {"count": 1},
                "model": {"kind": "logistic", "dtype": "float64"},
                # Whole passes: the order of rows, which is the hub's or the site's own, makes no difference.
                "train": {"rounds": 20, "batch": 0, "optimizer": "sgd", "lr": 2.0},
                "policy": {"min_rows": 1, "raw": True},
                "method": {"name": method},
            }
        )
        return run(plan, seed=1, tables={"": frame}).model.weights

    np.testing.assert_allclose(weights("central"), weights("fedavg"), rtol=1e-9)
