"""Many drawn cases on all processors: what fuzzing and fault injection share.

A program calls itself once per processor as a worker. A worker prints its counts as JSON in its last line. Counts of
what failed begin with "!", counts that are no cases with "(".
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "2"}
"""Small products need one thread."""


@dataclass(frozen=True, kw_only=True)
class Cases:
    """A program that tries drawn cases.

    Attributes:
        name: In names of folders.
        about: What it does, for its help.
        program: Its file, which workers run.
        count: Cases when nothing is said.
        choices: Options that narrow what is drawn, with their values.
        make_inputs: Writes what all cases begin with into a folder.
        work: What a worker does: takes the options and the folder, and counts.
    """

    name: str
    about: str
    program: str
    count: int
    choices: Mapping[str, Sequence[str]]
    make_inputs: Callable[[Path], None]
    work: Callable[[argparse.Namespace, Path], Counter[str]]

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the cases on all processors; 0 when none failed and none is missing."""
        given = self._parser().parse_args(arguments)
        if given.worker is not None:
            print(json.dumps(self.work(given, given.worker)))
            return 0
        began = time.monotonic()
        os.environ.update(ENVIRONMENT)
        print(f"seed {given.seed}", flush=True)
        with tempfile.TemporaryDirectory(prefix=f"kohort-{self.name}-inputs-") as folder:
            # The key that signs runs is of the cases alone.
            os.environ["KOHORT_STATE"] = os.environ["XDG_CACHE_HOME"] = f"{folder}/state"
            self.make_inputs(Path(folder))
            found = self._spread_out(given, folder)
        failed = sum(count for what, count in found.items() if what.startswith("!"))
        tried = sum(count for what, count in found.items() if what[0] not in "!(")
        print(json.dumps(dict(sorted(found.items())), indent=1))
        print(f"{tried:,} cases in {time.monotonic() - began:.0f} s: {failed} failed")
        return 1 if failed or tried < given.cases else 0

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(description=self.about)
        parser.add_argument("--cases", type=int, default=self.count)
        parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
        for option, values in self.choices.items():
            parser.add_argument(f"--{option}", choices=list(values))
        parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
        parser.add_argument("--kept", type=Path, default=ROOT / "out" / self.name)
        parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
        return parser

    def _spread_out(self, given: argparse.Namespace, folder: str) -> Counter[str]:
        """The counts of all workers; one that ended early counts nothing but itself."""
        workers = [
            subprocess.Popen(self._command(given, folder, job), stdout=subprocess.PIPE, text=True)
            for job in range(given.jobs)
        ]
        found: Counter[str] = Counter()
        for worker in workers:
            said, _ = worker.communicate()
            if worker.returncode == 0:
                found += Counter(json.loads(said.splitlines()[-1]))
            else:
                found["! a worker ended"] += 1
        return found

    def _command(self, given: argparse.Namespace, folder: str, job: int) -> list[str]:
        """A worker's command: its share of the cases, and a seed of its own."""
        share = given.cases // given.jobs + (job < given.cases % given.jobs)
        words: dict[str, Any] = {"worker": folder, "cases": share, "kept": given.kept, "seed": given.seed + job}
        words |= {name: getattr(given, name) for name in self.choices if getattr(given, name) is not None}
        return [sys.executable, self.program, *(part for name in words for part in (f"--{name}", str(words[name])))]
