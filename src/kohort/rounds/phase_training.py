"""The training task of methods with phases: it trains on the rows of one phase, with the noise of the phase's budget.

Training starts from the hub's weights, or from a model of the site's own.

Guarantees: the noise of a request comes from a key that belongs to that request alone, so no two answers share it;
sites asked one by one and sites asked together give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, RefusedError, SiteError
from kohort.models.dense.network import FloatArray, Network
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Aggregate, Guarantee
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.corrections import find_correction
from kohort.protocol.plan.phases import PURE, DPSection, TrainingPhase
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Releases, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.dp_accounts import account_of, answer_once, claim_of, total_claim
from kohort.rounds.phase_rows import reported_rows, rows_of, stacked_rows
from kohort.rounds.private_defaults import lowered_rate
from kohort.rounds.training import TrainingState, keep_optimizer_state, optimizer_state

__all__ = ["TRAIN_PHASE", "Trained", "phase_rounds", "phase_step", "plain_update", "train_phase"]


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a phase's training at some sites: weights [sites, parameters], row counts and claims per site."""

    weights: FloatArray
    counts: list[int]
    reported: list[int]
    """Row counts for messages; see `reported_rows`."""
    guarantees: list[Guarantee]


def train_phase(sites: Sequence[Site], request: Request, number: int, start: FloatArray) -> Trained:
    """Train one round of a phase of the approved plan.

    Guarantee: a round with noise is answered once, under the account that was reserved for the whole plan.

    Args:
        sites: The sites that train.
        request: The request; its round must belong to the phase.
        number: The phase, from 0.
        start: The weights to start from: [parameters] for all sites, or [sites, parameters].

    Returns:
        Weights, row counts and claims per site.

    Raises:
        SiteError: The plan has no such phase, or a site has no rows for it.
        RefusedError: The plan allows no such round or no such release, or the round was answered before.
    """
    phase = _phase_of(sites, request, number)
    counts = [rows_of(site, phase).count for site in sites]
    reported = [reported_rows(site, phase) for site in sites]
    bare = phase.dp is None or phase.dp.mechanism == "hub"
    # Noise is all that a site without rows in the domain adds: whether it has one must not be seen.
    if min(counts if bare else reported) == 0:
        raise SiteError("a site has no rows for this phase")
    if phase.dp is None or bare:
        weights = _plain(sites, request, phase, start)
        if phase.dp is not None:
            weights = _clipped(weights, start, phase.dp.clip)
        guarantees: list[Guarantee] = [site.aggregate(count) for site, count in zip(sites, counts, strict=True)]
        return Trained(weights, counts, reported, guarantees)
    weights = _with_noise(sites, request, phase, phase.dp, number, start)
    return Trained(weights, counts, reported, [claim_of(site) for site in sites])


def _phase_of(sites: Sequence[Site], request: Request, number: int) -> TrainingPhase:
    """The phase a request asks for. Its first round resets what earlier phases left in the sites' states."""
    phases = sites[0].plan.phases
    if not 0 <= number < len(phases):
        raise SiteError(f"the approved plan has {len(phases)} phases, not {number + 1}")
    phase, first_round = phases[number], sum(earlier.train.rounds for earlier in phases[:number])
    if not 0 <= request.round - first_round < phase.train.rounds:
        raise RefusedError(f"phase {number + 1} of the approved plan has no round {request.round}")
    if request.round == first_round:
        for site in sites:
            state = site.state(TrainingState)
            state.optimizer = state.clip = None
    return phase


def _with_noise(
    sites: Sequence[Site], request: Request, phase: TrainingPhase, dp: DPSection, number: int, start: FloatArray
) -> FloatArray:
    """Train with noise at the sites, by the mechanism of the phase's budget."""
    for site in sites:
        answer_once(site, request)
    sigmas = np.asarray([account_of(site).sigmas[number] for site in sites])
    keys = tuple(site.streams.bytes("dp", request.digest) for site in sites)
    if dp.mechanism == "statistics":
        raise RefusedError("the approved plan releases noisy statistics, not weights")
    if dp.mechanism in PURE:
        return _perturbed(sites, phase, dp, keys)
    if dp.mechanism == "after":
        return _noised(_plain(sites, request, phase, start), start, dp, sigmas, keys)
    if dp.mechanism == "ftrl":
        from kohort.rounds.single_pass import single_pass_round

        passed = request.round - phase_rounds(sites[0].plan, number).start
        return single_pass_round(sites, phase, dp, number=number, passed=passed, start=start, sigmas=sigmas)
    return _private(sites, phase, dp, number, start, sigmas, keys)


def _plain(sites: Sequence[Site], request: Request, phase: TrainingPhase, start: FloatArray) -> FloatArray:
    """Train without noise."""
    keep = phase.train.state == "keep"
    fitted = sites[0].network.fit(
        start,
        stacked_rows(sites, phase),
        training=phase.training,
        keys=np.asarray([site.row_key for site in sites], dtype=np.uint64),
        round=request.round,
        state=optimizer_state(sites) if keep else None,
        keep_state=keep,
    )
    if keep:
        keep_optimizer_state(sites, fitted)
    return fitted.weights


def plain_update(site: Site, request: Request, phase: TrainingPhase, start: FloatArray) -> NDArray[np.float64]:
    """The update of one site's training without noise.

    Args:
        site: The site.
        request: The request.
        phase: The phase to train.
        start: The weights to start from.

    Returns:
        The trained weights minus `start`.
    """
    trained = _plain([site], request, phase, start)[0]
    return np.asarray(trained, dtype=np.float64) - start


def _private(
    sites: Sequence[Site],
    phase: TrainingPhase,
    dp: DPSection,
    number: int,
    start: FloatArray,
    sigmas: NDArray[np.float64],
    keys: tuple[bytes, ...],
) -> FloatArray:
    """Train with DP-SGD."""
    from kohort.models.dp_sgd.fit import AdaptiveClip, PrivateSteps, fit_private

    rows = stacked_rows(sites, phase)
    declared = [reported_rows(site, phase) for site in sites]  # what the account was made for
    taken = [phase.steps_and_rate(count) for count in declared]
    adaptive = None
    if dp.quantile is not None:
        # Counting the rows below the bound is a second Gaussian mechanism on the same sample. Its noise has deviation
        # 2 sigma at a sensitivity of 1/2, so its multiplier is 4 sigma. Both together equal one mechanism with
        # multiplier sigma when the gradients get sigma / sqrt(1 - 1/16).
        adaptive = AdaptiveClip(
            quantile=dp.quantile, sigma_b=float(2 * sigmas[0]), start=sites[0].state(TrainingState).clip
        )
        sigmas = sigmas / sqrt(1 - 1 / 16)
    private = PrivateSteps(
        clip=dp.clip,
        sigma=sigmas,
        rate=np.asarray([rate for _, rate in taken]),
        steps=np.asarray([steps for steps, _ in taken], dtype=np.int64),
        keys=keys,
        adaptive=adaptive,
        declared=np.asarray(declared, dtype=np.int64),
    )
    keep, training = phase.train.state == "keep", phase.training
    if dp.lower_rate:  # of one site: the noise of all sites' steps adds up to that of one over sqrt(sites) of the rows
        (steps, rate), site = taken[0], sites[0]
        lr = lowered_rate(
            phase.train,
            dp,
            rows=declared[0] * sqrt(len(site.plan.sites)),
            sigma=float(account_of(site).sigmas[number]),
            steps=steps * phase.train.rounds,
            parameters=site.network.parameter_count,
            rate=rate,
        )
        training = replace(training, lr=lr)
    fitted = fit_private(
        sites[0].network,
        start,
        rows,
        training=training,
        private=private,
        state=optimizer_state(sites) if keep else None,
        keep_state=keep,
    )
    if keep:
        keep_optimizer_state(sites, fitted)
    if adaptive is not None:
        sites[0].state(TrainingState).clip = fitted.next_clip
    return fitted.weights


def _perturbed(sites: Sequence[Site], phase: TrainingPhase, dp: DPSection, keys: tuple[bytes, ...]) -> FloatArray:
    """Logistic regression with output or objective perturbation."""
    from kohort.models.dp_sgd.perturbation import fit_perturbed

    network = sites[0].network
    if not isinstance(network, Network):
        raise ConfigError(
            "output and objective perturbation work for logistic regression only", hint='Set model.kind = "logistic"'
        )
    return np.stack(
        [
            fit_perturbed(
                network,
                rows_of(site, phase),
                kind="output" if dp.mechanism == "output" else "objective",
                epsilon=dp.epsilon,
                penalty=phase.train.l2,
                key=key,
                declared=reported_rows(site, phase),
            )
            for site, key in zip(sites, keys, strict=True)
        ]
    )


def _clipped(weights: FloatArray, start: FloatArray, clip: float) -> FloatArray:
    """Shorten every site's update to norm `clip`."""
    from kohort.models.dp_sgd.fit import clip_update

    origin = np.broadcast_to(start, weights.shape)
    updates = [
        clip_update(after.astype(np.float64) - before, clip) for after, before in zip(weights, origin, strict=True)
    ]
    moved: FloatArray = (origin + np.stack(updates)).astype(weights.dtype)
    return moved


def _noised(
    weights: FloatArray, start: FloatArray, dp: DPSection, sigmas: NDArray[np.float64], keys: tuple[bytes, ...]
) -> FloatArray:
    """Clip the updates and add Gaussian noise.

    Two updates of norm at most `clip` differ by at most twice that, whichever row, person or site made the difference.
    """
    from kohort.models.dp_sgd.fit import gaussian

    clipped = _clipped(weights, start, dp.clip)
    noise = np.stack([gaussian(key, weights.shape[1]) for key in keys])
    noisy: FloatArray = (clipped + noise * (2 * dp.clip * sigmas)[:, None]).astype(weights.dtype)
    return noisy


def phase_step(approved: ApprovedPlan, number: int) -> Step:
    """What the rounds of one phase with the hub ask of a site.

    Args:
        approved: The approved plan.
        number: The phase, from 0.

    Returns:
        The step, once per round of the phase.

    Raises:
        ConfigError: The plan corrects drift by control variates, which a site would send besides.
    """
    phase = approved.phase(number)
    if find_correction(phase.train.correction).scaffold:
        raise ConfigError(
            "SCAFFOLD's control variates are a second release of every site, which no phase and no budget has",
            hint='Set train.correction = "fedprox:0.1" or "none"',
        )
    noisy = phase.dp is not None and phase.dp.mechanism != "hub"
    says = "weights trained on your rows"
    if phase.rows != "all":
        says += f" of {phase.rows} risk"
    if phase.dp is not None:
        says += ", clipped" if not noisy else f", with noise for epsilon {phase.dp.epsilon:g} over all rounds"
        says += ", each row in one round" if phase.dp.mechanism == "ftrl" else ""
    return Step(
        task=TRAIN_PHASE.name,
        says=says,
        claims=(total_claim(approved),) if noisy else (Aggregate(rows=0),),
        rounds=phase_rounds(approved, number),
        phase=number,
    )


def phase_rounds(approved: ApprovedPlan, number: int) -> range:
    """The rounds of one phase.

    Args:
        approved: The approved plan.
        number: The phase, from 0.

    Returns:
        Their numbers in the run.
    """
    first = sum(earlier.train.rounds for earlier in approved.phases[:number])
    return range(first, first + approved.phases[number].train.rounds)


def _start(sites: Sequence[Site], request: Request) -> FloatArray:
    """The hub's weights, or, when it sends none, the models that the sites trained with their peers."""
    sent = request.payload.arrays.get("weights")
    if sent is not None:
        return sent
    own = [site.state(TrainingState).model for site in sites]
    if any(model is None for model in own):
        raise SiteError("a site was asked to continue from a model of its own, but has none yet")
    return np.stack([model for model in own if model is not None])


def _one(site: Site, request: Request) -> Release:
    trained = train_phase([site], request, int(request.payload.metrics["phase"]), _start([site], request))
    payload = Payload(arrays={"weights": trained.weights[0]}, metrics={"rows": trained.reported[0]})
    return Release(payload=payload, guarantee=trained.guarantees[0], rows=trained.counts[0], said=trained.reported[0])


def _many(sites: Sequence[Site], request: Request) -> Releases | None:
    budgets = [phase.dp for phase in sites[0].plan.phases if phase.dp is not None]
    if any(dp.quantile is not None or dp.lower_rate for dp in budgets):
        return None  # each site has a clipping bound, or a rate, of its own
    trained = train_phase(sites, request, int(request.payload.metrics["phase"]), _start(sites, request))
    metrics: dict[str, Any] = {"rows": np.asarray(trained.reported, dtype=np.int64)}
    return Releases(
        arrays={"weights": trained.weights},
        metrics=metrics,
        guarantees=trained.guarantees,
        rows=trained.counts,
        said=trained.reported,
    )


TRAIN_PHASE = Task(name="train.phase", one=_one, many=_many, public=False)
