"""What is publicly known of spellings, missing markers, column names and units. None of it comes from a table.

`meaning_of` and the families tell which spellings mean the same; `CONVERSIONS` which factors lie between common units.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from kohort.tables.text_types import MISSING_WORDS

__all__ = [
    "CONVERSIONS",
    "FAMILIES",
    "MISSING_CODES",
    "MISSING_WORDS",
    "NO",
    "YES",
    "Conversion",
    "as_numbers",
    "family_of",
    "folded",
    "is_missing_word",
    "name_key",
]

YES: Final = ("yes", "y", "true", "t", "1", "ja", "j", "oui", "si", "sí", "sim", "vrai", "wahr", "x")
NO: Final = ("no", "n", "false", "f", "0", "nein", "non", "não", "faux", "falsch")
FAMILIES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "sex": (
        ("f", "female", "fem", "woman", "w", "weiblich", "frau", "femme", "femenino", "feminino"),
        ("m", "male", "man", "männlich", "maennlich", "mann", "homme", "masculin", "masculino"),
        ("other", "o", "d", "diverse", "divers", "nonbinary", "non-binary"),
    ),
    "yes/no": (YES, NO),
    "positive/negative": (
        ("positive", "pos", "+", "reactive"),
        ("negative", "neg", "-", "nonreactive", "non-reactive"),
    ),
}
"""Spellings that mean the same, by meaning; a family applies to a column whose values all belong to it."""
MISSING_CODES: Final = (-9.0, -99.0, -999.0, -9999.0, 999.0, 9999.0, 99999.0)
_SYNONYMS: Final = {
    "gender": "sex", "geschlecht": "sex", "sexe": "sex", "sexo": "sex",
    "alter": "age", "ageyears": "age", "edad": "age", "patientage": "age",
    "gewicht": "weight", "poids": "weight", "bodyweight": "weight", "wt": "weight",
    "groesse": "height", "grosse": "height", "taille": "height", "bodyheight": "height", "ht": "height",
    "dob": "birthdate", "dateofbirth": "birthdate", "geburtsdatum": "birthdate",
    "raucher": "smoker", "smoking": "smoker", "fumeur": "smoker",
    "sbp": "systolic", "systolicbp": "systolic", "systolicbloodpressure": "systolic",
    "dbp": "diastolic", "diastolicbp": "diastolic", "diastolicbloodpressure": "diastolic",
    "postcode": "zip", "zipcode": "zip", "plz": "zip", "postalcode": "zip",
}  # fmt: skip
_UNIT_WORDS: Final = frozenset(
    {
        "kg", "g", "lb", "lbs", "pound", "pounds", "cm", "mm", "in", "inch", "inches", "ft", "years", "year", "yrs",
        "yr", "months", "days", "mmol", "mg", "dl", "mgdl", "mmoll", "celsius", "c", "fahrenheit", "mmhg", "kpa",
        "percent", "pct", "umol",
    }
)  # fmt: skip
_NUMBER: Final = re.compile(
    r"^[<>≤≥~€$£]?\s*(?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?:\+|%|[€$£]|[^\W\d_][\w.°/ %]*)?$"
)


@dataclass(frozen=True)
class Conversion:
    """A number of the larger unit is `factor` numbers of the smaller one (plus `offset`)."""

    factor: float
    words: str
    hints: tuple[str, ...] = ()
    offset: float = 0.0


CONVERSIONS: Final = (
    Conversion(2.2046226218487757, "kilograms and pounds", ("weight", "mass", "kg", "lb")),
    Conversion(2.54, "inches and centimetres", ("height", "length", "waist", "inch", "cm")),
    Conversion(1000.0, "units a thousand apart (kilo-, milli-)"),
    Conversion(100.0, "units a hundred apart (metres and centimetres, fractions and percent)"),
    Conversion(
        10.0, "units ten apart (centimetres and millimetres, g/dL and g/L)", ("hemoglobin", "haemoglobin", "albumin")
    ),
    Conversion(12.0, "years and months", ("age", "duration", "month", "year")),
    Conversion(365.25, "years and days", ("age", "duration", "day", "year")),
    Conversion(24.0, "days and hours", ("stay", "duration", "hour", "day", "los")),
    Conversion(60.0, "hours and minutes, or minutes and seconds", ("time", "duration", "minute", "hour")),
    Conversion(18.016, "glucose in mmol/L and mg/dL", ("glucose", "sugar")),
    Conversion(38.67, "cholesterol in mmol/L and mg/dL", ("chol", "ldl", "hdl")),
    Conversion(88.57, "triglycerides in mmol/L and mg/dL", ("trigly",)),
    Conversion(88.42, "creatinine in mg/dL and umol/L", ("crea",)),
    Conversion(17.104, "bilirubin in mg/dL and umol/L", ("bili",)),
    Conversion(7.500616827, "pressure in kPa and mmHg", ("pressure", "systolic", "diastolic", "bp", "po2", "pco2")),
    Conversion(4.184, "kilocalories and kilojoules", ("energy", "calor")),
    Conversion(1.8, "degrees Celsius and Fahrenheit", ("temp",), offset=32.0),
)
"""Units people mix up, with words that a column's name may hold."""


def folded(text: str) -> str:
    """The text without case, accents, blanks and punctuation.

    Args:
        text: The text.

    Returns:
        Its letters and digits in lower case, by which spellings are compared.
    """
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(one for one in plain if one.isalnum())


def name_key(name: str) -> str:
    """The key that columns of the same meaning share: their name without case, punctuation, unit and synonyms.

    Args:
        name: Name of the column.

    Returns:
        The key, such as "age" for "Alter" and "age_years".
    """
    whole = folded(name)
    if whole in _SYNONYMS:
        return _SYNONYMS[whole]
    words = [
        word for word in re.split(r"[^0-9a-zA-Z\u00c0-\uffff]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name)) if word
    ]
    kept = [word for word in words if word.casefold() not in _UNIT_WORDS] or words
    key = folded("".join(kept))
    return _SYNONYMS.get(key, key)


def is_missing_word(text: str) -> bool:
    """Whether a text stands for a missing value.

    Args:
        text: The text; case and blanks around it do not matter.

    Returns:
        True for a word such as "n/a" or "unknown".
    """
    return text.strip().casefold() in MISSING_WORDS


def family_of(texts: Iterable[str]) -> str | None:
    """The family of spellings that all texts belong to.

    Args:
        texts: The values of a column; case and blanks around them do not matter.

    Returns:
        A name in `FAMILIES`, such as "sex"; None where no family has all of them, or there is no text.
    """
    lowered = {text.strip().casefold() for text in texts}
    for name, meanings in FAMILIES.items():
        if lowered and lowered <= {spelt for several in meanings for spelt in several}:
            return name
    return None


def as_numbers(column: pl.Series, *, decimal: str = ".") -> pl.Series:
    """A column as numbers: "45 years", "90+" and ">89" are read as 45, 90 and 89; what is no number becomes null.

    Args:
        column: Numbers, booleans or text.
        decimal: What separates the fraction; the other of `.` and `,` separates thousands.

    Returns:
        Integers where every text is one, else floats.
    """
    if column.dtype.is_numeric():
        return column
    if column.dtype == pl.Boolean:
        return column.cast(pl.Int64)
    known = column.cast(pl.String).unique().drop_nulls()
    texts = known.str.strip_chars()
    if decimal == ",":
        texts = texts.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    else:
        texts = texts.str.replace_all(r"(\d),(\d{3})\b", "${1}${2}")
    numbers = texts.str.extract(_NUMBER.pattern, 1)
    read: pl.Series = numbers.cast(pl.Float64, strict=False)
    if not numbers.drop_nulls().str.contains(r"[.eE]").any():
        read = numbers.cast(pl.Int64, strict=False)
    return column.cast(pl.String).replace_strict(known, read, default=None, return_dtype=read.dtype)
