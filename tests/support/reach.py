"""Which functions of the guarding code every test enters, so that a mutant is shown to the tests that can notice it.

    python -m pytest -p tests.support.reach --reach out/reach.jsonl tests/privacy tests/crypto

writes one line per test that passed: its name, the processor seconds it took, and the functions it entered, each as
"FILE:LINE" of the line where the function begins. What fixtures of a wider scope enter counts to the first test alone.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from types import CodeType, FrameType
from typing import Any

import pytest

PACKAGE = str(Path(__file__).resolve().parents[2] / "src" / "kohort") + "/"


class Entered:
    """The functions of kohort that were entered since the last `clear`."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """What the interpreter calls at every call and return."""
        if event == "call" and frame.f_code not in self.codes and frame.f_code.co_filename.startswith(PACKAGE):
            self.codes.add(frame.f_code)

    def places(self) -> list[str]:
        """The functions as "FILE:LINE"."""
        return sorted(f"{code.co_filename[len(PACKAGE) :]}:{code.co_firstlineno}" for code in self.codes)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reach", type=Path, help="file that takes what every test enters")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--reach")
    if path is not None:
        config.pluginmanager.register(_Recorder(path))


class _Recorder:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._passed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        entered, began = Entered(), process_time()
        threading.setprofile(entered)
        sys.setprofile(entered)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type] # None ends it
            if item.nodeid in self._passed:
                line = {"test": item.nodeid, "seconds": round(process_time() - began, 3), "places": entered.places()}
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
