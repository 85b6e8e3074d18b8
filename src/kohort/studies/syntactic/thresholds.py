"""Thresholds chosen on validation rows: a fifth of every site's training rows, which no learner of the study sees.

F1 depends on where a score is cut. A learner whose scores are shifted, as by noise, has a low F1 at its own threshold
although it ranks rows well. So every learner is cut where the macro F1 of the validation rows is highest, and measured
on the test rows there. The validation rows of a seed are one of five folds of that seed's training rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.models.base import Model
from kohort.runs.config import Plan
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import Population
from kohort.studies.harness.runs import Change, RunSummary, SharedRows, Tables, declared, has_budget, population_of
from kohort.studies.syntactic.folds import FOLDS, fold_numbers, left_out
from kohort.studies.syntactic.settings import CandidateSetting

__all__ = ["AS_TRAINED", "best_threshold", "cut_at", "fold_aside", "run_with_thresholds", "scored"]

AS_TRAINED = "_as_trained"
"""Ends the names of measures at the threshold that a learner ended with."""
Floats = NDArray[np.float64]
R = TypeVar("R", bound=RunSummary)


def fold_aside(whole: Population, seed: int) -> tuple[Population, pl.DataFrame]:
    """The sites without a fifth of their rows, and those rows; rows of a person stay together.

    Args:
        whole: The sites of a seed.
        seed: Its number modulo five is the fold.

    Returns:
        The sites that learn, and the validation rows.
    """
    return left_out(whole, fold_numbers(whole, seed), seed % FOLDS)


def best_threshold(scores: Floats, truth: NDArray[np.bool_]) -> float:
    """The threshold at which the macro F1 of some rows is highest; the lowest of several.

    Args:
        scores: A score per row; rows at or above the threshold are predicted positive.
        truth: Which rows are positive.

    Returns:
        The threshold.
    """
    order = np.argsort(scores, kind="stable")
    ranked, positive = scores[order], truth[order]
    # Cut before each distinct score: the rows from there on are predicted positive.
    cuts = np.flatnonzero(np.diff(ranked, prepend=-np.inf) > 0)
    below = np.concatenate([[0], np.cumsum(positive)])[cuts]
    hits, predicted = positive.sum() - below, len(ranked) - cuts
    no_hits = cuts - below
    yes = 2 * hits / (predicted + positive.sum())
    no = 2 * no_hits / np.maximum(cuts + (~positive).sum(), 1)
    return float(ranked[cuts[np.argmax(yes + no)]])


def cut_at(threshold: float, scores: Floats, truth: NDArray[np.bool_]) -> dict[str, float]:
    """F1 of the positive class and macro F1 of rows that are cut at a threshold.

    Args:
        threshold: Rows at or above it are predicted positive.
        scores: A score per row.
        truth: Which rows are positive.

    Returns:
        `f1` and `f1_macro`.
    """
    from kohort.evaluate.utility import classification

    found = classification(truth.astype(np.int64), (scores >= threshold).astype(np.int64), scores=None, classes=2)
    return {name: float(found[name]) for name in ("f1", "f1_macro")}


def scored(model: Model, frame: pl.DataFrame) -> tuple[Floats, NDArray[np.bool_]]:
    """The score and the class of every row that can be judged.

    Args:
        model: The model.
        frame: Rows with their target; categories that no training row had are read as `kohort predict` reads them.

    Returns:
        Scores of the positive class, and which rows are positive.
    """
    known = frame.filter(pl.Series(model.encoder.predictable(frame)))
    inputs, _ = model.encoder.inputs(known)
    scores = np.asarray(model.ranking(inputs), dtype=np.float64)[:, 1]
    return scores, model.encoder.target(known) == 1


def run_with_thresholds(
    plans: Sequence[Plan],
    seed: int,
    tables: Tables | None,
    summarise: Callable[[Outcome], R],
    change: Change | None = None,
    *,
    settings: Mapping[int, CandidateSetting],
) -> list[R]:
    """Runs of plans that have the same rows at the same sites, each cut where its validation rows say.

    Args:
        plans: The plans.
        seed: The seed of all of them.
        tables: The tables that replace a plan's own.
        summarise: What is kept of a run.
        change: Not used here.
        settings: What every seed's plans are run with.

    Returns:
        The summaries; `f1` and `f1_macro` are at the chosen threshold, and with `AS_TRAINED` at the learner's own.
    """
    del change
    whole = population_of(plans[0], seed, tables)
    part, aside = fold_aside(whole, seed)
    plain, known = SharedRows(population=part), SharedRows(population=declared(part, plans[0]))
    found = []
    for plan in plans:
        outcome = run(settings[seed].applied(plan), seed=seed, backend=known if has_budget(plan) else plain)
        summary = summarise(outcome)
        metrics: dict[str, Any] = dict(summary.metrics)
        own = {f"{name}{AS_TRAINED}": metrics[name] for name in ("f1", "f1_macro")}
        threshold = best_threshold(*scored(outcome.model, aside))
        metrics |= own | cut_at(threshold, *scored(outcome.model, part.test))
        found.append(replace(summary, metrics=metrics))
    return found
