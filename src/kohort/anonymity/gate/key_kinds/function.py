"""`function:package.module:NAME`: a key function of another package that is installed where the rows are.

NAME is a `GateKey` in that module, which alone may be named: no other object of it is called. What follows a further
colon is the text that its `make` reads.
"""

from __future__ import annotations

import importlib

from kohort.anonymity.gate.keys import GateKey, KeyFunction
from kohort.errors import ConfigError

__all__ = ["KEY"]


def _find(argument: str) -> tuple[GateKey, str]:
    """The key function that "package.module:NAME", and perhaps ":" and a text, names; and that text."""
    module, _, rest = argument.strip().partition(":")
    name, _, text = rest.partition(":")
    if not (name.isidentifier() and module and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError("a key function is named by module and name", hint="Write function:package.module:NAME")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ConfigError(
            f"the module {module!r} of a key function is not installed here", hint="Install it at the hub and all sites"
        ) from error
    if not isinstance(found, GateKey):
        raise ConfigError(f"{module}:{name} is no key function", hint="Let it be a kohort.anonymity.gate.keys.GateKey")
    return found, text


def _make(argument: str) -> KeyFunction:
    found, text = _find(argument)
    return found.make(text)


KEY = GateKey(name="function", make=_make, meant=_find)
