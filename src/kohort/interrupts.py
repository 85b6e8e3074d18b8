"""Interrupts that wait for a place where they can be raised.

Python raises KeyboardInterrupt wherever its first thread happens to be. In the middle of an import the exception may be
swallowed by the module, end the process from within a native library, or leave a lock of the import system taken. In a
function that LLVM calls, or one that ends an object, Python prints the exception and goes on. An interrupt that comes
then is sent again a moment later.
"""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable
from types import FrameType

__all__ = ["DeferredSignals"]

Handler = Callable[[int, FrameType | None], object]

AGAIN = 0.01
"""Seconds until an interrupt that came elsewhere is sent again."""
_IMPORT, _LLVM, _END_OF_OBJECT = "<frozen importlib", f"{os.sep}llvmlite{os.sep}", "__del__"


class DeferredSignals:
    """A handler of signals that is never called in the middle of an import, or where its exception would be dropped.

    Args:
        handler: What to do about a signal.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.waiting = False
        """Whether a signal came that was not handled yet."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """As every handler of signals."""
        self.waiting = not _is_safe(frame)
        if self.waiting:
            # Not `threading`: its locks may be held by what the signal came into.
            _thread.start_new_thread(_send_again, (number,))
        else:
            self._handler(number, frame)


def _send_again(number: int) -> None:
    time.sleep(AGAIN)
    os.kill(os.getpid(), number)


def _is_safe(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_IMPORT) or _LLVM in code.co_filename or code.co_name == _END_OF_OBJECT:
            return False
        frame = frame.f_back
    return True
