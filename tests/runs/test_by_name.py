"""Every method by its name alone, in Python and in a plan of five keys: it runs, or one line says what to add."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort import Federation, Policy
from kohort.errors import KohortError
from kohort.methods.registry import methods
from kohort.tables.datasets.catalogue import load_dataset

Call = Callable[..., tuple[int, str, str]]
QUASI = 'data.quasi = ["age", "sex"]'
LACKS = {
    "central": (4, ("policy.raw = true",)),
    "hybrid": (2, ("sites.clusters = 2", "sites.low_risk = 0.4")),
    "partial": (2, (QUASI,)),
    "silo": (2, (QUASI,)),
    "syntactic": (2, (QUASI,)),
}
"""What the line of a method says is to be added, and the exit code it comes with; the others run."""
ROWS = {"hybrid": 12_000}
"""Noisy counts find no domain in a thousand rows."""


def _patients(rows: int) -> pl.DataFrame:
    """An ordinary table: an identifier, dates, truth values, gaps, and an outcome written as 0 and 1."""
    random = np.random.default_rng(4)
    age, pressure, smoker = random.integers(18, 95, rows), random.normal(130, 20, rows), random.random(rows) < 0.3
    risk = 0.06 * (age - 66) + 0.03 * (pressure - 130) + 0.8 * smoker + random.normal(0, 1, rows)
    frame = {
        "patient_id": [f"P{row * 7919:07d}" for row in range(rows)],
        "admitted": [f"{2019 + row % 4}-{1 + row % 12:02d}-{1 + row % 28:02d}" for row in range(rows)],
        "age": age,
        "sex": [None if row % 23 == 0 else "FM"[row % 2] for row in range(rows)],
        "pressure": [None if row % 11 == 0 else round(value, 1) for row, value in enumerate(pressure)],
        "smoker": [str(value).lower() for value in smoker],
        "ward": random.choice(["ICU", "medical", "surgery"], rows),
        "outcome": (risk > 0).astype(int),
    }
    return pl.DataFrame(frame)


def _adult(rows: int) -> pl.DataFrame:
    few = ["age", "workclass", "education_num", "marital_status", "sex", "capital_gain", "hours_per_week", "income"]
    return load_dataset("adult").frame.select(few).sample(rows, seed=2)


def _table(kind: str, name: str, folder: Path) -> tuple[Path, str]:
    """A CSV file that a method can learn from, and the column that is predicted."""
    make, target = {"patients": (_patients, "outcome"), "adult": (_adult, "income")}[kind]
    make(ROWS.get(name, 900)).write_csv(folder / "table.csv")
    return folder / "table.csv", target


def _is_sound(warnings: Sequence[str], metrics: Mapping[str, Any]) -> None:
    """Both classes are predicted, or a warning says that one is not."""
    one_class = min(metrics["recall"], metrics["specificity"]) == 0
    assert one_class <= any("predicts one class" in warning for warning in warnings)
    assert 0.6 < metrics["accuracy"] <= 1


def test_every_method_is_tried() -> None:
    assert set(LACKS) < set(methods())
    assert set(methods()) - set(LACKS) == {"additive", "fedavg", "oneshot", "trees"}


@pytest.mark.parametrize("kind", ["patients", "adult"])
@pytest.mark.parametrize("name", sorted(methods()))
def test_in_python(kind: str, name: str, tmp_path: Path) -> None:
    path, target = _table(kind, name, tmp_path)
    added = LACKS[name][1] if name in LACKS else ()
    if added:
        with pytest.raises(KohortError) as caught:
            Federation(path, target=target, sites=3).run(name)
        assert "\n" not in str(caught.value)
        assert all(_in_python(line) in str(caught.value) for line in added)
    sections = tomllib.loads("\n".join(added))
    allowed = Policy(**sections.pop("policy", {}))
    keys = {key: value for section in sections.values() for key, value in section.items()}
    outcome = Federation(path, target=target, sites=3, policy=allowed, **keys).run(name)
    _is_sound(outcome.warnings, outcome.metrics)


def _in_python(line: str) -> str:
    """A line of a plan as a keyword."""
    key, _, value = line.partition(" = ")
    section, _, word = key.partition(".")
    return f"policy=kohort.Policy({word}={value.title()})" if section == "policy" else f"{word}={value}"


@pytest.mark.parametrize("name", sorted(methods()))
def test_in_a_plan(kohort_here: Call, name: str, tmp_path: Path) -> None:
    path, target = _table("patients", name, tmp_path)
    plan = tmp_path / "plan.toml"
    lines = f'data.table = "{path}"\ndata.target = "{target}"\ndata.features = "rest"\nsites.count = 3\n'
    lines += f'method.name = "{name}"\n'
    plan.write_text(lines)
    code, added = LACKS.get(name, (0, ()))
    if added:
        found, shown, said = kohort_here("run", plan, "--out", tmp_path / "lacks")
        assert (found, shown) == (code, "")
        assert len(said.splitlines()) == 1
        assert all(line in said for line in added)
        plan.write_text(lines + "\n".join(added))
    found, shown, said = kohort_here("run", plan, "--out", tmp_path / "out", "--json")
    assert found == 0, said
    result = json.loads(shown)
    _is_sound(result["warnings"], result["metrics"])


def test_hybrid_over_files_forms_its_clusters() -> None:
    parts = {name: _patients(300) for name in "abc"}
    with pytest.raises(KohortError, match=r'run\(\.\.\., clusters="labels:2"\) and low_risk=0\.4'):
        Federation(parts, target="outcome").run("hybrid")


def test_a_budget_that_shows_one_class_says_which_words_are_missing() -> None:
    few = _patients(1500).filter((pl.col("outcome") == 0) | (pl.col("age") > 88)).select("smoker", "outcome")
    with pytest.raises(KohortError, match=r"fewer than two classes of 'outcome'.*categories"):
        Federation(few, target="outcome", sites=3).run(dp=1.0)
