"""Tables that are read, written and sorted part by part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kohort.tables import parts
from kohort.tables.frames import in_value_order, order_tells
from kohort.tables.parts import is_large, order_tells_in_parts, part_rows, read_parts, sort_file, write_parts


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 500)


def table(seed: int, rows: int = 200) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "range": random.integers(0, 4, rows),
            "limit": pl.Series(random.choice(["", "a", "b", "é", "z"], rows)),
            "value": np.round(random.normal(size=rows), 1),
            "codes": pl.Series([[str(code)] * (code % 3) for code in random.integers(0, 6, rows).tolist()]),
        }
    )
    gone = [pl.when(pl.Series(random.random(rows) < 0.1)).then(None).otherwise(pl.col(name)).alias(name)
            for name in ("range", "limit", "value")]  # fmt: skip
    return frame.with_columns(gone)


@pytest.mark.parametrize("seed", range(6))
def test_a_file_is_sorted_by_its_ranges_as_at_once(tmp_path: Path, seed: int) -> None:
    frame = table(seed)
    frame.write_parquet(tmp_path / "in.parquet", row_group_size=40)
    assert part_rows(frame.lazy(), frame.height) < frame.height // 8
    folder = tmp_path / "in[to]*"
    folder.mkdir()
    (tmp_path / "in.parquet").rename(folder / "in[1].parquet")
    sort_file(folder / "in[1].parquet", folder / "out.parquet")
    assert_frame_equal(pl.read_parquet(folder / "out.parquet", glob=False), in_value_order(frame))
    assert sorted(one.name for one in folder.iterdir()) == ["in[1].parquet", "out.parquet"]


def test_rows_that_are_all_alike_are_sorted_too(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": [1] * 300, "b": ["x"] * 300})
    frame.write_parquet(tmp_path / "in.parquet")
    sort_file(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert_frame_equal(pl.read_parquet(tmp_path / "out.parquet"), frame)


@pytest.mark.parametrize("values", [
    [1, 2, 2, 3] * 50,
    sorted([1, 2, 2, 3] * 50),
    sorted([1, 2, 2, 3] * 50, reverse=True),
    [7] * 200,
    [None] * 200,
    [None, 1, 1, None] * 50,
    [*range(199), 5],
    [5, *range(199, 0, -1)],
    [*range(100), *range(100)],
    sorted(str(number) for number in range(200)),
    [str(number) for number in range(200)],
    [*([True] * 100), *([False] * 100)],
    [*([None] * 100), *range(100)],
])  # fmt: skip
def test_an_order_is_found_in_parts_as_at_once(tmp_path: Path, values: list[object]) -> None:
    frame = pl.DataFrame({"a": values, "other": [1, 0] * 100}, strict=False)
    frame.write_parquet(tmp_path / "in.parquet", row_group_size=30)
    lazy = pl.scan_parquet(tmp_path / "in.parquet")
    assert order_tells_in_parts(lazy, ["other", "a"]) == order_tells(frame, ["other", "a"], None)


@pytest.mark.parametrize("step", [1, -1])
def test_parts_that_are_sorted_by_themselves_are_no_order(tmp_path: Path, step: int) -> None:
    rows = part_rows(pl.LazyFrame({"a": range(200)}), 200)
    frame = pl.DataFrame({"a": [*range(rows)[::step], *range(200 - rows)[::step]]})
    frame.write_parquet(tmp_path / "in.parquet")
    assert not order_tells(frame, ["a"], None)
    assert not order_tells_in_parts(pl.scan_parquet(tmp_path / "in.parquet"), ["a"])


def test_parts_are_the_rows_in_their_order(tmp_path: Path) -> None:
    frame = table(0)
    frame.write_parquet(tmp_path / "in.parquet")
    lazy = pl.scan_parquet(tmp_path / "in.parquet")
    found = list(read_parts(lazy, 37))
    assert [one.height for one in found] == [37, 37, 37, 37, 37, 15]
    write_parts(lambda: iter(found), frame.schema, tmp_path / "out.parquet")
    assert_frame_equal(pl.read_parquet(tmp_path / "out.parquet"), frame)


def test_what_the_disk_refuses_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"writing failed|No such file"):
        write_parts(lambda: iter([table(0)]), table(0).schema, tmp_path / "absent" / "out.parquet")


@pytest.mark.parametrize(
    ("source", "out", "limit", "large"),
    [
        ("in.parquet", "out.parquet", 5_000, True),
        ("in.parquet", "out.parquet", 50_000, False),
        ("in.parquet", "out.csv", 0, False),
        ("absent.parquet", "out.parquet", 0, False),
    ],
)
def test_only_parquet_to_parquet_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, out: str, limit: int, large: bool
) -> None:
    table(0).write_parquet(tmp_path / "in.parquet")
    monkeypatch.setattr("kohort.tables.parts.LARGE", limit)
    assert is_large(str(tmp_path / source), tmp_path / out) is large
