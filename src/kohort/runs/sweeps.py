"""Settings of one plan: every combination of swept values, or every strength of some methods."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from kohort.errors import ConfigError
from kohort.runs.config import Plan, read_plan
from kohort.runs.plan.overrides import (
    METHOD_NAME,
    apply_overrides,
    dotted_keys,
    without_deprecated_keys,
)
from kohort.runs.strengths import strengths_of

__all__ = ["NOT_READ", "Sweep", "Variant", "strong_variants", "variants_of"]

NOT_READ = "not read"
"""What stands for the value of a swept key in a run that does not read it."""
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
    unread: tuple[str, ...] = ()
    """Swept keys that its plan does not read; they have no value in `chosen`."""


def variants_of(path: Path, sweeps: Sequence[Sweep], *, overrides: Sequence[str] = ()) -> list[Variant]:
    """Every combination, the last sweep fastest. All plans are checked before the first run begins.

    Args:
        path: The plan file.
        sweeps: The keys to sweep. A sweep over `method.name` leaves out, for each method, the keys it does not read;
            the notes of its runs name them.
        overrides: What `--set` was given.

    Returns:
        One variant for each combination of values of the keys that its plan reads: combinations that differ only in
        others are the same run.

    Raises:
        ConfigError: A key is swept twice, a combination is no plan, or no plan reads one of the keys.
    """
    keys = [sweep.key for sweep in sweeps]
    if len(set(keys)) < len(keys):
        raise ConfigError("a key is swept twice", hint="Give all its values in one --sweep")
    made: dict[tuple[tuple[str, str], ...], Variant] = {}
    for values in product(*(sweep.values for sweep in sweeps)):
        chosen = dict(zip(keys, values, strict=True))
        changes = [*overrides, *(f"{key}={value}" for key, value in chosen.items())]
        plan = read_plan(path, overrides=changes, drop_overrides=METHOD_NAME in keys, compared=True)
        unread = tuple(key for key in keys if key != METHOD_NAME and not _is_given(plan, key))
        own = tuple((key, value) for key, value in chosen.items() if key not in unread)
        ignored = tuple(sorted({*plan.ignored, *unread}))
        shown = {key: NOT_READ if key in unread else value for key, value in chosen.items()}
        made.setdefault(own, Variant(shown, replace(plan, ignored=ignored), unread=unread))
    _require_some_reader(list(made.values()), keys)
    return list(made.values())


def _is_given(plan: Plan, key: str) -> bool:
    """Whether a plan still gives a key that was swept: what its method does not read was left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # said when the plan was read
        names = dotted_keys(without_deprecated_keys(apply_overrides({}, [f"{key}=1"])))
    return bool(names & plan.given)


def _require_some_reader(variants: Sequence[Variant], keys: Sequence[str]) -> None:
    """Refuse to sweep a key that changes nothing."""
    dead = [key for key in keys if all(key in variant.unread for variant in variants)]
    if dead:
        who = ", ".join(dict.fromkeys(variant.plan.method for variant in variants))
        drop = " and ".join(f"--sweep {key}" for key in dead)
        raise ConfigError(f"no run of the sweep reads {', '.join(dead)} (methods: {who})", hint=f"Drop {drop}")


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
