"""Models that are learned from totals alone: what a method writes once, and hub and sites both run.

A learner is a value. It says how many integers the next total has and what a site's rows add to it; `after` gives the
learner that follows from a total. Nothing else moves it, so everybody who saw the same totals holds the same learner,
and `learn_pooled` drives the same code on rows that lie in one place, to the same bits.

Exactness: contributions are integers, made row by row (`per_row`), so a total does not depend on how the rows are
distributed. Everything computed from a total is deterministic NumPy in 64 bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kohort.models.base import Model
from kohort.models.rows import Rows
from kohort.privacy.dp.account import Shares
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.state import StateArrays
from kohort.tables.encoder import Encoder

__all__ = ["Learner", "RowCache", "Setting", "Whole", "bounded", "learn_pooled", "per_row"]

Whole = NDArray[np.int64]
"""Whole numbers: contributions and totals."""
T = TypeVar("T")


@dataclass(eq=False)
class RowCache:
    """What a learner keeps about one site's rows between rounds, such as their bins: one value per class.

    It is not checkpointed, because it can be made again at any time.
    """

    persons: NDArray[np.bool_] | None = None
    """Marks the first row of each person, where persons are known and have several rows."""
    _kept: dict[type, object] = field(default_factory=dict, repr=False)

    def get(self, kind: type[T], make: Callable[[], T]) -> T:
        """The value of a class.

        Args:
            kind: The class.
            make: Makes it where there is none yet.

        Returns:
            The same value until it is forgotten.
        """
        found = self._kept.get(kind)
        if not isinstance(found, kind):
            found = self._kept[kind] = make()
        return found

    def forget(self, kind: type) -> None:
        """Let go of the value of a class.

        Args:
            kind: The class; it need not be there.
        """
        self._kept.pop(kind, None)


def bounded(values: NDArray[Any], largest: float) -> NDArray[Any]:
    """Numbers between -`largest` and `largest`; `np.clip` takes five times as long over few rows.

    Args:
        values: Any numbers.
        largest: The bound, of the same kind.

    Returns:
        The nearest numbers within it.
    """
    return np.asarray(np.minimum(np.maximum(values, -largest), largest))


def per_row(values: NDArray[Any], scale: float) -> Whole:
    """Numbers of single rows as whole numbers of a grid, rounded towards zero so that no norm grows.

    Args:
        values: One number, or several, per row.
        scale: Grid steps to the unit.

    Returns:
        Whole numbers of the same shape. What is not finite becomes 0: an error would tell of rows.
    """
    numbers = np.asarray(values, dtype=np.float64) * scale
    return np.trunc(np.where(np.isfinite(numbers), numbers, 0.0)).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What hub and sites know alike before the first total."""

    approved: ApprovedPlan
    encoder: Encoder = field(repr=False)
    seed: bytes
    """A public seed that the hub chose, 16 bytes; the same at every site, or nothing opens."""
    members: int
    """How many sites the sums are over."""
    sigma: float = 0.0
    """The noise multiplier of everything that is released together; 0 without a budget."""
    own: Any = None
    """`[method]` of the learner, where it is a part of the plan's; None where it is all of it."""
    units: int = 1
    """What an exact row counts where rows are counted; more than 1 where generalised cells count in shares."""

    @property
    def config(self) -> Any:
        """The learner's own keys."""
        return self.approved.config if self.own is None else self.own

    def deviation(self, sensitivity: float, share: float) -> float:
        """The standard deviation of the noise that one site adds to each number of a round.

        Args:
            sensitivity: The largest norm of what one row or person adds to the round.
            share: The round's share of the budget's mu^2; the shares of all rounds add up to 1 at most.

        Returns:
            The deviation in the units of `sensitivity`: a share of the planned noise in a secure sum, all of it where
            the hub sees each site's own numbers. 0 without a budget.
        """
        if not self.sigma:
            return 0.0
        secure = self.approved.secure
        hidden = secure is not None and self.approved.sums_securely
        needed = Shares(self.members, secure.colluders).needed if hidden and secure is not None else 1
        return self.sigma * sensitivity / sqrt(share) / sqrt(max(needed, 1))


class Learner(ABC):
    """A model under way, as it follows from the totals so far. Values are never changed: `after` makes a new one.

    Example:
        learner = Mean.start(setting)
        while not learner.finished:
            total = sum(learner.contribution(rows, memory) for rows, memory in sites)
            learner = learner.after(total, sites=len(sites))
    """

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether no further total is needed. The plan bounds the number of rounds whatever this says."""

    @property
    @abstractmethod
    def length(self) -> int:
        """How many numbers the next total has."""

    @abstractmethod
    def contribution(self, rows: Rows, memory: RowCache) -> Whole:
        """What a site adds to the next total. A total stays below 2^59 either way; what is larger is clipped.

        Args:
            rows: The site's rows.
            memory: Kept for this site between rounds; empty after a restart.

        Returns:
            `length` whole numbers. No error may depend on the values of rows.
        """

    @abstractmethod
    def after(self, total: Whole, sites: int) -> Learner:
        """The learner that follows from the next total.

        Args:
            total: Its numbers, with noise where the plan has a budget.
            sites: How many sites are in it.

        Returns:
            A new learner.

        Raises:
            KohortError: Nothing can be learned from such a total; the message holds no number of it.
        """

    def check(self) -> None:  # noqa: B027 - most learners can always go on
        """Refuse to go on when nothing may be learned from the totals so far. Hub and sites each ask after every total.

        Raises:
            KohortError: Why; the message holds no number of a total.
        """

    @property
    def sealed(self) -> bool:
        """Whether the hub must not read the next total of a secure sum: sites read it, and say what follows from it."""
        return False

    @property
    def least(self) -> int:
        """Fewest persons, or rows, of a cell that sites tell the hub of."""
        return 1

    @property
    def pairs(self) -> bool:
        """Whether the next total counts pairs of categories, of which few persons may have one."""
        return False

    @property
    def tells(self) -> Mapping[str, tuple[str, tuple[int | None, ...]]]:
        """Types and shapes of what `disclosed` gives after the next total, by name; None for an axis of any length.

        Nothing where sites tell the hub nothing of a sealed total: `unread` is the hub's learner then.
        """
        return {}

    def disclosed(self) -> StateArrays:
        """What sites tell the hub of the learner after a sealed total; `informed` makes the hub's learner of it."""
        raise NotImplementedError("this learner seals no total")

    def informed(self, arrays: Mapping[str, NDArray[Any]]) -> Learner:
        """The hub's learner after a sealed total, by what the sites tell of it.

        Args:
            arrays: What `disclosed` returned at the sites; nothing of it can be relied on.

        Returns:
            A new learner.

        Raises:
            IntegrityError: The arrays do not fit.
        """
        raise NotImplementedError("this learner seals no total")

    def unread(self) -> Learner:
        """The hub's learner after a sealed total of which sites tell nothing: it knows the length of the next one."""
        raise NotImplementedError("sites tell of every sealed total of this learner")

    @property
    def sensitivity(self) -> float:
        """The largest Euclidean norm of what one row or person adds to the next total, in whole numbers."""
        raise NotImplementedError("this learner has no budget")

    @property
    def share(self) -> float:
        """The share of the budget's mu^2 that the next total is given."""
        raise NotImplementedError("this learner has no budget")

    @property
    @abstractmethod
    def model(self) -> Model | None:
        """The model so far; None when there is none to measure yet."""

    @abstractmethod
    def checkpoint(self) -> StateArrays:
        """The arrays from which `restored` makes the same learner again."""

    @abstractmethod
    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> Learner:
        """The inverse of `checkpoint`, called on the learner of the start.

        Args:
            arrays: What `checkpoint` returned.

        Returns:
            The learner as it was.
        """


def learn_pooled(start: Callable[[Setting], Learner], setting: Setting, tables: Sequence[Rows], rounds: int) -> Learner:
    """Drive a learner on rows that lie in one place: the pooled reference run of a federated one.

    Args:
        start: Makes the learner of the start.
        setting: As in the federated run; without a budget.
        tables: The rows; one table of all of them gives the same bits as one per site.
        rounds: The most totals that the plan allows.

    Returns:
        The learner at the end.

    Raises:
        KohortError: Nothing may be learned from the totals.
    """
    learner, memories = start(setting), [RowCache() for _ in tables]
    for _ in range(rounds):
        if learner.finished:
            break
        parts = [learner.contribution(rows, memory) for rows, memory in zip(tables, memories, strict=True)]
        learner = learner.after(np.sum(parts, axis=0, dtype=np.int64), len(tables))
        learner.check()
    return learner
