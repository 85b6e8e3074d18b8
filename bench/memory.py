"""How much memory ten thousand sites take: the real engine in a process of its own, its peak read from the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.harness import Row

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "memory"
SUMMARY = "Peak resident memory of a whole process: 10,000 sites x 100 rows, 5 rounds of FedAvg, ledger on disk."
LIMIT_GB = 2.0

_PROGRAM = """
import resource, sys
from bench.setup_federation import Federation, run_kohort
run_kohort(Federation(sites=10_000, rows=100, rounds=5))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak * (1 if sys.platform == "darwin" else 1024))
"""


def measure() -> list[Row]:
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=root, capture_output=True, text=True, check=True)
    return [
        Row.within(
            "10,000 sites x 100 rows, 5 rounds",
            ours=int(done.stdout.split()[-1]) / 1e9,
            peer="limit",
            theirs=LIMIT_GB,
            unit="GB",
        )
    ]
