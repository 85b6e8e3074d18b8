"""Mutation testing by sample: change one expression of the guarding code at a time, and see whether tests notice.

    python tools/mutate.py --record reach.jsonl                        which tests enter which functions, once
    python tools/mutate.py --record reach.jsonl tests/privacy          the same for these tests alone
    python tools/mutate.py --reach reach.jsonl --count 60 --seed 1 --out mutants.jsonl
                                                                       try 60 mutants that the file has not yet
    python tools/mutate.py --reach reach.jsonl --again mutants.jsonl   try what nothing noticed once more
    python tools/mutate.py --table mutants.jsonl                       the table of docs/mutation.md

Mutants are drawn from all places of privacy/, crypto/, the checker, the gate and the steps of the local search over
classes where a comparison can be turned, a whole number moved by one, a `not` removed, `and` and `or` exchanged, or a
`raise` dropped. Texts, docstrings, types and what stands in a `raise` are left alone: messages are not behaviour. The
tests of a mutant are those that enter its function, quick ones first, up to `MOST` processor seconds; they run in a
process forked from one that has loaded the libraries. Kernels of the local search run uncompiled: a compiled one would
come from a cache, which does not know that a function of another file changed.

A mutant that survives here may still be caught by the rest of the suite, or be equivalent: docs/mutation.md says which.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path

import numba

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.mutation import (  # noqa: E402 - what tests share is not installed
    JOBS,
    Ended,
    always_failing,
    changed_file,
    load_libraries,
    until_one_fails,
)

PACKAGE = ROOT / "src" / "kohort"
MOST = 20.0
"""Processor seconds of the tests that are asked about one mutant."""

ENDLESS, SURELY_ENDLESS = 40, 160
"""Processor seconds after which tests of one mutant are ended and tried once more, as what they compile may have to be
compiled anew; and those after which they are taken for endless."""

LOCAL_SEARCH = ("anonymity/relational/algorithms/refine_kernel.py", "anonymity/relational/algorithms/class_state.py")
KERNEL_TESTS = ("tests/anonymity/relational/algorithms/test_refine_kernel.py",)
RECORDED = (
    "tests/privacy", "tests/crypto", "tests/anonymity/checker", "tests/anonymity/gate",
    "tests/anonymity/relational/test_every_rule.py", "tests/protocol", "tests/contract", "tests/adversary",
    "tests/cli/test_check.py",
)  # fmt: skip
"""The tests that are asked about the guarding code."""
FOLDERS = ("privacy", "crypto", "anonymity/checker", "anonymity/gate", *LOCAL_SEARCH)
NOTICED = {"killed", "slow"}
"""Outcomes of mutants that tests notice: one failed, or they did not end."""
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, what stood there and what stands there now."""

    file: str
    line: int
    kind: str
    old: str
    new: str
    start: tuple[int, int]
    end: tuple[int, int]


class _Places(ast.NodeVisitor):
    """Collects the places of one file that can be changed."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.lines, self.found = file, text.splitlines(keepends=True), list[Mutant]()

    def add(self, node: ast.expr | ast.stmt, kind: str, new: str) -> None:
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        old = ast.unparse(node)
        self.found.append(Mutant(self.file, node.lineno, kind, old, new, start, end))

    def visit_Compare(self, node: ast.Compare) -> None:
        turned = TURNED.get(type(node.ops[0]))
        if len(node.ops) == 1 and turned is not None:
            changed = ast.Compare(node.left, [turned()], node.comparators)
            self.add(node, "comparison", f"({ast.unparse(changed)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, "constant", str(not node.value))
        elif isinstance(node.value, int):
            self.add(node, "constant", f"({node.value + 1})")
            self.add(node, "constant", f"({node.value - 1})")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.add(node, "not", f"bool({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self.add(node, "and/or", f"({ast.unparse(ast.BoolOp(other, node.values))})")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(node, "raise", "pass")  # and nothing inside it: messages are left out

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Types are left out."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts are left out."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None), *node.body):
            self.visit(part)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)


def places() -> list[Mutant]:
    """All mutants of the guarding code, in the order of files and lines."""
    found: list[Mutant] = []
    for folder in FOLDERS:
        whole = PACKAGE / folder
        for path in [whole] if whole.is_file() else sorted(whole.rglob("*.py")):
            name = str(path.relative_to(PACKAGE))
            text = path.read_text(encoding="utf-8")
            visitor = _Places(name, text)
            visitor.visit(ast.parse(text))
            found += visitor.found
    return found


def sampled(count: int, seed: int, only: str = "", without: Collection[Mutant] = ()) -> list[Mutant]:
    """Mutants of files whose paths begin with `only`, each once: a file by its places, then a kind, then a place.

    Args:
        count: How many.
        seed: Of the draw.
        only: How the paths of their files begin, below the package.
        without: Mutants that are not drawn.

    Returns:
        As many as are wanted, or all there are.
    """
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    everything = [one for one in places() if one.file.startswith(only) and one not in without]
    chosen: dict[Mutant, None] = {}
    while len(chosen) < min(count, len(everything)):
        file = draw.choice(everything).file
        kinds: dict[str, list[Mutant]] = {}
        for one in everything:
            if one.file == file:
                kinds.setdefault(one.kind, []).append(one)
        chosen[draw.choice(kinds[draw.choice(sorted(kinds))])] = None
    return list(chosen)


def changed(text: str, mutant: Mutant) -> str:
    """The source with one expression changed."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    (first, begin), (last, end) = mutant.start, mutant.end
    before = b"".join(lines[: first - 1]) + lines[first - 1][:begin]
    after = lines[last - 1][end:] + b"".join(lines[last:])
    return (before + mutant.new.encode() + after).decode()


def record(path: Path, tests: Sequence[str]) -> int:
    """Run tests once, and write which functions each of them enters.

    Args:
        path: The file that takes it. What it says of other tests stays.
        tests: The tests; all of the guarding code if there are none.

    Returns:
        The exit code of pytest.
    """
    asked = tuple(tests) or (*RECORDED, *KERNEL_TESTS)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line for line in lines if not json.loads(line)["test"].startswith(asked)), encoding="utf-8")
    options = ["-p", "tests.support.reach", "--reach", str(path.resolve()), "-p", "no:cacheprovider"]
    uncompiled = [one for one in asked if one.startswith(KERNEL_TESTS)]
    others = [one for one in asked if one not in uncompiled]
    runs = [
        subprocess.run([sys.executable, "-m", "pytest", *options, *chosen], cwd=ROOT, check=False, env=environment)
        for chosen, environment in ((others, os.environ), (uncompiled, os.environ | {"NUMBA_DISABLE_JIT": "1"}))
        if chosen
    ]
    return max(one.returncode for one in runs)


class Outcomes:
    """What became of the mutants of a file that `--out` wrote: at first, and when they were tried last.

    Args:
        path: The file; without one, nothing was tried.
    """

    def __init__(self, path: Path | None) -> None:
        self.first: dict[Mutant, str] = {}
        self.last: dict[Mutant, str] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
            read = json.loads(line)
            outcome = read["outcome"]
            (begin, first), (end, last) = read["start"], read["end"]
            known = {one.name: read[one.name] for one in fields(Mutant)}
            mutant = Mutant(**{**known, "start": (begin, first), "end": (end, last)})
            self.first.setdefault(mutant, outcome)
            self.last[mutant] = outcome

    def left(self) -> list[Mutant]:
        """Those that nothing noticed when they were tried last."""
        return [mutant for mutant, outcome in self.last.items() if outcome not in NOTICED]


class Reach:
    """Which tests enter which functions, as `tests/support/reach.py` recorded it.

    Args:
        path: The recorded lines.
        most: Processor seconds of the tests that are asked about one mutant.
    """

    def __init__(self, path: Path, *, most: float = MOST) -> None:
        self._most = most
        self._seconds: dict[str, float] = {}
        self._by_place: dict[str, set[str]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            self._seconds[one["test"]] = one["seconds"]
            for place in one["places"]:
                self._by_place.setdefault(place, set()).add(one["test"])

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that can notice a mutant, quick ones first: those that enter its function, or, for what stands
        outside of functions, any function of its file. So many that they take at most `most` processor seconds."""
        begins = _function(mutant)
        here = f"{mutant.file}:"
        places = [f"{here}{begins}"] if begins else [one for one in self._by_place if one.startswith(here)]
        found = sorted({test for place in places for test in self._by_place.get(place, ())}, key=self._order)
        chosen, spent = list[str](), 0.0
        for test in found:
            if mutant.file in LOCAL_SEARCH and not test.startswith(KERNEL_TESTS):
                continue  # it saw compiled kernels
            spent += self._seconds[test]
            if spent > self._most:
                break
            chosen.append(test)
        return chosen

    def _order(self, test: str) -> tuple[float, str]:
        return self._seconds[test], test


def _function(mutant: Mutant) -> int | None:
    """The first line of the innermost function around a mutant, its decorators included."""
    tree = ast.parse((PACKAGE / mutant.file).read_text(encoding="utf-8"))
    begins = None
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0].lineno
            if first <= mutant.line <= (node.end_lineno or 0):
                begins = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return begins


def tried(mutants: Sequence[Mutant], reach: Reach) -> Iterator[dict[str, object]]:
    """Each mutant with what became of it: killed, survived, slow or never reached; two at a time on two processors.

    Args:
        mutants: The mutants.
        reach: Which tests can notice which.

    Yields:
        The mutant, its outcome, the test that noticed, and the processor seconds it took.
    """
    load_libraries()
    with tempfile.TemporaryDirectory(prefix="kohort-mutants-") as folder, get_context("fork").Pool(JOBS) as pool:
        given = [(mutant, reach.tests(mutant), Path(folder)) for mutant in mutants]
        yield from pool.imap_unordered(_attempt, given)


def _attempt(given: tuple[Mutant, Sequence[str], Path]) -> dict[str, object]:
    mutant, tests, folder = given
    if not tests:
        return {**asdict(mutant), "outcome": "unreached", "by": None, "seconds": 0.0}
    vars(numba.config)["DISABLE_JIT"] = mutant.file in LOCAL_SEARCH  # a compiled kernel would come from a cache
    try:
        with changed_file(folder, mutant.file, lambda text: changed(text, mutant)) as source:
            try:
                found = _run(source, tests)
            except LookupError:  # the change renamed parameters of tests
                found = _run(source, list(dict.fromkeys(test.partition("[")[0] for test in tests)))
    finally:
        vars(numba.config)["DISABLE_JIT"] = False
    outcome = "killed" if found.failed else "survived" if found.in_time else "slow"
    return {**asdict(mutant), "outcome": outcome, "by": found.failed, "seconds": round(found.cpu, 1)}


def _run(source: Path, tests: Sequence[str]) -> Ended:
    found = until_one_fails(source, tests, collecting=True, cpu=ENDLESS)
    return found if found.in_time else until_one_fails(source, tests, collecting=True, cpu=SURELY_ENDLESS)


def table(path: Path) -> str:
    """The outcomes by package, and every survivor."""
    outcomes = Outcomes(path)
    rows = ["| part | tried | noticed at first | noticed now | left |", "|---|---:|---:|---:|---:|"]
    for name in (*FOLDERS, ""):
        mine = [mutant for mutant in outcomes.first if mutant.file.startswith(name)]
        first, last = (sum(said[one] in NOTICED for one in mine) for said in (outcomes.first, outcomes.last))
        shares = " | ".join(f"{count} ({count / max(len(mine), 1):.0%})" for count in (first, last))
        rows.append(f"| {name or 'all'} | {len(mine)} | {shares} | {len(mine) - last} |")
    rows += ["", "| survivor | change | was | became |", "|---|---|---|---|"]
    for one in sorted(outcomes.left(), key=lambda one: (one.file, one.line)):
        was, became = (" ".join(text.split()).replace("|", "\\|") for text in (one.old, one.new))
        rows.append(f"| `{one.file}:{one.line}` | {one.kind} | `{was[:90]}` | `{became[:90]}` |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Try mutants, or print the table of those that were tried."""
    parser = argparse.ArgumentParser(description="Mutation testing by sample.")
    parser.add_argument("tests", nargs="*", help="with --record: the tests to run, such as tests/privacy")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files whose paths begin so, such as privacy/dp")
    parser.add_argument("--most", type=float, default=MOST, help="processor seconds of tests for one mutant")
    parser.add_argument("--out", type=Path, help="file that takes what became of each; none of it is drawn again")
    parser.add_argument("--record", type=Path, help="write which tests enter which functions to this file")
    parser.add_argument("--reach", type=Path, help="the file that --record wrote")
    parser.add_argument("--again", type=Path, help="try those of a file of --out that nothing noticed once more")
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table is not None:
        print(table(given.table), end="")
        return 0
    if given.record is not None:
        return record(given.record, given.tests)
    if given.reach is None or not given.reach.exists():
        parser.error("--reach must name a file that --record wrote")
    before, out = Outcomes(given.again or given.out), given.again or given.out
    mutants = before.left() if given.again else sampled(given.count, given.seed, given.only, before.first)
    found, noticed_by = Counter[str](), set[str]()
    for one in tried(mutants, Reach(given.reach, most=given.most)):
        found[str(one["outcome"])] += 1
        noticed_by |= {by} if (by := str(one["by"])).partition("::")[0].endswith(".py") else set()
        print(f"{one['outcome']:10}{one['file']}:{one['line']} {one['kind']}", flush=True)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one) + "\n")
    with tempfile.TemporaryDirectory(prefix="kohort-mutants-") as folder:
        broken, _ = always_failing(sorted(noticed_by), Path(folder))
    print(dict(found), f"but {broken} fails without any mutant" if broken else "")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
