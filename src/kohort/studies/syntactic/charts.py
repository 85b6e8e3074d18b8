"""The study's figures as SVG files: measures by k and by epsilon, on logarithmic axes."""

from __future__ import annotations

from pathlib import Path

from kohort.studies.harness.drawing import Rows, series, write_chart

__all__ = ["draw_by", "draw_ways"]


def draw_by(path: Path, *, title: str, rows: Rows, x: str) -> Path:
    """One panel for each `panel`, one line for each `series`."""
    import altair as alt

    ticks = sorted({float(row["x"]) for row in rows})
    color, dash = series(list(dict.fromkeys(str(row["series"]) for row in rows)))
    across = alt.X(
        "x:Q",
        title=x,
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(values=ticks, format="~g", grid=False),
    )
    panels = []
    for panel in dict.fromkeys(str(row["panel"]) for row in rows):
        values = [dict(row) for row in rows if row["panel"] == panel]
        base = alt.Chart(alt.InlineData(values=values), title=alt.TitleParams(panel, fontSize=12))
        drawn = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=36))
        up = alt.Y("y:Q", title=panel, scale=alt.Scale(zero=False), axis=alt.Axis(format=".2f"))
        panels.append(drawn.encode(x=across, y=up, color=color, strokeDash=dash).properties(width=300, height=240))
    return write_chart(path, alt.hconcat(*panels, spacing=36).properties(title=title))


def draw_ways(path: Path, *, title: str, rows: Rows) -> Path:
    """From the lowest to the highest measure of every way to learn, one panel a learner."""
    import altair as alt

    ways = list(dict.fromkeys(str(row["way"]) for row in rows))
    panels = []
    for panel in dict.fromkeys(str(row["panel"]) for row in rows):
        values = [dict(row) for row in rows if row["panel"] == panel]
        base = alt.Chart(alt.InlineData(values=values), title=alt.TitleParams(panel, fontSize=12))
        across = alt.Y("way:N", sort=ways, title=None, axis=alt.Axis(grid=False, ticks=False, domain=False))
        low = alt.X("low:Q", title="macro F1", scale=alt.Scale(zero=False))
        span = base.mark_rule(strokeWidth=3, color="#9aa5b1").encode(y=across, x=low, x2="high:Q")
        ends = [base.mark_point(filled=True, size=50).encode(y=across, x=alt.X(f"{end}:Q")) for end in ("low", "high")]
        panels.append(alt.layer(span, *ends).properties(width=260, height=alt.Step(26)))
    return write_chart(path, alt.hconcat(*panels, spacing=36).properties(title=title))
