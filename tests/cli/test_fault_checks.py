"""What `make faults` must notice. The faults themselves take minutes; here is what they are judged by."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support.faults import Ended, Fault, files_of, judged

SOUND = b'{"a": 1}\n'


def test_what_must_not_happen_is_noticed(tmp_path: Path) -> None:
    full = Fault("full", 0.5)
    assert judged("run", full, Ended(7, b"kohort: the disk is full"), tmp_path) == ""
    assert judged("run", full, Ended(None, b""), tmp_path) == "hang"
    for code in (1, -signal.SIGABRT, -signal.SIGKILL, 130):
        assert judged("run", full, Ended(code, b""), tmp_path) == f"exit {code}"
    assert judged("run", full, Ended(7, b"Traceback (most recent call last)"), tmp_path) == "traceback"
    assert judged("run", full, Ended(3, b"the cell zqxnorth"), tmp_path) == "a cell in a message"
    assert judged("run", Fault("kill", 0.5), Ended(-signal.SIGKILL, b""), tmp_path) == ""
    assert judged("run", Fault("interrupt", 0.5), Ended(130, b""), tmp_path) == ""


IN_PART = "an output is there in part after exit 7"


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("made.json", SOUND, ""),
        ("made.json", SOUND[:4], IN_PART),
        ("made.csv", b"a,b\n1", IN_PART),
        (".made.json.x1", SOUND, "a temporary file is left"),
    ],
)
def test_outputs_are_whole_or_absent(name: str, content: bytes, wrong: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert judged("predict", Fault("full", 0.5), Ended(7, b""), tmp_path) == wrong


def test_a_second_attempt_is_compared_by_model_and_ledger(tmp_path: Path) -> None:
    for place in ("made/model/model.json", "made/ledger/ledger.jsonl", "made/run.json", "made/ledger/head.json"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(SOUND)
    before = files_of("dp run", tmp_path)
    assert set(before) == {"made/model/model.json", "made/ledger/ledger.jsonl"}
    (tmp_path / "made/ledger/ledger.jsonl").write_bytes(SOUND + SOUND)
    assert files_of("dp run", tmp_path) != before
