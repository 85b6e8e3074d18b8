"""Figure 2 as an SVG file: stacked bars of rows by target, one bar a cluster."""

from __future__ import annotations

from pathlib import Path

from kohort.studies.harness.drawing import Rows, color_scale, write_chart

__all__ = ["draw_targets"]


def draw_targets(path: Path, *, title: str, rows: Rows) -> Path:
    """`rows` hold cluster, target and rows."""
    import altair as alt

    targets = list(dict.fromkeys(str(row["target"]) for row in rows))
    chart = (
        alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))
        .mark_bar()
        .encode(
            x=alt.X("cluster:O", title="cluster", axis=alt.Axis(labelAngle=0, grid=False, labelOverlap=True)),
            y=alt.Y("sum(rows):Q", title="training rows"),
            color=alt.Color(
                "target:N", scale=color_scale(targets), legend=alt.Legend(orient="bottom", title=None, columns=7)
            ),
        )
        .properties(width=520, height=260, title=title)
    )
    return write_chart(path, chart)
