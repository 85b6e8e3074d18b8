"""Rows that arrive over time: `sites.arrive = "20%/10 rounds"` in a simulation.

A fifth of each site's rows is there at the beginning, and another fifth comes every ten rounds until all have. The
order in which a site's rows arrive is drawn from its own stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.rng import Streams

__all__ = ["Arrival", "parse_arrival"]

_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*/\s*(\d+)\s*rounds?\s*")


@dataclass(frozen=True)
class Arrival:
    """`share` of a site's rows is there at first, and as many more come every `every` rounds."""

    share: float
    every: int

    def brings_rows(self, round_number: int) -> bool:
        """Whether rows arrive just before this round."""
        return round_number % self.every == 0 and self.share * (round_number // self.every) < 1 - 1e-9

    def present(self, rows: int, round_number: int, streams: Streams) -> NDArray[np.bool_]:
        """Which of a site's rows are there in this round."""
        here = min(rows, ceil(rows * self.share * (1 + round_number // self.every) - 1e-9))
        mask = np.zeros(rows, dtype=bool)
        mask[streams.generator("arrival").permutation(rows)[:here]] = True
        return mask


def parse_arrival(text: str | None) -> Arrival | None:
    """The schedule a plan writes; None when all rows are there from the beginning."""
    if text is None:
        return None
    match = _FORM.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= 100 or int(match[2]) < 1:
        raise ConfigError(f"cannot read sites.arrive = {text!r}", hint='Write it as "20%/10 rounds"')
    return Arrival(float(match[1]) / 100, int(match[2]))
