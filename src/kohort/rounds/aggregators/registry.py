"""The registry of aggregators: functions that turn the sites' weight vectors into one.

An aggregator is a pure function over a stack [sites, parameters]. Its breakdown point is the number of Byzantine sites,
of S, from which on they can move the result without bound; tests check every aggregator just below and at its own. The
robust ones count sites, not rows, because Byzantine sites can lie about their rows, too. NaN and infinity never reach
an aggregator: replies are validated before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, SiteError, nearest
from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.protocol.plan.options import bind, named

__all__ = [
    "Aggregate",
    "aggregator",
    "column_blocks",
    "find_aggregator",
    "require_sites",
    "row_shares",
]

Rows = NDArray[np.int64]
Aggregate = Callable[[FloatArray, Rows, FloatArray, Trainable], FloatArray]
"""An aggregator whose options are set: (stack [S, P], rows [S], start [P], network) -> weights [P]."""


F = TypeVar("F", bound=Callable[..., FloatArray])
_AGGREGATORS: dict[str, Callable[..., FloatArray]] = {}
_GIVEN = ("start", "network")
_REMOVED = {
    "fedma": "sites start every round from the same weights, so no unit was ever matched to another and it was the mean"
}
"""Aggregators that no longer exist, and why."""
# Values per block: a block of columns fits a core's cache while it is gathered, partially sorted and summed.
_BLOCK_VALUES = 1 << 18


def aggregator(name: str) -> Callable[[F], F]:
    """Register a function of (stack, rows, /, *, start, network) -> weights, with the shapes of `Aggregate`.

    Its further keyword-only parameters are options that a plan can set.

    Args:
        name: What plans call it in `train.aggregate`.

    Returns:
        A decorator that registers a function and returns it unchanged.

    Raises:
        ConfigError: Another aggregator has that name.
    """

    def register(function: F) -> F:
        if name in _AGGREGATORS:
            raise ConfigError(f"two aggregators are called {name!r}", hint="Rename one of them")
        _AGGREGATORS[name] = function
        return function

    return register


def find_aggregator(spec: str | Mapping[str, Any]) -> Aggregate:
    """The aggregator a plan names, with its options set.

    Args:
        spec: `train.aggregate`: a name, "name:option" or a mapping with a name and options.

    Returns:
        A function of (stack, rows, start, network).

    Raises:
        ConfigError: The name or an option is unknown or was removed, or an option's value is out of range.
    """
    name, options = named(spec)
    if name in _REMOVED:
        raise ConfigError(
            f"train.aggregate = {name!r} was removed: {_REMOVED[name]}", hint='Write train.aggregate = "mean"'
        )
    if name not in _AGGREGATORS:
        raise ConfigError(f"unknown aggregator {name!r} in train.aggregate", hint=nearest(name, _AGGREGATORS))
    ready = bind(_AGGREGATORS[name], options, f"aggregator {name!r}", later=_GIVEN)

    def aggregate(stack: FloatArray, rows: Rows, start: FloatArray, network: Trainable) -> FloatArray:
        return ready(stack, rows, start=start, network=network)

    return aggregate


def row_shares(rows: Rows) -> NDArray[np.float64]:
    """Each site's share of all rows.

    Args:
        rows: The sites' row counts.

    Returns:
        Shares that sum to 1.

    Raises:
        SiteError: No site has rows.
    """
    total = rows.sum()
    if total <= 0:
        raise SiteError(
            f"none of the {len(rows)} sites that answered has rows",
            hint="Check the tables of the sites, or ask other sites",
        )
    shares: NDArray[np.float64] = rows / total
    return shares


def require_sites(stack: FloatArray, least: int, what: str, hint: str) -> None:
    """Refuse a stack of too few sites.

    Args:
        stack: The sites' weights, [sites, parameters].
        least: The minimum number of sites.
        what: What needs them, for the message.
        hint: What to do next.

    Raises:
        SiteError: There are fewer than `least` sites.
    """
    if stack.shape[0] < least:
        raise SiteError(f"{what} needs {least} or more sites, but only {stack.shape[0]} answered", hint=hint)


def column_blocks(stack: FloatArray) -> Iterator[slice]:
    """Divide the columns into blocks that fit a core's cache, so that temporary memory stays small.

    Args:
        stack: The sites' weights, [sites, parameters].

    Yields:
        Slices of columns that cover all parameters.
    """
    sites, parameters = stack.shape
    width = max(1, _BLOCK_VALUES // max(sites, 1))
    for begin in range(0, parameters, width):
        yield slice(begin, min(begin + width, parameters))
