"""Tables of results for the terminal, readable in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["audit_lines", "audit_table", "outcome_table", "said_beside"]

_CLASSES = (("accuracy", "accuracy"), ("F1", "f1"), ("AUC", "auc"))
_NUMBERS = (("R2", "r2"), ("RMSE", "rmse"), ("MAE", "mae"))


def outcome_table(runs: Sequence[Mapping[str, Any]], *, attacked: bool = False) -> Table:
    """One row per run: measures, what was disclosed to whom, megabytes sent and seconds.

    Args:
        runs: JSON objects of finished runs, all classifiers or all regressions.
        attacked: Whether epsilon and the success of membership attacks stand in place of megabytes, and what left is
            named by its kinds alone.
    """
    from rich.table import Table

    measures = _NUMBERS if runs and "r2" in runs[0]["metrics"] else _CLASSES
    table = Table()
    table.add_column("method", no_wrap=True)
    for title, _ in measures:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("what left the sites")
    for title in ("epsilon", "attack") if attacked else ("MB up",):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            run["method"],
            *(_number(run["metrics"].get(key)) for _, key in measures),
            _kinds(run["disclosed"]) if attacked else "\n".join(_disclosed(run["disclosed"])),
            *((_epsilon(run), _attack(run)) if attacked else (f"{run['bytes']['up'] / 1e6:.2f}",)),
            f"{run['seconds']['wall']:.1f}",
        )
    return table


def _kinds(entries: Sequence[Mapping[str, Any]]) -> str:
    """The kinds of what left, with who else than the hub got some of it."""
    found = dict.fromkeys(
        _held(entry) + ("" if entry["recipient"] == "hub" else f" to {entry['recipient']}")
        for entry in entries
        if entry["kind"] != "public"
    )
    return ", ".join(found) or "public facts"


def _held(entry: Mapping[str, Any]) -> str:
    """The kind of a release; what has less than a byte per row is counts or classes, under the rows' own guarantee."""
    from kohort.report.words import held

    kind, rows = str(entry["kind"]), entry["rows"]
    only = held(kind, rows=rows, size=entry.get("size", rows), releases=entry.get("releases", 1))
    return f"{only} of {kind} rows" if only else kind


def _epsilon(run: Mapping[str, Any]) -> str:
    return "-" if run.get("epsilon") is None else f"{run['epsilon']:.3g}"


def _attack(run: Mapping[str, Any]) -> str:
    """The largest area under the curve of a membership attack."""
    found = [one["success"] for one in run.get("attacks", ()) if one["family"] == "membership" and one["success"]]
    return _number(max(found, default=None))


def said_beside(run: Mapping[str, Any]) -> list[str]:
    """The task and the baselines of a run, a line each.

    Args:
        run: The JSON object of a finished run.
    """
    lines = []
    task = run.get("task") or {}
    if task:
        positive = f"; F1 is that of the class {task['positive']}" if "positive" in task and run["metrics"] else ""
        lines.append(f"task: {task['kind']}" + (f" ({task['why']})" if "why" in task else "") + positive)
    beside = []
    for name, measured in (run.get("baselines") or {}).items():
        figures = {key: value for key, value in measured.items() if key in {"accuracy", "r2"}}
        where = measured.get("site") or measured.get("class")
        what = _BASELINES.get(name, name.replace("_", " ")) + (f" ({where})" if where else "")
        beside += [f"{what} {_number(value)}" for value in figures.values()]
    if beside:
        measure = "R2" if "r2" in run["metrics"] else "accuracy"
        lines.append(f"{measure} beside: " + ", ".join(beside))
    if run.get("epsilon") is not None:
        facts = run.get("dp") or {}
        whom, scope = facts.get("whom") or run["unit"], facts.get("scope") or "all rows"
        lines.append(f"epsilon: {run['epsilon']:.3g} at delta {run['delta']:.3g}, for each {whom}, {scope}")
    return lines


_BASELINES = {"best_site": "a linear model of the best site", "pooled": "a linear model of all rows pooled"}
"""What baselines are called where people read them; others by their own names."""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _disclosed(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was disclosed, by kind, recipient and number of rows; equal lines of several tasks are shown once."""
    lines = [_line(entry) for entry in entries if entry["kind"] != "public"]
    return list(dict.fromkeys(lines)) or ["row counts only"]


def _line(entry: Mapping[str, Any]) -> str:
    kind = _held(entry) if entry["recipient"] == "hub" else f"{_held(entry)} to {entry['recipient']}"
    return f"{kind}: from {entry['rows']:,} rows" if entry["rows"] else f"{kind}: {entry['what']}"


def audit_table(found: Mapping[str, Any]) -> Table:
    """One row per attack that was made: what it found beside a guess.

    Args:
        found: The JSON object of an audit.
    """
    from rich.markup import escape
    from rich.table import Table

    table = Table("attack", "on what", "by", "success", "guess", "95 %", "verdict")
    for one in found["findings"]:
        if one["success"] is None:
            continue
        low, high = one["interval"] or (one["success"], one["success"])
        table.add_row(
            escape(one["attack"]),
            escape(one["on"]),
            one["by"],
            f"{one['success']:.3f}",
            "-" if one["guess"] is None else f"{one['guess']:.3f}",
            f"{low:.3f} to {high:.3f}",
            one["verdict"],
        )
    return table


def audit_lines(found: Mapping[str, Any]) -> list[str]:
    """What was not attacked and why, the risk before and after, then one sentence on what was attacked.

    Args:
        found: The JSON object of an audit.
    """
    lines = [
        f"not attacked: {one['on']} by {one['by']}, {one['attack']}: {one['note']}"
        for one in found["findings"]
        if one["success"] is None
    ]
    lines += _risk(found.get("risk"))
    made = [one for one in found["findings"] if one["success"] is not None]
    better = sum(one["verdict"] == "better than guessing" for one in made)
    found_by = "What none of them finds, others may still find."
    none = "No attack was made: that is no sign of protection."
    lines.append(f"{better} of {len(made)} attacks are better than guessing. {found_by}" if made else none)
    return lines


def _risk(risk: Mapping[str, Any] | None) -> list[str]:
    """Re-identification risk before and after, in one line."""
    from kohort.report.words import share

    if risk is None or risk["before"] is None:
        return []
    after = "no row left" if risk["after"] is None else f"{share(risk['after']['unique'])} of the rows received"
    said = f"unique rows by {', '.join(risk['quasi'])}: {share(risk['before']['unique'])} in the sites' tables"
    return [f"{said}, {after}"]
