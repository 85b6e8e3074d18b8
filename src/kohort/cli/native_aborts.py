"""Native libraries that end the process when a limit on addresses (`ulimit -v`) leaves them no memory.

They raise no exception: the process dies of a signal, without a word or with one of the library's own. Under such a
limit a command therefore works in a child process, and its parent says what happened. Without a limit nothing is
different.

Guarantees: the parent takes no memory to speak of, ends as the child ends, and passes on the signals that it gets by
itself; the child ends with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Final

if sys.platform != "win32":
    import resource

from kohort.cli.streams import ERRORS, write_message

__all__ = ["in_child"]

ABORTS: Final = {"SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL"}
PASSED_ON: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_DIES_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG


def in_child(aborted: Callable[[], int]) -> int | None:
    """Go on in a child process if there is a limit on addresses, and wait for it.

    What native libraries print in the child is shown after its end, unless it was aborted; Python's own messages are
    shown at once.

    Args:
        aborted: Says what happened when the child was aborted by a native library, and gives the exit code.

    Returns:
        None in the process that has to do the work; in a waiting parent the exit code of its child.
    """
    if sys.platform != "linux" or not _is_limited() or threading.active_count() > 1:
        return None
    watched = {getattr(signal, name) for name in PASSED_ON} | {signal.SIGCHLD}
    held = tempfile.TemporaryFile()  # noqa: SIM115 - both processes need it until they end
    sys.stdout.flush()
    sys.stderr.flush()
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        _be_child(held)
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        return None
    code = _wait_for(child, watched)
    signal.pthread_sigmask(signal.SIG_SETMASK, usual)
    return _ended(code, held, aborted)


def _is_limited() -> bool:
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _be_child(held: IO[bytes]) -> None:
    """End with the parent, and keep back what native code prints."""
    import ctypes

    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    shown = os.dup(ERRORS)
    os.dup2(held.fileno(), ERRORS)
    errors = sys.stderr.errors
    sys.stderr = os.fdopen(shown, "w", encoding=sys.stderr.encoding, errors=errors, buffering=1)


def _wait_for(child: int, watched: set[signal.Signals]) -> int:
    """Wait for the end of a child; what another process sends meanwhile is for the child."""
    while True:
        came = signal.sigwaitinfo(watched)
        if came.si_signo == signal.SIGCHLD:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
        elif came.si_pid:  # a terminal's signals, which no process sends, reach the child by themselves
            os.kill(child, came.si_signo)


def _ended(code: int, held: IO[bytes], aborted: Callable[[], int]) -> int:
    """End as the child did: its exit code, or what is said of an abort."""
    if code < 0 and signal.Signals(-code).name in ABORTS:
        return aborted()
    held.seek(0)
    write_message(held.read())
    if code < 0:
        with suppress(OSError):  # which nobody may choose for SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
