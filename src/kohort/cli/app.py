"""The application: discovers the commands, runs one, and turns an error into one line and an exit code.

Every module of `kohort.cli` that has a `register(app)` function adds its commands. Heavy libraries are imported inside
the commands, so that `kohort --help` starts fast.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import click
import typer
import typer.core

from kohort.cli.common import say
from kohort.errors import KohortError

__all__ = ["build", "run"]

INTERRUPTED, OUT_OF_RESOURCES, USAGE, BUG = 130, 7, 2, 1
_COMPLETES = "_KOHORT_COMPLETE"  # a shell sets it to ask for what a line may go on with


def build(words: Collection[str] | None = None) -> typer.Typer:
    """Build the application with every command that the modules of `kohort.cli` register.

    Args:
        words: The words of the command line: commands that none of them names get no options, which takes longer for
            all of them than many a command runs. All commands get theirs when None.

    Returns:
        The application.
    """
    typer.core.HAS_RICH = False  # or help pages show "\\[required]": the mark is escaped for pages of colours
    made = typer.Typer(
        name="kohort",
        help="Train one model over tables that must not be pooled, and record what every site disclosed.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_global_options)
    package = importlib.import_module("kohort.cli")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
        if module.name in {"app", "common", "main"}:
            continue
        register = getattr(importlib.import_module(f"kohort.cli.{module.name}"), "register", None)
        if register is not None:
            register(made)
    if words is not None:
        _bare(made, words)
    return made


def _bare(app: typer.Typer, words: Collection[str]) -> None:
    """Leave names and help alone of commands that no word names."""
    for info in app.registered_commands:
        if info.name is not None and info.name not in words and info.callback is not None:

            def bare() -> None: ...

            bare.__doc__ = info.callback.__doc__
            info.callback = bare
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _bare(group.typer_instance, words)


def _global_options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"kohort {version_of('kohort')}")
        raise typer.Exit
    context.obj = {"debug": debug}


def run(*, interrupted: Callable[[], bool] = lambda: False) -> int:
    """Run the command line.

    Exit codes: 0 ok, 1 a bug in kohort, 2 usage or configuration, 3 bad data, 4 refused by policy or the asked privacy
    cannot be met, 5 a site or the network failed, 6 integrity or authentication, 7 out of resources, 130 interrupted.
    An error is one line on stderr; its traceback is shown only with `--debug`.

    Args:
        interrupted: Whether an interrupt came: libraries turn one into errors of their own.

    Returns:
        The exit code.
    """
    debug = "--debug" in sys.argv
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    try:
        # --debug is accepted anywhere: people append it to the line that failed.
        words = [word for word in sys.argv[1:] if word != "--debug"]
        code = build(None if _COMPLETES in os.environ else words)(words, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer turns an interrupt into an exit code, and says nothing
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BaseException as error:  # native libraries have errors that are no Exception
        if isinstance(error, SystemExit):
            raise
        if debug:
            traceback.print_exception(error)
        is_known = isinstance(error, (KohortError, click.ClickException))
        message, code = _said(KeyboardInterrupt() if interrupted() and not is_known else error)
        say(f"kohort: {message}")
        return code


def _said(error: BaseException) -> tuple[str, int]:
    """What is said about an error, in one line, and the exit code."""
    match error:
        case KohortError():
            return str(error), error.exit_code
        case click.exceptions.Abort() | KeyboardInterrupt():
            return "interrupted", INTERRUPTED
        case click.exceptions.NoSuchOption():
            return _unknown_option(error), USAGE
        case click.ClickException():
            return _said_once(error.format_message()), USAGE
        case MemoryError():
            return "out of memory. Use fewer rows or sites", OUT_OF_RESOURCES
        case ImportError() if _no_room(error):
            return "too little memory to load a library. Free some memory, or raise ulimit -v", OUT_OF_RESOURCES
        case _:
            return f"a bug in kohort ({type(error).__name__}). Run again with --debug and report it", BUG


def _no_room(error: ImportError) -> bool:
    """Whether a native library did not fit into memory, in the words of the loaders of Linux and macOS."""
    return any(words in str(error).lower() for words in ("allocate memory", "failed to map segment", "out of memory"))


def _said_once(message: str) -> str:
    """A message without a sentence that two libraries added."""
    return " ".join(dict.fromkeys(re.split(r"(?<=[.?]) ", message)))


def _unknown_option(error: click.exceptions.NoSuchOption) -> str:
    """What to write instead of an option that does not exist: another one, or a key of the plan."""
    name = error.option_name
    key = name.lstrip("-").replace("-", "_")
    command = error.ctx.command.name if error.ctx is not None else None
    if command in {"run", "compare"}:
        from kohort.runs.plan_faults import place_of_key

        place = place_of_key(key)
        if place is not None:
            return f"{command} has no option {name}: it is a key of the plan. Write --set {place}=VALUE"
    known = [] if error.ctx is None else [opt for item in error.ctx.command.params for opt in item.opts]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    hint = f"Did you mean {close[0]}?" if close else "See --help"
    return f"there is no option {name}. {hint}"


def _show_warning(
    usual: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any, **options: Any
) -> None:
    """Say in one plain line that a plan key is deprecated; other warnings look as usual."""
    if issubclass(category, FutureWarning) and "is deprecated; write" in str(message):
        say(f"kohort: {message}")
    else:
        usual(message, category, *place, **options)
