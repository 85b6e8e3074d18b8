"""Noise at the hub: central differential privacy for whole sites.

Guarantee: the models that leave the hub are (epsilon, delta)-differentially private for one site, against everybody but
the hub, which sees every site's clipped update. The hub clips what it receives once more, measured from the weights it
sent: a plan in which sites start from weights of their own is refused. All sites are asked every round: no
amplification by sampling is claimed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kohort.models.dense.network import FloatArray
from kohort.privacy.dp.accounting import Event, calibrate, check_budget, describe, epsilon_of
from kohort.privacy.guarantee import DP
from kohort.protocol.hub import Hub
from kohort.protocol.plan.phases import DPSection

__all__ = ["hub_noise"]

MIN_SITES = 2
"""Noise hides a site only among others."""

Noise = Callable[[int, FloatArray, FloatArray], FloatArray]
"""From the round, the weights before it, and the sites' weights [sites, parameters] to the new weights."""


def hub_noise(hub: Hub, dp: DPSection, *, rounds: int, sites: int) -> tuple[Noise, DP]:
    """Aggregation with Gaussian noise at the hub.

    Args:
        hub: The hub's side of the run.
        dp: The phase's privacy budget and clipping bound.
        rounds: How many rounds it will be used.
        sites: How many sites the plan has.

    Returns:
        The function that replaces the mean of the clipped updates, and its guarantee after all rounds.

    Raises:
        RefusedError: Delta is above 1/(10 sites).
    """
    from kohort.models.dp_sgd.fit import clip_update, gaussian

    check_budget(
        epsilon=dp.epsilon, delta=dp.delta, units=sites, allow_large_delta=dp.allow_large_delta, floor=MIN_SITES
    )
    sigma = calibrate(epsilon=dp.epsilon, delta=dp.delta, rate=1.0, steps=rounds, accountant=dp.accountant)

    def step(round_number: int, before: FloatArray, after: FloatArray) -> FloatArray:
        total = clip_update(after.astype(np.float64) - before, dp.clip).sum(axis=0)
        key = hub.streams.bytes("dp", "hub", round_number)
        # Divided by the number of sites in the plan: the number that answered would reveal who takes part.
        noisy = (total + sigma * dp.clip * gaussian(key, total.size)) / sites
        moved: FloatArray = (before + noisy).astype(before.dtype)
        return moved

    event = Event(sigma=sigma, rate=1.0, steps=rounds)
    spent = epsilon_of([event], dp.delta, accountant=dp.accountant)
    claim = DP(
        epsilon=spent,
        delta=dp.delta,
        unit="site",
        event=describe([event]),
        scope="all sites, against everybody but the hub",
        simulated=not hub.streams.is_secure,
        accountant=dp.accountant,
        trust="the hub, which sees every site's clipped update and adds the noise",
    )
    return step, claim
