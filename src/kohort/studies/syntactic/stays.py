"""The MIMIC-III layout from its tables to figures: the paper's second table, as far as it is open.

MIMIC-III needs credentials. Its open demo has 100 patients and neither CHARTEVENTS nor LABEVENTS, so events are drawn
for the demo's stays, written into a folder beside its tables, and read as those of MIMIC-III are: height, weight, and
714 features of a stay. Where the folder of KOHORT_DATA has events, these are read instead.

Figures of the demo show that the layout runs, and how much it loses; drawn events say nothing about patients.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import polars as pl

from kohort.runs.config import Plan, load_plan
from kohort.runs.gain import reference_plans
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.harness.runs import Runs, RunSummary, summarise
from kohort.tables.datasets.catalogue import FOLDER_VARIABLE
from kohort.tables.datasets.mimic.features import feature_names
from kohort.tables.datasets.mimic.layout import EVENTS, find_mimic3
from kohort.tables.datasets.mimic.reader import TARGET, load_mimic3

__all__ = ["draw_events", "stays_part", "stays_plan"]

SEEDS: Final = (20, 21, 22)
STAYS_K: Final = 3
"""The smallest k of the paper: a site has some 35 patients."""
HEART_RATE, HEIGHT, WEIGHT, GLUCOSE = 211, 226730, 763, 50931
EVERY: Final = 8
"""Hours between two measurements."""
HOURS: Final = 40
QUASI: Final = ("age", "gender", "height", "weight")
NAME: Final = "The MIMIC-III layout"


def draw_events(folder: Path, *, seed: int = 5) -> None:
    """Write CHARTEVENTS and LABEVENTS for the stays of a folder: vital signs every eight hours, height and weight once.

    Args:
        folder: Holds `icustays.parquet` and `admissions.parquet`.
        seed: Events are drawn with it. Who dies in hospital has a faster heart.
    """
    random = np.random.default_rng(seed)
    died = pl.read_parquet(folder / "admissions.parquet").select("hadm_id", "hospital_expire_flag")
    stays = pl.read_parquet(folder / "icustays.parquet").join(died, on="hadm_id", maintain_order="left")
    begins = pl.col("intime").cast(pl.String).str.slice(0, 19).str.to_datetime()
    hours = list(range(0, HOURS, EVERY))
    rows = stays.select("subject_id", "hadm_id", "icustay_id", "hospital_expire_flag", begins.alias("begins"))
    series = rows.join(pl.DataFrame({"hour": hours}), how="cross")
    rate = 80 + 15 * series["hospital_expire_flag"].to_numpy() + random.normal(0, 12, series.height)
    once = rows.with_columns(hour=pl.lit(1, pl.Int64))
    drawn = [
        (series, HEART_RATE, rate),
        (once, HEIGHT, random.normal(170, 10, once.height)),
        (once, WEIGHT, random.normal(80, 15, once.height)),
    ]
    chart = pl.concat([_events(frame, item, values) for frame, item, values in drawn])
    chart.with_columns(error=pl.lit(0)).write_parquet(folder / "chartevents.parquet")
    glucose = _events(series, GLUCOSE, random.normal(130, 30, series.height))
    laboratory = glucose.drop("icustay_id").with_columns(valueuom=pl.lit("mg/dL"), flag=pl.lit(""))
    laboratory.write_parquet(folder / "labevents.parquet")


def _events(frame: pl.DataFrame, item: int, values: np.ndarray[Any, np.dtype[np.float64]]) -> pl.DataFrame:
    at = (pl.col("begins") + pl.duration(hours="hour")).dt.strftime("%Y-%m-%d %H:%M:%S")
    numbers = pl.Series("valuenum", values).round(1)
    return frame.select(
        "subject_id", "hadm_id", "icustay_id", pl.lit(item).alias("itemid"), at.alias("charttime"),
        numbers.cast(pl.String).alias("value"), numbers,
    )  # fmt: skip


def stays_plan(rows: pl.DataFrame) -> Plan:
    """Death in hospital of the stays of a MIMIC-III table: age, gender, height and weight are quasi-identifiers, and
    diagnoses the items.

    Args:
        rows: The table. A feature that some stay lacks is left out.

    Returns:
        The plan.
    """
    known = {*feature_names()}
    measured = [name for name in rows.columns if name in known and not rows[name].null_count()]
    used = {*measured, *QUASI, "diagnoses", "subject_id", TARGET}
    return load_plan(
        {
            "data": {
                "table": "mimic3",
                "target": TARGET,
                "task": "classification",
                "quasi": list(QUASI),
                "features": measured,
                "items": ["diagnoses"],
                "identifiers": ["subject_id"],
                "hierarchies": {"diagnoses": "icd9"},
                "ancestors": ["diagnoses"],
                "other": ["diagnoses"],
                "encoding": "onehot",
                "test": 0.3,
                "drop": [name for name in rows.columns if name not in used],
            },
            "sites": {"count": 2},
            "model": {"kind": "logistic"},
            "train": {"rounds": 10, "optimizer": "sgd", "lr": 0.2, "batch": 8},
            "policy": {"min_rows": 5, "min_k": STAYS_K},
            "method": {"name": "syntactic", "anonymise": {"k": STAYS_K, "m": 2, "suppression_limit": 0.9}},
        }
    )


@dataclass(frozen=True)
class _Rows:
    """The table of a part, for every plan; the drawn ones where `drawn`."""

    frame: pl.DataFrame
    drawn: bool

    def __call__(self, plan: Plan) -> dict[str, pl.DataFrame]:
        del plan
        return {"mimic3": self.frame}


def _read() -> _Rows | None:
    """The stays with their features, or None without the tables of MIMIC-III."""
    folder = os.environ.get(FOLDER_VARIABLE, "")
    files = find_mimic3(Path(folder)) if folder else None
    if files is None:
        return None
    if all(name in files for name in EVENTS):
        return _Rows(load_mimic3(files)[0], drawn=False)
    with TemporaryDirectory() as made:
        place = Path(made)
        for name, path in files.items():
            if path.suffix != ".parquet":
                return None
            shutil.copy(path, place / f"{name}.parquet")
        draw_events(place)
        return _Rows(load_mimic3(find_mimic3(place) or {})[0], drawn=True)


def stays_part() -> Part:
    """The part of the study on the MIMIC-III layout.

    Returns:
        Its table and a note; only a note, which says why, where it is skipped.
    """
    rows = _read()
    if rows is None:
        needed = "PATIENTS, ADMISSIONS, ICUSTAYS and DIAGNOSES_ICD, for the open demo as Parquet"
        return Part(notes=[f"{NAME} is skipped: the folder of {FOLDER_VARIABLE} has no {needed}."])
    runs = Runs(SEEDS, summarise=summarise, tables=rows)
    ours = stays_plan(rows.frame)
    events = (
        "Events are drawn for its stays, as the demo has none: the figures show that the layout runs from its tables "
        "to predictions and what it loses, and nothing about patients."
        if rows.drawn
        else "Events are those of the folder."
    )
    note = (
        f"{NAME}: {rows.frame.height:,} patients at two sites, k = {STAYS_K}, m = 2, {len(SEEDS)} splits of 70 / 30, "
        f"quasi-identifiers {', '.join(QUASI)}. {events} With so few test rows a share of the gain swings widely."
    )
    return Part([ResultTable(NAME, "Section 4.1", list(_figures(rows.frame, ours, runs)))], notes=[note])


def _figures(rows: pl.DataFrame, ours: Plan, runs: Runs[RunSummary]) -> Iterator[Found]:
    plain, deleted = reference_plans(ours)
    named = {*feature_names()}
    yield Found("patients", rows.height)
    yield Found("features of a stay", sum(name in named for name in rows.columns))
    yield Found("features without a missing value, which are learned from", len(ours.data.features))
    areas = {
        name: runs.values(plan, lambda one: float(one.metrics["auc"]))
        for name, plan in (
            ("FL without quasi-identifiers and items (0 %)", deleted),
            (f"(k, k^m), k = {STAYS_K}", ours),
            ("FL (100 %)", plain),
        )
    }
    for name, values in areas.items():
        yield Found.mean(f"{name}: AUC", values)
    low, own, high = (fmean(values) for values in areas.values())
    share = (own - low) / (high - low) if high > low else "they add nothing"
    yield Found("share of the columns' own gain kept, of the means", share)
    facts: list[Mapping[str, Any]] = [one.facts for one in runs.of(ours)]
    yield Found.mean("classes of two sites", [one["classes"] for one in facts])
    yield Found.mean("items suppressed", [one["suppressed_items"] / one["items"] for one in facts])
    yield Found.mean(
        "test rows without a legitimate class", [one["test_rows_without_class"] / one["test_rows"] for one in facts]
    )
    for name in facts[0]["ncp"]:
        yield Found.mean(f"NCP of {name}", [one["ncp"][name] for one in facts])
