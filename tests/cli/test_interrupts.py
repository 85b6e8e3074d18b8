"""An interrupt is one line and exit 130, also while the application is being imported."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import ConfigError

SLOW_IMPORT = """
import os, signal, sys
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Slow())
sys.argv = ["kohort", "--help"]
from kohort.cli.main import main
main()
"""


@pytest.mark.parametrize("module", ["kohort.cli.app", "typer", "kohort.cli.anonymize"])
def test_an_interrupt_while_modules_are_imported(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW_IMPORT.format(module=module)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "kohort: interrupted\n")


def test_calling_the_entry_point_leaves_the_handler_as_it_was(kohort_here) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert kohort_here("--version")[0] == 0
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("command", "place", "said"),
    [
        (("compare", "{plan}", "--sweep", "train.lr=0.1,0.2", "--out", "{out}"), "runs.compare.compare", "--resume"),
        (("audit", "{plan}"), "runs.auditing.audit.audit_plan", ""),
    ],
)
def test_an_interrupted_command_says_so(
    command: tuple[str, ...], place: str, said: str, plan_file: Path, tmp_path: Path, kohort_here: Any, monkeypatch: Any
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"kohort.{place}", interrupted)
    code, _, err = kohort_here(*(part.format(plan=plan_file, out=tmp_path / "out") for part in command))
    assert code == 130
    assert err.splitlines()[-1] == "kohort: interrupted"
    assert said in err


class _Panic(BaseException):
    """As errors of native libraries are."""


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_what_a_library_makes_of_an_interrupt_is_an_interrupt(
    plan_file: Path, kohort_here: Any, monkeypatch: Any, is_interrupted: bool
) -> None:
    def panicking(*_: Any, **__: Any) -> None:
        try:
            if is_interrupted:
                signal.raise_signal(signal.SIGINT)
        finally:
            raise _Panic

    monkeypatch.setattr("kohort.runs.auditing.audit.audit_plan", panicking)
    code, _, err = kohort_here("audit", str(plan_file))
    expected = (130, "kohort: interrupted") if is_interrupted else (1, "kohort: a bug in kohort (_Panic)")
    assert (code, err.splitlines()[-1][: len(expected[1])]) == expected


def test_a_refusal_after_an_interrupt_is_still_the_refusal(plan_file: Path, kohort_here: Any, monkeypatch: Any) -> None:
    def refusing(*_: Any, **__: Any) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ConfigError("too late", hint="Try again")

    monkeypatch.setattr("kohort.runs.auditing.audit.audit_plan", refusing)
    assert kohort_here("audit", str(plan_file))[0] == 2
