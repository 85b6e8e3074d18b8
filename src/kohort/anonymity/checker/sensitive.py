"""What the classes of a table give away about one sensitive column.

Every function takes `ValueFrequencies`, the counts of each sensitive value in each class, and returns one number per
class; the table is as good as its worst class. p is a value's share in the class, q its share in the table; logarithms
are natural. Null is a value like any other.

    distinct_values   number of values in the class (Machanavajjhala et al., 2007)
    entropy_values    exp of the entropy of the class: equals n for n equally frequent values
    recursive_ratio   r_1 / (r_l + ... + r_m), counts in falling order; (c, l)-diversity holds if and only if it is < c
    emd               earth mover's distance from class to table (Li et al., 2007): for numbers the i-th and j-th of m
                      sorted values are |i - j| / (m - 1) apart, a null standing before the smallest number; for
                      other columns all values are equally far, which makes it the total variation distance
    kl                sum of p ln(p / q) over the values of the class
    top_share         share of the most frequent value: the alpha of (alpha, k)-anonymity (Wong et al., 2006)
    gain              largest (p - q) / q: the beta of basic beta-likeness (Cao and Karras, 2012)
    enhanced_gain     the same, infinite where some value's gain exceeds -ln q: the beta of enhanced beta-likeness
    log_ratio         largest |ln(p / q)| over the values of the table, infinite where one is absent from the class: the
                      delta of delta-disclosure privacy (Brickell and Shmatikov, 2008)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.combinations import ClassPart, ColumnValues
from kohort.errors import ConfigError, DataError

__all__ = [
    "TOLERANCE",
    "ValueFrequencies",
    "distinct_values",
    "emd",
    "enhanced_gain",
    "entropy_values",
    "gain",
    "kl",
    "log_ratio",
    "recursive_ratio",
    "spread",
    "top_share",
    "value_codes",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Sums of rounded shares may miss a bound they meet exactly; no two attainable values are this close.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class ValueFrequencies:
    """How often each value occurs in each class: one entry per value that does occur, by class, then by value."""

    value: Integers
    count: Integers
    first: Integers  # position of each class's first entry
    sizes: Integers  # what each class counts: its rows, or its pairs of a person and a value
    table: Integers  # rows, or persons, of each value in the whole table
    ordered: bool

    @cached_property
    def entries(self) -> Integers:
        """Number of entries of each class."""
        return np.diff(self.first, append=len(self.value))

    @cached_property
    def share(self) -> Floats:
        """p of each entry."""
        shares: Floats = self.count / np.repeat(self.sizes, self.entries)
        return shares

    @cached_property
    def table_share(self) -> Floats:
        """q of each entry."""
        shares: Floats = self.table[self.value] / self.table.sum()
        return shares


def value_codes(column: pl.Series) -> tuple[Integers, int]:
    """Number the values of a column by their order, null first.

    Args:
        column: The column, of one value per row.

    Returns:
        The number of each row's value, from 0 on, and how many distinct values there are; null is one of them.

    Raises:
        DataError: The column holds lists.
    """
    if isinstance(column.dtype, pl.List):
        raise DataError(f"column {column.name!r} holds lists", hint="A sensitive column has one value per row")
    missing = column.null_count() > 0
    known = column.drop_nulls().unique().sort()
    return _ranks(column, known, missing), len(known) + int(missing)


def _ranks(column: pl.Series, known: pl.Series, missing: bool) -> Integers:
    """The place of each value among the known ones, which rise; after null, where there is one."""
    if column.dtype == pl.Boolean:
        column, known = column.cast(pl.UInt8), known.cast(pl.UInt8)
    if column.dtype == pl.String:
        ranks = column.cast(pl.Enum(known)).to_physical().cast(pl.Int64)
    else:
        physical = column.to_physical()
        ranks = known.to_physical().search_sorted(physical.fill_null(strategy="zero")).cast(pl.Int64)
        ranks = pl.select(pl.when(column.is_not_null()).then(ranks)).to_series()
    return (ranks + int(missing)).fill_null(0).to_numpy().astype(np.int64)


def spread(part: ClassPart, name: str, values: ColumnValues) -> ValueFrequencies:
    """Count the values of a sensitive column in each class. Numbers are ordered, everything else is not.

    Args:
        part: Classes by their combinations. Where it names persons, a person counts once per value in each class.
        name: The sensitive column.
        values: Its values in the whole table, with the rows or persons that have each.

    Returns:
        The counts.
    """
    column = part.sensitive[name]
    distinct = len(values.counts)
    where = part.classes.of_row * distinct + _ranks(column, values.known, values.missing)
    if part.persons is None:
        keys, weights = where[part.order], part.rows[part.order]
        order = np.argsort(keys, kind="stable")  # which is fast where, as here, most is in order
        keys, weights = keys[order], weights[order]
    else:
        keys = np.sort(pl.DataFrame({"where": where, "who": part.persons}).unique()["where"].to_numpy())
        weights = np.ones(len(keys), np.int64)
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    count = np.add.reduceat(weights, starts)
    of_class, value = np.divmod(keys[starts], distinct)
    return ValueFrequencies(
        value=value,
        count=count,
        first=np.searchsorted(of_class, np.arange(part.classes.count)).astype(np.int64),
        sizes=np.bincount(of_class, weights=count, minlength=part.classes.count).astype(np.int64),
        table=values.counts,
        ordered=column.dtype.is_numeric(),
    )


def distinct_values(found: ValueFrequencies) -> Integers:
    """Number of distinct sensitive values in each class.

    Args:
        found: The counts of each value in each class.

    Returns:
        One number per class, 1 or more.
    """
    return found.entries


def entropy_values(found: ValueFrequencies) -> Floats:
    """exp(entropy) of each class: n where n values are equally frequent.

    Args:
        found: The counts of each value in each class.

    Returns:
        One number per class, 1 or more.
    """
    p = found.share
    values: Floats = np.exp(-np.add.reduceat(p * np.log(p), found.first))
    return values


def recursive_ratio(found: ValueFrequencies, *, l: int) -> Floats:  # noqa: E741 - the papers call it l
    """r_1 / (r_l + ... + r_m) of each class; infinite for a class with fewer than l values.

    Args:
        found: The counts of each value in each class.
        l: The l of the formula above.

    Returns:
        One ratio per class; recursive (c, l)-diversity holds for every c above all of them.

    Raises:
        ConfigError: l is below 1.
    """
    if l < 1:
        raise ConfigError(f"recursive diversity needs l of at least 1, not {l}", hint="Use 2 or more")
    entries = found.entries
    of_entry = np.repeat(np.arange(len(entries)), entries)
    falling = found.count[np.lexsort((-found.count, of_entry))]
    rank = np.arange(len(falling)) - np.repeat(found.first, entries)
    tail = np.add.reduceat(np.where(rank >= l - 1, falling, 0), found.first)
    top = falling[found.first].astype(np.float64)
    ratio: Floats = np.divide(top, tail, out=np.full(len(tail), np.inf), where=tail > 0)
    return ratio


def emd(found: ValueFrequencies) -> Floats:
    """Earth mover's distance of each class from the table.

    Args:
        found: The counts of each value in each class.

    Returns:
        One distance per class, from 0 to 1: over the order of the values for numbers, the total variation for all
        others.
    """
    return _ordered_distance(found) if found.ordered else _total_variation(found)


def kl(found: ValueFrequencies) -> Floats:
    """KL(class || table) in nats.

    Args:
        found: The counts of each value in each class.

    Returns:
        One divergence per class, 0 or more.
    """
    p = found.share
    divergence = np.add.reduceat(p * np.log(p / found.table_share), found.first)
    # The divergence cannot be negative; rounding can make a zero so.
    return np.maximum(divergence, 0.0)


def top_share(found: ValueFrequencies) -> Floats:
    """Share of the most frequent value of each class.

    Args:
        found: The counts of each value in each class.

    Returns:
        One share per class, above 0 and up to 1.
    """
    return np.maximum.reduceat(found.share, found.first)


def gain(found: ValueFrequencies) -> Floats:
    """Largest (p - q) / q of each class; 0 where no value is more frequent than in the table.

    Args:
        found: The counts of each value in each class.

    Returns:
        One gain per class, 0 or more.
    """
    return np.maximum.reduceat(_gains(found), found.first)


def enhanced_gain(found: ValueFrequencies) -> Floats:
    """`gain`, but infinite where the gain of some value exceeds -ln q: then no beta is large enough.

    Args:
        found: The counts of each value in each class.

    Returns:
        One gain per class, 0 or more.
    """
    gains = _gains(found)
    broken = gains > -np.log(found.table_share) + TOLERANCE
    return np.maximum.reduceat(np.where(broken, np.inf, gains), found.first)


def log_ratio(found: ValueFrequencies) -> Floats:
    """Largest |ln(p / q)| of each class.

    Args:
        found: The counts of each value in each class.

    Returns:
        One number per class; infinite where a value of the table does not occur in the class.
    """
    ratios = np.maximum.reduceat(np.abs(np.log(found.share / found.table_share)), found.first)
    return np.where(found.entries < len(found.table), np.inf, ratios)


def _gains(found: ValueFrequencies) -> Floats:
    q = found.table_share
    return np.maximum((found.share - q) / q, 0.0)


def _total_variation(found: ValueFrequencies) -> Floats:
    # Only values of the class can have p > q, and what they gain the others lose.
    return np.add.reduceat(np.maximum(found.share - found.table_share, 0.0), found.first)


def _ordered_distance(found: ValueFrequencies) -> Floats:
    """Area between the two cumulative distributions.

    A class's distribution is constant between its own values and the table's rises, so on each such stretch the two
    cross at most once: a binary search and prefix sums give the area without visiting every value of the table.
    """
    distinct = len(found.table)
    if distinct == 1:
        return np.zeros(len(found.sizes))
    cumulative = np.cumsum(found.table) / found.table.sum()
    below = np.concatenate(([0.0], np.cumsum(cumulative)))  # below[i]: sum of the table's distribution before value i
    running = np.cumsum(found.count)
    reached = running - np.repeat(running[found.first] - found.count[found.first], found.entries)
    level = reached / np.repeat(found.sizes, found.entries)
    start = found.value
    end = np.append(start[1:], distinct)
    last = np.append(found.first[1:], len(start)) - 1
    end[last] = distinct
    crossing = np.clip(np.searchsorted(cumulative, level), start, end)
    over = level * (crossing - start) - (below[crossing] - below[start])
    under = (below[end] - below[crossing]) - level * (end - crossing)
    before_first = below[start[found.first]]
    area: Floats = before_first + np.add.reduceat(over + under, found.first)
    return np.maximum(area / (distinct - 1), 0.0)
