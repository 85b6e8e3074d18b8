"""Totals that count pairs of categories: a key-holder rounds small counts, and signs what it opened.

A pair of categories that few persons share is a cell like any other, and cannot be merged without losing the model. So
where a key-holder opens the totals, it rounds counts below `policy.min_cell` at random to 0 or to that minimum before
they leave it. Sites cannot check such a total by values of their own; they rely on the key-holder's signature over run,
plan, round, sites and numbers. By masks such a total opens as it is, which a policy must allow (`pairs = "open"`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kohort.crypto.sums.scheme import KEY_HOLDER, Integers, find_scheme
from kohort.errors import IntegrityError
from kohort.protocol.key_holder import rounded_statement
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.purposes import Purpose
from kohort.rounds.totals.learner import Learner
from kohort.rounds.totals.protection import has_budget, scheme_of

__all__ = ["SIGNATURE", "rounds_next", "rounds_pairs", "signed_total", "small_pairs", "with_signature"]

SIGNATURE = 8
"""Words of a signature behind the numbers of a total."""


def rounds_pairs(approved: ApprovedPlan) -> bool:
    """Whether a key-holder rounds the plan's counts of pairs.

    Args:
        approved: The approved plan.

    Returns:
        False where no key-holder opens totals, and with a budget, because noise covers the counts.
    """
    return find_scheme(scheme_of(approved)).key_holder and not has_budget(approved)


def rounds_next(approved: ApprovedPlan, learner: Learner) -> bool:
    """Whether the next total is one that a key-holder rounds and signs.

    Args:
        approved: The approved plan.
        learner: The learner before that total.

    Returns:
        True if the total counts pairs of categories and the plan has a key-holder and no budget.
    """
    return learner.pairs and rounds_pairs(approved)


def small_pairs(approved: ApprovedPlan) -> tuple[int, int]:
    """Which counts of pairs a key-holder opens as they are.

    Args:
        approved: The approved plan.

    Returns:
        The unit of a count, which is 1, and the fewest persons of a pair that opens as it is.
    """
    return 1, approved.min_cell


def with_signature(values: Integers, signature: bytes) -> Integers:
    """A rounded total as it is announced: its numbers, and the signature behind them.

    Args:
        values: The rounded total.
        signature: The key-holder's signature over it.

    Returns:
        One vector, the signature in 64-bit words at its end.

    Raises:
        IntegrityError: The signature has another length.
    """
    if len(signature) != 8 * SIGNATURE:
        raise IntegrityError("the key-holder's signature on a total has another length")
    return np.concatenate([values, np.frombuffer(signature, dtype="<u8").astype(np.uint64)])


def signed_total(site: Site, task: str, number: int, names: Sequence[str], announced: Integers) -> Integers:
    """The announced total, if the key-holder of the site's roster signed it for this round.

    Args:
        site: The site.
        task: The task whose contributions were added.
        number: The round.
        names: The sites in the total.
        announced: As `with_signature` made it.

    Returns:
        The numbers.

    Raises:
        IntegrityError: It is not what the key-holder opened.
    """
    holder, total = site.find_peer(KEY_HOLDER), announced[:-SIGNATURE]
    signature = announced[-SIGNATURE:].astype("<u8").tobytes()
    statement = rounded_statement(site.plan, task, number, names, total)
    if holder is None or not holder.signed(statement, signature, purpose=Purpose.ROUNDED_TOTAL):
        raise IntegrityError("an announced total is not what the key-holder opened")
    return total
