"""What anonymising cost: information loss of a released table against its input.

- `ncp`: mean over input rows and quasi-identifiers of the penalty of the cell. A number: (max - min of the input values
  in the row's released class) / (max - min in the input table). A category: d / distinct values of the input table, d
  the distinct input values in the class, 0 if d = 1. Under a taxonomy label d is the number of input-table values below
  the label. Null is a value; no number is near it, so a class that mixes null and numbers costs 1. A suppressed row
  costs 1, and so does a suppressed cell (`*`, or null where the input had a value); a column with one value costs 0.
  Tight: what counts is the spread of the input values, not how wide the released text is.
- `association`: entropy coefficient I(column; target) / H(target), Theil's U of the target given the column; between 0
  (the column says nothing about the target) and 1. `entropy_loss` is 1 - sum after / sum before over the
  quasi-identifiers. Counted in a small sample, a column of many values seems to say more than it does, and cells that
  join values seem to lose what was never there. Corrected, every association is less by what independent columns show
  on average, (values - 1)(targets - 1) / (2 rows) nats, and the loss is a share between 0 and 1; uncorrected it is what
  papers print, and negative when generalised cells say more about the target than the values did.

Guarantee: everything is computed from the two tables; nothing an anonymiser says about itself is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.classes import as_frame, require_columns, sorted_distinct
from kohort.anonymity.coded_frame import TEXTS, CodedFrame, OrderedClasses
from kohort.errors import ConfigError, DataError
from kohort.tables.cells import SUPPRESSED, Label, canonical_text, parse_cell
from kohort.tables.hierarchy import Hierarchy

__all__ = [
    "association",
    "entropy_loss",
    "ncp",
    "ncp_and_entropy",
    "ncp_by_column",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
Rows = NDArray[np.int64] | None  # None: all of them, in their order

BITS = 64
MASKS = (np.uint8, np.uint16, np.uint32, np.uint64)


def ncp(
    before: Any,
    after: Any,
    *,
    quasi: Sequence[str],
    kept: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    hierarchies: Mapping[str, Hierarchy] | None = None,
) -> float:
    """Normalised certainty penalty of the release, between 0 and 1.

    Args:
        before: The input table.
        after: The released table.
        quasi: Names of the quasi-identifiers.
        kept: Row number in `before` of each row of `after`; without it the two have the same rows.
        hierarchies: Hierarchies of the columns that were released as taxonomy labels.

    Returns:
        The mean over input rows and quasi-identifiers: 0 if nothing was generalised, 1 if everything was suppressed.

    Raises:
        ConfigError: No quasi-identifier is named, or the hierarchy of a label is not given.
        DataError: A column is absent, or `kept` does not match the tables.

    Example:
        >>> before = pl.DataFrame({"age": [20, 30, 40, 60]})
        >>> after = pl.DataFrame({"age": ["[20, 30]", "[20, 30]", "[40, 60]", "[40, 60]"]})
        >>> ncp(before, after, quasi=["age"])
        0.375
    """
    found = ncp_by_column(before, after, quasi=quasi, kept=kept, hierarchies=hierarchies)
    return sum(found.values()) / len(found)


def ncp_by_column(
    before: Any,
    after: Any,
    *,
    quasi: Sequence[str],
    kept: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    hierarchies: Mapping[str, Hierarchy] | None = None,
) -> dict[str, float]:
    """Normalised certainty penalty of each quasi-identifier.

    Args:
        before: The input table.
        after: The released table.
        quasi: Names of the quasi-identifiers.
        kept: Row number in `before` of each row of `after`; None: the two have the same rows.
        hierarchies: Hierarchies of the columns that were released as taxonomy labels.

    Returns:
        The mean penalty over the input rows by column, from 0 to 1.

    Raises:
        ConfigError: No quasi-identifier is named, or the hierarchy of a label is not given.
        DataError: A column is absent, or `kept` does not match the tables.
    """
    source = as_frame(before)
    names = require_columns(source, quasi)
    if not names:
        raise ConfigError("information loss needs a quasi-identifier", hint="Name at least one column")
    released = _released(after, source, names)
    rows = _kept_rows(source.height, released.height, kept)
    return _ncp(CodedFrame(source), CodedFrame(released), names, rows, hierarchies or {})


def ncp_and_entropy(
    before: pl.DataFrame,
    after: pl.DataFrame,
    *,
    quasi: Sequence[str],
    target: str | None,
    kept: NDArray[np.int64],
    hierarchies: Mapping[str, Hierarchy],
    counts: NDArray[np.int64] | None = None,
) -> tuple[float, float | None]:
    """`ncp`, and the corrected `entropy_loss` of the kept rows, every column coded once for both.

    Args:
        before: The input table, texts as they are or as categories.
        after: The released table, likewise.
        quasi: Names of the quasi-identifiers.
        target: The column that associations are with; None: no entropy loss.
        kept: Row number in `before` of each row of `after`.
        hierarchies: Hierarchies of the columns that were released as taxonomy labels.
        counts: How many rows each row of `before` stands for, where rows that are alike in `before` and in `after` are
            given once; None: each is one.

    Returns:
        Both losses; None for the second without a target.

    Raises:
        ConfigError: No quasi-identifier is named, or the hierarchy of a label is not given.
        DataError: A column is absent, or `kept` does not match the tables.
    """
    source, released = CodedFrame(before, counts), CodedFrame(after, None if counts is None else counts[kept])
    names = require_columns(before, quasi)
    require_columns(after, names)
    rows = _kept_rows(before.height, after.height, kept)
    by_column = _ncp(source, released, names, rows, hierarchies)
    lost = None if target is None else _entropy_loss(source, released, names, target, rows=rows, corrected=True)
    return sum(by_column.values()) / len(by_column), lost


def _ncp(
    source: CodedFrame,
    released: CodedFrame,
    names: Sequence[str],
    rows: Rows,
    hierarchies: Mapping[str, Hierarchy],
) -> dict[str, float]:
    height, missing = source.rows, source.rows - released.rows
    if not released.height:
        return dict.fromkeys(names, 1.0)
    classes = released.classes(names)
    return {name: (_penalty(source, released, name, rows, classes, hierarchies) + missing) / height for name in names}


def _theils_u(of: Integers, given: Integers, each: NDArray[np.int64] | None, *, corrected: bool) -> float:
    """I(of; given) / H(of) of two columns' codes; `each` says how many rows each row stands for, None: one."""
    values, targets = int(given.max(initial=0)) + 1, int(of.max(initial=0)) + 1
    joint = given.astype(np.int64) * targets + of
    if values * targets <= 4 * len(of):
        table = np.bincount(joint, each, minlength=values * targets).reshape(values, targets)
        counts, of_counts, given_counts = table.ravel(), table.sum(axis=0), table.sum(axis=1)
    else:
        counts, of_counts, given_counts = _counted(joint, each), np.bincount(of, each), np.bincount(given, each)
    whole = _entropy(of_counts)
    if whole == 0.0:
        return 0.0
    information = whole + _entropy(given_counts) - _entropy(counts)
    if corrected:
        rows = len(of) if each is None else int(each.sum())
        information -= (np.count_nonzero(of_counts) - 1) * (np.count_nonzero(given_counts) - 1) / (2 * rows)
    return float(min(max(information / whole, 0.0), 1.0))


def _counted(numbers: NDArray[np.int64], each: NDArray[np.int64] | None) -> NDArray[Any]:
    """How often each number occurs."""
    if each is None:
        return np.unique(numbers, return_counts=True)[1]
    return np.bincount(np.unique(numbers, return_inverse=True)[1], each)


def association(frame: Any, *, columns: Sequence[str], target: str, corrected: bool = False) -> dict[str, float]:
    """Entropy coefficient of each column with the target.

    Args:
        frame: A pandas, polars or pyarrow table.
        columns: Names of the columns.
        target: The column that associations are with.
        corrected: Subtract what independent columns of so many values show on average in a table of this size.

    Returns:
        I(column; target) / H(target) by column, from 0 to 1; 0 where the target has one value.

    Raises:
        DataError: A column is absent, or the table has no rows.
    """
    table = as_frame(frame)
    names = require_columns(table, columns)
    require_columns(table, [target])
    return _associations(CodedFrame(table), names, target, rows=None, corrected=corrected)


def _associations(
    table: CodedFrame, names: Sequence[str], target: str, *, rows: Rows, corrected: bool
) -> dict[str, float]:
    of, each = table.codes(target, rows), table.counts if rows is None or table.counts is None else table.counts[rows]
    return {name: _theils_u(of, table.codes(name, rows), each, corrected=corrected) for name in names}


def entropy_loss(before: Any, after: Any, *, quasi: Sequence[str], target: str, corrected: bool = False) -> float:
    """1 - sum of the associations after / sum before, over the quasi-identifiers other than the target.

    Args:
        before: The input table.
        after: The released table.
        quasi: Names of the quasi-identifiers.
        target: The column that associations are with.
        corrected: Corrected for small samples, and a share between 0 and 1.

    Returns:
        0 if no column was associated with the target to begin with; 1 if every row was suppressed.

    Raises:
        DataError: A column is absent.
    """
    source = as_frame(before)
    columns = require_columns(source, [name for name in quasi if name != target])
    require_columns(source, [target])
    released = _released(after, source, (*columns, target))
    return _entropy_loss(CodedFrame(source), CodedFrame(released), columns, target, rows=None, corrected=corrected)


def _entropy_loss(
    source: CodedFrame,
    released: CodedFrame,
    names: Sequence[str],
    target: str,
    *,
    rows: Rows,
    corrected: bool,
) -> float:
    """`entropy_loss` against the input rows `rows`, all of them when None."""
    columns = [name for name in names if name != target]
    if not released.height and rows is not None:
        return 1.0
    had = sum(_associations(source, columns, target, rows=rows, corrected=corrected).values())
    if had == 0.0:
        return 0.0
    left = 0.0
    if released.height:
        left = sum(_associations(released, columns, target, rows=None, corrected=corrected).values())
    return min(max(1.0 - left / had, 0.0), 1.0) if corrected else 1.0 - left / had


def _released(after: Any, source: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The released table, which unlike an input may have no rows left."""
    height = after.height if isinstance(after, pl.DataFrame) else len(after)
    released = as_frame(after) if height else source.clear()
    require_columns(released, names)
    return released


def _kept_rows(rows: int, released: int, kept: Sequence[int] | NDArray[np.integer[Any]] | None) -> Rows:
    """The input row of each released row; None where these are all rows in their order."""
    if kept is None:
        if released not in (rows, 0):
            hint = "Say in kept which input row each released row is"
            raise DataError(f"{rows:,} rows became {released:,}", hint=hint)
        return None if released else np.empty(0, np.int64)
    found = np.asarray(kept, dtype=np.int64)
    if released == rows and np.array_equal(found, np.arange(rows)):
        return None
    in_range = bool(((found >= 0) & (found < rows)).all())
    if found.shape != (released,) or not in_range or len(sorted_distinct(found)) != released:
        hint = "Give one number between 0 and the last input row for each released row, none twice"
        raise DataError(f"kept does not match {released:,} released and {rows:,} input rows", hint=hint)
    return found


def _penalty(
    source: CodedFrame,
    released: CodedFrame,
    name: str,
    rows: Rows,
    classes: OrderedClasses,
    hierarchies: Mapping[str, Hierarchy],
) -> float:
    """Summed penalty of the released cells of one column."""
    whole, shown = source.frame[name], released.frame[name]
    distinct = source.distinct(name)
    if distinct == 1:
        return 0.0
    if whole.dtype.is_numeric():
        by_class = _number_penalties(whole, rows, classes)
    else:
        by_class = _category_penalties(source.codes(name, rows), distinct, classes)
    marks: dict[int, str] = {}
    if shown.dtype in TEXTS:
        marks = _marks(released, name, classes.order[classes.first])
    if not marks and not shown.null_count():
        return float((by_class * classes.summed(released.counts)).sum())
    cells = by_class[classes.of_row]
    if marks:
        cells = _with_marks(cells, source, released, name, rows, hierarchies, marks)
    if shown.null_count():
        cells[(shown.is_null() & _taken(whole, rows).is_not_null()).to_numpy()] = 1.0
    return float(cells.sum() if released.counts is None else (cells * released.counts).sum())


def _taken(column: pl.Series, rows: Rows) -> pl.Series:
    """The values of some rows."""
    return column if rows is None else column.gather(rows)


def _number_penalties(whole: pl.Series, rows: Rows, classes: OrderedClasses) -> Floats:
    extent = float(whole.max() or 0.0) - float(whole.min() or 0.0)  # type: ignore[arg-type] # numbers
    values = _taken(whole, rows)
    if not values.null_count():
        held = values.to_numpy()[classes.order]
        ends = (classes.reduced(function, held).astype(np.float64) for function in (np.maximum, np.minimum))
        return (next(ends) - next(ends)) / (extent or 1.0)
    numbers = values.cast(pl.Float64).fill_null(0.0).to_numpy()[classes.order]
    missing = values.is_null().to_numpy()[classes.order]
    high = classes.reduced(np.maximum, np.where(missing, -np.inf, numbers))
    low = classes.reduced(np.minimum, np.where(missing, np.inf, numbers))
    width = np.where(high >= low, high - low, 0.0) / (extent or 1.0)
    mixed = (high >= low) & classes.reduced(np.maximum, missing)
    return np.where(mixed, 1.0, width)


def _category_penalties(codes: Integers, distinct: int, classes: OrderedClasses) -> Floats:
    span = int(codes.max()) + 1
    if span <= BITS:
        mask = next(kind for kind in MASKS if span <= 8 * kind().itemsize)
        bits = np.left_shift(mask(1), np.arange(span, dtype=mask))
        held = np.bitwise_or.reduceat(bits[codes.astype(np.uint8)[classes.order]], classes.first)
        in_class = np.bitwise_count(held).astype(np.int64)
    else:
        pairs = sorted_distinct(classes.of_row * span + codes)
        in_class = np.bincount(pairs // span, minlength=classes.count)
    return np.where(in_class == 1, 0.0, in_class / distinct)


def _with_marks(
    cells: Floats,
    source: CodedFrame,
    released: CodedFrame,
    name: str,
    rows: Rows,
    hierarchies: Mapping[str, Hierarchy],
    marks: Mapping[int, str],
) -> Floats:
    """The penalties, with those of suppressed and of labelled cells in their places; the others their class decides."""
    whole, shown = source.frame[name], released.frame[name]
    codes = released.codes(name)
    changed = np.ones(len(codes), np.bool_)
    if whole.dtype in TEXTS:
        # A value released as it came in may look like a mark without being one.
        texts = shown.cast(pl.String), _taken(whole, rows).cast(pl.String)
        changed = ~(texts[0] == texts[1]).fill_null(False).to_numpy()
    penalty = np.full(released.distinct(name), np.nan)
    for code in np.unique(codes[changed]).tolist():
        if code in marks:
            penalty[code] = _mark_penalty(marks[code], whole, source.distinct(name), hierarchies)
    marked = np.where(changed, penalty[codes], np.nan)
    return np.where(np.isnan(marked), cells, marked)


def _marks(released: CodedFrame, name: str, rows: NDArray[np.int64]) -> dict[int, str]:
    """The texts of some rows that look like marks of suppression or labels, by their codes."""
    row = np.full(released.distinct(name), -1)
    row[released.codes(name, rows)] = rows
    held = np.flatnonzero(row >= 0)  # one row stands for all of its text
    texts = released.frame[name].gather(row[held]).cast(pl.String)
    found = (texts == "*") | (texts.str.starts_with("<") & texts.str.ends_with(">"))
    marked = found.fill_null(False).to_numpy()
    return dict(zip(held[marked].tolist(), texts.filter(found).to_list(), strict=True))


def _mark_penalty(text: str, whole: pl.Series, distinct: int, hierarchies: Mapping[str, Hierarchy]) -> float:
    """Penalty of a text that is a mark of suppression or a label; NaN if it is neither."""
    cell = parse_cell(text)
    if cell is SUPPRESSED:
        return 1.0
    if not isinstance(cell, Label):
        return float("nan")
    values = {canonical_text(value) for value in whole.unique().drop_nulls().to_list()}
    below = len(values.intersection(_hierarchy(hierarchies, whole.name).leaves(cell.text)))
    return 0.0 if below <= 1 else below / distinct


def _hierarchy(hierarchies: Mapping[str, Hierarchy], column: str) -> Hierarchy:
    if column not in hierarchies:
        hint = "Pass the hierarchies the table was generalised with"
        raise ConfigError(f"column {column!r} holds taxonomy labels and its hierarchy is not given", hint=hint)
    return hierarchies[column]


def _entropy(counts: NDArray[np.integer[Any]]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
