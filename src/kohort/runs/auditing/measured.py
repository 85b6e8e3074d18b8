"""What an audit measures beside attacks: re-identification risk before and after, calibration, and groups.

The risk before is counted inside each site, from its own table: no release holds it, and no site tells it to a hub. So
only who has the tables can have it, as in a simulation or at home; a report for outsiders leaves it out. The risk after
is counted from the rows that the hub was sent, as the hub itself could.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from kohort.anonymity.risk.reidentification import assess_risk
from kohort.errors import ConfigError
from kohort.evaluate.utility import evaluate_groups
from kohort.models.base import Model
from kohort.models.cluster_names import NoCommonModel
from kohort.models.rows import encode_test_rows
from kohort.runs.auditing.on_rows import SENDER, quasi_in, with_sender
from kohort.runs.results.outcome import Outcome
from kohort.runs.simulation import Population

__all__ = ["measured", "table_risk"]

BINS: Final = 10
ROWS_PER_BIN: Final = 5
"""A bin of the calibration has at least so many times the minimum cell count."""
MOST_GROUPS: Final = 12
"""A column with more different values is no column of groups."""


def measured(outcome: Outcome, population: Population) -> dict[str, Any]:
    """Measure a run of which all tables are here.

    Args:
        outcome: The run.
        population: Its training rows and test rows.

    Returns:
        `risk`, `calibration` and `groups`, for JSON; the latter two are None where nothing can be measured.
    """
    model, least = outcome.model, outcome.plan.policy.min_cell
    test = _readable(model, population.test)
    return {
        "risk": risk_of(population, _with_senders(outcome)),
        "calibration": None if test is None else calibration_of(model, test, least=least),
        "groups": None if test is None else groups_of(model, test, population, least=least),
    }


def _with_senders(outcome: Outcome) -> pl.DataFrame | None:
    """The received rows with the site that sent each: whole tables stand one after the other, in the order of sites."""
    table, rows = outcome.received, outcome.site_rows
    if table is None or SENDER in table.columns or sum(rows.values()) != table.height:
        return table
    return table.with_columns(pl.Series(SENDER, np.repeat(list(rows), list(rows.values()))))


def risk_of(population: Population, received: pl.DataFrame | None) -> dict[str, Any]:
    """Re-identification risk of the sites' tables, and of the rows that the hub received.

    The attacker knows that a person is in the table of a site, and the person's quasi-identifiers (prosecutor). A row
    is in a class with the rows of its own site alone, because a hub knows who sent a row.

    Args:
        population: The rows of the sites.
        received: What the hub received; None for no rows.

    Returns:
        `rows`, `quasi`, `before`, `after` (None where no row left) and `why` (why nothing is counted).
    """
    quasi = quasi_in(population.schema, population.frame)
    if not quasi or not population.frame.height:
        why = "the plan declares no quasi-identifiers" if not quasi else "the rows are at the sites"
        return {"rows": population.frame.height, "quasi": [], "before": None, "after": None, "why": why}
    before = _figures(with_sender(population), [*quasi, SENDER])
    after = None
    if received is not None and received.height:
        known = [name for name in (*quasi, SENDER) if name in received.columns]
        after = _figures(received, known) if known else None
    return {"rows": population.frame.height, "quasi": quasi, "before": before, "after": after, "why": ""}


def table_risk(rows: pl.DataFrame, released: pl.DataFrame, quasi: Sequence[str]) -> dict[str, Any]:
    """Re-identification risk of one table before and after it was anonymised.

    Args:
        rows: The rows as they were.
        released: The released rows.
        quasi: The quasi-identifiers.

    Returns:
        As `risk_of`.
    """
    if not quasi or not rows.height or not released.height:
        why = "no quasi-identifiers are declared" if not quasi else "no row is left"
        return {"rows": rows.height, "quasi": [], "before": None, "after": None, "why": why}
    before, after = _figures(rows, quasi), _figures(released, quasi)
    return {"rows": rows.height, "quasi": list(quasi), "before": before, "after": after, "why": ""}


def _figures(table: pl.DataFrame, quasi: Sequence[str]) -> dict[str, float]:
    found = assess_risk(table, quasi=quasi)
    return {
        "rows": table.height,
        "largest": found.prosecutor_max,
        "mean": found.prosecutor_mean,
        "unique": found.sample_uniqueness,
    }


def _readable(model: Model, test: pl.DataFrame) -> pl.DataFrame | None:
    if isinstance(model, NoCommonModel) or not test.height:
        return None
    kept = test.filter(pl.Series(model.encoder.predictable(test)))
    return kept if kept.height else None


def calibration_of(model: Model, test: pl.DataFrame, *, least: int) -> dict[str, Any] | None:
    """How often what a model calls likely is so, in bins of equally many test rows.

    Args:
        model: The model.
        test: Rows that it can read.
        least: The minimum cell count; a bin holds `ROWS_PER_BIN` times as many rows.

    Returns:
        `of` (whose probability), `bins` of [mean probability, share that was so, rows], `gap` (their mean distance,
        weighted by rows) and `brier`; None for numbers, models without probabilities and too few rows.
    """
    if model.task != "classification":
        return None
    rows = encode_test_rows(model.encoder, test)
    try:
        shares = model.probabilities(rows.x).astype(np.float64)
    except ConfigError:
        return None
    truth = rows.y.astype(np.int64)
    binary = shares.shape[1] == 2
    said = shares[:, 1] if binary else shares.max(axis=1)
    right = (truth == 1) if binary else (shares.argmax(axis=1) == truth)
    count = min(BINS, len(said) // (ROWS_PER_BIN * max(least, 1)))
    if count < 2:
        return None
    parts = np.array_split(np.argsort(said, kind="stable"), count)
    bins = [[float(said[part].mean()), float(right[part].mean()), len(part)] for part in parts]
    gap = sum(size * abs(likely - share) for likely, share, size in bins) / len(said)
    brier = float(np.mean(np.square(shares - np.eye(shares.shape[1])[truth]).sum(axis=1)))
    return {"of": "the positive class" if binary else "the predicted class", "bins": bins, "gap": gap, "brier": brier}


def groups_of(model: Model, test: pl.DataFrame, population: Population, *, least: int) -> list[dict[str, Any]]:
    """The score of a model on groups of the test rows, by columns of categories among the personal ones.

    Args:
        model: The model.
        test: Rows that it can read.
        population: Roles of the columns, and the training rows.
        least: The minimum cell count; smaller groups are not named, and nor is the smallest of the others where the
            rest would tell how few rows they have.

    Returns:
        For each quasi-identifier or sensitive column of categories: `column`, `groups` of `name`, `rows` and `score`,
        and `unnamed`, the rows of groups that are too small.
    """
    schema = population.schema
    names = dict.fromkeys(name for name in (*schema.quasi, *schema.sensitive) if name != schema.target)
    labels = {}
    for name in names:
        column = test[name] if name in test.columns else None
        if column is None or column.dtype.is_numeric() or not 2 <= column.n_unique() <= MOST_GROUPS:
            continue
        if not isinstance(column.dtype, pl.String | pl.Categorical | pl.Enum | pl.Boolean):
            continue
        labels[name] = column.cast(pl.String).fill_null("missing").to_list()
    score = "accuracy" if model.task == "classification" else "r2"
    found = evaluate_groups(model, test, labels)
    return [_groups(by, population.frame, name, least, score) for name, by in found.items()]


def _groups(
    by: Mapping[str, Mapping[str, Any]], frame: pl.DataFrame, name: str, least: int, score: str
) -> dict[str, Any]:
    trained = frame[name].cast(pl.String).fill_null("missing").value_counts()
    common = dict(zip(*trained.get_columns(), strict=True))
    shown = [group for group, one in by.items() if min(one["rows"], common.get(group, 0)) >= max(least, 2)]
    unnamed = sum(one["rows"] for group, one in by.items() if group not in shown)
    if 0 < unnamed < least and shown:  # what is left of all rows would tell how few they are
        smallest = min(shown, key=lambda group: by[group]["rows"])
        shown.remove(smallest)
        unnamed += by[smallest]["rows"]
    named = [{"name": group, "rows": by[group]["rows"], "score": by[group][score]} for group in shown]
    return {"column": name, "groups": named, "unnamed": unnamed}
