"""Learn classes from one table and put the rows of another into them: `fit`, `transform`, as scikit-learn has it.

A new row belongs to a class if every released cell of the class covers its value: inside the interval, in the set,
below the label, equal to the value. Of several classes the one that loses least is taken. A row outside every class is
released as `outside` says: "suppress" puts `*` into all its quasi-identifiers, "nearest" gives it the cells of the
class that covers most of its values (of equal ones the one that loses least), which then claim values it lacks.

Guarantee: the fitted table comes out of `fit_transform`, and of `transform`, exactly as it was verified. `transform`
gives other rows the cells of the classes they fall into and nothing more: k rows of a class are rows of the fitted
table. What holds for the transformed rows by themselves is measured and stands in `transformed_`: the k of the rows
that a class covers, and how many none does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from kohort.anonymity.compiled import compiled
from kohort.anonymity.relational.anonymise import (
    MAX_SET,
    Algorithm,
    Anonymised,
    Hierarchies,
    KeepExact,
    Report,
    anonymise,
)
from kohort.anonymity.relational.coding import Coding, coded_numbers
from kohort.anonymity.relational.other_columns import released_as_they_are
from kohort.anonymity.relational.problem import Integers
from kohort.anonymity.relational.recode import ColumnCells
from kohort.anonymity.relational.rule import BetaKind, LKind, TKind
from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.cells import SUPPRESSED, Interval, Label, ValueSet, canonical_text
from kohort.tables.frames import FrameKind, Missing, complete_rows, from_native, like_input
from kohort.tables.hierarchy import Hierarchy

__all__ = ["Anonymiser", "Transformed"]


@dataclass(frozen=True, kw_only=True)
class Transformed:
    """What holds for rows that were transformed.

    Attributes:
        rows: How many there are.
        k: Rows of the smallest class among those that a class covers.
        outside: Rows that no class covers.
        verified: Whether they are the fitted rows, whose release the checker has judged.
        release_k: Rows of the smallest class of the fitted release, whose cells covered rows got.
        suppressed: Rows whose quasi-identifiers were all suppressed.
    """

    rows: int
    k: int
    outside: int
    verified: bool
    release_k: int
    suppressed: int

    def __str__(self) -> str:
        if self.verified:
            kept = f"{self.rows - self.suppressed:,} rows are the verified release, k = {self.k}"
            return f"{kept}; {self.suppressed:,} are suppressed"
        near = self.outside - self.suppressed
        parts = [
            f"{self.rows - self.outside:,} of {self.rows:,} rows have the cells of a class that at least "
            f"{self.release_k:,} rows of the fitted table are in",
            f"by themselves their smallest class has {self.k:,} rows",
            f"{self.suppressed:,} rows are covered by no class and suppressed",
        ]
        if near:
            parts.append(f"{near:,} rows got the nearest class, whose cells claim values they lack")
        return "; ".join(parts)


class Anonymiser(TransformerMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """`anonymise` with a memory. Parameters are those of `anonymise`, and `outside`."""

    def __init__(
        self,
        *,
        quasi: Sequence[str] = (),
        k: int = 10,
        sensitive: Sequence[str] = (),
        target: str | None = None,
        person: str | None = None,
        l: float = 0,  # noqa: E741 - the literature's own letter
        l_kind: LKind = "distinct",
        c: float = 3.0,
        t: float = 0.0,
        t_kind: TKind = "emd",
        alpha: float = 0.0,
        beta: float = 0.0,
        beta_kind: BetaKind = "basic",
        delta: float = 0.0,
        risk: float = 0.0,
        population: Any = None,
        presence: tuple[float, float] | None = None,
        rounding: Mapping[str, float] | None = None,
        top: Mapping[str, float] | None = None,
        bottom: Mapping[str, float] | None = None,
        means: Sequence[str] = (),
        algorithm: Algorithm = "auto",
        hierarchies: Hierarchies = "auto",
        keep_exact: KeepExact = True,
        missing: Missing = "category",
        suppression_limit: float = 0.0,
        balance: float = 0.0,
        weights: Mapping[str, float] | None = None,
        max_set: int | None = MAX_SET,
        keep: Sequence[str] = (),
        outside: Literal["suppress", "nearest"] = "suppress",
    ) -> None:
        self.quasi = quasi
        self.k = k
        self.sensitive = sensitive
        self.target = target
        self.person = person
        self.l = l
        self.l_kind = l_kind
        self.c = c
        self.t = t
        self.t_kind = t_kind
        self.alpha = alpha
        self.beta = beta
        self.beta_kind = beta_kind
        self.delta = delta
        self.risk = risk
        self.population = population
        self.presence = presence
        self.rounding = rounding
        self.top = top
        self.bottom = bottom
        self.means = means
        self.algorithm = algorithm
        self.hierarchies = hierarchies
        self.keep_exact = keep_exact
        self.missing = missing
        self.suppression_limit = suppression_limit
        self.balance = balance
        self.weights = weights
        self.max_set = max_set
        self.keep = keep
        self.outside = outside

    def fit(self, X: Any, y: Any = None) -> Anonymiser:
        """Learn the classes. `y` is not looked at: name the target instead."""
        del y
        self._learn(X)
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """The released table of the fitted rows."""
        del y, fit_params
        return self._learn(X).frame

    def transform(self, X: Any) -> Any:
        """The rows of another table with the cells of the classes they belong to."""
        check_is_fitted(self, "cells_")
        frame, kind = from_native(X)
        if frame.equals(self._fitted):
            self.transformed_ = Transformed(
                rows=frame.height,
                k=self.report_.k,
                outside=0,
                verified=self.report_.verified,
                release_k=self.report_.k,
                suppressed=frame.height - len(self._kept),
            )
            self.outside_rows_ = 0
            return self._released(frame, X, kind)
        absent = [cells.name for cells in self.cells_ if cells.name not in frame.columns]
        if absent:
            raise DataError(f"the table lacks columns: {', '.join(absent)}", hint="Give the columns that were fitted")
        new = frame.drop([name for name in self.feature_names_in_ if name in frame.columns])
        released_as_they_are(new, (), [name for name in self.keep if name in new.columns])
        frame, _ = coded_numbers(frame, self._coding())
        inside, nearest_class = self._classes_of(frame)
        self.outside_rows_ = int((inside < 0).sum())
        chosen = nearest_class if self.outside == "nearest" else inside
        made = frame.with_columns(_column(cells, chosen) for cells in self.cells_)
        covered = made.filter(pl.Series(inside >= 0)).select(cells.name for cells in self.cells_)
        sizes = covered.group_by(covered.columns).len()["len"]
        least = 0 if sizes.is_empty() else int(sizes.min())  # type: ignore[arg-type] # a count
        self.transformed_ = Transformed(
            rows=frame.height,
            k=least,
            outside=self.outside_rows_,
            verified=False,
            release_k=self.report_.k,
            suppressed=0 if self.outside == "nearest" else self.outside_rows_,
        )
        return self._native(made, X, kind)

    def _released(self, frame: pl.DataFrame, X: Any, kind: FrameKind) -> Any:
        """The fitted rows with the cells of their own classes.

        Suppressed rows keep their place: `*` in all quasi-identifiers and nothing in any other column, because few rows
        that show nothing but a sensitive value would be told by what the others are not.
        """
        frame, _ = coded_numbers(frame, self._coding())
        of_row = np.full(frame.height, -1, np.int64)
        of_row[self._kept] = self._classes
        shown = pl.Series(of_row >= 0)
        names = {cells.name for cells in self.cells_}
        blank = [pl.when(shown).then(pl.col(name)).alias(name) for name in frame.columns if name not in names]
        made = frame.with_columns(*(_column(cells, of_row) for cells in self.cells_), *(() if shown.all() else blank))
        return self._native(made, X, kind, changed=() if shown.all() else made.columns)

    def _native(self, made: pl.DataFrame, X: Any, kind: FrameKind, *, changed: Sequence[str] = ()) -> Any:
        """The caller's kind of frame, with its index, and without the column that names persons."""
        shown = made if self.person is None or self.person not in made.columns else made.drop(self.person)
        others = {cells.name for cells in self.cells_} | set(self._coding().columns) | set(changed)
        return like_input(shown, X, kind, slice(None), others)

    def _coding(self) -> Coding:
        return Coding(rounding=self.rounding or {}, top=self.top or {}, bottom=self.bottom or {})

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Columns keep their names."""
        check_is_fitted(self, "feature_names_in_")
        del input_features
        names: NDArray[np.object_] = self.feature_names_in_
        return names

    def _learn(self, X: Any) -> Anonymised:
        if self.outside not in ("suppress", "nearest"):
            hint = nearest(str(self.outside), ("suppress", "nearest"))
            raise ConfigError(f"unknown way to release rows outside every class {self.outside!r}", hint=hint)
        asked = {name: value for name, value in self.get_params(deep=False).items() if name != "outside"}
        made = anonymise(X, **asked)
        before, _ = from_native(X)
        after, _ = from_native(made.frame)
        self.cells_: tuple[ColumnCells, ...] = made.cells
        self.hierarchies_ = made.hierarchies
        self.report_: Report = made.report
        self.class_loss_ = _class_losses(made)
        self.feature_names_in_ = np.array(before.columns, dtype=object)
        self.n_features_in_ = len(before.columns)
        self.columns_out_ = tuple(after.columns)
        kept = made.kept if self.missing == "category" else complete_rows(before)[made.kept]
        self._fitted, self._kept, self._classes = before, kept, made.classes
        return made

    def _classes_of(self, frame: pl.DataFrame) -> tuple[Integers, Integers]:
        distinct = frame.select(cells.name for cells in self.cells_).with_row_index("row")
        keyed = distinct.group_by([cells.name for cells in self.cells_], maintain_order=True).agg(pl.col("row"))
        codes, covers = [], []
        for cells in self.cells_:
            values = keyed[cells.name].unique()
            places = {value: place for place, value in enumerate(values.to_list())}
            codes.append(np.array([places[value] for value in keyed[cells.name].to_list()], dtype=np.int64))
            covers.append(_covers(cells, values.to_list(), self.hierarchies_.get(cells.name)))
        padded = np.zeros(
            (len(covers), max(one.shape[0] for one in covers), max(one.shape[1] for one in covers)), dtype=np.bool_
        )
        for position, one in enumerate(covers):
            padded[position, : one.shape[0], : one.shape[1]] = one
        tightest = int(np.argmin([one.mean() for one in covers]))
        inside, near = _match_rows(
            np.array(codes),
            padded,
            np.array([cells.of_class for cells in self.cells_]),
            np.argsort(self.class_loss_, kind="stable"),
            tightest,
        )
        of_row = np.empty(frame.height, np.int64)
        for place, rows in enumerate(keyed["row"].to_list()):
            of_row[rows] = place
        return inside[of_row], near[of_row]


def _class_losses(made: Anonymised) -> NDArray[np.float64]:
    """How much each class gives up, summed over its cells: what decides between classes that both cover a row."""
    total: NDArray[np.float64] = np.zeros(len(made.cells[0].of_class))
    for cells in made.cells:
        total += _widths(cells, made.hierarchies.get(cells.name))[cells.of_class]
    return total


def _widths(cells: ColumnCells, hierarchy: Hierarchy | None) -> NDArray[np.float64]:
    raw = np.zeros(len(cells.cells))
    for place, cell in enumerate(cells.spans or cells.cells):
        if cell is SUPPRESSED:
            raw[place] = np.inf
        elif isinstance(cell, Interval):
            raw[place] = cell.high - cell.low + cell.missing
        elif isinstance(cell, ValueSet):
            raw[place] = len(cell.values)
        elif isinstance(cell, Label) and hierarchy is not None:
            raw[place] = len(hierarchy.leaves(cell.text))
    largest = float(raw[np.isfinite(raw)].max(initial=0.0)) or 1.0
    return np.where(np.isfinite(raw), raw / largest, 1.0)


def _covers(cells: ColumnCells, values: list[Any], hierarchy: Hierarchy | None) -> NDArray[np.bool_]:
    """Whether each cell covers each value."""
    texts = [None if value is None else canonical_text(value) for value in values]
    found = np.zeros((len(cells.cells), len(values)), dtype=np.bool_)
    for place, cell in enumerate(cells.spans or cells.cells):
        if cell is SUPPRESSED:
            found[place] = True
        elif isinstance(cell, Interval):
            found[place] = [cell.missing if value is None else cell.low <= value <= cell.high for value in values]
        elif isinstance(cell, (ValueSet, Label)):
            members = set(cell.values) if isinstance(cell, ValueSet) else _leaves(hierarchy, cell)
            found[place] = [text in members for text in texts]
        else:
            alone = None if cell is None else canonical_text(cell)
            found[place] = [text == alone for text in texts]
    return found


def _leaves(hierarchy: Hierarchy | None, label: Label) -> set[str | None]:
    return set() if hierarchy is None else set(hierarchy.leaves(label.text))


def _column(cells: ColumnCells, chosen: Integers) -> pl.Series:
    """The cells of the chosen classes as text, `*` where there is none."""
    texts = pl.concat([cells.texts.cast(pl.String), pl.Series(cells.name, ["*"], dtype=pl.String)])
    return texts.gather(np.where(chosen < 0, len(cells.cells), cells.of_class[chosen]))


@compiled
def _match_rows(
    codes: Integers, covers: NDArray[np.bool_], cell_of_class: Integers, order: Integers, first_column: int
) -> tuple[Integers, Integers]:
    """For each row the class that covers it (-1: none) and the class that covers most of its columns.

    `covers[c, cell, code]` says whether a cell of column c covers a value; `codes[c, row]` is the value. Classes are
    tried in the given order, and `first_column` before the others: the one whose cells cover least.
    """
    columns, rows = codes.shape
    inside = np.empty(rows, np.int64)
    nearest = np.empty(rows, np.int64)
    for row in range(rows):
        inside[row] = -1
        best = -1
        nearest[row] = order[0]
        for j in order:
            hits = 0
            for step in range(columns):
                c = first_column if step == 0 else (step - 1 if step <= first_column else step)
                hit = covers[c, cell_of_class[c, j], codes[c, row]]
                hits += hit
                if not hit and best >= columns - 1:
                    break
            if hits > best:
                best = hits
                nearest[row] = j
                if hits == columns:
                    inside[row] = j
                    break
    return inside, nearest
