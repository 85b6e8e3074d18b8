"""How a round's updates become one: mean, median, trimmed mean, Krum and clipping.

Importing this package registers them all.
"""

from kohort.rounds.aggregators import clip, krum, mean, median, trimmed
from kohort.rounds.aggregators.registry import find_aggregator

__all__ = ["clip", "find_aggregator", "krum", "mean", "median", "trimmed"]
