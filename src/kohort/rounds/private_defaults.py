"""How private training is set where a plan leaves it open: one rule for steps, rate and clip.

Full batches over all rows, momentum 0.9, 60 steps, clip 1, and the mean of the last half of the models. In a full-batch
training the noise of the final weights depends on how far the steps go in all, not on their number, so the number is
fixed and the rate follows from the budget:

    rate = min(limit, mu * rows / (20 * sqrt(parameters))) / clip

mu is the parameter of the Gaussian mechanism that all steps together are, so mu * rows / sqrt(parameters) compares what
the rows say with the length of the noise vector. The limit is 8 without hidden layers and 4 with them. The divisor and
the limit without hidden layers were chosen by `tools/private_defaults.py` on rows of Dutch, Adult, Income and Covertype
that are test rows of no seed from 0 to 4 (docs/methods/hybrid.md has the figures).

What is used is public: the plan, the number of parameters, and the row count that training divides by anyway.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any, Final

from kohort.protocol.plan.phases import DPSection
from kohort.protocol.plan.sections import ModelSection, TrainSection

__all__ = ["TUNED", "is_tuned", "lowered_rate", "tuned_budget", "tuned_rate", "tuned_train"]

TUNED: Final[dict[str, Any]] = {"rounds": 60, "local_epochs": 1, "batch": 0}
AVERAGE: Final = 0.5
"""The share of the rounds, the last ones, whose models are averaged."""
_OWN: Final = ("local_epochs", "batch", "optimizer")
"""A plan that gives one of these says itself how it trains."""
_LIMIT: Final = 8.0
_LIMIT_HIDDEN: Final = 4.0
_PER_RATE: Final = 20.0


def is_tuned(dp: DPSection | None, given: frozenset[str]) -> bool:
    """Whether the rule sets a training.

    Args:
        dp: Its budget.
        given: The keys that the plan gives for it, without their section.

    Returns:
        True for a budget of dp-sgd in a plan that gives neither passes, batch nor optimizer.
    """
    return dp is not None and dp.mechanism == "dp-sgd" and not given.intersection(_OWN)


def tuned_rate(model: ModelSection, dp: DPSection) -> float:
    """The largest rate that the rule allows.

    Args:
        model: The plan's model.
        dp: The budget, with its clip.

    Returns:
        The learning rate: a constant divided by the clip, and half as large with hidden layers.
    """
    hidden = model.kind not in {"linear", "logistic", "svm", "perceptron", "onelayer"}
    return (_LIMIT_HIDDEN if hidden else _LIMIT) / dp.clip


def tuned_budget(dp: DPSection, given: frozenset[str]) -> DPSection:
    """The budget with what the rule says of it.

    Args:
        dp: The budget.
        given: The keys that the plan gives for the training, without their section; of the budget, "dp.lower_rate".

    Returns:
        A copy; whether the rate is lowered and what share of the rounds is averaged stay as a plan gives them.
    """
    average = AVERAGE if dp.average is None and "average" not in given else dp.average
    lower = dp.lower_rate if "dp.lower_rate" in given else "lr" not in given
    return replace(dp, average=average, lower_rate=lower)


def lowered_rate(
    train: TrainSection, dp: DPSection, *, rows: float, sigma: float, steps: int, parameters: int, rate: float = 1.0
) -> float:
    """The rate of a step.

    Args:
        train: How the phase is trained.
        dp: Its budget.
        rows: How many rows the noise is divided by.
        sigma: The noise multiplier of a step.
        steps: How many steps there are in all.
        parameters: How many parameters the model has.
        rate: The sampling rate of a step.

    Returns:
        `train.lr`, or less with `dp.lower_rate` where the noise outweighs the rows.
    """
    if not dp.lower_rate or sigma <= 0:
        return train.lr
    mu = sqrt(steps) * rate / sigma
    return min(train.lr, mu * rows / (_PER_RATE * sqrt(parameters) * dp.clip))


def tuned_train(
    train: TrainSection, dp: DPSection, model: ModelSection, given: frozenset[str], *, summed: bool
) -> TrainSection:
    """`[train]` with what the rule says of the keys that a plan leaves open.

    Args:
        train: The section.
        dp: The budget.
        model: The plan's model.
        given: The keys of the section that the plan gives.
        summed: Whether the hub takes the step on a sum; otherwise sites take it, and the hub adds the momentum.

    Returns:
        A copy; the keys in `given` stay as they are.
    """
    ours: dict[str, Any] = {**TUNED, "optimizer": "momentum" if summed else "sgd", "lr": tuned_rate(model, dp)}
    if not summed:
        ours["hub"] = "momentum"
    return replace(train, **{key: value for key, value in ours.items() if key not in given})
