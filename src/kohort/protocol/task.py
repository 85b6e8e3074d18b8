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
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from kohort.errors import ConfigError, RefusedError
from kohort.privacy.guarantee import Guarantee
from kohort.privacy.ledger.ledger import LedgerContext, quoted
from kohort.protocol.wire import Payload, encode

if TYPE_CHECKING:
    from kohort.protocol.site import Site

__all__ = ["ManySites", "Release", "Releases", "Request", "Task", "find_task"]

_TASKS: dict[str, Task] = {}


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question to one or many sites, bound to run, plan, round, attempt and nonce."""

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
    """What answers, ledger lines and outboxes are keyed with."""
    ledger_context: LedgerContext = field(init=False, repr=False)
    """What is common to the ledger lines of releases to the hub."""

    def __post_init__(self) -> None:
        encoded = encode(self.payload)
        # The canonical form of the list of these six; made from its parts, it takes a fifth of the time.
        names = f"{quoted(self.run)},{quoted(self.plan_hash)},{quoted(self.task)}"
        head = f"[{names},{self.round},{self.attempt},{quoted(self.nonce)}]\0"
        digest = hashlib.blake2b(head.encode() + encoded, digest_size=32).hexdigest()
        object.__setattr__(self, "encoded", encoded)
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "ledger_context", LedgerContext(what=self.task, request=digest, round=self.round))


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a task would like to send, and the guarantee it claims for it."""

    payload: Payload
    guarantee: Guarantee
    rows: int
    to: str = "hub"
    via: str = ""
    """Who carries it, when that is not the recipient; it is then sealed."""


class Releases(NamedTuple):
    """The releases of many sites, stacked: entry i of every array and metric is site i's."""

    arrays: dict[str, NDArray[Any]]
    metrics: dict[str, NDArray[Any]]
    guarantees: Sequence[Guarantee]
    rows: Sequence[int]
    to: str = "hub"


ManySites = Callable[[Sequence["Site"], Request], Releases | None]
"""A task's form for many sites at once."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A named piece of site-side work. Making one registers its name."""

    name: str
    one: Callable[[Site, Request], Release]
    many: ManySites | None = None
    """May return None when these sites cannot be answered in one go; they are then asked one by one."""
    replayed: bool = True
    """Whether a real site that restarts runs the request again to rebuild its state. False: all the task changes is in
    the checkpoint of the site's states."""

    def __post_init__(self) -> None:
        known = _TASKS.setdefault(self.name, self)
        if known is not self and known.one.__module__ != self.one.__module__:
            raise ConfigError(f"two tasks are called {self.name!r}", hint="Rename one of them")
        _TASKS[self.name] = self


def find_task(name: str) -> Task:
    """The installed task of this name; an unknown one is refused."""
    found = _TASKS.get(name)
    if found is None:
        raise RefusedError(f"no task called {name!r} is installed at this site")
    return found
