"""Addresses of databases: what they name, and that no password is ever shown or stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from kohort.errors import ConfigError
from kohort.runs.config import load_plan
from kohort.tables.sources.addresses import Address, is_address, refuse_password, shown
from kohort.tables.sources.opening import absolute, is_source, source_names


def test_an_address_names_every_part() -> None:
    found = Address.parse("postgresql+psycopg://ann%40x:p%23w@db.example:5433/clinic?sslmode=require#cdm.person")
    assert found == Address(
        scheme="postgresql+psycopg",
        username="ann@x",
        password="p#w",
        host="db.example",
        port=5433,
        database="clinic",
        options={"sslmode": "require"},
        table="cdm.person",
    )


@pytest.mark.parametrize("password", ["plain", "a@b", "a#b", "a/b", "a:b?c=d", "#x@y#z", "%zz", "${x", "$PASSWORD"])
def test_no_password_is_shown_however_it_is_written(password: str) -> None:
    text = f"postgresql://ann:{password}@host/clinic#visits"
    assert shown(text) == "postgresql://ann:***@host/clinic#visits"
    assert repr(Address.parse(text)).count("password") == 0
    with pytest.raises(ConfigError, match="holds a password") as refused:
        refuse_password(text, "data.table")
    assert password not in str(refused.value)


def test_a_password_among_the_options_is_one_too() -> None:
    text = "postgresql://host/clinic?password=hush&sslmode=require#visits"
    assert shown(text) == "postgresql://host/clinic?password=***&sslmode=require#visits"
    with pytest.raises(ConfigError, match="holds a password"):
        refuse_password(text, "data.table")


@pytest.mark.parametrize(
    "text",
    ["postgresql://ann:hush@host:port/x#t", "postgresql://ann:hush@host/x#a'; drop", "sqlite://x.db", "sqlite:///"],
)
def test_an_address_that_cannot_be_read_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Address.parse(text)
    assert "hush" not in str(refused.value)
    assert "drop" not in str(refused.value)


def test_variables_of_the_environment_stand_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "postgresql://${DB_USER}:${DB_PASSWORD}@host/clinic#visits"
    refuse_password(text, "data.table")
    monkeypatch.setenv("DB_USER", "ann")
    with pytest.raises(ConfigError, match="DB_PASSWORD is not set"):
        Address.parse(text).expanded()
    monkeypatch.setenv("DB_PASSWORD", "p@s#s/w%41")
    assert Address.parse(text).expanded().password == "p@s#s/w%41"


@pytest.mark.parametrize("key", ["table", "test"])
def test_no_plan_holds_a_password(key: str) -> None:
    data = {"table": "adult", "target": "income", key: "postgresql://ann:hush@host/clinic#visits"}
    with pytest.raises(ConfigError, match=f"data.{key} holds a password") as refused:
        load_plan({"data": data})
    assert "hush" not in str(refused.value)


def test_a_plan_among_several_addresses_holds_no_password() -> None:
    tables = ["sqlite:///a.db", "mysql://ann:hush@host/clinic"]
    with pytest.raises(ConfigError, match="holds a password"):
        load_plan({"data": {"table": tables, "target": "y"}, "sites": {"split": "files"}})


def test_relative_files_start_at_the_site_folder() -> None:
    assert Address.parse("sqlite:///x.db#t").below(Path("/site")).database == "/site/x.db"
    assert Address.parse("sqlite:////data/x.db").below(Path("/site")).database == "/data/x.db"
    assert Address.parse("postgresql://host/clinic").below(Path("/site")).database == "clinic"


def test_addresses_for_a_site_folder_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("sqlite:///x.db#t") == f"sqlite:///{tmp_path}/x.db#t"
    assert Address.parse(absolute("duckdb:///a/b.db#t")).database == f"{tmp_path}/a/b.db"
    assert absolute("omop:cdm?reference=2020-01-01") == f"omop:{tmp_path}/cdm?reference=2020-01-01"
    assert absolute("postgresql://ann:${PW}@host/clinic#t") == "postgresql://ann:${PW}@host/clinic#t"


def test_sites_are_called_after_their_tables_or_databases() -> None:
    assert source_names(["sqlite:///x.db#north", "sqlite:///x.db#south"]) == ["north", "south"]
    assert source_names(["sqlite:///a/north.db#visits", "postgresql://h/south#visits"]) == ["north", "south"]
    assert source_names(["omop:data/north?reference=2020-01-01", "data/south.csv"]) == ["north", "south"]


@pytest.mark.parametrize("text", ["adult:train", "data/table.csv", "-", "C:/x.csv", "/abs/x.parquet"])
def test_names_and_paths_are_no_addresses(text: str) -> None:
    assert not is_address(text)
    assert not is_source(text)
