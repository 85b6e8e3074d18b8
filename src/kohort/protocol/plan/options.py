"""Choices with options, as a plan writes them: a name, a name with a value, or a table.

    "median"    "trimmed:0.2"    "multi-krum:colluders=3,keep=10"    { name = "fedadam", lr = 0.01 }

Guarantees: an option nobody knows, of another type, or out of the range its annotation states is refused when the plan
is read into functions, before any site is asked; what comes out of `bind` needs no further check.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar, get_type_hints

from kohort.errors import ConfigError, nearest
from kohort.toml import parse_value

__all__ = ["FIRST", "bind", "named"]

FIRST = ""
"""Stands in for the key of a value without one: `bind` gives it to the function's first option."""

T = TypeVar("T")


def named(spec: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the options of a choice.

    Args:
        spec: "name", "name:value", "name:option=value,...", or a table with a name.

    Returns:
        Name and options; the value in "name:value" is kept under `FIRST`.

    Raises:
        ConfigError: It has another form.
    """
    if isinstance(spec, Mapping):
        name = spec.get("name")
        if not isinstance(name, str) or not name:
            raise ConfigError("a choice written as a table has no name", hint='Write { name = "...", option = value }')
        return name, {str(key): value for key, value in spec.items() if key != "name"}
    name, colon, text = (part.strip() for part in spec.partition(":"))
    if not name or (colon and not text):
        raise ConfigError(f"cannot read the choice {spec!r}", hint="Write name, name:value or name:option=value,...")
    options: dict[str, Any] = {}
    for position, item in enumerate(text.split(",") if text else ()):
        before, sign, after = (part.strip() for part in item.partition("="))
        key, value = (before, after) if sign else (FIRST, before)
        misplaced = key == FIRST and (sign or position > 0)
        if misplaced or not value or key in options:
            raise ConfigError(
                f"cannot read {item.strip()!r} in the choice {spec!r}", hint="Write option=value, each option once"
            )
        options[key] = parse_value(value)
    return name, options


def bind(
    function: Callable[..., T], options: Mapping[str, Any], what: str, *, later: Collection[str] = ()
) -> Callable[..., T]:
    """Set the options of a function, which are its keyword-only parameters.

    Args:
        function: What the choice names. Its annotations say which values an option takes, bounds of `annotated_types`
            included: a whole number serves as a float, text and truth values never serve as numbers.
        options: The options by name. The one under `FIRST` is the value in "name:value" and sets the first option.
        what: The choice, for errors, as in "aggregator 'trimmed'".
        later: Keyword-only parameters that the caller gives itself; they are no options.

    Returns:
        The function with its options set. Those that are not given keep their defaults.

    Raises:
        ConfigError: An option is unknown, given twice, missing without a default, of another type, or out of range.
    """
    parameters = inspect.signature(function).parameters.values()
    known = {item.name: item for item in parameters if item.kind is item.KEYWORD_ONLY and item.name not in later}
    given = {(next(iter(known), FIRST) if key == FIRST else key): value for key, value in options.items()}
    if len(given) < len(options):
        raise ConfigError(f"{what} is given {next(iter(known))!r} twice", hint="Drop the value without a name")
    for key in given:
        if key not in known:
            hint = nearest(key, known) if known else "It takes no options"
            raise ConfigError(f"{what} has no option {key!r}" if key else f"{what} takes no value", hint=hint)
    for name, item in known.items():
        if item.default is item.empty and name not in given:
            raise ConfigError(f"{what} needs its option {name!r}", hint=f"Write name:{name}=value")
    hints = _hints(function)
    return partial(function, **{key: _checked(hints[key], value, f"{what}: {key}") for key, value in given.items()})


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of a function's parameters, or of a dataclass's fields, bounds included."""
    return get_type_hints(function, include_extras=True)


def _checked(hint: Any, value: Any, place: str) -> Any:
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        reason = error.errors(include_input=False, include_url=False)[0]["msg"]
        raise ConfigError(f"{place} = {value!r}: {reason.lower()}", hint="Correct it in the plan") from None
