"""The words of a report: one plain sentence for every kind of guarantee, and numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Kind", "budget", "count", "kind_named", "kinds_in_order", "measure", "printable", "seconds", "size"]


@dataclass(frozen=True)
class Kind:
    """How a kind of guarantee is shown. `tone`: open, partial, guarded or public."""

    name: str
    label: str
    tone: str
    color: str
    sentence: str


_NOT_PROTECTED = (
    " Not protected: people with rows at several sites, who can be found where their classes overlap, and what can be "
    "worked out by whoever knows how classes are made (minimality, downcoding)."
)
_KINDS = (
    Kind(
        "raw",
        "raw rows",
        "open",
        "#d6504b",
        "Rows left as they are: the recipient reads every released value, and nothing protects the people behind them.",
    ),
    Kind(
        "aggregate",
        "aggregates",
        "partial",
        "#d07a1e",
        "Numbers computed from many rows of one site, such as trained weights. No row leaves, yet a determined "
        "recipient can learn about rows from them, most of all where a site has few.",
    ),
    Kind(
        "domain",
        "value ranges",
        "partial",
        "#a9744f",
        "Which categories and which smallest and largest values occur in a column, without counts: little, but learned "
        "from private rows.",
    ),
    Kind(
        "k-anonymous",
        "k-anonymous rows",
        "guarded",
        "#3b82c4",
        "Rows blurred until each looks like at least k - 1 others in what could identify a person; with l and t, their "
        "sensitive values are also varied and close to the whole table's." + _NOT_PROTECTED,
    ),
    Kind(
        "k-km",
        "(k, k^m)-anonymous rows",
        "guarded",
        "#6f6fd8",
        "Rows blurred until whoever knows a person's identifying traits and any m of their codes is left with at least "
        "k candidates." + _NOT_PROTECTED,
    ),
    Kind(
        "dp",
        "noised results",
        "guarded",
        "#2f9e64",
        "Results with calibrated noise: whether any one unit took part changes the chance of any result by a factor of "
        "at most e to the epsilon, give or take delta.",
    ),
    Kind(
        "encrypted",
        "ciphertext",
        "guarded",
        "#1f93a5",
        "Sealed data that the carrier cannot read; only the named key-holder can open it.",
    ),
    Kind(
        "secure-sum",
        "shares of a secure sum",
        "guarded",
        "#9a6dd0",
        "Shares that are noise on their own: only the total over the sites opens, as long as not too many of them "
        "collude.",
    ),
    Kind(
        "public",
        "public facts",
        "public",
        "#7b8591",
        "Facts the site's operator declared public, such as its number of rows.",
    ),
)
_BY_NAME = {kind.name: kind for kind in _KINDS}


def kind_named(name: str) -> Kind:
    """How to show a kind; one from a plug-in is shown by its own name, and as no protection."""
    unknown = "A kind of guarantee that an extension added; its method says what it means."
    return _BY_NAME.get(name) or Kind(name, name, "partial", "#c2649a", unknown)


def kinds_in_order(names: set[str]) -> list[Kind]:
    """The kinds of these names, least protected first, public facts last."""
    rank = {kind.name: place for place, kind in enumerate(_KINDS)}
    return [kind_named(name) for name in sorted(names, key=lambda name: (rank.get(name, 2.5), name))]


def printable(value: Any) -> Any:
    """`value` with every character that has no shape of its own spelt out, in all texts and keys.

    Names come from elsewhere. A NUL ends the chart renderer's process, a lone surrogate cannot be written as UTF-8, and
    a mark that turns the reading direction can make one name look like another.
    """
    if isinstance(value, str):
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in value)
    if isinstance(value, Mapping):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return value


def budget(run: Mapping[str, Any]) -> str:
    """A run's privacy budget with everything it must not be read without; empty when nothing was noised."""
    if run.get("epsilon") is None:
        return ""
    facts = run.get("dp") or {}
    marks = ", ".join(word for word in ("simulated", "void") if facts.get(word))
    said = f"DP{f'({marks})' if marks else ''}: epsilon {run['epsilon']:.4g}, delta {run['delta'] or 0:.3g} "
    said += f"for each {run.get('unit') or 'row'}"
    said += f", {facts['scope']}" if facts.get("scope") else ""
    if facts.get("epsilon_all") is not None:
        said += f"; epsilon {facts['epsilon_all']:.4g} if all others collude"
    beside = [
        f"{name} {facts[key]:.4g}"
        for key, name in (("rdp", "Rényi"), ("basic", "Rényi and basic composition"))
        if facts.get(key) is not None
    ]
    said += f" (other accounts: {', '.join(beside)})" if beside else ""
    if facts.get("simulated"):
        said += ". The noise came from a seed: whoever knows the seed can take it off"
    if facts.get("void"):
        said += ". Delta is above 1/(10 n): the claim promises nothing"
    return said


def count(value: float) -> str:
    """`21,113`."""
    return f"{value:,.0f}"


def measure(value: float | None) -> str:
    """Four decimals for a share, three significant digits or more for larger numbers, a dash for none."""
    if value is None or not math.isfinite(value):
        return "–"  # noqa: RUF001 - an en dash is what a reader expects in an empty cell
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}"


def bound(value: float) -> str:
    """An end of an interval: one digit less than the figure itself, which is more than it deserves."""
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes in the unit that reads best, with three digits or all whole ones."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= step:
            digits = 2 if value < 10 * step else 1 if value < 100 * step else 0
            return f"{value / step:,.{digits}f} {unit}"
    return f"{value:.0f} B"


def seconds(value: float) -> str:
    """A duration in the unit that reads best."""
    if value < 0.1:
        return f"{value * 1000:.1f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"
