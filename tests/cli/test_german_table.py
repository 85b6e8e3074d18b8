"""A German table with persons that repeat, remarks and -999: no command and no Python call learns or shares them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import kohort
from kohort.rng import Streams
from kohort.runs.config import read_plan
from kohort.runs.simulation import populate
from kohort.runs.suggest import suggest_plan
from kohort.tables.harmonise.profiles import missing_codes

Call = Callable[..., tuple[int, str, str]]
ROWS = 800
UNUSED = {"Patienten-ID", "PLZ", "Bemerkung", "Schlagwort"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two rows per person; a remark that few rows share; a keyword with 250 values; -999 for an unknown weight."""
    random = np.random.default_rng(5)
    lines = ["Patienten-ID;Geburtsdatum;Geschlecht;Gewicht (kg);PLZ;Bemerkung;Schlagwort;Ereignis"]
    for row in range(ROWS):
        weight = "-999" if row % 20 == 0 else f"{random.normal(78, 12):.1f}".replace(".", ",")
        person, born = f"P{100000 + row // 2}", f"{1 + row % 28:02d}.{1 + row % 12:02d}.{1940 + row % 50}"
        remark, word = f"keine Befunde {row % 500}", f"Wort {row % 250}"
        cells = (
            person,
            born,
            "mw"[row % 2],
            weight,
            f"0{row * 13 % 700:04d}",
            remark,
            word,
            ("ja", "nein")[row % 3 > 0],
        )
        lines.append(";".join(cells))
    path = tmp_path_factory.mktemp("german") / "patienten.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_a_gate_shares_neither_the_person_nor_remarks(kohort_here: Call, table: str, tmp_path: Path) -> None:
    asked = ["gate", table, "--quasi", "Geschlecht", "--rule", "k-anonymity", "--k", 50]
    code, shown, said = kohort_here(*asked, "--out-shared", tmp_path / "s.csv", "--json")
    assert code == 0, said
    shared = set(json.loads(shown)["shared_columns"])
    assert not shared & {"Patienten-ID", "PLZ", "Bemerkung"}
    assert "P1000" not in (tmp_path / "s.csv").read_text()
    assert "'Geburtsdatum' is named like a date and is shared as it is" in said
    code, _, said = kohort_here(*asked, "--drop", "Geburtsdatum")
    assert "'Geburtsdatum'" not in said


def test_python_leaves_out_what_init_leaves_out(table: str) -> None:
    plan = suggest_plan([table], target="Ereignis")
    drop = next(line for line in plan.text.splitlines() if line.startswith("drop"))
    assert {*plan.identifiers, *json.loads(drop.partition("=")[2])} == UNUSED
    assert plan.person == "Patienten-ID"
    found = kohort.Federation(table, target="Ereignis", sites=3).check()
    assert not UNUSED & found.roles.keys()
    for name in UNUSED:
        assert any(note.startswith(f"column {name!r} ") and "left out" in note for note in found.notes)
    assert {(one.what, one.count) for one in found.left_out} == {("columns", 3), ("columns", 1)}


def test_columns_that_are_named_stay(table: str) -> None:
    named = kohort.Federation(table, target="Ereignis", sites=3, features=["Schlagwort", "Patienten-ID"], drop=[
        "Geburtsdatum", "Geschlecht", "Gewicht (kg)", "PLZ", "Bemerkung"]).check()  # fmt: skip
    assert named.roles["Schlagwort"] == named.roles["Patienten-ID"] == ("feature",)
    kept = kohort.Federation(table, target="Ereignis", sites=3, keep=["Schlagwort"]).check()
    assert kept.roles["Schlagwort"] == ("feature",)


def test_an_estimator_says_what_it_does_not_learn_from(table: str) -> None:
    rows = pl.read_csv(table, separator=";", infer_schema=False).to_pandas()
    rows["Gewicht (kg)"] = pd.to_numeric(rows["Gewicht (kg)"].str.replace(",", "."))
    x = rows[["Patienten-ID", "Schlagwort", "Geschlecht", "Gewicht (kg)"]]
    model = kohort.FederatedClassifier(n_sites=3, rounds=1, method_options={"secure": None})
    with pytest.warns(UserWarning, match="Patienten-ID, Schlagwort"):
        model.fit(x, rows["Ereignis"])
    assert set(model.outcome_.model.encoder.schema.inputs) == {"Geschlecht", "Gewicht (kg)"}
    assert len(model.predict(x)) == ROWS


def test_a_number_that_means_missing_is_proposed_and_told(kohort_here: Call, table: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    code, shown, said = kohort_here("init", table, "--target", "Ereignis", "--out", plan, "--json")
    assert code == 0, said
    assert json.loads(shown)["null_values"] == {"Gewicht (kg)": [-999]}
    code, _, said = kohort_here("init", table, "--target", "Ereignis", "--out", plan, "--force")
    assert "column 'Gewicht (kg)' holds -999, far from its other numbers" in said
    read = populate(read_plan(plan), Streams.seeded(0))
    assert read.frame["Gewicht (kg)"].min() > 0
    assert not any("far from its other numbers" in note for note in (*read.notes, *read.warnings))
    found = kohort.Federation(table, target="Ereignis", sites=3).check()
    assert any(note.startswith("column 'Gewicht (kg)' holds -999") and "null_values" in note for note in found.notes)
    bounded = kohort.Federation(table, target="Ereignis", sites=3, bounds={"Gewicht (kg)": [-999, 200]}).check()
    assert not any("-999" in note for note in bounded.notes)


def test_numbers_that_were_measured_are_no_codes() -> None:
    far, near = [20, 30, 40] * 20 + [999] * 10, [600, 800, 1200] * 20 + [999] * 10
    assert missing_codes(pl.Series(far)) == (999,)
    assert missing_codes(pl.Series(near)) == ()
    assert missing_codes(pl.Series(far[:-1])) == ()
    assert missing_codes(pl.Series(["-999"] * 30)) == ()
