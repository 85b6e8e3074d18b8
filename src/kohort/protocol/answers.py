"""How sites answer a request: the contract admits it, the task runs, the door lets the release out or refuses it.

Guarantee: what `answer` returns has passed the door. There is no other way from a task to the outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

from numpy.typing import NDArray

from kohort.errors import IntegrityError, KohortError, RefusedError
from kohort.privacy.codes import code_of
from kohort.privacy.contract import Asked, Place, Position, Step, admit, note
from kohort.privacy.door import Refusal, door
from kohort.privacy.guarantee import Public
from kohort.privacy.ledger.ledger import LedgerContext
from kohort.protocol.enrolment import rows_to_say
from kohort.protocol.public_inputs import PublicInputs
from kohort.protocol.site import Site
from kohort.protocol.task import ManySites, Release, Releases, Request, find_task
from kohort.protocol.wire import EncodedReplies, Payload, encode, encode_many

_NOTHING = Public(what="nothing")

__all__ = ["Answers", "Failure", "answer", "asked_of", "replay", "restore_place"]


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
        answered = self.places
        if any(verdicts):
            answered = [place for place, verdict in zip(answered, verdicts, strict=True) if verdict is None]
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
        said=[_said_by(site, release)],
        step=admitted.step,
        metrics=tuple(release.payload.metrics),
        unasked=[_unasked(site, release)] if admitted.step.rows else (),
    )
    admitted.note(verdicts)
    if verdicts[0] is None:
        site.state(PublicInputs).take(request)
    elapsed = perf_counter() - began
    if verdicts[0] is not None:
        return Answers(sites=(), encoded=[], refusals=[verdicts[0]])
    return Answers(sites=(site,), encoded=[data], seconds=elapsed, shares=[elapsed])


def _said_by(site: Site, release: Release) -> int:
    """How many rows a release says that it was computed from."""
    return rows_to_say(site, release.rows, release.guarantee) if release.said is None else release.said


def _said_by_many(sites: Sequence[Site], releases: Releases) -> Sequence[int] | None:
    """The same for many sites; None where it is how many there were."""
    if releases.said is not None or not sites[0].plan.hides_domains:
        return releases.said
    each = zip(sites, releases.rows, releases.guarantees, strict=True)
    return [rows_to_say(site, rows, guarantee) for site, rows, guarantee in each]


def _unasked(site: Site, release: Release) -> int | None:
    """How many rows of a release may not leave by what their persons agreed to; None where nobody can tell."""
    allowed = site.may_leave()
    if allowed is None:
        return 0
    if release.sent is None or release.sent.shape != allowed.shape:
        return None
    return int((release.sent & ~allowed).sum())


def _failure(site: Site, error: KohortError) -> Failure:
    code = code_of(error)
    reason = f"{error.message} ({error.hint})" if code == "refused" and error.hint else error.message
    return Failure(site.name, reason, tampered=isinstance(error, IntegrityError), code=code)


def _answer_together(sites: tuple[Site, ...], request: Request, task: ManySites) -> Answers | None:
    began = perf_counter()
    try:
        admitted = _admit(sites, request)
        if admitted.step.rows and sites[0].schema.consent is not None:
            return None  # which rows leave is looked at site by site
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
        said=_said_by_many(sites, releases),
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
