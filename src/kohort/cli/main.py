"""The entry point. It imports the application itself, so that an interrupt is one line and exit 130 from the start.

By itself Python prints a traceback when it is interrupted during an import, and dies of the signal when it is
interrupted while it ends. Standard streams are made usable first, and settings that would end an import in a traceback
are one line.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from kohort.cli.native_aborts import in_child
from kohort.cli.streams import file_handles, flush_messages, make_usable, write_message
from kohort.collector import suit_one_job
from kohort.interrupts import DeferredSignals

__all__ = ["app", "main"]

INTERRUPTED, OUT_OF_RESOURCES, USAGE = 130, 7, 2
FEWEST_HANDLES = 32
"""Native libraries panic with fewer: a report takes between 16 and 20."""
SERVICES = {"hub", "site", "flower"}
"""Commands that have child processes, or are one, by themselves."""


def main() -> NoReturn:
    """Run the command line and exit; `kohort.cli.app.run` lists the exit codes."""
    # Only the first thread may choose what an interrupt does; tests and services call this from others.
    chooses = threading.current_thread() is threading.main_thread()
    usual = signal.signal(signal.SIGINT, _end) if chooses else None
    make_usable()
    suit_one_job()
    _check_settings()
    if chooses:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # all is done: nothing is left to interrupt
    if chooses and not SERVICES & {*sys.argv[1:2]} and (code := in_child(_aborted)) is not None:
        os._exit(code)
    run = _application()
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    handler = DeferredSignals(interrupt)
    if chooses:
        signal.signal(signal.SIGINT, handler)
    try:
        code = run(interrupted=lambda: bool(came))
        if handler.waiting:
            _end()
        flush_messages()
        sys.exit(code)
    except KeyboardInterrupt:
        _end()  # a second interrupt, or one at the very end
    finally:
        if usual is not None:
            signal.signal(signal.SIGINT, usual)


def _check_settings() -> None:
    """Refuse settings of the environment that end the import of a library in a trace of its own."""
    threads = os.environ.get("POLARS_MAX_THREADS", "")
    if threads.isascii() and threads.lstrip("+").isdigit() and int(threads) == 0:
        _refuse(f"POLARS_MAX_THREADS is {threads!r}. Set it to a number from 1 on, or unset it", USAGE)
    handles = file_handles()
    if handles is not None and handles < FEWEST_HANDLES:
        _refuse(
            f"only {handles} files may be open at once. Raise ulimit -n to {FEWEST_HANDLES} at least", OUT_OF_RESOURCES
        )


def _application() -> Callable[..., int]:
    try:
        from kohort.cli.app import run
    except Warning as warning:
        _refuse(
            f"a {type(warning).__name__} of a library was made an error. Unset PYTHONWARNINGS, and drop -W error", USAGE
        )
    return run


def _refuse(message: str, code: int) -> NoReturn:
    write_message(f"kohort: {message}\n".encode(errors="backslashreplace"))
    sys.exit(code)


def _aborted() -> int:
    words = "too little memory: a library was stopped by the limit on addresses. Raise ulimit -v, or use fewer rows"
    write_message(f"kohort: {words}\n".encode())
    return OUT_OF_RESOURCES


def _end(*_: Any) -> NoReturn:
    write_message(b"kohort: interrupted\n")
    os._exit(INTERRUPTED)


app = main

if __name__ == "__main__":
    main()
