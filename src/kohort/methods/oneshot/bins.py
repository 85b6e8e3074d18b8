"""`features = "bins"`: ridge regression on bins, in two rounds. One curve per column, in closed form.

The first total counts cells, sealed for the sites alone; the second counts pairs of bins, and of bins and classes. A
key-holder rounds small counts of pairs before the hub sees them; by masks they open as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.errors import ConfigError
from kohort.methods.additive.config import Additive
from kohort.methods.oneshot.design import OneShot, section_of, unread_keys
from kohort.methods.oneshot.ridge import RidgeLearner
from kohort.protocol.hub import Hub, ProtocolGenerator, Result
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.rounds.totals.checked_training import CheckedTraining

if TYPE_CHECKING:
    from kohort.methods.oneshot.design import OneShotSection

__all__ = ["BINS", "bins_protocol", "check_bins", "uses_bins"]

_SLOPE = 0.0475
"""Of the logistic function at the scores that classes are fitted as: a penalty divided by its square is a ridge."""
_MIN_BIN = 20


def uses_bins(section: OneShotSection) -> bool:
    """Whether a plan fits bins.

    Args:
        section: The plan's `[method.oneshot]`.

    Returns:
        True for `features = "bins"`.
    """
    return section.features == "bins"


def _keys(approved: ApprovedPlan) -> Additive:
    section = section_of(approved)
    penalty = 1e-3 if isinstance(section.lambda_, str) else section.lambda_
    return Additive(rounds=2, ridge=penalty / _SLOPE**2, min_bin=max(_MIN_BIN, section.min_cell))


BINS = CheckedTraining(
    "oneshot.bins",
    RidgeLearner,
    lambda _: 2,
    says="counts of cells in the first round; in the second, counts of pairs of bins and of bins and classes",
    seals=lambda _: range(1),
    tells="the bins of all columns, how many persons of all sites each holds, and about how many persons each class "
    "has or the rounded mean of a number",
    pairs=lambda _: range(1, 2),
    own_keys=_keys,
)


def bins_protocol(config: OneShot, hub: Hub) -> ProtocolGenerator:
    """Count cells, then pairs of bins, and solve.

    Args:
        config: Not read: `BINS` takes its keys from the approved plan of `hub`.
        hub: The hub and its sites.

    Returns:
        The additive model, after exactly two rounds.
    """
    del config
    learner = yield from BINS.learn(hub)
    assert learner.model is not None  # noqa: S101 - both totals are there
    return Result(model=learner.model, rounds=2, stopped_by="rounds")


def check_bins(config: OneShot) -> None:
    """Refuse keys that bins do not read.

    Args:
        config: `[method]` of a plan with `features = "bins"`. A key with its default counts as not given.

    Raises:
        ConfigError: The plan has such a key, or a budget.
    """
    section, plain = config.oneshot, type(config.oneshot)()
    unread = (key.rpartition(".")[2] for key in unread_keys(config) if key.startswith("method.oneshot."))
    named = [name for name in unread if getattr(section, name) != getattr(plain, name)]
    named += ["lambda"] if section.lambda_ == "folds" else []
    if named or config.dp is not None:
        what = ", ".join([*(f"method.oneshot.{name}" for name in named), *(["method.dp"] if config.dp else [])])
        raise ConfigError(f'features = "bins" does not read {what}', hint="Drop it; additive models have budgets")
