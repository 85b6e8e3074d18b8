"""Methods are discovered: every module of this package, and every entry point of the group `kohort.methods`.

A method is one file: its config, its tasks, its plan, its claims, its citation. Registering it here gives it the
command line, the plan's schema, the report and the contract tests.
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
    """One way to train a model over many sites."""

    name: str
    summary: str
    """One line for people: what it does."""
    config: type[Any]
    """A frozen, keyword-only dataclass: the keys of `[method]` besides `name`."""
    protocol: Callable[[Any, Hub], ProtocolGenerator]
    claims: Callable[[Any, int], Sequence[Guarantee]]
    """What a site with so many rows will be asked to release; judged by its policy before anything leaves."""
    tasks: tuple[Task, ...]
    cites: str
    own_rows: bool = False
    """Whether a task of its own makes the rows sites train on; until it ran, a site has none to train on."""
    arrivals: bool = False
    """Whether it can go on with rows that arrive between rounds."""
    opening: Callable[[ApprovedPlan, Encoder, tuple[str, ...]], Ask | None] = lambda *_: None
    """What sites are asked along with their enrolment, to save a message; the plan finds the answers in `Hub.opened`.
    Nothing computed from a row may be asked for here: the hub has judged nothing yet."""
    fixed_rounds: bool = False
    """Whether it runs its rounds to the end, so that a plan with `train.stop` is refused."""
    example: str = ""
    """TOML lines of `[method]`, and after them of `[sites]`, that the demo and the contract tests run it with."""

    def example_keys(self) -> dict[str, Any]:
        """The sections of a plan its `example` fills: `method`, with its name, and perhaps `sites`."""
        return tomllib.loads(f"[method]\nname = {json.dumps(self.name)}\n{self.example}")


@cache
def methods() -> dict[str, Method]:
    """Every registered method by name."""
    return discover("kohort.methods", attribute="METHOD", kind=Method, group=GROUP)


@cache
def find_method(name: str) -> Method:
    """The method a plan names; the others are not even imported, unless it is none of ours."""
    found = find_namesake("kohort.methods", name, attribute="METHOD", kind=Method, group=GROUP)
    if found is not None:
        return found
    known = methods()
    if name not in known:
        raise ConfigError(f"unknown method {name!r}", hint=nearest(name, known))
    return known[name]
