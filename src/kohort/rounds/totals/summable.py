"""Which phases with the hub a secure sum can carry.

Hub and sites each ask this when they derive the contract from the plan, so that a hub which does not ask gets no sum of
a phase whose account speaks of something else: of sampled batches, or of noise that is no share.
"""

from __future__ import annotations

from kohort.errors import ConfigError
from kohort.protocol.plan.phases import DPSection, TrainingPhase
from kohort.protocol.plan.sections import TrainSection

__all__ = ["check_summed"]


def check_summed(phase: TrainingPhase) -> None:
    """Refuse a phase with the hub that a sum cannot carry.

    Args:
        phase: The phase.

    Raises:
        ConfigError: It needs each site's own update, or noise that sites cannot share.
    """
    train = phase.train
    if phase.dp is not None and phase.dp.mechanism == "ftrl":
        raise ConfigError(
            'dp.mechanism = "ftrl" has noise that is correlated over the rounds, and nothing is proved of its shares '
            "in a total of method.secure from which other sites drop out",
            hint='Drop method.secure, or use dp.mechanism = "dp-sgd"',
        )
    if phase.dp is not None and phase.dp.mechanism not in {"dp-sgd", "hub"}:
        raise ConfigError(
            f"the noise of dp.mechanism = {phase.dp.mechanism!r} is each site's own, and method.secure shares it",
            hint="Drop method.secure, or use dp-sgd or hub",
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


def _check_gradients(dp: DPSection, train: TrainSection) -> None:
    if train.batch != 0 or train.local_epochs != 1 or train.optimizer == "adam":
        raise ConfigError(
            "a sum of clipped gradients is one full step per round",
            hint='Set train.batch = 0, train.local_epochs = 1 and train.optimizer = "sgd" or "momentum"; dp.sample '
            "draws a share of the rows",
        )
    if dp.quantile is not None:
        # The bound would have to be one for all sites, so it would follow from a noisy count in the total before: a
        # second release per round, to find what normalised gradients do without.
        raise ConfigError(
            "dp.quantile moves the bound of one site by a count of its rows, and the total of method.secure has one "
            "bound for all sites",
            hint="Set dp.normalise = true, which needs no bound and costs nothing, or drop dp.quantile",
        )
