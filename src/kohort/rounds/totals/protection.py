"""What a plan protects its totals by, as hub and sites both read it."""

from __future__ import annotations

from kohort.protocol.plan.approved import ApprovedPlan
from kohort.rounds.dp_accounts import spends
from kohort.rounds.totals.learner import Learner

__all__ = ["grouped", "has_budget", "is_checked", "scheme_of", "seals_next"]


def scheme_of(approved: ApprovedPlan) -> str:
    """How the approved plan protects its sums.

    Args:
        approved: The approved plan.

    Returns:
        The name of the scheme; "none" where the plan says nothing.
    """
    return "none" if approved.secure is None else approved.secure.sum


def is_checked(approved: ApprovedPlan) -> bool:
    """Whether totals are secure sums that sites verify.

    Args:
        approved: The approved plan.

    Returns:
        False for "none", where the hub sees each site's own numbers anyway.
    """
    return scheme_of(approved) != "none"


def has_budget(approved: ApprovedPlan) -> bool:
    """Whether sites add noise that a budget pays for.

    Args:
        approved: The approved plan.

    Returns:
        True if the first phase of training spends a budget.
    """
    return spends(approved.phase(0), approved.secure) is not None


def grouped(approved: ApprovedPlan) -> bool:
    """Whether totals are over unions of public groups of sites.

    Without a budget, totals of two rounds that differ by one site would show about its rows.

    Args:
        approved: The approved plan.

    Returns:
        True for a secure sum without a budget.
    """
    return is_checked(approved) and not has_budget(approved)


def seals_next(approved: ApprovedPlan, learner: Learner) -> bool:
    """Whether the next total is for sites alone.

    Args:
        approved: The approved plan.
        learner: The learner before that total.

    Returns:
        True if the learner seals it. False with "none", where there is no secret, and with a budget, where there is no
        need.
    """
    return is_checked(approved) and not has_budget(approved) and learner.sealed
