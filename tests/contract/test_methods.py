"""Every registered method, whoever wrote it, is held to the laws of `kohort.testing`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from kohort.methods.registry import methods
from kohort.testing import CHECKS, VARIANTS, Check, MethodRuns

ALL = sorted(methods())
REFUSED = {
    ("additive", "fraction"),
    ("additive", "keep"),
    ("additive", "stop"),
    ("central", "fraction"),
    ("central", "keep"),
    ("hybrid", "keep"),
    ("hybrid", "stop"),
    ("oneshot", "fraction"),
    ("oneshot", "keep"),
    ("oneshot", "stop"),
}
"""Training variants that a method of ours refuses, because it does not read their keys."""
OURS = {"additive", "central", "fedavg", "hybrid", "oneshot", "partial", "silo", "syntactic"}


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], MethodRuns]:
    """The runs of a method, shared by all checks of this module."""
    return cache(lambda method: MethodRuns(method, tmp_path_factory.mktemp(method)))


@pytest.mark.parametrize("method", ALL, scope="module")
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_law(check: Check, method: str, runs_of: Callable[[str], MethodRuns]) -> None:
    check(runs_of(method))


def test_our_methods_take_every_training_variant_but_these(runs_of: Callable[[str], MethodRuns]) -> None:
    refused = {(method, variant) for method in OURS for variant in VARIANTS if not runs_of(method).applies(variant)}
    assert refused == REFUSED
