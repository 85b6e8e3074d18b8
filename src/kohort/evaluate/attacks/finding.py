"""What an attack found: how often it was right, how often a guess would have been, and how sure that is.

A finding is about one attack on one thing that left the sites, by somebody who has it. An attack that does not apply,
or that cannot see, is a finding too: it says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.utility import pair_shares

__all__ = [
    "FAMILIES",
    "Family",
    "Finding",
    "area_interval",
    "beside_control",
    "found_at",
    "not_attacked",
    "share_interval",
    "worst",
]

Family: TypeAlias = Literal["membership", "linkage", "attribute", "reconstruction"]
FAMILIES: Final[tuple[Family, ...]] = ("membership", "linkage", "attribute", "reconstruction")
_Z95: Final = 1.959963984540054
RESAMPLES: Final = 200


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One attack and what came of it.

    Attributes:
        attack: What the attack is called.
        family: Which question it answers.
        on: What was attacked.
        by: Who has that.
        measure: What `success` and `guess` are.
        success: How often the attack was right; None where there was no attack.
        guess: The same for a guess that has not seen what was attacked.
        interval: The middle 95 % for `success`.
        note: What a reader must know; for an attack that was not made, why.
        details: More figures, by name.
    """

    attack: str
    family: Family
    on: str
    by: str
    measure: str = ""
    success: float | None = None
    guess: float | None = None
    interval: tuple[float, float] | None = None
    note: str = ""
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def exposed(self) -> bool:
        """Whether the attack is better than a guess by more than chance explains."""
        return self.success is not None and self.interval is not None and self.interval[0] > (self.guess or 0.0)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.success is None:
            return "not attacked"
        return "better than guessing" if self.exposed else "no better than guessing"

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "attack": self.attack,
            "family": self.family,
            "on": self.on,
            "by": self.by,
            "measure": self.measure,
            "success": self.success,
            "guess": self.guess,
            "interval": None if self.interval is None else list(self.interval),
            "verdict": self.verdict,
            "note": self.note,
            "details": dict(self.details),
        }


def not_attacked(attack: str, family: Family, *, on: str, by: str, why: str) -> Finding:
    """A finding that says why an attack was not made.

    Args:
        attack: What the attack is called.
        family: Which question it would have answered.
        on: What would have been attacked.
        by: Who has that.
        why: Why it was not made; the note of the finding.

    Returns:
        A finding without success, guess and interval, whose verdict is "not attacked".
    """
    return Finding(attack=attack, family=family, on=on, by=by, note=why)


def worst(findings: Sequence[Finding], family: Family) -> Finding | None:
    """The finding of a family that is furthest above its guess.

    Args:
        findings: Findings of any family, also of attacks that were not made.
        family: The family to look in.

    Returns:
        The finding with the largest difference of success and guess; None where no attack of the family was made.
    """
    made = [one for one in findings if one.family == family and one.success is not None]
    return max(made, key=lambda one: (one.success or 0.0) - (one.guess or 0.0), default=None)


def share_interval(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of Wilson for a share.

    Args:
        hits: How often it happened.
        of: Out of how many, at least 1.

    Returns:
        Both ends.
    """
    share, square = hits / of, _Z95**2
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = _Z95 * sqrt(share * (1 - share) / of + square / (4 * of * of)) / (1 + square / of)
    return (middle - half if hits else 0.0), (middle + half if hits < of else 1.0)


def area_interval(inside: NDArray[Any], outside: NDArray[Any], *, seed: int = 0) -> tuple[float, tuple[float, float]]:
    """The area under the curve of scores of members against others, and its bootstrap interval.

    Args:
        inside: Scores of members.
        outside: Scores of others; more is more like a member.
        seed: Of the resamples.

    Returns:
        The area, ties counting half, and the middle 95 % over resamples of both groups, to first order.
    """
    member = np.arange(len(inside) + len(outside)) < len(inside)
    area, shares = pair_shares(member, np.concatenate([inside, outside]))
    middle = 0.5 if area is None else area
    random = np.random.default_rng(seed)
    groups = shares[: len(inside)], shares[len(inside) :]
    means = [[part[random.integers(0, len(part), len(part))].mean() for _ in range(RESAMPLES)] for part in groups]
    low, high = np.clip(np.quantile(np.sum(means, axis=0) - middle, [0.025, 0.975]), 0.0, 1.0)
    return middle, (float(low), float(high))


def found_at(inside: NDArray[Any], outside: NDArray[Any], false_alarms: float) -> float:
    """The share of members that an attack finds at a given rate of false alarms.

    Args:
        inside: Scores of members.
        outside: Scores of others; more is more like a member.
        false_alarms: The largest share of others that may be taken for members, such as 0.01.

    Returns:
        The true positive rate, from 0 to 1.
    """
    allowed = int(false_alarms * len(outside))
    threshold = np.sort(outside)[::-1][allowed] if allowed < len(outside) else -np.inf
    return float((inside > threshold).mean())


def beside_control(hits: int, of: int, control: int, of_control: int) -> tuple[float, float]:
    """The 95 % interval of a share, widened by what is not known of the share it is compared with (Newcombe, 1998).

    Args:
        hits: How often the attack was right.
        of: Out of how many.
        control: How often it was right of persons who are not in what was attacked.
        of_control: Out of how many of them.

    Returns:
        Both ends: the lower one is above the control's share only if the difference of both is above 0.
    """
    share, other = hits / of, control / of_control
    (low, high), (other_low, other_high) = share_interval(hits, of), share_interval(control, of_control)
    down = sqrt((share - low) ** 2 + (other_high - other) ** 2)
    up = sqrt((high - share) ** 2 + (other - other_low) ** 2)
    return max(0.0, share - down), min(1.0, share + up)
