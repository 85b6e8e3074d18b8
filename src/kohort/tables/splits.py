"""Spread one table over sites, to simulate a federation.

Guarantees: every row belongs to one site; every site has at least `min_rows` rows or the split is refused; what had to
be moved or merged to reach that is said in `notes`; the same generator state gives the same split; no step loops over
rows or sites in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.domain import category_text, number

__all__ = [
    "Assignment",
    "assign_sites",
    "assignment_of_parts",
    "below_rule",
    "hold_out",
    "mark_low_risk",
    "rows_below",
]

SPLITS = ("iid", "interval:COLUMN", "width:COLUMN", "column:NAME", "dirichlet", "sorted")
MAX_CLASSES = 20
TARGET_QUANTILES = 10
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which site, cluster and risk part each row belongs to."""

    site: Integers
    names: tuple[str, ...]
    cluster: Integers | None = None
    low_risk: NDArray[np.bool_] | None = None
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> Integers:
        """Rows of each site."""
        return np.bincount(self.site, minlength=len(self.names))

    def rows(self) -> list[Integers]:
        """Row numbers of each site, in table order."""
        order = np.argsort(self.site, kind="stable")
        return np.split(order, np.cumsum(self.sizes)[:-1])


@dataclass(frozen=True, kw_only=True)
class _Order:
    """What a caller asked for, checked once."""

    kind: str
    column: str
    count: int
    target: str | None
    clusters: int | str | None
    alphas: tuple[float, float, float]
    min_rows: int


def assign_sites(
    frame: pl.DataFrame,
    *,
    split: str,
    count: int,
    generator: np.random.Generator,
    target: str | None = None,
    clusters: int | str | None = None,
    alpha: float | Sequence[float] = 0.5,
    low_risk: float | str | None = None,
    min_rows: int = 1,
) -> Assignment:
    """Give every row of `frame` a site.

    `split`: "iid" (shuffled, equal parts), "interval:COLUMN" (intervals of the column with about equal rows),
    "width:COLUMN" (intervals of equal width), "column:NAME" (one
    site a value), "dirichlet" (each class is spread by a Dirichlet draw: over clusters, then over the sites of each
    cluster), "sorted" (by target, then equal parts). With `clusters` a number, `count` is the sites of a cluster; with
    "column:NAME" or "labels" each value of that column, or of the target, is a cluster of `count` sites. `alpha` is one
    number, or those of [cluster, site, risk]. `low_risk` marks that share of each site's rows, skewed over the classes
    by the risk alpha when three are given, at random otherwise; "below:COLUMN:NUMBER" marks the rows below a number.
    """
    kind, _, column = split.partition(":")
    order = _Order(
        kind=kind,
        column=column,
        count=count,
        target=target,
        clusters=clusters,
        alphas=_alphas(alpha),
        min_rows=min_rows,
    )
    _check_order(frame, order)
    if isinstance(clusters, str):
        found = _in_natural_clusters(frame, order, clusters, generator)
    else:
        found = _split_rows(frame, order, clusters, generator)
    return mark_low_risk(found, frame, low_risk, target=target, alpha=alpha, generator=generator)


def mark_low_risk(
    found: Assignment,
    frame: pl.DataFrame,
    low_risk: float | str | None,
    *,
    target: str | None,
    alpha: float | Sequence[float],
    generator: np.random.Generator,
) -> Assignment:
    """Tell which rows of `frame` carry a low risk, as `assign_sites` says it."""
    if low_risk is None:
        return found
    if isinstance(low_risk, str):
        return replace(found, low_risk=_below(frame, low_risk))
    if not 0 <= low_risk <= 1:
        raise ConfigError(f"low_risk = {low_risk} is not a share", hint="Use a number from 0 to 1")
    if isinstance(alpha, (int, float)) or len(alpha) < 3:
        weights = np.ones(frame.height)
    else:
        weights = _risk_weights(found, _classes(frame, target), low_risk, _alphas(alpha)[2], generator)
    return replace(found, low_risk=_low_risk(found, weights, low_risk, generator))


def assignment_of_parts(lengths: Sequence[int], names: Sequence[str]) -> Assignment:
    """The assignment of tables that come one a site and are stacked in this order."""
    if len(lengths) != len(names) or len(set(names)) != len(names):
        raise ConfigError("each site needs one table and a name of its own", hint="Give different names")
    empty = [name for name, length in zip(names, lengths, strict=True) if length < 1]
    if empty:
        raise DataError(f"sites without rows: {', '.join(empty)}", hint="Give each site at least one row")
    return Assignment(site=np.repeat(np.arange(len(lengths)), lengths), names=tuple(names))


def hold_out(n: int, share: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    """A mask with round(share * n) rows, chosen at random, to test on; both parts keep a row when share is not 0."""
    if not 0 <= share < 1:
        raise ConfigError(f"a held-out share of {share} is not a share", hint="Use a number from 0 up to, not with, 1")
    mask = np.zeros(n, dtype=bool)
    if share == 0:
        return mask
    if n < 2:
        raise DataError(f"{n} row(s) cannot be split into training and test", hint="Give more rows, or test = 0")
    held = min(max(round(share * n), 1), n - 1)
    mask[generator.permutation(n)[:held]] = True
    return mask


def _check_order(frame: pl.DataFrame, order: _Order) -> None:
    takes_column = order.kind in ("interval", "width", "column")
    known = order.kind in ("iid", "interval", "width", "column", "dirichlet", "sorted")
    if not known or takes_column != bool(order.column):
        given = f"{order.kind}:{order.column}" if order.column else order.kind
        raise ConfigError(f"unknown split {given!r}", hint=nearest(given, SPLITS))
    if takes_column and order.column not in frame.columns:
        hint = nearest(order.column, frame.columns)
        raise DataError(f"the table has no column {order.column!r} to split by", hint=hint)
    smallest_cluster = order.clusters if isinstance(order.clusters, int) else 1
    if min(order.count, order.min_rows, smallest_cluster) < 1:
        raise ConfigError("count, clusters and min_rows must be at least 1", hint="Correct [sites]")
    if isinstance(order.clusters, str) and order.clusters != "labels" and not order.clusters.startswith("column:"):
        hint = 'Use a number, "column:NAME" or "labels"'
        raise ConfigError(f"unknown clusters {order.clusters!r}", hint=hint)


def _alphas(alpha: float | Sequence[float]) -> tuple[float, float, float]:
    values = [float(alpha)] * 3 if isinstance(alpha, (int, float)) else [float(value) for value in alpha]
    if not 1 <= len(values) <= 3 or not all(np.isfinite(value) and value > 0 for value in values):
        hint = "Give one positive number, or those of [cluster, site, risk]"
        raise ConfigError("alpha is not a list of one to three positive numbers", hint=hint)
    values += [values[-1]] * (3 - len(values))
    return values[0], values[1], values[2]


def _enough_rows(rows: int, sites: int, min_rows: int, where: str = "") -> None:
    if rows < sites * min_rows:
        least = f" of at least {min_rows:,} rows" if min_rows > 1 else ""
        hint = "Use fewer sites or a smaller min_rows"
        raise DataError(f"{rows:,} rows{where} are too few for {sites:,} sites{least}", hint=hint)


def _numbered(prefix: str, count: int) -> list[str]:
    digits = max(2, len(str(count)))
    return [f"{prefix}{index:0{digits}d}" for index in range(1, count + 1)]


def _split_rows(frame: pl.DataFrame, order: _Order, clusters: int | None, generator: np.random.Generator) -> Assignment:
    if order.kind == "column":
        return _group(_by_column(frame, order.column, order.min_rows), clusters)
    groups = clusters or 1
    sites = groups * order.count
    _enough_rows(frame.height, sites, order.min_rows)
    if order.kind in ("interval", "width"):
        found = _by_interval(frame, order.column, sites, order.min_rows, equal_widths=order.kind == "width")
        return _group(found, clusters)
    names = _numbered("site-", sites)
    if clusters is not None:
        tails = _numbered("-site-", order.count)
        names = [head + tail for head in _numbered("cluster-", clusters) for tail in tails]
    notes: tuple[str, ...] = ()
    if order.kind == "dirichlet":
        classes = _classes(frame, order.target)
        site = _spread(np.zeros(frame.height, dtype=np.int64), classes, groups, order.alphas[0], generator)
        site = _spread(site, classes, order.count, order.alphas[1], generator)
        site, notes = _raise_to_minimum(site, sites, order.min_rows, generator)
    else:
        # Equal parts of a random order, or of the rows in the order of the target.
        rows = generator.permutation(frame.height)
        if order.kind == "sorted":
            rows = rows[np.argsort(_codes(frame, order.target)[rows], kind="stable")]
        site = np.empty(frame.height, dtype=np.int64)
        site[rows] = np.arange(frame.height) * sites // frame.height
    return _group(Assignment(site=site, names=tuple(names), notes=notes), clusters)


def _group(found: Assignment, clusters: int | None) -> Assignment:
    """Neighbouring sites form clusters of equal size, as far as their number allows."""
    if clusters is None:
        return found
    sites = len(found.names)
    return replace(found, cluster=np.arange(sites) * clusters // sites)


def _in_natural_clusters(
    frame: pl.DataFrame, order: _Order, clusters: str, generator: np.random.Generator
) -> Assignment:
    """One cluster a value of a column; its rows are split on their own, so no row leaves its cluster."""
    column = _need_target(frame, order.target) if clusters == "labels" else clusters.removeprefix("column:")
    if column not in frame.columns:
        raise DataError(f"the table has no column {column!r} to cluster by", hint=nearest(column, frame.columns))
    labels, codes = _values(frame[column])
    site = np.empty(frame.height, dtype=np.int64)
    names: list[str] = []
    cluster: list[int] = []
    notes: list[str] = []
    for code, label in enumerate(labels):
        rows = np.flatnonzero(codes == code)
        where = f" of cluster {code + 1} of {len(labels)} by {column!r}"
        if order.kind != "column":
            _enough_rows(len(rows), order.count, order.min_rows, where)
        part = _split_rows(frame[rows], order, None, generator)
        site[rows] = part.site + len(names)
        names += [f"{column}={label} {name}" for name in part.names]
        cluster += [code] * len(part.names)
        notes += [f"{column}={label}: {note}" for note in part.notes]
    return Assignment(site=site, names=tuple(names), cluster=np.array(cluster), notes=tuple(notes))


def _by_interval(frame: pl.DataFrame, column: str, sites: int, min_rows: int, *, equal_widths: bool) -> Assignment:
    _refuse_nulls(frame[column])
    if not frame[column].dtype.is_numeric():
        hint = f'Use "column:{column}" for one site a value'
        raise ConfigError(f"column {column!r} is not a number and has no intervals", hint=hint)
    values = number(frame[column]).to_numpy()
    cuts = np.linspace(0.0, 1.0, sites + 1)
    low, high = float(values.min()), float(values.max())
    # Quantiles are values that occur, so equal values always share a site.
    edges = low + (high - low) * cuts if equal_widths else np.quantile(values, cuts, method="higher").astype(float)
    interval = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, sites - 1)
    sizes = np.bincount(interval, minlength=sites)
    # An interval that is too small joins the next one; what is left over at the end joins the last site.
    starts, gathered = [0], 0
    for index in range(sites - 1):
        gathered += int(sizes[index])
        if gathered >= min_rows:
            starts.append(index + 1)
            gathered = 0
    if len(starts) > 1 and gathered + sizes[-1] < min_rows:
        starts.pop()
    merged = np.searchsorted(np.array(starts), np.arange(sites), side="right") - 1
    ends = [*starts[1:], sites]
    whole = frame[column].dtype.is_integer()
    names = [
        _interval_name(column, edges[first], edges[last], whole=whole, is_last=last == sites)
        for first, last in zip(starts, ends, strict=True)
    ]
    joined = sites - len(starts)
    notes = (f"{joined} interval(s) of {column} had fewer than {min_rows} row(s) and joined a neighbour",)
    return Assignment(site=merged[interval], names=tuple(names), notes=notes if joined else ())


def _interval_name(column: str, low: float, high: float, *, whole: bool, is_last: bool) -> str:
    if not whole:
        return f"{column} {low:.6g}-{high:.6g}"
    last = int(np.floor(high)) if is_last else int(np.ceil(high)) - 1
    return f"{column} {int(np.ceil(low))}-{last}"


def _by_column(frame: pl.DataFrame, column: str, min_rows: int) -> Assignment:
    labels, codes = _values(frame[column])
    sizes = np.bincount(codes, minlength=len(labels))
    small = int((sizes < min_rows).sum())
    if small:
        hint = "Lower min_rows, or leave those rows out"
        raise DataError(f"{small:,} of {len(labels):,} values of {column!r} have fewer than {min_rows} rows", hint=hint)
    return Assignment(site=codes, names=tuple(f"{column}={label}" for label in labels))


def _values(column: pl.Series) -> tuple[list[str], Integers]:
    """The distinct values of a natural column, in their own order, and the code of every row."""
    _refuse_nulls(column)
    codes = column.rank("dense").cast(pl.Int64).to_numpy() - 1
    labels = category_text(column.unique().sort()).to_list()
    return labels, codes


def _refuse_nulls(column: pl.Series) -> None:
    if column.null_count():
        hint = 'Set missing = "drop", or split by a complete column'
        raise DataError(f"column {column.name!r} is missing in {column.null_count():,} rows", hint=hint)


def _need_target(frame: pl.DataFrame, target: str | None) -> str:
    if target is None:
        raise ConfigError("this split needs a target", hint="Name the column to predict: target = ...")
    if target not in frame.columns:
        raise DataError(f"the table has no target column {target!r}", hint=nearest(target, frame.columns))
    return target


def _codes(frame: pl.DataFrame, target: str | None) -> Integers:
    column = frame[_need_target(frame, target)]
    _refuse_nulls(column)
    codes: Integers = column.rank("dense").cast(pl.Int64).to_numpy() - 1
    return codes


def _classes(frame: pl.DataFrame, target: str | None) -> Integers:
    """Class of every row; a number with many values counts by its tenth of the rows."""
    codes = _codes(frame, target)
    if codes.max() < MAX_CLASSES or not frame[_need_target(frame, target)].dtype.is_numeric():
        return codes
    cuts = np.quantile(codes, np.linspace(0, 1, TARGET_QUANTILES + 1)[1:-1])
    return np.searchsorted(cuts, codes)


def _spread(
    parent: Integers, classes: Integers, children: int, alpha: float, generator: np.random.Generator
) -> Integers:
    """Spread the rows of every (parent, class) over `children` parts by one Dirichlet draw each."""
    if children == 1:
        return parent
    parents = int(parent.max()) + 1
    kinds = int(classes.max()) + 1
    cell = parent * kinds + classes
    draws = generator.standard_gamma(alpha, size=(parents * kinds, children))
    lost = draws.sum(axis=1) == 0  # a tiny alpha can underflow; its limit is one part taking all
    draws[lost, generator.integers(children, size=int(lost.sum()))] = 1.0
    shares = np.cumsum(draws / draws.sum(axis=1, keepdims=True), axis=1)
    shares[:, -1] = 1.0
    order = generator.permutation(len(cell))
    order = order[np.argsort(cell[order], kind="stable")]
    sizes = np.bincount(cell, minlength=parents * kinds)
    rank = np.arange(len(cell)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    position = (rank + 0.5) / np.repeat(sizes, sizes)
    ordered_cell = cell[order]
    # One search for all cells: cell c owns the numbers from c to c + 1.
    bounds = (shares + np.arange(parents * kinds)[:, None]).ravel()
    child = np.searchsorted(bounds, ordered_cell + position, side="left") - ordered_cell * children
    out = np.empty_like(parent)
    out[order] = parent[order] * children + np.clip(child, 0, children - 1)
    return out


def _raise_to_minimum(
    site: Integers, sites: int, min_rows: int, generator: np.random.Generator
) -> tuple[Integers, tuple[str, ...]]:
    """Move rows, chosen at random, from the largest sites to those below the minimum."""
    sizes = np.bincount(site, minlength=sites)
    lacking = np.maximum(min_rows - sizes, 0)
    needed = int(lacking.sum())
    if not needed:
        return site, ()
    given = _take_from_largest(sizes, needed, min_rows)
    order = generator.permutation(len(site))
    order = order[np.argsort(site[order], kind="stable")]
    rank = np.arange(len(site)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = order[rank < np.repeat(given, sizes)]
    out = site.copy()
    out[generator.permutation(moved)] = np.repeat(np.arange(sites), lacking)
    receivers, donors = int((lacking > 0).sum()), int((given > 0).sum())
    note = f"moved {needed:,} rows from {donors:,} large sites so that {receivers:,} sites reach {min_rows:,} rows"
    return out, (note,)


def _take_from_largest(sizes: Integers, needed: int, floor: int) -> Integers:
    """How many rows each site gives when the largest are lowered to one common level, never below `floor`."""
    low, high = floor, int(sizes.max())
    while low < high:  # the highest level that frees enough rows
        level = (low + high + 1) // 2
        if int(np.maximum(sizes - level, 0).sum()) >= needed:
            low = level
        else:
            high = level - 1
    given = np.maximum(sizes - low, 0)
    surplus = int(given.sum()) - needed
    trimmed = np.flatnonzero(given > 0)[:surplus]
    given[trimmed] -= 1
    return given


def below_rule(rule: str) -> tuple[str, float] | None:
    """Column and number of "below:COLUMN:NUMBER"; None when it is not that."""
    kind, _, rest = rule.partition(":")
    column, _, text = rest.rpartition(":")
    try:
        limit = float(text)
    except ValueError:
        return None
    return (column, limit) if kind == "below" and column and np.isfinite(limit) else None


def rows_below(values: pl.Series, limit: float) -> pl.Series:
    """Which cells lie below a number: told from each row alone; a missing one does not."""
    if not values.dtype.is_numeric():
        raise ConfigError(f"column {values.name!r} is not a number and has nothing below one", hint="Name a number")
    return (number(values) < limit).fill_null(value=False)


def _below(frame: pl.DataFrame, rule: str) -> NDArray[np.bool_]:
    found = below_rule(rule)
    if found is None:
        raise ConfigError(f"cannot read low_risk = {rule!r}", hint='Write a share, or "below:COLUMN:NUMBER"')
    column, limit = found
    if column not in frame.columns:
        raise DataError(f"the table has no column {column!r} to tell the risk by", hint=nearest(column, frame.columns))
    return rows_below(frame[column], limit).to_numpy()


def _risk_weights(
    found: Assignment, classes: Integers, share: float, alpha: float, generator: np.random.Generator
) -> NDArray[np.float64]:
    """How likely each row is a low-risk one: a Dirichlet draw over (low, high) for every site and class."""
    if not 0 < share < 1:
        return np.ones(len(classes))
    shape = (len(found.names), int(classes.max()) + 1)
    weights = generator.beta(2 * alpha * share, 2 * alpha * (1 - share), size=shape)
    return np.maximum(weights, 1e-12)[found.site, classes]


def _low_risk(
    found: Assignment, weights: NDArray[np.float64], share: float, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """RoundEnd round(share * rows) rows of every site, drawn by weight without replacement."""
    sizes = found.sizes
    # The rows with the smallest exponential draws divided by their weights are such a sample.
    keys = generator.exponential(size=len(found.site)) / weights
    order = np.lexsort((keys, found.site))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    marked = np.zeros(len(order), dtype=bool)
    marked[order] = rank < np.repeat(np.rint(share * sizes).astype(np.int64), sizes)
    return marked
