"""What a release claims about the rows behind it.

A guarantee describes; it never judges. The site's policy decides whether the description is good enough, and the ledger
keeps it word for word. Two releases with equal guarantees are equally protected, so guarantees compare by value.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from math import inf
from typing import Any, ClassVar

from kohort.errors import IntegrityError

__all__ = [
    "DP",
    "Aggregate",
    "Domain",
    "Encrypted",
    "Guarantee",
    "KAnonymous",
    "KKm",
    "Public",
    "Raw",
    "SecureSum",
    "parse_guarantee",
]

_KINDS: dict[str, type[Guarantee]] = {}


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Base of all guarantees. `kind` is the word users see in ledgers, reports and JSON."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        _KINDS[cls.kind] = cls

    @property
    def strength(self) -> tuple[float, ...]:
        """Orders claims of one kind, the weakest first; claims that do not differ in strength are equal."""
        return ()

    @cached_property
    def text(self) -> str:
        """Canonical JSON, made once: a thousand sites write it a thousand times a round."""
        return json.dumps({"kind": self.kind, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value}" for name, value in asdict(self).items() if value not in (None, "", ()))
        return f"{self.kind}({inside})"


@dataclass(frozen=True, kw_only=True)
class Raw(Guarantee):
    """Rows as they are. No protection. `counted_by` names others on whose word they were let out, if anyone's."""

    kind: ClassVar[str] = "raw"
    rows: int
    counted_by: str = ""

    @property
    def strength(self) -> tuple[float, ...]:
        """More rows, less protection."""
        return (-self.rows,)


@dataclass(frozen=True, kw_only=True)
class Public(Guarantee):
    """Declared public by the site's operator, such as its row count or its public key."""

    kind: ClassVar[str] = "public"
    what: str


@dataclass(frozen=True, kw_only=True)
class Domain(Guarantee):
    """The values or the range that occur in `columns`, without counts; learned from private rows: a disclosure."""

    kind: ClassVar[str] = "domain"
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Aggregate(Guarantee):
    """One number or vector computed from `rows` rows of one site. Not a protection by itself."""

    kind: ClassVar[str] = "aggregate"
    rows: int

    @property
    def strength(self) -> tuple[float, ...]:
        """Fewer rows hide less behind an aggregate."""
        return (self.rows,)


@dataclass(frozen=True, kw_only=True)
class KAnonymous(Guarantee):
    """Every released class holds at least `k` rows, `l` sensitive values, and lies within `t` of the table."""

    kind: ClassVar[str] = "k-anonymous"
    k: int
    l: int = 1  # noqa: E741 - the literature's own letter
    t: float | None = None
    rows: int = 0
    verified: bool = False

    @property
    def strength(self) -> tuple[float, ...]:
        """By k, then l, then t, of which none is the weakest."""
        return (self.k, self.l, -inf if self.t is None else -self.t)


@dataclass(frozen=True, kw_only=True)
class KKm(Guarantee):
    """Quasi-identifiers plus any `m` items of a row point to at least `k` rows."""

    kind: ClassVar[str] = "k-km"
    k: int
    m: int
    rows: int = 0
    verified: bool = False

    @property
    def strength(self) -> tuple[float, ...]:
        """By k, then m."""
        return (self.k, self.m)


@dataclass(frozen=True, kw_only=True)
class DP(Guarantee):
    """(epsilon, delta)-differential privacy of the named `event` for one `unit` under `relation`.

    `simulated` marks noise from a seeded generator: right in distribution, worthless against whoever knows the seed.
    """

    kind: ClassVar[str] = "dp"
    epsilon: float
    delta: float
    unit: str = "row"
    relation: str = "add-or-remove-one"
    event: str = ""
    scope: str = "all rows"
    simulated: bool = True

    @property
    def strength(self) -> tuple[float, ...]:
        """By epsilon, then delta."""
        return (-self.epsilon, -self.delta)


@dataclass(frozen=True, kw_only=True)
class Encrypted(Guarantee):
    """Ciphertext under `scheme`; only `opens` can decrypt."""

    kind: ClassVar[str] = "encrypted"
    scheme: str
    opens: str


@dataclass(frozen=True, kw_only=True)
class SecureSum(Guarantee):
    """A share of a sum over `sites` sites of which only the total opens, while at most `colluders` of them collude."""

    kind: ClassVar[str] = "secure-sum"
    sites: int
    threshold: int
    colluders: int
    opens: str


def parse_guarantee(fields: dict[str, Any]) -> Guarantee:
    """The guarantee a ledger line describes. An unknown kind or field is refused, never guessed."""
    if not isinstance(fields, dict):
        raise IntegrityError("a ledger line describes no guarantee")
    rest = dict(fields)
    kind = _KINDS.get(str(rest.pop("kind", "")))
    if kind is None:
        raise IntegrityError("a ledger line names a guarantee this version does not know")
    try:
        made = kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()})
    except TypeError as error:
        raise IntegrityError(f"a ledger line describes a {kind.kind} guarantee with the wrong fields") from error
    return made
