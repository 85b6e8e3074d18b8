"""The page of a model that can be read column by column: one curve each, with counts and intervals.

Guarantees: the page is one file, loads nothing and runs no script; names of columns and categories are escaped. It
shows bins, values and counts as the model file holds them, and no cell of any row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from kohort.errors import ConfigError
from kohort.models.base import Model
from kohort.report.charts import SERIES
from kohort.report.runs import FAILED_FILE, RUN_FILE, read_runs
from kohort.report.surfaces import surfaces
from kohort.report.words import printable

__all__ = ["curves_html", "curves_of_model", "curves_page", "read_runs_with_curves"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _BARS = 560, 250, 48, 72, 54, 36
_MOST_LABELS = 16

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --paper: #ffffff; --dim: #5b6675; --line: #d6dbe2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ebf0; --paper: #14181f; --dim: #9aa6b4; --line: #39424e; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       max-width: 1180px; padding: 24px; }
h1 { font-size: 24px; margin: 0 0 4px; } p { color: var(--dim); margin: 0 0 18px; max-width: 75ch; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 18px; }
section { border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
h2 { font-size: 16px; margin: 0; } h2 small { color: var(--dim); font-weight: 400; }
svg { width: 100%; height: auto; } text { fill: var(--dim); font-size: 11px; } .axis { stroke: var(--line); }
table { border-collapse: collapse; font-size: 13px; } td, th { padding: 2px 12px 2px 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } details { margin-top: 6px; } summary { cursor: pointer; }
"""


def curves_page(curves: Mapping[str, Mapping[str, Any]], *, title: str, lead: str, outputs: Sequence[str]) -> str:
    """The page as text.

    Args:
        curves: As `Model.curves` returns them.
        title: The heading.
        lead: A sentence below it.
        outputs: What the values of a bin are about, where there are several: the classes.

    Returns:
        HTML.
    """
    csp = "default-src 'none'; style-src 'unsafe-inline'"
    sections = curves_html(curves, outputs)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{csp}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body><header><h1>{_text(title)}</h1>"
        f"<p>{_text(lead)}</p></header>\n<main>\n{sections}\n</main></body></html>\n"
    )


def curves_html(curves: Mapping[str, Mapping[str, Any]], outputs: Sequence[str]) -> str:
    """The curves as a part of another page, which styles them.

    Args:
        curves: As `Model.curves` returns them.
        outputs: What the values of a bin are about, where there are several: the classes.

    Returns:
        HTML: one section per column.
    """
    return "\n".join(_section(str(printable(name)), curve, outputs) for name, curve in curves.items())


def curves_of_model(model: Model) -> dict[str, Any] | None:
    """What a page says of a model that is a sum of curves.

    Args:
        model: Any model.

    Returns:
        `columns` (the curves, the most important first), `outputs` (the classes) and `lead` (what a curve means); None
        for a model that has no curves.
    """
    drawn = {name: curve for name, curve in model.curves().items() if curve["bins"]}
    if not drawn:
        return None
    if model.task == "regression":
        about = f"the predicted {model.target}, as a share of its range or on the log scale"
    elif len(model.classes) == 2:
        about = f"the log odds of {model.target} = {model.classes[1]}"
    else:
        about = f"the score of each class of {model.target}"
    lead = (
        f"Each curve is what a column adds to {about}; 0 is its mean over all rows. Bars show roughly how many "
        "persons each bin holds: counts are told as ranges, or with noise where the plan has a budget. "
        "Shaded: 95 % intervals given the other columns, where the model was fitted without noise."
    )
    if any("grid" in curve for curve in drawn.values()):
        lead += (
            " A pair of columns has a map of what both add together, besides their own curves. Crossed-out cells "
            "share one value: they hold too few persons, or would show by subtraction how many such a cell holds."
        )
    return {"columns": drawn, "outputs": list(model.classes), "lead": lead}


def read_runs_with_curves(folder: Path) -> list[dict[str, Any]]:
    """The runs of a folder, as `read_runs` gives them, each with the curves of its model where it has some.

    Args:
        folder: A run folder, or one that holds several.

    Returns:
        The JSON objects of the runs; `curves` is None where the model has none or cannot be loaded here.
    """
    runs = read_runs(folder)
    alone = any((folder / name).is_file() for name in (RUN_FILE, FAILED_FILE))
    return [{**run, "curves": _curves_in(folder if alone else folder / run["name"])} for run in runs]


def _curves_in(folder: Path) -> dict[str, Any] | None:
    from kohort.models.files import load_model

    try:
        with catch_warnings():
            simplefilter("ignore", UserWarning)  # the ledger's notes say the same, on the page
            return curves_of_model(load_model(folder))
    except ConfigError:  # no model, or one whose kind is not installed here
        return None


def _text(value: Any) -> str:
    return escape(str(printable(str(value))))


def _section(name: str, curve: Mapping[str, Any], outputs: Sequence[str]) -> str:
    several = bool(curve["values"]) and isinstance(curve["values"][0], list)
    lines = list(zip(*curve["values"], strict=True)) if several else [tuple(curve["values"])]
    names = list(outputs) if several else [""]
    legend = "".join(
        f' <tspan fill="{SERIES[place % len(SERIES)]}">{_text(output)}</tspan>' for place, output in enumerate(names)
    )
    drawn = surfaces(curve, lines, names) if "grid" in curve else _svg(name, curve, lines, legend if several else "")
    return (
        f"<section><h2>{_text(name)} <small>importance {curve['importance']:.3f}</small></h2>{drawn}"
        f"<details><summary>As a table</summary>{_table(curve, names, several=several)}</details></section>"
    )


def _svg(name: str, curve: Mapping[str, Any], lines: Sequence[Sequence[float]], legend: str) -> str:
    bins, counts = curve["bins"], curve["counts"]
    band = ("low" in curve) and len(lines) == 1
    reach = [value for line in lines for value in line] + ([*curve["low"], *curve["high"]] if band else []) + [0.0]
    low, high = min(reach), max(reach)
    span = (high - low) or 1.0
    step = (_WIDTH - _LEFT - _RIGHT) / len(bins)
    floor = _HEIGHT - _BOTTOM - _BARS - 8

    def y(value: float) -> float:
        return float(14 + (high - value) / span * (floor - 14))

    said = _text(f"Curve of {name}: from {low:.2f} to {high:.2f} over {len(bins)} bins; the table below has its values")
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said}">']
    for value in (low, 0.0, high):
        parts.append(
            f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(f'<text x="{_LEFT - 5}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    if band:
        parts += [
            f'<rect x="{_LEFT + place * step:.1f}" width="{step:.1f}" y="{y(top):.1f}" '
            f'height="{max(y(bottom) - y(top), 0.5):.1f}" fill="{SERIES[0]}" fill-opacity="0.2"/>'
            for place, (bottom, top) in enumerate(zip(curve["low"], curve["high"], strict=True))
        ]
    for number, line in enumerate(lines):
        parts.append(_line(line, step, y, SERIES[number % len(SERIES)], joined=bool(curve["ordered"])))
    most = max([*counts, 1])
    base = _HEIGHT - _BOTTOM
    parts += [
        f'<rect x="{_LEFT + place * step + 0.5:.1f}" width="{max(step - 1, 0.5):.1f}" '
        f'y="{base - _BARS * max(count, 0) / most:.1f}" height="{_BARS * max(count, 0) / most:.1f}" '
        f'fill="currentColor" fill-opacity="0.25"/>'
        for place, count in enumerate(counts)
    ]
    parts += _labels(bins, step, base)
    if legend:
        parts.append(f'<text x="{_LEFT}" y="10">{legend}</text>')
    return "".join(parts) + "</svg>"


def _line(line: Sequence[float], step: float, y: Any, color: str, *, joined: bool) -> str:
    points = []
    for place, value in enumerate(line):
        begin = _LEFT + place * step
        points.append(f"{'L' if joined and place else 'M'}{begin:.1f} {y(value):.1f}H{begin + step:.1f}")
    return f'<path d="{"".join(points)}" fill="none" stroke="{color}" stroke-width="2.2"/>'


def _labels(bins: Sequence[str], step: float, base: float) -> list[str]:
    every = max(1, -(-len(bins) // _MOST_LABELS))
    found = []
    for place, label in enumerate(bins):
        left = len(bins) - 1 - place
        if left and (place % every or left < every):  # the last one is named, and needs room
            continue
        x = _LEFT + (place + 0.5) * step
        short = label if len(label) <= 14 else label[:13] + "…"
        found.append(
            f'<text transform="translate({x:.1f} {base + 10:.1f}) rotate(30)" text-anchor="start">{_text(short)}</text>'
        )
    return found


def _table(curve: Mapping[str, Any], names: Sequence[str], *, several: bool) -> str:
    band = "low" in curve and not several
    heads = ["bin", "persons, about", *(names if several else ["value"]), *(["low", "high"] if band else [])]
    rows = []
    for place, label in enumerate(curve["bins"]):
        value = curve["values"][place]
        cells = value if several else [value]
        cells = [*cells, *([curve["low"][place], curve["high"][place]] if band else [])]
        numbers = "".join(f"<td>{cell:.3f}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{_text(label)}</th><td>{curve["counts"][place]:,}</td>{numbers}</tr>')
    header = "".join(f'<th scope="col">{_text(head)}</th>' for head in heads)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
