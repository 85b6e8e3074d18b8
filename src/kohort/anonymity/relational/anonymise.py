"""Anonymise a table: classes that meet k, l and t, released as intervals, value sets, labels or suppression marks.

| algorithm | classes | cells |
|---|---|---|
| auto      | `lattice` if hierarchies are given, else `cluster` | labels, or intervals and value sets |
| cluster   | look-ahead Mondrian to blocks, k-member clusters inside | intervals and value sets |
| mondrian  | strict or relaxed Mondrian, median or look-ahead cuts | intervals and value sets |
| thesis    | Mondrian as in Saleh (2022) | automatic groups of values by target, else suppression |
| lattice   | best-first walk over the levels of the hierarchies | labels |

With `hierarchies` ("intervals", a registered technique, or a mapping) every algorithm releases labels. There is no
randomness: same table, same release.

Guarantee: the released table has been judged by `kohort.anonymity.checker`, which shares no code with what made it; a
rule that does not hold there is an error and nothing is returned. The one exception is `keep_exact="thesis"`, the
unguarded step of the thesis, whose report says `verified: false` where a rule is broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.relational.algorithms.mondrian import Split
from kohort.anonymity.relational.classes import ClassOptions, form_classes
from kohort.anonymity.relational.keep_exact import split_exact
from kohort.anonymity.relational.problem import Integers, Partition, Problem, code_table
from kohort.anonymity.relational.recode import ColumnCells, release
from kohort.anonymity.relational.rule import LKind, Rule, SensitiveColumns, TKind, require_feasible
from kohort.anonymity.relational.techniques import CutOptions, class_techniques
from kohort.errors import ConfigError, DataError, IntegrityError, nearest
from kohort.tables.frames import Missing, from_native, handle_missing, to_native
from kohort.tables.hierarchy import Hierarchy

__all__ = ["Algorithm", "Anonymised", "Report", "anonymise"]

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
    entropy_loss: float | None
    item_loss: float | None
    suppressed_rows: int
    suppressed_cells: int
    algorithm: str
    verified: bool
    problems: tuple[str, ...]
    seconds: float

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
    max_set: int | None = None,
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
        algorithm: One of the table above, or a registered class technique.
        hierarchies: "auto", "intervals", a registered hierarchy technique, or one hierarchy per quasi-identifier.
        levels: Level of its hierarchy that every row of a column is put on.
        keep_exact: Release exact values where rows of a class agree on them; "thesis" is the unguarded step.
        missing: "category" (null is a value) or "drop" (only complete rows).
        split: Mondrian's choice of the column to cut.
        relaxed: Mondrian's relaxed cuts.
        dimensions: Quasi-identifiers that Mondrian may cut on.
        node_budget: Nodes of the lattice to visit best first.
        suppression_limit: Share of the rows that the lattice may leave out, if it must.
        max_set: Most values that a released set may name; a larger one is suppressed. None is 10 for columns with more
            than 50 values, and any number for the others.
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
    _check_options(algorithm, keep_exact, suppression_limit)
    table = handle_missing(given, given.columns, missing)
    rule = Rule(k=k, l=l, l_kind=l_kind, c=c, t=t, t_kind=t_kind)
    private = SensitiveColumns.of(table, sensitive, persons=_person_codes(table, person, quasi, sensitive, target))
    require_feasible(rule, private)
    coded = code_table(table, quasi, by_value=algorithm == "thesis")
    problem = Problem(coded, private, rule)
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
    )
    made = form_classes(table, problem, options)
    problems = _verify(release(table, made.partition, made.cells), made.suppressed, quasi, sensitive, rule, person)
    if problems and len(made.suppressed):
        # Leaving rows out moves the table's own distribution; where t then fails, nobody is left out.
        made = form_classes(table, problem, options.without_suppression())
        problems = _verify(release(table, made.partition, made.cells), made.suppressed, quasi, sensitive, rule, person)
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
        ),
        classes=classes,
        kept=kept,
        cells=made.cells,
        hierarchies=made.hierarchies,
    )


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


def _check_options(algorithm: str, keep_exact: KeepExact, suppression_limit: float) -> None:
    known = ("auto", "lattice", *class_techniques())
    if algorithm not in known:
        raise ConfigError(f"unknown algorithm {algorithm!r}", hint=nearest(algorithm, known))
    if keep_exact not in (True, False, "thesis"):
        raise ConfigError(f"unknown way to keep exact rows {keep_exact!r}", hint='Use True, False or "thesis"')
    if not 0.0 <= suppression_limit <= 1.0:
        raise ConfigError(f"the suppression limit is {suppression_limit:g}", hint="Use a share between 0 and 1")


def _finisher(problem: Problem, keep_exact: KeepExact) -> Callable[[Partition], Partition]:
    if keep_exact is False:
        return lambda partition: partition
    return lambda partition: split_exact(problem, partition, guarded=keep_exact != "thesis")


def _verify(
    released: pl.DataFrame,
    suppressed: Integers,
    quasi: Sequence[str],
    sensitive: Sequence[str],
    rule: Rule,
    person: str | None,
) -> tuple[str, ...]:
    """What the checker finds wrong with the released table."""
    from kohort.anonymity.checker.measures import unmet

    out = released if not len(suppressed) else released[np.setdiff1d(np.arange(released.height), suppressed)]
    asked: dict[str, Any] = {}
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
        "ncp": ncp(before, after, quasi=names, kept=kept, hierarchies=hierarchies),
        "entropy_loss": lost,
        "item_loss": None,
        "suppressed_rows": before.height - after.height,
    }


def _suppressed_cells(cells: Sequence[ColumnCells], classes: Integers) -> int:
    sizes: NDArray[np.int64] = np.bincount(classes)
    return int(sum(sizes[: len(one.suppressed)][one.suppressed[: len(sizes)]].sum() for one in cells))
