"""Settings of one plan: every combination of swept values, or every strength of some methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from kohort.errors import ConfigError
from kohort.runs.config import Plan, read_plan
from kohort.runs.strengths import strengths_of

__all__ = ["Sweep", "Variant", "strong_variants", "variants_of"]

_OPENING, _CLOSING = "[{(", "]})"


@dataclass(frozen=True)
class Sweep:
    """One key of the plan and the values it takes, as TOML."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """From `a.b=v1,v2`; commas within brackets or quotes belong to a value."""
        key, sign, values = text.partition("=")
        found = _split(values)
        if not sign or not key.strip() or not all(found):
            raise ConfigError(f"cannot read --sweep {text!r}", hint="Write it as section.key=value,value")
        if len(set(found)) < len(found):
            raise ConfigError(f"--sweep {key.strip()} repeats a value", hint="Name every value once")
        return cls(key.strip(), tuple(found))


@dataclass(frozen=True)
class Variant:
    """One combination of swept values, and the plan it makes."""

    chosen: dict[str, str]
    plan: Plan
    protection: str | None = None
    """What protects it, where it is one of a method's strengths: k, l, t, epsilon, masks, encryption or none."""


def variants_of(path: Path, sweeps: Sequence[Sweep], *, overrides: Sequence[str] = ()) -> list[Variant]:
    """Every combination, the last sweep fastest. All plans are checked before the first run begins.

    Args:
        path: The plan file.
        sweeps: The keys to sweep. A sweep over `method.name` leaves out, for each method, the keys it does not read;
            the notes of its runs name them.
        overrides: What `--set` was given.

    Returns:
        One variant for each combination of values.

    Raises:
        ConfigError: A key is swept twice, or a combination is no plan.
    """
    keys = [sweep.key for sweep in sweeps]
    if len(set(keys)) < len(keys):
        raise ConfigError("a key is swept twice", hint="Give all its values in one --sweep")
    made = []
    for values in product(*(sweep.values for sweep in sweeps)):
        chosen = dict(zip(keys, values, strict=True))
        changes = [*overrides, *(f"{key}={value}" for key, value in chosen.items())]
        plan = read_plan(path, overrides=changes, drop_overrides="method.name" in keys, compared=True)
        made.append(Variant(chosen, plan))
    return made


def strong_variants(path: Path, methods: str, *, overrides: Sequence[str] = ()) -> list[Variant]:
    """Every strength of some methods, on one plan; keys that a method does not read are left out, and its notes say so.

    Args:
        path: The plan file.
        methods: Their names, separated by commas, or "all".
        overrides: What `--set` was given.

    Returns:
        One variant per strength, methods in order and weakest protection first.

    Raises:
        ConfigError: A method has no strengths, or a combination is no plan.
    """
    return [
        Variant(
            {"method": name, "protection": strength.label},
            read_plan(
                path,
                overrides=[*overrides, f"method.name={name}", *strength.keys],
                drop_overrides=True,
                compared=True,
            ),
            strength.kind,
        )
        for name, strengths in strengths_of(methods).items()
        for strength in strengths
    ]


def _split(text: str) -> list[str]:
    """The parts between commas that are in no brackets and no quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        depth += (sign in _OPENING) - (sign in _CLOSING) if not quote else 0
        if sign == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]
