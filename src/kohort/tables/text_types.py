"""A column of texts as the type it stands for: whole number, number, truth value, date, time, or text.

The first type that loses nothing is taken. Codes such as 007 stay text, and so do numbers too long for 64 bits.

Guarantee: a column is typed only if every value that is not missing has that form; missing markers become null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

__all__ = ["MISSING_WORDS", "NULL_MARKERS", "TypeRules", "TypedColumn", "dates_of", "typed"]

NULL_MARKERS = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", ".")
SILENT_MARKERS = frozenset({"", "?", "NaN", "nan"})
"""Markers that need no word: nobody means a value by them."""
SAMPLE = 1000
CODE = r"^[+-]?0\d"
COMMA_NUMBER = r"^[+-]?((\d+|\d{1,3}(\.\d{3})+)(,\d+)?|,\d+)$"
MISSING_WORDS = frozenset(
    {
        "", ".", "-", "--", "?", "na", "n/a", "n.a.", "nan", "null", "none", "nil", "missing", "unknown", "unk",
        "not known", "not recorded", "not available", "no data", "unbekannt", "k.a.", "k. a.", "keine angabe",
        "inconnu", "desconocido",
    }
)  # fmt: skip
"""Words for a missing value, in lower case."""
WORDS = MISSING_WORDS | {"\u2013"}
"""Missing values where all else is a number or a date; in a column of texts they may be a category of their own."""
FEW_WORDS, MANY_NUMBERS = 5, 10
"""Different words and different numbers of a column that is said to hold numbers and a few words."""
COMMA_DECIMALS = r",\d+$"
COMMA_THOUSANDS = r"^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$"
DOT_THOUSANDS = r"^[+-]?\d{1,3}(\.\d{3})+$"
ISO_DATE = r"^\d{4}-\d{1,2}-\d{1,2}$"
ISO_TIME = r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?$"
YEAR_FIRST = r"^\d{4}/\d{1,2}/\d{1,2}$"
GERMAN_DATE = r"^\d{1,2}\.\d{1,2}\.\d{4}$"
GERMAN_TIME = r"^\d{1,2}\.\d{1,2}\.\d{4} \d{1,2}:\d{2}(:\d{2})?$"
TWO_ORDERS = r"^(\d{1,2})([/-])(\d{1,2})[/-]\d{4}$"
MONTH_NAME = r"^\d{1,2}[- ](Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[- ]\d{4}$"


@dataclass(frozen=True, kw_only=True)
class TypeRules:
    """What is declared or known of the whole file."""

    markers: Sequence[str] = NULL_MARKERS
    decimal: str | None = None
    """What stands before decimals, where declared or found in another column."""
    delimiter: str = ","
    dates: bool = True
    date_order: str | None = None
    strip: bool = False


@dataclass(frozen=True, kw_only=True)
class TypedColumn:
    """A typed column and what is to be said about how it was read."""

    values: pl.Series = field(repr=False)
    markers: tuple[str, ...] = ()
    """Texts, other than an empty cell, that were read as missing."""
    how: str | None = None
    """What is to be said: "decimal comma", "thousands", "date", "time", "date order" or "odd words"."""


def typed(column: pl.Series, rules: TypeRules) -> TypedColumn:
    """A text column as the type it stands for.

    Args:
        column: The texts.
        rules: What is known of the file.

    Returns:
        The column with missing markers as null, and how it was read.
    """
    if rules.strip:
        column = column.str.strip_chars()
    known = _values(column)
    markers = list(rules.markers)
    present = set(known.filter(known.is_in(markers)).unique().to_list())
    found = tuple(marker for marker in rules.markers if marker in present)
    if found:
        column = column.set(column.is_in(list(found)).fill_null(False), None)
        known = known.filter(~known.is_in(markers))
    said = tuple(marker for marker in found if marker not in SILENT_MARKERS)
    if known.is_empty():
        return TypedColumn(values=column, markers=said)
    values, how = _number_or_date(column, known, rules)
    words = [] if values is not None else _missing_words(known)
    if words:
        rest = known.filter(~known.is_in(words))
        without = column.set(column.is_in(words).fill_null(False), None)
        values, how = (None, None) if rest.is_empty() else _number_or_date(without, rest, rules)
        said = (*said, *(text.strip() for text in words)) if values is not None else said
    if values is None:
        values = _truth(column, known)
    if values is None and how is None and _few_words(known):
        how = "odd words"
    return TypedColumn(values=column if values is None else values, markers=said, how=how)


def _missing_words(known: pl.Series) -> list[str]:
    """The texts that are words for a missing value; only short ones are looked at."""
    short = known.filter(known.str.len_chars() <= max(map(len, WORDS)) + 2).unique()
    return short.filter(short.str.strip_chars().str.to_lowercase().is_in(list(WORDS))).sort().to_list()


def _few_words(known: pl.Series) -> bool:
    """Whether all texts are numbers but for a few words: a column that would be numbers without them."""
    texts = known.head(SAMPLE).str.strip_chars().unique()
    numbers = texts.filter(texts.cast(pl.Float64, strict=False).is_not_null())
    odd = len(texts) - len(numbers)
    return 0 < odd <= FEW_WORDS and len(numbers) >= MANY_NUMBERS and not numbers.str.contains(CODE).any()


def _number_or_date(column: pl.Series, known: pl.Series, rules: TypeRules) -> tuple[pl.Series | None, str | None]:
    values, how = _number(column, known, rules)
    return _date(column, known, rules) if values is None and rules.dates else (values, how)


def dates_of(column: pl.Series) -> pl.Series | None:
    """Read a column of texts as dates or times, as those of a file are read.

    Args:
        column: The texts.

    Returns:
        Dates or times; None if some text is neither, or the column has no text.
    """
    known = _values(column)
    return None if known.is_empty() else _date(column, known, TypeRules())[0]


def _values(column: pl.Series) -> pl.Series:
    """The values that occur: each once, unless nearly all differ, when finding that out costs more than it saves."""
    sample = column.head(SAMPLE).drop_nulls()
    return column.drop_nulls() if 2 * sample.n_unique() > SAMPLE else column.unique().drop_nulls()


def _number(column: pl.Series, known: pl.Series, rules: TypeRules) -> tuple[pl.Series | None, str | None]:
    if not known.head(1).str.contains(r"^\s*[+-]?[.,]?\d|^\s*[+-]?(?i:inf|nan)").any():
        return None, None
    plain = None if rules.decimal == "," else _plain_number(column, known)
    if plain is not None or rules.decimal == ".":
        return plain, None
    trimmed = known.str.strip_chars()
    return (None, None) if trimmed.str.contains(CODE).any() else _number_with_commas(column, trimmed, rules)


def _number_with_commas(column: pl.Series, trimmed: pl.Series, rules: TypeRules) -> tuple[pl.Series | None, str | None]:
    """Numbers whose comma parts thousands or decimals, where the file's decimal mark is a comma or not known."""
    if rules.delimiter == "," and trimmed.str.contains(COMMA_THOUSANDS).all():
        return _converted(column, thousands=",", decimal="."), "thousands"
    if trimmed.str.contains(COMMA_NUMBER).all() and trimmed.str.contains(COMMA_DECIMALS).any():
        return _converted(column, thousands=".", decimal=","), "decimal comma"
    if rules.decimal != ",":
        return None, None
    if trimmed.str.contains(DOT_THOUSANDS).all():
        return _converted(column, thousands=".", decimal=","), "thousands"
    return _plain_number(column, trimmed), None


def _plain_number(column: pl.Series, known: pl.Series) -> pl.Series | None:
    """Whole numbers or numbers with a decimal point, if all values are; a few are looked at first."""
    few = known.head(SAMPLE).str.strip_chars()
    if few.cast(pl.Float64, strict=False).null_count() or few.str.contains(CODE).any():
        return None
    if known.str.contains(r"^\s*[+-]?0\d").any():
        return None
    nulls = column.null_count()
    if few.str.contains(r"^[+-]?\d+$").all():
        whole = _cast(column, pl.Int64())
        if whole.null_count() == nulls:
            return whole
        # Numbers too long for 64 bits are identifiers; as floats two of them could become one.
        if known.str.contains(r"^\s*[+-]?\d+\s*$").all():
            return None
    found = _cast(column, pl.Float64())
    return found if found.null_count() == nulls else None


def _cast(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """The numbers that texts stand for, with or without spaces around them; null where a text is none."""
    found = column.cast(dtype, strict=False)
    if found.null_count() == column.null_count():
        return found
    return column.str.strip_chars().cast(dtype, strict=False)


def _converted(column: pl.Series, *, thousands: str, decimal: str) -> pl.Series:
    plain = column.str.strip_chars().str.replace_all(thousands, "", literal=True)
    return (plain.str.replace_all(decimal, ".", literal=True) if decimal != "." else plain).cast(pl.Float64)


def _date(column: pl.Series, known: pl.Series, rules: TypeRules) -> tuple[pl.Series | None, str | None]:
    for pattern, shape in (
        (ISO_DATE, "%Y-%m-%d"),
        (YEAR_FIRST, "%Y/%m/%d"),
        (GERMAN_DATE, "%m.%d.%Y" if rules.date_order == "mdy" else "%d.%m.%Y"),
        (MONTH_NAME, "%d-%b-%Y"),
    ):
        if known.head(1).str.contains(pattern).any() and known.str.contains(pattern).all():
            texts = column.str.replace_all(" ", "-", literal=True) if pattern == MONTH_NAME else column
            declared = pattern == GERMAN_DATE and rules.date_order is not None
            return _parsed(column, texts.str.to_date(shape, strict=False), "date", declared=declared)
    for pattern in (ISO_TIME, GERMAN_TIME):
        if known.head(1).str.contains(pattern).any() and known.str.contains(pattern).all():
            order = (rules.date_order or "dmy") if pattern == GERMAN_TIME else None
            declared = order is not None and rules.date_order is not None
            return _parsed(column, _times(column, order), "time", declared=declared)
    if known.head(1).str.contains(TWO_ORDERS).any() and known.str.contains(TWO_ORDERS).all():
        return _two_orders(column, known, rules)
    return None, None


def _times(column: pl.Series, order: str | None) -> pl.Series:
    """Date-times without zone; those with one in UTC. `order` is that of day and month where dots part them."""
    texts = column.str.replace("T", " ", literal=True)
    if order is not None:
        year_first = "${3}-${2}-${1}" if order == "dmy" else "${3}-${1}-${2}"
        texts = texts.str.replace(r"^(\d{1,2})\.(\d{1,2})\.(\d{4})", year_first)
    zoned = texts.str.contains(r"(Z|[+-]\d{2}:?\d{2})$")
    seconds = texts.str.replace(r"^(\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{2})(Z|[+-]|$)", "${1}:00${2}")
    if zoned.any():
        whole = seconds.str.replace(r"Z$", "+00:00")
        shape = "%Y-%m-%d %H:%M:%S%.f%#z"
        found = whole.str.to_datetime(shape, time_unit="us", time_zone="UTC", strict=False)
        return found.dt.replace_time_zone(None)
    return seconds.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)


def _two_orders(column: pl.Series, known: pl.Series, rules: TypeRules) -> tuple[pl.Series | None, str | None]:
    """Day first or month first, by a number above 12; where none tells, the column stays text until it is declared."""
    first = known.str.extract(TWO_ORDERS, 1).cast(pl.Int64)
    second = known.str.extract(TWO_ORDERS, 3).cast(pl.Int64)
    order = rules.date_order
    if order is None:
        day_first, month_first = bool((first > 12).any()), bool((second > 12).any())
        if day_first == month_first:
            return None, None if day_first else "date order"
        order = "dmy" if day_first else "mdy"
    shape = "%d-%m-%Y" if order == "dmy" else "%m-%d-%Y"
    found = column.str.replace_all("/", "-", literal=True).str.to_date(shape, strict=False)
    return _parsed(column, found, "date", declared=rules.date_order is not None)


def _parsed(
    column: pl.Series, found: pl.Series, how: str, *, declared: bool = False
) -> tuple[pl.Series | None, str | None]:
    """The dates, if all texts are some; a declared order that does not fit gets a word."""
    if found.null_count() == column.null_count():
        return found, how
    return None, "other order" if declared else None


def _truth(column: pl.Series, known: pl.Series) -> pl.Series | None:
    if len(known) > 1000 or not known.str.to_lowercase().is_in(["true", "false"]).all():
        return None
    return (column.str.to_lowercase() == "true").alias(column.name)
