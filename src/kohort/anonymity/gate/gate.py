"""The gate: decides row by row what a site may share (the privacy module of partially-federated learning).

A rule looks at groups of rows that share a key (`kohort.anonymity.gate.keys`) and passes or withholds each row. Rules
are found in `kohort.anonymity.gate.rules` and under the entry point group `kohort.gate_rules`.

Guarantees: a row passes if and only if its rule says so on the counts it was given. Counts are of distinct persons
where an identifier is named; rows without an identifier count as one person together, and a person counts once for
each sensitive value of a group, in however many rows. Nothing but the key, the sensitive column and the identifier is
looked at. What a gate does not do: rows that pass are whole rows, so their other columns can still single people out.
`GateDecision.unique_on` counts the rows for which they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.gate.keys import KeyFunction, Keys, group_keys, group_rows, read_columns
from kohort.errors import ConfigError, DataError, nearest
from kohort.registry import discover
from kohort.tables.frames import from_native

__all__ = [
    "ROUNDING",
    "CountUnit",
    "GateDecision",
    "GateInput",
    "GateRule",
    "LKind",
    "ValueCounts",
    "apply_gate",
    "count_groups",
    "count_keys",
    "count_unit",
    "count_values",
    "find_rule",
    "gate_rules",
    "person_codes",
]

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
CountUnit = Literal["key", "key+sensitive"]
LKind = Literal["distinct", "entropy"]
SensitiveKind = Literal["number", "category"]
Parameter = Literal["k", "l", "t"]

# Sums of rounded shares may miss a bound that they meet exactly.
ROUNDING = 1e-10

RULES, ENTRY_POINTS = "kohort.anonymity.gate.rules", "kohort.gate_rules"


@dataclass(frozen=True, kw_only=True, eq=False)
class GateInput:
    """What a rule may look at.

    Attributes:
        keys: The groups the rule counts: of the key alone, or of the key joined with the sensitive value, as the rule's
            `count_unit` says.
        sensitive: Code of each row's sensitive value; for a number in the order of the values, null first.
        sensitive_kind: Whether the sensitive column is a number, whose values have an order.
        persons: Code of the person each row is about; None: every row is its own person.
        counts: Counts of these groups from elsewhere, such as a sum over sites; None: count here.
        weights: How many equal rows each row stands for; None: one.
        strict: Ask for more than k (in `paper-l`: more than l), not for at least as many.
        k: Threshold of the counts.
        l: Threshold of l-diversity.
        t: Threshold of t-closeness.
        l_kind: Kind of l-diversity.
    """

    keys: Keys
    sensitive: Integers | None = None
    sensitive_kind: SensitiveKind = "category"
    persons: Integers | None = None
    counts: Integers | None = None
    weights: Integers | None = None
    strict: bool = False
    k: int | None = None
    l: float | None = None  # noqa: E741 - the literature's own letter
    t: float | None = None
    l_kind: LKind = "distinct"

    @cached_property
    def group_counts(self) -> Integers:
        """Persons or rows of each group: the counts given, else counted here.

        Raises:
            ConfigError: There are not as many counts as groups.
        """
        if self.counts is None:
            return count_groups(self.keys, self.persons, self.weights)
        if self.counts.shape != (self.keys.groups,):
            hint = "Count the groups that count_keys gives"
            raise ConfigError(f"{self.counts.size:,} counts are given for {self.keys.groups:,} groups", hint=hint)
        return self.counts

    def large_enough(self, threshold: float | None) -> Mask:
        """Which groups reach a threshold; all of them when it is None."""
        if threshold is None:
            return np.ones(self.keys.groups, np.bool_)
        return self.group_counts > threshold if self.strict else self.group_counts >= threshold


@dataclass(frozen=True)
class ValueCounts:
    """How the sensitive values are distributed over the groups: one entry for every value that occurs in a group.

    Attributes:
        group: Group of each entry; entries are sorted by group, then by value.
        value: Code of each entry's value.
        count: Rows or persons of the entry.
        groups: Number of groups.
        table: Rows or persons of each value in the whole table.
    """

    group: Integers
    value: Integers
    count: Integers
    groups: int
    table: Integers

    @property
    def share(self) -> Floats:
        """Share of each entry's value in its group."""
        found: Floats = self.count / self.sum_by_group(self.count)[self.group]
        return found

    def sum_by_group(self, numbers: NDArray[np.generic]) -> Floats:
        """Sum of one number per entry over the entries of each group."""
        return np.bincount(self.group, weights=numbers, minlength=self.groups).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class GateRule:
    """A registered rule.

    Attributes:
        name: Name on the command line and in a plan.
        decide: Gives the mask of the rows that pass.
        needs: Parameters that must be given.
        takes: Parameters that may also be given.
        needs_sensitive: Whether a sensitive column must be named.
        count_unit: What has to be counted: groups of the key, or of the key joined with the sensitive value.
        by_group: Whether rows of equal key, sensitive value and person are decided alike, by `group_counts` and
            `count_values` alone. Equal rows of a large table are then given once, with weights.
    """

    name: str
    decide: Callable[[GateInput], Mask]
    needs: tuple[Parameter, ...]
    takes: tuple[Parameter, ...] = ()
    needs_sensitive: bool = False
    count_unit: CountUnit = "key"
    by_group: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class GateDecision:
    """What a gate decided.

    Attributes:
        mask: Which rows may be shared.
        groups: Number of groups that were counted.
        largest_group: Largest count in the unit of the rule: rows, persons where they are named, or the counts given.
        rule: Name of the rule.
    """

    mask: Mask = field(repr=False)
    groups: int
    largest_group: int
    rule: str

    @cached_property
    def shared(self) -> int:
        """Rows that may be shared."""
        return int(self.mask.sum())

    @property
    def share(self) -> float:
        """Shared rows among all rows."""
        return self.shared / len(self.mask)

    def unique_on(self, frame: Any, columns: Sequence[str]) -> int:
        """Number of shared rows that no other shared row equals in these columns.

        Args:
            frame: The table the gate was applied to.
            columns: Names of the columns that would be shared.

        Raises:
            DataError: The table lacks a column.
            ConfigError: The table has another number of rows.
        """
        known, _ = from_native(frame)
        for name in columns:
            if name not in known.columns:
                raise DataError(f"the table has no column {name!r}", hint=nearest(name, known.columns))
        if known.height != len(self.mask):
            hint = "Give the table the gate was applied to"
            raise ConfigError(f"a table of {known.height:,} rows, a gate for {len(self.mask):,}", hint=hint)
        if not columns or self.shared == 0:
            return int(self.shared == 1)
        shared = known.select(list(dict.fromkeys(columns))).filter(pl.Series(self.mask))
        return int((group_rows(sets_as_text(shared)).sizes == 1).sum())


def apply_gate(
    frame: Any,
    *,
    quasi: Sequence[str],
    rule: str | GateRule,
    sensitive: str | None = None,
    identifier: str | None = None,
    k: int | None = None,
    l: float | None = None,  # noqa: E741 - the literature's own letter
    t: float | None = None,
    strict: bool = False,
    key: str | KeyFunction | None = None,
    counts: Integers | None = None,
    weights: Integers | None = None,
    l_kind: LKind = "distinct",
) -> GateDecision:
    """Decide which rows may be shared.

    Args:
        frame: A pandas, polars or pyarrow table.
        quasi: Names of the quasi-identifiers.
        rule: A rule, or the name of an installed one.
        sensitive: Name of the sensitive column, for rules that need one.
        identifier: Name of the column that says who a row is about; persons are then counted instead of rows.
        k: Rows (or persons) that a key needs.
        l: Sensitive values that a class needs; in `paper-l`, rows with the same label.
        t: Largest distance of a class from the table.
        strict: Ask for more than k (in `paper-l`: l).
        key: Key function, or the name of one; see `kohort.anonymity.gate.keys.group_keys`.
        counts: Counts of the groups that `count_keys` gives for the same arguments, such as a sum over sites.
        weights: How many equal rows each row stands for; None: one. Only for rules that decide `by_group`.
        l_kind: Kind of l-diversity.

    Returns:
        The decision for every row.

    Raises:
        ConfigError: A parameter is missing, out of range or not used by the rule, or a column has two roles.
        DataError: The table lacks a column, has no rows, or a column holds lists.

    Example:
        >>> table = pl.DataFrame({"age": [30, 30, 41], "sex": ["f", "f", "m"]})
        >>> apply_gate(table, quasi=["age", "sex"], rule="k-anonymity", k=2).mask.tolist()
        [True, True, False]
    """
    chosen = find_rule(rule) if isinstance(rule, str) else rule
    _check_parameters(chosen, {"k": k, "l": l, "t": t}, l_kind)
    keys = count_keys(frame, quasi=quasi, sensitive=sensitive, identifier=identifier, rule=chosen, key=key)
    codes: Integers | None = None
    kind: SensitiveKind = "category"
    if chosen.needs_sensitive and sensitive is not None:
        codes, kind = _sensitive_codes(frame, sensitive)
    given = GateInput(
        keys=keys,
        sensitive=codes,
        sensitive_kind=kind,
        persons=None if identifier is None else person_codes(frame, identifier),
        counts=None if counts is None else np.asarray(counts, np.int64),
        weights=weights,
        strict=strict,
        k=k,
        l=l,
        t=t,
        l_kind=l_kind,
    )
    mask = chosen.decide(given)
    return GateDecision(mask=mask, groups=keys.groups, largest_group=int(given.group_counts.max()), rule=chosen.name)


def count_keys(
    frame: Any,
    *,
    quasi: Sequence[str],
    rule: str | GateRule,
    sensitive: str | None = None,
    identifier: str | None = None,
    key: str | KeyFunction | None = None,
) -> Keys:
    """The groups a rule counts: of the key, or of the key joined with the sensitive value.

    Args:
        frame: A pandas, polars or pyarrow table.
        quasi: Names of the quasi-identifiers.
        rule: A rule, or the name of an installed one.
        sensitive: Name of the sensitive column; required by rules that need one.
        identifier: Name of the column that says who a row is about. It must have no other role; nothing is counted by
            it here.
        key: Key function, or the name of one, as for `apply_gate`; None: the values as they are.

    Returns:
        The group of each row and the values that form its key. `counts` of `apply_gate` belong to these groups, in this
        order.

    Raises:
        ConfigError: The rule or the key function is unknown, the sensitive column is missing, or a column has two
            roles.
        DataError: The table lacks a column, has no rows, or a column holds lists.
    """
    chosen = find_rule(rule) if isinstance(rule, str) else rule
    _check_roles(chosen, quasi, sensitive, identifier)
    keys = group_keys(frame, quasi, key=key)
    if chosen.count_unit == "key":
        return keys
    value = read_columns(frame, [str(sensitive)]).to_series().alias("value")
    names = {name: f"key{position}" for position, name in enumerate(keys.values.columns)}
    joined = group_rows(pl.DataFrame({"key": keys.codes, "value": value}))
    return Keys(partition=joined, values=keys.values.rename(names).with_columns(value))


def count_groups(keys: Keys, persons: Integers | None = None, weights: Integers | None = None) -> Integers:
    """Count the rows, or the distinct persons, of each group.

    Args:
        keys: The groups.
        persons: Code of the person each row is about; None counts rows.
        weights: How many equal rows each row stands for; None: one. Ignored where persons are counted.

    Returns:
        One count per group.
    """
    if persons is None and weights is not None:
        return np.bincount(keys.codes, weights=weights, minlength=keys.groups).astype(np.int64)
    if persons is None:
        return keys.partition.sizes
    people = int(persons.max(initial=0)) + 1
    pairs = np.sort(keys.codes * people + persons)
    distinct = pairs[np.concatenate(([True], pairs[1:] != pairs[:-1]))]
    return np.bincount(distinct // people, minlength=keys.groups).astype(np.int64, copy=False)


def count_values(given: GateInput) -> ValueCounts:
    """Count rows, or distinct persons, by group and sensitive value.

    Args:
        given: The groups, the sensitive values, and the persons or weights to count.

    Returns:
        The count of each value in each group, and in the whole table.

    Raises:
        ConfigError: The input has no sensitive values.
    """
    if given.sensitive is None:
        raise ConfigError("the sensitive values are missing", hint="Name a sensitive column")
    distinct = int(given.sensitive.max()) + 1
    pairs = given.keys.codes * distinct + given.sensitive
    if given.persons is not None:
        _, numbered = np.unique(pairs, return_inverse=True)
        _, kept = np.unique(numbered * (int(given.persons.max()) + 1) + given.persons, return_index=True)
        pairs = pairs[kept]
    if given.persons is None and given.weights is not None:
        entries, place = np.unique(pairs, return_inverse=True)
        count = np.bincount(place, weights=given.weights)
    else:
        entries, count = np.unique(pairs, return_counts=True)
    group, value = np.divmod(entries, distinct)
    table = np.bincount(value, weights=count, minlength=distinct).astype(np.int64)
    return ValueCounts(group=group, value=value, count=count.astype(np.int64), groups=given.keys.groups, table=table)


def person_codes(frame: Any, identifier: str) -> Integers:
    """A number for each person. All rows without an identifier share one number, so together they count as one person.

    Args:
        frame: A pandas, polars or pyarrow table.
        identifier: Name of the column that says who a row is about.

    Returns:
        The number of each row's person, from 0 on.

    Raises:
        DataError: The table lacks the column, has no rows, or the column holds lists.
    """
    return group_keys(frame, [identifier]).codes


def count_unit(rule: str | GateRule) -> CountUnit:
    """What has to be counted across sites for this rule.

    Args:
        rule: A rule, or the name of an installed one.

    Returns:
        "key", or "key+sensitive" where each pair of a key and a sensitive value is counted.

    Raises:
        ConfigError: No such rule is installed.
    """
    return (find_rule(rule) if isinstance(rule, str) else rule).count_unit


@cache
def gate_rules() -> dict[str, GateRule]:
    """Every installed rule by name."""
    return discover(RULES, attribute="RULE", kind=GateRule, group=ENTRY_POINTS)


def find_rule(name: str) -> GateRule:
    """The rule of this name.

    Args:
        name: Its name, such as "k-anonymity".

    Returns:
        The rule, from kohort or from an installed package.

    Raises:
        ConfigError: No such rule is installed.
    """
    found = gate_rules().get(name)
    if found is None:
        raise ConfigError(f"unknown gate rule {name!r}", hint=nearest(name, gate_rules()))
    return found


def sets_as_text(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns of sets as one text per set: sorted members, each preceded by its length: no two sets share a text."""
    members = pl.concat_str(pl.element().str.len_bytes().cast(pl.String), pl.lit(":"), pl.element())
    lists = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
    return frame.with_columns(
        pl.col(name).list.eval(members.fill_null("-")).list.sort().list.join("") for name in lists
    )


def _sensitive_codes(frame: Any, name: str) -> tuple[Integers, SensitiveKind]:
    column = read_columns(frame, [name]).to_series()
    if not column.dtype.is_numeric():
        return group_rows(column.to_frame()).codes, "category"
    ranks = column.rank("dense").cast(pl.Int64)
    # Ranks count from 1, which leaves 0 for null.
    lowest = 0 if column.null_count() else 1
    return ranks.fill_null(0).to_numpy() - lowest, "number"


def _check_roles(rule: GateRule, quasi: Sequence[str], sensitive: str | None, identifier: str | None) -> None:
    if rule.needs_sensitive and not sensitive:
        raise ConfigError(f"the rule {rule.name!r} needs a sensitive column", hint="Name one, e.g. --sensitive income")
    for role, name in (("sensitive", sensitive), ("the identifier", identifier)):
        if name is not None and name in quasi:
            raise ConfigError(f"column {name!r} is {role} and also a quasi-identifier", hint="Give it one role")
    if sensitive is not None and sensitive == identifier:
        raise ConfigError(f"column {sensitive!r} is sensitive and also the identifier", hint="Give it one role")


def _check_parameters(rule: GateRule, given: dict[Parameter, float | None], l_kind: str) -> None:
    for name, value in given.items():
        if value is None and name in rule.needs:
            raise ConfigError(f"the rule {rule.name!r} needs {name}", hint=f"Add --{name}")
        if value is not None and name not in (*rule.needs, *rule.takes):
            hint = f"Leave it out; this rule takes {', '.join((*rule.needs, *rule.takes))}"
            raise ConfigError(f"the rule {rule.name!r} does not use {name}", hint=hint)
    if l_kind not in get_args(LKind):
        raise ConfigError(f"unknown kind of l {l_kind!r}", hint=nearest(l_kind, get_args(LKind)))
    whole = ("k",) if l_kind == "entropy" else ("k", "l")
    for name in ("k", "l"):
        value = given[name]
        if value is not None and (not math.isfinite(value) or value < 1 or (name in whole and value != int(value))):
            raise ConfigError(f"{name} is {value:g}", hint="Use a whole number from 1 on")
    distance = given["t"]
    if distance is not None and (not math.isfinite(distance) or distance < 0):
        raise ConfigError(f"t is {distance:g}", hint="Use a distance from 0 to 1")
