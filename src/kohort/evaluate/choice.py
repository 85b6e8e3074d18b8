"""Which of several settings to take: those no other beats in everything, and the cheapest that is good enough.

A setting is described by its mean figures over the seeds. What counts as cost is what the sites give away, never time:
epsilon (a setting without noise has none to keep, so it counts as infinite), then rows that left, then the bytes that
somebody can read: of a secure sum one total, of ciphertexts none. Where runs were attacked, the success of membership
inference is an axis, or how far the best of all attacks is above its guess; an attack whose interval holds the guess is
not above it.

Guarantee: a setting is off the front only if another is at least as good in every respect and better in one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import Any, Final

from kohort.errors import ConfigError, nearest

__all__ = [
    "ADVANTAGE",
    "COSTS",
    "MEMBERSHIP",
    "Condition",
    "Figures",
    "cheapest",
    "figures_of",
    "front",
    "intervals_of",
    "objectives",
    "parse_conditions",
    "score_name",
]

COSTS: Final = ("epsilon", "rows_released", "bytes_readable")
"""In the order in which they decide between settings that are good enough."""
MEMBERSHIP: Final = "membership"
"""The success of membership inference, where runs were attacked: an axis of the front beside the costs."""
ADVANTAGE: Final = "advantage"
"""How far the best attack of a whole audit is above its guess: an axis in place of membership alone."""
_SITES: Final = re.compile(r"\bsites=(\d+)")
_T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantiles of Student's t for 2 to 10 seeds; the normal one for more."""
ROW_KINDS: Final = frozenset({"raw", "k-anonymous", "k-km"})
_COMPARISONS: Final = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_CONDITION = re.compile(r"\A\s*([a-z0-9_]+)\s*(>=|<=|>|<)\s*(\S+)\s*\Z")

Figures = Mapping[str, float]


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures of one setting: every measure and cost, as a mean over its runs.

    Args:
        runs: JSON objects of runs of the setting, one per seed; with `attacks` where they were attacked.

    Returns:
        The mean by name, of the figures that all runs have; empty without a run. `epsilon` is infinite for a run
        without a budget.
    """
    each = [_figures_of_run(run) for run in runs]
    shared = set.intersection(*(set(figures) for figures in each)) if each else set()
    return {name: fmean(figures[name] for figures in each) for name in each[0] if name in shared} if each else {}


def intervals_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """The 95 % interval of every figure that has one.

    Args:
        runs: The runs of one setting, one per seed.

    Returns:
        Over several seeds, that of their mean; of one run, those of its measures over its test rows.
    """
    if len(runs) == 1:
        known = (runs[0].get("metrics") or {}).get("intervals") or {}
        return {name: (float(low), float(high)) for name, (low, high) in known.items()}
    each = [_figures_of_run(run) for run in runs]
    shared = [name for name in each[0] if all(name in one and isfinite(one[name]) for one in each)] if each else []
    t = _T95[len(each) - 2] if len(each) - 2 < len(_T95) else 1.96
    found = {}
    for name in shared:
        values = [one[name] for one in each]
        half = t * stdev(values) / sqrt(len(values))
        found[name] = (fmean(values) - half, fmean(values) + half)
    return found


def _figures_of_run(run: Mapping[str, Any]) -> dict[str, float]:
    metrics = run["metrics"]
    released = sum(entry["rows"] for entry in run["disclosed"] if _holds_rows(entry))
    measured = {name: float(value) for name, value in metrics.items() if _is_number(value)}
    return {
        **measured,
        "epsilon": inf if run["epsilon"] is None else float(run["epsilon"]),
        "rows_released": float(released),
        "bytes_readable": float(sum(_readable(entry) for entry in run["disclosed"])),
        "bytes_up": float(run["bytes"]["up"]),
        "rounds": float(run["rounds"]),
        **_attacked(run),
    }


def _holds_rows(entry: Mapping[str, Any]) -> bool:
    """Whether a release can hold the rows it is about: less than a byte per row are counts of them."""
    return entry["kind"] in ROW_KINDS and entry.get("size", entry["rows"]) >= entry["rows"]


def _readable(entry: Mapping[str, Any]) -> float:
    """Bytes of a kind of release that its recipient can read: one total of a secure sum, nothing of ciphertexts."""
    if entry["kind"] in ("encrypted", "public"):
        return 0.0
    sites = _SITES.search(str(entry.get("guarantee", ""))) if entry["kind"] == "secure-sum" else None
    return float(entry.get("size", 0)) / (int(sites[1]) if sites else 1)


def _attacked(run: Mapping[str, Any]) -> dict[str, float]:
    """The largest area under the curve of membership attacks on a run, and after a whole audit the largest lead."""
    made = [one for one in run.get("attacks", ()) if one["success"] is not None]
    areas = [float(one["success"]) for one in made if one["family"] == MEMBERSHIP]
    found = {MEMBERSHIP: max(areas)} if areas else {}
    if run.get("audited") and made:
        found[ADVANTAGE] = max(0.0, *(_lead(one) for one in made))
    return found


def _lead(attack: Mapping[str, Any]) -> float:
    """How far an attack is above its guess; 0 where its interval holds the guess, such as one lucky bet of one."""
    low = (attack.get("interval") or (inf,))[0]
    guess = float(attack["guess"] or 0.0)
    return float(attack["success"]) - guess if low > guess else 0.0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def score_name(figures: Figures) -> str:
    """The measure by which settings are ranked; more is better.

    Args:
        figures: What was measured.

    Returns:
        accuracy or r2.

    Raises:
        ConfigError: Nothing was measured.
    """
    for name in ("accuracy", "r2"):
        if name in figures:
            return name
    raise ConfigError("nothing was measured: the plan keeps no test rows", hint="Set data.test above 0")


def objectives(settings: Sequence[Figures]) -> tuple[str, ...]:
    """The axes that settings are compared on: the score, the costs, and attacks where all settings were attacked.

    Args:
        settings: The figures of each setting.

    Returns:
        "score", the names in `COSTS` and, where every setting has it, "advantage" or else "membership".
    """
    attacked = [name for name in (ADVANTAGE, MEMBERSHIP) if settings and all(name in one for one in settings)]
    return ("score", *COSTS, *attacked[:1])


def front(settings: Sequence[Figures]) -> list[int]:
    """The Pareto front: the settings that no other setting beats.

    One setting beats another if it is as good on every axis of `objectives`, and better on one. Success of attacks is
    rounded to 0.01 before it is compared.

    Args:
        settings: The figures of each setting.

    Returns:
        Places in `settings`, in rising order.

    Raises:
        ConfigError: A setting has no score.
    """
    axes = objectives(settings)[1:]
    points = [(-figures[score_name(figures)], *(_worth(axis, figures) for axis in axes)) for figures in settings]
    return [index for index, point in enumerate(points) if not any(_beats(other, point) for other in points)]


def _worth(axis: str, figures: Figures) -> float:
    """A figure as settings are compared by it: areas that differ by less than 0.01, or lie below a guess, are alike."""
    if axis == MEMBERSHIP:
        return max(0.5, round(figures[axis], 2))
    return round(figures[axis], 2) if axis == ADVANTAGE else figures[axis]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@dataclass(frozen=True)
class Condition:
    """A bound on one figure, such as accuracy >= 0.81."""

    name: str
    sign: str
    bound: float

    def holds(self, figures: Figures) -> bool:
        """Whether a setting keeps the bound."""
        if self.name not in figures:
            asked = {MEMBERSHIP: "Add --attack", ADVANTAGE: "Add --attack --shadows 16"}
            hint = asked.get(self.name) or nearest(self.name, list(figures))
            raise ConfigError(f"no figure is called {self.name!r}", hint=hint)
        return bool(_COMPARISONS[self.sign](figures[self.name], self.bound))


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Read conditions that are separated by commas.

    Args:
        text: Such as "accuracy>=0.81, epsilon<=1".

    Returns:
        The conditions in the order of the text.

    Raises:
        ConfigError: A part is not a figure, a sign and a number.
    """
    return tuple(_parse(part) for part in text.split(","))


def _parse(text: str) -> Condition:
    found = _CONDITION.match(text)
    try:
        if found is None:
            raise ValueError
        return Condition(found[1], found[2], float(found[3]))
    except ValueError:
        hint = 'Write a figure, a sign and a number: "accuracy>=0.81"'
        raise ConfigError(f"cannot read the condition {text.strip()!r}", hint=hint) from None


def cheapest(settings: Sequence[Figures], conditions: Sequence[Condition]) -> int | None:
    """The setting that keeps every condition at the lowest costs, compared in the order of `COSTS`, then by score.

    Args:
        settings: The figures of each setting.
        conditions: What the chosen setting has to keep.

    Returns:
        Its place in `settings`; None where no setting keeps all conditions.

    Raises:
        ConfigError: A condition names a figure that a setting does not have.
    """
    kept = [[condition.holds(figures) for condition in conditions] for figures in settings]
    good = [index for index, table in enumerate(kept) if all(table)]

    def rank(index: int) -> tuple[float, ...]:
        figures = settings[index]
        return (*(figures[cost] for cost in COSTS), -figures[score_name(figures)])

    return min(good, key=rank, default=None)
