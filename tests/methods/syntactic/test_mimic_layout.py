"""The MIMIC-III layout from its tables to predictions: the open demo's patients with events made for their stays."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.evaluate.tables import predict_table
from kohort.methods.syntactic.mapped_encoder import MappedEncoder
from kohort.models.files import load_model
from kohort.runs.config import load_plan
from kohort.runs.run import run
from kohort.tables.datasets.catalogue import load_dataset

DATA = Path(os.environ.get("KOHORT_DATA", ""))
TABLES = ("patients", "admissions", "icustays", "diagnoses_icd")
HEART_RATE, GLUCOSE = 211, 50931


def with_events(folder: Path) -> None:
    """The demo's four tables, and events that somebody who dies has a faster heart in."""
    for name in TABLES:
        shutil.copy(DATA / f"mimic3demo_{name}.parquet", folder / f"{name}.parquet")
    generator = np.random.default_rng(5)
    died = dict(pl.read_parquet(folder / "admissions.parquet").select("hadm_id", "hospital_expire_flag").iter_rows())
    chart = []
    for stay in pl.read_parquet(folder / "icustays.parquet").iter_rows(named=True):
        for hours in range(0, 40, 8):
            at = pl.Series([str(stay["intime"])[:19]]).str.to_datetime().dt.offset_by(f"{hours}h")
            rate = 80 + 30 * died[stay["hadm_id"]] + float(generator.normal(0, 5))
            who = {name: stay[name] for name in ("subject_id", "hadm_id", "icustay_id")}
            when = at.dt.strftime("%Y-%m-%d %H:%M:%S")[0]
            chart.append(who | {"itemid": HEART_RATE, "charttime": when, "value": f"{rate:.1f}", "valuenum": rate})
    events = pl.DataFrame(chart).with_columns(error=pl.lit(0))
    events.write_parquet(folder / "chartevents.parquet")
    events.head(5).with_columns(itemid=pl.lit(GLUCOSE), valueuom=pl.lit("mg/dL"), flag=pl.lit("")).drop(
        "icustay_id", "error"
    ).write_parquet(folder / "labevents.parquet")


@pytest.mark.skipif(not (DATA / "mimic3demo_patients.parquet").is_file(), reason="KOHORT_DATA has no MIMIC-III demo")
def test_stays_with_features_are_anonymised_learned_from_and_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mimic3").mkdir()
    with_events(tmp_path / "mimic3")
    monkeypatch.setenv("KOHORT_DATA", str(tmp_path))
    rows = load_dataset("mimic3").frame
    measured = [name for name in rows.columns if name.startswith("heart_rate") and rows[name].null_count() == 0]
    assert measured, "the events gave no feature"
    plan = load_plan(
        {
            "data": {"table": "mimic3", "target": "died_in_hospital", "quasi": ["age", "gender"], "features": measured,
                     "items": ["diagnoses"], "identifiers": ["subject_id"], "hierarchies": {"diagnoses": "icd9"},
                     "ancestors": ["diagnoses"], "other": ["diagnoses"], "encoding": "onehot", "test": 0.3,
                     "drop": [name for name in rows.columns if name not in {*measured, "age", "gender", "diagnoses",
                              "subject_id", "died_in_hospital"}]},
            "sites": {"count": 2},
            "model": {"kind": "logistic"},
            "train": {"rounds": 10, "optimizer": "sgd", "lr": 0.5, "batch": 8},
            "policy": {"min_rows": 5, "min_k": 3},
            "method": {"name": "syntactic", "anonymise": {"k": 3, "suppression_limit": 0.9}},
        }
    )  # fmt: skip
    made = run(plan, seed=1, out=tmp_path / "run")
    assert made.facts["k"] == 3
    assert made.facts["items"] > 0
    assert made.metrics["auc"] > 0.9, "the heart rate tells who dies"
    model = load_model(tmp_path / "run")
    assert isinstance(model.encoder, MappedEncoder)
    said, skipped, _ = predict_table(model, rows.drop("died_in_hospital"), proba=True)
    assert (said.height, skipped) == (rows.height, 0)
    for mapping in model.encoder.mappings:
        cells = pl.DataFrame(dict(zip(mapping.quasi, mapping.cells, strict=True)))
        shown = cells[np.repeat(np.arange(mapping.count), mapping.sizes)]
        assert measure(shown, quasi=list(mapping.quasi)).k >= 3
