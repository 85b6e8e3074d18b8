"""One procedure that tunes every column: on validation rows, which are a fifth of each site's low- and high-risk rows.

First the reach of a step (rate times clip) is chosen among six at clip 1. From there the search climbs: it tries half
and twice the reach; under noise, the next smaller and larger clip; and for full-batch steps, of which the paper names
no number, half and twice as many. It moves to the best, and ends where none is better. So the first six are no edge,
and a reach that suits another clip or more steps is found. Other cells of the same column, table and setting begin the
climb where the first one ended.

Each setting is judged by accuracy on the validation rows of the first seed, of which none is trained on; test rows are
not looked at. The peers' phase of every hybrid has the rate that the column "P2P only" was tuned to.

Guarantee: no test row is trained on, measured on or described. What a private tuning would cost is not in the account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from kohort.runs.config import Plan
from kohort.studies.harness.runs import Runs, RunSummary
from kohort.studies.hybrid.plans import CLIPS, PEERS_ONLY, REACHES, STEP_FACTORS, HybridCell, HybridChoice, HybridColumn

__all__ = ["Tuned"]

LADDER: Final = tuple(2.0**power for power in range(-6, 7))
"""The reaches that a search may come to."""
MOST_MOVES: Final = 8
"""After so many moves a search ends where it is."""


class Tuned:
    """What was chosen for every column and cell.

    Args:
        runs: Runs over the populations of `validation_rows`.
        reaches: The reaches to try first; by default all six.
    """

    def __init__(self, runs: Runs[RunSummary], reaches: Sequence[float] = ()) -> None:
        self._runs, self._reaches = runs, tuple(reaches or REACHES)
        self.chosen: dict[tuple[str, HybridCell], HybridChoice] = {}

    def tune(self, wanted: Iterable[tuple[HybridColumn, HybridCell]]) -> None:
        """Tune every column for every cell that was not tuned before."""
        todo = [one for one in dict.fromkeys(wanted) if (one[0].name, one[1]) not in self.chosen]
        peers = [(PEERS_ONLY, replace(cell, epsilon=None)) for column, cell in todo if column.has_peers]
        self._search([one for one in dict.fromkeys(peers) if (PEERS_ONLY.name, one[1]) not in self.chosen])
        self._search([one for one in todo if (one[0].name, one[1]) not in self.chosen])

    def _search(self, todo: Sequence[tuple[HybridColumn, HybridCell]]) -> None:
        """The first cell of every column from the six reaches, then the others from what was chosen for it."""
        first: dict[object, tuple[HybridColumn, HybridCell]] = {}
        for column, cell in todo:
            first.setdefault((column.name, cell.case.title, cell.setting), (column, cell))
        scanned = {one: [HybridChoice(reach) for reach in self._reaches] for one in first.values()}
        self._climb(self._moved(scanned))
        others = [one for one in todo if one not in scanned]
        for column, cell in others:
            began = first[column.name, cell.case.title, cell.setting]
            self.chosen[column.name, cell] = self.chosen[began[0].name, began[1]]
        self._climb(others)

    def _climb(self, moving: Sequence[tuple[HybridColumn, HybridCell]]) -> None:
        """Step by step to a better neighbour, for all at the same time."""
        for _ in range(MOST_MOVES):
            moving = self._moved({one: self._neighbours(*one) for one in moving})

    def _neighbours(self, column: HybridColumn, cell: HybridCell) -> list[HybridChoice]:
        """What was chosen, first, and the settings beside it."""
        best = self.chosen[column.name, cell]
        beside = [replace(best, reach=reach) for reach in _beside(best.reach, LADDER)]
        if column.private:
            beside += [replace(best, clip=clip) for clip in _beside(best.clip, CLIPS)]
        if column.full_batch:
            beside += [replace(best, steps=steps) for steps in _beside(best.steps, STEP_FACTORS)]
        return [best, *beside]

    def _moved(
        self, tried: Mapping[tuple[HybridColumn, HybridCell], Sequence[HybridChoice]]
    ) -> list[tuple[HybridColumn, HybridCell]]:
        """Choose the best of what is tried, the first of equals; returns those whose choice is another than before."""
        plans = {one: [self.plan_with(*one, chosen) for chosen in settings] for one, settings in tried.items()}
        self._runs.prepare([plan for listed in plans.values() for plan in listed])
        moved = []
        for (column, cell), settings in tried.items():
            scores = [self._runs.mean(plan) for plan in plans[column, cell]]
            best = settings[int(np.argmax(scores))]
            if self.chosen.get((column.name, cell)) != best:
                moved.append((column, cell))
            self.chosen[column.name, cell] = best
        return moved

    def plan_with(self, column: HybridColumn, cell: HybridCell, chosen: HybridChoice) -> Plan:
        """The plan of a column with settings that were not tuned."""
        peers = self.chosen[PEERS_ONLY.name, replace(cell, epsilon=None)] if column.has_peers else chosen
        return column.make(cell, chosen, peers)

    def plan(self, column: HybridColumn, cell: HybridCell) -> Plan:
        """The tuned plan of a column."""
        return self.plan_with(column, cell, self.chosen[column.name, cell])

    def score(self, column: HybridColumn, cell: HybridCell, chosen: Sequence[HybridChoice]) -> list[float]:
        """Accuracy on validation rows with each of these settings."""
        plans = [self.plan_with(column, cell, one) for one in chosen]
        self._runs.prepare(plans)
        return [self._runs.mean(plan) for plan in plans]


def _beside(value: float, ladder: Sequence[float]) -> list[float]:
    """The next smaller and larger values of an ascending list."""
    place = ladder.index(value)
    return [*ladder[max(0, place - 1) : place], *ladder[place + 1 : place + 2]]
