"""`kohort explain`: curves of an additive model, one row's contributions, importances of other kinds, and a page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from kohort import Federation
from kohort.cli.app import build
from kohort.errors import ConfigError, KohortError


def patients(rows: int = 600) -> pl.DataFrame:
    random = np.random.default_rng(2)
    age, town = random.integers(20, 80, rows), random.choice(["<b>north</b>", "south"], rows)
    ill = random.random(rows) < 1 / (1 + np.exp(-(age - 50) / 8))
    return pl.DataFrame({"age": age, "town": town, "sick": np.where(ill, "yes", "no")})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("explain")
    patients().write_csv(place / "rows.csv")
    federation = Federation(patients(), target="sick", sites=3, bounds={"age": [0, 100]}, policy={"pairs": "open"})
    federation.run(rounds=4, out=place / "additive", seed=1)
    federation.run("oneshot", secure={"sum": "none"}, out=place / "onelayer", seed=1)
    return place


def explained(*words: str) -> dict[str, object]:
    result = CliRunner().invoke(build(), ["explain", *words, "--json"])
    if isinstance(result.exception, KohortError):
        raise result.exception
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_curves_have_the_documented_keys_and_the_most_important_column_first(folder: Path) -> None:
    found = explained(str(folder / "additive"))
    assert found["model"] == "additive"
    columns = found["columns"]
    assert isinstance(columns, dict)
    assert next(iter(columns)) == "age"
    for curve in columns.values():
        assert {"importance", "bins", "values", "counts", "low", "high"} <= curve.keys()
        assert len(curve["bins"]) == len(curve["values"]) == len(curve["counts"]) == len(curve["low"])
    assert columns["age"]["values"][0] < columns["age"]["values"][-1]  # "yes" is the second class


def test_contributions_of_a_row(folder: Path) -> None:
    found = explained(str(folder / "additive"), "--table", str(folder / "rows.csv"), "--row", "2")
    parts = found["contributions"]
    assert isinstance(parts, dict)
    assert set(parts) == {"(intercept)", "age", "town"}
    with pytest.raises(KohortError, match="row 601"):
        explained(str(folder / "additive"), "--table", str(folder / "rows.csv"), "--row", "601")


def test_the_page_is_one_file_without_scripts_and_escapes_names(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "curves.html"
    assert explained(str(folder / "additive"), "--out", str(page))["out"] == str(page)
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "<script" not in text
    assert "<b>north" not in text
    assert "&lt;b&gt;north" in text
    assert "default-src 'none'" in text
    with pytest.raises(KohortError):
        explained(str(folder / "additive"), "--out", str(page))  # what is there is kept


def test_other_kinds_need_rows_and_get_importances(folder: Path) -> None:
    with pytest.raises(ConfigError, match="explained on rows"):
        explained(str(folder / "onelayer"))
    columns = explained(str(folder / "onelayer"), "--table", str(folder / "rows.csv"))["columns"]
    assert isinstance(columns, dict)
    assert columns["age"]["importance"] > columns["town"]["importance"]
