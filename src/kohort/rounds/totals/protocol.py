"""The hub's side of learning over checked totals: which totals there are, who knows them, and what a plan protects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.checked import CHECKS, from_residues, to_residues
from kohort.crypto.sums.scheme import Integers
from kohort.errors import IntegrityError, SiteError
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.task import Task
from kohort.protocol.wire import Payload, encode
from kohort.rounds.summing import SumTask, Total, secure_sum
from kohort.rounds.totals.learner import Learner
from kohort.rounds.totals.pairs import SIGNATURE, rounds_next, with_signature
from kohort.rounds.totals.protection import is_checked, seals_next

__all__ = ["ROOM", "AnnouncedTotals", "TotalsProtocol", "TotalsTasks"]

ROOM = 2**59
"""A total lies within this bound either way, so that it is told apart modulo 2^61 - 1."""


class TotalsTasks(NamedTuple):
    """What sites are asked."""

    total: SumTask
    pairs: SumTask
    own: Task
    catch_up: Task
    tell: Task


@dataclass(kw_only=True)
class AnnouncedTotals:
    """The hub's account of totals: those that some site may still need, and which sites know which round."""

    hub: Hub
    seed: bytes
    begin: int = 0
    """The first round."""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """What sites need besides the seed to begin."""
    totals: list[tuple[Integers, NDArray[np.uint32]]] = field(default_factory=list)
    """The totals since `first`, and the places of the sites in them."""
    first: int = 0
    known: dict[str, int] = field(default_factory=dict)
    """The last round each site took part in."""

    def __post_init__(self) -> None:
        self.first = max(self.first, self.begin)

    @property
    def start(self) -> dict[str, bytes]:
        """What sites begin from."""
        return {"start": self.seed, **self.beside}

    def inputs(self, number: int) -> dict[str, bytes]:
        """What every site gets with the first step of a round."""
        return self.start if number == self.begin else {**self.start, **self.last_total()}

    def last_total(self) -> dict[str, bytes]:
        """The total of the last round, as it is announced."""
        total, places = self.totals[-1]
        return {"total": total.astype("<u8").tobytes(), "sites": places.astype("<u4").tobytes()}

    def keep(self, number: int, total: Integers, sites: Sequence[str]) -> None:
        """Keep a total for the next announcement, and forget those that every site has seen."""
        places = np.frombuffer(self.hub.approved.places_of(sites), dtype="<u4")
        self.totals.append((total, places))
        self.known.update(dict.fromkeys(sites, number))
        if all(self.known.get(site, -1) == number for site in self.hub.sites):
            self.totals, self.first = self.totals[-1:], number

    def catch_up(self, task: Task, number: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Send sites that missed rounds what they need before round `number`."""
        last = {site: max(self.known.get(site, -1), self.begin) for site in self.hub.sites}
        if number > self.begin and any(self.first <= known < number - 1 for known in last.values()):
            missed = {site: self._missed(known, number) for site, known in last.items()}
            yield Ask(task=task, to=tuple(missed), each=missed, round=number, expect=Expect())

    def _missed(self, last: int, number: int) -> Payload:
        """The totals from round `last` on, without the latest, which comes with the sum; none where they are lost."""
        missed = self.totals[last - self.first : number - 1 - self.first] if last >= self.first else []
        return Payload(
            arrays={
                **self.packed([total for total, _ in missed]),
                "places": np.concatenate([np.empty(0, np.uint32), *(places for _, places in missed)]),
                "sizes": np.asarray([len(places) for _, places in missed], dtype=np.int64),
            },
            metrics={"first": last},
            blobs=self.start,
        )

    def packed(self, totals: Sequence[Integers]) -> dict[str, NDArray[Any]]:
        """Totals of several rounds as arrays of one request; their lengths may differ."""
        lengths = np.asarray([len(total) for total in totals], dtype=np.int64)
        return {"totals": np.concatenate([np.empty(0, np.uint64), *totals]), "lengths": lengths}

    def announced(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint holds: the total that the next round announces."""
        total, places = self.totals[-1]
        return {"total": total, "places": places}

    def resume_after(self, last: int, state: Mapping[str, NDArray[Any]]) -> int:
        """Go on after the last whole round, by what `announced` returned; returns the number of the next one."""
        self.totals, self.first = [(state["total"], state["places"])], last
        self.known = dict.fromkeys((self.hub.approved.sites[place] for place in state["places"].tolist()), last)
        return last + 1


@dataclass(kw_only=True)
class TotalsProtocol(AnnouncedTotals):
    """The hub's side: the learner, and the totals that it follows from."""

    tasks: TotalsTasks
    learner: Learner

    def round(self, number: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Let sites that missed rounds catch up, and get the total of round `number`."""
        yield from self.catch_up(self.tasks.catch_up, number)
        ask = self.checked_total if is_checked(self.hub.approved) else self.clear_total
        hidden, rounded = seals_next(self.hub.approved, self.learner), rounds_next(self.hub.approved, self.learner)
        total, sites = yield from (self.rounded_total if rounded else ask)(number)
        self.keep(number, total, sites)
        if hidden and self.learner.tells:
            yield from self.listen(number)
        elif hidden:
            self.learner = self.learner.unread()
        else:
            behind = SIGNATURE if rounded else CHECKS if is_checked(self.hub.approved) else 0
            numbers = total[: len(total) - behind]
            self.learner = self.learner.after(from_residues(numbers).view(np.int64), len(sites))
        self.learner.check()

    def listen(self, number: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Learn from the sites what follows from a sealed total: what most of them say."""
        payload, agreed = Payload(blobs=self.inputs(number + 1)), _AgreedReplies(self.learner)
        expect = Expect(check=agreed.take, arrays=dict(self.learner.tells))
        replies: Replies = yield Ask(
            task=self.tasks.tell, to=self.hub.sites, payload=payload, round=number, expect=expect
        )
        said = [encode(reply) for reply in replies.payloads()]
        most, agree = Counter(said).most_common(1)[0] if said else (b"", 0)
        if 2 * agree <= len(said):
            raise IntegrityError(
                "sites say different things about one total", hint="Find out which of them is at fault"
            )
        self.learner = agreed.by[most]

    def checked_total(self, number: int) -> Generator[Ask | RoundEnd, Any, tuple[Integers, tuple[str, ...]]]:
        """The total of a secure sum, with its check value."""
        length = self.learner.length + CHECKS
        total: Total = yield from secure_sum(
            self.hub, self.tasks.total, length=length, round_number=number, inputs=self.inputs(number)
        )
        return total.values, total.sites

    def rounded_total(self, number: int) -> Generator[Ask | RoundEnd, Any, tuple[Integers, tuple[str, ...]]]:
        """The total of an encrypted sum that the key-holder rounded, with its signature."""
        total: Total = yield from secure_sum(
            self.hub, self.tasks.pairs, length=self.learner.length, round_number=number, inputs=self.inputs(number)
        )
        return with_signature(total.values, total.signature), total.sites

    def clear_total(self, number: int) -> Generator[Ask | RoundEnd, Any, tuple[Integers, tuple[str, ...]]]:
        """The total of what sites sent in clear."""
        expect = Expect(
            arrays={"numbers": ("<i8", (self.learner.length,))}, metrics=("rows",), largest=float(ROOM), check=_bounded
        )
        payload = Payload(blobs=self.inputs(number))
        replies: Replies = yield Ask(
            task=self.tasks.own, to=self.hub.sites, payload=payload, round=number, expect=expect
        )
        if not len(replies):
            raise SiteError("no site answered with numbers that can be added", hint="See which sites were left out")
        summed = replies.array("numbers").sum(axis=0, dtype=np.int64)
        return to_residues(np.clip(summed, -ROOM, ROOM).view(np.uint64)), replies.sites

    def state(self) -> Mapping[str, NDArray[Any]]:
        """What a checkpoint holds: the learner, and the total that the next round announces."""
        own = {f"learner_{name}": array for name, array in self.learner.checkpoint().items()}
        return {**self.announced(), **own}

    def resume(self, last: int, state: Mapping[str, NDArray[Any]]) -> int:
        """Go on after the last whole round; returns the number of the next one."""
        own = {name.removeprefix("learner_"): array for name, array in state.items() if name.startswith("learner_")}
        self.learner = self.learner.restored(own)
        return self.resume_after(last, state)


@dataclass(frozen=True)
class _AgreedReplies:
    """The learners that follow from what sites tell: one for all who say the same."""

    learner: Learner
    by: dict[bytes, Learner] = field(default_factory=dict)
    """By the reply."""

    def take(self, reply: Payload) -> None:
        """Refuse a reply from which no learner can be made: its site is left out."""
        said = encode(reply)
        if said not in self.by:
            self.by[said] = self.learner.informed(reply.arrays)


def _bounded(payload: Payload) -> None:
    """Refuse numbers that no honest site sends: their sum could wrap."""
    if (np.abs(payload.arrays["numbers"].astype(np.float64)) > ROOM).any():
        raise IntegrityError("a site sent numbers that are too large to be added")
