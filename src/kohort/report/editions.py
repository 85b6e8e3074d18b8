"""Two editions of a report: everything for those who ran it, and one that may be handed to outsiders.

The external edition leaves out what is about a single site or a single machine: names, rows and measures of sites,
reasons of sites that took no part, notes and warnings (they may name columns, sites or files), file paths, the seed,
and figures of guarantees that count one site's rows. Totals over all sites, measures, budgets, attacks, guarantees in
words and heads of ledgers stay. The re-identification risk of the sites' own tables was counted inside the sites and
never opened: it is left out, and so are measures by group; the risk of rows that the hub received stays. The edition is
made by copying what is listed here: a key that is new is left out.

Exact figures would tell counts: 0.0512820513 of the unique rows of a site is 2 of 39. So shares of attacks and risks
are rounded to thousandths, and tables of counts (confusion, bins of the calibration, details and notes of attacks) are
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

__all__ = ["Edition", "edited", "edited_plan"]

Edition: TypeAlias = Literal["internal", "external"]
_KEPT: Final = (
    "method", "name", "engine", "sites", "rounds", "stopped_by", "task", "history", "seconds", "bytes", "watt_hours",
    "epsilon", "delta", "unit", "dp", "curves", "ledger_head",
)  # fmt: skip
_DISCLOSED: Final = ("recipient", "kind", "rows", "what", "releases", "size", "in_words", "shown_as")
_ATTACK: Final = ("attack", "family", "on", "by", "measure", "success", "guess", "interval", "verdict")
_LEDGER: Final = ("lines", "releases", "refusals", "signed_by", "signer", "head")
_BASELINES: Final = ("majority", "mean", "pooled")
"""The best single site has a name."""
_FAILED: Final = "It did not finish. The reason is in the internal edition."
_PLAN: Final = {
    "data": ("target", "quasi", "sensitive", "items", "missing", "encoding", "test"),
    "sites": ("count", "quorum"),
}


def edited(run: Mapping[str, Any], edition: Edition) -> dict[str, Any]:
    """A run as an edition shows it.

    Args:
        run: The JSON object of a run, as a report reads it.
        edition: Which edition.

    Returns:
        The run itself in the internal edition; a new object in the external one.
    """
    if edition == "internal":
        return dict(run)
    if run.get("error"):
        return {"method": run["method"], "name": run.get("name", ""), "error": _FAILED}
    made = {key: run[key] for key in _KEPT if key in run}
    metrics = run.get("metrics") or {}
    made["metrics"] = {key: value for key, value in metrics.items() if key not in ("by_site", "confusion")}
    made["baselines"] = {name: run["baselines"][name] for name in _BASELINES if name in (run.get("baselines") or {})}
    made["attacks"] = [_attack(one) for one in run.get("attacks") or ()]
    made["calibration"] = _calibration(run.get("calibration"))
    made["disclosed"] = [_disclosed(item) for item in run.get("disclosed", ())]
    made["rows_held"] = sum((run.get("site_rows") or {}).values())
    made["absent"] = len(run.get("refused") or {}) + len(run.get("dropped") or {})
    ledger = run.get("ledger")
    made["risk"] = _risk(run.get("risk"))
    made["ledger"] = None if ledger is None else {key: ledger[key] for key in _LEDGER if key in ledger} | {"notes": []}
    return made


def edited_plan(plan: Mapping[str, Any] | None, edition: Edition) -> Mapping[str, Any] | None:
    """The shared plan of a report as an edition shows it; the external one leaves out tables, splits and categories.

    Args:
        plan: The keys that the plans of all runs share; None where no plan is known.
        edition: "internal" shows the plan as it is.

    Returns:
        The sections to show; None without a plan. An external edition has no `[policy]`, and only those
        keys of `[data]` and `[sites]` that name no table, split or category.
    """
    if plan is None or edition == "internal":
        return plan
    kept = {
        section: {key: values[key] for key in _PLAN.get(section, tuple(values)) if key in values}
        for section, values in plan.items()
        if isinstance(values, Mapping)
    }
    return {section: values for section, values in kept.items() if section != "policy"}


def _disclosed(item: Mapping[str, Any]) -> dict[str, Any]:
    """A kind of release; a guarantee in words names no count of one site's rows."""
    kept = {key: item[key] for key in _DISCLOSED if key in item}
    return {**kept, "guarantee": item.get("in_words") or item["kind"]}


def _risk(risk: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The risk of what the hub received, without that of the sites' own tables."""
    if risk is None:
        return None
    after = risk.get("after")
    kept = {key: risk[key] for key in ("rows", "quasi", "why") if key in risk}
    return {**kept, "before": None, "after": None if after is None else _coarse(after), "withheld": True}


def _attack(found: Mapping[str, Any]) -> dict[str, Any]:
    """An attack without counts; why one was not made stays."""
    kept = {key: found[key] for key in _ATTACK if key in found}
    return _coarse(kept) | {"note": "" if found.get("success") is not None else found.get("note", "")}


def _calibration(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if found is None else _coarse({**found, "bins": []})


def _coarse(values: Mapping[str, Any]) -> dict[str, Any]:
    """Shares to thousandths; what is no share stays."""
    return {key: _rounded(value) for key, value in values.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
