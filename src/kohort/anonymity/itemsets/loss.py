"""What generalising items cost: normalised certainty penalty, and utility loss as in Choudhury et al. (2020), eqs 4-6.

- `item_loss`: mean over the item occurrences of the input of the share of the table's items that the released item
  stands for: 0 if it is released as itself, n / items of the input table if its cell stands for n of them, 1 if it was
  suppressed. It is to items what `ncp` is to categories. With weights the mean is weighted.
- `information_loss`: the same with log n / log(items of the input table): the share of the bits that tell one item from
  the others. Always above `item_loss`.
- `utility_loss` (UL, eqs 4-6): for a row the sum over its released items u of (2^|u| - 1) w(u), divided by 2^s - 1, s
  the sum of all |u|; for a table the mean over the rows. It looks at released items alone, and is not 0 for a row of
  several exact items. Computed in logarithms, so that long sets do not overflow.

Guarantee: computed from the two tables; nothing an anonymiser says about itself is used. An item is covered if a cell
of its own row stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.classes import as_frame, require_columns, sorted_distinct
from kohort.anonymity.checker.items import item_sets
from kohort.anonymity.compiled import compiled
from kohort.errors import ConfigError, DataError
from kohort.tables.cells import Label, ValueSet, parse_cell
from kohort.tables.hierarchy import Hierarchy

__all__ = ["ItemLoss", "item_losses"]

Integers = NDArray[np.int64]
LOG_2 = math.log(2.0)


@dataclass(frozen=True, kw_only=True)
class ItemLoss:
    """Figures of one release; `added` counts released cells that stand for no item of their row."""

    occurrences: int
    suppressed: int
    added: int
    item_loss: float
    information_loss: float
    utility_loss: float


def item_losses(
    before: Any,
    after: Any,
    *,
    items: str | Sequence[str],
    kept: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    hierarchy: Hierarchy | None = None,
    weights: Mapping[str, float] | None = None,
) -> ItemLoss:
    """Losses of the items of a release.

    Args:
        before: The input table.
        after: The released table.
        items: Columns of item sets.
        kept: Input row of each released row; None: the two have the same rows.
        hierarchy: The hierarchy that item labels come from.
        weights: Weight of each item; 1 by default.

    Returns:
        The losses of all item occurrences of the input table, and how many were suppressed or added.

    Raises:
        DataError: The tables do not match, or a column is absent or holds no item sets.
        ConfigError: A weight is negative, or labels were released and no hierarchy is given.
    """
    source, released = as_frame(before), as_frame(after)
    names = require_columns(source, [items] if isinstance(items, str) else items)
    rows = np.arange(released.height) if kept is None else np.asarray(kept, dtype=np.int64)
    if len(rows) != released.height or (kept is None and source.height != released.height):
        hint = "Say in kept which input row each released row is"
        raise DataError(f"{source.height:,} rows became {released.height:,}", hint=hint)
    own_sets, shown = item_sets(source, names), item_sets(released, names)
    had_row, had, domain = own_sets.row_of, own_sets.items, own_sets.known.to_list()
    cell_row, cells = rows[shown.row_of], shown.items
    if kept is not None:
        order = np.argsort(cell_row, kind="stable")
        cell_row, cells = cell_row[order], cells[order]
    sizes, members = _meanings(shown.known, domain, hierarchy)
    item_weights = np.array([(weights or {}).get(item, 1.0) for item in domain], dtype=np.float64)
    if ((item_weights < 0) | ~np.isfinite(item_weights)).any():
        raise ConfigError("an item weight is not between 0 and 1", hint="Use weights from 0 to 1")
    cell_starts = np.concatenate(([0], np.cumsum(np.bincount(cell_row, minlength=source.height))))
    member_starts = np.concatenate(([0], np.cumsum(sizes)))
    best, used = smallest_cover(had_row, had, cell_starts, cells, member_starts, members)
    suppressed = best == 0
    share = np.where(suppressed, 1.0, np.where(best <= 1, 0.0, best / max(len(domain), 1)))
    bits = np.log(np.maximum(best, 1)) / math.log(max(len(domain), 2))
    own = item_weights[had]
    total = float(own.sum()) or 1.0
    return ItemLoss(
        occurrences=len(had),
        suppressed=int(suppressed.sum()),
        added=int(len(cells) - used),
        item_loss=float((own * share).sum()) / total,
        information_loss=float((own * np.where(suppressed, 1.0, bits)).sum()) / total,
        utility_loss=_utility_loss(cell_row, cells, sizes, _cell_weights(members, sizes, item_weights), source.height),
    )


def _meanings(texts: pl.Series, domain: list[str], hierarchy: Hierarchy | None) -> tuple[Integers, Integers]:
    """How many items of the table each cell stands for; and these items, rising, cell after cell."""
    width = max(len(domain), 1)
    cells = pl.DataFrame({"text": texts}).with_row_index("cell")
    text = pl.col("text")
    # Most sets need no unescaping, and there may be many long ones.
    is_plain_set = text.str.starts_with("{") & text.str.ends_with("}") & ~text.str.contains("\\", literal=True)
    sets = cells.filter(is_plain_set)
    inside = text.str.strip_prefix("{").str.strip_suffix("}").str.split(", ")
    within = sets.select(pl.col("cell").cast(pl.Int64), item=inside).explode("item")
    within = within.select("cell", item=pl.col("item").cast(pl.Enum(domain), strict=False)).drop_nulls("item")
    keys = [within["cell"].to_numpy() * width + within["item"].to_physical().cast(pl.Int64).to_numpy()]
    place = {item: code for code, item in enumerate(domain)}
    for number, other in cells.filter(~is_plain_set).iter_rows():
        found = [place[item] for item in _stands_for(other, hierarchy) if item in place]
        keys.append(np.array(found, dtype=np.int64) + number * width)
    of_cell, members = np.divmod(sorted_distinct(np.concatenate(keys)), width)
    return np.bincount(of_cell, minlength=len(texts)), members


def _stands_for(text: str, hierarchy: Hierarchy | None) -> Sequence[str | None]:
    """The values that a cell may be."""
    cell = parse_cell(text)
    if isinstance(cell, ValueSet):
        return cell.values
    if isinstance(cell, Label):
        if hierarchy is None:
            raise ConfigError("items were released as labels", hint="Pass the hierarchy they come from")
        return hierarchy.leaves(cell.text)
    return (cell,) if isinstance(cell, str) else ()


def _cell_weights(members: Integers, sizes: Integers, item_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """w(u): the mean weight of the items a cell stands for."""
    of_cell = np.repeat(np.arange(len(sizes)), sizes)
    total = np.bincount(of_cell, item_weights[members], minlength=len(sizes))
    found: NDArray[np.float64] = total / np.maximum(sizes, 1)
    return found


def _utility_loss(row: Integers, cells: Integers, sizes: Integers, weights: NDArray[np.float64], rows: int) -> float:
    """Eq 6, in logarithms: every exponent below is at most 0."""
    if not len(cells):
        return 0.0
    of_cell = np.maximum(sizes, 1).astype(np.float64)
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    of_row = np.add.reduceat(of_cell[cells], starts)
    lengths = np.diff(starts, append=len(row))
    ratio = np.exp(_log_powers(of_cell)[cells] - np.repeat(_log_powers(of_row), lengths))
    return float((ratio * weights[cells]).sum()) / rows


def _log_powers(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(2^size - 1) of each size."""
    found: NDArray[np.float64] = sizes * LOG_2 + np.log1p(-np.exp2(-sizes))
    return found


@compiled
def smallest_cover(
    row_of: Integers,
    items: Integers,
    cell_starts: Integers,
    cells: Integers,
    member_starts: Integers,
    members: Integers,
) -> tuple[Integers, int]:
    """Size of the smallest cell that stands for each item, 0 where none does; and how many cells stand for any.

    Row r has the cells `cells[cell_starts[r] : cell_starts[r + 1]]`; cell c stands for the items
    `members[member_starts[c] : member_starts[c + 1]]`, which rise. Exact: every cell of a row is looked at for every
    item of that row.
    """
    best = np.zeros(len(items), np.int64)
    used = np.zeros(len(cells), np.bool_)
    uses = 0
    for i in range(len(items)):
        for at in range(cell_starts[row_of[i]], cell_starts[row_of[i] + 1]):
            low, end = member_starts[cells[at]], member_starts[cells[at] + 1]
            size, high = end - low, end
            while low < high:
                middle = (low + high) // 2
                if members[middle] < items[i]:
                    low = middle + 1
                else:
                    high = middle
            if low < end and members[low] == items[i]:
                uses += 0 if used[at] else 1
                used[at] = True
                if best[i] == 0 or size < best[i]:
                    best[i] = size
    return best, uses
