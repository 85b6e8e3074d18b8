"""The 714 features of an ICU stay: 17 variables x 7 parts of its first 48 hours x 6 statistics.

The layout is that of the public MIMIC-III benchmark (Harutyunyan et al., 2019): the parts are all, the first 10, 25 and
50 % and the last 50, 25 and 10 % of the time from a variable's first to its last measurement; the statistics are
minimum, maximum, mean, standard deviation, skewness and the number of measurements. Units become one: temperatures
Celsius, weights kilograms, heights centimetres, oxygen a fraction. Urine samples are not used for glucose and pH.

Guarantees: a measurement after 48 hours, before the stay, outside what is physically possible, or marked as an error is
not used; a statistic without measurements is null, a count 0; skewness without spread is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

__all__ = [
    "HOURS",
    "PARTS",
    "STATISTICS",
    "VARIABLES",
    "Variable",
    "feature_names",
    "first_values",
    "measurements",
    "stay_features",
]

HOURS = 48.0
TOLERANCE = 1e-6
"""Hours that rounding may move a measurement over the end of a part."""
STATISTICS = ("min", "max", "mean", "std", "skew", "count")
PARTS: dict[str, tuple[float, float]] = {
    "all": (0.0, 1.0),
    "first10": (0.0, 0.1),
    "first25": (0.0, 0.25),
    "first50": (0.0, 0.5),
    "last50": (0.5, 1.0),
    "last25": (0.75, 1.0),
    "last10": (0.9, 1.0),
}
"""Where each part starts and ends, as a share of the time between a variable's first and last measurement."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """The item numbers of CHARTEVENTS and LABEVENTS that measure one variable, and what is possible.

    `scaled` is (item, factor, offset) for an item in another unit than the variable's; `words` are texts with a number.
    """

    items: tuple[int, ...]
    low: float
    high: float
    scaled: tuple[tuple[int, float, float], ...] = ()
    words: tuple[tuple[str, float], ...] = ()


INCH, POUND, OUNCE = 2.54, 0.45359237, 0.028349523125
FAHRENHEIT = (5 / 9, -160 / 9)

# Item numbers: D_ITEMS and D_LABITEMS of MIMIC-III v1.4, as grouped by the benchmark.
VARIABLES: dict[str, Variable] = {
    "capillary_refill_rate": Variable(
        items=(115, 3348, 8377, 223951, 224308),
        low=0,
        high=1,
        words=(
            ("normal <3 secs", 0.0),
            ("brisk", 0.0),
            ("normal <3 seconds", 0.0),
            ("abnormal >3 secs", 1.0),
            ("delayed", 1.0),
            ("abnormal >3 seconds", 1.0),
        ),
    ),
    "diastolic_blood_pressure": Variable(
        items=(8368, 8440, 8441, 8502, 8503, 8504, 8506, 8507, 8555, 220051, 220180, 224643, 225310, 227242),
        low=0,
        high=375,
    ),
    "fraction_inspired_oxygen": Variable(
        items=(189, 727, 3420, 3422, 223835),
        low=0.15,
        high=1.1,
        # In percent, but for numbers up to 1; see `_converted`.
        scaled=((189, 0.01, 0.0), (727, 0.01, 0.0), (3420, 0.01, 0.0), (3422, 0.01, 0.0), (223835, 0.01, 0.0)),
    ),
    "gcs_eye_opening": Variable(
        items=(184, 220739),
        low=1,
        high=4,
        words=(
            ("no response", 1.0),
            ("none", 1.0),
            ("to pain", 2.0),
            ("to speech", 3.0),
            ("spontaneously", 4.0),
        ),
    ),
    "gcs_motor_response": Variable(
        items=(454, 223901),
        low=1,
        high=6,
        words=(
            ("no response", 1.0),
            ("abnormal extension", 2.0),
            ("abnorm extensn", 2.0),
            ("abnormal flexion", 3.0),
            ("abnorm flexion", 3.0),
            ("flex-withdraws", 4.0),
            ("localizes pain", 5.0),
            ("obeys commands", 6.0),
        ),
    ),
    "gcs_total": Variable(items=(198,), low=3, high=15),
    "gcs_verbal_response": Variable(
        items=(723, 223900),
        low=1,
        high=5,
        words=(
            ("no response", 1.0),
            ("no response-ett", 1.0),
            ("et/trach", 1.0),
            ("incomprehensible sounds", 2.0),
            ("incomp sounds", 2.0),
            ("inappropriate words", 3.0),
            ("inapprop words", 3.0),
            ("confused", 4.0),
            ("oriented", 5.0),
        ),
    ),
    "glucose": Variable(items=(807, 811, 1529, 3745, 220621, 225664, 226537, 50809, 50931), low=0, high=2200),
    "heart_rate": Variable(items=(211, 220045), low=0, high=390),
    "height": Variable(items=(1394, 226707, 226730), low=50, high=275, scaled=((1394, INCH, 0.0), (226707, INCH, 0.0))),
    "mean_blood_pressure": Variable(
        items=(52, 224, 456, 3312, 3314, 3316, 3320, 3322, 6702, 220052, 220181, 224322, 225312), low=14, high=375
    ),
    "oxygen_saturation": Variable(items=(646, 834, 8498, 220227, 220277, 50817), low=0, high=100),
    "respiratory_rate": Variable(items=(614, 615, 618, 651, 3603, 220210, 224422, 224689, 224690), low=0, high=330),
    "systolic_blood_pressure": Variable(
        items=(51, 442, 455, 3313, 3315, 3317, 3321, 3323, 6701, 220050, 220179, 224167, 225309, 227243),
        low=0,
        high=375,
    ),
    "temperature": Variable(
        items=(676, 677, 678, 679, 3654, 3655, 223761, 223762),
        low=14.2,
        high=47,
        scaled=tuple((item, *FAHRENHEIT) for item in (678, 679, 3654, 223761)),
    ),
    "weight": Variable(
        items=(763, 3580, 3581, 3582, 3693, 224639, 226512, 226531),
        low=20,
        high=250,
        scaled=((3581, POUND, 0.0), (226531, POUND, 0.0), (3582, OUNCE, 0.0)),
    ),
    "ph": Variable(items=(780, 860, 1126, 1673, 3839, 4202, 4753, 220274, 223830, 50820, 50831), low=6.3, high=8.4),
}


def feature_names() -> tuple[str, ...]:
    """The 714 names, by variable, then part, then statistic."""
    return tuple(f"{variable}_{part}_{one}" for variable in VARIABLES for part in PARTS for one in STATISTICS)


def measurements(events: pl.LazyFrame, stays: pl.DataFrame) -> pl.DataFrame:
    """Find the measurements of the variables among the events of a MIMIC-III database.

    An event without a stay belongs to the stay of its admission that it falls into; one that names another stay is left
    out. Events with an error mark, events outside the stay or its first `HOURS` hours, and implausible values are left
    out too.

    Args:
        events: Rows of hadm_id, icustay_id (null where it is not known), itemid, charttime, value, valuenum and error
            (1: not to be used).
        stays: Rows of hadm_id, icustay_id, intime and outtime.

    Returns:
        Columns stay, variable, hours (since the stay began) and value (in the variable's unit), sorted by these.
    """
    known = pl.DataFrame(
        _items(), schema={"itemid": pl.Int64, "variable": pl.String, "scale": pl.Float64, "offset": pl.Float64}
    )
    joined = (
        events.join(known.lazy(), on="itemid")
        .join(stays.lazy().select("hadm_id", "intime", "outtime", stay="icustay_id"), on="hadm_id")
        .filter(pl.col("icustay_id").is_null() | (pl.col("icustay_id") == pl.col("stay")))
        .filter(pl.col("error").is_null() | (pl.col("error") != 1))
        .with_columns(hours=(pl.col("charttime") - pl.col("intime")).dt.total_seconds() / 3600)
        .filter(pl.col("hours").is_between(0.0, HOURS) & (pl.col("charttime") <= pl.col("outtime")))
        .select("stay", "variable", "hours", "value", "valuenum", "scale", "offset")
        .collect(engine="streaming")
    )
    words = pl.DataFrame(
        [(name, word, value) for name, variable in VARIABLES.items() for word, value in variable.words],
        schema={"variable": pl.String, "word": pl.String, "meaning": pl.Float64},
        orient="row",
    )
    limits = pl.DataFrame(
        [(name, variable.low, variable.high) for name, variable in VARIABLES.items()],
        schema={"variable": pl.String, "low": pl.Float64, "high": pl.Float64},
        orient="row",
    )
    # Scores are written as words, often behind their number ("4 Spontaneously", "1.0 ET/Trach").
    word = pl.col("value").str.strip_chars().str.to_lowercase().str.replace(r"^[0-9.]+\s+", "")
    return (
        joined.with_columns(word=word)
        .join(words, on=["variable", "word"], how="left")
        .with_columns(number=_converted())
        .join(limits, on="variable")
        .filter(pl.col("number").is_between(pl.col("low"), pl.col("high")))
        .select("stay", "variable", "hours", value="number")
        .sort("stay", "variable", "hours", "value")
    )


def stay_features(found: pl.DataFrame) -> pl.DataFrame:
    """The 714 features, one row per stay that has a measurement; the first column is `stay`.

    Args:
        found: Measurements, from `measurements`.

    Returns:
        The table, by stay; null where a variable was not measured in a part of the stay, but 0 for its count.
    """
    ends = found.with_columns(
        first=pl.col("hours").min().over("stay", "variable"), last=pl.col("hours").max().over("stay", "variable")
    )
    tables = []
    for part, (start, end) in PARTS.items():
        length = pl.col("last") - pl.col("first")
        low, high = pl.col("first") + start * length, pl.col("first") + end * length
        inside = pl.col("hours").is_between(low - TOLERANCE, high + TOLERANCE)
        values = pl.col("value").filter(inside)
        spread = values.std(ddof=0)
        tables.append(
            ends.group_by("stay", "variable").agg(
                values.min().alias("min"),
                values.max().alias("max"),
                values.mean().alias("mean"),
                spread.alias("std"),
                pl.when(spread > 0).then(values.skew()).when(spread == 0).then(0.0).alias("skew"),
                inside.sum().cast(pl.Float64).alias("count"),
                pl.lit(part).alias("part"),
            )
        )
    long = pl.concat(tables).unpivot(on=STATISTICS, index=["stay", "variable", "part"], variable_name="statistic")
    named = long.with_columns(feature=pl.concat_str("variable", "part", "statistic", separator="_"))
    wide = named.pivot("feature", index="stay", values="value")
    missing = [pl.lit(None, pl.Float64).alias(name) for name in feature_names() if name not in wide.columns]
    counts = [name for name in feature_names() if name.endswith("_count")]
    return (
        wide.with_columns(missing)
        .select("stay", *feature_names())
        .with_columns(pl.col(counts).fill_null(0.0))
        .sort("stay")
    )


def first_values(found: pl.DataFrame, variable: str) -> pl.DataFrame:
    """The first value of a variable in each stay.

    Args:
        found: Measurements, from `measurements`.
        variable: Name of the variable.

    Returns:
        Columns `stay` and one named like the variable; only stays that have a value.
    """
    own = found.filter(pl.col("variable") == variable).sort("stay", "hours", "value")
    return own.group_by("stay", maintain_order=True).agg(pl.col("value").first().alias(variable))


def _converted() -> pl.Expr:
    """A word's meaning, else the number in the variable's unit. Oxygen is in percent and, up to 1, a fraction."""
    number = pl.col("valuenum").fill_null(pl.col("value").str.strip_chars().cast(pl.Float64, strict=False))
    fraction = (pl.col("variable") == "fraction_inspired_oxygen") & (number <= 1.0)
    scaled = pl.when(fraction).then(number).otherwise(number * pl.col("scale") + pl.col("offset"))
    return pl.coalesce("meaning", scaled)


def _items() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, variable in VARIABLES.items():
        units = {item: (factor, offset) for item, factor, offset in variable.scaled}
        for item in variable.items:
            scale, offset = units.get(item, (1.0, 0.0))
            rows.append({"itemid": item, "variable": name, "scale": scale, "offset": offset})
    return rows
