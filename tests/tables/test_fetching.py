"""What is no table is refused before it is read, and what has no end is not read for ever."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from kohort.errors import DataError, ResourceError
from kohort.tables import memory
from kohort.tables.fetching import fetch


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no endless device")
def test_a_device_is_not_read(tmp_path: Path) -> None:
    named = tmp_path / "zero.csv"
    named.symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a device"):
        fetch(named)
    with pytest.raises(DataError, match="no known ending"):
        fetch("/dev/zero")


class Endless(io.RawIOBase):
    """A stream of zeros."""

    def read(self, size: int = -1) -> bytes:
        assert size > 0, "read as a whole"
        return bytes(size)


def test_endless_input_ends_with_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 26)

    class Stdin:
        buffer = Endless()

    monkeypatch.setattr(sys, "stdin", Stdin())
    with pytest.raises(ResourceError, match="standard input takes at least"):
        fetch("-")


def test_standard_input_comes_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n1\n")))
    assert fetch("-") == (b"a\n1\n", "standard input", "csv")


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".arrow"])
def test_a_name_that_is_too_long_is_exit_2_and_one_line(
    ending: str, plan_file: Path, tmp_path: Path, kohort_here
) -> None:
    name, out = "a" * 300 + ending, tmp_path / "out"
    for words in (
        ("check", name, "--quasi", "a"),
        ("gate", name, "--quasi", "a", "--rule", "k-anonymity", "--k", "2"),
        ("anonymize", name, "--quasi", "a", "--out", tmp_path / "o.csv"),
        ("run", plan_file, "--set", f"data.table={name}", "--out", out),
    ):
        code, _, said = kohort_here(*words)
        assert (code, said.count("\n")) == (2, 1), said
        assert "too long" in said
    code, _, said = kohort_here("run", plan_file, "--set", 'data.table="a\\u0000.csv"', "--out", out)
    assert (code, said.count("\n")) == (2, 1), said
    assert not out.exists()


def test_a_target_without_values_is_said(tmp_path: Path, kohort_here) -> None:
    table = tmp_path / "t.csv"
    table.write_text("age,ill\n" + "".join(f"{row % 7},\n" for row in range(60)))
    code, _, said = kohort_here("init", table, "--target", "ill", "--out", tmp_path / "p.toml")
    assert (code, said.count("\n")) == (3, 1), said
    assert "column 'ill' has no values" in said
