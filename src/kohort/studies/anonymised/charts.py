"""The study's figures as SVG files: loss and partitions by k, association by column, accuracy by loss and by round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kohort.report.charts import SERIES
from kohort.studies.harness.drawing import INK, Rows, series, write_chart

if TYPE_CHECKING:
    pass

__all__ = ["association_bars", "lines_by_k", "points_by_loss", "scores_by_round"]


def lines_by_k(path: Path, *, title: str, rows: Rows) -> Path:
    """Information loss, and partitions, against k; `rows` hold variant, k, loss, partitions."""
    import altair as alt

    base = alt.Chart(alt.InlineData(values=list(rows))).mark_line(point=True, strokeWidth=2)
    x = alt.X("k:Q", title="k", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(format="d", grid=False))
    loss = alt.Y("loss:Q", title="information loss", axis=alt.Axis(format=".0%"))
    partitions = alt.Y("partitions:Q", title="partitions")
    color, dash = series(list(dict.fromkeys(row["variant"] for row in rows)), field="variant", columns=0)
    panels = [
        base.encode(x=x, y=y, color=color, strokeDash=dash).properties(width=330, height=240)
        for y in (loss, partitions)
    ]
    return write_chart(path, alt.hconcat(*panels, spacing=40).properties(title=title))


def association_bars(path: Path, *, title: str, values: Mapping[str, float], top: float) -> Path:
    """Association of each column with the target, the columns in table order; the axis ends at `top`."""
    import altair as alt

    rows = [{"column": name, "association": value} for name, value in values.items()]
    data = alt.Chart(alt.InlineData(values=rows))
    y = alt.Y("column:N", sort=list(values), title=None, axis=alt.Axis(grid=False, ticks=False, domain=False))
    x = alt.X("association:Q", title="association with the target", scale=alt.Scale(domain=[0, top], nice=True))
    text = alt.Text("association:Q", format=".3f")
    bars = data.mark_bar(color=SERIES[0], height={"band": 0.7}).encode(y=y, x=x)
    labels = data.mark_text(align="left", dx=4, color=INK).encode(y=y, x=x, text=text)
    return write_chart(path, alt.layer(bars, labels).properties(width=520, height=alt.Step(24), title=title))


def points_by_loss(path: Path, *, title: str, rows: Rows) -> Path:
    """Accuracy against information loss; `rows` hold table, loss, accuracy."""
    import altair as alt

    color, _ = series(list(dict.fromkeys(row["table"] for row in rows)), field="table", columns=0)
    chart = (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_point(filled=True, size=60, opacity=0.8)
        .encode(
            x=alt.X("loss:Q", title="information loss", axis=alt.Axis(format=".0%")),
            y=alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(zero=False)),
            color=color,
            shape=alt.Shape("table:N", legend=None),
        )
        .properties(width=620, height=300, title=title)
    )
    return write_chart(path, chart)


def scores_by_round(path: Path, *, title: str, rows: Rows) -> Path:
    """Accuracy after every round; `rows` hold run, round, accuracy."""
    import altair as alt

    color, dash = series(list(dict.fromkeys(row["run"] for row in rows)), field="run", columns=0)
    chart = (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("round:Q", title="round", axis=alt.Axis(format="d", grid=False)),
            y=alt.Y("accuracy:Q", title="accuracy on rows as they are", scale=alt.Scale(zero=False)),
            color=color,
            strokeDash=dash,
        )
        .properties(width=620, height=300, title=title)
    )
    return write_chart(path, chart)
