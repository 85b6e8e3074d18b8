"""How long a user waits: importing the package, the command's help, and the demo."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from bench.harness import Row, best_of

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "startup"
SUMMARY = (
    "Wall time of a new process, bytecode compiled first, best of several. `import kohort` is the process with the "
    "import less an empty process; `kohort --help` is the whole command. `kohort demo` runs once, on all cores, as the "
    "first command after `make` compiled kernels: caches of what it calibrates are empty."
)
IMPORT_LIMIT, HELP_LIMIT, DEMO_LIMIT = 0.15, 0.2, 15.0
REPETITIONS = 15
_COMPILE_KERNELS = "from kohort.runs.compile import compile_kernels; compile_kernels()"


def measure() -> list[Row]:
    _compile("kohort")
    empty = _seconds([sys.executable, "-c", ""])
    imported = _seconds([sys.executable, "-c", "import kohort"]) - empty
    helped = _seconds([str(_script()), "--help"])
    return [
        Row.within("`import kohort`", ours=imported, peer="limit", theirs=IMPORT_LIMIT, unit="s"),
        Row.within("`kohort --help`", ours=helped, peer="limit", theirs=HELP_LIMIT, unit="s"),
        Row.within("`kohort demo`", ours=_demo(), peer="limit", theirs=DEMO_LIMIT, unit="s"),
    ]


def _demo() -> float:
    """Every method on the embedded table, attacked and reported."""
    one_thread = {name for name, value in os.environ.items() if name.endswith("_THREADS") and value == "1"}
    with tempfile.TemporaryDirectory() as empty:
        places = {"XDG_CACHE_HOME": f"{empty}/cache", "KOHORT_STATE": f"{empty}/state"}
        environment = {name: value for name, value in os.environ.items() if name not in one_thread} | places
        subprocess.run([sys.executable, "-c", _COMPILE_KERNELS], check=True, capture_output=True)
        began = perf_counter()
        subprocess.run(
            [str(_script()), "demo", "--out", f"{empty}/demo"], check=True, capture_output=True, env=environment
        )
        return perf_counter() - began


def _compile(package: str) -> None:
    spec = find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        compileall.compile_dir(place, quiet=2)


def _script() -> Path:
    return Path(sysconfig.get_path("scripts")) / "kohort"


def _seconds(command: list[str]) -> float:
    def once() -> float:
        began = perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return perf_counter() - began

    return best_of(REPETITIONS, once)
