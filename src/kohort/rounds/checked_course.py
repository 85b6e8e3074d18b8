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
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.task import Task
from kohort.protocol.wire import Payload, decode, encode
from kohort.rounds.dp_accounts import spends
from kohort.rounds.learner import Learner, Setting
from kohort.rounds.summing import SumTask, Total, secure_sum

__all__ = ["ROOM", "Course", "CourseTasks", "grouped", "has_budget", "is_checked", "scheme_of", "seals_next"]

ROOM = 2**59
"""A total lies within this bound either way, so that it is told apart modulo 2^61 - 1."""


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


class CourseTasks(NamedTuple):
    """What sites are asked."""

    total: SumTask
    own: Task
    catch_up: Task
    tell: Task


@dataclass
class Course:
    """The hub's side: the learner, the totals that some site may still need, and which sites know which round."""

    tasks: CourseTasks
    hub: Hub
    setting: Setting
    learner: Learner
    totals: list[tuple[Integers, NDArray[np.uint32]]] = field(default_factory=list)
    """The totals since `first`, and the places of the sites in them."""
    first: int = 0
    known: dict[str, int] = field(default_factory=dict)
    """The last round each site took part in."""

    def round(self, number: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Let sites that missed rounds catch up, and get the total of round `number`."""
        behind = self.behind(number)
        if behind:
            yield Ask(task=self.tasks.catch_up, to=tuple(behind), each=behind, round=number, expect=Expect())
        ask = self.checked_total if is_checked(self.hub.approved) else self.clear_total
        hidden = seals_next(self.hub.approved, self.learner)
        total, sites = yield from ask(number)
        self.keep(number, total, sites)
        if hidden:
            yield from self.listen(number)
        else:
            numbers = total[:-CHECKS] if is_checked(self.hub.approved) else total
            self.learner = self.learner.after(from_residues(numbers).view(np.int64), len(sites))
        self.learner.check()

    def listen(self, number: int) -> Generator[Ask | RoundEnd, Any, None]:
        """Learn from the sites what follows from a sealed total: what most of them say."""
        payload = Payload(blobs=self.inputs(number + 1))
        replies: Replies = yield Ask(
            task=self.tasks.tell, to=self.hub.sites, payload=payload, round=number, expect=self._expect_told()
        )
        said = [encode(reply) for reply in replies.payloads()]
        most, agree = Counter(said).most_common(1)[0] if said else (b"", 0)
        if 2 * agree <= len(said):
            raise IntegrityError(
                "sites say different things about one total", hint="Find out which of them is at fault"
            )
        self.learner = self.learner.informed(decode(most).arrays)

    def _expect_told(self) -> Expect:
        """Arrays from which the next learner can be made; sites with others are left out."""
        return Expect(check=lambda reply: self.learner.informed(reply.arrays), arrays=dict(self.learner.tells))

    def inputs(self, number: int) -> dict[str, bytes]:
        """What every site gets with the first step of a round."""
        if number == 0:
            return {"start": self.setting.seed}
        total, places = self.totals[-1]
        listed = places.astype("<u4").tobytes()
        return {"start": self.setting.seed, "total": total.astype("<u8").tobytes(), "sites": listed}

    def checked_total(self, number: int) -> Generator[Ask | RoundEnd, Any, tuple[Integers, tuple[str, ...]]]:
        """The total of a secure sum, with its check value."""
        length = self.learner.length + CHECKS
        total: Total = yield from secure_sum(
            self.hub, self.tasks.total, length=length, round_number=number, inputs=self.inputs(number)
        )
        return total.values, total.sites

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

    def keep(self, number: int, total: Integers, sites: Sequence[str]) -> None:
        """Keep a total for the next announcement, and forget those that every site has seen."""
        places = np.frombuffer(self.hub.approved.places_of(sites), dtype="<u4")
        self.totals.append((total, places))
        self.known.update(dict.fromkeys(sites, number))
        if all(self.known.get(site, -1) == number for site in self.hub.sites):
            self.totals, self.first = self.totals[-1:], number

    def behind(self, number: int) -> dict[str, Payload]:
        """What sites that missed rounds need before round `number`."""
        last = {site: max(self.known.get(site, -1), 0) for site in self.hub.sites}
        if number == 0 or not any(self.first <= known < number - 1 for known in last.values()):
            return {}
        return {site: self._missed(known, number) for site, known in last.items()}

    def _missed(self, last: int, number: int) -> Payload:
        """The totals from round `last` on, without the latest, which comes with the sum; none where they are lost."""
        missed = self.totals[last - self.first : number - 1 - self.first] if last >= self.first else []
        return Payload(
            arrays={
                "totals": np.concatenate([np.empty(0, np.uint64), *(total for total, _ in missed)]),
                "lengths": np.asarray([len(total) for total, _ in missed], dtype=np.int64),
                "places": np.concatenate([np.empty(0, np.uint32), *(places for _, places in missed)]),
                "sizes": np.asarray([len(places) for _, places in missed], dtype=np.int64),
            },
            metrics={"first": last},
            blobs={"start": self.setting.seed},
        )

    def state(self) -> Mapping[str, NDArray[Any]]:
        """What a checkpoint holds: the learner, and the total that the next round announces."""
        total, places = self.totals[-1]
        own = {f"learner_{name}": array for name, array in self.learner.checkpoint().items()}
        return {"total": total, "places": places, **own}

    def resume(self, last: int, state: Mapping[str, NDArray[Any]]) -> int:
        """Go on after the last whole round; returns the number of the next one."""
        own = {name.removeprefix("learner_"): array for name, array in state.items() if name.startswith("learner_")}
        self.learner = self.learner.restored(own)
        self.totals, self.first = [(state["total"], state["places"])], last
        self.known = dict.fromkeys((self.hub.approved.sites[place] for place in state["places"].tolist()), last)
        return last + 1


def _bounded(payload: Payload) -> None:
    """Refuse numbers that no honest site sends: their sum could wrap."""
    if (np.abs(payload.arrays["numbers"].astype(np.float64)) > ROOM).any():
        raise IntegrityError("a site sent numbers that are too large to be added")
