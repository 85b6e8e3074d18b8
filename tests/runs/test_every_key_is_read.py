"""Every key that a plan accepts changes something: two runs that differ in one key alone are compared.

What plans say of themselves (`Plan.reads`) is no oracle here. A plan's hash is held constant, because requests carry it
and noise is drawn by it: a key that nothing else reads then gives the same model, figures, claims and split.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, RefusedError
from kohort.methods.oneshot.state import FILE as ONESHOT
from kohort.methods.registry import find_method, methods
from kohort.protocol.plan.sections import ModelSection, TrainSection
from kohort.rng import Streams
from kohort.runs.config import Plan, SitesSection, load_plan
from kohort.runs.explain import explain_plan
from kohort.runs.plan.overrides import key_of
from kohort.runs.run import run
from kohort.runs.simulation import populate

WARDS, SEXES = ["a", "b", "c"], ["f", "m"]
NOT_TRACED = {"seconds", "watt_hours", "ledger_head", "plan", "plan_hash"}
"""What differs between two runs of one plan, or spells the plan out."""


def table(rows: int = 240) -> pl.DataFrame:
    """Two numbers, two categories, sets of codes, and an answer that follows from them."""
    random = np.random.default_rng(3)
    age, dose = random.integers(18, 80, rows), random.normal(size=rows).round(1)
    codes = [sorted({f"c{code}" for code in random.choice(6, 2, p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.05])}) for _ in age]
    return pl.DataFrame(
        {
            "patient": [f"p{row // 2}" for row in range(rows)],
            "age": age,
            "dose": dose,
            "ward": random.choice(WARDS, rows),
            "sex": random.choice(SEXES, rows),
            "codes": codes,
            "ill": np.where(age + 9 * dose + random.normal(0, 9, rows) > 48, "yes", "no"),
        }
    )


DATA: dict[str, Any] = {
    "table": "t.csv", "target": "ill", "quasi": ["age", "ward"], "sensitive": ["ill"], "features": ["dose", "sex"],
    "bounds": {"age": [0, 100], "dose": [-6, 6]}, "drop": ["codes", "patient"], "test": 0.2,
    "categories": {"ward": WARDS, "sex": SEXES, "ill": ["no", "yes"]},
}  # fmt: skip
POLICY: dict[str, Any] = {
    "min_rows": 1, "raw": True, "min_k": 2, "pairs": "open", "min_cell": 1, "min_sum_cell": 1, "epsilon": 1000.0,
    "delta": 0.5, "void_dp": True,
}  # fmt: skip
NETWORK: dict[str, Any] = {"train": {"rounds": 2, "lr": 0.05, "batch": 16}, "model": {"hidden": [3]}}
PEERS = {"kind": "peers", "rounds": 1}
SERVER = {"kind": "server", "rounds": 3, "lr": 0.1, "batch": 0, "local_epochs": 1, "optimizer": "sgd"}
PLANS: dict[str, dict[str, Any]] = {
    "additive": {"method": {"rounds": 4, "bins": 6, "min_bin": 5}},
    "central": NETWORK,
    "fedavg": NETWORK,
    "hybrid": {
        "train": {"lr": 0.05, "batch": 16, "optimizer": "sgd"},
        "model": {"hidden": [3]},
        "sites": {"low_risk": 0.5, "clusters": 2, "count": 2},
        "method": {"phases": [PEERS, SERVER]},
    },
    "oneshot": {"method": {"secure": {"sum": "masks"}}},
    "partial": {
        **NETWORK,
        "data": {**DATA, "quasi": ["sex", "ward"], "features": ["age", "dose"]},
        "method": {"gate": {"k": 35, "release_k": 4}},
    },
    "silo": NETWORK,
    "syntactic": {
        **NETWORK,
        "data": {**DATA, "drop": ["patient"], "items": ["codes"]},
        "method": {"anonymise": {"k": 4}},
    },
    "trees": {"method": {"steps": 2, "depth": 2, "trees": 2, "bins": 8, "min_leaf": 5}},
}
"""A small plan for every method."""


def trace(plan: Plan) -> dict[str, str]:
    """What a run of a plan leaves: model, figures, split, what sites may be asked and may release, and files.

    The file of the closed form is left out: it holds `[method.oneshot]` as it was written.
    """
    population = populate(plan, Streams.seeded(5), tables={"": table()})
    outcome = run(plan, seed=5, tables={"": table()})
    figures = {name: value for name, value in outcome.to_mapping().items() if name not in NOT_TRACED}
    saved = outcome.model.save()
    models = {"": saved, **{name: model.save() for name, model in sorted(outcome.site_models.items())}}
    arrays = [(name, key, value.tolist()) for name, one in models.items() for key, value in one.arrays.items()]
    claims = find_method(plan.method).claims(plan.config, 50)
    return {
        "model": _digest([arrays, saved.facts]),
        "figures": _digest(figures),
        "split": _digest([population.fingerprint(), population.starts.tolist(), population.names]),
        "contract": _digest([explain_plan(plan).to_mapping(), claims]),
        "files": _digest(sorted((name, data.hex()) for name, data in outcome.files.items() if name != ONESHOT)),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()


@dataclass(frozen=True)
class Try:
    """A key and another value for it, and what else a plan has to say for the key to be read."""

    key: str
    value: Any
    beside: Mapping[str, Any] = field(default_factory=dict)


FREE = {"train.rounds": None, "train.batch": None, "train.lr": None, "model.hidden": None}
"""None leaves a key of the small plan out."""
PERSONS = {"data.identifiers": ["patient"], "data.drop": ["codes"]}
FULL = {"train.batch": 0, "train.local_epochs": 1, "train.optimizer": "sgd", "train.lr": 2.0, "train.rounds": 3}
LEARNED = {
    "additive": {**FREE, "model.kind": "additive", "method.additive.rounds": 4, "method.additive.min_bin": 3},
    "trees": {**FREE, "model.kind": "trees", "method.trees.steps": 2, "method.trees.depth": 2, "method.trees.trees": 2,
              "method.trees.min_leaf": 3},
}  # fmt: skip


def shared() -> Iterator[Try]:
    """Keys of `[sites]`, `[model]` and `[train]`, and the one of `[data]` that is no role of a column."""
    momentum = {"train.optimizer": "momentum", "method.phases.1.rounds": 2}
    uneven = {"sites.split": "dirichlet", "sites.alpha": 0.3}
    yield Try("train.rounds", 3)
    yield Try("train.local_epochs", 3)
    yield Try("train.batch", 0)
    yield Try("train.optimizer", "momentum")
    yield Try("train.lr", 0.2)
    yield Try("train.momentum", 0.5, momentum)
    yield Try("train.momentum", 0.5, {"train.optimizer": "sgd"})
    yield Try("train.momentum", 0.5, {"train.optimizer": "adam"})
    yield Try("train.state", "keep", momentum)
    yield Try("train.state", "keep", {"train.optimizer": "sgd"})
    yield Try("train.l2", 0.1)
    yield Try("train.class_weights", {"yes": 3.0})
    yield Try("train.fraction", 0.5)
    yield Try("train.select", "poisson", {"train.fraction": 0.5})
    yield Try("train.stop", {"patience": 1, "min_delta": 10.0}, {"train.rounds": 6})
    yield Try("train.aggregate", "clip:0.001")
    yield Try("train.hub", "momentum", {"method.phases.2.rounds": 3})
    yield Try("train.correction", "fedprox:1.0")
    yield Try("train.average", 1.0)
    yield Try("train.reject", 0.1, {"data.validation": 0.2, "train.reject": 1000.0})
    yield Try("data.validation", 0.4, {"data.validation": 0.2, "train.reject": 1.0})
    yield Try("data.validation", 0.4)
    yield Try("model.kind", "logistic", {"model.hidden": None})
    yield Try("model.hidden", [4])
    yield Try("model.activation", "tanh")
    yield Try("model.activation", "tanh", {"model.hidden": []})
    yield Try("model.dtype", "float64")
    yield Try("model.init", "pytorch")
    yield Try("model.init", "pytorch", {"model.kind": "logistic", "model.hidden": None})
    yield Try("sites.count", 3)
    yield Try("sites.split", "sorted")
    yield Try("sites.clusters", 1)
    yield Try("sites.clusters", 2, {"sites.split": "column:ward", "sites.count": None, "sites.clusters": 1})
    yield Try("sites.alpha", 9.0, {"sites.split": "dirichlet"})
    yield Try("sites.low_risk", 0.3)
    yield Try("sites.min_rows", 45, uneven)
    yield Try("sites.arrive", "50%/1 rounds")


def budget(place: str, **beside: Any) -> Iterator[Try]:
    """Keys of a budget."""
    beside = {f"{place}.epsilon": 0.4, **beside}
    person = {**beside, **PERSONS, f"{place}.unit": "person"}
    yield Try(f"{place}.mechanism", "after", beside)
    yield Try(f"{place}.unit", "person", {**beside, **PERSONS})
    yield Try(f"{place}.overlap", 2, person)
    yield Try(f"{place}.epsilon", 2.0, beside)
    yield Try(f"{place}.delta", 1e-4, beside)
    yield Try(f"{place}.clip", 0.3, beside)
    yield Try(f"{place}.accountant", "rdp", beside)
    yield Try(f"{place}.quantile", 0.5, beside)
    yield Try(f"{place}.average", 1.0, beside)
    yield Try(f"{place}.lower_rate", True, beside)
    yield Try(f"{place}.sample", 0.5, beside)
    yield Try(f"{place}.person_rows", "all", person)
    yield Try(f"{place}.normalise", True, beside)
    learned = {**beside, f"{place}.epsilon": 300.0, "data.categories": {"sex": SEXES, "ill": ["no", "yes"]}}
    yield Try(f"{place}.domain_share", 0.4, learned)


def sums(place: str = "method.secure", beside: Mapping[str, Any] | None = None) -> Iterator[Try]:
    """Keys of a secure sum."""
    for scheme in ("masks", "none"):
        known = {**(beside or {}), f"{place}.sum": scheme}
        yield Try(f"{place}.sum", "bfv", known)
        yield Try(f"{place}.colluders", 2, {**known, "sites.count": 6})


def additive(place: str = "method", beside: Mapping[str, Any] | None = None) -> Iterator[Try]:
    """Keys of additive models, also as the learner of another method."""
    known = beside or {}
    for name, value in {"bins": 4, "min_bin": 9, "rounds": 5, "ridge": 30.0, "smooth": 50.0,
                        "monotone": {"dose": "down"}}.items():  # fmt: skip
        yield Try(f"{place}.{name}", value, known)
    if not known:
        yield Try(f"{place}.metric", "gram")
        yield Try(f"{place}.pairs", 1)
    count = {"data.target": "age", "data.quasi": ["ward"], "data.sensitive": ["ill"], "data.features": ["dose", "sex"]}
    yield Try(f"{place}.link", "log", {**known, **count})


def trees(place: str = "method", beside: Mapping[str, Any] | None = None) -> Iterator[Try]:
    """Keys of forests, also as the learner of another method."""
    known = beside or {}
    for name, value in {"steps": 3, "depth": 3, "trees": 3, "rate": 0.3, "columns": 1.0, "bins": 4, "l2": 50.0,
                        "min_leaf": 20, "holdout": 0.3, "min_cell": 3}.items():  # fmt: skip
        yield Try(f"{place}.{name}", value, known)
    wild = {"steps": 12, "depth": 5, "min_leaf": 2, "rate": 2.0, "holdout": 0.3, "l2": 1.0}
    yield Try(f"{place}.patience", 1, {**known, **{f"{place}.{name}": value for name, value in wild.items()}})


def of_fedavg() -> Iterator[Try]:
    """A budget by each mechanism, alone and over sums, and the sums."""
    once = {"train.batch": None, "train.lr": None}
    yield from budget("method.dp", **{"train.rounds": 3, "train.lr": 2.0, "train.optimizer": "sgd"})
    yield from budget("method.dp", **{"method.secure.sum": "masks", **FULL})
    pure = {**once, "train.rounds": 1, "train.l2": 0.1, "model.kind": "logistic", "model.hidden": None,
            "method.dp.delta": 0.0}  # fmt: skip
    own: dict[str, dict[str, Any]] = {
        "after": {},
        "hub": {"method.dp.unit": "site", "sites.count": 12, "method.dp.delta": 0.005},
        "ftrl": {"train.batch": None, "train.rounds": 3},
        "statistics": {**once, "train.rounds": None, "model.kind": "onelayer", "model.hidden": None},
        "output": pure,
        "objective": pure,
    }  # fmt: skip
    for mechanism, beside in own.items():
        known = {"method.dp.mechanism": mechanism, "method.dp.epsilon": 2.0, **beside}
        for name, value in {"clip": 0.3, "average": 1.0, "lower_rate": True, "accountant": "rdp"}.items():
            yield Try(f"method.dp.{name}", value, known)
        yield Try("train.average", 1.0, known)
        yield Try("train.average", 1.0, {**known, "method.dp.average": 0.4})
        yield Try("train.l2", 0.5, known)
    yield from sums()
    yield Try("sites.faults", {"drop": 0.3})


def of_hybrid() -> Iterator[Try]:
    """Keys of phases among peers and with the server, of clusters, judging, budgets and sums."""
    for name, value in {"rows": "all", "rounds": 2, "local_epochs": 3}.items():
        yield Try(f"method.phases.1.{name}", value)
    yield Try("method.phases.1.topology", "ring", {"sites.count": 5})
    for name, value in {"rows": "all", "rounds": 2, "local_epochs": 3, "batch": 8, "optimizer": "adam", "lr": 0.3,
                        "topology": "ring", "kind": "peers"}.items():  # fmt: skip
        yield Try(f"method.phases.2.{name}", value)
    yield Try("sites.low_risk", 0.3, {"method.phases.1.rows": "all", "method.phases.2.rows": "all"})
    yield Try("method.clusters", "labels:2", {"sites.clusters": 1, "sites.count": 4})
    judged = {"method.judge.rows": "high", "method.judge.epsilon": 1.0}
    yield Try("method.judge.rows", "high", {"method.judge.rows": "low"})
    yield Try("method.judge.share", 0.4, judged)
    for rows in ("high", "low"):
        yield Try("method.judge.epsilon", 5.0, {**judged, "method.judge.rows": rows, "method.judge.epsilon": None})
        yield Try("method.judge.delta", 1e-3, {**judged, "method.judge.rows": rows, "method.judge.epsilon": None})
    yield from budget("method.phases.2.dp", **{"method.phases.2.lr": 2.0})
    few = {"sites.clusters": 1, "sites.count": 4}
    yield from budget("method.phases.2.dp", **{"method.phases.2.lr": 2.0, "method.secure.sum": "masks", **few})
    every = {"method.phases.2.rows": "all", "method.phases.2.dp.unit": "person", "method.secure.sum": "masks"}
    yield Try("method.phases.2.dp.person_rows", "all", {"method.phases.2.dp.epsilon": 0.4, **PERSONS, **every, **few})
    yield from tuned({})
    yield from tuned({"method.secure.sum": "masks", **few})
    yield from budget("method.phases.1.dp", **{"train.lr": 2.0, "train.batch": 4, "method.phases.1.rounds": 2})
    yield from sums(beside=few)


def tuned(beside: Mapping[str, Any]) -> Iterator[Try]:
    """Keys beside a private phase that the tuning rule fills in, with few and many rounds."""
    left_open = {"kind": "server", "rounds": 3, "dp": {"epsilon": 0.4}}
    known = {"train.batch": None, "train.lr": None, "train.optimizer": None, "method.phases.2": left_open, **beside}
    peers = {"batch": 16, "optimizer": "sgd", "lr": 0.05}
    known |= {f"method.phases.1.{name}": value for name, value in peers.items()}
    for key, value in {"average": 1.0, "state": "keep", "momentum": 0.5, "l2": 0.5, "lr": 0.01, "hub": "plain",
                       "class_weights": {"yes": 3.0}, "local_epochs": 2, "batch": 8}.items():  # fmt: skip
        yield Try(f"train.{key}", value, known)
        alone = {"method.phases": [left_open], "method.clusters": None, "sites.clusters": None}
        if beside:
            yield Try(f"train.{key}", value, {**known, **alone})
    for key, value in {"average": 1.0, "lower_rate": False, "clip": 0.3, "epsilon": 2.0}.items():
        yield Try(f"method.phases.2.dp.{key}", value, known)
    yield Try("train.average", 1.0, {**known, "method.phases.2.dp.average": 0.4})


def of_oneshot() -> Iterator[Try]:
    """Keys of the closed form, of random layers, of bins, and of other ways to send statistics."""
    place, clear = "method.oneshot", {"method.secure.sum": "none"}
    layers = {f"{place}.features": 8}
    yield Try(f"{place}.lambda", 0.1)
    yield Try(f"{place}.activation", "softplus")
    yield Try(f"{place}.features", 8)
    yield Try(f"{place}.rounds", 2)
    yield Try(f"{place}.precision", 8)
    yield Try(f"{place}.min_sites", 4)
    yield Try(f"{place}.min_cell", 30)
    yield Try(f"{place}.statistics_to", "peers", clear)
    yield Try(f"{place}.min_rows", 40)
    yield Try(f"{place}.min_rows", 47, {**clear, "sites.split": "dirichlet", "sites.alpha": 0.3, "sites.min_rows": 30})
    yield Try(f"{place}.min_sites", 4, {**clear, f"{place}.statistics_to": "peers"})
    for name, value in {"units": "fourier", "scale": 1.0, "seed": 3, "patches": 2, "columns": 2}.items():
        yield Try(f"{place}.{name}", value, layers)
        yield Try(f"{place}.{name}", value)
    few = {f"{place}.lambda": "folds", "data.features": ["dose"], "data.quasi": [], "data.drop":
           ["codes", "patient", "age", "ward", "sex"], "data.categories": {"ill": ["no", "yes"]}}  # fmt: skip
    yield Try(f"{place}.folds", 3, few)
    yield Try(f"{place}.folds", 3)
    bins = {f"{place}.features": "bins"}
    for name, value in {"lambda": 0.1, "min_cell": 30, "activation": "softplus", "folds": 3, "min_rows": 30,
                        "seed": 3, "precision": 8}.items():  # fmt: skip
        yield Try(f"{place}.{name}", value, bins)
    yield Try(f"{place}.degree", 16384)
    yield from budget("method.dp", **{"method.dp.epsilon": 8.0})
    yield from sums()


def of_partial() -> Iterator[Try]:
    """Keys of the gate and of the sums, and of learners behind the gate."""
    place = "method.gate"
    close = {"method.gate.rule": "t-closeness", "method.gate.t": 0.9}
    printed = {"method.gate.rule": "paper-l", "method.gate.l": 5, "method.gate.k": None}
    for name, value in {"k": 36, "strict": True, "overlap": 9, "count": "local", "release_k": 8, "release_l": 1,
                        "keep_days": 30, "l": 2, "t": 0.2}.items():  # fmt: skip
        yield Try(f"{place}.{name}", value)
    by_age = {"data.quasi": ["age", "ward"], "data.features": ["dose", "sex"]}
    yield Try(f"{place}.key", "bins:age=40", by_age)
    yield Try(f"{place}.rule", "paper-l", {f"{place}.rule": "l-diversity", f"{place}.l": 2, f"{place}.k": None})
    yield Try(f"{place}.l", 19, printed)
    yield Try(f"{place}.k", 30, {**printed, f"{place}.k": None})
    yield Try(f"{place}.t", 0.01, close)
    yield Try(f"{place}.k", 45, close)
    yield Try(f"{place}.overlap", 3, {f"{place}.count": "local"})
    yield Try(f"{place}.per_site", {"site-01": {"k": 45}})
    yield Try(f"{place}.released", "raw", {"policy.trust_counts": True})
    yield Try("method.kept", "sum")
    kept = {"method.kept": "sum", f"{place}.count": "local", f"{place}.release_l": 1, f"{place}.k": 14, **FULL}
    yield from budget("method.dp", **kept)
    yield Try("train.average", 1.0, {**kept, "method.dp.epsilon": 0.4, "method.dp.average": 0.4})
    yield from sums()
    yield from additive("method.additive", LEARNED["additive"])
    yield from trees("method.trees", LEARNED["trees"])


def of_silo() -> Iterator[Try]:
    """Keys of how a table is made anonymous, and of learners over it."""
    place = "method.anonymise"
    exact = {"data.quasi": ["sex", "ward"], "data.features": ["age", "dose"], f"{place}.algorithm": "lattice",
             f"{place}.k": 8}  # fmt: skip
    for name, value in {"k": 12, "l": 2, "t": 0.1, "l_kind": "entropy", "t_kind": "kl", "algorithm": "mondrian",
                        "hierarchies": "intervals", "suppression_limit": 0.3}.items():  # fmt: skip
        yield Try(f"{place}.{name}", value)
    yield Try(f"{place}.l_kind", "recursive", {f"{place}.l": 2})
    yield Try(f"{place}.t_kind", "kl", {f"{place}.t": 0.2})
    yield Try(f"{place}.keep_exact", False, exact)
    yield from additive("method.additive", LEARNED["additive"])
    yield from trees("method.trees", LEARNED["trees"])


def of_syntactic() -> Iterator[Try]:
    """Keys of how rows and sets are made anonymous, of who gets the classes, and of learners over them."""
    place = "method.anonymise"
    for name, value in {"k": 12, "m": 1, "delta": 0.1, "item_hierarchy": "auto", "groups": "table-wide",
                        "rare": "suppress", "merge": "none", "suppression_limit": 0.3}.items():  # fmt: skip
        yield Try(f"{place}.{name}", value)
    yield Try(f"{place}.importance", {"method": "forest", "top": 1})
    yield Try(f"{place}.importance.method", "forest")
    yield Try(f"{place}.importance.top", 1, {f"{place}.importance.method": "forest"})
    weights = {"age": 1.0, "ward": 0.1, "codes": 0.5}
    declared = {f"{place}.importance": {"method": "declared", "weights": weights}}
    yield Try(f"{place}.importance.weights", {**weights, "age": 0.1, "ward": 1.0}, declared)
    yield Try("method.share", "peers")
    yield Try("method.gain", True)
    yield from additive("method.additive", LEARNED["additive"])
    yield from trees("method.trees", LEARNED["trees"])


def of_additive() -> Iterator[Try]:
    """Keys of additive models, of budgets and of sums."""
    yield from additive()
    noisy = {"method.dp.epsilon": 300.0}
    yield from (one for one in budget("method.dp", **{"method.dp.epsilon": 8.0}) if one.key != "method.dp.clip")
    number = {"data.target": "age", "data.quasi": ["ward"], "data.sensitive": ["ill"], "data.features": ["dose", "sex"]}
    yield Try("method.dp.clip", 0.3, {**noisy, **number})  # of classes, residuals have a bound of their own
    for name in ("ridge", "smooth"):
        yield Try(f"method.{name}", 30.0, {"method.dp.epsilon": 1.0})
    yield from sums()


def of_trees() -> Iterator[Try]:
    """Keys of forests and of sums."""
    yield from trees()
    yield from sums()


OWN = {
    "additive": of_additive, "central": lambda: iter(()), "fedavg": of_fedavg, "hybrid": of_hybrid,
    "oneshot": of_oneshot, "partial": of_partial, "silo": of_silo, "syntactic": of_syntactic, "trees": of_trees,
}  # fmt: skip


def changed(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a key by its dotted name, entries of a list numbered from 1; None takes it out."""
    *parents, last = key.split(".")
    inner: Any = raw
    for parent in parents:
        if isinstance(inner, list):
            inner = inner[int(parent) - 1]
        elif parent in inner or value is not None:
            inner = inner.setdefault(parent, {})
        else:
            return
    if isinstance(inner, list):
        inner[int(last) - 1] = deepcopy(value)
    elif value is None:
        inner.pop(last, None)
    else:
        inner[last] = value


def small_plan(method: str, beside: Mapping[str, Any]) -> dict[str, Any]:
    """The small plan of a method with some keys set or taken out."""
    own = deepcopy(PLANS[method])
    raw = {"data": deepcopy(DATA), "policy": deepcopy(POLICY), **own}
    raw["sites"] = {"count": 4, **own.get("sites", {})}
    raw["method"] = {"name": method, **own.get("method", {})}
    for key, value in beside.items():
        if method != "hybrid" and key.startswith("method.phases"):
            continue
        changed(raw, key, value)
    return raw


EXCEPTIONS: dict[str, str] = {
    "silo:method.anonymise.keep_exact": "splits classes of twice k rows that agree in part; so few rows have none",
    "syntactic:method.anonymise.suppression_limit": "a limit: beyond it a site refuses, below it nothing changes",
}
"""Keys that are accepted and that two runs need not tell apart, with the method in front, and why."""
UNTRIED: dict[str, str] = {
    "sites.quorum": "decides only whether a run with too few answers fails",
    "sites.deadline": "decides only which late sites are left out",
    "model.loss": "for modules of torch, which take long to import",
    "method.gate.key_version": "a version of code that is installed elsewhere; other values are refused",
    "allow_large_delta": "a permission: without it such a run is refused",
    "method.oneshot.mode": "CKKS of mode paper rounds with noise of the operating system, so no two runs are alike",
    "method.oneshot.degree": "as method.oneshot.mode",
    "method.gate.per_site.": "tried as a whole, as method.gate.per_site",
    "method.anonymise.outcome": "needs a declared hierarchy of codes: tests/methods/syntactic/test_outcome_groups.py",
    "method.additive.dp": "refused with a learner behind another method",
    "method.additive.metric": "refused with a learner behind another method",
    "method.additive.pairs": "refused with a learner behind another method",
    "method.additive.secure": "as method.secure of the method additive",
    "method.trees.secure": "as method.secure of the method trees",
}
"""Keys that no run is made for, and why."""


REFUSED: dict[str, tuple[str, ...]] = {
    "method.dp.mechanism": ("additive", "oneshot", "partial"),
    "method.dp.average": ("additive", "oneshot"),
    "method.dp.lower_rate": ("additive", "oneshot"),
    "method.dp.normalise": ("additive", "oneshot"),
    "method.dp.person_rows": ("additive", "oneshot", "partial"),
    "method.dp.quantile": ("additive", "oneshot", "partial"),
    "method.dp.sample": ("additive", "oneshot"),
    "method.dp.overlap": ("partial",),
    "method.dp.unit": ("partial",),
}
"""Keys that a method's section shares with others and that no plan of it accepts with another value."""


def keys_of(section: type[Any], place: str = "method") -> Iterator[str]:
    """Every key of a method's section, those of sections in it included."""
    hints = get_type_hints(section)
    for item in fields(section):
        name = f"{place}.{key_of(item.name)}"
        inner: list[Any] = [one for one in _types_in(hints[item.name]) if is_dataclass(one)]
        yield from keys_of(inner[0], name) if inner else (name,)


def _types_in(hint: Any) -> Iterator[Any]:
    yield hint
    for one in get_args(hint):
        yield from _types_in(one)


def plain(key: str) -> str:
    """A key without the numbers of list entries."""
    return ".".join(part for part in key.split(".") if not part.isdecimal())


@pytest.fixture(autouse=True)
def one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "digest", lambda _: "0" * 64)


class Runs:
    """Traces of plans, each made once."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def of(self, raw: dict[str, Any]) -> dict[str, str]:
        """The trace of a plan that is carried out.

        Raises:
            ConfigError: The plan is refused.
        """
        text = json.dumps(raw, sort_keys=True)
        if text not in self._known:
            self._known[text] = trace(load_plan(raw))
        return self._known[text]


def told_apart(method: str, one: Try, runs: Runs) -> bool | None:
    """Whether a key makes a difference; None where the plan is refused with it."""
    raw = small_plan(method, one.beside)
    other = deepcopy(raw)
    changed(other, one.key, one.value)
    try:
        with_it = runs.of(other)
    except (ConfigError, RefusedError):
        return None
    inner: Any = raw  # the same section, without the key
    for part in one.key.split(".")[:-1]:
        inner = inner[int(part) - 1] if isinstance(inner, list) else inner.setdefault(part, {})
    return runs.of(raw) != with_it


def tries_of(method: str) -> list[Try]:
    """All that is tried with a method."""
    return [one for one in (*shared(), *OWN[method]()) if method == "hybrid" or not one.key.startswith("method.phases")]


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_key_that_a_plan_accepts_changes_something(method: str) -> None:
    runs, found = Runs(), defaultdict[str, list[bool | None]](list)
    for one in tries_of(method):
        apart = told_apart(method, one, runs)
        assert apart is not False or f"{method}:{one.key}" in EXCEPTIONS, f"{one} is accepted and changes nothing"
        found[plain(one.key)].append(apart)
    own = {key for key in keys_of(find_method(method).config) if not _untried(key)}
    assert own <= found.keys(), f"say how to try {sorted(own - found.keys())}"
    refused = {key for key in own if True not in found[key] and f"{method}:{key}" not in EXCEPTIONS}
    assert refused == {key for key, names in REFUSED.items() if method in names and key in own}


def test_keys_that_many_methods_share_are_all_tried() -> None:
    tried = {plain(one.key) for method in PLANS for one in tries_of(method)}
    sections = {"sites": SitesSection, "model": ModelSection, "train": TrainSection}
    known = {f"{name}.{item.name}" for name, section in sections.items() for item in fields(section)}
    assert {key for key in known if not _untried(key)} <= tried


@pytest.mark.parametrize(
    ("method", "dead"),
    [
        ("fedavg", Try("train.momentum", 0.5, {"train.optimizer": "adam"})),
        ("fedavg", Try("train.state", "keep", {"train.optimizer": "sgd"})),
        ("trees", Try("method.secure.colluders", 2, {"method.secure.sum": "none", "sites.count": 6})),
        ("additive", Try("method.dp.average", 1.0, {"method.dp.epsilon": 8.0})),
        ("oneshot", Try("method.oneshot.units", "fourier")),
        ("oneshot", Try("method.oneshot.folds", 3)),
        ("oneshot", Try("method.dp.lower_rate", True, {"method.dp.epsilon": 8.0})),
        ("silo", Try("method.anonymise.t_kind", "kl")),
    ],
    ids=lambda part: getattr(part, "key", part),
)
def test_a_key_that_nothing_reads_would_be_found(method: str, dead: Try, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told_apart(method, dead, Runs()) is None
    monkeypatch.setattr(Plan, "require_read", lambda *_: None)
    assert told_apart(method, dead, Runs()) is False


def _untried(key: str) -> bool:
    return any(key.startswith(name) or key.endswith(f".{name}") for name in UNTRIED)
