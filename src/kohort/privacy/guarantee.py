"""Guarantees: what a release claims about the rows it was computed from.

A guarantee describes; it never judges. The site's policy decides whether the description is good enough, and the ledger
stores it verbatim. Two releases with equal guarantees are equally protected, so guarantees compare by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from math import inf
from typing import Any, ClassVar

from kohort.errors import IntegrityError

__all__ = [
    "DP",
    "Aggregate",
    "Cells",
    "DomainClaim",
    "Encrypted",
    "Guarantee",
    "KAnonymous",
    "KKm",
    "Pairs",
    "Public",
    "Raw",
    "SecureSum",
    "is_at_least",
    "parse_guarantee",
]

_KINDS: dict[str, type[Guarantee]] = {}


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Base of all guarantees. `kind` is the word users see in ledgers, reports and JSON."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        _KINDS[cls.kind] = cls

    @cached_property
    def strength(self) -> tuple[float, ...]:
        """Sort key among guarantees of one kind: the weakest sorts first, equal strength compares equal."""
        return ()

    optional: ClassVar[frozenset[str]] = frozenset()
    """Fields that its text leaves out while they have their defaults, so that older and newer ledger lines agree."""

    @cached_property
    def text(self) -> str:
        """Canonical JSON for the ledger. Cached, because every site writes it in every round."""
        return json.dumps({"kind": self.kind, **self.said()}, sort_keys=True, separators=(",", ":"))

    def said(self) -> dict[str, Any]:
        """The fields that its text holds."""
        defaults = {field.name: field.default for field in fields(self) if field.name in self.optional}
        return {name: value for name, value in asdict(self).items() if name not in defaults or value != defaults[name]}

    @property
    def shown(self) -> str:
        """The text that summaries and reports show to people."""
        return str(self)

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value}" for name, value in asdict(self).items() if value not in (None, "", ()))
        return f"{self.kind}({inside})"


@dataclass(frozen=True, kw_only=True)
class Raw(Guarantee):
    """Rows as they are. No protection.

    `counted_by` names the other sites whose reported counts justified the release; empty when the site counted itself.
    `gate_k` is how often, at least, a gate counted the key of every row; None where no gate decided.
    """

    kind: ClassVar[str] = "raw"
    optional: ClassVar[frozenset[str]] = frozenset({"gate_k"})
    rows: int
    counted_by: str = ""
    gate_k: int | None = None

    @cached_property
    def strength(self) -> tuple[float, ...]:
        """More rows are a weaker claim."""
        return (-self.rows,)


@dataclass(frozen=True, kw_only=True)
class Public(Guarantee):
    """Declared public by the site's operator, such as its row count or its public key."""

    kind: ClassVar[str] = "public"
    what: str


@dataclass(frozen=True, kw_only=True)
class DomainClaim(Guarantee):
    """The values or the range that occur in `columns`, without counts.

    They are learned from private rows, so sending them is a disclosure.
    """

    kind: ClassVar[str] = "domain"
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Aggregate(Guarantee):
    """One number or vector computed from `rows` rows of one site. Not a protection by itself."""

    kind: ClassVar[str] = "aggregate"
    rows: int

    @cached_property
    def strength(self) -> tuple[float, ...]:
        """Fewer rows are a weaker claim."""
        return (self.rows,)


@dataclass(frozen=True, kw_only=True)
class KAnonymous(Guarantee):
    """k-anonymity, l-diversity and t-closeness of the released rows.

    Every equivalence class holds at least `k` units (rows, or persons) and `l` distinct values of each column in
    `sensitive`; the distribution of its sensitive values is within `t` of the whole table's (None: not claimed).
    `verified` means the checker confirmed it. `gate_k` is how often, at least, a gate counted the key of every released
    row; None where no gate decided.
    """

    kind: ClassVar[str] = "k-anonymous"
    optional: ClassVar[frozenset[str]] = frozenset({"unit", "sensitive", "gate_k"})
    k: int
    l: int = 1  # noqa: E741 - the literature's own letter
    t: float | None = None
    rows: int = 0
    verified: bool = False
    unit: str = "row"
    sensitive: tuple[str, ...] = ()
    gate_k: int | None = None

    @cached_property
    def strength(self) -> tuple[float, ...]:
        """Compared by k, then l, then t; no t is the weakest."""
        return (self.k, self.l, -inf if self.t is None else -self.t)


@dataclass(frozen=True, kw_only=True)
class KKm(Guarantee):
    """(k, k^m)-anonymity: quasi-identifiers together with any `m` items of a row match at least `k` rows."""

    kind: ClassVar[str] = "k-km"
    k: int
    m: int
    rows: int = 0
    verified: bool = False

    @cached_property
    def strength(self) -> tuple[float, ...]:
        """Compared by k, then m."""
        return (self.k, self.m)


@dataclass(frozen=True, kw_only=True)
class DP(Guarantee):
    """(epsilon, delta)-differential privacy of the named `event` for one `unit` under `relation`.

    `epsilon` is the cost of the whole `event`. `charge` is the part of it that this release newly spends (None: all of
    it). A plan pays for all its releases with the first one; later releases have a charge of 0 and name the same
    `account`. Delta is spent whenever epsilon is: `delta_charge` of it (None: all of it).

    `simulated` marks noise from a seeded generator: right in distribution, but no protection against anyone who knows
    the seed. `void` marks a delta so large that the claim promises nothing. `trust` says whom the claim relies on, such
    as the other sites of a secure sum that add their share of the noise; `epsilon_all` is the epsilon that remains when
    all of those collude. `overlap` is at how many sites a person may have rows: the claim holds for all of them.
    """

    kind: ClassVar[str] = "dp"
    optional: ClassVar[frozenset[str]] = frozenset(
        {"accountant", "charge", "account", "void", "trust", "epsilon_all", "delta_charge", "overlap"}
    )
    epsilon: float
    delta: float
    unit: str = "row"
    relation: str = "add-or-remove-one"
    event: str = ""
    scope: str = "all rows"
    simulated: bool = True
    accountant: str = "pld"
    charge: float | None = None
    account: str = ""
    void: bool = False
    trust: str = ""
    epsilon_all: float | None = None
    delta_charge: float | None = None
    overlap: int = 1

    @property
    def spends(self) -> bool:
        """Whether this release takes from the budget; only an exact charge of 0 does not."""
        return self.charge != 0

    @property
    def spent(self) -> tuple[float, float]:
        """The epsilon and the delta this release takes from the budget."""
        if not self.spends:
            return 0.0, 0.0
        delta = self.delta if self.delta_charge is None else self.delta_charge
        return (self.epsilon if self.charge is None else self.charge), delta

    @cached_property
    def strength(self) -> tuple[float, ...]:
        """A void claim is the weakest; then compared by epsilon, delta, and whether the noise is simulated."""
        return (not self.void, -self.epsilon, -self.delta, not self.simulated)

    @property
    def whom(self) -> str:
        """The protected unit in words; of a person, at how many sites."""
        if self.unit != "person":
            return self.unit
        return "person at one site" if self.overlap == 1 else f"person at up to {self.overlap} sites"

    @property
    def shown(self) -> str:
        """The text for people; "simulated" and "void" stand before any number."""
        marks = ", ".join(word for word, holds in (("simulated", self.simulated), ("void", self.void)) if holds)
        parts = [f"epsilon {self.epsilon:.4g}", f"delta {self.delta:.3g}", f"for each {self.whom}", self.scope]
        if self.trust:
            parts.append(self.trust)
        if self.epsilon_all is not None:
            parts.append(f"epsilon {self.epsilon_all:.4g} if all others collude")
        return f"DP{f'({marks})' if marks else ''}: {', '.join(parts)}"

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in self.said().items() if value != '')})"


@dataclass(frozen=True, kw_only=True)
class Encrypted(Guarantee):
    """Ciphertext under `scheme` that only the party named by `opens` can decrypt."""

    kind: ClassVar[str] = "encrypted"
    scheme: str
    opens: str


@dataclass(frozen=True, kw_only=True)
class SecureSum(Guarantee):
    """A share of a secure sum over `sites` sites.

    The party named by `opens` learns only the total, as long as at most `colluders` of the sites collude with it;
    `threshold` sites are needed to open the total.
    """

    kind: ClassVar[str] = "secure-sum"
    sites: int
    threshold: int
    colluders: int
    opens: str


@dataclass(frozen=True, kw_only=True)
class Cells(Guarantee):
    """Totals that are tables: no filled cell of them has fewer than `least` persons, over all sites.

    A plan whose totals may have smaller cells says so with `least = 1`.
    """

    kind: ClassVar[str] = "cells"
    least: int


@dataclass(frozen=True, kw_only=True)
class Pairs(Guarantee):
    """Totals that count pairs of categories: those of at least `least` persons as they are, smaller ones rounded.

    With `least = 1` a pair that one person has is seen.
    """

    kind: ClassVar[str] = "pairs"
    least: int = 1


def is_at_least(claim: Guarantee, other: Guarantee) -> bool:
    """Whether a claim is equal to another one, or stronger.

    A claim of noise or of a secure sum is stronger than an unprotected aggregate of the same rows. Apart from that,
    guarantees of different kinds are not comparable.

    Args:
        claim: What a release claims.
        other: What it must claim at least.

    Returns:
        True when whoever accepts `other` can accept `claim`.
    """
    kind = type(claim)
    if kind is not type(other):
        return isinstance(other, Aggregate) and isinstance(claim, DP | SecureSum)
    compare = _COMPARED.get(kind)
    return claim == other if compare is None else compare(claim, other)


def _classes_hold(claim: KAnonymous, other: KAnonymous) -> bool:
    near = other.t is None or (claim.t is not None and claim.t <= other.t)
    same_units = other.unit in {"row", claim.unit} and {*other.sensitive} <= {*claim.sensitive}
    passed = (claim.gate_k or 0) >= (other.gate_k or 0)
    stronger = claim.k >= other.k and claim.l >= other.l and claim.verified >= other.verified
    return stronger and near and same_units and passed


def _raw_holds(claim: Raw, other: Raw) -> bool:
    return claim.counted_by in {"", other.counted_by} and (claim.gate_k or 0) >= (other.gate_k or 0)


def _sum_holds(claim: SecureSum, other: SecureSum) -> bool:
    same = claim.opens.partition(":")[0] == other.opens.partition(":")[0]
    return same and claim.sites >= other.sites and claim.threshold >= other.threshold


def _noise_holds(claim: DP, other: DP) -> bool:
    slack = 1 + 1e-9
    return (
        claim.epsilon <= other.epsilon * slack
        and claim.delta <= other.delta * slack
        and claim.relation == other.relation
        and claim.overlap >= other.overlap
    )


_COMPARED: dict[type[Guarantee], Callable[[Any, Any], bool]] = {
    Raw: _raw_holds,
    DomainClaim: lambda claim, other: set(claim.columns) <= set(other.columns),
    Aggregate: lambda claim, other: claim.rows >= other.rows,
    KAnonymous: _classes_hold,
    KKm: lambda claim, other: claim.k >= other.k and claim.m >= other.m and claim.verified >= other.verified,
    DP: _noise_holds,
    SecureSum: _sum_holds,
    Cells: lambda claim, other: claim.least >= other.least,
}
"""How two guarantees of one kind are compared; others must be equal."""


def parse_guarantee(described: dict[str, Any]) -> Guarantee:
    """Read the guarantee of a ledger line. An unknown kind or field is refused, never guessed.

    Args:
        described: The line's `guarantee` object.

    Returns:
        The guarantee.

    Raises:
        IntegrityError: It is not an object, its kind is unknown, or its fields do not fit its kind.
    """
    if not isinstance(described, dict):
        raise IntegrityError("the guarantee of a ledger line is not an object")
    rest = dict(described)
    kind = _KINDS.get(str(rest.pop("kind", "")))
    if kind is None:
        raise IntegrityError(
            "a ledger line has a kind of guarantee that this version of kohort does not know",
            hint="Read it with the version that wrote it",
        )
    try:
        made = kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()})
    except TypeError as error:
        raise IntegrityError(f"a ledger line describes a {kind.kind} guarantee with the wrong fields") from error
    return made
