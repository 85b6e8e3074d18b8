"""Anonymise a table: classes that meet k, l and t, released as intervals, value sets, labels or suppression marks.

| algorithm | classes | cells |
|---|---|---|
| auto      | `lattice` if hierarchies are given, else the best of those without | labels, or intervals and value sets |
| cluster   | look-ahead Mondrian to blocks, k-member clusters inside | intervals and value sets |
| mondrian  | strict or relaxed Mondrian, median or look-ahead cuts | intervals and value sets |
| thesis    | Mondrian as in Saleh (2022) | automatic groups of values by target, else suppression |
| lattice   | best-first walk over the levels of the hierarchies | labels |

With `hierarchies` ("intervals", a registered technique, or a mapping) every algorithm releases labels. Where a rule is
about more than k rows, `auto` and `lattice` move rows between classes while that lowers the loss. The loss that makers
compare is `ncp`, with the columns' weights. There is no randomness: same table, same release.

Guarantee: the released table has been judged by `kohort.anonymity.checker`, which shares no code with what made it; a
rule that does not hold there is an error and nothing is returned. The one exception is `keep_exact="thesis"`, the
unguarded step of the thesis, whose report says `verified: false` where a rule is broken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.algorithms.mondrian import Split
from kohort.anonymity.relational.classes import ClassOptions, FormedClasses, form_classes, leave_rows_out
from kohort.anonymity.relational.keep_exact import split_exact
from kohort.anonymity.relational.problem import CodedTable, Integers, Partition, Problem, code_table
from kohort.anonymity.relational.recode import ColumnCells, release
from kohort.anonymity.relational.rule import BetaKind, LKind, Rule, SensitiveColumns, TKind, require_feasible
from kohort.anonymity.relational.techniques import CutOptions, class_techniques
from kohort.errors import ConfigError, DataError, IntegrityError, nearest
from kohort.tables.frames import Missing, from_native, handle_missing, to_native
from kohort.tables.hierarchy import Hierarchy

__all__ = ["MAX_SET", "Algorithm", "Anonymised", "Report", "anonymise", "k_of_risk"]

MAX_SET = 10
"""Most values that a released set names unless told otherwise."""

# A registered technique is a word too.
Algorithm = Literal["auto", "mondrian", "thesis", "cluster", "lattice"] | str
Hierarchies = Literal["auto", "intervals"] | str | Mapping[str, Hierarchy]
KeepExact = bool | Literal["thesis"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was done and what holds for the result. Figures come from the checker and from `kohort.anonymity.loss`."""

    rows: int
    rows_out: int
    classes: int
    k: int
    l_distinct: int | None
    l_entropy: float | None
    t_emd: float | None
    t_kl: float | None
    km: int | None
    ncp: float
    ncp_released: float
    entropy_loss: float | None
    item_loss: float | None
    suppressed_rows: int
    suppressed_cells: int
    algorithm: str
    verified: bool
    problems: tuple[str, ...]
    seconds: float
    tried: Mapping[str, float] = field(default_factory=dict)
    """Of `auto`: the loss of every algorithm that was tried."""
    notes: tuple[str, ...] = ()
    """What was left undone."""

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class Anonymised:
    """A released table.

    Attributes:
        frame: The released table, in the caller's kind of frame.
        report: What was done and what holds for the result.
        classes: Class of each released row.
        kept: Input row of each released row.
        cells: The released cells by column and class.
        hierarchies: The hierarchies that released labels come from.
    """

    frame: Any
    report: Report
    classes: Integers
    kept: Integers
    cells: tuple[ColumnCells, ...]
    hierarchies: Mapping[str, Hierarchy]


def anonymise(
    frame: Any,
    *,
    quasi: Sequence[str],
    k: int,
    sensitive: Sequence[str] = (),
    target: str | None = None,
    person: str | None = None,
    l: float = 0,  # noqa: E741 - the literature's own letter
    l_kind: LKind = "distinct",
    c: float = 3.0,
    t: float = 0.0,
    t_kind: TKind = "emd",
    alpha: float = 0.0,
    beta: float = 0.0,
    beta_kind: BetaKind = "basic",
    delta: float = 0.0,
    risk: float = 0.0,
    population: int | None = None,
    algorithm: Algorithm = "auto",
    hierarchies: Hierarchies = "auto",
    levels: Mapping[str, int] | None = None,
    keep_exact: KeepExact = True,
    missing: Missing = "category",
    split: Split | None = None,
    relaxed: bool = False,
    dimensions: Sequence[str] | None = None,
    node_budget: int | None = None,
    suppression_limit: float = 0.0,
    balance: float = 0.0,
    weights: Mapping[str, float] | None = None,
    max_set: int | None = MAX_SET,
    jobs: int | None = None,
) -> Anonymised:
    """Generalise the quasi-identifiers of a table until every class meets the rule.

    Args:
        frame: A pandas, polars or pyarrow table.
        quasi: Names of the quasi-identifiers.
        k: Rows of every class.
        sensitive: Names of the sensitive columns, which l and t are about.
        target: Column that entropy loss and automatic hierarchies are about; the first sensitive column when None.
        person: Column that says whom a row is about. Classes then hold at least k persons, and l and t count a person
            once per value. The column itself is left out of the release.
        l: l-diversity; 0 asks for nothing.
        l_kind: Kind of l-diversity.
        c: c of recursive (c, l)-diversity.
        t: t-closeness; 0 asks for nothing.
        t_kind: Distance of t-closeness.
        alpha: Largest share of a sensitive value in a class, (alpha, k)-anonymity; 0 asks for nothing.
        beta: beta-likeness; 0 asks for nothing.
        beta_kind: Kind of beta-likeness.
        delta: delta-disclosure privacy; 0 asks for nothing.
        risk: Largest chance to re-identify a row: 1/k without `population`, and with it k-map, 1/F for a class that F
            persons of the population are estimated to be in; 0 asks for nothing.
        population: Rows of the population that the table is drawn from.
        algorithm: One of the table above, or a registered class technique.
        hierarchies: "auto", "intervals", a registered hierarchy technique, or one hierarchy per quasi-identifier.
        levels: Level of its hierarchy that every row of a column is put on.
        keep_exact: Release exact values where rows of a class agree on them; "thesis" is the unguarded step.
        missing: "category" (null is a value) or "drop" (only complete rows).
        split: Mondrian's choice of the column to cut.
        relaxed: Mondrian's relaxed cuts.
        dimensions: Quasi-identifiers that Mondrian may cut on.
        node_budget: Nodes of the lattice to visit best first.
        suppression_limit: Share of the rows that may be left out. They are those whose suppression saves most.
        balance: What a suppressed row costs, as in ARX: 0 nothing, 0.5 as much as a row of suppressed cells, 1
            everything.
        weights: How much the loss of a quasi-identifier counts; 1 for those that are not named.
        max_set: Most values that a released set may name; a larger one is suppressed. None is any number, but 10 for
            columns with more than 50 values.
        jobs: Threads; all cores when None.

    Returns:
        The released table and its report.

    Raises:
        ConfigError: Options are unknown or do not fit together.
        DataError: The table has no rows or lacks a column, or a hierarchy lacks a value.
        RefusedError: No partition of the table can meet the rule, or none on the given levels.
        IntegrityError: The checker found that the release does not meet the rule.

    Example:
        >>> table = pl.DataFrame({"age": [21, 22, 47, 48], "sex": ["f", "f", "m", "m"]})
        >>> anonymise(table, quasi=["age", "sex"], k=2).report.k
        2
    """
    began = time.perf_counter()
    given, kind = from_native(frame)
    _check_columns(given, quasi, sensitive, target)
    _check_options(algorithm, keep_exact, suppression_limit, balance)
    table = handle_missing(given, given.columns, missing)
    private = SensitiveColumns.of(table, sensitive, persons=_person_codes(table, person, quasi, sensitive, target))
    rule = Rule(
        k=max(k, k_of_risk(risk, population, private.units)), l=l, l_kind=l_kind, c=c, t=t, t_kind=t_kind,
        alpha=alpha, beta=beta, beta_kind=beta_kind, delta=delta,
    )  # fmt: skip
    require_feasible(rule, private)
    coded = code_table(table, quasi, by_value=algorithm == "thesis")
    problem = Problem(coded, private, rule, weights=_weights(weights, coded), max_set=max_set)
    options = ClassOptions(
        algorithm=algorithm,
        hierarchies=hierarchies,
        target=target if target is not None else next(iter(sensitive), None),
        cuts=CutOptions(split=split, relaxed=relaxed, dimensions=dimensions, jobs=jobs),
        levels=levels,
        node_budget=node_budget,
        suppression_limit=suppression_limit,
        finish=_finisher(problem, keep_exact),
        max_set=max_set,
        balance=balance,
    )
    found = form_classes(table, problem, options)
    made, problems = _best_verified(table, problem, options, found, quasi, sensitive, person)
    if problems and keep_exact != "thesis":
        raise IntegrityError(f"the released table does not meet the rule: {'; '.join(problems)}", hint="Report this")
    released = release(table, made.partition, made.cells)
    kept = np.setdiff1d(np.arange(table.height), made.suppressed)
    out = released if not len(made.suppressed) else released[kept]
    report = _report(table, out, kept, made.cells, made.hierarchies, quasi, sensitive, target, person)
    classes = made.partition.labels[kept]
    return Anonymised(
        frame=to_native(out if person is None else out.drop(person), kind),
        report=Report(
            **report,
            suppressed_cells=_suppressed_cells(made.cells, classes),
            algorithm=made.algorithm,
            verified=not problems,
            problems=problems,
            seconds=time.perf_counter() - began,
            tried={one.algorithm: one.loss for one in found} if len(found) > 1 else {},
            notes=made.notes,
        ),
        classes=classes,
        kept=kept,
        cells=made.cells,
        hierarchies=made.hierarchies,
    )


def _best_verified(
    table: pl.DataFrame,
    problem: Problem,
    options: ClassOptions,
    found: Sequence[FormedClasses],
    quasi: Sequence[str],
    sensitive: Sequence[str],
    person: str | None,
) -> tuple[FormedClasses, tuple[str, ...]]:
    """The first of the formed classes that the checker finds nothing wrong with; else the first, and what is wrong.

    Leaving rows out moves the table's own distribution, which t, beta and delta are about: where they then fail, fewer
    rows are left out, and at last nobody.
    """
    budget = int(options.suppression_limit * table.height)
    first: tuple[FormedClasses, tuple[str, ...]] | None = None
    for formed in found:
        for rows in (budget, budget // 2, budget // 4, 0) if budget else (0,):
            made = leave_rows_out(problem, formed, options, rows)
            if len(made.suppressed) > rows:  # these rows were left out by the maker: it has to put them somewhere
                made = form_classes(table, problem, replace(options, suppression_limit=0.0))[0]
            problems = _verify(made, table, quasi, sensitive, problem.rule, person)
            if not problems:
                return made, problems
            first = (made, problems) if first is None else first
    if first is None:
        raise ValueError("no classes were formed")
    return first


def k_of_risk(risk: float, population: int | None, units: int) -> int:
    """The k at which no row is re-identified with a higher chance than `risk`.

    Args:
        risk: The chance; 0 asks for nothing.
        population: Rows of the population that the table is drawn from; None: the attacker knows who is in the table.
        units: Rows of the table, or persons where they are counted.

    Returns:
        The fewest rows of a class: a class of f rows is estimated to stand for f / units x population persons.

    Raises:
        ConfigError: The risk is not a share, or the population is smaller than the table.

    Example:
        >>> k_of_risk(0.05, None, 1000), k_of_risk(0.05, 5000, 1000)
        (20, 4)
    """
    if not 0.0 <= risk <= 1.0:
        raise ConfigError(f"the risk is {risk:g}", hint="Use a chance such as 0.05")
    if population is not None and population < units:
        raise ConfigError("the population is smaller than the table", hint="It holds at least the rows of the table")
    if risk == 0.0:
        return 1
    share = 1.0 if population is None else units / population
    return max(math.ceil(share / risk - 1e-9), 1)


def _weights(weights: Mapping[str, float] | None, table: CodedTable) -> tuple[float, ...]:
    names = [column.name for column in table.columns]
    for name, weight in (weights or {}).items():
        if name not in names:
            raise ConfigError(
                f"a weight is given for {name!r}, which is no quasi-identifier", hint=nearest(name, names)
            )
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"the weight of {name!r} is {weight:g}", hint="Use a number above 0, such as 3")
    return tuple(float(weights.get(name, 1.0)) for name in names) if weights else ()


def _check_columns(frame: pl.DataFrame, quasi: Sequence[str], sensitive: Sequence[str], target: str | None) -> None:
    for names, what in ((quasi, "quasi"), (sensitive, "sensitive")):
        if isinstance(names, str):
            raise ConfigError(f"{what} is one string", hint="Give a list of names")
        _require(frame, names)
    _require(frame, () if target is None else (target,))
    for name in quasi:
        if name == target or name in sensitive:
            other = "the target" if name == target else "sensitive"
            hint = "What is generalised cannot be what is protected or predicted: choose one of the two"
            raise ConfigError(f"quasi-identifier {name!r} is also {other}", hint=hint)


def _person_codes(
    frame: pl.DataFrame, person: str | None, quasi: Sequence[str], sensitive: Sequence[str], target: str | None
) -> Integers | None:
    """A number for whom each row is about; None where rows are counted.

    Raises:
        ConfigError: The column has another role too.
        DataError: The table lacks the column, or some row does not say.
    """
    if person is None:
        return None
    _require(frame, (person,))
    if person in (*quasi, *sensitive, target):
        raise ConfigError(f"column {person!r} says whom a row is about and has another role", hint="Give it one role")
    silent = frame[person].null_count()
    if silent:
        hint = "Fill the column in, or drop these rows: nobody can be counted in them"
        raise DataError(f"{silent:,} rows do not say in column {person!r} whom they are about", hint=hint)
    return (frame[person].rank("dense") - 1).to_numpy().astype(np.int64)


def _require(frame: pl.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame.columns:
            raise DataError(f"the table has no column {name!r}", hint=nearest(name, frame.columns))


def _check_options(algorithm: str, keep_exact: KeepExact, suppression_limit: float, balance: float) -> None:
    known = ("auto", "lattice", *class_techniques())
    if algorithm not in known:
        raise ConfigError(f"unknown algorithm {algorithm!r}", hint=nearest(algorithm, known))
    if keep_exact not in (True, False, "thesis"):
        raise ConfigError(f"unknown way to keep exact rows {keep_exact!r}", hint='Use True, False or "thesis"')
    if not 0.0 <= suppression_limit <= 1.0:
        raise ConfigError(f"the suppression limit is {suppression_limit:g}", hint="Use a share between 0 and 1")
    if not 0.0 <= balance <= 1.0:
        raise ConfigError(f"the balance is {balance:g}", hint="Use 0 (suppress freely) to 1 (only what must be)")


def _finisher(problem: Problem, keep_exact: KeepExact) -> Callable[[Partition], Partition]:
    if keep_exact is False:
        return lambda partition: partition
    return lambda partition: split_exact(problem, partition, guarded=keep_exact != "thesis")


def _verify(
    made: FormedClasses,
    table: pl.DataFrame,
    quasi: Sequence[str],
    sensitive: Sequence[str],
    rule: Rule,
    person: str | None,
) -> tuple[str, ...]:
    """What the checker finds wrong with the table as it would be released."""
    from kohort.anonymity.checker.measures import unmet

    released = release(table, made.partition, made.cells)
    out = released if not len(made.suppressed) else released[np.setdiff1d(np.arange(table.height), made.suppressed)]
    asked: dict[str, Any] = {name: bound for name in ("alpha", "beta", "delta") if (bound := getattr(rule, name)) > 0}
    if rule.beta > 0:
        asked |= {"beta_kind": rule.beta_kind}
    if rule.l > 0:
        asked |= {"l": rule.l, "l_kind": rule.l_kind, "c": rule.c if rule.l_kind == "recursive" else None}
    if rule.t > 0:
        asked |= {"t": rule.t, "t_kind": rule.t_kind}
    return unmet(out, quasi=quasi, sensitive=sensitive if asked else (), k=rule.k, persons=person, **asked)


def _report(
    before: pl.DataFrame,
    after: pl.DataFrame,
    kept: Integers,
    cells: Sequence[ColumnCells],
    hierarchies: Mapping[str, Hierarchy],
    quasi: Sequence[str],
    sensitive: Sequence[str],
    target: str | None,
    person: str | None,
) -> dict[str, Any]:
    from kohort.anonymity.checker.measures import measure
    from kohort.anonymity.loss import entropy_loss, ncp

    found = measure(after, quasi=quasi, sensitive=sensitive, persons=person)
    names = [one.name for one in cells]
    about = target if target is not None else next(iter(sensitive), None)
    lost = None if about is None else entropy_loss(before[kept], after, quasi=names, target=about)
    loss, gone = ncp(before, after, quasi=names, kept=kept, hierarchies=hierarchies), before.height - after.height
    return {
        "rows": before.height,
        "rows_out": after.height,
        "classes": found.classes,
        "k": found.k,
        "l_distinct": found.l_distinct,
        "l_entropy": found.l_entropy,
        "t_emd": found.t_emd,
        "t_kl": found.t_kl,
        "km": None,
        "ncp": loss,
        "ncp_released": max((loss * before.height - gone) / after.height, 0.0),
        "entropy_loss": lost,
        "item_loss": None,
        "suppressed_rows": gone,
    }


def _suppressed_cells(cells: Sequence[ColumnCells], classes: Integers) -> int:
    sizes: NDArray[np.int64] = np.bincount(classes)
    return int(sum(sizes[: len(one.suppressed)][one.suppressed[: len(sizes)]].sum() for one in cells))
