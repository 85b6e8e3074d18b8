"""Federated averaging (McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep
Networks from Decentralized Data, AISTATS 2017), plain, over secure sums, and under differential privacy.

Plain averaging, without `method.secure` and `method.dp`, is a baseline: rows can be read by a lying hub. It sees every
site's weights after local training, its row count and, with early stopping, its training loss, and it chooses the
weights that sites train from. With `method.secure` the hub opens sums alone, and sites compute the weights themselves
from checked totals. With `method.dp` noise is added at the site, in shares inside the sum, or by the hub, as the
mechanism says.

Threat model: plain, a hub that follows the protocol; with `method.secure` or noise at the sites, a hub that lies. Sites
see the averaged model of each round.

Guarantee: Aggregate of the site's rows; SecureSum with `method.secure`; DP with `method.dp`.

Sharp edges: a policy's `min_rows` keeps small sites out of plain averaging and protects no large one: in a test, a hub
that chose the weights read 598 of 600 rows in 60 rounds. A mechanism that adds noise at the hub does not protect
against the hub. Early stopping is refused under a budget, because the loss would have to be paid for.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kohort.crypto.sums.scheme import find_scheme
from kohort.methods.registry import Method
from kohort.methods.strengths import Strength, with_budget, with_sum
from kohort.models.dense.network import FloatArray
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import DP, Aggregate, Guarantee
from kohort.protocol.hub import Ask, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan, ModelSection, TrainSection
from kohort.protocol.plan.phases import PURE, DPSection, SecureSumSection, TrainingPhase
from kohort.protocol.plan.reads import (
    AGGREGATION,
    AVERAGED,
    CORRECTION,
    EARLY_STOPPING,
    FEDERATED_ROUNDS,
    LOCAL_TRAINING,
    NETWORK,
    ROUNDS,
    SELECTION,
    START,
    Reads,
)
from kohort.rounds.dp_accounts import planned_claims, reserve, reserve_step, spends
from kohort.rounds.group_secrets import agree_on_secret, secret_step
from kohort.rounds.hub_noise import hub_claim, hub_noise
from kohort.rounds.loop import RoundOptions, RoundsResult, federated_rounds
from kohort.rounds.noisy_statistics import noisy_statistics, statistics_step
from kohort.rounds.phase_training import TRAIN_PHASE, phase_step
from kohort.rounds.private_defaults import is_tuned, tuned_budget, tuned_train
from kohort.rounds.totals.summed import require_enough, summed_rounds
from kohort.rounds.totals.summed_tasks import summed_steps
from kohort.rounds.training import training_step

__all__ = ["METHOD", "FedAvg"]


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """`[method]` of federated averaging: how updates are protected. Rounds, epochs and stopping are in `[train]`."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    dp: DPSection | None = None
    """A budget; with train.batch = 0 and one local epoch, full-batch DP-FedSGD."""
    secure: SecureSumSection | None = None
    """Sum updates so that the hub sees only totals; with a budget, sites add the noise in shares."""

    def __post_init__(self) -> None:
        if self.secure is not None:
            object.__setattr__(self, "secure", self.secure.or_scheme("masks"))
        if self.dp is not None:
            self.dp.refuse_sample(self.secure)


def phases(config: FedAvg, train: TrainSection) -> tuple[TrainingPhase, ...]:
    """One phase over all rows."""
    return (TrainingPhase(train=train, dp=config.dp),)


def fill(
    config: FedAvg, train: TrainSection, model: ModelSection, given: frozenset[str]
) -> tuple[FedAvg, TrainSection]:
    """Set private training by one rule where the plan leaves it open (`kohort.rounds.private_defaults`)."""
    dp, own = config.dp, frozenset(key.removeprefix("train.") for key in given if key.startswith("train."))
    if dp is None or not is_tuned(dp, own):
        return config, train
    budget = tuned_budget(dp, own | {key.removeprefix("method.") for key in given if key.startswith("method.dp.")})
    return replace(config, dp=budget), tuned_train(train, dp, model, own, summed=config.secure is not None)


def reads(config: FedAvg) -> Reads:
    """Everything of `[train]` without protection; over sums and under a budget, what is left of it."""
    found = _reads(config)
    if config.dp is None or not config.dp.average or "train.average" not in found.keys:
        return found
    return replace(found, keys=found.keys - {"train.average"}, because={**found.because, **AVERAGED})


def _reads(config: FedAvg) -> Reads:
    if config.secure is not None:
        return _reads_summed(config.dp)
    if config.dp is None:
        return Reads(FEDERATED_ROUNDS | NETWORK)
    mechanism = config.dp.mechanism
    return Reads(_of_mechanism(mechanism), f"with dp.mechanism = {mechanism!r}", unread=_unread_budget(mechanism))


def _of_mechanism(mechanism: str) -> frozenset[str]:
    """What is read of `[train]` and `[model]` under a budget without sums."""
    if mechanism == "statistics":
        return NETWORK - START
    chosen = ROUNDS | SELECTION | NETWORK
    if mechanism in PURE:  # there is one round
        return (chosen | AGGREGATION | {"train.l2"}) - {"train.average"}
    if mechanism == "ftrl":  # batches follow from the rounds
        return chosen | AGGREGATION | {"train.lr", "train.l2"}
    trained = chosen | LOCAL_TRAINING | CORRECTION
    return trained if mechanism == "hub" else trained | AGGREGATION


def _unread_budget(mechanism: str) -> dict[str, str]:
    """Keys of a budget that its mechanism does not read, and why."""
    unread = {} if mechanism == "dp-sgd" else {"method.dp.lower_rate": "noise lowers the rate of dp-sgd alone"}
    if mechanism == "statistics" or mechanism in PURE:
        unread["method.dp.average"] = "it releases once"
        unread["method.dp.clip"] = "the bound on rows is public and fixed"
    return unread


_NEED_UPDATES = SELECTION | AGGREGATION | CORRECTION | EARLY_STOPPING
_HIDDEN = dict.fromkeys(_NEED_UPDATES, "a secure sum hides each site's own update and loss")


def _reads_summed(dp: DPSection | None) -> Reads:
    """A sum hides each site's update: nothing can be chosen, weighed or watched by it."""
    trained = LOCAL_TRAINING
    if dp is not None and dp.mechanism == "dp-sgd":  # the hub takes the step, on a sum of gradients
        trained = LOCAL_TRAINING - {"train.l2", "train.state"}
    unread = {} if dp is None else _unread_budget(dp.mechanism)
    return Reads(ROUNDS | trained | NETWORK, "with method.secure", because=_HIDDEN, unread=unread)


def protocol(config: FedAvg, hub: Hub) -> ProtocolGenerator:
    """In each round the chosen sites train from the hub's weights, and the hub averages the weights they return.

    Raises:
        ConfigError: The plan has both `method.dp` and `train.stop`.
    """
    weights = hub.network.start(hub.streams.generator("start"))
    if config.dp is not None and spends(hub.approved.phase(0), config.secure) is not None:
        reserved: Replies = yield reserve(hub.sites)
        hub = replace(hub, sites=reserved.sites)
    if config.secure is not None:
        return (yield from _over_sums(hub))
    if config.dp is not None:
        return (yield from _private(config.dp, hub, weights))
    ended = yield from federated_rounds(hub, weights)
    return Result(model=hub.model_of(ended.weights), rounds=ended.rounds, stopped_by=ended.stopped_by)


def _over_sums(hub: Hub) -> Generator[Ask | RoundEnd, Any, Result]:
    """Rounds over secure sums."""
    require_enough(hub)
    if hub.approved.sums_securely:
        hub = replace(hub, sites=(yield from agree_on_secret(hub)))
    rounds = hub.approved.phase(0).train.rounds
    ended = yield from summed_rounds(hub, rounds=range(rounds), last_round=rounds)
    return Result(model=hub.model_of(ended.model.weights), rounds=rounds, stopped_by="rounds")


def _private(dp: DPSection, hub: Hub, weights: FloatArray) -> Generator[Ask | RoundEnd, Any, Result]:
    """Rounds under a budget, with the noise added by the sites or by the hub."""
    if dp.mechanism == "statistics":
        solved: RoundsResult = yield from noisy_statistics(hub)
        return Result(model=hub.model_of(solved.weights), rounds=solved.rounds, stopped_by=solved.stopped_by)
    noise = None
    if dp.mechanism == "hub":
        noise = hub_noise(hub, dp, rounds=hub.approved.train.rounds, sites=len(hub.sites))
    options = RoundOptions(task=TRAIN_PHASE, metrics={"phase": 0}, noise=noise, average=dp.average or 0.0)
    ended: RoundsResult = yield from federated_rounds(hub, weights, options=options)
    model = hub.model_of(ended.weights)
    return Result(model=model, rounds=ended.rounds, stopped_by=ended.stopped_by, claim=hub_claim(hub))


def claims(config: FedAvg, rows: int) -> Sequence[Guarantee]:
    """A site gives away weights trained on all its rows, or a share of their sum, or noisy ones."""
    (phase,) = phases(config, TrainSection())
    made: list[Guarantee] = list[Guarantee](planned_claims((phase,), config.secure))
    if config.secure is not None:
        made.append(find_scheme(config.secure.sum).claim(3, rows))
    elif not any(isinstance(claim, DP) for claim in made):
        made.append(Aggregate(rows=rows))
    return tuple(made)


def contract(approved: ApprovedPlan) -> Contract:
    """A reservation where there is a budget, then one answer per round: weights, noisy weights, or a share of a sum."""
    config: FedAvg = approved.config
    budget = [reserve_step(approved)] if spends(approved.phase(0), config.secure) is not None else []
    if config.secure is not None:
        says = "the sum of all sites' updates" if config.dp is None else "the noisy sum of all sites' clipped updates"
        secret = [secret_step()] if approved.sums_securely else []
        return Contract.of(budget, secret, summed_steps(approved, 0, says=says))
    if config.dp is None:
        return Contract.of([training_step(approved)])
    if config.dp.mechanism == "statistics":
        return Contract.of(budget, [statistics_step(approved)])
    return Contract.of(budget, [phase_step(approved, 0)])


METHOD = Method(
    name="fedavg",
    summary="Sites train, their weights are averaged: in clear as a baseline, or over secure sums.",
    config=FedAvg,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="McMahan et al. 2017",
    reads=reads,
    fill=fill,
    phases=phases,
    secure=lambda config: config.secure,
    strengths=(
        Strength("in clear", "none"),
        with_sum("masks"),
        with_budget(
            1.0,
            'method.secure.sum="masks"',
            "train.batch=0",
            "train.local_epochs=1",
            'train.optimizer="sgd"',
            "train.lr=0.5",
        ),
    ),
)
