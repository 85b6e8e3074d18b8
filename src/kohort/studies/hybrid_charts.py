"""Figure 2 as an SVG file: stacked bars of rows by target, one bar a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kohort.files import write_atomic
from kohort.report.charts import SERIES

__all__ = ["draw_targets"]


def draw_targets(path: Path, *, title: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """`rows` hold cluster, target and rows."""
    import altair as alt
    import vl_convert

    targets = list(dict.fromkeys(str(row["target"]) for row in rows))
    colors = alt.Scale(domain=targets, range=[SERIES[place % len(SERIES)] for place in range(len(targets))])
    chart = (
        alt.Chart(alt.InlineData(values=[dict(row) for row in rows]))
        .mark_bar()
        .encode(
            x=alt.X("cluster:O", title="cluster", axis=alt.Axis(labelAngle=0, grid=False, labelOverlap=True)),
            y=alt.Y("sum(rows):Q", title="training rows"),
            color=alt.Color("target:N", scale=colors, legend=alt.Legend(orient="bottom", title=None, columns=7)),
        )
        .properties(width=520, height=260, title=title)
        .configure(background="white", font="sans-serif", padding=12)
        .configure_view(stroke=None)
        .configure_title(anchor="start", fontSize=13, fontWeight="normal", offset=10)
    )
    write_atomic(path, str(vl_convert.vegalite_to_svg(chart.to_dict())).encode())
    return path
