"""Discovery: methods, schemes, rules and studies are found, not listed.

A part is an object under an agreed name in a module of its package, or an entry point of its group in any installed
package. A name that two parts claim is an error, never a silent choice.
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import entry_points
from typing import TypeVar

from kohort.errors import ConfigError

__all__ = ["discover", "find_namesake"]

T = TypeVar("T")


def discover(package: str, *, attribute: str, kind: type[T], group: str = "") -> dict[str, T]:
    """Every `attribute` of type `kind` in the modules of `package`, and every entry point of `group`, by its `name`."""
    found: dict[str, T] = {}
    home = importlib.import_module(package)
    for module in sorted(pkgutil.iter_modules(home.__path__), key=lambda item: item.name):
        part = getattr(importlib.import_module(f"{package}.{module.name}"), attribute, None)
        if isinstance(part, kind):
            _add(found, part)
    for point in entry_points(group=group) if group else ():
        part = point.load()
        if not isinstance(part, kind):
            raise ConfigError(
                f"the entry point {point.name!r} of {group!r} is no {kind.__name__}", hint=f"Point it at {attribute}"
            )
        _add(found, part)
    return found


def find_namesake(package: str, name: str, *, attribute: str, kind: type[T], group: str = "") -> T | None:
    """The part called `name`, if the module of that name holds it and nothing else could: the others stay unread.

    None is no verdict: `discover` knows.
    """
    modules = {module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)}
    if name not in modules or (group and entry_points(group=group)):
        return None
    part = getattr(importlib.import_module(f"{package}.{name}"), attribute, None)
    return part if isinstance(part, kind) and getattr(part, "name", "") == name else None


def _add(found: dict[str, T], part: T) -> None:
    name = str(getattr(part, "name", ""))
    if name in found:
        raise ConfigError(f"two installed parts are called {name!r}", hint="Rename or uninstall one of them")
    found[name] = part
