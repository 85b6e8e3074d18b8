"""The study's figures as SVG files: loss and partitions by k, association by column, accuracy by loss and by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.files import write_atomic
from kohort.report.charts import SERIES

if TYPE_CHECKING:
    import altair as alt

__all__ = ["association_bars", "lines_by_k", "points_by_loss", "scores_by_round"]

Rows = Sequence[Mapping[str, Any]]
_INK = "#1f2933"


def lines_by_k(path: Path, *, title: str, rows: Rows) -> Path:
    """Information loss, and partitions, against k; `rows` hold variant, k, loss, partitions."""
    import altair as alt

    base = alt.Chart(alt.InlineData(values=list(rows))).mark_line(point=True, strokeWidth=2)
    x = alt.X("k:Q", title="k", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(format="d", grid=False))
    loss = alt.Y("loss:Q", title="information loss", axis=alt.Axis(format=".0%"))
    partitions = alt.Y("partitions:Q", title="partitions")
    color, dash = _series("variant", list(dict.fromkeys(row["variant"] for row in rows)))
    panels = [
        base.encode(x=x, y=y, color=color, strokeDash=dash).properties(width=330, height=240)
        for y in (loss, partitions)
    ]
    return _write(path, alt.hconcat(*panels, spacing=40).properties(title=title))


def association_bars(path: Path, *, title: str, values: Mapping[str, float], top: float) -> Path:
    """Association of each column with the target, the columns in table order; the axis ends at `top`."""
    import altair as alt

    rows = [{"column": name, "association": value} for name, value in values.items()]
    data = alt.Chart(alt.InlineData(values=rows))
    y = alt.Y("column:N", sort=list(values), title=None, axis=alt.Axis(grid=False, ticks=False, domain=False))
    x = alt.X("association:Q", title="association with the target", scale=alt.Scale(domain=[0, top], nice=True))
    text = alt.Text("association:Q", format=".3f")
    bars = data.mark_bar(color=SERIES[0], height={"band": 0.7}).encode(y=y, x=x)
    labels = data.mark_text(align="left", dx=4, color=_INK).encode(y=y, x=x, text=text)
    return _write(path, alt.layer(bars, labels).properties(width=520, height=alt.Step(24), title=title))


def points_by_loss(path: Path, *, title: str, rows: Rows) -> Path:
    """Accuracy against information loss; `rows` hold table, loss, accuracy."""
    import altair as alt

    color, _ = _series("table", list(dict.fromkeys(row["table"] for row in rows)))
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
    return _write(path, chart)


def scores_by_round(path: Path, *, title: str, rows: Rows) -> Path:
    """Accuracy after every round; `rows` hold run, round, accuracy."""
    import altair as alt

    color, dash = _series("run", list(dict.fromkeys(row["run"] for row in rows)))
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
    return _write(path, chart)


def _series(field: str, names: Sequence[str]) -> tuple[alt.Color, alt.StrokeDash]:
    import altair as alt

    legend = alt.Legend(orient="bottom", title=None, labelLimit=260) if len(names) > 1 else None
    colors = alt.Scale(domain=list(names), range=[SERIES[place % len(SERIES)] for place in range(len(names))])
    dashes = alt.Scale(domain=list(names), range=[[1, 0] if place % 2 == 0 else [6, 3] for place in range(len(names))])
    return alt.Color(f"{field}:N", scale=colors, legend=legend), alt.StrokeDash(
        f"{field}:N", scale=dashes, legend=legend
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
