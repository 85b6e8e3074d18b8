"""Make a site's mapping from its released rows, and the hub's union of the mappings of several sites.

Guarantee: `mapping_of` reads released rows and nothing else, so a mapping tells nothing that the release does not.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, IntegrityError
from kohort.methods.syntactic.mapping.mapping import (
    ItemGroups,
    JointMapping,
    Leaves,
    QuasiColumn,
    SiteMapping,
    number_of,
)
from kohort.tables.cells import Cell, Interval, Label, Suppressed, ValueSet, parse_cell
from kohort.tables.domain import Domain, category_text, item_lists
from kohort.tables.hierarchy import Hierarchy

__all__ = ["mapping_of", "union"]

Integers = NDArray[np.int64]


def mapping_of(
    released: pl.DataFrame,
    *,
    site: str,
    schema: str,
    data_version: str,
    k: int,
    m: int,
    quasi: Sequence[str],
    items: str | None = None,
    classes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    members: abc.Mapping[str, Sequence[str]] | None = None,
    hierarchies: abc.Mapping[str, Hierarchy] | None = None,
    domain: Domain | None = None,
) -> SiteMapping:
    """The mapping of a site's released rows, its classes in the order of `classes`.

    Args:
        released: The rows that were released.
        site: Name of the site.
        schema: Fingerprint of the schema.
        data_version: Version of the site's data.
        k: Rows of every class.
        m: Number of items an attacker may know.
        quasi: Names of the quasi-identifiers; there may be none where items are given in classes.
        items: Name of the items column.
        classes: Class of each row, numbered from 0; without it, rows with the same quasi-identifier cells are a class,
            numbered by first occurrence.
        members: What an item label stands for, where neither its text (`{a, b}`, an item) nor the hierarchy of the
            items column says so.
        hierarchies: The hierarchies that labels come from.
        domain: Values that cells are measured against; without it, all released cells.

    Returns:
        The mapping. It tells nothing that the released rows do not.

    Raises:
        ConfigError: Neither quasi-identifiers nor items in classes are named, or a label has no hierarchy.
        DataError: Rows or columns are absent, or the classes do not match the rows.
        IntegrityError: A class has fewer than k rows.
    """
    if not quasi and (items is None or classes is None):
        raise ConfigError("a mapping needs a quasi-identifier, or items in classes", hint="Name at least one column")
    absent = [name for name in (*quasi, *([items] if items else [])) if name not in released.columns]
    if absent or not released.height:
        what = f"lack columns: {', '.join(absent)}" if absent else "are none"
        raise DataError(f"the released rows {what}", hint="Give the table that was released")
    texts = [category_text(released[name]) for name in quasi]
    of_row = _class_codes(texts, classes, released.height)
    sizes = np.bincount(of_row)
    if not sizes.all():
        raise DataError("a class has no released row", hint="Number the classes from 0 without gaps")
    first = np.unique(of_row, return_index=True)[1]
    one_cell = pl.DataFrame([*texts, pl.Series("", of_row)]).unique().height == len(sizes)
    if not one_cell:
        raise DataError("rows of one class were released with different cells", hint="Check the numbers of classes")
    cells = tuple(tuple(text.gather(first).to_list()) for text in texts)
    taxonomies = hierarchies or {}
    numbers = [_is_number(released[name], cells[at], domain, taxonomies) for at, name in enumerate(quasi)]
    return SiteMapping(
        site=site,
        schema=schema,
        data_version=data_version,
        k=k,
        m=m,
        columns=tuple(
            _column(name, cells[at], number=numbers[at], domain=domain, hierarchy=taxonomies.get(name))
            for at, name in enumerate(quasi)
        ),
        items=items,
        cells=cells,
        groups=_groups(released, items, of_row, len(sizes), members or {}, taxonomies),
        sizes=tuple(int(size) for size in sizes),
    )


def union(mappings: Sequence[SiteMapping]) -> JointMapping:
    """The classes of all mappings.

    Args:
        mappings: The mappings; a site that published two data versions has one for each.

    Returns:
        The classes, numbered through in the order of the mappings.

    Raises:
        ConfigError: No mapping is given.
        IntegrityError: Mappings are for different schemas, or a site's data version comes twice.
    """
    if not mappings:
        raise ConfigError("no mapping to unite", hint="Give at least one")
    first = mappings[0]
    for other in mappings[1:]:
        if (other.schema, other.quasi, other.items) != (first.schema, first.quasi, first.items):
            hint = "All sites need one schema: compare their plans"
            raise IntegrityError(f"the mapping of site {other.site!r} is for another schema", hint=hint)
    published = [(one.site, one.data_version) for one in mappings]
    if len(set(published)) < len(published):
        hint = "A mapping is published once a data version"
        raise IntegrityError("a site's mapping came twice for one data version", hint=hint)
    columns = tuple(_merged([one.columns[at] for one in mappings]) for at in range(len(first.columns)))
    pairs = sorted({pair for one in mappings for pair in zip(one.groups.labels, one.groups.members, strict=True)})
    number = {pair: at for at, pair in enumerate(pairs)}
    of_class = tuple(
        tuple(number[one.groups.labels[g], one.groups.members[g]] for g in held)
        for one in mappings
        for held in one.groups.of_class
    )
    return JointMapping(
        schema=first.schema,
        sites=tuple(one.site for one in mappings),
        versions=tuple(one.data_version for one in mappings),
        columns=columns,
        items=first.items,
        cells=tuple(tuple(text for one in mappings for text in one.cells[at]) for at in range(len(columns))),
        groups=ItemGroups(
            labels=tuple(label for label, _ in pairs), members=tuple(held for _, held in pairs), of_class=of_class
        ),
        sizes=np.concatenate([np.asarray(one.sizes, np.int64) for one in mappings]),
        site_of=np.repeat(np.arange(len(mappings)), [one.count for one in mappings]).astype(np.int64),
    )


def _class_codes(
    texts: Sequence[pl.Series], given: Sequence[int] | NDArray[np.integer[Any]] | None, rows: int
) -> Integers:
    if given is not None:
        codes = np.asarray(given, np.int64)
        if codes.shape != (rows,) or codes.min() < 0:
            raise DataError("the numbers of classes do not match the rows", hint="Give one number from 0 a row")
        return codes
    combined = pl.DataFrame(texts).select(pl.struct(pl.all()).rank("dense")).to_series().to_numpy()
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return place[inverse]


def _is_number(
    column: pl.Series, cells: Sequence[str | None], domain: Domain | None, hierarchies: abc.Mapping[str, Hierarchy]
) -> bool:
    """As the domain says; without one, a column all of whose cells stand for numbers is a number."""
    if domain is not None and column.name in domain.columns:
        return domain.columns[column.name].kind == "number"
    if column.dtype.is_numeric():
        return True
    numeric: list[bool] = []
    for cell in (_parsed(text, column.name) for text in set(cells)):
        if isinstance(cell, Interval):
            numeric.append(True)
        elif not isinstance(cell, Suppressed):
            members = _members(cell, hierarchies.get(column.name), column.name)
            numeric += [number_of(text) is not None for text in members if text is not None]
    return bool(numeric) and all(numeric)


def _column(
    name: str, cells: Sequence[str | None], *, number: bool, domain: Domain | None, hierarchy: Hierarchy | None
) -> QuasiColumn:
    parsed = [_parsed(text, name) for text in sorted({text for text in cells if text is not None})]
    labels = {cell.text: _members(cell, hierarchy, name) for cell in parsed if isinstance(cell, Label)}
    leaves: Leaves = {text: tuple(str(leaf) for leaf in sorted(map(str, found))) for text, found in labels.items()}
    known = domain.columns.get(name) if domain is not None else None
    seen = [
        member
        for cell in parsed
        if not isinstance(cell, (Interval, Suppressed))
        for member in (leaves[cell.text] if isinstance(cell, Label) else _members(cell, None, name))
    ]
    missing = None in cells or None in seen or any(isinstance(cell, Interval) and cell.missing for cell in parsed)
    missing = missing or (known is not None and known.missing)
    texts = [text for text in seen if text is not None]
    if number:
        ends = [end for cell in parsed if isinstance(cell, Interval) for end in (cell.low, cell.high)]
        ends += [value for text in texts if (value := number_of(text)) is not None]
        ends += list(known.bounds) if known is not None and known.bounds is not None else []
        bounds = (min(ends) + 0.0, max(ends) + 0.0) if ends else (0.0, 0.0)
        return QuasiColumn(name=name, kind="number", bounds=bounds, missing=missing, labels=leaves)
    texts += list(known.categories or ()) if known is not None else []
    texts += list(hierarchy.values) if hierarchy is not None else []
    return QuasiColumn(name=name, kind="category", values=tuple(sorted(set(texts))), missing=missing, labels=leaves)


def _groups(
    released: pl.DataFrame,
    items: str | None,
    of_row: Integers,
    count: int,
    members: abc.Mapping[str, Sequence[str]],
    hierarchies: abc.Mapping[str, Hierarchy],
) -> ItemGroups:
    if items is None:
        return ItemGroups(of_class=((),) * count)
    pairs = (
        pl.DataFrame({"class": of_row, "label": item_lists(released[items])})
        .explode("label")
        .drop_nulls("label")
        # A suppressed item is no label: it was not released.
        .filter(pl.col("label") != "*")
        .unique()
        .sort("class", "label")
    )
    labels = pairs["label"].unique().sort()
    codes = pairs["label"].cast(pl.Enum(labels)).to_physical().cast(pl.Int64).to_numpy()
    ends = np.cumsum(np.bincount(pairs["class"].to_numpy(), minlength=count))
    held = [
        tuple(
            sorted(
                {str(item) for item in (members[label] if label in members else _of_label(label, items, hierarchies))}
            )
        )
        for label in labels
    ]
    of_class = tuple(tuple(part.tolist()) for part in np.split(codes, ends[:-1]))
    return ItemGroups(labels=tuple(labels.to_list()), members=tuple(held), of_class=of_class)


def _of_label(label: str, items: str, hierarchies: abc.Mapping[str, Hierarchy]) -> tuple[str | None, ...]:
    return _members(_parsed(label, items), hierarchies.get(items), items)


def _members(cell: Cell | str | None, hierarchy: Hierarchy | None, name: str) -> tuple[str | None, ...]:
    """The values a cell other than an interval stands for."""
    if isinstance(cell, Label):
        if hierarchy is None:
            hint = "Give the hierarchies the table was generalised with"
            raise ConfigError(f"column {name!r} holds taxonomy labels and its hierarchy is not given", hint=hint)
        return hierarchy.leaves(cell.text)
    if isinstance(cell, ValueSet):
        return cell.values
    if isinstance(cell, (Interval, Suppressed)):
        raise DataError(f"a cell of column {name!r} is no set of values", hint="Write item labels as values or sets")
    return (cell,)


def _parsed(text: str | None, name: str) -> Cell | str | None:
    try:
        return parse_cell(text)
    except DataError as problem:
        raise DataError(f"column {name!r}: {problem.message}", hint=problem.hint) from None


def _merged(parts: Sequence[QuasiColumn]) -> QuasiColumn:
    """One column that holds the values of all sites."""
    # A site that released nothing but missing or suppressed cells does not know of what kind the column is.
    first = next((part for part in parts if part.kind == "number" or part.values), parts[0])
    labels: dict[str, tuple[str, ...]] = {}
    for part in parts:
        other_kind = part.kind != first.kind and bool(part.kind == "number" or part.values)
        if other_kind or any(labels.get(text, leaves) != leaves for text, leaves in part.labels.items()):
            hint = "Give all sites one schema and the same hierarchies"
            raise IntegrityError(f"sites disagree about the values of column {first.name!r}", hint=hint)
        labels.update(part.labels)
    bounds = [part.bounds for part in parts if part.bounds is not None]
    return QuasiColumn(
        name=first.name,
        kind=first.kind,
        bounds=(min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None,
        values=tuple(sorted({value for part in parts for value in part.values})),
        missing=any(part.missing for part in parts),
        labels=labels,
    )
