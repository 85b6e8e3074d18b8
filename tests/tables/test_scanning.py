"""Parquet files read in parts: the rows and types of a whole reading, and no trace of the reader on damaged ones."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.errors import DataError
from kohort.tables.frames import read_table
from kohort.tables.parquet_pages import lengths_agree
from kohort.tables.scanning import is_parquet, readable, scan_parquet, spread_rows
from kohort.tables.trial import quiet_reader


def test_types_and_missing_values_are_those_of_a_whole_reading(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "number": [1.5, float("nan"), None],
            "kind": pl.Series(["a", "b", None], dtype=pl.Categorical),
            "span": [datetime.timedelta(seconds=3), None, datetime.timedelta(0)],
            "codes": [[1, 2], [], None],
        }
    )
    path = tmp_path / "in.parquet"
    frame.write_parquet(path)
    assert is_parquet(str(path))
    assert not is_parquet(str(tmp_path / "absent.parquet"))
    assert scan_parquet(str(path)).collect().equals(read_table(path))


def test_infinite_numbers_and_unknown_types_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "in.parquet")
    pl.DataFrame({"x": [1.0, float("inf")]}).write_parquet(path)
    with pytest.raises(DataError, match=r"infinite numbers in: x \(1\)"):
        scan_parquet(path)
    pl.DataFrame({"x": [b"1"]}).write_parquet(path)
    with pytest.raises(DataError, match="unsupported type Binary"):
        scan_parquet(path)
    pl.DataFrame({"x": pl.Series([], dtype=pl.Int64)}).write_parquet(path)
    with pytest.raises(DataError, match="no rows"):
        scan_parquet(path)


def test_a_damaged_file_is_one_error_and_nothing_else_is_printed(tmp_path: Path, capfd) -> None:
    path = tmp_path / "in.parquet"
    pl.DataFrame({"x": list(range(2000)), "t": ["zebra"] * 2000}).write_parquet(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    said = [_error_of(path, rng, whole) for _ in range(60)]
    refused = [text for text in said if text is not None]
    assert len(refused) > 5
    assert all(text.startswith(repr(str(path))) and "zebra" not in text for text in refused)
    assert capfd.readouterr().err == ""


def test_a_page_that_claims_more_values_than_its_column_is_refused(tmp_path: Path) -> None:
    # The native reader would ask for memory for all of them and abort.
    frame = pl.DataFrame({"x": [0.5, 1.5, 2.5] * 100, "codes": [["a"], [], ["b", "c"]] * 100})
    for options in ({}, {"row_group_size": 70}, {"compression": "uncompressed", "data_page_size": 64}):
        frame.write_parquet(tmp_path / "in.parquet", **options)
        whole = (tmp_path / "in.parquet").read_bytes()
        assert lengths_agree(whole)
        assert lengths_agree(tmp_path / "in.parquet")
    header = whole.index(b"\x15", 4)  # the first page's header begins with its kind, a 32-bit number
    assert not lengths_agree(whole[:-6] + whole[-5:])
    assert not lengths_agree(whole[: header + 1] + b"\xff\xff\xff\xff\x0f" + whole[header + 6 :])
    assert not lengths_agree(b"")
    (tmp_path / "in.parquet").write_bytes(b"")
    assert not lengths_agree(tmp_path / "in.parquet")


def _error_of(path: Path, rng: np.random.Generator, whole: bytes) -> str | None:
    """What is said about the file with three bits changed; None where it can be read."""
    broken = bytearray(whole)
    for place in rng.integers(0, len(whole), 3):
        broken[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(bytes(broken))
    try:
        with readable(str(path)):
            scan_parquet(str(path)).collect()
    except DataError as error:
        return str(error)
    return None


def _fail(error: type[Exception], text: bytes) -> None:
    with quiet_reader():
        os.write(2, text)
        raise error("damaged")


def test_what_is_said_meanwhile_is_kept_unless_the_block_failed(capfd) -> None:
    with quiet_reader():
        os.write(2, b"a note")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "a note"
    with pytest.raises(pl.exceptions.ComputeError):
        _fail(pl.exceptions.ComputeError, b"thread panicked: zebra")
    with pytest.raises(DataError):  # which an error of the reader may have become within the block
        _fail(DataError, b"thread panicked: zebra")
    assert capfd.readouterr().err == ""


def test_rows_of_a_large_table_are_spread_over_it() -> None:
    table = pl.DataFrame({"row": np.arange(10_000), "more": 1}).lazy()
    some = spread_rows(table, ["row"], 400)
    assert some.columns == ["row"]
    assert some["row"].n_unique() == some.height == 400
    assert (some["row"][0], some["row"][-1]) == (0, 9_999)
    assert np.diff(some["row"].to_numpy()).max() < 600
    assert spread_rows(table, ["row"], 10_000)["row"].to_list() == list(range(10_000))


def test_brackets_and_stars_are_part_of_a_name(tmp_path: Path) -> None:
    """A name read as a pattern is another file, or none."""
    for folder, names in {"d[1]": ["a[1].parquet", "b*.parquet"], "d1": ["a1.parquet", "bb.parquet"]}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            frame = pl.DataFrame({"from": [f"{folder}/{name}"] * 3})
            frame.write_parquet(tmp_path / folder / name)
            pl.DataFrame({"from": ["beside"]}).write_parquet(
                tmp_path / folder / name.replace("[1]", "1").replace("*", "x")
            )
            frame.write_parquet(tmp_path / folder / name)
            assert scan_parquet(str(tmp_path / folder / name)).collect().equals(frame)
