"""Mutation testing by sample: change one expression of the guarding code at a time, and see whether tests notice.

    python tools/mutate.py --count 60 --seed 1 --out mutants.jsonl     try 60 mutants and append what became of each
    python tools/mutate.py --table mutants.jsonl                       the table of docs/mutation.md

Mutants are drawn from all places of privacy/, crypto/, the checker, the gate and the steps of the local search over
classes where a comparison can be turned, a whole number moved by one, a `not` removed, `and` and `or` exchanged, or a
`raise` dropped. Texts, docstrings, types and what stands in a `raise` are left alone: messages are not behaviour. The
tests of a mutant are those of its package, the ones most likely to notice first. Kernels run uncompiled
(NUMBA_DISABLE_JIT): a compiled one would come from a cache.

A mutant that survives here may still be caught by the rest of the suite, or be equivalent: docs/mutation.md says which.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "kohort"
SECONDS = 120
"""Of the processor, after which a mutant counts as endless."""

# Which tests are asked about which files; the first pattern that a path begins with counts.
TESTS: tuple[tuple[str, str], ...] = (
    ("anonymity/checker/population", "tests/anonymity/relational/test_every_rule.py -k population"),
    ("anonymity/checker/together", "tests/methods/partial/test_released_people.py tests/cli/test_check.py"),
    ("anonymity/checker", "tests/anonymity/checker"),
    ("anonymity/gate", "tests/anonymity/gate"),
    ("anonymity/relational/algorithms", "tests/anonymity/relational/algorithms/test_refine_kernel.py"),
    ("crypto/counting", "tests/crypto/test_counting.py"),
    ("crypto/group_secret", "tests/crypto/test_counting.py tests/crypto/test_sealed.py"),
    ("crypto/identity", "tests/crypto/identity tests/crypto/test_sealed.py"),
    ("crypto/sums/below", "tests/crypto/sums/test_below.py tests/crypto/sums/test_he.py"),
    ("crypto/sums/checks", "tests/crypto/sums/test_checks.py"),
    ("crypto/sums/checked", "tests/crypto/sums/test_checks.py tests/crypto/sums/test_session.py"),
    ("crypto/sums/mask", "tests/crypto/sums/test_masks.py tests/crypto/sums/test_mask_keys.py"),
    ("crypto/sums/key", "tests/crypto/sums/test_key_holder.py tests/crypto/sums/test_key_book.py"),
    ("crypto/sums", "tests/crypto/sums"),
    ("crypto", "tests/crypto/test_sealed.py"),
    ("privacy/dp", "tests/privacy/dp"),
    ("privacy/ledger", "tests/privacy/ledger"),
    ("privacy/openings", "tests/privacy/test_openings.py"),
    ("privacy/explain", "tests/privacy/test_explain.py"),
    ("privacy/claim_words", "tests/privacy/test_explain.py"),
    ("privacy/policy", "tests/privacy/test_policy.py tests/privacy/test_door.py"),
    ("privacy/contract", "tests/privacy/test_door.py tests/adversary/test_nine_rows.py"),
    ("privacy", "tests/privacy/test_door.py tests/privacy/test_guarantee.py tests/privacy/test_policy.py"),
)
LOCAL_SEARCH = ("anonymity/relational/algorithms/refine_kernel.py", "anonymity/relational/algorithms/class_state.py")
FOLDERS = ("privacy", "crypto", "anonymity/checker", "anonymity/gate", *LOCAL_SEARCH)
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


def sampled(count: int, seed: int, only: str = "") -> list[Mutant]:
    """Mutants of files whose paths begin with `only`, each once: a file by its places, then a kind, then a place."""
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    everything = [one for one in places() if one.file.startswith(only)]
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


def tests_of(file: str) -> str:
    """The tests that are asked about a file."""
    return next(tests for pattern, tests in TESTS if file.startswith(pattern))


def tried(mutants: Sequence[Mutant]) -> Iterator[dict[str, object]]:
    """Each mutant with what became of it: killed, survived or slow; the tests pass without a mutant first."""
    with tempfile.TemporaryDirectory(prefix="kohort-mutants-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        sound: dict[str, bool] = {}
        for mutant in mutants:
            tests = tests_of(mutant.file)
            if tests not in sound:
                sound[tests] = _outcome(source, tests) == "survived"
            if not sound[tests]:
                raise SystemExit(f"{tests} fail without any mutant")
            path = source / "kohort" / mutant.file
            whole = path.read_text(encoding="utf-8")
            began = perf_counter()
            try:
                path.write_text(changed(whole, mutant), encoding="utf-8")
                outcome = _outcome(source, tests)
            finally:
                path.write_text(whole, encoding="utf-8")
            yield {**asdict(mutant), "outcome": outcome, "seconds": round(perf_counter() - began, 1)}


def _outcome(source: Path, tests: str) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_DISABLE_JIT": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    limited = f'ulimit -t {SECONDS}; exec "$@"'
    done = subprocess.run(
        ["bash", "-c", limited, "bash", *command, *tests.split()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
    )
    if done.returncode < 0:
        return "slow"
    return "survived" if done.returncode == 0 else "killed"


def table(path: Path) -> str:
    """The outcomes by package, and every survivor."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    package = {id(line): next(one for one in FOLDERS if line["file"].startswith(one)) for line in lines}
    rows = ["| package | tried | noticed | survived |", "|---|---:|---:|---:|"]
    for name in (*FOLDERS, None):
        mine = Counter(line["outcome"] for line in lines if name in (None, package[id(line)]))
        noticed = mine["killed"] + mine["slow"]
        total = noticed + mine["survived"]
        rows.append(f"| {name or 'all'} | {total} | {noticed} ({noticed / max(total, 1):.0%}) | {mine['survived']} |")
    rows += ["", "| survivor | change | was | became |", "|---|---|---|---|"]
    for line in sorted(lines, key=lambda one: (one["file"], one["line"])):
        if line["outcome"] == "survived":
            was, became = (" ".join(str(line[key]).split()).replace("|", "\\|") for key in ("old", "new"))
            rows.append(f"| `{line['file']}:{line['line']}` | {line['kind']} | `{was[:90]}` | `{became[:90]}` |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Try mutants, or print the table of those that were tried."""
    parser = argparse.ArgumentParser(description="Mutation testing by sample.")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="files whose paths begin so, such as privacy/dp")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table is not None:
        print(table(given.table), end="")
        return 0
    found: Counter[str] = Counter()
    for one in tried(sampled(given.count, given.seed, given.only)):
        found[str(one["outcome"])] += 1
        print(f"{one['outcome']:9}{one['file']}:{one['line']} {one['kind']}", flush=True)
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one) + "\n")
    print(dict(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
