"""Mutation tests: change one line of the source at a time, and see the tests that guard it fail.

A list of mutants and one call of `main` make a command:

    python FILE                all mutants, as many at a time as there are processors
    python FILE masks door     those whose names hold one of these words
    python FILE --slice 2/4    the second quarter of them

Each mutation is an exact replacement of text in a copy of `src`; text that no longer occurs exactly once is an error.
Every mutant is tried in a process of its own, forked from one that has loaded the libraries but nothing of kohort, and
its tests stop at the first that fails. The test that caught it in an earlier run, as `caught_by.json` remembers, goes
first; where it passes, all tests of the mutant follow. At the end the tests that caught something run without any
mutant: what fails then caught nothing. The last line says how many were caught, and the processor seconds of each;
exit 1 when a mutant survives, was not tried to the end, or was caught by a test that always fails. KOHORT_MUTANT_JOBS
and KOHORT_MUTANT_SECONDS change how many run at a time, and how long one may take.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import NamedTuple

__all__ = [
    "JOBS",
    "REMEMBERED",
    "ROOT",
    "Ended",
    "Mutant",
    "always_failing",
    "changed_file",
    "load_libraries",
    "main",
    "mutated",
    "until_one_fails",
]

ROOT = Path(__file__).resolve().parents[2]
REMEMBERED = Path(__file__).with_name("caught_by.json")
"""By the name of a mutant, the test that caught it last."""
LIES = "0.25"
"""The share of lies that is told to a mutant."""
SECONDS = int(os.environ.get("KOHORT_MUTANT_SECONDS", "600"))
JOBS = int(os.environ.get("KOHORT_MUTANT_JOBS", str(os.cpu_count() or 1)))
_LIBRARIES = ("numpy", "polars", "hypothesis", "numba", "scipy.special", "cryptography.hazmat.primitives.asymmetric")
"""What nearly all tests load. None of them starts a thread by being loaded, so a process may fork afterwards."""


class Mutant(NamedTuple):
    """One check removed, and the part of the suite that must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    only: str = ""
    """What the names of the tests must hold, as for `pytest -k`."""


class _Tried(NamedTuple):
    """What became of one mutant."""

    mutant: Mutant
    said: str
    by: str
    cpu: float


class Ended(NamedTuple):
    """How a process that ran tests ended: the first test that failed, if any, and the processor seconds it took."""

    failed: str | None
    cpu: float
    in_time: bool = True


def mutated(text: str, mutant: Mutant) -> str:
    """The text of a file with a mutant's change; exit where what it replaces does not occur exactly once."""
    if text.count(mutant.old) != 1:
        found = text.count(mutant.old)
        raise SystemExit(f"{mutant.name}: the text to replace occurs {found} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


def load_libraries() -> None:
    """Load what nearly all tests need, so that processes forked from this one need not."""
    for library in ("pytest", *_LIBRARIES):
        import_module(library)


def _run_tests(source: Path, chosen: Sequence[str], log: Path) -> int:
    """In a forked process: pytest with kohort from `source`; its exit code, or 3 if another kohort was loaded."""
    os.setsid()
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(source), "KOHORT_LIES": LIES, "PYTHONDONTWRITEBYTECODE": ""}
    sys.path.insert(0, str(source))
    sys.dont_write_bytecode = False
    import pytest

    # A folder of its own, for another pytest of this user removes those of earlier ones.
    own = ["--basetemp", str(source.with_suffix(".tests"))]
    code = int(pytest.main(["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", *own, *chosen]))
    loaded = sys.modules.get("kohort")
    return 3 if loaded is None or not str(loaded.__file__).startswith(str(source)) else code


def until_one_fails(
    source: Path, chosen: Sequence[str], *, collecting: bool = False, cpu: int = resource.RLIM_INFINITY
) -> Ended:
    """Run tests with this source until one fails.

    Args:
        source: The folder that holds kohort.
        chosen: What pytest is asked to run.
        collecting: Whether a test file that cannot be read counts as a test that failed.
        cpu: The processor seconds after which they are ended.

    Returns:
        How it ended.

    Raises:
        LookupError: A test that was asked for is not there.
        RuntimeError: pytest could not run the tests.
    """
    log, deadline = source.with_suffix(".log"), monotonic() + SECONDS
    child = os.fork()
    if not child:
        code = 3
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, resource.RLIM_INFINITY))
            code = _run_tests(source, chosen, log)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    try:
        while not (waited := os.wait4(child, os.WNOHANG))[0]:
            if monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                spent = os.wait4(child, 0)[2]
                return Ended(None, spent.ru_utime + spent.ru_stime, in_time=False)
            sleep(0.02)
    except BaseException:
        os.killpg(child, signal.SIGKILL)
        raise
    code, spent = os.waitstatus_to_exitcode(waited[1]), waited[2]
    if code == -signal.SIGXCPU:
        return Ended(None, spent.ru_utime + spent.ru_stime, in_time=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    # A test file that cannot be read ends pytest with 2, or with 4 where a test in it was asked for by name.
    unread = collecting and code in {2, 4} and re.search(r"^ERROR \S+\.py - ", text, re.MULTILINE)
    if code == 4 and not unread and "ERROR: not found" in text:
        raise LookupError(f"{' '.join(chosen)}: some of these tests are not there")
    if code not in {0, 1} and not unread:
        raise RuntimeError(f"{' '.join(chosen)}: pytest ended with {code}\n{text[-2000:]}")
    named = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", text, re.MULTILINE)
    return Ended(None if code == 0 else named[1] if named else "a test", spent.ru_utime + spent.ru_stime)


@contextmanager
def changed_file(folder: Path, file: str, change: Callable[[str], str]) -> Iterator[Path]:
    """A copy of the source with one file changed, as long as the context lasts; one copy per process.

    Args:
        folder: Where copies are kept.
        file: The file, below the package.
        change: Makes its new text.

    Yields:
        The folder that holds kohort.
    """
    source = folder / str(os.getpid())
    if not source.exists():
        shutil.copytree(ROOT / "src", source)
    path = source / "kohort" / file
    whole, written = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(change(whole), encoding="utf-8")
    try:
        yield source
    finally:
        path.write_text(whole, encoding="utf-8")
        os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))  # what was compiled of it is still good


def _attempt(given: tuple[Mutant, str, Path]) -> _Tried:
    """Try one mutant: "caught", "SURVIVED" or "TOO SLOW", by which test, and the processor seconds it took."""
    mutant, first, folder = given
    with changed_file(folder, mutant.file, lambda text: mutated(text, mutant)) as source:
        asked = [[first]] if first and (ROOT / first.partition("::")[0]).exists() else []
        cpu, found = 0.0, Ended(None, 0.0)
        for chosen in [*asked, [*mutant.tests.split(), *(["-k", mutant.only] if mutant.only else [])]]:
            found = until_one_fails(source, chosen) if chosen not in asked else _remembered(source, chosen)
            cpu += found.cpu
            if found.failed or not found.in_time:
                break
    said = "caught" if found.failed else "SURVIVED" if found.in_time else "TOO SLOW"
    return _Tried(mutant, said, found.failed or "", cpu)


def _remembered(source: Path, chosen: Sequence[str]) -> Ended:
    """The test that caught it last; one that no longer exists fails nothing."""
    try:
        return until_one_fails(source, chosen)
    except (LookupError, RuntimeError):
        return Ended(None, 0.0)


def _chosen(words: list[str], mutants: Sequence[Mutant]) -> list[Mutant]:
    part, parts = 1, 1
    if words[:1] == ["--slice"]:
        part, parts = map(int, words[1].split("/"))
        words = words[2:]
    found = [mutant for mutant in mutants if not words or any(word in mutant.name for word in words)]
    return found[part - 1 :: parts]


def _tried(chosen: Sequence[Mutant], folder: Path) -> Iterator[_Tried]:
    """All of them, several at a time; those of the same tests one after the other, so that files are read once."""
    known: dict[str, str] = json.loads(REMEMBERED.read_text(encoding="utf-8")) if REMEMBERED.exists() else {}
    with get_context("fork").Pool(JOBS) as pool:
        yield from pool.imap_unordered(_attempt, [(mutant, known.get(mutant.name, ""), folder) for mutant in chosen])


def always_failing(tests: Sequence[str], folder: Path) -> tuple[str | None, float]:
    """Run tests without any mutant.

    Args:
        tests: The tests.
        folder: Where copies of the source are kept.

    Returns:
        The first of these tests that fails, if any, and the processor seconds all took.
    """
    parts = [tests[number::JOBS] for number in range(JOBS) if tests[number::JOBS]]
    with get_context("fork").Pool(JOBS) as pool:
        found = pool.map(_unchanged, [(part, folder) for part in parts])
    return next((one.failed or "too slow" for one in found if one.failed or not one.in_time), None), sum(
        one.cpu for one in found
    )


def _unchanged(given: tuple[Sequence[str], Path]) -> Ended:
    tests, folder = given
    source = folder / f"unchanged-{os.getpid()}"
    shutil.copytree(ROOT / "src", source)
    return until_one_fails(source, tests)


def _remember(tried: Sequence[_Tried]) -> None:
    """Keep who caught what, for the next run."""
    known = json.loads(REMEMBERED.read_text(encoding="utf-8")) if REMEMBERED.exists() else {}
    known |= {one.mutant.name: one.by for one in tried if one.by}
    REMEMBERED.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(words: list[str], mutants: Sequence[Mutant]) -> int:
    """Try the mutants whose names hold one of the words, or all.

    Args:
        words: Parts of names, after `--slice PART/PARTS` where only some are to be tried.
        mutants: The mutants to choose from.

    Returns:
        1 when a mutant survived or was too slow, or a test that caught one always fails; otherwise 0.
    """
    chosen, began, tried = _chosen(words, mutants), perf_counter(), list[_Tried]()
    for mutant in chosen:  # all texts must be there before the first one is tried
        mutated((ROOT / "src" / "kohort" / mutant.file).read_text(encoding="utf-8"), mutant)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers end what they started
    load_libraries()
    with tempfile.TemporaryDirectory(prefix="kohort-mutants-") as made:
        try:
            for one in _tried(chosen, Path(made)):
                tried.append(one)
                by = f" ({one.by})" if one.by else ""
                print(f"{one.said:8} {one.cpu:5.1f} CPU s  {one.mutant.name}{by}", flush=True)
        finally:
            _remember(tried)
        broken, cpu = always_failing(sorted({one.by for one in tried if one.by}), Path(made))
    left = sum(one.said != "caught" for one in tried)
    minutes, spent = (perf_counter() - began) / 60, sum(one.cpu for one in tried)
    print(f"without any mutant, {f'{broken} fails' if broken else 'the tests that caught one pass'}: {cpu:.0f} CPU s")
    print(
        f"{len(chosen) - left} of {len(chosen)} caught, in {minutes:.1f} minutes; "
        f"{spent / max(len(tried), 1):.1f} CPU s each, {spent + cpu:.0f} in all"
    )
    return 1 if left or broken or len(tried) < len(chosen) else 0
