"""Attacks on weights that single sites send back: the hub lies about the model every round, and reads the replies."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.evaluate.attacks.gradients import NEAR, LyingHub, can_read
from kohort.evaluate.attacks.outermost import OutermostHub
from kohort.evaluate.attacks.rebuilt import rebuilt_finding
from kohort.methods.registry import find_method
from kohort.models.dense.shape import DenseShape
from kohort.models.network_model import NetworkModel
from kohort.models.options import Training
from kohort.models.rows import encode_rows
from kohort.protocol.hub import Ask, Replies
from kohort.protocol.wire import Payload
from kohort.runs.auditing.encoded import blocks_of, imagined_rows
from kohort.runs.auditing.replay import Replay, lied_rounds
from kohort.tables.encoder import Encoder

__all__ = ["UPDATES", "updates_findings"]

UPDATES: Final = ("train", "train.scaffold", "train.phase")
"""Tasks whose replies are weights of one site, from weights of the hub."""
_ATTACK: Final = "reconstruction: gradient inversion"


def updates_findings(replay: Replay) -> list[Finding]:
    """Attack the updates that sites sent to the hub one by one.

    Args:
        replay: The run.

    Returns:
        The findings, one per kind of update; none where no site's own update was sent.
    """
    sent = {one.what: one for one in replay.outcome.disclosed if one.recipient == "hub" and one.what in UPDATES}
    return [_lied_to(replay, task, noisy=entry.kind == "dp") for task, entry in sent.items()]


def _lied_to(replay: Replay, task: str, *, noisy: bool) -> Finding:
    """Attack the smallest site in every round; the others are told the same lies."""
    on, by = f"updates of one site ({task})", "a lying hub"
    model = replay.outcome.model
    if not isinstance(model, NetworkModel) or not isinstance(model.network, DenseShape):
        why = "the attack reads the first layer of a dense network, and this model has none"
        return not_attacked(_ATTACK, "reconstruction", on=on, by=by, why=why)
    network, encoder = model.network, model.encoder
    truth = {name: _inputs(replay, encoder, name) for name in replay.outcome.sites}
    victim = min(truth, key=lambda name: (len(truth[name]), name))
    training, rows = _training(replay, task), len(truth[victim])
    in_one_step = can_read(training, rows)
    if not in_one_step and (training.epochs > 1 or not network.hidden):
        why = "several passes of Adam hide the sizes of gradients from this attack, and not from every attacker"
        return not_attacked(_ATTACK, "reconstruction", on=on, by=by, why=why)
    kind = LyingHub if in_one_step else OutermostHub
    hub = kind(network, blocks_of(encoder), imagined_rows(encoder), training=training, rows=rows, seed=replay.seed)

    def lie(ask: Ask) -> Ask:
        arrays = {**ask.payload.arrays, "weights": hub.sent}
        return ask._replace(payload=Payload(arrays=arrays, metrics=ask.payload.metrics, blobs=ask.payload.blobs))

    def listen(replies: Replies) -> None:
        if victim in replies.sites:
            hub.read(replies.array("weights")[replies.sites.index(victim)])

    requests = lied_rounds(replay, task=task, lie=lie, listen=listen)
    said = f"{requests} requests with weights of the hub's choice, to the smallest site; sites cannot tell"
    note = f"{said}; the updates have noise" if noisy else said
    other = next((rows for name, rows in truth.items() if name != victim), truth[victim][:0])
    return rebuilt_finding(
        _ATTACK, [truth[victim]], [hub.claims.rows], near=NEAR, on=on, by=by, note=note, others=[other]
    )


def _training(replay: Replay, task: str) -> Training:
    """How sites train when they are asked for a task: as the plan says, or the first phase that is run with the hub."""
    plan = replay.plan
    phases = find_method(plan.method).phases(plan.config, plan.train) if task == "train.phase" else ()
    with_hub = next((phase for phase in phases if not phase.topology), None)
    return plan.train.training() if with_hub is None else with_hub.training


def _inputs(replay: Replay, encoder: Encoder, site: str) -> NDArray[np.float64]:
    names, starts = replay.population.names, replay.population.starts
    place = names.index(site)
    frame = replay.population.frame[int(starts[place]) : int(starts[place + 1])]
    return encode_rows(encoder, frame.filter(encoder.within(frame))).x.astype(np.float64)
