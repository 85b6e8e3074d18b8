"""Rows that sites left out before a run, as keys of a secure count: one key per reason, its rows as the tally.

Guarantee: a total is told where at least `min_cell` persons are behind it, and is otherwise one unnamed count among
those of all keys.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kohort.protocol.site import UNUSED, Site
from kohort.rounds.domains.names import NamedKeys

__all__ = ["unused_in", "unused_persons", "unused_rows"]

_HEAD: Final = Struct("<cH")
_KEYS: Final = {reason: _HEAD.pack(b"u", place) for place, reason in enumerate(UNUSED)}


def unused_persons(site: Site) -> dict[bytes, int]:
    """The persons behind the rows that a site left out, by key; reasons that nobody is behind have none.

    Args:
        site: The site.

    Returns:
        The number of persons of each reason, by its key in the secure count.
    """
    return {_KEYS[reason]: found.persons for reason, found in site.unused.items() if found.persons}


def unused_rows(site: Site) -> dict[bytes, int]:
    """The rows that a site left out, by key.

    Args:
        site: The site.

    Returns:
        The number of rows of each reason, by its key in the secure count.
    """
    return {_KEYS[reason]: found.rows for reason, found in site.unused.items()}


def unused_in(named: NamedKeys) -> dict[str, int]:
    """The rows that all sites left out, by reason; 0 where fewer persons than the minimum are behind them.

    Args:
        named: The frequent keys of a count.

    Returns:
        The number of rows of every known reason.
    """
    tallies = dict(zip(named.keys, named.tallies, strict=True))
    return {reason: tallies.get(key, 0) for reason, key in _KEYS.items()}
