"""How a plan or a file names a torch module: by a factory that is installed here. Importing this imports no torch."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any, cast

from kohort.errors import ConfigError

__all__ = ["factory_in", "find_factory", "is_torch"]

_PREFIX = "torch:"
_IMPORTABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_SPELLING = 'Write it as "torch:package.module:factory"'


def is_torch(kind: str) -> bool:
    """Whether `model.kind` names a torch module rather than one of kohort's own networks.

    Args:
        kind: The plan's `model.kind`.

    Returns:
        True if it begins with "torch:". Whether there is such a module is not looked up.
    """
    return kind.startswith(_PREFIX)


def find_factory(name: str) -> Callable[..., Any]:
    """An installed factory of modules.

    Args:
        name: "package.module:factory".

    Returns:
        The function or class, which takes `inputs` and `outputs`.

    Raises:
        ConfigError: It cannot be imported, or takes other arguments.
    """
    place, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(place), attribute)
        takes = inspect.signature(factory).parameters
    except Exception as error:
        # Importing runs the module, which may fail in any way; whatever happens is about code, not about rows.
        raise ConfigError(
            f"cannot import {attribute!r} from {place!r} ({type(error).__name__}: {error})",
            hint="Install the module where kohort runs, at the hub and at every site, or set PYTHONPATH to its folder",
        ) from error
    # Asked for by these names, nothing is ever called that was not written to be a factory.
    others = [item for item in takes.values() if item.name not in {"inputs", "outputs"} and item.default is item.empty]
    others = [item for item in others if item.kind not in {item.VAR_POSITIONAL, item.VAR_KEYWORD}]
    if not {"inputs", "outputs"} <= set(takes) or others:
        raise ConfigError(
            f"{name!r} does not take inputs and outputs alone", hint="Define it as factory(inputs: int, outputs: int)"
        )
    return cast(Callable[..., Any], factory)


def factory_in(kind: str) -> str:
    """The name of the factory in a `model.kind`.

    Args:
        kind: "torch:package.module:factory".

    Returns:
        "package.module:factory".

    Raises:
        ConfigError: It is a path, or no importable name.
    """
    name = kind.removeprefix(_PREFIX)
    is_path = "/" in name or "\\" in name or ".py:" in name
    if is_path or not _IMPORTABLE.fullmatch(name):
        reason = (
            "a plan cannot point to a file, because no code may come with a plan"
            if is_path
            else "that is no importable name"
        )
        raise ConfigError(f"cannot use model {kind!r}: {reason}", hint=f"{_SPELLING}, of a module installed here")
    return name
