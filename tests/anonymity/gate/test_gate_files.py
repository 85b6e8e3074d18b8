"""Whole tables through a gate: the two files hold every row once, and nothing is left half-written."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.gate import files as gate_files
from kohort.anonymity.gate.files import gate_table
from kohort.anonymity.gate.gate import GateInput, GateRule, apply_gate
from kohort.errors import ConfigError, DataError, ResourceError
from kohort.tables.frames import read_table


def make_table(rows: int = 500) -> pl.DataFrame:
    random = np.random.default_rng(3)
    town = pl.Series("town", random.choice(["north", "south", "west"], rows))
    return pl.DataFrame(
        {
            "age": random.integers(20, 60, rows),
            "town": pl.select(pl.when(pl.Series(random.random(rows) > 0.1)).then(town)).to_series(),
            "wage": np.where(random.random(rows) > 0.1, random.integers(0, 9, rows) / 2, np.nan),
            "person": random.integers(0, 300, rows),
            "codes": [["a", "b"][: row % 3] for row in range(rows)],
        }
    )


@pytest.fixture
def small_parts(monkeypatch) -> None:
    monkeypatch.setattr(gate_files, "PART_ROWS", 64)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("missing", ["category", "drop"])
def test_every_row_goes_to_one_file(tmp_path: Path, missing) -> None:
    frame = make_table().with_columns(pl.col("wage").fill_nan(None))
    make_table().write_parquet(tmp_path / "in.parquet")
    found = gate_table(
        str(tmp_path / "in.parquet"),
        quasi=["age", "town"],
        identifier="person",
        missing=missing,
        rule="k-anonymity",
        k=4,
        out_shared=tmp_path / "deep" / "shared.parquet",
        out_kept=tmp_path / "kept.parquet",
    )
    expected = frame if missing == "category" else frame.drop_nulls()
    gated = apply_gate(expected, quasi=["age", "town"], identifier="person", rule="k-anonymity", k=4)
    assert (found.decision.mask == gated.mask).all()
    assert 0 < gated.shared < expected.height
    assert found.dropped_rows == frame.height - expected.height
    shared = read_table(tmp_path / "deep" / "shared.parquet")
    assert shared.equals(expected.filter(pl.Series(gated.mask)).drop("person"))
    assert read_table(tmp_path / "kept.parquet").equals(expected.filter(pl.Series(~gated.mask)))
    assert found.unique == gated.unique_on(expected, found.shared_columns)
    assert "person" not in found.shared_columns
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "in.parquet", "kept.parquet"]


@pytest.mark.usefixtures("small_parts")
def test_rows_that_share_one_of_two_hashes_count_apart(monkeypatch, tmp_path) -> None:
    make_table().write_parquet(tmp_path / "in.parquet")
    arguments = {"quasi": ["town"], "rule": "k-anonymity", "k": 1}
    plain = gate_table(str(tmp_path / "in.parquet"), **arguments).unique
    whole = pl.DataFrame.hash_rows
    coarse = lambda frame, seed: whole(frame, seed) % (3 if seed == gate_files.SEEDS[0] else 2**63)  # noqa: E731
    monkeypatch.setattr(pl.DataFrame, "hash_rows", coarse)
    assert 0 < plain == gate_table(str(tmp_path / "in.parquet"), **arguments).unique


def test_chosen_columns_and_csv(tmp_path) -> None:
    make_table().drop("codes").write_csv(tmp_path / "in.csv")
    found = gate_table(
        str(tmp_path / "in.csv"),
        quasi=["age"],
        rule="k-anonymity",
        k=10,
        shared_columns=["wage", "age"],
        out_shared=tmp_path / "shared.csv",
    )
    assert found.shared_columns == ("age", "wage")
    assert read_table(tmp_path / "shared.csv").columns == ["age", "wage"]
    assert read_table(tmp_path / "shared.csv").height == found.decision.shared


def test_nothing_shared_gives_an_empty_file(tmp_path) -> None:
    make_table().write_parquet(tmp_path / "in.parquet")
    out = tmp_path / "shared.parquet"
    found = gate_table(str(tmp_path / "in.parquet"), quasi=["age"], rule="k-anonymity", k=10_000, out_shared=out)
    assert (found.decision.shared, found.unique) == (0, 0)
    assert list(found.indirect) == ["town"]
    assert pl.read_parquet(out).shape == (0, 4)


def test_a_full_disk_leaves_nothing(tmp_path) -> None:
    make_table(20_000).write_parquet(tmp_path / "in.parquet")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        with pytest.raises(ResourceError, match="too large"):
            gate_table(
                str(tmp_path / "in.parquet"),
                quasi=["age"],
                rule="k-anonymity",
                k=1,
                out_shared=tmp_path / "shared.parquet",
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_existing_files_stay(tmp_path) -> None:
    make_table().write_parquet(tmp_path / "in.parquet")
    (tmp_path / "kept.csv").write_text("mine")
    arguments = {"quasi": ["age"], "rule": "k-anonymity", "k": 2}
    with pytest.raises(ConfigError, match="exists"):
        gate_table(str(tmp_path / "in.parquet"), out_kept=tmp_path / "kept.csv", **arguments)
    assert (tmp_path / "kept.csv").read_text() == "mine"
    with pytest.raises(ConfigError, match="same file"):
        gate_table(
            str(tmp_path / "in.parquet"), out_kept=tmp_path / "a.csv", out_shared=tmp_path / "." / "a.csv", **arguments
        )
    with pytest.raises(ConfigError, match="no known ending"):
        gate_table(str(tmp_path / "in.parquet"), out_kept=tmp_path / "a.txt", **arguments)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pl.DataFrame({"a": [1.0, float("inf")]}), r"infinite numbers in: a \(1\)"),
        (pl.DataFrame({"a": [1], "b": [{"c": 1}]}), "unsupported type"),
        (pl.DataFrame({"a": []}, schema={"a": pl.Int64}), "no rows"),
        (pl.DataFrame({"a": [None]}, schema={"a": pl.Int64}), "all 1 rows have a missing value"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, table, message) -> None:
    table.write_parquet(tmp_path / "in.parquet")
    with pytest.raises(DataError, match=message):
        gate_table(str(tmp_path / "in.parquet"), quasi=["a"], rule="k-anonymity", k=1, missing="drop")


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_file(tmp_path, damage) -> None:
    path = tmp_path / "in.parquet"
    make_table().write_parquet(path)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"PAR1" + b"\xff" * 900 + content[904:])
    with pytest.raises(DataError, match="not a readable"):
        gate_table(str(path), quasi=["age"], rule="k-anonymity", k=1)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("identifier", [None, "person"])
@pytest.mark.parametrize(
    "rule",
    [
        {"rule": "k-anonymity", "k": 20},
        {"rule": "paper-l", "l": 12},
        {"rule": "l-diversity", "l": 4, "k": 21},
        {"rule": "l-diversity", "l": 2.8, "l_kind": "entropy"},
        {"rule": "t-closeness", "t": 0.06},
    ],
)
def test_equal_rows_given_once_are_decided_as_rows_are(rule, identifier: str | None, tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(8)
    frame = pl.DataFrame(
        {
            "age": rng.integers(0, 9, 600),
            "town": [["a", "b", None][place] for place in rng.integers(0, 3, 600)],
            "label": [
                [1.5, 2.5, -0.0, 0.0, None][place] for place in rng.choice(5, 600, p=[0.6, 0.2, 0.05, 0.05, 0.1])
            ],
            "person": rng.integers(0, 150, 600),
        }
    )
    frame.write_parquet(tmp_path / "in.parquet")
    columns = {"quasi": ["age", "town"], "sensitive": "label", "identifier": identifier}
    expected = apply_gate(frame, **columns, **rule)
    given: list[int] = []
    usual = gate_files.apply_gate
    monkeypatch.setattr(
        gate_files, "apply_gate", lambda table, **more: given.append(table.height) or usual(table, **more)
    )
    found = gate_table(str(tmp_path / "in.parquet"), **columns, **rule).decision
    assert given[0] < frame.height
    assert 0 < expected.shared < frame.height
    assert found.mask.tolist() == expected.mask.tolist()
    assert (found.groups, found.largest_group) == (expected.groups, expected.largest_group)
    monkeypatch.setattr(gate_files, "MOST_COMBINATIONS", 5)
    assert gate_table(str(tmp_path / "in.parquet"), **columns, **rule).decision.mask.tolist() == found.mask.tolist()
    assert given[1] == frame.height


@pytest.mark.usefixtures("small_parts")
def test_a_rule_or_key_that_looks_at_rows_themselves_sees_all_of_them(tmp_path) -> None:
    frame = pl.DataFrame({"age": [30] * 100 + [40] * 100})
    frame.write_parquet(tmp_path / "in.parquet")
    seen: list[int] = []

    def every_other(given: GateInput) -> np.ndarray:
        seen.append(given.keys.rows)
        return np.arange(given.keys.rows) % 2 == 0

    by_row = GateRule(name="every-other", decide=every_other, needs=())
    found = gate_table(str(tmp_path / "in.parquet"), quasi=["age"], rule=by_row).decision
    assert (seen, found.mask.tolist()) == ([200], [True, False] * 100)

    def position(columns: pl.DataFrame) -> pl.Series:
        seen.append(columns.height)
        return pl.Series(np.arange(columns.height) // 50)

    found = gate_table(str(tmp_path / "in.parquet"), quasi=["age"], rule="k-anonymity", k=51, key=position).decision
    assert (seen[1:], found.shared) == ([200], 0)


def test_columns_that_are_not_there_are_named(tmp_path) -> None:
    make_table(20).write_parquet(tmp_path / "in.parquet")
    for more in (
        {"quasi": ["agee"]},
        {"quasi": ["age"], "sensitive": "agee"},
        {"quasi": ["age"], "identifier": "agee"},
    ):
        with pytest.raises(DataError, match="no column 'agee'"):
            gate_table(str(tmp_path / "in.parquet"), rule="k-anonymity", k=1, **more)


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".arrow"])
def test_where_one_part_cannot_be_written_neither_is(tmp_path: Path, ending: str) -> None:
    source = tmp_path / "in.csv"
    pl.DataFrame({"age": [1, 1, 1, 2], "ill": ["yes", "no", "no", "yes"]}).write_csv(source)
    blocked = tmp_path / "no folder"
    blocked.write_text("")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        gate_table(
            str(source),
            quasi=["age"],
            rule="k-anonymity",
            k=2,
            out_shared=out / f"a{ending}",
            out_kept=blocked / "b.csv",
        )
    assert list(out.iterdir()) == []
