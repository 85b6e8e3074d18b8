"""The checker: how anonymous a table is, whoever made it.

A class is the rows that share their released quasi-identifier values, null being a value. `measure` says what holds for
a table, `unmet` which of the asked rules do not. Several sensitive columns are judged one by one; the worst of them is
the table's figure. Formulas and their sources: `checker.sensitive` (l, t, alpha, beta, delta), `checker.items` (k^m).

Guarantees: exact counts; nothing is sampled; no code is shared with what anonymises. A rule that asks for a distance or
a share allows for rounding (1e-9) and for nothing else. No result holds a cell value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker import sensitive as per_class
from kohort.anonymity.checker.classes import as_frame, group_rows, require_columns
from kohort.anonymity.checker.items import item_sets, smallest_class, smallest_support
from kohort.anonymity.checker.sensitive import TOLERANCE, value_codes
from kohort.errors import ConfigError, DataError, nearest

__all__ = [
    "Anonymity",
    "BetaKind",
    "Disclosure",
    "LKind",
    "TKind",
    "Together",
    "k_anonymity",
    "km_anonymity",
    "l_diversity",
    "measure",
    "rarest_value",
    "satisfies",
    "t_closeness",
    "together",
    "unmet",
]

LKind = Literal["distinct", "entropy", "recursive"]
TKind = Literal["emd", "kl"]
BetaKind = Literal["basic", "enhanced"]

Number = TypeVar("Number", int, float)

RECURSIVE_L = 2


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """What the worst class gives away about one sensitive column.

    `recursive_c` belongs to l = 2: recursive (c, 2)-diversity holds for every c above it. `beta_enhanced` and `delta`
    are infinite when no value would do.
    """

    column: str
    l_distinct: int
    l_entropy: float
    recursive_c: float
    t_emd: float
    t_kl: float
    alpha: float
    beta: float
    beta_enhanced: float
    delta: float

    def to_mapping(self) -> dict[str, Any]:
        """JSON values; an infinite figure is null."""
        return {name: _finite(value) for name, value in vars(self).items() if name != "column"}


@dataclass(frozen=True, kw_only=True)
class Anonymity:
    """What holds for a table. `histogram` lists (size, number of classes of that size), sizes rising."""

    quasi: tuple[str, ...]
    rows: int
    classes: int
    k: int
    uniques: int
    largest_class: int
    histogram: tuple[tuple[int, int], ...]
    sensitive: tuple[Disclosure, ...] = ()
    km: int | None = None
    m: int | None = None

    @property
    def average_class(self) -> float:
        """Rows for each class."""
        return self.rows / self.classes

    @property
    def l_distinct(self) -> int | None:
        """Fewest values of a sensitive column in a class."""
        return self._worst(min, lambda found: found.l_distinct)

    @property
    def l_entropy(self) -> float | None:
        """Smallest exp(entropy) of a class."""
        return self._worst(min, lambda found: found.l_entropy)

    @property
    def recursive_c(self) -> float | None:
        """Recursive (c, 2)-diversity holds for every c above this."""
        return self._worst(max, lambda found: found.recursive_c)

    @property
    def t_emd(self) -> float | None:
        """Largest earth mover's distance of a class from the table."""
        return self._worst(max, lambda found: found.t_emd)

    @property
    def t_kl(self) -> float | None:
        """Largest KL(class || table), in nats."""
        return self._worst(max, lambda found: found.t_kl)

    @property
    def alpha(self) -> float | None:
        """Largest share of one value in a class."""
        return self._worst(max, lambda found: found.alpha)

    @property
    def beta(self) -> float | None:
        """Basic beta-likeness holds for every beta from this on."""
        return self._worst(max, lambda found: found.beta)

    @property
    def beta_enhanced(self) -> float | None:
        """Enhanced beta-likeness holds for every beta from this on."""
        return self._worst(max, lambda found: found.beta_enhanced)

    @property
    def delta(self) -> float | None:
        """Delta-disclosure privacy holds for every delta above this."""
        return self._worst(max, lambda found: found.delta)

    def to_mapping(self) -> dict[str, Any]:
        """JSON values; null where no sensitive or items column was named, and for an infinite figure."""
        recursive = None if not self.sensitive else {"l": RECURSIVE_L, "c_above": _finite(self.recursive_c)}
        return {
            "rows": self.rows,
            "classes": self.classes,
            "k": self.k,
            "l_distinct": self.l_distinct,
            "l_entropy": _finite(self.l_entropy),
            "t_emd": _finite(self.t_emd),
            "t_kl": _finite(self.t_kl),
            "km": self.km,
            "m": self.m,
            "alpha": _finite(self.alpha),
            "recursive": recursive,
            "beta": _finite(self.beta),
            "beta_enhanced": _finite(self.beta_enhanced),
            "delta": _finite(self.delta),
            "uniques": self.uniques,
            "average_class": self.average_class,
            "largest_class": self.largest_class,
            "histogram": {str(size): count for size, count in self.histogram},
            "sensitive": {found.column: found.to_mapping() for found in self.sensitive},
        }

    def _worst(self, choose: Callable[..., Number], figure: Callable[[Disclosure], Number]) -> Number | None:
        return choose(figure(found) for found in self.sensitive) if self.sensitive else None


def measure(
    frame: Any,
    *,
    quasi: Sequence[str],
    sensitive: Sequence[str] = (),
    items: str | Sequence[str] | None = None,
    m: int = 2,
    persons: str | None = None,
) -> Anonymity:
    """Everything the checker knows about a table.

    Args:
        frame: A pandas, polars or pyarrow table.
        quasi: Names of the quasi-identifiers; without any, all rows are one class.
        sensitive: Names of the sensitive columns.
        items: Columns of item sets; several are one set of items per row.
        m: Number of items an attacker may know.
        persons: Column that says who a row is about. k and k^m then count persons, and a person counts once per value
            in the distribution of a sensitive column; `rows`, `uniques` and the histogram still count rows.

    Returns:
        The measured figures.

    Raises:
        DataError: The table has no rows, lacks a column, or a column has the wrong type.
        ConfigError: Columns are given as one string, or m is below 1.

    Example:
        >>> table = pl.DataFrame({"age": [30, 30, 41, 41], "illness": ["flu", "cold", "flu", "flu"]})
        >>> found = measure(table, quasi=["age"], sensitive=["illness"])
        >>> (found.k, found.l_distinct)
        (2, 1)
    """
    table = as_frame(frame)
    keys, private = require_columns(table, quasi), require_columns(table, sensitive)
    item_columns = require_columns(table, _item_names(items))
    classes = group_rows(table, keys)
    sizes, counts = np.unique(classes.sizes, return_counts=True)
    who = None if persons is None else _person_codes(table, persons)
    km = smallest_support(classes, item_sets(table, item_columns), m=m, persons=who) if item_columns else None
    return Anonymity(
        quasi=keys,
        rows=classes.rows,
        classes=classes.count,
        k=int(sizes[0]) if who is None else smallest_class(classes, who),
        uniques=int(counts[0]) if sizes[0] == 1 else 0,
        largest_class=int(sizes[-1]),
        histogram=tuple(zip(sizes.tolist(), counts.tolist(), strict=True)),
        sensitive=tuple(_disclosure(per_class.spread(classes, table[name], persons=who), name) for name in private),
        km=km,
        m=m if item_columns else None,
    )


def rarest_value(frame: Any, column: str, persons: str) -> int:
    """How many persons have the rarest value of a column.

    Args:
        frame: A pandas, polars or pyarrow table.
        column: The column; null is a value.
        persons: Column that says who a row is about.

    Returns:
        The number of persons.
    """
    table = as_frame(frame)
    return smallest_class(group_rows(table, [column]), _person_codes(table, persons))


@dataclass(frozen=True, kw_only=True)
class Together:
    """What two releases of the same rows show together.

    Attributes:
        k: Rows of the smallest class of both: what is left of a crowd to somebody who holds both releases.
        promised: The smaller k of the two releases by themselves.
        isolated: Rows whose two classes have fewer than `promised` rows in common.
        rows: Rows of each release.
    """

    k: int
    promised: int
    isolated: int
    rows: int


def together(first: Any, second: Any, *, quasi: Sequence[str], promised: int | None = None) -> Together:
    """Measure what two releases show together: k-anonymity of each does not compose.

    Args:
        first: A released table.
        second: Another release of the same rows, in the same order.
        quasi: The quasi-identifiers; each table may lack some of them.
        promised: The crowd that each release promises; by default the smallest class of both.

    Returns:
        The crowd that is left.

    Raises:
        DataError: The tables have different numbers of rows, or one has none of the columns.

    Example:
        >>> one = pl.DataFrame({"age": ["20-29", "20-29", "30-39", "30-39"]})
        >>> two = pl.DataFrame({"age": ["20-24", "25-39", "25-39", "20-24"]})
        >>> together(one, two, quasi=["age"]).isolated
        4
    """
    tables = [as_frame(first), as_frame(second)]
    if tables[0].height != tables[1].height:
        hint = "Give two releases of the same rows, in the same order"
        raise DataError(f"one release has {tables[0].height:,} rows, the other {tables[1].height:,}", hint=hint)
    parts = []
    for table in tables:
        columns = [name for name in quasi if name in table.columns]
        if not columns:
            raise DataError("a release has none of the quasi-identifiers", hint="Name columns that it has")
        parts.append(group_rows(table, columns))
    pairs = parts[0].of_row * parts[1].count + parts[1].of_row
    _, place, sizes = np.unique(pairs, return_inverse=True, return_counts=True)
    least = min(int(part.sizes.min()) for part in parts) if promised is None else promised
    isolated = int((sizes[place] < least).sum())
    return Together(k=int(sizes.min()), promised=least, isolated=isolated, rows=tables[0].height)


def k_anonymity(frame: Any, *, quasi: Sequence[str]) -> int:
    """Rows of the smallest class."""
    return int(group_rows(as_frame(frame), quasi).sizes.min())


def km_anonymity(frame: Any, *, items: str | Sequence[str], m: int = 2, quasi: Sequence[str] = ()) -> int:
    """Fewest rows that share a class and up to `m` items."""
    table = as_frame(frame)
    columns = require_columns(table, _item_names(items))
    return smallest_support(group_rows(table, quasi), item_sets(table, columns), m=m)


def l_diversity(frame: Any, *, quasi: Sequence[str], sensitive: str, kind: LKind = "distinct") -> float:
    """The l that holds: number of values, or exp(entropy), of the worst class.

    Raises:
        ConfigError: The kind is unknown, or "recursive", which has two numbers: use `unmet`.
    """
    if kind == "recursive":
        raise ConfigError("recursive diversity has two numbers, c and l", hint="Use satisfies(l=..., c=...)")
    _check_kind(kind, ("distinct", "entropy"), "l")
    found = _spread(frame, quasi, sensitive)
    return float((per_class.distinct_values if kind == "distinct" else per_class.entropy_values)(found).min())


def t_closeness(frame: Any, *, quasi: Sequence[str], sensitive: str, kind: TKind = "emd") -> float:
    """The t that holds: distance of the worst class from the table.

    Raises:
        ConfigError: The kind is unknown.
    """
    _check_kind(kind, ("emd", "kl"), "t")
    found = _spread(frame, quasi, sensitive)
    return float((per_class.emd if kind == "emd" else per_class.kl)(found).max())


def satisfies(frame: Any, **rules: Any) -> bool:
    """Whether every asked rule holds; takes what `unmet` takes."""
    return not unmet(frame, **rules)


def unmet(
    frame: Any,
    *,
    quasi: Sequence[str],
    sensitive: Sequence[str] = (),
    items: str | Sequence[str] | None = None,
    k: int = 1,
    m: int | None = None,
    l: float | None = None,  # noqa: E741 - the papers call it l
    l_kind: LKind = "distinct",
    c: float | None = None,
    t: float | None = None,
    t_kind: TKind = "emd",
    alpha: float | None = None,
    beta: float | None = None,
    beta_kind: BetaKind = "basic",
    delta: float | None = None,
    persons: str | None = None,
) -> tuple[str, ...]:
    """The asked rules that do not hold; empty when all hold.

    Args:
        frame: A pandas, polars or pyarrow table.
        quasi: Names of the quasi-identifiers.
        sensitive: Names of the sensitive columns.
        items: Columns of item sets.
        k: Rows (or persons) of every class; with `items` and `m`, also of every combination of up to m items.
        m: Number of items an attacker may know.
        l: l-diversity.
        l_kind: Kind of l-diversity.
        c: c of recursive (c, l)-diversity.
        t: t-closeness.
        t_kind: Distance of t-closeness.
        alpha: Largest share of one sensitive value in a class.
        beta: beta-likeness.
        beta_kind: Kind of beta-likeness.
        delta: delta-disclosure privacy.
        persons: Column that says who a row is about.

    Returns:
        One sentence per rule that does not hold, with what was found.

    Raises:
        ConfigError: Rules do not fit together, or a kind is unknown.
        DataError: As for `measure`.
    """
    _check_kind(l_kind, ("distinct", "entropy", "recursive"), "l")
    _check_kind(t_kind, ("emd", "kl"), "t")
    _check_kind(beta_kind, ("basic", "enhanced"), "beta")
    if not sensitive and any(rule is not None for rule in (l, t, alpha, beta, delta)):
        raise ConfigError("l, t, alpha, beta and delta need a sensitive column", hint="Name it in sensitive")
    if (m is None) != (items is None):
        raise ConfigError("m and items go together", hint="Give both, or neither")
    if l is not None and l_kind == "recursive" and (c is None or l != int(l)):
        raise ConfigError("recursive diversity needs c, and a whole l", hint="Give c, such as c=3.0")
    table = as_frame(frame)
    found = measure(table, quasi=quasi, sensitive=sensitive, items=items, m=2 if m is None else m, persons=persons)
    problems = [] if found.k >= k else [f"k is {found.k}, not {k}"]
    if found.km is not None and found.km < k:
        problems.append(f"some combination of up to {m} items points to {found.km} rows, not {k}")
    for one in found.sensitive:
        rules = [
            (l_kind == "distinct", l, one.l_distinct, ">=", "distinct l"),
            (l_kind == "entropy", l, one.l_entropy, ">=", "entropy l"),
            (t_kind == "emd", t, one.t_emd, "<=", "t (EMD)"),
            (t_kind == "kl", t, one.t_kl, "<=", "t (KL)"),
            (True, alpha, one.alpha, "<=", "alpha"),
            (beta_kind == "basic", beta, one.beta, "<=", "basic beta"),
            (beta_kind == "enhanced", beta, one.beta_enhanced, "<=", "enhanced beta"),
            (True, delta, one.delta, "<", "delta"),
        ]
        problems += [
            f"{name} of column {one.column!r} is {value:.6g}, not {sign} {bound:g}"
            for asked, bound, value, sign, name in rules
            if asked and bound is not None and not _holds(value, sign, bound)
        ]
    if l is not None and c is not None and l_kind == "recursive":
        who = None if persons is None else _person_codes(table, persons)
        problems += _recursive_problems(table, quasi, sensitive, who, least=int(l), c=c)
    return tuple(problems)


def _recursive_problems(
    frame: pl.DataFrame,
    quasi: Sequence[str],
    sensitive: Sequence[str],
    persons: NDArray[np.int64] | None,
    *,
    least: int,
    c: float,
) -> list[str]:
    problems = []
    classes = group_rows(frame, quasi)
    for name in require_columns(frame, sensitive):
        ratios = per_class.recursive_ratio(per_class.spread(classes, frame[name], persons=persons), l=least)
        broken = int((ratios >= c).sum())
        if broken:
            problems.append(f"{broken:,} classes are not recursively ({c:g}, {least})-diverse in column {name!r}")
    return problems


def _disclosure(found: per_class.Spread, column: str) -> Disclosure:
    return Disclosure(
        column=column,
        l_distinct=int(per_class.distinct_values(found).min()),
        l_entropy=float(per_class.entropy_values(found).min()),
        recursive_c=float(per_class.recursive_ratio(found, l=RECURSIVE_L).max()),
        t_emd=float(per_class.emd(found).max()),
        t_kl=float(per_class.kl(found).max()),
        alpha=float(per_class.top_share(found).max()),
        beta=float(per_class.gain(found).max()),
        beta_enhanced=float(per_class.enhanced_gain(found).max()),
        delta=float(per_class.log_ratio(found).max()),
    )


def _spread(frame: Any, quasi: Sequence[str], sensitive: str) -> per_class.Spread:
    table = as_frame(frame)
    require_columns(table, [sensitive])
    return per_class.spread(group_rows(table, quasi), table[sensitive])


def _person_codes(table: pl.DataFrame, column: str) -> NDArray[np.int64]:
    """Who each row is about.

    Raises:
        DataError: A row does not say.
    """
    require_columns(table, [column])
    silent = table[column].null_count()
    if silent:
        hint = "Fill the column in, or drop these rows: nobody can be counted in them"
        raise DataError(f"{silent:,} rows do not say in column {column!r} whom they are about", hint=hint)
    known, _ = value_codes(table[column])
    return known


def _holds(value: float, sign: str, bound: float) -> bool:
    if sign == ">=":
        return value >= bound - TOLERANCE
    # A strict bound must be cleared, not met: there the allowance works the other way.
    return value <= bound + TOLERANCE if sign == "<=" else value < bound - TOLERANCE


def _item_names(items: str | Sequence[str] | None) -> Sequence[str]:
    if items is None:
        return ()
    return [items] if isinstance(items, str) else items


def _check_kind(kind: str, known: Sequence[str], of: str) -> None:
    if kind not in known:
        raise ConfigError(f"unknown kind of {of} {kind!r}", hint=nearest(kind, known))


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None
