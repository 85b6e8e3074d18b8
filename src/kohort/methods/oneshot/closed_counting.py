"""Count the keys of a closed domain across sites: every key is in the sum, so a hub can leave none out.

All sites can name all keys. They add capped counts in an order that the group's secret permutes, with a check value.
The hub opens the total, which shows it capped totals of keys it cannot tell apart, and announces it. Every site
verifies it and judges each key by itself. A hub that proposed keys could leave some out, and so choose which rows count
as rare.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.checked import CHECKS, proven_total, with_check
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import Integers, SumContext
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.privacy.contract import Step
from kohort.protocol.hub import Ask, Coordinator, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Request
from kohort.rounds.counting import KeyCounts, SecureCount
from kohort.rounds.summing import Total, secure_sum, sum_steps, sum_task

__all__ = ["ClosedCount"]


@dataclass
class ClosedState(TaskState):
    """What bound a site's latest histogram, by the count's name: stage and transcript."""

    histograms: dict[str, tuple[int, bytes]] = field(default_factory=dict)


class ClosedCount(SecureCount):
    """The tasks and the sub-plan of a count over a closed domain.

    Args:
        name: The prefix of its tasks.
        keys_of: All keys of the domain, the same at every site.
        counts_of: The site's own keys and counts.
        scheme: How the approved plan protects the sum.
    """

    def __init__(
        self,
        name: str,
        *,
        keys_of: Callable[[Site], list[bytes]],
        counts_of: Callable[[Site], KeyCounts],
        scheme: Callable[[ApprovedPlan], str],
    ) -> None:
        super().__init__(name, counts_of=counts_of, scheme=scheme)
        self._keys_of = keys_of
        self.histogram = sum_task(f"{name}.histogram", self._histogram, scheme=scheme, modulus=P61, family="rows")

    def steps(self, approved: ApprovedPlan, *, says: str, stages: Sequence[int]) -> list[Step]:
        """What counts ask of a site.

        Args:
            approved: The approved plan.
            says: What is counted, for people.
            stages: The numbers of the counts.

        Returns:
            The steps of one turn: the group's secret, and the histogram.
        """
        return [self.secret_step(stages), *sum_steps(approved, self.histogram, says=says, rounds=stages)]

    def run_closed(self, hub: Coordinator, *, keys: int, stage: int) -> Generator[Ask | RoundEnd, Any, Total]:
        """Agree on a secret and add the histograms.

        Args:
            hub: The coordinator.
            keys: How many keys the domain has.
            stage: Numbers the counts of a run.

        Returns:
            The opened total with its check value, to be announced to the sites.
        """
        yield from self.share_secret(hub, stage)
        total: Total = yield from secure_sum(hub, self.histogram, length=keys + CHECKS, round_number=stage)
        return total

    def frequent(self, site: Site, stage: int, announced: Integers, sites: bytes) -> NDArray[np.bool_]:
        """Which keys of the domain enough persons have, judged at the site.

        Args:
            site: The site.
            stage: The count's number.
            announced: The opened total, as the hub announces it.
            sites: The places of the sites in it.

        Returns:
            True or false per key, in the order of `keys_of`.

        Raises:
            RefusedError: The site took no part in the count.
            IntegrityError: It is another total.
        """
        known = site.state(ClosedState).histograms.get(self._name)
        if known is None or known[0] != stage:
            raise RefusedError(f"site {site.name!r} got the result of a count it took no part in")
        totals = proven_total(self.secret_of(site), known[1], site.plan.sites_at(sites), announced)
        order = self._order(site)
        if len(totals) != len(order):
            raise IntegrityError("a histogram was announced of another domain")
        by_key = np.empty_like(totals)
        by_key[order] = totals
        return np.asarray(by_key >= np.uint64(self._counts_of(site).cap))

    def _order(self, site: Site) -> NDArray[np.int64]:
        """The order of the keys in the sum: by fingerprint, which nobody without the secret knows."""
        return np.argsort(self.prints(site, self._keys_of(site)).f).astype(np.int64)

    def _histogram(
        self, site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
    ) -> tuple[Integers, int]:
        del inputs
        self.secret_of(site)
        keys, own = self._keys_of(site), self._counts_of(site)
        if context.length != len(keys) + CHECKS:
            raise SiteError("the hub asked for a histogram of another domain")
        counts = dict(zip(own.keys, np.minimum(own.counts, own.cap).tolist(), strict=True))
        vector = np.asarray([counts.get(key, 0) for key in keys], dtype=np.uint64)[self._order(site)]
        site.state(ClosedState).histograms[self._name] = (request.round, context.transcript)
        return with_check(self.secret_of(site), context.transcript, site.name, vector), own.rows
