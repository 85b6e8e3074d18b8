"""Mapping new rows to classes: 100,000 rows against 10,000 classes of ten sites, 3 quasi-identifiers and 500 items."""

from __future__ import annotations

from time import process_time

import numpy as np
import polars as pl

from bench.harness import Row, best_of
from kohort.methods.syntactic.mapping.assign import generalised, map_rows
from kohort.methods.syntactic.mapping.build import mapping_of, union
from kohort.methods.syntactic.mapping.mapping import JointMapping, SiteMapping
from kohort.tables.cells import Interval, ValueSet, format_cell

__all__ = ["NAME", "SUMMARY", "measure", "new_rows", "random_union"]

NAME = "mapping"
SUMMARY = (
    "100,000 new rows with 2 to 8 of 500 items against 10,000 classes of ten sites. `overlapping`: a class holds two "
    "thirds of the items in groups of up to 6, so that many classes are legitimate for a row. `sparse`: 40 items a "
    "class, so that hardly any is and the nearest is looked for among all. Seconds of CPU, one thread."
)
ROWS, CLASSES, SITES, ITEMS = 100_000, 10_000, 10, 500
QUASI = ["age", "place", "score"]
SECONDS = 5.0


def measure() -> list[Row]:
    rows = new_rows(ROWS)
    found = []
    for setting, held in (("overlapping", 330), ("sparse", 40)):
        joint = random_union(CLASSES, held=held)
        map_rows(rows.head(10), joint)
        seconds = best_of(3, lambda joint=joint: _seconds(rows, joint))  # type: ignore[misc]
        flagged = map_rows(rows, joint).flagged.mean()
        note = f"{100 * flagged:.0f} % of the rows have no legitimate class."
        found.append(Row.within(setting, ours=seconds, peer="limit", theirs=SECONDS, unit="s", note=note))
    return found


def new_rows(rows: int) -> pl.DataFrame:
    """Ages, 50 places, a score with three digits, and items of which some are common."""
    random = np.random.default_rng(3)
    lengths = random.integers(2, 9, rows)
    items = _drawn_items(random, int(lengths.sum()))
    ends = np.cumsum(lengths)
    return pl.DataFrame(
        {
            "age": random.integers(18, 91, rows),
            "place": [f"p{place}" for place in random.integers(0, 50, rows)],
            "score": random.normal(0, 1, rows).round(3),
            "items": [sorted(set(part)) for part in np.split(items, ends[:-1])],
        }
    ).with_columns(pl.col("items").list.eval(pl.format("i{}", pl.element())))


def random_union(classes: int, *, held: int) -> JointMapping:
    """Ten sites' mappings of released rows that are drawn, each class with about `held` items under its labels."""
    per_site = classes // SITES
    return union([_site(f"site{site}", per_site, held, np.random.default_rng(site)) for site in range(SITES)])


def _site(name: str, classes: int, held: int, random: np.random.Generator) -> SiteMapping:
    middle, width = random.integers(18, 91, classes), random.integers(0, 15, classes)
    center, spread = random.normal(0, 1, classes).round(3), random.gamma(2, 0.4, classes).round(3)
    places = [random.choice(50, random.integers(1, 12), replace=False) for _ in range(classes)]
    released = pl.DataFrame(
        {
            "age": [format_cell(Interval(m - w, m + w)) for m, w in zip(middle, width, strict=True)],
            "place": [format_cell(ValueSet(tuple(f"p{p}" for p in some))) for some in places],
            "score": [format_cell(Interval(c - s, c + s)) for c, s in zip(center, spread, strict=True)],
            "items": [_labels(random, held) for _ in range(classes)],
        }
    )
    return mapping_of(
        released, site=name, schema="bench", data_version="1", k=1, m=2, quasi=QUASI, items="items",
        classes=np.arange(classes),
    )  # fmt: skip


def _labels(random: np.random.Generator, held: int) -> list[str]:
    """Labels of one of the ways to group neighbouring items, until they stand for `held` items."""
    groups = _GROUPINGS[random.integers(len(_GROUPINGS))]
    found: list[str] = []
    for group in random.permutation(len(groups)):
        if held <= 0:
            break
        text, size = groups[group]
        found.append(text)
        held -= size
    return found


def _groupings() -> list[list[tuple[str, int]]]:
    """Twenty ways to cut the items into groups of 1 to 6 neighbours."""
    random = np.random.default_rng(11)
    ways = []
    for _ in range(20):
        parts = np.split(np.arange(ITEMS), np.cumsum(random.integers(1, 7, ITEMS))[:ITEMS])
        names = [tuple(f"i{item}" for item in part) for part in parts if len(part)]
        ways.append([(str(format_cell(ValueSet(part))) if len(part) > 1 else part[0], len(part)) for part in names])
    return ways


def _drawn_items(random: np.random.Generator, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (ITEMS * random.random(count) ** 1.5).astype(np.int64)


_GROUPINGS = _groupings()


def _seconds(rows: pl.DataFrame, joint: JointMapping) -> float:
    began = process_time()
    generalised(rows, joint, map_rows(rows, joint))
    return process_time() - began
