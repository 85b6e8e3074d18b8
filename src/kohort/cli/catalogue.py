"""`kohort methods`, `kohort data`, `kohort schema`: registered methods, named datasets, the schema of a plan."""

from __future__ import annotations

import json as json_module
import sys

import typer

from kohort.cli.common import JsonOption, emit, stdout

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command("methods")(methods)
    app.command("data")(data)
    app.command("schema")(schema)


def methods(json: JsonOption = False) -> None:
    """List the registered methods.

    Example: kohort methods
    """
    from kohort.methods.registry import methods as registered

    found = registered().values()
    if json:
        emit({"methods": [{"name": item.name, "summary": item.summary, "cites": item.cites} for item in found]})
        return
    from rich.table import Table

    table = Table("method", "what it does", "source")
    for item in found:
        table.add_row(item.name, item.summary, item.cites)
    stdout().print(table)


def data(json: JsonOption = False) -> None:
    """List the named datasets, and where each would be read from.

    Example: kohort data
    """
    from kohort.tables.datasets.catalogue import list_datasets

    found = list_datasets()
    if json:
        emit({"datasets": [dict(vars(item)) for item in found]})
        return
    from rich.table import Table

    table = Table("name", "rows", "found", "target", "variants", "licence")
    for item in found:
        rows = "" if item.rows is None else f"{item.rows:,}"
        table.add_row(item.name, rows, item.found, item.target or "", ", ".join(item.variants), item.licence)
    stdout().print(table)


def schema() -> None:
    """Print the JSON Schema of a plan, for editors and validators.

    Example: kohort schema > plan.schema.json
    """
    from kohort.runs.config import json_schema

    sys.stdout.write(json_module.dumps(json_schema(), indent=1) + "\n")
