"""Methods are discovered: every module of this package, and every entry point of the group `kohort.methods`.

A method is one file: its config, its tasks, its plan, its claims, its citation. Registering it here gives it the
command line, the plan's schema, the report and the contract tests.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

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
    example: str = ""
    """TOML lines of `[method]` the contract tests run it with, when the defaults need more."""


@cache
def methods() -> dict[str, Method]:
    """Every registered method by name."""
    package = importlib.import_module("kohort.methods")
    found: dict[str, Method] = {}
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
        method = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "METHOD", None)
        if isinstance(method, Method):
            _add(found, method)
    for point in entry_points(group=GROUP):
        method = point.load()
        if not isinstance(method, Method):
            raise ConfigError(f"the entry point {point.name!r} does not name a Method", hint="Point it at METHOD")
        _add(found, method)
    return found


def find_method(name: str) -> Method:
    """The method a plan names."""
    known = methods()
    if name not in known:
        raise ConfigError(f"unknown method {name!r}", hint=nearest(name, known))
    return known[name]


def _add(found: dict[str, Method], method: Method) -> None:
    if method.name in found:
        raise ConfigError(f"two methods are called {method.name!r}", hint="Rename or uninstall one of them")
    found[method.name] = method
