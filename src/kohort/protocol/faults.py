"""Simulated faults, for tests and studies: sites that drop out, are late, or lie.

    sites.faults = {drop = 0.1, slow = 0.1, byzantine = {kind = "sign-flip", share = 0.2}}

Dropping and lateness are drawn anew every round; who lies is drawn once a run. A Byzantine release still passes its own
door, for the ledger of a lying site records what it sent, not what is true.
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
    """`sites.faults.byzantine`: what a share of the sites does to its updates."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    kind: Literal["sign-flip", "noise", "zero", "nan"] = "sign-flip"
    share: Annotated[float, Gt(0), Le(1)] = 0.2
    scale: Annotated[float, Gt(0)] = 10.0
    """How many times the honest update a flipped one is; the standard deviation of the noise."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """`sites.faults`: chances that a site drops out of, or is late in, a round; and byzantine_sites."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    drop: Annotated[float, Ge(0), Le(1)] = 0.0
    slow: Annotated[float, Ge(0), Le(1)] = 0.0
    byzantine: Byzantine | None = field(default=None)


@dataclass(frozen=True)
class ByzantineSite:
    """A site that distorts the weights it sends."""

    byzantine: Byzantine
    streams: Streams

    def distort(self, sent: NDArray[Any], start: NDArray[Any], round_number: int) -> NDArray[Any]:
        """What goes out instead of the honest weights `sent`, trained from `start`."""
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
        lied: NDArray[Any] = lie.astype(sent.dtype)
        return lied


def absent_sites(
    faults: Faults, sites: Sequence[str], streams: Streams, *, task: str, round_number: int
) -> dict[str, str]:
    """The sites that give no usable answer this time, and why."""
    if not faults.drop and not faults.slow:
        return {}
    draws = streams.generator("trouble", task, round_number).random((len(sites), 2))
    found = {site: "late" for site, slow in zip(sites, draws[:, 1] < faults.slow, strict=True) if slow}
    found |= {site: "dropped" for site, gone in zip(sites, draws[:, 0] < faults.drop, strict=True) if gone}
    return found


def byzantine_sites(faults: Faults, sites: Sequence[str], streams: Streams) -> dict[str, ByzantineSite]:
    """The sites that lie in this run: the share, rounded, drawn at random."""
    if faults.byzantine is None:
        return {}
    count = round(faults.byzantine.share * len(sites))
    picked = streams.generator("hostile").choice(len(sites), size=count, replace=False)
    return {
        sites[index]: ByzantineSite(faults.byzantine, Streams(streams.bytes("liar", sites[index]), streams.seed))
        for index in sorted(picked)
    }
