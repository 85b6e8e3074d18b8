"""The registry of methods: every module of this package, and every entry point of the group `kohort.methods`.

A method is one file or folder: its config, tasks, protocol, claims and citation. A registered method is available on
the command line, in the JSON Schema of a plan, in reports and in the contract tests.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kohort.errors import ConfigError, nearest
from kohort.privacy.guarantee import Guarantee
from kohort.protocol.hub import Ask, Hub, ProtocolGenerator
from kohort.protocol.plan import ApprovedPlan
from kohort.protocol.task import Task
from kohort.registry import discover, find_namesake
from kohort.tables.encoder import Encoder

__all__ = ["GROUP", "Method", "find_method", "methods"]

GROUP = "kohort.methods"


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train a model over many sites, with everything the other packages need to know about it."""

    name: str
    summary: str
    """What it does, in one line for people."""
    config: type[Any]
    """A frozen, keyword-only dataclass: the keys of `[method]` besides `name`."""
    protocol: Callable[[Any, Hub], ProtocolGenerator]
    claims: Callable[[Any, int], Sequence[Guarantee]]
    """From its config and a number of rows: the guarantees of all releases that a site with so many rows will be asked
    for. The site's policy judges them before anything leaves."""
    tasks: tuple[Task, ...]
    cites: str
    own_rows: bool = False
    """Whether one of its tasks makes the rows that sites train on. A site refuses to train before that task has run."""
    arrivals: bool = False
    """Whether it supports rows that arrive between rounds."""
    opening: Callable[[ApprovedPlan, Encoder, tuple[str, ...]], Ask | None] = lambda *_: None
    """A request that is sent together with the enrolment, to save a message; the protocol finds the replies in
    `Hub.opened`. It must not ask for anything computed from rows, because the hub has not checked anything yet."""
    fixed_rounds: bool = False
    """Whether it always runs all its rounds, so that a plan with `train.stop` is refused."""
    example: str = ""
    """TOML lines of `[method]`, then of `[sites]`, with which the demo and the contract tests run it."""

    def example_keys(self) -> dict[str, Any]:
        """The sections of a plan that `example` sets: `method`, with the name of this method, and perhaps `sites`."""
        return tomllib.loads(f"[method]\nname = {json.dumps(self.name)}\n{self.example}")


@cache
def methods() -> dict[str, Method]:
    """All registered methods by name."""
    return discover("kohort.methods", attribute="METHOD", kind=Method, group=GROUP)


@cache
def find_method(name: str) -> Method:
    """The method with this name. No other method is imported, unless the name is not one of this package.

    Raises:
        ConfigError: No method has this name; the hint has the nearest one.
    """
    found = find_namesake("kohort.methods", name, attribute="METHOD", kind=Method, group=GROUP)
    if found is not None:
        return found
    known = methods()
    if name not in known:
        raise ConfigError(f"unknown method {name!r}", hint=nearest(name, known))
    return known[name]
