"""Tables from databases: SQLite, PostgreSQL and what else SQLAlchemy has a driver for, and DuckDB files.

Nothing is written: SQLite and DuckDB files are opened read-only, PostgreSQL in a read-only transaction, and what any
other database did is rolled back. A table is read in the order of its primary key. Without one, and for a query without
ORDER BY, rows are sorted by all columns, so that the same table and seed give the same run.

Guarantee: errors name the address without its password, tables and columns, and never hold what a driver says, which
may quote cells and passwords.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import UUID

import polars as pl

from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.frames import check_finite
from kohort.tables.sources.addresses import Address

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

__all__ = ["read_database"]

BATCH = 50_000
"""Rows that are held as Python objects at a time."""
DRIVERS: Final = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
"""Dialects without a driver's name, and the driver that the extra `sql` installs."""
_INSTALL = "pip install 'kohort[sql]'"
_ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)
_WIDEST = 2**63

Rows = tuple[list[str], Iterator[Sequence[Any]]]


def read_database(text: str, *, query: str | None = None, folder: Path | None = None) -> pl.DataFrame:
    """Read one table of a database, or the result of a query.

    Args:
        text: The address, as in `sqlite:///clinic.db#visits`. The table may be left out if there is only one.
        query: A SELECT statement instead of a table.
        folder: Where relative paths of files start, if not at the current folder.

    Returns:
        The table.

    Raises:
        ConfigError: The address cannot be read, names no table, or needs a driver that is not installed.
        DataError: The database cannot be reached, the query fails, or the table has no rows or unusable columns.
    """
    address = Address.parse(text)
    if folder is not None:
        address = address.below(folder)
    if query is not None and address.table is not None:
        hint = "Drop the #table of the address, or the query"
        raise ConfigError(f"{address.shown()} names a table, and there is a query too", hint=hint)
    if address.is_file and not Path(address.expanded().database).is_file():
        raise DataError(f"no file {address.database!r}", hint="Check the path")
    read = _read_duckdb if address.scheme == "duckdb" else _read_sqlalchemy
    frame, is_ordered = read(address, query)
    if frame.height == 0:
        raise DataError(f"{address.shown()} gives no rows", hint="Check the table or the query")
    frame = check_finite(frame, address.shown())
    sortable = [name for name, dtype in frame.schema.items() if not dtype.is_nested()]
    return frame if is_ordered or not sortable else frame.sort(sortable, maintain_order=True)


def _engine(address: Address) -> Engine:
    try:
        import sqlalchemy
    except ModuleNotFoundError:
        raise ConfigError("reading from a database needs SQLAlchemy", hint=_INSTALL) from None
    try:
        return sqlalchemy.create_engine(_url(address.expanded()), poolclass=sqlalchemy.NullPool)
    except (sqlalchemy.exc.NoSuchModuleError, ModuleNotFoundError):
        hint = f"{_INSTALL}, or install that driver"
        raise ConfigError(f"there is no driver for {address.scheme}", hint=hint) from None
    except (sqlalchemy.exc.SQLAlchemyError, TypeError, ValueError):
        raise ConfigError(f"{address.shown()} cannot be opened", hint="Check the options of the address") from None


def _read_sqlalchemy(address: Address, query: str | None) -> tuple[pl.DataFrame, bool]:
    engine = _engine(address)
    import sqlalchemy

    options = {"no_parameters": True}
    if engine.dialect.name == "postgresql":
        options["postgresql_readonly"] = True
    with _database_errors(address, sqlalchemy.exc.SQLAlchemyError), engine.connect() as plain:
        connection = plain.execution_options(**options)
        if query is None:
            address, statement, is_ordered = _select(connection, address)
        else:
            statement, is_ordered = query, bool(_ORDERED.search(query))
        with _query_errors(address, sqlalchemy.exc.SQLAlchemyError):
            result = connection.exec_driver_sql(statement)
            if not result.returns_rows:
                raise DataError("the query returns no rows", hint="Give a SELECT statement")
            rows = (list(result.keys()), iter(lambda: result.fetchmany(BATCH), []))
            frame = _frame(rows, address)
        if query is None and engine.dialect.name == "sqlite":
            frame = _as_declared(frame, connection, str(address.table))
        return frame, is_ordered


def _url(address: Address) -> Any:
    """What SQLAlchemy connects to."""
    from sqlalchemy.engine import URL

    if address.scheme.partition("+")[0] == "sqlite":
        options = {**address.options, "mode": "ro", "uri": "true"}
        path = quote(str(Path(address.database).absolute()))
        return URL.create("sqlite", database=f"file:{path}", query=options)
    driver = DRIVERS.get(address.scheme, address.scheme)
    # A database without an encoding of its own would give bytes.
    encoding = {"client_encoding": "utf8"} if driver == "postgresql+psycopg" else {}
    return URL.create(
        driver,
        username=address.username,
        password=address.password,
        host=address.host,
        port=address.port,
        database=address.database or None,
        query={**encoding, **address.options},
    )


def _select(connection: Connection, address: Address) -> tuple[Address, str, bool]:
    """The address with its table, the statement that reads it, and whether it has a primary key to order rows by."""
    import sqlalchemy

    inspector = sqlalchemy.inspect(connection)
    schema, table = _table_name(address, lambda schema: _tables_of(inspector, schema))
    keys = inspector.get_pk_constraint(table, schema=schema)["constrained_columns"]
    chosen = sqlalchemy.select(sqlalchemy.text("*")).select_from(sqlalchemy.table(table, schema=schema))
    ordered = chosen.order_by(*(sqlalchemy.column(key) for key in keys))
    named = replace(address, table=f"{schema}.{table}" if schema else table)
    return named, str(ordered.compile(dialect=connection.dialect)), bool(keys)


def _as_declared(frame: pl.DataFrame, connection: Connection, table: str) -> pl.DataFrame:
    """Dates, times and booleans, which SQLite stores as text and 0/1, by the types its columns are declared with."""
    import sqlalchemy

    changed = []
    for column in sqlalchemy.inspect(connection).get_columns(table):
        kind, values = column["type"], frame[column["name"]]
        read = values
        if isinstance(kind, sqlalchemy.Boolean) and values.dtype.is_integer() and values.is_in([0, 1]).all():
            read = values.cast(pl.Boolean)
        elif isinstance(kind, sqlalchemy.DateTime) and values.dtype == pl.String:
            read = values.str.to_datetime(time_unit="us", strict=False)
        elif isinstance(kind, sqlalchemy.Date) and values.dtype == pl.String:
            read = values.str.to_date("%Y-%m-%d", strict=False)
        if read.null_count() == values.null_count():
            changed.append(read)
    return frame.with_columns(changed)


def _tables_of(inspector: Any, schema: str | None) -> list[str]:
    return [*inspector.get_table_names(schema=schema), *inspector.get_view_names(schema=schema)]


def _table_name(address: Address, tables: Callable[[str | None], Iterable[str]]) -> tuple[str | None, str]:
    """Schema and name of the table to read: the one that is named, else the only one."""
    schema, _, name = (address.table or "").rpartition(".")
    known = sorted(tables(schema or None))
    if not known:
        raise DataError(f"{address.shown()} has no table", hint="Check the database, the schema and your rights")
    if name in known:
        return schema or None, name
    if name:
        raise DataError(f"{address.shown()} has no table {name!r}", hint=nearest(name, known))
    if len(known) > 1:
        raise ConfigError(f"{address.shown()} has several tables", hint=f"Add # and one of: {', '.join(known)}")
    return schema or None, known[0]


def _read_duckdb(address: Address, query: str | None) -> tuple[pl.DataFrame, bool]:
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ConfigError("reading a DuckDB file needs duckdb", hint=_INSTALL) from None
    with (
        _database_errors(address, duckdb.Error),
        duckdb.connect(address.expanded().database, read_only=True) as connection,
    ):
        statement, is_ordered = query or "", bool(query and _ORDERED.search(query))
        if not query:
            schema, table = _table_name(address, lambda schema: _duckdb_tables(connection, schema))
            quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table) if part)
            statement = f"SELECT * FROM {quoted}"  # noqa: S608 - the name was found in the database, and is quoted
        with _query_errors(address, duckdb.Error):
            result = connection.execute(statement)
            names = [column[0] for column in result.description or ()]
            return _frame((names, iter(lambda: result.fetchmany(BATCH), [])), address), is_ordered


def _duckdb_tables(connection: Any, schema: str | None) -> list[str]:
    found = connection.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = ?", [schema or "main"]
    )
    return [name for (name,) in found.fetchall()]


@contextmanager
def _database_errors(address: Address, kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as problem:
        hint = "Check host, database, user and password, and that it may be read"
        raise DataError(f"cannot read {address.shown()} ({type(problem).__name__})", hint=hint) from None


@contextmanager
def _query_errors(address: Address, kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as problem:
        hint = "Try the statement in the database's own client"
        raise DataError(f"the query of {address.shown()} failed ({type(problem).__name__})", hint=hint) from None


def _frame(rows: Rows, address: Address) -> pl.DataFrame:
    names, batches = rows
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not all(names):
        what = f"a column twice: {', '.join(repeated)}" if repeated else "a column without a name"
        raise DataError(f"{address.shown()} gives {what}", hint="Name every column of the query once, with AS")
    parts = [
        pl.DataFrame([_series(*pair) for pair in zip(names, zip(*batch, strict=True), strict=True)])
        for batch in batches
    ]
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
    whole = pl.concat([_text_where_mixed(part, parts) for part in parts], how="vertical_relaxed", rechunk=True)
    return whole.with_columns(pl.col(name).cast(pl.String) for name, dtype in whole.schema.items() if dtype == pl.Null)


def _text_where_mixed(part: pl.DataFrame, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Text where another batch of the column has text: SQLite stores any type in any column."""
    textual = {name for other in parts for name, dtype in other.schema.items() if dtype == pl.String}
    changed = [name for name in textual if part.schema[name] not in (pl.String, pl.Null)]
    return part.with_columns(pl.col(name).cast(pl.String) for name in changed)


def _in_utc(value: datetime) -> datetime:
    return value.replace(tzinfo=None) - (value.utcoffset() or timedelta())


def _texts(value: Iterable[Any]) -> list[str | None]:
    return [None if item is None else str(item) for item in value]


_KINDS: tuple[tuple[frozenset[type], Any, Callable[[Any], Any] | None], ...] = (
    (frozenset({bool}), pl.Boolean, None),
    (frozenset({int, bool}), pl.Int64, int),
    (frozenset({int, bool, float, Decimal}), pl.Float64, float),
    (frozenset({str}), pl.String, None),
    (frozenset({date}), pl.Date, None),
    (frozenset({datetime}), pl.Datetime("us"), _in_utc),
    (frozenset({time}), pl.Time, None),
    (frozenset({timedelta}), pl.Duration("us"), None),
    (frozenset({list, tuple}), pl.List(pl.String), _texts),
)  # fmt: skip
"""Python types that a column may consist of, in the order they are tried: the column's type, and the conversion."""


def _series(name: str, values: Sequence[Any]) -> pl.Series:
    """A column of what a driver gave. Times with a zone become UTC; mixed types become text."""
    found = {type(value) for value in values if value is not None}
    if not found:
        return pl.Series(name, values, dtype=pl.Null)
    kind = next(((dtype, convert) for types, dtype, convert in _KINDS if found <= types), None)
    too_wide = int in found and any(isinstance(value, int) and not -_WIDEST <= value < _WIDEST for value in values)
    if kind is not None and not (too_wide and kind[0] == pl.Int64):
        dtype, convert = kind
        converted = values if convert is None else [None if value is None else convert(value) for value in values]
        return pl.Series(name, converted, dtype=dtype)
    unusable = sorted(
        one.__name__ for one in found if not issubclass(one, str | int | float | Decimal | UUID | date | time)
    )
    if unusable:
        hint = "Leave it out, or select numbers, text or dates from it in data.query"
        raise DataError(f"column {name!r} has the unsupported type {', '.join(unusable)}", hint=hint)
    return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
