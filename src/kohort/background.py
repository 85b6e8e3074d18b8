"""Work that can wait for a moment in which the interpreter is free.

Compiled kernels let go of Python's lock, and what holds it (signatures, loops over sites) can then be done on another
core at no cost. So such work is deferred; whoever is about to call a kernel says `begin_deferred`, and whoever needs
the result settles it. Guarantees: the work is done exactly once, in one thread at a time, and before `settle` returns;
where no kernel was called, `settle` does it itself. What the work raises is raised by every `settle`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

__all__ = ["Deferred", "begin_deferred", "defer"]


class Deferred:
    """A piece of work that is done by the time it is settled."""

    __slots__ = ("_error", "_lock", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._lock = Lock()
        self._work: Callable[[], object] | None = work
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work, or wait for the thread that is at it."""
        with self._lock:
            work, self._work = self._work, None
            if work is None:
                return
            _waiting.discard(self)
            try:
                work()
            except BaseException as error:
                self._error = error

    def settle(self) -> None:
        """Return when the work is done; raise what it raised."""
        self.run()
        if self._error is not None:
            raise self._error


_waiting: set[Deferred] = set()
_begun: SimpleQueue[Deferred] | None = None


def defer(work: Callable[[], object]) -> Deferred:
    """Put `work` off. The caller must settle it; until then nothing it touches may be changed."""
    deferred = Deferred(work)
    _waiting.add(deferred)
    return deferred


def begin_deferred() -> None:
    """Let another thread do what waits. To be called when this one is about to let go of the interpreter's lock."""
    global _begun  # noqa: PLW0603 - one worker a process, made when it is first of use
    if not _waiting:
        return
    if _begun is None:
        _begun = SimpleQueue()
        Thread(target=_work_off, args=(_begun,), name="kohort-deferred", daemon=True).start()
    while _waiting:
        try:
            _begun.put(_waiting.pop())
        except KeyError:  # another thread took it
            return


def _work_off(begun: SimpleQueue[Deferred]) -> None:
    while True:
        begun.get().run()


def _leave_it_to_the_parent() -> None:
    """A forked process has the queue, but nobody at its end; and what waits is the parent's to do."""
    global _begun  # noqa: PLW0603
    _begun = None
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_it_to_the_parent)
