"""How often one side of a deployment polls for messages of the other: Flower's transport does not push them."""

from __future__ import annotations

import time

__all__ = ["PollBackoff"]

BUSY_FOR = 60.0
"""Seconds after the last message until nobody expects another soon."""
SHARE = 0.25
"""A message waits at most about this share of the time since the one before it."""


class PollBackoff:
    """Polls often right after a message, less and less often while nothing comes, and seldom after a minute.

    The waiting time grows with the time since the last message. So a chain of short steps goes on at once, and a long
    step costs few polls.

    Args:
        soon: Seconds between polls right after a message.
        busy: Seconds between polls at most, within a minute of the last message.
        idle: Seconds between polls later.
    """

    def __init__(self, soon: float, busy: float, idle: float) -> None:
        self._soon, self._busy, self._idle = soon, busy, idle
        self._last = time.monotonic()

    def touch(self) -> None:
        """Tell that a message came."""
        self._last = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long to wait before the next poll."""
        since = time.monotonic() - self._last
        return min(self._busy, max(self._soon, SHARE * since)) if since < BUSY_FOR else self._idle
