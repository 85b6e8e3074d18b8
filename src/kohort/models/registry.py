"""Model kinds are registered: a loader under a name, found when a file of that kind is read.

A kind is an object `KIND` in the module of its name in `kohort.models.kinds`; beside a method, in the package of that
name in `kohort.methods`, when only that method makes such models; or an entry point of the group `kohort.models`, under
the kind's name, in any installed package. Looking one up imports no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint

from kohort.errors import ConfigError
from kohort.models.base import Model, SavedModel
from kohort.registry import entry_points, find_namesake, version

__all__ = ["GROUP", "FoundKind", "ModelKind", "find_kind"]

GROUP = "kohort.models"
_HOMES = ("kohort.models.kinds", "kohort.methods")


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """A kind of model: what files of it are called, and what reads them."""

    name: str
    load: Callable[[SavedModel], Model]
    """Makes the model again that `Model.save` took apart. It may raise anything for data that does not fit together,
    and a ConfigError for what is missing where the model is read."""


@dataclass(frozen=True)
class FoundKind:
    """A registered kind, and which package in which version provides it."""

    kind: ModelKind
    package: str
    version: str


def find_kind(name: str) -> FoundKind | None:
    """The kind called `name`.

    Args:
        name: as a model file or `Model.kind` has it.

    Returns:
        The kind with the package that provides it; None when no installed package does.

    Raises:
        ConfigError: two packages claim the name, or an entry point leads to something else.
    """
    ours = (find_namesake(home, name, attribute="KIND", kind=ModelKind) for home in _HOMES)
    found = [FoundKind(kind, "kohort", version("kohort")) for kind in ours if kind is not None]
    found += [_loaded(point) for point in entry_points(group=GROUP, name=name)]
    if len(found) > 1:
        places = ", ".join(item.package for item in found)
        raise ConfigError(
            f"two installed parts are called {name!r}, in {places}", hint="Rename or uninstall one of them"
        )
    return found[0] if found else None


def _loaded(point: EntryPoint) -> FoundKind:
    kind = point.load()
    if not isinstance(kind, ModelKind) or kind.name != point.name:
        raise ConfigError(
            f"the entry point {point.name!r} of {GROUP!r} is no ModelKind of that name", hint="Point it at KIND"
        )
    if point.dist is None:
        return FoundKind(kind, point.module, "unknown")
    return FoundKind(kind, point.dist.name, point.dist.version)
