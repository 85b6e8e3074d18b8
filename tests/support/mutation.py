"""Mutation tests: change one line of the source at a time, and see the tests that guard it fail.

A list of mutants and one call of `main` make a command:

    python FILE                all mutants, as many at a time as there are processors
    python FILE masks door     those whose names hold one of these words
    python FILE --slice 2/4    the second quarter of them

Each mutation is an exact replacement of text in a copy of `src`; text that no longer occurs exactly once is an error.
The tests that must notice run without any mutant first. The last line says how many were caught; exit 1 when a mutant
survives, or was not tried to the end. KOHORT_MUTANT_JOBS and KOHORT_MUTANT_SECONDS change how many run at a time, and
how long one may take.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from time import perf_counter
from typing import NamedTuple

__all__ = ["ROOT", "Mutant", "main", "mutated"]

ROOT = Path(__file__).resolve().parents[2]
LIES = "0.25"
"""The share of lies that is told to a mutant."""
SECONDS = int(os.environ.get("KOHORT_MUTANT_SECONDS", "600"))
JOBS = int(os.environ.get("KOHORT_MUTANT_JOBS", str(os.cpu_count() or 1)))


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
    seconds: float


def mutated(text: str, mutant: Mutant) -> str:
    """The text of a file with a mutant's change; exit where what it replaces does not occur exactly once."""
    if text.count(mutant.old) != 1:
        found = text.count(mutant.old)
        raise SystemExit(f"{mutant.name}: the text to replace occurs {found} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


def _failing(source: Path, tests: str, only: str) -> str | None:
    """The first test of a part of the suite that fails with this source; nothing when all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    command += [*tests.split(), *(["-k", only] if only else [])]
    environment = {**os.environ, "PYTHONPATH": str(source), "KOHORT_LIES": LIES, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode not in {0, 1}:
        raise SystemExit(
            f"{tests} -k {only!r}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr}"
        )
    named = re.search(r"^(?:FAILED|ERROR) \S*?::(\S+)", done.stdout, re.MULTILINE)
    return None if done.returncode == 0 else named[1] if named else "a test"


def _guards(mutants: Iterable[Mutant]) -> dict[str, str]:
    """By files of tests, the names of all tests in them that guard some mutant: each is run once without any."""
    words: dict[str, list[str]] = {}
    for mutant in mutants:
        words.setdefault(mutant.tests, []).append(mutant.only)
    return {tests: " or ".join(f"({word})" for word in dict.fromkeys(only)) if all(only) else ""
            for tests, only in words.items()}  # fmt: skip


class _Workers:
    """Copies of the source, one per mutant that is tried at the same time."""

    def __init__(self, folder: Path) -> None:
        self._free: Queue[Path] = Queue()
        for number in range(JOBS):
            shutil.copytree(ROOT / "src", folder / str(number))
            self._free.put(folder / str(number))

    def baseline(self, which: tuple[str, str]) -> tuple[str, bool]:
        """A part of the suite without any mutant: what it is, and whether it passes in time."""
        source = self._free.get()
        try:
            passes = _failing(source, *which) is None
        except subprocess.TimeoutExpired:
            passes = False
        finally:
            self._free.put(source)
        return f"{which[0]} -k {which[1]!r}", passes

    def attempt(self, mutant: Mutant) -> _Tried:
        """Try one mutant: "caught", "SURVIVED" or "TOO SLOW", by which test, and the seconds it took."""
        source, began, by = self._free.get(), perf_counter(), ""
        path = source / "kohort" / mutant.file
        whole, written = path.read_text(encoding="utf-8"), path.stat()
        try:
            path.write_text(mutated(whole, mutant), encoding="utf-8")
            found = _failing(source, mutant.tests, mutant.only)
            said, by = ("SURVIVED", "") if found is None else ("caught", found)
        except subprocess.TimeoutExpired:
            said = "TOO SLOW"
        finally:
            path.write_text(whole, encoding="utf-8")
            os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))  # what was compiled of it is still good
            self._free.put(source)
        return _Tried(mutant, said, by, perf_counter() - began)


def _chosen(words: list[str], mutants: Sequence[Mutant]) -> list[Mutant]:
    part, parts = 1, 1
    if words[:1] == ["--slice"]:
        part, parts = map(int, words[1].split("/"))
        words = words[2:]
    found = [mutant for mutant in mutants if not words or any(word in mutant.name for word in words)]
    return found[part - 1 :: parts]


def main(words: list[str], mutants: Sequence[Mutant]) -> int:
    """Try the mutants whose names hold one of the words, or all.

    Args:
        words: Parts of names, after `--slice PART/PARTS` where only some are to be tried.
        mutants: The mutants to choose from.

    Returns:
        1 when a mutant survived or was too slow, otherwise 0.
    """
    chosen, began = _chosen(words, mutants), perf_counter()
    for mutant in chosen:  # all texts must be there before the first one is tried
        mutated((ROOT / "src" / "kohort" / mutant.file).read_text(encoding="utf-8"), mutant)
    with tempfile.TemporaryDirectory(prefix="kohort-mutants-") as made, ThreadPoolExecutor(JOBS) as pool:
        workers = _Workers(Path(made))
        for name, passes in pool.map(workers.baseline, _guards(chosen).items()):
            if not passes:
                raise SystemExit(f"{name} fails, or takes too long, without any mutant")
        print(f"the tests pass without any mutant, in {(perf_counter() - began) / 60:.1f} minutes", flush=True)
        left = 0
        for mutant, said, by, took in pool.map(workers.attempt, chosen):
            print(f"{said:8} {took:5.1f} s  {mutant.name}{f' ({by})' if by else ''}", flush=True)
            left += said != "caught"
    took = (perf_counter() - began) / 60
    print(f"{len(chosen) - left} of {len(chosen)} caught, in {took:.1f} minutes")
    return 1 if left else 0
