"""Additive models without a budget: exact sums of residuals per bin, and L-BFGS on them.

Totals are sealed: sites read them and take the steps. The hub is told the bins, each with enough persons, which pairs
of columns have bins, and at the end the values; counts as ranges and values without digits that rows do not support
(`kohort.models.additive.precision`). Sites go on with the exact ones.
Sums of residuals at several known values would tell it more: they are linear equations in the counts of combinations of
bins (docs/methods/additive.md). With `metric = "gram"`, total 1 counts pairs of bins and is not sealed.
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
from kohort.models.additive.moments import PairMoments, most_sums
from kohort.models.additive.precision import rounded_counts, rounded_errors, rounded_mean, rounded_values
from kohort.models.rows import Rows
from kohort.protocol.state import StateArrays
from kohort.rounds.totals.learner import RowCache, Whole, bounded, per_row
from kohort.rounds.totals.pairs import rounds_pairs

__all__ = ["ExactLearner"]

LOSS_STEPS = 2.0**20
CHAIN = 1.0
"""Pull of neighbours of a code list towards each other, in rows."""
LARGEST_RESIDUAL = 16.0
LARGEST_LOSS = 1e6
MOST_PAIR_NUMBERS = 2**22
"""A total about pairs of columns has no more numbers, whatever sites tell the hub."""


@dataclass(frozen=True, eq=False)
class ExactLearner(AdditiveLearner):
    """Without a budget: exact sums, L-BFGS. The last total also holds squared residuals, for intervals."""

    target: Floats = field(default_factory=lambda: np.zeros(0))
    descent: Descent | None = None
    pair_counts: Floats = field(default_factory=lambda: np.zeros(0))
    """Persons per pair of bins, by `metric = "gram"`; small ones may have been rounded."""
    errors: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Standard errors of the values, given the other columns, once the last total is there."""
    disclosed_length: int = 0
    """How many numbers the total has from which pairs are chosen; a hub is told, for it cannot derive it."""
    looked_at: tuple[tuple[int, int], ...] | None = None
    """The pairs of columns that may be chosen, where sums over all rows told; None for all."""

    @cached_property
    def columns(self) -> Any:
        """The cells of the columns."""
        return columns_of(self.setting.encoder)

    @property
    def sealed(self) -> bool:
        """All totals are for the sites alone, but for counts of pairs of bins, which have rules of their own."""
        return not self.pairs

    @property
    def prepares(self) -> bool:
        """Whether it follows from the next total which pairs of columns are looked at."""
        decides = self.config.surfaces != "acyclic" or self.link != "softmax"
        return 0 < self.number == (self.config.pair_round or 0) - 1 and decides

    @property
    def chooses(self) -> bool:
        """Whether pairs of columns follow from the next total."""
        any_left = self.config.surfaces != "acyclic" or bool(self.looked_at)
        return self.number == self.config.pair_round and any_left

    @property
    def looks(self) -> bool:
        """Whether the next total also tells which pairs of columns act together."""
        return self.prepares and self.config.surfaces == "acyclic"

    @cached_property
    def _choice(self) -> PairChoice:
        """The candidates, from bins and values so far."""
        return PairChoice(
            self.known_bins, self.counts, self._at.w[:-1], self.least, self.config.monotone, self.looked_at
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
        """Bins and persons per bin; pairs that are looked at; their bins; and at the end the values. Mostly nothing."""
        if self.number == 0:
            return {"bins": ("<i4", (self.fine,)), "counts": ("<f8", (None,)), "target": ("<f8", (self.targets,))}
        if self.prepares:
            return {"looked_at": ("<i4", (None, 2)), "length": ("<i8", (1,))}
        if self.chooses:
            return {"pairs": ("<i4", (None,)), "counts": ("<f8", (None,))}
        if self._last:
            return {"values": ("<f8", (self.known_bins.total + 1, self.outputs)), "errors": ("<f8", (None, None))}
        return {}

    @property
    def _last(self) -> bool:
        return self.number == self.config.totals - 1

    @cached_property
    def length(self) -> int:
        """Cells and numbers about the target; then residuals per bin and the loss, at the end squares, too."""
        if self.number == 0:
            return self.fine + self.targets
        if self.pairs:
            return pair_cells(self.known_bins)
        return self._own + self._of_pairs_length

    @cached_property
    def _of_pairs_length(self) -> int:
        """How many numbers of the next total are about pairs of columns; a hub does not know the values."""
        if self.chooses:
            return self.disclosed_length if self.descent is None else self._choice.length
        return most_sums(self.known_bins, self.config.monotone, self.outputs) if self.looks else 0

    @property
    def _own(self) -> int:
        """How many numbers of the next total the descent needs."""
        return self.known_bins.total * self.outputs * (2 if self._last else 1) + 1

    def contribution(self, rows: Rows, memory: RowCache) -> Whole:
        """Counts, or sums of residuals at the values so far."""
        if self.number == 0:
            return self._counted(rows, memory, 1.0)
        if self.pairs:
            return count_pairs(self.known_bins, self._design(rows, memory), memory.persons)
        residuals, losses = self._residuals(rows, memory, self._at.w)
        design, residuals = self._design(rows, memory), bounded(residuals, LARGEST_RESIDUAL)
        parts = [design.summed(per_row(residuals, RESIDUAL_STEPS)).ravel()]
        if self._last:
            parts.append(design.summed(per_row(np.square(residuals), RESIDUAL_STEPS)).ravel())
        loss = per_row(bounded(losses, LARGEST_LOSS), LOSS_STEPS).sum()
        return np.concatenate([*parts, [loss], self._of_pairs(design, residuals, memory)]).astype(np.int64)

    def _of_pairs(self, design: Design, residuals: Floats, memory: RowCache) -> Whole:
        """What rows add to the part of a total that is about pairs of columns."""
        if self.chooses:
            memory.forget(Design)  # the next total has bins of pairs
            return self._choice.counted(design, np.nan_to_num(residuals), memory.persons)
        if not self.looks:
            return np.empty(0, dtype=np.int64)
        counted = self._looking.counted(design, np.nan_to_num(residuals))
        return np.pad(counted, (0, self._of_pairs_length - len(counted)))

    def expected(self, rows: Rows, memory: RowCache) -> Floats:
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
            looking = self._looking
            sums = total[self._own : self._own + looking.length]
            looked_at = looking.looked_at(sums, curvature=CURVATURE[self.link])
        return replace(self._moved(total[: self._own]), looked_at=looked_at)

    def unread(self) -> ExactLearner:
        """The learner of a hub after a total that sites alone read: it does not know the values any more."""
        return replace(self, number=self.number + 1, descent=None)

    def _moved(self, total: Whole) -> ExactLearner:
        """The learner after a step of the descent."""
        size = self.known_bins.total * self.outputs
        gradient = (total[:size] / RESIDUAL_STEPS).reshape(-1, self.outputs)
        # Every row is in one bin of the first column, so these sums are those of the intercept.
        overall = gradient[: int(self.known_bins.sizes[0])].sum(axis=0)
        moved = self._at.after(self.metric, np.vstack([gradient, overall[None, :]]), float(total[-1]) / LOSS_STEPS)
        constrained = replace(moved, w=self._constrained(moved.w))
        if not self._last:
            return replace(self, number=self.number + 1, descent=constrained)
        errors = self._errors(total[size : 2 * size].reshape(-1, self.outputs) / RESIDUAL_STEPS)
        values = rounded_values(constrained.w, errors, self._monotone_parts.values(), classes=self.classes > 0)
        shown = np.zeros((0, 0)) if self.link == "log" else rounded_errors(errors[:-1], classes=self.classes > 0)
        return replace(self, number=self.number + 1, descent=replace(constrained, w=values), errors=shown)

    def _errors(self, squares: Floats) -> Floats:
        """Standard errors of values and intercepts, given the other columns, from squared residuals per bin.

        What values are rounded to follows from them, so a plan must not make them smaller than rows do: residuals are
        those of rows that weigh at most 1, and a pull of many rows counts as one of one row.
        """
        first = int(self.known_bins.sizes[0])
        squares = np.vstack([squares, squares[:first].sum(axis=0)[None, :]])
        squares = squares / max([1.0, *(self.setting.encoder.class_weights or {}).values()]) ** 2
        counts = np.append(self.counts, self._rows)[:, None]
        pull = min(self.config.ridge, 1.0)
        if self.link == "identity":
            spread = squares[-1] / max(self._rows, 1.0)
            return np.asarray(np.sqrt((spread + 1e-12) / (counts + pull + 1e-9)))
        if self.link == "log":  # of an amount whose deviation is as large as its mean
            return np.asarray(1.0 / np.sqrt(np.broadcast_to(counts, squares.shape) + pull + 1e-9))
        return np.asarray(1.0 / np.sqrt(squares + pull + 1e-9))

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
        moved, bins = self._moved(total[: self._own]), Bins(self.columns, self.known_bins.of_cell, pairs)
        wide = moved._at.widened(self.known_bins.total, bins.total - self.known_bins.total)
        return replace(moved, bins=bins, counts=np.concatenate([self.counts, counts]), descent=wide)

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
        least = self.least
        if self.classes:
            few = target < least
            if few.any():  # the number of rows less those of the others would tell how many these are
                target = np.where(few, 0.0, float(least))
        ends = np.cumsum([column.cells for column in self.columns])[:-1]
        parts = np.split(counts, ends)
        bins = make_bins(self.columns, parts, bins=self.config.bins, least=least)
        sizes = [np.bincount(own, weights=part) for own, part in zip(bins.of_cell, parts, strict=True)]
        return self.informed({"bins": bins.flat(), "counts": np.concatenate(sizes), "target": target})

    @property
    def least(self) -> int:
        """Fewest persons of a bin, and of a class."""
        return max(self.config.min_bin, self.setting.approved.min_cell)

    @property
    def shown_counts(self) -> Floats:
        """Counts of bins as ranges: bins of two columns can be nested, and differ by few persons."""
        return rounded_counts(self.counts, self.least)

    def check(self) -> None:
        """Refuse classes of few persons, and fewer persons than two bins need."""
        if self.bins is None:
            return
        least = self.least
        few = int((self.target < least).sum()) if self.classes else 0
        if few:
            raise RefusedError(
                f"{few} of {self.classes} classes have fewer than {least} persons over all sites",
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
        """What follows from the last total, as `tells` of the learner before it lists."""
        if self.number == 1:
            return {"bins": self.known_bins.flat(), "counts": self.shown_counts, "target": self._shown_target()}
        if self.finished:
            return {"values": self._at.w, "errors": self.errors}
        if self.number == self.config.pair_round:
            looked_at = np.asarray(self.looked_at or (), dtype=np.int32).reshape(-1, 2)
            return {"looked_at": looked_at, "length": np.asarray([self._of_pairs_length], dtype=np.int64)}
        bins = self.known_bins
        return {"pairs": bins.flat_pairs(), "counts": self.shown_counts[bins.alone.total :]}

    def _shown_target(self) -> Floats:
        """Persons per class as ranges, or which classes have enough where one has not; of a number the rounded mean."""
        target = self.target if self.classes else rounded_mean(self.target[0], self.target[1])
        enough = self.classes and (target >= self.least).all()
        return rounded_counts(target, self.least) if enough else target

    def informed(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        """The learner after a sealed total, from what sites tell of it."""
        if self.number == 0:
            return self._with_bins(arrays)
        if self.prepares:
            return self._with_looked_at(arrays)
        return self._with_pairs(arrays) if self.chooses else self._with_values(arrays)

    def _with_looked_at(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        length, columns = int(arrays["length"][0]), len(self.columns)
        looked_at = _pairs_of(arrays["looked_at"]) if self.looks else None
        known = all(0 <= left < right < columns for left, right in looked_at or ())
        if not known or not 0 <= length <= MOST_PAIR_NUMBERS:
            raise IntegrityError("pairs of columns came in that do not fit the columns")
        return replace(self.unread(), looked_at=looked_at, disclosed_length=length)

    def _with_pairs(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        flat, counts = arrays["pairs"].astype(np.int32), arrays["counts"].astype(np.float64)
        bins = Bins.of_flat(self.columns, self.known_bins.flat(), flat)
        fits = counts.shape == (bins.total - self.known_bins.total,) and self._may_choose(bins)
        if not fits or ((counts > 0) & (counts < self.least)).any():
            raise IntegrityError("counts came in that do not fit the pairs of columns")
        return replace(self.unread(), bins=bins, counts=np.concatenate([self.counts, counts]))

    def _with_values(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        values, errors = arrays["values"].astype(np.float64), arrays["errors"].astype(np.float64)
        if errors.shape not in ((0, 0), (len(values) - 1, self.outputs)) or not np.isfinite(values).all():
            raise IntegrityError("values came in that do not fit the bins")
        return replace(self.unread(), descent=Descent.begin(values), errors=errors)

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
        """The model so far; None at a hub that does not know the values."""
        return None if self.descent is None else self._model(self.descent.w, self.errors)

    def checkpoint(self) -> StateArrays:
        """Bins, counts and the descent; a hub has none."""
        kept: StateArrays = {"number": np.asarray([self.number]), "errors": self.errors, "pairs": self.pair_counts}
        if self.bins is None:
            return kept
        kept["length"] = np.asarray([self.disclosed_length])
        if self.looked_at is not None:
            kept["looked_at"] = np.asarray(self.looked_at, dtype=np.int32).reshape(-1, 2)
        if self.bins.pairs:
            kept["surfaces"] = self.bins.flat_pairs()
        own: StateArrays = {"bins": self.bins.flat(), "counts": self.counts, "target": self.target}
        return {**kept, **own, **({} if self.descent is None else self.descent.checkpoint())}

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> ExactLearner:
        """The inverse of `checkpoint`."""
        if "bins" not in arrays:
            return self
        if "errors" not in arrays:
            raise IntegrityError("an earlier version of kohort began this training", hint="Run the plan again")
        return replace(
            self,
            number=int(arrays["number"][0]),
            bins=Bins.of_flat(self.columns, arrays["bins"], arrays.get("surfaces")),
            counts=arrays["counts"].astype(np.float64),
            target=arrays["target"].astype(np.float64),
            errors=arrays["errors"].copy(),
            pair_counts=arrays["pairs"].copy(),
            descent=Descent.restored(arrays) if "w" in arrays else None,
            disclosed_length=int(arrays["length"][0]),
            looked_at=_pairs_of(arrays["looked_at"]) if "looked_at" in arrays else None,
        )


def _pairs_of(rows: NDArray[Any]) -> tuple[tuple[int, int], ...]:
    return tuple((int(left), int(right)) for left, right in rows)
