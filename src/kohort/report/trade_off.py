"""Several settings on one chart: how good each is beside what it gives away, whatever protects it.

A comparison's file says which runs belong to one setting and what protects it; every figure comes from the runs
themselves, as their ledgers and audits have them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kohort.errors import IntegrityError
from kohort.evaluate.choice import ADVANTAGE, MEMBERSHIP, figures_of, front, intervals_of, objectives, score_name
from kohort.report.charts import SERIES, drawn
from kohort.report.words import printable

__all__ = ["Point", "label_offsets", "named_by_setting", "points_of", "read_settings", "trade_off_chart"]

COMPARISON_FILE: Final = "compare.json"
_NAMES: Final = {
    "none": "no protection", "k": "k-anonymity", "l": "l-diversity", "t": "t-closeness", "epsilon": "noise (epsilon)",
    "masks": "masks", "encryption": "encryption",
}  # fmt: skip
_SHAPES: Final = ("cross", "circle", "square", "diamond", "triangle-up", "triangle-down", "triangle-right")
_WIDTH: Final = 936
_HEIGHT: Final = 340
_LABEL_STEP: Final = 11.0
"""Height of a label, in pixels."""
_LABEL_REACH: Final = 40.0
"""Labels this close to each other, in pixels across, must not overlap."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting.

    Attributes:
        label: Its keys, in words.
        protection: What protects it, in words.
        score: Accuracy or R2.
        low: Lower end of the score's 95 % interval.
        high: Upper end.
        attack: How far the best attack is above its guess, or the area under the curve of membership inference.
        readable: Bytes that a recipient can read.
        epsilon: Its budget; None without one.
        on_front: Whether no other setting beats it.
    """

    label: str
    protection: str
    score: float
    low: float
    high: float
    attack: float | None
    readable: float
    epsilon: float | None
    on_front: bool


def read_settings(folder: Path) -> list[dict[str, Any]]:
    """The settings of a comparison, with the folders of their runs; none where the folder holds no comparison.

    Args:
        folder: The folder of the runs.

    Returns:
        For each setting `label`, `protection` and `folders`.

    Raises:
        IntegrityError: The file is damaged.
    """
    path = folder / COMPARISON_FILE
    if not path.is_file():
        return []
    try:
        raw = printable(json.loads(path.read_bytes()))
        return [
            {
                "label": ", ".join(f"{value}" for value in line["set"].values()),
                "protection": line.get("protection"),
                "folders": [raw["folders"][place] for place in line["runs"]],
            }
            for line in raw["settings"]
        ]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{path} is not a comparison", hint="Compare again: kohort compare --resume") from error


def named_by_setting(
    settings: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], frozenset[str]]:
    """Runs of a comparison, called by their setting instead of their folder.

    Args:
        settings: What `read_settings` found.
        runs: The JSON objects of the runs, with their folders as `name`.

    Returns:
        The runs, and the names of those that repeat their setting with another seed: all but the first that finished.
    """
    finished = {run.get("name") for run in runs if not run.get("error")}
    names: dict[str, str] = {}
    repeats: set[str] = set()
    for line in settings:
        several = len(line["folders"]) > 1
        own = {
            folder: line["label"] + (f", run {place}" if several else "")
            for place, folder in enumerate(line["folders"], start=1)
        }
        names |= own
        repeats |= set([own[folder] for folder in line["folders"] if folder in finished][1:])
    named = [{**run, "name": names.get(str(run.get("name")), run.get("name", ""))} for run in runs]
    return named, frozenset(repeats)


def points_of(settings: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The settings that ran, each with its mean figures.

    Args:
        settings: What `read_settings` found.
        runs: The JSON objects of the runs, with their folders as `name`.

    Returns:
        One point per setting; none where nothing was measured.
    """
    by_name = {run.get("name"): _whole(run) for run in runs if not run.get("error")}
    kept = [(line, [by_name[name] for name in line["folders"] if name in by_name]) for line in settings]
    kept = [(line, own) for line, own in kept if own]
    figures = [figures_of(own) for _, own in kept]
    if not figures or not all("accuracy" in one or "r2" in one for one in figures):
        return []
    best, axis = set(front(figures)), objectives(figures)[-1]
    return [
        _point(line, own, known, axis, place in best)
        for place, ((line, own), known) in enumerate(zip(kept, figures, strict=True))
    ]


def _whole(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run as settings are compared by it; one that was attacked in several ways was audited whole."""
    return {**run, "audited": len(run.get("attacks") or ()) > 1}


def _point(
    line: Mapping[str, Any], own: Sequence[Mapping[str, Any]], known: Mapping[str, float], axis: str, on_front: bool
) -> Point:
    name = score_name(known)
    low, high = intervals_of(own).get(name, (known[name], known[name]))
    epsilon = known["epsilon"]
    return Point(
        label=str(line["label"]),
        protection=_NAMES.get(str(line["protection"]), "as the plan says"),
        score=known[name],
        low=max(low, -1.0),
        high=min(high, 1.0),
        attack=known.get(axis) if axis in (ADVANTAGE, MEMBERSHIP) else None,
        readable=known["bytes_readable"],
        epsilon=None if epsilon == float("inf") else epsilon,
        on_front=on_front,
    )


def trade_off_chart(points: Sequence[Point], *, score: str, attack: str) -> str | None:
    """Score beside what an attacker gains, and beside the bytes that can be read.

    Args:
        points: The settings.
        score: The label of the vertical axis.
        attack: The label of the attack's axis.

    Returns:
        The chart as SVG; None without points. Settings of the front have their number in the table.
    """
    import altair as alt

    if not points:
        return None
    kinds = [name for name in (*_NAMES.values(), "as the plan says") if any(one.protection == name for one in points)]
    rows = [
        {**vars(one), "readable": max(one.readable, 1.0), "name": str(number)}
        for number, one in enumerate(points, start=1)
    ]
    attacked = all(one.attack is not None for one in points)
    sides = [*([("attack", attack, alt.Scale(zero=False, padding=18))] if attacked else [])]
    sides.append(("readable", "bytes that can be read", alt.Scale(type="log", padding=18)))
    made = [_side(rows, kinds, field, title, scale, score, _WIDTH / len(sides) - 60) for field, title, scale in sides]
    return drawn(alt.hconcat(*made, spacing=24) if len(made) > 1 else made[0], fit=len(made) == 1)


def label_offsets(rows: Sequence[Mapping[str, Any]], field: str, *, width: float) -> list[float]:
    """By how much the number of each setting stands below its dot, so that numbers do not cover or swap each other.

    Args:
        rows: The settings of the chart, with `score`, `low`, `high`, `on_front` and the horizontal value.
        field: Which is the horizontal value; `readable` is drawn on a logarithmic scale.
        width: Of the chart, in pixels.

    Returns:
        Pixels, in the order of the settings; 0 for those off the front.
    """
    across = [math.log10(row[field]) if field == "readable" else float(row[field]) for row in rows]
    wide = width / ((max(across) - min(across)) or 1.0)
    tall = _HEIGHT / ((max(row["high"] for row in rows) - min(row["low"] for row in rows)) or 1.0)
    offsets, placed = [0.0] * len(rows), list[tuple[float, float]]()
    front_first = sorted(
        (place for place, row in enumerate(rows) if row["on_front"]), key=lambda at: -rows[at]["score"]
    )
    for place in front_first:
        x, y = across[place] * wide, -rows[place]["score"] * tall
        beside = [above for left, above in placed if abs(left - x) < _LABEL_REACH]
        shown = max([y, *(above + _LABEL_STEP for above in beside)])
        placed.append((x, shown))
        offsets[place] = shown - y
    return offsets


def _side(
    rows: list[dict[str, Any]], kinds: Sequence[str], field: str, title: str, scale: Any, score: str, width: float
) -> Any:
    import altair as alt

    moved = label_offsets(rows, field, width=width)
    base = alt.Chart(alt.InlineData(values=[{**row, "up": up} for row, up in zip(rows, moved, strict=True)]))
    axis = alt.Axis(format="~s" if field == "readable" else "~g", tickCount=5, labelOverlap=True)
    x = alt.X(f"{field}:Q", title=title, scale=scale, axis=axis)
    y = alt.Y("score:Q", title=score, scale=alt.Scale(zero=False, padding=18), axis=alt.Axis(format="~g", tickCount=6))
    color = alt.Color(
        "protection:N",
        scale=alt.Scale(domain=list(kinds), range=list(SERIES[: len(kinds)])),
        legend=alt.Legend(orient="top", title=None, columns=4, labelLimit=180),
    )
    shape = alt.Shape("protection:N", scale=alt.Scale(domain=list(kinds), range=list(_SHAPES[: len(kinds)])))
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.45).encode(
        x=x, y=alt.Y("low:Q", title=score), y2="high:Q", color=color
    )
    dots = base.mark_point(filled=True, size=90, opacity=0.95).encode(x=x, y=y, color=color, shape=shape)
    ring = (
        base.transform_filter("datum.on_front")
        .mark_point(size=240, strokeWidth=1.6, color="currentColor")
        .encode(x=x, y=y)
    )
    text = (
        base.transform_filter("datum.on_front")
        .mark_text(dx=14, align="left", fontSize=11, fontWeight="bold", color="currentColor", dy=alt.expr("datum.up"))
        .encode(x=x, y=y, text="name:N")
    )
    return alt.layer(bars, dots, ring, text).properties(width=width, height=_HEIGHT)
