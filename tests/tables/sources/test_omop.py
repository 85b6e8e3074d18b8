"""A small OMOP CDM, and the table made of it, computed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, DataError
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.sources.omop import OmopOptions, read_omop, split_address

PERSON = """person_id,gender_concept_id,year_of_birth,month_of_birth,day_of_birth,race_concept_id
3,8507,1950,7,1,0
1,8532,1950,6,30,0
2,0,1980,,,0
4,8521,2021,1,1,0
5,8532,2000,6,,0
"""
CONDITIONS = """condition_occurrence_id,person_id,condition_concept_id,condition_start_date
1,1,316866,2010-01-01
2,1,316866,2015-05-05
3,1,201826,2018-03-01
4,3,201826,2020-06-30
5,3,4329847,2020-07-01
6,2,0,2019-01-01
7,9,316866,2019-01-01
8,5,4329847,
9,5,80180,2005-01-01
"""
MEASUREMENTS = """measurement_id,person_id,measurement_concept_id,measurement_date,value_as_number,unit_concept_id
1,1,3004249,2019-01-01,120,8876
2,1,3004249,2020-01-01,140,8876
3,1,3004249,2020-01-01,145,8876
4,3,3004249,2020-06-01,16.5,44777602
5,3,3004249,2018-06-01,130,8876
6,2,3004249,2021-01-01,999,8876
7,2,3004249,2017-01-01,,8876
8,5,3036277,2020-02-02,171.5,8582
"""
REFERENCE = "2020-06-30"


@pytest.fixture
def cdm(tmp_path: Path) -> Path:
    folder = tmp_path / "cdm"
    folder.mkdir()
    (folder / "PERSON.csv").write_text(PERSON.replace("person_id", "PERSON_ID"))
    (folder / "condition_occurrence.csv").write_text(CONDITIONS)
    pl.read_csv(MEASUREMENTS.encode(), try_parse_dates=True).write_parquet(folder / "measurement.parquet")
    return folder


def read(cdm: Path, **options: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    return read_omop(cdm, OmopOptions.parse({"reference": REFERENCE, **options}))


def test_one_row_per_person_as_of_the_reference_date(cdm: Path) -> None:
    found, _ = read(cdm, min_persons="1")
    assert found.to_dicts() == [
        # Her 70th birthday is the reference date itself; of two values of a day, the later record counts.
        {"person_id": 1, "sex": "F", "age": 70, "measurement_3004249": 145.0, "measurement_3036277": None,
         "conditions": ["201826", "316866"]},
        # No month and day: the first of January counts. The value of 2021 comes after the reference date.
        {"person_id": 2, "sex": None, "age": 40, "measurement_3004249": None, "measurement_3036277": None,
         "conditions": []},
        # Born a day too late to be 70; the last value is in another unit than most; 4329847 came a day later.
        {"person_id": 3, "sex": "M", "age": 69, "measurement_3004249": 130.0, "measurement_3036277": None,
         "conditions": ["201826"]},
        {"person_id": 5, "sex": "F", "age": 20, "measurement_3004249": None, "measurement_3036277": 171.5,
         "conditions": ["80180"]},
    ]  # fmt: skip


def test_everything_left_out_is_counted(cdm: Path) -> None:
    _, notes = read(cdm)
    assert notes == (
        "OMOP: 1 persons born after the reference date are left out",
        "OMOP: 1 condition records without a date are left out",
        "OMOP: 1 condition records without a standard concept are left out",
        "OMOP: 1 condition records outside the time that counts are left out",
        "OMOP: 1 condition records of persons who are not in the table are left out",
        "OMOP: 1 measurement records outside the time that counts are left out",
        "OMOP: 1 measurement records without a number are left out",
        "OMOP: 2 measured concepts of fewer than 10 persons are left out",
    )


def test_flags_are_columns_and_no_longer_items(cdm: Path) -> None:
    found, _ = read(cdm, flags="201826:diabetes,80180", measurements="none")
    assert found.columns == ["person_id", "sex", "age", "diabetes", "condition_80180", "conditions"]
    assert found["diabetes"].to_list() == [True, False, True, False]
    assert found["condition_80180"].to_list() == [False, False, False, True]
    assert found["conditions"].to_list() == [["316866"], [], [], []]


def test_measurements_by_name_and_unit_are_there_also_where_nobody_has_them(cdm: Path) -> None:
    found, notes = read(cdm, measurements="3004249@44777602:systolic,1234:never", conditions="none")
    assert found.columns == ["person_id", "sex", "age", "systolic", "never"]
    assert found["systolic"].to_list() == [None, None, 16.5, None]
    assert found["never"].null_count() == 4
    assert found.schema["never"] == pl.Float64
    assert "OMOP: 4 values of systolic are in another unit and left out" in notes


def test_a_window_of_days_leaves_older_events_out(cdm: Path) -> None:
    found, _ = read(cdm, days="365", min_persons="1", conditions="201826,316866")
    assert found["conditions"].to_list() == [[], [], ["201826"], []]
    assert found["measurement_3004249"].to_list() == [145.0, None, None, None]  # 16.5 is in the rarer unit


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("", "reference=2020-12-31"),
        ("reference=soon", "is no date"),
        ("reference=2020-01-01&day=3", "Did you mean 'days'"),
        ("reference=2020-01-01&days=-3", "at least 1"),
        ("reference=2020-01-01&conditions=gout", "not concept ids"),
        ("reference=2020-01-01&measurements=1;2", "ID@UNIT:NAME"),
        ("reference=2020-01-01&flags=1@2:x", "separated by commas"),
        ("reference=2020-01-01&flags=1:age", "are called age"),
    ],
)
def test_options_that_cannot_be_read_say_what_to_write(options: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        split_address(f"omop:cdm?{options}")


def test_what_is_missing_is_named(cdm: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        open_table(f"omop:{cdm}x?reference={REFERENCE}")
    (cdm / "condition_occurrence.csv").unlink()
    assert "conditions" not in read(cdm)[0].columns
    with pytest.raises(DataError, match="no table condition_occurrence"):
        read(cdm, flags="201826")
    (cdm / "PERSON.csv").write_text("person_id,year_of_birth\n1,1990\n")
    with pytest.raises(DataError, match="person lacks columns: gender_concept_id"):
        read(cdm)
    (cdm / "PERSON.csv").write_text(PERSON + "3,8507,1950,7,1,0\n")
    with pytest.raises(DataError, match="a person twice"):
        read(cdm)


def test_a_run_from_an_omop_folder_of_each_site(
    tmp_path: Path, kohort_here: Callable[..., tuple[int, str, str]]
) -> None:
    """`person_id` is an identifier and `conditions` are items without a word in the plan."""
    for seed, site in enumerate(("north", "south", "west")):
        random = np.random.default_rng(seed)
        folder = tmp_path / site
        folder.mkdir()
        ids = 987_654_321_000 + np.arange(120)
        pl.DataFrame(
            {"person_id": ids, "gender_concept_id": random.choice([8507, 8532], 120),
             "year_of_birth": random.integers(1930, 2000, 120)}
        ).write_csv(folder / "person.csv")  # fmt: skip
        ill = random.random(120) < 0.4
        codes = np.concatenate([np.full(ill.sum(), 201826), random.choice([316866, 80180], 120)])
        pl.DataFrame(
            {"person_id": np.concatenate([ids[ill], ids]), "condition_concept_id": codes,
             "condition_start_date": "2019-01-01"}
        ).write_csv(folder / "condition_occurrence.csv")  # fmt: skip
        pl.DataFrame(
            {"person_id": ids, "measurement_concept_id": 3004249, "measurement_date": "2019-06-01",
             "value_as_number": 110 + 40 * ill + random.normal(0, 5, 120)}
        ).write_csv(folder / "measurement.csv")  # fmt: skip
    options = "reference=2020-01-01&flags=201826:diabetes&measurements=3004249:systolic"
    tables = [f"omop:{tmp_path / site}?{options}" for site in ("north", "south", "west")]
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'[data]\ntable = {json.dumps(tables)}\ntarget = "diabetes"\n[sites]\nsplit = "files"\n'
        '[model]\nkind = "logistic"\n[train]\nrounds = 20\nlr = 0.2\n[policy]\nmin_rows = 1\n'
    )
    code, out, said = kohort_here("run", plan, "--out", tmp_path / "out", "--json")
    assert code == 0, said
    assert json.loads(out)["metrics"]["accuracy"] > 0.9
    for path in (tmp_path / "out").rglob("*.json"):
        assert "987654321" not in path.read_text()  # so long that no measured second holds it by chance
