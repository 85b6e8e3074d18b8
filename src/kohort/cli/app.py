"""The application: discovers the commands, runs one, and turns an error into one line and an exit code.

Every module of `kohort.cli` that has a `register(app)` function adds its commands. Heavy libraries are imported inside
the commands, so that `kohort --help` starts fast.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import pkgutil
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import click
import typer
import typer.core

from kohort.cli.common import say
from kohort.cli.streams import OUTPUT, silence
from kohort.errors import KohortError
from kohort.files import OUT_OF_RESOURCES as USED_UP

__all__ = ["build", "run"]

INTERRUPTED, OUT_OF_RESOURCES, USAGE, BUG = 130, 7, 2, 1
NO_ROOM = ("allocate memory", "failed to map segment", "out of memory")
"""What the loaders of Linux and macOS say where a native library does not fit into memory."""
NO_HANDLES = ("too many open files",)
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
        if module.name in {"app", "common", "main", "native_aborts", "streams"}:
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
    except BaseException as error:  # native libraries have errors that are no Exception
        if _nobody_reads(error):
            silence(OUTPUT)
            return 0
        if isinstance(error, SystemExit):
            raise
        if debug:
            traceback.print_exception(error)
        is_known = isinstance(error, (KohortError, click.ClickException))
        message, code = _said(KeyboardInterrupt() if interrupted() and not is_known else error)
        say(f"kohort: {message}")
        _leave_output()
        return code


def _nobody_reads(error: BaseException) -> bool:
    """Whether what is printed goes nowhere any more, as in `kohort schema | head -1`.

    click and rich turn that into an exit code of their own.
    """
    wrapped = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(wrapped, OSError) and wrapped.errno == errno.EPIPE


def _leave_output() -> None:
    """Write what was printed before an error, or drop it, so that Python does not fail over it when it ends."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        silence(OUTPUT)


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
        case _:
            bug = f"a bug in kohort ({type(error).__name__}). Run again with --debug and report it", BUG
            return _of_system(error) or _of_name(error) or bug


def _of_system(error: BaseException) -> tuple[str, int] | None:
    """What is said where memory, space or file handles are used up; None for other errors."""
    said = None
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        said = "out of memory. Use fewer rows or sites"
    elif isinstance(error, ImportError | OSError) and any(_has(one, NO_ROOM) for one in _with_causes(error)):
        said = "too little memory to load a library. Free some memory, or raise ulimit -v"
    elif number in {errno.EMFILE, errno.ENFILE} or (isinstance(error, ImportError) and _has(error, NO_HANDLES)):
        said = "too many open files. Raise ulimit -n"
    elif number in USED_UP:
        said = f"cannot write: {os.strerror(number or 0).lower()}. Free some space"
    return None if said is None else (said, OUT_OF_RESOURCES)


def _of_name(error: BaseException) -> tuple[str, int] | None:
    """What is said of names that are none for the system, and of warnings that settings made errors."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return "the name of a file is too long. Use at most 255 bytes", USAGE
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return "the name of a file holds a NUL character. Leave it out", USAGE
    if isinstance(error, Warning):
        kind = type(error).__name__
        return f"a {kind} of a library was made an error. Unset PYTHONWARNINGS, and drop -W error", USAGE
    return None


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it was raised about: some libraries put the system's own words there alone."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _has(error: BaseException, words: Collection[str]) -> bool:
    return any(word in str(error).lower() for word in words)


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
