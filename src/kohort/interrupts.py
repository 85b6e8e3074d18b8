"""Interrupts that wait while a module is being imported.

Python raises KeyboardInterrupt wherever its first thread happens to be. In the middle of an import the exception may be
swallowed by the module, end the process from within a native library, or leave a lock of the import system taken. An
interrupt that comes then is sent again a moment later.
"""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable
from types import FrameType

__all__ = ["outside_imports"]

Handler = Callable[[int, FrameType | None], object]

AGAIN = 0.01
"""Seconds until an interrupt that came during an import is sent again."""
_IMPORT = "<frozen importlib"


def outside_imports(handler: Handler) -> Handler:
    """A handler of signals that is never called in the middle of an import.

    Args:
        handler: What to do about a signal.

    Returns:
        The handler to install in its place.
    """

    def wait_or_handle(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            # Not `threading`: its locks may be held by what the signal came into.
            _thread.start_new_thread(_send_again, (number,))
        else:
            handler(number, frame)

    return wait_or_handle


def _send_again(number: int) -> None:
    time.sleep(AGAIN)
    os.kill(os.getpid(), number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT):
            return True
        frame = frame.f_back
    return False
