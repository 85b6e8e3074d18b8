"""From a plan to simulated sites: read the table, resolve its schema, hold out test rows, assign the rest to sites.

The rows of all sites are in one frame, sorted by site; every simulated site has a slice of it, without a copy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.methods.registry import find_method
from kohort.rng import Streams
from kohort.runs.agreed import complete_rows, usable_rows
from kohort.runs.config import DataSection, Plan
from kohort.runs.left_out import LeftOut
from kohort.runs.plan.default_method import trains_network
from kohort.runs.site_tables import SiteTables, preflight, read_site_tables
from kohort.runs.undeclared import missing_code_notes, number_notes, placing_columns, undeclared_columns
from kohort.tables.answers import TargetTask, answer_of, kind_for, settle_target, task_of
from kohort.tables.consent import consenting_rows
from kohort.tables.datasets.catalogue import Dataset, open_table
from kohort.tables.domain import category_text
from kohort.tables.frames import check_finite
from kohort.tables.item_sets import with_declared_sets
from kohort.tables.persons import hold_out, persons_at_several_sites, persons_of
from kohort.tables.reading import declare_missing
from kohort.tables.schema import Role, Schema
from kohort.tables.sources.opening import is_source
from kohort.tables.splits import Assignment, assign_sites, assignment_of_parts, mark_low_risk

__all__ = ["Population", "populate", "schema_of", "with_balanced_classes"]


@dataclass(frozen=True, kw_only=True)
class Population:
    """The training rows of all sites, and the test rows with the site each would have been assigned to."""

    schema: Schema
    frame: pl.DataFrame
    """Training rows, sorted by site."""
    names: tuple[str, ...]
    starts: NDArray[np.int64]
    """Site i has the rows from starts[i] up to, but not including, starts[i + 1]."""
    test: pl.DataFrame
    """Rows no site trains on; none when `data.test` is 0."""
    test_sites: tuple[str, ...] | None
    """The site of each test row; None for a separate test table and without test rows."""
    clusters: NDArray[np.int64] | None = None
    """The cluster of each site, when `sites.clusters` is set."""
    low: NDArray[np.int64] | None = None
    """Number of low-risk rows per site; they are the first rows of the site."""
    low_by_row: bool = False
    """Whether the risk of a row depends on that row alone, not on a random draw."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What a reader of the figures must see, and may mend before a run."""
    validation: pl.DataFrame | None = None
    """Rows that the hub has itself, to validate updates with."""
    left_out: tuple[LeftOut, ...] = ()
    """Rows, sites and columns that take no part, counted by reason."""
    task: TargetTask | None = None
    """What is learned and why; None where no table is at hand."""

    def fingerprint(self) -> str:
        """An unkeyed hash of all rows, so that a run is not resumed on another table. It must not be published."""
        digest = hashlib.blake2b(digest_size=16)
        for frame in (self.frame, self.test):
            digest.update(frame.hash_rows(seed=0).to_numpy().tobytes())
        return digest.hexdigest()


def with_balanced_classes(plan: Plan, population: Population) -> tuple[Plan, tuple[str, ...]]:
    """A plan with numbers for `train.class_weights = "balanced"`, and a note that says them.

    Args:
        plan: The plan.
        population: The rows of its simulated sites; a real hub has none.

    Returns:
        The plan. A class of n_c of n rows has the weight n / (classes * n_c).

    Raises:
        ConfigError: The target is a number, there are no rows, as at a real hub, or a budget would have to cover the
            counts.
    """
    if plan.train.class_weights != "balanced":
        return plan, ()
    method = find_method(plan.method)
    judge = method.judge(plan.config)
    noisy = any(phase.dp is not None for phase in method.phases(plan.config, plan.train))
    if noisy or (judge is not None and judge.rows == "high"):
        raise ConfigError(
            'train.class_weights = "balanced" counts the classes of all rows without noise, and every row is weighed '
            "by these counts: the budget does not cover that",
            hint="Write public numbers, such as train.class_weights = {ill = 2.1, well = 0.7}",
        )
    if not population.frame.height:
        _ = plan.train.known_class_weights  # refuses, and says what to write
    if population.task is None or population.task.task != "classification":
        raise ConfigError("class weights are for a target of classes", hint="Drop train.class_weights")
    found = category_text(population.frame[str(population.schema.target)]).value_counts(sort=True)
    name, rows, classes = found.columns[0], population.frame.height, found.height
    weights = {str(row[name]): round(rows / (classes * row["count"]), 4) for row in found.iter_rows(named=True)}
    said = ", ".join(f"{weight:g}" for weight in sorted(weights.values()))
    note = f"class weights were balanced by the counts of all simulated sites: {said}. Real sites need them in the plan"
    return replace(plan, train=replace(plan.train, class_weights=weights)), (note,)


def schema_of(section: DataSection, columns: list[str], *, codebook: Schema | None, default: Role | None) -> Schema:
    """The schema that a `[data]` section declares for a table.

    Args:
        section: The section of the plan.
        columns: The columns of the table.
        codebook: Declarations of a named dataset, for columns that the plan says nothing about.
        default: The role of columns that neither declares; None makes such a column an error.

    Raises:
        ConfigError: The declarations contradict each other or name an unknown column.

    Returns:
        The schema, with a role for every column of the table.
    """
    kinds = dict(section.kinds)
    if section.target is not None:
        wanted = kind_for(section.task, kinds.get(section.target), section.target)
        kinds |= {} if wanted is None else {section.target: wanted}
    schema = Schema.of(
        target=section.target,
        quasi=section.quasi,
        sensitive=section.sensitive,
        identifiers=section.identifiers,
        person=section.person,
        weight=section.weight,
        consent=section.consent,
        items=section.items,
        features=section.features,
        drop=section.drop,
        kinds=kinds,
        bins=section.bins,
        bounds=section.bounds,
        categories=section.categories,
        other=section.other,
        nullable=section.nullable,
        hierarchies=section.hierarchies,
        ancestors=section.ancestors,
        ordered=section.ordered,
    )
    if codebook is not None:
        schema = schema.with_defaults(codebook)
    return schema.resolve(columns, default)


def populate(plan: Plan, streams: Streams, *, tables: dict[str, pl.DataFrame] | None = None) -> Population:
    """Make the simulated sites of a plan.

    Args:
        plan: What to read and how to split it.
        streams: Randomness of the run.
        tables: Frames in place of `data.table`: one per site if `sites.split` is "files", otherwise a single one.

    Returns:
        The rows of all sites. Sites without a training row are left out, and a note says how many.

    Raises:
        ConfigError: The plan has no target, or the split does not fit the tables.
        DataError: A table lacks columns or usable rows.
    """
    read = _read(plan, streams, tables)
    frame, schema, assignment = read.frame, read.schema, read.assignment
    notes, left_out = [*read.notes, *assignment.notes], list(read.left_out)
    persons = read.persons
    is_test, test, test_sites = _hold_out(plan, streams, frame, schema, assignment, persons)
    at_hub = _hub_share(plan, streams, is_test, persons)
    if persons is not None and (is_test.any() or at_hub.any()):
        notes.append(f"rows are held out by person ({schema.identifiers[0]}): nobody is in both parts")
    at_sites = ~is_test & ~at_hub
    site = assignment.site[at_sites]
    shared = _shared_persons(plan, schema, None if persons is None else persons[at_sites], site)
    notes += shared.notes
    low = np.zeros(len(site), dtype=bool) if assignment.low_risk is None else assignment.low_risk[at_sites]
    order = np.lexsort((~low, site))  # low-risk rows first, so that both parts are slices
    sizes = np.bincount(site, minlength=len(assignment.names))
    kept = np.flatnonzero(sizes)
    if len(kept) < len(sizes):
        notes.append(f"{len(sizes) - len(kept)} sites kept no row for training and were left out")
        empty = LeftOut(what="sites", why="no row for training", count=len(sizes) - len(kept), of_rows=False)
        left_out.append(empty)
    training = frame.filter(pl.Series(at_sites))[order]
    return Population(
        schema=schema,
        frame=training,
        names=tuple(assignment.names[index] for index in kept),
        starts=np.concatenate([[0], np.cumsum(sizes[kept])]).astype(np.int64),
        test=test,
        test_sites=test_sites,
        clusters=None if assignment.cluster is None else assignment.cluster[kept],
        low=None if assignment.low_risk is None else np.bincount(site[low], minlength=len(sizes))[kept],
        low_by_row=isinstance(plan.sites.low_risk, str),
        notes=tuple(notes),
        warnings=(*read.warnings, *shared.warnings),
        validation=frame.filter(pl.Series(at_hub)) if at_hub.any() else None,
        left_out=tuple(left_out),
        task=read.task,
    )


def _hub_share(
    plan: Plan, streams: Streams, is_test: NDArray[np.bool_], persons: NDArray[np.int64] | None
) -> NDArray[np.bool_]:
    """The training rows that the hub keeps for validation (`train.reject`), as a mask."""
    chosen = np.zeros(len(is_test), dtype=bool)
    if plan.data.validation is not None:
        training = np.flatnonzero(~is_test)
        own = None if persons is None else np.unique(persons[training], return_inverse=True)[1]
        chosen[training] = hold_out(len(training), plan.data.validation, streams.generator("validation"), own)
    return chosen


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The rows of all sites, what their columns are, and which site each row belongs to."""

    frame: pl.DataFrame
    schema: Schema
    assignment: Assignment
    persons: NDArray[np.int64] | None
    """The person each row is about; None where nobody has several rows."""
    task: TargetTask
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def _read(plan: Plan, streams: Streams, tables: dict[str, pl.DataFrame] | None) -> _Read:
    section = plan.data
    if section.target is None:
        raise ConfigError("the plan names no target", hint="Set data.target to the column to predict")
    phases = find_method(plan.method).phases(plan.config, plan.train)
    if section.weight is not None and (not trains_network(plan.method) or any(one.dp is not None for one in phases)):
        raise ConfigError(
            f"method {plan.method!r} counts every row once here, and data.weight is given",
            hint="Drop it, or use a method that trains a network without a budget, such as fedavg",
        )
    if plan.sites.split == "files":
        return _read_parts(plan, streams, read_site_tables(section, tables))
    if tables is not None:
        frame = check_finite(next(iter(tables.values())))
        if section.reading is not None:
            frame, _ = declare_missing(frame, section.reading)
        found = Dataset(frame=frame, source="memory")
    elif isinstance(section.table, str):
        found = open_table(section.table, section.reading, query=section.query)
    else:
        raise ConfigError("data.table lists several files", hint='Set sites.split = "files", or give one table')
    mapped, lost = section.table_mapping.apply(found.frame)
    return _read_one(plan, streams, replace(found, frame=mapped, reading=(*found.reading, *lost)))


def _read_one(plan: Plan, streams: Streams, opened: Dataset) -> _Read:
    if not opened.frame.height:
        raise DataError("the table has no rows", hint="Give a table with at least one row")
    frame, section = with_declared_sets(opened.frame, plan.data)
    unused = undeclared_columns({"": frame}, plan, default=opened.default_role)
    section = replace(section, drop=(*section.drop, *unused.names))
    schema = schema_of(section, frame.columns, codebook=opened.schema_defaults, default=opened.default_role)
    target = str(schema.target)
    task = task_of(frame[target], schema.columns[target], declared=section.task)
    schema = _with_answer(schema, frame, task, plan)
    placing = [name for name in placing_columns(plan.sites) if name in schema.dropped]
    usable = usable_rows(frame, schema, plan, also=placing)
    if isinstance(section.target, str) and usable.height == 0:
        raise DataError("no row is left after dropping those with missing values", hint='Try missing = "category"')
    persons = persons_of(usable[schema.identifiers[0]]) if schema.identifiers else None
    assignment = assign_sites(
        usable,
        split=plan.sites.split,
        count=plan.sites.count,
        target=schema.target,
        generator=streams.generator("split"),
        clusters=plan.sites.clusters,
        alpha=plan.sites.alpha,
        low_risk=plan.sites.low_risk,
        min_rows=plan.sites.min_rows,
        persons=persons,
    )
    usable = usable.drop(placing)
    left_out = _rows_left_out([(frame, usable)], schema)
    said = opened.notes if isinstance(section.table, str) and is_source(section.table) else ()
    return _Read(
        frame=usable,
        schema=schema,
        assignment=assignment,
        persons=persons,
        task=task,
        notes=(*said, *opened.reading, *unused.notes, *number_notes([usable], schema)),
        warnings=tuple(missing_code_notes([usable], schema)),
        left_out=(*left_out, *unused.left_out),
    )


def _read_parts(plan: Plan, streams: Streams, found: SiteTables) -> _Read:
    tables = found.frames
    if not tables:
        raise ConfigError("there are no sites", hint="Give at least one table")
    if plan.sites.clusters is not None:
        raise ConfigError(
            "sites.clusters assigns rows to sites, and these sites have their own rows",
            hint='Name them in method.clusters = {north = ["a", "b"]}, or form them: method.clusters = "labels:2"',
        )
    bare = [name for name, table in tables.items() if not table.height]
    if bare:
        hint = "Leave them out of data.table, or fill them"
        raise DataError(f"{len(bare)} sites have no rows at all: {', '.join(bare)}", hint=hint)
    made = {name: with_declared_sets(table, plan.data) for name, table in tables.items()}
    frames = {name: frame for name, (frame, _) in made.items()}
    section = next(iter(made.values()))[1]
    unused = undeclared_columns(frames, plan, default=found.default_role)
    first = _complete_table(frames, section)
    # A column that only another site has is named by the comparison of tables, not here.
    section = replace(section, drop=(*section.drop, *(name for name in unused.names if name in first.columns)))
    schema = schema_of(section, list(first.columns), codebook=found.codebook, default=found.default_role)
    target = str(schema.target)
    disagreements = preflight(frames, schema, least=plan.policy.min_cell)
    wholes = [check_finite(table.select(list(schema.columns))) for table in frames.values()]
    parts = [(whole, complete_rows(whole, schema, plan)) for whole in wholes]
    empty = [name for name, (_, part) in zip(tables, parts, strict=True) if part.height == 0]
    if empty:
        raise DataError(f"{len(empty)} sites have no usable row: {', '.join(empty)}", hint='Try missing = "category"')
    frame = pl.concat([part for _, part in parts], how="vertical_relaxed")
    task = task_of(frame[target], schema.columns[target], declared=section.task)
    schema = _with_answer(schema, frame, task, plan)
    frame = settle_target(frame, target, schema.columns[target])
    persons = persons_of(frame[schema.identifiers[0]]) if schema.identifiers else None
    assignment = mark_low_risk(
        assignment_of_parts([part.height for _, part in parts], tuple(tables)),
        frame,
        plan.sites.low_risk,
        target=schema.target,
        alpha=plan.sites.alpha,
        generator=streams.generator("split"),
        persons=persons,
    )
    return _Read(
        frame=frame,
        schema=schema,
        assignment=assignment,
        persons=persons,
        task=task,
        notes=(*found.notes, *disagreements, *unused.notes, *number_notes(frames.values(), schema)),
        warnings=tuple(missing_code_notes(frames.values(), schema)),
        left_out=(*_rows_left_out(parts, schema), *unused.left_out),
    )


@dataclass(frozen=True)
class _SharedPersons:
    """What is said of persons who have rows at several sites."""

    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _shared_persons(
    plan: Plan, schema: Schema, persons: NDArray[np.int64] | None, site: NDArray[np.int64]
) -> _SharedPersons:
    """Count the persons at several sites, and refuse an epsilon per person that holds for fewer sites.

    In tables of their own, sites may number persons alike, so equal identifiers are said and decide nothing.

    Raises:
        ConfigError: `dp.overlap` is below the number of sites that one person of a single table has rows at.
    """
    found = persons_at_several_sites(persons, site)
    if not found.persons:
        return _SharedPersons()
    column, split = schema.identifiers[0], plan.sites.split
    phases = find_method(plan.method).phases(plan.config, plan.train)
    budgets = [phase.dp for phase in phases if phase.dp is not None and phase.dp.unit == "person"]
    few = min((dp.overlap for dp in budgets), default=found.most) < found.most
    if split == "files":
        said = f"{found.persons:,} values of {column} occur at several sites, at most at {found.most}"
        meant = f"{said}: if they are the same persons, set dp.overlap = {found.most}, or epsilon is understated"
        return _SharedPersons(warnings=(meant,)) if few else _SharedPersons(notes=(said,))
    note = (
        f"{found.persons:,} persons ({column}) have rows at several sites, at most at {found.most}, because sites go "
        "by a column of the row; counts over all sites count such a person at each"
    )
    if few:
        raise ConfigError(
            f'{note}. The epsilon of dp.unit = "person" would hold for fewer sites than that',
            hint=f'Set dp.overlap = {found.most}, or sites.split = "iid", which deals whole persons out',
        )
    return _SharedPersons(notes=(note,))


def _complete_table(frames: dict[str, pl.DataFrame], section: DataSection) -> pl.DataFrame:
    """The first table that has all columns that the plan names; one that lacks some is named by the comparison."""
    named = {*section.quasi, *section.sensitive, *section.items, *filter(None, [section.target])}
    named |= set() if section.features == "rest" else set(section.features)
    return next((frame for frame in frames.values() if named <= set(frame.columns)), next(iter(frames.values())))


def _with_answer(schema: Schema, frame: pl.DataFrame, task: TargetTask, plan: Plan) -> Schema:
    """The schema with the type of the target's values, which predictions get.

    Under a budget it also says that whole numbers are classes: noisy counts of few rows do not show it.
    """
    target = str(schema.target)
    kinds = frame.schema
    dates = {name for name in schema.inputs if kinds[name].is_temporal()}  # explained as dates
    columns = {
        name: replace(spec, answer=answer_of(kinds[name])) if name in dates else spec
        for name, spec in schema.columns.items()
    }
    spec = replace(schema.columns[target], answer=answer_of(kinds[target]))
    phases = find_method(plan.method).phases(plan.config, plan.train)
    if task.task == "classification" and spec.declared_kind is None and any(one.dp is not None for one in phases):
        spec = replace(spec, kind="category")
    return replace(schema, columns={**columns, target: spec})


def _rows_left_out(parts: list[tuple[pl.DataFrame, pl.DataFrame]], schema: Schema) -> list[LeftOut]:
    """The rows of all sites that take no part, by reason."""
    target = str(schema.target)
    asked = [consenting_rows(before, schema.consent) for before, _ in parts]
    unanswered = sum(before[target].null_count() for before in asked)
    gone = sum(before.height - after.height for before, (_, after) in zip(asked, parts, strict=True))
    without = sum(before.height - left.height for left, (before, _) in zip(asked, parts, strict=True))
    return [
        LeftOut(what="rows", why=f"no consent in {schema.consent}", count=without),
        LeftOut(what="rows", why=f"the target {target} is missing", count=unanswered),
        LeftOut(what="rows", why='another value is missing, and missing = "drop"', count=gone - unanswered),
    ]


def _hold_out(
    plan: Plan,
    streams: Streams,
    frame: pl.DataFrame,
    schema: Schema,
    assignment: Assignment,
    persons: NDArray[np.int64] | None,
) -> tuple[NDArray[np.bool_], pl.DataFrame, tuple[str, ...] | None]:
    share: Any = plan.data.test
    if isinstance(share, str):
        opened, _ = plan.data.table_mapping.apply(open_table(share, plan.data.reading).frame)
        table, _ = with_declared_sets(opened, plan.data)
        lacking = [column for column in schema.columns if column not in table.columns]
        if lacking:
            raise DataError(f"the test table lacks columns: {', '.join(lacking)}", hint="Add them, or set data.test")
        return np.zeros(frame.height, dtype=bool), usable_rows(table, schema, plan), None
    if share == 0:
        return np.zeros(frame.height, dtype=bool), frame.clear(), None
    is_test = hold_out(frame.height, share, streams.generator("test"), persons)
    if not is_test.any() or is_test.all():
        raise DataError(f"{frame.height} rows cannot be split into training and test rows", hint="Change data.test")
    names = np.asarray(assignment.names)
    return is_test, frame.filter(pl.Series(is_test)), tuple(names[assignment.site[is_test]])
