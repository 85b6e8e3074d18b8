"""The attack on all totals of an additive model together: what sums over large bins tell of small combinations.

Totals are formed again from the rows of the run by its own learner. Where sums are secure, sites alone read them: the
attacker is a hub with a site on its side, and for the hub alone it is said that it has no sums. Where sums are not
secure, the hub has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.evaluate.attacks.linked_totals import (
    ATTACK,
    MOST,
    LinkedSums,
    counts_by_chance,
    counts_that_follow,
    linked_finding,
)
from kohort.methods.additive.exact import ExactLearner
from kohort.methods.additive.learner import RESIDUAL_STEPS
from kohort.models.additive.bins import Bins
from kohort.models.additive.cells import codes_of
from kohort.models.additive.design import Design
from kohort.models.additive.model import means_of
from kohort.models.rows import Rows, encode_rows
from kohort.rounds.totals.learner import RowCache, Whole
from kohort.runs.auditing.replay import Replay
from kohort.runs.auditing.shadows import setting_of, training_of
from kohort.tables.persons import persons_of

__all__ = ["linked_findings"]

_ON: Final = "sums of residuals of all rounds"
_HUB: Final = "hub"
_BOTH: Final = "hub and a site"
LEAST: Final = 2
"""A combination that one person holds is small, whatever a plan allows."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass
class _RecordedTotals:
    """What the attacker has recorded: sums of a round with the learner before it, and the learner at the end."""

    rounds: list[tuple[ExactLearner, Whole]]
    last: ExactLearner


def linked_findings(replay: Replay) -> list[Finding]:
    """Solve for the counts of all combinations of bins.

    Args:
        replay: The run.

    Returns:
        A finding per attacker; none for other methods.
    """
    if replay.plan.method != "additive":
        return []
    encoder, frame = replay.outcome.model.encoder, replay.population.frame
    rows = encode_rows(encoder, frame.filter(encoder.within(frame)))
    why = _closed(replay, rows)
    if why:
        return [_not_attacked(_HUB, why)]
    if replay.plan.config.secure.sum == "none":
        return [_attacked(replay, rows, by=_HUB)]
    why = "sites alone read the sums; the hub is told bins, their counts and the finished model, with rounded values"
    return [_not_attacked(_HUB, why), _attacked(replay, rows, by=_BOTH)]


def _not_attacked(by: str, why: str) -> Finding:
    return not_attacked(ATTACK, "reconstruction", on=_ON, by=by, why=why)


def _attacked(replay: Replay, rows: Rows, by: str) -> Finding:
    totals = _recorded(replay, rows)
    bins = totals.last.known_bins
    sizes = [int(size) for size in bins.alone.sizes]
    if prod(sizes) > MOST:
        why = f"the bins of {len(sizes):,} columns have more than {MOST:,} combinations, which are not solved for here"
        return _not_attacked(by, why)
    follow, chance = _solved(totals, _combinations(bins, sizes), columns=len(sizes))
    least = max(LEAST, totals.last.config.min_bin, totals.last.setting.approved.min_cell)
    return linked_finding(follow, chance, _truth(bins, sizes, rows), least=least, on=_ON, by=by)


def _closed(replay: Replay, rows: Rows) -> str:
    if replay.plan.config.dp is not None:
        return "the totals have noise, and their epsilon bounds every attack"
    if rows.weight is not None:
        return "residuals are weighted by class, and are not read as counts here"
    if rows.person is not None and persons_of(rows.person) is not None:
        return "persons have several rows: bins count persons and sums are over rows, which is not solved for here"
    return ""


def _recorded(replay: Replay, rows: Rows) -> _RecordedTotals:
    """Every sum of residuals."""
    training = training_of(replay)
    assert training is not None  # noqa: S101 - additive has one
    setting, rounds = setting_of(replay, training)
    learner, memory = training.start(setting), RowCache()
    assert isinstance(learner, ExactLearner)  # noqa: S101 - it has no budget
    totals = _RecordedTotals([], learner)
    for _ in range(rounds):
        if learner.finished:
            break
        total = learner.contribution(rows, memory)
        following = learner.after(total, len(replay.population.names))
        if learner.number > 0 and not learner.pairs:
            totals.rounds.append((learner, total))
        learner = totals.last = following
    return totals


def _combinations(bins: Bins, sizes: list[int]) -> Integers:
    """The bins of every combination, [columns and pairs, combinations]: those of a cell of each of its bins."""
    numbers = np.indices(sizes).reshape(len(sizes), -1)
    cells = [np.unique(own, return_index=True)[1][number] for own, number in zip(bins.of_cell, numbers, strict=True)]
    return bins.of_rows(np.stack(cells).astype(np.int32)).astype(np.int64)


def _solved(totals: _RecordedTotals, places: Integers, *, columns: int) -> tuple[Floats, Floats]:
    """The counts that follow, and those by chance."""
    opened = []
    for learner, total in totals.rounds:
        bins, descent = learner.known_bins, learner.descent
        assert descent is not None  # noqa: S101 - there are bins
        own = Design(places[: len(bins.sizes)].astype(np.int32), bins.total)
        expected = means_of(learner.link, own.scores(descent.w[:-1], descent.w[-1]))
        sums = total[: bins.total * learner.outputs].reshape(-1, learner.outputs) / RESIDUAL_STEPS
        opened.append(LinkedSums(sums, expected))
    counts = totals.last.counts
    follow = counts_that_follow(opened, places, counts, columns=columns, step=1.0 / RESIDUAL_STEPS)
    return follow, counts_by_chance(places, counts, columns)


def _truth(bins: Bins, sizes: list[int], rows: Rows) -> Integers:
    """How many rows each combination holds."""
    alone = bins.alone
    own = alone.of_rows(codes_of(alone.columns, rows.x)).astype(np.int64) - alone.starts[:-1, None]
    return np.bincount(np.ravel_multi_index(tuple(own), tuple(sizes)), minlength=prod(sizes)).astype(np.int64)
