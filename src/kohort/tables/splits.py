"""Spread one table over sites, to simulate a federation.

Guarantees: every row belongs to one site; every site has at least `min_rows` rows or the split is refused; what had to
be moved or merged to reach that is said in `notes`; the same generator state gives the same split. Where sites go by no
column, all rows of a person are at one site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, counted, nearest
from kohort.tables.domain import category_text, number
from kohort.tables.draws import (
    deal_persons,
    draw_low_risk,
    draw_low_risk_persons,
    low_risk_weights,
    raise_persons_to_minimum,
    raise_to_minimum,
    spread_by_dirichlet,
)

__all__ = [
    "Assignment",
    "assign_sites",
    "assignment_of_parts",
    "below_rule",
    "mark_low_risk",
    "rows_below",
]

SPLITS = ("iid", "interval:COLUMN", "width:COLUMN", "column:NAME", "dirichlet", "sorted")
MAX_CLASSES = 20
TARGET_QUANTILES = 10
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which site, cluster and risk group each row belongs to.

    Attributes:
        site: Site of each row, counted from 0.
        names: Name of each site.
        cluster: Cluster of each site; None without clusters.
        low_risk: Which rows carry a low risk; None where that was not asked for.
        notes: What had to be moved or merged to reach the minimum number of rows.
    """

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
class _SplitRequest:
    """What a caller asked for, checked once."""

    kind: str
    column: str
    count: int
    target: str | None
    clusters: int | str | None
    alphas: tuple[float, float, float]
    min_rows: int

    @property
    def draws_rows(self) -> bool:
        """Whether a draw says where a row goes, so that rows of a person can go together."""
        return self.kind in ("iid", "dirichlet")


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
    persons: Integers | None = None,
) -> Assignment:
    """Give every row of a table a site.

    Args:
        frame: The table.
        split: "iid" (shuffled, equal parts), "interval:COLUMN" (intervals of the column with about equally many rows),
            "width:COLUMN" (intervals of equal width), "column:NAME" (one site per value), "dirichlet" (each class is
            spread by a Dirichlet draw: over clusters, then over the sites of each cluster) or "sorted" (by target,
            then equal parts).
        count: Number of sites; with clusters, of the sites of each cluster.
        generator: Source of randomness.
        target: Column to predict; "dirichlet", "sorted" and "labels" need it.
        clusters: Number of clusters; or "column:NAME" or "labels" for one cluster per value of that column or of the
            target.
        alpha: Dirichlet concentration: one number, or those of [cluster, site, risk].
        low_risk: Share of each site's rows to mark as low risk, skewed over the classes by the risk alpha when three
            are given, at random otherwise; or "below:COLUMN:NUMBER" to mark the rows below a number.
        min_rows: Rows that every site must have.
        persons: The person each row is about, from 0 on. "iid" and "dirichlet" deal whole persons out, by the class of
            their first row; the other splits go by a column of the row, and a person may be at several sites. By
            default every row is about another person.

    Returns:
        The assignment, with a note on everything that was moved or merged.

    Raises:
        ConfigError: An option is unknown or out of range.
        DataError: A column is absent or incomplete, or there are too few rows.

    Example:
        >>> frame = pl.DataFrame({"age": [20, 30, 40, 50]})
        >>> generator = np.random.default_rng(0)
        >>> assign_sites(frame, split="interval:age", count=2, generator=generator).site.tolist()
        [0, 0, 1, 1]
    """
    kind, _, column = split.partition(":")
    request = _SplitRequest(
        kind=kind,
        column=column,
        count=count,
        target=target,
        clusters=clusters,
        alphas=_alphas(alpha),
        min_rows=min_rows,
    )
    _check_request(frame, request)
    if isinstance(clusters, str):
        found = _in_natural_clusters(frame, request, clusters, generator, persons)
    else:
        found = _split_rows(frame, request, clusters, generator, persons)
    return mark_low_risk(found, frame, low_risk, target=target, alpha=alpha, generator=generator, persons=persons)


def mark_low_risk(
    found: Assignment,
    frame: pl.DataFrame,
    low_risk: float | str | None,
    *,
    target: str | None,
    alpha: float | Sequence[float],
    generator: np.random.Generator,
    persons: Integers | None = None,
) -> Assignment:
    """Mark the rows of `frame` that carry a low risk.

    Args:
        found: The assignment to add the marks to.
        frame: The table that was assigned.
        low_risk: A share, or "below:COLUMN:NUMBER"; None leaves the assignment as it is.
        target: Column whose classes the risk alpha skews the marks over.
        alpha: As in `assign_sites`.
        generator: Source of randomness.
        persons: The person each row is about; a share is drawn by whole persons, a rule looks at each row.

    Returns:
        The assignment with `low_risk` set.

    Raises:
        ConfigError: `low_risk` is no share and no rule, or the column is not a number.
        DataError: The column of the rule is absent.
    """
    if low_risk is None:
        return found
    if isinstance(low_risk, str):
        return replace(found, low_risk=_below(frame, low_risk))
    if not 0 <= low_risk <= 1:
        raise ConfigError(f"low_risk = {low_risk} is not a share", hint="Use a number from 0 to 1")
    if isinstance(alpha, (int, float)) or len(alpha) < 3:
        weights = np.ones(frame.height)
    else:
        classes = _classes(frame, target)
        weights = low_risk_weights(found.site, len(found.names), classes, low_risk, _alphas(alpha)[2], generator)
    if persons is not None:
        return replace(found, low_risk=draw_low_risk_persons(found.site, persons, weights, low_risk, generator))
    return replace(found, low_risk=draw_low_risk(found.site, found.sizes, weights, low_risk, generator))


def assignment_of_parts(lengths: Sequence[int], names: Sequence[str]) -> Assignment:
    """The assignment of tables that come one per site and are stacked in this order.

    Args:
        lengths: Rows of each table.
        names: Name of each site.

    Returns:
        The assignment of the stacked rows.

    Raises:
        ConfigError: Names repeat, or there are not as many as tables.
        DataError: A site has no rows.
    """
    if len(lengths) != len(names) or len(set(names)) != len(names):
        raise ConfigError("each site needs one table and a name of its own", hint="Give different names")
    empty = [name for name, length in zip(names, lengths, strict=True) if length < 1]
    if empty:
        raise DataError(f"sites without rows: {', '.join(empty)}", hint="Give each site at least one row")
    return Assignment(site=np.repeat(np.arange(len(lengths)), lengths), names=tuple(names))


def _check_request(frame: pl.DataFrame, request: _SplitRequest) -> None:
    takes_column = request.kind in ("interval", "width", "column")
    known = request.kind in ("iid", "interval", "width", "column", "dirichlet", "sorted")
    if not known or takes_column != bool(request.column):
        given = f"{request.kind}:{request.column}" if request.column else request.kind
        raise ConfigError(f"unknown split {given!r}", hint=nearest(given, SPLITS))
    if takes_column and request.column not in frame.columns:
        hint = nearest(request.column, frame.columns)
        raise DataError(f"the table has no column {request.column!r} to split by", hint=hint)
    smallest_cluster = request.clusters if isinstance(request.clusters, int) else 1
    if min(request.count, request.min_rows, smallest_cluster) < 1:
        raise ConfigError("count, clusters and min_rows must be at least 1", hint="Correct [sites]")
    if (
        isinstance(request.clusters, str)
        and request.clusters != "labels"
        and not request.clusters.startswith("column:")
    ):
        hint = 'Use a number, "column:NAME" or "labels"'
        raise ConfigError(f"unknown clusters {request.clusters!r}", hint=hint)


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


def _split_rows(
    frame: pl.DataFrame,
    request: _SplitRequest,
    clusters: int | None,
    generator: np.random.Generator,
    persons: Integers | None,
) -> Assignment:
    if request.kind == "column":
        return _group(_by_column(frame, request.column, request.min_rows), clusters)
    groups = clusters or 1
    sites = groups * request.count
    _enough_rows(frame.height, sites, request.min_rows)
    if request.kind in ("interval", "width"):
        found = _by_interval(frame, request.column, sites, request.min_rows, equal_widths=request.kind == "width")
        return _group(found, clusters)
    names = _numbered("site-", sites)
    if clusters is not None:
        tails = _numbered("-site-", request.count)
        names = [head + tail for head in _numbered("cluster-", clusters) for tail in tails]
    notes: tuple[str, ...] = ()
    if persons is not None and request.draws_rows:
        site, notes = _by_person(frame, request, groups, persons, generator)
    elif request.kind == "dirichlet":
        site = _by_dirichlet(_classes(frame, request.target), request, groups, generator)
        site, notes = raise_to_minimum(site, sites, request.min_rows, generator)
    else:
        # Equal parts of a random order, or of the rows in the order of the target.
        rows = generator.permutation(frame.height)
        if request.kind == "sorted":
            rows = rows[np.argsort(_codes(frame, request.target)[rows], kind="stable")]
        site = np.empty(frame.height, dtype=np.int64)
        site[rows] = np.arange(frame.height) * sites // frame.height
    return _group(Assignment(site=site, names=tuple(names), notes=notes), clusters)


def _by_dirichlet(classes: Integers, request: _SplitRequest, groups: int, generator: np.random.Generator) -> Integers:
    """Spread each class over clusters, then over the sites of each cluster."""
    part = spread_by_dirichlet(np.zeros_like(classes), classes, groups, request.alphas[0], generator)
    return spread_by_dirichlet(part, classes, request.count, request.alphas[1], generator)


def _by_person(
    frame: pl.DataFrame, request: _SplitRequest, groups: int, persons: Integers, generator: np.random.Generator
) -> tuple[Integers, tuple[str, ...]]:
    """Deal whole persons out; a person has the class of the first row."""
    _, first, of_row, rows = np.unique(persons, return_index=True, return_inverse=True, return_counts=True)
    sites = groups * request.count
    if request.kind == "dirichlet":
        dealt = _by_dirichlet(_classes(frame, request.target)[first], request, groups, generator)
    else:
        dealt = deal_persons(rows, sites, generator)
    dealt, notes = raise_persons_to_minimum(dealt, rows, sites, request.min_rows, generator)
    return dealt[of_row], notes


def _group(found: Assignment, clusters: int | None) -> Assignment:
    """Neighbouring sites form clusters of equal size, as far as their number allows."""
    if clusters is None:
        return found
    sites = len(found.names)
    return replace(found, cluster=np.arange(sites) * clusters // sites)


def _in_natural_clusters(
    frame: pl.DataFrame,
    request: _SplitRequest,
    clusters: str,
    generator: np.random.Generator,
    persons: Integers | None,
) -> Assignment:
    """One cluster per value of a column; its rows are split on their own, so no row leaves its cluster."""
    column = _need_target(frame, request.target) if clusters == "labels" else clusters.removeprefix("column:")
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
        if request.kind != "column":
            _enough_rows(len(rows), request.count, request.min_rows, where)
        own = None if persons is None else persons[rows]
        part = _split_rows(frame[rows], request, None, generator, own)
        site[rows] = part.site + len(names)
        names += [f"{column}={label} {name}" for name in part.names]
        cluster += [code] * len(part.names)
        notes += [f"{column}={label}: {note}" for note in part.notes]
    return Assignment(site=site, names=tuple(names), cluster=np.array(cluster), notes=tuple(notes))


def _by_interval(frame: pl.DataFrame, column: str, sites: int, min_rows: int, *, equal_widths: bool) -> Assignment:
    _refuse_nulls(frame[column])
    if not frame[column].dtype.is_numeric():
        hint = f'Use "column:{column}" for one site per value'
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
    notes = (
        f"{counted(joined, 'interval')} of {column} had fewer than {counted(min_rows, 'row')} and joined a neighbour",
    )
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


def below_rule(rule: str) -> tuple[str, float] | None:
    """Column and limit of a rule "below:COLUMN:NUMBER"; None when the text is no such rule.

    Args:
        rule: The text.

    Returns:
        The column and the limit; None when the text is no such rule.

    Example:
        >>> below_rule("below:age:40")
        ('age', 40.0)
    """
    kind, _, rest = rule.partition(":")
    column, _, text = rest.rpartition(":")
    try:
        limit = float(text)
    except ValueError:
        return None
    return (column, limit) if kind == "below" and column and np.isfinite(limit) else None


def rows_below(values: pl.Series, limit: float) -> pl.Series:
    """Which cells lie below a number. The answer for a row depends on that row alone.

    Args:
        values: The column.
        limit: The number.

    Returns:
        True or False per row; False for a missing cell.

    Raises:
        ConfigError: The column is not a number.
    """
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
