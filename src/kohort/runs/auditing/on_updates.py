"""Attacks on weights that single sites send back: the hub lies about the model once, and reads the replies."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.evaluate.attacks.gradients import NEAR, lying_weights, rows_in_update
from kohort.evaluate.attacks.rebuilt import rebuilt_finding
from kohort.models.dense.shape import DenseShape
from kohort.models.network_model import NetworkModel
from kohort.models.rows import encode_rows
from kohort.protocol.hub import Ask
from kohort.protocol.wire import Payload
from kohort.runs.auditing.replay import Replay, first_reply
from kohort.tables.blocks import CategoryBlock
from kohort.tables.encoder import Encoder

__all__ = ["UPDATES", "updates_findings"]

UPDATES: Final = ("train", "train.scaffold", "train.phase")
"""Tasks whose replies are weights of one site, from weights of the hub."""
_ATTACK: Final = "reconstruction: gradient inversion"
_IMAGINED: Final = 4_000


def updates_findings(replay: Replay) -> list[Finding]:
    """Attack the updates that sites sent to the hub one by one.

    Args:
        replay: The run.

    Returns:
        The findings, one per kind of update; none where no site's own update was sent.
    """
    sent = {
        entry.what: entry for entry in replay.outcome.disclosed if entry.recipient == "hub" and entry.what in UPDATES
    }
    return [_lied_to(replay, task, noisy=entry.kind == "dp") for task, entry in sent.items()]


def _lied_to(replay: Replay, task: str, *, noisy: bool) -> Finding:
    on, by = f"one update of each site ({task})", "a lying hub"
    model = replay.outcome.model
    if not isinstance(model, NetworkModel) or not isinstance(model.network, DenseShape):
        why = "the attack reads the first layer of a dense network, and this model has none"
        return not_attacked(_ATTACK, "reconstruction", on=on, by=by, why=why)
    network, encoder = model.network, model.encoder
    weights = lying_weights(network, _imagined(encoder), seed=replay.seed)

    def lie(ask: Ask) -> Ask:
        arrays = {**ask.payload.arrays, "weights": weights}
        return ask._replace(payload=Payload(arrays=arrays, metrics=ask.payload.metrics, blobs=ask.payload.blobs))

    heard = first_reply(replay, task=task, lie=lie)
    if heard is None:
        return not_attacked(_ATTACK, "reconstruction", on=on, by=by, why="no site was asked for it again")
    replies = heard[1]
    claims = [rows_in_update(network, weights, reply) for reply in replies.array("weights")]
    truth = [_inputs(replay, encoder, site) for site in replies.sites]
    note = "the updates have noise" if noisy else "the hub sent weights of its own choice once; sites cannot tell"
    return rebuilt_finding(_ATTACK, truth, claims, near=NEAR, on=on, by=by, note=note)


def _inputs(replay: Replay, encoder: Encoder, site: str) -> NDArray[np.float64]:
    names, starts = replay.population.names, replay.population.starts
    place = names.index(site)
    frame = replay.population.frame[int(starts[place]) : int(starts[place + 1])]
    return encode_rows(encoder, frame.filter(encoder.within(frame))).x.astype(np.float64)


def _imagined(encoder: Encoder, *, seed: int = 0) -> NDArray[np.float64]:
    """Inputs as somebody imagines them who knows the public domain alone: every value as likely as any other."""
    random = np.random.default_rng(seed)
    parts = []
    for block in encoder.blocks:
        width = len(block.features)
        if isinstance(block, CategoryBlock):
            parts.append(block.rows_of_codes[random.integers(0, block.size, _IMAGINED)].reshape(_IMAGINED, width))
        else:
            parts.append(random.random((_IMAGINED, width)))
    return np.hstack(parts)
