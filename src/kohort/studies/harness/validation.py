"""Validation rows: what a study's settings are chosen on, so that no test row is looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from kohort.rng import Streams
from kohort.runs.simulation import Population

__all__ = ["validation_rows"]

HELD_OUT: Final = 0.2


def validation_rows(whole: Population, streams: Streams) -> Population:
    """The sites without a fifth of their low- and of their high-risk rows, which are judged on instead of test rows.

    Args:
        whole: The sites' training rows, low-risk rows first.
        streams: The randomness of the seed.

    Returns:
        The population to tune on.
    """
    generator = streams.generator("study", "validation")
    kept, aside, sites, sizes, low = [], [], [], [], []
    lows = np.zeros(len(whole.names), dtype=np.int64) if whole.low is None else whole.low
    for name, begin, end, count in zip(whole.names, whole.starts[:-1], whole.starts[1:], lows, strict=True):
        chosen = np.zeros(int(end - begin), dtype=bool)
        for first, last in ((0, int(count)), (int(count), len(chosen))):
            chosen[first + generator.permutation(last - first)[: round(HELD_OUT * (last - first))]] = True
        places = np.arange(begin, end)
        kept.append(places[~chosen])
        aside.append(places[chosen])
        sites += [name] * int(chosen.sum())
        sizes.append(int((~chosen).sum()))
        low.append(int((~chosen[: int(count)]).sum()))
    return replace(
        whole,
        frame=whole.frame[np.concatenate(kept)],
        starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        test=whole.frame[np.concatenate(aside)],
        test_sites=tuple(sites),
        low=None if whole.low is None else np.asarray(low, dtype=np.int64),
    )
