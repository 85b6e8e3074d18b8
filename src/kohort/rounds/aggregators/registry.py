"""Aggregators: how the hub turns the sites' weight vectors into one. One algorithm per file, under its known name.

An aggregator is a pure function over a stack [site, parameter]. A breakdown point is the number of lying sites, of S,
from which on they can move the result without bound; tests hold every aggregator to its own, just below and at it. The
robust ones count sites, not rows: liars lie about rows too. NaN and infinity never come here: replies are validated
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, SiteError, nearest
from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.protocol.options import bind, named

__all__ = [
    "Aggregate",
    "Aggregator",
    "aggregator",
    "aggregators",
    "bind_aggregator",
    "column_blocks",
    "require_sites",
    "row_shares",
]

Rows = NDArray[np.int64]
Aggregate = Callable[[FloatArray, Rows, FloatArray, Trainable], FloatArray]
"""(stack [S, P], rows [S], start [P], network) -> weights [P]: an aggregator whose options are set."""


class Aggregator(Protocol):
    """A function a plan can name in `train.aggregate`; further keyword-only parameters are its options."""

    def __call__(
        self, stack: FloatArray, rows: Rows, /, *, start: FloatArray, network: Trainable, **options: Any
    ) -> FloatArray:
        """One weight vector from a `stack` [S, P] of sites that began at `start` [P] and trained on `rows` [S] rows."""
        ...


F = TypeVar("F", bound=Callable[..., FloatArray])
_AGGREGATORS: dict[str, Callable[..., FloatArray]] = {}
_GIVEN = ("start", "network")
# A block that fits a core's cache: values of a column are gathered, partly ordered and added while they are there.
_BLOCK_VALUES = 1 << 18


def aggregator(name: str) -> Callable[[F], F]:
    """Register an aggregator.

    Args:
        name: What plans call it in `train.aggregate`.

    Returns:
        A decorator that registers a function and leaves it as it is.

    Raises:
        ConfigError: Another aggregator has that name.
    """

    def register(function: F) -> F:
        if name in _AGGREGATORS:
            raise ConfigError(f"two aggregators are called {name!r}", hint="Rename one of them")
        _AGGREGATORS[name] = function
        return function

    return register


def aggregators() -> dict[str, Callable[..., FloatArray]]:
    """Every registered aggregator by name."""
    return dict(_AGGREGATORS)


def bind_aggregator(spec: str | Mapping[str, Any]) -> Aggregate:
    """The aggregator a plan names, with its options set.

    Args:
        spec: `train.aggregate`: a name, "name:option" or a mapping with a name and options.

    Returns:
        A function of (stack, rows, start, network).

    Raises:
        ConfigError: The name or an option is unknown, or an option's value is out of range.
    """
    name, options = named(spec)
    if name not in _AGGREGATORS:
        raise ConfigError(f"unknown aggregator {name!r} in train.aggregate", hint=nearest(name, _AGGREGATORS))
    ready = bind(_AGGREGATORS[name], options, f"aggregator {name!r}", later=_GIVEN)

    def aggregate(stack: FloatArray, rows: Rows, start: FloatArray, network: Trainable) -> FloatArray:
        return ready(stack, rows, start=start, network=network)

    return aggregate


def row_shares(rows: Rows) -> NDArray[np.float64]:
    """Each site's share of all rows; an error when there are none."""
    total = rows.sum()
    if total <= 0:
        raise SiteError(f"none of the {len(rows)} sites that answered has rows", hint="Ask sites that hold data")
    shares: NDArray[np.float64] = rows / total
    return shares


def require_sites(stack: FloatArray, least: int, what: str, hint: str) -> None:
    """Refuse a stack of fewer than `least` sites."""
    if stack.shape[0] < least:
        raise SiteError(f"{what} needs {least} or more sites, and {stack.shape[0]} answered", hint=hint)


def column_blocks(stack: FloatArray) -> Iterator[slice]:
    """Blocks of columns that fit a core's cache; memory stays within one block of the stack."""
    sites, parameters = stack.shape
    width = max(1, _BLOCK_VALUES // max(sites, 1))
    for begin in range(0, parameters, width):
        yield slice(begin, min(begin + width, parameters))
