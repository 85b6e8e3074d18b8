"""The plan of a report: every key that was read, without values that a table holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["shown_plan"]

_OF_VALUES: Final = ("bins", "bounds", "categories", "hierarchies", "kinds", "mapping")
"""Keys of `[data]` that declare values of columns: the page says for how many columns."""


def shown_plan(plan: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Every key of a plan and its value in words; declared categories, bounds and the like stay out of the page.

    Args:
        plan: The keys that the plans of the runs have in common.

    Returns:
        Dotted keys and values, sections in order.
    """
    return [line for section, values in (plan or {}).items() for line in _lines(section, values)]


def _lines(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """One line per leaf; what is empty or not set says nothing."""
    section, _, name = key.partition(".")
    if section == "data" and name in _OF_VALUES:
        if value:
            yield key, f"declared for {len(value)} {'column' if len(value) == 1 else 'columns'}"
    elif isinstance(value, Mapping):
        for inner, own in value.items():
            yield from _lines(f"{key}.{inner}", own)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value, start=1):
            yield from _lines(f"{key}.{number}", item)
    elif value is not None and value not in ([], "", ()):
        yield key, _as_text(value)


def _as_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
