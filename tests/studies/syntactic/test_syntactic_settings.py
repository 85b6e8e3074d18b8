"""Settings of the syntactic study: folds inside the training rows, and the candidate that is best over all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.studies.syntactic.test_syntactic_study import TINY, small_table

from kohort.rng import Streams
from kohort.runs.simulation import Population, populate
from kohort.studies.harness.runs import RunSummary
from kohort.studies.syntactic import settings
from kohort.studies.syntactic.folds import FOLDS, fold_numbers, measured_on_fold
from kohort.studies.syntactic.plans import CENTRAL, FL, LEARNERS, federated, noisy, syntactic
from kohort.studies.syntactic.settings import CandidateSetting, cross_validate

__all__ = ["small_table"]


def sites_of(seed: int) -> Population:
    """The sites of the study's small table."""
    return populate(federated("logistic", {"name": FL}, rounds=1), Streams.seeded(seed))


def test_folds_part_the_training_rows_and_hold_no_test_row(small_table: Path) -> None:
    del small_table
    whole = sites_of(3)
    tested = []
    for number in range(FOLDS):
        part = measured_on_fold(whole, 3, number)
        assert part.frame.height + part.test.height == whole.frame.height
        assert not set(part.test["patient_nbr"]) & {*part.frame["patient_nbr"], *whole.test["patient_nbr"]}
        assert all(np.diff(part.starts) >= 0.75 * np.diff(whole.starts)), "every site gives a fifth of its rows"
        tested += part.test["patient_nbr"].to_list()
    assert sorted(tested) == sorted(whole.frame["patient_nbr"].to_list())


def test_all_rows_of_a_patient_are_in_one_fold(small_table: Path) -> None:
    del small_table
    whole = sites_of(3)
    twice = replace(whole, frame=whole.frame.with_columns(pl.col("patient_nbr") // 3))
    folds = twice.frame.select("patient_nbr").with_columns(fold=fold_numbers(twice, 3))
    assert folds.group_by("patient_nbr").agg(pl.col("fold").n_unique())["fold"].max() == 1
    assert folds["fold"].n_unique() == FOLDS


def test_a_setting_is_that_of_its_learner_and_leaves_budgets_alone() -> None:
    chosen = CandidateSetting({**LEARNERS, "svm": 0.3}, ("paying", 0.7))
    assert chosen.applied(federated("svm", {"name": FL}, rounds=1)).train.lr == 0.3
    assert chosen.applied(federated("svm", {"name": CENTRAL}, rounds=1)).train.lr == pytest.approx(0.03)
    assert chosen.applied(noisy("svm", 0.3, rounds=1)) == noisy("svm", 0.3, rounds=1)
    ours = chosen.applied(syntactic("svm", 5, rounds=1))
    assert (ours.config.anonymise.merge, ours.config.anonymise.delta, ours.config.anonymise.k) == ("paying", 0.7, 5)
    alone = CandidateSetting({**LEARNERS, "svm": 0.3}).applied(syntactic("svm", 5, rounds=1, merge="none"))
    assert (alone.config.anonymise.merge, alone.train.lr) == ("none", 0.3)


def test_the_candidate_with_the_best_mean_over_the_folds_is_chosen(
    small_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del small_table
    seen: list[tuple[int, str, float]] = []
    # The third rate is best on one fold by far, and the second on the mean.
    areas = {0.1: [0.6] * 5, 0.2: [0.7] * 5, 0.4: [0.9, 0.6, 0.6, 0.6, 0.6]}

    def measured(plan: Any, *, seed: int, backend: Any) -> Any:
        number = len([one for one in seen if one[1:] == (plan.method, plan.train.lr) and one[0] == seed])
        seen.append((seed, plan.method, plan.train.lr))
        assert backend.population.test.height < backend.population.frame.height
        if plan.method == FL:
            return SimpleNamespace(auc=areas[plan.train.lr][number])
        assert plan.train.lr == 0.2, "clusters join under the rate that was chosen"
        return SimpleNamespace(auc=plan.config.anonymise.delta)

    def kept(outcome: Any) -> RunSummary:
        return replace(RunSummary.of_accuracy(0.0, (), epsilon=None, void=False), metrics={"auc": outcome.auc})

    monkeypatch.setattr(settings, "run", measured)
    monkeypatch.setattr(settings, "summarise", kept)
    depth = replace(TINY, seeds=(3, 4), rates={"logistic": (0.1, 0.2, 0.4)}, merges=(("all", 0.5), ("paying", 0.95)))
    found = cross_validate(depth, processes=1)
    for seed in (3, 4):
        assert found.settings[seed].rates == {**LEARNERS, "logistic": 0.2}
        assert found.settings[seed].merging == ("paying", 0.95)
    rows = {row.setting: row.ours for row in found.table().rows}
    assert rows["split 3, logistic, rate 0.2: AUC, chosen"] == pytest.approx(0.7)
    assert rows["split 4, logistic, rate 0.4: AUC"] == pytest.approx(0.66)
    assert len(seen) == 2 * FOLDS * (3 + 2)
