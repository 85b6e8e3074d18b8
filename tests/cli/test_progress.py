"""Plain progress: a run that is silent for long says that it goes on."""

from __future__ import annotations

import time

import pytest

from kohort.cli import progress
from kohort.runs.run import Progress


def test_a_long_set_up_is_not_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(progress, "say", said.append)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: False, raising=False)
    with progress.round_bar("run") as watch:
        time.sleep(0.05)
        assert any("setting up" in line for line in said)
        watch(Progress(round=2, rounds=4, accuracy=0.5, seconds=1.0))
        said.clear()
        time.sleep(0.05)
        assert any("round 3" in line for line in said)
    count = len(said)
    time.sleep(0.03)
    assert len(said) == count  # it ends with the run
    with progress.round_bar("run", quiet=True):
        time.sleep(0.03)
    assert len(said) == count
