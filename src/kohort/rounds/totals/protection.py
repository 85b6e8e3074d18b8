"""What a plan protects its totals by, as hub and sites both read it."""

from __future__ import annotations

from kohort.protocol.plan.approved import ApprovedPlan
from kohort.rounds.dp_accounts import spends
from kohort.rounds.totals.learner import Learner

__all__ = ["grouped", "has_budget", "is_checked", "scheme_of", "seals_next"]


def scheme_of(approved: ApprovedPlan) -> str:
    """How the approved plan protects its sums; "none" where it says nothing."""
    return "none" if approved.secure is None else approved.secure.sum


def is_checked(approved: ApprovedPlan) -> bool:
    """Whether totals are secure sums that sites verify. With "none" the hub sees each site's own numbers anyway."""
    return scheme_of(approved) != "none"


def has_budget(approved: ApprovedPlan) -> bool:
    """Whether sites add noise that a budget pays for."""
    return spends(approved.phase(0), approved.secure) is not None


def grouped(approved: ApprovedPlan) -> bool:
    """Without a budget, totals of two rounds that differ by one site would show about its rows."""
    return is_checked(approved) and not has_budget(approved)


def seals_next(approved: ApprovedPlan, learner: Learner) -> bool:
    """Whether the next total is for sites alone. With "none" there is no secret, and with a budget there is no need."""
    return is_checked(approved) and not has_budget(approved) and learner.sealed
