"""Trees over items: ICD-9 codes by category, ten categories and chapter; any codes by halves; any hierarchy given.

| `item_hierarchy` | what an item may become |
|---|---|
| none  | a group of items, such as {C, D, E, F}; groups form as the rows need them |
| auto  | a run of 2, 4, 8, ... items in the order of their texts, where like codes stand side by side |
| icd9  | the category, ten categories, the chapter; codes that are none of ICD-9 are a chapter of their own |
| a Hierarchy | its labels; an item that it lacks is a DataError |

Guarantee: trees depend on which items there are, never on how often or together with which others they occur.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, nearest
from kohort.tables.hierarchy import ROOT_LABEL, Hierarchy

__all__ = ["ITEM_HIERARCHIES", "ItemHierarchy", "ItemTree", "find_hierarchy", "halves", "icd9", "item_tree"]

ItemHierarchy = Literal["none", "auto", "icd9"] | Hierarchy
ITEM_HIERARCHIES = ("none", "auto", "icd9")
OTHER_CODES = "no ICD-9 code"

# First category of each chapter of ICD-9-CM, and what it is about.
CHAPTERS = (
    (1, "infectious and parasitic diseases"),
    (140, "neoplasms"),
    (240, "endocrine, nutritional, metabolic and immunity disorders"),
    (280, "blood and blood-forming organs"),
    (290, "mental disorders"),
    (320, "nervous system and sense organs"),
    (390, "circulatory system"),
    (460, "respiratory system"),
    (520, "digestive system"),
    (580, "genitourinary system"),
    (630, "pregnancy, childbirth and the puerperium"),
    (680, "skin and subcutaneous tissue"),
    (710, "musculoskeletal system and connective tissue"),
    (740, "congenital anomalies"),
    (760, "conditions of the perinatal period"),
    (780, "symptoms, signs and ill-defined conditions"),
    (800, "injury and poisoning"),
    (1000, ""),
)
NUMERIC_CODE = re.compile(r"(\d{1,3})(?:\.\d{0,2})?|(\d{3})\d{1,2}")
LETTER_CODE = re.compile(r"(?:(V)(\d{1,2})(?:\.?\d{0,2})|(E)(\d{3})(?:\.?\d)?)")


@dataclass(frozen=True)
class ItemTree:
    """Nodes over the items of a table, the items themselves first.

    `parent` is -1 at the top, and always stands for more items of the table than the node itself; `size` counts those.
    """

    items: tuple[str, ...]
    labels: tuple[str, ...]
    parent: NDArray[np.int64]
    size: NDArray[np.int64]
    hierarchy: Hierarchy | None

    @property
    def is_tree(self) -> bool:
        """Whether there is anything above the items."""
        return self.hierarchy is not None


def find_hierarchy(wanted: ItemHierarchy, column: str, items: Sequence[str]) -> Hierarchy | None:
    """The hierarchy over the items of a table, or None for groups."""
    if isinstance(wanted, Hierarchy):
        wanted.check_covers(items)
        return wanted
    if wanted not in ITEM_HIERARCHIES:
        raise ConfigError(f"unknown item hierarchy {wanted!r}", hint=nearest(str(wanted), ITEM_HIERARCHIES))
    if wanted == "none" or not items:
        return None
    return (halves if wanted == "auto" else icd9)(column, items)


def item_tree(items: Sequence[str], hierarchy: Hierarchy | None) -> ItemTree:
    """The nodes of a hierarchy that tell the items of a table apart; without a hierarchy, the items alone."""
    count = len(items)
    if hierarchy is None:
        return ItemTree(tuple(items), (), np.full(count, -1), np.ones(count, np.int64), None)
    parent = [-1] * count
    size = [1] * count
    labels = []
    for label, leaves in _labelled_items(items, hierarchy):
        below = {_top(parent, leaf) for leaf in leaves}
        if len(below) == 1:
            # The label stands for the same items as the node below.
            continue
        for node in below:
            parent[node] = len(parent)
        parent.append(-1)
        size.append(len(leaves))
        labels.append(label)
    return ItemTree(tuple(items), tuple(labels), np.array(parent), np.array(size), hierarchy)


def _labelled_items(items: Sequence[str], hierarchy: Hierarchy) -> list[tuple[str, list[int]]]:
    """The labels of a hierarchy, level by level from the lowest up, with the codes of the items below each."""
    chains = {chain[0]: chain for chain in hierarchy.chains}
    levels: list[dict[str, list[int]]] = [{} for _ in range(1, hierarchy.levels)]
    for code, item in enumerate(items):
        for found, label in zip(levels, chains[item][1:], strict=True):
            found.setdefault(label, []).append(code)
    return [entry for found in levels for entry in found.items()]


def halves(column: str, items: Sequence[str]) -> Hierarchy:
    """Runs of 2, 4, 8, ... items in the order of their texts, named by their ends."""
    ordered = sorted(items)
    chains: dict[str, list[str]] = {item: [] for item in ordered}
    width = 2
    while width < len(ordered):
        for start in range(0, len(ordered), width):
            run = ordered[start : start + width]
            label = f"{run[0]} to {run[-1]}" if len(run) > 1 else run[0]
            for item in run:
                chains[item].append(label)
        width *= 2
    return Hierarchy.of(column, {item: (*labels, ROOT_LABEL) for item, labels in chains.items()})


def icd9(column: str, items: Sequence[str]) -> Hierarchy:
    """ICD-9-CM codes, with or without their dot: code, category, ten categories, chapter, nothing."""
    return Hierarchy.of(column, {item: (*_icd9_labels(item), ROOT_LABEL) for item in sorted(items)})


def _icd9_labels(code: str) -> tuple[str, str, str]:
    text = code.strip().upper()
    letters = LETTER_CODE.fullmatch(text)
    if letters is not None:
        letter, digits = ("V", letters[2]) if letters[1] else ("E", letters[4])
        width, number = (2, int(digits)) if letter == "V" else (3, int(digits))
        first = number - number % 10
        chapter = "supplementary classification (V)" if letter == "V" else "external causes (E)"
        category = f"{letter}{number:0{width}d}.x"
        return category, f"{letter}{first:0{width}d}-{letter}{first + 9:0{width}d}", chapter
    numeric = NUMERIC_CODE.fullmatch(text)
    number = int(numeric[1] or numeric[2]) if numeric is not None else 0
    for (first, about), (after, _) in pairwise(CHAPTERS):
        if first <= number < after:
            tens = number - number % 10
            return f"{number:03d}.x", f"{max(tens, 1):03d}-{tens + 9:03d}", f"{about} ({first:03d}-{after - 1:03d})"
    return f"{OTHER_CODES}: {code}", OTHER_CODES, OTHER_CODES


def _top(parent: list[int], node: int) -> int:
    while parent[node] >= 0:
        node = parent[node]
    return node
