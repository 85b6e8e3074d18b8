"""A site: one holder of private rows, with its policy, its ledger chain and its own randomness.

Guarantee: what `answer` returns has passed the door. There is no other way from a task to the outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import polars as pl
from numpy.typing import NDArray

from kohort.crypto.sums.scheme import MIN_SITES
from kohort.errors import IntegrityError, KohortError, RefusedError, SiteError
from kohort.models.rows import Rows
from kohort.models.trainable import Trainable
from kohort.privacy.codes import code_of
from kohort.privacy.contract import Asked, Contract, Place, Position, Step, admit, note
from kohort.privacy.door import Refusal, door
from kohort.privacy.guarantee import Aggregate, Public
from kohort.privacy.ledger.ledger import Chain, Ledger, LedgerContext
from kohort.privacy.openings import OpeningBook
from kohort.privacy.policy import Policy
from kohort.privacy.releases import ReleaseAccount
from kohort.protocol.faults import ByzantineSite
from kohort.protocol.outbox import Outbox
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.public_inputs import PublicInputs
from kohort.protocol.state import SiteStates, TaskState
from kohort.protocol.task import ManySites, Release, Request, find_task
from kohort.protocol.wire import EncodedReplies, Payload, encode, encode_many
from kohort.rng import Streams
from kohort.tables.encoder import Encoder
from kohort.tables.schema import Schema

T = TypeVar("T", bound=TaskState)

if TYPE_CHECKING:
    from kohort.crypto.sealed import Identity, PublicIdentity

_NOTHING = Public(what="nothing")

__all__ = ["Answers", "Failure", "Site", "SiteTable", "answer", "asked_of", "replay", "restore_place"]


@dataclass(frozen=True, eq=False)
class SiteTable:
    """A site's rows: `frame` from `start` to `stop`. Simulated sites own consecutive parts of one frame."""

    frame: pl.DataFrame
    start: int
    stop: int
    low: int | None = None
    """How many rows, at the beginning, have a low re-identification risk; None when risks were not assessed."""
    low_by_row: bool = False
    """Whether a row's risk depends on that row alone, so that no other row can change it."""

    @property
    def count(self) -> int:
        """How many rows."""
        return self.stop - self.start

    def rows(self) -> pl.DataFrame:
        """The site's own rows; no copy."""
        return self.frame.slice(self.start, self.count)


@dataclass(frozen=True)
class Failure:
    """A site that could not answer, and the reason, which stays at the site."""

    site: str
    reason: str
    tampered: bool = False
    """Whether a message to it failed its integrity check: an invalid seal, a wrong key, a replay."""
    code: str = "failed"
    """The word that may leave it."""


class Answers(NamedTuple):
    """The answers of a group of sites: encoded replies (of the sites in `sites`), refusals and failures."""

    sites: tuple[Site, ...]
    encoded: EncodedReplies | list[bytes]
    refusals: Sequence[Refusal] = ()
    failures: Sequence[Failure] = ()
    seconds: float = 0.0
    """Time all of them took together."""
    shares: Sequence[float] = ()
    """Each site's relative part of `seconds`: its rows in a joint call, its own seconds when asked alone."""

    @property
    def slowest(self) -> float:
        """Seconds of the slowest site."""
        return self.seconds * max(self.shares, default=0) / (sum(self.shares) or 1)

    @property
    def times(self) -> list[float]:
        """Seconds each of `sites` took."""
        a_share = self.seconds / (sum(self.shares) or 1)
        return [share * a_share for share in self.shares]

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Merge the answers of several groups.

        Args:
            parts: The groups' answers.

        Returns:
            The answers of all of them, in the same order.
        """
        if len(parts) == 1:
            return parts[0]
        return cls(
            sites=tuple(site for part in parts for site in part.sites),
            encoded=[bytes(data) for part in parts for data in part.each()],
            refusals=[refusal for part in parts for refusal in part.refusals],
            failures=[failure for part in parts for failure in part.failures],
            seconds=sum(part.seconds for part in parts),
            shares=[time for part in parts for time in part.times],
        )

    def each(self) -> Sequence[bytes | memoryview]:
        """The encoded reply of every site."""
        return self.encoded.views() if isinstance(self.encoded, EncodedReplies) else self.encoded


class Site:
    """One holder of private rows, with its policy, its ledger chain and its own randomness.

    Args:
        name: The site's name in the plan.
        table: Its rows.
        schema: The columns and their roles.
        policy: What may leave, and under which guarantees.
        streams: The site's own random streams.
        ledger: The ledger that holds the site's chain.
    """

    def __init__(
        self, *, name: str, table: SiteTable, schema: Schema, policy: Policy, streams: Streams, ledger: Ledger
    ) -> None:
        self.name = name
        self.table = self._all_rows = table
        self.schema = schema
        self.policy = policy
        self.streams = streams
        self.row_key = streams.key("rows")
        self.states = SiteStates()
        """What tasks keep between requests, such as an optimizer's state. Never leaves."""
        self.training_rows: Rows | None = None
        """The encoded rows to train on; None until a task of the method sets them. They never leave."""
        self.approved: ApprovedPlan | None = None
        self.contract_of: Callable[[ApprovedPlan], Contract] = lambda approved: approved.contract
        """What this participant takes from an approved plan; a key-holder takes other steps than a site."""
        self.place = Place()
        """How far the site has come in its contract."""
        self.byzantine: ByzantineSite | None = None
        """Simulated dishonesty; None at an honest site."""
        self._encoder: Encoder | None = None
        self._network: Trainable | None = None
        self.find_peer: Callable[[str], PublicIdentity | None] = lambda _: None
        """The site's own roster: the public keys of a peer that its operator trusts, or None for an unknown name."""
        self.openings = OpeningBook()
        """The totals it took part in; a real site keeps the book in a file, over all runs."""
        self.releases = ReleaseAccount()
        """Whom it released in which classes; a real site keeps the account in a file, over all runs."""
        self.outbox: Outbox | None = None
        """Stored replies of a real site; None at simulated sites, which answer a repeated request alike anyway."""
        self.ledger = ledger
        self.chain: Chain = ledger.open_chain(
            name,
            secret=streams.bytes("ledger"),
            binding={
                "schema": schema.fingerprint(),
                "policy": policy.to_mapping(),
                "rows_public": "rows" in policy.public,
            },
        )
        self._aggregates: dict[int, Aggregate] = {}

    def state(self, kind: type[T]) -> T:
        """The state that a group of tasks keeps at this site.

        Args:
            kind: The state's class.

        Returns:
            The site's one state of that class.
        """
        return self.states.get(kind)

    @property
    def plan(self) -> ApprovedPlan:
        """The plan the site approved.

        Raises:
            SiteError: It has not approved one yet.
        """
        if self.approved is None:
            raise SiteError(f"site {self.name!r} was asked before it approved a plan")
        return self.approved

    @property
    def contract(self) -> Contract:
        """Everything the approved plan may ask of this participant."""
        return self.contract_of(self.plan)

    def enrol(self, encoder: Encoder, network: Trainable) -> None:
        """Set the encoder and the network that tasks use from now on.

        Args:
            encoder: How rows become numbers.
            network: The model of the approved plan for that encoding.
        """
        self._encoder, self._network = encoder, network

    @property
    def encoder(self) -> Encoder:
        """How the site's rows become numbers.

        Raises:
            SiteError: It has not enrolled yet.
        """
        if self._encoder is None:
            raise SiteError(f"site {self.name!r} was asked before it enrolled")
        return self._encoder

    @property
    def network(self) -> Trainable:
        """The network, built at the site from the approved plan.

        Raises:
            SiteError: It has not enrolled yet.
        """
        if self._network is None:
            raise SiteError(f"site {self.name!r} was asked to train before it enrolled")
        return self._network

    @property
    def table(self) -> SiteTable:
        """The site's rows."""
        return self._table

    @table.setter
    def table(self, table: SiteTable) -> None:
        self._table = table
        self.count = table.count
        """How many rows the site holds; a plain attribute, because the door reads it in every round."""

    @cached_property
    def identity(self) -> Identity:
        """The long-term keys by which peers know this site; a real site sets them from its key file."""
        from kohort.crypto.sealed import Identity

        return Identity.from_secret(self.name, self.streams.bytes("identity"))

    @cached_property
    def data_version(self) -> str:
        """Identifies the site's rows: equal for equal rows, and useless for guessing them. Empty without rows."""
        rows = self._all_rows.rows()  # those that take no part, too; hash_rows differs between versions of Polars
        text = rows.write_json() if rows.height else ""
        return text and hashlib.blake2b(text.encode(), key=self.streams.bytes("ledger"), digest_size=16).hexdigest()

    def note_opening(
        self, family: str, task: str, number: int, sites: tuple[str, ...], batches: Mapping[str, int] | None = None
    ) -> None:
        """Note an opened total in the book, before this participant's share of it leaves.

        Args:
            family: What the total belongs to; empty: nothing is noted.
            task: Whose contributions are added.
            number: The round of the sum.
            sites: The sites in the total.
            batches: How often the rows of other sites changed, where they said it.

        Raises:
            RefusedError: Together with earlier totals it would show too few sites.
        """
        if not family or (approved := self.plan).secure is None or not approved.keeps_book:
            return
        colluders, name = approved.secure.colluders, f"{approved.run}:{approved.plan_hash}:{task}:{number}"
        own, few = {"site": self.name, "version": self.data_version}, max(MIN_SITES, colluders + 2)
        self.openings.admit(family, name, sites, least=few, colluders=colluders, batches=batches, **own)

    def aggregate(self, rows: int) -> Aggregate:
        """The claim of an update computed from `rows` rows. Cached: the same object in every round."""
        known = self._aggregates.get(rows)
        if known is None:
            known = self._aggregates[rows] = Aggregate(rows=rows)
        return known

    def handle(self, request: Request) -> Answers:
        """Answer one request. The reply has passed the door.

        Args:
            request: The request.

        Returns:
            The reply, refusal or failure.
        """
        return answer((self,), request, many=False)


def answer(sites: tuple[Site, ...], request: Request, *, many: bool = True) -> Answers:
    """Run a request's task at every site and pass the results through the door.

    Guarantee: what is returned has passed the door. There is no other way from a task to the outside.

    Args:
        sites: The sites to ask.
        request: The request.
        many: Whether sites may answer in one call where the task supports it; the bytes are the same either way.

    Returns:
        The replies, refusals and failures.
    """
    task = find_task(request.task)
    if many and task.many is not None and len(sites) > 1:
        together = _answer_together(sites, request, task.many)
        if together is not None:
            return together
    return Answers.joined([_answer_alone(site, request) for site in sites])


def replay(site: Site, request: Request) -> None:
    """Rebuild what a request changed at a restarted site. Nothing is sent and no ledger line is written.

    Args:
        site: The site.
        request: A request that it answered before.
    """
    find_task(request.task).one(site, request)
    site.state(PublicInputs).take(request)


def restore_place(site: Site, asked: Asked) -> None:
    """Note at a restarted site that a step of its contract was answered.

    Args:
        site: The site.
        asked: What was asked for, as `asked_of` read it.
    """
    step, position = site.contract.find(asked)
    note([site.place], step, position, asked)


class _Admitted(NamedTuple):
    """A request that is an allowed next step."""

    step: Step
    position: Position
    asked: Asked
    places: list[Place]
    """Of the sites that were asked, in their order."""

    def note(self, verdicts: Sequence[Refusal | None]) -> None:
        """Note which of the sites answered it: those whose release may leave."""
        answered = [place for place, verdict in zip(self.places, verdicts, strict=True) if verdict is None]
        note(answered, self.step, self.position, self.asked)


def asked_of(request: Request) -> Asked:
    """What a request asks for, as far as a contract reads it.

    Args:
        request: The request.

    Returns:
        Task, round, step, phase, attempt and digest.

    Raises:
        RefusedError: Step or phase are no whole numbers.
    """
    part, phase = request.payload.metrics.get("step", 0), request.payload.metrics.get("phase")
    if not isinstance(part, int) or not (phase is None or isinstance(phase, int)):
        raise RefusedError("a request names its step and its phase by whole numbers")
    return Asked(request.task, request.round, part, phase, request.attempt, request.digest)


def _admit(sites: tuple[Site, ...], request: Request) -> _Admitted:
    """Refuse a request that is not an allowed next step of the contract that these sites share."""
    asked = asked_of(request)
    step, position = sites[0].contract.find(asked)
    places = [site.place for site in sites]
    required = sites[0].contract.required_before(position[0]) if step.ordered else ()
    admit(places, step, position, asked, required=required)
    return _Admitted(step, position, asked, places)


def _refused_by_contract(site: Site, request: Request, error: KohortError) -> Answers:
    site.ledger.refuse(site.chain, _ledger_context(request, "hub"), guarantee=_NOTHING, reason=error.message)
    return Answers(sites=(), encoded=[], refusals=[Refusal(site.name, error.message, code="contract")])


def _as_sent(site: Site, request: Request, payload: Payload) -> Payload:
    """The payload as an honest site sends it, or as a simulated Byzantine site distorts it."""
    if site.byzantine is None or "weights" not in payload.arrays:
        return payload
    lie = site.byzantine.distort(payload.arrays["weights"], request.payload.arrays["weights"], request.round)
    return replace(payload, arrays={**payload.arrays, "weights": lie})


def _answer_alone(site: Site, request: Request) -> Answers:
    began = perf_counter()
    stored = None if site.outbox is None else site.outbox.find(request.digest)
    if stored is not None:  # answered before: the same request gets the same bytes
        return Answers(sites=(site,), encoded=[stored], shares=[0.0])
    try:
        admitted = _admit((site,), request)
    except KohortError as error:
        return _refused_by_contract(site, request, error)
    try:
        release: Release = find_task(request.task).one(site, request)
    except KohortError as error:
        site.place.fail(admitted.asked)
        site.ledger.note(site.chain, _ledger_context(request, "hub"), reason=error.message)
        return Answers(sites=(), encoded=[], failures=[_failure(site, error)])
    except Exception:  # a request that a task cannot read at all counts as an attempt, too
        site.place.fail(admitted.asked)
        raise
    data = encode(_as_sent(site, request, release.payload))
    verdicts = door(
        [site],
        [data],
        ledger=site.ledger,
        ledger_context=_ledger_context(request, release.to, release.via),
        guarantees=[release.guarantee],
        rows=[release.rows],
        step=admitted.step,
        metrics=tuple(release.payload.metrics),
    )
    admitted.note(verdicts)
    if verdicts[0] is None:
        site.state(PublicInputs).take(request)
    if site.outbox is not None and verdicts[0] is None:
        site.outbox.store(request.digest, data)
    elapsed = perf_counter() - began
    if verdicts[0] is not None:
        return Answers(sites=(), encoded=[], refusals=[verdicts[0]])
    return Answers(sites=(site,), encoded=[data], seconds=elapsed, shares=[elapsed])


def _failure(site: Site, error: KohortError) -> Failure:
    return Failure(site.name, error.message, tampered=isinstance(error, IntegrityError), code=code_of(error))


def _answer_together(sites: tuple[Site, ...], request: Request, task: ManySites) -> Answers | None:
    began = perf_counter()
    try:
        admitted = _admit(sites, request)
        releases = task(sites, request)
    except KohortError:
        return None  # one of them failed: asking one by one shows which, and lets the others answer
    if releases is None:
        return None
    _distort(sites, request, releases.arrays)
    encoded = encode_many(releases.arrays, releases.metrics)
    rows = releases.rows
    verdicts = door(
        sites,
        encoded.views(),
        ledger=sites[0].ledger,
        ledger_context=_ledger_context(request, releases.to),
        guarantees=releases.guarantees,
        rows=rows,
        step=admitted.step,
        metrics=tuple(releases.metrics),
    )
    admitted.note(verdicts)
    if find_task(request.task).public:
        for site, verdict in zip(sites, verdicts, strict=True):
            if verdict is None:
                site.state(PublicInputs).take(request)
    answered, refusals = sites, []
    if any(verdicts):
        refusals = [verdict for verdict in verdicts if verdict is not None]
        kept = [index for index, verdict in enumerate(verdicts) if verdict is None]
        answered, encoded = tuple(sites[index] for index in kept), encoded.take(kept)
        rows = [rows[index] for index in kept]
    seconds = perf_counter() - began
    return Answers(sites=answered, encoded=encoded, refusals=refusals, seconds=seconds, shares=rows)


def _distort(sites: tuple[Site, ...], request: Request, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Replace the weights of simulated Byzantine sites by what these send."""
    for index, site in enumerate(sites if "weights" in arrays else ()):
        if site.byzantine is not None:
            sent = arrays["weights"][index]
            sent[:] = site.byzantine.distort(sent, request.payload.arrays["weights"], request.round)


def _ledger_context(request: Request, to: str, via: str = "") -> LedgerContext:
    return request.ledger_context if to == "hub" and not via else request.ledger_context._replace(to=to, via=via)
