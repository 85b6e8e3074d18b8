"""Thresholds of the syntactic study: the best one by brute force, on rows that nobody learned from."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.studies.syntactic.test_syntactic_study import small_table

from kohort.evaluate.utility import classification
from kohort.rng import Streams
from kohort.runs.run import run
from kohort.runs.simulation import populate
from kohort.studies.harness.runs import Runs, summarise
from kohort.studies.syntactic.plans import federated
from kohort.studies.syntactic.settings import CandidateSetting
from kohort.studies.syntactic.thresholds import best_threshold, cut_at, fold_aside, run_with_thresholds, scored

__all__ = ["small_table"]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_threshold_has_a_higher_macro_f1(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 8, 40) / 7 if seed % 2 else random.normal(size=40)
    truth = random.random(40) < 0.3

    def macro(threshold: float) -> float:
        found = (scores >= threshold).astype(np.int64)
        return float(classification(truth.astype(np.int64), found, scores=None, classes=2)["f1_macro"])

    chosen = best_threshold(scores, truth)
    assert cut_at(chosen, scores, truth)["f1_macro"] == pytest.approx(max(macro(value) for value in scores))


def test_a_shifted_score_is_cut_where_it_tells_the_classes_apart() -> None:
    truth = np.arange(100) < 30
    scores = np.where(truth, 0.04, 0.01)
    assert cut_at(0.5, scores, truth)["f1"] == 0
    assert cut_at(best_threshold(scores, truth), scores, truth) == {"f1": 1.0, "f1_macro": 1.0}


def test_each_seed_leaves_another_fold_out_and_no_test_row(small_table: Path) -> None:
    del small_table
    whole = populate(federated("logistic", {"name": "fedavg"}, rounds=1), Streams.seeded(0))
    seen = []
    for seed in range(5):
        part, aside = fold_aside(whole, seed)
        assert part.frame.height + aside.height == whole.frame.height
        assert part.starts[-1] == part.frame.height
        rows = pl.concat([part.frame, aside], how="vertical")
        assert rows.sort("patient_nbr")["patient_nbr"].equals(whole.frame.sort("patient_nbr")["patient_nbr"])
        assert not set(aside["patient_nbr"]) & {*part.frame["patient_nbr"], *whole.test["patient_nbr"]}
        seen.append(frozenset(aside["patient_nbr"]))
    assert len(set(seen)) == 5


def test_rows_of_a_patient_are_in_one_fold(small_table: Path) -> None:
    del small_table
    whole = populate(federated("logistic", {"name": "fedavg"}, rounds=1), Streams.seeded(0))
    patients = pl.Series("patient_nbr", np.arange(whole.frame.height) % 50)
    part, aside = fold_aside(replace(whole, frame=whole.frame.with_columns(patients)), 1)
    assert aside.height
    assert not set(aside["patient_nbr"]) & set(part.frame["patient_nbr"])


def test_a_run_is_measured_at_the_threshold_of_its_validation_rows(small_table: Path) -> None:
    del small_table
    plan = federated("logistic", {"name": "fedavg"}, rounds=3, train={"lr": 0.01}, weighted=False)
    group = partial(run_with_thresholds, settings={0: CandidateSetting({"logistic": 0.01})})
    (found,) = Runs((0,), summarise=summarise, group=group).of(plan)
    assert found.metrics["f1_macro"] != found.metrics["f1_macro_as_trained"]
    assert 0 <= found.metrics["f1"] <= 1


def test_validation_rows_with_a_category_of_their_own_are_scored(small_table: Path) -> None:
    model = run(federated("logistic", {"name": "fedavg"}, rounds=1), seed=0).model
    rows = pl.read_parquet(small_table).head(20).with_columns(change=pl.lit("never seen"))
    scores, truth = scored(model, rows)
    assert len(scores) == len(truth) == 20
