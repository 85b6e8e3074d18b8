"""A picture of what left: one arrow per recipient and kind of guarantee, as wide as the bytes it carried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from kohort.report import words
from kohort.report.runs import DisclosureRow, Run

__all__ = ["flow_picture"]

_WIDTH, _LEFT, _RIGHT, _STEP, _TOP = 860, 150, 640, 46, 34
_THINNEST, _WIDEST = 2.0, 18.0


def flow_picture(run: Run) -> str | None:
    """An SVG with the sites on the left, recipients on the right and an arrow for each kind of release between.

    Args:
        run: The run.

    Returns:
        The picture; None where nothing left. Widths grow with the logarithm of the bytes.
    """
    arrows = _arrows(run.disclosed)
    if not arrows:
        return None
    recipients = list(dict.fromkeys(item.recipient for item in arrows))
    arrows.sort(key=lambda item: recipients.index(item.recipient))
    height = _TOP + _STEP * len(arrows) - 22
    most = max(item.size for item in arrows)
    body = [_box(8, _TOP - 18, _LEFT - 8, _STEP * len(arrows) - 8, f"{words.count(run.sites)} sites")]
    for recipient in recipients:
        places = [place for place, item in enumerate(arrows) if item.recipient == recipient]
        top = _TOP + _STEP * places[0] - 18
        body.append(_box(_RIGHT, top, _WIDTH - _RIGHT - 8, _STEP * len(places) - 8, recipient))
    body += [_arrow(item, _TOP + _STEP * place, most) for place, item in enumerate(arrows)]
    return f'<svg class="flow" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">{"".join(body)}</svg>'


def _arrows(disclosed: Sequence[DisclosureRow]) -> list[DisclosureRow]:
    """Releases of one kind to one recipient as one, public facts included."""
    found: dict[tuple[str, str, str], DisclosureRow] = {}
    for item in disclosed:
        place = (item.recipient, item.kind, item.shown_as)
        known = found.get(place)
        found[place] = DisclosureRow(
            recipient=item.recipient,
            kind=item.kind,
            guarantee="",
            shown_as=item.shown_as,
            rows=max(item.rows, known.rows if known else 0),
            size=item.size + (known.size if known else 0),
            releases=item.releases + (known.releases if known else 0),
        )
    return list(found.values())


def _box(x: float, y: float, width: float, height: float, text: str) -> str:
    middle = y + height / 2
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="none" stroke="currentColor" '
        f'stroke-opacity=".35"/><text x="{x + width / 2}" y="{middle + 5}" text-anchor="middle" fill="currentColor" '
        f'font-size="15" font-weight="600">{escape(_short(text))}</text>'
    )


def _arrow(item: DisclosureRow, y: float, most: int) -> str:
    kind = item.shown
    share = math.log1p(item.size) / math.log1p(most) if most else 1.0
    width = _THINNEST + (_WIDEST - _THINNEST) * share
    tip = _RIGHT - 8
    head = width / 2 + 5
    label = f"{item.label}, {words.size(item.size)}"
    title = f"{label} in {words.count(item.releases)} releases, to {item.recipient}: {kind.sentence}"
    return (
        f"<g><title>{escape(title)}</title>"
        f'<line x1="{_LEFT + 8}" y1="{y}" x2="{tip - head}" y2="{y}" stroke="{kind.color}" stroke-width="{width:.1f}"/>'
        f'<path d="M{tip - head:.1f} {y - head:.1f} L{tip} {y} L{tip - head:.1f} {y + head:.1f} Z" '
        f'fill="{kind.color}"/>'
        f'<text x="{_LEFT + 14}" y="{y - width / 2 - 5:.1f}" fill="currentColor" font-size="13">{escape(label)}</text>'
        "</g>"
    )


def _short(text: str) -> str:
    return text if len(text) <= 22 else f"{text[:21]}…"
