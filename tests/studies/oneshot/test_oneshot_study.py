"""The study of the one-shot fit: its arithmetic, and the whole of it on small made-up tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import DataError
from kohort.rng import Streams
from kohort.runs.simulation import Population
from kohort.studies.harness.runs import Runs, summarise
from kohort.studies.harness.validation import validation_rows
from kohort.studies.oneshot.fedavg import choose, first_within, smoothed
from kohort.studies.oneshot.figures import rounds_of_equation_16
from kohort.studies.oneshot.plans import bounds_around_mean, oneshot_plan, tables_here
from kohort.studies.oneshot.study import FULL, QUICK, run_study
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
    # Section 4.5: Skin, a fraction of 0.3, more than 13 rounds; 3 attributes and 8 rows per site.
    assert rounds_of_equation_16([8] * 20_000, 3, 0.3) == pytest.approx(13.33, abs=0.01)
    # Equation 23: fewer rows than attributes.
    assert rounds_of_equation_16([4, 4], 16, 0.5) == pytest.approx((4 + 1) / 0.5)


def test_tight_bounds_and_what_is_here(small_tables: Path) -> None:
    here = tables_here()
    assert set(here) == {"dry_bean", "dry_bean:x10", "skin"}
    table = here["skin"]
    assert not table.bounds
    low, high = bounds_around_mean(table)["b"]
    assert low < table.frame["b"].mean() < high  # type: ignore[operator]
    assert oneshot_plan(table, sites=3, bounds={"b": (0, 9)}).data.bounds["b"] == (0, 9)


def test_the_whole_study(small_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = replace(
        QUICK,
        seeds=(0,),
        counts={"dry_bean:x10": (1, 3), "skin": (1, 3)},
        repetitions={1: (0,), 3: (0,)},
        fedavg_tables=("skin",),
        fedavg_sites=(3,),
        rates=(0.003, 0.1),
        rounds=3,
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
    down = [line for line in lines if line["setting"].endswith("bytes down")]
    assert len(down) == 2 * (2 + 2 * 4) + 3
    assert all(line["ours"] > 0 for line in down)
    rebuilt = {line["setting"]: line["ours"] for line in lines if "rebuilt" in line["setting"]}
    assert rebuilt["mode paper, 1 rows: sites rebuilt whole (%)"] == 100
    assert rebuilt["opened total of Adult, with minimum cells of 10 persons: rows rebuilt"] == 0

    # Resumed, it makes no run again, and says the same; attacks are no runs of the harness.
    monkeypatch.setattr("kohort.studies.harness.runs.run", None)
    again = run_study(out, True, said.append, depth=depth, resume=True)
    assert again["tables"] == made["tables"]


def test_every_setting_of_the_full_study_can_be_summed() -> None:
    """The whole study once failed after an hour: masks add up at most 500 sites."""
    for depth in (FULL, QUICK):
        for counts in depth.counts.values():
            for sites in counts:
                assert depth.repetitions[sites]
                for scheme in depth.schemes[sites]:
                    if scheme != "none":
                        find_scheme(scheme).check_size(sites)
    assert all(depth_counts[-1] == 20_000 for depth_counts in FULL.counts.values())
    assert all(len(seeds) == 3 for seeds in FULL.repetitions.values())


def test_averaging_stops_where_more_rounds_bring_nothing() -> None:
    assert first_within((0.5, 0.8, 0.899, 0.9, 0.9), 0.001) == 3
    assert first_within((0.9, 0.8), 0.0) == 1
    assert smoothed((0.6, 0.8, 0.1, 0.3), 2) == pytest.approx([0.6, 0.7, 0.45, 0.2])


def test_averaging_is_chosen_on_validation_rows(small_tables: Path) -> None:
    """The choice looks at no test row: it is the same when test rows have the labels of other rows."""
    table = tables_here(("skin",))["skin"]
    depth = replace(QUICK, rates=(0.001, 0.3), rounds=4)

    def spoiled(whole: Population, streams: Streams) -> Population:
        test = whole.test.with_columns(skin=whole.test["skin"].reverse())
        return validation_rows(replace(whole, test=test), streams)

    own = choose(Runs((0,), summarise=summarise, change=validation_rows), table, 0.5, depth)
    assert own == choose(Runs((0,), summarise=summarise, change=spoiled), table, 0.5, depth)
    assert own.rate == 0.3
    assert 1 <= own.rounds <= 4


def test_without_a_table_there_is_no_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(datasets, "SOURCES", {})
    with pytest.raises(DataError, match="none of the study's tables"):
        run_study(tmp_path, True, lambda _: None)
