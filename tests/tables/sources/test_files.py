"""Tables from SQLite and DuckDB files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

import duckdb
import polars as pl
import pytest
from tests.conftest import small_table

from kohort.errors import ConfigError, DataError
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.sources import sql
from kohort.tables.sources.sql import read_database


def sqlite_file(path: Path, *statements: str) -> str:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return f"sqlite:///{path}"


def visits(path: Path, rows: pl.DataFrame) -> str:
    address = sqlite_file(path, "CREATE TABLE visits (age int, dose real, ward text, outcome text)")
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows.rows())
    connection.close()
    return address


def test_the_only_table_needs_no_name_and_comes_in_a_fixed_order(tmp_path: Path) -> None:
    rows = small_table(40)
    first = read_database(visits(tmp_path / "a b#c.db".replace("#", ""), rows))
    second = read_database(visits(tmp_path / "other.db", rows.reverse()))
    assert first.equals(second)
    assert first.equals(rows.sort(rows.columns))


def test_declared_types_are_kept(tmp_path: Path) -> None:
    address = sqlite_file(
        tmp_path / "x.db",
        "CREATE TABLE t (id integer primary key, ok boolean, day date, at datetime, odd date, big text)",
        "INSERT INTO t VALUES (2, 0, '2020-02-29', '2020-02-29 10:30:00', 'soon', 'b'), (1, 1, NULL, NULL, NULL, 7)",
    )
    found = read_database(address)
    assert found.rows() == [
        (1, True, None, None, None, "7"),
        (2, False, date(2020, 2, 29), datetime(2020, 2, 29, 10, 30), "soon", "b"),
    ]


def test_mixed_columns_become_text_over_all_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "BATCH", 2)
    address = sqlite_file(
        tmp_path / "x.db",
        "CREATE TABLE t (id integer primary key, v, n, e)",
        "INSERT INTO t (id, v, n) VALUES (1, 1, 1), (2, 2, 2), (3, 'x', 2.5), (4, NULL, NULL)",
        "INSERT INTO t (id, v, n) VALUES (5, 9223372036854775807, 1)",
    )
    found = read_database(address)
    assert found["v"].to_list() == ["1", "2", "x", None, "9223372036854775807"]
    assert found["n"].to_list() == [1.0, 2.0, 2.5, None, 1.0]
    assert found.schema["e"] == pl.String


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for scheme in ("sqlite", "duckdb"):
        with pytest.raises(DataError, match="no file"):
            read_database(f"{scheme}:///{tmp_path}/x.db#t")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_database_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"canary-4711" * 200)
    for scheme in ("sqlite", "duckdb"):
        with pytest.raises(DataError, match="cannot read") as refused:
            read_database(f"{scheme}:///{tmp_path}/x.db#t")
        assert "canary" not in str(refused.value)


def test_files_cannot_be_changed(tmp_path: Path) -> None:
    address = sqlite_file(tmp_path / "x.db", "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")
    before = (tmp_path / "x.db").read_bytes()
    with pytest.raises(DataError):
        read_database(address, query="DELETE FROM t RETURNING a")
    with pytest.raises(DataError):
        read_database(address, query="CREATE TABLE u (b)")
    assert (tmp_path / "x.db").read_bytes() == before


def test_a_blob_is_named_by_its_column(tmp_path: Path) -> None:
    address = sqlite_file(tmp_path / "x.db", "CREATE TABLE t (scan blob)", "INSERT INTO t VALUES (x'00ff')")
    with pytest.raises(DataError, match="'scan' has the unsupported type bytes"):
        read_database(address)


def test_infinite_numbers_are_refused_and_nan_is_missing(tmp_path: Path) -> None:
    address = sqlite_file(tmp_path / "x.db", "CREATE TABLE t (a real)", "INSERT INTO t VALUES (9e999), (1.0)")
    with pytest.raises(DataError, match=r"infinite numbers in: a \(1\)"):
        read_database(address)


def test_a_table_and_a_query_contradict_each_other(tmp_path: Path) -> None:
    address = sqlite_file(tmp_path / "x.db", "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")
    with pytest.raises(ConfigError, match="there is a query too"):
        read_database(f"{address}#t", query="SELECT 1")


def test_a_query_needs_a_database() -> None:
    with pytest.raises(ConfigError, match="needs the address of a database"):
        open_table("adult", query="SELECT 1")


def test_an_unknown_dialect_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match="no driver for oracle"):
        read_database("oracle://ann@host/x#t")


def test_a_duckdb_file_is_read_like_any_other(tmp_path: Path) -> None:
    rows = small_table(30)
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        connection.execute("CREATE SCHEMA cdm")
        connection.execute('CREATE TABLE cdm."Odd name" (day date, codes text[], n decimal(6,2), age int)')
        connection.execute("INSERT INTO cdm.\"Odd name\" VALUES ('2020-02-29', ['a', 'b'], 1.25, 3)")
        connection.execute("CREATE TABLE visits (age int, dose double, ward text, outcome text)")
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows.rows())
    address = f"duckdb:///{tmp_path}/x.duckdb"
    assert open_table(f"{address}#visits").frame.equals(rows.sort(rows.columns))
    assert read_database(f"{address}#cdm.Odd name").rows() == [(date(2020, 2, 29), ["a", "b"], 1.25, 3)]
    counted = read_database(address, query="SELECT ward, count(*) AS n FROM visits GROUP BY ward ORDER BY ward")
    assert counted["n"].sum() == 30
    with pytest.raises(DataError, match="Did you mean 'visits'"):
        read_database(f"{address}#visit")
    with pytest.raises(DataError, match="failed"):
        read_database(address, query="DELETE FROM visits RETURNING age")
    assert read_database(f"{address}#visits").height == 30


def test_a_run_over_three_databases_with_one_query(
    tmp_path: Path, kohort_here: Callable[..., tuple[int, str, str]]
) -> None:
    places = [visits(tmp_path / f"{name}.db", small_table(60, seed=seed)) for seed, name in enumerate(("a", "b", "c"))]
    plan = tmp_path / "plan.toml"
    query = 'query = "SELECT * FROM visits WHERE dose > 0"\n'
    plan.write_text(
        f"[data]\ntable = {json.dumps(places)}\n{query}"
        'target = "outcome"\nfeatures = "rest"\n[sites]\nsplit = "files"\n[train]\nrounds = 1\n[policy]\nmin_rows = 1\n'
    )
    code, out, said = kohort_here("run", plan, "--out", tmp_path / "out", "--json")
    assert code == 0, said
    assert 0 < json.loads(out)["metrics"]["accuracy"] <= 1
