"""A German table with persons that repeat, remarks and -999: no command and no Python call learns or shares them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import kohort
from kohort.errors import ConfigError
from kohort.rng import Streams
from kohort.runs.config import load_plan, read_plan
from kohort.runs.simulation import populate
from kohort.runs.suggest import suggest_plan
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.dialect import ReadingOptions
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
    assert not shared & {"Patienten-ID", "PLZ", "Bemerkung", "Geburtsdatum"}
    assert "P1000" not in (tmp_path / "s.csv").read_text()
    assert "'Geburtsdatum' is named like a date, which others may know of a person, so it is not shared" in said
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


def test_a_declared_order_of_dates_is_followed_or_gets_a_word(table: str, tmp_path: Path) -> None:
    found = open_table(table, ReadingOptions(date_order="mdy"))
    assert found.frame.schema["Geburtsdatum"] == pl.String
    assert "dates that do not fit the declared reading.date_order, so these stay text: Geburtsdatum" in found.reading
    assert open_table(table, ReadingOptions(date_order="dmy")).frame.schema["Geburtsdatum"] == pl.Date
    path = tmp_path / "months_first.csv"
    path.write_text("day;at;slashed\n03.04.2020;03.04.2020 10:00;30/04/2020\n12.31.2020;12.31.2020 11:00;31/04/2020\n")
    first = open_table(str(path), ReadingOptions(date_order="mdy"))
    assert [(one.month, one.day) for one in first.frame["day"]] == [(3, 4), (12, 31)]
    assert [(one.month, one.day) for one in first.frame["at"]] == [(3, 4), (12, 31)]
    assert any(note.endswith("these stay text: slashed") for note in first.reading)


def test_k_counts_persons_where_persons_are_named(kohort_here: Call, table: str, tmp_path: Path) -> None:
    roles = ("--quasi", "Geschlecht", "--drop", "rest", "--null-values", "-999")
    said = {}
    for person in ((), ("--person", "Patienten-ID")):
        code, shown, error = kohort_here(
            "anonymize", table, *roles, *person, "--k", 5, "--out", tmp_path / "o.csv", "--force"
        )
        assert code == 0, error
        _, checked, _ = kohort_here("check", table, *roles, *person)
        said[bool(person)] = " ".join((shown + checked).split())
    assert said[True].count("persons of the smallest class") == 2
    assert said[False].count("rows of the smallest class") == 2


def test_a_misspelt_name_of_a_method_is_recognised(table: str) -> None:
    with pytest.raises(ConfigError, match=r"'method.nam'.*Did you mean 'name'"):
        load_plan({"data": {"table": table, "target": "Ereignis"}, "method": {"nam": "trees"}})


def test_a_model_is_printed_in_one_line(table: str) -> None:
    few: dict[str, dict[str, int]] = {"additive": {"rounds": 2}, "trees": {"trees": 2}, "fedavg": {"rounds": 1}}
    for method, options in few.items():
        model = kohort.Federation(table, target="Ereignis", sites=3).run(method, **options).model
        assert repr(model).endswith(
            "(classification of 'Ereignis' from 3 columns: Geburtsdatum, Geschlecht, Gewicht (kg))"
        )
