"""Standard streams that are closed, full or narrow do not decide whether a command succeeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="streams are opened by a shell")
ROLES = "--quasi age,ward"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "people.csv"
    table = {"age": [30, 31] * 10, "ward": ["n\u00f6rth", "south"] * 10, "st\u00e6te": ["ill"] * 20}
    pl.DataFrame(table).write_csv(path)
    return path


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of bash; `kohort` in it is the command."""
    words = f'kohort() {{ "{sys.executable}" -m kohort.cli.main "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **env}
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("words", ["schema", "check {table} --json", "check {table}", "--version"])
def test_results_that_cannot_be_written_are_exit_7_and_one_line(words: str, people: Path) -> None:
    done = shell(f"kohort {words.replace('{table}', f'{people} {ROLES}')} >/dev/full")
    errors = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert (done.returncode, len(errors)) == (7, 1), done.stderr
    assert "no space left on device" in errors[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize(("words", "code"), [("check {table}", 0), ("check absent.csv", 3)])
@pytest.mark.parametrize("errors", ["2>/dev/full", "2>&-"])
def test_messages_that_cannot_be_written_change_no_exit_code(words: str, code: int, errors: str, people: Path) -> None:
    done = shell(f"kohort {words.format(table=people)} {ROLES} --json {errors}")
    assert done.returncode == code
    assert bool(done.stdout) == (code == 0)


def test_closed_streams_are_as_the_null_device(people: Path, tmp_path: Path) -> None:
    """A file that is opened next would get the number of the stream, and what is printed."""
    out = tmp_path / "out.csv"
    done = shell(f"kohort anonymize {people} {ROLES} --drop rest --k 2 --out {out} <&- >&- 2>&-")
    assert done.returncode == 0
    assert pl.read_csv(out).height == 20
    done = shell(f"kohort check - {ROLES} <&-")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "standard input is empty" in done.stderr


@pytest.mark.parametrize("words", ["schema", "check {table} --json"])
def test_a_reader_that_leaves_is_no_error(words: str, people: Path) -> None:
    done = shell(f"kohort {words.replace('{table}', f'{people} {ROLES}')} | true; echo ${{PIPESTATUS[0]}} >&2")
    assert done.stderr == "0\n"


def test_letters_that_a_stream_lacks_are_escaped(people: Path) -> None:
    for words, code in ((f"check {people} --quasi st\u00e6te", 0), (f"check {people} --quasi age,st\u00f8te", 3)):
        done = shell(f"kohort {words}", PYTHONIOENCODING="ascii:strict")
        assert (done.returncode, "bug" in done.stderr) == (code, False)
        assert bool(done.stdout) == (code == 0)


def test_a_run_whose_progress_cannot_be_printed_goes_on(plan_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = shell(f"kohort run {plan_file} --out {out} 2>&1 >/dev/null | true; echo ${{PIPESTATUS[0]}}")
    assert done.stdout == "0\n"
    assert (out / "run.json").is_file()


@pytest.mark.parametrize(("name", "value"), [("POLARS_MAX_THREADS", "0"), ("PYTHONWARNINGS", "error")])
def test_settings_that_break_a_library_are_one_line(name: str, value: str, people: Path) -> None:
    done = shell(f"kohort check {people} {ROLES}", **{name: value})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert name in done.stderr


@pytest.mark.parametrize("limit", [8, 16, 31])
def test_few_file_handles_are_exit_7(limit: int, people: Path) -> None:
    done = shell(f"ulimit -n {limit}; kohort check {people} {ROLES}")
    assert (done.returncode, done.stderr.count("\n")) == (7, 1), done.stderr
    assert "Raise ulimit -n to 32" in done.stderr
