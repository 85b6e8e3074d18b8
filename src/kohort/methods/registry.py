"""Methods are discovered: every module of this package, and every entry point of the group `kohort.methods`.

A method is one file: its config, its tasks, its plan, its claims, its citation. Registering it here gives it the
command line, the plan's schema, the report and the contract tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kohort.discovery import discover
from kohort.errors import ConfigError, nearest
from kohort.federation.plan import Hub, Plan
from kohort.federation.task import Task
from kohort.privacy.guarantee import Guarantee

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
    plan: Callable[[Any, Hub], Plan]
    claims: Callable[[Any, int], Sequence[Guarantee]]
    """What a site with so many rows will be asked to release; judged by its policy before anything leaves."""
    tasks: tuple[Task, ...]
    cites: str
    own_rows: bool = False
    """Whether a task of its own makes the rows sites train on; until it ran, a site has none to train on."""
    arrivals: bool = False
    """Whether it can go on with rows that arrive between rounds."""
    fixed_rounds: bool = False
    """Whether it runs its rounds to the end, so that a plan with `train.stop` is refused."""
    example: str = ""
    """TOML lines of `[method]` the contract tests run it with, when the defaults need more."""


@cache
def methods() -> dict[str, Method]:
    """Every registered method by name."""
    return discover("kohort.methods", attribute="METHOD", kind=Method, group=GROUP)


def find_method(name: str) -> Method:
    """The method a plan names."""
    known = methods()
    if name not in known:
        raise ConfigError(f"unknown method {name!r}", hint=nearest(name, known))
    return known[name]
