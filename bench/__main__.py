"""`python -m bench [--quick] [NAME ...]`: run benchmarks and rewrite RESULTS.md."""

from __future__ import annotations

import sys

from bench.harness import main, run_here
from kohort.errors import KohortError

if __name__ == "__main__":
    if sys.argv[1:2] != ["--here"]:
        sys.exit(main(sys.argv[1:]))
    try:
        run_here(sys.argv[2])
    except KohortError as error:  # such as a table that is not here and cannot be fetched
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
