"""Kernels compiled ahead of the first run."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ConfigError
from kohort.methods.registry import methods
from kohort.runs import compile as subject


class _Here:
    """A pool whose worker is this process."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    map = staticmethod(map)


def test_every_method_runs_once_and_those_that_cannot_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(plan: Any, **_: Any) -> None:
        ran.append(plan.method)
        if plan.method == "partial":
            raise ConfigError("no table")

    monkeypatch.setattr(subject, "ProcessPoolExecutor", _Here)
    monkeypatch.setattr(subject, "run", run)
    assert subject.compile_kernels() == ("partial",)
    assert ran[0] == "fedavg"
    assert sorted(ran) == sorted(methods())
