import io
import resource
import sys
from datetime import time, timedelta
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.feather import write_feather
from tests.support.examples import examples

from kohort.errors import ConfigError, DataError, ResourceError
from kohort.tables.frames import (
    FrameKind,
    check_finite,
    from_native,
    handle_missing,
    read_table,
    to_native,
    write_table,
)
from kohort.tables.scanning import scan_parquet

FRAME = pl.DataFrame(
    {
        "n": [1, 2, None],
        "x": [0.5, None, -1e300],
        "t": ["a,b", 'say "hi"', None],
        "b": [True, None, False],
        "zip": ["02139", "10001", "00000"],
        "codes": [["a", "b"], [], ["c"]],
    }
)


def read(text: str | bytes, **options) -> pl.DataFrame:
    return read_table(io.BytesIO(text.encode() if isinstance(text, str) else text), **options)


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".feather"])
def test_binary_files_round_trip(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table{ending}"
    write_table(FRAME, path)
    assert read_table(path).equals(FRAME)


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_text_files_round_trip(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"table{ending}"
    write_table(FRAME, path)
    plain = read_table(path)
    assert plain.drop("codes").equals(FRAME.drop("codes"))
    assert plain["codes"].to_list() == ["a;b", None, "c"]


cell_text = st.text(alphabet=st.characters(exclude_characters="\x00\r", exclude_categories=["Cs"]), min_size=1)


@examples(20, 50)
@given(st.lists(st.tuples(cell_text, st.integers(-(2**63), 2**63 - 1) | st.none()), min_size=1, max_size=5))
def test_any_text_survives_csv(rows: list[tuple[str, int | None]]) -> None:
    frame = pl.DataFrame(rows, schema={"text": pl.String, "count": pl.Int64}, orient="row")
    frame = frame.with_columns(pl.col("text") + "x")  # no cell that is empty, a null marker or a number
    again = read(frame.write_csv())
    assert again["text"].to_list() == frame["text"].to_list()
    assert again["count"].to_list() == frame["count"].to_list()


def test_types_lose_nothing() -> None:
    frame = read("i,f,code,long,b,t,none\n1,1.5,007,12345678901234567890,true,a,\n?,2,010,1,FALSE,?,\n")
    assert frame.schema == {
        "i": pl.Int64, "f": pl.Float64, "code": pl.String, "long": pl.String,
        "b": pl.Boolean, "t": pl.String, "none": pl.String,
    }  # fmt: skip
    assert frame.row(1) == (None, 2.0, "010", "1", False, None, None)


def test_null_markers_can_be_chosen() -> None:
    assert read("a,b\nNA,?\n1,x\n", null_markers=("NA",))["a"].to_list() == [None, 1]
    assert read("a,b\nNA,?\n1,x\n", null_markers=("NA",))["b"].to_list() == ["?", "x"]


def test_byte_order_mark_crlf_and_trailing_lines_are_harmless() -> None:
    frame = read(b"\xef\xbb\xbfa,b\r\n1,x\r\n2,y\r\n\r\n\n")
    assert frame.columns == ["a", "b"]
    assert frame["b"].to_list() == ["x", "y"]


def test_a_line_break_inside_quotes_is_no_new_row() -> None:
    assert read('a,b\n1,"x\ny, ""z"""\n')["b"].to_list() == ['x\ny, "z"']


SECRET = "topsecret"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"a,b\n", "no rows"),
        (b"a,b", "no rows"),
        (b"\n\n", "no header"),
        (f"a,b\n1,2\n3,4,{SECRET}\n".encode(), r"ragged: 1 row.*record 3 with 3"),
        (f"a,b\n{SECRET}\n3,4\n".encode(), r"ragged: 1 row.*record 2 with 1"),
        (b"a,b\n1,2\n\n3,4\n", "ragged"),
        (f'a,b\n1,"{SECRET}\n3,4\n'.encode(), "quote that never closes"),
        (f"a,b\n1,{SECRET}".encode() + b"\x81\n", r"not UTF-8 \(line 2\)"),
        (f"a,b\n1,{SECRET}\n".encode("utf-16")[:-1], "not utf-16"),
        (f"a,b\n1,{SECRET}\x00\n".encode(), "NUL"),
        (b"a,b,a\n1,2,3\n", "column twice: a"),
        (b"a,,b\n1,2,3\n", "1 column without a name"),
        (b"a,b\n1,inf\n2,-inf\n", r"infinite numbers in: b \(2\)"),
        (b"a,b\n1,1e999\n", "infinite"),
    ],
)
def test_bad_csv_is_one_clear_line_without_a_cell(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(content)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
@pytest.mark.parametrize("kept", [0, 3, 0.5, 0.95])
def test_truncated_files(tmp_path: Path, ending: str, kept: float) -> None:
    path = tmp_path / f"t{ending}"
    write_table(FRAME, path)
    content = path.read_bytes()
    path.write_bytes(content[: kept if kept > 1 else int(kept * len(content))])
    with pytest.raises(DataError, match=r"not a readable|is empty"):
        read_table(path)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[1] / "fixtures" / "damaged").iterdir()), ids=lambda path: path.name
)
def test_a_damaged_file_that_once_ended_the_process_is_an_error(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A buffer whose declared length is 2^57 bytes: the reader aborts, and with it whoever reads in his own process."""
    with pytest.raises(DataError, match="not a readable Arrow file"):
        read_table(path)
    assert capfd.readouterr() == ("", "")


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path)
    (tmp_path / "table.xls").write_text("a")
    with pytest.raises(DataError, match="no known ending"):
        read_table(tmp_path / "table.xls")
    empty = tmp_path / "none.parquet"
    FRAME.clear().write_parquet(empty)
    with pytest.raises(DataError, match="no rows"):
        read_table(empty)


def test_unsupported_types_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    pl.DataFrame({"s": [{"a": 1}]}).write_parquet(path)
    with pytest.raises(DataError, match=r"'s'.*unsupported type"):
        read_table(path)


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([[{"a": 1}]]),
        pl.Series([[[1]]]),
        pl.Series([[b"x"]]),
        *([pl.from_arrow(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())))]),
    ],
    ids=["structs", "lists", "bytes", "map"],
)
def test_lists_of_anything_but_single_values_are_unsupported(column: pl.Series) -> None:
    with pytest.raises(DataError, match="column 'visits' of the frame has the unsupported type"):
        from_native(column.alias("visits").to_frame())


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_an_unknown_time_zone_is_named_and_is_no_damage(
    ending: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"people{ending}"
    table = pa.table({"seen": pa.array([0, 1], pa.timestamp("us", "Mars/Base")), "age": [1, 2]})
    pq.write_table(table, path) if ending == ".parquet" else write_feather(table, str(path), compression="uncompressed")
    for read in (read_table, lambda one: scan_parquet(str(one))) if ending == ".parquet" else (read_table,):
        with pytest.raises(DataError, match="a time zone that is not known here") as caught:
            read(path)
        assert "column 'seen'" in str(caught.value)
        assert "Europe/Rome" in caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n1\n")))
    assert read_table("-")["a"].to_list() == [1]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(DataError, match="standard input is empty"):
        read_table("-")


def test_nan_means_missing() -> None:
    assert check_finite(pl.DataFrame({"x": [1.0, float("nan")]}))["x"].to_list() == [1.0, None]
    assert read("x,y\n1.5,a\nNaN,b\n")["x"].to_list() == [1.5, None]


def test_missing_rows_are_dropped_or_kept() -> None:
    assert handle_missing(FRAME, ["n"], "drop").height == 2
    assert handle_missing(FRAME, ["n", "x"], "drop").height == 1
    assert handle_missing(FRAME, ["n", "x"], "category").equals(FRAME)
    assert handle_missing(FRAME, [], "drop").equals(FRAME)
    with pytest.raises(DataError, match="all 3 rows"):
        handle_missing(FRAME.with_columns(n=pl.lit(None)), ["n"], "drop")
    with pytest.raises(ConfigError, match="drop"):
        handle_missing(FRAME, ["n"], "dorp")


def test_existing_output_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        write_table(FRAME, path)
    assert path.read_text() == "mine"
    write_table(FRAME, path, force=True)
    assert read_table(path).height == 3
    with pytest.raises(ConfigError, match="no known ending"):
        write_table(FRAME, tmp_path / "out.doc")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    old = tmp_path / "old.csv"
    old.write_text("mine")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        for path in (tmp_path / "new.csv", old):
            with pytest.raises(ResourceError) as caught:
                write_table(pl.DataFrame({"a": range(5000)}), path, force=True)
            assert caught.value.exit_code == 7
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]
    assert old.read_text() == "mine"


def test_an_item_with_the_separator_cannot_go_to_csv(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 items of column 'c'") as caught:
        write_table(pl.DataFrame({"c": [["secret;x"]]}), tmp_path / "o.csv")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", list(FrameKind))
def test_the_callers_kind_comes_back(kind: FrameKind) -> None:
    inner = pl.DataFrame({"n": [1, 2], "x": [0.5, None], "t": ["a", None]})
    native = to_native(inner, kind)
    assert type(native) is {"polars": pl.DataFrame, "pandas": pd.DataFrame, "pyarrow": pa.Table}[kind]
    back, found = from_native(native)
    assert found is kind
    assert back.equals(inner)


def test_pandas_categories_become_text() -> None:
    frame, _ = from_native(pd.DataFrame({"c": pd.Categorical(["b", "a", None])}))
    assert frame["c"].to_list() == ["b", "a", None]
    assert frame.schema["c"] == pl.String


def test_other_objects_are_refused() -> None:
    for thing in ([1, 2], FRAME.lazy(), "text"):
        with pytest.raises(ConfigError, match="not a table"):
            from_native(thing)
    with pytest.raises(DataError, match="infinite"):
        from_native(pd.DataFrame({"x": [float("inf")]}))
    with pytest.raises(DataError, match="same name"):
        from_native(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_durations_and_times_of_day_are_seconds(tmp_path: Path) -> None:
    frame = pl.DataFrame({"stay": [timedelta(hours=1), None], "at": [time(0, 0, 1, 500_000), time(12)]})
    frame.write_parquet(tmp_path / "stays.parquet")
    assert read_table(tmp_path / "stays.parquet").rows() == [(3600.0, 1.5), (None, 43200.0)]
