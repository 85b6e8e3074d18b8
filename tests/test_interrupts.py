"""Interrupts wait for a place where they can be raised, and are not lost."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from kohort.interrupts import DeferredSignals

MODULE = """
import signal, time
before = time.monotonic()
try:
    signal.raise_signal(signal.SIGINT)
    time.sleep(0.1)
except KeyboardInterrupt:
    swallowed = True
else:
    swallowed = False
"""


@pytest.fixture
def came() -> Iterator[list[str]]:
    """Where the handler was called."""
    places: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        assert frame is not None
        places.append(frame.f_code.co_filename)
        signal.default_int_handler(number, frame)

    former = signal.signal(signal.SIGINT, DeferredSignals(note))
    yield places
    signal.signal(signal.SIGINT, former)


def _import_and_wait() -> None:
    importlib.import_module("swallows_interrupts")
    time.sleep(5)


def test_an_interrupt_in_an_import_comes_after_it(
    came: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "swallows_interrupts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        _import_and_wait()
    assert not sys.modules.pop("swallows_interrupts").swallowed
    assert came == [__file__]


def test_an_interrupt_where_python_drops_exceptions_comes_after_it(came: list[str]) -> None:
    """At the end of an object, and in a function that a native library calls."""

    class Ending:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        _drop_and_wait(Ending())
    called = compile(
        "import signal; signal.raise_signal(signal.SIGINT)", f"x{os.sep}llvmlite{os.sep}binding.py", "exec"
    )
    with pytest.raises(KeyboardInterrupt):
        _call_and_wait(ctypes.CFUNCTYPE(None)(lambda: exec(called)))  # noqa: S102 - the line above
    assert came == [__file__] * 2


def _drop_and_wait(ending: object) -> None:
    del ending
    time.sleep(5)


def _call_and_wait(called: Callable[[], None]) -> None:
    called()
    time.sleep(5)


def test_an_interrupt_elsewhere_comes_at_once(came: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert len(came) == 1
