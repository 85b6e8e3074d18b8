"""A table that does not fit is refused before it is read, with what would help."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from kohort.errors import ResourceError
from kohort.tables import memory
from kohort.tables.frames import read_table
from kohort.tables.memory import cell_bytes, free_memory, require_memory

ROWS = 5_000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.parquet"
    pl.DataFrame({"age": range(ROWS), "ward": ["north"] * ROWS}).write_parquet(path)
    return path


def test_cells_take_what_their_types_take() -> None:
    schema = pl.Schema({"age": pl.Int64(), "born": pl.Date(), "ward": pl.String(), "ill": pl.Boolean()})
    assert cell_bytes(schema, 10) == 10 * (8 + 4 + 16 + 1)


def test_some_memory_is_free_and_a_limit_is_seen() -> None:
    free = free_memory()
    assert free is None or free > 1_000_000
    require_memory(1, "a table", hint="")
    if free is not None:
        with pytest.raises(ResourceError, match=r"takes at least .* GB of memory, and .* GB are left"):
            require_memory(10**18, "a table", hint="Give fewer rows")


@pytest.mark.parametrize(("ending", "free"), [(".csv", 1_000), (".parquet", 60_000)])
def test_a_table_that_does_not_fit_is_not_read(
    table: Path, ending: str, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a text the file itself is too large; of a Parquet file its cells are: 24 bytes per row."""
    place = table.with_suffix(ending)
    if ending == ".csv":
        pl.read_parquet(table).write_csv(place)
    assert (place.stat().st_size > free) == (ending == ".csv")
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    with pytest.raises(ResourceError) as caught:
        read_table(place)
    assert caught.value.exit_code == 7
    assert "Parquet files in parts" in caught.value.hint


def test_a_file_whose_cells_fit_is_read(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 24 * ROWS)
    assert read_table(table).height == ROWS


@pytest.mark.skipif(sys.platform != "linux", reason="limits on addresses are read from /proc")
def test_a_low_limit_on_addresses_is_exit_7_and_one_line(table: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kohort.cli.main", "check", str(table), "--quasi", "ward"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1_100_000_000, 1_100_000_000)),
    )
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("\n") == 1
    assert "Raise ulimit -v" in done.stderr


def test_the_smallest_table_needs_what_libraries_reserve(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer addresses, native code would abort or wait for ever."""
    monkeypatch.setattr(memory, "_of_limits", lambda: [memory.LIBRARIES])
    with pytest.raises(ResourceError, match=r"reserves 0.6 GB of addresses") as caught:
        read_table(table)
    assert caught.value.exit_code == 7
    monkeypatch.setattr(memory, "_of_limits", lambda: [2 * memory.LIBRARIES])
    assert read_table(table).height == ROWS
