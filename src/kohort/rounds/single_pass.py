"""Training that sees each row once, under correlated noise (`dp.mechanism = "ftrl"`).

Each row of a site is in the batch of exactly one round, by a coin of the site that does not depend on any row. In its
round a site sums the clipped gradients of its batch, adds noise whose running sums stay small, and sends the step.

Guarantee: all rounds of a site together are one Gaussian mechanism, for rows that are added or removed, whatever the
other sites do or miss (`kohort.privacy.dp.factorisation` has the proof). The noise belongs to the run, not to a
request, so a round is answered once: a second request for it is refused before this module is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.dense.network import FloatArray, Network
from kohort.models.dp_sgd.draws import KeyStream
from kohort.models.dp_sgd.fit import clipped_sums, gaussian
from kohort.models.rows import Rows, stack
from kohort.privacy.dp.factorisation import column_norm, noise_weights
from kohort.protocol.plan.phases import DPSection, TrainingPhase
from kohort.protocol.site import Site
from kohort.rounds.phase_rows import reported_rows, rows_of

__all__ = ["single_pass_round"]


def single_pass_round(
    sites: Sequence[Site],
    phase: TrainingPhase,
    dp: DPSection,
    *,
    number: int,
    passed: int,
    start: FloatArray,
    sigmas: NDArray[np.float64],
) -> FloatArray:
    """One step of each site on the batch of this round.

    Args:
        sites: The sites.
        phase: The phase.
        dp: Its budget.
        number: The phase, from 0.
        passed: Rounds of the phase before this one.
        start: The weights to start from: [parameters] for all sites, or [sites, parameters].
        sigmas: The noise multiplier of each site.

    Returns:
        The weights after the step, [sites, parameters].

    Raises:
        ConfigError: The model has no gradients of single rows.
    """
    network = sites[0].network
    if not isinstance(network, Network):
        raise ConfigError(
            'dp.mechanism = "ftrl" needs one of kohort\'s own networks',
            hint="Use mlp or logistic",
        )
    origin = np.broadcast_to(start, (len(sites), network.parameter_count))
    moved = [
        _step(site, network, phase, dp, number=number, passed=passed, start=own, sigma=float(sigma))
        for site, own, sigma in zip(sites, origin, sigmas, strict=True)
    ]
    return np.stack(moved)


def _step(
    site: Site,
    network: Network,
    phase: TrainingPhase,
    dp: DPSection,
    *,
    number: int,
    passed: int,
    start: FloatArray,
    sigma: float,
) -> FloatArray:
    rows, rounds = rows_of(site, phase), phase.train.rounds
    key = site.streams.bytes("ftrl", site.plan.run, site.plan.plan_hash, number)
    batch = stack([_rows_at(rows, np.flatnonzero(_batches(key, rows.count, rounds) == passed))])
    total = clipped_sums(network, start, batch, clip=dp.clip)[0]
    noise = np.zeros(network.parameter_count)
    for earlier, weight in enumerate(noise_weights(passed).tolist()):
        noise += weight * gaussian(key, network.parameter_count, label=earlier.to_bytes(4, "little"))
    noisy = total + sigma * dp.clip * column_norm(rounds) * noise
    # The expected batch, so that the number of rows in it stays with the site.
    gradient = noisy * (rounds / reported_rows(site, phase)) + phase.train.l2 * start
    return np.asarray(start - phase.train.lr * gradient, dtype=network.dtype)


def _batches(key: bytes, count: int, rounds: int) -> NDArray[np.int64]:
    """The round of each row, every one independent of the others."""
    words = np.empty(count, dtype=np.uint64)
    KeyStream(key, b"rows").fill(words)
    return (words % np.uint64(rounds)).astype(np.int64)


def _rows_at(rows: Rows, places: NDArray[np.int64]) -> Rows:
    return Rows(rows.x[places], rows.y[places], None if rows.weight is None else rows.weight[places])
