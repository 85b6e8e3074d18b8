"""Strengths of protection: changes of a plan's keys that `kohort compare --strengths` sets side by side.

A method names up to three, from its least protection to its most, so that k, l, t, epsilon, masks and encryption stand
on one chart. They are examples to begin with, not advice.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Strength", "with_budget", "with_sum"]


@dataclass(frozen=True)
class Strength:
    """One way to protect a method.

    Attributes:
        label: In words, for tables.
        kind: What protects: "none", "k", "l", "t", "epsilon", "masks" or "encryption".
        keys: `section.key=value` on the plan, beside `method.name`.
    """

    label: str
    kind: str
    keys: tuple[str, ...] = ()


def with_budget(epsilon: float, *more: str) -> Strength:
    """Noise for rows, with delta 1e-5.

    Args:
        epsilon: `method.dp.epsilon`.
        more: Other keys, as `section.key=value`.

    Returns:
        The strength.
    """
    return Strength(
        f"epsilon {epsilon:g}", "epsilon", (f'method.dp={{epsilon = {epsilon}, delta = 1e-5, unit = "row"}}', *more)
    )


def with_sum(name: str, *more: str) -> Strength:
    """Sums by one scheme.

    Args:
        name: `method.secure.sum`: "none", "masks" or "bfv".
        more: Other keys, as `section.key=value`.

    Returns:
        The strength.
    """
    label, kind = {"none": ("in clear", "none"), "masks": ("masks", "masks"), "bfv": ("encryption", "encryption")}[name]
    return Strength(label, kind, (f'method.secure.sum="{name}"', *more))
