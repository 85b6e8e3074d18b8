"""What commands share: options and output. Messages go to stderr; only results go to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kohort.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from kohort.models.base import Model

__all__ = [
    "ForceOption",
    "JsonOption",
    "MissingOption",
    "QuasiOption",
    "TableArgument",
    "checked_model",
    "emit",
    "names",
    "quasi_names",
    "say",
    "stderr",
    "stdout",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing output.")]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="A named dataset, a path, or - for CSV on stdin.")]
QuasiOption = Annotated[str, typer.Option("--quasi", metavar="a,b", help="Quasi-identifiers.")]
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


def checked_model(where: Path) -> Model:
    """A model whose run folder, if it has one, is as its ledger says; what a reader must be told goes to stderr.

    Raises:
        ConfigError: There is no model, or it cannot be read here.
        IntegrityError: A file was changed; the message names it.
    """
    from kohort.crypto.identity.user import user_pins
    from kohort.models.files import find_model, read_model, run_folder_of
    from kohort.privacy.ledger.bound import check_run_folder

    folder = find_model(where)
    run = run_folder_of(folder)
    if run is None:
        say(f"note: {folder} stands without the ledger of its run: nothing says who made this model")
    else:
        for note in check_run_folder(run, pins=user_pins()).notes:
            say(f"note: {note}")
    return read_model(folder)


def say(message: str) -> None:
    """Print one plain line on stderr."""
    typer.echo(message, err=True)


def names(text: str | None) -> tuple[str, ...]:
    """The names in a comma-separated list: `"a, b"` gives `("a", "b")`, None gives none."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def quasi_names(text: str) -> tuple[str, ...]:
    """The quasi-identifiers of `--quasi`.

    Raises:
        ConfigError: None is named.
    """
    found = names(text)
    if not found:
        raise ConfigError("no quasi-identifier is named", hint="Give --quasi a,b")
    return found
