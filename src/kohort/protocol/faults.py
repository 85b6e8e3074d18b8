"""Fault injection for tests and studies: drop-outs, stragglers and Byzantine sites.

    sites.faults = {drop = 0.1, slow = 0.1, byzantine = {kind = "sign-flip", share = 0.2}}

Drop-outs and stragglers are drawn anew in every round; Byzantine sites are drawn once per run. The release of a
Byzantine site still passes its own door: its ledger records what it sent, not what would have been right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from kohort.rng import Streams

__all__ = ["Byzantine", "ByzantineSite", "Faults", "absent_sites", "byzantine_sites"]


@dataclass(frozen=True, kw_only=True)
class Byzantine:
    """`sites.faults.byzantine`: how a share of the sites distorts its updates."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    kind: Literal["sign-flip", "noise", "zero", "nan"] = "sign-flip"
    share: Annotated[float, Gt(0), Le(1)] = 0.2
    scale: Annotated[float, Gt(0)] = 10.0
    """For "sign-flip": the factor on the reversed update. For "noise": its standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """`sites.faults`: the probabilities that a site drops out of a round or is late, and its Byzantine sites."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    drop: Annotated[float, Ge(0), Le(1)] = 0.0
    slow: Annotated[float, Ge(0), Le(1)] = 0.0
    byzantine: Byzantine | None = field(default=None)


@dataclass(frozen=True)
class ByzantineSite:
    """The simulated behaviour of one Byzantine site, which distorts the weights it sends."""

    byzantine: Byzantine
    streams: Streams

    def distort(self, sent: NDArray[Any], start: NDArray[Any], round_number: int) -> NDArray[Any]:
        """The weights that the site sends instead of the honest ones.

        Args:
            sent: The honest weights.
            start: The weights they were trained from.
            round_number: The round.

        Returns:
            The distorted weights, of the same shape and type.
        """
        match self.byzantine.kind:
            case "sign-flip":
                lie = start - self.byzantine.scale * (sent.astype(np.float64) - start)
            case "noise":
                generator = self.streams.generator("lie", round_number)
                lie = start + generator.normal(scale=self.byzantine.scale, size=sent.shape)
            case "zero":
                lie = np.zeros(sent.shape)
            case "nan":
                lie = np.full(sent.shape, np.nan)
        with np.errstate(over="ignore"):  # a lie may be larger than the type of honest weights holds
            lied: NDArray[Any] = lie.astype(sent.dtype)
        return lied


def absent_sites(
    faults: Faults, sites: Sequence[str], streams: Streams, *, task: str, round_number: int
) -> dict[str, str]:
    """Draw the drop-outs and stragglers of one exchange.

    Args:
        faults: The probabilities.
        sites: The sites that are asked.
        streams: The engine's streams.
        task: The task they are asked.
        round_number: The round.

    Returns:
        "dropped" or "late" by site, for those that give no usable answer.
    """
    if not faults.drop and not faults.slow:
        return {}
    draws = streams.generator("trouble", task, round_number).random((len(sites), 2))
    found = {site: "late" for site, slow in zip(sites, draws[:, 1] < faults.slow, strict=True) if slow}
    found |= {site: "dropped" for site, gone in zip(sites, draws[:, 0] < faults.drop, strict=True) if gone}
    return found


def byzantine_sites(faults: Faults, sites: Sequence[str], streams: Streams) -> dict[str, ByzantineSite]:
    """Draw the Byzantine sites of a run.

    Args:
        faults: The share of Byzantine sites, and what they do.
        sites: All sites.
        streams: The engine's streams.

    Returns:
        The behaviour of each Byzantine site, by name.
    """
    if faults.byzantine is None:
        return {}
    count = round(faults.byzantine.share * len(sites))
    picked = streams.generator("hostile").choice(len(sites), size=count, replace=False)
    return {
        sites[index]: ByzantineSite(faults.byzantine, Streams(streams.bytes("liar", sites[index]), streams.seed))
        for index in sorted(picked)
    }
