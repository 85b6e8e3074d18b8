"""What a site trains in each phase of a plan: which of its rows, how, and under which privacy.

A method with phases, or with differential privacy, says so in its config: `phases(train)` lists them. Sites read them
from the approved plan; a request only names the number of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import Annotated, Literal, Protocol, runtime_checkable

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from kohort.errors import ConfigError, DataError, RefusedError, SiteError
from kohort.models.dense.training import Training
from kohort.models.rows import Rows, StackedRows, stack
from kohort.privacy.dp.accounting import grid_rate
from kohort.protocol.plan import ApprovedPlan, TrainSection
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState

__all__ = [
    "DPSection",
    "HasPhases",
    "JudgeSection",
    "RowPart",
    "SecureSection",
    "TrainingPhase",
    "judge_of",
    "phases_of",
    "rows_of",
    "secure_of",
    "stacked_rows",
]

RowPart = Literal["all", "low", "high"]
Mechanism = Literal["dp-sgd", "after", "hub", "output", "objective", "statistics"]
PURE = frozenset({"output", "objective"})
"""Mechanisms with delta 0, which release once."""
_MOST_KNOWN = 64
_KNOWN: dict[int, tuple[ApprovedPlan, tuple[TrainingPhase, ...]]] = {}
"""Jobs by the identity of their approved, which is kept with them so that no other object can take its place."""


@dataclass(frozen=True, kw_only=True)
class DPSection:
    """`dp = {...}`: the budget of a phase, for whom it holds, and where the noise is added."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    mechanism: Mechanism = "dp-sgd"
    """dp-sgd: noise on clipped gradients, at the site | after: noise on the clipped update, at the site | hub: noise on
    the sum of clipped updates, at the hub, which sees them | output, objective: one release of a logistic regression
    with noise on its weights or its loss, without any delta | statistics: one release of noisy sums from which the hub
    solves a one-layer classifier."""
    unit: Literal["row", "person", "site"] = "row"
    """Whose presence is hidden. A person has the rows with one identifier value, of which one is used."""
    epsilon: Annotated[float, Gt(0)] = 1.0
    delta: Annotated[float, Ge(0), Lt(1)] = 1e-5
    clip: Annotated[float, Gt(0)] = 1.0
    """Largest norm of one row's gradient (dp-sgd) or of one site's update (after, hub)."""
    accountant: Literal["pld", "rdp"] = "pld"
    quantile: Annotated[float, Gt(0), Lt(1)] | None = None
    """Adaptive clipping: the share of rows whose gradient should lie below the bound, which then starts at `clip`."""
    average: Annotated[float, Ge(0), Le(1)] = 0.0
    """Average the models of the last share of the rounds; costs nothing."""
    allow_large_delta: bool = False
    """Study settings with a delta above 1 / (10 n): the claim is then void."""

    def __post_init__(self) -> None:
        if self.mechanism == "hub" and self.unit != "site":
            raise ConfigError("noise at the hub hides a whole site", hint='Set dp.unit = "site"')
        if self.mechanism in {"dp-sgd", "statistics"} and self.unit == "site":
            raise ConfigError(
                f"{self.mechanism} hides rows or persons", hint='Use dp.mechanism = "hub" or "after" for sites'
            )
        if self.mechanism in PURE and (self.delta != 0 or self.unit != "row"):
            raise ConfigError(f"{self.mechanism} perturbation hides rows and has no delta", hint="Set dp.delta = 0")
        if self.delta == 0 and self.mechanism not in PURE:
            raise ConfigError("Gaussian noise needs a delta above 0", hint="Set dp.delta, at most 1 / (10 n)")
        if self.quantile is not None and self.mechanism != "dp-sgd":
            raise ConfigError("adaptive clipping is for dp-sgd", hint="Drop dp.quantile")


@dataclass(frozen=True, kw_only=True)
class SecureSection:
    """`[method.secure]`: how sums are protected, and how many sites may collude with the hub."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    sum: str = "masks"
    """masks | bfv | ckks | none"""
    colluders: Annotated[int, Ge(0)] = 1


@dataclass(frozen=True, kw_only=True)
class JudgeSection:
    """`method.judge = {...}`: which rows judge, and what it may cost when they are of high risk."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    rows: Literal["low", "high"] = "low"
    share: Annotated[float, Gt(0), Lt(1)] = 0.2
    """Share of those rows that is held out of training."""
    epsilon: Annotated[float, Gt(0)] = 0.1
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-6
    """Spent on rows of high risk only."""


@dataclass(frozen=True, kw_only=True)
class TrainingPhase:
    """One phase of training as a site sees it."""

    train: TrainSection
    rows: RowPart = "all"
    dp: DPSection | None = None
    topology: str = ""
    """How peers are joined; empty when the phase is run with the hub."""
    held_out: float = 0.0
    """Share of the rows that is kept for judging models and not trained on."""

    @cached_property
    def training(self) -> Training:
        """The kernel's view of it, which every site asks for in every round."""
        return self.train.training()

    def steps_and_rate(self, count: int) -> tuple[int, float]:
        """Steps a round, and the sampling rate of each, at a site with `count` rows. A whole-site batch is rate 1."""
        batch, epochs = self.train.batch, self.train.local_epochs
        if batch == 0:
            return epochs, 1.0
        if batch > count:
            raise DataError(
                f"a batch of {batch} rows is more than the {count} rows at hand",
                hint="Lower train.batch, set it to 0 for the whole site, or raise sites.min_rows",
            )
        rate = batch / count
        # A pass is as many steps as the accountant's rate, which is never below the true one, makes of it: sites with
        # nearly the same rows then share a calibration.
        return epochs * max(1, round(1 / grid_rate(rate))), rate


@runtime_checkable
class HasPhases(Protocol):
    """A method's config that lists what sites train."""

    def training_phases(self, train: TrainSection) -> tuple[TrainingPhase, ...]:
        """One phase a phase."""
        ...


def phases_of(approved: ApprovedPlan) -> tuple[TrainingPhase, ...]:
    """The phases of the approved plan; the same objects for the same approved, which sites ask for in every round."""
    known = _KNOWN.get(id(approved))
    if known is not None and known[0] is approved:
        return known[1]
    config = approved.config
    if not isinstance(config, HasPhases):
        raise RefusedError(f"the approved plan of {approved.method!r} has no phases")
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    phases = config.training_phases(approved.train)
    _KNOWN[id(approved)] = (approved, phases)
    return phases


def judge_of(approved: ApprovedPlan) -> JudgeSection | None:
    """How the approved plan judges models, if it does."""
    found = getattr(approved.config, "judge", None)
    return found if isinstance(found, JudgeSection) else None


def secure_of(approved: ApprovedPlan) -> SecureSection | None:
    """How the approved plan protects its sums of updates, if it has any."""
    found = getattr(approved.config, "secure", None)
    return found if isinstance(found, SecureSection) else None


@dataclass
class PhaseRowsState(TaskState):
    """Cache: the rows each phase trains on or judges with, and those of several sites stacked."""

    parts: dict[str, Rows] = field(default_factory=dict)
    stack: tuple[list[Rows], StackedRows] | None = None
    """Kept by the first of the sites that train together."""


def rows_of(site: Site, phase: TrainingPhase, *, held_out: bool = False) -> Rows:
    """The rows a phase is about: those to train on, or those kept for judging. The same for the same site and plan."""
    place = f"rows.{phase.rows}.{phase.held_out}.{held_out}.{_per_person(phase)}"
    parts = site.state(PhaseRowsState).parts
    if place not in parts:
        parts[place] = _cut(site, phase, held_out=held_out)
    return parts[place]


def stacked_rows(sites: Sequence[Site], phase: TrainingPhase) -> StackedRows:
    """`rows_of` all sites side by side; made once, as long as the same sites are asked together."""
    parts = [rows_of(site, phase) for site in sites]
    first = sites[0].state(PhaseRowsState)
    known = first.stack
    if known is None or len(known[0]) != len(parts) or not all(map(is_, known[0], parts)):
        known = first.stack = (parts, stack(parts))
    return known[1]


def _per_person(phase: TrainingPhase) -> bool:
    return phase.dp is not None and phase.dp.unit == "person"


def _cut(site: Site, phase: TrainingPhase, *, held_out: bool) -> Rows:
    every = site.training_rows
    if every is None:
        raise SiteError(f"site {site.name!r} was asked to train before it had rows to train on")
    begin, end = _span(site, phase.rows)
    if not phase.held_out and not _per_person(phase):
        return every.part(begin, end)
    chosen = np.arange(begin, end)
    if _per_person(phase):
        chosen = chosen[_first_of_each_person(site)[begin:end]]
    if phase.held_out:
        # Which rows judge is drawn once a run, so no model was ever trained on them.
        aside = site.streams.generator("held-out", phase.rows).random(end - begin)[chosen - begin] < phase.held_out
        chosen = chosen[aside if held_out else ~aside]
    weight = None if every.weight is None else every.weight[chosen]
    return Rows(every.x[chosen], every.y[chosen], weight)


def _span(site: Site, part: RowPart) -> tuple[int, int]:
    low = site.table.low
    if part == "all":
        return 0, site.count
    if low is None:
        raise SiteError(
            f"site {site.name!r} does not know which of its rows carry a low risk",
            hint='Set low_risk in [sites], or in each site.toml, or rows = "all" in the phase',
        )
    return (0, low) if part == "low" else (low, site.count)


def _first_of_each_person(site: Site) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    identifiers = site.schema.identifiers
    if not identifiers:
        raise SiteError(
            f'site {site.name!r} has no column that tells persons apart, which unit = "person" needs',
            hint="Name it in data.identifiers",
        )
    column = site.table.rows()[identifiers[0]]
    first: np.ndarray[tuple[int], np.dtype[np.bool_]] = column.is_first_distinct().to_numpy()
    return first
