"""The checker: how anonymous a table is, whoever made it.

A class is the rows that share their released quasi-identifier values, null being a value. `measure` says what holds for
a table, `unmet` which of the asked rules do not. Several sensitive columns are judged one by one; the worst of them is
the table's figure. Formulas and their sources: `checker.sensitive` (l, t, alpha, beta, delta), `checker.items` (k^m).

Guarantees: exact counts; nothing is sampled; no code is shared with what anonymises. A rule that asks for a distance or
a share allows for rounding (1e-9) and for nothing else. No result holds a cell value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker import sensitive as per_class
from kohort.anonymity.checker.classes import as_frame, group_rows, require_columns
from kohort.anonymity.checker.combinations import Combinations, combine
from kohort.anonymity.checker.figures import RECURSIVE_L, Anonymity, SensitiveDisclosure
from kohort.anonymity.checker.items import item_sets, smallest_class, smallest_support
from kohort.anonymity.checker.sensitive import TOLERANCE, value_codes
from kohort.errors import ConfigError, DataError, nearest

__all__ = [
    "Anonymity",
    "BetaKind",
    "LKind",
    "SensitiveDisclosure",
    "TKind",
    "judged",
    "k_anonymity",
    "km_anonymity",
    "l_diversity",
    "measure",
    "measure_combinations",
    "rarest_value",
    "satisfies",
    "t_closeness",
    "unmet",
]

LKind = Literal["distinct", "entropy", "recursive"]
TKind = Literal["emd", "kl"]
BetaKind = Literal["basic", "enhanced"]


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
        frame: A pandas, polars or pyarrow table; or a polars query of plain types, which is read in parts.
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
    table = frame if isinstance(frame, pl.LazyFrame) else as_frame(frame, categories=True)
    require_columns(table, quasi)
    require_columns(table, sensitive)
    item_columns = require_columns(table, _item_names(items))
    found = measure_combinations(combine(table.lazy(), quasi=quasi, sensitive=sensitive, persons=persons))
    if not item_columns:
        return found
    return replace(found, km=km_anonymity(table, items=item_columns, m=m, quasi=quasi, persons=persons), m=m)


def measure_combinations(counted: Combinations) -> Anonymity:
    """Everything the checker knows about a table whose combinations were counted; items are no part of it.

    Args:
        counted: The combinations.

    Returns:
        The measured figures, as `measure` gives them.
    """
    values = {name: counted.values(name) for name in counted.sensitive}
    least, sizes, counts = counted.rows, np.empty(0, np.int64), np.empty(0, np.int64)
    disclosed: dict[str, SensitiveDisclosure] = {}
    for part in counted.parts():
        smallest = int(part.classes.sizes.min()) if part.persons is None else smallest_class(part.classes, part.persons)
        least = min(least, smallest)
        size, count = np.unique(part.classes.sizes, return_counts=True)
        sizes, place = np.unique(np.concatenate([sizes, size]), return_inverse=True)
        counts = np.bincount(place, weights=np.concatenate([counts, count])).astype(np.int64)
        for name in counted.sensitive:
            found = _disclosure(per_class.spread(part, name, values[name]), name)
            disclosed[name] = _worse(disclosed.get(name, found), found)
    return Anonymity(
        quasi=counted.quasi,
        rows=counted.rows,
        classes=int(counts.sum()),
        k=least,
        uniques=int(counts[0]) if sizes[0] == 1 else 0,
        largest_class=int(sizes[-1]),
        histogram=tuple(zip(sizes.tolist(), counts.tolist(), strict=True)),
        sensitive=tuple(disclosed.values()),
    )


def rarest_value(frame: Any, column: str, persons: str | None = None) -> int:
    """How many persons have the rarest value of a column.

    Args:
        frame: A pandas, polars or pyarrow table.
        column: The column; null is a value.
        persons: Column that says who a row is about; None where every row is its own person.

    Returns:
        The number of persons.
    """
    table = as_frame(frame)
    classes = group_rows(table, [column])
    return int(classes.sizes.min()) if persons is None else smallest_class(classes, _person_codes(table, persons))


def k_anonymity(frame: Any, *, quasi: Sequence[str]) -> int:
    """Rows of the smallest class.

    Args:
        frame: A pandas, polars or pyarrow table with at least one row.
        quasi: Names of the quasi-identifiers; without any, all rows are one class.

    Returns:
        The k that holds.
    """
    return int(group_rows(as_frame(frame), quasi).sizes.min())


def km_anonymity(
    frame: Any, *, items: str | Sequence[str], m: int = 2, quasi: Sequence[str] = (), persons: str | None = None
) -> int:
    """Fewest rows, or persons, that share a class and up to `m` items.

    Args:
        frame: A pandas, polars or pyarrow table with at least one row.
        items: Columns of item sets; several are one set of items per row.
        m: Number of items an attacker may know, 1 or more.
        quasi: Names of the quasi-identifiers; without any, all rows are one class.
        persons: Column that says who a row is about, without nulls; None counts rows.

    Returns:
        The k of (k, k^m)-anonymity that holds.
    """
    table = as_frame(frame)
    columns = require_columns(table, _item_names(items))
    who = None if persons is None else _person_codes(table, persons)
    return smallest_support(group_rows(table, quasi), item_sets(table, columns), m=m, persons=who)


def l_diversity(frame: Any, *, quasi: Sequence[str], sensitive: str, kind: LKind = "distinct") -> float:
    """The l that holds: number of values, or exp(entropy), of the worst class.

    Args:
        frame: A pandas, polars or pyarrow table with at least one row.
        quasi: Names of the quasi-identifiers; without any, all rows are one class.
        sensitive: Name of the sensitive column; null is a value.
        kind: "distinct" or "entropy".

    Returns:
        The largest l that every class meets.

    Raises:
        ConfigError: The kind is unknown, or "recursive", which has two numbers: use `unmet`.
    """
    if kind == "recursive":
        raise ConfigError("recursive diversity has two numbers, c and l", hint="Use satisfies(l=..., c=...)")
    _check_kind(kind, ("distinct", "entropy"), "l")
    figure = per_class.distinct_values if kind == "distinct" else per_class.entropy_values
    return float(min(found.min() for found in _figure(frame, quasi, sensitive, figure)))


def t_closeness(frame: Any, *, quasi: Sequence[str], sensitive: str, kind: TKind = "emd") -> float:
    """The t that holds: distance of the worst class from the table.

    Args:
        frame: A pandas, polars or pyarrow table with at least one row.
        quasi: Names of the quasi-identifiers; without any, all rows are one class.
        sensitive: Name of the sensitive column; null is a value.
        kind: "emd" (earth mover's distance) or "kl" (Kullback-Leibler divergence, in nats).

    Returns:
        The smallest t that every class meets.

    Raises:
        ConfigError: The kind is unknown.
    """
    _check_kind(kind, ("emd", "kl"), "t")
    figure = per_class.emd if kind == "emd" else per_class.kl
    return float(max(found.max() for found in _figure(frame, quasi, sensitive, figure)))


def satisfies(frame: Any, **rules: Any) -> bool:
    """Whether every asked rule holds.

    Args:
        frame: The table, as for `judged`.
        rules: The keyword arguments of `judged`, with `quasi` among them.

    Returns:
        True if `unmet` names no rule.
    """
    return not unmet(frame, **rules)


def unmet(frame: Any, **rules: Any) -> tuple[str, ...]:
    """The asked rules that do not hold.

    Args:
        frame: The table, as for `judged`.
        rules: The keyword arguments of `judged`, with `quasi` among them.

    Returns:
        One sentence per rule that does not hold; empty when all hold.
    """
    return judged(frame, **rules)[1]


def judged(
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
) -> tuple[Anonymity, tuple[str, ...]]:
    """Measure a table, and name the asked rules that do not hold.

    Args:
        frame: A pandas, polars or pyarrow table; or a polars query of plain types, which is read in parts.
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
        What `measure` finds, and one sentence per rule that does not hold.

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
    table = frame if isinstance(frame, pl.LazyFrame) else as_frame(frame, categories=True)
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
        problems += _recursive_problems(table, quasi, sensitive, persons, least=int(l), c=c)
    return found, tuple(problems)


def _recursive_problems(
    frame: pl.DataFrame | pl.LazyFrame,
    quasi: Sequence[str],
    sensitive: Sequence[str],
    persons: str | None,
    *,
    least: int,
    c: float,
) -> list[str]:
    counted = combine(frame.lazy(), quasi=quasi, sensitive=sensitive, persons=persons)
    problems = []
    for name in counted.sensitive:
        ratios = (per_class.recursive_ratio(found, l=least) for found in _spreads(counted, name))
        broken = sum(int((found >= c).sum()) for found in ratios)
        if broken:
            problems.append(f"{broken:,} classes are not recursively ({c:g}, {least})-diverse in column {name!r}")
    return problems


def _spreads(counted: Combinations, name: str) -> Iterator[per_class.ValueFrequencies]:
    values = counted.values(name)
    for part in counted.parts():
        yield per_class.spread(part, name, values)


def _worse(one: SensitiveDisclosure, other: SensitiveDisclosure) -> SensitiveDisclosure:
    """The worse figure of two parts of a table, for each measure."""
    fewest = ("l_distinct", "l_entropy")
    names = [name for name in vars(one) if name != "column"]
    worst = {name: (min if name in fewest else max)(getattr(one, name), getattr(other, name)) for name in names}
    return SensitiveDisclosure(column=one.column, **worst)


def _disclosure(found: per_class.ValueFrequencies, column: str) -> SensitiveDisclosure:
    return SensitiveDisclosure(
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


def _figure(
    frame: Any, quasi: Sequence[str], sensitive: str, figure: Callable[[per_class.ValueFrequencies], Any]
) -> list[Any]:
    """A figure of every class, part by part."""
    counted = combine(as_frame(frame).lazy(), quasi=quasi, sensitive=[sensitive])
    return [figure(found) for found in _spreads(counted, sensitive)]


def _person_codes(table: pl.DataFrame, column: str) -> NDArray[np.int64]:
    """Code of the person each row is about; a DataError where a row does not say."""
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
