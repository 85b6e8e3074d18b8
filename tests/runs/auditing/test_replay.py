"""A replay is the stored run or an error, and says which version wrote a run that does not come out again."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.runs.auditing.test_leaky import ONE_ROUND, people, plan_of

from kohort.errors import DataError, IntegrityError
from kohort.runs.auditing import replay as module
from kohort.runs.auditing.replay import read_stored, repeat
from kohort.runs.run import run


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    run(plan_of({"name": "fedavg"}, train=ONE_ROUND), out=tmp_path / "run", seed=3, tables={"": people(60)})
    return tmp_path / "run"


def test_what_was_heard_is_what_the_ledger_lists(finished: Path) -> None:
    stored = read_stored(finished)
    made = repeat(stored.plan, seed=3, tables={"": people(60)}, stored=stored)
    assert made.outcome.ledger_head == stored.result["ledger_head"]
    assert {ask.task.name for ask, _ in made.recorded} >= {"prepare", "train"}


def test_another_table_or_seed_is_another_run(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = read_stored(finished)
    other = people(60).with_columns(pl.col("age") + 1)
    with pytest.raises(IntegrityError, match="other releases"):
        repeat(stored.plan, seed=3, tables={"": other}, stored=stored)
    monkeypatch.setattr(module, "version", lambda _: "99.0")
    with pytest.raises(IntegrityError, match=r"wrote it, and this is 99\.0"):
        repeat(stored.plan, seed=4, tables={"": people(60)}, stored=stored)


def test_an_older_folder_without_its_table_says_who_wrote_it() -> None:
    old = read_stored(Path(__file__).parents[2] / "golden" / "run-v1")
    assert any("before results were bound" in note for note in old.notes)
    with pytest.raises(DataError, match="an early version of kohort wrote it") as error:
        repeat(old.plan, seed=0, stored=old)
    assert error.value.hint == "Audit it where its table is"
