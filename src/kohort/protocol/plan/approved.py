"""What every participant of a run agrees on before round 1: model, training, schema, and the plan's hash.

A site reads its parameters here, from the plan its operator approved, and never from a request: a hub cannot change
them while a run is under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.scheme import MIN_SITES
from kohort.crypto.sums.session import SumSession
from kohort.errors import IntegrityError, RefusedError
from kohort.privacy.contract import Contract
from kohort.privacy.dp.account import Shares
from kohort.protocol.plan.arrival import Arrival
from kohort.protocol.plan.phases import JudgeSection, SecureSumSection, TrainingPhase
from kohort.protocol.plan.sections import ModelSection, Stop, TrainSection
from kohort.tables.schema import Schema

__all__ = ["ApprovedPlan", "ModelSection", "Stop", "TrainSection"]


@dataclass(frozen=True, kw_only=True)
class ApprovedPlan:
    """The approved plan as a site sees it."""

    run: str
    plan_hash: str
    method: str
    config: Any
    schema: Schema
    encoding: Literal["label", "onehot"] = "label"
    missing: Literal["drop", "category"] = "drop"
    impute: bool = False
    """Whether a missing number is the middle of its agreed bounds; with `missing` "category"."""
    unseen: Literal["other", "error"] = "other"
    """What the model does with categories that no training row had."""
    model: ModelSection = field(default_factory=ModelSection)
    train: TrainSection = field(default_factory=TrainSection)
    own_rows: bool = False
    """Whether the method makes the rows to train on by a task of its own, so that enrolment must not."""
    arrival: Arrival | None = None
    """How rows come in over time; None when all are there."""
    sites: tuple[str, ...] = ()
    """The sites of the run, in the hub's order."""
    phases: tuple[TrainingPhase, ...] = ()
    """What sites train, phase by phase; empty for a method without phases."""
    secure: SecureSumSection | None = None
    """How sums are protected; None when the plan has none."""
    judge: JudgeSection | None = None
    """How held-out rows judge the model; None when they do not."""
    contract: Contract = field(default_factory=Contract)
    """Everything the plan may ever ask of a site; a site answers nothing else."""
    clusters: Mapping[str, tuple[str, ...]] | None = None
    """The sites of each cluster by its name; None when the plan names no clusters."""
    preflight: Literal["none", "first", "only"] = "none"
    """Whether sites compare their tables before anything is learned, or do nothing else."""
    min_cell: int = 10
    """Fewest persons who must share a value for it to become part of a learned domain."""

    @property
    def has_budget(self) -> bool:
        """Whether something that leaves a site is paid for with epsilon."""
        return any(phase.dp is not None for phase in self.phases) or (
            self.judge is not None and self.judge.rows == "high"
        )

    @property
    def phase_budgets(self) -> str:
        """What each phase of a plan with several spends, in words; empty for a single budget."""
        said = [f"phase {number} epsilon {one.dp.epsilon:g}, delta {one.dp.delta:g}"
                for number, one in enumerate(self.phases, 1) if one.dp is not None]  # fmt: skip
        return f" ({'; '.join(said)})" if len(said) > 1 else ""

    def sum_scheme(self) -> str:
        """How the plan protects its sums.

        Returns:
            The name of a scheme.

        Raises:
            RefusedError: It sums nothing.
        """
        if self.secure is None:
            raise RefusedError("the approved plan sums nothing")
        return self.secure.sum

    @property
    def sums_securely(self) -> bool:
        """Whether totals are all that opens of what sites add."""
        return self.secure is not None and self.secure.sum != "none"

    @property
    def hides_domains(self) -> bool:
        """Whether no domain may be learned in clear: it would show what a budget or a secure sum protects."""
        return self.has_budget or self.sums_securely

    @property
    def keeps_book(self) -> bool:
        """Whether totals without noise are opened, which are noted in books: noise covers every difference of two."""
        noisy = bool(self.phases) and all(phase.dp is not None and not phase.hub_rows for phase in self.phases)
        return self.secure is not None and not noisy  # before rows go to a hub, keys are counted without noise

    def phase(self, number: int) -> TrainingPhase:
        """Phase `number` of the plan, counted from 0.

        Args:
            number: The number a request gives.

        Returns:
            The phase, the same object for every request.

        Raises:
            RefusedError: The plan has no such phase.
        """
        if not 0 <= number < len(self.phases):
            raise RefusedError(f"the approved plan of {self.method!r} has no phase {number + 1}")
        return self.phases[number]

    def sum_quorum(self, members: int) -> int:
        """Fewest sites of an opened total.

        Args:
            members: How many sites the sum's session has.

        Returns:
            As many as the noise in shares needs under a budget; 0 where the plan leaves it to the scheme.
        """
        if self.secure is None or all(phase.dp is None for phase in self.phases):
            return 0
        return Shares(members, self.secure.colluders).quorum

    def places_of(self, sites: Sequence[str]) -> bytes:
        """A list of the plan's sites as requests carry it.

        Args:
            sites: Their names.

        Returns:
            Their places as little-endian 32-bit numbers.
        """
        places = {name: place for place, name in enumerate(self.sites)}
        return np.asarray([places[name] for name in sites], dtype="<u4").tobytes()

    def sites_at(self, places: bytes) -> list[str]:
        """The inverse of `places_of`.

        Args:
            places: What a request carries.

        Returns:
            The names.

        Raises:
            IntegrityError: The list is empty, holds a site twice, or one that is not in the plan.
        """
        return [self.sites[place] for place in self.read_places(places).tolist()]

    def read_places(self, places: bytes) -> NDArray[np.uint32]:
        """The places of sites that a request carries.

        Args:
            places: What `places_of` made.

        Returns:
            Each site's place among those of the plan.

        Raises:
            IntegrityError: The list is empty, holds a site twice, or one that is not in the plan.
        """
        found = np.frombuffer(places, dtype="<u4") if len(places) % 4 == 0 else np.empty(0, dtype="<u4")
        if not len(found) or found.max() >= len(self.sites) or np.bincount(found).max() > 1:
            raise IntegrityError("the list of sites in a total cannot be right")
        return found

    def sum_groups(self, members: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The public groups of a sum's members, which are in a total together or not at all.

        Args:
            members: The sites of the sum, in order.

        Returns:
            Groups of at least max(3, colluders + 2) sites.
        """
        colluders = 1 if self.secure is None else self.secure.colluders
        session = SumSession(run=self.run, plan_hash=self.plan_hash, members=members)
        return session.groups(max(MIN_SITES, colluders + 2))

    @cached_property
    def session(self) -> SumSession:
        """The secure-sum session over all sites of the run."""
        return SumSession(run=self.run, plan_hash=self.plan_hash, members=self.sites)
