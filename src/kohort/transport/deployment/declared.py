"""What a site says of itself in `site.toml`: which of its rows carry a low risk, and which cluster it belongs to.

Both are the operator's decisions about people, never the hub's. Nothing declared means that no row is low-risk and that
the site belongs to no cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kohort.errors import ConfigError, nearest
from kohort.rounds.clusters import check_cluster_name
from kohort.tables.domain import category_text
from kohort.tables.schema import Schema
from kohort.tables.splits import below_rule, rows_below

__all__ = ["LowRisk", "cluster_of", "low_risk_rule"]

_FORMS = 'Write "column:NAME" for a column of 0 and 1, or "below:COLUMN:NUMBER"'


@dataclass(frozen=True)
class LowRisk:
    """A rule that tells low-risk rows: a column of marks, or (with a limit) a number below which rows are low-risk."""

    column: str
    limit: float | None = None

    @property
    def by_row(self) -> bool:
        """Whether each row tells its part by itself. How a column of marks was made, no code knows."""
        return self.limit is not None

    def low_first(self, frame: pl.DataFrame, schema: Schema) -> tuple[pl.DataFrame, int]:
        """The table with its low-risk rows first, else in its order, and how many those are; a missing mark is high."""
        if self.column not in frame.columns:
            raise ConfigError(
                f"site.low_risk names {self.column!r}, and the table has no such column",
                hint=nearest(self.column, frame.columns),
            )
        values = frame[self.column]
        low = self._marked(values, schema) if self.limit is None else rows_below(values, self.limit)
        return pl.concat([frame.filter(low), frame.filter(~low)]), int(low.sum())

    def _marked(self, values: pl.Series, schema: Schema) -> pl.Series:
        if self.column in schema.columns:
            raise ConfigError(
                f"column {self.column!r} marks low-risk rows and is learned from too",
                hint="List it in data.drop of site.toml, or mark the rows in a column of its own",
            )
        whole = values.dtype == pl.Boolean or values.dtype.is_integer()
        if not whole or not values.drop_nulls().cast(pl.Int64).is_in([0, 1]).all():
            raise ConfigError(
                f"column {self.column!r} marks low-risk rows and holds more than 0 and 1",
                hint="Use 1 (or true) for low-risk rows and 0 (or false) for all others",
            )
        return values.cast(pl.Boolean).fill_null(value=False)


def low_risk_rule(text: str) -> LowRisk | None:
    """The rule of `site.low_risk`.

    Args:
        text: "column:NAME", "below:COLUMN:NUMBER", or nothing.

    Returns:
        The rule; None when nothing is declared.

    Raises:
        ConfigError: The text has another form.
    """
    if not text:
        return None
    kind, _, rest = text.partition(":")
    if kind == "column" and rest:
        return LowRisk(rest)
    below = below_rule(text)
    if below is None:
        raise ConfigError(f"cannot read site.low_risk = {text!r}", hint=_FORMS)
    return LowRisk(*below)


def cluster_of(text: str, frame: pl.DataFrame) -> str:
    """The cluster that `site.cluster` names.

    Args:
        text: Its name, or "column:NAME" for the one value that all rows have there.
        frame: The site's table.

    Returns:
        The name; empty where none is declared.

    Raises:
        ConfigError: There is no such column, or its rows do not share one value.
    """
    kind, colon, column = text.partition(":")
    if kind != "column" or not colon:
        return check_cluster_name(text) if text else ""
    if column not in frame.columns:
        raise ConfigError(
            f"site.cluster names column {column!r}, and the table has no such column",
            hint=nearest(column, frame.columns),
        )
    found = category_text(frame[column]).unique()
    if len(found) != 1 or found.null_count():
        raise ConfigError(
            f"the rows of this site do not share one value of {column!r}, so it names no cluster",
            hint='Name the cluster itself: cluster = "north"',
        )
    return check_cluster_name(str(found[0]))
