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
from kohort.rng import Streams
from kohort.runs.config import DataSection, Plan
from kohort.runs.site_tables import SiteTables, read_site_tables
from kohort.tables.datasets.catalogue import Dataset, open_table
from kohort.tables.encoder import Encoder
from kohort.tables.frames import check_finite, handle_missing
from kohort.tables.schema import Role, Schema
from kohort.tables.sources.opening import is_source
from kohort.tables.splits import Assignment, assign_sites, assignment_of_parts, hold_out, mark_low_risk

__all__ = ["Population", "populate", "schema_of", "set_aside_unseen", "usable_rows"]


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
    validation: pl.DataFrame | None = None
    """Rows that the hub has itself, to validate updates with."""

    def fingerprint(self) -> str:
        """An unkeyed hash of all rows, so that a run is not resumed on another table. It must not be published."""
        digest = hashlib.blake2b(digest_size=16)
        for frame in (self.frame, self.test):
            digest.update(frame.hash_rows(seed=0).to_numpy().tobytes())
        return digest.hexdigest()


def schema_of(section: DataSection, columns: list[str], *, codebook: Schema | None, default: Role | None) -> Schema:
    """The schema that a `[data]` section declares for a table.

    Args:
        section: The section of the plan.
        columns: The columns of the table.
        codebook: Declarations of a named dataset, for columns that the plan says nothing about.
        default: The role of columns that neither declares; None makes such a column an error.

    Raises:
        ConfigError: The declarations contradict each other or name an unknown column.
    """
    schema = Schema.of(
        target=section.target,
        quasi=section.quasi,
        sensitive=section.sensitive,
        identifiers=section.identifiers,
        items=section.items,
        features=section.features,
        drop=section.drop,
        kinds=section.kinds,
        bins=section.bins,
        bounds=section.bounds,
        categories=section.categories,
        other=section.other,
        nullable=section.nullable,
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
    frame, schema, assignment = _read(plan, streams, tables)
    notes = list(assignment.notes)
    if schema.target is None:
        raise ConfigError("the plan names no target", hint="Set data.target to the column to predict")
    is_test, test, test_sites = _hold_out(plan, streams, frame, schema, assignment)
    at_hub = _hub_share(plan, streams, is_test)
    at_sites = ~is_test & ~at_hub
    site = assignment.site[at_sites]
    low = np.zeros(len(site), dtype=bool) if assignment.low_risk is None else assignment.low_risk[at_sites]
    order = np.lexsort((~low, site))  # low-risk rows first, so that both parts are slices
    sizes = np.bincount(site, minlength=len(assignment.names))
    kept = np.flatnonzero(sizes)
    if len(kept) < len(sizes):
        notes.append(f"{len(sizes) - len(kept)} sites kept no row for training and were left out")
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
        validation=frame.filter(pl.Series(at_hub)) if at_hub.any() else None,
    )


def set_aside_unseen(encoder: Encoder, frame: pl.DataFrame) -> NDArray[np.bool_]:
    """Which test rows can be predicted, as a mask.

    A row with a category that no site has cannot be encoded; the caller counts these rows and does not measure them.
    """
    return encoder.within(frame)


def _hub_share(plan: Plan, streams: Streams, is_test: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The training rows that the hub keeps for validation (`train.reject`), as a mask."""
    chosen = np.zeros(len(is_test), dtype=bool)
    if plan.data.validation is not None:
        training = np.flatnonzero(~is_test)
        chosen[training] = hold_out(len(training), plan.data.validation, streams.generator("validation"))
    return chosen


def _read(
    plan: Plan, streams: Streams, tables: dict[str, pl.DataFrame] | None
) -> tuple[pl.DataFrame, Schema, Assignment]:
    section = plan.data
    if plan.sites.split == "files":
        return _read_parts(plan, streams, read_site_tables(section, tables))
    if tables is not None:
        opened = Dataset(frame=check_finite(next(iter(tables.values()))), source="memory")
    elif isinstance(section.table, str):
        opened = open_table(section.table, query=section.query)
    else:
        raise ConfigError("data.table lists several files", hint='Set sites.split = "files", or give one table')
    schema = schema_of(section, opened.frame.columns, codebook=opened.schema_defaults, default=opened.default_role)
    frame = usable_rows(opened.frame, schema, plan)
    if isinstance(section.target, str) and frame.height == 0:
        raise DataError("no row is left after dropping those with missing values", hint='Try missing = "category"')
    assignment = assign_sites(
        frame,
        split=plan.sites.split,
        count=plan.sites.count,
        target=schema.target,
        generator=streams.generator("split"),
        clusters=plan.sites.clusters,
        alpha=plan.sites.alpha,
        low_risk=plan.sites.low_risk,
        min_rows=plan.sites.min_rows,
    )
    said = opened.notes if isinstance(section.table, str) and is_source(section.table) else ()
    return frame, schema, replace(assignment, notes=(*said, *assignment.notes))


def _read_parts(plan: Plan, streams: Streams, found: SiteTables) -> tuple[pl.DataFrame, Schema, Assignment]:
    tables = found.frames
    if not tables:
        raise ConfigError("there are no sites", hint="Give at least one table")
    if plan.sites.clusters is not None:
        raise ConfigError(
            "sites.clusters assigns rows to sites, and these sites have their own rows",
            hint='Name them in method.clusters = {north = ["a", "b"]}, or form them: method.clusters = "labels:2"',
        )
    first = next(iter(tables.values()))
    schema = schema_of(plan.data, list(first.columns), codebook=found.codebook, default=found.default_role)
    wanted = list(schema.columns)
    parts = []
    for name, table in tables.items():
        lacking = [column for column in wanted if column not in table.columns]
        if lacking:
            raise DataError(f"the table of site {name!r} lacks columns: {', '.join(lacking)}", hint="Add them")
        parts.append(usable_rows(check_finite(table.select(wanted)), schema, plan))
    empty = [name for name, part in zip(tables, parts, strict=True) if part.height == 0]
    if empty:
        raise DataError(f"{len(empty)} sites have no usable row: {', '.join(empty)}", hint='Try missing = "category"')
    frame = pl.concat(parts, how="vertical_relaxed")
    assignment = mark_low_risk(
        assignment_of_parts([part.height for part in parts], tuple(tables)),
        frame,
        plan.sites.low_risk,
        target=schema.target,
        alpha=plan.sites.alpha,
        generator=streams.generator("split"),
    )
    return frame, schema, replace(assignment, notes=(*found.notes, *assignment.notes))


def usable_rows(frame: pl.DataFrame, schema: Schema, plan: Plan) -> pl.DataFrame:
    """`frame` with the columns of `schema`, without rows that lack a target or, if `missing = "drop"`, any value."""
    frame = frame.select(list(schema.columns))
    if plan.data.missing == "drop":
        return handle_missing(frame, frame.columns, "drop")
    return frame if schema.target is None else handle_missing(frame, [schema.target], "drop")


def _hold_out(
    plan: Plan, streams: Streams, frame: pl.DataFrame, schema: Schema, assignment: Assignment
) -> tuple[NDArray[np.bool_], pl.DataFrame, tuple[str, ...] | None]:
    share: Any = plan.data.test
    if isinstance(share, str):
        opened = open_table(share)
        lacking = [column for column in schema.columns if column not in opened.frame.columns]
        if lacking:
            raise DataError(f"the test table lacks columns: {', '.join(lacking)}", hint="Add them, or set data.test")
        return np.zeros(frame.height, dtype=bool), usable_rows(opened.frame, schema, plan), None
    if share == 0:
        return np.zeros(frame.height, dtype=bool), frame.clear(), None
    is_test = hold_out(frame.height, share, streams.generator("test"))
    if not is_test.any() or is_test.all():
        raise DataError(f"{frame.height} rows cannot be split into training and test rows", hint="Change data.test")
    names = np.asarray(assignment.names)
    return is_test, frame.filter(pl.Series(is_test)), tuple(names[assignment.site[is_test]])
