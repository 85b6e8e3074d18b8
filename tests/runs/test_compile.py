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


def test_makers_of_tables_release_once_where_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def release(name: str) -> None:
        made.append(name)
        if name == "tables":
            raise ConfigError("no table")

    monkeypatch.setattr(subject, "ProcessPoolExecutor", _Here)
    monkeypatch.setattr(subject, "run", lambda plan, **_: None)
    monkeypatch.setattr(subject, "_release", release)
    assert subject.compile_kernels(releases=True) == ("release by tables",)
    assert made == list(subject.RELEASES)


def test_what_most_others_need_is_compiled_first_and_tables_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(subject, "ProcessPoolExecutor", _Here)
    monkeypatch.setattr(subject, "run", lambda plan, **_: begun.append(plan.method))
    monkeypatch.setattr(subject, "_release", begun.append)
    subject.compile_kernels(releases=True)
    assert begun[:2] == ["fedavg", "tables"]
    assert begun.count("tables") == 1
    assert begun[-2:] == [*subject.RELEASES][1:]


@pytest.mark.parametrize("name", subject.RELEASES)
def test_what_is_released_to_compile_its_kernels_is_a_release(name: str) -> None:
    subject._release(name)
