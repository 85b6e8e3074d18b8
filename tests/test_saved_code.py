"""Compiled loops are read from disk without what compiling needs, and what compiles later still works."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
from kohort.{module} import {name} as compiled

@compiled
def doubled(values):
    found = np.empty(len(values))
    for i in range(len(values)):
        found[i] = 2 * values[i]
    return found

@compiled
def largest_doubled(values):
    return doubled(values).max()

print(doubled(np.arange(3.0)).tolist(), sum(doubled.stats.cache_hits.values()), "numba.np.arraymath" in sys.modules)
if "more" in sys.argv:
    print(largest_doubled(np.arange(3.0)))
"""


@pytest.mark.parametrize(
    ("module", "name"),
    [("anonymity.compiled", "compiled"), ("models.dense.compiled", "fused"), ("models.trees.kernel", "compiled")],
)
def test_saved_loops_are_read_without_getting_ready_to_compile(tmp_path, module, name):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(module=module, name=name))

    def run(*words):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, str(program), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    assert run() == ["[0.0, 2.0, 4.0] 0 True"]
    assert run("more") == ["[0.0, 2.0, 4.0] 1 False", "4.0"]


def test_a_loop_runs_where_nothing_can_be_saved(monkeypatch):
    from kohort import saved_code

    def nowhere(function):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(saved_code, "SavedCode", nowhere)

    @saved_code.compile_and_save()
    def raised(number):
        return number + 1

    assert raised(1) == 2
