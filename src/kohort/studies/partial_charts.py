"""The study's figures as SVG files: lines by panel, and stacked bars of seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.files import write_atomic
from kohort.report.charts import SERIES

if TYPE_CHECKING:
    import altair as alt

__all__ = ["draw_lines", "draw_seconds"]

Rows = Sequence[Mapping[str, Any]]
_INK = "#1f2933"
PARTS = ("server", "slowest client", "transfer")


def draw_lines(
    path: Path, *, title: str, rows: Rows, x: str, y: str, percent: bool = False, dots: bool = False
) -> Path:
    """One panel for each `panel`, one line for each `series`; `x` and `y` of a row are drawn under these names."""
    import altair as alt

    style = "%" if percent else ".2f"
    across = alt.X("x:Q", title=x, scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(format="d", grid=False))
    up = alt.Y("y:Q", title=y, scale=alt.Scale(zero=percent), axis=alt.Axis(format=style))
    color, dash = _series(list(dict.fromkeys(str(row["series"]) for row in rows)))
    panels = []
    for panel in dict.fromkeys(str(row["panel"]) for row in rows):
        values = [dict(row) for row in rows if row["panel"] == panel]
        base = alt.Chart(alt.InlineData(values=values), title=alt.TitleParams(panel, fontSize=12))
        drawn = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=36) if dots else False)
        panels.append(drawn.encode(x=across, y=up, color=color, strokeDash=dash).properties(width=380, height=260))
    return _write(path, alt.hconcat(*panels, spacing=36).resolve_scale(y="shared").properties(title=title))


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
    return _write(path, alt.hconcat(*panels, spacing=36).properties(title=title))


def _series(names: Sequence[str]) -> tuple[alt.Color, alt.StrokeDash]:
    import altair as alt

    legend = alt.Legend(orient="bottom", title=None, columns=5, labelLimit=260) if len(names) > 1 else None
    colors = alt.Scale(domain=list(names), range=[SERIES[place % len(SERIES)] for place in range(len(names))])
    dashes = alt.Scale(domain=list(names), range=[[1, 0] if place % 2 == 0 else [6, 3] for place in range(len(names))])
    return (
        alt.Color("series:N", scale=colors, legend=legend),
        alt.StrokeDash("series:N", scale=dashes, legend=legend),
    )


def _write(path: Path, chart: Any) -> Path:
    import vl_convert

    drawn = (
        chart.configure(background="white", font="sans-serif", padding=12)
        .configure_view(stroke=None)
        .configure_axis(labelColor=_INK, titleColor=_INK, titleFontWeight="normal", gridColor="#e4e7eb")
        .configure_title(color=_INK, anchor="start", fontSize=13, fontWeight="normal", offset=10)
        .configure_legend(labelColor=_INK)
    )
    write_atomic(path, str(vl_convert.vegalite_to_svg(drawn.to_dict())).encode())
    return path
