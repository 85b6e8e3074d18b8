"""Runs to report on, small and complete."""

from __future__ import annotations

from typing import Any


def finished(method: str = "fedavg", *, sites: int = 3, name: str = "", **changes: Any) -> dict[str, Any]:
    names = [f"site-{place:05d}" for place in range(sites)]
    rows = {site: 100 + place for place, site in enumerate(names)}
    score = {"f1": 0.5, "f1_macro": 0.6, "precision": 0.7, "recall": 0.4, "specificity": 0.9, "auc": 0.85}
    run = {
        "method": method,
        "engine": "local",
        "seed": 7,
        "sites": sites,
        "site_rows": rows,
        "rounds": 3,
        "stopped_by": "rounds",
        "metrics": {
            "accuracy": 0.8125,
            **score,
            "confusion": [[5, 1], [2, 4]],
            "by_site": {
                site: {"rows": 40, "accuracy": 0.5 + 0.4 * place / sites, **score} for place, site in enumerate(names)
            },
        },
        "history": [{"round": 1 + place, "accuracy": 0.6 + 0.1 * place} for place in range(3)],
        "seconds": {"slowest_site": 0.2, "hub": 0.01, "transfer": 0.13, "cpu_total": 1.5, "wall": 1.25},
        "bytes": {"up": 327_040, "down": 340_880},
        "watt_hours": 0.027,
        "disclosed": [
            disclosure("public", "public(what=row count)", what="prepare", size=640),
            disclosure("aggregate", "aggregate(rows=100)", releases=30, size=326_400),
        ],
        "epsilon": None,
        "delta": None,
        "unit": None,
        "refused": {},
        "dropped": {},
        "received": None,
        "notes": [],
        "ledger_head": "6fbb47392e457dee7e0a3c47efb72346",
        **changes,
    }
    return {**run, "name": name} if name else run


def of_numbers(**changes: Any) -> dict[str, Any]:
    measures = {"rmse": 51234.0, "mae": 0.44, "r2": 0.625}
    by_site = {f"site-{place:05d}": {"rows": 9, **measures} for place in range(3)}
    return finished("fedavg", name="housing", metrics={**measures, "by_site": by_site}, **changes)


def failed(method: str = "partial", error: str = "10 of 10 sites refuse the plan. Ask for less") -> dict[str, Any]:
    return {"method": method, "error": error}


def disclosure(kind: str, guarantee: str, **changes: Any) -> dict[str, Any]:
    return {
        "recipient": "hub",
        "what": "train",
        "kind": kind,
        "guarantee": guarantee,
        "releases": 10,
        "rows": 303,
        "size": 1000,
        **changes,
    }
