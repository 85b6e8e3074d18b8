"""A number to predict, from the example plan to measures on a table: run, evaluate, predict."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kohort.tables.frames import read_table

EXAMPLE = Path(__file__).parents[2] / "examples" / "regression.toml"
DATA = Path(os.environ.get("KOHORT_DATA", "")) / "california_housing.parquet"


@pytest.mark.skipif(not DATA.is_file(), reason="needs california_housing.parquet in KOHORT_DATA")
def test_house_values(tmp_path: Path, kohort_here: Callable[..., tuple[int, str, str]]) -> None:
    code, shown, said = kohort_here("run", EXAMPLE, "--out", tmp_path / "run", "--json")
    assert code == 0, said
    result = json.loads(shown)
    metrics = result["metrics"]
    assert set(metrics) == {"rmse", "mae", "r2", "intervals", "by_site"}
    assert metrics["r2"] >= 0.70
    # The spread of the values is 115,396 dollars, so this R2 means an RMSE near 60,000.
    assert 50_000 < metrics["rmse"] < 65_000
    assert metrics["mae"] < metrics["rmse"]
    assert result["history"][-1]["accuracy"] == pytest.approx(metrics["r2"], abs=1e-6)
    for name, (low, high) in metrics["intervals"].items():
        assert low < metrics[name] < high
    assert len(metrics["by_site"]) == 10
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "Predicts `median_house_value`, a number" in card
    assert result["ledger_head"] in card

    code, shown, said = kohort_here(
        "evaluate", tmp_path / "run", "california_housing", "--missing", "skip", "--by", "ocean_proximity", "--json"
    )
    assert code == 0, said
    judged = json.loads(shown)
    assert (judged["task"], judged["rows"], judged["skipped"]) == ("regression", 20_433, 207)
    assert set(judged["groups"]) == {"<1H OCEAN", "INLAND", "ISLAND", "NEAR BAY", "NEAR OCEAN"}

    out = tmp_path / "out.parquet"
    code, _, said = kohort_here("predict", tmp_path / "run", "california_housing", "--missing", "skip", "--out", out)
    assert code == 0, said
    written = read_table(out).drop_nulls()
    errors = written["predicted_median_house_value"] - written["median_house_value"]
    assert (errors**2).mean() ** 0.5 == pytest.approx(judged["metrics"]["rmse"], rel=1e-5)  # type: ignore[operator]
