"""Anonymise a Parquet table larger than memory: read in parts, written in parts, judged as it is written.

What makers look at is held as codes of two or four bytes, the columns one after the other; other columns are read and
written part by part. Where a rule asks for k rows alone, rows that k others equal are not held at all
(`distinct_combinations`).

Guarantees: the released file has the cells that `anonymise` gives the table where it is held. It was judged by
`kohort.anonymity.checker` as a file, in parts, before it got its name; a rule that does not hold there is an error, and
there is no file. The file is whole or absent; what lies beside it until then is what would be released, and goes in any
case.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.measures import Anonymity, judged
from kohort.anonymity.loss import ncp_and_entropy
from kohort.anonymity.relational.anonymise import (
    MAX_SET,
    Hierarchies,
    Report,
    best_verified,
    check_columns,
    check_options,
    column_weights,
    finisher,
    person_codes,
)
from kohort.anonymity.relational.classes import ClassOptions, FormedClasses, form_classes
from kohort.anonymity.relational.codes import ranked
from kohort.anonymity.relational.distinct_combinations import (
    classes_of_combinations,
    count_combinations,
    may_count_combinations,
)
from kohort.anonymity.relational.hierarchy_builders import LATTICE_RHOS, automatic_hierarchy, data_independent
from kohort.anonymity.relational.parted import LEFT_OUT, Kinds, PartedTable, RowClasses
from kohort.anonymity.relational.population import k_of_risk
from kohort.anonymity.relational.problem import CodedTable, Integers, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns, require_feasible
from kohort.anonymity.relational.techniques import CutOptions
from kohort.anonymity.relational.verify import asked_of, report_figures, suppressed_cells
from kohort.errors import ConfigError, IntegrityError
from kohort.files import disk_errors, scratch_folder
from kohort.tables.frames import Missing
from kohort.tables.hierarchy import Hierarchy
from kohort.tables.memory import require_memory
from kohort.tables.parts import free_name, sort_file, write_parts

__all__ = ["AnonymisedFile", "anonymise_in_parts", "can_be_in_parts"]

BYTES_A_ROW = 40
"""Bytes that makers take for each row at least, beside its codes: its place, its class, and room to sort."""
BYTES_UNHELD = 12
"""Bytes for each row that is not held: its combination and its class."""
HELD = "Give fewer rows, or more memory; --k alone, without --l, --t, --person and --suppression, takes least"


@dataclass(frozen=True, kw_only=True)
class AnonymisedFile:
    """A table that was released to a file.

    Attributes:
        report: What was done and what holds for the result.
        hierarchies: The hierarchies that released labels come from.
    """

    report: Report
    hierarchies: Mapping[str, Hierarchy]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Written:
    """A release as it was written and judged."""

    rows: RowClasses
    found: Anonymity
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Roles:
    """What the columns are; `about` is the target of entropy loss and automatic hierarchies."""

    quasi: tuple[str, ...]
    sensitive: tuple[str, ...]
    target: str | None
    person: str | None

    @property
    def about(self) -> str | None:
        return self.target if self.target is not None else next(iter(self.sensitive), None)


def can_be_in_parts(*, algorithm: str, hierarchies: Hierarchies, keep_exact: bool | str) -> bool:
    """Whether a release by these options may be made in parts: they ask nothing of the table as a whole.

    Args:
        algorithm: What forms the classes.
        hierarchies: What labels come from.
        keep_exact: Whether exact values are released where rows agree.

    Returns:
        False for the algorithm and the unguarded step of the thesis, and for techniques that others registered.
    """
    known = not isinstance(hierarchies, str) or hierarchies in ("auto", "intervals")
    return known and algorithm != "thesis" and keep_exact != "thesis"


def anonymise_in_parts(
    table: pl.LazyFrame,
    out: Path,
    *,
    quasi: Sequence[str],
    k: int,
    sensitive: Sequence[str] = (),
    target: str | None = None,
    person: str | None = None,
    risk: float = 0.0,
    population: int | None = None,
    algorithm: str = "auto",
    hierarchies: Hierarchies = "auto",
    levels: Mapping[str, int] | None = None,
    keep_exact: bool = True,
    missing: Missing = "category",
    suppression_limit: float = 0.0,
    balance: float = 0.0,
    weights: Mapping[str, float] | None = None,
    max_set: int | None = MAX_SET,
    jobs: int | None = None,
    in_value_order: bool = False,
    **rule: Any,
) -> AnonymisedFile:
    """Generalise the quasi-identifiers of a table until every class meets the rule, and write it.

    Args:
        table: A scanned Parquet file: the columns to release, and the person's.
        out: The Parquet file to write; it is replaced.
        quasi: As in `kohort.anonymity.relational.anonymise.anonymise`, and so the arguments below.
        k: Rows of every class.
        sensitive: Names of the sensitive columns.
        target: Column that entropy loss and automatic hierarchies are about.
        person: Column that says whom a row is about; it is not released.
        risk: Largest chance to re-identify a row.
        population: Rows of the population that the table is drawn from.
        algorithm: What forms the classes; `can_be_in_parts` says which may be asked for.
        hierarchies: What labels come from.
        levels: Level of its hierarchy that every row of a column is put on.
        keep_exact: Release exact values where rows of a class agree on them.
        missing: "category" (null is a value) or "drop" (only complete rows).
        suppression_limit: Share of the rows that may be left out.
        balance: What a suppressed row costs.
        weights: How much the loss of a quasi-identifier counts.
        max_set: Most values that a released set may name.
        jobs: Threads; all cores when None.
        in_value_order: Whether rows are written in the order of their values instead of the table's.
        **rule: l, l_kind, c, t, t_kind, alpha, beta, beta_kind and delta of `anonymise`.

    Returns:
        The report, and the hierarchies of released labels.

    Raises:
        ConfigError: Options are unknown or do not fit together, or the file cannot be written.
        DataError: The table lacks a column, has no complete row, or a hierarchy lacks a value.
        RefusedError: No partition of the table can meet the rule, or none on the given levels.
        ResourceError: Memory is too little for the codes of the table, or the disk is full.
        IntegrityError: The checker found that the release does not meet the rule.
    """
    began = time.perf_counter()
    if not can_be_in_parts(algorithm=algorithm, hierarchies=hierarchies, keep_exact=keep_exact):
        raise ConfigError("these options need the table as a whole", hint="Use anonymise")
    check_columns(table.collect_schema().names(), quasi, sensitive, target)
    check_options(algorithm, keep_exact, suppression_limit, balance)
    roles = _Roles(quasi=tuple(dict.fromkeys(quasi)), sensitive=tuple(sensitive), target=target, person=person)
    rows = PartedTable.of(table, missing)
    columns = [name for name in table.collect_schema().names() if name != person]
    with disk_errors(out), scratch_folder(out) as folder:
        file = folder / "released"
        writer = _Writer(rows=rows, columns=columns, file=file, roles=roles)
        asked = _Asked(
            k=k, risk=risk, population=population, rule=rule, algorithm=algorithm, hierarchies=hierarchies,
            levels=levels, keep_exact=keep_exact, suppression_limit=suppression_limit, balance=balance,
            weights=weights, max_set=max_set, jobs=jobs,
        )  # fmt: skip
        written, tried = _released(rows, roles, asked, writer)
        if written.problems:
            listed = "; ".join(written.problems)
            raise IntegrityError(f"the released table does not meet the rule: {listed}", hint="Report this")
        report = _report(written, rows.rows, roles, tried, began)
        if in_value_order:
            sort_file(file, folder / "sorted")
            file = folder / "sorted"
        file.chmod(0o644)
        file.replace(out)
    return AnonymisedFile(report=report, hierarchies=written.rows.hierarchies)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The options of a release."""

    k: int
    risk: float
    population: int | None
    rule: Mapping[str, Any]
    algorithm: str
    hierarchies: Hierarchies
    levels: Mapping[str, int] | None
    keep_exact: bool
    suppression_limit: float
    balance: float
    weights: Mapping[str, float] | None
    max_set: int | None
    jobs: int | None

    def rule_for(self, units: int) -> Rule:
        """The rule for so many rows or persons."""
        return Rule(k=max(self.k, k_of_risk(self.risk, self.population, units)), **self.rule)

    def labelled(self) -> bool:
        """Whether labels of hierarchies are released."""
        return self.hierarchies != "auto" or self.levels is not None or self.algorithm == "lattice"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Writer:
    """Writes a release and lets the checker judge the file."""

    rows: PartedTable
    columns: Sequence[str]
    file: Path
    roles: _Roles

    def judge(self, made: RowClasses, rule: Rule, persons: Integers | None) -> _Written:
        """Write a release, and judge it as it was written; the persons of its rows stand beside it."""
        schema = made.schema(self.rows, self.columns)
        write_parts(lambda: made.released(self.rows, self.columns), schema, self.file)
        table, who = pl.scan_parquet(self.file, glob=False), None
        if persons is not None:
            who = free_name("person", self.columns)
            beside = pl.DataFrame({who: persons[made.labels != LEFT_OUT].astype(np.int32)})
            table = pl.concat([table, beside.lazy()], how="horizontal")
        found, problems = judged(
            table, quasi=self.roles.quasi, sensitive=self.roles.sensitive, persons=who, **asked_of(rule)
        )
        return _Written(rows=made, found=found, problems=problems)


def _released(rows: PartedTable, roles: _Roles, asked: _Asked, writer: _Writer) -> tuple[_Written, dict[str, float]]:
    """What was written, and the loss of every algorithm that `auto` tried."""
    if roles.person is None:
        rule = asked.rule_for(rows.rows)
        made = _by_combinations(rows, roles, asked, rule)
        if made is not None:
            return writer.judge(made, rule, None), {}
    quasi, persons, private, rule = _held(rows, roles, asked)
    require_feasible(rule, private)
    problem = Problem(quasi, private, rule, weights=column_weights(asked.weights, quasi), max_set=asked.max_set)
    options = ClassOptions(
        algorithm=asked.algorithm,
        hierarchies=_hierarchies(rows, quasi, roles, asked),
        target=roles.about,
        cuts=CutOptions(jobs=asked.jobs),
        levels=asked.levels,
        node_budget=None,
        suppression_limit=asked.suppression_limit,
        finish=finisher(problem, asked.keep_exact),
        max_set=asked.max_set,
        balance=asked.balance,
    )
    values = _values(quasi)
    found = form_classes(values, problem, options)

    def judge(made: FormedClasses) -> _Written:
        return writer.judge(_row_classes(made, rows, quasi, roles.about), rule, persons)

    _, written = best_verified(values, problem, options, found, judge)
    return written, {one.algorithm: one.loss for one in found} if len(found) > 1 else {}


def _by_combinations(rows: PartedTable, roles: _Roles, asked: _Asked, rule: Rule) -> RowClasses | None:
    """Classes of which most rows are not held; None where they must be."""
    fits = may_count_combinations(
        rows, roles.quasi, rule, algorithm=asked.algorithm, hierarchies=asked.hierarchies, levels=asked.levels,
        limit=asked.suppression_limit,
    )  # fmt: skip
    lists = any(
        isinstance(rows.schema[name], pl.List) for name in (*roles.sensitive, *([roles.about] if roles.about else []))
    )
    if not fits or lists or rows.rows < rule.k:
        return None
    require_memory(rows.rows * BYTES_UNHELD, "what is held of the table", hint="Give fewer rows, or more memory")
    used = list(dict.fromkeys((*roles.quasi, *([] if roles.about is None else [roles.about]))))
    combinations = count_combinations(rows.parts(used), roles.quasi, roles.about)
    if combinations is None:
        return None
    column_weights(asked.weights, code_table(combinations.quasi.head(1), roles.quasi))
    return classes_of_combinations(
        rows, combinations, rule, algorithm=asked.algorithm, weights=asked.weights, max_set=asked.max_set,
        keep_exact=asked.keep_exact, jobs=asked.jobs,
    )  # fmt: skip


def _held(
    rows: PartedTable, roles: _Roles, asked: _Asked
) -> tuple[CodedTable, Integers | None, SensitiveColumns, Rule]:
    """What makers look at, as codes, the columns one after the other; and the rule."""
    bytes_a_row = BYTES_A_ROW + 4 * len(roles.quasi) + 4 * len(roles.sensitive) + 16 * (roles.person is not None)
    require_memory(rows.rows * bytes_a_row, "what is held of the table", hint=HELD)
    persons = None
    if roles.person is not None:
        alone = rows.columns([roles.person]).with_columns(pl.col(pl.Categorical).to_physical())
        persons = person_codes(alone, roles.person, roles.quasi, roles.sensitive, roles.target)
        del alone
    private = SensitiveColumns.of(_some_columns(rows, roles.sensitive), roles.sensitive, persons=persons)
    rule = asked.rule_for(private.units)
    coded = [code_table(rows.columns([name]), [name]) for name in roles.quasi]
    quasi = CodedTable(
        tuple(one.columns[0] for one in coded),
        np.concatenate([one.codes for one in coded]),  # the widest decides
    )
    return quasi, persons, private, rule


def _some_columns(rows: PartedTable, names: Sequence[str]) -> pl.DataFrame:
    """Columns as a whole; without names, a frame of as many rows."""
    return rows.columns(names) if names else pl.DataFrame({"row": np.zeros(rows.rows, np.int8)})


def _values(table: CodedTable) -> pl.DataFrame:
    """A frame that has every value of every quasi-identifier: all that hierarchies that look at no row need."""
    places = np.arange(max(column.distinct for column in table.columns))
    return pl.DataFrame(
        column.values.gather(np.minimum(places, column.distinct - 1)).alias(column.name) for column in table.columns
    )


def _hierarchies(rows: PartedTable, table: CodedTable, roles: _Roles, asked: _Asked) -> Hierarchies:
    """The hierarchies that are asked for, made where they are to be automatic."""
    if not asked.labelled() or not isinstance(asked.hierarchies, str):
        return asked.hierarchies
    if asked.hierarchies == "intervals" or roles.about is None:
        return data_independent(_values(table), roles.quasi)
    found, count = {}, free_name("count", [*roles.quasi, roles.about])
    for name in roles.quasi:
        parts = (part.group_by(name, roles.about).agg(pl.len().cast(pl.Int64).alias(count))
                 for part in rows.parts([name, roles.about]))  # fmt: skip
        found[name] = automatic_hierarchy(pl.concat(parts), name, roles.about, rhos=LATTICE_RHOS, counts=count)
    return found


def _row_classes(made: FormedClasses, rows: PartedTable, table: CodedTable, about: str | None) -> RowClasses:
    labels = made.partition.labels.astype(np.int32)
    labels[made.suppressed] = LEFT_OUT
    return RowClasses(
        labels=labels,
        cells=made.cells,
        make_kinds=lambda: _kinds(labels, rows, table, about),
        hierarchies=made.hierarchies,
        algorithm=made.algorithm,
        notes=made.notes,
    )


def _kinds(labels: NDArray[np.int32], rows: PartedTable, table: CodedTable, about: str | None) -> Kinds:
    """Rows of equal codes and classes, counted."""
    lines: list[Any] = [labels, *table.codes]
    values = [column.values for column in table.columns]
    if about is not None:
        codes, known = ranked(rows.columns([about])[about])
        lines.append(codes)
        values.append(known.alias(about))
    counted = pl.DataFrame({f"c{place}": line for place, line in enumerate(lines)}).lazy()
    names = counted.collect_schema().names()
    found = counted.group_by(names).agg(pl.len().cast(pl.Int64).alias("count")).collect(engine="streaming")
    return Kinds(
        before=pl.DataFrame(
            _gathered(known, found[name].to_numpy()) for known, name in zip(values, names[1:], strict=True)
        ),
        classes=found["c0"].to_numpy().astype(np.int64),
        counts=found["count"].to_numpy(),
    )


def _gathered(values: pl.Series, codes: NDArray[Any]) -> pl.Series:
    return (values.cast(pl.Categorical) if values.dtype == pl.String else values).gather(codes)


def _report(written: _Written, height: int, roles: _Roles, tried: Mapping[str, float], began: float) -> Report:
    made, found = written.rows, written.found
    kinds = made.make_kinds()
    kept = np.flatnonzero(kinds.classes != LEFT_OUT)
    classes, counts = kinds.classes[kept], kinds.counts[kept]
    before = kinds.before.with_columns(pl.col(pl.String).cast(pl.Categorical))
    after = before[kept].with_columns(made.shown(classes, as_categories=True))
    losses = ncp_and_entropy(
        before, after, quasi=roles.quasi, target=roles.about, kept=kept, hierarchies=made.hierarchies,
        counts=kinds.counts,
    )  # fmt: skip
    sizes = np.bincount(classes, counts).astype(np.int64)
    return Report(
        **report_figures(found, *losses, rows=height, rows_out=int(counts.sum())),
        suppressed_cells=suppressed_cells(made.cells, sizes),
        algorithm=made.algorithm,
        verified=not written.problems,
        problems=written.problems,
        seconds=time.perf_counter() - began,
        tried=dict(tried),
        notes=made.notes,
    )
