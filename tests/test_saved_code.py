"""Compiled loops are read from disk without what compiling needs, and what compiles later still works."""

import os
import subprocess
import sys

DOUBLED = """
@{kind}
def doubled_{kind}(values):
    found = np.empty(len(values))
    for i in range(len(values)):
        found[i] = 2 * values[i]
    return found

print(doubled_{kind}(np.arange(3.0)).tolist(), sum(doubled_{kind}.stats.cache_hits.values()))
"""
PROGRAM = f"""
import sys
import numpy as np
from kohort.anonymity.compiled import compiled as of_tables
from kohort.models.dense.compiled import fused as of_networks
from kohort.models.trees.kernel import compiled as of_trees
{"".join(DOUBLED.format(kind=kind) for kind in ("of_tables", "of_networks", "of_trees"))}
print("numba.np.arraymath" in sys.modules)

@of_tables
def largest_doubled(values):
    return doubled_of_tables(values).max()

if "more" in sys.argv:
    print(largest_doubled(np.arange(3.0)))
"""


def test_saved_loops_are_read_without_getting_ready_to_compile(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(*words):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, str(program), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    assert run() == ["[0.0, 2.0, 4.0] 0"] * 3 + ["True"]
    assert run("more") == ["[0.0, 2.0, 4.0] 1"] * 3 + ["False", "4.0"]


def test_a_loop_runs_where_nothing_can_be_saved(monkeypatch):
    from kohort import saved_code

    def nowhere(function):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(saved_code, "SavedCode", nowhere)

    @saved_code.compile_and_save()
    def raised(number):
        return number + 1

    assert raised(1) == 2


SUMMED = """
import sys
import numpy as np
from kohort.anonymity.compiled import compiled
from kohort.saved_code import must_compile

@compiled
def summed(values):
    found = values[0] - values[0]
    for value in values:
        found += value
    return found

given = np.arange(4, dtype=sys.argv[1]) / (2 if sys.argv[1] == "float64" else 1)
given = given.astype(sys.argv[1])
print(must_compile(summed, given), summed(given), must_compile(summed, given), must_compile(summed.py_func, given))
"""


def test_code_that_another_process_saved_in_its_place_is_not_run(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SUMMED)

    def run(kind):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, str(program), kind]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert run("int64") == ["True", "6", "False", "False"]
    assert run("float64") == ["True", "3.0", "False", "False"]
    assert run("float64") == ["False", "3.0", "False", "False"]
    # What remains when two processes save at once: both types are listed, and one file holds the other's code.
    first, second = sorted((tmp_path / "cache").rglob("*.nbc"))
    second.write_bytes(first.read_bytes())
    assert run("float64")[1] == "3.0"
    assert run("int64")[1] == "6"


COUNTED = """
from typing import NamedTuple
import numpy as np

class {name}(NamedTuple):
    counts: np.ndarray
"""
COUNTING = """
import sys
import numpy as np
import named
from kohort.anonymity.compiled import compiled

@compiled
def most(given):
    return given.counts.max()

print(most(getattr(named, sys.argv[1])(np.arange(3))), sum(most.stats.cache_hits.values()))
"""


def test_code_for_types_that_have_another_name_now_is_compiled_anew(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(COUNTING)

    def run(name):
        (tmp_path / "named.py").write_text(COUNTED.format(name=name))
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, str(program), name]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert [run("Counts"), run("Counts")] == [["2", "0"], ["2", "1"]]
    assert [run("Counted"), run("Counted")] == [["2", "0"], ["2", "1"]]
