"""MIMIC-III: joins and counts on the open demo, features on events whose statistics are computed by hand."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from kohort.errors import DataError
from kohort.tables.datasets.catalogue import load_dataset
from kohort.tables.datasets.mimic.features import PARTS, STATISTICS, VARIABLES, feature_names
from kohort.tables.datasets.mimic.layout import find_mimic3
from kohort.tables.datasets.mimic.reader import load_mimic3
from kohort.tables.schema import Role

DEMO = Path(os.environ.get("KOHORT_DATA", "")) / "mimic3demo_patients.parquet"

# Subject 2 is above 89, whose birth date is shifted; 3 is a child; 4 was never measured.
PATIENTS = """"ROW_ID","SUBJECT_ID","GENDER","DOB"
1,1,"F","2100-06-15 00:00:00"
2,2,"M","1850-01-01 00:00:00"
3,3,"F","2140-01-01 00:00:00"
4,4,"M","2100-01-01 00:00:00"
"""
ADMISSIONS = """"SUBJECT_ID","HADM_ID","HOSPITAL_EXPIRE_FLAG"
1,11,0
1,12,1
2,21,1
3,31,0
4,41,0
"""
ICUSTAYS = """"SUBJECT_ID","HADM_ID","ICUSTAY_ID","INTIME","OUTTIME"
1,12,121,"2151-01-01 00:00:00","2151-01-09 00:00:00"
1,11,111,"2150-06-14 00:00:00","2150-06-18 00:00:00"
2,21,211,"2150-01-01 12:00:00","2150-01-02 12:00:00"
3,31,311,"2150-01-01 00:00:00","2150-01-05 00:00:00"
4,41,411,"2150-01-01 00:00:00","2150-01-05 00:00:00"
"""
DIAGNOSES = """"SUBJECT_ID","HADM_ID","SEQ_NUM","ICD9_CODE"
1,11,2,"0389"
1,11,1,"4019"
1,11,3,"4019"
1,12,1,"51881"
2,21,1,"E8798"
4,41,,
"""
HEADER = '"SUBJECT_ID","HADM_ID","ICUSTAY_ID","ITEMID","CHARTTIME","VALUE","VALUENUM","ERROR"\n'


def event(
    hours: float, item: int, value: object, number: object = "", *, stay: object = 111, error: object = ""
) -> str:
    """An event of subject 1, `hours` after the stay began."""
    day, hour = divmod(int(hours), 24)
    return f'1,11,{stay},{item},"2150-06-{14 + day:02d} {hour:02d}:00:00","{value}",{number},{error}\n'


CHART = HEADER + "".join(
    [
        event(0, 211, "80", 80), event(10, 220045, "90", 90, stay=""), event(20, 211, "100", 100, error=0),
        event(30, 211, "110", 110), event(40, 211, "150", 150),
        event(15, 211, "77", 77, error=1), event(16, 211, "500", 500), event(49, 211, "60", 60),
        event(17, 211, "61", 61, stay=121), event(18, 999999, "62", 62),
        event(1, 226707, "70", 70), event(2, 226531, "154.32", 154.32), event(30, 763, "71.5", 71.5),
        event(1, 678, "98.6", 98.6), event(1, 223835, "40", 40), event(3, 223835, "0.5", 0.5),
        event(1, 184, "4 Spontaneously"), event(2, 220739, "To Speech"), event(3, 723, "1.0 ET/Trach"),
        event(1, 115, "Abnormal >3 secs"), event(5, 198, "14", 14),
    ]
)  # fmt: skip
LAB = '"SUBJECT_ID","HADM_ID","ITEMID","CHARTTIME","VALUE","VALUENUM","VALUEUOM","FLAG"\n' + (
    '1,11,50931,"2150-06-14 05:00:00","100",100,"mg/dL",\n'
    '1,,50931,"2150-06-14 06:00:00","900",900,"mg/dL",\n'
    '2,21,50820,"2150-01-01 13:00:00","7.25",7.25,"units","abnormal"\n'
    '2,21,50820,"2150-01-03 13:00:00","7.5",7.5,"units",\n'
)
TABLES = {
    "PATIENTS": PATIENTS, "ADMISSIONS": ADMISSIONS, "ICUSTAYS": ICUSTAYS, "DIAGNOSES_ICD": DIAGNOSES,
    "CHARTEVENTS": CHART, "LABEVENTS": LAB,
}  # fmt: skip


def write(folder: Path, kind: str = "csv", tables: dict[str, str] = TABLES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        if kind == "csv.gz":
            (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
        elif kind == "csv":
            (folder / f"{name}.csv").write_text(text)
        else:
            pl.read_csv(text.encode()).rename(str.lower).write_parquet(folder / f"{name.lower()}.parquet")
    return folder


def load(folder: Path, **options: float) -> tuple[pl.DataFrame, tuple[str, ...]]:
    files = find_mimic3(folder)
    assert files is not None
    return load_mimic3(files, **options)


def test_the_catalogue_loads_mimic_only_when_it_is_asked_for() -> None:
    code = "import sys, kohort.tables.datasets.catalogue; print([name for name in sys.modules if 'mimic' in name])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_there_are_714_features() -> None:
    assert (len(VARIABLES), len(PARTS), len(STATISTICS)) == (17, 7, 6)
    assert len(feature_names()) == len(set(feature_names())) == 714
    items = [item for variable in VARIABLES.values() for item in variable.items]
    assert len(items) == len(set(items))
    assert all(item in variable.items for variable in VARIABLES.values() for item, *_ in variable.scaled)


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_rows_are_first_stays_of_adults(tmp_path: Path, kind: str) -> None:
    frame, notes = load(write(tmp_path, kind))
    assert frame.shape == (3, 6 + 714 + 1)
    assert frame["subject_id"].to_list() == [1, 2, 4]
    assert frame["age"].to_list() == [49, 90, 50]  # the day before the 50th birthday; above 89; on New Year's Day
    assert frame["gender"].to_list() == ["F", "M", "M"]
    assert frame["diagnoses"].to_list() == [["4019", "0389"], ["E8798"], []]
    assert frame["died_in_hospital"].to_list() == [0, 1, 0]
    assert notes == ("1 of 3 stays have no measurement in the first 48 hours",)


HEART_RATE = {
    # 80, 90, 100, 110, 150 at hours 0 to 40: parts end at 4, 10, 20 and start at 20, 30, 36.
    "all": (80, 150, 106, 584**0.5, 12672 / 584**1.5, 5),
    "first10": (80, 80, 80, 0, 0, 1),
    "first25": (80, 90, 85, 5, 0, 2),
    "first50": (80, 100, 90, (200 / 3) ** 0.5, 0, 3),
    "last50": (100, 150, 120, (1400 / 3) ** 0.5, 6000 / (1400 / 3) ** 1.5, 3),
    "last25": (110, 150, 130, 20, 0, 2),
    "last10": (150, 150, 150, 0, 0, 1),
}


def test_statistics_are_those_computed_by_hand(tmp_path: Path) -> None:
    frame, _ = load(write(tmp_path))
    row = frame.row(0, named=True)
    for part, expected in HEART_RATE.items():
        found = [row[f"heart_rate_{part}_{statistic}"] for statistic in STATISTICS]
        assert found == pytest.approx(expected), part


def test_units_and_words_become_numbers(tmp_path: Path) -> None:
    frame, _ = load(write(tmp_path))
    row = frame.row(0, named=True)
    assert row["height"] == pytest.approx(177.8)
    assert row["weight"] == pytest.approx(154.32 * 0.45359237)
    assert row["weight_all_max"] == pytest.approx(71.5)
    assert row["temperature_all_mean"] == pytest.approx(37.0)
    assert row["fraction_inspired_oxygen_all_min"] == pytest.approx(0.4)
    assert row["fraction_inspired_oxygen_all_max"] == pytest.approx(0.5)
    assert (row["gcs_eye_opening_all_min"], row["gcs_eye_opening_all_max"]) == (3.0, 4.0)
    assert row["gcs_verbal_response_all_mean"] == 1.0
    assert row["capillary_refill_rate_all_mean"] == 1.0
    assert row["gcs_total_all_mean"] == 14.0
    assert (row["glucose_all_mean"], row["glucose_all_count"]) == (100.0, 1.0)
    assert (row["ph_all_mean"], row["ph_all_count"]) == (None, 0.0)
    assert frame["ph_all_max"].to_list() == [None, 7.25, None]
    assert frame["heart_rate_all_count"].to_list() == [5.0, 0.0, 0.0]


def test_short_stays_can_be_left_out(tmp_path: Path) -> None:
    frame, _ = load(write(tmp_path), min_hours=48.0)
    assert frame["subject_id"].to_list() == [1, 4]
    with pytest.raises(DataError, match="no adult"):
        load(tmp_path, min_hours=1000.0)


def test_without_events_the_rest_loads_and_says_so(tmp_path: Path) -> None:
    needed = {name: text for name, text in TABLES.items() if not name.endswith("EVENTS")}
    frame, notes = load(write(tmp_path / "none", tables=needed))
    assert frame.columns == ["subject_id", "age", "gender", "diagnoses", "died_in_hospital"]
    assert "714 features are absent" in notes[0]
    frame, notes = load(write(tmp_path / "some", tables=needed | {"LABEVENTS": LAB}))
    assert frame["glucose_all_mean"].to_list() == [100.0, None, None]
    assert frame["height"].null_count() == 3
    assert "no CHARTEVENTS" in notes[0]


def test_tables_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    assert find_mimic3(tmp_path) is None
    changed = {
        "twice": {"PATIENTS": PATIENTS + '5,1,"F","2100-06-15 00:00:00"\n'},
        "no admission": {"ADMISSIONS": ADMISSIONS.replace("2,21,1\n", "")},
        "lacks columns: dob": {"PATIENTS": PATIENTS.replace('"DOB"', '"BORN"')},
    }
    for at, (message, change) in enumerate(changed.items()):
        folder = write(tmp_path / str(at), tables=TABLES | change)
        with pytest.raises(DataError, match="keys repeat" if message == "twice" else message):
            load(folder)


def test_the_named_dataset_reads_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mimic3")
    monkeypatch.setenv("KOHORT_DATA", str(tmp_path))
    found = load_dataset("mimic3")
    assert found.frame.height == 3
    assert found.target == "died_in_hospital"
    assert found.schema_defaults.identifiers == ("subject_id",)
    assert found.schema_defaults.columns["diagnoses"].declared_kind == "items"
    resolved = found.schema_defaults.resolve(found.frame.columns, Role.FEATURE)
    assert "subject_id" not in resolved.inputs
    assert load_dataset("mimic3:48h").frame.height == 2


@pytest.mark.skipif(not DEMO.is_file(), reason="KOHORT_DATA has no MIMIC-III demo")
def test_the_open_demo_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """MIMIC-III Clinical Database Demo v1.4: 100 patients, of whom one was 17; counted with plain loops below."""
    monkeypatch.setenv("KOHORT_DATA", str(DEMO.parent))
    found = load_dataset("mimic3")
    assert found.frame.height == 99
    tables = {
        name: pl.read_parquet(DEMO.parent / f"mimic3demo_{name}.parquet").to_dicts()
        for name in ("patients", "admissions", "icustays", "diagnoses_icd")
    }
    born = {row["subject_id"]: row["dob"] for row in tables["patients"]}
    died = {row["hadm_id"]: row["hospital_expire_flag"] for row in tables["admissions"]}
    first: dict[int, dict[str, object]] = {}
    for stay in sorted(tables["icustays"], key=lambda row: row["intime"]):
        first.setdefault(stay["subject_id"], stay)
    assert len(first) == 100
    for row in found.frame.iter_rows(named=True):
        stay = first.pop(row["subject_id"])
        at, dob = str(stay["intime"]), born[row["subject_id"]]
        years = int(at[:4]) - int(dob[:4]) - (at[5:10] < dob[5:10])
        assert row["age"] == min(years, 90)
        assert row["died_in_hospital"] == died[stay["hadm_id"]]
        codes = {code["icd9_code"] for code in tables["diagnoses_icd"] if code["hadm_id"] == stay["hadm_id"]}
        assert set(row["diagnoses"]) == codes
    (child,) = first.values()
    assert int(str(child["intime"])[:4]) - int(born[child["subject_id"]][:4]) <= 18
    assert found.frame["died_in_hospital"].sum() == 33
    assert (found.frame["age"] == 90).sum() == 8
    assert "absent" in found.notes[-1]
