"""What every command shares: output, errors, progress. Messages go to stderr; stdout is for results alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ForceOption", "JsonOption", "emit", "names", "say", "stderr", "stdout"]

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing output.")]


def stderr() -> Console:
    """Where messages and progress go."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def stdout() -> Console:
    """Where tables for people go."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, soft_wrap=True, width=160)  # a file or a pipe has no edge to cut words at


def emit(result: Mapping[str, Any]) -> None:
    """One JSON object on stdout. NaN is refused: readers of JSON cannot parse it."""
    sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")


def say(message: str) -> None:
    """One plain line on stderr."""
    typer.echo(message, err=True)


def names(text: str | None) -> tuple[str, ...]:
    """`a,b` as names."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
