"""Count keys across sites by requests and replies: the group's secret, the size of the table, the table.

What is learned: the hub sees capped totals of opaque keys, hence how many are rare; a site learns, for keys it can
name, whether they reach the threshold; hub and one colluding site together learn the totals of keys that site can
name. A lying site can force approvals or refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.counting import FIELDS, SKETCH, Fingerprints, cells_for, estimate, fingerprints, peel, sketch, table
from kohort.crypto.group_secret import KEYS_CLAIM, SEALED_CLAIM, STEPS, GroupHub, GroupSite
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import Integers, SumContext
from kohort.errors import SiteError
from kohort.privacy.contract import Step
from kohort.protocol.hub import Ask, Hub, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.summing import join_session, secure_sum, step_request, sum_steps, sum_task

__all__ = ["Approved", "KeyCounts", "SecureCount", "is_approved"]

ATTEMPTS = 3
"""How often a table that does not peel is tried again, twice as large; what is left then is withheld."""


@dataclass(frozen=True, eq=False)
class KeyCounts:
    """A site's own keys, one byte string each, and how often (by rows or persons) each occurs."""

    keys: list[bytes]
    counts: NDArray[np.int64]
    rows: int
    cap: int
    """The threshold: no site says more than that a key reaches it."""


@dataclass(frozen=True, eq=False)
class Approved:
    """Fingerprints of the keys whose total reaches the threshold, and what the hub saw on the way."""

    f: Integers
    h: Integers
    keys: int
    withheld_cells: int


@dataclass
class CountState(TaskState):
    """A site's part in the group secrets of its counts, by the count's name."""

    groups: dict[str, GroupSite] = field(default_factory=dict)


class SecureCount:
    """The tasks and the sub-plan of one kind of count."""

    def __init__(
        self, name: str, *, counts_of: Callable[[Site], KeyCounts], scheme: Callable[[ApprovedPlan], str]
    ) -> None:
        self._name = name
        self._counts_of = counts_of
        self.secret = Task(name=f"{name}.secret", one=self._agree, public=False)
        self.size = sum_task(f"{name}.size", self._sketch, scheme=scheme, modulus=P61)
        self.table = sum_task(f"{name}.table", self._table, scheme=scheme, modulus=P61)

    def steps(self, approved: ApprovedPlan, *, says: str, stages: Sequence[int]) -> list[Step]:
        """What counts ask of a site.

        Args:
            approved: The approved plan.
            says: What is counted, for people.
            stages: The numbers of the counts.

        Returns:
            The steps of one turn: the group's secret, the size of the table, the table and its repetitions.
        """
        boxes = (SEALED_CLAIM, KEYS_CLAIM)
        secret = Step(
            task=self.secret.name,
            says="a secret that sites share",
            claims=boxes,
            rounds=stages,
            parts=STEPS,
        )
        first = [stage * ATTEMPTS for stage in stages]
        again = [stage * ATTEMPTS + attempt for stage in stages for attempt in range(ATTEMPTS)]
        size = sum_steps(approved, self.size, says="about how many keys there are", rounds=first, every=ATTEMPTS)
        table = sum_steps(approved, self.table, says=says, rounds=again, every=ATTEMPTS)
        return [secret, *size, *table]

    def run(self, hub: Hub, *, threshold: int, stage: int = 0) -> Generator[Ask | RoundEnd, Any, Approved]:
        """Agree on a secret, learn how large the table must be, add the tables, and read the frequent keys.

        `stage` numbers the counts of a run; each has a secret and masks of its own.
        """
        yield from self._share_secret(hub, stage)
        sized = yield from secure_sum(hub, self.size, length=SKETCH, round_number=stage * ATTEMPTS)
        cells = cells_for(estimate(sized.values))
        for attempt in range(ATTEMPTS):
            added = yield from secure_sum(
                hub, self.table, length=FIELDS * cells, round_number=stage * ATTEMPTS + attempt
            )
            counted = peel(added.values, cells)
            if not counted.stuck_cells:
                break
            cells *= 2  # the same counts in a larger table: nothing new is told, and everything peels
        frequent = counted.totals >= threshold
        return Approved(counted.f[frequent], counted.h[frequent], len(counted.f), counted.stuck_cells)

    def _share_secret(self, hub: Hub, stage: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Carry the sites' messages until all of them hold the group's secret."""
        session, side = hub.approved.session.over(hub.sites), GroupHub(hub.sites)
        inboxes = dict.fromkeys(hub.sites, b"")
        for step in range(STEPS):
            replies: Replies = yield step_request(self.secret, session, step, inboxes, round_number=stage)
            sent = {
                site: payload.blobs["answer"] for site, payload in zip(replies.sites, replies.payloads(), strict=True)
            }
            inboxes = side.route(step, sent)

    def _agree(self, site: Site, request: Request) -> Release:
        step, state = int(request.payload.metrics["step"]), site.state(CountState)
        if step == 0:
            session, approved = join_session(site, request, step).session, site.plan
            binding = f"{approved.run}:{approved.plan_hash}:{self._name}:{request.round}".encode()
            state.groups[self._name] = GroupSite(session.members, site.name, binding, site.streams)
        side = state.groups.get(self._name)
        if side is None:
            raise SiteError(f"site {site.name!r} was asked for step {step} of a secret that was not begun here")
        blob = side.reply(step, request.payload.blobs["inbox"])
        return Release(payload=Payload(blobs={"answer": blob}), guarantee=side.claim(step), rows=0)

    def prints(self, site: Site, keys: list[bytes] | None = None) -> Fingerprints:
        """This site's keys, or any `keys` it can name, as everybody in the group would fingerprint them."""
        side = site.state(CountState).groups.get(self._name)
        if side is None or side.secret is None:
            raise SiteError(f"site {site.name!r} was asked to count before the group agreed on a secret")
        return fingerprints(side.secret, self._counts_of(site).keys if keys is None else keys)

    def _sketch(
        self, site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
    ) -> tuple[Integers, int]:
        del request, inputs
        if context.length != SKETCH:
            raise SiteError("the hub asked for a sketch of another length")
        return sketch(self.prints(site)), self._counts_of(site).rows

    def _table(
        self, site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
    ) -> tuple[Integers, int]:
        del request, inputs
        if context.length % FIELDS:
            raise SiteError("the hub asked for a table of another shape")
        own = self._counts_of(site)
        return table(self.prints(site), np.minimum(own.counts, own.cap), context.length // FIELDS), own.rows


def is_approved(prints: Fingerprints, f: Integers, h: Integers) -> NDArray[np.bool_]:
    """Which of a site's keys are among the approved ones; both fingerprints must match."""
    known = dict(zip(f.tolist(), h.tolist(), strict=True))
    matches = [known.get(own) == second for own, second in zip(prints.f.tolist(), prints.h.tolist(), strict=True)]
    return np.asarray(matches, dtype=bool)
