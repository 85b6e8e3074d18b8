"""What generalising items cost: normalised certainty penalty, and utility loss as in Choudhury et al. (2020), eqs 1-6.

- `item_loss`: mean over the item occurrences of the input of the share of the table's items that the released item
  stands for: 0 if it is released as itself, n / items of the input table if its cell stands for n of them, 1 if it was
  suppressed. It is to items what `ncp` is to categories. With weights the mean is weighted.
- `information_loss`: the same with log n / log(items of the input table): the share of the bits that tell one item from
  the others. Always above `item_loss`.
- `utility_loss` (UL, eqs 4-6): for a row the sum over its released items u of (2^|u| - 1) w(u), divided by 2^s - 1, s
  the sum of all |u|; for a table the mean over the rows. It looks at released items alone, and is not 0 for a row of
  several exact items. Computed in logarithms, so that long sets do not overflow.
- `weighted_ncp` (eqs 2-3): the weighted sum of the penalties of the quasi-identifiers.

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

from kohort.anonymity.measures_classes import as_frame, require_columns
from kohort.data.cells import Label, ValueSet, parse_cell
from kohort.data.hierarchy import Hierarchy
from kohort.data.table import ITEM_SEPARATOR
from kohort.errors import ConfigError, DataError

__all__ = ["ItemLoss", "item_losses", "log_utility_loss", "row_utility_loss", "value_penalty", "weighted_ncp"]

Integers = NDArray[np.int64]
LOG_2 = math.log(2.0)
FLAGS = 100_000_000


@dataclass(frozen=True, kw_only=True)
class ItemLoss:
    """Figures of one release; `added` counts released cells that stand for no item of their row."""

    occurrences: int
    suppressed: int
    added: int
    item_loss: float
    information_loss: float
    utility_loss: float


def value_penalty(size: float, domain: float) -> float:
    """Eq 1: share of a column's domain that a cell covers; 0 for a single value."""
    return 0.0 if size <= 1 or domain <= 0 else min(size / domain, 1.0)


def weighted_ncp(penalties: Mapping[str, float], weights: Mapping[str, float] | None = None) -> float:
    """Eqs 2 and 3: the weighted sum over the quasi-identifiers, of one row or of the means over all rows."""
    return sum((weights or {}).get(name, 1.0) * penalty for name, penalty in penalties.items())


def log_utility_loss(size: float, weight: float = 1.0) -> float:
    """Logarithm of eq 4, the utility loss of one generalised item; -inf for weight 0."""
    return _log_power(size) + math.log(weight) if weight > 0 and size > 0 else -math.inf


def row_utility_loss(sizes: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Eq 5 for the generalised items of one row; 0 for an empty set."""
    if not len(sizes):
        return 0.0
    logs = [log_utility_loss(size, 1.0 if weights is None else weights[i]) for i, size in enumerate(sizes)]
    largest = max(logs)
    if largest == -math.inf:
        return 0.0
    return math.exp(largest + math.log(sum(math.exp(one - largest) for one in logs)) - _log_power(sum(sizes)))


def item_losses(
    before: Any,
    after: Any,
    *,
    items: str | Sequence[str],
    kept: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    hierarchy: Hierarchy | None = None,
    weights: Mapping[str, float] | None = None,
) -> ItemLoss:
    """Losses of the items of a release; `kept` says which input row each released row is, `hierarchy` reads labels."""
    source, released = as_frame(before), as_frame(after)
    names = require_columns(source, [items] if isinstance(items, str) else items)
    rows = np.arange(released.height) if kept is None else np.asarray(kept, dtype=np.int64)
    if len(rows) != released.height or (kept is None and source.height != released.height):
        hint = "Say in kept which input row each released row is"
        raise DataError(f"{source.height:,} rows became {released.height:,}", hint=hint)
    had_row, had, domain = _pairs(source, names)
    cell_row, cells, texts = _pairs(released, names)
    cell_row = rows[cell_row]
    order = np.argsort(cell_row, kind="stable")
    cell_row, cells = cell_row[order], cells[order]
    sizes, members = _meanings(texts, domain, hierarchy)
    item_weights = np.array([(weights or {}).get(item, 1.0) for item in domain], dtype=np.float64)
    if ((item_weights < 0) | ~np.isfinite(item_weights)).any():
        raise ConfigError("an item weight is not between 0 and 1", hint="Use weights from 0 to 1")
    best, used = _smallest_cover(had_row, had, cell_row, cells, sizes, members, len(domain))
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


def _pairs(frame: pl.DataFrame, names: Sequence[str]) -> tuple[Integers, Integers, list[str]]:
    """Row and item code of every occurrence, each once a row, rows rising; and the items."""
    parts = [pl.DataFrame({"row": np.arange(frame.height), "item": _lists(frame[name])}) for name in names]
    found = pl.concat(parts).explode("item").drop_nulls("item").filter(pl.col("item") != "")
    known = found["item"].unique().sort()
    codes = found["item"].cast(pl.Enum(known)).to_physical().cast(pl.Int64).to_numpy()
    width = max(len(known), 1)
    keys = np.sort(found["row"].to_numpy() * width + codes)
    keys = keys[np.diff(keys, prepend=-1) != 0]
    row, item = np.divmod(keys, width)
    return row, item, known.to_list()


def _lists(column: pl.Series) -> pl.Series:
    if isinstance(column.dtype, pl.List):
        return column.cast(pl.List(pl.String))
    separator = ITEM_SEPARATOR if column.str.contains(ITEM_SEPARATOR, literal=True).any() else "|"
    return column.str.split(separator).list.eval(pl.element().str.strip_chars())


def _meanings(texts: list[str], domain: list[str], hierarchy: Hierarchy | None) -> tuple[Integers, Integers]:
    """How many items of the table each cell stands for, and all (cell, item) pairs as one sorted key each."""
    place = {item: code for code, item in enumerate(domain)}
    sizes, keys = np.zeros(len(texts), np.int64), []
    for number, text in enumerate(texts):
        # Most sets need no unescaping, and there may be many long ones.
        plain_set = text.startswith("{") and text.endswith("}") and "\\" not in text
        cell = ValueSet(tuple(text[1:-1].split(", "))) if plain_set else parse_cell(text)
        if isinstance(cell, ValueSet):
            inside = [place[value] for value in cell.values if value in place]
        elif isinstance(cell, Label):
            if hierarchy is None:
                raise ConfigError("items were released as labels", hint="Pass the hierarchy they come from")
            inside = [place[value] for value in hierarchy.leaves(cell.text) if value in place]
        else:
            inside = [place[cell]] if isinstance(cell, str) and cell in place else []
        sizes[number] = len(inside)
        keys.append(np.array(sorted(inside), dtype=np.int64) + number * max(len(domain), 1))
    return sizes, np.concatenate(keys) if keys else np.zeros(0, np.int64)


def _smallest_cover(
    had_row: Integers,
    had: Integers,
    cell_row: Integers,
    cells: Integers,
    sizes: Integers,
    members: Integers,
    width: int,
) -> tuple[Integers, int]:
    """Size of the smallest cell of its row that stands for each occurrence, 0 if none does; and how many cells do."""
    best = np.zeros(len(had), np.int64)
    if not len(cells) or not len(had):
        return best, 0
    ends = np.cumsum(np.bincount(cell_row, minlength=int(had_row[-1]) + 1))
    end = ends[had_row]
    begin = end - np.bincount(cell_row, minlength=int(had_row[-1]) + 1)[had_row]
    used = np.zeros(len(cells), dtype=np.bool_)
    for offset in range(int((end - begin).max(initial=0))):
        at = begin + offset
        there = np.flatnonzero(at < end)
        cell = cells[at[there]]
        key = cell * width + had[there]
        covers = _is_among(members, key, len(sizes) * width)
        hit, size = there[covers], sizes[cell[covers]]
        best[hit] = np.where(best[hit] == 0, size, np.minimum(best[hit], size))
        used[at[hit]] = True
    return best, int(used.sum())


def _is_among(members: Integers, keys: Integers, span: int) -> NDArray[np.bool_]:
    """Whether each key is one of the sorted members; all are below `span`."""
    if span <= FLAGS:
        flags = np.zeros(span, dtype=np.bool_)
        flags[members] = True
        return flags[keys]
    if not len(members):
        return np.zeros(len(keys), dtype=np.bool_)
    found: NDArray[np.bool_] = members[np.minimum(np.searchsorted(members, keys), len(members) - 1)] == keys
    return found


def _cell_weights(members: Integers, sizes: Integers, item_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """w(u): the mean weight of the items a cell stands for."""
    of_cell = np.repeat(np.arange(len(sizes)), sizes)
    total = np.bincount(of_cell, item_weights[members % max(len(item_weights), 1)], minlength=len(sizes))
    found: NDArray[np.float64] = total / np.maximum(sizes, 1)
    return found


def _utility_loss(row: Integers, cells: Integers, sizes: Integers, weights: NDArray[np.float64], rows: int) -> float:
    """Eq 6, in logarithms: every exponent below is at most 0."""
    if not len(cells):
        return 0.0
    size = np.maximum(sizes[cells], 1).astype(np.float64)
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    together = np.add.reduceat(size, starts)
    own = np.repeat(together, np.diff(starts, append=len(row)))
    ratio = np.exp((size - own) * LOG_2 + np.log1p(-np.exp2(-size)) - np.log1p(-np.exp2(-own)))
    return float((ratio * weights[cells]).sum()) / rows


def _log_power(size: float) -> float:
    """log(2^size - 1)."""
    return size * LOG_2 + math.log1p(-(2.0**-size))
