"""Every file of tests/fixtures/messy is read as its table says, and untouched columns come back exactly."""

import importlib.util
import sys
from pathlib import Path

import polars as pl
import pytest

from kohort.tables.datasets.catalogue import open_table
from kohort.tables.dialect import ReadingOptions
from kohort.tables.item_sets import with_item_sets
from kohort.tables.reading import ROW, restore_texts

SCRIPT = Path(__file__).parents[1] / "fixtures" / "make_messy.py"
_spec = importlib.util.spec_from_file_location("make_messy", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
messy = importlib.util.module_from_spec(_spec)
sys.modules["make_messy"] = messy
_spec.loader.exec_module(messy)


@pytest.mark.parametrize("case", messy.CASES, ids=lambda case: case.file)
def test_the_file_is_read_as_expected(case) -> None:
    opened = open_table(messy.FOLDER / case.file, ReadingOptions.of(case.options))
    frame = opened.frame
    if case.items:
        frame, _ = with_item_sets(frame, case.items, ReadingOptions.of(case.options))
    found = {name: str(dtype).partition("(time")[0] for name, dtype in frame.schema.items()}
    assert found == case.columns
    assert frame.height == case.rows
    assert {name: frame[name].null_count() for name in frame.columns if frame[name].null_count()} == case.nulls
    assert {name: frame[name][0] if frame[name].dtype.base_type() is not pl.List else frame[name][0].to_list()
            for name in case.first} == case.first  # fmt: skip
    for part in case.says:
        assert any(part in note for note in opened.reading), opened.reading
    if not case.says:
        assert opened.reading == ()


def test_the_files_are_those_of_the_script(tmp_path: Path) -> None:
    messy.make(tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {path.name for path in messy.FOLDER.iterdir()}
    for name in made:
        if not name.endswith((".parquet", ".feather")):  # their bytes depend on the library's version
            assert (tmp_path / name).read_bytes() == (messy.FOLDER / name).read_bytes(), name


def test_dates_are_ordered_and_right() -> None:
    for file, column, first in (
        ("british_dates.csv", "seen", "2020-01-31"),
        ("american_dates.csv", "seen", "2020-01-31"),
        ("german_dates.csv", "geboren", "1980-01-31"),
        ("declared_dates.csv", "seen", "2020-02-01"),
        ("month_names.csv", "seen", "2020-01-01"),
    ):
        options = ReadingOptions(date_order="dmy") if file == "declared_dates.csv" else None
        assert str(open_table(messy.FOLDER / file, options).frame[column][0]) == first, file
    times = open_table(messy.FOLDER / "times.csv").frame
    assert str(times["seen"][0]) == "2020-01-31 08:15:00"
    assert str(times["sent"][1]) == "2020-02-01 07:00:00"


def test_every_form_of_the_same_sets_gives_the_same_lists() -> None:
    forms = {
        "items_comma.csv": (("diagnoses",), ReadingOptions(separator=",")),
        "items_json.csv": (("diagnoses",), None),
        "items_columns.csv": (("diagnoses=diag_1+diag_2",), None),
        "items_long.csv": (("code",), ReadingOptions(long="patient")),
    }
    for file, (items, options) in forms.items():
        frame, names = with_item_sets(open_table(messy.FOLDER / file).frame, items, options)
        assert frame[names[0]].to_list() == [["E11", "I10"], [], ["I10"]], file


def test_a_long_table_whose_rows_disagree_is_refused() -> None:
    frame = pl.DataFrame({"p": ["a", "a"], "sex": ["f", "m"], "code": ["x", "y"]})
    with pytest.raises(Exception, match="differ in: sex"):
        with_item_sets(frame, ["code"], ReadingOptions(long="p"))


def test_untouched_columns_come_back_exactly() -> None:
    opened = open_table(messy.FOLDER / "codes.csv")
    carried = opened.frame.with_row_index(ROW).with_columns(zip=pl.lit("0*"))[[2, 0]]
    given_back = restore_texts(carried, opened.texts, opened.frame)
    assert given_back["phone"].to_list() == ["+4930", "+4912"]
    assert given_back["price"].to_list() == ["3.50", "1.10"]
    assert given_back["zip"].to_list() == ["0*", "0*"]
    assert ROW not in given_back.columns
    truth = open_table(messy.FOLDER / "truth.csv")
    again = restore_texts(truth.frame.with_row_index(ROW), truth.texts, truth.frame)
    assert again["smoker"].to_list() == ["TRUE", "FALSE", "TRUE"]


@pytest.mark.parametrize(
    ("cells", "noted"),
    [
        ([*map(str, range(20, 60)), "ninety or more"], True),
        ([*map(str, range(20, 60)), "unknown"], False),  # a word for a missing value: the column is numbers
        ([f"0{number}" for number in range(20, 60)] + ["none yet"], False),  # codes
        ([*map(str, range(20, 60)), *(f"V{number}" for number in range(10, 20))], False),  # codes of two kinds
        (["red", "blue", "3"], False),
    ],
)
def test_numbers_with_a_few_words_among_them_are_noted_without_their_words(tmp_path, cells, noted) -> None:
    path = tmp_path / "table.csv"
    path.write_text("age,sex\n" + "".join(f"{cell},f\n" for cell in cells))
    notes = [note for note in open_table(path).reading if "a few words" in note]
    assert [note.endswith(": age") for note in notes] == [True] * noted
    assert not any("ninety" in note for note in notes)
    opened = open_table(path, ReadingOptions(null_values=("ninety or more",)))
    assert not any("a few words" in note for note in opened.reading)
    assert opened.frame["age"].dtype.is_numeric() or not noted


def test_a_row_above_the_names_is_no_line_of_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("zqx9,73007,south\nwho,age,town\n" + "".join(f"zqx{n},{73010 + n},north\n" for n in range(8)))
    table = open_table(str(path)).frame
    assert table.columns == ["column_1", "column_2", "column_3"]
    path.write_text("who,age\n" + "".join(f"zqx{n},{'<5' if n == 3 else n}\n" for n in range(8)))
    assert open_table(str(path)).frame.columns == ["who", "age"]
