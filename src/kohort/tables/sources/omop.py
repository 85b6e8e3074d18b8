"""A folder of OMOP CDM tables as one table: one row per person, as of a reference date.

    omop:cdm/?reference=2020-12-31&measurements=3004249:systolic,3012888:diastolic&flags=201826:diabetes

`person` is needed; `condition_occurrence` and `measurement` are read if they are there; each is a CSV or Parquet file.
The options stand after `?`:

    reference     the date as of which everything is said (needed): later events, and persons born later, do not count
    days          how many days before the reference date events count (default: all)
    conditions    "all" (default), "none", or condition concept ids: the item set `conditions`
    measurements  "all" (default), "none", or ID[@UNIT][:NAME], ...: the last value of each, in the unit
                  with this concept id, else in the most frequent one
    flags         ID[:NAME], ...: true for persons with this condition; it is left out of `conditions`
    min_persons   with measurements = "all": the fewest persons that make a column (default 10)

Guarantee: no event after the reference date reaches a row. Every event and person that is left out is counted in a
note; notes and errors hold counts and concept ids, no values. Persons come in the order of `person_id`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

import polars as pl

from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.frames import ENDINGS, read_table
from kohort.tables.schema import ColumnSpec, Role, Schema

__all__ = ["PREFIX", "OmopOptions", "omop_codebook", "read_omop", "split_address"]

PREFIX: Final = "omop:"
SEXES: Final = {8507: "M", 8532: "F", 8521: "other"}
"""Standard concepts of gender; others, and 0, are missing."""
_MEASURE = re.compile(r"(?P<concept>\d+)(?:@(?P<unit>\d+))?(?::(?P<name>\w+))?")
_OPTIONS = ("reference", "days", "conditions", "measurements", "flags", "min_persons")
_FORM = "Write omop:FOLDER?reference=2020-12-31"
_COLUMNS: Final = {
    "person": ("person_id", "gender_concept_id", "year_of_birth"),
    "condition_occurrence": ("person_id", "condition_concept_id", "condition_start_date"),
    "measurement": ("person_id", "measurement_concept_id", "measurement_date", "value_as_number"),
}


@dataclass(frozen=True)
class Concept:
    """A concept that becomes a column."""

    concept: int
    name: str
    unit: int | None = None


@dataclass(frozen=True, kw_only=True)
class OmopOptions:
    """What is made of the tables; see the module's docstring."""

    reference: date
    days: int | None = None
    conditions: frozenset[int] | Literal["all", "none"] = "all"
    measurements: tuple[Concept, ...] | Literal["all", "none"] = "all"
    flags: tuple[Concept, ...] = ()
    min_persons: int = 10

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> OmopOptions:
        """Read the options of an address.

        Raises:
            ConfigError: An option is unknown or cannot be read, or the reference date is missing.
        """
        for key in given:
            if key not in _OPTIONS:
                raise ConfigError(f"unknown option {key!r} of an OMOP folder", hint=nearest(key, _OPTIONS))
        if "reference" not in given:
            raise ConfigError("an OMOP folder needs a reference date, the same for all sites", hint=_FORM)
        try:
            reference = date.fromisoformat(given["reference"])
        except ValueError:
            raise ConfigError("the reference date of an OMOP folder is no date", hint=_FORM) from None
        made = cls(
            reference=reference,
            days=_whole(given, "days") if "days" in given else None,
            conditions=_all_or_none(given, "conditions") or frozenset(_ids(given["conditions"])),
            measurements=_all_or_none(given, "measurements")
            or _concepts(given["measurements"], "measurement", "measurements"),
            flags=_concepts(given["flags"], "condition", "flags") if "flags" in given else (),
            min_persons=_whole(given, "min_persons") if "min_persons" in given else cls.min_persons,
        )
        made.check_names()
        return made

    def check_names(self) -> None:
        """Refuse two columns of one name."""
        named = [*self.flags, *(self.measurements if isinstance(self.measurements, tuple) else ())]
        names = ["person_id", "sex", "age", "conditions", *(one.name for one in named)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigError(
                f"two columns of an OMOP folder are called {', '.join(repeated)}", hint="Name them ID:NAME"
            )


@dataclass
class _Notes:
    lines: list[str] = field(default_factory=list)

    def count(self, number: int, what: str) -> None:
        if number:
            self.lines.append(f"OMOP: {number:,} {what}")


def split_address(text: str) -> tuple[Path, OmopOptions]:
    """Folder and options of `omop:FOLDER?...`.

    Args:
        text: The address.

    Returns:
        The folder, as it is written, and the options.

    Raises:
        ConfigError: The address names no folder, or an option cannot be read.
    """
    place, _, options = text.removeprefix(PREFIX).partition("?")
    if not place:
        raise ConfigError("omop: names no folder", hint=_FORM)
    return Path(place), OmopOptions.parse(dict(parse_qsl(options, keep_blank_values=True)))


def omop_codebook(columns: list[str]) -> Schema:
    """The roles that follow from the tables: `person_id` identifies, `conditions` is an item set.

    Args:
        columns: The columns of the table that was made.

    Returns:
        A schema with the roles of these two, as far as they are among the columns.
    """
    roles = {"person_id": Role.IDENTIFIER, "conditions": Role.ITEMS}
    return Schema(
        columns={name: ColumnSpec(roles=frozenset({role})) for name, role in roles.items() if name in columns}
    )


def read_omop(folder: Path, options: OmopOptions) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Read the tables of a folder into one.

    Args:
        folder: Where person, condition_occurrence and measurement are.
        options: What to make of them.

    Returns:
        `person_id`, `sex`, `age`, the flags, the measurements and `conditions`, and notes on what was left out.

    Raises:
        DataError: A table is missing, unreadable or lacks columns, or no person is left.
    """
    notes = _Notes()
    person = _persons(_table(folder, "person", needed=True), options, notes)
    conditions = _events(_table(folder, "condition_occurrence"), "condition", person, options, notes)
    measured = _events(_table(folder, "measurement"), "measurement", person, options, notes)
    parts = [person]
    if conditions is not None:
        parts += [_flag(conditions, flag) for flag in options.flags]
    elif options.flags:
        raise DataError(f"{str(folder)!r} has no table condition_occurrence", hint="Add it, or drop flags")
    if measured is not None and options.measurements != "none":
        parts += _measurements(measured, options, notes)
    elif isinstance(options.measurements, tuple):
        raise DataError(f"{str(folder)!r} has no table measurement", hint="Add it, or drop measurements")
    if conditions is not None and options.conditions != "none":
        parts.append(_item_sets(conditions, options))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.join(part, on="person_id", how="left", maintain_order="left")
    filled = [pl.col(flag.name).fill_null(value=False) for flag in options.flags]
    if "conditions" in whole.columns:
        filled.append(pl.col("conditions").fill_null(pl.lit([], dtype=pl.List(pl.String))))
    return whole.with_columns(filled), tuple(notes.lines)


def _table(folder: Path, name: str, *, needed: bool = False) -> pl.DataFrame | None:
    """One table of the folder with lower-case column names; None when it is not there."""
    if not folder.is_dir():
        raise DataError(f"no folder {str(folder)!r}", hint="Check the path of the OMOP tables")
    paths = [path for path in sorted(folder.iterdir()) if path.stem.lower() == name and path.suffix.lower() in ENDINGS]
    if len(paths) > 1:
        raise DataError(f"{str(folder)!r} has {len(paths)} tables called {name}", hint="Keep one of them")
    if not paths:
        if needed:
            raise DataError(f"{str(folder)!r} has no table {name}", hint="Add it as CSV or Parquet")
        return None
    frame = read_table(paths[0])
    frame = frame.rename({column: column.lower() for column in frame.columns})
    lacking = [column for column in _COLUMNS[name] if column not in frame.columns]
    if lacking:
        raise DataError(f"the OMOP table {name} lacks columns: {', '.join(lacking)}", hint="Export it as CDM 5 has it")
    return frame


def _persons(table: pl.DataFrame | None, options: OmopOptions, notes: _Notes) -> pl.DataFrame:
    """Person, sex and age in whole years at the reference date; where month or day are unknown, the first counts."""
    frame = pl.DataFrame() if table is None else table
    if frame["person_id"].null_count() or frame["person_id"].n_unique() < frame.height:
        raise DataError("the OMOP table person names a person twice, or not at all", hint="Give one row per person")
    parts = {name: _part_of_birth(frame, name) for name in ("month_of_birth", "day_of_birth")}
    day = options.reference
    before_birthday = (parts["month_of_birth"] > day.month) | (
        (parts["month_of_birth"] == day.month) & (parts["day_of_birth"] > day.day)
    )
    year = pl.col("year_of_birth").cast(pl.Int64, strict=False)
    age = day.year - year - before_birthday.cast(pl.Int64)
    sex = (
        pl.col("gender_concept_id")
        .cast(pl.Int64, strict=False)
        .replace_strict(SEXES, default=None, return_dtype=pl.String)
    )
    made = frame.sort("person_id").select("person_id", sex=sex, age=age)
    born_later = (made["age"] < 0).fill_null(value=False)
    notes.count(int(born_later.sum()), "persons born after the reference date are left out")
    kept = made.filter(~born_later)
    notes.count(kept["age"].null_count(), "persons have no year of birth, so their age is missing")
    if kept.height == 0:
        raise DataError("the OMOP table person has nobody born before the reference date", hint="Check reference")
    return kept


def _part_of_birth(frame: pl.DataFrame, name: str) -> pl.Expr:
    if name not in frame.columns:
        return pl.lit(1, pl.Int64)
    return pl.col(name).cast(pl.Int64, strict=False).fill_null(1)


def _events(
    table: pl.DataFrame | None, kind: str, persons: pl.DataFrame, options: OmopOptions, notes: _Notes
) -> pl.DataFrame | None:
    """The events that count: person_id, concept, day, and for measurements value, unit and an order within the day."""
    if table is None:
        return None
    start = "condition_start_date" if kind == "condition" else "measurement_date"
    columns: dict[str, Any] = {
        "concept": pl.col(f"{kind}_concept_id").cast(pl.Int64, strict=False),
        "day": _days(table[start]),
    }
    if kind == "measurement":
        columns["value"] = pl.col("value_as_number").cast(pl.Float64, strict=False)
        columns["unit"] = _optional(table, "unit_concept_id", pl.Int64).fill_null(0)
        columns["time"] = _optional(table, "measurement_datetime", pl.String)
        columns["number"] = _optional(table, "measurement_id", pl.Int64)
    events = table.select("person_id", **columns)
    notes.count(events["day"].null_count(), f"{kind} records without a date are left out")
    events = events.filter(pl.col("day").is_not_null())
    unknown = events.filter(pl.col("concept").is_null() | (pl.col("concept") == 0)).height
    notes.count(unknown, f"{kind} records without a standard concept are left out")
    events = events.filter(pl.col("concept") != 0)
    in_time = pl.col("day") <= options.reference
    if options.days is not None:
        in_time &= pl.col("day") > options.reference - timedelta(days=options.days)
    timely = events.filter(in_time)
    notes.count(events.height - timely.height, f"{kind} records outside the time that counts are left out")
    known = timely.join(persons.select("person_id"), on="person_id", how="semi", maintain_order="left")
    notes.count(timely.height - known.height, f"{kind} records of persons who are not in the table are left out")
    if kind == "measurement":
        notes.count(known["value"].null_count(), "measurement records without a number are left out")
        known = known.filter(pl.col("value").is_not_null())
    return known


def _optional(table: pl.DataFrame, name: str, dtype: Any) -> pl.Expr:
    return pl.col(name).cast(dtype, strict=False) if name in table.columns else pl.lit(None, dtype)


def _days(column: pl.Series) -> pl.Series:
    if column.dtype.is_temporal():
        return column.cast(pl.Date)
    return column.cast(pl.String).str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)


def _flag(conditions: pl.DataFrame, flag: Concept) -> pl.DataFrame:
    having = conditions.filter(pl.col("concept") == flag.concept).select("person_id").unique()
    return having.with_columns(pl.lit(value=True).alias(flag.name))


def _item_sets(conditions: pl.DataFrame, options: OmopOptions) -> pl.DataFrame:
    """The distinct conditions of each person, in the order of their concept ids, without those that are flags."""
    wanted = ~pl.col("concept").is_in([flag.concept for flag in options.flags])
    if isinstance(options.conditions, frozenset):
        wanted &= pl.col("concept").is_in(sorted(options.conditions))
    codes = pl.col("concept").unique().sort().cast(pl.String)
    return conditions.filter(wanted).group_by("person_id").agg(codes.alias("conditions"))


def _measurements(measured: pl.DataFrame, options: OmopOptions, notes: _Notes) -> list[pl.DataFrame]:
    """The last value of each concept per person: by day, then time, then number of the record."""
    chosen = options.measurements if isinstance(options.measurements, tuple) else _common(measured, options, notes)
    parts = []
    for one in chosen:
        own = measured.filter(pl.col("concept") == one.concept)
        same = own.filter(pl.col("unit") == _unit_of(own, one))
        notes.count(own.height - same.height, f"values of {one.name} are in another unit and left out")
        last = same.sort("day", "time", "number", "value", nulls_last=False).group_by("person_id").last()
        parts.append(last.select("person_id", pl.col("value").alias(one.name)))
    return parts


def _common(measured: pl.DataFrame, options: OmopOptions, notes: _Notes) -> tuple[Concept, ...]:
    """All concepts that enough persons have; fewer make no column, whose name would tell of them."""
    persons = measured.group_by("concept").agg(pl.col("person_id").n_unique().alias("persons")).sort("concept")
    common = persons.filter(pl.col("persons") >= options.min_persons)
    notes.count(
        persons.height - common.height, f"measured concepts of fewer than {options.min_persons} persons are left out"
    )
    return tuple(Concept(concept, f"measurement_{concept}") for concept in common["concept"])


def _unit_of(own: pl.DataFrame, one: Concept) -> int:
    """The unit asked for, else the most frequent one."""
    if one.unit is not None or own.height == 0:
        return one.unit or 0
    counted = own.group_by("unit").len().sort(["len", "unit"], descending=[True, False])
    return int(counted["unit"][0])


def _all_or_none(given: Mapping[str, str], key: str) -> Literal["all", "none"] | None:
    """The word instead of a list; None where there is a list."""
    word = given.get(key, "all")
    return "all" if word == "all" else "none" if word == "none" else None


def _whole(given: Mapping[str, str], key: str) -> int:
    if not given[key].isdecimal() or int(given[key]) < 1:
        raise ConfigError(f"{key} of an OMOP folder is not a whole number of at least 1", hint=f"Write {key}=10")
    return int(given[key])


def _ids(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ConfigError("conditions of an OMOP folder are not concept ids", hint="Write conditions=201826,316866")
    return [int(word) for word in words]


def _concepts(text: str, prefix: str, key: str) -> tuple[Concept, ...]:
    found = []
    for word in text.split(","):
        match = _MEASURE.fullmatch(word.strip())
        if match is None or (match["unit"] and key == "flags"):
            hint = "Write ID, ID:NAME" + ("" if key == "flags" else " or ID@UNIT:NAME") + ", separated by commas"
            raise ConfigError(f"{key} of an OMOP folder cannot be read", hint=hint)
        unit = None if match["unit"] is None else int(match["unit"])
        found.append(Concept(int(match["concept"]), match["name"] or f"{prefix}_{match['concept']}", unit))
    return tuple(found)
