"""The MIMIC-III part of the syntactic study: run from tables in the layout, skipped in words without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.studies.syntactic import stays
from kohort.studies.syntactic.stays import draw_events, stays_part
from kohort.tables.datasets.mimic.layout import find_mimic3
from kohort.tables.datasets.mimic.reader import load_mimic3


def demo(folder: Path, patients: int = 48) -> Path:
    """Tables in the layout of the open demo, which has no events."""
    random = np.random.default_rng(2)
    number = np.arange(patients)
    tables = {
        "patients": {"subject_id": number, "gender": random.choice(["F", "M"], patients),
                     "dob": [f"{1930 + int(age)}-01-01 00:00:00" for age in random.integers(0, 50, patients)]},
        "admissions": {"subject_id": number, "hadm_id": 100 + number, "hospital_expire_flag": number % 3 == 0},
        "icustays": {"subject_id": number, "hadm_id": 100 + number, "icustay_id": 500 + number,
                     "intime": ["2000-03-01 10:30:00"] * patients, "outtime": ["2000-03-05 10:30:00"] * patients},
        "diagnoses_icd": {"hadm_id": np.repeat(100 + number, 2), "seq_num": np.tile([1, 2], patients),
                          "icd9_code": random.choice(["4280", "4019", "25000", "0389"], 2 * patients)},
    }  # fmt: skip
    for name, columns in tables.items():
        frame = pl.DataFrame(columns)
        if "hospital_expire_flag" in frame.columns:
            frame = frame.with_columns(pl.col("hospital_expire_flag").cast(pl.Int64))
        frame.write_parquet(folder / f"mimic3demo_{name}.parquet")
    return folder


def test_the_demo_is_run_with_features_of_drawn_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOHORT_DATA", str(demo(tmp_path)))
    monkeypatch.setattr(stays, "SEEDS", (20,))
    part = stays_part()
    (table,) = part.tables
    rows = {row.setting: row.ours for row in table.rows}
    assert (rows["patients"], rows["features of a stay"]) == (48, 714)
    used = rows["features without a missing value, which are learned from"]
    assert isinstance(used, int)
    assert used > 100, "heart rate and glucose are in all parts of a stay"
    areas = [value for name, value in rows.items() if name.endswith(": AUC")]
    assert len(areas) == 3
    assert {name for name in rows if name.startswith("NCP")} == {
        f"NCP of {name}" for name in ("age", "gender", "height", "weight", "diagnoses")
    }
    assert "Events are drawn" in part.notes[0]
    assert not (tmp_path / "chartevents.parquet").exists(), "nothing is written beside the tables"


def test_events_of_the_folder_are_read_where_it_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo(tmp_path)
    for path in tmp_path.iterdir():
        path.rename(path.with_name(path.name.removeprefix("mimic3demo_")))
    draw_events(tmp_path, seed=9)
    monkeypatch.setenv("KOHORT_DATA", str(tmp_path))
    rows = stays._read()
    assert rows is not None
    assert not rows.drawn
    assert rows.frame.equals(load_mimic3(find_mimic3(tmp_path) or {})[0])
    assert not rows.frame["height"].null_count()


def test_without_its_tables_the_part_says_why_it_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOHORT_DATA", str(tmp_path))
    part = stays_part()
    assert not part.tables
    assert "skipped" in part.notes[0]
