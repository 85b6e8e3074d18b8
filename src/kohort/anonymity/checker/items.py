"""k^m-anonymity of a column of item sets (Terrovitis et al., 2008; with classes: Poulis et al., 2013).

`km` is the smallest number of rows an attacker is left with who knows a row's class and up to m of its items: the
minimum, over every row and every combination of 0 to m items of that row, of the rows of the class that hold the
combination. Knowing no item leaves the class, so `km` is never above k.

Guarantee: exact. Every combination that occurs is counted; the work stops early only when the answer is 1, below which
nothing can fall. Memory is bounded by a batch of combinations, or by the table's item occurrences if there are more.
Where a column says who a row is about, "rows" above reads "persons": a person counts once, in however many rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.classes import Classes, sorted_distinct
from kohort.errors import ConfigError, DataError
from kohort.tables.frames import ITEM_SEPARATOR

__all__ = ["ITEM_SEPARATORS", "item_sets", "smallest_class", "smallest_support"]

Integers = NDArray[np.int64]

ITEM_SEPARATORS = (ITEM_SEPARATOR, "|")
BATCH = 1 << 23
COUNTERS = 1 << 20
LARGEST_KEY = 1 << 62


@dataclass(frozen=True)
class ItemSets:
    """The distinct items of each row as rising codes into `known`; row r holds items[ends[r - 1]:ends[r]]."""

    items: Integers
    ends: Integers
    row_of: Integers
    known: pl.Series

    @property
    def distinct(self) -> int:
        """Number of items of the table; at least 1, so that a row and an item code can share one key."""
        return max(len(self.known), 1)


@dataclass(frozen=True)
class _Prefixes:
    """Combinations of one size, one entry per row that holds one: the combination's number and where its last item is.

    Entries of one combination stand together, and combinations are numbered in that order.
    """

    number: Integers
    position: Integers


def item_sets(frame: pl.DataFrame, columns: Sequence[str]) -> ItemSets:
    """The union of the item columns of each row. Missing and empty items are no items.

    A list holds items; a text holds items with `;` between them, or `|` if no text of the column has a `;`.

    Args:
        frame: The table.
        columns: Names of the columns that hold items.

    Returns:
        The distinct items of each row, over all these columns together.

    Raises:
        DataError: A column holds neither lists nor texts.
    """
    pairs = pl.concat([_exploded(frame[name]) for name in columns]).drop_nulls("item").filter(pl.col("item") != "")
    # Cells of many items are long texts: each is looked up once.
    holders = pairs.group_by("item", maintain_order=True).agg("row")
    codes = np.repeat(np.arange(holders.height), holders["row"].list.len().to_numpy())
    rows = holders["row"].explode(empty_as_null=False).to_numpy().astype(np.int64)
    distinct = max(holders.height, 1)
    row_of, items = np.divmod(sorted_distinct(rows * distinct + codes), distinct)
    ends = np.cumsum(np.bincount(row_of, minlength=frame.height))
    return ItemSets(items, ends.astype(np.int64), row_of, holders["item"])


def smallest_class(classes: Classes, persons: Integers) -> int:
    """The smallest number of persons in a class.

    Args:
        classes: The class of each row.
        persons: Code of the person each row is about.

    Returns:
        The number of distinct persons in the class that has fewest.
    """
    return _smallest_count(classes.of_row, persons)


def smallest_support(classes: Classes, sets: ItemSets, *, m: int, persons: Integers | None = None) -> int:
    """The smallest number of rows, or of persons, that share a class and a combination of at most `m` items.

    Args:
        classes: The class of each row.
        sets: The items of each row.
        m: Most items of a combination.
        persons: Code of the person each row is about; None counts rows.

    Returns:
        The number; that of the smallest class where no row has an item.

    Raises:
        ConfigError: m is below 1.
    """
    if m < 1:
        raise ConfigError(f"m is {m}", hint="Use m = 1, 2 or 3: how many items an attacker may know")
    best = int(classes.sizes.min()) if persons is None else smallest_class(classes, persons)
    if not len(sets.items):
        return best
    holder = None if persons is None else persons[sets.row_of]
    single = _numbered(classes.of_row[sets.row_of] * sets.distinct + sets.items, np.arange(len(sets.items)))
    return _descend(single, sets, m - 1, min(best, _smallest_number(single, holder)), holder)


def _descend(prefixes: _Prefixes, sets: ItemSets, more: int, best: int, holder: Integers | None) -> int:
    """The smaller of `best` and the smallest support of a combination with 1 to `more` later items of a row."""
    if more == 0:
        return best
    for batch in _batches(prefixes, sets):
        if best == 1:
            return best
        keys, position = _extensions(batch, sets)
        if not len(keys):
            continue
        if more == 1:
            best = min(best, _smallest_count(keys, None if holder is None else holder[position]))
        else:
            longer = _numbered(keys, position)
            best = _descend(longer, sets, more - 1, min(best, _smallest_number(longer, holder)), holder)
    return best


def _smallest_number(prefixes: _Prefixes, holder: Integers | None) -> int:
    if holder is None:
        return int(np.bincount(prefixes.number).min())
    return _smallest_count(prefixes.number, holder[prefixes.position])


def _extensions(prefixes: _Prefixes, sets: ItemSets) -> tuple[Integers, Integers]:
    """Every combination with one more item, each later item of the same row in turn: its key, and where the item is."""
    following = _followers(prefixes, sets)
    ends = np.cumsum(following)
    position = np.arange(int(ends[-1])) + np.repeat(prefixes.position + 1 - ends + following, following)
    return np.repeat(prefixes.number, following) * sets.distinct + sets.items[position], position


def _smallest_count(keys: Integers, persons: Integers | None = None) -> int:
    """How often the rarest key occurs, or with how many persons: by counters where the keys are dense, else sorted."""
    if persons is not None:
        order = np.lexsort((persons, keys))
        ordered_keys, ordered_persons = keys[order], persons[order]
        new = np.diff(ordered_keys, prepend=ordered_keys[:1] - 1) != 0
        new |= np.diff(ordered_persons, prepend=ordered_persons[:1] - 1) != 0
        keys = ordered_keys[new]
    if int(keys.max()) < len(keys) + COUNTERS:
        counts = np.bincount(keys)
        return int(counts[counts > 0].min())
    ordered = np.sort(keys)
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    return int(np.diff(starts, append=len(ordered)).min())


def _followers(prefixes: _Prefixes, sets: ItemSets) -> Integers:
    return sets.ends[sets.row_of[prefixes.position]] - prefixes.position - 1


def _batches(prefixes: _Prefixes, sets: ItemSets) -> Iterator[_Prefixes]:
    """Cut between combinations, so that each batch extends to about BATCH entries."""
    work = np.cumsum(_followers(prefixes, sets))
    starts = np.flatnonzero(np.diff(prefixes.number, prepend=-1))
    done, start = 0, 0
    while start < len(work):
        fits = int(np.searchsorted(work, done + BATCH, side="right"))
        at = int(np.searchsorted(starts, fits, side="right")) - 1
        end = int(starts[at])
        if end <= start:
            later = int(np.searchsorted(starts, start, side="right"))
            end = int(starts[later]) if later < len(starts) else len(work)
        if fits == len(work):
            end = len(work)
        number = prefixes.number[start:end]
        yield _Prefixes(number - number[0], prefixes.position[start:end])
        done, start = int(work[end - 1]), end


def _numbered(keys: Integers, position: Integers) -> _Prefixes:
    if int(keys.max(initial=0)) < LARGEST_KEY // len(keys):
        # One key for both: a plain sort is several times faster than a sort of places.
        ordered, order = np.divmod(np.sort(keys * len(keys) + np.arange(len(keys))), len(keys))
    else:
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
    number = np.cumsum(np.diff(ordered, prepend=ordered[:1]) != 0)
    return _Prefixes(number.astype(np.int64), position[order])


def _exploded(column: pl.Series) -> pl.DataFrame:
    if isinstance(column.dtype, pl.List):
        lists = column.cast(pl.List(pl.String))
    elif column.dtype == pl.String:
        usual, other = ITEM_SEPARATORS
        separator = usual if column.str.contains(usual, literal=True).any() else other
        lists = column.str.split(separator).list.eval(pl.element().str.strip_chars())
    else:
        hint = "An items column holds lists, or texts with ; or | between items"
        raise DataError(f"column {column.name!r} of type {column.dtype} holds no item sets", hint=hint)
    return pl.DataFrame({"item": lists}).with_row_index("row").explode("item")
