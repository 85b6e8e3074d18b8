"""Sites whose servers outlive a run, as real ones do, and a hub that begins one run while another is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.crypto.sealed import Identity
from kohort.errors import KohortError
from kohort.methods.oneshot import method as oneshot
from kohort.rng import Streams
from kohort.runs import run as runs
from kohort.runs.backend import RunContext
from kohort.runs.config import Plan
from kohort.testing.site_servers import DirectCarrier, ServedSites
from kohort.transport.messages import read_request, split_messages
from kohort.transport.remote_engine import Carrier, RemoteEngine, SiteReceipts
from kohort.transport.site_server import SiteServer

__all__ = ["LastingSites", "isolated"]

_KEYS = Streams.seeded(1)
"""Hub and sites keep their keys, whatever a run's own seed is."""


@dataclass
class LastingSites:
    """Servers that all runs share, and the totals that a hub opened over them."""

    tables: Mapping[str, pl.DataFrame]
    folder: Path | None = None
    """Where sites keep their files; servers are then made anew from these for every run, with the tables of the day."""
    servers: dict[str, SiteServer] = field(default_factory=dict)
    receipts: dict[str, SiteReceipts] = field(default_factory=dict)
    opened: list[tuple[frozenset[str], Any]] = field(default_factory=list)
    """The sites and the numbers of each opened total."""
    refused: list[str] = field(default_factory=list)
    _runs: int = 0

    def begin(self, plan: Plan) -> None:
        """Make the servers of all sites, whose roster holds all of them; nothing is asked."""
        with pytest.raises(_StoppedError):
            self._run(plan, tuple(self.tables), _stop)

    def open(
        self,
        plan: Plan,
        sites: Sequence[str],
        *,
        while_waiting: Callable[[], None] | None = None,
        before: tuple[str, int] = ("oneshot.statistics", 0),
        name: str = "",
    ) -> Any:
        """One run of a one-shot plan over these sites.

        Args:
            plan: The plan.
            sites: The sites.
            while_waiting: What the hub does in the middle of the run.
            before: The task, and its step, that the sites are kept waiting for: by default after the set-up of sums.
            name: The run's name, which a hub chooses; one of its own by default.

        Returns:
            The numbers of its total; None where it was refused.
        """
        known = len(self.opened)
        try:
            self._run(plan, tuple(sites), while_waiting, name, before)
        except KohortError as error:
            self.refused.append(error.message)
        found = [total for members, total in self.opened[known:] if members == frozenset(sites)]
        return found[-1] if found else None

    def _run(
        self,
        plan: Plan,
        sites: tuple[str, ...],
        between: Callable[[], None] | None,
        name: str = "",
        before: tuple[str, int] = ("", 0),
    ) -> None:
        self._runs += 1
        rows = {site: self.tables[site] for site in sites}
        backend = _Backend(tables=rows, folder=self.folder, lasting=self, between=between, before=before)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(oneshot, "check_total", lambda _, total: backend.take(total))
            if name:
                made = runs.approved_plan_for
                patched.setattr(runs, "approved_plan_for", lambda plan, **given: made(plan, **{**given, "run": name}))
            runs.run(plan, seed=self._runs, backend=backend)


class _StoppedError(Exception):
    """The hub goes no further."""


def _stop() -> None:
    raise _StoppedError


@dataclass
class _Backend(ServedSites):
    lasting: LastingSites | None = None
    between: Callable[[], None] | None = None
    before: tuple[str, int] = ("", 0)

    def take(self, total: Any) -> None:
        assert self.lasting is not None
        self.lasting.opened.append((frozenset(self.tables or ()), np.asarray(total).copy()))

    def hub_identity(self, streams: Streams) -> Identity | None:
        del streams
        return super().hub_identity(_KEYS)

    def engine(self, ready: RunContext) -> RemoteEngine:
        made, lasting = super().engine(replace(ready, streams=_KEYS)), self.lasting
        assert lasting is not None
        if self.folder is not None:
            return made
        for name, server in self.site_servers.items():
            self.site_servers[name] = lasting.servers.setdefault(name, server)
        # What the hub keeps of each site over all runs.
        made.site_receipts = {name: lasting.receipts.setdefault(name, new) for name, new in made.site_receipts.items()}
        return made

    def carrier(self) -> Carrier:
        return _Waiting(DirectCarrier(self.site_servers), self)


@dataclass
class _Waiting:
    """Does something else once before a certain message."""

    carrier: Carrier
    backend: _Backend

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        between = self.backend.between
        if between is not None and (between is _stop or self._opens(messages)):
            self.backend.between = None
            between()
        return self.carrier.carry(messages, deadline=deadline)

    def _opens(self, messages: Mapping[str, bytes]) -> bool:
        assert self.backend.hub is not None
        asked = [
            read_request(one, hub=self.backend.hub.public) for data in messages.values() for one in split_messages(data)
        ]
        steps = {(message.task, int(message.request.payload.metrics.get("step", 0))) for message in asked}
        return self.backend.before in steps


def isolated(openings: Sequence[frozenset[str]], fewer_than: int = 3) -> frozenset[str]:
    """The smallest set of sites of which some combination of opened totals shows numbers that are theirs alone.

    Args:
        openings: The sites of each opened total.
        fewer_than: How large sets are that are looked at.

    Returns:
        The sites; empty where every combination is of at least as many sites.
    """
    sites = sorted(frozenset[str]().union(*openings))
    held = np.array([[site in opening for site in sites] for opening in openings], dtype=float)
    rank = np.linalg.matrix_rank(held) if len(openings) else 0
    for size in range(1, fewer_than):
        for few in combinations(range(len(sites)), size):
            others = np.delete(held, few, axis=1)
            if rank > (np.linalg.matrix_rank(others) if others.size else 0):
                return frozenset(sites[place] for place in few)
    return frozenset()
