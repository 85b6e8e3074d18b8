"""A library that ends the process under a limit on addresses is exit 7 and one line; else nothing is different."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")

WORK = """
import os, signal, sys, time
from kohort.cli.native_aborts import in_child
def aborted():
    os.write(2, b"too little memory\\n")
    return 7
code = in_child(aborted)
if code is not None:
    os._exit(code)
"""
LIMIT = 1 << 40


def start(work: str, *, limit: int | None = LIMIT) -> subprocess.Popen[str]:
    """Python code that goes on in a child where there is a limit."""

    limited = "" if limit is None else f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", limited + WORK + work], **options)


def ended(work: str, *, limit: int | None = LIMIT) -> tuple[int, str, str]:
    process = start(work, limit=limit)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("number", ["SIGABRT", "SIGSEGV", "SIGBUS"])
def test_an_abort_under_a_limit_is_exit_7_and_the_words_of_the_library_are_dropped(number: str) -> None:
    said = "os.write(2, b'memory allocation failed'); print('said', file=sys.stderr)"
    assert ended(f"{said}; os.kill(os.getpid(), signal.{number})") == (7, "", "said\ntoo little memory\n")


def test_without_a_limit_there_is_no_child() -> None:
    code, _, err = ended("os.write(2, b'own words'); os.abort()", limit=None)
    assert (code, err) == (-signal.SIGABRT, "own words")


def test_a_child_that_ends_by_itself_is_what_its_parent_is() -> None:
    assert ended("print('out'); print('err', file=sys.stderr); os.write(2, b'native'); sys.exit(3)") == (
        3,
        "out\n",
        "err\nnative",
    )
    assert ended("os.kill(os.getpid(), signal.SIGKILL)")[0] == -signal.SIGKILL


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_to_the_parent_reaches_the_child_once(number: signal.Signals, code: int) -> None:
    work = (
        "signal.signal(signal.SIGINT, lambda *_: (print('came', flush=True), os._exit(130)))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    process = start(work)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ("came\n" if number == signal.SIGINT else "")


def test_a_child_ends_with_its_parent() -> None:
    process = start("print(os.getpid(), flush=True); time.sleep(60)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=60)
    end = time.monotonic() + 30
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < end:
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    assert time.monotonic() < end
    assert child != os.getpid()


@pytest.mark.parametrize("words", ["check {table}", "gate {table} --rule k-anonymity --k 5", "anonymize {csv} --k 5"])
@pytest.mark.parametrize("limit", [1_200_000_000, 1_500_000_000])
def test_a_table_that_does_not_fit_under_a_limit_is_exit_7_and_one_line(words: str, limit: int, tmp_path: Path) -> None:
    rows, random = 600_000, np.random.default_rng(1)
    towns = np.array(["north", "south", "west"])[random.integers(0, 3, rows)]
    table = pl.DataFrame({"who": np.arange(rows), "age": random.integers(18, 90, rows), "town": towns})
    table.write_parquet(tmp_path / "people.parquet", row_group_size=50_000)
    table.write_csv(tmp_path / "people.csv")
    places = {"table": tmp_path / "people.parquet", "csv": tmp_path / "people.csv"}
    out = ["--out", str(tmp_path / "out.csv")] if words.startswith("anonymize") else []
    done = subprocess.run(
        [sys.executable, "-m", "kohort.cli.main", *words.format(**places).split(), "--quasi", "age,town",
         "--identifiers", "who", *out],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert done.returncode in {0, 7}, done.stderr
    if done.returncode == 7:
        assert done.stderr.count("\n") == 1, done.stderr
        assert not (tmp_path / "out.csv").exists()
