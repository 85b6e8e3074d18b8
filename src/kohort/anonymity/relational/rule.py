"""The privacy a released class must have: k rows, l sensitive values, within t of the table.

A `Rule` is what was asked; `SensitiveColumns` is what the compiled loops need to judge a class by it. Nothing here is
shared with the checker, which judges the finished table.

Guarantee: `require_feasible` refuses a rule exactly when the whole table as one class does not meet it. That is enough:
every measure here is such that if all classes of a table meet the rule, so does their union.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.codes import ranked
from kohort.errors import ConfigError, RefusedError, nearest

__all__ = ["BetaKind", "LKind", "Rule", "SensitiveColumns", "SensitiveRequirements", "TKind", "require_feasible"]

LKind = Literal["distinct", "entropy", "recursive"]
TKind = Literal["emd", "kl"]
BetaKind = Literal["basic", "enhanced"]

# Sums of rounded shares may miss a bound that they meet exactly.
ROUNDING = 1e-10
# A strict bound is kept by this much, relative to it: more than what the checker demands.
STRICT = 1e-8


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What every class must meet.

    Attributes:
        k: Rows of a class.
        l: l-diversity; 0 asks for nothing.
        l_kind: Kind of l-diversity.
        c: c of recursive (c, l)-diversity.
        t: t-closeness; 0 asks for nothing.
        t_kind: Distance of t-closeness: earth mover's distance or Kullback-Leibler divergence.
        alpha: Largest share of a sensitive value in a class, (alpha, k)-anonymity; 0 asks for nothing.
        beta: beta-likeness, the largest relative gain of a value's share over the table's; 0 asks for nothing.
        beta_kind: "basic", or "enhanced", which also bounds the gain by -ln of the table's share.
        delta: delta-disclosure privacy, the bound of |ln| of the two shares' ratio; 0 asks for nothing.

    Raises:
        ConfigError: A number is out of range or a kind is unknown.
    """

    k: int
    l: float = 0  # noqa: E741 - the literature's own letter
    l_kind: LKind = "distinct"
    c: float = 3.0
    t: float = 0.0
    t_kind: TKind = "emd"
    alpha: float = 0.0
    beta: float = 0.0
    beta_kind: BetaKind = "basic"
    delta: float = 0.0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"k is {self.k}", hint="Use a whole number from 1 on")
        if self.l_kind not in get_args(LKind):
            raise ConfigError(f"unknown kind of l {self.l_kind!r}", hint=nearest(self.l_kind, get_args(LKind)))
        if self.t_kind not in get_args(TKind):
            raise ConfigError(f"unknown kind of t {self.t_kind!r}", hint=nearest(self.t_kind, get_args(TKind)))
        if not math.isfinite(self.l) or self.l < 0 or (self.l_kind != "entropy" and self.l != int(self.l)):
            raise ConfigError(f"l is {self.l:g}", hint="Use 0, or a whole number from 1 on")
        if not math.isfinite(self.t) or self.t < 0:
            raise ConfigError(f"t is {self.t:g}", hint="Use 0 for none, or a distance above 0")
        if not math.isfinite(self.c) or self.c <= 0:
            raise ConfigError(f"c is {self.c:g}", hint="Use a number above 0")
        self._check_shares()

    def _check_shares(self) -> None:
        if self.beta_kind not in get_args(BetaKind):
            raise ConfigError(
                f"unknown kind of beta {self.beta_kind!r}", hint=nearest(self.beta_kind, get_args(BetaKind))
            )
        for name, value in (("alpha", self.alpha), ("beta", self.beta), ("delta", self.delta)):
            if not math.isfinite(value) or value < 0 or (name == "alpha" and value > 1):
                hint = "Use 0 for none, or a share up to 1" if name == "alpha" else "Use 0 for none, or a bound above 0"
                raise ConfigError(f"{name} is {value:g}", hint=hint)

    @property
    def needs_sensitive(self) -> bool:
        """Whether the rule looks at sensitive values, not at class sizes alone."""
        return self.l > 0 or self.t > 0 or self.bounds_values

    @property
    def bounds_values(self) -> bool:
        """Whether the share of every sensitive value is bounded by itself: by alpha, beta or delta."""
        return self.alpha > 0 or self.beta > 0 or self.delta > 0

    def shares(self, table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The lowest and the highest share that alpha, beta and delta allow each value in a class.

        Args:
            table: The share of each value in the table.

        Returns:
            Both bounds; 0 and infinity where there is none.
        """
        lowest, highest = np.zeros(len(table)), np.full(len(table), math.inf)
        if self.alpha > 0:
            highest = np.minimum(highest, self.alpha)
        if self.beta > 0:
            gain = self.beta if self.beta_kind == "basic" else np.minimum(self.beta, -np.log(table))
            highest = np.minimum(highest, table * (1.0 + gain))
        highest = highest + ROUNDING
        if self.delta > 0:  # |ln(p / q)| must stay below delta
            lowest = table * math.exp(-self.delta) * (1.0 + STRICT)
            highest = np.minimum(highest, table * math.exp(self.delta) * (1.0 - STRICT))
        return lowest, highest

    @property
    def is_monotone(self) -> bool:
        """Whether a class that meets the rule still does with any row added."""
        return self.t == 0 and not self.bounds_values and (self.l == 0 or self.l_kind == "distinct")


@dataclass(frozen=True)
class SensitiveColumns:
    """Rank codes of the sensitive columns, and the table's distribution over them, one column after the other.

    `codes[s]` counts from 0 in column s; its values are at `offsets[s]` to `offsets[s + 1]` of the flat arrays.

    Where persons are counted, as many lines of codes follow: for each sensitive column a code of (person, value), and
    a last line with a code of the person. A person then counts once per value in every distribution.
    """

    names: tuple[str, ...]
    codes: NDArray[np.int32]
    offsets: NDArray[np.int64]
    share: NDArray[np.float64]
    cumulative: NDArray[np.float64]
    prefix: NDArray[np.float64]  # prefix[offsets[s] + s + i]: sum of the first i entries of cumulative of column s
    ordered: NDArray[np.bool_]
    persons: int | None = None
    """How many persons the table is about; None where rows are counted."""

    @classmethod
    def of(
        cls, frame: pl.DataFrame, names: Sequence[str], *, persons: NDArray[np.int64] | None = None
    ) -> SensitiveColumns:
        """Code the columns: ranks of the sorted values, null before all others.

        Args:
            frame: The table.
            names: The sensitive columns.
            persons: A code of the person each row is about, without gaps; None where rows are counted.

        Returns:
            The coded columns.
        """
        columns = [_ranks(frame[name]) for name in names]
        pairs = [] if persons is None else [_dense(codes * len(persons) + persons) for codes in columns]
        counts = [np.bincount(codes) for codes in columns]
        if persons is not None:
            counts = [_count_once(codes, pair) for codes, pair in zip(columns, pairs, strict=True)]
        shares = [found / found.sum() for found in counts]
        cumulative = [np.cumsum(found) / found.sum() for found in counts]
        prefixes = [np.concatenate(([0.0], np.cumsum(found))) for found in cumulative]
        lines = columns if persons is None else [*columns, *pairs, persons]
        empty = [np.zeros(0)]
        return cls(
            names=tuple(names),
            codes=np.array(lines, dtype=np.int32).reshape(len(lines), frame.height),
            offsets=np.concatenate(([0], np.cumsum([int(line.max()) + 1 for line in lines]))).astype(np.int64),
            share=np.concatenate(shares or empty),
            cumulative=np.concatenate(cumulative or empty),
            prefix=np.concatenate(prefixes or empty),
            ordered=np.array([frame.schema[name].is_numeric() for name in names], dtype=np.bool_),
            persons=None if persons is None else int(persons.max()) + 1,
        )

    @property
    def units(self) -> int:
        """Rows of the table, or persons where they are counted."""
        return self.codes.shape[1] if self.persons is None else self.persons

    def distinct(self, position: int) -> int:
        """How many values a column has."""
        return int(self.offsets[position + 1] - self.offsets[position])

    def counted(self, position: int) -> int:
        """What a column's distribution counts: rows, or pairs of a person and a value."""
        return self.codes.shape[1] if self.persons is None else self.distinct(len(self.names) + position)


class SensitiveRequirements(NamedTuple):
    """What the compiled loops need to judge the sensitive values of a class.

    One type for every kind of rule, so that the loops are compiled once for rules about sensitive values: 0 (for l) and
    infinity (for t) ask for nothing. Bounds on sums of rounded shares are already relaxed by `ROUNDING`. `columns` is
    the number of sensitive columns, `persons` the fewest persons of a class, 0 where rows are counted.
    """

    offsets: NDArray[np.int64]
    columns: int
    persons: int
    share: NDArray[np.float64]
    distinct_l: int
    entropy_l: float
    recursive_l: int
    recursive_c: float
    emd: float
    kl: float
    by_value: bool
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]
    ordered: NDArray[np.bool_]
    cumulative: NDArray[np.float64]
    prefix: NDArray[np.float64]

    @classmethod
    def of(cls, rule: Rule, sensitive: SensitiveColumns) -> SensitiveRequirements | None:
        """The requirements of a rule on these columns; None for a rule of k rows alone."""
        if not rule.needs_sensitive and sensitive.persons is None:
            return None
        distinct, entropy, recursive = (rule.l if rule.l_kind == kind else 0 for kind in get_args(LKind))
        emd, kl = (rule.t + ROUNDING if rule.t > 0 and rule.t_kind == kind else math.inf for kind in get_args(TKind))
        lowest, highest = rule.shares(sensitive.share)
        return cls(
            offsets=sensitive.offsets,
            columns=len(sensitive.names) if rule.needs_sensitive else 0,
            persons=0 if sensitive.persons is None else rule.k,
            share=sensitive.share,
            distinct_l=int(distinct),
            entropy_l=max(entropy - ROUNDING, 0.0),
            recursive_l=int(recursive),
            recursive_c=float(rule.c),
            emd=emd,
            kl=kl,
            by_value=rule.bounds_values,
            lowest=lowest,
            highest=highest,
            ordered=sensitive.ordered,
            cumulative=sensitive.cumulative,
            prefix=sensitive.prefix,
        )


def require_feasible(rule: Rule, sensitive: SensitiveColumns) -> None:
    """Refuse a rule that no partition of this table can meet, and say what could be met.

    Args:
        rule: The rule.
        sensitive: The sensitive columns of the table, and the persons where they are counted.

    Raises:
        ConfigError: l or t is asked for and no sensitive column is named.
        RefusedError: The whole table as one class does not meet the rule.
    """
    if rule.needs_sensitive and not sensitive.names:
        raise ConfigError(
            "l, t, alpha, beta and delta are about a sensitive column and none is named", hint="Name one as sensitive"
        )
    units = sensitive.units
    if units < rule.k:
        what = "rows" if sensitive.persons is None else "persons"
        raise RefusedError(
            f"{units:,} {what} cannot be {rule.k:,}-anonymous", hint=f"k of at most {units:,} can be met"
        )
    for position, name in enumerate(sensitive.names if rule.needs_sensitive else ()):
        shares = sensitive.share[sensitive.offsets[position] : sensitive.offsets[position + 1]]
        if rule.l > 0:
            _require_diverse(rule, name, np.sort(np.round(shares * sensitive.counted(position)))[::-1])
        if rule.alpha > 0 and shares.max() > rule.alpha + ROUNDING:
            reached = math.ceil(shares.max() * 1000) / 1000
            raise RefusedError(
                f"one value of column {name!r} has a share of {reached:g} in the whole table, above {rule.alpha:g}",
                hint=f"alpha of at least {reached:g} can be met",
            )


def _require_diverse(rule: Rule, name: str, falling: NDArray[np.float64]) -> None:
    distinct = len(falling)
    if rule.l_kind == "distinct" and distinct < rule.l:
        raise RefusedError(
            f"column {name!r} has {distinct} values, so no class can have l = {rule.l:g}",
            hint=f"l of at most {distinct} can be met",
        )
    if rule.l_kind == "entropy":
        shares = falling / falling.sum()
        reached = float(np.exp(-(shares * np.log(shares)).sum()))
        if reached < rule.l - ROUNDING:
            raise RefusedError(
                f"the whole column {name!r} has entropy l = {reached:.3f}, below {rule.l:g}",
                hint=f"Entropy l of at most {math.floor(reached * 1000) / 1000:g} can be met",
            )
    if rule.l_kind == "recursive":
        tail = falling[int(rule.l) - 1 :].sum()
        if tail == 0 or falling[0] / tail >= rule.c:
            reached = falling[0] / tail if tail else math.inf
            hint = f"Use c above {reached:.3f}" if tail else f"l of at most {distinct} can be met"
            raise RefusedError(
                f"the whole column {name!r} is not recursively ({rule.c:g}, {rule.l:g})-diverse", hint=hint
            )


def _dense(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same codes without gaps."""
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)


def _count_once(codes: NDArray[np.int64], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many persons have each value, by the codes of rows and of their (person, value) pairs."""
    _, first = np.unique(pairs, return_index=True)
    return np.bincount(codes[first]).astype(np.int64)


def _ranks(column: pl.Series) -> NDArray[np.int64]:
    if isinstance(column.dtype, pl.List):
        raise ConfigError(f"column {column.name!r} holds lists", hint="A sensitive column has one value per row")
    return ranked(column)[0].astype(np.int64)
