"""Bootstrap intervals: between which figures a measure would lie on other rows of the same kind.

Resampling rows with replacement is giving each row a random weight, and every measure here is a function of weighted
sums over rows. So a thousand resamples are one product of a weight matrix with a table of sums, whatever the measure.

Beyond `Resampling.blocks` rows, rows are first summed up in that many blocks, drawn at random, and blocks are resampled
instead of rows. A random block is an independent sum of rows, so the spread of the resampled totals stays the same; the
cost no longer grows with the table.

Guarantees: the same rows and the same generator give the same interval; where there is a block for every row the
resampling is the plain bootstrap; intervals are percentiles (Efron, 1979). They speak of the rows drawn, not of the
training: another seed or other sites move a model further. A measure that is the same in every resample has an interval
of no width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kohort.models.scoring import one_blas_thread

__all__ = ["BLOCKS", "LEVEL", "RESAMPLES", "Blocks", "Interval", "Resampling", "intervals_of"]

Floats = NDArray[np.float64]
Interval = list[float]
"""Low and high, as JSON has it."""
Measure = Callable[[Floats], Mapping[str, Floats]]
"""From sums [resamples, columns] to the value of each measure in each resample; NaN where it has none."""

LEVEL = 0.95
RESAMPLES = 1000
BLOCKS = 2048
_WEIGHTS_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Resampling:
    """How often rows are drawn anew, from what randomness, and in how many blocks at most."""

    resamples: int = RESAMPLES
    blocks: int = BLOCKS
    generator: np.random.Generator
    persons: NDArray[np.int64] | None = None
    """The person each row is about: persons are drawn, with all of their rows. None: every row is about another."""


class Blocks:
    """Which block each row belongs to, and the sums of columns over blocks."""

    def __init__(self, rows: int, resampling: Resampling) -> None:
        most, persons = resampling.blocks, resampling.persons
        unit = np.arange(rows) if persons is None else np.unique(persons, return_inverse=True)[1]
        units = rows if persons is None else int(unit.max(initial=-1)) + 1
        self.count = min(units, most)
        # Unit i alone in block i, or any unit in any block: tables are sorted, and neighbours are alike.
        self._of_row = unit if units <= most else (resampling.generator.permutation(units) % most)[unit]

    def sums(self, values: NDArray[np.generic]) -> Floats:
        """The sum of `values` (one per row) in every block."""
        return np.asarray(np.bincount(self._of_row, weights=values, minlength=self.count), dtype=np.float64)

    def counts(self, codes: NDArray[np.int64], size: int) -> Floats:
        """How often each code below `size` occurs in every block, [blocks, size]."""
        found = np.bincount(self._of_row * size + codes, minlength=self.count * size)
        return found.reshape(self.count, size).astype(np.float64)


def intervals_of(
    sums: Floats, measure: Measure, resampling: Resampling, *, level: float = LEVEL
) -> dict[str, Interval | None]:
    """Bootstrap intervals of measures.

    Args:
        sums: Sums over the rows of each block, [blocks, columns].
        measure: Computes measures from sums of many resamples, [resamples, columns], one value per resample.
        resampling: How often blocks are drawn, and with what randomness.
        level: The share of resamples within an interval, such as 0.95.

    Returns:
        The middle `level` of the resamples by measure. None for a measure that fewer than half of the resamples define,
        such as an AUC where one class hardly occurs.
    """
    with one_blas_thread():
        drawn = [weights @ sums for weights in _weights(len(sums), resampling)]
    parts = [measure(found) for found in drawn]
    tails = ((1 - level) / 2, (1 + level) / 2)
    found: dict[str, Interval | None] = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts])
        known = values[np.isfinite(values)]
        low, high = np.quantile(known, tails) if 2 * len(known) >= len(values) else (np.nan, np.nan)
        found[name] = None if np.isnan(low) else [float(low), float(high)]
    return found


def _weights(blocks: int, resampling: Resampling) -> Iterator[Floats]:
    """How often each block is drawn in each resample, [some resamples, blocks]; as many blocks drawn as there are."""
    most = max(1, _WEIGHTS_AT_ONCE // blocks)
    for begin in range(0, resampling.resamples, most):
        some = min(most, resampling.resamples - begin)
        drawn = resampling.generator.integers(0, blocks, size=(some, blocks), dtype=np.int64)
        drawn += np.arange(some)[:, None] * blocks
        yield np.bincount(drawn.ravel(), minlength=some * blocks).reshape(some, blocks).astype(np.float64)
