"""Algorithm 2 of Fisichella, Lax and Russo (2022) as printed: the label joins the key, and l rows must share both.

The algorithm's line 8 prints k where l is meant.
Protects: every shared row has at least l rows with the same quasi-identifiers and the same label, hence also at least l
rows with the same quasi-identifiers.
Does not protect: the label. This is not l-diversity but nearly its opposite: it selects groups that agree. On Adult
with age, race and sex, 48 % of the rows shared at l = 100 are in a class where only one income is shared, so whoever
finds the class knows the income. Use `l-diversity` for what the name promises.
"""

from __future__ import annotations

from kohort.anonymity.gate.gate import GateInput, GateRule, Mask

__all__ = ["RULE"]


def decide(given: GateInput) -> Mask:
    """Share a row if its key and label together occur often enough."""
    return given.keys.to_rows(given.large_enough(given.l))


RULE = GateRule(
    name="paper-l", decide=decide, needs=("l",), needs_sensitive=True, count_unit="key+sensitive", by_group=True
)
