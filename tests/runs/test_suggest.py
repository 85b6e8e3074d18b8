"""The plan that `kohort init` writes runs as it is, on tables of three rows and on the named datasets that are here."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kohort.errors import ConfigError, DataError
from kohort.runs.config import read_plan
from kohort.runs.run import Outcome, run
from kohort.runs.suggest import suggest_plan

MESSY = sorted(path for path in (Path(__file__).parents[1] / "fixtures/messy").iterdir() if path.suffix != ".md")


def init_and_run(table: str, folder: Path, **options: object) -> tuple[str, Outcome]:
    made = suggest_plan([table], **options)  # type: ignore[arg-type]
    plan = folder / "plan.toml"
    plan.write_text(made.text, encoding="utf-8")
    return made.text, run(read_plan(plan))


@pytest.mark.parametrize("table", MESSY, ids=lambda path: path.name)
def test_every_messy_file(table: Path, tmp_path: Path) -> None:
    text, outcome = init_and_run(str(table), tmp_path)
    assert outcome.model.target in text
    assert sum(outcome.site_rows.values()) >= 2


def test_adult(tmp_path: Path) -> None:
    text, outcome = init_and_run("adult", tmp_path)
    assert 'name = "additive"' in text
    assert outcome.accuracy >= 0.855
    assert outcome.metrics["f1"] >= 0.65


@pytest.mark.parametrize("table", ["mammographic", "dry_bean", "california_housing"])
def test_named_datasets_that_are_here(table: str, tmp_path: Path) -> None:
    try:
        _, outcome = init_and_run(table, tmp_path)
    except DataError as error:
        pytest.skip(f"not here: {error.message}")
    assert outcome.accuracy > 0.6


def test_a_budget_is_one_number(tmp_path: Path) -> None:
    text, outcome = init_and_run("adult", tmp_path, epsilon=1.0)
    assert "dp = 1 " in text
    assert outcome.epsilon == pytest.approx(1.0, rel=0.01)
    assert outcome.accuracy >= 0.845


def test_a_table_of_identifiers_alone_says_so(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("id,email\n" + "".join(f"{n},p{n}@example.org\n" for n in range(30)))
    with pytest.raises(DataError, match=r"no column is left .* id \(identifiers\)"):
        suggest_plan([str(path)])


def test_a_target_is_guessed_where_nobody_names_one(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    pl.DataFrame(
        {"readmitted": ["yes", "no"] * 15, "age": [31, 47, 62] * 10, "note": ["same"] * 30, "seen": ["2020-01-01"] * 30}
    ).write_csv(path)
    assert suggest_plan([str(path)]).target == "readmitted"
    renamed = tmp_path / "other.csv"
    pl.read_csv(path).rename({"readmitted": "back"}).write_csv(renamed)
    assert suggest_plan([str(renamed)]).target == "age"  # the note is constant, and the last column a date


def test_a_budget_and_a_release_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="budget"):
        suggest_plan(["adult"], goal="release", epsilon=1.0)


def test_a_visit_is_no_person(tmp_path: Path) -> None:
    rows = range(1000, 1060)
    frame = pl.DataFrame({"encounter_id": rows, "patient_id": rows, "age": [row % 50 for row in rows]})
    frame.with_columns(died=pl.col("age") > 25).write_csv(tmp_path / "visits.csv")
    assert suggest_plan([str(tmp_path / "visits.csv")], target="died").person == "patient_id"


def test_a_bank_table_with_words_for_missing_values_and_yes_first(tmp_path: Path) -> None:
    lines = [
        f"KD-{number * 7};{'k.A.' if number % 9 == 0 else f'{number * 37 % 991},5'};{'ja' if number % 3 else 'nein'}"
        for number in range(120)
    ]
    (tmp_path / "bank.csv").write_text("customer;debt;default\n" + "\n".join(lines) + "\n")
    made = suggest_plan([str(tmp_path / "bank.csv")], target="default")
    assert list(made.identifiers) == ["customer"]  # debts are numbers, and never name a person
    assert 'categories = {"default" = ["nein", "ja"]}' in made.text
    (tmp_path / "plan.toml").write_text(made.text)
    outcome = run(read_plan(tmp_path / "plan.toml"))
    assert outcome.task["positive"] == "ja"


def test_a_person_is_named_in_every_row(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "mail": [None if number % 4 == 0 else f"u{number}@example.org" for number in range(80)],
            "customer_id": [f"c{number}" for number in range(80)],
            "age": [number % 50 for number in range(80)],
            "died": [number % 3 == 0 for number in range(80)],
        }
    )
    frame.write_csv(tmp_path / "t.csv")
    assert suggest_plan([str(tmp_path / "t.csv")], target="died").person == "customer_id"


def test_free_text_names_no_person_where_an_identifier_does(tmp_path: Path) -> None:
    said = [
        "slept well, no pain in the left knee, walks alone",
        "came by car with a friend, and complains about the food",
    ]
    frame = pl.DataFrame(
        {
            "remarks": [f"{said[number % 2]}, bed {number % 50}" for number in range(80)],
            "age": [number % 50 for number in range(80)],
            "customer_id": [f"c{number}" for number in range(80)],
            "died": [number % 3 == 0 for number in range(80)],
        }
    )
    frame.write_csv(tmp_path / "t.csv")
    made = suggest_plan([str(tmp_path / "t.csv")], target="died")
    assert sorted(made.identifiers) == ["customer_id", "remarks"]
    assert made.person == "customer_id"


def test_a_release_with_dates_runs(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "since": [f"20{10 + number % 14}-0{1 + number % 9}-1{number % 10}" for number in range(600)],
            "points": [20 + number * 7 % 60 for number in range(600)],
            "died": ["yes" if number * 7 % 60 > 30 else "no" for number in range(600)],
        }
    )
    frame.write_csv(tmp_path / "t.csv")
    text, outcome = init_and_run(str(tmp_path / "t.csv"), tmp_path, target="died", goal="release")
    assert "since" in text.partition("quasi = ")[2].partition("\n")[0]
    assert outcome.accuracy > 0.7
