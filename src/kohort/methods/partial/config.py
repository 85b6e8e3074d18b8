"""`[method]` of partially-federated learning: which rows are sent, how they are counted, in which form they go out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from kohort.anonymity.gate.gate import count_unit
from kohort.errors import ConfigError, RefusedError
from kohort.methods.learners import LearnerKeys
from kohort.methods.partial.release import sensitive_of
from kohort.privacy.guarantee import KAnonymous
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import DPSection, SecureSumSection
from kohort.tables.schema import Schema

__all__ = ["Gate", "Partial", "classes_claim", "config_of", "person_column", "threshold_of"]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """`[method.gate]`: which rows are sent to the hub, how they are counted, and in which form they are sent."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    rule: str = "k-anonymity"
    k: Annotated[int, Ge(1)] = 100
    """Fewest rows per key. Not used by paper-l, which has l instead."""
    l: Annotated[int, Ge(1)] | None = None  # noqa: E741 - the literature's own letter
    t: Annotated[float, Gt(0), Le(1)] | None = None
    strict: bool = False
    """Demand more than k, as the paper's text says, instead of at least k."""
    overlap: Annotated[int, Ge(1)] = 1
    """At how many sites one person may occur: a count across sites then demands this many times k."""
    key: str = "exact"
    count: Literal["secure", "local", "global"] = "secure"
    """secure: over all sites in a secure sum | local: over the site's own rows | global: over all sites in clear
    (simulation only)"""
    released: Literal["generalised", "raw"] = "generalised"
    release_k: Annotated[int, Ge(2)] = 10
    release_l: Annotated[int, Ge(1)] = 2
    keep_days: Annotated[int, Ge(1)] = 365
    """Days the hub may keep the rows it receives. Sites approve it with the plan."""


@dataclass(frozen=True, kw_only=True)
class Partial(LearnerKeys):
    """`[method]` of partially-federated learning."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    gate: Gate = field(default_factory=Gate)
    secure: SecureSumSection = field(default_factory=SecureSumSection)
    """How the counts are summed, and the totals of a learner; by masks unless it says otherwise."""
    kept: Literal["weights", "sum"] = "weights"
    """What a site with kept rows gives in every round: its own weights, or a share of a secure sum of updates, so that
    sites with few kept rows take part, too."""
    dp: DPSection | None = None
    """A budget for the kept rows, with `kept = "sum"`: noise in shares, on the sum of clipped gradients."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secure", self.secure.or_scheme("masks"))
        _check_budget(self)
        for name, keys in (("additive", self.additive), ("trees", self.trees)):
            if keys is not None and keys.secure not in (SecureSumSection(sum="masks"), self.secure):
                raise ConfigError(f"method.{name}.secure is not read", hint="Write method.secure, which holds for all")
            if keys is not None:
                object.__setattr__(self, name, replace(keys, secure=self.secure))


def _check_budget(config: Partial) -> None:
    """Refuse a budget that would not hold for the kept rows.

    A kept row that is removed must change nothing for other rows. Its key was too rare at its own site, and stays so.
    But in a count over all sites it helps rows elsewhere, and under rules about sensitive values its own class.
    """
    if config.dp is None:
        return
    if config.kept != "sum":
        raise ConfigError("method.dp is for kept rows in a sum", hint='Set method.kept = "sum", or drop method.dp')
    config.dp.refuse_sample(config.secure)
    if config.dp.mechanism != "dp-sgd":
        raise ConfigError("noise goes on the sum of clipped gradients", hint="Drop method.dp.mechanism")
    gate = config.gate
    if (gate.rule, gate.count, gate.release_l) != ("k-anonymity", "local", 1):
        raise ConfigError(
            "the budget would not hold: one kept row would decide whether others are kept",
            hint='Set method.gate.rule = "k-anonymity", count = "local" and release_l = 1',
        )


def config_of(approved: ApprovedPlan) -> Partial:
    """The method's part of an approved plan.

    Raises:
        RefusedError: The plan is one of another method.
    """
    config = approved.config
    if not isinstance(config, Partial):
        raise RefusedError("the approved plan is not a partial federation")
    return config


def threshold_of(gate: Gate) -> int:
    """The total a key must reach: k or, for the paper's second algorithm, l; plus 1 if strict; times the overlap."""
    least = gate.l if count_unit(gate.rule) == "key+sensitive" and gate.l is not None else gate.k
    return (least + gate.strict) * gate.overlap


def classes_claim(gate: Gate, schema: Schema) -> KAnonymous:
    """What the classes of a batch hold: of which units, and over which sensitive columns."""
    return KAnonymous(
        k=gate.release_k,
        l=gate.release_l,
        verified=True,
        unit="row" if person_column(schema) is None else "person",
        sensitive=sensitive_of(schema) if gate.release_l > 1 else (),
    )


def person_column(schema: Schema) -> str | None:
    """The column that says whom a row is about; None where every row is its own person."""
    return schema.identifiers[0] if schema.identifiers else None
