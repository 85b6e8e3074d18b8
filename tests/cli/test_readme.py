"""What the README shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

ROOT = Path(__file__).parents[2]


def patients(rows: int = 3000) -> pl.DataFrame:
    generator = np.random.default_rng(0)
    age = generator.integers(18, 95, rows)
    pressure = generator.normal(130, 20, rows)
    sex = generator.choice(["female", "male"], rows)
    risk = 0.06 * (age - 60) + 0.03 * (pressure - 130) + 0.4 * (sex == "male")
    outcome = np.where(risk + generator.normal(0, 0.5, rows) > 0, "ill", "well")
    return pl.DataFrame({"age": age, "sex": sex, "pressure": pressure, "outcome": outcome})


def test_the_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("pandas")
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    patients().write_csv(tmp_path / "patients.csv")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example.group(1), "README.md", "exec"), names)  # noqa: S102 - the README is ours
    printed = capsys.readouterr().out
    assert "hub sum.updates secure-sum" in printed
    assert "aggregate" not in printed
    assert float(printed.split()[0]) > 0.7
    predictions = names["predictions"]
    assert len(predictions) == 3000  # type: ignore[arg-type]
    assert type(predictions).__module__.startswith("pandas")


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_every_linked_file_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.toml")))
def test_every_example_plan_is_valid(name: str) -> None:
    from kohort.runs.config import read_plan

    assert read_plan(ROOT / "examples" / name).method


COINAGES = [
    "company",
    "keeper",
    "occasion",
    "panel",
    "desk",
    "crew",
    "groundwork",
    "venue",
    "premises",
    "trouble",
    "liars?",
    "parcels?",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_uses_a_word_of_our_own_for_what_the_field_has_a_name_for(page: Path) -> None:
    prose = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    assert re.findall(rf"\b(?:{'|'.join(COINAGES)}|hub optimi[sz]ers?)\b", prose, re.IGNORECASE) == []
