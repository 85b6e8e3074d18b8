"""Keys of a plan as plain mappings: set them by dotted names, list them, leave some out, read renamed ones."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from kohort.errors import ConfigError
from kohort.methods.registry import find_method
from kohort.toml import parse_value

__all__ = [
    "METHOD_NAME",
    "apply_overrides",
    "copied",
    "dotted_keys",
    "key_of",
    "place_of",
    "without_deprecated_keys",
    "without_keys",
]

METHOD_NAME = "method.name"


def apply_overrides(raw: Mapping[str, Any], overrides: Sequence[str], *, method_last: bool = False) -> dict[str, Any]:
    """`raw` with every `a.b=value` set; values are TOML, and a bare word is text.

    The entries of a list of sections are numbered from 1: `method.phases.2.lr=1.0`. Where `method.name` is set, keys of
    `[method]` that the new method does not have are left out.

    Args:
        raw: The sections of a plan.
        overrides: Texts of the form `section.key=value`.
        method_last: Set `method.name` after all other keys, so that it also leaves out keys set by `overrides`.

    Returns:
        A new mapping; `raw` stays as it is.

    Raises:
        ConfigError: A text is no override, or it sets a key below something that is no section.
    """
    result: dict[str, Any] = copied(raw)
    named = [override for override in overrides if place_of(override) == METHOD_NAME]
    others = [override for override in overrides if place_of(override) != METHOD_NAME]
    for override in (*others, *named) if method_last else (*named, *others):
        place, _, text = override.partition("=")
        *parents, last = place_of(override).split(".")
        if place_of(override) == METHOD_NAME and isinstance(result.get("method"), dict):
            result["method"] = _keys_of_method(result["method"], parse_value(text))
        inner: Any = result
        for key in parents:
            inner = _section_in(inner, key, place)
        if not isinstance(inner, dict):
            raise ConfigError(f"cannot set {place!r}: it names a list", hint="Write the number of an entry, from 1 on")
        inner[last] = parse_value(text)
    return result


def place_of(override: str) -> str:
    """The dotted name an override sets.

    Args:
        override: A text of the form `section.key=value`.

    Returns:
        The name, without blanks around its parts.

    Raises:
        ConfigError: The text has no name or no equals sign.
    """
    place, sign, _ = override.partition("=")
    keys = [key.strip() for key in place.split(".")]
    if not sign or not all(keys):
        raise ConfigError(f"cannot read --set {override!r}", hint="Write it as section.key=value")
    return ".".join(keys)


def dotted_keys(raw: Mapping[str, Any]) -> frozenset[str]:
    """The dotted names of all keys of a plan: `section.key`, and within `[method]` also those of its own sections.

    The entries of a list of sections are numbered from 1: `method.phases.2.lr`.

    Args:
        raw: The sections of a plan.

    Returns:
        The names, such as "train.lr" and "method.dp.epsilon"; keys whose value is None are left out.
    """
    sections = {name: values for name, values in raw.items() if isinstance(values, Mapping)}
    found = {f"{name}.{key}" for name, values in sections.items() for key, value in values.items() if value is not None}
    return frozenset(found | _keys_within(sections.get("method", {}), "method"))


def _keys_within(section: Mapping[str, Any], place: str) -> set[str]:
    """The dotted names of a section's keys, and of those of the sections in it."""
    found = {f"{place}.{key}" for key, value in section.items() if value is not None}
    return found.union(*(_keys_within(value, f"{place}.{key}") for key, value in _sections_within(section)))


def _sections_within(section: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield key, value
        elif isinstance(value, list | tuple):
            yield from ((f"{key}.{at}", one) for at, one in enumerate(value, 1) if isinstance(one, Mapping))


def without_keys(raw: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """A copy of `raw` without the keys of these dotted names.

    Args:
        raw: The sections of a plan.
        keys: Dotted names; those that the plan does not have are passed over.

    Returns:
        The copy, which shares nothing with `raw`.
    """
    result: dict[str, Any] = copied(raw)
    for name in keys:
        *parents, last = name.split(".")
        inner = result
        for parent in parents:
            inner = inner.get(parent, {})
        inner.pop(last, None)
    return result


def copied(value: Any) -> Any:
    """`value` with mappings and lists of its own, all the way down.

    Args:
        value: Nested mappings and lists of plain values.

    Returns:
        A copy that can be changed without changing `value`.
    """
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def key_of(name: str) -> str:
    """The key of a field in TOML.

    Args:
        name: The field's name; one that is a keyword of Python has an underscore at its end, such as `lambda_`.

    Returns:
        The name without that underscore.
    """
    return name.removesuffix("_")


def _section_in(outer: Any, key: str, place: str) -> Any:
    """The section or list called `key` within `outer`, made where there is none."""
    if isinstance(outer, list):
        if not key.isdecimal() or not 1 <= int(key) <= len(outer):
            hint = f"Write a number from 1 to {len(outer)}"
            raise ConfigError(f"cannot set {place!r}: {key!r} is no entry of the list", hint=hint)
        following = outer[int(key) - 1]
    else:
        following = outer.setdefault(key, {})
    if not isinstance(following, dict | list):
        raise ConfigError(f"cannot set {place!r}: {key!r} is not a section")
    return following


def _keys_of_method(section: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """What of a `[method]` section the method called `name` has too."""
    method = find_method(str(name))
    if method.name == section.get("name"):
        return dict(section)
    allowed = {key_of(item.name) for item in fields(method.config)}
    return {key: value for key, value in section.items() if key in allowed}


def without_deprecated_keys(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`raw` with every deprecated key under its new name, and a warning for each.

    Args:
        raw: The sections of a plan.

    Returns:
        A copy with the new names.

    Raises:
        ConfigError: A section has both the old and the new name of a key.
    """
    result: dict[str, Any] = copied(raw)
    sites, method = result.get("sites"), result.get("method")
    _rename_key(sites, "trouble", "faults", "sites")
    _rename_key(sites.get("faults") if isinstance(sites, dict) else None, "hostile", "byzantine", "sites.faults")
    if isinstance(method, dict):
        _rename_key(method.get("dp"), "tail", "average", "method.dp")
        phases = method.get("phases")
        for number, phase in enumerate(phases if isinstance(phases, list) else (), start=1):
            dp = phase.get("dp") if isinstance(phase, dict) else None
            _rename_key(dp, "tail", "average", f"method.phases.{number}.dp")
    return result


def _rename_key(section: Any, old: str, new: str, place: str) -> None:
    if not isinstance(section, dict) or old not in section:
        return
    if new in section:
        raise ConfigError(f"{place} has both {old!r} and {new!r}", hint=f"Drop {place}.{old}, the old name")
    section[new] = section.pop(old)
    warnings.warn(f"{place}.{old} is deprecated; write {place}.{new}", FutureWarning, stacklevel=4)
