"""Guarantees in plain words, for people who decide whether to approve a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kohort.privacy.guarantee import (
    DP,
    Aggregate,
    Cells,
    DomainClaim,
    Encrypted,
    Guarantee,
    KAnonymous,
    KKm,
    Pairs,
    Public,
    Raw,
    SecureSum,
)

__all__ = ["KEY_HOLDER", "READ_BY_HUB", "claim_in_words", "number_of"]

READ_BY_HUB: Final = "read as it is: rows can be worked out from it by a lying hub"
KEY_HOLDER: Final = "key-holder"


def claim_in_words(claim: Guarantee, *, to: str = "hub") -> str:
    """A guarantee as a data protection officer reads it.

    Args:
        claim: The guarantee of a step.
        to: Who gets the release: "hub" or "peers".

    Returns:
        One clause, without a full stop.
    """
    if isinstance(claim, Aggregate) and to != "hub":
        return "read as it is: rows can be worked out from it by a lying peer"
    words = _IN_WORDS.get(type(claim))
    return claim.shown if words is None else words(claim)


def _sum_in_words(claim: SecureSum) -> str:
    is_keyed = claim.opens.partition(":")[0] == KEY_HOLDER
    how, reads = ("encrypted", "the key-holder opens") if is_keyed else ("masked", "the hub can read")
    verb = "works" if claim.colluders == 1 else "work"
    return (
        f"{how}; {reads} only the total over at least {claim.sites} sites, while at most "
        f"{number_of(claim.colluders, 'site')} {verb} with the hub"
    )


def _classes_in_words(claim: KAnonymous) -> str:
    said = f"k-anonymous with k = {claim.k}"
    said += f", l = {claim.l}" if claim.l > 1 else ""
    said += f", t = {claim.t:g}" if claim.t is not None else ""
    said += _counted_in_words(claim.gate_k)
    return f"{said}, verified before it leaves" if claim.verified else f"{said}, not verified"


def _counted_in_words(gate_k: int | None) -> str:
    return "" if gate_k is None else f", of keys that were counted at least {gate_k} times"


def _raw_in_words(claim: Raw) -> str:
    by = f", released on the counts of {claim.counted_by}" if claim.counted_by else ""
    return f"raw rows, no protection{by}{_counted_in_words(claim.gate_k)}"


_IN_WORDS: dict[type[Guarantee], Callable[[Any], str]] = {
    Public: lambda _: "read as it is, and treated as public",
    DomainClaim: lambda _: "read as it is: values and ranges of your rows, without counts",
    Aggregate: lambda _: READ_BY_HUB,
    SecureSum: _sum_in_words,
    Cells: lambda claim: f"totals whose filled cells have at least {number_of(claim.least, 'person')}",
    Pairs: lambda claim: f"totals that count pairs of categories of at least {number_of(claim.least, 'person')}",
    DP: lambda claim: (
        f"with noise: within epsilon {claim.epsilon:g} and delta {claim.delta:g} per {claim.unit} over the whole run"
    ),
    KAnonymous: _classes_in_words,
    KKm: lambda claim: f"(k, k^m)-anonymous with k = {claim.k} and m = {claim.m}, verified before it leaves",
    Raw: _raw_in_words,
    Encrypted: lambda claim: f"encrypted; only {claim.opens} can read it",
}


def number_of(count: int, noun: str) -> str:
    """A count with its noun: "1 site", "3 sites".

    Args:
        count: How many there are.
        noun: The noun in the singular; its plural must end in s.

    Returns:
        The words.
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
