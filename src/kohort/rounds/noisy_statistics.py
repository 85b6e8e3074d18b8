"""One release instead of many rounds: noisy sums from which a one-layer network is solved in closed form.

Each site sends the Gram matrix and moments of its rows [1, x], every row clipped to a public radius, with Gaussian
noise scaled to the influence of one row. The hub adds them up and solves. A ridge penalty as large as the noise
stabilises the smallest eigenvalues; it costs no budget.

Guarantee: one Gaussian mechanism per site, with the noise multiplier that the site's account calibrated.
"""

from __future__ import annotations

from collections.abc import Generator
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from kohort.errors import ConfigError, SiteError
from kohort.models.rows import Rows, stack
from kohort.models.trainable import Trainable
from kohort.privacy.contract import Step
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.dp_accounts import account_of, answer_once, claim_of, total_claim
from kohort.rounds.loop import RoundsResult
from kohort.rounds.phase_rows import reported_rows, rows_of

if TYPE_CHECKING:
    from kohort.models.closed_form.design import OneLayer

__all__ = ["STATISTICS", "noisy_statistics", "require_one_layer", "statistics_step"]


def require_one_layer(network: Trainable) -> OneLayer:
    """The closed form of a one-layer classifier.

    Args:
        network: The plan's model.

    Returns:
        Its inputs and classes.

    Raises:
        ConfigError: The model has hidden layers, or is not a classifier.
    """
    from kohort.models.closed_form.design import OneLayer

    if getattr(network, "hidden", None) != () or network.loss not in {"logistic", "softmax"}:
        raise ConfigError(
            "noisy statistics need a classifier without hidden layers", hint='Set model.kind = "logistic"'
        )
    return OneLayer(inputs=network.inputs, classes=network.classes)


def _radius(inputs: int) -> float:
    """The norm to which rows [1, x] are clipped; few rows of inputs up to size 1 come near it."""
    return sqrt(1 + inputs / 4)


def _statistics(site: Site, request: Request) -> Release:
    phase = site.plan.phase(0)
    if phase.dp is None or phase.dp.mechanism != "statistics" or request.round != 0:
        raise SiteError("the approved plan does not release noisy statistics")
    from kohort.models.closed_form.design import clip_rows, sensitivity
    from kohort.models.closed_form.solve import signed
    from kohort.models.closed_form.statistics import statistics_of_sites
    from kohort.models.dp_sgd.fit import gaussian

    answer_once(site, request)
    design, rows = require_one_layer(site.network), rows_of(site, phase)
    radius = _radius(design.inputs)
    short = Rows.of(clip_rows(signed(rows.x), radius), rows.y, dtype="float64")
    sums = statistics_of_sites(design, stack([short]))[0]
    sigma = account_of(site).sigmas[0] * sensitivity(design, radius)
    noisy = sums + sigma * gaussian(site.streams.bytes("dp", request.digest), sums.size)
    payload = Payload(arrays={"sums": noisy, "sigma": np.asarray([sigma])})
    said = reported_rows(site, phase)
    return Release(payload=payload, guarantee=claim_of(site), rows=rows.count, said=said)


STATISTICS = Task(name="dp.statistics", one=_statistics)


def statistics_step(approved: ApprovedPlan) -> Step:
    """The release of noisy statistics.

    Args:
        approved: The approved plan.

    Returns:
        The step, once per run.
    """
    says = "sums and products of your columns, with noise for the whole budget"
    return Step(task=STATISTICS.name, says=says, claims=(total_claim(approved),))


def noisy_statistics(hub: Hub) -> Generator[Ask | RoundEnd, Any, RoundsResult]:
    """Ask every site once, add up the statistics, and solve for the weights.

    Args:
        hub: The hub's side of the run.

    Returns:
        The solved weights, as the result of one round.

    Raises:
        ConfigError: The model has no closed form.
    """
    from kohort.models.closed_form.solve import network_of as as_network
    from kohort.models.closed_form.solve import solve, unsigned
    from kohort.models.closed_form.statistics import Statistics, unpack

    design = require_one_layer(hub.network)
    expect = Expect(arrays={"sums": ("<f8", (design.length,)), "sigma": ("<f8", (1,))}, largest=1e15)
    replies: Replies = yield Ask(task=STATISTICS, to=hub.sites, expect=expect)
    total = unpack(design, replies.array("sums").sum(axis=0))
    noise = float(np.sqrt(np.square(replies.array("sigma")).sum()))
    # A symmetric matrix of such noise has eigenvalues up to about sqrt(2 width) times its deviation.
    ridge = noise * sqrt(2 * design.width) * np.eye(design.width)
    ridge[0, 0] = 0.0
    drowned = Statistics(total.grams + ridge, total.moments, total.more)
    coefficients = unsigned(solve(design, drowned, standardise=False))
    _, flat = as_network(design, coefficients, dtype=hub.network.dtype)
    yield RoundEnd(round=0, rounds=1, model=hub.model_of(flat))
    return RoundsResult(weights=flat, rounds=1, stopped_by="one release")
