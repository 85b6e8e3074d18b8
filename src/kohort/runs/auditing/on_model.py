"""Attacks on the model of a run: who was among its training rows?"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import KohortError
from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.evaluate.attacks.inference import drawn
from kohort.evaluate.attacks.membership import MOST_ROWS, loss_threshold, membership_finding
from kohort.evaluate.attacks.shadow import evidence, halves, likelihood_ratios
from kohort.models.base import Model
from kohort.models.cluster_names import NoCommonModel
from kohort.models.rows import Rows, encode_test_rows
from kohort.runs.auditing.replay import Replay
from kohort.runs.auditing.shadows import shadows_of
from kohort.runs.simulation import Population
from kohort.tables.persons import persons_of

__all__ = ["NO_TEST_ROWS", "loss_threshold_of", "membership_findings"]

BY: Final = "anyone with the model"
NO_TEST_ROWS: Final = "the plan keeps no test rows (data.test = 0), so nobody is surely not a member"
_SHADOW: Final = "membership: likelihood ratio (LiRA)"
_LOSS: Final = "membership: loss threshold"


def membership_findings(replay: Replay, *, shadows: int) -> list[Finding]:
    """Attack the model of a run with its training rows and its test rows.

    Args:
        replay: The run.
        shadows: How many shadow models; 0 for none.

    Returns:
        One finding per attack.
    """
    first = loss_threshold_of(replay.outcome.model, replay.population, seed=replay.seed)
    return [first, _by_shadows(replay, shadows)] if shadows else [first]


def loss_threshold_of(model: Model, population: Population, *, seed: int = 0) -> Finding:
    """The loss threshold on a model and the rows it came from.

    Args:
        model: The model.
        population: Its training rows and test rows.
        seed: Of the draws of rows.

    Returns:
        The finding; one that says why not where there is nothing to compare.
    """
    why = _unattackable(model, population)
    if why:
        return not_attacked(_LOSS, "membership", on="the model", by=BY, why=why)
    return loss_threshold(model, *_known_rows(model, population), by=BY, seed=seed)


def _unattackable(model: Model, population: Population) -> str:
    if isinstance(model, NoCommonModel):
        return "there is no common model: clusters of sites have their own"
    if not population.test.height:
        return NO_TEST_ROWS
    if not population.frame.height:
        return "the training rows are at the sites: attack it there"
    return ""


def _known_rows(model: Model, population: Population) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Members and others that the model can read."""
    parts = (population.frame, population.test)
    inside, outside = (part.filter(pl.Series(model.encoder.predictable(part))) for part in parts)
    return inside, outside


def _seen(rows: Rows, shadows: int, seed: int) -> NDArray[np.bool_]:
    """Which shadow model sees which row, [models, rows]; it sees all rows of a person or none."""
    persons = None if rows.person is None else persons_of(rows.person)
    if persons is None:
        return halves(rows.count, shadows, seed=seed)
    return halves(int(persons.max()) + 1, shadows, seed=seed)[:, persons]


def _by_shadows(replay: Replay, shadows: int) -> Finding:
    model = replay.outcome.model
    why = _unattackable(model, replay.population)
    maker = why or shadows_of(replay, most=2 * MOST_ROWS)
    if isinstance(maker, str):
        return not_attacked(_SHADOW, "membership", on="the model", by=BY, why=maker)
    random = np.random.default_rng(replay.seed)
    inside, outside = (drawn(part, maker.rows, random) for part in _known_rows(model, replay.population))
    rows = encode_test_rows(model.encoder, pl.concat([inside, outside], how="vertical_relaxed"))
    seen = _seen(rows, shadows, replay.seed)
    try:
        scores = np.array([evidence(one, rows) for one in maker.make(rows, seen)])
    except KohortError as error:  # rules for few rows hold for shadow models, too
        why = f"no shadow model comes out of half of the rows: {error.message}"
        return not_attacked(_SHADOW, "membership", on="the model", by=BY, why=why)
    ratios = likelihood_ratios(evidence(model, rows), scores, seen)
    note = f"{shadows} shadow models, {maker.how}, each of half of these rows"
    return membership_finding(
        _SHADOW, ratios[: inside.height], ratios[inside.height :], on="the model", by=BY, seed=replay.seed, note=note
    )
