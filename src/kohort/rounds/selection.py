"""Client selection: which sites are asked in a round. The hub selects, so it amplifies no privacy against the hub."""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from kohort.protocol.plan.approved import TrainSection

__all__ = ["select_sites"]


def select_sites(
    sites: tuple[str, ...],
    train: TrainSection,
    generator: np.random.Generator,
    *,
    asked: NDArray[np.int64],
    answered: NDArray[np.int64],
) -> tuple[str, ...]:
    """Select the sites of one round.

    By `train.select`: "random" draws ceil(fraction * sites) of them; "poisson" draws each site independently, possibly
    none; "reliable" draws as many as "random", in proportion to the estimated probability of an answer,
    (answered + 1) / (asked + 2).

    Args:
        sites: All sites of the group.
        train: The plan's `train` section.
        generator: The random stream of this round.
        asked: How often each site was asked before.
        answered: How often each site answered.

    Returns:
        The selected sites, in the order of `sites`.
    """
    if train.fraction >= 1.0:
        return sites
    if train.select == "poisson":
        picked = np.flatnonzero(generator.random(len(sites)) < train.fraction)
    else:
        chance = (answered + 1) / (asked + 2) if train.select == "reliable" else np.ones(len(sites))
        wanted = max(1, ceil(train.fraction * len(sites) - 1e-9))  # 0.07 * 100 is a little above 7
        picked = generator.choice(len(sites), size=wanted, replace=False, p=chance / chance.sum())
    return tuple(sites[index] for index in sorted(picked))
