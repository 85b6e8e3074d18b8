"""What a site says while it waits: for the hub, for its operator's approval, for a run; and why it refused one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Waiting"]

PATIENCE = 20.0
"""Seconds without a connection after which a site says what it may be waiting for."""


@dataclass
class Waiting:
    """Says once what a site waits for; asked between tasks."""

    say: Callable[[str], None]
    name: str
    address: str
    node: Path
    """The file in which the SuperNode notes that it is connected."""
    registration: Path
    approved: Callable[[], int]
    """How many plans are approved now."""
    began: float = field(default_factory=time.monotonic)
    _before: float = 0.0
    _connected: bool = False
    _complained: bool = False

    def begin(self, peers: list[str]) -> None:
        """Say where it stands before the first connection.

        Args:
            peers: The names of the peers it trusts.
        """
        self._before = self.node.stat().st_mtime if self.node.is_file() else 0.0
        trusted = ", ".join(peers) if peers else "none yet: kohort site trust"
        self.say(f"{self.name}: waiting for the hub at {self.address}; trusted peers: {trusted}")

    def look(self) -> None:
        """Say what changed since the last look."""
        if self._connected:
            return
        if self.node.is_file() and self.node.stat().st_mtime > self._before:
            self._connected = True
            number = self.approved()
            plans = f"{number} approved plan{'s' if number != 1 else ''}" if number else "none is approved yet"
            self.say(f"{self.name}: connected; waiting for the hub to run a plan ({plans})")
        elif not self._complained and time.monotonic() - self.began > PATIENCE:
            self._complained = True
            self.say(
                f"{self.name}: no connection to {self.address} yet. At the hub: kohort hub start HUB, and "
                f"kohort hub add HUB {self.registration.name}; here: is the address reachable?"
            )
