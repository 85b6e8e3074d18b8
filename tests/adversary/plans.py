"""The plans that the adversary suite attacks: every method's example, and every option that claims a protection."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from kohort.methods.registry import find_method, methods
from kohort.runs.config import Plan, load_plan, only_read
from kohort.testing import HonestRun, record
from kohort.testing.recorded import CODES, VICTIM

SHARE = float(os.environ.get("KOHORT_LIES", "0"))
"""The share of all lies that is told; `make thorough` tells all of them."""
USUAL_SHARE, USUAL_STEPS = 0.02, 10
"""The share where none is asked for. To lie after the last of many requests, all of them are sent again: of longer
conversations a smaller share is told, so that each takes about as long."""
CATEGORIES = {"ward": ["north", "south", "west"], "outcome": ["ill", "well"]}
BUDGET = {"epsilon": 1.0, "delta": 1e-4}
PHASES = [
    {"kind": "peers", "rows": "low", "rounds": 1, "optimizer": "sgd", "lr": 0.2},
    {"kind": "server", "rows": "high", "rounds": 2, "optimizer": "sgd", "lr": 0.1, "batch": 0, "dp": BUDGET},
]
ALL_ROWS = {**PHASES[1], "rows": "all"}
"""The smallest site has too few rows of high risk for a budget, and would be in no sum."""
SAMPLED = {**ALL_ROWS, "rounds": 1, "dp": BUDGET | {"sample": 0.5}}
ENDS_WITH_PEERS = [{**ALL_ROWS, "rounds": 1}, SAMPLED, PHASES[0]]
CLUSTERS = {"one": ["a-first", "b-victim"], "two": ["c-third", "d-fourth"]}


def _plan(
    method: str,
    own: Mapping[str, Any] | None = None,
    *,
    train: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    declared: bool = True,
    bounds: Mapping[str, Any] | None = None,
    preflight: str = "none",
    columns: Mapping[str, Any] | None = None,
    arrive: str | None = None,
) -> Callable[[], Plan]:
    """A small plan; with `declared`, every column's domain is. `columns` are further keys of its data."""

    def made() -> Plan:
        example = find_method(method).example_keys()
        data = {
            "table": "in-memory table",
            "target": "outcome",
            "quasi": ["age", "ward"],
            "sensitive": ["outcome"],
            "features": "rest",
            "bounds": {"age": [0, 100], "dose": [-10, 20]} if bounds is None else bounds,
            "preflight": preflight,
        }
        return load_plan(
            only_read(
                {
                    "data": data | ({"categories": CATEGORIES} if declared else {}) | dict(columns or {}),
                    "sites": {"split": "files", **example.get("sites", {})} | ({"arrive": arrive} if arrive else {}),
                    "model": {"hidden": [3]} if model is None else dict(model),
                    "train": {"rounds": 2, "batch": 16, "lr": 0.01} | dict(train or {}),
                    "method": {**example["method"], **(own or {})},
                    "policy": {"min_rows": 1, "raw": True, "trust_counts": True, "min_k": 2, "pairs": "open"},
                }
            )
        )

    return made


def _dp(**keys: Any) -> dict[str, Any]:
    return {"dp": BUDGET | keys}


def _oneshot(scheme: str, **keys: Any) -> dict[str, Any]:
    return {"secure": {"sum": scheme}, "oneshot": keys}


OUTPUT = _dp(mechanism="output", delta=0.0)
MASKS: dict[str, Any] = {"secure": {"sum": "masks"}}
LOGISTIC = {"kind": "logistic"}
SGD = {"batch": 0, "optimizer": "sgd"}
LOCAL = {"gate": {"k": 5, "release_k": 5, "count": "local"}}
LOCAL_K = {"gate": LOCAL["gate"] | {"release_l": 1}}
STRICTER = {"gate": LOCAL["gate"] | {"per_site": {VICTIM: {"k": 6, "release_k": 6}}}}
AGE = {"age": [0, 100]}
CONSENT = {"consent": "agreed", "quasi": ["ward"], "test": 0}
"""Of the wards, each has enough rows over all sites: what keeps the canary at home is that its person did not agree."""
RAW = {"gate": {"k": 5, "released": "raw", "count": "global"}}
RECODED = {
    "items": ["codes"],
    "hierarchies": {"codes": "icd9"},
    "categories": CATEGORIES | {"codes": list(CODES)},
}
LOOSE = {"epsilon": 9.0, "delta": 1e-3, "domain_share": 0.5}
"""A budget under which few rows are enough to name a category."""
PLANS: dict[str, Callable[[], Plan]] = {
    **{name: _plan(name) for name in sorted(methods())},
    "additive, masks and dp": _plan("additive", {"rounds": 3} | _dp(epsilon=9.0)),
    "additive, none and dp": _plan("additive", {"rounds": 3, "secure": {"sum": "none"}} | _dp(epsilon=9.0)),
    "additive, pairs by bfv": _plan("additive", {"rounds": 4, "metric": "gram", "secure": {"sum": "bfv"}}),
    "additive, surfaces": _plan("additive", {"rounds": 4, "pairs": 2}),
    "additive, acyclic": _plan("additive", {"rounds": 4, "pairs": "acyclic"}),
    "fedavg, undeclared": _plan("fedavg", declared=False),
    "fedavg, preflight": _plan("fedavg", MASKS, preflight="first"),
    "fedavg, stop": _plan("fedavg", train={"stop": {"metric": "loss", "patience": 2, "min_delta": 0.5}}),
    "fedavg, dp-sgd": _plan("fedavg", _dp(), train={"batch": 0}),
    "fedavg, after": _plan("fedavg", _dp(mechanism="after")),
    "fedavg, output": _plan(
        "fedavg", _dp(mechanism="output", delta=0.0), train={"rounds": 1, "l2": 0.1}, model=LOGISTIC
    ),
    "fedavg, statistics": _plan("fedavg", _dp(mechanism="statistics"), model=LOGISTIC),
    "fedavg, masks": _plan("fedavg", MASKS),
    "fedavg, masks and dp": _plan("fedavg", MASKS | _dp(), train=SGD),
    "fedavg, noisy domains": _plan("fedavg", _dp(**LOOSE), train=SGD, declared=False, bounds=AGE),
    "fedavg, masks, noisy domains": _plan("fedavg", MASKS | _dp(**LOOSE), train=SGD, declared=False, bounds=AGE),
    "fedavg, bfv": _plan("fedavg", {"secure": {"sum": "bfv"}}),
    "partial, local, rules per site, tables read again": _plan("partial", STRICTER, arrive="appended/1 round"),
    "partial, consent": _plan("partial", RAW, columns=CONSENT),
    "central, consent": _plan("central", columns=CONSENT),
    "partial, kept sum": _plan("partial", LOCAL | MASKS | {"kept": "sum"}),
    "partial, kept sum and dp": _plan("partial", LOCAL_K | MASKS | {"kept": "sum"} | _dp(), train=SGD),
    "syntactic, peers": _plan("syntactic", {"anonymise": {"k": 5}, "share": "peers"}),
    "syntactic, recoded": _plan("syntactic", {"anonymise": {"k": 5, "suppression_limit": 1.0}}, columns=RECODED),
    "syntactic, outcomes": _plan(
        "syntactic",
        {"anonymise": {"k": 5, "suppression_limit": 1.0, "outcome": {"groups": 2, "least": 2}}},
        columns=RECODED,
    ),
    "silo, additive": _plan("silo", {"additive": {"rounds": 2}}, model={"kind": "additive"}),
    "partial, additive": _plan("partial", LOCAL | {"additive": {"rounds": 2}}, model={"kind": "additive"}),
    "trees, withheld": _plan("trees", {"depth": 1, "min_cell": 5}),
    "hybrid, named": _plan("hybrid", {"phases": PHASES, "clusters": CLUSTERS}),
    "hybrid, judge": _plan("hybrid", {"phases": PHASES, "clusters": CLUSTERS, "judge": {"rows": "low"}}),
    "hybrid, masks": _plan("hybrid", {"phases": [PHASES[0], ALL_ROWS], "clusters": CLUSTERS, **MASKS}),
    "hybrid, masks, ends with peers": _plan("hybrid", {"phases": ENDS_WITH_PEERS, "clusters": CLUSTERS, **MASKS}),
    "oneshot, bfv": _plan("oneshot", _oneshot("bfv")),
    "oneshot, rounds": _plan("oneshot", _oneshot("masks", rounds=3)),
    "oneshot, bins": _plan("oneshot", _oneshot("bfv", features="bins")),
    "oneshot, peers": _plan("oneshot", _oneshot("none", statistics_to="peers")),
}


@cache
def honest(name: str) -> HonestRun:
    """The recorded honest run of a plan; one per process."""
    found = record(PLANS[name](), name=name, share=SHARE or USUAL_SHARE)
    if not SHARE:
        found.share *= min(1.0, USUAL_STEPS / len(found.script(VICTIM)))
    return found
