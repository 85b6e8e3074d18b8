"""Importing, running, reporting and explaining look up no name and begin no connection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = r"""
import sys

ASKED = ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto", "urllib.Request", "http")

def listen(event, arguments):
    if event.startswith(ASKED):
        print("NETWORK", event, flush=True)

sys.addaudithook(listen)
exec(sys.argv[1])
"""
_PLAN = """
[data]
table = "adult:train"
target = "income"
features = ["age", "education_num"]
missing = "drop"
[sites]
count = 3
[method]
name = "additive"
rounds = 3
"""
_COMMANDS = """
from kohort.cli.main import main
for words in (["run", "plan.toml", "--out", "out"], ["report", "out"], ["explain", "out", "--out", "curves.html"]):
    sys.argv = ["kohort", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


def _heard(program: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("NETWORK")]


@pytest.mark.parametrize("program", ["import kohort, kohort.api, kohort.cli.main, kohort.runs.run", _COMMANDS])
def test_nothing_is_asked_of_the_network(program: str, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(_PLAN)
    assert _heard(program, tmp_path) == []


def test_a_connection_would_be_heard(tmp_path: Path) -> None:
    program = "import socket; socket.socket().connect_ex(('127.0.0.1', 9))"
    assert _heard(program, tmp_path) == ["NETWORK socket.connect"]
