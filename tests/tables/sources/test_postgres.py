"""Tables from a real PostgreSQL, as a user reads them: by address, by query, into a run. No password is ever shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.conftest import small_table
from tests.support.postgres import PASSWORD, Postgres, running_postgres

from kohort.errors import ConfigError, DataError
from kohort.tables.sources.sql import read_database

Here = Callable[..., tuple[int, str, str]]

PLAN = """
[data]
table = {table}
{query}
target = "outcome"
features = ["age", "dose", "ward"]
[sites]
{sites}
[model]
kind = "logistic"
[train]
rounds = 2
lr = 0.05
[policy]
min_rows = 1
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as started:
        rows = small_table(90)
        values = ",".join(f"({i},{a},{d},'{w}','{o}')" for i, (a, d, w, o) in enumerate(rows.iter_rows()))
        started.execute(
            "CREATE TABLE visits (id int primary key, age int, dose double precision, ward text, outcome text)",
            f"INSERT INTO visits VALUES {values}",  # noqa: S608 - made here
            "CREATE SCHEMA cdm",
            """CREATE TABLE cdm."Odd Types"
            (n numeric, flag boolean, day date, at timestamptz, codes text[], gap text)""",
            """INSERT INTO cdm."Odd Types" VALUES
            (1.50, true, '2020-02-29', '2020-01-01 12:00+02', '{a,b}', NULL), (NULL, NULL, NULL, NULL, '{}', NULL)""",
            "CREATE TABLE documents (body jsonb)",
            'INSERT INTO documents VALUES (\'{"name": "canary-4711"}\')',
        )
        yield started


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOHORT_TEST_PASSWORD", PASSWORD)


def test_a_table_comes_in_the_order_of_its_key(server: Postgres) -> None:
    server.execute("UPDATE visits SET age = age WHERE id < 40")  # moves these rows to the end of the table's file
    found = read_database(server.address("visits"))
    assert found["id"].to_list() == list(range(90))
    assert found.drop("id").equals(small_table(90))


def test_types_are_read_as_they_are_meant(server: Postgres) -> None:
    found = read_database(server.address("cdm.Odd Types")).sort("n", nulls_last=True)
    assert found.row(0) == (1.5, True, date(2020, 2, 29), datetime(2020, 1, 1, 10), ["a", "b"], None)
    assert found.row(1) == (None, None, None, None, [], None)
    assert found.schema["gap"] == pl.String


def test_a_query_may_hold_signs_that_drivers_use_for_parameters(server: Postgres) -> None:
    query = (
        "SELECT id % 3 AS part, ' :x' AS text, count(*)::int AS n FROM visits WHERE ward LIKE '%' GROUP BY 1 ORDER BY 1"
    )
    assert read_database(server.address(), query=query).rows() == [(0, " :x", 30), (1, " :x", 30), (2, " :x", 30)]


def test_nothing_can_be_written(server: Postgres) -> None:
    with pytest.raises(DataError, match="failed"):
        read_database(server.address(), query="UPDATE visits SET age = 0 RETURNING age")
    with pytest.raises(DataError, match="failed"):
        read_database(server.address(), query="WITH x AS (DELETE FROM visits RETURNING 1) SELECT * FROM x")
    assert read_database(server.address("visits"))["age"].max() > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("table", "query", "part"),
    [
        ("visit", None, "Did you mean 'visits'"),
        ("", None, "documents, visits"),
        ("documents", None, "'body' has the unsupported type dict"),
        ("", "SELECT nothing FROM visits", "failed"),
        ("", "SELECT ward::int FROM visits", "failed"),
        ("", "SELECT age, age FROM visits", "a column twice: age"),
        ("", "SELECT age FROM visits WHERE age < 0", "no rows"),
    ],
)
def test_errors_say_what_to_do_and_show_no_cell(server: Postgres, table: str, query: str | None, part: str) -> None:
    with pytest.raises((DataError, ConfigError)) as raised:
        read_database(server.address(table), query=query)
    said = str(raised.value)
    assert part in said
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    for secret in (PASSWORD, "canary-4711", "north", "south", "west"):
        assert secret not in said


def test_a_wrong_password_is_not_shown(server: Postgres, kohort_here: Here) -> None:
    code, out, said = kohort_here("check", server.address("visits", password="hunter2/#@:x"), "--quasi", "age")
    assert code == 3
    assert "reader:***@" in said
    assert "hunter2" not in said + out
    assert "authentication" not in said  # what a driver says is never repeated


def test_a_plan_with_a_password_is_refused_without_showing_it(
    server: Postgres, tmp_path: Path, kohort_here: Here
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        PLAN.format(table=json.dumps(server.address("visits", password=PASSWORD)), query="", sites="count = 3")
    )
    code, out, said = kohort_here("run", plan, "--out", tmp_path / "out")
    assert code == 2
    assert "${DB_PASSWORD}" in said
    assert PASSWORD not in said + out


def test_a_run_from_postgresql_equals_the_run_from_a_file(server: Postgres, tmp_path: Path, kohort_here: Here) -> None:
    file = tmp_path / "table.parquet"
    small_table(90).write_parquet(file)
    tables = {
        "file": (str(file), ""),
        "database": (server.address(), 'query = "SELECT age, dose, ward, outcome FROM visits ORDER BY id"'),
    }
    results: dict[str, Any] = {}
    for name, (table, query) in tables.items():
        plan, out = tmp_path / f"{name}.toml", tmp_path / name
        plan.write_text(PLAN.format(table=json.dumps(table), query=query, sites="count = 3"))
        code, shown, said = kohort_here("run", plan, "--out", out, "--json")
        assert code == 0, said
        results[name] = json.loads(shown)["metrics"]
        for path in out.rglob("*"):
            assert not path.is_file() or PASSWORD.encode() not in path.read_bytes()
    assert results["file"] == results["database"]
    assert (tmp_path / "file" / "model" / "model.safetensors").read_bytes() == (
        tmp_path / "database" / "model" / "model.safetensors"
    ).read_bytes()


def test_every_site_may_have_a_table_of_its_own_in_one_database(
    server: Postgres, tmp_path: Path, kohort_here: Here
) -> None:
    for name, ward in (("a", "north"), ("b", "south"), ("c", "west")):
        server.execute(f"CREATE TABLE site_{name} AS SELECT * FROM visits WHERE ward <> '{ward}'")  # noqa: S608 - made here
    tables = json.dumps([server.address(f"site_{name}") for name in "abc"])
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(table=tables, query='drop = ["id"]', sites='split = "files"'))
    code, out, said = kohort_here("run", plan, "--out", tmp_path / "out", "--json")
    assert code == 0, said
    assert json.loads(out)["sites"] in (3, ["site_a", "site_b", "site_c"])
