"""Sentences of an explained plan that do not depend on it: what terms mean, and what claims leave to a lying hub."""

from __future__ import annotations

from typing import Final

from kohort.privacy.guarantee import DP, Aggregate, DomainClaim, Guarantee, KAnonymous, KKm, Raw

__all__ = ["BOOK", "LEARNED", "ROUNDS", "TERMS", "terms_in"]

BOOK: Final = (
    "Two totals can be compared, in one run or in several. So {keepers} a book of them, and none opens that, together "
    "with earlier ones, would show fewer than {least} sites."
)
ROUNDS: Final = (
    "When sites drop out of a round, totals leave out whole public groups of at least {least} sites, or nobody: two "
    "rounds show no single site."
)
LEARNED: Final[dict[type[Guarantee], str]] = {
    Raw: "Every row that is released as it is.",
    Aggregate: (
        "Your rows: it chooses what numbers in clear are computed from, such as the weights you train from. "
        "kohort audit shows how many can be read so. Use it where you would trust the hub with the rows."
    ),
    KAnonymous: "The released classes: which class a person is in, for whoever knows the person's quasi-identifiers.",
    KKm: "The released classes: which class a person is in, for whoever knows the quasi-identifiers and m items.",
    DomainClaim: "Which values occur in your rows, and the smallest and largest number of a column.",
    DP: (
        "What noisy answers allow: whether any one person is in your rows changes the probability of anything it sees "
        "by a factor of e^epsilon at most, apart from a probability of delta."
    ),
}
"""What each claim leaves to a lying hub, the worst first."""
TERMS: Final = {
    "hub": "hub: the computer that coordinates the sites. It is not trusted with rows unless the text says so.",
    "lying hub": "lying hub: one that sends anything to anybody, in any order, to learn more than it should.",
    "masked": "masked: your site adds random numbers that cancel in the total over all sites, and only there.",
    "encrypted": "encrypted: readable only for whoever holds the key, never for the hub.",
    "key-holder": "key-holder: a party without rows that opens totals, and nothing else.",
    "total": "total: the sum over the sites, number by number.",
    "epsilon": "epsilon, delta: how much noisy answers can say about one person; the smaller, the less.",
    "k-anonymous": "k-anonymous: at least k persons look alike in every released row, for those who know their "
    "quasi-identifiers (columns such as age or postcode that others may know).",
}
"""What the terms mean, in the order they are listed."""


def terms_in(text: str) -> tuple[str, ...]:
    """What the terms of a text mean.

    Args:
        text: The text.

    Returns:
        A line per term that occurs in it.
    """
    return tuple(meaning for word, meaning in TERMS.items() if word in text)
