"""l-diversity (Machanavajjhala et al., 2007), distinct or entropy, with k if given.

Protects: every class of the shared rows has at least l sensitive values (`distinct`), or an entropy of at least ln l
(`entropy`); where an identifier is named, also at least l persons, and a person counts once per value. Knowing the
class leaves l values open.
Does not protect: against likely guesses when one of the l values is frequent (`distinct`); against values that differ
but mean the same; against other columns. Classes pass or stay whole. Diversity is judged on the rows at hand even when
the counts for k come from elsewhere. `strict` is about k alone.
"""

from __future__ import annotations

import numpy as np

from kohort.anonymity.gate.gate import ROUNDING, GateInput, GateRule, Mask, count_groups, count_values

__all__ = ["RULE"]


def decide(given: GateInput) -> Mask:
    """Share a row if its class is large and diverse enough."""
    wanted = given.l or 1.0
    found = count_values(given)
    if given.l_kind == "distinct":
        diverse = np.bincount(found.group, minlength=found.groups) >= wanted
    else:
        entropy = -found.sum_by_group(found.share * np.log(found.share))
        diverse = np.exp(entropy) >= wanted - ROUNDING
    if given.persons is not None:
        diverse &= count_groups(given.keys, given.persons) >= wanted
    passes: Mask = diverse & given.large_enough(given.k)
    return given.keys.to_rows(passes)


RULE = GateRule(name="l-diversity", decide=decide, needs=("l",), takes=("k",), needs_sensitive=True, by_group=True)
