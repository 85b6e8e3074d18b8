"""`tools/study_page.py`: tables of a study as Markdown."""

from __future__ import annotations

import runpy
from pathlib import Path

as_markdown = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "study_page.py"))["as_markdown"]


def row(setting: str, ours: object, **more: object) -> dict[str, object]:
    return {"setting": setting, "ours": ours, **more}


def test_cells_with_several_columns_become_one_line_each() -> None:
    rows = [
        row("20% low: no DP", 0.8281, sd=0.0031, paper=0.817),
        row("20% low: low-risk only", 0.826),
        row("20% low, epsilon 1: FL", 0.81, paper=0.785),
        row("20% low, epsilon 1: improvement over FL", 0.0189, paper=0.223),
    ]
    lines = as_markdown({"name": "Dutch", "source": "Table 1", "rows": rows}).splitlines()
    assert lines[0] == "**Dutch** (Table 1)"
    assert lines[2:5] == [
        "| | no DP | low-risk only |",
        "|---|---|---|",
        "| 20% low | 0.828 ± 0.003 (0.817) | 0.826 |",
    ]
    assert "| 20% low, epsilon 1 | 0.810 (0.785) | 1.9% (22.3%) |" in lines


def test_differences_have_their_interval_and_texts_stay() -> None:
    rows = [row("gain: holds", 0.0231, sd=0.01, interval=[0.0106, 0.0357]), row("chosen", "rate 8, clip 1")]
    lines = as_markdown({"name": "n", "source": "s", "rows": rows}).splitlines()
    assert "| gain: holds | 0.0231 ± 0.010 | 0.0106 to 0.0357 |" in lines
    assert "| chosen | rate 8, clip 1 |  |" in lines
