"""Shadow models made as a run made its own: trained in steps, solved in closed form, or grown over totals.

An attacker who knows the plan makes models of rows like the run's, each of a random half of them (`halves`). Networks
are trained all at once by the kernel that trains many sites. A one-shot fit is solved from sums over each half, and an
additive model or a forest is learned over totals by its own learner, on rows that lie in one place.

Sharp edges: shadow models have no noise, their rows are pooled, and rows are as they are where a run generalises them.
A one-shot fit has the penalty that the run ended with, and no Newton steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.shadow import as_target_trained, stacked_halves, train_shadows
from kohort.methods.oneshot.design import InputCells, Layout
from kohort.methods.oneshot.state import FILE, load_state
from kohort.methods.registry import find_method
from kohort.models.base import Model
from kohort.models.closed_form.solve import Solver
from kohort.models.closed_form.statistics import statistics_of_sites, unpack
from kohort.models.dense.network import Network
from kohort.models.network_model import NetworkModel
from kohort.models.rows import Rows
from kohort.rng import Streams
from kohort.rounds.dp_accounts import shared_sigma
from kohort.rounds.totals.checked_training import CheckedTraining
from kohort.rounds.totals.learner import Setting, learn_pooled
from kohort.runs.agreed import approved_plan_for
from kohort.runs.auditing.replay import Replay
from kohort.runs.plan.default_method import trains_network

__all__ = ["Shadows", "setting_of", "shadows_of", "training_of"]

Bools = NDArray[np.bool_]
_DEFAULT_PENALTY: Final = 1e-3


@dataclass(frozen=True)
class Shadows:
    """How shadow models of a run are made.

    Attributes:
        make: Gives each model of rows and of which model sees which row.
        how: In words.
        rows: Members and others that are looked at, at most: models that are grown take their time.
    """

    make: Callable[[Rows, Bools], Iterator[Model]]
    how: str
    rows: int


def shadows_of(replay: Replay, *, most: int) -> Shadows | str:
    """How shadow models of a run are made.

    Args:
        replay: The run.
        most: Members, and as many others, that are looked at where models are quick to make.

    Returns:
        The maker; or why there is none.
    """
    model = replay.outcome.model
    training = training_of(replay)
    if training is not None:
        return Shadows(lambda rows, seen: _learned(replay, training, rows, seen), "learned over totals", most)
    if not isinstance(model, NetworkModel) or not isinstance(model.network, Network):
        return f"no shadow models are made of models of kind {model.kind!r}"
    if replay.plan.method == "oneshot":
        return Shadows(lambda rows, seen: _solved(replay, model, rows, seen), "solved from sums", most)
    if not trains_network(replay.plan.method):
        return f"no shadow models are made of what {replay.plan.method} gives"
    return Shadows(lambda rows, seen: _trained(replay, model, rows, seen), "trained", most)


def training_of(replay: Replay) -> CheckedTraining | None:
    """The training over totals that the run used, if any.

    Args:
        replay: The run.

    Returns:
        Its training; None where a network is trained or solved.
    """
    return find_method(replay.plan.method).totals(replay.plan.config)


def setting_of(replay: Replay, training: CheckedTraining) -> tuple[Setting, int]:
    """What hub and sites of a run knew alike before the first total, and how many totals its plan has.

    Args:
        replay: The run.
        training: Its training over totals.

    Returns:
        The setting with the public seed of the run, and the most totals.
    """
    streams, encoder = Streams.seeded(replay.seed), replay.outcome.model.encoder
    seed = Streams(streams.bytes("hub"), streams.seed).bytes("start", length=16)
    names = replay.population.names
    approved = approved_plan_for(replay.plan, schema=encoder.schema, run="shadow", sites=names)
    sigma = shared_sigma(approved)  # a private learner's steps depend on it; nobody adds the noise here
    return training.setting(approved, encoder, seed, len(names), sigma), training.rounds(approved)


def _learned(replay: Replay, training: CheckedTraining, rows: Rows, seen: Bools) -> Iterator[Model]:
    """Additive models and forests, by the learner of the run and with its public seed."""
    setting, rounds = setting_of(replay, training)
    for own in seen:
        model = learn_pooled(training.start, setting, [rows.take(own)], rounds).model
        if model is not None:
            yield model


def _solved(replay: Replay, model: NetworkModel, rows: Rows, seen: Bools) -> Iterator[Model]:
    """One-shot fits: the sums of all halves in one call, then one solution each."""
    layout, penalties = _layout(replay)
    stacked = stacked_halves(rows, seen)
    parts = [
        statistics_of_sites(layout.design, stacked, transform=lambda x, part=part: layout.transform(x, part))  # type: ignore[misc]
        for part in range(layout.parts)
    ]
    sizes = [layout.design.inputs] * layout.parts
    for number in range(len(seen)):
        coefficients = [
            Solver(layout.design, unpack(layout.design, sums[number])).weights(penalty)
            for sums, penalty in zip(parts, penalties, strict=True)
        ]
        network, weights = layout.network(coefficients, sizes, model.encoder.dtype)
        yield NetworkModel(network, weights, model.encoder)


def _layout(replay: Replay) -> tuple[Layout, list[float]]:
    """What the run summed, and the penalty of each of its solutions."""
    section, encoder = replay.plan.config.oneshot, replay.outcome.model.encoder
    files = replay.outcome.files
    asked = _DEFAULT_PENALTY if isinstance(section.lambda_, str) else float(section.lambda_)
    if FILE not in files:
        layout = Layout.of(section, encoder, InputCells.whole(encoder.width))
        return layout, [asked] * layout.parts
    state = load_state(files[FILE])
    known = section.rounds == 1
    return state.layout, state.fit().penalties if known else [asked] * state.layout.parts


def _trained(replay: Replay, model: NetworkModel, rows: Rows, seen: Bools) -> Iterator[Model]:
    """Networks, all of them in few calls of the kernel."""
    plan = replay.plan
    passes = max(1, replay.outcome.rounds) * plan.train.local_epochs
    training = as_target_trained(plan.train.training(), passes=passes)
    network: Any = model.network
    for weights in train_shadows(network, rows, seen, training=training, seed=replay.seed):
        yield replace(model, weights=weights)
