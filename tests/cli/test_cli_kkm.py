"""`kohort anonymize --items` and `kohort check --items` from the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    random = np.random.default_rng(2)
    rows = 240
    lists = [
        sorted(random.choice(["250", "401", "428", "V45", "x"], random.integers(0, 4), replace=False))
        for _ in range(rows)
    ]
    table = pl.DataFrame(
        {
            "who": np.arange(rows) // 2,
            "age": random.integers(20, 60, rows),
            "sex": random.choice(["m", "f"], rows),
            "codes": pl.Series(lists, dtype=pl.List(pl.String)),
        }
    )
    path = tmp_path / "patients.parquet"
    table.write_parquet(path)
    return path


def anonymized(call: Here, table: Path, out: Path, *options: object) -> dict[str, Any]:
    code, shown, said = call(
        "anonymize", table, "--quasi", "age,sex", "--items", "codes", "--drop", "rest", "--out", out, "--json", *options
    )
    assert code == 0, said
    loaded: dict[str, Any] = json.loads(shown)
    return loaded


@pytest.mark.parametrize("hierarchy", ["none", "auto", "icd9"])
def test_anonymize_gives_its_keys_and_check_agrees(
    kohort_here: Here, patients: Path, tmp_path: Path, hierarchy: str
) -> None:
    out = tmp_path / "out.parquet"
    found = anonymized(
        kohort_here, patients, out, "--k", 5, "--m", 2, "--algorithm", "kkm", "--item-hierarchy", hierarchy
    )
    keys = {
        "rows", "rows_out", "classes", "k", "l_distinct", "t_emd", "t_kl", "km", "ncp", "entropy_loss", "item_loss",
        "suppressed_rows", "suppressed_cells", "algorithm", "verified", "seconds", "out", "suppressed_items",
    }  # fmt: skip
    assert keys <= found.keys()
    assert found["algorithm"] == "kkm"
    assert found["verified"] is True
    assert found["km"] >= 5
    code, shown, _ = kohort_here("check", out, "--quasi", "age,sex", "--items", "codes", "--m", 2, "--json")
    assert code == 0
    assert json.loads(shown)["km"] == found["km"]


def test_csv_keeps_the_guarantee(kohort_here: Here, patients: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    found = anonymized(kohort_here, patients, out, "--k", 4)
    _, shown, _ = kohort_here("check", out, "--quasi", "age,sex", "--items", "codes", "--json")
    assert json.loads(shown)["km"] == found["km"] >= 4


def test_persons_are_counted_and_not_released(kohort_here: Here, patients: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    found = anonymized(kohort_here, patients, out, "--k", 5, "--person", "who")
    assert found["k"] >= 5
    assert "who" not in pl.read_parquet(out).columns
    _, shown, _ = kohort_here("check", patients, "--quasi", "sex", "--items", "codes", "--person", "who", "--json")
    by_person = json.loads(shown)
    _, shown, _ = kohort_here("check", patients, "--quasi", "sex", "--items", "codes", "--json")
    assert by_person["k"] < json.loads(shown)["k"]


def test_hierarchies_are_written_and_read_back(kohort_here: Here, patients: Path, tmp_path: Path) -> None:
    folder = tmp_path / "trees"
    anonymized(
        kohort_here, patients, tmp_path / "a.parquet",
        "--k", 5, "--item-hierarchy", "auto", "--hierarchies", "intervals", "--write-hierarchies", folder,
    )  # fmt: skip
    assert {path.name for path in folder.iterdir()} == {"age.csv", "sex.csv", "codes.csv"}
    again = anonymized(
        kohort_here, patients, tmp_path / "b.parquet", "--k", 5, "--item-hierarchy", folder / "codes.csv"
    )
    assert again["verified"] is True


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--k", "5", "--algorithm", "mondrian"], 2, "--items goes with --algorithm kkm"),
        (["--k", "5", "--l", "2"], 2, "--l and --t"),
        (["--k", "5", "--levels", "age=1"], 2, "--levels"),
        (["--k", "5", "--suppression", "0.1"], 2, "--item-suppression"),
        (["--k", "5", "--m", "4"], 2, "m is 4"),
        (["--k", "5", "--merge", "some"], 2, "unknown merge"),
        (["--k", "5", "--item-hierarchy", "absent.csv"], 3, "no hierarchy file"),
        (["--k", "500"], 4, "240 rows cannot be 500-anonymous"),
        (["--k", "200", "--item-suppression", "0.0"], 4, "would be suppressed"),
    ],
)
def test_bad_requests_end_with_their_exit_code(
    kohort_here: Here, patients: Path, tmp_path: Path, options: list[str], code: int, said: str
) -> None:
    out = tmp_path / "out.parquet"
    found, _, error = kohort_here(
        "anonymize", patients, "--quasi", "age,sex", "--items", "codes", "--drop", "rest", "--out", out, *options
    )
    assert found == code
    assert said in error
    assert not out.exists()


@pytest.mark.parametrize("options", [["--algorithm", "kkm"], ["--m", "2"]])
def test_kkm_needs_items(kohort_here: Here, patients: Path, tmp_path: Path, options: list[str]) -> None:
    code, _, error = kohort_here(
        "anonymize", patients, "--quasi", "age", "--drop", "rest", "--out", tmp_path / "o.parquet", *options
    )
    assert code == 2
    assert "--items" in error


@pytest.mark.skipif(
    not (Path(os.environ.get("KOHORT_DATA", "")) / "diabetes_130us.parquet").is_file(),
    reason="diabetes_130us is not here",
)
def test_diabetes_stays_within_its_losses(kohort_here: Here, tmp_path: Path) -> None:
    """One row per patient, three diagnoses: relational loss at most 0.02, item loss at most 0.25."""
    out = tmp_path / "d.parquet"
    code, shown, said = kohort_here(
        "anonymize", "diabetes_130us", "--quasi", "age,gender,race", "--items", "diagnoses", "--drop", "rest",
        "--k", 10, "--m", 2, "--algorithm", "kkm", "--out", out, "--json",
    )  # fmt: skip
    assert code == 0, said
    found = json.loads(shown)
    assert found["rows_out"] == 71_518
    assert found["km"] >= 10
    assert found["ncp"] <= 0.02
    assert found["item_loss"] <= 0.25


def test_rare_combinations_can_be_taken_apart_instead(kohort_here: Here, patients: Path, tmp_path: Path) -> None:
    grouped = anonymized(kohort_here, patients, tmp_path / "a.parquet", "--k", 5, "--m", 2)
    apart = anonymized(kohort_here, patients, tmp_path / "b.parquet", "--k", 5, "--m", 2, "--rare", "suppress")
    assert apart["verified"]
    assert apart["km"] >= 5
    assert apart["suppressed_items"] > grouped["suppressed_items"]
    code, _, said = kohort_here(
        "anonymize",
        patients,
        "--quasi",
        "age",
        "--items",
        "codes",
        "--drop",
        "rest",
        "--rare",
        "hide",
        "--out",
        tmp_path / "c.parquet",
    )
    assert code == 2
    assert "rare" in said
