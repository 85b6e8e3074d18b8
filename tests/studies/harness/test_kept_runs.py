"""Runs of a study that are kept in a file: a study that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort.errors import ConfigError
from kohort.runs.config import Plan
from kohort.studies.harness.kept import RUNS_FILE, KeptRuns, kept_runs
from kohort.studies.harness.runs import Runs, RunSummary, summarise
from kohort.studies.hybrid import study as hybrid
from kohort.studies.partial.plans import PAPER, paper_gate

ABOUT = {"study": "a", "version": "1"}
PLANS = [paper_gate(PAPER, letter, 1, rounds=rounds) for letter in ("k", "l") for rounds in (2, 3)]


class StoppedError(Exception):
    """Somebody pressed Ctrl-C."""


class Maker:
    """Makes runs, and stops after some."""

    def __init__(self, last: int = 1000) -> None:
        self.made: list[tuple[str, int]] = []
        self.last = last

    def __call__(self, plans: list[Plan], seed: int, *_: object) -> Iterator[RunSummary]:
        for plan in plans:
            if len(self.made) == self.last:
                raise StoppedError
            self.made.append((plan.digest(), seed))
            yield RunSummary.of_accuracy(len(self.made) / 8, (0.5, 1 / 3), epsilon=0.1, void=seed == 1)


def runs_of(store: KeptRuns, maker: Maker) -> Runs[RunSummary]:
    return Runs((0, 1), summarise=summarise, group=maker, store=store)


def test_a_stopped_study_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = runs_of(KeptRuns(kept_runs(tmp_path / "whole", ABOUT, resume=False), "x", RunSummary), Maker())
    whole.prepare(PLANS)
    first = Maker(last=5)
    with pytest.raises(StoppedError):
        runs_of(KeptRuns(kept_runs(tmp_path, ABOUT, resume=False), "x", RunSummary), first).prepare(PLANS)
    # The stop came in the middle of a line.
    path = tmp_path / RUNS_FILE
    path.write_bytes(path.read_bytes()[:-30])
    second = Maker()
    second.made = first.made[:4]
    resumed = runs_of(KeptRuns(kept_runs(tmp_path, ABOUT, resume=True), "x", RunSummary), second)
    resumed.prepare(PLANS)
    assert len(second.made) == len(PLANS) * 2
    assert len(set(second.made)) == len(PLANS) * 2
    for plan in PLANS:
        ours, others = ([(one.accuracy, one.curve, one.epsilon, one.void) for one in runs.of(plan)]
                        for runs in (resumed, whole))  # fmt: skip
        assert ours == others
    again = Maker(last=0)
    runs_of(KeptRuns(kept_runs(tmp_path, ABOUT, resume=True), "x", RunSummary), again).prepare(PLANS)
    assert again.made == []


def test_runs_of_another_kind_are_not_taken_over(tmp_path: Path) -> None:
    path = kept_runs(tmp_path, ABOUT, resume=False)
    runs_of(KeptRuns(path, "validation rows", RunSummary), Maker()).prepare(PLANS[:1])
    maker = Maker()
    runs_of(KeptRuns(path, "test rows", RunSummary), maker).prepare(PLANS[:1])
    assert len(maker.made) == 2


def test_runs_of_another_version_are_refused_and_forgotten_without_resume(tmp_path: Path) -> None:
    path = kept_runs(tmp_path, ABOUT, resume=False)
    runs_of(KeptRuns(path, "x", RunSummary), Maker()).prepare(PLANS)
    with pytest.raises(ConfigError, match="another version"):
        kept_runs(tmp_path, {**ABOUT, "version": "2"}, resume=True)
    assert KeptRuns(kept_runs(tmp_path, ABOUT, resume=True), "x", RunSummary).find(PLANS[0].digest(), 0) is not None
    assert KeptRuns(kept_runs(tmp_path, ABOUT, resume=False), "x", RunSummary).find(PLANS[0].digest(), 0) is None


def test_nothing_to_resume_is_exit_2(tmp_path: Path, kohort_here: Callable[..., Any]) -> None:
    for name, said in (("hybrid", "no study that was begun"), ("anonymised", "keeps no finished runs")):
        code, _, shown = kohort_here("study", name, "--quick", "--resume", "--out", tmp_path / "none")
        assert code == 2
        assert said in shown


def test_a_full_study_does_not_take_over_runs_of_a_quick_one(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        hybrid.run_study(tmp_path, True, _stop)
    with pytest.raises(ConfigError, match="another regions, rows"):
        hybrid.run_study(tmp_path, False, _stop, resume=True)
    with pytest.raises(StoppedError):
        hybrid.run_study(tmp_path, True, _stop, resume=True)


def _stop(said: str) -> None:
    raise StoppedError(said)
