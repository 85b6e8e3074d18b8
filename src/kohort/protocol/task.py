"""Tasks: what a site can be asked to do.

A task runs at a site, sees its rows, and returns a release; it has no way to send anything. Requests name a task, and
a site runs the task of that name that is installed there: nothing callable ever comes from the hub.

A task has a `one` form, for a single site, and may have a `many` form that answers for many sites in one call. Both
must give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, RefusedError
from kohort.privacy.guarantee import Guarantee
from kohort.privacy.ledger.ledger import LedgerContext, quoted
from kohort.protocol.site import Site
from kohort.protocol.wire import Payload, encode

if TYPE_CHECKING:
    from kohort.protocol.plan.approved import ApprovedPlan

__all__ = ["ManySites", "Release", "Releases", "Request", "Task", "find_task", "installed_tasks"]

_TASKS: dict[str, Task] = {}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to one or many sites, bound to its run, plan, round, attempt and nonce by its digest."""

    run: str
    plan_hash: str
    task: str
    round: int
    attempt: int
    nonce: str
    payload: Payload
    encoded: bytes = field(init=False, repr=False)
    """The payload's bytes."""
    digest: str = field(init=False, repr=False)
    """Identifies the request in ledger lines, receipts and stored replies, and keys the noise of its answer."""
    ledger_context: LedgerContext = field(init=False, repr=False)
    """What all ledger lines of releases to the hub have in common."""

    def __post_init__(self) -> None:
        encoded = encode(self.payload)
        # The canonical JSON of these six values, written by hand: five times faster.
        names = f"{quoted(self.run)},{quoted(self.plan_hash)},{quoted(self.task)}"
        head = f"[{names},{self.round},{self.attempt},{quoted(self.nonce)}]\0"
        digest = hashlib.blake2b(head.encode() + encoded, digest_size=32).hexdigest()
        object.__setattr__(self, "encoded", encoded)
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "ledger_context", LedgerContext(what=self.task, request=digest, round=self.round))

    @cached_property
    def content(self) -> bytes:
        """A hash of the payload alone: equal for everybody who was told the same."""
        return hashlib.blake2b(self.encoded, digest_size=32).digest()


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a task wants to send, the guarantee it claims, and the number of rows it was computed from."""

    payload: Payload
    guarantee: Guarantee
    rows: int
    to: str = "hub"
    via: str = ""
    """Who carries it, when that is not the recipient; the payload is then a sealed message."""
    said: int | None = None
    """What the ledger and messages say instead of `rows`, where how many took part must not be seen and the task is
    about a part of the rows (`kohort.protocol.enrolment.rows_to_say`)."""
    sent: NDArray[np.bool_] | None = None
    """Which rows of the site's table are in the payload, in whatever form; for steps that send rows."""


class Releases(NamedTuple):
    """The releases of many sites, stacked: entry i of every array and metric belongs to site i."""

    arrays: dict[str, NDArray[Any]]
    metrics: dict[str, NDArray[Any]]
    guarantees: Sequence[Guarantee]
    rows: Sequence[int]
    to: str = "hub"
    said: Sequence[int] | None = None
    """As in `Release`."""


ManySites = Callable[[Sequence[Site], Request], Releases | None]
"""The form of a task that answers for many sites in one call."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A named piece of work at a site. Creating one registers its name.

    Raises:
        ConfigError: Another module registered the same name.
    """

    name: str
    one: Callable[[Site, Request], Release]
    many: ManySites | None = None
    """May return None when it cannot answer for these sites in one call; they are then asked one by one."""
    replayed: bool = True
    """Whether a restarted site rebuilds its state by replaying the request. False when the checkpoint of the site's
    states holds everything that the task changes."""
    public: bool = True
    """Whether its payload is a public input, the same for every site and in force until the next one of this task. It
    is then part of the view of every secure sum. False where each site is sent something of its own."""
    family: str = ""
    """Of a sum: what its totals belong to in the book of openings; empty where they are no statistics of fixed rows."""
    grouped: Callable[[ApprovedPlan], bool] = lambda _: False
    """Of a sum: whether totals are over unions of public groups; what changes little from round to round would show a
    single site that is in one total and not in the next."""
    small_cells: Callable[[ApprovedPlan], tuple[int, int]] | None = None
    """Of a sum: the unit of counts in its totals, and the least count a key-holder opens as it is; None where there are
    none."""
    signed: bool = False
    """Of a sum: whether a key-holder signs its totals, so that sites can rely on what it rounded."""

    def __post_init__(self) -> None:
        known = _TASKS.setdefault(self.name, self)
        if known is not self and known.one.__module__ != self.one.__module__:
            raise ConfigError(f"two tasks are called {self.name!r}", hint="Rename one of them")
        _TASKS[self.name] = self


def find_task(name: str) -> Task:
    """The installed task of a name.

    Args:
        name: The name in a request.

    Returns:
        The task.

    Raises:
        RefusedError: No task of this name is installed here.
    """
    found = _TASKS.get(name)
    if found is None:
        raise RefusedError(
            f"no task called {name!r} is installed at this site", hint="Install the package that brings it"
        )
    return found


def installed_tasks() -> tuple[str, ...]:
    """The names of all tasks that a request can ask for here.

    Returns:
        The names, sorted.
    """
    return tuple(sorted(_TASKS))
