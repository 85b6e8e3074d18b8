"""Federated rounds over a secure sum: the hub sees the total of all sites and no site's own update.

What a site adds: the sum of its clipped row gradients (dp-sgd; one full-batch step a round), its clipped update (hub;
for whole sites), or, without a budget, its update times its rows, as federated averaging weighs it.

Noise is added once: every site adds a share of variance sigma^2 clip^2 / (quorum - colluders) before rounding, so the
total carries at least the planned noise as long as no more than `colluders` sites show theirs. A sum of rounded shares
is post-processing of the continuous one. With fewer than `quorum` survivors the run ends, and nothing more opens.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.scheme import MIN_SITES, FixedPoint, Integers, SumContext
from kohort.errors import ConfigError, RefusedError, SiteError
from kohort.models.dense.network import FloatArray, Network
from kohort.protocol.hub import Ask, Hub, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import DPSection, TrainingPhase
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.rounds.dp_accounts import Shares, account_of, answer_once, shares_of
from kohort.rounds.loop import RoundsResult, WeightAverage
from kohort.rounds.phase_rows import rows_of, stacked_rows
from kohort.rounds.phase_training import plain_update
from kohort.rounds.summing import secure_sum, sum_task

__all__ = ["SUM_UPDATES", "summed_rounds"]

LEAST_GRID_UNITS = 8
"""Rounding must be fine compared with a share of the noise."""
PRECISION = 2.0**-24
"""Grid of a sum without noise, relative to the largest number it allows for."""
LARGEST_UPDATE = 1e3


def _grid(phase: TrainingPhase, sites: int, deviation: float) -> FixedPoint:
    """The fixed point everybody uses: fine enough for the noise, with headroom for all sites."""
    if deviation > 0:
        scale = 2.0 ** ceil(log2(LEAST_GRID_UNITS * 64 / deviation))
    else:
        scale = 1 / (PRECISION * (phase.dp.clip if phase.dp is not None else 1.0))
    return FixedPoint(bound=2.0**62 / (scale * sites), scale=scale, sites=sites)


def _deviation(phase: TrainingPhase, sigma: float, shares: Shares) -> float:
    """Standard deviation of one site's share."""
    return 0.0 if phase.dp is None else sigma * phase.dp.clip / float(np.sqrt(shares.needed))


def _contribute(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    approved, network = site.plan, site.network
    phase, secure = approved.phase(0), approved.secure
    start = np.frombuffer(inputs["weights"], dtype=network.dtype)
    if secure is None or start.size != context.length or network.parameter_count != context.length:
        raise SiteError("a sum of updates was asked for that is not in the approved plan")
    shares = shares_of(site, context.sites, secure.colluders)
    rows = rows_of(site, phase)
    sigma = 0.0
    if not 0 <= request.round < phase.train.rounds:
        raise RefusedError(f"the approved plan has no round {request.round}")
    if phase.dp is not None:
        answer_once(site, request)
        sigma = account_of(site).sigmas[0]
    values = _own_part(site, request, phase, start)
    deviation = _deviation(phase, sigma, shares)
    if deviation:
        from kohort.models.dp_sgd.fit import gaussian

        values = values + deviation * gaussian(site.streams.bytes("dp", request.digest), context.length)
    return _grid(phase, len(context.sites), deviation).encode(values), rows.count


def _own_part(site: Site, request: Request, phase: TrainingPhase, start: FloatArray) -> NDArray[np.float64]:
    from kohort.models.dp_sgd.fit import clip_update, clipped_sums

    network, rows = site.network, rows_of(site, phase)
    if phase.dp is not None and phase.dp.mechanism == "dp-sgd":
        if not isinstance(network, Network):
            raise ConfigError("sums of clipped gradients need one of kohort's own networks", hint="Use mlp or logistic")
        return np.asarray(clipped_sums(network, start, stacked_rows([site], phase), clip=phase.dp.clip)[0])
    update = plain_update(site, request, phase, start)
    if phase.dp is not None:
        return np.asarray(clip_update(update, phase.dp.clip), dtype=np.float64)
    if np.abs(update).max(initial=0.0) > LARGEST_UPDATE:
        raise SiteError("the update is too large for the sum's fixed point", hint="Lower train.lr")
    return np.asarray(update * rows.count)


def _scheme(approved: ApprovedPlan) -> str:
    secure = approved.secure
    if secure is None:
        raise RefusedError("the approved plan sums nothing")
    return secure.sum


SUM_UPDATES = sum_task("sum.updates", _contribute, scheme=_scheme, bits=64)


def summed_rounds(hub: Hub, weights: FloatArray, *, sigma: float = 0.0) -> Generator[Ask | RoundEnd, Any, RoundsResult]:
    """Train over secure sums. `sigma` is the noise multiplier the sites' accounts have: the grid depends on it."""
    phase, secure = hub.approved.phase(0), hub.approved.secure
    if secure is None:
        raise ConfigError("sums need a scheme", hint='Set method.secure.sum = "masks"')
    _check(phase, hub)
    rounds = phase.train.rounds
    shares = Shares(len(hub.sites), secure.colluders)
    deviation = _deviation(phase, sigma, shares)
    grid = _grid(phase, len(hub.sites), deviation)
    velocity = np.zeros(len(weights))
    average = WeightAverage.of(phase.train, share=0.0 if phase.dp is None else phase.dp.average)
    first = 0
    if hub.resume is not None:
        weights, first = hub.resume.state["weights"], hub.resume.round + 1
        velocity = hub.resume.state["velocity"].copy()
        average.restore(hub.resume.state)
        model = hub.model_of(weights)
        yield RoundEnd(round=first - 1, rounds=rounds, model=model, state=hub.resume.state, resumed=True)
    for number in range(first, rounds):
        total = yield from secure_sum(
            hub,
            SUM_UPDATES,
            length=len(weights),
            round_number=number,
            inputs={"weights": np.ascontiguousarray(weights).tobytes()},
        )
        if deviation and len(total.sites) < shares.quorum:
            raise SiteError(
                f"{len(total.sites)} of {shares.sites} sites are left, too few for the noise to be enough",
                hint="Begin a new run with the sites that answer",
            )
        step = grid.decode(total.values)
        weights, velocity = _moved(hub, phase, weights, velocity, step, total.sites)
        average.take(number, weights)
        state: Mapping[str, NDArray[Any]] = {"weights": weights, "velocity": velocity, **average.state()}
        yield RoundEnd(round=number, rounds=rounds, model=hub.model_of(weights), state=state)
    return RoundsResult(weights=average.averaged(weights), rounds=rounds, stopped_by="rounds")


def _moved(
    hub: Hub,
    phase: TrainingPhase,
    weights: FloatArray,
    velocity: NDArray[np.float64],
    total: NDArray[np.float64],
    sites: Sequence[str],
) -> tuple[FloatArray, NDArray[np.float64]]:
    """The next model from the total: a gradient step, or a mean of updates."""
    rows = sum(hub.rows[site] for site in sites)
    if phase.dp is not None and phase.dp.mechanism == "dp-sgd":
        momentum = phase.train.momentum if phase.train.optimizer == "momentum" else 0.0
        velocity = momentum * velocity + total / rows
        change = -phase.train.lr * velocity
    else:
        change = total / (rows if phase.dp is None else len(hub.sites))
    return (weights + change).astype(weights.dtype), velocity


def _check(phase: TrainingPhase, hub: Hub) -> None:
    train = phase.train
    if phase.dp is not None and phase.dp.mechanism not in {"dp-sgd", "hub"}:
        raise ConfigError(
            f"the noise of {phase.dp.mechanism!r} is each site's own", hint="Drop method.secure, or use dp-sgd or hub"
        )
    if phase.dp is not None and phase.dp.mechanism == "dp-sgd":
        _check_gradients(phase.dp, train)
    for name, usual in (("fraction", 1.0), ("aggregate", "mean"), ("hub", "plain"), ("correction", "none")):
        if getattr(train, name) != usual:
            raise ConfigError(
                f"train.{name} needs each site's own update, and method.secure hides it",
                hint=f"Drop train.{name} or method.secure",
            )
    if train.stop is not None or train.reject is not None:
        raise ConfigError(
            "train.stop and train.reject need each site's own loss or update, and method.secure hides them",
            hint="Drop them, or method.secure",
        )
    if len(hub.sites) < MIN_SITES:
        raise RefusedError("a sum over fewer than three sites hides nothing", hint="Add sites, or drop method.secure")


def _check_gradients(dp: DPSection, train: TrainSection) -> None:
    if train.batch != 0 or train.local_epochs != 1 or train.optimizer == "adam":
        raise ConfigError(
            "a sum of clipped gradients is one full step a round",
            hint='Set train.batch = 0, train.local_epochs = 1 and train.optimizer = "sgd" or "momentum"',
        )
    if dp.quantile is not None:
        raise ConfigError("the bound of a sum is the same at all sites", hint="Drop dp.quantile")
