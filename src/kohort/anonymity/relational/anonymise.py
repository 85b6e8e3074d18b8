"""Anonymise a table: classes that meet k, l and t, released as intervals, value sets, labels or suppression marks.

| algorithm | classes | cells |
|---|---|---|
| auto      | `lattice` if hierarchies are given, else the best of those that fit (`makers`) | as the best one's |
| exact-cluster | rows that agree as they are, the others by `cluster` | intervals and value sets |
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
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import polars as pl

from kohort.anonymity.relational.algorithms.mondrian import Split
from kohort.anonymity.relational.classes import ClassOptions, FormedClasses, form_classes, leave_rows_out
from kohort.anonymity.relational.codes import categories
from kohort.anonymity.relational.coding import Coding, coded_numbers
from kohort.anonymity.relational.joining import joined_until_met
from kohort.anonymity.relational.keep_exact import split_exact
from kohort.anonymity.relational.other_columns import released_as_they_are
from kohort.anonymity.relational.population import PopulationRule, k_of_risk, nothing_shown, sizes_to_try
from kohort.anonymity.relational.problem import CodedTable, Integers, Partition, Problem, code_table
from kohort.anonymity.relational.recode import ColumnCells
from kohort.anonymity.relational.rule import BetaKind, LKind, Rule, SensitiveColumns, TKind, require_feasible
from kohort.anonymity.relational.techniques import CutOptions, class_techniques
from kohort.anonymity.relational.verify import ReleaseVerdict, Report, figures, suppressed_cells, verify
from kohort.errors import ConfigError, DataError, IntegrityError, nearest
from kohort.tables.frames import FrameKind, Missing, complete_rows, from_native, handle_missing, like_input
from kohort.tables.hierarchy import Hierarchy

__all__ = [
    "MAX_SET",
    "Algorithm",
    "Anonymised",
    "Hierarchies",
    "Report",
    "anonymise",
    "best_verified",
    "check_columns",
    "check_options",
    "column_weights",
    "finisher",
    "person_codes",
]

MAX_SET = 10
"""Most values that a released set names unless told otherwise."""

# A registered technique is a word too.
Algorithm = Literal["auto", "mondrian", "thesis", "cluster", "lattice"] | str
Hierarchies = Literal["auto", "intervals"] | str | Mapping[str, Hierarchy]
KeepExact = bool | Literal["thesis"]


class _Judgement(Protocol):
    @property
    def problems(self) -> tuple[str, ...]: ...


Judged = TypeVar("Judged", bound=_Judgement)


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
    population: Any = None,
    presence: tuple[float, float] | None = None,
    rounding: Mapping[str, float] | None = None,
    top: Mapping[str, float] | None = None,
    bottom: Mapping[str, float] | None = None,
    means: Sequence[str] = (),
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
    keep: Sequence[str] | None = (),
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
            persons of the population may be in; 0 asks for nothing.
        population: The population that the table is drawn from: a table with the quasi-identifiers as they are, one row
            per person, in which F is counted; or its number of rows, from which F is estimated.
        presence: delta-presence: the least and the largest chance that a person of the population, then a table, is in
            the release.
        rounding: Public step that the numbers of a column are rounded to, by its name.
        top: Public limit above which the numbers of a column become the limit.
        bottom: Public limit below which the numbers of a column become the limit.
        means: Quasi-identifiers that are released as class means instead of intervals (microaggregation).
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
        keep: Columns that are released as they are although they look like identifiers. None asks nothing about the
            columns: they have been judged before.

    Returns:
        The released table and its report.

    Raises:
        ConfigError: Options are unknown or do not fit together, or a column without a role looks like an identifier.
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
    check_columns(given.columns, quasi, sensitive, target)
    check_options(algorithm, keep_exact, suppression_limit, balance)
    source = handle_missing(given, given.columns, missing)
    coding = Coding(rounding=rounding or {}, top=top or {}, bottom=bottom or {}, means=means)
    coding.check(source, quasi)
    table, coded_notes = coded_numbers(source, coding)
    notes = (*coded_notes, *released_as_they_are(given, [*quasi, *sensitive, target, person], keep))
    texts = [categories(table[name]) for name in dict.fromkeys((*quasi, *sensitive, *([target] if target else [])))]
    categorised = table.with_columns(texts)
    persons = person_codes(table, person, quasi, sensitive, target)
    private = SensitiveColumns.of(categorised, sensitive, persons=persons)
    people = _population(population, risk, presence, coding)
    people.check(private.units)
    size = population if isinstance(population, int) else None
    rule = Rule(
        k=k if people.frame is not None else max(k, k_of_risk(risk, size, private.units)), l=l, l_kind=l_kind, c=c,
        t=t, t_kind=t_kind, alpha=alpha, beta=beta, beta_kind=beta_kind, delta=delta,
    )  # fmt: skip
    require_feasible(rule, private)
    coded = code_table(categorised, quasi, by_value=algorithm == "thesis")
    problem = Problem(coded, private, rule, weights=column_weights(weights, coded), max_set=max_set)
    options = ClassOptions(
        algorithm=algorithm,
        hierarchies=hierarchies,
        target=target if target is not None else next(iter(sensitive), None),
        cuts=CutOptions(split=split, relaxed=relaxed, dimensions=dimensions, jobs=jobs),
        levels=levels,
        node_budget=node_budget,
        suppression_limit=suppression_limit,
        finish=finisher(problem, keep_exact),
        max_set=max_set,
        balance=balance,
        means=tuple(means),
    )

    def judge(made: FormedClasses) -> ReleaseVerdict:
        return verify(made, categorised, quasi, sensitive, rule, person, people)

    made, verdict, tried = _first_verified(table, problem, options, people, judge, keep_exact, person)
    out, kept, problems = verdict.frame, verdict.kept, verdict.problems
    if problems and keep_exact != "thesis":
        raise IntegrityError(f"the released table does not meet the rule: {'; '.join(problems)}", hint="Report this")
    before = source.with_columns(one for one in texts if one.dtype == pl.Categorical)
    report = figures(before, verdict, made.cells, made.hierarchies, sensitive, target)
    classes = made.partition.labels[kept]
    return Anonymised(
        frame=_as_given(out if person is None else out.drop(person), frame, kind, table, given, kept, made, coding),
        report=Report(
            **report,
            suppressed_cells=suppressed_cells(made.cells, np.bincount(classes)),
            algorithm=made.algorithm,
            verified=not problems,
            problems=problems,
            seconds=time.perf_counter() - began,
            tried=tried,
            notes=(*notes, *made.notes),
        ),
        classes=classes,
        kept=kept,
        cells=made.cells,
        hierarchies=made.hierarchies,
    )


def _as_given(
    out: pl.DataFrame,
    frame: Any,
    kind: FrameKind,
    table: pl.DataFrame,
    given: pl.DataFrame,
    kept: Integers,
    made: FormedClasses,
    coding: Coding,
) -> Any:
    """The released rows in the caller's kind of frame; what was not touched is what went in."""
    changed = {cells.name for cells in made.cells if cells.generalised} | set(coding.columns)
    rows = kept if table.height == given.height else complete_rows(given)[kept]
    return like_input(out, frame, kind, rows, changed)


def _population(population: Any, risk: float, presence: tuple[float, float] | None, coding: Coding) -> PopulationRule:
    """The rule about a table of the population; an empty one where its size is given, or nothing."""
    if population is None or isinstance(population, int):
        return PopulationRule(presence=presence)
    if coding.means:
        hint = "Leave the means out: nobody could count whom a mean stands for"
        raise ConfigError("a population is given and columns are released as means", hint=hint)
    known, _ = from_native(population)
    limits = coding.within(known.columns)
    return PopulationRule(frame=coded_numbers(known, limits)[0], k_map=k_of_risk(risk, None, 1), presence=presence)


def _first_verified(
    table: pl.DataFrame,
    problem: Problem,
    options: ClassOptions,
    people: PopulationRule,
    judge: Callable[[FormedClasses], ReleaseVerdict],
    keep_exact: KeepExact,
    person: str | None,
) -> tuple[FormedClasses, ReleaseVerdict, dict[str, float]]:
    """The first classes that hold, from the smallest on; what is wrong where none does; and what `auto` tried.

    Beside a population, smaller classes that fail are joined where they do, and the least loss is kept.
    """
    held: list[tuple[FormedClasses, ReleaseVerdict, dict[str, float]]] = []
    failed: list[tuple[Problem, ClassOptions, FormedClasses, dict[str, float]]] = []
    for larger in sizes_to_try(problem, people):
        sized = replace(options, finish=finisher(larger, keep_exact))
        found = form_classes(table, larger, sized)
        made, verdict = best_verified(table, larger, sized, found, judge)
        tried = {one.algorithm: one.loss for one in found} if len(found) > 1 else {}
        if not verdict.problems or people.frame is None:
            held.append((made, verdict, tried))
            break
        failed = [*failed[:1], (larger, sized, made, tried)]
    for larger, sized, made, tried in failed:  # the smallest classes, and the largest that fail
        joined = joined_until_met(larger, sized, made, people, judge, person)
        held += [] if joined is None else [(*joined, tried)]
    if held:
        return min(held, key=lambda one: one[0].loss) if len(held) > 1 else held[0]
    made = nothing_shown(problem)
    return made, judge(made), {}


def best_verified(
    table: pl.DataFrame,
    problem: Problem,
    options: ClassOptions,
    found: Sequence[FormedClasses],
    judge: Callable[[FormedClasses], Judged],
) -> tuple[FormedClasses, Judged]:
    """The first of the formed classes that the checker finds nothing wrong with; else the first, and what is wrong.

    Leaving rows out moves the table's own distribution, which t, beta and delta are about: where they then fail, fewer
    rows are left out, and at last nobody.

    Args:
        table: The table, or its values where hierarchies are given.
        problem: Its coded quasi-identifiers and the rule.
        options: How classes were formed.
        found: The classes.
        judge: Asks the checker about classes.

    Returns:
        The classes, and what the checker says of them.

    Raises:
        ValueError: No classes are given.
    """
    budget = int(options.suppression_limit * problem.table.rows)
    first: tuple[FormedClasses, Judged] | None = None
    for formed in found:
        for rows in (budget, budget // 2, budget // 4, 0) if budget else (0,):
            made = leave_rows_out(problem, formed, options, rows)
            if len(made.suppressed) > rows:  # these rows were left out by the maker: it has to put them somewhere
                made = form_classes(table, problem, replace(options, suppression_limit=0.0))[0]
            verdict = judge(made)
            if not verdict.problems:
                return made, verdict
            first = (made, verdict) if first is None else first
    if first is None:
        raise ValueError("no classes were formed")
    return first


def column_weights(weights: Mapping[str, float] | None, table: CodedTable) -> tuple[float, ...]:
    """How much the loss of each quasi-identifier counts.

    Args:
        weights: Weight by column, above 0; 1 for a column that is not named. None or empty: all count alike.
        table: The coded quasi-identifiers.

    Returns:
        One weight per column, in the order of the table; empty where all count alike.

    Raises:
        ConfigError: A weight is not above 0, or is given for another column.
    """
    names = [column.name for column in table.columns]
    for name, weight in (weights or {}).items():
        if name not in names:
            raise ConfigError(
                f"a weight is given for {name!r}, which is no quasi-identifier", hint=nearest(name, names)
            )
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"the weight of {name!r} is {weight:g}", hint="Use a number above 0, such as 3")
    return tuple(float(weights.get(name, 1.0)) for name in names) if weights else ()


def check_columns(columns: Sequence[str], quasi: Sequence[str], sensitive: Sequence[str], target: str | None) -> None:
    """Refuse roles that contradict one another, or that no column can have.

    Args:
        columns: The columns of the table.
        quasi: The quasi-identifiers.
        sensitive: The sensitive columns.
        target: The column to predict.

    Raises:
        ConfigError: Names are given as one string, or a quasi-identifier has another role too.
        DataError: The table lacks a column.
    """
    for names, what in ((quasi, "quasi"), (sensitive, "sensitive")):
        if isinstance(names, str):
            raise ConfigError(f"{what} is one string", hint="Give a list of names")
        _require(columns, names)
    _require(columns, () if target is None else (target,))
    for name in quasi:
        if name == target or name in sensitive:
            other = "the target" if name == target else "sensitive"
            hint = "What is generalised cannot be what is protected or predicted: choose one of the two"
            raise ConfigError(f"quasi-identifier {name!r} is also {other}", hint=hint)


def person_codes(
    frame: pl.DataFrame, person: str | None, quasi: Sequence[str], sensitive: Sequence[str], target: str | None
) -> Integers | None:
    """A number for whom each row is about.

    Args:
        frame: The table.
        person: The column that says whom a row is about; None: rows are counted.
        quasi: The quasi-identifiers; `person` must not be one.
        sensitive: The sensitive columns; `person` must not be one.
        target: The column to predict, or None; `person` must not be it.

    Returns:
        The number of each row's person, from 0 on; None where rows are counted.

    Raises:
        ConfigError: The column has another role too.
        DataError: The table lacks the column, or some row does not say.
    """
    if person is None:
        return None
    _require(frame.columns, (person,))
    if person in (*quasi, *sensitive, target):
        raise ConfigError(f"column {person!r} says whom a row is about and has another role", hint="Give it one role")
    silent = frame[person].null_count()
    if silent:
        hint = "Fill the column in, or drop these rows: nobody can be counted in them"
        raise DataError(f"{silent:,} rows do not say in column {person!r} whom they are about", hint=hint)
    return (frame[person].rank("dense") - 1).to_numpy().astype(np.int64)


def _require(columns: Sequence[str], names: Sequence[str]) -> None:
    for name in names:
        if name not in columns:
            raise DataError(f"the table has no column {name!r}", hint=nearest(name, columns))


def check_options(algorithm: str, keep_exact: KeepExact, suppression_limit: float, balance: float) -> None:
    """Refuse words that are unknown and shares that are none.

    Args:
        algorithm: "auto", "lattice" or the name of a class technique.
        keep_exact: True, False or "thesis".
        suppression_limit: Largest share of the rows that may be suppressed, from 0 to 1.
        balance: What a suppressed row costs beside a generalised one, from 0 to 1.

    Raises:
        ConfigError: An option is wrong.
    """
    known = ("auto", "lattice", *class_techniques())
    if algorithm not in known:
        raise ConfigError(f"unknown algorithm {algorithm!r}", hint=nearest(algorithm, known))
    if keep_exact not in (True, False, "thesis"):
        raise ConfigError(f"unknown way to keep exact rows {keep_exact!r}", hint='Use True, False or "thesis"')
    if not 0.0 <= suppression_limit <= 1.0:
        raise ConfigError(f"the suppression limit is {suppression_limit:g}", hint="Use a share between 0 and 1")
    if not 0.0 <= balance <= 1.0:
        raise ConfigError(f"the balance is {balance:g}", hint="Use 0 (suppress freely) to 1 (only what must be)")


def finisher(problem: Problem, keep_exact: KeepExact) -> Callable[[Partition], Partition]:
    """The last step on finished classes, as `keep_exact` asks.

    Args:
        problem: The coded table and the rule.
        keep_exact: Whether rows that agree keep their values; "thesis" splits them off even where the remainder then
            breaks the rule.

    Returns:
        The step, from a partition to a partition; with False it changes nothing.
    """
    if keep_exact is False:
        return lambda partition: partition
    return lambda partition: split_exact(problem, partition, guarded=keep_exact != "thesis")
