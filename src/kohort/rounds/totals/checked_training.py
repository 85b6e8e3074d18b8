"""Learning over checked totals: the hub opens one total per round and announces it, and sites take the step themselves.

`CheckedTraining` carries any `Learner` (`.learner`) over secure sums. The hub sends a seed and then the total of the
round before, with a check value that only the sites can make (`kohort.crypto.sums.checked`). Every site verifies it and
moves its own learner, so a hub cannot choose what rows are seen through. Totals may differ in length from round to
round. A site that missed rounds is sent their totals. A learner may seal a total: every site adds the same
pseudo-random numbers, which the hub does not know; sites read the total and tell the hub what follows from it, after
every sealed total or after some of them.

Without a budget, totals leave out whole public groups of sites or nobody, and stand in the books of openings. With one,
every site adds its share of the noise before anything leaves; rounds spend shares of one Gaussian budget, which compose
exactly. With `sum = "none"` a site's own numbers go to the hub: as they are, or with all the noise added at the site.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.checked import (
    CHECKS,
    from_residues,
    proven_total,
    sealed,
    to_residues,
    unsealed,
    with_check,
)
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import MIN_SITES, Integers, SumContext, find_scheme
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.models.rows import Rows
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Aggregate, Guarantee, Public
from kohort.protocol.hub import Ask, Hub, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Releases, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.dp_accounts import account_of, answer_once, claim_of, reserve, reserve_step, total_claim
from kohort.rounds.group_secrets import agree_on_secret, secret_of, secret_step
from kohort.rounds.phase_rows import reported_rows, rows_of
from kohort.rounds.summing import SumState, SumTask, open_session, sum_steps, sum_task
from kohort.rounds.totals.learner import Learner, Setting, Whole, bounded
from kohort.rounds.totals.learner_state import LearnerState, first_key, next_key
from kohort.rounds.totals.pairs import rounds_next, rounds_pairs, signed_total, small_pairs
from kohort.rounds.totals.protection import grouped, has_budget, is_checked, scheme_of, seals_next
from kohort.rounds.totals.protocol import ROOM, TotalsProtocol, TotalsTasks
from kohort.tables.encoder import Encoder

__all__ = ["CheckedTraining", "is_checked", "scheme_of"]

LEAST_GRID_UNITS = 8
"""Rounding must be fine compared with a site's share of the noise."""
_CAUGHT_UP = Public(what="that it has caught up")
_RECENT = 4
"""Learners that sites of one process share: all of them take the same step, one after the other."""


@dataclass(frozen=True, eq=False)
class CheckedTraining:
    """A method's learner, carried over checked totals. Creating one registers the tasks of its sites.

    Args:
        name: Prefix of the tasks' names; the method's name.
        start: Makes the learner of the start, by the approved plan.
        rounds: The most totals that a plan has.
        says: What a round's total is, for people; by the plan, where it decides.
        seals: The rounds of a plan whose totals are sealed, where sums are secure.
        discloses: Those of them after which sites tell the hub something; all where it is not given.
        tells: What sites say of a sealed total, for people.
        pairs: The rounds of a plan whose totals count pairs of categories; a key-holder rounds those.
        own_keys: The learner's own keys in a plan, where they are a part of `[method]`.
        units: What an exact row counts; see `kohort.rounds.totals.learner.Setting`.

    Example:
        TRAINING = CheckedTraining("additive", start, lambda approved: approved.config.rounds, "gradients per bin")

        def protocol(config, hub):
            learner = yield from TRAINING.learn(hub)
            return Result(model=learner.model, rounds=config.rounds, stopped_by="rounds")

        def contract(approved):
            return TRAINING.contract(approved)
    """

    name: str
    start: Callable[[Setting], Learner]
    rounds: Callable[[ApprovedPlan], int]
    says: str | Callable[[ApprovedPlan], str]
    seals: Callable[[ApprovedPlan], Sequence[int]] = lambda _: ()
    discloses: Callable[[ApprovedPlan], Sequence[int]] | None = None
    tells: str = ""
    pairs: Callable[[ApprovedPlan], Sequence[int]] = lambda _: ()
    own_keys: Callable[[ApprovedPlan], Any] = lambda _: None
    units: int = 1
    _recent: dict[bytes, Learner] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _ = (self.total, self.pair_total, self.own, self.catch_up, self.tell)  # made here, so that they are registered

    @cached_property
    def total(self) -> SumTask:
        """The site's part in a secure sum."""
        return sum_task(
            f"{self.name}.total",
            self._contribute,
            says=_rows_said,
            scheme=scheme_of,
            modulus=P61,
            family="rows",
            grouped=grouped,
        )

    @cached_property
    def pair_total(self) -> SumTask:
        """The site's part in a sum that a key-holder rounds."""
        return sum_task(
            f"{self.name}.pairs",
            self._contribute_pairs,
            says=_rows_said,
            scheme=scheme_of,
            modulus=P61,
            family="rows",
            grouped=grouped,
            small_cells=small_pairs,
            signed=True,
        )

    @cached_property
    def own(self) -> Task:
        """The site's numbers in clear, or with all the noise of its budget."""
        return Task(name=f"{self.name}.own", one=self._own_of_one, many=self._own_of_many)

    @cached_property
    def catch_up(self) -> Task:
        """The totals of rounds that a site missed."""
        return Task(name=f"{self.name}.catch-up", one=self._catch_up, public=False)

    @cached_property
    def tell(self) -> Task:
        """What follows from a sealed total."""
        return Task(name=f"{self.name}.disclose", one=self._tell, public=False)

    # At a site.

    def _binding(self, approved: ApprovedPlan, number: int) -> bytes:
        """What the check values of a round are bound to; a returning site knows it, too."""
        text = f"{approved.run}:{approved.plan_hash}:{self.total.name}:{number}"
        return hashlib.blake2b(text.encode(), digest_size=32, person=b"kohort-checked").digest()

    def setting(self, approved: ApprovedPlan, encoder: Encoder, seed: bytes, members: int, sigma: float) -> Setting:
        """What hub and sites know alike.

        Args:
            approved: The approved plan.
            encoder: How rows become numbers.
            seed: The public seed.
            members: How many sites the sums are over.
            sigma: The noise multiplier; 0 without a budget.

        Returns:
            The setting of the learner.
        """
        return Setting(
            approved=approved,
            encoder=encoder,
            seed=seed,
            members=members,
            sigma=sigma,
            own=self.own_keys(approved),
            units=self.units,
        )

    def _setting(self, site: Site, seed: bytes, members: int) -> Setting:
        sigma = account_of(site).sigmas[0] if has_budget(site.plan) else 0.0
        return self.setting(site.plan, site.encoder, seed, members, sigma)

    def _begin(self, site: Site, seed: bytes, members: int) -> LearnerState:
        """Make the learner of the start, or the restored one; another seed is refused, whichever request brings it."""
        state = site.state(LearnerState)
        if len(seed) != 16:
            raise IntegrityError("the seed of a training has another length")
        if state.learner is None and state.stored:
            self._take_up(site, state)
        if state.learner is None:
            setting = self._setting(site, seed, members)
            state.round, state.seed, state.members, state.key = 0, seed, members, first_key(setting)
            learner = self._shared(state.key, lambda: self.start(setting))
            _check_least(site, learner)
            state.learner = learner
        elif seed != state.seed:
            raise IntegrityError("the seed of a training is not the one that this run began with")
        return state

    def _take_up(self, site: Site, state: LearnerState) -> None:
        stored, state.stored = state.stored, {}
        state.round, state.members = (int(number) for number in stored["numbers"])
        state.seed, state.key = stored["seed"].tobytes(), stored["key"].tobytes()
        own = {name.removeprefix("learner_"): array for name, array in stored.items() if name.startswith("learner_")}
        setting = self._setting(site, state.seed, state.members)
        state.learner = self._shared(state.key, lambda: self.start(setting).restored(own))

    def _shared(self, key: bytes, make: Callable[[], Learner]) -> Learner:
        """The learner of a digest. A value that follows from the same totals is the same at all sites of a process."""
        found = self._recent.get(key)
        if found is None:
            found = make()
            while len(self._recent) >= _RECENT:
                del self._recent[next(iter(self._recent))]
            self._recent[key] = found
        return found

    def _advance(self, site: Site, announced: bytes, places: bytes) -> None:
        """Take the step of one round, if the announced total is what the sites contributed."""
        state, added = site.state(LearnerState), len(site.plan.read_places(places))
        learner = state.learner
        if learner is None or len(announced) % 8:
            raise IntegrityError("the total of a round came in before the round")
        total = np.frombuffer(announced, dtype="<u8").astype(np.uint64)
        if rounds_next(site.plan, learner):
            total = signed_total(site, self.pair_total.name, state.round, site.plan.sites_at(places), total)
        elif is_checked(site.plan):
            secret, binding = secret_of(site), self._binding(site.plan, state.round)
            total = proven_total(secret, binding, site.plan.sites_at(places), total)
            total = unsealed(secret, binding, added, total) if seals_next(site.plan, learner) else total
        signed = from_residues(total).view(np.int64)
        if len(signed) != learner.length:
            raise IntegrityError("the total of a round has another length")
        key = next_key(state.key, signed, added)
        state.learner = self._shared(key, lambda: learner.after(signed, added))
        state.key, state.round = key, state.round + 1

    def _at_round(self, site: Site, number: int, inputs: Mapping[str, bytes], members: int) -> Learner:
        """The learner of a round, computed here from what came with the request."""
        state = self._begin(site, inputs.get("start", b""), members)
        if number and state.round == number - 1:
            self._advance(site, inputs.get("total", b""), inputs.get("sites", b""))
        if state.learner is None or state.round != number:
            raise SiteError(f"site {site.name!r} is not ready for round {number}", hint="Send it the missed totals")
        return state.learner

    def _numbers(self, site: Site, request: Request, learner: Learner) -> tuple[Whole, int]:
        """What the site adds to a total, with its noise, and the rows behind it."""
        learner.check()
        state, rows = site.state(LearnerState), rows_of(site, site.plan.phase(0))
        state.memory.persons = state.memory.get(_FirstRows, lambda: _first_rows(rows)).mask
        numbers = learner.contribution(rows, state.memory)
        if numbers.shape != (learner.length,) or numbers.dtype != np.int64:
            raise SiteError(f"a learner of {self.name!r} gives other numbers than it announced")
        if has_budget(site.plan):
            numbers = numbers + self._noise(site, request, learner)
        return bounded(numbers, ROOM // state.members), rows.count

    def _noise(self, site: Site, request: Request, learner: Learner) -> Whole:
        from kohort.models.dp_sgd.fit import gaussian

        answer_once(site, request)
        state = site.state(LearnerState)
        deviation = self._setting(site, state.seed, state.members).deviation(learner.sensitivity, learner.share)
        if deviation < LEAST_GRID_UNITS:
            raise RefusedError("the numbers of a sum are too coarse for the noise that they are to carry")
        normals = gaussian(site.streams.bytes("dp", request.digest), learner.length)
        noise: Whole = np.rint(deviation * normals).astype(np.int64)
        return noise

    def _contribute(
        self, site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
    ) -> tuple[Integers, int]:
        if not is_checked(site.plan):
            raise RefusedError("the approved plan has no secure sum of this kind")
        learner = self._at_round(site, request.round, inputs, len(context.sites))
        if context.length != learner.length + CHECKS or rounds_next(site.plan, learner):
            raise SiteError("a sum was asked for that is not in the approved plan")
        numbers, count = self._numbers(site, request, learner)
        secret, binding = secret_of(site), self._binding(site.plan, request.round)
        vector = to_residues(numbers.view(np.uint64))
        if seals_next(site.plan, learner):
            vector = sealed(secret, binding, vector)
        return with_check(secret, binding, site.name, vector), count

    def _contribute_pairs(
        self, site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]
    ) -> tuple[Integers, int]:
        learner = self._at_round(site, request.round, inputs, len(context.sites))
        if context.length != learner.length or not rounds_next(site.plan, learner):
            raise SiteError("a sum was asked for that is not in the approved plan")
        numbers, count = self._numbers(site, request, learner)
        return to_residues(numbers.view(np.uint64)), count

    def _tell(self, site: Site, request: Request) -> Release:
        """Say what follows from a sealed total, which is verified like any other."""
        blobs, state = request.payload.blobs, site.state(LearnerState)
        learner = self._at_round(site, request.round + 1, blobs, state.members)
        count = rows_of(site, site.plan.phase(0)).count
        colluders = 1 if site.plan.secure is None else site.plan.secure.colluders
        claim = find_scheme(scheme_of(site.plan)).claim(state.members, count, colluders=colluders)
        return Release(
            payload=Payload(arrays=learner.disclosed()), guarantee=claim, rows=count, said=_rows_said(site, request)
        )

    def _own_numbers(self, site: Site, request: Request) -> tuple[Whole, Guarantee, int]:
        if is_checked(site.plan):
            raise RefusedError("a plan with a secure sum asks for no numbers in clear")
        learner = self._at_round(site, request.round, request.payload.blobs, len(site.plan.sites))
        numbers, count = self._numbers(site, request, learner)
        return numbers, claim_of(site) if has_budget(site.plan) else site.aggregate(count), count

    def _own_of_one(self, site: Site, request: Request) -> Release:
        numbers, guarantee, count = self._own_numbers(site, request)
        said = _rows_said(site, request)
        payload = Payload(arrays={"numbers": numbers}, metrics={"rows": said})
        return Release(payload=payload, guarantee=guarantee, rows=count, said=said)

    def _own_of_many(self, sites: Sequence[Site], request: Request) -> Releases:
        found = [self._own_numbers(site, request) for site in sites]
        counts, said = [count for _, _, count in found], [_rows_said(site, request) for site in sites]
        return Releases(
            arrays={"numbers": np.stack([numbers for numbers, _, _ in found])},
            metrics={"rows": np.asarray(said, dtype=np.int64)},
            guarantees=[guarantee for _, guarantee, _ in found],
            rows=counts,
            said=said,
        )

    def _catch_up(self, site: Site, request: Request) -> Release:
        """Take the steps of rounds this site missed; each total is verified like any other."""
        arrays, agreed = request.payload.arrays, site.state(SumState).agreed
        state = site.state(LearnerState)
        if agreed is not None:
            members = len(agreed.session.members)
        else:
            members = state.members if is_checked(site.plan) else len(site.plan.sites)
        if not members and not state.stored:
            raise SiteError(f"site {site.name!r} took part in no round, so it has nothing to catch up with")
        state = self._begin(site, request.payload.blobs.get("start", b""), members)
        totals = _parts(arrays["totals"], arrays["lengths"])
        for number, (total, places) in enumerate(zip(totals, _parts(arrays["places"], arrays["sizes"]), strict=True)):
            if int(request.payload.metrics["first"]) + number == state.round:  # the others it took before
                self._advance(site, total.astype("<u8").tobytes(), places.astype("<u4").tobytes())
        return Release(payload=Payload(), guarantee=_CAUGHT_UP, rows=0)

    # What a plan may ask for.

    def contract(self, approved: ApprovedPlan) -> Contract:
        """What learning over totals asks of a site.

        Args:
            approved: The approved plan, whose phase 0 has the rows and the budget.

        Returns:
            The reservation of a budget, the agreement on a secret, and one answer per round; totals of missed rounds
            come in between.
        """
        rounds, budget = range(self.rounds(approved)), [reserve_step(approved)] if has_budget(approved) else []
        missed = Step(
            task=self.catch_up.name,
            says="that your site caught up with rounds it missed",
            claims=(_CAUGHT_UP,),
            rounds=rounds,
        )
        if is_checked(approved):
            rounded = self.pairs(approved) if rounds_pairs(approved) else ()
            others = [number for number in rounds if number not in rounded] if rounded else rounds
            steps = self._read(approved, sum_steps(approved, self.total, says=self._words(approved), rounds=others))
            telling = self._telling(approved, steps[-1])
            if rounded:
                says = f"counts of pairs of bins; the key-holder rounds those below {approved.min_cell} at random"
                steps += sum_steps(approved, self.pair_total, says=says, rounds=rounded)[-1:]
            return Contract.of(budget, [secret_step()], [missed, *steps, *telling])
        claims = (total_claim(approved),) if budget else (Aggregate(rows=0),)
        own = Step(task=self.own.name, says=f"of your rows: {self._words(approved)}", claims=claims, rounds=rounds)
        return Contract.of(budget, [missed, own])

    def _telling(self, approved: ApprovedPlan, total: Step) -> list[Step]:
        """What sites are asked about sealed totals; with a budget, none is sealed."""
        rounds = (self.discloses or self.seals)(approved)
        if not rounds or has_budget(approved):
            return []
        return [Step(task=self.tell.name, says=self.tells, claims=total.claims, rounds=rounds, read_by=_FACTS_IN_CLEAR)]

    def _read(self, approved: ApprovedPlan, steps: list[Step]) -> list[Step]:
        """Mark the last step as readable by sites alone, if all its totals are sealed."""
        sealed = () if has_budget(approved) else self.seals(approved)
        if not set(steps[-1].rounds) <= set(sealed):
            return steps
        return [*steps[:-1], replace(steps[-1], read_by=_SEALED)]

    def _words(self, approved: ApprovedPlan) -> str:
        says = self.says if isinstance(self.says, str) else self.says(approved)
        if has_budget(approved):
            return f"{says}, with noise"
        seals = self.seals(approved) if is_checked(approved) else ()
        if not seals:
            return says
        if len(seals) == self.rounds(approved):
            return f"{says}; sites alone can read the totals"
        rounds = ", ".join(str(number + 1) for number in seals[:3])
        more = f", ... {seals[-1] + 1}" if len(seals) > 3 else ""
        return f"{says}; sites alone can read that of round {rounds}{more}"

    # At the hub.

    def learn(self, hub: Hub, *, sigma: float = 0.0) -> Generator[Ask | RoundEnd, Any, Learner]:
        """Learn over totals, from the reservation of the budget to the last round.

        Args:
            hub: The coordinator.
            sigma: The noise multiplier of the sites' accounts, which depends on no site's rows.

        Returns:
            The learner at the end.

        Raises:
            ConfigError: The sums need a scheme that cannot add up so many sites.
            RefusedError: Too few sites take part.
        """
        approved, rounds = hub.approved, self.rounds(hub.approved)
        if has_budget(approved):
            reserved: Replies = yield reserve(hub.sites)
            hub = replace(hub, sites=reserved.sites)
        members = len(approved.sites)
        if is_checked(approved):
            if len(hub.sites) < MIN_SITES:
                raise RefusedError(
                    f"{len(hub.sites)} sites take part, and a sum over fewer than three hides nothing",
                    hint='Add sites, or set method.secure.sum = "none" where the hub is trusted',
                )
            hub = replace(hub, sites=(yield from agree_on_secret(hub)))
            members = len((yield from open_session(hub, find_scheme(scheme_of(approved)))).members)
        seed = hub.streams.bytes("start", length=16)
        setting = self.setting(approved, hub.encoder, seed, members, sigma)
        tasks = TotalsTasks(self.total, self.pair_total, self.own, self.catch_up, self.tell)
        training = TotalsProtocol(hub=hub, seed=seed, tasks=tasks, learner=self.start(setting))
        first = 0
        if hub.resume is not None:
            first = training.resume(hub.resume.round, hub.resume.state)
            model = training.learner.model
            yield RoundEnd(round=first - 1, rounds=rounds, model=model, state=hub.resume.state, resumed=True)
        for number in range(first, rounds):
            if training.learner.finished:
                break
            yield from training.round(number)
            yield RoundEnd(round=number, rounds=rounds, model=training.learner.model, state=training.state())
        return training.learner


_SEALED: Final = "sealed: sites alone can read the totals, or a hub with a site on its side"
_FACTS_IN_CLEAR: Final = "read in clear; the same facts from every site, about all sites together"
"""Who reads sealed totals, and what follows from them."""


def _check_least(site: Site, learner: Learner) -> None:
    """Refuse a plan after whose sealed totals the hub would be told of cells that the site's policy finds too small."""
    least, wanted = learner.least, site.policy.min_cell
    if seals_next(site.plan, learner) and least < wanted:
        raise RefusedError(
            f"the hub would be told of bins of {least} persons, below the policy's min_cell {wanted}",
            hint="Raise the plan's policy.min_cell",
        )


class _FirstRows(NamedTuple):
    """The first row of each person; None where persons are not told apart."""

    mask: NDArray[np.bool_] | None


def _first_rows(rows: Rows) -> _FirstRows:
    return _FirstRows(None if rows.person is None else rows.person.is_first_distinct().to_numpy())


def _rows_said(site: Site, request: Request) -> int:
    """How many rows or persons a total is from, those outside the domain included."""
    del request  # a plan of totals has one phase
    return reported_rows(site, site.plan.phase(0))


def _parts(values: NDArray[Any], sizes: NDArray[Any]) -> list[NDArray[Any]]:
    """An array cut into parts of these sizes."""
    if len(sizes) and (sizes.min() < 0 or int(sizes.sum()) != len(values)):
        raise IntegrityError("the totals of missed rounds cannot be read")
    return np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []
