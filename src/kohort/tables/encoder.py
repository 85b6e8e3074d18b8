"""Tables to arrays for learning, the same way at every site.

Everything is decided by the schema and the domain, never by the rows at hand: feature names, width, task and classes
are equal at all sites and at prediction time.

Guarantees: `transform` gives a C-contiguous [rows, width] array with declared columns in [0, 1]; columns may come in
any order and extra ones are ignored; the mapping form reads back to an encoder that gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, counted, nearest
from kohort.tables.blocks import (
    Block,
    CategoryBlock,
    Encoding,
    ItemsBlock,
    NumberBlock,
    Taxonomy,
    block_for,
    encode_generalised,
    missing_error,
)
from kohort.tables.column_blocks import unseen_error
from kohort.tables.domain import (
    OTHER,
    ColumnDomain,
    Domain,
    category_text,
    item_lists,
    learn_domain,
    merge_domains,
    number_like,
)
from kohort.tables.schema import Schema

__all__ = ["ColumnDomain", "Domain", "Encoder", "Encoding", "Task", "Unseen", "learn_domain", "merge_domains"]

Task = Literal["classification", "regression"]
Unseen = Literal["other", "error"]
FloatName = Literal["float32", "float64"]


@dataclass(frozen=True)
class Encoder:
    """Encodes the inputs and the target of one resolved schema over one domain."""

    schema: Schema
    domain: Domain
    encoding: Encoding = "label"
    dtype: FloatName = "float32"
    class_weights: Mapping[str, float] | None = None
    """How much a row of each class counts in training, 1 where unsaid; public, as it is the same at every site."""
    impute: bool = False
    """Whether a missing number is the middle of its agreed bounds, and a missing category any of them."""
    unseen: Unseen = "other"
    """What a category outside the domain is in rows to predict: "other", with a count, or an error."""
    marks_unknown: bool = False
    """Whether such a category is not a number where nothing stands for it, instead of the mean of all; for models that
    know what to do with it. Not stored: each kind of model decides it."""

    def __post_init__(self) -> None:
        if self.encoding not in get_args(Encoding):
            raise ConfigError(f"unknown encoding {self.encoding!r}", hint=nearest(self.encoding, get_args(Encoding)))
        if self.dtype not in get_args(FloatName):
            raise ConfigError(f"unknown float type {self.dtype!r}", hint=nearest(self.dtype, get_args(FloatName)))
        absent = [name for name in self._needed if name not in self.domain.columns]
        if absent:
            raise ConfigError(f"the domain lacks columns: {', '.join(absent)}", hint="Learn it with this schema")
        if not self.schema.inputs:
            raise ConfigError("no column is left to learn from", hint="Give at least one column the role feature")
        if self.classes is not None and len(self.classes) < 2:
            hint = "Learning needs at least two classes: check the target column and the filters before it"
            count = "only one class" if self.classes else "no class"
            raise DataError(f"target {self.schema.target!r} has {count}", hint=hint)
        unknown = [name for name in self.class_weights or {} if name not in (self.classes or ())]
        if unknown:
            hint = nearest(unknown[0], self.classes) if self.classes else "The target is a number and has no classes"
            raise ConfigError(f"a class that does not exist has a weight: {unknown[0]!r}", hint=hint)

    @property
    def _needed(self) -> tuple[str, ...]:
        return self.schema.inputs if self.schema.target is None else (*self.schema.inputs, self.schema.target)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """One block of features an input column, in the order of the schema."""
        return tuple(
            block_for(name, self.schema.columns[name], self.domain.columns[name], self.encoding, impute=self.impute)
            for name in self.schema.inputs
        )

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of the array."""
        return tuple(feature for block in self.blocks for feature in block.features)

    @property
    def width(self) -> int:
        """How many features there are."""
        return len(self.feature_names)

    @cached_property
    def classes(self) -> tuple[str, ...] | None:
        """Classes in the order of their codes; None for regression or without a target.

        Text, booleans and declared categories are classes. Floats are numbers. Integers are classes up to 20 distinct
        values over all sites, else numbers, unless the schema declares the kind.
        """
        return None if self.schema.target is None else self.domain.columns[self.schema.target].categories

    @property
    def task(self) -> Task:
        """What is to be learned."""
        if self.schema.target is None:
            raise ConfigError("the schema has no target", hint="Name the column to predict: target = ...")
        return "regression" if self.classes is None else "classification"

    def transform(
        self,
        frame: pl.DataFrame,
        *,
        generalised: bool = False,
        hierarchies: Mapping[str, Taxonomy] | None = None,
    ) -> NDArray[np.floating]:
        """The inputs as numbers. With `generalised`, text columns may hold the cell forms of `kohort.tables.cells`."""
        known = set(frame.columns)
        absent = [name for name in self.schema.inputs if name not in known]
        if absent:
            hint = "The model was trained with them: add them to the table"
            raise DataError(f"the table lacks columns: {', '.join(absent)}", hint=hint)
        out = np.empty((frame.height, self.width), dtype=self.dtype)
        start = 0
        for block in self.blocks:
            stop = start + len(block.features)
            if generalised:
                encode_generalised(block, frame[block.name], out[:, start:stop], (hierarchies or {}).get(block.name))
            else:
                block.encode(frame[block.name], out[:, start:stop])
            start = stop
        return out

    def inputs(self, frame: pl.DataFrame) -> tuple[NDArray[np.floating], dict[str, int]]:
        """The inputs of rows to predict, which may hold categories that no training row had.

        Args:
            frame: Rows with all inputs.

        Returns:
            The inputs as numbers, and by column how many rows have a category outside the domain. Such a category is
            "other" where the column has that, else any of the column's, unless the encoder reads rows in another way.

        Raises:
            DataError: Columns are absent, cells cannot be read, or `unseen` is "error" and a category is outside the
                domain of a column that is not declared to have an "other".
        """
        known = set(frame.columns)
        absent = [name for name in self.schema.inputs if name not in known]
        if absent or type(self).transform is not Encoder.transform:
            return self.transform(frame), {}  # raises where columns are absent
        if self.unseen == "error":
            self._refuse_unseen(frame)
            return self.transform(frame), {}
        out = np.empty((frame.height, self.width), dtype=self.dtype)
        counts: dict[str, int] = {}
        start = 0
        for block in self.blocks:
            stop = start + len(block.features)
            column, part = frame[block.name], out[:, start:stop]
            if isinstance(block, NumberBlock):
                block.encode(column, part)
            else:
                _refuse_missing(block, column)
                unseen = block.encode_any(column, part, mark=self.marks_unknown)
                counts |= {block.name: unseen} if unseen else {}
            start = stop
        return out, counts

    def _refuse_unseen(self, frame: pl.DataFrame) -> None:
        """Rare categories of training rows have no name in a counted domain: to the model they are unseen, too."""
        for block in self.blocks:
            if isinstance(block, NumberBlock) or self.schema.columns[block.name].other:
                continue
            column = frame[block.name]
            _refuse_missing(block, column)
            unseen = block.encode_any(column, np.empty((frame.height, len(block.features)), dtype=self.dtype))
            if unseen:
                raise unseen_error(block.name, unseen)

    def has_other(self, name: str) -> bool:
        """Whether categories outside a column's domain are read as "other", declared or left by a count."""
        domain = self.domain.columns[name]
        counted = domain.counted and domain.categories is not None and OTHER in domain.categories
        return self.schema.columns[name].other or counted

    def target(self, frame: pl.DataFrame) -> NDArray[np.floating]:
        """The target of every row: the code of its class, or the number itself for regression."""
        name = self.schema.target
        if name is None:
            raise ConfigError("the schema has no target", hint="Name the column to predict: target = ...")
        if name not in frame.columns:
            raise DataError(f"the table lacks the target column {name!r}", hint=nearest(name, frame.columns))
        nulls = frame[name].null_count()
        if nulls:
            hint = 'Remove these rows or set missing = "drop": a row without a target cannot be learned from'
            raise DataError(f"target {name!r} is missing in {counted(nulls, 'row')}", hint=hint)
        if self.classes is None:
            bounds = self.domain.columns[name].bounds
            values = number_like(frame[name], bounds)
            if self.domain.columns[name].counted and bounds is not None:
                values = values.clip(*bounds)
            return values.to_numpy().astype(self.dtype)
        domain = ColumnDomain(kind="category", categories=self.classes)
        block = CategoryBlock(name=name, spec=self.schema.columns[name], domain=domain, encoding="label")
        return block.codes(frame[name]).astype(self.dtype)

    def within(self, frame: pl.DataFrame) -> NDArray[np.bool_]:
        """Which rows have no category outside the domain, as a mask; the others cannot be encoded.

        Args:
            frame: Rows with all inputs and the target.

        Returns:
            True for rows that can be encoded. Columns whose unknown values become "other" leave no row out.
        """
        return self._within(frame, (*self.schema.inputs, str(self.schema.target)))

    def predictable(self, frame: pl.DataFrame) -> NDArray[np.bool_]:
        """Which rows of a test table can be judged, as a mask: those whose class is in the domain.

        Args:
            frame: Rows with all inputs and the target.

        Returns:
            True for rows whose prediction can be compared; where inputs outside the domain cannot be read, as `within`,
            and without those that `unseen = "error"` refuses.
        """
        if type(self).transform is not Encoder.transform:
            return self.within(frame)
        if self.unseen == "error":
            return self._within(frame, (*self.schema.inputs, str(self.schema.target)), strict=True)
        return self.with_known_target(frame)

    def with_known_target(self, frame: pl.DataFrame) -> NDArray[np.bool_]:
        """Which rows have a class of the domain, as a mask."""
        return self._within(frame, (str(self.schema.target),))

    def _within(self, frame: pl.DataFrame, names: Iterable[str], *, strict: bool = False) -> NDArray[np.bool_]:
        usable = np.ones(frame.height, dtype=bool)
        for name in names:
            domain, spec = self.domain.columns[name], self.schema.columns[name]
            other = spec.other if strict else self.has_other(name) or domain.kind == "items"
            if domain.categories is None or other:
                continue
            if domain.kind == "items":
                usable &= _items_within(frame[name], domain.categories)
                continue
            text = category_text(frame[name])
            gaps = domain.missing or (self.impute and name != self.schema.target)
            known = text.is_in(list(domain.categories))  # of a null, null
            usable &= (known.fill_null(gaps) if known.null_count() else known).to_numpy()
        return usable

    def row_weights(self, target: NDArray[np.floating]) -> NDArray[np.floating] | None:
        """The weight of every row by the code of its class; None when all count alike."""
        if not self.class_weights:
            return None
        by_class = np.array([self.class_weights.get(name, 1.0) for name in self.classes or ()], dtype=self.dtype)
        return by_class[target.astype(np.int64)]

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values that `from_mapping` reads back: all that prediction needs, so no class weights."""
        return {
            "schema": self.schema.to_mapping(),
            "domain": self.domain.to_mapping(),
            "encoding": self.encoding,
            "dtype": self.dtype,
            **({"impute": True} if self.impute else {}),
            **({} if self.unseen == "other" else {"unseen": self.unseen}),
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Encoder:
        """The inverse of `to_mapping`."""
        try:
            parts = (mapping["schema"], mapping["domain"], mapping["encoding"], mapping["dtype"])
        except (KeyError, TypeError):
            raise ConfigError("this is not a stored encoder", hint="Use what Encoder.to_mapping gave") from None
        return cls(
            Schema.from_mapping(parts[0]),
            Domain.from_mapping(parts[1]),
            parts[2],
            parts[3],
            impute=bool(mapping.get("impute", False)),
            unseen=mapping.get("unseen", "other"),
        )


def _items_within(column: pl.Series, items: Iterable[str]) -> NDArray[np.bool_]:
    """Which rows have no item but these."""
    known = pl.element().is_null() | pl.element().is_in(list(items))
    return item_lists(column).list.eval(known).list.all().fill_null(value=True).to_numpy()


def _refuse_missing(block: CategoryBlock | ItemsBlock, column: pl.Series) -> None:
    nulls = column.null_count()
    if nulls and isinstance(block, CategoryBlock) and not (block.domain.missing or block.impute):
        raise missing_error(block.name, nulls)
