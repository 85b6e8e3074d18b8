"""Additive models without a budget: exact sums of residuals per bin, and L-BFGS on them.

Total 0 is sealed: sites read it, and the hub is shown the bins alone, each with enough persons. With `metric = "gram"`,
total 1 counts pairs of bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import DataError, IntegrityError, RefusedError
from kohort.methods.additive.learner import RESIDUAL_STEPS, AdditiveLearner
from kohort.models.additive.bins import Bins, Floats, make_bins
from kohort.models.additive.cells import columns_of
from kohort.models.additive.choice import PairChoice
from kohort.models.additive.descent import CURVATURE, Descent, Metric
from kohort.models.additive.design import Design
from kohort.models.additive.gram import MOST_BINS, GramMetric, count_pairs, gram_of, pair_cells, shift_of
from kohort.models.additive.model import AdditiveModel, means_of
from kohort.models.additive.moments import PairMoments
from kohort.models.rows import Rows
from kohort.protocol.state import StateArrays
from kohort.rounds.totals.learner import Memory, Whole, per_row
from kohort.rounds.totals.pairs import rounds_pairs

__all__ = ["ExactLearner"]

LOSS_STEPS = 2.0**20
CHAIN = 1.0
"""Pull of neighbours of a code list towards each other, in rows."""
LARGEST_RESIDUAL = 16.0
LARGEST_LOSS = 1e6


@dataclass(frozen=True, eq=False)
class ExactLearner(AdditiveLearner):
    """Without a budget: exact sums, L-BFGS. The last total also holds squared residuals, for intervals."""

    target: Floats = field(default_factory=lambda: np.zeros(0))
    descent: Descent | None = None
    pair_counts: Floats = field(default_factory=lambda: np.zeros(0))
    """Persons per pair of bins, by `metric = "gram"`; small ones may have been rounded."""
    squares: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    told: Whole = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """What the descent took from a sealed total that also counted pairs: the hub is told it."""
    looked_at: tuple[tuple[int, int], ...] | None = None
    """The pairs of columns that may be chosen, where sums over all rows told; None for all."""

    @cached_property
    def columns(self) -> Any:
        """The cells of the columns."""
        return columns_of(self.setting.encoder)

    @property
    def sealed(self) -> bool:
        """The counts of cells are for the sites alone, and those of pairs: single cells hold few persons."""
        return self.number == 0 or self.chooses

    @property
    def chooses(self) -> bool:
        """Whether pairs of columns follow from the next total."""
        told = self.config.surfaces != "acyclic" or bool(self.looked_at)
        return self.number == self.config.pair_round and told

    @property
    def looks(self) -> bool:
        """Whether the next total also tells which pairs of columns act together."""
        before = self.number + 1 == self.config.pair_round and self.config.surfaces == "acyclic"
        return before and self.number > 0 and self.link != "softmax"

    @cached_property
    def _choice(self) -> PairChoice:
        """The candidates, from bins and values so far."""
        return PairChoice(
            self.known_bins, self.counts, self._at.w[:-1], self._least, self.config.monotone, self.looked_at
        )

    @cached_property
    def _looking(self) -> PairMoments:
        return PairMoments(self._choice)

    @property
    def counts_pairs(self) -> bool:
        """Whether one of the totals counts pairs of bins."""
        return self.config.metric == "gram"

    @property
    def pairs(self) -> bool:
        """Whether the next total counts pairs of bins."""
        return self.number == 1 and self.counts_pairs

    @property
    def tells(self) -> Mapping[str, tuple[str, tuple[int | None, ...]]]:
        """Bins of all cells, persons per bin, and persons per class; or the bins of pairs, and persons per bin."""
        if self.chooses:
            return {"pairs": ("<i4", (None,)), "counts": ("<f8", (None,)), "total": ("<i8", (self._own,))}
        return {"bins": ("<i4", (self.fine,)), "counts": ("<f8", (None,)), "target": ("<f8", (self.targets,))}

    @property
    def _last(self) -> bool:
        return self.number == self.config.totals - 1

    @property
    def length(self) -> int:
        """Cells and numbers about the target; then residuals per bin and the loss, at the end squares, too."""
        if self.number == 0:
            return self.fine + self.targets
        if self.pairs:
            return pair_cells(self.known_bins)
        return self._own + (self._choice.length if self.chooses else self._looking.length if self.looks else 0)

    @property
    def _own(self) -> int:
        """How many numbers of the next total the descent needs."""
        return self.known_bins.total * self.outputs * (2 if self._last else 1) + 1

    def contribution(self, rows: Rows, memory: Memory) -> Whole:
        """Counts, or sums of residuals at the values so far."""
        if self.number == 0:
            return self._counted(rows, memory, 1.0)
        if self.pairs:
            return count_pairs(self.known_bins, self._design(rows, memory), memory.persons)
        residuals, losses = self._residuals(rows, memory, self._at.w)
        design, bounded = self._design(rows, memory), np.clip(residuals, -LARGEST_RESIDUAL, LARGEST_RESIDUAL)
        parts = [design.summed(per_row(bounded, RESIDUAL_STEPS)).ravel()]
        if self._last:
            parts.append(design.summed(per_row(np.square(bounded), RESIDUAL_STEPS)).ravel())
        loss = per_row(np.clip(losses, -LARGEST_LOSS, LARGEST_LOSS), LOSS_STEPS).sum()
        return np.concatenate([*parts, [loss], self._of_pairs(design, bounded, memory)]).astype(np.int64)

    def _of_pairs(self, design: Design, bounded: Floats, memory: Memory) -> Whole:
        """What rows add to the part of a total that is about pairs of columns."""
        if self.chooses:
            memory.forget(Design)  # the next total has bins of pairs
            return self._choice.counted(design, np.nan_to_num(bounded), memory.persons)
        return self._looking.counted(design, np.nan_to_num(bounded)) if self.looks else np.empty(0, dtype=np.int64)

    def expected(self, rows: Rows, memory: Memory) -> Floats:
        """What the model so far says of rows, [rows, outputs]: probabilities, or numbers on the scale of their range.

        Args:
            rows: The rows.
            memory: What is kept about them.

        Returns:
            The means.
        """
        w = self._at.w
        return means_of(self.link, self._design(rows, memory).scores(w[:-1], w[-1]))

    @property
    def _at(self) -> Descent:
        if self.descent is None:
            raise IntegrityError("values are needed before the cells were counted")
        return self.descent

    def after(self, total: Whole, sites: int) -> ExactLearner:
        """Make bins of the counts; afterwards, take a step."""
        del sites
        if self.number == 0:
            return self._counted_cells(total)
        if self.pairs:
            return replace(self, number=2, pair_counts=total.astype(np.float64))
        if self.chooses:
            return self._with_chosen(total)
        looked_at = self.looked_at
        if self.looks:
            looked_at = self._looking.looked_at(total[self._own :], curvature=CURVATURE[self.link])
        return replace(self._moved(total[: self._own]), looked_at=looked_at, told=np.empty(0, dtype=np.int64))

    def _moved(self, total: Whole) -> ExactLearner:
        """The learner after a step of the descent."""
        size = self.known_bins.total * self.outputs
        gradient = (total[:size] / RESIDUAL_STEPS).reshape(-1, self.outputs)
        # Every row is in one bin of the first column, so these sums are those of the intercept.
        overall = gradient[: int(self.known_bins.sizes[0])].sum(axis=0)
        squares = total[size : 2 * size].reshape(-1, self.outputs) / RESIDUAL_STEPS if self._last else self.squares
        moved = self._at.after(self.metric, np.vstack([gradient, overall[None, :]]), float(total[-1]) / LOSS_STEPS)
        bounded = replace(moved, w=self._constrained(moved.w))
        return replace(self, number=self.number + 1, descent=bounded, squares=squares)

    @property
    def smooth(self) -> float:
        """Pull of neighbouring bins: stronger where every class has a curve of its own."""
        if self.config.smooth is not None:
            return self.config.smooth
        return 10.0 if self.link == "softmax" else 3.0

    @cached_property
    def metric(self) -> Metric:
        """The metric of the descent."""
        if len(self.pair_counts):
            return self._gram_metric(CURVATURE[self.link], CHAIN)
        bins = self.known_bins
        curvature = CURVATURE[self.link] * sqrt(max(bins.diversity(self.counts), 1.0))
        rows = self._rows
        return Metric(bins, self.counts, rows, curvature, self.config.ridge, self.smooth, CHAIN)

    @property
    def _rows(self) -> float:
        return float(self.counts[: int(self.known_bins.sizes[0])].sum())

    def _with_chosen(self, total: Whole) -> ExactLearner:
        """Choose pairs of columns from persons and residuals of the cells of all candidates."""
        pairs, counts = self._choice.chosen(
            total[self._own :],
            most=self._most_pairs,
            curvature=CURVATURE[self.link],
            ridge=self.config.ridge,
        )
        flat = Bins(self.columns, self.known_bins.of_cell, pairs).flat_pairs()
        return self.informed({"pairs": flat, "counts": counts, "total": total[: self._own]})

    @property
    def _most_pairs(self) -> int:
        most = self.config.surfaces
        return most if isinstance(most, int) else len(self.looked_at or ())

    def _gram_metric(self, curvature: float, chain: float) -> GramMetric:
        bins, approved = self.known_bins, self.setting.approved
        least = approved.min_cell if rounds_pairs(approved) else 1
        return GramMetric(
            bins,
            self.counts,
            self._rows,
            curvature,
            self.config.ridge,
            self.smooth,
            chain,
            gram_of(bins, self.counts, self.pair_counts),
            shift_of(self.pair_counts, least, bins.total),
        )

    def _counted_cells(self, total: Whole) -> ExactLearner:
        counts = total[: self.fine].astype(np.float64) / self.setting.units
        target = total[self.fine :].astype(np.float64)
        if not self.classes:
            target[0] /= RESIDUAL_STEPS
        least = self._least
        if self.classes:
            target = np.where(target < least, 0.0, target)  # a class of few rows is not even told of
        ends = np.cumsum([column.cells for column in self.columns])[:-1]
        parts = np.split(counts, ends)
        bins = make_bins(self.columns, parts, bins=self.config.bins, least=least)
        sizes = [np.bincount(own, weights=part) for own, part in zip(bins.of_cell, parts, strict=True)]
        return self.informed({"bins": bins.flat(), "counts": np.concatenate(sizes), "target": target})

    @property
    def _least(self) -> int:
        """Fewest persons of a bin, and rows of a class."""
        return max(self.config.min_bin, self.setting.approved.min_cell)

    def check(self) -> None:
        """Refuse classes of few rows, and fewer rows than two bins need."""
        if self.bins is None:
            return
        least = self._least
        few = int((self.target < least).sum()) if self.classes else 0
        if few:
            raise RefusedError(
                f"{few} of {self.classes} classes have fewer than {least} rows over all sites",
                hint="Merge rare classes, or lower method.min_bin and policy.min_cell",
            )
        if self.counts_pairs and self.bins.total > MOST_BINS:
            raise RefusedError(
                f"{self.bins.total:,} bins have too many pairs for one total; {MOST_BINS:,} are the most",
                hint='Lower method.bins, drop columns, or use additive with method.metric = "counts"',
            )
        if self.bins.total == len(self.bins.columns):
            raise DataError(
                f"no column has two bins of at least {least} persons", hint="Add sites or rows, or lower method.min_bin"
            )

    def disclosed(self) -> StateArrays:
        """Bins and how many persons each holds, and the counts of classes; or those of pairs, when they were chosen."""
        if self.number - 1 == self.config.pair_round:
            bins = self.known_bins
            return {"pairs": bins.flat_pairs(), "counts": self.counts[bins.alone.total :], "total": self.told}
        return {"bins": self.known_bins.flat(), "counts": self.counts, "target": self.target}

    def informed(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        """The learner after a sealed total, from what sites tell of it."""
        return self._with_pairs(arrays) if self.chooses else self._with_bins(arrays)

    def _with_pairs(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        flat, counts = arrays["pairs"].astype(np.int32), arrays["counts"].astype(np.float64)
        total, bins = arrays["total"].astype(np.int64), Bins.of_flat(self.columns, self.known_bins.flat(), flat)
        more = bins.total - self.known_bins.total
        fits = counts.shape == (more,) and total.shape == (self._own,) and self._may_choose(bins)
        if not fits or ((counts > 0) & (counts < self._least)).any():
            raise IntegrityError("counts came in that do not fit the pairs of columns")
        moved, known = self._moved(total), np.concatenate([self.counts, counts])
        return replace(
            moved, bins=bins, counts=known, descent=moved._at.widened(self.known_bins.total, more), told=total
        )

    def _may_choose(self, bins: Bins) -> bool:
        chosen = [(pair.left, pair.right) for pair in bins.pairs]
        known = self.looked_at is None or set(chosen) <= set(self.looked_at)
        return known and len(set(chosen)) == len(chosen) <= self._most_pairs

    def _with_bins(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        bins = Bins.of_flat(self.columns, arrays["bins"])
        counts, target = arrays["counts"].astype(np.float64), arrays["target"].astype(np.float64)
        if counts.shape != (bins.total,) or target.shape != (self.targets,):
            raise IntegrityError("counts came in that do not fit the bins")
        w = np.zeros((bins.total + 1, self.outputs))
        w[-1] = self._first_scores(target)
        return replace(self, number=1, bins=bins, counts=counts, target=target, descent=Descent.begin(w))

    @property
    def model(self) -> AdditiveModel | None:
        """The model so far."""
        return None if self.descent is None else self._model(self.descent.w, self._errors())

    def _errors(self) -> Floats:
        """Standard errors of the values, given the other columns."""
        if not len(self.squares) or self.link == "log":
            return np.zeros((0, 0))
        if self.link == "identity":
            spread = self.squares[: int(self.known_bins.sizes[0])].sum() / max(self.target[1], 1.0)
            return np.asarray(np.sqrt(spread / (self.counts[:, None] + self.config.ridge)))
        return np.asarray(1.0 / np.sqrt(self.squares + self.config.ridge + 1e-9))

    def checkpoint(self) -> StateArrays:
        """Bins, counts, the descent and the squares."""
        kept: StateArrays = {"number": np.asarray([self.number]), "squares": self.squares, "pairs": self.pair_counts}
        if self.descent is None:
            return kept
        bins = self.known_bins
        if len(self.told):
            kept["told"] = self.told
        if self.looked_at is not None:
            kept["looked_at"] = np.asarray(self.looked_at, dtype=np.int32).reshape(-1, 2)
        if bins.pairs:
            kept["surfaces"] = bins.flat_pairs()
        own: StateArrays = {"bins": bins.flat(), "counts": self.counts, "target": self.target}
        return {**kept, **own, **self.descent.checkpoint()}

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        """The inverse of `checkpoint`."""
        if "bins" not in arrays:
            return self
        return replace(
            self,
            number=int(arrays["number"][0]),
            bins=Bins.of_flat(self.columns, arrays["bins"], arrays.get("surfaces")),
            counts=arrays["counts"].astype(np.float64),
            target=arrays["target"].astype(np.float64),
            squares=arrays["squares"].copy(),
            pair_counts=arrays["pairs"].copy(),
            descent=Descent.restored(arrays),
            told=arrays["told"].astype(np.int64) if "told" in arrays else self.told,
            looked_at=_pairs_of(arrays["looked_at"]) if "looked_at" in arrays else None,
        )


def _pairs_of(rows: NDArray[Any]) -> tuple[tuple[int, int], ...]:
    return tuple((int(left), int(right)) for left, right in rows)
