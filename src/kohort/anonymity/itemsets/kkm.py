"""(k, k^m)-anonymity for rows that also hold a set of items (Poulis et al., 2013; Choudhury et al., 2020).

Three steps: clusters of at least k rows that lose least in their quasi-identifiers; joining of clusters where that
spares items, within a bound on relational loss (`delta`); generalisation of the items in each class until who knows a
row's quasi-identifiers and up to m of its items is left with k rows. Items become groups such as {C, D, E, F}, or the
labels of an item hierarchy; what cannot be saved is suppressed, node by node, counted, and limited. With
`rare = "suppress"` rows that hold a rare combination lose an item instead (`generalise.suppress_rare`); with
`rare = "recode"` an item of such a row goes up its hierarchy first, in that row alone (`local`).

Where `identifier` names a person, persons are counted and not rows, and the column is not released.

Guarantee: the released table has been judged by `kohort.anonymity.checker`, which shares no code with what made it;
what does not hold there is an error and nothing is returned. There is no randomness: same table, same release.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.itemsets.clusters import form_clusters
from kohort.anonymity.itemsets.generalise import ItemAnonymiser, Rare
from kohort.anonymity.itemsets.hierarchy import ItemHierarchy, check_codes, find_hierarchy, item_tree
from kohort.anonymity.itemsets.items import distinct, read_items, release_items
from kohort.anonymity.itemsets.loss import ItemLoss, item_losses
from kohort.anonymity.itemsets.merging import Merge
from kohort.anonymity.relational.anonymise import Report
from kohort.anonymity.relational.hierarchy_levels import HierarchyLevels
from kohort.anonymity.relational.problem import CodedTable, Integers, Partition, code_table
from kohort.anonymity.relational.recode import ColumnCells, release
from kohort.errors import ConfigError, DataError, IntegrityError, RefusedError, nearest
from kohort.tables.frames import Missing, from_native, handle_missing, to_native
from kohort.tables.hierarchy import Hierarchy

__all__ = ["GroupScope", "ItemGroup", "KKmClass", "KKmResult", "Rare", "anonymise_items"]

GroupScope = Literal["per-cluster", "table-wide"]
LARGEST_M, LARGEST_LOCAL_M = 3, 4
EVERYONE = "\0everyone"
"""The same in all rows: what stands for quasi-identifiers where there are none. No column of a table has this name."""


@dataclass(frozen=True)
class ItemGroup:
    """A released item: its cell as text, and the items it stands for."""

    text: str
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KKmClass:
    """One released class: rows, the cell of each quasi-identifier, and the released items that occur in it."""

    number: int
    size: int
    cells: Mapping[str, Any]
    items: tuple[ItemGroup, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class KKmResult:
    """A released table and what it cost.

    Attributes:
        frame: The released table, in the caller's kind of frame.
        kept: Input row of each released row.
        cluster: Class of each released row.
        report: What was done and what holds for the result.
        relational_loss: The report's NCP.
        item_loss: As defined in `kohort.anonymity.itemsets.loss`.
        loss: All item losses.
        suppressed_items: Item occurrences that no released cell stands for.
        suppressed_rows: Rows left out.
        merges: Number of merged clusters.
        m: Number of items an attacker may know.
        delta: Bound on the relational loss of merging.
        cells: Released cells of the quasi-identifiers.
        hierarchies: Hierarchies of the quasi-identifiers.
        item_hierarchy: The hierarchy that item labels come from; None for groups.
        items: The items of the table.
        groups: The released items and what they stand for.
        class_items: Pairs (class, place in `groups`), both rising.
    """

    frame: Any
    kept: Integers
    cluster: Integers
    report: Report
    relational_loss: float
    item_loss: float
    loss: ItemLoss
    suppressed_items: int
    suppressed_rows: int
    merges: int
    m: int
    delta: float
    cells: tuple[ColumnCells, ...]
    hierarchies: Mapping[str, Hierarchy]
    item_hierarchy: Hierarchy | None
    items: tuple[str, ...]
    groups: tuple[ItemGroup, ...]
    class_items: NDArray[np.int64]

    @cached_property
    def classes(self) -> tuple[KKmClass, ...]:
        """The released classes, in the order of their numbers."""
        sizes = np.bincount(self.cluster)
        ends = np.searchsorted(self.class_items[:, 0], np.arange(1, len(sizes) + 1)).tolist()
        places = self.class_items[:, 1].tolist()
        made, begin = [], 0
        for number, end in enumerate(ends):
            cells = {one.name: one.cells[one.of_class[number]] for one in self.cells}
            found = tuple(self.groups[place] for place in places[begin:end])
            made.append(KKmClass(number=number, size=int(sizes[number]), cells=cells, items=found))
            begin = end
        return tuple(made)

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **self.report.to_mapping(),
            "m": self.m,
            "delta": self.delta,
            "item_information_loss": self.loss.information_loss,
            "item_utility_loss": self.loss.utility_loss,
            "item_occurrences": self.loss.occurrences,
            "suppressed_items": self.suppressed_items,
            "merges": self.merges,
        }


def anonymise_items(
    frame: Any,
    *,
    quasi: Sequence[str],
    items: str | Sequence[str],
    k: int,
    m: int = 2,
    delta: float = 0.95,
    weights: Mapping[str, float] | None = None,
    item_weights: Mapping[str, float] | None = None,
    item_hierarchy: ItemHierarchy = "none",
    groups: GroupScope = "per-cluster",
    rare: Rare = "generalise",
    hierarchies: Mapping[str, Hierarchy] | None = None,
    ordered: Mapping[str, Sequence[str]] | None = None,
    merge: Merge = "paying",
    suppression_limit: float = 1.0,
    identifier: str | None = None,
    sensitive: Sequence[str] = (),
    target: str | None = None,
    missing: Missing = "category",
) -> KKmResult:
    """Release a table whose rows hold quasi-identifiers and sets of items.

    Args:
        frame: A pandas, polars or pyarrow table.
        quasi: Names of the quasi-identifiers. Without any all rows are one class: k^m-anonymity of the items alone.
        items: Columns of item sets.
        k: Rows (or persons) of every class and of every combination of up to m items.
        m: Number of items an attacker may know, 1 to 3; 4 with local recoding.
        delta: Bound on the relational loss that joining clusters may lead to.
        weights: How much a loss in each quasi-identifier counts, from 0 to 1.
        item_weights: How much the loss of each item counts, from 0 to 1.
        item_hierarchy: What items are generalised to; see `kohort.anonymity.itemsets.hierarchy`.
        groups: Group items class by class, or alike in the whole table.
        rare: Generalise items until enough persons hold every combination ("generalise"); or until enough hold each
            item, after which rows that hold a rare combination lose an item ("suppress"); or let an item of such a
            row go up the hierarchy in that row alone, to the root, before it is suppressed ("recode").
        hierarchies: Hierarchies of quasi-identifiers; the cells of others are intervals and value sets.
        ordered: The categories of some quasi-identifiers in their order.
        merge: When to join clusters; see `kohort.anonymity.itemsets.merging`.
        suppression_limit: Largest share of item occurrences that may be suppressed.
        identifier: Column that says who a row is about; it is not released.
        sensitive: Columns that are measured, nothing more.
        target: Column that entropy loss is about.
        missing: "category" (null is a value) or "drop" (only complete rows).

    Returns:
        The released table, verified by the checker.

    Raises:
        ConfigError: Options are unknown, out of range or do not fit together.
        DataError: The table lacks a column, or a hierarchy lacks a value.
        RefusedError: There are fewer than k persons, or too many items would be suppressed.
        IntegrityError: The checker found that the release does not meet the rule.
    """
    began = time.perf_counter()
    given, kind = from_native(frame)
    if not quasi:
        given, quasi = given.with_columns(pl.lit("").alias(EVERYONE)), (EVERYONE,)
    names = (items,) if isinstance(items, str) else tuple(dict.fromkeys(items))
    _check_columns(given, quasi, names, identifier)
    _check_options(groups, merge, rare, m=m, delta=delta, suppression_limit=suppression_limit)
    _check_recoding(groups, rare, has_tree=item_hierarchy != "none", columns=len(names))
    unknown = [name for name in weights or {} if name not in quasi]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} has a weight and is no quasi-identifier", hint=nearest(unknown[0], quasi))
    table = handle_missing(given, quasi, missing)
    rows = read_items(table, names)
    notes = check_codes(item_hierarchy, names[0], rows.items)
    found = find_hierarchy(item_hierarchy, names[0], rows.items)
    tree = item_tree(rows.items, found)
    persons = None if identifier is None else _persons(table[identifier])
    people = table.height if persons is None else int(persons.max(initial=-1)) + 1
    if people < k:
        what = "rows" if persons is None else "persons"
        raise RefusedError(f"{people:,} {what} cannot be {k:,}-anonymous", hint=f"k of at most {people:,} can be met")
    coded = code_table(table, quasi, ordered=ordered)
    steps = _levels(coded, hierarchies)
    maker = ItemAnonymiser(coded, steps, rows, tree, persons, k, m, _weights(coded, weights), item_weights, rare)
    labels = maker.united(form_clusters(coded, maker.shape, k=k, persons=persons))
    merged, merges, known = maker.merged(labels, delta=delta, merge=merge)
    partition = Partition.of_labels(maker.united(merged))
    cells = maker.cells(partition)
    node = maker.generalised(partition, table_wide=groups == "table-wide", before=labels, known=known)
    columns, listed, cell = release_items(rows, tree, node, partition.labels, table_wide=groups == "table-wide")
    released = release(table, partition, cells).with_columns(columns)
    report, loss = _judged(
        table, released, names, cells, hierarchies or {}, found,
        quasi=quasi, sensitive=sensitive, target=target, identifier=identifier, k=k, m=m, began=began,
    )  # fmt: skip
    _check_suppression(loss, suppression_limit)
    held = cell >= 0
    width = max(len(listed), 1)
    pairs = distinct(partition.labels[rows.row_of[held]] * width + cell[held], partition.count * width)
    hidden = [name for name in (identifier, EVERYONE) if name in released.columns]
    return KKmResult(
        frame=to_native(released.drop(hidden), kind),
        kept=np.arange(table.height),
        cluster=partition.labels,
        report=replace(report, notes=notes),
        relational_loss=report.ncp,
        item_loss=loss.item_loss,
        loss=loss,
        suppressed_items=loss.suppressed,
        suppressed_rows=0,
        merges=merges,
        m=m,
        delta=delta,
        cells=tuple(one for one in cells if one.name != EVERYONE),
        hierarchies=hierarchies or {},
        item_hierarchy=found,
        items=rows.items,
        groups=tuple(ItemGroup(text, members) for text, members in listed),
        class_items=np.stack(np.divmod(pairs, width), axis=1),
    )


def _levels(
    table: CodedTable, hierarchies: Mapping[str, Hierarchy] | None
) -> tuple[HierarchyLevels | None, ...] | None:
    if not hierarchies:
        return None
    known = [column.name for column in table.columns]
    unknown = [name for name in hierarchies if name not in known]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} has a hierarchy and is no quasi-identifier", hint=nearest(unknown[0], known))
    return tuple(
        HierarchyLevels.of(column, hierarchies[column.name]) if column.name in hierarchies else None
        for column in table.columns
    )


def _check_columns(frame: pl.DataFrame, quasi: Sequence[str], items: tuple[str, ...], identifier: str | None) -> None:
    if isinstance(quasi, str):
        raise ConfigError("quasi is one string", hint="Give a list of names")
    if not items:
        raise ConfigError("no items column is named", hint="Name the column that holds the item sets")
    for name in (*quasi, *items, *(() if identifier is None else (identifier,))):
        if name not in frame.columns:
            raise DataError(f"the table has no column {name!r}", hint=nearest(name, frame.columns))
    for name in quasi:
        if name in items or name == identifier:
            other = "an items column" if name in items else "the identifier"
            raise ConfigError(f"quasi-identifier {name!r} is also {other}", hint="Choose one of the two")


def _check_options(groups: str, merge: str, rare: str, *, m: int, delta: float, suppression_limit: float) -> None:
    for value, known, what in ((groups, GroupScope, "groups"), (merge, Merge, "merge"), (rare, Rare, "rare")):
        if value not in get_args(known):
            raise ConfigError(f"unknown {what} {value!r}", hint=nearest(value, get_args(known)))
    most = LARGEST_LOCAL_M if rare == "recode" else LARGEST_M
    if not 1 <= m <= most:
        raise ConfigError(f"m is {m}", hint=f"Use 1 to {most}: how many items an attacker may know")
    for share, what in ((delta, "delta"), (suppression_limit, "the suppression limit")):
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"{what} is {share:g}", hint="Use a share between 0 and 1")


def _check_recoding(groups: str, rare: str, *, has_tree: bool, columns: int) -> None:
    if rare == "recode" and columns > 1:
        # What a cell hides is counted over all columns, but the column it stands in tells more.
        hint = 'Join the columns into one, or use "generalise"'
        raise ConfigError("items of several columns cannot be recoded row by row", hint=hint)
    if rare == "recode" and (groups == "table-wide" or not has_tree):
        what = "alike in the whole table" if has_tree else "without a hierarchy"
        hint = "Name an item hierarchy, and leave groups at per-cluster"
        raise ConfigError(f"items cannot be recoded row by row {what}", hint=hint)


def _check_suppression(loss: ItemLoss, limit: float) -> None:
    if loss.suppressed > limit * loss.occurrences:
        share = loss.suppressed / loss.occurrences
        hint = f"Allow a share of {np.ceil(share * 1000) / 1000:g}, or ask for a smaller k or m"
        message = f"{loss.suppressed:,} of {loss.occurrences:,} items would be suppressed, {share:.1%}"
        raise RefusedError(f"{message}; {limit:.1%} are allowed", hint=hint)


def _weights(table: CodedTable, weights: Mapping[str, float] | None) -> NDArray[np.float64]:
    found = np.array([(weights or {}).get(column.name, 1.0) for column in table.columns], dtype=np.float64)
    if not ((found >= 0) & (found <= 1)).all():
        raise ConfigError("the weight of a quasi-identifier is not between 0 and 1", hint="Use weights from 0 to 1")
    if not found.any():
        raise ConfigError("all quasi-identifiers have weight 0", hint="Give one of them a weight above 0")
    return found


def _persons(column: pl.Series) -> Integers:
    """A number for each person.

    Raises:
        DataError: Some row does not say whom it is about: as persons of their own, such rows could be one person.
    """
    silent = column.null_count()
    if silent:
        hint = "Fill the column in, or drop these rows: nobody can be counted in them"
        raise DataError(f"{silent:,} rows do not say in column {column.name!r} whom they are about", hint=hint)
    return (column.rank("dense") - 1).to_numpy().astype(np.int64)


def _judged(
    before: pl.DataFrame,
    after: pl.DataFrame,
    items: tuple[str, ...],
    cells: tuple[ColumnCells, ...],
    hierarchies: Mapping[str, Hierarchy],
    item_hierarchy: Hierarchy | None,
    *,
    quasi: Sequence[str],
    sensitive: Sequence[str],
    target: str | None,
    identifier: str | None,
    k: int,
    m: int,
    began: float,
) -> tuple[Report, ItemLoss]:
    """What the checker and the loss measures say about the release; an error where the rule does not hold."""
    from kohort.anonymity.checker.measures import measure
    from kohort.anonymity.loss import entropy_loss, ncp

    found = measure(after, quasi=quasi, sensitive=sensitive, items=items, m=m, persons=identifier)
    if found.k < k or found.km is None or found.km < k:
        message = f"the released table does not meet the rule: k is {found.k}, k^m {found.km}, not {k}"
        raise IntegrityError(message, hint="Report this")
    loss = item_losses(before, after, items=items, hierarchy=item_hierarchy)
    about = target if target is not None else next(iter(sensitive), None)
    names = [one.name for one in cells]
    suppressed = sum(int(np.isin(after[one.name].to_numpy(), ["*"]).sum()) for one in cells if one.suppressed.any())
    generalised = ncp(before, after, quasi=names, hierarchies=hierarchies)
    return Report(
        rows=before.height,
        rows_out=after.height,
        classes=found.classes,
        k=found.k,
        l_distinct=found.l_distinct,
        l_entropy=found.l_entropy,
        t_emd=found.t_emd,
        t_kl=found.t_kl,
        km=found.km,
        ncp=generalised,
        ncp_released=generalised,
        entropy_loss=None if about is None else entropy_loss(before, after, quasi=names, target=about, corrected=True),
        item_loss=loss.item_loss,
        suppressed_rows=0,
        suppressed_cells=suppressed,
        algorithm="kkm",
        verified=True,
        problems=(),
        seconds=time.perf_counter() - began,
    ), loss
