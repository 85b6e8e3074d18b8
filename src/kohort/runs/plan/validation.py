"""Plain values into the dataclasses of a plan's sections, with errors that name the key and the nearest valid one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Any, get_args, get_type_hints

from kohort.errors import ConfigError, nearest
from kohort.runs.plan.overrides import key_of

__all__ = ["validated"]

LARGEST = 2**53
"""Larger whole numbers have no exact number in floating point, and arrays cannot hold all of them."""


def validated(section: type[Any], values: Any, place: str) -> Any:
    """Read plain values into a section of a plan.

    Args:
        section: The section's dataclass.
        values: Its keys and values, as TOML reads them.
        place: The section's name, for errors.

    Returns:
        An instance of `section`.

    Raises:
        ConfigError: A key is unknown or missing, or a value does not fit; the message names its place.
    """
    from pydantic import ValidationError

    _refuse_unusable(values, place)
    try:
        read = _adapter(section).validate_python(values)  # type: ignore[arg-type] # a class is hashable
        _refuse_truth_for_numbers(values, read, place)
        return read
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = _keys_in(values, first["loc"])
        full = ".".join([place, *where])
        if first["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
            named = ["name"] if place == "method" and len(where) == 1 else []  # which has been read before
            valid = [*_valid_keys(section, where[:-1]), *named]
            raise ConfigError(f"unknown key {full!r} in the plan", hint=nearest(where[-1], valid)) from None
        if first["type"] in {"missing", "missing_argument"}:
            raise ConfigError(f"the plan lacks {full!r}", hint="Add it") from None
        if first["type"] in {"dataclass_type", "dataclass_exact_type"}:
            keys = ", ".join(_valid_keys(section, where)[:6])
            listed = any(part.isdigit() for part in where)  # an entry of a list has no heading of its own
            how = f"{where[-1]} = {{...}} with its keys" if listed else f"[{full}] and its keys"
            message = f"{full!r} in the plan is a section, not a single value"
            raise ConfigError(message, hint=f"Write {how}: {keys}") from None
        raise ConfigError(f"{full!r} in the plan: {first['msg'].lower()}", hint="Correct it") from None


@cache
def _adapter(section: type[Any]) -> Any:
    """What reads a section. Making it takes milliseconds, most of the time a plan takes to read, so it is made once."""
    from pydantic import TypeAdapter

    return TypeAdapter(section)


def _keys_in(values: Any, location: Sequence[str | int]) -> list[str]:
    """`location` without the words the validator puts between keys, such as the alternatives of a union."""
    keys, current = [], values
    for part in location[:-1]:
        if isinstance(current, Mapping) and part in current:
            keys.append(str(part))
            current = current[part]
        elif isinstance(current, list | tuple) and isinstance(part, int) and part < len(current):
            keys.append(str(part + 1))  # entries of a list are numbered from 1, as in --set
            current = current[part]
    last = location[-1] if location else ""
    return [*keys, str(last)] if isinstance(current, Mapping) else keys


def _refuse_unusable(value: Any, place: str) -> None:
    """TOML knows inf, nan and whole numbers without end; no key of a plan can mean them."""
    if isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"{place!r} in the plan is not a finite number", hint="Correct it")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ConfigError(f"{place!r} in the plan is beyond 2^53", hint="Write a smaller number")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_unusable(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_unusable(item, place)


def _refuse_truth_for_numbers(given: Any, read: Any, place: str) -> None:
    """The validator reads true as 1; in a plan it is a slip."""
    if isinstance(given, bool) and isinstance(read, int | float) and not isinstance(read, bool):
        raise ConfigError(f"{place!r} in the plan should be a number, not true or false", hint="Correct it")
    if isinstance(given, Mapping):
        for key, item in given.items():
            inner = read.get(key) if isinstance(read, Mapping) else _field_of(read, key)
            _refuse_truth_for_numbers(item, inner, f"{place}.{key}")
    elif isinstance(given, list | tuple) and isinstance(read, list | tuple):
        for number, (item, inner) in enumerate(zip(given, read, strict=False), start=1):
            _refuse_truth_for_numbers(item, inner, f"{place}.{number}")


def _field_of(read: Any, key: str) -> Any:
    """The value of a section's key; None where the section has no field for it."""
    return next((getattr(read, name) for name in (key, f"{key}_") if hasattr(read, name)), None)


def _valid_keys(section: type[Any], path: Sequence[str]) -> list[str]:
    """The keys allowed at `path` below a section's dataclass."""
    current: Any = section
    for part in path:
        hints = get_type_hints(current) if is_dataclass(current) else {}
        inner = hints.get(part)
        options = [inner, *get_args(inner)]
        following = next((option for option in options if is_dataclass(option)), None)
        if following is None:
            continue
        current = following
    return [key_of(item.name) for item in fields(current)] if is_dataclass(current) else []
