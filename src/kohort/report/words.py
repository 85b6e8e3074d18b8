"""Texts that page and model card share: a sentence for every kind of guarantee, and formats of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "COLLUSION",
    "DISCLOSED",
    "DISCLOSED_SPLITS",
    "KINDS_OF_ROWS",
    "NOT_PROTECTED",
    "SEALED",
    "SEALED_TOTALS",
    "Kind",
    "baseline",
    "bound",
    "budget",
    "count",
    "ended",
    "held",
    "kind_named",
    "kinds_in_order",
    "measure",
    "printable",
    "seconds",
    "share",
    "signer",
    "size",
]


@dataclass(frozen=True)
class Kind:
    """How a kind of guarantee is shown."""

    name: str
    """Its name in the ledger, such as `k-anonymous`."""
    label: str
    tone: str
    """How protected it is: open, partial, guarded or public; a class of the style sheet."""
    color: str
    sentence: str
    """What it means for the people in the rows."""


NOT_PROTECTED = (
    "People with rows at several sites, who can be singled out by intersecting their classes, and what can be inferred "
    "from knowing how classes are formed (minimality and downcoding attacks)."
)
"""What generalised rows leave open."""
_NOT_PROTECTED = f" Not protected: {NOT_PROTECTED[0].lower()}{NOT_PROTECTED[1:]}"
COLLUSION = (
    "A site against its peers: shares of a secure sum hide a site only while no more sites collude with the hub, or "
    "with a key-holder, than the sum was made for."
)
"""What secure sums leave open."""
KINDS_OF_ROWS = ("raw", "k-anonymous", "k-km")
"""Guarantees about rows."""
_BYTES_OF_COUNTS = 256
"""What a release of counts takes at most; classes of rows take more."""
SEALED = (
    "The rows of all sites against each site: sites read exact totals over all sites, from which counts of few persons "
    "may follow, and so does a hub with one site on its side; kohort audit tries it."
)
"""What totals that sites alone read leave open."""
SEALED_TOTALS = "sealed totals"
DISCLOSED = "disclosed from sealed totals"
DISCLOSED_SPLITS = "disclosed splits"
"""How a page tells apart what sites alone read and what they disclose of it; both are secure sums in the ledger."""
_KINDS = (
    Kind(
        "raw",
        "raw rows",
        "open",
        "#d6504b",
        "Rows as they are: the recipient reads every released value, and nothing protects the people behind them.",
    ),
    Kind(
        "aggregate",
        "aggregates",
        "partial",
        "#d07a1e",
        "Numbers computed from the rows of one site, such as trained weights. This is not a protection: rows can be "
        "read by a lying hub, which chooses the weights that sites train from; kohort audit measures how many.",
    ),
    Kind(
        "domain",
        "value ranges",
        "partial",
        "#a9744f",
        "The categories, or the smallest and largest value, that occur in a column, without counts: also those that "
        "one person alone has. The model's file holds them. Declared values and bounds, or a secure count, avoid it.",
    ),
    Kind(
        "k-anonymous",
        "k-anonymous rows",
        "guarded",
        "#3b82c4",
        "Rows generalised until each shares its quasi-identifiers with at least k - 1 others. With l and t, the "
        "sensitive values of each class are also diverse and distributed like those of the whole table."
        + _NOT_PROTECTED,
    ),
    Kind(
        "k-km",
        "(k, k^m)-anonymous rows",
        "guarded",
        "#6f6fd8",
        "Rows generalised until an attacker who knows a person's quasi-identifiers and any m of their codes is left "
        "with at least k candidates." + _NOT_PROTECTED,
    ),
    Kind(
        "dp",
        "noisy results",
        "guarded",
        "#2f9e64",
        "Results with calibrated noise: whether any one unit took part changes the probability of any result by a "
        "factor of at most e to the epsilon, plus delta.",
    ),
    Kind(
        "encrypted",
        "ciphertext",
        "guarded",
        "#1f93a5",
        "Encrypted data that the hub cannot read; only the party that the guarantee names can decrypt it.",
    ),
    Kind(
        "cells",
        "tables of totals",
        "partial",
        "#7d8fc4",
        "Totals over all sites, cell by cell: the claim says how few persons a cell may have. A cell of one person "
        "shows that person's part.",
    ),
    Kind(
        "pairs",
        "counts of pairs",
        "partial",
        "#8f86b8",
        "Totals over all sites that count pairs of categories as they are. A pair that one person has shows that "
        "person.",
    ),
    Kind(
        "secure-sum",
        "shares of a secure sum",
        "guarded",
        "#9a6dd0",
        "Masked or encrypted shares that reveal nothing on their own: only the total over the sites can be opened, as "
        "long as not too many of them collude.",
    ),
    Kind(
        SEALED_TOTALS,
        "sealed shares of a sum",
        "guarded",
        "#8a7f1d",
        "Shares of totals that sites alone can read: the hub adds them up and sees random numbers, unless a site helps "
        "it. Sites read the totals over all sites, and no other site's own numbers.",
    ),
    Kind(
        DISCLOSED,
        "bins, counts and model",
        "guarded",
        "#c2649a",
        "What sites tell the hub of sealed totals, the same from every site: the bins of columns, how many persons of "
        "all sites each holds, never few, and the finished model, its values rounded. There is no noise in it.",
    ),
    Kind(
        DISCLOSED_SPLITS,
        "bins, splits and model",
        "guarded",
        "#c2649a",
        "What sites tell the hub of sealed totals, the same from every site: the bins of columns, how the trees of the "
        "model grow, which child of a node has fewer rows, and the loss of held-out rows. There is no noise in it.",
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
    """How to show a kind of guarantee.

    Args:
        name: Its name in the ledger, such as "k-anonymous".

    Returns:
        Its texts and colour. A kind that a plug-in added is shown by its own name, and not as protected.
    """
    unknown = "A kind of guarantee that an extension added; its method says what it means."
    return _BY_NAME.get(name) or Kind(name, name, "partial", "#c2649a", unknown)


def kinds_in_order(names: set[str]) -> list[Kind]:
    """The kinds with these names, in the order in which a report shows them.

    Args:
        names: Names in the ledger.

    Returns:
        Least protected first, public facts last, kinds of plug-ins among the partially protected ones.
    """
    rank = {kind.name: place for place, kind in enumerate(_KINDS)}
    return [kind_named(name) for name in sorted(names, key=lambda name: (rank.get(name, 2.5), name))]


def printable(value: Any) -> Any:
    r"""Escape every unprintable character, in all texts and keys of nested mappings and lists.

    Names are untrusted. A NUL character ends the chart renderer's process, a lone surrogate cannot be written as UTF-8,
    and a control character that reverses the reading direction can make one name look like another.

    Args:
        value: A text, or nested mappings and lists of plain values.

    Returns:
        A copy with escapes such as `\x00`. Tuples become lists; other values stay as they are.
    """
    if isinstance(value, str):
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in value)
    if isinstance(value, Mapping):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return value


def budget(run: Mapping[str, Any]) -> str:
    """The privacy budget of a run in words, with every condition it depends on.

    Args:
        run: The JSON object of a run, or its keys `epsilon`, `delta`, `unit` and `dp`.

    Returns:
        Epsilon, delta, the protected unit, the scope and, where they apply, the bound under collusion, other accounts,
        and warnings that the noise is reproducible or delta is too large. Empty without differential privacy.
    """
    if run.get("epsilon") is None:
        return ""
    facts = run.get("dp") or {}
    marks = ", ".join(word for word in ("simulated", "void") if facts.get(word))
    said = f"DP{f'({marks})' if marks else ''}: epsilon {run['epsilon']:.4g}, delta {run['delta'] or 0:.3g} "
    said += f"for each {facts.get('whom') or run.get('unit') or 'row'}"
    said += f", {facts['scope']}" if facts.get("scope") else ""
    said += _relied_on(facts)
    beside = [
        f"{name} {facts[key]:.4g}"
        for key, name in (("rdp", "Rényi"), ("basic", "Rényi and basic composition"))
        if facts.get(key) is not None
    ]
    said += f" (other accounts: {', '.join(beside)})" if beside else ""
    if facts.get("simulated"):
        said += ". The noise was drawn from a seed: whoever knows the seed can remove it"
    if facts.get("void"):
        said += ". Delta is above 1/(10 n): the claim guarantees nothing"
    return said


def _relied_on(facts: Mapping[str, Any]) -> str:
    """Whom a budget relies on, and what is left without them."""
    trust, alone = str(facts.get("trust") or ""), facts.get("epsilon_all")
    if trust.startswith("the hub"):
        return f"; relies on {trust}" + ("" if alone is None else f", epsilon {alone:.4g} towards it")
    said = f", if {trust}" if trust else ""
    return said + ("" if alone is None else f"; epsilon {alone:.4g} if all others collude")


def count(value: float) -> str:
    """A whole number with thousands separators, such as `21,113`.

    Args:
        value: The number; a fraction is rounded.

    Returns:
        The text.
    """
    return f"{value:,.0f}"


def measure(value: float | None) -> str:
    """A measure with four decimals below 100, and as a whole number above.

    Args:
        value: The measure; None where it is not known.

    Returns:
        The text; a dash for a value that is missing or not finite.
    """
    if value is None or not math.isfinite(value):
        return "–"  # noqa: RUF001 - an en dash is what a reader expects in an empty cell
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.0f}"


def share(value: float) -> str:
    """A share in per cent: one decimal, three significant digits below 1 %.

    Args:
        value: The share, from 0 to 1.

    Returns:
        The text, such as "12.5 %".
    """
    return f"{100 * value:.1f} %" if value >= 0.01 or value == 0 else f"{100 * value:.2g} %"


def bound(value: float) -> str:
    """An end of an interval: three decimals below 100, one fewer than `measure`; a whole number above.

    Args:
        value: The end.

    Returns:
        The text.
    """
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def size(value: float) -> str:
    """A number of bytes in B, kB, MB or GB: three significant digits, or all digits before the point.

    Args:
        value: The number of bytes; 1 kB is 1,000 B.

    Returns:
        The text, such as "4.20 kB".
    """
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= step:
            digits = 2 if value < 10 * step else 1 if value < 100 * step else 0
            return f"{value / step:,.{digits}f} {unit}"
    return f"{value:.0f} B"


def seconds(value: float) -> str:
    """A duration: milliseconds below 0.1 s, seconds above.

    Args:
        value: The duration in seconds.

    Returns:
        The text, such as "35.0 ms".
    """
    if value < 0.1:
        return f"{value * 1000:.1f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"


_ENDED = {"rounds": "all rounds are done", "holdout": "more steps did not help on held-out rows"}


def ended(reason: str) -> str:
    """Why a run ended, in words.

    Args:
        reason: `stopped_by` of the run.

    Returns:
        A sentence part; a reason that a method of another package gives is shown as it is.
    """
    return _ENDED.get(reason, reason)


_BASELINES = {
    "majority": "always the commonest class",
    "mean": "always the mean",
    "best_site": "a regression on the rows of the best single site",
    "pooled": "a regression on the rows of all sites",
}


def baseline(name: str) -> str:
    """What a run's measures stand beside, in words.

    Args:
        name: The baseline's name in the run, such as "majority".

    Returns:
        A sentence part; an unknown name is shown as it is.
    """
    return _BASELINES.get(name, name)


def signer(name: str) -> str:
    """Whose signature was checked, for a reader at another machine.

    Args:
        name: The signer's name as this machine knows it; "this user" for its own key.

    Returns:
        The name to show; for "this user", words that also hold at another machine.
    """
    return "the user who wrote this page" if name == "this user" else name


def held(kind: str, *, rows: int, size: int, releases: int) -> str:
    """What the bytes under a guarantee about rows can only have held: "counts", "classes", or "" for the rows.

    Args:
        kind: The kind of guarantee.
        rows: How many rows it is about.
        size: Bytes in all.
        releases: How many there were.

    Returns:
        "counts" of rows where a few numbers left, "classes" of rows where there is less than a byte per row. Empty
        where the rows fit, and for other kinds.
    """
    if kind not in KINDS_OF_ROWS or size >= rows:
        return ""
    return "counts" if size <= _BYTES_OF_COUNTS * max(releases, 1) else "classes"
