"""Trees over items: ICD-9 and ICD-10 codes by their structure; any codes by halves; any hierarchy given.

| `item_hierarchy` | what an item may become |
|---|---|
| none  | a group of items, such as {C, D, E, F}; groups form as the rows need them |
| auto  | a run of 2, 4, 8, ... items in the order of their texts, where like codes stand side by side |
| icd9, icd10 | see `kohort.tables.codes` |
| a Hierarchy | its labels; an item that it lacks is a DataError |
| a CodeTree | its labels; every item has some |

Guarantee: trees depend on which items there are, never on how often or together with which others they occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, nearest
from kohort.tables.codes import CODE_SYSTEMS, CodeTree
from kohort.tables.hierarchy import ROOT_LABEL, Hierarchy

__all__ = ["ITEM_HIERARCHIES", "ItemHierarchy", "ItemTree", "check_codes", "find_hierarchy", "halves", "item_tree"]

ItemHierarchy = Literal["none", "auto", "icd9", "icd10"] | Hierarchy | CodeTree
ITEM_HIERARCHIES = ("none", "auto", *CODE_SYSTEMS)


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
    """The hierarchy over the items of a table; None where items form groups.

    Args:
        wanted: A hierarchy, a tree of codes, or one of "none", "auto", "icd9" and "icd10".
        column: Name of the items column, which the hierarchy is given.
        items: The distinct items of the table.

    Returns:
        The hierarchy; None for "none", and for a named kind or a tree of codes where the table has no item.

    Raises:
        ConfigError: The name is unknown.
        DataError: A given hierarchy lacks an item.
    """
    if isinstance(wanted, Hierarchy):
        wanted.check_covers(items)
        return wanted
    if isinstance(wanted, CodeTree):
        return wanted.hierarchy(items) if items else None
    if wanted not in ITEM_HIERARCHIES:
        raise ConfigError(f"unknown item hierarchy {wanted!r}", hint=nearest(str(wanted), ITEM_HIERARCHIES))
    if wanted == "none" or not items:
        return None
    return halves(column, items) if wanted == "auto" else CodeTree(column, wanted).hierarchy(items)


def check_codes(wanted: ItemHierarchy, column: str, items: Sequence[str]) -> tuple[str, ...]:
    """A note on items that are no codes of the system that stands above them: they can only become the root.

    Args:
        wanted: The hierarchy that was asked for.
        column: The column of the items.
        items: The different items.

    Returns:
        The note, with how many there are; nothing where all are codes, or where no code system was asked for.

    Raises:
        ConfigError: Most items are no codes of the system that was named.
    """
    named = isinstance(wanted, str) and wanted in CODE_SYSTEMS
    tree = CodeTree(column, str(wanted)) if named else wanted
    if not isinstance(tree, CodeTree) or not items:
        return ()
    lacking = sum(tree.lacks(item) for item in items)
    system = tree.text if isinstance(tree.text, str) else "declared"
    found = f"{lacking:,} of {len(items):,} different codes of column {column!r} ({lacking / len(items):.0%})"
    if named and tree.lacks_most(items):
        others = [other for other in CODE_SYSTEMS if other != wanted]
        fits = next((other for other in others if not CodeTree(column, other).lacks_most(items)), "auto")
        raise ConfigError(
            f"{found} are no {system} codes", hint=f"Use {fits}, or a file with the labels above each code"
        )
    return (f"{found} are not in the {system} hierarchy: nothing but the root stands above them",) if lacking else ()


def item_tree(items: Sequence[str], hierarchy: Hierarchy | None) -> ItemTree:
    """The nodes of a hierarchy that tell the items of a table apart; without a hierarchy, the items alone.

    Args:
        items: The distinct items of the table, in their order.
        hierarchy: The hierarchy over them; None: no nodes but the items.

    Returns:
        The tree: first the items as nodes, then the labels that stand for more items than the node below.
    """
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
    """A hierarchy of runs of 2, 4, 8, ... items in the order of their texts, named by their ends.

    Args:
        column: Name of the items column.
        items: The distinct items.

    Returns:
        The hierarchy; its top stands for all items.
    """
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


def _top(parent: list[int], node: int) -> int:
    while parent[node] >= 0:
        node = parent[node]
    return node
