"""What the figures of all studies have in common: the look, the colours of series, and SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.files import write_atomic
from kohort.report.charts import SERIES

if TYPE_CHECKING:
    import altair as alt

__all__ = ["INK", "Rows", "color_scale", "series", "write_chart"]

Rows = Sequence[Mapping[str, Any]]
INK = "#1f2933"


def color_scale(names: Sequence[str]) -> alt.Scale:
    """A colour for each name, in the order of the report's series."""
    import altair as alt

    return alt.Scale(domain=list(names), range=[SERIES[place % len(SERIES)] for place in range(len(names))])


def series(names: Sequence[str], *, field: str = "series", columns: int = 5) -> tuple[alt.Color, alt.StrokeDash]:
    """Colour and dash of each name, told apart without colour too; one name alone needs no legend."""
    import altair as alt

    legend = alt.Legend(orient="bottom", title=None, columns=columns, labelLimit=260) if len(names) > 1 else None
    dashes = alt.Scale(domain=list(names), range=[[1, 0] if place % 2 == 0 else [6, 3] for place in range(len(names))])
    return (
        alt.Color(f"{field}:N", scale=color_scale(names), legend=legend),
        alt.StrokeDash(f"{field}:N", scale=dashes, legend=legend),
    )


def write_chart(path: Path, chart: Any) -> Path:
    """The chart in the look of all studies, as an SVG file that is whole or not there."""
    import vl_convert

    drawn = (
        chart.configure(background="white", font="sans-serif", padding=12)
        .configure_view(stroke=None)
        .configure_axis(labelColor=INK, titleColor=INK, titleFontWeight="normal", gridColor="#e4e7eb")
        .configure_title(color=INK, anchor="start", fontSize=13, fontWeight="normal", offset=10)
        .configure_legend(labelColor=INK)
    )
    write_atomic(path, str(vl_convert.vegalite_to_svg(drawn.to_dict())).encode())
    return path
