"""Forests over sums beside what people use on pooled tables: accuracy on rows that nobody trained on, and time.

Every table is split three times into 70 % of training and 30 % of test rows. Ours is a federated run of three sites;
peers train on the pooled rows, with the same encoded columns and their own defaults. No setting was chosen on test
rows. XGBoost and InterpretML run in an environment of their own: the one whose interpreter KOHORT_BENCH_PEERS names, or
one that is made in the user's cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bench.harness import NOT_INSTALLED, Row
from kohort.methods.registry import methods
from kohort.models.base import Model
from kohort.models.rows import Rows, encode_rows
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.blocks import CategoryBlock, ItemsBlock
from kohort.tables.datasets.catalogue import load_dataset

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "tabular"
SUMMARY = (
    "Federated models for tables against pooled ones: accuracy (R2 for california_housing) on 30 % of the rows, mean "
    "of three splits, peers with their defaults on the same rows; then processor time on Adult, one thread. A ratio "
    "is the difference to the peer, so its target is the most that ours may be behind, as a negative number."
)
SPLITS = 3
_PEER_PACKAGES = ("numpy", "scikit-learn", "xgboost-cpu", "interpret-core")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A named dataset, how far behind histogram gradient boosting trees may be on it, and how it is prepared."""

    name: str
    behind: float
    rows: int | None = None
    prepare: Callable[[pl.DataFrame], pl.DataFrame] = field(default=lambda frame: frame)
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    additive_peer: bool = False
    """Whether InterpretML's EBM is fitted, too: minutes per split, hours on many classes or columns."""


def _diabetes(frame: pl.DataFrame) -> pl.DataFrame:
    """First encounters; whether a patient came back at all."""
    again = pl.when(pl.col("readmitted") == "NO").then(pl.lit("no")).otherwise(pl.lit("yes"))
    return frame.drop("encounter_id", "patient_nbr").with_columns(readmitted=again)


TABLES = (
    Table(name="adult", behind=0.003, additive_peer=True),
    Table(name="dutch", behind=0.003),
    Table(name="acs_income", behind=0.003, rows=200_000),
    Table(name="diabetes_130us", behind=0.003, prepare=_diabetes),
    Table(name="dry_bean", behind=0.003),
    Table(name="california_housing", behind=0.010, additive_peer=True),
    Table(name="california_housing", behind=0.0, settings={"steps": 30}, label=", 182 rounds"),
    Table(name="covertype", behind=0.020, rows=120_000),
)


def measure() -> list[Row]:
    rows: list[Row] = []
    for table in TABLES:
        rows += _compared(table)
        print(*rows[-1:], file=sys.stderr, flush=True)
    return [*rows, *_times()]


def _compared(table: Table) -> list[Row]:
    """Ours against every peer on one table."""
    scores: dict[str, list[float]] = {}
    for split in _splits(table):
        for name in ("trees", *(name for name in ("additive",) if name in methods() and not table.settings)):
            own = table.settings if name == "trees" else {}
            scores.setdefault(name, []).append(split.score(_federated(split, name, own).model))
        for peer, score in _peers(split, only_boosting=bool(table.settings)).items():
            scores.setdefault(peer, []).append(score)
    return list(
        _rows_of(table, {name: float(np.mean(found)) for name, found in scores.items() if len(found) == SPLITS})
    )


def _rows_of(table: Table, means: Mapping[str, float]) -> Iterator[Row]:
    unit = "R2" if table.name == "california_housing" else "accuracy"
    for ours in ("trees", "additive"):
        if ours not in means:
            continue
        for peer in ("HistGradientBoosting", "XGBoost", "EBM", "logistic regression"):
            judged = ours == "trees" and peer == "HistGradientBoosting"
            theirs = means.get(peer)
            if theirs is None and _peer_python() is not None:
                continue  # not fitted on this table
            yield Row(
                setting=f"{table.name}: {ours}{table.label}",
                ours=means[ours],
                peer=peer,
                peer_value=theirs,
                unit=unit,
                ratio=None if theirs is None else means[ours] - theirs,
                target=-table.behind if judged else None,
                difference=True,
                note="" if theirs is not None else NOT_INSTALLED,
            )


@dataclass(frozen=True)
class Split:
    """One split of a table."""

    table: Table
    target: str
    train: pl.DataFrame
    test: pl.DataFrame
    declared: Mapping[str, Any]
    """Public domains: peers and sites alike know which values exist."""

    def score(self, model: Model) -> float:
        """Accuracy or R2 on the test rows."""
        found = model.predict(self.test).to_numpy()
        return _score(self.test[self.target].cast(found_type(found)).to_numpy(), found)


def found_type(found: NDArray[Any]) -> Any:
    """The type to compare predictions in."""
    return pl.Float64 if found.dtype.kind == "f" else pl.String


def _score(true: NDArray[Any], found: NDArray[Any]) -> float:
    if found.dtype.kind == "f":
        return float(1 - np.sum(np.square(true - found)) / np.sum(np.square(true - true.mean())))
    return float(np.mean(true == found))


def _splits(table: Table) -> Iterator[Split]:
    dataset = load_dataset(table.name)
    target, frame = str(dataset.target), table.prepare(dataset.frame)
    if table.rows is not None:
        frame = frame.sample(table.rows, seed=0)
    declared = _declared(frame, target)
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(frame.height)
        cut = int(0.7 * frame.height)
        yield Split(table, target, frame[order[:cut]], frame[order[cut:]], declared)


def _declared(frame: pl.DataFrame, target: str) -> dict[str, Any]:
    """Categories and bounds of all columns, from the whole table."""
    categories: dict[str, list[str]] = {}
    bounds: dict[str, list[float]] = {}
    items = [name for name in frame.columns if frame[name].dtype == pl.List]
    for name in frame.columns:
        column = frame[name]
        if name in items:
            categories[name] = column.explode().drop_nulls().unique().sort().to_list()
        elif column.dtype.is_numeric() and not (name == target and column.n_unique() <= 20):
            bounds[name] = [float(column.min()), float(column.max())]  # type: ignore[arg-type]
        else:
            categories[name] = column.drop_nulls().cast(pl.String).unique().sort().to_list()
    nullable = [name for name in frame.columns if frame[name].null_count()]
    declared = {"categories": categories, "bounds": bounds, "nullable": nullable, "missing": "category"}
    return declared | ({"items": items} if items else {})


def _federated(
    split: Split, method: str, settings: Mapping[str, Any], *, sites: int = 3, scheme: str = "none"
) -> Outcome:
    plan = load_plan(
        {
            "data": {"table": "memory", "target": split.target, "features": "rest", "test": 0, **split.declared},
            "sites": {"count": sites},
            "method": {"name": method, "secure": {"sum": scheme}, **settings},
            "policy": {"min_rows": 1},
        }
    )
    return run(plan, seed=0, tables={"memory": split.train})


def _peers(split: Split, *, only_boosting: bool) -> dict[str, float]:
    """The scores of pooled models, by name; without those that are not installed."""
    model = _encoder_of(split)
    train, test = encode_rows(model.encoder, split.train), encode_rows(model.encoder, split.test)
    regression = model.task == "regression"
    found = {"HistGradientBoosting": _boosted(train, test, regression=regression)[0]}
    if only_boosting:
        return found
    found["logistic regression"] = _linear(model, train, test, regression=regression)
    return found | _outside(train, test, regression=regression, additive=split.table.additive_peer)


@cache
def _encoder_of_plan(table: str) -> dict[str, Model]:
    del table
    return {}


def _encoder_of(split: Split) -> Model:
    """A model of one step, for its encoder: how everybody reads the rows."""
    known = _encoder_of_plan(split.table.name)
    if "model" not in known:
        known["model"] = _federated(split, "trees", {"steps": 1, "depth": 1, "trees": 1}).model
    return known["model"]


def _boosted(train: Rows, test: Rows, *, regression: bool) -> tuple[float, float]:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    made = (HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier)(random_state=0)
    began = process_time()
    made.fit(train.x, train.y)
    seconds = process_time() - began
    return _raw_score(test.y, made.predict(test.x), regression=regression), seconds


def _raw_score(true: NDArray[Any], found: NDArray[Any], *, regression: bool) -> float:
    if regression:
        return float(1 - np.sum(np.square(true - found)) / np.sum(np.square(true - true.mean())))
    return float(np.mean(true == found))


def _linear(model: Model, train: Rows, test: Rows, *, regression: bool) -> float:
    """Indicators of categories, numbers on the scale from 0 to 1."""
    from sklearn.linear_model import LogisticRegression, Ridge

    def wide(rows: Rows) -> NDArray[np.float32]:
        parts, start = [], 0
        for block in model.encoder.blocks:
            values = rows.x[:, start : start + len(block.features)]
            start += len(block.features)
            if isinstance(block, CategoryBlock) and not isinstance(block, ItemsBlock) and block.size > 2:
                codes = np.rint(values[:, 0] * (block.size - 1)).astype(np.int64)
                values = np.eye(block.size, dtype=np.float32)[codes]
            parts.append(values)
        return np.concatenate(parts, axis=1)

    made = Ridge() if regression else LogisticRegression(max_iter=200)
    made.fit(wide(train), train.y)
    return _raw_score(test.y, made.predict(wide(test)), regression=regression)


# Peers in an environment of their own

_SCRIPT = """
import json, sys
import numpy as np
data = np.load(sys.argv[1])
regression = bool(data["regression"])
found = {}
def fitted(name, make):
    try:
        found[name] = make().fit(data["x"], data["y"]).predict(data["test"]).tolist()
    except ImportError:
        pass
def boosted():
    import xgboost
    return (xgboost.XGBRegressor if regression else xgboost.XGBClassifier)(n_jobs=1, random_state=0)
def additive():
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor
    return (ExplainableBoostingRegressor if regression else ExplainableBoostingClassifier)(n_jobs=1, random_state=0)
fitted("XGBoost", boosted)
if data["additive"]:
    fitted("EBM", additive)
json.dump(found, open(sys.argv[2], "w"))
"""


@cache
def _peer_python() -> str | None:
    """The interpreter of the peers' environment; None where it cannot be made."""
    named = os.environ.get("KOHORT_BENCH_PEERS")
    if named:
        return named
    cache_home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    place = cache_home / "kohort" / "bench-peers"
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-q", *_PEER_PACKAGES]
        if subprocess.run(command, check=False).returncode:
            return None
    return str(python)


def _outside(train: Rows, test: Rows, *, regression: bool, additive: bool) -> dict[str, float]:
    python = _peer_python()
    if python is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        given, answered = Path(folder) / "rows.npz", Path(folder) / "found.json"
        np.savez(given, x=train.x, y=train.y, test=test.x, regression=regression, additive=additive)
        subprocess.run([python, "-c", _SCRIPT, str(given), str(answered)], check=True)
        found = json.loads(answered.read_text(encoding="utf-8"))
    return {name: _raw_score(test.y, np.asarray(values), regression=regression) for name, values in found.items()}


def _times() -> list[Row]:
    """Processor seconds of whole runs on Adult: pooled against HistGradientBoosting, masked against clear."""
    split = next(_splits(TABLES[0]))

    def seconds(sites: int, scheme: str) -> float:
        began = process_time()
        _federated(split, "trees", {}, sites=sites, scheme=scheme)
        return process_time() - began

    model = _encoder_of(split)
    train, test = encode_rows(model.encoder, split.train), encode_rows(model.encoder, split.test)
    seconds(1, "none")  # compiles
    pairs = [(seconds(1, "none"), _boosted(train, test, regression=False)[1]) for _ in range(3)]
    sums = [(seconds(10, "masks"), seconds(10, "none")) for _ in range(2)]
    ours, boosted = (min(times) for times in zip(*pairs, strict=True))
    masked, clear = (min(times) for times in zip(*sums, strict=True))
    return [
        Row.within(
            "adult: trees, whole run in process, one site",
            ours=ours,
            peer="HistGradientBoosting",
            theirs=boosted,
            unit="s",
            target=5.0,
            note="ours with encoding, door, ledger and the evaluation of every step",
        ),
        Row.within(
            "adult: trees, ten sites by masks",
            ours=masked,
            peer="ten sites in clear",
            theirs=clear,
            unit="s",
            target=5.0,
        ),
    ]
