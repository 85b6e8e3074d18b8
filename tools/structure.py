"""Measure the shape of the source tree: files, folders, docstrings, types, import chains, complexity, calls.

    python tools/structure.py [SRC]            figures of the tree at SRC (default: src)
    python tools/structure.py --calls [SRC]    also counts calls between packages in two short runs

`ARCHITECTURE.md` quotes these figures; `tests/test_structure.py` compares those that are quick to measure.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

COMPLEX = 8
LONG = 3
"""Lines of a docstring that says more than what something is for."""
METHODS = ("additive", "central", "fedavg", "hybrid", "oneshot", "partial", "silo", "syntactic", "trees")


def modules_in(src: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((src / "kohort").rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules a module imports anywhere: when it is loaded, inside functions, or for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        waiting.extend(ast.iter_child_nodes(node))
    return {name for name in found if name in known and known[name] != path}


def reach(graph: dict[str, set[str]], start: str) -> set[str]:
    """A module and everything it imports, directly or through others."""
    seen, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph.get(name, ())
    return seen


def groups_of(graph: dict[str, set[str]]) -> dict[str, int]:
    """Modules that import each other in a circle have the same number, all others one of their own."""
    reached = {name: reach(graph, name) for name in graph}
    group: dict[str, int] = {}
    for number, name in enumerate(graph):
        for other in reached[name]:
            if name in reached[other]:
                group.setdefault(other, number)
    return group


def longest_chain(graph: dict[str, set[str]]) -> int:
    """How many modules the longest chain of imports has; a circle counts as one."""
    group = groups_of(graph)
    below: dict[int, set[int]] = {number: set() for number in group.values()}
    for name, others in graph.items():
        below[group[name]] |= {group[other] for other in others} - {group[name]}

    @cache
    def length(number: int) -> int:
        return 1 + max((length(other) for other in below[number]), default=0)

    return max(length(number) for number in below)


def circles(graph: dict[str, set[str]]) -> int:
    """How many circles of imports there are, those inside functions and for types alone included."""
    return sum(count > 1 for count in Counter(groups_of(graph).values()).values())


def used_by_one_method(graph: dict[str, set[str]]) -> Counter[str]:
    """Where the modules stand that exactly one method needs, and no command or model kind without it."""
    roots = {name: f"kohort.methods.{name}" for name in METHODS}
    reached = {name: reach(graph, root) for name, root in roots.items()}
    shared: set[str] = set()
    for module in graph:
        if module.startswith(("kohort.cli.", "kohort.models.kinds.")):
            shared |= reach(graph, module)
    where: Counter[str] = Counter()
    for module in graph.keys() - shared - set(roots.values()):
        users = [name for name, modules in reached.items() if module in modules]
        if len(users) == 1:
            beside = module.startswith(f"{roots[users[0]]}.")
            where["beside the method" if beside else "elsewhere"] += 1
    return where


def too_complex(src: Path) -> int:
    """Functions above McCabe complexity 8, as ruff counts them."""
    asked = [
        "ruff",
        "check",
        "--isolated",
        "--select",
        "C901",
        "--ignore-noqa",
        "--config",
        f"lint.mccabe.max-complexity={COMPLEX}",
    ]
    printed = subprocess.run(
        [sys.executable, "-m", *asked, "--output-format", "json", str(src)], capture_output=True, text=True, check=False
    )
    return len(json.loads(printed.stdout))


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_definitions(tree: ast.AST) -> Iterator[Definition]:
    """Classes, functions and methods whose names have no leading underscore, nor has a class that they are in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            if not node.name.startswith("_"):
                yield node
                if isinstance(node, ast.ClassDef):
                    yield from public_definitions(node)
        else:
            yield from public_definitions(node)


def share_of_long_docstrings(trees: Iterable[ast.AST]) -> float:
    """Of all public classes, functions and methods, those with a docstring of more than three lines, in per cent."""
    found = [ast.get_docstring(node) or "" for tree in trees for node in public_definitions(tree)]
    return _percent(sum(len(text.splitlines()) > LONG for text in found), len(found))


def share_of_any(trees: Iterable[ast.AST]) -> float:
    """Of all parameters but self and cls, those whose type is `Any`, in per cent."""
    types = []
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
                types += [item.annotation for item in every if item is not None and item.arg not in {"self", "cls"}]
    return _percent(sum(isinstance(item, ast.Name) and item.id == "Any" for item in types), len(types))


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 1)


CALLS = """
import sys, tomllib
try:
    from kohort.runs.demo import demo_plan
    from kohort.runs.run import run
except ImportError:
    from kohort.demo import demo_plan
    from kohort.experiment import run
from kohort.methods.registry import find_method
plan = demo_plan(find_method(sys.argv[1]), rounds=60)
run(plan, seed=0)
count = 0
def package(frame):
    name = frame.f_globals.get("__name__", "")
    return ".".join(name.split(".")[:2]) if name.startswith("kohort.") else ""
def watch(frame, event, arg):
    global count
    if event == "call" and frame.f_back is not None:
        here, there = package(frame), package(frame.f_back)
        count += bool(here and there and here != there)
sys.setprofile(watch)
run(plan, seed=0)
sys.setprofile(None)
print(count)
"""


def cross_package_calls(src: Path, method: str) -> int:
    """Python calls from one package of kohort into another, in sixty rounds of the demo's plan."""
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CALLS, method],
        env={"PYTHONPATH": str(src.resolve()), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(printed.stdout)


def main(arguments: list[str]) -> None:
    """Print the figures as JSON."""
    calls = "--calls" in arguments
    src = Path(next((item for item in arguments if not item.startswith("--")), "src"))
    known = modules_in(src)
    graph = {name: imports_of(path, known) for name, path in known.items()}
    importers = Counter(other for name, others in graph.items() for other in others if other != name)
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in known.values()]
    figures = {
        "files": len(known),
        "folders": len({path.parent for path in known.values()}),
        "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in known.values()),
        "public docstrings of more than three lines, per cent": share_of_long_docstrings(trees),
        "parameters of type Any, per cent": share_of_any(trees),
        "longest import chain": longest_chain(graph),
        "circles of imports": circles(graph),
        "modules imported once": sum(count == 1 for count in importers.values()),
        "modules only one method needs": dict(used_by_one_method(graph)),
        f"functions above complexity {COMPLEX}": too_complex(src),
    }
    if calls:
        figures["cross-package calls"] = {name: cross_package_calls(src, name) for name in ("fedavg", "partial")}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
