"""Attacks on the model of a run: who was among its training rows?"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from kohort.errors import ConfigError
from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.evaluate.attacks.inference import drawn
from kohort.evaluate.attacks.membership import MOST_ROWS, loss_threshold, membership_finding, sureness
from kohort.evaluate.attacks.shadow import as_target_trained, likelihood_ratios, shadow_scores, train_shadows
from kohort.models.base import Model
from kohort.models.cluster_names import NoCommonModel
from kohort.models.dense.network import Network
from kohort.models.network_model import NetworkModel
from kohort.models.rows import encode_test_rows
from kohort.runs.auditing.replay import Replay
from kohort.runs.plan.default_method import trains_network
from kohort.runs.simulation import Population

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


def _by_shadows(replay: Replay, shadows: int) -> Finding:
    model, plan = replay.outcome.model, replay.plan
    why = _unattackable(model, replay.population) or _no_shadows(replay)
    if why or not isinstance(model, NetworkModel) or not isinstance(model.network, Network):
        return not_attacked(_SHADOW, "membership", on="the model", by=BY, why=why)
    random = np.random.default_rng(replay.seed)
    inside, outside = (drawn(part, 2 * MOST_ROWS, random) for part in _known_rows(model, replay.population))
    rows = encode_test_rows(model.encoder, pl.concat([inside, outside], how="vertical_relaxed"))
    passes = max(1, replay.outcome.rounds) * plan.train.local_epochs
    training = as_target_trained(plan.train.training(), passes=passes)
    weights, seen = train_shadows(model.network, rows, training=training, shadows=shadows, seed=replay.seed)
    ratios = likelihood_ratios(sureness(model, rows), shadow_scores(model.network, weights, rows), seen)
    note = f"{shadows} shadow models, trained on halves of these rows"
    return membership_finding(
        _SHADOW, ratios[: inside.height], ratios[inside.height :], on="the model", by=BY, seed=replay.seed, note=note
    )


def _no_shadows(replay: Replay) -> str:
    model = replay.outcome.model
    if not isinstance(model, NetworkModel) or not isinstance(model.network, Network):
        return f"shadow models are dense networks, and this model is of kind {model.kind!r}"
    if not trains_network(replay.plan.method):
        return "the model is solved, not trained in steps, and shadow models are trained"
    if model.task != "classification":
        return "the attack reads the odds of classes, and this model predicts a number"
    try:
        model.probabilities(np.zeros((1, model.network.inputs), dtype=model.network.dtype))
    except ConfigError:
        return "the model has no probabilities"
    return ""
