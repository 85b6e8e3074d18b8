"""`python -m bench [NAME ...]`: run benchmarks and rewrite RESULTS.md."""

from __future__ import annotations

import sys

from bench.harness import main, run_here

if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        run_here(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))
