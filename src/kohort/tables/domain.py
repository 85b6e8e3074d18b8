"""The values a column can take: categories or bounds, declared by the schema or learned from rows.

Guarantees: nothing the schema declares is looked for in the rows; `learned` names every column whose domain did come
from rows, so that the caller can record the disclosure; merging the domains of sites gives the same result in any
order; the mapping form reads back exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import polars as pl

from kohort.errors import ConfigError, DataError, counted
from kohort.tables.frames import ITEM_SEPARATOR
from kohort.tables.schema import ColumnKind, ColumnSpec, Schema
from kohort.tables.text_types import dates_of

__all__ = [
    "OTHER",
    "ColumnDomain",
    "Domain",
    "Gaps",
    "category_text",
    "column_kind",
    "declared_column",
    "declared_domain",
    "item_lists",
    "learn_domain",
    "merge_domains",
    "number",
    "number_like",
    "undeclared_columns",
]

Gaps = Literal["drop", "category", "impute"]
"""What a plan does with missing values; all but "drop" keep a place for them."""
OTHER = "other"
MAX_INTEGER_CLASSES = 20
MOST_DAYS = 10_000_000
"""Beyond so many, a date's number counts microseconds."""
EXACT_INTEGERS = 2.0**53


@dataclass(frozen=True, kw_only=True)
class ColumnDomain:
    """What one column can hold. An integer target that could be classes or a number carries both forms."""

    kind: ColumnKind
    categories: tuple[str, ...] | None = None
    bounds: tuple[float, float] | None = None
    missing: bool = False
    declared: bool = False
    counted: bool = False
    """Whether it holds what enough persons share, by a secure count: other categories are "other" and other numbers
    are clipped."""

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        counted = {"counted": True} if self.counted else {}
        return {
            "kind": self.kind,
            "categories": None if self.categories is None else list(self.categories),
            "bounds": None if self.bounds is None else list(self.bounds),
            "missing": self.missing,
            "declared": self.declared,
            **counted,
        }


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The domain of every model input and of the target, by column."""

    columns: Mapping[str, ColumnDomain] = field(default_factory=dict)

    @property
    def learned(self) -> tuple[str, ...]:
        """Columns whose domain was, in part at least, read from rows."""
        return tuple(name for name, column in self.columns.items() if not column.declared)

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values that `from_mapping` reads back exactly."""
        return {name: column.to_mapping() for name, column in self.columns.items()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Domain:
        """The inverse of `to_mapping`."""
        try:
            return cls(
                columns={
                    name: ColumnDomain(
                        kind=entry["kind"],
                        categories=None if entry["categories"] is None else tuple(map(str, entry["categories"])),
                        bounds=None if entry["bounds"] is None else _pair(entry["bounds"]),
                        missing=bool(entry["missing"]),
                        declared=bool(entry["declared"]),
                        counted=bool(entry.get("counted", False)),
                    )
                    for name, entry in mapping.items()
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError("this is not a stored domain", hint="Use what Domain.to_mapping gave") from None


def learn_domain(frame: pl.DataFrame, schema: Schema, *, missing: Gaps | None = None) -> Domain:
    """The domain of a resolved schema's inputs and target; rows are asked only for what is not declared.

    Args:
        frame: The table.
        schema: The resolved schema.
        missing: "drop" says that rows with nulls are left out, so no column keeps a place for them. Otherwise a column
            has one when the schema declares it nullable or when a null is seen; seeing one makes the domain a learned
            one.

    Returns:
        The domain of each of these columns; `declared` is False where a row was asked.

    Raises:
        DataError: The table lacks a column, or a number column holds no number.
    """
    names = [*schema.inputs, *(() if schema.target is None else (schema.target,))]
    known = set(frame.columns)
    absent = [name for name in names if name not in known]
    if absent:
        raise DataError(f"the table lacks columns: {', '.join(absent)}", hint="Resolve the schema for this table")
    columns: dict[str, ColumnDomain] = {}
    for name in names:
        spec, is_target = schema.columns[name], name == schema.target
        values = _values_of(frame[name], spec, is_target=is_target)
        seen = frame[name].null_count() > 0 and not spec.nullable
        keeps_nulls = missing != "drop" and not is_target and (seen or spec.nullable)
        declared = values.declared and not (keeps_nulls and seen)
        columns[name] = replace(values, missing=keeps_nulls, declared=declared)
    return Domain(columns=columns)


def undeclared_columns(schema: Schema) -> tuple[str, ...]:
    """The inputs, and the target, whose domain the schema does not declare.

    Args:
        schema: The resolved schema.

    Returns:
        The names of the inputs, and of the target, for which it declares no categories, bounds or bins.
    """
    names = [*schema.inputs, *(() if schema.target is None else (schema.target,))]
    return tuple(name for name in names if not _is_declared(schema.columns[name]))


def _is_declared(spec: ColumnSpec) -> bool:
    return not (spec.categories is None and spec.bounds is None and spec.bins is None)


def declared_column(schema: Schema, name: str, *, missing: Gaps | None = None) -> ColumnDomain:
    """The domain of one column, as the schema declares it.

    Args:
        schema: The resolved schema.
        name: A column that it declares categories, bounds or bins for.
        missing: As in `learn_domain`.

    Returns:
        The domain; no row was asked.
    """
    spec, is_target = schema.columns[name], name == schema.target
    no_rows = pl.Series(name, dtype=pl.Float64 if spec.bounds or spec.bins else pl.String)
    keeps_nulls = missing != "drop" and not is_target and spec.nullable
    return replace(_values_of(no_rows, spec, is_target=is_target), missing=keeps_nulls)


def declared_domain(schema: Schema, *, missing: Gaps | None = None) -> Domain | None:
    """The domain of a schema that declares every part of it, so that no row has to be asked.

    Args:
        schema: The resolved schema.
        missing: As in `learn_domain`.

    Returns:
        The domain; None where some column is undeclared.
    """
    if undeclared_columns(schema):
        return None
    names = [*schema.inputs, *(() if schema.target is None else (schema.target,))]
    return Domain(columns={name: declared_column(schema, name, missing=missing) for name in names})


def merge_domains(domains: Sequence[Domain]) -> Domain:
    """One domain that holds all: union of categories, widest bounds, missing where any has it.

    Args:
        domains: The domain of each site, over the same columns.

    Returns:
        The merged domain.

    Raises:
        ConfigError: No domain is given.
        DataError: Domains disagree about columns or kinds.
    """
    if not domains:
        raise ConfigError("no domain to merge", hint="Give at least one")
    names = list(domains[0].columns)
    for domain in domains[1:]:
        if set(domain.columns) != set(names):
            odd = sorted(set(names) ^ set(domain.columns))
            raise DataError(f"sites disagree about columns: {', '.join(odd)}", hint="Give all sites one schema")
    return Domain(columns={name: _merge(name, [domain.columns[name] for domain in domains]) for name in names})


def column_kind(spec: ColumnSpec, dtype: pl.DataType) -> ColumnKind:
    """What the schema declares, else what the type of the column says.

    Args:
        spec: What the schema declares about the column.
        dtype: Its polars type, which decides where no kind is declared.

    Returns:
        "number", "category" or "items"; dates and times are numbers.
    """
    if spec.declared_kind is not None:
        return spec.declared_kind
    if isinstance(dtype, pl.List):
        return "items"
    return "number" if dtype.is_numeric() or dtype.is_temporal() else "category"


def number(column: pl.Series) -> pl.Series:
    """The column as 64-bit floats: dates in days since 1970, dates with a time and durations in microseconds.

    Args:
        column: Numbers, truth values, dates and times, or texts that are numbers.

    Returns:
        The numbers; null stays null.

    Raises:
        DataError: Some text is no number, or the type cannot be one.
    """
    if isinstance(column.dtype, pl.Datetime | pl.Duration):
        return column.dt.cast_time_unit("us").to_physical().cast(pl.Float64)
    if column.dtype.is_temporal():
        return column.to_physical().cast(pl.Float64)
    if column.dtype in (pl.String, pl.Boolean) or column.dtype.is_numeric():
        out = column.cast(pl.Float64, strict=False)
        lost = out.null_count() - column.null_count()
        if not lost:
            return out
        raise DataError(
            f"column {column.name!r} is declared a number but has none in {counted(lost, 'row')}",
            hint='Correct them, or declare the column with kind = "category"',
        )
    raise DataError(f"column {column.name!r} of type {column.dtype} is not a number", hint="Check its kind")


def number_like(column: pl.Series, bounds: tuple[float, float] | None) -> pl.Series:
    """`number`, with dates in the unit of a domain: days, or microseconds.

    Args:
        column: A column of rows to predict, whose dates may be of another type than those of the training rows.
        bounds: The bounds of the domain.

    Returns:
        The numbers; null stays null.

    Raises:
        DataError: Some text is no number and no date.
    """
    if column.dtype == pl.String and column.cast(pl.Float64, strict=False).null_count() > column.null_count():
        column = found if (found := dates_of(column)) is not None else column
    if bounds is not None and column.dtype == pl.Date and max(map(abs, bounds)) > MOST_DAYS:
        column = column.cast(pl.Datetime("us"))
    elif bounds is not None and isinstance(column.dtype, pl.Datetime) and max(map(abs, bounds)) <= MOST_DAYS:
        column = column.cast(pl.Date)
    return number(column)


def category_text(column: pl.Series) -> pl.Series:
    """The column as text: false/true, whole numbers without `.0`, all else as it prints.

    Args:
        column: A column of one value per row.

    Returns:
        The texts; null stays null.

    Raises:
        DataError: The column holds lists.
    """
    if column.dtype == pl.String:
        return column
    if column.dtype.is_float():
        whole = (column == column.floor()) & (column.abs() < EXACT_INTEGERS)
        texts = pl.select(
            pl.when(whole).then(column.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(column.cast(pl.String))
        ).to_series()
        return texts.alias(column.name)
    if isinstance(column.dtype, pl.List):
        raise DataError(f"column {column.name!r} holds lists", hint="Give it the role items")
    return column.cast(pl.String)


def item_lists(column: pl.Series) -> pl.Series:
    """The column as lists of texts, without blanks at their ends, empty items and repeats.

    Args:
        column: Lists, or one text per row with `;` between items.

    Returns:
        The lists, items in their first order; null stays null.
    """
    if isinstance(column.dtype, pl.List):
        lists = column.cast(pl.List(pl.String))
    else:
        lists = category_text(column).str.split(ITEM_SEPARATOR)
    cleaned = lists.list.eval(pl.element().str.strip_chars().drop_nulls())
    return cleaned.list.eval(pl.element().filter(pl.element() != "").unique(maintain_order=True))


def _pair(values: Sequence[float]) -> tuple[float, float]:
    low, high = values
    return float(low), float(high)


def _values_of(column: pl.Series, spec: ColumnSpec, *, is_target: bool) -> ColumnDomain:
    kind = column_kind(spec, column.dtype)
    if kind == "number":
        if spec.bounds is not None:
            return ColumnDomain(kind=kind, bounds=spec.bounds, declared=True)
        if spec.bins is not None:
            return ColumnDomain(kind=kind, bounds=(spec.bins[0], spec.bins[-1]), declared=True)
        bounds = _bounds_of(column)
        ambiguous = is_target and column.dtype.is_integer() and spec.kind is None
        if ambiguous and column.drop_nulls().n_unique() <= MAX_INTEGER_CLASSES:
            return ColumnDomain(kind=kind, categories=_sorted_categories(category_text(column)), bounds=bounds)
        return ColumnDomain(kind=kind, bounds=bounds)
    if spec.categories is not None:
        return ColumnDomain(kind=kind, categories=_with_other(spec.categories, spec), declared=True)
    texts = item_lists(column).explode() if kind == "items" else category_text(column)
    return ColumnDomain(kind=kind, categories=_with_other(_sorted_categories(texts), spec))


def _bounds_of(column: pl.Series) -> tuple[float, float]:
    values = number(column)
    low, high = values.min(), values.max()
    if low is None or high is None:
        raise DataError(f"column {column.name!r} has no value at all", hint="Drop the column, or declare its bounds")
    return float(low), float(high)  # type: ignore[arg-type]


def _sorted_categories(texts: pl.Series) -> tuple[str, ...]:
    return sort_categories(texts.drop_nulls().unique().to_list())


def sort_categories(texts: Sequence[str]) -> tuple[str, ...]:
    """By number when every text is one, so that label codes keep the order; else by text."""
    try:
        return tuple(sorted(texts, key=lambda text: (float(text), text)))
    except ValueError:
        return tuple(sorted(texts))


def _with_other(categories: tuple[str, ...], spec: ColumnSpec) -> tuple[str, ...]:
    return categories if not spec.other or OTHER in categories else (*categories, OTHER)


def _merge(name: str, parts: Sequence[ColumnDomain]) -> ColumnDomain:
    if len({part.kind for part in parts}) > 1:
        hint = "Declare its kind (or its categories or bounds) in the schema"
        raise DataError(f"sites disagree whether column {name!r} is a number or a category", hint=hint)
    first = parts[0]
    flags = {"missing": any(part.missing for part in parts), "declared": all(part.declared for part in parts)}
    bounds = [part.bounds for part in parts if part.bounds is not None]
    widest = (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None
    categories = _merge_categories(parts)
    if first.kind == "number" and categories is not None and len(categories) > MAX_INTEGER_CLASSES:
        categories = None
    return ColumnDomain(kind=first.kind, categories=categories, bounds=widest, **flags)


def _merge_categories(parts: Sequence[ColumnDomain]) -> tuple[str, ...] | None:
    lists = [part.categories for part in parts]
    known = [categories for categories in lists if categories is not None]
    if len(known) < len(lists):
        return None
    if len(set(known)) == 1:
        return known[0]  # a declared order is kept
    union = {text for categories in known for text in categories}
    has_other = any(categories[-1:] == (OTHER,) for categories in known)
    ordered = sort_categories(sorted(union - {OTHER} if has_other else union))
    return (*ordered, OTHER) if has_other else ordered
