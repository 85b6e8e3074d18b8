"""The entry point: discovers the commands, runs one, turns errors into one line and an exit code.

Every module of `kohort.cli` with a `register(app)` function adds its commands; heavy libraries are imported inside the
commands, so that `kohort --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from typing import NoReturn

import click
import typer

from kohort.cli.common import say
from kohort.errors import KohortError

__all__ = ["app", "build", "main"]

INTERRUPTED, OUT_OF_RESOURCES, BUG = 130, 7, 1


def build() -> typer.Typer:
    """The application with every discovered command."""
    made = typer.Typer(
        name="kohort",
        help="Train one model over tables that must not be pooled, and write down what every site gave away.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(_global_options)
    package = importlib.import_module("kohort.cli")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
        if module.name in {"main", "common"}:
            continue
        register = getattr(importlib.import_module(f"kohort.cli.{module.name}"), "register", None)
        if register is not None:
            register(made)
    return made


def _global_options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and end."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"kohort {version_of('kohort')}")
        raise typer.Exit
    context.obj = {"debug": debug}


def main() -> NoReturn:
    """Run the command line; exits with the codes of the manual and never with a traceback unless `--debug`."""
    debug = "--debug" in sys.argv
    try:
        # People add it at the end of the line that failed, so it counts wherever it stands.
        code = build()([word for word in sys.argv[1:] if word != "--debug"], standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except KohortError as error:
        _fail(error, str(error), error.exit_code, debug=debug)
    except click.exceptions.Abort as error:
        _fail(error, "interrupted", INTERRUPTED, debug=debug)
    except click.ClickException as error:
        _fail(error, error.format_message(), 2, debug=debug)
    except KeyboardInterrupt as error:
        _fail(error, "interrupted", INTERRUPTED, debug=debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except MemoryError as error:
        _fail(error, "out of memory. Use fewer rows or sites", OUT_OF_RESOURCES, debug=debug)
    except Exception as error:
        _fail(
            error, f"a bug in kohort ({type(error).__name__}). Run again with --debug and report it", BUG, debug=debug
        )


def _fail(error: BaseException, message: str, code: int, *, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exception(error)
    say(f"kohort: {message}")
    sys.exit(code)


app = main

if __name__ == "__main__":
    main()
