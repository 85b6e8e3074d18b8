"""The charts of a report, as inline SVG.

Text and grid use `currentColor`, so a chart follows the page's light or dark theme. The colours of the series have a
contrast of at least 3 to 1 on both backgrounds. Every number of a chart is also in a table of the page. Texts of a run
enter a chart only as data, which the renderer escapes.

Every function returns None when there is nothing to draw.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from kohort.report.words import Kind, kinds_in_order
from kohort.tables.memory import require_address_space

if TYPE_CHECKING:
    import altair as alt

    from kohort.report.runs import Run

__all__ = [
    "SERIES",
    "bytes_by_kind",
    "drawn",
    "get_ready",
    "is_course",
    "score_by_round",
    "score_by_site",
    "score_distribution",
    "seconds_by_part",
]

SERIES = ("#3b82c4", "#d07a1e", "#2f9e64", "#9a6dd0", "#d6504b", "#1f93a5", "#a9744f", "#c2649a")
"""Colours of the series, in order; also those of the studies' figures."""
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
_WIDTH = 936
"""Width of a chart with its labels: the width of the page's column, so that text is not scaled."""
_ROOM = 14
"""Left of labels: a page's own font may be wider than the one they were measured in."""
_SHAPES = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down")
_POINTS_PER_LINE = 400
_RENDERER = 70 * 2**30
"""Bytes of addresses that the renderer reserves when it starts: measured 64.3 GiB. Few of them are ever used."""
_BINS = 40
_PARTS = (("slowest_site", "slowest site", SERIES[0]), ("hub", "hub", SERIES[1]), ("transfer", "transfer", SERIES[2]))

_TAG = re.compile(r"<[a-zA-Z][^>]*>")
_ROLE = re.compile(r' (?:role|aria-[a-z]+)="[^"]*"')
Rows = list[dict[str, Any]]


def score_by_round(runs: Sequence[Run], *, title: str) -> str | None:
    """Score after each round, one line per run; a run that was only measured at its end is a horizontal line.

    Args:
        runs: Runs with comparable scores.
        title: The label of the vertical axis.

    Returns:
        The SVG; None where no run was measured during training.
    """
    import altair as alt

    lines: Rows = []
    levels: Rows = []
    for run in runs:
        if is_course(run):
            lines += [{"run": run.label, "round": p["round"], "score": p["accuracy"]} for p in _thinned(_measured(run))]
        elif _is_number(run.score):
            levels.append({"run": run.label, "score": run.score})
    if not lines:
        return None
    first, last = min(row["round"] for row in lines), max(row["round"] for row in lines)
    y = alt.Y("score:Q", title=title, scale=alt.Scale(zero=False, nice=True), axis=alt.Axis(format="~g", tickCount=6))
    color, dash = _run_scales(runs)
    drawn: list[alt.Chart] = [
        alt.Chart(alt.InlineData(values=lines))
        .mark_line(strokeWidth=2.25, strokeJoin="round")
        .encode(
            x=alt.X(
                "round:Q",
                title="round",
                scale=alt.Scale(zero=False, nice=False),
                axis=alt.Axis(grid=False, format="d", tickCount=min(10, int(last - first))),
            ),
            y=y,
            color=color,
            strokeDash=dash,
        )
    ]
    if levels:
        drawn.append(
            alt.Chart(alt.InlineData(values=levels)).mark_rule(strokeWidth=2).encode(y=y, color=color, strokeDash=dash)
        )
    return _svg(alt.layer(*drawn).properties(width=_WIDTH, height=260))


def bytes_by_kind(runs: Sequence[Run]) -> str | None:
    """Megabytes that left the sites in each run, as stacked bars by kind of guarantee.

    Args:
        runs: The runs to show, one bar each.

    Returns:
        The SVG; None where nothing left.
    """
    rows = [
        {"run": run.label, "kind": item.shown.label, "size": item.size / 1e6, "rank": rank}
        for run in runs
        for rank, item in enumerate(run.disclosed)
    ]
    kinds = kinds_in_order({item.shown.name for run in runs for item in run.disclosed})
    return _bars(rows, runs, part="kind", value="size", title="megabytes that left the sites", kinds=kinds)


def seconds_by_part(runs: Sequence[Run]) -> str | None:
    """Seconds of each run if all sites work in parallel, as stacked bars: slowest site, hub, transfer.

    Args:
        runs: The runs to show, one bar each.

    Returns:
        The SVG; None where no run says how long it took.
    """
    rows = [
        {"run": run.label, "part": label, "seconds": run.seconds[key]}
        for run in runs
        for key, label, _ in _PARTS
        if _is_number(run.seconds.get(key))
    ]
    kinds = [Kind(key, label, "", color, "") for key, label, color in _PARTS]
    return _bars(rows, runs, part="part", value="seconds", title="seconds, with sites in parallel", kinds=kinds)


def score_by_site(runs: Sequence[Run], sites: Sequence[str], *, title: str) -> str | None:
    """Score on each site's own test rows: one row per site, one dot per run.

    Args:
        runs: Runs with comparable scores.
        sites: The sites to show, from top to bottom.
        title: The label of the horizontal axis.

    Returns:
        The SVG; None where no site has a score.
    """
    import altair as alt

    rows = [
        {"run": run.label, "site": site, "score": score}
        for run in runs
        for site in sites
        if _is_number(score := run.score_of(run.by_site.get(site, {})))
    ]
    if not rows:
        return None
    y = alt.Y(
        "site:N", sort=list(sites), title=None, axis=alt.Axis(grid=False, labelLimit=220, ticks=False, domain=False)
    )
    scale = alt.Scale(zero=False, nice=False, padding=12)
    x = alt.X("score:Q", title=title, scale=scale, axis=alt.Axis(format="~g", tickCount=8))
    base = alt.Chart(alt.InlineData(values=rows))
    span = base.mark_rule(color="currentColor", opacity=0.25, strokeWidth=1.5).encode(
        y=y, x=alt.X("min(score):Q", title=title), x2="max(score):Q"
    )
    labels = [run.label for run in runs]
    shapes = [_SHAPES[place % len(_SHAPES)] for place in range(len(labels))]
    shape = alt.Shape("run:N", scale=alt.Scale(domain=labels, range=shapes), legend=_legend_of(labels))
    dots = base.mark_point(filled=True, size=90, opacity=0.9).encode(y=y, x=x, color=_run_scales(runs)[0], shape=shape)
    return _svg(alt.layer(span, dots).properties(width=_WIDTH, height=alt.Step(24)))


def score_distribution(runs: Sequence[Run], *, title: str) -> str | None:
    """Histogram of the sites' scores, one stepped line per run: for more sites than a page can name.

    Args:
        runs: Runs with comparable scores.
        title: The label of the horizontal axis.

    Returns:
        The SVG; None where no site has a score.
    """
    import altair as alt

    scores = {
        run.label: [score for found in run.by_site.values() if _is_number(score := run.score_of(found))] for run in runs
    }
    known = [score for found in scores.values() for score in found if score is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    step = (high - low) / _BINS or 1.0
    rows: Rows = []
    for label, found in scores.items():
        sites = [0] * (_BINS + 1)
        for score in found:
            sites[int((float(score or 0) - low) / step)] += 1
        rows += [{"run": label, "score": low + step * (place + 0.5), "sites": n} for place, n in enumerate(sites)]
    color, dash = _run_scales(runs)
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(interpolate="step", strokeWidth=2)
        .encode(
            x=alt.X(
                "score:Q",
                title=title,
                scale=alt.Scale(zero=False),
                axis=alt.Axis(grid=False, format=".2f", tickCount=10),
            ),
            y=alt.Y("sites:Q", title="sites", axis=alt.Axis(tickMinStep=1)),
            color=color,
            strokeDash=dash,
        )
        .properties(width=_WIDTH, height=220)
    )
    return _svg(chart)


def _bars(rows: Rows, runs: Sequence[Run], *, part: str, value: str, title: str, kinds: Sequence[Kind]) -> str | None:
    import altair as alt

    if not rows:
        return None
    order = {kind.label: place for place, kind in enumerate(kinds)}
    values = [{**row, "rank": order[row[part]]} for row in rows]
    scale = alt.Scale(domain=[kind.label for kind in kinds], range=[kind.color for kind in kinds])
    chart = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar(height={"band": 0.72})
        .encode(
            y=alt.Y(
                "run:N",
                sort=[run.label for run in runs],
                title=None,
                axis=alt.Axis(grid=False, labelLimit=220, ticks=False, domain=False),
            ),
            x=alt.X(f"sum({value}):Q", title=title, axis=alt.Axis(tickCount=6)),
            color=alt.Color(f"{part}:N", scale=scale, legend=_legend(len(kinds))),
            order=alt.Order("rank:Q"),
        )
        .properties(width=_WIDTH, height=alt.Step(34))
    )
    return _svg(chart)


def _run_scales(runs: Sequence[Run]) -> tuple[alt.Color, alt.StrokeDash]:
    """Colour and dash of each run, the same in every chart; dashes distinguish runs that share a colour."""
    import altair as alt

    labels = [run.label for run in runs]
    colors = [SERIES[place % len(SERIES)] for place in range(len(labels))]
    dashes = [_DASHES[place // len(SERIES) % len(_DASHES)] for place in range(len(labels))]
    legend = _legend_of(labels)
    return (
        alt.Color("run:N", scale=alt.Scale(domain=labels, range=colors), legend=legend),
        alt.StrokeDash("run:N", scale=alt.Scale(domain=labels, range=dashes), legend=legend),
    )


def _legend_of(labels: Sequence[str]) -> alt.Legend | None:
    return _legend(len(labels)) if len(labels) > 1 else None


def _legend(entries: int) -> alt.Legend:
    import altair as alt

    return alt.Legend(orient="top", title=None, columns=min(entries, 5), labelLimit=180)


def get_ready() -> None:
    """Load what makes charts and start the renderer: whoever has something else to do meanwhile calls this in a thread.

    Raises:
        ResourceError: A limit on addresses leaves fewer than the renderer reserves.
    """
    import altair  # noqa: F401

    _rendered({"data": {"values": []}, "mark": "point"})


def _rendered(chart: Mapping[str, Any]) -> str:
    """A chart as SVG."""
    import vl_convert

    _require_addresses()
    return str(vl_convert.vegalite_to_svg(dict(chart)))


@cache
def _require_addresses() -> None:
    """The renderer holds a JavaScript engine, which ends the process where it cannot reserve enough, once."""
    require_address_space(0, "charts", reserved=_RENDERER, doing="drawing")


def _svg(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> str:
    return drawn(chart)


def drawn(chart: Any, *, fit: bool = True) -> str:
    """A chart in the style of the page, as SVG.

    Args:
        chart: An Altair chart.
        fit: Whether the width includes axes and labels; charts side by side have widths of their own.

    Returns:
        The SVG.
    """
    import altair as alt

    ink: Mapping[str, Any] = {"labelColor": "currentColor", "titleColor": "currentColor"}
    drawn = (
        chart.configure(
            aria=False,
            autosize=alt.AutoSizeParams(type="fit-x" if fit else "pad", contains="padding"),
            background="transparent",
            font="sans-serif",
            padding={"left": _ROOM, "top": 2, "right": 2, "bottom": 2},
        )
        .configure_view(stroke=None)
        .configure_axis(
            **ink,
            gridColor="currentColor",
            gridOpacity=0.14,
            domainColor="currentColor",
            domainOpacity=0.4,
            tickColor="currentColor",
            tickOpacity=0.4,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=10,
            labelPadding=6,
        )
        .configure_legend(
            **ink, labelFontSize=12, symbolSize=120, symbolStrokeWidth=2.5, columnPadding=24, rowPadding=6, offset=12
        )
    )
    return _presentational(_rendered(drawn.to_dict()))


def _presentational(svg: str) -> str:
    """Without roles of single marks: the figure around a chart says what it shows, and its table has the numbers."""
    return _TAG.sub(lambda tag: _ROLE.sub("", tag[0]), svg)


def is_course(run: Run) -> bool:
    """Whether a line can show how training went: not for a model that was measured at its end alone, or at both ends.

    Args:
        run: The run to draw.

    Returns:
        True with more than two measured rounds, or with two that are the whole history.
    """
    return len(_measured(run)) > 2 or len(_measured(run)) == len(run.history) == 2


def _measured(run: Run) -> list[dict[str, float | None]]:
    return [point for point in run.history if _is_number(point.get("accuracy")) and _is_number(point.get("round"))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _thinned(points: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """At most `_POINTS_PER_LINE` of the points, evenly spaced, with the first and the last."""
    if len(points) <= _POINTS_PER_LINE:
        return points
    last = len(points) - 1
    return [points[round(place * last / (_POINTS_PER_LINE - 1))] for place in range(_POINTS_PER_LINE)]
