"""New rows under the classes a model learned from (Choudhury et al., 2020, section 3.6).

A class is legitimate for a row when each of its cells covers the row's value (a number inside the interval, a category
in the set or below the label) and each of the row's items stands under one of its labels. Of the legitimate classes a
row gets the one that costs least: the weighted NCP of its cells (eq. 2) plus the weighted UL of the labels the row's
items get there (eqs 4 and 5, an item released as it is costing nothing). Of classes that cost the same, the preferred
one comes first, then the one whose labels stand for the fewest items, then the one with the lowest number.

When no class is legitimate the row is flagged, and gets a class that breaks the fewest conditions (columns that do not
cover its value plus items under no label); among these the least cost after the cells are widened to hold the row.

Guarantees: the class chosen for a row is, by (conditions broken, cost), never worse than any other class, so a row that
was trained on never costs more than the class it was trained in; the same rows and classes give the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import DataError
from kohort.methods.syntactic.mapping.index import blocks, item_codes, item_index
from kohort.methods.syntactic.mapping.mapping import JointMapping, SiteMapping, union
from kohort.methods.syntactic.mapping.tables import Floats, Integers, class_table, label_table

__all__ = ["Mapped", "costs", "generalised", "map_rows"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Mapped:
    """One entry a row. `class_of` counts into the mapping's classes and `site_of` into its sites.

    `legitimate` is how many classes are; `violated` how many conditions the chosen class breaks, 0 if it is legitimate.
    """

    class_of: Integers
    site_of: Integers
    loss: Floats
    legitimate: Integers
    violated: Integers

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """Rows for which no class is legitimate."""
        found: NDArray[np.bool_] = self.legitimate == 0
        return found

    @property
    def flagged_count(self) -> int:
        """How many rows are flagged."""
        return int(self.flagged.sum())


def map_rows(
    frame: pl.DataFrame,
    mapping: SiteMapping | JointMapping,
    *,
    weights: Mapping[str, float] | None = None,
    item_weights: Mapping[str, float] | None = None,
    prefer: Sequence[int] | NDArray[np.integer[Any]] | None = None,
) -> Mapped:
    """The class of every row of `frame`, which holds values as they are.

    `weights` gives one weight between 0 and 1 for each quasi-identifier and for the items column (default: 1 / number
    of quasi-identifiers each, 1 for the items); `item_weights` one for an item (default 1). `prefer` is the class of
    each row that wins a tie, -1 for none.
    """
    from kohort.methods.syntactic.mapping.kernel import map_block

    joint = union([mapping]) if isinstance(mapping, SiteMapping) else mapping
    table = class_table(joint, weights=weights, item_weights=item_weights)
    preferred = _preferred(prefer, frame.height)
    found = Mapped(
        class_of=np.empty(frame.height, np.int64),
        site_of=np.empty(frame.height, np.int64),
        loss=np.empty(frame.height),
        legitimate=np.empty(frame.height, np.int64),
        violated=np.empty(frame.height, np.int64),
    )
    for block in blocks(frame, joint, table):
        part = block.rows
        map_block(
            *block.arguments, table.labels.listed, table.order, preferred[part], block.conditions.bit_length(),
            found.class_of[part], found.loss[part], found.legitimate[part], found.violated[part],
        )  # fmt: skip
    found.site_of[:] = joint.site_of[found.class_of]
    return found


def costs(
    frame: pl.DataFrame,
    mapping: SiteMapping | JointMapping,
    class_of: Sequence[int] | NDArray[np.integer[Any]],
    *,
    weights: Mapping[str, float] | None = None,
    item_weights: Mapping[str, float] | None = None,
) -> tuple[Integers, Floats]:
    """What each row would get in a class that is given: conditions broken, and loss, to compare with `map_rows`."""
    from kohort.methods.syntactic.mapping.kernel import class_costs

    joint = union([mapping]) if isinstance(mapping, SiteMapping) else mapping
    table = class_table(joint, weights=weights, item_weights=item_weights)
    given = np.asarray(class_of, np.int64)
    if given.shape != (frame.height,) or (frame.height and not 0 <= given.min() <= given.max() < joint.count):
        raise DataError("the classes do not match the rows", hint=f"Give one number below {joint.count:,} a row")
    places = np.argsort(table.order)[given]
    violated, loss = np.empty(frame.height, np.int64), np.empty(frame.height)
    for block in blocks(frame, joint, table):
        class_costs(*block.arguments, places[block.rows], loss[block.rows], violated[block.rows])
    return violated, loss


def generalised(frame: pl.DataFrame, mapping: SiteMapping | JointMapping, mapped: Mapped) -> pl.DataFrame:
    """The rows as the model is fed them: the cells of their class, and for the items the labels that hold them.

    Items under no label of the class are left out, as items are that a site suppressed. Other columns stay as they are.
    """
    from kohort.methods.syntactic.mapping.kernel import labels_of_rows

    joint = union([mapping]) if isinstance(mapping, SiteMapping) else mapping
    cells = [
        pl.Series(column.name, line, dtype=pl.String).gather(mapped.class_of)
        for column, line in zip(joint.columns, joint.cells, strict=True)
    ]
    if joint.items is None:
        return frame.with_columns(cells)
    held = label_table(joint.groups, np.arange(joint.count), {})
    index = item_index(held, joint.count)
    codes, starts = item_codes(frame, joint.items, held.items)
    labels = np.empty(len(codes), np.int64)
    labels_of_rows(
        index.bits, codes, starts, 0, index.before, held.starts, held.label_at, mapped.class_of, labels
    )  # fmt: skip
    row_of = np.repeat(np.arange(frame.height), np.diff(starts))
    known = labels >= 0
    pairs = np.unique(row_of[known] * max(len(held.size), 1) + labels[known])
    rows, own = np.divmod(pairs, max(len(held.size), 1))
    texts = pl.Series(joint.groups.labels, dtype=pl.String).gather(own)
    listed = pl.DataFrame({"row": rows, "labels": texts}).group_by("row", maintain_order=True).agg("labels")
    every = pl.DataFrame({"row": np.arange(frame.height)}).join(listed, on="row", how="left", maintain_order="left")
    return frame.with_columns(*cells, every["labels"].fill_null([]).alias(joint.items))


def _preferred(prefer: Sequence[int] | NDArray[np.integer[Any]] | None, rows: int) -> Integers:
    found = np.full(rows, -1, np.int64) if prefer is None else np.asarray(prefer, np.int64)
    if found.shape != (rows,):
        raise DataError(f"prefer has {len(found):,} entries for {rows:,} rows", hint="Give one class, or -1, a row")
    return found
