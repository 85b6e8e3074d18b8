"""Per-row consent: what may be done with a row, as a column of the table says.

    share (yes, true, 1)     the row is learned from, and may leave the site as far as the plan and the policy allow
    train                    the row is learned from at its site, in sums too, and never leaves
    none (no, false, 0)      the row takes no part: it is not counted, learned from, tested on or sent

A missing value is no consent. Any other word is an error, because nobody should guess what a person agreed to.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import DataError

__all__ = ["SHARE", "TRAIN", "consent_levels", "consenting_rows"]

NONE: Final = 0
TRAIN: Final = 1
SHARE: Final = 2
WORDS: Final = {
    "share": SHARE, "yes": SHARE, "true": SHARE, "1": SHARE, "1.0": SHARE,
    "train": TRAIN,
    "none": NONE, "no": NONE, "false": NONE, "0": NONE, "0.0": NONE, "": NONE,
}  # fmt: skip


def consent_levels(column: pl.Series) -> NDArray[np.int8]:
    """What each row allows.

    Args:
        column: The column that says so.

    Returns:
        `SHARE`, `TRAIN`, or 0 for no consent, per row.

    Raises:
        DataError: Some cells hold another word; the message says how many, not what they hold.
    """
    said = column.cast(pl.String).fill_null("").str.strip_chars().str.to_lowercase()
    known = said.replace_strict(WORDS, default=None, return_dtype=pl.Int8)
    strange = known.null_count()
    if strange:
        raise DataError(
            f"column {column.name!r} says about {strange:,} rows something that is no consent and no refusal",
            hint='Use "share" (or yes, true, 1), "train", or "none" (or no, false, 0, or nothing)',
        )
    return known.to_numpy().astype(np.int8)


def consenting_rows(frame: pl.DataFrame, column: str | None) -> pl.DataFrame:
    """The rows that may take part.

    Args:
        frame: The table.
        column: The column with consents; None where the plan names none, and all rows take part.

    Returns:
        The rows with the consent to train or to share.

    Raises:
        DataError: The column holds other words.
    """
    return frame if column is None else frame.filter(pl.Series(consent_levels(frame[column]) >= TRAIN))
