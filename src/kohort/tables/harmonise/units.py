"""Numbers that differ between sites by a unit: found from quantiles, told by the factor between common units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose, log
from statistics import median
from typing import Final

from kohort.tables.harmonise.words import CONVERSIONS, Conversion

__all__ = ["UnitDifference", "unit_differences"]

Quantiles = tuple[float, float, float]
APART: Final = 1.5
"""Medians within this factor count as the same unit."""
MEDIAN_TOLERANCE, OUTER_TOLERANCE = 0.2, 0.35
"""How far the logarithm of a ratio may lie from that of a factor, for the median and for the outer quantiles."""
SMALL: Final = 5.0
"""Below this factor populations may differ by themselves: a column's name must speak for the units, too."""


@dataclass(frozen=True, kw_only=True)
class UnitDifference:
    """How the numbers of one site differ from those of most."""

    site: str
    ratio: float
    """Its median over that of the others."""
    conversion: Conversion | None = None
    factor: float | None = None
    offset: float | None = None
    """What makes its numbers those of the others: x factor + offset."""


def unit_differences(column: str, quantiles: Mapping[str, Quantiles]) -> list[UnitDifference]:
    """The sites whose numbers lie elsewhere than those of most sites.

    Args:
        column: The column's name, which may tell what it measures.
        quantiles: The 10 %, 50 % and 90 % quantile per site, in the order of sites.

    Returns:
        One difference for each such site, with a conversion where a common one explains all three quantiles.
    """
    usable = {site: found for site, found in quantiles.items() if found[1] > 0}
    if len(usable) < 2:
        return []
    others = _largest_group(usable)
    typical = tuple(median(usable[site][at] for site in others) for at in range(3))
    found = []
    for site, own in usable.items():
        if site in others:
            continue
        difference = _explained(column, site, own, typical)
        if difference is not None:
            found.append(difference)
    return found


def _largest_group(quantiles: Mapping[str, Quantiles]) -> list[str]:
    """The sites around the median that most sites share; the earliest of equally large groups."""
    groups = [
        [other for other, found in quantiles.items() if abs(log(found[1] / own[1])) <= log(APART)]
        for own in quantiles.values()
    ]
    return max(groups, key=len)


def _explained(column: str, site: str, own: Quantiles, typical: tuple[float, ...]) -> UnitDifference | None:
    ratio = own[1] / typical[1]
    overlaps = own[0] <= typical[2] and typical[0] <= own[2]
    fitting = [
        (not _is_named(column, one), abs(log(ratio / _ratio(one, typical[1], up=up))), one, up)
        for one in CONVERSIONS
        for up in (True, False)
        if _fits(one, own, typical, up=up) and (_is_named(column, one) or (one.factor >= SMALL and not overlaps))
    ]
    if not fitting:
        return None if overlaps else UnitDifference(site=site, ratio=ratio)
    _, _, best, up = min(fitting, key=lambda entry: entry[:2])
    if up:  # the site has the larger numbers: x f + o of the others' becomes (y - o) / f
        return UnitDifference(
            site=site, ratio=ratio, conversion=best, factor=1 / best.factor, offset=-best.offset / best.factor or None
        )
    return UnitDifference(site=site, ratio=ratio, conversion=best, factor=best.factor, offset=best.offset or None)


def _fits(one: Conversion, own: Quantiles, typical: tuple[float, ...], *, up: bool) -> bool:
    """Whether a conversion takes all three quantiles of the others to those of the site."""
    for at, tolerance in enumerate((OUTER_TOLERANCE, MEDIAN_TOLERANCE, OUTER_TOLERANCE)):
        if typical[at] <= 0 or own[at] <= 0:
            if not (isclose(typical[at], 0.0) and isclose(own[at], 0.0)):
                return False
            continue
        expected = _ratio(one, typical[at], up=up)
        if expected <= 0 or abs(log(own[at] / typical[at] / expected)) > tolerance:
            return False
    return True


def _ratio(one: Conversion, value: float, *, up: bool) -> float:
    converted = value * one.factor + one.offset if up else (value - one.offset) / one.factor
    return max(converted / value, 1e-12)


def _is_named(column: str, one: Conversion) -> bool:
    return any(hint in column.casefold() for hint in one.hints)
