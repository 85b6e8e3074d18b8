"""The study of the one-shot fit: its arithmetic, and the whole of it on small made-up tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.errors import DataError
from kohort.studies.oneshot.figures import rounds_of_equation_16
from kohort.studies.oneshot.plans import bounds_around_mean, oneshot_plan, tables_here
from kohort.studies.oneshot.study import QUICK, run_study
from kohort.studies.registry import find_study
from kohort.tables.datasets import catalogue as datasets
from kohort.tables.datasets.codebooks import dry_bean_codebook, skin_codebook


@pytest.fixture
def small_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of the right columns and classes with made-up rows."""
    random = np.random.default_rng(0)
    for file, codebook, target, rows in (
        ("dry_bean", dry_bean_codebook(), "class", 1400),
        ("skin_segmentation", skin_codebook(), "skin", 400),
    ):
        labels = codebook.columns[target].categories or ()
        codes = random.integers(0, len(labels), rows)
        columns = {}
        for name, spec in codebook.columns.items():
            if spec.bounds is not None:
                low, high = spec.bounds
                share = (codes / len(labels) + random.random(rows)) / 2
                columns[name] = low + (high - low) * share
        columns[target] = np.array(labels)[codes]
        pl.DataFrame(columns).write_parquet(tmp_path / f"{file}.parquet")
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(datasets, "_verified", lambda frame, entry, where: frame)
    return tmp_path


def test_equation_16_is_the_papers() -> None:
    # Section 4.5: Skin, a fraction of 0.3, more than 13 rounds; 3 attributes and 8 rows a site.
    assert rounds_of_equation_16([8] * 20_000, 3, 0.3) == pytest.approx(13.33, abs=0.01)
    # Equation 23: fewer rows than attributes.
    assert rounds_of_equation_16([4, 4], 16, 0.5) == pytest.approx((4 + 1) / 0.5)


def test_tight_bounds_and_what_is_here(small_tables: Path) -> None:
    here = tables_here()
    assert set(here) == {"dry_bean", "skin"}
    table = here["skin"]
    assert not table.bounds
    low, high = bounds_around_mean(table)["b"]
    assert low < table.frame["b"].mean() < high  # type: ignore[operator]
    assert oneshot_plan(table, sites=3, bounds={"b": (0, 9)}).data.bounds["b"] == (0, 9)


def test_the_whole_study(small_tables: Path, tmp_path: Path) -> None:
    depth = replace(
        QUICK,
        seeds=(0,),
        counts={"dry_bean": (1, 3), "skin": (1, 3)},
        repetitions={1: (0,), 3: (0,)},
        fedavg_tables=("skin",),
        fedavg_sites=(3,),
        rounds=2,
        bytes_sites=3,
        features={"skin": 8},
        baseline_rows=150,
        attack_sizes=(1,),
        attack_sites=2,
    )
    said: list[str] = []
    out = tmp_path / "study"
    out.mkdir()
    made = run_study(out, True, said.append, depth=depth)
    assert made["name"] == find_study("oneshot").name == "oneshot"
    assert said
    sources = " ".join(table["source"] for table in made["tables"])
    for word in ("Table 1", "Table 2", "Figure 2", "Figures 3 and 4", "Figures 5 and 6", "Figure 7", "Tables 3 and 4"):
        assert word in sources
    assert made["figures"] == [f"figure-{number}.svg" for number in range(2, 8)]
    assert all((out / name).read_text().startswith("<svg") for name in made["figures"])
    lines = [line for table in made["tables"] for line in table["rows"]]
    assert all(set(line) >= {"setting", "paper", "ours", "sd", "delta"} for line in lines)
    same = [line for line in lines if "labels that differ" in line["setting"]]
    assert len(same) == 2 * (2 + 2 * 4)
    assert all(line["ours"] == 0 for line in same)
    assert all(line["ours"] == "yes" for line in lines if "bit by bit" in line["setting"])
    rebuilt = {line["setting"]: line["ours"] for line in lines if "rebuilt" in line["setting"]}
    assert rebuilt["mode paper, 1 rows: sites rebuilt whole (%)"] == 100
    assert rebuilt["opened total of Adult, with minimum cells of 10 persons: rows rebuilt"] == 0


def test_without_a_table_there_is_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(datasets, "SOURCES", {})
    with pytest.raises(DataError, match="none of the study's tables"):
        run_study(tmp_path, True, lambda _: None)
