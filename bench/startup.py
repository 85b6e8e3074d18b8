"""How long a user waits before anything happens: importing the package, and the command's help."""

from __future__ import annotations

import compileall
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from bench.harness import Row, best_of

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "startup"
SUMMARY = (
    "Wall time of a new process, bytecode compiled first, best of several. `import kohort` is the process with the "
    "import less an empty process; `kohort --help` is the whole command."
)
IMPORT_LIMIT, HELP_LIMIT = 0.15, 0.4
REPETITIONS = 15


def measure() -> list[Row]:
    _compile("kohort")
    empty = _seconds([sys.executable, "-c", ""])
    imported = _seconds([sys.executable, "-c", "import kohort"]) - empty
    helped = _seconds([str(_script()), "--help"])
    return [
        Row.within("`import kohort`", ours=imported, peer="limit", theirs=IMPORT_LIMIT, unit="s"),
        Row.within("`kohort --help`", ours=helped, peer="limit", theirs=HELP_LIMIT, unit="s"),
    ]


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
