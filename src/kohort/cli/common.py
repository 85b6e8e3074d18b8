"""What commands share: options and output. Messages go to stderr; only results go to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.cli.streams import ERRORS, silence
from kohort.errors import ConfigError

if TYPE_CHECKING:
    from polars import DataFrame
    from rich.console import Console

    from kohort.models.base import Model

__all__ = [
    "ClusterOption",
    "DropOption",
    "ForceOption",
    "IdentifiersOption",
    "ItemsOption",
    "JsonOption",
    "KeepOption",
    "MissingOption",
    "NullsOption",
    "PersonOption",
    "QuasiOption",
    "SchemaOption",
    "SensitiveOption",
    "SeparatorOption",
    "TableArgument",
    "checked_model",
    "emit",
    "names",
    "null_values",
    "require_quasi",
    "say",
    "stderr",
    "stdout",
    "today",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing output.")]
TableArgument = Annotated[
    str, typer.Argument(metavar="TABLE", help="A named dataset, a path, an address, or - (stdin).")
]
QuasiOption = Annotated[
    list[str] | None, typer.Option("--quasi", metavar="a,b", help="Quasi-identifiers; required, here or in --schema.")
]
SensitiveOption = Annotated[list[str] | None, typer.Option("--sensitive", metavar="s", help="Sensitive columns.")]
ItemsOption = Annotated[
    list[str] | None,
    typer.Option("--items", metavar="col", help="Columns that hold sets; NAME=a+b for a set over several columns."),
]
IdentifiersOption = Annotated[
    list[str] | None, typer.Option("--identifiers", metavar="a,b", help="Columns that are never released or learned.")
]
PersonOption = Annotated[
    str | None, typer.Option("--person", metavar="id", help="The identifier that names a person: persons are counted.")
]
DropOption = Annotated[
    list[str] | None, typer.Option("--drop", metavar="a,b", help="Columns to leave out; rest: all without a role.")
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="a,b", help="Columns without a role to use as they are."),
]
SeparatorOption = Annotated[
    str | None, typer.Option("--separator", metavar=",", help="What stands between items of a set (;).")
]
NullsOption = Annotated[
    list[str] | None,
    typer.Option("--null-values", metavar="-999", help="Values that mean a missing one; COLUMN=VALUE for one column."),
]
SchemaOption = Annotated[
    Path | None, typer.Option("--schema", metavar="FILE", help="Roles of columns and [reading], as TOML.")
]
MissingOption = Annotated[str, typer.Option(help="category: null is a value. drop: only complete rows.")]


def stderr() -> Console:
    """The console for messages and progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def stdout() -> Console:
    """The console for tables; 160 columns wide when stdout is a file or a pipe."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, soft_wrap=True, width=160)


def emit(result: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout.

    Raises:
        ValueError: A number is NaN or infinite, which JSON cannot express.
    """
    sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")


SiteOption = Annotated[
    str | None,
    typer.Option("--site", metavar="NAME", help="The site whose table it is, or whose model has the classes."),
]


ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Use the model of this cluster of peers."),
]


def as_agreed(frame: DataFrame, model: Path, site: str | None) -> DataFrame:
    """A table as the mapping of the model's plan makes it; what could not be read goes to stderr.

    Args:
        frame: The table.
        model: Where the model is.
        site: Whose table it is.
    """
    from kohort.models.files import about_model, find_model
    from kohort.runs.plan.mapping import agreed_table
    from kohort.tables.harmonise.mapping import TableMapping

    mapping = TableMapping.from_plain(about_model(find_model(model)).get("mapping") or {})
    if not mapping.is_empty and site is None and mapping.sites:
        names = ", ".join(mapping.sites)
        say(f"note: sites write some columns in their own way: add --site NAME for a table of {names}")
    elif site is not None and site not in mapping.sites:
        say(f"note: the plan's mapping has no rules for site {site!r} alone")
    made: DataFrame = agreed_table(mapping, frame, site)
    return made


def checked_model(where: Path, cluster: str | None = None, site: str | None = None) -> Model:
    """A model whose run folder, if it has one, is as its ledger says; what a reader must be told goes to stderr.

    Args:
        where: A run folder, or the folder of model.json.
        cluster: The cluster of a run folder whose model it is; None for the common model.
        site: The site whose model it is, where sites have classes that the hub has not.

    Raises:
        ConfigError: There is no model or no such cluster, or it cannot be read here.
        IntegrityError: A file was changed; the message names it.
    """
    from kohort.crypto.identity.user import user_pins
    from kohort.models.cluster_names import NoCommonModel
    from kohort.models.files import find_model, read_model, run_folder_of, site_models_at
    from kohort.privacy.ledger.bound import check_run_folder

    folder = find_model(where, cluster=cluster, site=site)
    run = run_folder_of(folder)
    others = [place.resolve() for place in site_models_at(where).values()]
    if cluster is None and others and folder.resolve() not in others:
        say("note: the hub's model reads rows as they are: add --site NAME to predict with the classes a site has")
    if cluster is not None:
        say(f"note: the model of cluster {cluster!r}, as {folder.parent.name} has it")
    if run is None:
        say(f"note: {folder} stands without the ledger of its run: nothing says who made this model")
    else:
        for note in check_run_folder(run, pins=user_pins()).notes:
            say(f"note: {note}")
    found = read_model(folder)
    if isinstance(found, NoCommonModel):
        found.refuse()
    return found


def say(message: str) -> None:
    """Print one plain line on stderr; where it cannot be printed, the work goes on without."""
    try:
        typer.echo(message, err=True)
    except (OSError, ValueError):  # full, or nobody reads it
        silence(ERRORS)


def names(text: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names in comma-separated lists: `"a, b"` gives `("a", "b")`, None gives none; repeated options add up."""
    texts = [text] if isinstance(text, str) else text or ()
    found = (part.strip() for one in texts for part in one.split(","))
    return tuple(dict.fromkeys(part for part in found if part))


def null_values(given: Sequence[str] | None) -> tuple[str | float, ...] | dict[str, tuple[str | float, ...]]:
    """The values of `--null-values`, for all columns or by column.

    Raises:
        ConfigError: Values for all columns and for single ones are mixed.
    """
    found = names(given)
    by_column: dict[str, tuple[str | float, ...]] = {}
    for entry in found:
        column, sign, value = entry.partition("=")
        if sign:
            by_column[column.strip()] = (*by_column.get(column.strip(), ()), value.strip())
    if by_column and any("=" not in entry for entry in found):
        raise ConfigError("--null-values mixes values for all columns and for one", hint="Write COLUMN=VALUE for all")
    return by_column or tuple(found)


def require_quasi(found: Sequence[str]) -> None:
    """Refuse a command without quasi-identifiers.

    Raises:
        ConfigError: None is named.
    """
    if not found:
        raise ConfigError("no quasi-identifier is named", hint="Give --quasi a,b, or quasi in a --schema file")


def today() -> str:
    """The date of a report, in UTC."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()
