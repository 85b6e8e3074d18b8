"""The parts of a plan that say what sites train in each phase, under which privacy, and how sums are protected.

They are pure descriptions: nothing here sees a row. Sites read them from the approved plan; a request only names the
number of a phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from kohort.crypto.sums.scheme import require_scheme
from kohort.errors import ConfigError, RefusedError
from kohort.models.dense.training import Training
from kohort.privacy.dp.accounting import grid_rate
from kohort.privacy.dp.histogram import LARGEST_SHARE
from kohort.protocol.plan.sections import TrainSection

__all__ = ["PURE", "DPSection", "JudgeSection", "RowPart", "SecureSumSection", "TrainingPhase"]

RowPart = Literal["all", "low", "high"]
Mechanism = Literal["dp-sgd", "ftrl", "after", "hub", "output", "objective", "statistics"]
PURE = frozenset({"output", "objective"})
"""Mechanisms with delta 0, which release once."""


@dataclass(frozen=True, kw_only=True)
class DPSection:
    """`dp = {...}`: the budget of a phase, for whom it holds, and where the noise is added."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    mechanism: Mechanism = "dp-sgd"
    """dp-sgd: noise on clipped gradients, at the site | ftrl: the same with each row in one round, under noise whose
    running sums stay small (DP-FTRL) | after: noise on the clipped update, at the site | hub: noise on
    the sum of clipped updates, at the hub, which sees them | output, objective: one release of a logistic regression
    with noise on its weights or its loss, without any delta | statistics: one release of noisy sums from which the hub
    solves a one-layer classifier."""
    unit: Literal["row", "person", "site"] = "row"
    """Whose presence is hidden. A person has the rows with one identifier value, of which one is used."""
    overlap: Annotated[int, Ge(1)] = 1
    """At how many sites one person may have rows, with unit = "person"; the budget holds for all of them together."""
    epsilon: Annotated[float, Gt(0)] = 1.0
    delta: Annotated[float, Ge(0), Lt(1)] = 1e-5
    clip: Annotated[float, Gt(0)] = 1.0
    """Largest norm of one row's gradient (dp-sgd) or of one site's update (after, hub)."""
    accountant: Literal["pld", "rdp"] = "pld"
    quantile: Annotated[float, Gt(0), Lt(1)] | None = None
    """Adaptive clipping: the share of rows whose gradient should lie below the bound, which then starts at `clip`."""
    average: Annotated[float, Ge(0), Le(1)] | None = None
    """Average the models of the last share of the rounds; costs nothing. By default as `train.average` says."""
    lower_rate: bool = False
    """Whether `train.lr` is a limit, and the rate what the noise allows (`kohort.rounds.private_defaults`)."""
    sample: Annotated[float, Gt(0), Le(1)] = 1.0
    """Of a secure sum: the chance of each row to be in a round's batch, by a coin of its site; 1 takes every row."""
    person_rows: Literal["one", "all"] | None = None
    """Of a secure sum with unit = "person": one row of each person (the default), or the mean gradient of all of them,
    clipped as one."""
    normalise: bool | None = None
    """Of a secure sum: scale gradients to `clip` whatever their norm, so that no clip has to be chosen."""
    allow_large_delta: bool = False
    """Study settings with a delta above 1 / (10 n): the claim is then void."""
    domain_share: Annotated[float, Gt(0), Le(LARGEST_SHARE)] = 0.1
    """Share of the budget that learning the domains of undeclared columns takes; nothing where all are declared."""

    def __post_init__(self) -> None:
        if self.mechanism == "hub" and self.unit != "site":
            raise ConfigError("noise at the hub hides a whole site", hint='Set dp.unit = "site"')
        if self.mechanism in {"dp-sgd", "ftrl", "statistics"} and self.unit == "site":
            raise ConfigError(
                f"{self.mechanism} hides rows or persons", hint='Use dp.mechanism = "hub" or "after" for sites'
            )
        if self.overlap > 1 and self.unit != "person":
            raise ConfigError("dp.overlap counts the sites of a person", hint='Set dp.unit = "person", or drop it')
        if self.mechanism in PURE and (self.delta != 0 or self.unit != "row"):
            raise ConfigError(f"{self.mechanism} perturbation hides rows and has no delta", hint="Set dp.delta = 0")
        if self.delta == 0 and self.mechanism not in PURE:
            raise ConfigError("Gaussian noise needs a delta above 0", hint="Set dp.delta, at most 1 / (10 n)")
        self._check_gradients()

    def _check_gradients(self) -> None:
        """What bounds or samples gradients is for dp-sgd."""
        if self.quantile is not None and self.mechanism != "dp-sgd":
            raise ConfigError("adaptive clipping is for dp-sgd", hint="Drop dp.quantile")
        if self.sample != 1 and (self.mechanism != "dp-sgd" or self.overlap > 1):
            raise ConfigError("rows are sampled for dp-sgd and units of one site", hint="Drop dp.sample")
        if self.normalise and (self.mechanism != "dp-sgd" or self.quantile is not None):
            raise ConfigError("dp.normalise is for dp-sgd without dp.quantile", hint="Drop one of them")
        if self.person_rows == "all" and (self.mechanism != "dp-sgd" or self.unit != "person"):
            raise ConfigError(
                'dp.person_rows = "all" bounds the gradients of persons', hint='Use dp-sgd with dp.unit = "person"'
            )

    @property
    def is_plain(self) -> bool:
        """Whether noise goes on sums over all rows, with a fixed bound."""
        bounded = self.quantile is None and not self.normalise and self.person_rows != "all"
        return self.mechanism == "dp-sgd" and self.sample == 1 and bounded

    def refuse_sample(self, secure: SecureSumSection | None) -> None:
        """Refuse what only a site's part of a secure sum can do where none is taken.

        Args:
            secure: The method's secure sum.

        Raises:
            ConfigError: There is none, and rows are to be sampled, gradients normalised or persons' rows added up.
        """
        if secure is None and (self.normalise or self.person_rows == "all"):
            key = "normalise" if self.normalise else "person_rows"
            raise ConfigError(f"dp.{key} is for rounds over secure sums", hint="Add method.secure, or drop it")
        if self.sample != 1 and secure is None:
            raise ConfigError("dp.sample is for rounds over secure sums", hint="Set train.batch, or method.secure")


@dataclass(frozen=True, kw_only=True)
class SecureSumSection:
    """`[method.secure]`: how sums are protected, and how many sites may collude with the hub."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    sum: str = ""
    """masks | bfv | ckks | none; the method's own choice when absent"""
    colluders: Annotated[int, Ge(0)] = 1

    def __post_init__(self) -> None:
        if self.sum:
            require_scheme(self.sum)

    def or_scheme(self, scheme: str) -> SecureSumSection:
        """The section with `scheme` where the plan names none."""
        return self if self.sum else replace(self, sum=scheme)


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
    hub_rows: bool = False
    """Whether the hub trains beside the sites, on rows that it was sent; in phases over sums."""

    @property
    def is_stepped_on_sums(self) -> bool:
        """Whether, with `method.secure`, the hub takes the steps on sums of gradients, and no site takes any."""
        return not self.topology and self.dp is not None and self.dp.mechanism == "dp-sgd"

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
            raise RefusedError(
                f"a batch of {batch} rows is more than the {count} rows at hand",
                hint="Lower train.batch, set it to 0 for the whole site, or raise sites.min_rows",
            )
        rate = batch / count
        # A pass is as many steps as the accountant's rate, which is never below the true one, makes of it: sites with
        # nearly the same rows then share a calibration.
        return epochs * max(1, round(1 / grid_rate(rate))), rate
