"""Random draws behind the splits of a table: Dirichlet shares, minimum sizes, low-risk rows, by row or by person.

Guarantees: every function works on whole arrays, without a Python loop over rows or sites, but for the persons that are
moved so that small sites reach a minimum; the same generator state gives the same result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kohort.errors import DataError

__all__ = [
    "deal_persons",
    "draw_low_risk",
    "draw_low_risk_persons",
    "low_risk_weights",
    "raise_persons_to_minimum",
    "raise_to_minimum",
    "spread_by_dirichlet",
]

Integers = NDArray[np.int64]


def spread_by_dirichlet(
    parent: Integers, classes: Integers, children: int, alpha: float, generator: np.random.Generator
) -> Integers:
    """Spread the rows of every (parent, class) over `children` parts by one Dirichlet draw each.

    Args:
        parent: Part that each row belongs to, counted from 0.
        classes: Class of each row, counted from 0.
        children: Number of parts that every parent is divided into.
        alpha: Concentration of the symmetric Dirichlet distribution; small values give uneven shares.
        generator: Source of randomness.

    Returns:
        The new part of each row: `parent * children + child`.
    """
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


def raise_to_minimum(
    site: Integers, sites: int, min_rows: int, generator: np.random.Generator
) -> tuple[Integers, tuple[str, ...]]:
    """Move rows, chosen at random, from the largest sites to those below the minimum.

    Args:
        site: Site of each row.
        sites: Number of sites.
        min_rows: Rows that every site must have; the table must hold at least `sites * min_rows`.
        generator: Source of randomness.

    Returns:
        The new site of each row, and a note that says how many rows were moved (none if nothing was).
    """
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


def deal_persons(rows: Integers, sites: int, generator: np.random.Generator) -> Integers:
    """Deal whole persons out in a random order, so that sites get about equally many rows.

    Args:
        rows: How many rows each person has.
        sites: Number of sites.
        generator: Source of randomness.

    Returns:
        The site of each person. A site may be left without one where somebody has very many rows.
    """
    order = generator.permutation(len(rows))
    reached = np.cumsum(rows[order])
    out = np.empty(len(rows), dtype=np.int64)
    out[order] = (2 * reached - rows[order]) * sites // (2 * reached[-1])  # where the middle of the person's rows is
    return out


def raise_persons_to_minimum(
    site: Integers, rows: Integers, sites: int, min_rows: int, generator: np.random.Generator
) -> tuple[Integers, tuple[str, ...]]:
    """Move persons, chosen at random, from the largest sites to those below the minimum.

    Args:
        site: Site of each person.
        rows: How many rows each person has.
        sites: Number of sites.
        min_rows: Rows that every site must have.
        generator: Source of randomness.

    Returns:
        The new site of each person, and a note that says how many persons were moved (none if nobody was).

    Raises:
        DataError: No persons are left to move, and a site is still below the minimum.
    """
    sizes = np.bincount(site, weights=rows, minlength=sites).astype(np.int64)
    lacking = int((sizes < min_rows).sum())
    out, order, moved = site.copy(), generator.permutation(len(site)), 0
    while sizes.min() < min_rows:
        spare = order[sizes[out[order]] - rows[order] >= min_rows]
        if not len(spare):
            raise DataError(
                f"{len(site):,} persons of {int(rows.sum()):,} rows cannot be dealt out to {sites:,} sites of at least "
                f"{min_rows:,} rows",
                hint="Use fewer sites or a smaller min_rows; all rows of a person are at one site",
            )
        person = spare[np.argmax(sizes[out[spare]])]
        sizes[out[person]] -= rows[person]
        out[person] = np.argmin(sizes)
        sizes[out[person]] += rows[person]
        moved += 1
    note = f"moved {moved:,} persons from large sites so that {lacking:,} sites reach {min_rows:,} rows"
    return out, (note,) if moved else ()


def _take_from_largest(sizes: Integers, needed: int, floor: int) -> Integers:
    """Rows that each site gives when the largest are lowered to one common level, never below `floor`."""
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


def low_risk_weights(
    site: Integers, sites: int, classes: Integers, share: float, alpha: float, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Weight of each row in the draw of low-risk rows: a Dirichlet draw over (low, high) for every site and class.

    Args:
        site: Site of each row.
        sites: Number of sites.
        classes: Class of each row.
        share: Expected share of low-risk rows; 0 and 1 need no weights, and all are 1.
        alpha: Concentration; small values make the shares of the classes differ.
        generator: Source of randomness.

    Returns:
        One positive weight per row.
    """
    if not 0 < share < 1:
        return np.ones(len(classes))
    shape = (sites, int(classes.max()) + 1)
    weights = generator.beta(2 * alpha * share, 2 * alpha * (1 - share), size=shape)
    return np.maximum(weights, 1e-12)[site, classes]


def draw_low_risk(
    site: Integers, sizes: Integers, weights: NDArray[np.float64], share: float, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Mark round(share * rows) rows of every site, drawn by weight without replacement.

    Args:
        site: Site of each row.
        sizes: Rows of each site.
        weights: Weight of each row in the draw.
        share: Share of the rows of every site to mark.
        generator: Source of randomness.

    Returns:
        A mask over the rows.
    """
    # The rows with the smallest exponential draws divided by their weights are such a sample.
    keys = generator.exponential(size=len(site)) / weights
    order = np.lexsort((keys, site))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    marked = np.zeros(len(order), dtype=bool)
    marked[order] = rank < np.repeat(np.rint(share * sizes).astype(np.int64), sizes)
    return marked


def draw_low_risk_persons(
    site: Integers,
    persons: Integers,
    weights: NDArray[np.float64],
    share: float,
    generator: np.random.Generator,
) -> NDArray[np.bool_]:
    """Mark about round(share * rows) rows of every site, drawn by weight; all rows of a person at a site or none.

    Args:
        site: Site of each row.
        persons: Person of each row, counted from 0.
        weights: Weight of each row in the draw; that of a person is the one of the first row.
        share: Share of the rows of every site to mark.
        generator: Source of randomness.

    Returns:
        A mask over the rows, as near to the share as whole persons allow.
    """
    unit = site * (int(persons.max()) + 1) + persons
    units, first, of_row, rows = np.unique(unit, return_index=True, return_inverse=True, return_counts=True)
    keys = generator.exponential(size=len(units)) / weights[first]
    order = np.lexsort((keys, site[first]))
    sizes = np.bincount(site)
    before = np.cumsum(sizes) - sizes
    place = site[first][order]
    middle = np.cumsum(rows[order]) - rows[order] / 2 - before[place]
    marked = np.zeros(len(units), dtype=bool)
    marked[order] = middle < np.rint(share * sizes)[place]
    return marked[of_row]
