"""`kohort anonymize` on a Parquet table that is read in parts: the same output as where it is held, or no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kohort.anonymity.relational import in_parts
from kohort.anonymity.relational.parted import RowClasses

Call = Callable[..., tuple[int, str, str]]

GIVEN: tuple[Any, ...] = (
    "--quasi",
    "age,ward",
    "--sensitive",
    "ill",
    "--k",
    4,
    "--keep",
    "dose,code",
    "--force",
    "--json",
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows to release, read in parts of about twenty rows."""
    random = np.random.default_rng(5)
    path = tmp_path / "in" / "large.parquet"
    path.parent.mkdir()
    pl.DataFrame(
        {
            "patient": random.integers(0, 120, 300),
            "age": random.integers(20, 60, 300),
            "ward": pl.Series(random.choice(["north", "south", "east"], 300)),
            "dose": np.where(random.random(300) < 0.1, np.nan, random.normal(size=300)),
            "code": pl.Series(random.choice([1, 2, 3, -999], 300)),
            "ill": pl.Series(random.choice(list("abc"), 300)),
        }
    ).write_parquet(path, row_group_size=64)
    monkeypatch.setattr("kohort.tables.parts.LARGE", 0)
    monkeypatch.setattr("kohort.tables.parts.PART_BYTES", 800)
    return path


def in_both_ways(
    call: Call, table: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: object
) -> tuple[dict[str, Any], pl.DataFrame]:
    """What a command says and writes in parts, which is what it says and writes where the table is held."""
    made = []
    for name, large in (("parts", 0), ("whole", 1 << 40)):
        monkeypatch.setattr("kohort.tables.parts.LARGE", large)
        seen: list[str] = []
        usual = in_parts.anonymise_in_parts
        monkeypatch.setattr(in_parts, "anonymise_in_parts", lambda *a, **o: seen.append("parts") or usual(*a, **o))  # noqa: B023
        out = folder / f"{name}.parquet"
        code, text, said = call("anonymize", table, *GIVEN, *more, "--out", out)
        monkeypatch.setattr(in_parts, "anonymise_in_parts", usual)
        assert code == 0, said
        assert seen == (["parts"] if name == "parts" else [])
        found = json.loads(text)
        del found["seconds"], found["out"]
        made.append((found, pl.read_parquet(out)))
    (found, released), (expected, held) = made
    assert_frame_equal(released, held)
    floats = {name: value for name, value in expected.items() if isinstance(value, float)}
    assert {name: found.pop(name) for name in floats} == pytest.approx(floats, rel=1e-9, abs=1e-12)
    assert found == {name: value for name, value in expected.items() if name not in floats}
    assert list(folder.glob(".*")) == []
    return found, released


@pytest.mark.parametrize(
    "more",
    [
        ["--drop", "patient"],
        ["--person", "patient"],
        ["--person", "patient", "--keep-order"],
        ["--identifiers", "patient", "--l", "2", "--suppression", "0.05"],
        ["--drop", "patient", "--algorithm", "lattice", "--missing", "drop"],
        ["--drop", "patient", "--algorithm", "mondrian", "--t", "0.5"],
        ["--drop", "rest", "--hierarchies", "intervals"],
        ["--drop", "rest", "--risk", "0.1"],
    ],
)
def test_a_large_table_is_released_as_one_that_is_held(
    kohort_here: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    found, released = in_both_ways(kohort_here, table, tmp_path, monkeypatch, *more)
    assert "patient" not in released.columns
    assert any("-999" in note for note in found["notes"])
    assert any("order" in note for note in found["notes"]) == (
        ("--person" in more and "--keep-order" not in more) or "--identifiers" in more
    )


@pytest.mark.parametrize("column", ["patient", "age"])
def test_rows_in_a_telling_order_are_sorted_by_their_released_values(
    kohort_here: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    pl.read_parquet(table).sort(column).write_parquet(table)
    found, released = in_both_ways(kohort_here, table, tmp_path, monkeypatch, "--drop", "patient")
    assert any("order" in note for note in found["notes"])
    assert_frame_equal(released, released.sort(released.columns))


def test_hierarchies_are_written(kohort_here: Call, table: Path, tmp_path: Path) -> None:
    more = ("--drop", "patient", "--hierarchies", "intervals", "--write-hierarchies", tmp_path / "levels")
    assert kohort_here("anonymize", table, *GIVEN, *more, "--out", tmp_path / "a.parquet")[0] == 0
    assert sorted(one.name for one in (tmp_path / "levels").iterdir()) == ["age.csv", "ward.csv"]


@pytest.mark.parametrize(
    "more",
    [
        ["--round", "age=5"],
        ["--mean", "age"],
        ["--null-values", "-999"],
        ["--algorithm", "thesis"],
        ["--keep-exact", "thesis"],
        ["--account", "account.json"],
        ["--audit", "audit.json"],
    ],
)
def test_what_needs_the_table_as_a_whole_holds_it(
    kohort_here: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was read in parts")

    monkeypatch.setattr(in_parts, "anonymise_in_parts", refuse)
    monkeypatch.chdir(tmp_path)
    code, text, said = kohort_here("anonymize", table, *GIVEN, "--drop", "patient", *more, "--out", "a.parquet")
    assert code == 0, said
    assert json.loads(text)["rows"] == 300


def test_a_release_that_breaks_its_rule_is_found_in_the_file_and_leaves_none(
    kohort_here: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = RowClasses.released

    def planted(self: RowClasses, *given: Any) -> Any:
        """Ages as they are."""
        rows, columns = given
        for part, plain in zip(usual(self, *given), rows.parts(columns), strict=True):
            yield part.with_columns(plain["age"].cast(pl.String))

    monkeypatch.setattr(RowClasses, "released", planted)
    out = tmp_path / "a.parquet"
    out.write_text("what was there before")
    for who in (["--drop", "patient"], ["--person", "patient"]):
        code, _, said = kohort_here("anonymize", table, *GIVEN, *who, "--out", out)
        assert code == 6, said
        assert "does not meet the rule: k is" in said
        assert out.read_text() == "what was there before"
        assert list(tmp_path.glob(".*")) == []


def test_persons_of_the_written_rows_are_counted(
    kohort_here: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are about one person: classes of enough rows are not enough."""
    monkeypatch.setattr(in_parts._Writer, "judge", _with_one_person(in_parts._Writer.judge))
    code, _, said = kohort_here("anonymize", table, *GIVEN, "--person", "patient", "--out", tmp_path / "a.parquet")
    assert code == 6, said
    assert "k is 1, not 4" in said


def _with_one_person(judge: Any) -> Any:
    def judged(self: Any, made: Any, rule: Any, persons: Any) -> Any:
        return judge(self, made, rule, np.zeros_like(persons))

    return judged


def test_too_little_memory_is_said_before_the_table_is_held(
    kohort_here: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kohort.tables.memory.free_memory", lambda: 10_000)
    given = ("anonymize", table, *GIVEN, "--drop", "patient", "--l", "2", "--out", tmp_path / "a.parquet")
    code, _, said = kohort_here(*given)
    assert code == 7
    assert "takes at least" in said
    assert "--k alone" in said
    assert not (tmp_path / "a.parquet").exists()
    assert list(tmp_path.glob(".*")) == []


def test_columns_without_a_role_are_an_error(kohort_here: Call, table: Path, tmp_path: Path) -> None:
    code, _, said = kohort_here("anonymize", table, *GIVEN, "--out", tmp_path / "a.parquet")
    assert code == 2
    assert "patient" in said


def test_a_table_that_is_damaged_later_on_leaves_no_file(
    kohort_here: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = RowClasses.released

    def broken(self: RowClasses, *given: Any) -> Any:
        yield next(iter(usual(self, *given)))
        raise pl.exceptions.ComputeError("a page could not be read: north")

    monkeypatch.setattr(RowClasses, "released", broken)
    code, _, said = kohort_here("anonymize", table, *GIVEN, "--drop", "patient", "--out", tmp_path / "a.parquet")
    assert code == 3
    assert "north" not in said
    assert [one.name for one in tmp_path.iterdir()] == ["in"]
