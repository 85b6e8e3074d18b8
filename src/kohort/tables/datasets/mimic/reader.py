"""MIMIC-III: one row per patient, the first ICU stay of an adult. Columns of the table:

    subject_id                     identifier
    age, gender, height, weight    quasi-identifiers; age in whole years when the stay begins, 90 for all above 89
    diagnoses                      the admission's ICD-9 codes, a set
    <variable>_<part>_<statistic>  714 features of the first 48 hours (`kohort.tables.datasets.mimic.features`)
    died_in_hospital               target, 1 for a death before discharge

Guarantees: no patient has two rows; stays are in the order of subject_id; where CHARTEVENTS or LABEVENTS is missing
the notes say what is absent, and nothing is filled in for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from kohort.errors import DataError
from kohort.tables.datasets.mimic.features import VARIABLES, first_values, measurements, stay_features
from kohort.tables.datasets.mimic.layout import EVENTS
from kohort.tables.schema import ColumnSpec, Role, Schema

__all__ = ["TARGET", "load_mimic3", "mimic3_codebook"]

TARGET = "died_in_hospital"
ADULT = 18
OLDEST = 90
"""Birth dates of patients above 89 are shifted to 300 years before their first admission; they count as 90."""
EVENT_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "hadm_id": pl.Int64,
    "icustay_id": pl.Int64,
    "itemid": pl.Int64,
    "charttime": pl.Datetime("us"),
    "value": pl.String,
    "valuenum": pl.Float64,
    "error": pl.Int64,
}


def load_mimic3(files: Mapping[str, Path], *, min_hours: float = 0.0) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Read the table.

    Args:
        files: The files by table, as `find_mimic3` gives them.
        min_hours: Keep only stays that lasted at least so long.

    Returns:
        The table, and notes on what is absent from it.

    Raises:
        DataError: The tables do not belong together, lack columns, or hold no stay to keep.
    """
    stays = _stays(files, min_hours)
    if not stays.height:
        hint = "Check that the tables belong together"
        raise DataError(f"MIMIC-III: no adult's ICU stay of at least {min_hours:g} hours", hint=hint)
    codes = (
        _read(files, "diagnoses_icd", {"hadm_id": pl.Int64, "seq_num": pl.Int64, "icd9_code": pl.String})
        .drop_nulls("icd9_code")
        .sort("hadm_id", "seq_num")
        .group_by("hadm_id", maintain_order=True)
        .agg(pl.col("icd9_code").unique(maintain_order=True).alias("diagnoses"))
    )
    table = stays.join(codes, on="hadm_id", how="left", maintain_order="left")
    table = table.with_columns(pl.col("diagnoses").fill_null([]))
    first = ["subject_id", "age", "gender", "height", "weight", "diagnoses"]
    present = [name for name in EVENTS if name in files]
    if not present:
        note = "no CHARTEVENTS and no LABEVENTS: height, weight and the 714 features are absent"
        kept = [name for name in first if name not in ("height", "weight")]
        return table.select(*kept, TARGET), (note,)
    events = pl.concat([_scan_events(files[name]) for name in present])
    found = measurements(events, table.select("hadm_id", "icustay_id", "intime", "outtime"))
    features = stay_features(found)
    for part in (first_values(found, "height"), first_values(found, "weight"), features):
        table = table.join(part, left_on="icustay_id", right_on="stay", how="left", maintain_order="left")
    counts = [name for name in features.columns if name.endswith("_count")]
    table = table.with_columns(pl.col(counts).fill_null(0.0))
    absent = [name.upper() for name in EVENTS if name not in files]
    notes = [f"no {name}: features come from the other table alone" for name in absent]
    measured = found["stay"].n_unique()
    if measured < table.height:
        notes.append(f"{table.height - measured:,} of {table.height:,} stays have no measurement in the first 48 hours")
    return table.select(*first, *features.columns[1:], TARGET), tuple(notes)


def mimic3_codebook() -> Schema:
    """What is known about the columns before any row is read."""
    weight, height = VARIABLES["weight"], VARIABLES["height"]
    return Schema(
        columns={
            "subject_id": ColumnSpec(roles=frozenset({Role.IDENTIFIER})),
            "age": ColumnSpec(bounds=(float(ADULT), float(OLDEST))),
            "gender": ColumnSpec(categories=("F", "M")),
            "height": ColumnSpec(bounds=(height.low, height.high), nullable=True),
            "weight": ColumnSpec(bounds=(weight.low, weight.high), nullable=True),
            "diagnoses": ColumnSpec(kind="items"),
        }
    )


def _stays(files: Mapping[str, Path], min_hours: float) -> pl.DataFrame:
    """The first ICU stay of each patient who was an adult then; one row per patient."""
    patients = _read(files, "patients", {"subject_id": pl.Int64, "gender": pl.String, "dob": pl.Datetime("us")})
    admissions = _read(files, "admissions", {"hadm_id": pl.Int64, "hospital_expire_flag": pl.Int64})
    stays = _read(
        files,
        "icustays",
        {
            "subject_id": pl.Int64,
            "hadm_id": pl.Int64,
            "icustay_id": pl.Int64,
            "intime": pl.Datetime("us"),
            "outtime": pl.Datetime("us"),
        },
    )
    repeated = [
        name for name, table, key in (
            ("PATIENTS", patients, "subject_id"),
            ("ADMISSIONS", admissions, "hadm_id"),
            ("ICUSTAYS", stays, "icustay_id"),
        )
        if table[key].n_unique() < table.height
    ]  # fmt: skip
    if repeated:
        raise DataError(f"MIMIC-III: keys repeat in {', '.join(repeated)}", hint="Use the tables as published")
    first = stays.sort("subject_id", "intime", "icustay_id").unique("subject_id", keep="first", maintain_order=True)
    joined = first.join(patients, on="subject_id", how="inner").join(admissions, on="hadm_id", how="inner")
    if joined.height < first.height:
        lost = first.height - joined.height
        hint = "Check that PATIENTS, ADMISSIONS and ICUSTAYS belong together"
        raise DataError(f"MIMIC-III: {lost:,} stays have no patient or no admission", hint=hint)
    return (
        joined.with_columns(age=pl.min_horizontal(_years("dob", "intime"), pl.lit(OLDEST)).cast(pl.Int64))
        .with_columns(pl.col("hospital_expire_flag").alias(TARGET))
        .filter(
            (pl.col("age") >= ADULT) & ((pl.col("outtime") - pl.col("intime")).dt.total_seconds() >= 3600 * min_hours)
        )
        .sort("subject_id")
    )


def _years(born: str, at: str) -> pl.Expr:
    """Whole years from one date to another."""
    same_month = pl.col(at).dt.month() == pl.col(born).dt.month()
    before_birthday = (
        pl.when(same_month)
        .then(pl.col(at).dt.day() < pl.col(born).dt.day())
        .otherwise(pl.col(at).dt.month() < pl.col(born).dt.month())
    )
    return pl.col(at).dt.year() - pl.col(born).dt.year() - before_birthday.cast(pl.Int32)


def _read(
    files: Mapping[str, Path], table: str, columns: Mapping[str, pl.DataType | type[pl.DataType]]
) -> pl.DataFrame:
    return _typed(_scan(files[table]), files[table], columns, required=list(columns)).collect()


def _scan_events(path: Path) -> pl.LazyFrame:
    """CHARTEVENTS or LABEVENTS, which has neither a stay nor an error mark."""
    return _typed(_scan(path), path, EVENT_COLUMNS, required=["hadm_id", "itemid", "charttime", "value", "valuenum"])


def _scan(path: Path) -> pl.LazyFrame:
    frame = pl.scan_parquet(path) if path.suffix == ".parquet" else pl.scan_csv(path, infer_schema=False)
    return frame.rename(str.lower)


def _typed(
    frame: pl.LazyFrame,
    path: Path,
    columns: Mapping[str, pl.DataType | type[pl.DataType]],
    *,
    required: Sequence[str],
) -> pl.LazyFrame:
    known = frame.collect_schema()
    absent = [name for name in required if name not in known]
    if absent:
        raise DataError(f"{path.name} lacks columns: {', '.join(absent)}", hint="Use the tables as published")
    return frame.select(_cast(name, known.get(name), dtype) for name, dtype in columns.items())


def _cast(name: str, given: pl.DataType | None, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
    if given is None:
        return pl.lit(None, dtype).alias(name)
    if given == pl.String and dtype == pl.Datetime("us"):
        return pl.col(name).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us")
    return pl.col(name).cast(dtype)
