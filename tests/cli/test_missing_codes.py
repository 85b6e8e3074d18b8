"""Numbers such as -999 are named by every command that reads a table, with the option that declares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kohort.tables.frames import write_table

HOW = "column 'bmi' holds -999, far from its other numbers: if it means a missing value, add --null-values bmi=-999"
ROLES = ("--quasi", "age", "--keep", "bmi")
COMMANDS: dict[str, tuple[str, ...]] = {
    "check": ROLES,
    "gate": (*ROLES, "--rule", "k-anonymity", "--k", "2"),
    "anonymize": (*ROLES, "--k", "5", "--out"),
}


def asked(command: str, table: Path, *options: str) -> list[Any]:
    out = [table.with_name("out.csv"), "--force"] if command == "anonymize" else []
    return [command, table, *COMMANDS[command], *out, *options]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_code_for_missing_values_is_named(kohort_here: Any, tmp_path: Path, command: str, ending: str) -> None:
    table = tmp_path / f"t.{ending}"
    bmi = [-999.0 if row % 9 == 0 else 20 + row % 17 for row in range(200)]
    write_table(pl.DataFrame({"age": [20 + row % 3 for row in range(200)], "bmi": bmi}), str(table))
    code, _, err = kohort_here(*asked(command, table))
    assert code == 0, err
    assert f"note: {HOW}" in err.replace("\n", " ")
    assert HOW in json.loads(kohort_here(*asked(command, table, "--json"))[1])["notes"]
    declared = json.loads(kohort_here(*asked(command, table, "--json", "--null-values", "bmi=-999"))[1])["notes"]
    assert not [note for note in declared if "-999, far" in note]


@pytest.mark.parametrize("command", ["check", "gate"])
def test_a_named_dataset_is_described_already(kohort_here: Any, command: str) -> None:
    options = ["adult:train", "--quasi", "age", *(COMMANDS["gate"][4:] if command == "gate" else ()), "--json"]
    assert not [note for note in json.loads(kohort_here(command, *options)[1])["notes"] if "99999" in note]
