"""Noise at the hub: central differential privacy for whole sites.

Guarantee: the models that leave the hub are (epsilon, delta)-differentially private for one site, against everybody but
the hub, which sees every site's clipped update. The hub clips what it receives once more, measured from the weights it
sent: a plan in which sites start from weights of their own is refused. No amplification by sampling sites is claimed.

All phases with such noise compose, because a site is in every one of them. Rows that another phase trains on without it
have no guarantee; where that leaves none, the plan is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from kohort.errors import ConfigError
from kohort.models.dense.network import FloatArray
from kohort.privacy.dp.accounting import Event, calibrate, check_budget, describe, epsilon_of
from kohort.privacy.guarantee import DP
from kohort.protocol.hub import Hub
from kohort.protocol.plan.phases import DPSection, JudgeSection, RowPart, TrainingPhase

__all__ = ["check_hidden_sites", "hub_claim", "hub_noise"]

MIN_SITES = 2
"""Noise hides a site only among others."""

Noise = Callable[[int, FloatArray, FloatArray], FloatArray]
"""From the round, the weights before it, and the sites' weights [sites, parameters] to the new weights."""


def hub_noise(hub: Hub, dp: DPSection, *, rounds: int, sites: int) -> Noise:
    """Aggregation with Gaussian noise at the hub.

    Args:
        hub: The hub's side of the run.
        dp: The phase's privacy budget and clipping bound.
        rounds: How many rounds it will be used.
        sites: How many sites the plan has.

    Returns:
        The function that replaces the mean of the clipped updates.

    Raises:
        RefusedError: Delta is above 1/(10 sites).
    """
    from kohort.models.dp_sgd.fit import clip_update, gaussian

    check_budget(
        epsilon=dp.epsilon, delta=dp.delta, units=sites, allow_large_delta=dp.allow_large_delta, floor=MIN_SITES
    )
    sigma = _event(dp, rounds).sigma

    def step(round_number: int, before: FloatArray, after: FloatArray) -> FloatArray:
        total = clip_update(after.astype(np.float64) - before, dp.clip).sum(axis=0)
        key = hub.streams.bytes("dp", "hub", round_number)
        # Divided by the number of sites in the plan: the number that answered would reveal who takes part.
        noisy = (total + sigma * dp.clip * gaussian(key, total.size)) / sites
        moved: FloatArray = (before + noisy).astype(before.dtype)
        return moved

    return step


def _event(dp: DPSection, rounds: int) -> Event:
    sigma = calibrate(epsilon=dp.epsilon, delta=dp.delta, rate=1.0, steps=rounds, accountant=dp.accountant)
    return Event(sigma=sigma, rate=1.0, steps=rounds)


def hub_claim(hub: Hub) -> DP | None:
    """What all noise of a plan at the hub is worth, for one site.

    Args:
        hub: The hub's side of the run.

    Returns:
        The guarantee after all phases; None where the hub adds no noise.

    Raises:
        ConfigError: All rows are trained on without such noise, too.
    """
    approved = hub.approved
    noisy = [(dp, phase.train.rounds) for phase in approved.phases if (dp := _at_hub(phase)) is not None]
    if not noisy or approved.secure is not None:
        return None
    scope = check_hidden_sites(approved.phases, approved.judge)
    events, delta = [_event(dp, rounds) for dp, rounds in noisy], sum(dp.delta for dp, _ in noisy)
    accountant = noisy[0][0].accountant
    return DP(
        epsilon=epsilon_of(events, delta, accountant=accountant),
        delta=delta,
        unit="site",
        event=describe(events),
        scope=scope,
        simulated=not hub.streams.is_secure,
        accountant=accountant,
        trust="the hub, which sees every site's clipped update and adds the noise",
    )


def check_hidden_sites(phases: Iterable[TrainingPhase], judge: JudgeSection | None = None) -> str:
    """Which rows of a site noise at the hub hides.

    Args:
        phases: All phases of a plan, some of which have noise at the hub.
        judge: How held-out rows judge the model, if they do.

    Returns:
        The scope of the claim.

    Raises:
        ConfigError: There are none: other phases train on the same rows, and what they tell has no such noise.
    """
    listed, against = list(phases), "against everybody but the hub"
    bare = {half for phase in listed if _at_hub(phase) is None for half in _halves(phase.rows)}
    bare |= set() if judge is None else {judge.rows}
    hidden = {half for phase in listed if _at_hub(phase) is not None for half in _halves(phase.rows)} - bare
    if not hidden:
        raise ConfigError(
            "noise at the hub hides whole sites, and another phase trains on the same rows without it",
            hint='Use dp.mechanism = "hub" in all phases, or give the others other rows',
        )
    if not bare:
        return f"all sites, {against}"
    (part,), (other,) = hidden, bare
    return f"rows of {part} risk, {against}; rows of {other} risk: no guarantee"


def _at_hub(phase: TrainingPhase) -> DPSection | None:
    """The budget of a phase with noise at the hub."""
    return phase.dp if phase.dp is not None and phase.dp.mechanism == "hub" else None


def _halves(rows: RowPart) -> tuple[RowPart, ...]:
    return ("low", "high") if rows == "all" else (rows,)
