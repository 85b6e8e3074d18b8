"""Federated averaging (McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep
Networks from Decentralized Data, AISTATS 2017).

Threat model: the hub is curious and follows the protocol. It sees every site's weights after local training, its row
count, and, with early stopping, its training loss. Weights of a small site can give rows back (gradient inversion), so
a policy has `min_rows`. Sites see the averaged model of each round.
Guarantee: Aggregate of the site's rows, and none beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kohort.federation.plan import Hub, Plan, Result
from kohort.federation.rounds import federated_rounds
from kohort.federation.training import TRAIN, TRAIN_SCAFFOLD
from kohort.methods.registry import Method
from kohort.privacy.guarantee import Aggregate, Guarantee

__all__ = ["METHOD", "FedAvg"]


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Nothing of its own: rounds, epochs, fraction and stopping are `[train]`."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field


def plan(config: FedAvg, hub: Hub) -> Plan:
    """Each round: the chosen sites train from the hub's weights, the hub averages what comes back."""
    del config
    weights = hub.network.start(hub.streams.generator("start"))
    ended = yield from federated_rounds(hub, weights)
    return Result(weights=ended.weights, rounds=ended.rounds, stopped_by=ended.stopped_by)


def claims(config: FedAvg, rows: int) -> Sequence[Guarantee]:
    """A site gives away weights trained on all its rows."""
    del config
    return (Aggregate(rows=rows),)


METHOD = Method(
    name="fedavg",
    summary="Sites train, the hub averages their weights.",
    config=FedAvg,
    plan=plan,
    claims=claims,
    tasks=(TRAIN, TRAIN_SCAFFOLD),
    cites="McMahan et al. 2017",
)
