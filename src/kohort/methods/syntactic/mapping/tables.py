"""Classes as arrays: what each cell covers and costs, which label holds an item, in the order in which they are tried.

NCP (eq. 1): a number's cell costs its width / the column's range, a category's cell the values it stands for / all
values, and one value costs 0. A suppressed cell, and an interval that may also be missing, cost 1. On a number column a
set or a label stands for the interval from its lowest to its highest member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, counted, nearest
from kohort.methods.syntactic.mapping.mapping import ItemGroups, JointMapping, QuasiColumn
from kohort.tables.cells import Interval, Label, Suppressed, ValueSet, parse_cell
from kohort.tables.codes import CodeTree

__all__ = [
    "CategoryCells",
    "ClassTable",
    "LabelTable",
    "NumberCells",
    "class_table",
    "column_ncp",
    "column_weights",
    "label_table",
    "unseen_item",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class NumberCells:
    """A number column's cell in every class: [low, high], or low > high for none; and if a missing value is covered."""

    low: Floats
    high: Floats
    missing: Flags
    extent: float
    cost: Floats


@dataclass(frozen=True)
class CategoryCells:
    """A category column's distinct cells: the values each covers. The last two columns of `covers` are a missing value
    and a value no class knows. `cell_of` is the cell of every class; `held` how many values its cell stands for."""

    values: tuple[str, ...]
    covers: Flags
    cell_of: Integers
    held: Integers
    domain: int
    cost: Floats


@dataclass(frozen=True)
class LabelTable:
    """The distinct items, and for each the classes whose labels hold it with the label: entries starts[i]:starts[i+1].

    `size` and `weight` are the items a label stands for and w of eq. 4, which is 0 for an item released as it is.
    `listed` is how many items the labels of a class stand for together. `by_share` says that an item costs its label's
    weight, which is then w times the share of the items that the label stands for.
    """

    items: tuple[str, ...]
    starts: Integers
    class_at: Integers
    label_at: Integers
    size: Integers
    weight: Floats
    listed: Integers
    by_share: bool


@dataclass(frozen=True)
class ClassTable:
    """All classes, in the order of their relational loss, then of their number; `order[place]` is the number."""

    order: Integers
    columns: tuple[NumberCells | CategoryCells, ...]
    weights: Floats
    items_weight: float
    loss: Floats
    labels: LabelTable

    @property
    def count(self) -> int:
        """How many classes there are."""
        return len(self.order)


def class_table(
    mapping: JointMapping,
    *,
    weights: Mapping[str, float] | None,
    item_weights: Mapping[str, float] | None,
    tree: CodeTree | None = None,
) -> ClassTable:
    """The arrays of a mapping under these weights.

    Args:
        mapping: The classes.
        weights: One weight between 0 and 1 for each quasi-identifier and for the items; None for the default of
            `column_weights`.
        item_weights: One weight per item; 1 for those without one.
        tree: What stands above the items; None where codes that no class names count as unknown.

    Returns:
        The classes in the order of their relational loss.

    Raises:
        ConfigError: Weights are incomplete, out of range or of an unknown column.
    """
    by_column, items_weight = column_weights(mapping, weights)
    cells = [_cells(column, line) for column, line in zip(mapping.columns, mapping.cells, strict=True)]
    loss = np.zeros(mapping.count)
    for weight, column in zip(by_column, cells, strict=True):
        loss += weight * column.cost
    order = np.argsort(loss, kind="stable").astype(np.int64)
    return ClassTable(
        order=order,
        columns=tuple(_reordered(column, order) for column in cells),
        weights=by_column,
        items_weight=items_weight,
        loss=loss[order],
        labels=label_table(mapping.groups, order, _checked(item_weights or {}, "item weight"), tree),
    )


def column_ncp(mapping: JointMapping) -> dict[str, float]:
    """NCP of each quasi-identifier (eq. 1): the mean over the rows of all classes.

    Args:
        mapping: The classes.

    Returns:
        By column a number from 0 (values as they are) to 1 (suppressed).
    """
    table = class_table(mapping, weights=None, item_weights=None)
    rows = mapping.sizes[table.order]
    return {
        column.name: float((cells.cost * rows).sum() / rows.sum())
        for column, cells in zip(mapping.columns, table.columns, strict=True)
    }


def column_weights(mapping: JointMapping, weights: Mapping[str, float] | None) -> tuple[Floats, float]:
    """The weight of each quasi-identifier and of the items.

    Args:
        mapping: The classes, which say what the columns are.
        weights: A weight between 0 and 1 for every quasi-identifier, and for the items where there are any. None: 1 /
            number of quasi-identifiers each, and 1 for the items.

    Returns:
        The weights in the order of the columns, and the weight of the items; 0 where they are given and there are no
        items.

    Raises:
        ConfigError: A weight is missing, out of range, or of an unknown column.
    """
    names = [column.name for column in mapping.columns]
    if weights is None:
        return np.full(len(names), 1.0 / max(len(names), 1)), 1.0
    known = [*names, *([mapping.items] if mapping.items else [])]
    for name in weights:
        if name not in known:
            raise ConfigError(f"a weight is given for {name!r}", hint=nearest(name, known))
    absent = [name for name in known if name not in weights]
    if absent:
        raise ConfigError(f"no weight for: {', '.join(absent)}", hint="Weigh every quasi-identifier and the items")
    checked = _checked(weights, "weight")
    return np.array([checked[name] for name in names]), checked[mapping.items] if mapping.items else 0.0


def _checked(weights: Mapping[str, float], what: str) -> dict[str, float]:
    found = {name: float(weight) for name, weight in weights.items()}
    wrong = sum(not 0.0 <= weight <= 1.0 for weight in found.values())
    if wrong:
        raise ConfigError(f"{counted(wrong, what)} not between 0 and 1", hint="Normalise them")
    return found


def _cells(column: QuasiColumn, line: Sequence[str | None]) -> NumberCells | CategoryCells:
    texts = list(dict.fromkeys(line))
    place = {text: at for at, text in enumerate(texts)}
    cell_of = np.array([place[text] for text in line], np.int64)
    return _numbers(column, texts, cell_of) if column.kind == "number" else _categories(column, texts, cell_of)


def _numbers(column: QuasiColumn, texts: Sequence[str | None], cell_of: Integers) -> NumberCells:
    low, high = column.bounds if column.bounds is not None else (0.0, 0.0)
    extent = high - low
    ends = [_ends(text, column) for text in texts]
    lows, highs = np.array([end[0] for end in ends]), np.array([end[1] for end in ends])
    missing = np.array([end[2] for end in ends])
    cost = np.array([_number_cost(*end, extent=extent, column=column) for end in ends])
    return NumberCells(lows[cell_of], highs[cell_of], missing[cell_of], extent, cost[cell_of])


def _number_cost(low: float, high: float, missing: bool, *, extent: float, column: QuasiColumn) -> float:
    if low > high:
        return 0.0
    if np.isinf(low):
        return 1.0 if extent > 0 or column.missing else 0.0
    if missing:
        return 1.0
    return min((high - low) / extent, 1.0) if extent > 0 else 0.0


def _ends(text: str | None, column: QuasiColumn) -> tuple[float, float, bool]:
    cell = parse_cell(text)
    if isinstance(cell, Suppressed):
        return -np.inf, np.inf, True
    if isinstance(cell, Interval):
        return cell.low, cell.high, cell.missing
    if isinstance(cell, Label):
        members: tuple[str | None, ...] = column.labels[cell.text]
    else:
        members = cell.values if isinstance(cell, ValueSet) else (cell,)
    numbers = [float(member) for member in members if member is not None]
    return min(numbers, default=np.inf), max(numbers, default=-np.inf), None in members


def _categories(column: QuasiColumn, texts: Sequence[str | None], cell_of: Integers) -> CategoryCells:
    place = {value: at for at, value in enumerate(column.values)}
    known = len(place)
    covers = np.zeros((len(texts), known + 2), np.bool_)
    held = np.zeros(len(texts), np.int64)
    domain = known + column.missing
    for at, text in enumerate(texts):
        cell = parse_cell(text)
        if isinstance(cell, Suppressed):
            covers[at] = True
            held[at] = domain
            continue
        if isinstance(cell, Label):
            members: tuple[Any, ...] = column.labels[cell.text]
        else:
            members = cell.values if isinstance(cell, ValueSet) else (cell,)
        for member in members:
            covers[at, known if member is None else place[member]] = True
        held[at] = len(members)
    cost = np.where(held > 1, np.minimum(held / max(domain, 1), 1.0), 0.0)
    return CategoryCells(column.values, covers, cell_of, held[cell_of], domain, cost[cell_of])


def _reordered(cells: NumberCells | CategoryCells, order: Integers) -> NumberCells | CategoryCells:
    if isinstance(cells, NumberCells):
        return NumberCells(cells.low[order], cells.high[order], cells.missing[order], cells.extent, cells.cost[order])
    return CategoryCells(
        cells.values, cells.covers, cells.cell_of[order], cells.held[order], cells.domain, cells.cost[order]
    )


def label_table(
    groups: ItemGroups, order: Integers, item_weights: Mapping[str, float], tree: CodeTree | None = None
) -> LabelTable:
    """The labels of the classes, and for each item the classes that hold it.

    An item without a weight has weight 1: what was not ranked is not taken to be unimportant.

    Args:
        groups: The labels, what each stands for, and those of each class.
        order: The numbers of the classes, in the order in which they are tried.
        item_weights: One weight per item.
        tree: What stands above the items. With it, a label that stands for codes which no class names is an item too
            (`unseen_item`): such a code goes by the lowest label above it.

    Returns:
        The table; classes in it are places in `order`.
    """
    size = np.array([len(held) for held in groups.members], np.int64)
    means = [float(np.mean([item_weights.get(item, 1.0) for item in held])) for held in groups.members]
    is_label = np.array([isinstance(parse_cell(label), Label) for label in groups.labels], np.bool_)
    weight = np.where((size > 1) | is_label, means, 0.0)
    if tree is not None:
        weight = weight * size / max(len({item for held in groups.members for item in held}), 1)
    covered = groups.members if tree is None else _with_unseen(groups, tree)
    items = sorted({item for held in covered for item in held})
    code = {item: at for at, item in enumerate(items)}
    member = np.array([code[item] for held in covered for item in held], np.int64)
    held_by = np.array([len(held) for held in covered], np.int64)
    first = np.cumsum(held_by) - held_by
    counts = np.array([len(groups.of_class[number]) for number in order], np.int64)
    label = np.fromiter(chain.from_iterable(groups.of_class[number] for number in order), np.int64, int(counts.sum()))
    place_of = np.repeat(np.arange(len(order)), counts)
    spread = held_by[label]
    within = np.arange(int(spread.sum())) - np.repeat(np.cumsum(spread) - spread, spread)
    flat = member[np.repeat(first[label], spread) + within]
    class_at, label_at = np.repeat(place_of, spread), np.repeat(label, spread)
    by = np.lexsort((size[label_at], class_at, flat))
    # Of nested labels of a class an item goes by the smallest.
    lowest = (np.diff(flat[by], prepend=-1) != 0) | (np.diff(class_at[by], prepend=-1) != 0)
    by = by[lowest]
    starts = np.concatenate([[0], np.cumsum(np.bincount(flat[by], minlength=len(items)))]).astype(np.int64)
    listed = np.bincount(class_at[by], minlength=len(order))
    return LabelTable(tuple(items), starts, class_at[by], label_at[by], size, weight, listed, tree is not None)


def unseen_item(label: str) -> str:
    """The item that stands for all codes below a label which no class names.

    Args:
        label: The text of the label.

    Returns:
        A text that no code has.
    """
    return f"\0{label}"


def _with_unseen(groups: ItemGroups, tree: CodeTree) -> list[tuple[str, ...]]:
    """The items of each label, and for each label at or below it the codes that no class names."""
    cells = [parse_cell(text) for text in groups.labels]
    above = {
        cell.text: _from(cell.text, tree.chain(held[0]))
        for cell, held in zip(cells, groups.members, strict=True)
        if isinstance(cell, Label)
    }
    return [
        (*held, *(unseen_item(low) for low, labels in above.items() if cell.text in labels))
        if isinstance(cell, Label)
        else held
        for cell, held in zip(cells, groups.members, strict=True)
    ]


def _from(label: str, chain: tuple[str, ...]) -> frozenset[str]:
    """A label and those above it."""
    return frozenset(chain[chain.index(label) :]) if label in chain else frozenset({label})
