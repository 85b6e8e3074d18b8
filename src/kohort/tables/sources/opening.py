"""What the rest of kohort asks of sources: is this one, read it, what is it called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from kohort.errors import ConfigError
from kohort.tables.schema import Schema
from kohort.tables.sources.addresses import Address, is_address, shown

__all__ = ["SourceTable", "absolute", "is_source", "read_address", "source_names"]

_OMOP = "omop:"


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """A table from a source, and what is known of it."""

    frame: pl.DataFrame
    codebook: Schema
    shown: str
    """Its name as it may be printed, without password."""
    notes: tuple[str, ...] = ()


def is_source(text: str) -> bool:
    """Whether a table is named by the address of a database or as a folder of OMOP tables.

    Args:
        text: The name of a table.

    Returns:
        True for an address of either kind; it may still be unreadable.
    """
    return text.startswith(_OMOP) or is_address(text)


def read_address(text: str, *, query: str | None = None, folder: Path | None = None) -> SourceTable:
    """Read the table that an address names.

    Args:
        text: The address of a database, or `omop:FOLDER?options`.
        query: A SELECT statement, for a database.
        folder: Where relative paths start, if not at the current folder.

    Returns:
        The table, what is known of its columns, and notes about what was left out.

    Raises:
        ConfigError: The address or its options cannot be read, or a query is given for an OMOP folder.
        DataError: The source cannot be read.
    """
    if text.startswith(_OMOP):
        if query is not None:
            raise ConfigError("an OMOP folder takes no query", hint="Drop it, and use the options after ?")
        from kohort.tables.sources.omop import omop_codebook, read_omop, split_address

        place, options = split_address(text)
        frame, notes = read_omop(place if folder is None else folder / place, options)
        return SourceTable(frame=frame, codebook=omop_codebook(frame.columns), shown=text, notes=notes)
    from kohort.tables.sources.sql import read_database

    return SourceTable(frame=read_database(text, query=query, folder=folder), codebook=Schema(), shown=shown(text))


def absolute(text: str) -> str:
    """The address with a relative file or folder taken to start at the current folder.

    Args:
        text: The address of a database, or `omop:FOLDER?options`.

    Returns:
        The address; that of a database server stays as it is.

    Raises:
        ConfigError: The text is no address.
    """
    if text.startswith(_OMOP):
        place, mark, options = text.removeprefix(_OMOP).partition("?")
        return f"{_OMOP}{Path(place).absolute()}{mark}{options}"
    address = Address.parse(text)
    return address.below(Path.cwd()).shown() if address.is_file else text


def source_names(texts: Sequence[str]) -> list[str]:
    """Name the sites that have these tables.

    Args:
        texts: The address or path of each site's table.

    Returns:
        The names of the tables if all are addresses with different tables; else of the databases, folders or files.
    """
    tables = [Address.parse(text).table if is_address(text) else None for text in texts]
    if len(texts) > 1 and all(tables) and len(set(tables)) == len(tables):
        return [str(table) for table in tables]
    return [_name(text) for text in texts]


def _name(text: str) -> str:
    if is_address(text):
        return Address.parse(text).name
    return Path(text.removeprefix(_OMOP).partition("?")[0]).stem if text.startswith(_OMOP) else Path(text).stem
