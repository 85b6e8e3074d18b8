"""What learned values and ranges make of a schema: the domain that hub and sites enrol with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kohort.errors import DataError
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.tables.domain import OTHER, ColumnDomain, Domain, declared_column, sort_categories, undeclared_columns
from kohort.tables.schema import ColumnKind

__all__ = ["disagreement", "learned_column", "learned_domain"]


def learned_domain(
    approved: ApprovedPlan,
    learned: Callable[[int, str], ColumnDomain | None],
    *,
    unknown: Callable[[Sequence[str]], DataError],
) -> Domain:
    """The domain of all columns.

    Args:
        approved: The approved plan, whose schema declares some of them.
        learned: What was learned of an undeclared column, by its place among these and its name; None: nothing.
        unknown: The error about columns of which nothing was learned.

    Returns:
        Declared columns as they are, and the learned ones.

    Raises:
        DataError: Nothing was learned of a column.
    """
    schema, undeclared = approved.schema, undeclared_columns(approved.schema)
    columns: dict[str, ColumnDomain] = {}
    missing: list[str] = []
    for name in (*schema.inputs, *(() if schema.target is None else (schema.target,))):
        if name not in undeclared:
            columns[name] = declared_column(schema, name, missing=approved.missing)
        elif (column := learned(undeclared.index(name), name)) is not None:
            columns[name] = column
        else:
            missing.append(name)
    if missing:
        raise unknown(missing)
    return Domain(columns=columns)


def learned_column(
    approved: ApprovedPlan, name: str, kind: str, texts: Sequence[str], bounds: tuple[float, float] | None
) -> ColumnDomain:
    """The domain of one column.

    Args:
        approved: The approved plan.
        name: The column.
        kind: number, items, or anything else for categories.
        texts: Its frequent values; of a number, the classes that it stands for, or none.
        bounds: The range of a number.

    Returns:
        The domain; rare categories are "other", but in a target without that class.
    """
    is_target = name == approved.schema.target
    missing = approved.missing == "category" and not is_target
    values = sort_categories(texts)
    if kind == "number":
        classes = values if len(values) > 1 else None
        return ColumnDomain(kind="number", categories=classes, bounds=bounds, missing=missing, counted=True)
    if not is_target or approved.schema.columns[name].other:
        values = (*(text for text in values if text != OTHER), OTHER)
    known: ColumnKind = "items" if kind == "items" else "category"
    return ColumnDomain(kind=known, categories=values, missing=missing, counted=True)


def disagreement(name: str) -> DataError:
    """The error about a column that is a number at some sites and a category at others.

    Args:
        name: The column.

    Returns:
        The error, to be raised. It does not say which sites differ.
    """
    hint = "Declare its kind (or its categories or bounds) in the schema"
    return DataError(f"sites disagree whether column {name!r} is a number or a category", hint=hint)
