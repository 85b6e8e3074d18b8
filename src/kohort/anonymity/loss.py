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
- `discernibility`: sum over classes of size^2, plus input rows x suppressed rows (Bayardo and Agrawal, 2005).

Guarantee: everything is computed from the two tables; nothing an anonymiser says about itself is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.classes import Classes, as_frame, group_rows, require_columns, sorted_distinct
from kohort.anonymity.checker.sensitive import value_codes
from kohort.errors import ConfigError, DataError
from kohort.tables.cells import SUPPRESSED, Label, canonical_text, parse_cell
from kohort.tables.hierarchy import Hierarchy

__all__ = [
    "association",
    "average_class_size",
    "discernibility",
    "entropy_loss",
    "ncp",
    "ncp_by_column",
    "theils_u",
]

Floats = NDArray[np.float64]


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
    """`ncp` of each quasi-identifier."""
    source = as_frame(before)
    names = require_columns(source, quasi)
    if not names:
        raise ConfigError("information loss needs a quasi-identifier", hint="Name at least one column")
    released = _released(after, source, names)
    rows = _kept_rows(source.height, released.height, kept)
    if not released.height:
        return dict.fromkeys(names, 1.0)
    classes = group_rows(released, names)
    inputs = source[rows]
    missing = source.height - released.height
    return {
        name: float(_penalties(source[name], inputs[name], released[name], classes, hierarchies or {}).sum() + missing)
        / source.height
        for name in names
    }


def theils_u(frame: Any, *, of: str, given: str, corrected: bool = False) -> float:
    """I(of; given) / H(of): the share of the uncertainty about `of` that `given` removes; 0 if there is none.

    Args:
        frame: A pandas, polars or pyarrow table.
        of: The column that is told about.
        given: The column that tells.
        corrected: Less what independent columns of so many values show on average.

    Returns:
        The share, between 0 and 1.
    """
    table = as_frame(frame)
    require_columns(table, [of, given])
    of_codes, of_count = value_codes(table[of])
    given_codes, given_count = value_codes(table[given])
    whole = _entropy(np.bincount(of_codes))
    if whole == 0.0:
        return 0.0
    _, joint = np.unique(given_codes * of_count + of_codes, return_counts=True)
    information = whole + _entropy(np.bincount(given_codes)) - _entropy(joint)
    if corrected:
        information -= (of_count - 1) * (given_count - 1) / (2 * table.height)
    return float(min(max(information / whole, 0.0), 1.0))


def association(frame: Any, *, columns: Sequence[str], target: str, corrected: bool = False) -> dict[str, float]:
    """Entropy coefficient of each column with the target, corrected for small samples if asked."""
    table = as_frame(frame)
    names = require_columns(table, columns)
    return {name: theils_u(table, of=target, given=name, corrected=corrected) for name in names}


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
    columns = [name for name in quasi if name != target]
    had = sum(association(before, columns=columns, target=target, corrected=corrected).values())
    if had == 0.0:
        return 0.0
    source = as_frame(before)
    released = _released(after, source, (*require_columns(source, columns), target))
    left = 0.0
    if released.height:
        left = sum(association(released, columns=columns, target=target, corrected=corrected).values())
    return min(max(1.0 - left / had, 0.0), 1.0) if corrected else 1.0 - left / had


def discernibility(after: Any, *, quasi: Sequence[str], suppressed_rows: int = 0) -> int:
    """Sum of squared class sizes; a suppressed row counts as alike to every input row."""
    sizes = group_rows(as_frame(after), quasi).sizes
    total = int(sizes.sum()) + suppressed_rows
    return int((sizes**2).sum()) + suppressed_rows * total


def average_class_size(after: Any, *, quasi: Sequence[str], k: int = 1) -> float:
    """Rows / classes / k: 1 would be the ideal for that k (LeFevre et al., 2006)."""
    classes = group_rows(as_frame(after), quasi)
    return classes.rows / classes.count / k


def _released(after: Any, source: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The released table, which unlike an input may have no rows left."""
    height = after.height if isinstance(after, pl.DataFrame) else len(after)
    released = as_frame(after) if height else source.clear()
    require_columns(released, names)
    return released


def _kept_rows(rows: int, released: int, kept: Sequence[int] | NDArray[np.integer[Any]] | None) -> NDArray[np.int64]:
    if kept is None:
        if released not in (rows, 0):
            hint = "Say in kept which input row each released row is"
            raise DataError(f"{rows:,} rows became {released:,}", hint=hint)
        return np.arange(released)
    found = np.asarray(kept, dtype=np.int64)
    in_range = bool(((found >= 0) & (found < rows)).all())
    if found.shape != (released,) or not in_range or len(sorted_distinct(found)) != released:
        hint = "Give one number between 0 and the last input row for each released row, none twice"
        raise DataError(f"kept does not match {released:,} released and {rows:,} input rows", hint=hint)
    return found


def _penalties(
    source: pl.Series, inputs: pl.Series, released: pl.Series, classes: Classes, hierarchies: Mapping[str, Hierarchy]
) -> Floats:
    """Penalty of each released cell of one column."""
    distinct = source.n_unique()
    if distinct == 1:
        return np.zeros(len(released))
    by_class = _number_penalties if source.dtype.is_numeric() else _category_penalties
    cells = by_class(source, inputs, classes)[classes.of_row]
    if released.dtype == pl.String:
        special = _special_penalties(source, inputs, released, distinct, hierarchies)
        cells = np.where(np.isnan(special), cells, special)
    erased = (released.is_null() & inputs.is_not_null()).to_numpy()
    return np.where(erased, 1.0, cells)


def _number_penalties(source: pl.Series, inputs: pl.Series, classes: Classes) -> Floats:
    numbers = pl.DataFrame({"class": classes.of_row, "value": inputs.cast(pl.Float64)})
    found = (
        numbers.group_by("class")
        .agg(low=pl.col("value").min(), high=pl.col("value").max(), nulls=pl.col("value").null_count(), rows=pl.len())
        .sort("class")
    )
    known = source.cast(pl.Float64).drop_nulls().to_numpy()
    extent = float(known.max() - known.min())
    width = (found["high"] - found["low"]).fill_null(0.0).to_numpy() / (extent or 1.0)
    mixed = ((found["nulls"] > 0) & (found["nulls"] < found["rows"])).to_numpy()
    return np.where(mixed, 1.0, width)


def _category_penalties(source: pl.Series, inputs: pl.Series, classes: Classes) -> Floats:
    codes, _ = value_codes(inputs)
    span = int(codes.max()) + 1
    pairs = sorted_distinct(classes.of_row * span + codes)
    in_class = np.bincount(pairs // span, minlength=classes.count)
    return np.where(in_class == 1, 0.0, in_class / source.n_unique())


def _special_penalties(
    source: pl.Series, inputs: pl.Series, released: pl.Series, distinct: int, hierarchies: Mapping[str, Hierarchy]
) -> Floats:
    """Penalty of the suppressed and the labelled cells; NaN for the others, which their class decides."""
    # A value released as it came in may look like a mark without being one.
    changed = released.set((released == inputs).fill_null(False), None) if inputs.dtype == pl.String else released
    texts = changed.unique().drop_nulls().to_list()
    marks = [text for text in texts if text == "*" or (text.startswith("<") and text.endswith(">"))]
    penalty: dict[str, float] = {}
    values = {canonical_text(value) for value in source.unique().drop_nulls().to_list()}
    for text in marks:
        cell = parse_cell(text)
        if cell is SUPPRESSED:
            penalty[text] = 1.0
        elif isinstance(cell, Label):
            below = len(values.intersection(_hierarchy(hierarchies, released.name).leaves(cell.text)))
            penalty[text] = 0.0 if below <= 1 else below / distinct
    found = changed.replace_strict(penalty, default=None, return_dtype=pl.Float64)
    return found.fill_null(float("nan")).to_numpy()


def _hierarchy(hierarchies: Mapping[str, Hierarchy], column: str) -> Hierarchy:
    if column not in hierarchies:
        hint = "Pass the hierarchies the table was generalised with"
        raise ConfigError(f"column {column!r} holds taxonomy labels and its hierarchy is not given", hint=hint)
    return hierarchies[column]


def _entropy(counts: NDArray[np.integer[Any]]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
