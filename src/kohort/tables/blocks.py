"""How one column becomes numbers between 0 and 1: a block of features a column.

Numbers and categories are in `column_blocks`; here are sets of items, and what chooses the block of a column.

Guarantees: those of `column_blocks`; the encodings of the items of a set add up, to 1 at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import DataError
from kohort.tables.cells import Cell, Label, format_cell, parse_cell
from kohort.tables.codes import CodeTree
from kohort.tables.column_blocks import (
    MISSING_MARK,
    CategoryBlock,
    Encoding,
    Floats,
    NumberBlock,
    Spread,
    Taxonomy,
    missing_error,
    unseen_error,
)
from kohort.tables.domain import OTHER, ColumnDomain, item_lists
from kohort.tables.schema import ColumnSpec

__all__ = [
    "Block",
    "CategoryBlock",
    "Encoding",
    "ItemsBlock",
    "NumberBlock",
    "Spread",
    "Taxonomy",
    "block_for",
    "encode_generalised",
    "missing_error",
]


@dataclass(frozen=True, kw_only=True)
class ItemsBlock:
    """A set of codes: one indicator an item, and one a label above it where the schema asks for ancestors.

    A missing set has no item, and an indicator where missing is known. A code outside the domain is any of the known
    codes below the lowest label that stands above it.
    """

    name: str
    spec: ColumnSpec
    domain: ColumnDomain

    @cached_property
    def one_item(self) -> OneItem:
        """How a single item of the set is encoded."""
        domain = ColumnDomain(kind="category", categories=self.domain.categories, counted=self.domain.counted)
        return OneItem(name=self.name, spec=self.spec, domain=domain, encoding="onehot")

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.one_item.features + ((self.name + MISSING_MARK,) if self.domain.missing else ())

    def encode(self, column: pl.Series, out: Floats) -> None:
        """Write the features of every row into `out`."""
        row, items = self._exploded(column, out)
        if self.spec.hierarchy is not None:
            self._add(row, items, out, self.one_item.plain_rows)
            return
        out[row, self.one_item.codes(items)] = 1

    def encode_any(self, column: pl.Series, out: Floats, *, mark: bool = False) -> int:
        """As `encode`; an item outside the domain becomes "other", or is left out where there is none.

        Args:
            column: The sets.
            out: Where the features go.
            mark: Not needed: a set without an item is known.

        Returns:
            How many rows have such an item.
        """
        del mark
        row, items = self._exploded(column, out)
        known = items.is_in(list(self.one_item.categories)).to_numpy()
        if self.spec.hierarchy is not None:
            self._add(row, items, out, self.one_item.plain_rows)
            return len(np.unique(row[~known]))
        keep = np.ones(len(row), dtype=bool) if self.one_item.keeps_other else known
        out[row[keep], self.one_item.codes(items.filter(pl.Series(keep)))] = 1
        return len(np.unique(row[~known]))

    def encode_generalised(self, column: pl.Series, out: Floats, hierarchy: Taxonomy | None) -> None:
        """As `encode`, for items that may be generalised: the encodings of the items add up, to 1 at most."""
        row, items = self._exploded(column, out)
        self._add(row, items, out, lambda cells: self._cell_shares(cells, items, hierarchy))

    def _cell_shares(self, cells: pl.Series, items: pl.Series, hierarchy: Taxonomy | None) -> NDArray[np.float64]:
        """The encoding of each distinct cell."""
        width = len(self.one_item.features)
        shares = np.zeros((len(cells), width))
        try:
            encode_generalised(self.one_item, cells, shares, hierarchy)
        except DataError:
            every = np.zeros((len(items), width))
            encode_generalised(self.one_item, items, every, hierarchy)  # raises with the count of all rows
            raise
        return shares

    def _add(
        self,
        row: NDArray[np.int64],
        items: pl.Series,
        out: Floats,
        shares_of: Callable[[pl.Series], NDArray[np.float64]],
    ) -> None:
        """Add up the encodings of the items of each row, to 1 at most."""
        labels = items.unique(maintain_order=True)
        if not len(labels):
            return
        shares = shares_of(labels)
        # Each label stands for few of many items: only those are added.
        label_of, item = np.nonzero(shares)
        held = np.bincount(label_of, minlength=len(labels))
        first = np.cumsum(held) - held
        place = items.cast(pl.Enum(labels)).to_physical().cast(pl.Int64).to_numpy()
        spread = held[place]
        within = np.arange(int(spread.sum())) - np.repeat(np.cumsum(spread) - spread, spread)
        chosen = np.repeat(first[place], spread) + within
        added = shares[label_of[chosen], item[chosen]].astype(out.dtype)
        np.add.at(out, (np.repeat(row, spread), item[chosen]), added)
        np.minimum(out, 1, out=out)

    def _exploded(self, column: pl.Series, out: Floats) -> tuple[NDArray[np.int64], pl.Series]:
        out[:] = 0
        if self.domain.missing:
            out[:, -1] = column.is_null().to_numpy()
        lists = item_lists(column).alias("item").to_frame().with_row_index("row")
        pairs = lists.explode("item").drop_nulls("item")
        return pairs["row"].cast(pl.Int64).to_numpy(), pairs["item"]


@dataclass(frozen=True, kw_only=True)
class OneItem(CategoryBlock):
    """A single item: an indicator of its own, and of the labels above it that stand for several known items."""

    @cached_property
    def tree(self) -> CodeTree | None:
        """What stands above the items."""
        return self.spec.tree(self.name)

    @cached_property
    def below(self) -> dict[str, tuple[int, ...]]:
        """The codes of the known items below each label; of labels for the same items, all have an entry."""
        found: dict[str, list[int]] = {}
        for code, item in enumerate(self.categories):
            if self.tree is not None and not (item == OTHER and self.keeps_other):
                for label in self.tree.chain(item):
                    found.setdefault(label, []).append(code)
        return {label: tuple(codes) for label, codes in found.items()}

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels that have an indicator: one for each set of several items, the lowest, and none for all."""
        if not self.spec.ancestors:
            return ()
        known = len(self.categories) - (OTHER in self.categories and self.keeps_other)
        chosen: dict[tuple[int, ...], str] = {}
        for label, codes in self.below.items():
            if 1 < len(codes) < known:
                chosen.setdefault(codes, label)
        return tuple(sorted(chosen.values()))

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        own = tuple(f"{self.name}={category}" for category in self.categories)
        return own + tuple(f"{self.name}={format_cell(Label(label))}" for label in self.labels)

    @cached_property
    def rows_of_codes(self) -> NDArray[np.float64]:
        """The encoding of every code, [size, features]."""
        above = np.zeros((self.size, len(self.labels)))
        for place, label in enumerate(self.labels):
            above[list(self.below[label]), place] = 1
        return np.hstack([np.eye(self.size), above])

    def plain_rows(self, items: pl.Series) -> NDArray[np.float64]:
        """The encoding of each of some items as they are; one outside the domain is any below its lowest label."""
        found = np.zeros((len(items), len(self.features)))
        for place, item in enumerate(items.to_list()):
            codes = self._codes_of_cell(item, None)
            if codes:
                found[place] = self.rows_of_codes[codes].mean(axis=0)
        return found

    def _codes_of_cell(self, cell: Cell | str | None, hierarchy: Taxonomy | None) -> list[int]:
        if self.tree is None:
            return super()._codes_of_cell(cell, hierarchy)
        if isinstance(cell, Label) and cell.text in self.below:
            return list(self.below[cell.text])
        if isinstance(cell, str) and cell not in self._code_of:
            label = self.tree.nearest(cell, self.below)
            return [] if label is None else list(self.below[label])
        return super()._codes_of_cell(cell, hierarchy)


Block: TypeAlias = CategoryBlock | NumberBlock | ItemsBlock


def block_for(name: str, spec: ColumnSpec, domain: ColumnDomain, encoding: Encoding, *, impute: bool = False) -> Block:
    """The block of one input column.

    Args:
        name: The column.
        spec: What the schema declares about it.
        domain: Its domain, whose kind decides the block.
        encoding: How a category becomes numbers.
        impute: Whether a missing value that the domain has no place for is filled in; sets of items have none.

    Returns:
        The block.
    """
    if domain.kind == "category":
        return CategoryBlock(name=name, spec=spec, domain=domain, encoding=encoding, impute=impute)
    if domain.kind == "number":
        return NumberBlock(name=name, spec=spec, domain=domain, impute=impute)
    return ItemsBlock(name=name, spec=spec, domain=domain)


def encode_generalised(block: Block, column: pl.Series, out: Floats, hierarchy: Taxonomy | None) -> None:
    """Encode a column of cell texts; each distinct text is parsed once.

    Args:
        block: The block of the column.
        column: Texts of cells (`kohort.tables.cells`), or plain values of another type.
        out: Where the encoding goes, [rows, features of the block].
        hierarchy: The hierarchy that labels come from; None where there are none.

    Raises:
        DataError: A cell cannot be read, is missing or outside the domain, or a label comes without its hierarchy.
    """
    if isinstance(block, ItemsBlock):
        block.encode_generalised(column, out, hierarchy)
        return
    if column.dtype != pl.String:
        block.encode(column, out)
        return
    texts = column.drop_nulls().unique(maintain_order=True)
    codes = column.cast(pl.Enum(texts)).to_physical().cast(pl.Int64).fill_null(len(texts)).to_numpy()
    rows = [block.encode_cell(_parsed(text, block.name), hierarchy) for text in (*texts, None)]
    unknown = np.array([row is None for row in rows])[codes]
    if unknown.any():
        nulls = column.null_count() if not block.domain.missing else 0
        count = int(unknown.sum())
        raise missing_error(block.name, nulls) if nulls == count else unseen_error(block.name, count - nulls)
    table = np.array([np.zeros(len(block.features)) if row is None else row for row in rows])
    out[:] = table.astype(out.dtype)[codes]


def _parsed(text: str | None, name: str) -> Cell | str | None:
    try:
        return parse_cell(text)
    except DataError as problem:
        raise DataError(f"column {name!r}: {problem.message}", hint=problem.hint) from None
