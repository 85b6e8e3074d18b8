"""Aggregation of a round's updates: mean, median, trimmed mean, Krum, norm clipping, matched averaging.

Importing this package registers them all.
"""

from collections.abc import Mapping
from typing import Any

from kohort.rounds.aggregators import clip, fedma, krum, mean, median, trimmed
from kohort.rounds.aggregators.registry import Aggregate, bind_aggregator

__all__ = ["clip", "fedma", "find_aggregator", "krum", "mean", "median", "trimmed"]


def find_aggregator(spec: str | Mapping[str, Any]) -> Aggregate:
    """The aggregator a plan names, with its options set.

    Args:
        spec: `train.aggregate`: a name, "name:option" or a mapping with a name and options.

    Returns:
        A function of (stack, rows, start, network).

    Raises:
        ConfigError: The name or an option is unknown, or an option's value is out of range.
    """
    return bind_aggregator(spec)
