"""Syntactic learning with rare pairs taken apart: classes are as anonymous, and no row is placed under a dearer one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.errors import KohortError
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run


def table(rows: int = 240) -> pl.DataFrame:
    random = np.random.default_rng(2)
    popular = np.array([0.3, 0.25, 0.2, 0.15, 0.07, 0.03])
    codes = [sorted(random.choice(list("ABCDEF"), 2, replace=False, p=popular).tolist()) for _ in range(rows)]
    ill = np.array(["A" in held for held in codes]) ^ (random.random(rows) < 0.1)
    return pl.DataFrame({"age": random.integers(2, 5, rows), "codes": codes, "y": np.where(ill, "ill", "well")})


def outcome(**anonymise: object) -> Outcome:
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "y", "quasi": ["age"], "items": ["codes"]},
            "sites": {"count": 2},
            "model": {"kind": "logistic"},
            "train": {"rounds": 20, "optimizer": "sgd", "lr": 0.5, "batch": 16},
            "policy": {"min_rows": 1, "min_k": 2},
            "method": {"name": "syntactic", "anonymise": {"k": 5, "merge": "none", **anonymise}},
        }
    )
    return run(plan, seed=1, tables={"": table()})


def test_rare_pairs_are_taken_apart_and_more_is_learned() -> None:
    groups, apart = outcome(), outcome(rare="suppress", suppression_limit=1.0)
    assert apart.facts["suppressed_items"] > 0
    assert apart.facts["dearer_class"] == 0
    assert any("k-km" in str(line) for line in apart.disclosed)
    assert apart.metrics["auc"] > groups.metrics["auc"]


def test_a_site_that_would_suppress_too_much_takes_no_part() -> None:
    with pytest.raises(KohortError):
        outcome(rare="suppress", suppression_limit=0.01)
