"""Interrupts wait while a module is being imported, and are not lost."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from kohort.interrupts import outside_imports

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

    former = signal.signal(signal.SIGINT, outside_imports(note))
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


def test_an_interrupt_elsewhere_comes_at_once(came: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert len(came) == 1
