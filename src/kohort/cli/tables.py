"""Tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["outcome_table"]


def outcome_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """One line a run: how good, what was disclosed to whom, how long."""
    from rich.table import Table

    table = Table("method", "sites", "rounds", "accuracy", "F1", "AUC", "what left the sites", "MB up", "seconds")
    for run in runs:
        metrics = run["metrics"]
        first, second, third = (
            (metrics["accuracy"], metrics["f1"], metrics["auc"])
            if "accuracy" in metrics
            else (metrics["r2"], metrics["rmse"], metrics["mae"])
        )
        table.add_row(
            run["method"],
            str(run["sites"]),
            str(run["rounds"]),
            _number(first),
            _number(second),
            _number(third),
            "\n".join(_disclosed(run["disclosed"])),
            f"{run['bytes']['up'] / 1e6:.2f}",
            f"{run['seconds']['wall']:.1f}",
        )
    if runs and "accuracy" not in runs[0]["metrics"]:
        for column, name in zip(table.columns[3:6], ("R2", "RMSE", "MAE"), strict=True):
            column.header = name
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}"


def _disclosed(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"{entry['kind']}: {entry['what']}, {entry['rows']:,} rows, {entry['releases']:,} times to {entry['recipient']}"
        for entry in entries
        if entry["kind"] != "public"
    ]
    return lines or ["row counts only"]
