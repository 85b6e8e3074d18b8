"""How a run learns domains that a budget or a secure sum hides: by noisy counts, or by a secure count.

Neither is imported before a plan needs it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kohort.privacy.contract import Step
from kohort.protocol.hub import Ask, Coordinator, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.tables.domain import Domain

__all__ = ["check_learning", "learn_hidden", "learning_steps"]


def check_learning(approved: ApprovedPlan, sites: int) -> None:
    """Refuse a plan whose undeclared domains cannot be learned, before anything is asked.

    Args:
        approved: The approved plan, which hides domains.
        sites: How many sites take part.

    Raises:
        ConfigError: Its budget cannot pay for it, or too few or too many sites take part in a secure count.
    """
    if approved.has_budget:
        from kohort.rounds.domains.noisy import check_noisy_domains

        check_noisy_domains(approved)
    else:
        from kohort.rounds.domains.counted import check_domains

        check_domains(approved, sites)


def learning_steps(approved: ApprovedPlan) -> list[Step]:
    """What learning hidden domains asks of a site.

    Args:
        approved: The approved plan.

    Returns:
        The steps; none where domains are declared, or described in clear.
    """
    if approved.has_budget:
        from kohort.rounds.domains.noisy import noisy_domain_steps

        return noisy_domain_steps(approved)
    if approved.sums_securely:
        from kohort.rounds.domains.counted import domain_steps

        return domain_steps(approved)
    return []


def learn_hidden(hub: Coordinator) -> Generator[Ask | RoundEnd, Any, tuple[Domain, tuple[str, ...]]]:
    """Learn the domain of a plan that hides it.

    Args:
        hub: The coordinator.

    Returns:
        The domain, and the sites that know it.
    """
    if hub.approved.has_budget:
        from kohort.rounds.domains import noisy as noisy_domains

        return (yield from noisy_domains.noisy_domain(hub))
    from kohort.rounds.domains import counted as domains

    return (yield from domains.count_domain(hub))
