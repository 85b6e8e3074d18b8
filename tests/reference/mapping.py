"""The obvious way to map rows, one pair of row and class at a time. Slow on purpose: the fast way is held to it.

It reads cells and labels from their texts by itself and shares nothing with `mapping_rows` but the mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import polars as pl

from kohort.methods.syntactic.mapping.mapping import JointMapping, QuasiColumn
from kohort.tables.cells import Interval, Label, Suppressed, ValueSet, canonical_text, parse_cell

__all__ = ["map_rows_slowly"]


def map_rows_slowly(
    frame: pl.DataFrame,
    mapping: JointMapping,
    *,
    weights: Sequence[float],
    items_weight: float,
    item_weights: Mapping[str, float],
    prefer: Sequence[int],
) -> list[tuple[int, float, int, int]]:
    """Class, loss, number of legitimate classes, conditions broken: for each row."""
    found = []
    for at, row in enumerate(frame.iter_rows(named=True)):
        ranked, legitimate = [], 0
        for number in range(mapping.count):
            broken, loss = 0, 0.0
            for weight, column, line in zip(weights, mapping.columns, mapping.cells, strict=True):
                covered, cost = _column(column, line[number], row[column.name])
                broken += not covered
                loss += weight * cost
            uncovered, item_loss, listed = _items(mapping, number, row, item_weights)
            broken += uncovered
            legitimate += broken == 0
            ranked.append((broken, loss + items_weight * item_loss, number != prefer[at], listed, number))
        broken, loss, _, _, number = min(ranked)
        found.append((number, loss, legitimate, broken))
    return found


def _column(column: QuasiColumn, text: str | None, value: Any) -> tuple[bool, float]:
    cell = parse_cell(text)
    if column.kind == "category":
        known = len(column.values) + column.missing
        own = None if value is None else canonical_text(value)
        if isinstance(cell, Suppressed):
            return True, 1.0 if known > 1 else 0.0
        members = _members(column, cell)
        held = set(members) | {own}
        return own in members, 0.0 if len(held) == 1 else min(len(held) / known, 1.0)
    low, high = column.bounds if column.bounds is not None else (0.0, 0.0)
    if isinstance(cell, Suppressed):
        return True, 1.0 if high > low or column.missing else 0.0
    if isinstance(cell, Interval):
        numbers, missing = [cell.low, cell.high], cell.missing
    else:
        members = _members(column, cell)
        numbers, missing = [float(member) for member in members if member is not None], None in members
    covered = missing if value is None else bool(numbers) and min(numbers) <= value <= max(numbers)
    numbers += [] if value is None else [float(value)]
    missing = missing or value is None
    if not numbers:
        return covered, 0.0
    if missing:
        return covered, 1.0
    width = max(numbers) - min(numbers)
    if high == low:
        return covered, float(width > 0)
    return covered, min(width / (high - low), 1.0)


def _members(column: QuasiColumn, cell: Any) -> tuple[str | None, ...]:
    if isinstance(cell, Label):
        return column.labels[cell.text]
    return cell.values if isinstance(cell, ValueSet) else (cell,)


def _items(
    mapping: JointMapping, number: int, row: Mapping[str, Any], item_weights: Mapping[str, float]
) -> tuple[int, float, int]:
    """Items under no label, UL by exact fractions, and how many items the class's labels stand for."""
    labels = [mapping.groups.members[g] for g in mapping.groups.of_class[number]]
    own = set(row[mapping.items] or ()) if mapping.items is not None else set()
    used = [held for held in labels if own & set(held)]
    uncovered = own - {item for held in used for item in held}
    total = sum(len(held) for held in used) + len(uncovered)
    lost = Fraction(0)
    for held in used:
        if len(held) > 1:
            weight = sum(item_weights.get(item, 1.0) for item in held) / len(held)
            lost += (2 ** len(held) - 1) * Fraction(weight)
    loss = float(lost / (2**total - 1)) if total else 0.0
    return len(uncovered), loss, sum(len(held) for held in labels)
