"""The entry point. It imports the application itself, so that an interrupt is one line and exit 130 from the start.

By itself Python prints a traceback when it is interrupted during an import, and dies of the signal when it is
interrupted while it ends.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

from kohort.collector import suit_one_job
from kohort.interrupts import DeferredSignals

__all__ = ["app", "main"]

INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line and exit; `kohort.cli.app.run` lists the exit codes."""
    suit_one_job()
    # Only the first thread may choose what an interrupt does; tests and services call this from others.
    chooses = threading.current_thread() is threading.main_thread()
    usual = signal.signal(signal.SIGINT, _end) if chooses else None
    if chooses:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # all is done: nothing is left to interrupt
    from kohort.cli.app import run

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
        sys.exit(code)
    except KeyboardInterrupt:
        _end()  # a second interrupt, or one at the very end
    finally:
        if usual is not None:
            signal.signal(signal.SIGINT, usual)


def _end(*_: Any) -> NoReturn:
    os.write(2, b"kohort: interrupted\n")
    os._exit(INTERRUPTED)


app = main

if __name__ == "__main__":
    main()
