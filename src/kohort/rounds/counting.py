"""Count keys across sites by requests and replies, and prove to the sites which keys are frequent.

The sites agree on a group secret; a first sum tells the size of the table, the next adds the tables, out of which the
hub reads the frequent keys' fingerprints. It proposes those, and a last, checked sum counts them again. Its total is
announced to the sites, which verify it: an approval is not the hub's word. All sums of a count are over the same sites:
two totals over different ones would show a site's own counts.

What is learned: the hub sees capped totals of opaque keys, hence how many are rare; a site learns, for keys it can
name, whether they reach the threshold; hub and one colluding site together learn the totals of keys that site can
name, and can forge approvals. A lying site can force approvals or refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.counting import (
    FIELDS,
    SKETCH,
    TABLES,
    Fingerprints,
    cells_for,
    estimate,
    fingerprints,
    peel,
    sketch,
    table,
)
from kohort.crypto.group_secret import KEYS_CLAIM, MIN_SITES, SEALED_CLAIM, STEPS, GroupSite
from kohort.crypto.sums.checked import CHECKS, proven_total, with_check
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import Integers, SumContext, find_scheme
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.privacy.contract import Step
from kohort.protocol.hub import Ask, Coordinator, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.group_secrets import carry_secret
from kohort.rounds.summing import (
    SumState,
    SumTask,
    Total,
    join_session,
    secure_sum,
    sum_steps,
    sum_task,
    survivors_of,
    trust_of,
)

__all__ = ["Approved", "FrequentKeys", "KeyCounts", "SecureCount", "is_approved"]

ATTEMPTS = 3
"""How often a table that does not peel is tried again, twice as large; what is left then is withheld."""
_SAYS = "your part of a secret that the sites share, so that the hub cannot read what is counted"
_FAMILY = "rows"
"""Counts belong to the totals of rows."""
_FIRST = 2**64 - 1
"""What a site tells its peers in place of new rows when it has counted nothing yet."""


@dataclass(frozen=True, eq=False)
class KeyCounts:
    """A site's own keys, one byte string each, and how often (by rows or persons) each occurs."""

    keys: list[bytes]
    counts: NDArray[np.int64]
    rows: int
    cap: int
    """No site says more of a key than that its own count reaches this: the threshold, or that of the strictest site."""
    threshold: int = 0
    """The total that a key must reach to be proposed; 0 where it is the cap."""

    @property
    def least(self) -> int:
        """The total that every proposed key must reach."""
        return self.threshold or self.cap


@dataclass(frozen=True, eq=False)
class Approved:
    """Fingerprints of the keys whose total reaches the threshold, and what the hub saw on the way."""

    f: Integers
    h: Integers
    keys: int
    withheld_cells: int
    totals: Integers = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    """The checked totals of these keys with their check value, to be announced to the sites; empty without keys."""
    sites: tuple[str, ...] = ()
    """The sites that were counted."""


@dataclass(frozen=True, eq=False)
class _Proposal:
    """The keys that a site was asked to prove, and what binds the sum that proves them."""

    stage: int
    transcript: bytes
    prints: Fingerprints
    sites: frozenset[str]


@dataclass(frozen=True, eq=False)
class FrequentKeys:
    """Keys that a checked total proves to be frequent: fingerprints, and totals of counts that sites cut off."""

    f: Integers
    h: Integers
    totals: Integers

    def reaching(self, threshold: int) -> FrequentKeys:
        """Those whose totals reach a threshold, such as that of a site with stricter rules."""
        enough = self.totals >= np.uint64(threshold)
        return FrequentKeys(self.f[enough], self.h[enough], self.totals[enough])


@dataclass
class CountState(TaskState):
    """A site's part in its counts, by the count's name."""

    groups: dict[str, tuple[int, GroupSite]] = field(default_factory=dict)
    """The latest stage and its group secret."""
    sites: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """The sites that every further sum of a stage is over."""
    proposals: dict[str, _Proposal] = field(default_factory=dict)
    """What it was asked to prove last."""
    counted: dict[str, int] = field(default_factory=dict)
    """How many rows its latest table was made of."""


class SecureCount:
    """The tasks and the sub-plan of one kind of count.

    Args:
        name: The prefix of its tasks.
        counts_of: A site's own keys and counts.
        scheme: How the approved plan protects the sums.
        again: Whether later stages count the same keys again, with rows that arrived; sites then refuse to count for a
            few new rows.
    """

    def __init__(
        self,
        name: str,
        *,
        counts_of: Callable[[Site], KeyCounts],
        scheme: Callable[[ApprovedPlan], str],
        again: bool = False,
    ) -> None:
        self._name = name
        self._again = again
        self._counts_of = counts_of
        self._scheme = scheme
        self.secret = Task(name=f"{name}.secret", one=self._agree, public=False)
        self.size = sum_task(f"{name}.size", self._sketch, scheme=scheme, modulus=P61, family=_FAMILY)
        self.table = sum_task(
            f"{name}.table", self._table, scheme=scheme, modulus=P61, family=_FAMILY, over=self.same_sites
        )
        self.proof = sum_task(
            f"{name}.proof", self._prove, scheme=scheme, modulus=P61, family=_FAMILY, over=self.same_sites
        )

    def steps(self, approved: ApprovedPlan, *, says: str, stages: Sequence[int]) -> list[Step]:
        """What counts ask of a site.

        Args:
            approved: The approved plan.
            says: What is counted, for people.
            stages: The numbers of the counts.

        Returns:
            The steps of one turn: the group's secret, the size of the table, the table and its repetitions, and the
            checked sum that proves which keys are frequent.
        """
        first = [stage * ATTEMPTS for stage in stages]
        again = [stage * ATTEMPTS + attempt for stage in stages for attempt in range(ATTEMPTS)]
        size = sum_steps(
            approved, self.size, says="about how many different entries there are", rounds=first, every=ATTEMPTS
        )
        table = sum_steps(approved, self.table, says=says, rounds=again, every=ATTEMPTS)
        proof = sum_steps(
            approved,
            self.proof,
            says=f"{says}, once more for the frequent ones, so that sites can check them",
            rounds=first,
            every=ATTEMPTS,
        )
        return [self.secret_step(stages), *size, *table, *proof]

    def secret_step(self, stages: Sequence[int]) -> Step:
        """The agreement on a group's secret, once per count.

        Args:
            stages: The numbers of the counts.

        Returns:
            The step.
        """
        claims = (SEALED_CLAIM, KEYS_CLAIM)
        return Step(task=self.secret.name, says=_SAYS, claims=claims, rounds=stages, parts=STEPS)

    def run(self, hub: Coordinator, *, threshold: int, stage: int = 0) -> Generator[Ask | RoundEnd, Any, Approved]:
        """Agree on a secret, learn how large the table must be, add the tables, and prove the frequent keys.

        Args:
            hub: The coordinator.
            threshold: The total a key must reach.
            stage: Numbers the counts of a run; each has a secret and masks of its own.

        Returns:
            The frequent keys' fingerprints, and the totals that prove them to the sites.

        Raises:
            SiteError: A site left during the count.
            IntegrityError: The two counts of a key differ.
        """
        yield from self.share_secret(hub, stage)
        first = yield from secure_sum(hub, self.size, length=SKETCH, round_number=stage * ATTEMPTS)
        cells = cells_for(estimate(first.values))
        for attempt in range(ATTEMPTS):
            added = yield from self.sum_again(hub, self.table, first.sites, FIELDS * cells, stage * ATTEMPTS + attempt)
            counted = peel(added.values, cells)
            if not counted.stuck_cells:
                break
            # The same counts in a larger table tell nothing new. Its size is no multiple of this one's: keys that share
            # their cells here do not share them there.
            cells = 2 * cells + TABLES
        frequent = counted.totals >= threshold
        f, h, seen, stuck = counted.f[frequent], counted.h[frequent], len(counted.f), counted.stuck_cells
        if not len(f):
            return Approved(f, h, seen, stuck, sites=first.sites)
        keys = {"keys": np.concatenate([f, h]).astype("<u8").tobytes()}
        proof = yield from self.sum_again(hub, self.proof, first.sites, len(f) + CHECKS, stage * ATTEMPTS, keys)
        if (proof.values[:-CHECKS] != counted.totals[frequent].astype(np.uint64)).any():
            raise IntegrityError("a site counted its keys in another way when they were counted again")
        return Approved(f, h, seen, stuck, proof.values, first.sites)

    def sum_again(
        self,
        hub: Coordinator,
        task: SumTask,
        counted: tuple[str, ...],
        length: int,
        round_number: int,
        inputs: Mapping[str, bytes] | None = None,
    ) -> Generator[Ask | RoundEnd, Any, Total]:
        """A further sum of the count, over exactly the sites of the first one.

        Args:
            hub: The coordinator.
            task: What is added.
            counted: The sites of the first sum.
            length: How many numbers each site contributes.
            round_number: The round of the sum.
            inputs: Public inputs besides the list of sites.

        Returns:
            The opened total.

        Raises:
            SiteError: A site left.
        """
        own = {**(inputs or {}), "sites": hub.approved.places_of(counted)}
        total = yield from secure_sum(hub, task, length=length, round_number=round_number, inputs=own, over=counted)
        if frozenset(total.sites) != frozenset(counted):
            raise SiteError("a site left during a count, and two totals over different sites would show its counts")
        return total

    def share_secret(self, hub: Coordinator, stage: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Carry the sites' messages until all of them hold the group's secret.

        Args:
            hub: The coordinator.
            stage: The count's number.
        """
        yield from carry_secret(hub, self.secret, stage)

    def _agree(self, site: Site, request: Request) -> Release:
        step = int(request.payload.metrics["step"])
        side = self._begin_group(site, request) if step == 0 else self._group(site, request.round)
        blob = side.reply(step, request.payload.blobs["inbox"])
        if step == 1:
            self._check_recount(site, side)
            _note_batches(site, side)
        return Release(payload=Payload(blobs={"answer": blob}), guarantee=side.claim(step), rows=0, said=0)

    def _begin_group(self, site: Site, request: Request) -> GroupSite:
        state, stage, approved = site.state(CountState), request.round, site.plan
        known = state.groups.get(self._name)
        if known is not None and known[0] >= stage:
            raise IntegrityError("a count came in that was begun here before")
        session = join_session(site, request, 0).session
        own, trust = self._counts_of(site), trust_of(site)
        side = GroupSite(
            session.members,
            site.name,
            b":".join((approved.run.encode(), approved.plan_hash.encode(), self._name.encode(), b"%d" % stage))
            + session.id,
            site.streams,
            trust.identity,
            trust.find_peer,
            colluders=trust.colluders,
            number=_FIRST if self._name not in state.counted else min(self.new_rows(site), own.least),
        )
        state.groups[self._name] = (stage, side)
        return side

    def _group(self, site: Site, stage: int | None = None) -> GroupSite:
        """The group of the latest stage, which must be `stage` where that is given."""
        known = site.state(CountState).groups.get(self._name)
        if known is None or (stage is not None and known[0] != stage):
            raise SiteError(f"site {site.name!r} was asked about a count that was not begun here")
        return known[1]

    def _check_recount(self, site: Site, side: GroupSite) -> None:
        """Refuse to count again for a few new rows: the difference of two counts would show their keys."""
        own = self._counts_of(site)
        if not self._again or self._name not in site.state(CountState).counted:
            return
        new_rows = [own.least if number == _FIRST else number for number in side.numbers.values()]
        least = max(MIN_SITES, side.colluders + 2)
        if sum(number > 0 for number in new_rows) < least or sum(new_rows) < own.least:
            raise RefusedError(f"keys are counted again when {least} sites have new rows, {own.least} in all")

    def new_rows(self, site: Site) -> int:
        """How many rows of the site are in none of its counts yet."""
        return self._counts_of(site).rows - site.state(CountState).counted.get(self._name, 0)

    def secret_of(self, site: Site) -> bytes:
        """The group's secret at a site.

        Args:
            site: The site.

        Returns:
            The secret of the latest stage.

        Raises:
            SiteError: The group has not agreed on one.
        """
        secret = self._group(site).secret
        if secret is None:
            raise SiteError(f"site {site.name!r} was asked to count before the group agreed on a secret")
        return secret

    def prints(self, site: Site, keys: list[bytes] | None = None) -> Fingerprints:
        """This site's keys, or any `keys` it can name, as everybody in the group would fingerprint them.

        Args:
            site: The site.
            keys: The keys; the site's own when absent.

        Returns:
            Their fingerprints under the secret of the latest stage.
        """
        return fingerprints(self.secret_of(site), self._counts_of(site).keys if keys is None else keys)

    def proven(self, site: Site, stage: int, announced: Integers) -> FrequentKeys | None:
        """The keys that the announced totals prove to be frequent.

        Args:
            site: The site.
            stage: The count's number.
            announced: Checked totals, as the hub announces them; a wrong one is not judged a second time.

        Returns:
            The keys; None when the site took no part in the proof, and nothing is proven to it.

        Raises:
            IntegrityError: The totals are not those of the proof, or a proposed key does not reach the threshold.
        """
        proposal = site.state(CountState).proposals.get(self._name)
        if proposal is None or proposal.stage != stage:
            return None
        try:
            totals = proven_total(self.secret_of(site), proposal.transcript, sorted(proposal.sites), announced)
            _require_frequent(totals, keys=len(proposal.prints.f), threshold=self._counts_of(site).least)
        except IntegrityError:
            del site.state(CountState).proposals[self._name]
            raise
        return FrequentKeys(proposal.prints.f, proposal.prints.h, totals)

    def same_sites(self, site: Site, request: Request, inputs: Mapping[str, bytes]) -> frozenset[str]:
        """The sites of the count's first sum, which every further one must be over; `sum_task` asks for it.

        Args:
            site: The site.
            request: The first request of a further sum.
            inputs: Its public inputs, with the list of sites.

        Returns:
            The sites.

        Raises:
            RefusedError: The list is not that of the first sum, or too short.
        """
        stage, state = request.round // ATTEMPTS, site.state(CountState)
        announced = frozenset(site.plan.sites_at(inputs.get("sites", b"")))
        known = survivors_of(site, self.size, stage * ATTEMPTS)
        if find_scheme(self._scheme(site.plan)).steps == 1:  # no list was confirmed: the first one announced holds
            known = state.sites.get((self._name, stage), announced)
        trust = trust_of(site)
        if known != announced or len(announced) < max(MIN_SITES, trust.colluders + 2, trust.min_sites):
            raise RefusedError("a count goes on over exactly the sites that it began with")
        state.sites[self._name, stage] = announced
        return announced

    def _sketch(
        self, site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
    ) -> tuple[Integers, int]:
        del inputs
        self._group(site, request.round // ATTEMPTS)
        if context.length != SKETCH:
            raise SiteError("the hub asked for a sketch of another length")
        return sketch(self.prints(site)), self._counts_of(site).rows

    def _table(
        self, site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
    ) -> tuple[Integers, int]:
        del inputs
        self._group(site, request.round // ATTEMPTS)
        if context.length % FIELDS:
            raise SiteError("the hub asked for a table of another shape")
        own = self._counts_of(site)
        site.state(CountState).counted[self._name] = own.rows
        return table(self.prints(site), np.minimum(own.counts, own.cap), context.length // FIELDS), own.rows

    def _prove(
        self, site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
    ) -> tuple[Integers, int]:
        """This site's counts of the proposed keys, with their check value."""
        state, stage, own = site.state(CountState), request.round // ATTEMPTS, self._counts_of(site)
        self._group(site, stage)
        proposed = _read_prints(inputs.get("keys", b""))
        known = state.proposals.get(self._name)
        if known is not None and known.stage == stage and known.transcript != context.transcript:
            raise IntegrityError("other keys were proposed before in the same count")
        if context.length != len(proposed.f) + CHECKS:
            raise SiteError("the hub asked for a proof of another length")
        sites = state.sites[self._name, stage]
        state.proposals[self._name] = _Proposal(stage, context.transcript, proposed, sites)
        mine = self.prints(site)
        capped = np.minimum(own.counts, own.cap).tolist()
        counts = dict(zip(zip(mine.f.tolist(), mine.h.tolist(), strict=True), capped, strict=True))
        asked = zip(proposed.f.tolist(), proposed.h.tolist(), strict=True)
        vector = np.asarray([counts.get(key, 0) for key in asked], dtype=np.uint64)
        return with_check(self.secret_of(site), context.transcript, site.name, vector), own.rows


def _note_batches(site: Site, side: GroupSite) -> None:
    """Note whose rows are more than in the last count, as all sites of the group heard: their totals have new parts."""
    if site.plan.arrival is None or not site.plan.arrival.appended:
        return
    known = site.state(SumState).batches.setdefault(_FAMILY, {})
    for name, number in side.numbers.items():
        if name != site.name and number not in (0, _FIRST):
            known[name] = known.get(name, 0) + 1


def _require_frequent(totals: Integers, *, keys: int, threshold: int) -> None:
    if len(totals) != keys or (totals < np.uint64(threshold)).any():
        raise IntegrityError("the hub proposed a key as frequent that is not")


def _read_prints(keys: bytes) -> Fingerprints:
    """Proposed fingerprints: all f, then all h."""
    if not keys or len(keys) % 16:
        raise IntegrityError("the keys that a count proposes cannot be read")
    f, h = np.frombuffer(keys, dtype="<u8").reshape(2, -1)
    return Fingerprints(f, h)


def is_approved(prints: Fingerprints, f: Integers, h: Integers) -> NDArray[np.bool_]:
    """Which of a site's keys are among the approved ones; both fingerprints must match.

    Args:
        prints: The site's own keys.
        f: The approved keys' first fingerprints.
        h: Their second ones.

    Returns:
        True or false per key of the site.
    """
    known = dict(zip(f.tolist(), h.tolist(), strict=True))
    matches = [known.get(own) == second for own, second in zip(prints.f.tolist(), prints.h.tolist(), strict=True)]
    return np.asarray(matches, dtype=bool)
