"""The study's figures as SVG files: lines by panel, and stacked bars of seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kohort.report.charts import SERIES
from kohort.studies.harness.drawing import Rows, series, write_chart

if TYPE_CHECKING:
    pass

__all__ = ["draw_lines", "draw_seconds"]

PARTS = ("server", "slowest client", "transfer")


def draw_lines(
    path: Path, *, title: str, rows: Rows, x: str, y: str, percent: bool = False, dots: bool = False
) -> Path:
    """One panel for each `panel`, one line for each `series`; `x` and `y` of a row are drawn under these names."""
    import altair as alt

    style = "%" if percent else ".2f"
    across = alt.X("x:Q", title=x, scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(format="d", grid=False))
    up = alt.Y("y:Q", title=y, scale=alt.Scale(zero=percent), axis=alt.Axis(format=style))
    color, dash = series(list(dict.fromkeys(str(row["series"]) for row in rows)))
    panels = []
    for panel in dict.fromkeys(str(row["panel"]) for row in rows):
        values = [dict(row) for row in rows if row["panel"] == panel]
        base = alt.Chart(alt.InlineData(values=values), title=alt.TitleParams(panel, fontSize=12))
        drawn = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=36) if dots else False)
        panels.append(drawn.encode(x=across, y=up, color=color, strokeDash=dash).properties(width=380, height=260))
    return write_chart(path, alt.hconcat(*panels, spacing=36).resolve_scale(y="shared").properties(title=title))


def draw_seconds(path: Path, *, title: str, rows: Rows) -> Path:
    """Stacked bars; `rows` hold panel, setting and seconds by part."""
    import altair as alt

    order = list(dict.fromkeys(str(row["setting"]) for row in rows))
    scale = alt.Scale(domain=list(PARTS), range=list(SERIES[: len(PARTS)]))
    panels = []
    for panel in dict.fromkeys(str(row["panel"]) for row in rows):
        values = [
            {"setting": row["setting"], "part": part, "rank": rank, "seconds": row[part]}
            for row in rows
            if row["panel"] == panel
            for rank, part in enumerate(PARTS)
        ]
        bars = alt.Chart(alt.InlineData(values=values), title=alt.TitleParams(panel, fontSize=12)).mark_bar()
        panels.append(
            bars.encode(
                y=alt.Y("setting:N", sort=order, title=None, axis=alt.Axis(grid=False, ticks=False, domain=False)),
                x=alt.X("sum(seconds):Q", title="seconds"),
                color=alt.Color("part:N", scale=scale, legend=alt.Legend(orient="bottom", title=None)),
                order=alt.Order("rank:Q"),
            ).properties(width=380, height=alt.Step(22))
        )
    return write_chart(path, alt.hconcat(*panels, spacing=36).properties(title=title))
