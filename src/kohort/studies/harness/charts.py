"""The charts of all studies, as SVG files in one look: lines, points, stacked bars, bars with labels, and ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.files import write_atomic
from kohort.report.charts import SERIES

if TYPE_CHECKING:
    import altair as alt

__all__ = ["Points", "curve_points", "labelled_bars", "line_chart", "point", "range_chart", "scatter_plot",
           "stacked_bars"]  # fmt: skip

Points = Sequence[Mapping[str, Any]]
INK = "#1f2933"


def point(panel: str, series: str, x: float, y: float) -> dict[str, Any]:
    """One point of a line or a scatter plot.

    Args:
        panel: The panel it is drawn in.
        series: The line, or the colour and shape, it belongs to.
        x: Its place on the horizontal axis.
        y: Its place on the vertical axis.

    Returns:
        The point, as the charts here take it.
    """
    return {"panel": panel, "series": series, "x": x, "y": y}


def curve_points(panel: str, series: str, values: Iterable[float]) -> list[dict[str, Any]]:
    """The points of a curve by round, from round 1 on.

    Args:
        panel: The panel the curve is drawn in.
        series: Its name.
        values: One value per round.

    Returns:
        One point per value.
    """
    return [point(panel, series, number, value) for number, value in enumerate(values, start=1)]


def line_chart(
    path: Path,
    *,
    title: str,
    points: Points,
    x: str,
    y: str = "",
    y_format: str | Mapping[str, str] = ".2f",
    dots: bool = False,
    log: bool = False,
    zero: bool = False,
) -> Path:
    """Lines: one panel per `panel` of the points, one line per `series`.

    Args:
        path: The SVG file to write.
        title: Title of the chart.
        points: As `point` makes them.
        x: Title of the horizontal axis.
        y: Title of the vertical axis, which the panels share. Without it every panel has an axis of its own, named
            after the panel.
        y_format: Number format of the vertical axis, or one per panel.
        dots: Mark the points on the lines.
        log: A logarithmic horizontal axis with a tick at every value.
        zero: Begin the vertical axis at 0.

    Returns:
        The path.
    """
    import altair as alt

    scale, axis = alt.Scale(zero=False, nice=False), alt.Axis(format="d", grid=False)
    if log:
        scale = alt.Scale(type="log", nice=False)
        axis = alt.Axis(values=sorted({float(one["x"]) for one in points}), format="~g", grid=False)
    across = alt.X("x:Q", title=x, scale=scale, axis=axis)
    color, dash = _series(points)
    width = 380 if len(_names(points, "panel")) > 1 else 620

    def draw_one(base: alt.Chart, name: str) -> Any:
        form = y_format if isinstance(y_format, str) else y_format[name]
        up = alt.Y("y:Q", title=y or name, scale=alt.Scale(zero=zero), axis=alt.Axis(format=form))
        drawn = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=36) if dots else False)
        return drawn.encode(x=across, y=up, color=color, strokeDash=dash).properties(width=width, height=260)

    chart = _side_by_side(points, draw_one)
    return _write(path, chart.resolve_scale(y="shared") if y else chart, title)


def scatter_plot(path: Path, *, title: str, points: Points, x: str, y: str, x_format: str = ".2f") -> Path:
    """Points in one panel; each `series` has a colour and a shape.

    Args:
        path: The SVG file to write.
        title: Title of the chart.
        points: As `point` makes them.
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
        x_format: Number format of the horizontal axis.

    Returns:
        The path.
    """
    import altair as alt

    color, _ = _series(points)
    chart = alt.Chart(alt.InlineData(values=[dict(one) for one in points])).mark_point(
        filled=True, size=60, opacity=0.8
    )
    chart = chart.encode(
        x=alt.X("x:Q", title=x, axis=alt.Axis(format=x_format)),
        y=alt.Y("y:Q", title=y, scale=alt.Scale(zero=False)),
        color=color,
        shape=alt.Shape("series:N", legend=None),
    )
    return _write(path, chart.properties(width=620, height=300), title)


def stacked_bars(
    path: Path, *, title: str, rows: Points, bars: str | None, values: str, horizontal: bool = False
) -> Path:
    """Stacked bars, one panel per `panel`; a row has panel, bar, part and value.

    Args:
        path: The SVG file to write.
        title: Title of the chart.
        rows: One per part of a bar. The parts are stacked in the order in which they first appear.
        bars: Title of the axis of the bars.
        values: Title of the axis of values.
        horizontal: Draw the bars from left to right.

    Returns:
        The path.
    """
    import altair as alt

    parts = _names(rows, "part")
    ranked = [{**row, "rank": parts.index(str(row["part"]))} for row in rows]
    color = alt.Color("part:N", scale=_colors(parts), legend=alt.Legend(orient="bottom", title=None, columns=7))

    def draw_one(base: alt.Chart, name: str) -> Any:
        del name
        drawn = base.mark_bar().encode(color=color, order=alt.Order("rank:Q"))
        if horizontal:
            bar = alt.Y("bar:N", sort=_names(rows, "bar"), title=bars, axis=_bare_axis())
            return drawn.encode(y=bar, x=alt.X("sum(value):Q", title=values)).properties(width=380, height=alt.Step(22))
        across = alt.X("bar:O", title=bars, axis=alt.Axis(labelAngle=0, grid=False, labelOverlap=True))
        return drawn.encode(x=across, y=alt.Y("sum(value):Q", title=values)).properties(width=520, height=260)

    return _write(path, _side_by_side(ranked, draw_one), title)


def labelled_bars(path: Path, *, title: str, values: Mapping[str, float], x: str, top: float) -> Path:
    """Horizontal bars with their values beside them, in the order given; the axis ends at `top`.

    Args:
        path: The SVG file to write.
        title: Title of the chart.
        values: The length of each bar, by its name.
        x: Title of the axis.
        top: The end of the axis; charts that are compared have the same.

    Returns:
        The path.
    """
    import altair as alt

    data = alt.Chart(alt.InlineData(values=[{"bar": name, "value": value} for name, value in values.items()]))
    y = alt.Y("bar:N", sort=list(values), title=None, axis=_bare_axis())
    across = alt.X("value:Q", title=x, scale=alt.Scale(domain=[0, top], nice=True))
    bars = data.mark_bar(color=SERIES[0], height={"band": 0.7}).encode(y=y, x=across)
    text = data.mark_text(align="left", dx=4, color=INK).encode(y=y, x=across, text=alt.Text("value:Q", format=".3f"))
    return _write(path, alt.layer(bars, text).properties(width=520, height=alt.Step(24)), title)


def range_chart(path: Path, *, title: str, rows: Points, x: str) -> Path:
    """A range from `low` to `high` per `bar`, one panel per `panel`.

    Args:
        path: The SVG file to write.
        title: Title of the chart.
        rows: Mappings with `panel`, `bar`, `low` and `high`.
        x: Title of the horizontal axis.

    Returns:
        The path.
    """
    import altair as alt

    def draw_one(base: alt.Chart, name: str) -> Any:
        del name
        y = alt.Y("bar:N", sort=_names(rows, "bar"), title=None, axis=_bare_axis())
        low = alt.X("low:Q", title=x, scale=alt.Scale(zero=False))
        span = base.mark_rule(strokeWidth=3, color="#9aa5b1").encode(y=y, x=low, x2="high:Q")
        ends = [base.mark_point(filled=True, size=50).encode(y=y, x=alt.X(f"{end}:Q")) for end in ("low", "high")]
        return alt.layer(span, *ends).properties(width=260, height=alt.Step(26))

    return _write(path, _side_by_side(rows, draw_one), title)


def _names(rows: Points, field: str) -> list[str]:
    """The values of a field, in the order in which they first appear."""
    return list(dict.fromkeys(str(row[field]) for row in rows))


def _bare_axis() -> alt.Axis:
    import altair as alt

    return alt.Axis(grid=False, ticks=False, domain=False)


def _colors(names: Sequence[str]) -> alt.Scale:
    import altair as alt

    return alt.Scale(domain=list(names), range=[SERIES[place % len(SERIES)] for place in range(len(names))])


def _series(rows: Points) -> tuple[alt.Color, alt.StrokeDash]:
    """Colour and dash of each series, so that they differ without colour too; a single series needs no legend."""
    import altair as alt

    names = _names(rows, "series")
    legend = alt.Legend(orient="bottom", title=None, columns=5, labelLimit=420) if len(names) > 1 else None
    dashes = alt.Scale(domain=names, range=[[1, 0] if place % 2 == 0 else [6, 3] for place in range(len(names))])
    return (
        alt.Color("series:N", scale=_colors(names), legend=legend),
        alt.StrokeDash("series:N", scale=dashes, legend=legend),
    )


def _side_by_side(rows: Points, draw: Callable[[Any, str], Any]) -> alt.HConcatChart:
    """The panels side by side, each drawn from its own rows under its name."""
    import altair as alt

    drawn = []
    for name in _names(rows, "panel"):
        values = [dict(row) for row in rows if str(row["panel"]) == name]
        drawn.append(draw(alt.Chart(alt.InlineData(values=values), title=alt.TitleParams(name, fontSize=12)), name))
    return alt.hconcat(*drawn, spacing=36)


def _write(path: Path, chart: Any, title: str) -> Path:
    """The chart in the look of all studies, as an SVG file that is whole or not there."""
    import vl_convert

    drawn = (
        chart.properties(title=title)
        .configure(background="white", font="sans-serif", padding=12)
        .configure_view(stroke=None)
        .configure_axis(labelColor=INK, titleColor=INK, titleFontWeight="normal", gridColor="#e4e7eb")
        .configure_title(color=INK, anchor="start", fontSize=13, fontWeight="normal", offset=10)
        .configure_legend(labelColor=INK)
    )
    write_atomic(path, str(vl_convert.vegalite_to_svg(drawn.to_dict())).encode())
    return path
