"""The profile of a site's table: what may be said of its columns so that sites can compare them.

A profile holds, per column: its type, which class of shares its missing values fall into, the values that at least
`least` persons have, and three quantiles as cells of the public grid (`kohort.tables.grid`) that so many persons fall
into. It also holds the class of the number of rows. So the same profile serves tables on one machine and real sites,
where it passes the door.

Guarantee: apart from names and types of columns, every fact is about at least `least` persons: counts below it are
taken for none, and a quantile is told only as a cell that so many persons fall into. It is not differentially private:
one person can tip a count over the minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.tables.domain import category_text
from kohort.tables.grid import Cell, cell_edges, grid_cells
from kohort.tables.harmonise.words import MISSING_CODES, MISSING_WORDS, as_numbers

__all__ = [
    "SHARES",
    "ColumnProfile",
    "TableProfile",
    "is_size_class",
    "missing_code_notes",
    "missing_codes",
    "profile_table",
    "size_class",
    "size_power",
]

Kind = Literal["number", "category", "boolean", "date", "items", "empty"]
SHARES: Final = ("none", "under 5 %", "5 to 20 %", "20 to 50 %", "over 50 %", "all")
"""Classes of shares, from the smallest."""
QUANTILES: Final = (0.1, 0.5, 0.9)
FINEST: Final = 6
"""Level of the grid that quantiles are told at: 32 cells per decade, 7 % wide each."""
SAMPLE: Final = 100_000
"""Rows that ranges are taken from, evenly spread; so many tell a range, and fewer never pass for more persons."""
TEXTS: Final = 10_000
"""Texts that are looked at to tell whether they are numbers or dates."""
MAX_VALUES: Final = 200
FEW_TEXTS: Final = 1000
"""Up to so many different texts are looked at one by one."""
MAX_WHOLE_VALUES: Final = 20
MOST: Final = 0.8
"""Share of texts that must be numbers, or dates, for the column to be called so."""


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """What is told of one column."""

    kind: Kind
    missing: str = SHARES[0]
    values: tuple[str, ...] | None = None
    """Values of at least so many persons, sorted; None for numbers with many values."""
    more: bool = False
    """Whether so many persons have other values."""
    quantiles: tuple[float, float, float] | None = None
    """The cells of the 10 %, 50 % and 90 % quantile, each by its middle."""
    reads_as: Literal["number", "date"] | None = None
    """What most texts of a category are."""
    decimal: Literal[".", ","] | None = None
    """What separates fractions in such texts."""
    codes: tuple[str, ...] = ()
    """Numbers such as -999 that stand for missing values."""


@dataclass(frozen=True, kw_only=True)
class TableProfile:
    """What is told of one table."""

    site: str
    least: int
    rows: str
    """The class of its number of rows."""
    columns: Mapping[str, ColumnProfile]

    def to_plain(self) -> dict[str, Any]:
        """JSON values that `from_plain` reads back."""
        return {
            "site": self.site,
            "least": self.least,
            "rows": self.rows,
            "columns": {name: _without_defaults(column) for name, column in self.columns.items()},
        }

    @classmethod
    def from_plain(cls, raw: Any) -> TableProfile:
        """The inverse of `to_plain`.

        Raises:
            ConfigError: It is no profile.
        """
        try:
            columns = {str(name): _column_from_plain(entry) for name, entry in raw["columns"].items()}
            return cls(site=str(raw["site"]), least=int(raw["least"]), rows=str(raw["rows"]), columns=columns)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError("this is not the profile of a table", hint="Make it with kohort harmonise") from None


def profile_table(
    frame: pl.DataFrame,
    *,
    site: str,
    least: int = 10,
    columns: Sequence[str] | None = None,
    person: str | None = None,
) -> TableProfile:
    """The profile of a table.

    Args:
        frame: The table.
        site: The site's name.
        least: The minimum cell count: the fewest persons that a fact must be about.
        columns: Columns to look at; all but `person` if not given.
        person: The column that names the person of a row. Without it every row counts as a person.

    Returns:
        The profile, in which no fact is about fewer than `least` persons.

    Raises:
        DataError: The table lacks the column of persons.
    """
    if person is not None and person not in frame.columns:
        raise DataError(f"the table of site {site!r} has no column {person!r}", hint="Name the column of persons")
    persons = None if person is None else frame[person]
    known = set(frame.columns)
    chosen = [name for name in columns or frame.columns if name != person and name in known]
    found = frame.height if persons is None else persons.n_unique()
    return TableProfile(
        site=site,
        least=least,
        rows=size_class(found),
        columns={name: _profile(frame[name], persons, least) for name in chosen},
    )


def missing_codes(column: pl.Series, *, least: int = 10) -> tuple[int, ...]:
    """The numbers of a column that seem to stand for missing values, such as -999.

    Args:
        column: A column of any type; one that holds no numbers has none.
        least: The fewest rows that must have such a number.

    Returns:
        Those of `kohort.tables.harmonise.words.MISSING_CODES` that lie far from all other numbers of the column.
    """
    if not column.dtype.is_numeric():
        return ()
    numbers, _ = _sample(column, None)
    return tuple(int(code) for code in MISSING_CODES if _is_code(numbers, None, code, least))


def missing_code_notes(frames: Iterable[pl.DataFrame], columns: Sequence[str], *, how: str) -> list[str]:
    """A sentence on every column with numbers that seem to stand for missing values, such as -999.

    Args:
        frames: The tables of the sites, or one.
        columns: The columns to look at; a table may lack some.
        how: How such a number is declared: `{name}` and `{codes}` stand for the column and its numbers.

    Returns:
        The sentences, by column. They name numbers of a fixed list alone.
    """
    found: dict[str, set[int]] = {}
    for frame in frames:
        known = set(frame.columns)
        for name in columns:
            found.setdefault(name, set()).update(missing_codes(frame[name]) if name in known else ())
    return [
        f"column {name!r} holds {' and '.join(map(str, sorted(codes)))}, far from its other numbers: "
        + how.format(name=name, codes=",".join(f"{name}={code}" for code in sorted(codes)))
        for name, codes in found.items()
        if codes
    ]


def size_class(count: int) -> str:
    """The class of a number of rows or persons, so that a profile does not tell the number.

    Args:
        count: The number.

    Returns:
        "fewer than 100", or a power of ten and the last number before the next, such as "1,000 to 9,999".
    """
    if count < 100:
        return "fewer than 100"
    power = len(str(count)) - 1
    return f"{10**power:,} to {10 ** (power + 1) - 1:,}"


def is_size_class(rows: str) -> bool:
    """Whether a text is one of the classes that `size_class` gives.

    Args:
        rows: The text.

    Returns:
        True if it is one.
    """
    return any(rows == size_class(10**power) for power in range(1, 19))


def size_power(rows: str) -> int:
    """The power of ten that a class of rows starts at; 1 for the smallest class.

    Args:
        rows: A class from `size_class`.

    Returns:
        The exponent: 3 for "1,000 to 9,999".
    """
    return len(rows.partition(" ")[0].replace(",", "")) - 1 if " to " in rows else 1


def _profile(column: pl.Series, persons: pl.Series | None, least: int) -> ColumnProfile:
    if column.null_count() == len(column):
        return ColumnProfile(kind="empty", missing=SHARES[-1])
    if column.dtype.is_numeric():
        return _number_profile(column, persons, least)
    if column.dtype in (pl.String, pl.Categorical, pl.Enum):
        return _text_profile(column, persons, least)
    missing = _nulls_class(column, persons, least)
    if isinstance(column.dtype, pl.List):
        return ColumnProfile(kind="items", missing=missing, **_values(column, persons, least))
    if column.dtype.is_temporal():
        return ColumnProfile(kind="date", missing=missing)
    if column.dtype == pl.Boolean:
        return ColumnProfile(kind="boolean", missing=missing, **_values(column, persons, least))
    return _text_profile(column, persons, least)


def _number_profile(column: pl.Series, persons: pl.Series | None, least: int) -> ColumnProfile:
    numbers, keys = _sample(column, persons)
    codes = tuple(code for code in MISSING_CODES if _is_code(numbers, keys, code, least))
    kept = ~np.isin(numbers, codes) if codes else np.ones(len(numbers), dtype=np.bool_)
    if codes:
        missing = _missing_class(column.is_null() | column.cast(pl.Float64).is_in(codes), persons, least)
    else:
        missing = _nulls_class(column, persons, least)
    values: dict[str, Any] = {}
    if len(np.unique(numbers[: 10 * MAX_WHOLE_VALUES])) <= MAX_WHOLE_VALUES and column.n_unique() <= MAX_WHOLE_VALUES:
        values = _values(column, persons, least)
    return ColumnProfile(
        kind="number",
        missing=missing,
        quantiles=_quantiles(numbers[kept], None if keys is None else keys[kept], least),
        codes=tuple(f"{code:g}" for code in codes),
        **values,
    )


def _text_profile(column: pl.Series, persons: pl.Series | None, least: int) -> ColumnProfile:
    step = max(1, len(column) // SAMPLE)
    sampled = _every(column, step)
    few = _few_texts(column) if persons is None else None
    values = _values(column, persons, least) if few is None else _values_of(few, least)
    words = _missing_words(sampled) if few is None or step > 1 or _may_be_missing(few) else None
    if words is None or not len(words):
        missing, known = _nulls_class(column, persons, least), sampled.drop_nulls() if sampled.null_count() else sampled
    else:
        unknown = column.is_null() | column.is_in(words.implode())
        missing, known = _missing_class(unknown, persons, least), sampled.filter(~_every(unknown, step))
    if len(known) < least:
        return ColumnProfile(kind="category", missing=missing, **values)
    some = _every(known, max(1, len(known) // TEXTS))
    if not some.str.contains(r"\d").any():  # most columns of texts: neither numbers nor dates
        return ColumnProfile(kind="category", missing=missing, **values)
    readable = {decimal: _readable(some, decimal) for decimal in (".", ",")}
    best = max(readable, key=lambda decimal: readable[decimal])
    if readable[best] >= MOST:
        # Fewer texts with a fraction than the minimum count for none; then the point is assumed.
        fractions = known.str.contains(r"\d,\d").sum()
        decimal: Any = "," if best == "," and fractions >= least else "."
        numbers, keys = _sample(
            as_numbers(sampled, decimal=decimal), None if persons is None else _every(persons, step)
        )
        quantiles = _quantiles(numbers, keys, least)
        return ColumnProfile(
            kind="category", missing=missing, reads_as="number", decimal=decimal, quantiles=quantiles, **values
        )
    dates = some.str.strip_chars().str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    reads_as: Any = "date" if dates.null_count() <= (1 - MOST) * len(some) else None
    return ColumnProfile(kind="category", missing=missing, reads_as=reads_as, **values)


def _few_texts(column: pl.Series) -> dict[str, int] | None:
    """How often each text occurs, where they are so few that Python is quicker with them; else None."""
    if column.dtype != pl.String:
        return None
    counted = column.alias("value").value_counts(name="n")
    if counted.height > FEW_TEXTS:
        return None
    return {text: count for text, count in counted.iter_rows() if text is not None}


def _values_of(counts: Mapping[str, int], least: int) -> dict[str, Any]:
    """`_values` of texts that are counted already."""
    common = sorted((-count, text) for text, count in counts.items() if count >= least)[:MAX_VALUES]
    rest = sum(counts.values()) + sum(less for less, _ in common)
    return {"values": tuple(sorted(text for _, text in common)), "more": rest >= least}


def _may_be_missing(texts: Iterable[str]) -> bool:
    """False where no text is a word for a missing value: Python takes off at least the white space that Polars does."""
    return any(text.strip().lower() in MISSING_WORDS for text in texts)


def _missing_words(column: pl.Series) -> pl.Series:
    """The texts of a column that stand for missing values."""
    texts = column.unique().drop_nulls()
    return texts.filter(texts.str.strip_chars().str.to_lowercase().is_in(sorted(MISSING_WORDS)))


def _every(column: pl.Series, step: int) -> pl.Series:
    return column if step == 1 else column.gather_every(step)


def _readable(texts: pl.Series, decimal: str) -> float:
    return 1 - as_numbers(texts, decimal=decimal).null_count() / len(texts)


def _missing_class(unknown: pl.Series, persons: pl.Series | None, least: int) -> str:
    """The class of the share of missing values; fewer persons than the minimum count for none."""
    count = int(unknown.sum()) if persons is None else persons.filter(unknown).n_unique()
    return _share_class(count, len(unknown) if persons is None else persons.n_unique(), least)


def _nulls_class(column: pl.Series, persons: pl.Series | None, least: int) -> str:
    """`_missing_class` of a column whose missing values are its nulls."""
    if persons is not None:
        return _missing_class(column.is_null(), persons, least)
    return _share_class(column.null_count(), len(column), least)


def _share_class(count: int, rows: int, least: int) -> str:
    if count < least:
        return SHARES[0]
    if rows - count < least:
        return SHARES[-1]
    return SHARES[1 + sum(count / rows >= limit for limit in (0.05, 0.2, 0.5))]


def _values(column: pl.Series, persons: pl.Series | None, least: int) -> dict[str, Any]:
    """The values, or items, of enough persons, and whether enough persons have others."""
    items = isinstance(column.dtype, pl.List)
    if persons is None and not items:
        counted = column.drop_nulls().alias("value").value_counts(name="n")
        common = _common(counted, least)
        rest = int(counted["n"].sum()) - int(common["n"].sum())
    else:
        keys = pl.int_range(len(column), eager=True) if persons is None else persons
        frame = pl.DataFrame({"value": column, "person": keys})
        frame = (frame.explode("value") if items else frame).filter(pl.col("value").is_not_null()).unique()
        common = _common(frame.group_by("value").agg(pl.len().alias("n")), least)
        rest = frame.join(common, on="value", how="anti")["person"].n_unique()
    return {"values": tuple(sorted(category_text(common["value"]).to_list())), "more": rest >= least}


def _common(counted: pl.DataFrame, least: int) -> pl.DataFrame:
    return counted.filter(pl.col("n") >= least).sort(["n", "value"], descending=[True, False]).head(MAX_VALUES)


def _sample(column: pl.Series, persons: pl.Series | None) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
    """Finite numbers of evenly spread rows, and the persons they belong to as codes."""
    step = max(1, len(column) // SAMPLE)
    numbers = _every(column, step).cast(pl.Float64).to_numpy()
    known = np.isfinite(numbers)  # a null is not a number here
    if persons is None:
        return numbers[known], None
    return numbers[known], _every(persons, step).filter(pl.Series(known)).rank("dense").cast(pl.Int64).to_numpy()


def _is_code(numbers: NDArray[np.float64], persons: NDArray[np.int64] | None, code: float, least: int) -> bool:
    """Whether a number that often stands for a missing value lies far from all that others have."""
    here = numbers == code
    count = int(np.count_nonzero(here))
    having = count if persons is None else len(np.unique(persons[here]))
    if having < least or len(numbers) - count < least:
        return False
    low, high = np.quantile(numbers[~here], (0.01, 0.99))
    reach = high - low
    return bool(code < min(low - reach, 0.0) or code > high + 3 * reach)


def _quantiles(
    numbers: NDArray[np.float64], persons: NDArray[np.int64] | None, least: int
) -> tuple[float, float, float] | None:
    if len(numbers) == 0:
        return None
    order = np.argsort(numbers, kind="stable")
    rising = numbers[order]
    keys = None if persons is None else persons[order]
    low, middle, high = (_cell_of(rising, keys, quantile, least) for quantile in QUANTILES)
    return None if low is None or middle is None or high is None else (low, middle, high)


def _cell_of(
    rising: NDArray[np.float64], persons: NDArray[np.int64] | None, quantile: float, least: int
) -> float | None:
    """The middle of the finest cell around a quantile that enough persons fall into."""
    value = rising[int(quantile * (len(rising) - 1))]
    chain = [Cell(level, int(sign[0]), int(at[0])) for level, sign, at in grid_cells(np.array([value]))]
    if chain[0].sign == 0:
        return 0.0 if _inside(rising, persons, 0.0, 0.0) >= least else None
    for level in range(FINEST, 0, -1):
        low, high = cell_edges(chain[level])
        if _inside(rising, persons, low, high) >= least:
            return float(np.sign(low) * np.sqrt(low * high))
    return None


def _inside(rising: NDArray[np.float64], persons: NDArray[np.int64] | None, low: float, high: float) -> int:
    start, end = np.searchsorted(rising, low, "left"), np.searchsorted(rising, high, "right")
    return int(end - start) if persons is None else len(np.unique(persons[start:end]))


def _without_defaults(column: ColumnProfile) -> dict[str, Any]:
    usual = asdict(ColumnProfile(kind="empty"))
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(column).items()}
    return {key: value for key, value in plain.items() if key == "kind" or value != _listed(usual[key])}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _column_from_plain(raw: Mapping[str, Any]) -> ColumnProfile:
    known = {one.name for one in fields(ColumnProfile)}
    if not set(raw) <= known or raw["kind"] not in get_args(Kind) or raw.get("missing", SHARES[0]) not in SHARES:
        raise ValueError
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    return ColumnProfile(**plain)
