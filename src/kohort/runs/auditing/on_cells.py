"""Attacks on the totals that additive models and forests are learned from: the cells as whoever reads them has them.

Totals of a secure sum are the sums of what sites add, so they are formed again from the rows of the run by its own
learner, whose central twin gives the same bits. Sites read them, and a hub with a site on its side; a hub alone does
only without a secure sum. Totals that count rows alone are left out: they say nothing about targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.evaluate.attacks.cells import ATTACK, LATER, OpenedCells, SmallestCells, cells_finding
from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.evaluate.attacks.inference import drawn
from kohort.methods.additive.config import Additive
from kohort.methods.additive.exact import ExactLearner
from kohort.methods.additive.learner import RESIDUAL_STEPS
from kohort.methods.registry import find_method
from kohort.methods.trees.method import ForestLearner
from kohort.models.additive.cells import codes_of
from kohort.models.additive.model import means_of
from kohort.models.rows import Rows, encode_rows, encode_test_rows
from kohort.models.trees.growth import Growth
from kohort.models.trees.learner import TreeRows
from kohort.models.trees.options import SCALE
from kohort.rounds.totals.learner import Learner, RowCache, Whole
from kohort.runs.auditing.on_model import NO_TEST_ROWS
from kohort.runs.auditing.replay import Replay
from kohort.runs.auditing.shadows import setting_of, training_of

__all__ = ["cells_findings", "later_findings"]

PERSONS: Final = 5_000
"""Persons who are asked about on each side, at most."""
_FIRST, _LATER = "cells of the first totals", "cells of later totals"
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class _Asked:
    """The rows of a run, and the persons who are asked about."""

    every: Rows
    members: Rows
    others: Rows

    @property
    def truth(self) -> tuple[Floats, Floats]:
        """The targets of members and others, for the referee."""
        return self.members.y.astype(np.float64), self.others.y.astype(np.float64)


_Part = tuple[Rows, RowCache]


def cells_findings(replay: Replay) -> list[Finding]:
    """Attack the first totals of an additive model or a forest, in which the model says the same of everybody.

    Args:
        replay: The run.

    Returns:
        One finding; none for other methods.
    """
    if replay.plan.method not in ("additive", "trees"):
        return []
    why = _closed(replay)
    if why:
        return [not_attacked(ATTACK, "attribute", on=_FIRST, by=_by(replay), why=why)]
    asked = _asked(replay)
    opened = [
        cells
        for learner, total, parts in takewhile(lambda one: not _apart(one[0]), _totals(replay, asked))
        if (cells := _cells(learner, total, parts)) is not None
    ]
    classes = len(replay.outcome.model.encoder.classes or ())
    return [cells_finding(opened, asked.truth, classes=classes, on=_FIRST, by=_by(replay))]


def later_findings(replay: Replay) -> list[Finding]:
    """Attack the totals that follow, in which rows have scores of their own.

    Args:
        replay: The run.

    Returns:
        One finding; none for other methods.
    """
    if replay.plan.method not in ("additive", "trees"):
        return []
    why = _closed(replay)
    if why:
        return [not_attacked(LATER, "attribute", on=_LATER, by=_by(replay), why=why)]
    asked, classes = _asked(replay), len(replay.outcome.model.encoder.classes or ())
    smallest = SmallestCells.of(asked.truth, classes=classes)
    for learner, total, parts in _totals(replay, asked):
        cells = _cells(learner, total, parts) if _apart(learner) else None
        if cells is not None:
            smallest.take(cells, (_expected(learner, *parts[0]), _expected(learner, *parts[1])))
    return [smallest.finding(on=_LATER, by=_by(replay))]


def _asked(replay: Replay) -> _Asked:
    encoder, random = replay.outcome.model.encoder, np.random.default_rng(replay.seed)
    frame = replay.population.frame
    every = encode_rows(encoder, frame.filter(encoder.within(frame)))
    chosen = np.sort(random.choice(every.count, min(PERSONS, every.count), replace=False))
    members = Rows(np.ascontiguousarray(every.x[chosen]), np.ascontiguousarray(every.y[chosen]))
    outside = replay.population.test
    outside = outside.filter(pl.Series(encoder.predictable(outside)))
    return _Asked(every, members, encode_test_rows(encoder, drawn(outside, PERSONS, random)))


def _by(replay: Replay) -> str:
    """Who reads the totals: sites alone where sums are secure, else the hub, too."""
    return "hub and a site" if replay.plan.config.secure.sum != "none" else "hub"


def _closed(replay: Replay) -> str:
    plan = replay.plan
    if any(phase.dp is not None for phase in find_method(plan.method).phases(plan.config, plan.train)):
        return "the totals have noise, and their epsilon bounds every attack"
    if isinstance(plan.config, Additive) and plan.config.link == "log":
        return "residuals of the log link are not read as sums here"
    if replay.outcome.model.encoder.class_weights:
        return "residuals are weighted by class, and are not read as counts here"
    return "" if replay.population.test.height else NO_TEST_ROWS


def _totals(replay: Replay, asked: _Asked) -> Iterator[tuple[Learner, Whole, list[_Part]]]:
    """Every total with sums of targets, and the learner before it; members and others have brought theirs up to it."""
    training = training_of(replay)
    assert training is not None  # noqa: S101 - methods of that name have one
    setting, rounds = setting_of(replay, training)
    learner = training.start(setting)
    parts = [(rows, RowCache()) for rows in (asked.every, asked.members, asked.others)]
    for _ in range(rounds):
        if learner.finished:
            return
        totals = [learner.contribution(rows, memory) for rows, memory in parts]
        if not _counts_rows(learner):
            yield learner, totals[0], parts[1:]
        learner = learner.after(totals[0], len(replay.population.names))


def _counts_rows(learner: Learner) -> bool:
    """Whether the next total of a forest has rows per cell and nothing else."""
    growth = learner.inner.growth if isinstance(learner, ForestLearner) else None
    return growth is not None and growth.counting


def _expected(learner: Learner, rows: Rows, memory: RowCache) -> Floats:
    """What the model before a total says of rows, [rows, outputs]."""
    if isinstance(learner, ForestLearner):
        part = memory.get(TreeRows, lambda: learner.inner.rows_of(rows))
        assert part.scores is not None  # noqa: S101 - it has just contributed
        return means_of(_link(learner.inner.classes), part.scores.T)
    assert isinstance(learner, ExactLearner)  # noqa: S101 - the other learner with cells
    return learner.expected(rows, memory)


def _apart(learner: Learner) -> bool:
    """Whether rows have scores of their own by now."""
    if isinstance(learner, ForestLearner):
        return learner.inner.step > 0
    return isinstance(learner, ExactLearner) and learner.number > 1


def _cells(learner: Learner, total: Whole, asked: list[_Part]) -> OpenedCells | None:
    """The cells of a total. After the first step their sums are those of targets less what the model expects."""
    if isinstance(learner, ForestLearner):
        return _of_forest(learner, total, asked)
    return _of_additive(learner, total, asked) if isinstance(learner, ExactLearner) and not learner.pairs else None


def _of_forest(learner: ForestLearner, total: Whole, asked: list[_Part]) -> OpenedCells | None:
    inner = learner.inner
    growth, forest = inner.growth, inner.forest
    if growth is None or forest is None:
        return None
    cells = growth.sums(total[len(total) - growth.length :])
    rows = cells[:, 2].astype(np.float64)
    places = []
    for own, memory in asked:
        part = memory.get(TreeRows, lambda own=own: inner.rows_of(own))  # type: ignore[misc]
        assert part.codes is not None and part.nodes is not None  # noqa: S101, PT018 - it has just contributed
        found = growth.places(part.codes, part.nodes)
        places.append(found.reshape(-1, found.shape[-1]).T)
    output = _outputs_of_cells(growth, len(rows))
    residuals = -cells[:, 0] / SCALE
    if _apart(learner):
        return OpenedCells(rows, residuals, output, places[0], places[1])
    expected = means_of(_link(inner.classes), forest.base[None, :])[0][output]
    sums = _whole(rows * expected + residuals, inner.classes)
    return OpenedCells(rows, sums, _about(output, inner.classes), places[0], places[1])


def _of_additive(learner: ExactLearner, total: Whole, asked: list[_Part]) -> OpenedCells | None:
    if learner.number < 1 or learner.descent is None:
        return None
    bins, outputs = learner.known_bins, learner.outputs
    residuals = -total[: bins.total * outputs].reshape(-1, outputs) / RESIDUAL_STEPS
    rows = np.repeat(learner.counts[:, None], outputs, axis=1)
    output = np.tile(np.arange(outputs), bins.total)
    places = []
    for own, _ in asked:
        cell = bins.of_rows(codes_of(learner.columns, own.x)).T.astype(np.int64) * outputs
        places.append(np.concatenate([cell + number for number in range(outputs)], axis=1))
    if _apart(learner):
        return OpenedCells(rows.ravel(), residuals.ravel(), output, places[0], places[1])
    expected = means_of(learner.link, learner.descent.w[-1][None, :])[0]
    sums = _whole((rows * expected + residuals).ravel(), learner.classes)
    return OpenedCells(rows.ravel(), sums, _about(output, learner.classes), places[0], places[1])


def _outputs_of_cells(growth: Growth, cells: int) -> Integers:
    """Which output the tree of every cell is for."""
    if growth.layout is not None:
        found = np.zeros(cells, dtype=np.int64)
        found[growth.layout] = np.repeat(growth.trees.output[growth.open.tree], growth.widths[growth.open.tree])
        return found
    return np.repeat(growth.trees.output[growth.open.tree], growth.widths[growth.open.tree])


def _link(classes: int) -> str:
    return "identity" if not classes else "logit" if classes == 2 else "softmax"


def _whole(sums: Floats, classes: int) -> Floats:
    """Counts of a class are whole; the grid of residuals is finer than that."""
    return np.rint(sums) if classes else sums


def _about(output: Integers, classes: int) -> Integers:
    return np.ones_like(output) if classes == 2 else output
