"""The strengths of protection that methods name: what `kohort compare --strengths` sets side by side."""

from __future__ import annotations

from typing import Final

from kohort.errors import ConfigError, nearest
from kohort.methods.registry import methods
from kohort.methods.strengths import Strength

__all__ = ["ALL", "strengths_of"]

ALL: Final = "all"


def strengths_of(text: str) -> dict[str, tuple[Strength, ...]]:
    """The strengths of some methods.

    Args:
        text: Methods, separated by commas, or "all".

    Returns:
        Their strengths, by method.

    Raises:
        ConfigError: A method has none.
    """
    known = {name: method.strengths for name, method in sorted(methods().items()) if method.strengths}
    names = list(known) if text.strip() == ALL else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"no strengths are known of a method {name!r}", hint=nearest(name, [ALL, *known]))
    if len(set(names)) < len(names):
        raise ConfigError("--strengths repeats a method", hint="Name every method once")
    return {name: known[name] for name in names}
