"""The contract: what a plan may ever ask of a site, as a finite script derived from the approved plan alone.

A contract is a sequence of blocks, each a list of steps that repeat together over rounds. A site keeps its place in
it: a request must be the same step again (the same bytes), or one further on. Everything else is refused: another task
of the same method, a round the plan does not have, a phase out of order, a second request for an answered step.

Guarantee: while a site answers only what `admit` lets pass, every step is answered with at most one release, in
the contract's order, and the door has compared the release's claim with the step's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from kohort.errors import RefusedError
from kohort.privacy.guarantee import Guarantee, is_at_least

__all__ = ["ATTEMPTS", "Asked", "Contract", "Place", "Position", "Step", "admit", "note"]

ATTEMPTS = 3
"""How often a step may be asked for before it is answered: a site that fails gives away one word each time."""
Position = tuple[int, int, int, int, int]
"""Block, turn of the block, step of the block, round and part: positions of one run only grow."""


class Asked(NamedTuple):
    """What a request asks for, as far as a contract reads it."""

    task: str
    round: int
    part: int
    phase: int | None
    attempt: int
    digest: str

    @property
    def which(self) -> str:
        """The step by task, round and part. A text, because it is looked up once per site and knows its hash."""
        return step_key(self.task, self.round, self.part)


def step_key(task: str, round_number: int, part: int) -> str:
    """What a step is called where a site keeps its place; a truth value is the number that it equals."""
    return f"{round_number:d}.{part:d} {task}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing a plan asks of a site.

    Args:
        task: The task's name.
        says: What is sent, for people: "weights trained on your rows".
        claims: What the answer may claim: one of these, or something stronger of the same kind.
        rounds: The rounds in which it may be asked for.
        to: Who gets it: "hub" or "peers".
        parts: Messages per round; a secure sum has several, in order.
        phase: The phase a request must name; None when it names none.
        every: Rounds of this step per turn of its block: a count that may be repeated in a larger table has several.
        ordered: Whether it has a place in the sequence. A set-up has not: it comes when the first sum needs it.
        repeats: Whether it is answered more than once per round. The key-holder's steps are: each names another sum.
        sites: Fewest sites of a sum; 0 for a step that is no sum.
        required: Whether later blocks wait for it: what a policy refused here is not asked for there.
        rows: Whether the answer holds rows, or classes of rows, that the recipient may keep.
        booked: Whether the total of a sum is noted in the book of openings.
        grouped: Whether its totals leave out whole public groups of sites, or nobody.
        per_site: Sites for which the plan has stricter rules, and what the answer may claim there instead.
        read_by: Who can read it, for people, where that is not what its claims say.
    """

    task: str
    says: str
    claims: tuple[Guarantee, ...]
    rounds: Sequence[int] = range(1)
    to: str = "hub"
    parts: int = 1
    phase: int | None = None
    every: int = 1
    ordered: bool = True
    repeats: bool = False
    sites: int = 0
    required: bool = False
    rows: bool = False
    booked: bool = False
    grouped: bool = False
    per_site: tuple[tuple[str, tuple[Guarantee, ...]], ...] = ()
    read_by: str = ""

    def allows(self, guarantee: Guarantee, to: str, site: str = "") -> bool:
        """Whether a release with this guarantee may answer the step.

        Args:
            guarantee: What the release claims.
            to: Whom it is for.
            site: Whose release it is.

        Returns:
            True when it is equal to one of the step's claims, or stronger.
        """
        if (to == "hub") != (self.to == "hub"):
            return False
        claims = dict(self.per_site).get(site, self.claims) if self.per_site else self.claims
        for claim in claims:  # noqa: SIM110 - for every site in every round, a third of the time of any()
            if is_at_least(guarantee, claim):
                return True
        return False

    @property
    def times(self) -> int:
        """How often it is answered at most."""
        return len(self.rounds)


@dataclass(frozen=True)
class Contract:
    """The blocks of steps that a plan may ask a site for, in order.

    Example:
        >>> step = Step(task="train", says="weights", claims=(), rounds=range(3))
        >>> [found.task for found in Contract.of([step])]
        ['train']
    """

    blocks: tuple[tuple[Step, ...], ...] = ()

    @classmethod
    def of(cls, *blocks: Iterable[Step]) -> Contract:
        """A contract of these blocks; empty ones are left out.

        Args:
            blocks: The steps of each.

        Returns:
            The contract.
        """
        return cls(tuple(block for block in map(tuple, blocks) if block))

    def __add__(self, other: Contract) -> Contract:
        return Contract(self.blocks + other.blocks)

    def __iter__(self) -> Iterator[Step]:
        return (step for block in self.blocks for step in block)

    @cached_property
    def _by_task(self) -> dict[str, list[tuple[int, int, Step]]]:
        found: dict[str, list[tuple[int, int, Step]]] = {}
        for number, block in enumerate(self.blocks):
            for place, step in enumerate(block):
                found.setdefault(step.task, []).append((number, place, step))
        return found

    def find(self, asked: Asked) -> tuple[Step, Position]:
        """The step a request asks for, and its position.

        Args:
            asked: The request.

        Returns:
            Step and position.

        Raises:
            RefusedError: The contract has no such step.
        """
        for block, place, step in self._by_task.get(asked.task, ()):
            if asked.round in step.rounds and asked.phase == step.phase and 0 <= asked.part < step.parts:
                return step, (block, asked.round // step.every, place, asked.round, asked.part)
        raise RefusedError(f"the approved plan asks for no {asked.task!r} in round {asked.round} with these options")

    def required_before(self, block: int) -> tuple[str, ...]:
        """The tasks that must have been answered before a block.

        Args:
            block: The number of the block.

        Returns:
            Their names.
        """
        return tuple(step.task for earlier in self.blocks[:block] for step in earlier if step.required)

    def sum_step(self, task: str, round_number: int) -> Step:
        """The secure sum of a task in a round.

        Args:
            task: The task's name.
            round_number: The round.

        Returns:
            The step.

        Raises:
            RefusedError: The contract has no such sum.
        """
        for _, _, step in self._by_task.get(task, ()):
            if step.sites and round_number in step.rounds:
                return step
        raise RefusedError(f"the approved plan has no secure sum of {task!r} in round {round_number}")


@dataclass(slots=True)
class Place:
    """How far a site has come in its contract."""

    furthest: Position = (-1, 0, 0, 0, 0)
    answered: dict[str, str] = field(default_factory=dict)
    """The digest of the answered request, by `Asked.which`."""
    failures: dict[str, int] | None = None
    """How often a step was asked for and not answered; None while nothing failed."""

    def fail(self, asked: Asked) -> None:
        """Note that a request for a step failed.

        Args:
            asked: The request.
        """
        failures = self.failures = self.failures or {}
        failures[asked.which] = failures.get(asked.which, 0) + 1


def admit(
    places: Sequence[Place], step: Step, position: Position, asked: Asked, *, required: Sequence[str] = ()
) -> None:
    """Refuse what is no allowed next step. Nothing is noted yet: `note` does that when the answer is made.

    Args:
        places: How far each site that was asked has come.
        step: The step the request asks for.
        position: Its position in the contract.
        asked: The request.
        required: Tasks that each of them must have answered once.

    Raises:
        RefusedError: At one of them a required task was not answered; or the step was answered to another request,
            lies behind, lacks an earlier part, or was asked for too often.
    """
    _require(places, required)
    which, before = asked.which, step_key(asked.task, asked.round, asked.part - 1)
    attempt, part, ordered = asked.attempt, asked.part, step.ordered
    for place in places:
        known = place.answered.get(which)
        if known is not None and (known == asked.digest or step.repeats):
            continue
        if attempt:
            raise RefusedError("the approved plan asks for every step once, and this is another attempt")
        if known is not None:
            raise RefusedError(f"{asked.task!r} of round {asked.round} was answered to another request before")
        if ordered and position <= place.furthest:
            raise RefusedError(f"{asked.task!r} of round {asked.round} lies behind what was answered already")
        if part and before not in place.answered:
            raise RefusedError(f"step {asked.part} of {asked.task!r} was asked for before step {asked.part - 1}")
        if place.failures and place.failures.get(which, 0) >= ATTEMPTS:
            raise RefusedError(f"{asked.task!r} of round {asked.round} was asked for too often")


def _require(places: Sequence[Place], tasks: Sequence[str]) -> None:
    """Refuse what comes before its requirements: tasks that were not answered, or whose answer was refused."""
    for task in tasks:
        which = step_key(task, 0, 0)
        for place in places:
            if which not in place.answered:
                raise RefusedError(f"{task!r} must be answered first")


def note(places: Iterable[Place], step: Step, position: Position, asked: Asked) -> None:
    """Note that a step was answered.

    Args:
        places: Of the sites that answered it.
        step: The step.
        position: Its position.
        asked: The request that was answered.
    """
    which, digest, ordered = asked.which, asked.digest, step.ordered
    for place in places:
        place.answered.setdefault(which, digest)
        if ordered and position > place.furthest:
            place.furthest = position
