"""Tasks: what a site can be asked to do.

A task runs at a site, sees its rows, and returns a release; it has no way to send anything. Requests name a task, and
a site runs the task of that name that is installed there: nothing callable ever comes from the hub.

A task has a `one` form, for a single site, and may have a `many` form that answers for many sites in one call. Both
must give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from kohort.errors import ConfigError, RefusedError
from kohort.federation.wire import Payload, encode
from kohort.privacy.guarantee import Guarantee
from kohort.privacy.ledger import canonical

if TYPE_CHECKING:
    from kohort.federation.site import Site

__all__ = ["Release", "Releases", "Request", "Task", "find_task"]

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

    @cached_property
    def encoded(self) -> bytes:
        """The payload's bytes."""
        return encode(self.payload)

    @cached_property
    def digest(self) -> str:
        """What answers, ledger lines and outboxes are keyed with."""
        # The canonical form of the list of these six; made from its parts, it takes a fifth of the time.
        run, plan, task, nonce = map(canonical, (self.run, self.plan_hash, self.task, self.nonce))
        head = f"[{run},{plan},{task},{self.round},{self.attempt},{nonce}]\0"
        return hashlib.blake2b(head.encode() + self.encoded, digest_size=32).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a task would like to send, and the guarantee it claims for it."""

    payload: Payload
    guarantee: Guarantee
    rows: int
    to: str = "hub"
    via: str = ""
    """Who carries it, when that is not the recipient; it is then sealed."""


@dataclass(frozen=True, kw_only=True)
class Releases:
    """The releases of many sites, stacked: entry i of every array and metric is site i's."""

    arrays: dict[str, NDArray[Any]]
    metrics: dict[str, NDArray[Any]]
    guarantees: Sequence[Guarantee]
    rows: Sequence[int]
    to: str = "hub"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A named piece of site-side work. Making one registers its name."""

    name: str
    one: Callable[[Site, Request], Release]
    many: Callable[[Sequence[Site], Request], Releases | None] | None = None
    """May return None when these sites cannot be answered in one go; they are then asked one by one."""

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
