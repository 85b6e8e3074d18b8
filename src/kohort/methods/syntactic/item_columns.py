"""Several columns of items as one set of a row, and back.

An attacker may know items of any column, so (k, k^m)-anonymity counts combinations over all of them. Every item carries
the name of its column: the same text in two columns is two items, and a cell tells no more than what was counted.
Nothing stands above two columns, so every released cell belongs to one of them.

One column of items is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from kohort.errors import DataError
from kohort.tables.cells import Label, format_cell, parse_cell
from kohort.tables.codes import CodeTree, JoinedTrees, in_column
from kohort.tables.domain import Domain, item_lists
from kohort.tables.schema import Schema

__all__ = ["apart", "codes_of", "items_tree", "joined", "joint_items", "labels_apart"]


def joint_items(schema: Schema) -> str | None:
    """The name of the column that holds all items of a row together.

    Args:
        schema: Which columns hold items.

    Returns:
        The one column of items, or the names of several joined by " + "; None where no column holds items.
    """
    return " + ".join(schema.items) or None


def items_tree(schema: Schema) -> CodeTree | None:
    """What stands above the items, where it is declared; above those of several columns, the root of each.

    Args:
        schema: Which columns hold items, and their hierarchies.

    Returns:
        The tree. None for a single column without a hierarchy, and where no column holds items.

    Raises:
        ConfigError: The name of a column would make a text ambiguous.
    """
    found = tuple((name, schema.columns[name].tree(name)) for name in schema.items)
    if len(found) > 1:
        return JoinedTrees(str(joint_items(schema)), (), trees=found)
    return next((tree for _, tree in found), None)


def joined(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """A table with the set of all items of a row in the column `joint_items`.

    Args:
        frame: Rows as they are.
        schema: Which columns hold items.

    Returns:
        The table, with one more column where several hold items.

    Raises:
        DataError: The table lacks one of them.
    """
    if len(schema.items) < 2:
        return frame
    absent = [name for name in schema.items if name not in frame.columns]
    if absent:
        hint = "The model was trained with them: add them to the table"
        raise DataError(f"the table lacks columns: {', '.join(absent)}", hint=hint)
    tagged = [
        item_lists(frame[name]).fill_null([]).list.eval(pl.lit(in_column(name, "")) + pl.element()).alias(name)
        for name in schema.items
    ]
    together = pl.DataFrame(tagged).select(pl.concat_list(pl.all()))
    return frame.with_columns(together.to_series().alias(str(joint_items(schema))))


def apart(released: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """A table whose released items of several columns, one set, stand in their columns again.

    Args:
        released: Rows with cells in the column `joint_items`.
        schema: Which columns hold items.

    Returns:
        The table without that column.
    """
    if len(schema.items) < 2:
        return released
    joint = str(joint_items(schema))
    cells = released[joint].explode(empty_as_null=False, keep_nulls=False).unique()
    of_text = {text: _parts(text) for text in cells.to_list()}
    columns = []
    for name in schema.items:
        own = {text: cell for text, (column, cell) in of_text.items() if column == name}
        element = pl.element()
        kept = pl.col(joint).list.eval(
            element.filter(element.is_in(list(own))).replace_strict(own, default=None, return_dtype=pl.String)
        )
        columns.append(kept.alias(name))
    return released.with_columns(columns).drop(joint)


def labels_apart(labels: Mapping[str, tuple[str, ...]], schema: Schema) -> dict[str, dict[str, tuple[str, ...]]]:
    """By column, what the labels of one set over several columns stand for.

    Args:
        labels: What each label stands for, in texts with their columns.
        schema: Which columns hold items.

    Returns:
        The labels of each column, in texts of that column.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in schema.items}
    for label, members in labels.items():
        column, _, text = label.partition("=")
        found[column][text] = tuple(member.partition("=")[2] for member in members)
    return found


def codes_of(schema: Schema, domain: Domain) -> list[str]:
    """All items that hub and sites agreed on.

    Args:
        schema: Which columns hold items.
        domain: The agreed values.

    Returns:
        The items, sorted; each with the name of its column (`in_column`) where several columns hold items.
    """
    several = len(schema.items) > 1
    return sorted(
        in_column(name, code) if several else code
        for name in schema.items
        for code in domain.columns[name].categories or ()
    )


def _parts(text: str) -> tuple[str, str]:
    """The column of a released cell, and the cell as it stands there."""
    cell = parse_cell(text)
    if not isinstance(cell, (str, Label)):
        raise DataError("a released item of several columns is no item and no label", hint="Release it again")
    column, _, own = (cell.text if isinstance(cell, Label) else cell).partition("=")
    return column, str(format_cell(Label(own) if isinstance(cell, Label) else own))
