"""The model card with the metadata block that Hugging Face reads, before the card of the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from kohort.errors import ConfigError
from kohort.report.runs import Run

__all__ = ["hugging_face_card"]

_METRICS: Final = {"accuracy": "accuracy", "f1": "f1", "auc": "roc_auc", "r2": "r_squared", "rmse": "rmse"}


def hugging_face_card(run: Run, plan: dict[str, Any], folder: Path) -> str:
    """The card of a run's model.

    Args:
        run: The run.
        plan: Its plan.
        folder: The run folder, whose card is bound to its ledger.

    Returns:
        Markdown with a metadata block.

    Raises:
        ConfigError: The folder holds no card.
    """
    card = folder / "model" / "README.md"
    if not card.is_file():
        raise ConfigError(f"{card} is missing", hint="Export the folder of a finished run with a common model")
    target = plan.get("data", {}).get("target", "the target")
    task = "tabular-classification" if run.is_classifier else "tabular-regression"
    lines = [
        "library_name: kohort",
        f"pipeline_tag: {task}",
        "tags:",
        *(f"- {tag}" for tag in (task, "federated-learning", "privacy", run.method)),
        "model-index:",
        f"- name: {_text(f'{run.method} model of {target}')}",
        "  results:",
        "  - task:",
        f"      type: {task}",
        "    dataset:",
        f"      name: {_text(_dataset(plan))}",
        "      type: tabular",
        "    metrics:",
        *_metrics(run),
    ]
    return "\n".join(["---", *lines, "---", "", card.read_text(encoding="utf-8")])


def _metrics(run: Run) -> list[str]:
    found: list[str] = []
    for key, name in _METRICS.items():
        value = run.metrics.get(key)
        if isinstance(value, int | float):
            found += [f"    - type: {name}", f"      value: {float(value):.6g}"]
    return found or ["    []"]


def _dataset(plan: dict[str, Any]) -> str:
    """A named dataset by its name; a file is nobody's business."""
    table = plan.get("data", {}).get("table")
    named = isinstance(table, str) and "/" not in table and "\\" not in table and "." not in table
    return str(table) if named else "private tables of the sites"


def _text(value: str) -> str:
    return json.dumps(value)
