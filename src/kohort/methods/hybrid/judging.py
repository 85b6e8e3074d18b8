"""Model selection in `hybrid`: keep the better of two models, measured on held-out rows.

Each site counts how many more of its held-out rows the later model classifies correctly. On low-risk rows the count is
sent as it is; on high-risk rows it is one Gaussian query of sensitivity 1, charged to the site's privacy account. The
earlier model is that of the peers; it is disclosed to the hub only if the plan asks for model selection.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from kohort.errors import RefusedError, SiteError
from kohort.models.dense.network import FloatArray
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.plan.phases import JudgeSection, TrainingPhase
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.dp_accounts import account_of, answer_once, claim_of, spends
from kohort.rounds.phase_rows import reported_rows, rows_of
from kohort.rounds.training import TrainingState

__all__ = ["JUDGE", "REVEAL", "prefers_later", "revealed"]


def _reveal(site: Site, request: Request) -> Release:
    """Send the hub the model that this site trained with its peers."""
    model = site.state(TrainingState).model
    if model is None:
        raise SiteError(f"site {site.name!r} has no model of its own to show")
    phase = site.plan.phase(int(request.payload.metrics["phase"]))
    rows = rows_of(site, phase).count
    claim = site.aggregate(rows) if spends(phase) is None else claim_of(site)
    payload = Payload(arrays={"weights": model}, metrics={"rows": reported_rows(site, phase)})
    return Release(payload=payload, guarantee=claim, rows=rows, said=reported_rows(site, phase))


REVEAL = Task(name="peers.reveal", one=_reveal)


def revealed(hub: Hub, number: int, round_number: int) -> Generator[Ask | RoundEnd, Any, FloatArray]:
    """Ask the sites for their own models after a phase among peers, and average them weighted by rows.

    Args:
        hub: The hub and the sites to ask.
        number: The index of the phase.
        round_number: The round of the request.

    Returns:
        The mean of their weights, [parameters]. From here on the hub knows each of the models.
    """
    flat = (np.dtype(hub.network.dtype).str, (hub.network.parameter_count,))
    replies: Replies = yield Ask(
        task=REVEAL,
        to=hub.sites,
        payload=Payload(metrics={"phase": number}),
        round=round_number,
        expect=Expect(arrays={"weights": flat}, metrics=("rows",)),
    )
    models, rows = replies.array("weights"), replies.metric("rows")
    return np.asarray(np.average(models.astype(np.float64), axis=0, weights=rows), dtype=models.dtype)


def _judge(site: Site, request: Request) -> Release:
    """How many more held-out rows the later model classifies correctly, with noise on high-risk rows."""
    number = int(request.payload.metrics["phase"])
    section = site.plan.judge
    if section is None:
        raise RefusedError("the approved plan judges no models")
    phase = _judged_phase(site.plan.phases, section)
    rows, network = rows_of(site, phase, held_out=True), site.network
    right = [_correct(network, request.payload.arrays[name], rows.x, rows.y) for name in ("later", "earlier")]
    gained, said = float(right[0] - right[1]), reported_rows(site, phase, held_out=True)
    if section.rows == "low":
        claim = site.aggregate(rows.count)
        payload = Payload(arrays={"gained": np.asarray([gained])})
        return Release(payload=payload, guarantee=claim, rows=rows.count, said=said)
    from kohort.models.dp_sgd.fit import gaussian

    answer_once(site, request)
    sigma = account_of(site).judge_sigma
    gained += sigma * float(gaussian(site.streams.bytes("dp", request.digest, number), 1)[0])
    payload = Payload(arrays={"gained": np.asarray([gained])})
    return Release(payload=payload, guarantee=claim_of(site), rows=rows.count, said=said)


def _judged_phase(phases: tuple[TrainingPhase, ...], section: JudgeSection) -> TrainingPhase:
    found = next((phase for phase in phases if phase.rows == section.rows), None)
    if found is None:
        raise SiteError(f"no phase trains on {section.rows}-risk rows, so none were held out")
    return found


def _correct(network: Any, weights: FloatArray, x: FloatArray, y: FloatArray) -> int:
    scores = network.forward(weights, x)
    guess = scores.argmax(axis=1) if scores.shape[1] > 1 else scores[:, 0] > 0
    return int((guess == y).sum())


JUDGE = Task(name="peers.judge", one=_judge)


def prefers_later(
    hub: Hub, *, earlier: FloatArray, later: FloatArray, number: int, round_number: int
) -> Generator[Ask | RoundEnd, Any, bool]:
    """Whether the later model classifies at least as many held-out rows of all sites correctly.

    Args:
        hub: The hub and the sites to ask.
        earlier: Weights before the phase.
        later: Weights after the phase.
        number: The index of the phase.
        round_number: The round of the request.

    Returns:
        True if the later model is kept, also where both are equally good. On high-risk rows the counts have noise, so
        the choice is random.
    """
    replies: Replies = yield Ask(
        task=JUDGE,
        to=hub.sites,
        payload=Payload(arrays={"earlier": earlier, "later": later}, metrics={"phase": number}),
        round=round_number,
        expect=Expect(arrays={"gained": ("<f8", (1,))}),
    )
    return bool(replies.array("gained").sum() >= 0)
