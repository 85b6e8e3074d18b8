"""Attacks on tables that the hub was given: whom do they single out, link and tell something of?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.evaluate.attacks.homogeneity import in_one_class
from kohort.evaluate.attacks.inference import drawn, infer
from kohort.evaluate.attacks.linkability import link
from kohort.evaluate.attacks.overlap import both_together
from kohort.evaluate.attacks.released import Attacked, Released
from kohort.evaluate.attacks.singling_out import single_out
from kohort.runs.auditing.on_model import NO_TEST_ROWS
from kohort.runs.auditing.replay import Replay
from kohort.runs.simulation import Population
from kohort.tables.column_blocks import Taxonomy
from kohort.tables.schema import Schema

__all__ = ["SENDER", "quasi_in", "released_findings", "rows_findings", "together_findings", "with_sender"]

BY: Final = "hub"
MOST_ROWS: Final = 20_000
"""Released rows that distances are measured to, at most; drawn at random where there are more."""
SENDER: Final = "sender"
"""The column of received rows that says which site sent them."""
_LINKAGE: Final = "linkage: singling out and linking"
_TOGETHER: Final = "linkage: two releases together"


def rows_findings(replay: Replay, *, seed: int = 0) -> list[Finding]:
    """Attack the rows that a hub received.

    Args:
        replay: The run.
        seed: Of the draws.

    Returns:
        The findings; none where the hub was given no rows.
    """
    table = replay.outcome.received
    if table is None:
        return []
    return released_findings(table, replay.population, what=_what(replay), seed=seed)


def released_findings(
    table: pl.DataFrame,
    population: Population,
    *,
    what: str,
    by: str = BY,
    why: str = NO_TEST_ROWS,
    hierarchies: Mapping[str, Taxonomy] | None = None,
    seed: int = 0,
) -> list[Finding]:
    """Attack a released table with the rows it was made from and rows that were held out.

    Args:
        table: The release.
        population: Members, and others to compare with.
        what: What was attacked, in words.
        by: Who has it.
        why: What is said where nobody was held out.
        hierarchies: What released labels stand for.
        seed: Of the draws.

    Returns:
        The findings.
    """
    schema, members, others = population.schema, population.frame, population.test
    release = Released.of(table, members, hierarchies)
    columns = [name for name in (*schema.inputs, str(schema.target)) if name in table.columns]
    findings = [
        in_one_class(release, quasi=quasi_in(schema, table), secret=secret, on=what, by=by, seed=seed)
        for secret in _secrets(schema, table)
        if quasi_in(schema, table)
    ]
    if not others.height:
        return [*findings, not_attacked(_LINKAGE, "linkage", on=what, by=by, why=why)]
    some = Released(drawn(table, MOST_ROWS, np.random.default_rng(seed)), release.ranges, release.hierarchies)
    asked = Attacked(table=some, members=members, others=others, on=what, by=by, seed=seed)
    findings += [
        single_out(replace(asked, table=release), columns=columns),
        link(asked, columns=columns),
    ]
    for secret in _secrets(schema, table):
        known = [name for name in columns if name != secret]
        findings.append(infer(asked, secret=secret, known=known))
    return findings


def together_findings(first: Replay, second: Replay) -> list[Finding]:
    """Attack the releases of two runs together.

    Args:
        first: A run.
        second: Another one.

    Returns:
        One finding.
    """
    tables = [replay.outcome.received for replay in (first, second)]
    by = "whoever holds both"
    if tables[0] is None or tables[1] is None:
        why = "one of the runs gave its hub no rows"
        return [not_attacked(_TOGETHER, "linkage", on="the rows of two runs", by=by, why=why)]
    quasi = [name for name in first.population.schema.quasi if name in tables[0].columns and name in tables[1].columns]
    frames = [with_sender(replay.population) for replay in (first, second)]
    if all(table is not None and SENDER in table.columns for table in tables):
        quasi.append(SENDER)
    shared = [name for name in frames[0].columns if name in frames[1].columns]
    members = frames[0].join(frames[1].select(shared).unique(), on=shared, how="semi")
    if not quasi or not members.height:
        why = "the runs share no quasi-identifier or no row"
        return [not_attacked(_TOGETHER, "linkage", on="the rows of two runs", by=by, why=why)]
    one, two = Released.of(tables[0], members), Released.of(tables[1], members)
    return [both_together(one, two, members, quasi=quasi, on="the rows of two runs", by=by)]


def with_sender(population: Population) -> pl.DataFrame:
    """The training rows, with the site that each is from: whoever knows a person may know who treats them.

    Args:
        population: The rows of a simulation.

    Returns:
        The rows with a further column, `SENDER`.
    """
    sizes = np.diff(population.starts)
    return population.frame.with_columns(pl.Series(SENDER, np.repeat(population.names, sizes)))


def _what(replay: Replay) -> str:
    kinds = {"raw": "rows as they are", "k-anonymous": "k-anonymous rows", "k-km": "(k, k^m)-anonymous rows"}
    found = [kinds[entry.kind] for entry in replay.outcome.disclosed if entry.kind in kinds]
    return found[-1] if found else "rows"


def quasi_in(schema: Schema, table: pl.DataFrame) -> list[str]:
    """The quasi-identifiers that a table has.

    Args:
        schema: What the sites' columns are.
        table: A table that the hub was given.

    Returns:
        Their names, in the order of the schema.
    """
    return [name for name in schema.quasi if name in table.columns]


def _secrets(schema: Schema, table: pl.DataFrame) -> Sequence[str]:
    named = [name for name in schema.sensitive if name in table.columns]
    target = str(schema.target)
    return named or ([target] if target in table.columns else [])
