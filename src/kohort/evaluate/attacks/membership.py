"""Membership inference on a finished model: was this row among those it was trained on?

Loss threshold (Yeom et al., CSF 2018): a model is surer of rows it has seen, so a row with a small loss is taken for a
member. Whoever has the model and the row with its label can do that. A guess has an area under the curve of 0.5.

What it cannot see: rows that a model knows, but is no surer of than of similar ones. `shadow` looks for those.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.evaluate.attacks.finding import Finding, area_interval, found_at
from kohort.models.base import Model
from kohort.models.rows import Rows, encode_test_rows

__all__ = ["GUESS", "MOST_ROWS", "loss_threshold", "membership_finding", "sureness"]

GUESS: Final = 0.5
MOST_ROWS: Final = 10_000
"""Members and others that are looked at, at most; drawn at random where there are more."""
_SURE: Final = 1e-7
Floats = NDArray[np.float64]


def loss_threshold(
    model: Model, members: pl.DataFrame, others: pl.DataFrame, *, by: str, on: str = "the model", seed: int = 0
) -> Finding:
    """Attack a model with rows it was trained on and rows it never saw.

    Args:
        model: The model.
        members: Rows it was trained on, which it can read.
        others: Rows of the same kind that it never saw.
        by: Who has the model.
        on: What the model is called.
        seed: Of the draws of rows.

    Returns:
        The area under the curve.
    """
    random = np.random.default_rng(seed)
    inside, outside = (
        sureness(model, encode_test_rows(model.encoder, _drawn(part, random))) for part in (members, others)
    )
    return membership_finding("membership: loss threshold", inside, outside, on=on, by=by, seed=seed)


def membership_finding(
    attack: str, inside: NDArray[Any], outside: NDArray[Any], *, on: str, by: str, seed: int = 0, note: str = ""
) -> Finding:
    """The finding of an attack that gives each row a score: its area under the curve, with a bootstrap interval.

    Args:
        attack: What the attack is called.
        inside: Scores of members.
        outside: Scores of others; more is more like a member.
        on: What was attacked.
        by: Who has that.
        seed: Of the resamples.
        note: What a reader must know.

    Returns:
        A finding with a guess of 0.5. Its details hold the share of members found at false alarms of 1 % (`tpr_at_1`)
        and 0.1 % (`tpr_at_01`).
    """
    area, interval = area_interval(inside, outside, seed=seed)
    return Finding(
        attack=attack,
        family="membership",
        on=on,
        by=by,
        measure="area under the curve",
        success=area,
        guess=GUESS,
        interval=interval,
        note=note,
        details={"tpr_at_1": found_at(inside, outside, 0.01), "tpr_at_01": found_at(inside, outside, 0.001)},
    )


def sureness(model: Model, rows: Rows) -> Floats:
    """The log odds of each row's own class, or minus the absolute error of a number: more is surer.

    Args:
        model: The model.
        rows: Encoded rows with their targets.

    Returns:
        One number per row.
    """
    if model.task == "regression":
        low, high = _bounds(model)
        truth = rows.y.astype(np.float64) * ((high - low) or 1.0) + low
        return -np.abs(truth - model.codes(rows.x).astype(np.float64))
    codes = rows.y.astype(np.int64)
    try:
        found = model.probabilities(rows.x).astype(np.float64)
    except ConfigError:  # a model that only ranks rows has no probabilities; its scores serve as well
        return _margin(model.ranking(rows.x).astype(np.float64), codes)
    return log_odds(found[np.arange(len(codes)), codes])


def log_odds(share: NDArray[Any]) -> Floats:
    """ln(p / (1 - p)), for shares that may be 0 or 1."""
    kept = np.clip(np.asarray(share, dtype=np.float64), _SURE, 1 - _SURE)
    return np.asarray(np.log(kept / (1 - kept)))


def _margin(scores: Floats, codes: NDArray[np.int64]) -> Floats:
    """How far the score of a row's own class is above the best of the others."""
    own = scores[np.arange(len(codes)), codes]
    rest = scores.copy()
    rest[np.arange(len(codes)), codes] = -np.inf
    return np.asarray(own - rest.max(axis=1))


def _bounds(model: Model) -> tuple[float, float]:
    return model.encoder.domain.columns[model.target].bounds or (0.0, 1.0)


def _drawn(frame: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    if frame.height <= MOST_ROWS:
        return frame
    return frame[np.sort(random.choice(frame.height, MOST_ROWS, replace=False))]
