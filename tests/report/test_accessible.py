"""What a screen reader needs of the page, checked without a browser; axe-core found nothing serious when it was run."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser

import pytest
from tests.report.test_trade_off import RUNS, SETTINGS
from tests.support.run_reports import failed, finished, of_numbers

from kohort.report.curves import curves_page
from kohort.report.page import render

CURVE = {"importance": 0.5, "bins": ["a", "b"], "values": [0.1, -0.2], "counts": [5, 6], "ordered": True}
PAGES: dict[str, Callable[[], str]] = {
    "run": lambda: render([finished()], title="x", plan={"data": {"target": "y"}}),
    "several": lambda: render([*RUNS, of_numbers(), failed()], title="x", settings=SETTINGS),
    "external": lambda: render([finished(refused={"a": "b"}), finished("b")], title="x", edition="external"),
    "explain": lambda: curves_page({"age": CURVE}, title="x", lead="y", outputs=["no", "yes"]),
}


@cache
def page_of(name: str) -> str:
    """Rendered when a test first looks at it, not in every process that collects tests."""
    return PAGES[name]()


class Outline(HTMLParser):
    """Headings, identities, regions, pictures and table cells of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.unnamed: list[str] = []
        self.landmarks: list[str] = []
        self.targets: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "id" in found:
            self.ids.append(str(found["id"]))
        if found.get("role") == "region":
            self.labels.append(str(found.get("aria-label")))
        if found.get("role") == "img" and not found.get("aria-label"):
            self.unnamed.append(tag)
        if tag == "th" and found.get("scope") not in ("col", "row"):
            self.unnamed.append(tag)
        if tag in ("main", "header", "nav", "footer"):
            self.landmarks.append(tag)
        if tag == "a":
            self.targets.append(str(found.get("href")).removeprefix("#"))


@pytest.mark.parametrize("name", list(PAGES))
def test_headings_regions_pictures_and_tables_are_named(name: str) -> None:
    found = Outline(page_of(name))
    assert found.headings[0] == 1
    assert found.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(found.headings, found.headings[1:], strict=False))
    assert len(set(found.ids)) == len(found.ids)
    assert len(set(found.labels)) == len(found.labels)
    assert found.unnamed == []
    assert {"main", "header"} <= set(found.landmarks)
    assert set(found.targets) <= set(found.ids)
    assert '<html lang="en">' in page_of(name)


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("place", [0, 1])
def test_texts_have_a_contrast_of_four_and_a_half_in_light_and_dark(place: int) -> None:
    styles = re.findall(r":root \{(.*?)\}", page_of("run"), flags=re.DOTALL)
    colors = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", styles[place]))
    pairs = [(ink, ground) for ink in ("ink", "soft", "accent") for ground in ("ground", "card")]
    pairs += [(tone, f"{tone}-wash") for tone in ("open", "partial", "guarded", "public")]
    found = {(ink, ground): contrast(colors[ink], colors[ground]) for ink, ground in pairs}
    assert min(found.values()) >= 4.5, min(found, key=lambda pair: found[pair])


def test_tables_have_no_hidden_columns_on_a_narrow_screen() -> None:
    for table in re.findall(r"<table[^>]*>", page_of("several") + page_of("run")):
        assert "stack" in table or "importances" in table, table
    cells = re.findall(r"<td[^>]*>", page_of("several"))
    assert len(cells) > 50
    assert {cell for cell in cells if "data-label" not in cell} <= {"<td>", '<td class="disclosed">'}
