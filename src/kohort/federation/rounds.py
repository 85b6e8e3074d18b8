"""The loop every iterative method shares: choose sites, ask them to train, aggregate, mark the round, stop when done.

A method adds what is its own: what the hub contributes besides the sites (`contribute`), or another task.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.federation.aggregate import find_aggregator
from kohort.federation.plan import Ask, Hub, Mark, Replies
from kohort.federation.setting import Stop
from kohort.federation.task import Task
from kohort.federation.training import TRAIN, expected_update
from kohort.federation.wire import Payload
from kohort.learn.network import FloatArray

__all__ = ["Patience", "choose_sites", "federated_rounds"]

Contribution = tuple[FloatArray, int]
Contribute = Callable[[int, FloatArray], Contribution | None]


class Patience:
    """Watches a metric that should fall, and says when it has stopped falling."""

    def __init__(self, rule: Stop | None) -> None:
        self._rule = rule
        self._best = np.inf
        self._waited = 0

    @property
    def reason(self) -> str:
        """What to say when it is over."""
        return f"no improvement of the loss for {self._waited} rounds"

    def is_over(self, value: float) -> bool:
        """Whether `value` is one round too many without an improvement."""
        if self._rule is None:
            return False
        if value < self._best - self._rule.min_delta:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        return self._waited >= self._rule.patience


def choose_sites(hub: Hub, round_number: int) -> tuple[str, ...]:
    """The sites asked in a round: all of them, or a fresh random share, in their usual order."""
    wanted = max(1, ceil(hub.setting.train.fraction * len(hub.sites)))
    if wanted == len(hub.sites):
        return hub.sites
    picked = hub.streams.generator("select", round_number).choice(len(hub.sites), size=wanted, replace=False)
    return tuple(hub.sites[index] for index in sorted(picked))


def federated_rounds(
    hub: Hub, weights: FloatArray, *, task: Task = TRAIN, contribute: Contribute = lambda *_: None
) -> Generator[Ask | Mark, Any, tuple[FloatArray, int, str]]:
    """Train until the rounds are used up or the loss stays put; returns weights, rounds done and what ended it."""
    train = hub.setting.train
    aggregate = find_aggregator(train.aggregate)
    patience = Patience(train.stop)
    expect = expected_update(hub.network, hub.setting)
    for round_number in range(train.rounds):
        replies: Replies = yield Ask(
            task=task,
            to=choose_sites(hub, round_number),
            payload=Payload(arrays={"weights": weights}),
            round=round_number,
            expect=expect,
        )
        stack, rows = _with_hub(replies, contribute(round_number, weights))
        weights = aggregate(stack, rows)
        metrics: dict[str, float] = {}
        if train.stop is not None:
            metrics["loss"] = float(np.average(replies.metric("loss"), weights=replies.metric("rows")))
        yield Mark(round=round_number, rounds=train.rounds, weights=weights, metrics=metrics)
        if train.stop is not None and patience.is_over(metrics["loss"]):
            return weights, round_number + 1, patience.reason
    return weights, train.rounds, "rounds"


def _with_hub(replies: Replies, own: Contribution | None) -> tuple[FloatArray, NDArray[np.int64]]:
    """Stack and row counts of the sites, with the hub's own update as one more participant when there is one."""
    stack: FloatArray = replies.array("weights")
    rows: NDArray[np.int64] = replies.metric("rows").astype(np.int64)
    if own is None:
        return stack, rows
    update, count = own
    return np.concatenate([stack, update[None, :]]), np.append(rows, count)
