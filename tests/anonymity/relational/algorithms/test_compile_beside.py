"""The second process that compiles: for the very types that releases need, only where it helps, and never needed."""

from __future__ import annotations

import subprocess
import sys

import numba
import numpy as np
import polars as pl
import pytest

from kohort.anonymity.relational.algorithms import compile_beside, refine_kernel
from kohort.anonymity.relational.algorithms.cluster import cluster
from kohort.anonymity.relational.algorithms.refine import refine
from kohort.anonymity.relational.problem import Partition, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns

LOOPS = ("move_rows", "dissolve_classes", "replace_rows")


def problem(rows: int = 60, *, values: bool = False, distinct: int = 9) -> Problem:
    """People of some ages and wards; the rule about their illness where asked."""
    place = pl.int_range(rows, eager=True)
    frame = pl.DataFrame({
        "age": place % distinct,
        "ward": (place % 4).cast(pl.String),
        "ill": pl.Series(["no", "yes"]).gather(place // 2 % 2),
    })  # fmt: skip
    rule = Rule(k=3, l=2 if values else 0)
    return Problem(code_table(frame, ["age", "ward"]), SensitiveColumns.of(frame, ["ill"] if values else []), rule)


@pytest.fixture
def started(monkeypatch):
    """What would be started, on a machine of two cores where nothing is compiled."""
    commands = []

    class Started:
        def __init__(self, command, **streams):
            commands.append(command)
            assert set(streams.values()) == {subprocess.DEVNULL}

        def wait(self):
            commands.append("waited")

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(compile_beside.os, "cpu_count", lambda: 2)
    monkeypatch.setattr("kohort.saved_code.must_compile", lambda *_: True)
    monkeypatch.setattr(compile_beside, "_running", [])
    return commands


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("distinct", [9, 70_000])
def test_the_search_is_compiled_for_the_types_of_the_release(monkeypatch, started, values, distinct):
    found = problem(max(60, distinct), values=values, distinct=distinct)

    def keep(into, name):
        def kept(*arguments):
            into[name] = tuple(numba.typeof(argument) for argument in arguments)
            return 1

        return kept

    def called(do):
        into = {}
        for name in LOOPS:
            monkeypatch.setattr(refine_kernel, name, keep(into, name))
        do()
        return into

    monkeypatch.setattr("kohort.anonymity.relational.algorithms.refine.PAIRS_OF_SIZES", 10**12)
    monkeypatch.setattr("kohort.anonymity.relational.algorithms.refine.PAIRS_THOROUGH", 10**12)
    monkeypatch.setattr("kohort.anonymity.relational.algorithms.refine.PAIRS", 10**12)
    halves = np.repeat(np.arange(2), found.table.rows // 2)
    types = called(lambda: refine(found, Partition.of_labels(halves)))
    compile_beside.compile_search_beside(found, refine_kernel.move_rows)
    program = started[-1][-1]
    assert called(lambda: exec(program)) == types  # noqa: S102 - the very program that the second process runs
    assert set(types) == set(LOOPS) - ({"replace_rows"} if values else set())


def test_a_release_starts_it_and_waits_for_it_once(started):
    found = problem()
    classes = cluster(found)
    assert [one[0] for one in started] == [sys.executable]
    again = refine(found, classes)
    assert started[1:] == ["waited"]
    refine(found, again)
    assert len(started) == 2


@pytest.mark.parametrize("why", ["one core", "no python", "compiled", "no process"])
def test_without_it_the_release_is_the_same(monkeypatch, started, why):
    found = problem()
    expected = refine(found, cluster(found)).labels
    del started[:]
    if why == "one core":
        monkeypatch.setattr(compile_beside.os, "cpu_count", lambda: 1)
    elif why == "no python":
        monkeypatch.setattr(sys, "executable", "/opt/server/bin/uwsgi")
    elif why == "compiled":
        monkeypatch.setattr("kohort.saved_code.must_compile", lambda *_: False)
    else:

        def refused(*_, **__):
            raise OSError("no process can be started")

        monkeypatch.setattr(subprocess, "Popen", refused)
    assert refine(found, cluster(found)).labels.tolist() == expected.tolist()
    assert started == []
