"""Models for tables over secure sums beside what people use on pooled tables: accuracy, time, bytes, and budgets.

Every table is split three times into 70 % of training and 30 % of test rows. Ours are federated runs; peers train on
the pooled rows, with the same encoded columns and their own defaults. No setting was chosen on test rows. XGBoost and
InterpretML run in an environment of their own: the one whose interpreter KOHORT_BENCH_PEERS names, or one that is made
in the user's cache. `python -m bench --quick tabular` takes one split, four tables and fewer budgets.

The whole takes long, so it runs in pieces, too: KOHORT_BENCH_TABLES=adult,dutch measures these tables alone, and
KOHORT_BENCH_PARTS one or more of models, budgets, ebm, dp-ebm, oneshot, bagging, times, KOHORT_BENCH_EPSILONS=0.2,1
these budgets, KOHORT_BENCH_ALONE=1 the additive models beside what is required of them and beside what peers had when
they were last measured, without forests.
Rows of a piece replace the earlier ones of the same setting and peer; the others stay.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bench.harness import NOT_INSTALLED, QUICK, RESULTS, Row
from kohort.errors import ConfigError
from kohort.models.base import Model
from kohort.models.rows import Rows, encode_rows
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.blocks import CategoryBlock, ItemsBlock
from kohort.tables.datasets.catalogue import load_dataset

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "tabular"
SPLITS = 1 if QUICK else 3
SUMMARY = (
    "Federated models for tables against pooled ones: accuracy (R2 for california_housing) on 30 % of the rows, mean "
    f"over {SPLITS} split(s), peers with their defaults on the same rows; budgets with delta 1e-5, noise in shares of "
    "masked sums, bins paid for; then processor time and bytes on Adult, one thread. A ratio with a sign is the "
    "difference to the peer or to the required figure, and its target is the most that ours may be behind."
)
_PEER_PACKAGES = ("numpy", "scikit-learn", "xgboost-cpu", "interpret-core", "flwr[simulation]")
WITH_PAIRS = "additive, pairs = 16"
OVER_SECURE_SUMS = {"pairs": "acyclic"}
"""What an additive model without a budget does by default where sums are secure; the same bits are found in clear."""
ONLY = frozenset(os.environ.get("KOHORT_BENCH_TABLES", "").split(",")) - {""}
"""Where tables are named, these alone are measured."""
PARTS = frozenset(os.environ.get("KOHORT_BENCH_PARTS", "").split(",")) - {""}
"""Where parts are named, these alone are measured."""
EPSILONS = frozenset(float(entry) for entry in os.environ.get("KOHORT_BENCH_EPSILONS", "").split(",") if entry)
"""Where budgets are named, these alone are measured."""
ALONE = bool(os.environ.get("KOHORT_BENCH_ALONE"))
"""Whether additive models alone are measured on tables."""
PARTIAL = bool(ONLY or PARTS or EPSILONS or ALONE)
PEERS = ("HistGradientBoosting", "XGBoost", "logistic regression")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A named dataset, what is asked of the models on it, and how it is prepared."""

    name: str
    behind: float
    """How far trees may be behind histogram gradient boosting."""
    additive: float | None = None
    """The accuracy that an additive model must reach."""
    private: Mapping[float, float] = field(default_factory=dict)
    """The same under a budget, by epsilon."""
    rows: int | None = None
    codes: Sequence[str] = ()
    """Columns of whole numbers that are codes."""
    prepare: Callable[[pl.DataFrame], pl.DataFrame] = field(default=lambda frame: frame)
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    large: bool = False
    """Left out of a quick run."""


def _diabetes(frame: pl.DataFrame) -> pl.DataFrame:
    """First encounters, with their diagnoses; whether a patient came back at all."""
    again = pl.when(pl.col("readmitted") == "NO").then(pl.lit("no")).otherwise(pl.lit("yes"))
    return frame.drop("encounter_id", "patient_nbr").with_columns(readmitted=again)


_DUTCH = (
    "household_position household_size prev_residence_place citizenship country_birth edu_level economic_status "
    "cur_eco_activity marital_status"
)
TABLES = (
    Table(name="adult", behind=0.003, additive=0.861, private={0.2: 0.830, 0.5: 0.838, 1.0: 0.849, 4.0: 0.854}),
    Table(
        name="dutch",
        behind=0.003,
        additive=0.834,
        private={0.2: 0.829, 0.5: 0.829, 1.0: 0.829, 4.0: 0.833},
        codes=_DUTCH.split(),
    ),
    Table(
        name="acs_income",
        behind=0.003,
        additive=0.815,
        private={0.2: 0.796, 0.5: 0.804, 1.0: 0.808, 4.0: 0.813},
        rows=200_000,
        codes=("COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "SEX", "RAC1P"),
        large=True,
    ),
    Table(name="dry_bean", behind=0.003, additive=0.920),
    Table(name="california_housing", behind=0.010),
    Table(name="covertype", behind=0.020, rows=120_000, large=True),
    Table(name="diabetes_130us", behind=0.003, additive=0.644, prepare=_diabetes, large=True),
    Table(name="california_housing", behind=0.0, settings={"steps": 30}, label=", 182 rounds", large=True),
)


def measure() -> Iterator[Row]:
    """Table by table, then what takes long: rows are written as they come."""
    wanted = [table for table in TABLES if not (QUICK and table.large) and (not ONLY or table.name in ONLY)]
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "models": lambda: (row for table in wanted for row in _compared(table)),
        "budgets": lambda: (row for table in wanted for row in _private(table)),
        "ebm": _readable_peer,
        "dp-ebm": _private_peer,
        "oneshot": _one_shot,
        "bagging": _bagging_peer,
        "times": _times,
    }
    unknown = PARTS - set(parts)
    if unknown:
        raise ConfigError(f"unknown parts of a benchmark: {', '.join(sorted(unknown))}", hint=f"Use {', '.join(parts)}")
    for name, part in parts.items():
        if name in PARTS or (not PARTS and (not ONLY or name in {"models", "budgets"})):
            yield from part()


def _compared(table: Table) -> list[Row]:
    """Ours against every peer on one table."""
    scores: dict[str, list[float]] = {}
    for split in _splits(table):
        for name, (method, own) in _ours(table).items():
            scores.setdefault(name, []).append(split.score(_federated(split, method, own).model))
        for peer, score in {} if ALONE else _peers(split, only_boosting=bool(table.settings)).items():
            scores.setdefault(peer, []).append(score)
    means = {name: float(np.mean(found)) for name, found in scores.items()}
    return list(_rows_of(table, means | (_earlier_peers(table) if ALONE else {})))


def _earlier_peers(table: Table) -> dict[str, float]:
    """What peers had on a table when they were last measured: they see the same rows every time."""
    rows = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))["rows"]
    known = {row["peer"]: row["peer_value"] for row in rows if row["setting"] == f"{table.name}: additive"}
    return {peer: float(value) for peer, value in known.items() if peer in PEERS and value is not None}


def _ours(table: Table) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Our models on a table, by what they are called, with their settings."""
    if table.settings:
        return {"trees": ("trees", table.settings)}
    additive: dict[str, tuple[str, Mapping[str, Any]]] = {
        "additive": ("additive", {}),
        WITH_PAIRS: ("additive", {"pairs": 16}),
    }
    return additive if ALONE else {"trees": ("trees", {}), **additive}


def _rows_of(table: Table, means: Mapping[str, float]) -> Iterator[Row]:
    unit = "R2" if table.name == "california_housing" else "accuracy"
    if "additive" in means and table.additive is not None:
        yield _against(f"{table.name}: additive, 12 rounds", means["additive"], "required", table.additive, 0.0)
        yield _against(f"{table.name}: {WITH_PAIRS}, 12 rounds", means[WITH_PAIRS], "additive", means["additive"], None)
    for ours in ("trees", "additive", WITH_PAIRS):
        for peer in PEERS if ours in means else ():
            theirs = means.get(peer)
            if theirs is None and (ALONE or _peer_python() is not None or table.settings):
                continue  # not fitted on this table
            behind = -table.behind if ours == "trees" and peer == "HistGradientBoosting" else None
            yield _against(f"{table.name}: {ours}{table.label}", means[ours], peer, theirs, behind, unit=unit)


def _against(
    setting: str, ours: float, peer: str, theirs: float | None, target: float | None, *, unit: str = "accuracy"
) -> Row:
    return Row(
        setting=setting,
        ours=ours,
        peer=peer,
        peer_value=theirs,
        unit=unit,
        ratio=None if theirs is None else ours - theirs,
        target=target,
        difference=True,
        note="" if theirs is not None else NOT_INSTALLED,
    )


# Budgets


def _budget(epsilon: float) -> dict[str, Any]:
    return {"dp": {"epsilon": epsilon, "delta": 1e-5, "allow_large_delta": True}}


def _private(table: Table) -> Iterator[Row]:
    """An additive model under a budget, with noise in shares: 10 sites, 20 of the largest table."""
    chosen = EPSILONS or ({1.0} if QUICK else set(table.private))
    wanted = {epsilon: least for epsilon, least in table.private.items() if epsilon in chosen}
    sites = 20 if table.large else 10
    for epsilon, least in wanted.items():
        scores = [
            split.score(_federated(split, "additive", _budget(epsilon), sites=sites, scheme="masks").model)
            for split in _splits(table)
        ]
        setting = f"{table.name}: additive, epsilon {epsilon:g}, {sites} sites"
        yield _against(setting, float(np.mean(scores)), "required", least, 0.0)


def _readable_peer() -> Iterator[Row]:
    """InterpretML's EBM on Adult, one split, and its time beside a whole run of ours: it takes ten minutes and more."""
    split = next(_splits(TABLES[0]))
    model = _encoder_of(split)
    train, test = encode_rows(model.encoder, split.train), encode_rows(model.encoder, split.test)
    found = _outside(model, train, test, ["EBM"]).get("EBM")
    peer = None if found is None else _raw_score(test.y, found.classes, regression=False)
    _EBM_SECONDS.extend([] if found is None else [found.seconds])
    for name, settings in (("additive", {}), (WITH_PAIRS, {"pairs": 16})):
        ours = split.score(_federated(split, "additive", settings).model)
        yield _against(f"adult: {name}, one split", ours, "EBM", peer, None)


_EBM_SECONDS: list[float] = []


def _private_peer() -> Iterator[Row]:
    """The area under the curve at epsilon 1 on Adult, beside InterpretML's DP-EBM on pooled rows."""
    ours, theirs = [], []
    for split in _splits(TABLES[0]):
        model = _federated(split, "additive", _budget(1.0), sites=10, scheme="masks").model
        train, test = encode_rows(model.encoder, split.train), encode_rows(model.encoder, split.test)
        ours.append(_area(test.y, np.asarray(model.probabilities(test.x))[:, 1]))
        found = _outside(model, train, test, ["DP-EBM"])
        theirs += [_area(test.y, found["DP-EBM"].values)] if "DP-EBM" in found else []
    peer = float(np.mean(theirs)) if theirs else None
    yield _against("adult: additive, epsilon 1, 10 sites", float(np.mean(ours)), "DP-EBM", peer, 0.02, unit="AUC")


def _area(true: NDArray[Any], scores: NDArray[Any]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(true, scores))


def _one_shot() -> Iterator[Row]:
    """Ridge on bins, two encrypted sums, small pairs rounded by the key-holder."""
    keys = {"oneshot": {"features": "bins"}}
    scores = [
        split.score(_federated(split, "oneshot", keys, sites=10, scheme="bfv").model) for split in _splits(TABLES[0])
    ]
    yield _against("adult: oneshot, bins, two rounds by bfv", float(np.mean(scores)), "required", 0.855, 0.0)


def _bagging_peer() -> Iterator[Row]:
    """Trees on Adult, ten sites, beside bagging of XGBoost trees under Flower's simulation, with as many rounds."""
    split = next(_splits(TABLES[0]))
    model = _encoder_of(split)
    train, test = encode_rows(model.encoder, split.train), encode_rows(model.encoder, split.test)
    began = perf_counter()
    outcome = _federated(split, "trees", {}, sites=10, scheme="masks")
    seconds = perf_counter() - began
    found = _bagged(train, test, sites=10, rounds=outcome.rounds)
    setting = f"adult: trees, ten sites by masks, {outcome.rounds} rounds, one split"
    peer = "XGBoost bagging in Flower's simulation"
    theirs = None if found is None else _raw_score(test.y, np.asarray(found["classes"]), regression=False)
    yield _against(setting, split.score(outcome.model), peer, theirs, None)
    note = "Flower's sites send their trees in clear; its best number of rounds was chosen on a tenth of the rows"
    taken = None if found is None else float(found["seconds"])
    yield Row.faster(f"{setting}, wall time", ours=seconds, peer=peer, theirs=taken, note=note)


def _bagged(train: Rows, test: Rows, *, sites: int, rounds: int) -> dict[str, Any] | None:
    """What the peer answers; None where its environment has no simulation of Flower's."""
    python = _peer_python()
    needed = [python or "", "-c", "import flwr, ray, xgboost"]
    if python is None or subprocess.run(needed, check=False, stderr=subprocess.DEVNULL).returncode:
        return None
    with tempfile.TemporaryDirectory() as folder:
        given, answered = Path(folder) / "rows.npz", Path(folder) / "found.json"
        np.savez(given, x=train.x, y=train.y, test=test.x)
        asked = json.dumps({"sites": sites, "rounds": rounds})
        command = [python, "-c", "import bagging_peer; bagging_peer.main()", str(given), str(answered), asked]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)})
        found: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    return found


# Splits and runs


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
        found, true = model.predict(self.test), self.test[self.target]
        kind = pl.Float64 if model.task == "regression" else pl.String
        return _score(true.cast(kind).to_numpy(), found.cast(kind).to_numpy())


def _score(true: NDArray[Any], found: NDArray[Any]) -> float:
    if found.dtype.kind == "f":
        return float(1 - np.sum(np.square(true - found)) / np.sum(np.square(true - true.mean())))
    return float(np.mean(true == found))


def _splits(table: Table) -> Iterator[Split]:
    dataset = load_dataset(table.name)
    target, frame = str(dataset.target), table.prepare(dataset.frame)
    frame = frame.with_columns(pl.col(list(table.codes)).cast(pl.String)) if table.codes else frame
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
    if method == "additive" and "dp" not in settings:
        settings = {**OVER_SECURE_SUMS, **settings}
    plan = load_plan(
        {
            "data": {"table": "memory", "target": split.target, "features": "rest", "test": 0, **split.declared},
            "sites": {"count": sites},
            "method": {"name": method, "secure": {"sum": scheme}, **settings},
            "policy": {"min_rows": 1, "pairs": "open"},
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
    outside = _outside(model, train, test, ["XGBoost"])
    return found | {
        name: _raw_score(test.y, answer.values if regression else answer.classes, regression=regression)
        for name, answer in outside.items()
    }


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
import json, sys, time
import numpy as np
data = np.load(sys.argv[1], allow_pickle=False)
regression, wanted = bool(data["regression"]), json.loads(str(data["wanted"]))
types = json.loads(str(data["types"]))
bounds = {int(place): ends for place, ends in json.loads(str(data["bounds"])).items()}
def boosted():
    import xgboost
    return (xgboost.XGBRegressor if regression else xgboost.XGBClassifier)(n_jobs=1, random_state=0)
def additive():
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor
    kind = ExplainableBoostingRegressor if regression else ExplainableBoostingClassifier
    return kind(n_jobs=1, random_state=0, feature_types=types)
def private():
    from interpret.privacy import DPExplainableBoostingClassifier
    kinds = {"n_jobs": 1, "random_state": None, "feature_types": types, "privacy_bounds": bounds}
    return DPExplainableBoostingClassifier(epsilon=1.0, delta=1e-5, **kinds)
found = {}
for name, make in (("XGBoost", boosted), ("EBM", additive), ("DP-EBM", private)):
    if name not in wanted:
        continue
    try:
        model = make()
    except ImportError:
        continue
    began = time.process_time()
    model.fit(data["x"], data["y"])
    seconds = time.process_time() - began
    classes = model.predict(data["test"])
    values = classes if regression else model.predict_proba(data["test"])[:, -1]
    found[name] = [np.asarray(classes, float).tolist(), np.asarray(values, float).tolist(), seconds]
json.dump(found, open(sys.argv[2], "w"))
"""


@dataclass(frozen=True)
class Answer:
    """What a peer predicts for test rows, and the processor time of its fit."""

    classes: NDArray[Any]
    values: NDArray[Any]
    """Numbers, or probabilities of the last class."""
    seconds: float


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


def _outside(model: Model, train: Rows, test: Rows, wanted: Sequence[str]) -> dict[str, Answer]:
    """The answers of peers, by name; none where their environment cannot be made."""
    python = _peer_python()
    if python is None:
        return {}
    kinds = [
        "nominal" if isinstance(block, CategoryBlock) else "continuous"
        for block in model.encoder.blocks
        for _ in block.features
    ]
    bounds = {place: [0.0, 1.0] for place, kind in enumerate(kinds) if kind == "continuous"}
    with tempfile.TemporaryDirectory() as folder:
        given, answered = Path(folder) / "rows.npz", Path(folder) / "found.json"
        texts = {"wanted": json.dumps(list(wanted)), "types": json.dumps(kinds), "bounds": json.dumps(bounds)}
        np.savez(given, x=train.x, y=train.y, test=test.x, regression=model.task == "regression", **texts)
        subprocess.run([python, "-c", _SCRIPT, str(given), str(answered)], check=True)
        found = json.loads(answered.read_text(encoding="utf-8"))
    return {name: Answer(np.asarray(of[0]), np.asarray(of[1]), float(of[2])) for name, of in found.items()}


# Time and bytes


def _seconds(split: Split, method: str, sites: int, scheme: str) -> float:
    began = process_time()
    _federated(split, method, {}, sites=sites, scheme=scheme)
    return process_time() - began


def _times() -> Iterator[Row]:
    """Processor seconds of whole runs on Adult, and what they send."""
    split = next(_splits(TABLES[0]))
    model = _encoder_of(split)
    train, test = encode_rows(model.encoder, split.train), encode_rows(model.encoder, split.test)
    for method in ("trees", "additive"):
        _seconds(split, method, 1, "none")  # compiles
    boosted = min(_boosted(train, test, regression=False)[1] for _ in range(2))
    note = "ours with encoding, door, ledger and the evaluation of every step"
    trees = min(_seconds(split, "trees", 1, "none") for _ in range(2))
    setting = "adult: trees, whole run in process, one site"
    yield Row.within(setting, ours=trees, peer="HistGradientBoosting", theirs=boosted, unit="s", target=5.0, note=note)
    if _EBM_SECONDS:  # a ratio is of figures of one run
        ours, theirs = min(_seconds(split, "additive", 1, "none") for _ in range(2)), min(_EBM_SECONDS)
        setting = "adult: additive, whole run in process, one site"
        yield Row.faster(setting, ours=ours, peer="EBM", theirs=theirs, target=20.0, note=note)
    for method in ("trees", "additive"):
        masked, clear = (min(_seconds(split, method, 10, scheme) for _ in range(2)) for scheme in ("masks", "none"))
        setting = f"adult: {method}, ten sites by masks"
        yield Row.within(setting, ours=masked, peer="ten sites in clear", theirs=clear, unit="s", target=5.0)
    yield from _many_sites(split)
    yield from _bytes(split)


def _many_sites(split: Split) -> Iterator[Row]:
    """A thousand sites of 200 rows each, drawn with replacement."""
    large = Split(
        split.table,
        split.target,
        split.train.sample(200_000, with_replacement=True, seed=0),
        split.test,
        split.declared,
    )
    seconds = min(_seconds(large, "additive", 1_000, "none") for _ in range(2))
    setting = "adult: additive, 1,000 sites x 200 rows in clear"
    yield Row.within(setting, ours=seconds, peer="limit", theirs=10.0, unit="s")


def _bytes(split: Split) -> Iterator[Row]:
    """What one of ten sites sends per round, by masks, beside a plain run."""
    for method in ("additive", "trees"):
        sent = {}
        for scheme in ("masks", "none"):
            outcome = _federated(split, method, {}, sites=10, scheme=scheme)
            sent[scheme] = outcome.bytes["up"] / 10 / outcome.rounds
        yield Row(
            setting=f"adult: {method}, bytes per site and round by masks",
            ours=sent["masks"],
            peer="in clear",
            peer_value=sent["none"],
            unit="B",
            ratio=sent["masks"] / sent["none"],
        )
