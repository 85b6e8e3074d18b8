"""One procedure that tunes every column: on validation rows, which are a fifth of each site's low- and high-risk rows.

First the reach of a step (rate times clip) is chosen among six at clip 1, then, under noise, the clip among three at
that reach. Each is judged by accuracy on the validation rows of the first seed, of which none is trained on; test rows
are not looked at. The peers' phase of every hybrid has the rate that the column "P2P only" was tuned to.

Guarantee: no test row is trained on, measured on or described. What a private tuning would cost is not in the account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kohort.rng import Streams
from kohort.runs.config import Plan
from kohort.runs.simulation import Population
from kohort.studies.harness.runs import Runs, RunSummary
from kohort.studies.hybrid.plans import CLIPS, PEERS_ONLY, REACHES, Cell, Chosen, Column

__all__ = ["Tuned", "validation_rows"]

HELD_OUT = 0.2


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


class Tuned:
    """What was chosen for every column and cell.

    Args:
        runs: Runs over the populations of `validation_rows`.
        reaches: The reaches to try; by default all six.
    """

    def __init__(self, runs: Runs[RunSummary], reaches: Sequence[float] = ()) -> None:
        self._runs, self._reaches = runs, tuple(reaches or REACHES)
        self.chosen: dict[tuple[str, Cell], Chosen] = {}

    def tune(self, wanted: Iterable[tuple[Column, Cell]]) -> None:
        """Tune every column for every cell that was not tuned before."""
        todo = [one for one in dict.fromkeys(wanted) if (one[0].name, one[1]) not in self.chosen]
        peers = [(PEERS_ONLY, replace(cell, epsilon=None)) for column, cell in todo if column.has_peers]
        first = [one for one in dict.fromkeys(peers) if (PEERS_ONLY.name, one[1]) not in self.chosen]
        self._choose(first, {one: [Chosen(reach) for reach in self._reaches] for one in first})
        todo = [one for one in todo if (one[0].name, one[1]) not in self.chosen]
        self._choose(todo, {one: [Chosen(reach) for reach in self._reaches] for one in todo})
        noisy = [one for one in todo if one[0].private]
        self._choose(noisy, {one: self._clips(one) for one in noisy})

    def _clips(self, one: tuple[Column, Cell]) -> list[Chosen]:
        best = self.chosen[one[0].name, one[1]]
        return [best, *(Chosen(best.reach, clip) for clip in CLIPS)]

    def _choose(
        self, todo: Sequence[tuple[Column, Cell]], tried: Mapping[tuple[Column, Cell], Sequence[Chosen]]
    ) -> None:
        plans = {one: [self.plan_with(*one, chosen) for chosen in tried[one]] for one in todo}
        self._runs.prepare([plan for listed in plans.values() for plan in listed])
        for column, cell in todo:
            scores = [self._runs.mean(plan) for plan in plans[column, cell]]
            self.chosen[column.name, cell] = tried[column, cell][int(np.argmax(scores))]

    def plan_with(self, column: Column, cell: Cell, chosen: Chosen) -> Plan:
        """The plan of a column with settings that were not tuned."""
        peers = self.chosen[PEERS_ONLY.name, replace(cell, epsilon=None)] if column.has_peers else chosen
        return column.make(cell, chosen, peers)

    def plan(self, column: Column, cell: Cell) -> Plan:
        """The tuned plan of a column."""
        return self.plan_with(column, cell, self.chosen[column.name, cell])

    def score(self, column: Column, cell: Cell, chosen: Sequence[Chosen]) -> list[float]:
        """Accuracy on validation rows with each of these settings."""
        plans = [self.plan_with(column, cell, one) for one in chosen]
        self._runs.prepare(plans)
        return [self._runs.mean(plan) for plan in plans]
