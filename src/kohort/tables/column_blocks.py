"""How one number or category becomes numbers between 0 and 1.

Guarantees: a block writes every one of its features for every row; a category outside the domain becomes the declared
"other", or that of a domain learned by a secure count, or an error that counts the rows; a generalised cell is encoded
as the mean of the encodings of the values it could stand for (see `kohort.tables.cells`), so an exact cell and a set of
one value give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, counted
from kohort.tables.cells import Cell, Interval, Label, Suppressed, ValueSet
from kohort.tables.domain import OTHER, ColumnDomain, category_text, number_like
from kohort.tables.schema import ColumnSpec
from kohort.tables.text_types import dates_of

__all__ = [
    "MISSING_MARK",
    "CategoryBlock",
    "Encoding",
    "Floats",
    "NumberBlock",
    "Spread",
    "Taxonomy",
    "leaves_of",
    "missing_error",
    "unseen_error",
]

Encoding = Literal["label", "onehot"]
Floats: TypeAlias = NDArray[np.floating]
MISSING_MARK = "?missing"
MIDDLE = 0.5
"""A missing number that is imputed: the middle of the agreed bounds, which no row has to tell."""


class Taxonomy(Protocol):
    """Whatever can tell the values below a label: a hierarchy, or a published mapping."""

    def leaves(self, label: str) -> tuple[str, ...]:
        """The values a label stands for."""
        ...


class Spread(NamedTuple):
    """All values that a generalised cell could stand for, on the scale of encoded rows."""

    codes: tuple[int, ...] = ()
    """Of a category."""
    ranges: tuple[tuple[float, float], ...] = ()
    """Of a number; both ends are included."""
    missing: bool = False
    """Whether a number could be missing."""


@dataclass(frozen=True, kw_only=True)
class CategoryBlock:
    """A category: its code divided by the highest code, or one indicator a category. Missing is the last category."""

    name: str
    spec: ColumnSpec
    domain: ColumnDomain
    encoding: Encoding
    impute: bool = False
    """Whether a missing value without a place of its own stands for any category; else it is an error."""

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """The categories in the order of their codes."""
        return self.domain.categories or ()

    @property
    def keeps_other(self) -> bool:
        """Whether categories outside the domain are encoded as "other"."""
        return self.spec.other or (self.domain.counted and OTHER in self.categories)

    @cached_property
    def size(self) -> int:
        """How many codes there are."""
        return len(self.categories) + self.domain.missing

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        if self.encoding == "label":
            return (self.name,)
        missing = (self.name + MISSING_MARK,) if self.domain.missing else ()
        return tuple(f"{self.name}={category}" for category in self.categories) + missing

    @cached_property
    def rows_of_codes(self) -> NDArray[np.float64]:
        """The encoding of every code, [size, features]."""
        if self.encoding == "onehot":
            return np.eye(self.size)
        return np.arange(self.size, dtype=np.float64)[:, None] / max(self.size - 1, 1)

    def encode(self, column: pl.Series, out: Floats) -> None:
        """Write the features of every row into `out`."""
        if self.impute and not self.domain.missing and column.null_count():
            known = column.is_not_null()
            self.encode_any(column, out)
            self.codes(column.filter(known))  # a value outside the domain is an error as ever
            return
        codes = self.codes(column)
        if self.encoding == "label":
            out[:, 0] = self.rows_of_codes[:, 0].astype(out.dtype)[codes]
        else:
            out[:] = 0
            out[np.arange(len(codes)), codes] = 1

    def encode_any(self, column: pl.Series, out: Floats, *, mark: bool = False) -> int:
        """As `encode`; a value outside the domain becomes "other", or stands for any category where there is none.

        Args:
            column: The values. A missing one without a place of its own stands for any category too.
            out: Where the features go.
            mark: Whether a value that stands for any category is not a number, instead of the mean of all of them.

        Returns:
            How many rows have a value outside the domain.
        """
        texts = category_text(column)
        found = texts.cast(pl.Enum(list(self.categories)), strict=False).to_physical().cast(pl.Int64)
        missing = texts.is_null().to_numpy() if texts.null_count() else np.zeros(len(texts), dtype=bool)
        codes = (found.fill_null(-1) if found.null_count() else found).to_numpy().copy()
        unseen = (codes < 0) & ~missing
        if self.domain.missing:
            codes[missing] = self.size - 1
        if self.keeps_other and OTHER in self.categories:
            codes[unseen] = self.categories.index(OTHER)
        every = self.rows_of_codes.mean(axis=0)
        table = np.vstack([self.rows_of_codes, np.full_like(every, np.nan) if mark else every]).astype(out.dtype)
        out[:] = table[codes]  # -1 is the last row: any of all
        return int(unseen.sum())

    def codes(self, column: pl.Series) -> NDArray[np.int64]:
        """The code of every row."""
        texts = category_text(column)
        found = texts.cast(pl.Enum(list(self.categories)), strict=False).to_physical().cast(pl.Int64)
        nulls = texts.null_count()
        if nulls and not self.domain.missing:
            raise missing_error(self.name, nulls)
        unseen = found.null_count() - nulls
        if unseen and not self.keeps_other:
            raise unseen_error(self.name, unseen)
        if nulls or unseen:
            other = self.categories.index(OTHER) if unseen else -1
            missing = texts.is_null()
            filled = pl.select(pl.when(missing).then(self.size - 1).otherwise(found.fill_null(other)))
            found = filled.to_series().cast(pl.Int64)
        return found.to_numpy()

    def encode_cell(self, cell: Cell | str | None, hierarchy: Taxonomy | None) -> NDArray[np.float64] | None:
        """The mean over the values the cell could stand for; None when none of them is in the domain."""
        codes = self._codes_of_cell(cell, hierarchy)
        return self.rows_of_codes[codes].mean(axis=0) if codes else None

    def spread(self, cell: Cell | str | None, hierarchy: Taxonomy | None) -> Spread | None:
        """What the cell could stand for; None when that is a single category."""
        codes = tuple(sorted(set(self._codes_of_cell(cell, hierarchy))))
        return Spread(codes=codes) if len(codes) > 1 else None

    def _codes_of_cell(self, cell: Cell | str | None, hierarchy: Taxonomy | None) -> list[int]:
        if isinstance(cell, Suppressed):
            return list(range(self.size))
        if cell is None and self.impute and not self.domain.missing:
            return list(range(self.size))
        if isinstance(cell, Label):
            inside = [self._code_of[leaf] for leaf in leaves_of(self.name, cell, hierarchy) if leaf in self._code_of]
            return inside or self._other
        if isinstance(cell, Interval):
            codes = [code for code, value in self._numbers if cell.low <= value <= cell.high]
            return codes + ([self.size - 1] if cell.missing and self.domain.missing else [])
        members: tuple[str | None, ...] = cell.values if isinstance(cell, ValueSet) else (cell,)
        codes = []
        for member in members:
            if member is None:
                codes += [self.size - 1] if self.domain.missing else []
            else:
                codes += [self._code_of[member]] if member in self._code_of else self._other
        # A set with a member outside the domain stands for something the model has never seen.
        return codes if len(codes) == len(members) else []

    @cached_property
    def _code_of(self) -> dict[str, int]:
        return {category: code for code, category in enumerate(self.categories)}

    @cached_property
    def _other(self) -> list[int]:
        return [self._code_of[OTHER]] if self.keeps_other else []

    @cached_property
    def _numbers(self) -> list[tuple[int, float]]:
        return [(code, value) for code, text in enumerate(self.categories) if (value := _as_number(text)) is not None]


@dataclass(frozen=True, kw_only=True)
class NumberBlock:
    """A number scaled by its bounds, or its bin's code by the highest; missing is 0 plus an indicator.

    With `impute`, a missing number is the middle of the agreed bounds, and an indicator says so where there is one.
    Declared bounds are a promise and clip what lies outside, and so do bounds learned by a secure count; other learned
    bounds are what happened to be seen, so numbers outside are continued on the same line. A column with a single
    value is 0 everywhere.
    """

    name: str
    spec: ColumnSpec
    domain: ColumnDomain
    impute: bool = False

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name, self.name + MISSING_MARK) if self.domain.missing else (self.name,)

    def encode(self, column: pl.Series, out: Floats) -> None:
        """Write the features of every row into `out`."""
        values = number_like(column, self.domain.bounds)
        nulls = values.null_count()
        if nulls and not (self.domain.missing or self.impute):
            raise missing_error(self.name, nulls)
        scaled = self.scale(values.fill_null(0.0).to_numpy() if nulls else values.to_numpy())
        if nulls or self.domain.missing:
            absent = values.is_null().to_numpy()
            if self.domain.missing:
                out[:, 1] = absent
            scaled = np.where(absent, self._gap, scaled)
        out[:, 0] = scaled

    def scale(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers to the unit interval."""
        if self.spec.bins is not None:
            return np.searchsorted(np.array(self.spec.bins), values, side="left") / len(self.spec.bins)
        low, high = self._bounds
        if high == low:
            return np.zeros(len(values))
        if self.spec.bounds is not None or self.domain.counted:
            values = np.clip(values, low, high)
        # Dividing first keeps the difference finite for bounds near the largest float.
        span = high / 2 - low / 2
        scaled: NDArray[np.float64] = (values / 2 - low / 2) / span
        return scaled

    def encode_cell(self, cell: Cell | str | None, hierarchy: Taxonomy | None) -> NDArray[np.float64] | None:
        """The mean over the numbers the cell could stand for; None when it stands for no number."""
        if isinstance(cell, Suppressed):
            return self._row(float(np.mean(self.scale(np.array(self._bounds)))) if self.spec.bins is None else 0.5, 0.0)
        if isinstance(cell, Interval):
            share = 0.5 if cell.missing and (self.domain.missing or self.impute) else 0.0
            return self._row((1 - share) * self._mean_over(cell.low, cell.high) + share * self._gap, share)
        if isinstance(cell, Label):
            members: Sequence[str | None] = leaves_of(self.name, cell, hierarchy)
        else:
            members = cell.values if isinstance(cell, ValueSet) else (cell,)
        texts = [member for member in members if member is not None]
        numbers = self._numbers_of(texts)
        absent = len(members) - len(texts)
        if len(numbers) < len(texts) or (absent and not (self.domain.missing or self.impute)):
            return None
        total = float(self.scale(np.array(numbers)).sum()) if numbers else 0.0
        return self._row((total + absent * self._gap) / len(members), absent / len(members))

    def _numbers_of(self, texts: Sequence[str]) -> list[float]:
        """The numbers, or dates as numbers, among the texts."""
        found = [value for text in texts if (value := _as_number(text)) is not None]
        if len(found) == len(texts) or dates_of(column := pl.Series(self.name, texts)) is None:
            return found
        return number_like(column, self.domain.bounds).to_list()

    def spread(self, cell: Cell | str | None, hierarchy: Taxonomy | None) -> Spread | None:
        """What the cell could stand for; None when that is a single number."""
        if isinstance(cell, Suppressed):
            return Spread(ranges=((0.0, 1.0),), missing=self.domain.missing)
        if isinstance(cell, Interval):
            low, high = self.scale(np.array([cell.low, cell.high])).tolist()
            missing = cell.missing and self.domain.missing
            return Spread(ranges=((low, high),), missing=missing) if missing or low < high else None
        members: Sequence[str | None] = ()
        if isinstance(cell, Label):
            members = leaves_of(self.name, cell, hierarchy)
        elif isinstance(cell, ValueSet):
            members = cell.values
        numbers = self._numbers_of([text for text in members if text is not None])
        places = sorted(set(self.scale(np.array(numbers)).tolist())) if numbers else []
        missing = None in members and self.domain.missing
        return Spread(ranges=tuple((at, at) for at in places), missing=missing) if len(places) + missing > 1 else None

    @property
    def _gap(self) -> float:
        return MIDDLE if self.impute else 0.0

    def _mean_over(self, low: float, high: float) -> float:
        """The mean encoding of numbers spread evenly over [low, high]: the midpoint where the scale is a line."""
        if self.spec.bins is None:
            return float(self.scale(np.array([low, high])).mean())
        if low == high:
            return float(self.scale(np.array([low]))[0])
        edges = np.array([low, *(cut for cut in self.spec.bins if low < cut < high), high])
        middles = edges[:-1] / 2 + edges[1:] / 2
        return float(np.average(self.scale(middles), weights=np.diff(edges)))

    def _row(self, value: float, absent: float) -> NDArray[np.float64]:
        return np.array([value, absent] if self.domain.missing else [value])

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        if self.domain.bounds is None:
            raise ConfigError(f"the domain of column {self.name!r} has no bounds", hint="Learn the domain again")
        return self.domain.bounds


def missing_error(name: str, count: int) -> DataError:
    """The error for missing values that the domain has no place for.

    Args:
        name: The column.
        count: How many rows lack a value.

    Returns:
        The error, to be raised.
    """
    hint = 'Fill them in, set missing = "drop", or declare the column nullable'
    return DataError(f"column {name!r} has {counted(count, 'missing value')} that the model does not know", hint=hint)


def unseen_error(name: str, count: int) -> DataError:
    """The error for values outside the domain.

    Args:
        name: The column.
        count: How many rows have one.

    Returns:
        The error, to be raised; it shows no value.
    """
    hint = 'Declare the categories, or list the column in "other" to give unseen ones a category of their own'
    return DataError(
        f"column {name!r} has {counted(count, 'row')} with a value outside its known categories", hint=hint
    )


def leaves_of(name: str, label: Label, hierarchy: Taxonomy | None) -> tuple[str, ...]:
    """The values below a label.

    Args:
        name: The column.
        label: A label that a cell was released as.
        hierarchy: The hierarchy that the label comes from.

    Returns:
        The values.

    Raises:
        DataError: There is no hierarchy, or it lacks the label.
    """
    if hierarchy is None:
        hint = "Give the hierarchies the table was generalised with"
        raise DataError(f"column {name!r} holds labels of a taxonomy but has no hierarchy", hint=hint)
    return hierarchy.leaves(label.text)


def _as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None
