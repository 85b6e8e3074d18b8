"""k-anonymity (Algorithm 1 of Fisichella, Lax and Russo, 2022; Samarati, 2001).

Protects: whoever knows only the quasi-identifiers of a person is left with at least k rows (or k persons, where an
identifier is named; more than k with `strict`).
Does not protect: the sensitive value where all k rows agree on it; and rows whose other columns are rare, for the rows
that pass are shared whole.
"""

from __future__ import annotations

from kohort.anonymity.gate.gate import GateInput, GateRule, Mask

__all__ = ["RULE"]


def decide(given: GateInput) -> Mask:
    """Share a row if its key occurs often enough."""
    return given.keys.to_rows(given.large_enough(given.k))


RULE = GateRule(name="k-anonymity", decide=decide, needs=("k",), by_group=True)
