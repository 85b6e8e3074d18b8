"""Rows that arrive over time: `sites.arrive`.

"20%/10 rounds" is for simulations: a fifth of each site's rows is present at the beginning, and another fifth arrives
every ten rounds until all are present. The order in which a site's rows arrive is drawn from its own stream.

"appended/10 rounds" is for sites with tables of their own: every ten rounds they read their table again and take the
rows that were appended to its end.
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

_FORM = re.compile(r"\s*(?:(\d+(?:\.\d+)?)\s*%|appended)\s*/\s*(\d+)\s*rounds?\s*")


@dataclass(frozen=True)
class Arrival:
    """A schedule: `share` of a site's rows is present at first, and as many more arrive every `every` rounds.

    Without a share, all rows are present, and every `every` rounds come those that were appended to the site's table.
    """

    share: float | None
    every: int

    @property
    def appended(self) -> bool:
        """Whether sites read their tables again."""
        return self.share is None

    def brings_rows(self, round_number: int) -> bool:
        """Whether rows arrive just before this round.

        Args:
            round_number: The round, from 0.

        Returns:
            True for the rounds at which the schedule adds rows, the first included.
        """
        due = round_number % self.every == 0
        return due and (self.share is None or self.share * (round_number // self.every) < 1 - 1e-9)

    def present(self, rows: int, round_number: int, streams: Streams) -> NDArray[np.bool_]:
        """Which of a site's rows are present in a round.

        Args:
            rows: How many rows the site has in all.
            round_number: The round, from 0.
            streams: The site's own streams.

        Returns:
            A mask over the rows.
        """
        if self.share is None:
            return np.ones(rows, dtype=bool)
        here = min(rows, ceil(rows * self.share * (1 + round_number // self.every) - 1e-9))
        mask = np.zeros(rows, dtype=bool)
        mask[streams.generator("arrival").permutation(rows)[:here]] = True
        return mask


def parse_arrival(text: str | None) -> Arrival | None:
    """Read `sites.arrive`.

    Args:
        text: A share and a period, as in "20%/10 rounds", or "appended/10 rounds"; None when the plan does not set it.

    Returns:
        The schedule; None when all rows are present from the beginning.

    Raises:
        ConfigError: The text has another form.
    """
    if text is None:
        return None
    match = _FORM.fullmatch(text)
    share = None if match is None or match[1] is None else float(match[1]) / 100
    if match is None or int(match[2]) < 1 or not (share is None or 0 < share <= 1):
        raise ConfigError(
            f"cannot read sites.arrive = {text!r}", hint='Write it as "20%/10 rounds" or "appended/10 rounds"'
        )
    return Arrival(share, int(match[2]))
