"""Boosting over totals: what follows from each of them, what a site adds, and what sites tell a hub that reads none.

The learner begins with one total that makes the bins, then takes one total per level of every step, and one more for
the loss of held-out rows after the last step. It holds public numbers alone; what belongs to a site's rows is
`TreeRows`, which any learner brings up to date.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError
from kohort.models.rows import Rows
from kohort.models.trees.bins import Bins, count_cells, summary_length
from kohort.models.trees.columns import tree_columns
from kohort.models.trees.forest import Forest, Trees
from kohort.models.trees.growth import Growth
from kohort.models.trees.kernel import hashes, losses, route, slopes
from kohort.models.trees.level import LevelSplits
from kohort.models.trees.options import SCALE, TreeOptions
from kohort.models.trees.precision import rounded_loss, rounded_scores
from kohort.models.trees.soft import SoftCells, soft_cells
from kohort.tables.encoder import Encoder
from kohort.tables.persons import shared_draws

__all__ = ["TreeLearner", "TreeRows"]

Integers = NDArray[np.int64]
Stage = Literal["bins", "grow", "judge", "done"]
_STAGES: tuple[Stage, ...] = ("bins", "grow", "judge", "done")


_JUDGED = 3
"""Numbers about held-out rows in a total: their loss, their weight, and how many they are."""
_HELD_OUT = np.frombuffer(hashlib.blake2b(b"held out", digest_size=8).digest(), dtype="<u8")[0]
"""The same in every run: rows without a person are held out by what they hold, which is one partition of a table."""


@dataclass
class TreeRows:
    """Rows of one site with what was computed of them so far."""

    y: NDArray[np.float64]
    weight: NDArray[np.float64]
    held_out: NDArray[np.bool_]
    soft: tuple[SoftCells, ...] = ()
    codes: NDArray[np.uint8] | None = None
    """[1, rows, columns], or [trees, rows, columns] of this step where cells are generalised."""
    scores: NDArray[np.float64] | None = None
    step: int = -1
    """The step the scores are before."""
    level: int = 0
    nodes: NDArray[np.int16] | None = None
    gradient: Integers | None = None
    curvature: Integers | None = None


@dataclass
class TreeLearner:
    """A forest in the making.

    Args:
        encoder: How tables become rows, with the weights of classes.
        options: How the forest is grown.
        seed: Draws the columns of each tree; public. It draws no held-out rows: a hub that chose them by its seed could
            compare totals of two runs over different rows, and find out which row a small cell holds.
    """

    encoder: Encoder
    options: TreeOptions
    seed: bytes
    stage: Stage = "bins"
    step: int = 0
    forest: Forest | None = None
    growth: Growth | None = None
    history: list[float] = field(default_factory=list)
    """The loss of held-out rows before every step, and after the last one; empty where too few rows are held out. At a
    hub that is told, rounded."""
    rounded_history: list[float] = field(default_factory=list)
    """The same, without digits from which the losses of single rows follow."""
    best: int = 0
    """Before which step it was smallest."""
    rows: int = 0
    """Over all sites; at a hub that is told, at most those that two leaves need."""
    totals: int = 0
    """How many were taken."""
    grown: LevelSplits | None = None
    """How the last total split the open nodes; None where it did not."""
    marginal: Integers = field(default_factory=lambda: np.zeros((0, 256), dtype=np.int64))
    """[columns, 256] rows per code, by which generalised cells are drawn; empty where there are none."""

    def __post_init__(self) -> None:
        self.columns = tree_columns(self.encoder)
        self.classes = len(self.encoder.classes or ())
        self.outputs = self.classes if self.classes > 2 else 1
        largest = max((self.encoder.class_weights or {}).values(), default=1.0)
        self.options = replace(self.options, classes=self.classes, largest_weight=max(1.0, largest))

    # What totals are asked for, and what follows from them

    @property
    def done(self) -> bool:
        """Whether no further total is needed."""
        return self.stage == "done"

    @property
    def length(self) -> int:
        """How many numbers the next total has."""
        if self.stage == "bins":
            return summary_length(self.columns, self.outputs)
        judged = _JUDGED if self._judges else 0
        return judged + (self.growth.length if self.growth is not None else 0)

    @property
    def _judges(self) -> bool:
        """Whether the next total has the loss of held-out rows."""
        growth = self.growth
        at_start = growth is not None and growth.level == 0 and growth.layout is None
        return self.options.holdout > 0 and (self.stage == "judge" or at_start)

    @property
    def sealed(self) -> bool:
        """Whether the next total is for sites alone: each has cells that few persons may be in."""
        return not self.done

    def after(self, total: Integers) -> TreeLearner:
        """The learner that follows from the next total.

        Args:
            total: The sum of `contribution` over the sites.

        Returns:
            A new learner; this one stays as it is.
        """
        found = self._copied()
        found._take(total)
        return found

    def _copied(self) -> TreeLearner:
        """This learner, one total further, before it is taken."""
        found = copy.copy(self)
        found.history, found.rounded_history = list(self.history), list(self.rounded_history)
        found.growth = None if self.growth is None else self.growth.copied()
        found.totals, found.grown = self.totals + 1, None
        return found

    def _take(self, total: Integers) -> None:
        if self.stage == "bins":
            self._take_bins(total)
            return
        if self._judges:
            if total[2] >= self.options.min_leaf:  # the loss of fewer rows would tell of single ones
                self.history.append(float(total[0]) / float(total[1]))
                self.rounded_history.append(rounded_loss(self.history[-1], int(total[2])))
                self.best = int(np.argmin(self.history))
            total = total[_JUDGED:]
            if self.stage == "judge" or self._worse:
                self._finish()
                return
        if self.growth is None:
            raise ValueError("a total came in after the last one")
        self.grown = self.growth.take(total)
        self._end_level()

    def _end_level(self) -> None:
        """Begin the next step where the trees of this one have grown."""
        growth = self.growth
        if growth is not None and self.forest is not None and growth.finished and growth.layout is None:
            self.forest = self.forest.with_trees(self.forest.trees.joined(growth.trees))
            self._next_step()

    def _take_bins(self, total: Integers) -> None:
        options = self.options
        bins = Bins.learned(self.columns, total, outputs=self.outputs, least=options.min_leaf)
        self.rows = int(total[0])
        if options.soft:
            self.marginal = bins.held(self.columns, total, self.outputs)
        self._begin(bins, self._base(total[1 : 1 + self.outputs] / SCALE / max(self.rows, 1)))

    def _begin(self, bins: Bins, base: NDArray[np.float64]) -> None:
        """A forest without trees, and the first step."""
        options = self.options
        empty = Trees.empty(np.zeros(0, dtype=np.int64), options.depth)
        self.forest = Forest(bins, base, options.rate / options.trees, empty)
        self._begin_step(0)

    def _base(self, means: NDArray[np.float64]) -> NDArray[np.float64]:
        """The score all rows begin with: the mean, or the log-odds of weighted classes, rounded."""
        if not self.classes:
            return rounded_scores(means, means, self.rows, classes=0)
        names = self.encoder.classes or ()
        weights = np.asarray([(self.encoder.class_weights or {}).get(name, 1.0) for name in names])
        shares = means if self.outputs > 1 else np.asarray([1.0 - means[0], means[0]])
        logs, weighing = np.log(np.maximum(shares, 1e-6)), np.log(weights)
        if self.outputs == 1:
            logs, weighing = logs[1:] - logs[:1], weighing[1:] - weighing[:1]
        # Weights are public: rounded with them, the sums of plans with other weights would tell the digits of a count.
        return np.asarray(rounded_scores(logs, means, self.rows, classes=self.classes) + weighing)

    @property
    def _worse(self) -> bool:
        return bool(self.history) and len(self.history) - 1 - self.best >= self.options.patience

    def _next_step(self) -> None:
        if self.step + 1 < self.options.steps:
            self._begin_step(self.step + 1)
            return
        self.step, self.growth = self.step + 1, None
        self.stage = "judge" if self.options.holdout > 0 else "done"

    def _finish(self) -> None:
        """Keep the steps with the smallest loss on held-out rows."""
        self.stage, self.growth = "done", None
        if self.forest is not None and self.history:
            kept = self.best * self.options.trees * self.outputs
            self.forest = self.forest.with_trees(self.forest.trees.part(0, kept))

    def _begin_step(self, step: int) -> None:
        if self.forest is None:
            raise ValueError("a step before the bins")
        self.stage, self.step = "grow", step
        output = np.repeat(np.arange(self.outputs), self.options.trees)
        keys = np.stack([self._drawn(step, tree) for tree in range(len(output))])
        count = max(1, round(self.options.columns * len(self.columns)))
        chosen = np.sort(np.argsort(keys, axis=1, kind="stable")[:, :count], axis=1)
        shifts = (np.take_along_axis(keys, chosen, axis=1) & 0xFFFF) / 65536.0
        trees = Trees.empty(output, self.options.depth)
        self.growth = Growth(self.forest.bins, self.options, chosen, shifts, trees)

    def _drawn(self, step: int, tree: int) -> NDArray[np.uint64]:
        """A random number per column, which the seed fixes."""
        stream = hashlib.shake_128(self.seed + f"{step}:{tree}".encode()).digest(8 * len(self.columns))
        return np.frombuffer(stream, dtype="<u8").astype(np.uint64)

    # What sites tell the hub of a sealed total

    @property
    def tells(self) -> dict[str, tuple[str, tuple[int | None, ...]]]:
        """Types and shapes of what `disclosed` gives after the next total."""
        found: dict[str, tuple[str, tuple[int | None, ...]]] = {"history": ("<f8", (None,)), "best": ("<i8", (1,))}
        if self.stage != "bins":
            return found | {"layout": ("<i4", (None,)), **LevelSplits.shapes()}
        columns = len(self.columns)
        return found | {
            "bins.codes": ("|u1", (None,)),
            "bins.cells": ("<i8", (columns,)),
            "bins.sizes": ("<i8", (columns,)),
            "bins.missing": ("|u1", (columns,)),
            "bins.ordered": ("|u1", (columns,)),
            "bins.rank": ("|u1", (self.outputs, columns, 256)),
            "bins.other": ("|u1", (columns,)),
            "base": ("<f8", (self.outputs,)),
            "rows": ("<i8", (1,)),
        }

    def disclosed(self) -> dict[str, NDArray[Any]]:
        """What follows from a sealed total: bins, splits or which cells are joined, and losses of held-out rows."""
        found: dict[str, NDArray[Any]] = {
            "history": np.asarray(self.rounded_history, dtype=np.float64),
            "best": np.asarray([self.best], dtype=np.int64),
        }
        growth, forest = self.growth, self.forest
        if self.totals == 1 and forest is not None:
            rows = np.asarray([min(self.rows, 2 * self.options.min_leaf)], dtype=np.int64)
            return found | {**forest.bins.arrays(), "base": forest.base, "rows": rows}
        layout = np.zeros(0) if growth is None or growth.layout is None else growth.layout
        return found | {"layout": layout.astype(np.int32), **(self.grown or LevelSplits.none()).arrays()}

    def informed(self, arrays: Mapping[str, NDArray[Any]]) -> TreeLearner:
        """The learner after a sealed total, by what sites tell of it.

        Args:
            arrays: What `disclosed` returned.

        Returns:
            A new learner.

        Raises:
            ValueError: The arrays do not fit.
        """
        found = self._copied()
        found.history, found.best = arrays["history"].tolist(), int(arrays["best"][0])
        found.rounded_history = list(found.history)
        known, more = len(self.history), len(found.history) - len(self.history)
        if found.history[:known] != self.history or more > self._judges or not np.isfinite(found.history).all():
            raise ValueError("losses of other rounds")
        if found.best not in {self.best, *range(known, len(found.history))}:
            raise ValueError("a best step that was not judged")
        if found.stage == "bins":
            bins = Bins.of_arrays(arrays)
            if tuple(map(len, bins.code_of)) != tuple(column.all_cells for column in self.columns):
                raise ValueError("bins of other columns")
            found.rows = int(arrays["rows"][0])
            found._begin(bins, arrays["base"].copy())
        elif found.stage == "judge" or found._worse:
            found._finish()
        elif found.growth is not None:
            found._follow(found.growth, arrays)
        return found

    def _follow(self, growth: Growth, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Join cells, or split nodes, as sites tell."""
        if growth.counting:
            layout = arrays["layout"].astype(np.int64)
            if len(layout) != growth.open.cells or (np.unique(layout) != np.arange(layout.max() + 1)).any():
                raise ValueError("groups of other cells")
            growth.layout = layout
            return
        growth.follow(LevelSplits.of_arrays(arrays))
        self._end_level()

    # What a site adds

    def rows_of(self, rows: Rows) -> TreeRows:
        """A site's rows, ready to contribute. Rows of a person are held out together."""
        words = np.ascontiguousarray(np.concatenate([rows.x, rows.y[:, None]], axis=1))
        held = np.empty(len(words), dtype=np.uint64)
        hashes(words.view(np.uint32 if words.dtype == np.float32 else np.uint64).astype(np.uint64), _HELD_OUT, held)
        weight = np.ones(rows.count) if rows.weight is None else rows.weight.astype(np.float64)
        below = np.uint64(int(self.options.holdout * 2.0**63)) << np.uint64(1)
        aside = held
        if rows.person is not None:
            of_person, named = shared_draws(rows.person, "held out of forests")
            aside = np.where(named, of_person, held)
        soft = soft_cells(self.columns, rows, held) if self.options.soft else ()
        return TreeRows(y=rows.y.astype(np.float64), weight=weight, held_out=aside < below, soft=soft)

    def contribution(self, rows: Rows, part: TreeRows) -> Integers:
        """What a site adds to the next total.

        Args:
            rows: The site's rows.
            part: What `rows_of` made of them; it is brought up to date.

        Returns:
            Whole numbers.
        """
        if self.stage == "bins":
            drawn = {soft.place: (soft.rows, soft.cells(self.seed)) for soft in part.soft}
            return count_cells(self.columns, rows.x, self._targets(part.y), drawn)
        forest = self.forest
        if forest is None:
            raise ValueError("nothing is left to contribute to")
        codes = self._brought_up(rows, part, forest)
        parts = []
        if self._judges and part.scores is not None:
            found = losses(self.classes, part.scores, part.y, part.weight, part.held_out)
            parts.append(np.asarray(found, dtype=np.int64))
        if self.growth is not None and part.nodes is not None:
            parts.append(self.growth.counted(codes, part.nodes, part.gradient, part.curvature))  # type: ignore[arg-type]
        return np.concatenate(parts)

    def _targets(self, y: NDArray[np.float64]) -> Integers:
        """[outputs, rows] the target in units of the grid: a number, or whether a row is of a class."""
        if self.outputs > 1:
            return np.where(y[None, :] == np.arange(self.outputs)[:, None], SCALE, 0).astype(np.int64)
        return np.rint(np.clip(y, -8.0, 8.0) * SCALE).astype(np.int64)[None, :]

    def _brought_up(self, rows: Rows, part: TreeRows, forest: Forest) -> NDArray[np.uint8]:
        """Scores, gradients and nodes of a site's rows as of now."""
        level = 0 if self.growth is None else self.growth.level
        if (part.step, part.level) > (self.step, level):  # rebuilt from an earlier state
            part.scores, part.nodes = None, None
        if part.codes is None:
            part.codes = forest.bins.codes(self.columns, rows.x)[None]
        if part.step != self.step or part.scores is None:
            self._rescore(part, forest)
        if self.growth is not None and part.nodes is not None:
            while part.level < self.growth.level:
                trees = self.growth.trees
                route(
                    part.codes,
                    forest.bins.rank,
                    part.nodes,
                    trees.split,
                    trees.cut,
                    trees.left,
                    trees.output,
                    2**part.level - 1,
                )
                part.level += 1
        return part.codes

    def _rescore(self, part: TreeRows, forest: Forest) -> None:
        begin, per_step = part.step, self.options.trees * self.outputs
        if part.scores is None:
            begin, part.scores = 0, np.repeat(forest.base[:, None], len(part.y), axis=1)
        if not part.soft and part.codes is not None:
            forest.add(forest.trees.part(begin * per_step, self.step * per_step), part.codes, part.scores)
        for step in range(begin, self.step) if part.soft else ():
            forest.add(
                forest.trees.part(step * per_step, (step + 1) * per_step), self._drawn_codes(part, step), part.scores
            )
        if part.soft:
            part.codes = self._drawn_codes(part, self.step)
        part.step, part.level = self.step, 0
        part.gradient = np.empty(part.scores.shape, dtype=np.int64)
        part.curvature = np.empty(part.scores.shape, dtype=np.int64)
        slopes(self.classes, part.scores, part.y, part.weight, part.gradient, part.curvature)
        trees = self.options.trees * self.outputs
        part.nodes = np.repeat(np.where(part.held_out, -1, 0).astype(np.int16)[None, :], trees, axis=0)

    def _drawn_codes(self, part: TreeRows, step: int) -> NDArray[np.uint8]:
        """The codes that each tree of a step sees."""
        if part.codes is None or self.forest is None:
            raise ValueError("codes before the bins")
        trees = self.options.trees * self.outputs
        found = np.repeat(part.codes[:1], trees, axis=0)
        for soft in part.soft:
            marginal = self.marginal[soft.place]
            found[:, soft.rows, soft.place] = soft.codes(self.forest.bins, marginal, self.seed, step, trees)
        return found

    # As arrays

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The learner as arrays, from which `restored` makes it again."""
        numbers = [_STAGES.index(self.stage), self.step, self.rows, self.totals, self.best]
        losses = {"history": self.history, "told": self.rounded_history}
        found: dict[str, NDArray[Any]] = {"numbers": np.asarray(numbers, dtype=np.int64)}
        found |= {name: np.asarray(values, dtype=np.float64) for name, values in losses.items()}
        if self.options.soft:
            found["marginal"] = self.marginal
        if self.grown is not None:
            found |= self.grown.arrays()
        if self.forest is not None:
            found |= {**self.forest.bins.arrays(), **self.forest.trees.arrays("trees"), "base": self.forest.base}
        return found if self.growth is None else found | self.growth.arrays()

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> TreeLearner:
        """The inverse of `arrays`, called on the learner of the start.

        Args:
            arrays: What it returned.

        Returns:
            The learner as it was.

        Raises:
            IntegrityError: An earlier version wrote the arrays.
        """
        found = copy.copy(self)
        if "told" not in arrays:
            raise IntegrityError("an earlier version of kohort wrote this forest's state", hint="Begin the run anew")
        stage, found.step, found.rows, found.totals, found.best = map(int, arrays["numbers"])
        found.stage, found.history, found.rounded_history = (
            _STAGES[stage],
            arrays["history"].tolist(),
            arrays["told"].tolist(),
        )
        found.marginal = arrays["marginal"].copy() if self.options.soft else self.marginal
        found.grown = LevelSplits.of_arrays(arrays) if "level.split" in arrays else None
        if "base" in arrays:
            bins, trees = Bins.of_arrays(arrays), Trees.of_arrays(arrays, "trees")
            found.forest = Forest(bins, arrays["base"].copy(), self.options.rate / self.options.trees, trees)
            if "growing.level" in arrays:
                found.growth = Growth.of_arrays(arrays, bins, self.options)
        return found
