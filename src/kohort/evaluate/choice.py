"""Which of several settings to take: those no other beats in everything, and the cheapest that is good enough.

A setting is described by its mean figures over the seeds. What counts as cost is what the sites give away, never time:
epsilon (a setting without noise has none to keep, so it counts as infinite), then rows that left, then bytes.

Guarantee: a setting is off the front only if another is at least as good in every respect and better in one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Any, Final

from kohort.errors import ConfigError, nearest

__all__ = [
    "COSTS",
    "MEMBERSHIP",
    "Condition",
    "Figures",
    "cheapest",
    "figures_of",
    "front",
    "objectives",
    "parse_conditions",
    "score_name",
]

COSTS: Final = ("epsilon", "rows_released", "bytes_up")
"""In the order in which they decide between settings that are good enough."""
MEMBERSHIP: Final = "membership"
"""The success of membership inference, where runs were attacked: an axis of the front beside the costs."""
ROW_KINDS: Final = frozenset({"raw", "k-anonymous", "k-km"})
_COMPARISONS: Final = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_CONDITION = re.compile(r"\A\s*([a-z0-9_]+)\s*(>=|<=|>|<)\s*(\S+)\s*\Z")

Figures = Mapping[str, float]


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What can be compared of a setting: the mean over its runs of every measure and cost."""
    each = [_figures_of_run(run) for run in runs]
    shared = set.intersection(*(set(figures) for figures in each)) if each else set()
    return {name: fmean(figures[name] for figures in each) for name in each[0] if name in shared} if each else {}


def _figures_of_run(run: Mapping[str, Any]) -> dict[str, float]:
    metrics = run["metrics"]
    released = sum(entry["rows"] for entry in run["disclosed"] if _holds_rows(entry))
    measured = {name: float(value) for name, value in metrics.items() if _is_number(value)}
    return {
        **measured,
        "epsilon": inf if run["epsilon"] is None else float(run["epsilon"]),
        "rows_released": float(released),
        "bytes_up": float(run["bytes"]["up"]),
        "rounds": float(run["rounds"]),
        **_attacked(run),
    }


def _holds_rows(entry: Mapping[str, Any]) -> bool:
    """Whether a release can hold the rows it is about: less than a byte per row are counts of them."""
    return entry["kind"] in ROW_KINDS and entry.get("size", entry["rows"]) >= entry["rows"]


def _attacked(run: Mapping[str, Any]) -> dict[str, float]:
    """The largest area under the curve of the membership attacks on a run; nothing where there were none."""
    found = [one["success"] for one in run.get("attacks", ()) if one["family"] == MEMBERSHIP]
    made = [float(value) for value in found if value is not None]
    return {MEMBERSHIP: max(made)} if made else {}


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
    """What settings are compared in: the score, the costs, and attacks where all settings were attacked."""
    attacked = bool(settings) and all(MEMBERSHIP in figures for figures in settings)
    return ("score", *COSTS, *([MEMBERSHIP] if attacked else []))


def front(settings: Sequence[Figures]) -> list[int]:
    """The settings that no other beats: none is as good in score and every cost and better in one of them."""
    axes = objectives(settings)[1:]
    points = [(-figures[score_name(figures)], *(_worth(axis, figures) for axis in axes)) for figures in settings]
    return [index for index, point in enumerate(points) if not any(_beats(other, point) for other in points)]


def _worth(axis: str, figures: Figures) -> float:
    """A figure as settings are compared by it: areas that differ by less than 0.01, or lie below a guess, are alike."""
    return max(0.5, round(figures[axis], 2)) if axis == MEMBERSHIP else figures[axis]


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
            hint = "Add --attack" if self.name == MEMBERSHIP else nearest(self.name, list(figures))
            raise ConfigError(f"no figure is called {self.name!r}", hint=hint)
        return bool(_COMPARISONS[self.sign](figures[self.name], self.bound))


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Conditions separated by commas: "accuracy>=0.81, epsilon<=1"."""
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
    """Of the settings that keep every condition the one that costs the sites least, then the best; None if none."""
    kept = [[condition.holds(figures) for condition in conditions] for figures in settings]
    good = [index for index, table in enumerate(kept) if all(table)]

    def rank(index: int) -> tuple[float, ...]:
        figures = settings[index]
        return (*(figures[cost] for cost in COSTS), -figures[score_name(figures)])

    return min(good, key=rank, default=None)
