"""Result files of benchmarks hold every row that was measured."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench.harness import Row

from bench import harness


def test_rows_that_differ_in_unit_alone_are_both_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    costs = [
        Row.within("a command", ours=3.0, peer="limit", theirs=5.0, unit="s"),
        Row.within("a command", ours=0.4, peer="limit", theirs=0.6, unit="GB"),
    ]
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "discover", lambda: {"costs": "bench.costs"})
    measured = SimpleNamespace(measure=lambda: costs, SUMMARY="")
    monkeypatch.setattr("importlib.import_module", lambda name: measured)
    harness.run_here("costs")
    rows = json.loads((tmp_path / "costs.json").read_text())["rows"]
    assert [(row["unit"], row["ours"]) for row in rows] == [("s", 3.0), ("GB", 0.4)]
