"""Plug-in discovery for methods, schemes, rules and studies.

A plug-in is an object under an agreed attribute name in a module of its package, or an entry point of its group in any
installed package. Two plug-ins with the same name are an error, never a silent choice.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from kohort.errors import ConfigError

__all__ = ["discover", "entry_points", "find_namesake", "version"]

T = TypeVar("T")


def entry_points(*, group: str, name: str | None = None) -> metadata.EntryPoints:
    """The entry points of a group. The files of all packages are read anew only after one was installed or removed.

    Args:
        group: The group.
        name: Of these, the ones with this name; all by default.

    Returns:
        The entry points.
    """
    found = _installed_points(group, tuple((path, _changed(path)) for path in sys.path))
    return found if name is None else found.select(name=name)


@lru_cache(maxsize=32)
def _installed_points(group: str, folders: tuple[tuple[str, int], ...]) -> metadata.EntryPoints:
    del folders
    return metadata.entry_points(group=group)


def _changed(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


@cache
def version(package: str) -> str:
    """The version of an installed package, read once.

    Args:
        package: Its name.

    Returns:
        The version.

    Raises:
        PackageNotFoundError: It is not installed.
    """
    return metadata.version(package)


def discover(package: str, *, attribute: str, kind: type[T], group: str = "") -> dict[str, T]:
    """Import and collect all plug-ins of a package and an entry-point group.

    Args:
        package: The package whose modules are searched.
        attribute: The module attribute that holds a plug-in.
        kind: The class a plug-in must be an instance of.
        group: The entry-point group for plug-ins of other installed packages; empty for none.

    Returns:
        The plug-ins by their `name`.

    Raises:
        ConfigError: Two plug-ins have the same name, or an entry point refers to something else than a `kind`.
    """
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
                f"the entry point {point.name!r} of group {group!r} is not a {kind.__name__}",
                hint=f"Let it refer to the module's {attribute}",
            )
        _add(found, part)
    return found


def find_namesake(package: str, name: str, *, attribute: str, kind: type[T], group: str = "") -> T | None:
    """The plug-in called `name` from the module of the same name, without importing any other module.

    This shortcut is only safe when no entry point could define the same name, so it gives up when the group has any.

    Args:
        package: The package whose modules are searched.
        name: The plug-in and its module.
        attribute: The module attribute that holds a plug-in.
        kind: The class a plug-in must be an instance of.
        group: The entry-point group for plug-ins of other installed packages; empty for none.

    Returns:
        The plug-in; None when only `discover` can say whether there is one.
    """
    modules = {module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)}
    if name not in modules or (group and entry_points(group=group)):
        return None
    part = getattr(importlib.import_module(f"{package}.{name}"), attribute, None)
    return part if isinstance(part, kind) and getattr(part, "name", "") == name else None


def _add(found: dict[str, T], part: T) -> None:
    name = str(getattr(part, "name", ""))
    if name in found:
        raise ConfigError(f"two installed plug-ins are called {name!r}", hint="Rename or uninstall one of them")
    found[name] = part
