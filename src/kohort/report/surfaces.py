"""Maps of pairs of columns: what each cell of a grid adds to the score, by colour.

Guarantees: as in `kohort.report.curves`: no script, nothing is loaded, all names are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kohort.report.words import printable

__all__ = ["surfaces"]

_CELL, _LEAST_WIDE, _WIDTH, _LEFT, _TOP, _BOTTOM, _RIGHT = 17, 30, 560, 138, 18, 64, 72
_LOW, _HIGH = (38, 103, 172), (190, 60, 40)
_MOST_LABEL = 20


def surfaces(curve: Mapping[str, Any], lines: Sequence[Sequence[float]], names: Sequence[str]) -> str:
    """One map per class, or one alone.

    Args:
        curve: A pair of columns, as `Model.curves` returns it.
        lines: The values of its bins, for each class.
        names: The classes; one empty name where there is one map.

    Returns:
        SVG.
    """
    most = max((abs(value) for line in lines for value in line), default=0.0) or 1.0
    return "".join(_map(curve, line, name, most) for line, name in zip(lines, names, strict=True))


def _map(curve: Mapping[str, Any], line: Sequence[float], name: str, most: float) -> str:
    grid, pair = curve["grid"], curve["pair"]
    rows, columns, bins = grid["rows"], grid["columns"], grid["bins"]
    wide = max(_LEAST_WIDE, (_WIDTH - _LEFT - _RIGHT) // len(columns))
    width, height = max(_WIDTH, _LEFT + wide * len(columns) + _RIGHT), _TOP + _CELL * len(rows) + _BOTTOM
    shared = _shared(bins)
    ends = f"{min(line):+.2f} (blue) to {max(line):+.2f} (red)"
    title = f"{pair[0]} (down), {pair[1]} (across){f', {name}' if name else ''}: {ends}"
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{_text(title)}" style="max-width:{width}px">',
        f'<text x="4" y="12">{_text(title)}</text>',
    ]
    for down, (label, own) in enumerate(zip(rows, bins, strict=True)):
        y = _TOP + down * _CELL
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 12}" text-anchor="end">{_short(label)}</text>')
        parts += [
            _cell(_LEFT + across * wide, y, wide, line[place], most, place in shared)
            for across, place in enumerate(own)
        ]
    base = _TOP + _CELL * len(rows) + 10
    parts += [
        f'<text transform="translate({_LEFT + (across + 0.4) * wide:.1f} {base}) rotate(30)">{_short(label)}</text>'
        for across, label in enumerate(columns)
    ]
    return "".join(parts) + "</svg>"


def _shared(bins: Sequence[Sequence[int]]) -> set[int]:
    """The bins that several cells share."""
    flat = [place for own in bins for place in own]
    return {place for place in flat if flat.count(place) > 1}


def _cell(x: int, y: int, wide: int, value: float, most: float, shared: bool) -> str:
    color, strength = _HIGH if value > 0 else _LOW, min(abs(value) / most, 1.0)
    size = f'x="{x}" y="{y}" width="{wide - 1}" height="{_CELL - 1}"'
    said = f"<title>{value:+.3f}{', shared' if shared else ''}</title>"
    if not shared:
        return f'<rect {size} fill="rgb{color}" fill-opacity="{0.06 + 0.9 * strength:.2f}">{said}</rect>'
    cross = f'<path d="M{x} {y}l{wide - 1} {_CELL - 1}m0 -{_CELL - 1}l-{wide - 1} {_CELL - 1}" class="axis"/>'
    return f'<rect {size} fill="none" class="axis">{said}</rect>{cross}'


def _short(label: str) -> str:
    return _text(label if len(label) <= _MOST_LABEL else label[: _MOST_LABEL - 1] + "…")


def _text(value: str) -> str:
    return escape(str(printable(value)))
