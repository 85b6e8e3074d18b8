"""Named datasets: where each is looked for, and the check that it is what it claims to be.

A named dataset is looked for in the folder KOHORT_DATA, then inside the package (adult), then in the user's cache, then
at its public source, from where it goes into the cache.

Guarantee: a dataset with a known checksum is given out only when its content matches, wherever it came from. The
checksum is over the values, not over the bytes of a file, so every source is held to the same one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from kohort.errors import ConfigError, DataError, IntegrityError, nearest
from kohort.tables.datasets.codebooks import adult_codebook, dry_bean_codebook, higgs_codebook, skin_codebook
from kohort.tables.datasets.sources import SOURCES, download
from kohort.tables.dialect import ReadingOptions
from kohort.tables.frames import ENDINGS, TableRead, read_source, read_table, write_table
from kohort.tables.reading import declare_missing
from kohort.tables.schema import Role, Schema
from kohort.tables.sources.opening import is_source, read_address

__all__ = ["Dataset", "DatasetInfo", "content_checksum", "list_datasets", "load_dataset", "open_table"]

FOLDER_VARIABLE = "KOHORT_DATA"
ITEMS_OF_DIABETES = ("diag_1", "diag_2", "diag_3")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A table with what is publicly known about it.

    `schema_defaults` holds declarations without roles, for `Schema.with_defaults`; `default_role` is what a column
    without a stated role becomes (None: that is an error); `target` is the column usually predicted.
    """

    frame: pl.DataFrame
    schema_defaults: Schema = field(default_factory=Schema)
    default_role: Role | None = None
    target: str | None = None
    notes: tuple[str, ...] = ()
    source: str
    texts: pl.DataFrame | None = field(default=None, repr=False)
    """The columns as they stand in a text file, to give untouched ones back exactly."""
    reading: tuple[str, ...] = ()
    """How a file was read, one statement each."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """One line of what is available."""

    name: str
    rows: int | None
    found: str
    licence: str
    source: str
    target: str | None
    variants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    file: str
    licence: str
    source: str
    target: str | None
    codebook: Callable[[], Schema] = Schema
    variants: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = field(default_factory=dict)
    shape: Callable[[pl.DataFrame], pl.DataFrame] = lambda frame: frame
    notes: tuple[str, ...] = ()
    folder: _Folder | None = None


@dataclass(frozen=True, kw_only=True)
class _Folder:
    """A dataset that is a folder of tables: how they are found, and how each variant (`""`: none) reads them."""

    find: Callable[[Path], dict[str, Path] | None]
    read: dict[str, Callable[[dict[str, Path]], tuple[pl.DataFrame, tuple[str, ...]]]]
    layout: str


def load_dataset(name: str) -> Dataset:
    """The table of a registered name, such as `adult:train`.

    Args:
        name: `DATASET`, or `DATASET:VARIANT`.

    Returns:
        The table with what is publicly known of its columns, its target and its source.

    Raises:
        ConfigError: The name or the variant is unknown.
        DataError: The dataset is not here and cannot be downloaded.
        IntegrityError: The content is not the published one.
    """
    base, _, variant = name.partition(":")
    entry = REGISTRY.get(base)
    if entry is None:
        raise ConfigError(f"no dataset named {base!r}", hint=nearest(base, REGISTRY))
    if variant and variant not in _variants(entry):
        known = ", ".join(f"{base}:{known}" for known in _variants(entry)) or "none"
        raise ConfigError(f"{base!r} has no variant {variant!r}", hint=f"Variants: {known}")
    if entry.folder is not None:
        shaped, notes = _from_folder(base, entry.folder, variant)
        found = FOLDER_VARIABLE
    else:
        frame, found = _locate(base, entry)
        shaped, notes = (entry.variants[variant] if variant else entry.shape)(frame), ()
    return Dataset(
        frame=shaped,
        schema_defaults=_known_columns(entry.codebook(), shaped.columns),
        default_role=Role.FEATURE,
        target=entry.target,
        notes=(*entry.notes, *notes),
        source=f"{name} ({found}); {entry.source}; {entry.licence}",
    )


def open_table(
    name_or_path: str | Path | IO[bytes],
    options: ReadingOptions | None = None,
    *,
    query: str | None = None,
    folder: Path | None = None,
) -> Dataset:
    """A registered name, a path, the address of a database, an OMOP folder, `-` for CSV on stdin, or an open stream.

    Args:
        name_or_path: What to open.
        options: What is declared about a file; a named dataset takes its `null_values` alone.
        query: A SELECT statement, for the address of a database.
        folder: Where relative paths of files start, if not at the current folder.

    Returns:
        The table, how it was read, and what is publicly known about a named one.

    Raises:
        ConfigError: There is no such dataset and no such file, or the address cannot be read.
        DataError: The table cannot be read.
    """
    if isinstance(name_or_path, str) and is_source(name_or_path):
        return _from_source(name_or_path, query, folder)
    if query is not None:
        hint = "Set the table to an address such as sqlite:///clinic.db, or drop the query"
        raise ConfigError("a query needs the address of a database", hint=hint)
    if folder is not None and isinstance(name_or_path, (str, Path)) and str(name_or_path) != "-":
        return _opened(read_source(folder / name_or_path, options), str(name_or_path))
    if not isinstance(name_or_path, (str, Path)):
        return _opened(read_source(name_or_path, options), "stream")
    text = str(name_or_path)
    if text.partition(":")[0] in REGISTRY and isinstance(name_or_path, str):
        known = load_dataset(text)
        return known if options is None else replace(known, frame=declare_missing(known.frame, options)[0])
    looks_like_path = text == "-" or os.sep in text or Path(text).suffix.lower() in ENDINGS or Path(text).exists()
    if not looks_like_path:
        hint = f"{nearest(text, REGISTRY)} Or give the path of a CSV, Parquet or Arrow file"
        raise ConfigError(f"no dataset and no file named {text!r}", hint=hint)
    return _opened(read_source(text, options), text)


def _opened(read: TableRead, source: str) -> Dataset:
    return Dataset(frame=read.frame, source=source, texts=read.texts, reading=read.notes)


def _from_source(text: str, query: str | None, folder: Path | None) -> Dataset:
    found = read_address(text, query=query, folder=folder)
    role = Role.FEATURE if found.codebook.columns else None
    return Dataset(
        frame=found.frame,
        schema_defaults=found.codebook,
        default_role=role,
        notes=found.notes,
        source=found.shown,
    )


def list_datasets() -> list[DatasetInfo]:
    """All registered names, with where each would come from now. Nothing is downloaded."""
    return [
        DatasetInfo(
            name=name,
            rows=_checksums().get(entry.file, {}).get("rows"),
            found=_where(name, entry),
            licence=entry.licence,
            source=entry.source,
            target=entry.target,
            variants=tuple(f"{name}:{variant}" for variant in _variants(entry)),
        )
        for name, entry in REGISTRY.items()
    ]


def content_checksum(frame: pl.DataFrame) -> str:
    """SHA-256 over names and values in order; the width of a number's type does not matter, its value does.

    Args:
        frame: The table.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for column in frame:
        header = {"name": column.name, "rows": len(column), "number": column.dtype.is_numeric()}
        digest.update(json.dumps(header, sort_keys=True).encode())
        digest.update(np.packbits(column.is_null().to_numpy()).tobytes())
        if column.dtype.is_numeric():
            # Adding zero makes the two zeros one.
            digest.update((column.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0).astype("<f8").tobytes())
            continue
        texts = column.cast(pl.String)
        known = sorted(texts.drop_nulls().unique().to_list())
        codes = texts.cast(pl.Enum(known)).to_physical().cast(pl.Int64).fill_null(-1)
        digest.update(json.dumps(known).encode())
        digest.update(codes.to_numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where downloaded tables are kept."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "kohort"


def _user_file(entry: _Entry) -> Path | None:
    folder = os.environ.get(FOLDER_VARIABLE)
    candidates = [Path(folder) / f"{entry.file}{ending}" for ending in (".parquet", ".csv")] if folder else []
    return next((path for path in candidates if path.is_file()), None)


def _locate(name: str, entry: _Entry) -> tuple[pl.DataFrame, str]:
    path = _user_file(entry)
    if path is not None:
        return _verified(read_table(path), entry, f"the file in {FOLDER_VARIABLE}"), FOLDER_VARIABLE
    if entry.file == "adult":
        return _embedded_table(), "embedded"
    cached = cache_folder() / f"{entry.file}.parquet"
    if cached.is_file():
        return _verified(read_table(cached), entry, f"the cached file {str(cached)!r}"), "cache"
    if name not in SOURCES:
        raise _not_here(name, f"{entry.file}.parquet")
    frame = _verified(download(name, SOURCES[name]), entry, "the public source")
    write_table(frame, cached, force=True)
    return frame, "public source"


@cache
def _embedded_table() -> pl.DataFrame:
    """The one table that comes with the package; read and verified once, for frames do not change."""
    content = resources.files("kohort.tables.datasets").joinpath("embedded", "adult.parquet")
    with content.open("rb") as stream:
        return _verified(read_table(stream, format="parquet"), REGISTRY["adult"], "the embedded table")


def _not_here(name: str, wanted: str) -> DataError:
    hint = f"Set {FOLDER_VARIABLE} to a folder that holds {wanted}"
    return DataError(f"dataset {name!r} is not here and cannot be downloaded", hint=hint)


def _variants(entry: _Entry) -> tuple[str, ...]:
    return tuple(entry.variants if entry.folder is None else (variant for variant in entry.folder.read if variant))


def _tables_in_folder(folder: _Folder) -> dict[str, Path] | None:
    root = os.environ.get(FOLDER_VARIABLE)
    return folder.find(Path(root)) if root else None


def _from_folder(name: str, folder: _Folder, variant: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    files = _tables_in_folder(folder)
    if files is None:
        raise _not_here(name, folder.layout)
    return folder.read[variant](files)


def _where(name: str, entry: _Entry) -> str:
    if entry.folder is not None:
        return FOLDER_VARIABLE if _tables_in_folder(entry.folder) else f"not here, needs {FOLDER_VARIABLE}"
    if _user_file(entry) is not None:
        return FOLDER_VARIABLE
    if entry.file == "adult":
        return "embedded"
    if (cache_folder() / f"{entry.file}.parquet").is_file():
        return "cache"
    return "not here, can be downloaded" if name in SOURCES else f"not here, needs {FOLDER_VARIABLE}"


def _verified(frame: pl.DataFrame, entry: _Entry, where: str) -> pl.DataFrame:
    expected = _checksums().get(entry.file)
    if expected is not None and content_checksum(frame) != expected["sha256"]:
        hint = "Remove it to get the published table, or give your own table by its path"
        raise IntegrityError(f"{where} is not the published {entry.file!r} table (checksum differs)", hint=hint)
    return frame


@cache
def _checksums() -> dict[str, dict[str, Any]]:
    text = resources.files("kohort.tables.datasets").joinpath("embedded", "checksums.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def _known_columns(codebook: Schema, columns: list[str]) -> Schema:
    return Schema(columns={name: spec for name, spec in codebook.columns.items() if name in columns})


def _part(value: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda frame: frame.filter(pl.col("split") == value).drop("split")


def _copies(count: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda frame: pl.concat([frame] * count, rechunk=True)


def first_encounters(frame: pl.DataFrame) -> pl.DataFrame:
    """One row per patient, the one with the smallest encounter number; its diagnoses become one set of codes.

    The set replaces the three columns it is made of: kept beside it they would give away what is protected in the set.
    """
    first = frame.sort("encounter_id").unique("patient_nbr", keep="first", maintain_order=True)
    codes = pl.concat_list(ITEMS_OF_DIABETES).list.drop_nulls().list.unique(maintain_order=True)
    return first.with_columns(codes.alias("diagnoses")).drop(ITEMS_OF_DIABETES)


def _find_mimic3(root: Path) -> dict[str, Path] | None:
    from kohort.tables.datasets.mimic.layout import find_mimic3  # MIMIC is loaded when it is asked for

    return find_mimic3(root)


def _read_mimic3(files: dict[str, Path], *, min_hours: float = 0.0) -> tuple[pl.DataFrame, tuple[str, ...]]:
    from kohort.tables.datasets.mimic.reader import load_mimic3

    return load_mimic3(files, min_hours=min_hours)


def _mimic3_codebook() -> Schema:
    from kohort.tables.datasets.mimic.reader import mimic3_codebook

    return mimic3_codebook()


CC_BY = "CC BY 4.0"
REGISTRY: dict[str, _Entry] = {
    "adult": _Entry(
        file="adult",
        licence=CC_BY,
        source="UCI Adult (Becker and Kohavi, 1996)",
        target="income",
        codebook=adult_codebook,
        variants={"train": _part("train"), "test": _part("test")},
        shape=lambda frame: frame.drop("split"),
    ),
    "dutch": _Entry(
        file="dutch_census_2001",
        licence="none stated; research use",
        source="Dutch Virtual Census 2001 (Statistics Netherlands, IPUMS)",
        target="occupation",
    ),
    "acs_income": _Entry(
        file="acs_income_2018",
        licence="US Census Bureau ACS PUMS, public",
        source="ACS PUMS 2018 by way of FeDa4Fair",
        target="PINCP_GT_50K",
        notes=("no California, a third of Florida; race in 5 groups, marital status in 2: not equal to folktables",),
    ),
    "california_housing": _Entry(
        file="california_housing",
        licence="public (1990 US census, StatLib)",
        source="California housing (Pace and Barry, 1997)",
        target="median_house_value",
    ),
    "mammographic": _Entry(
        file="mammographic_mass",
        licence=CC_BY,
        source="UCI Mammographic Mass (Elter, 2007)",
        target="severity",
    ),
    "covertype": _Entry(
        file="covertype",
        licence=CC_BY,
        source="UCI Covertype (Blackard, 1998)",
        target="cover_type",
    ),
    "dry_bean": _Entry(
        file="dry_bean",
        licence=CC_BY,
        source="UCI Dry Bean (Koklu and Ozkan, 2020)",
        target="class",
        codebook=dry_bean_codebook,
        variants={"x10": _copies(10)},
    ),
    "skin": _Entry(
        file="skin_segmentation",
        licence=CC_BY,
        source="UCI Skin Segmentation (Bhatt and Dhall, 2012)",
        target="skin",
        codebook=skin_codebook,
    ),
    "higgs": _Entry(
        file="higgs_sample",
        licence=CC_BY,
        source="UCI HIGGS (Whiteson, 2014), sample",
        target="label",
        codebook=higgs_codebook,
        variants={"x4": _copies(4)},
        notes=("10,984 of the 11,000,000 published rows",),
    ),
    "diabetes_130us": _Entry(
        file="diabetes_130us",
        licence=CC_BY,
        source="UCI Diabetes 130-US hospitals (Strack et al., 2014)",
        target="readmitted",
        variants={"raw": lambda frame: frame},
        shape=first_encounters,
    ),
    "arx_adult": _Entry(
        file="arx_adult",
        licence="Apache-2.0",
        source="ARX project, data/adult.csv",
        target="salary_class",
    ),
    "mimic3": _Entry(
        file="mimic3",
        licence="PhysioNet credentialed use",
        source="MIMIC-III (Johnson et al., 2016)",
        target="died_in_hospital",
        codebook=_mimic3_codebook,
        folder=_Folder(
            find=_find_mimic3,
            read={"": _read_mimic3, "48h": lambda files: _read_mimic3(files, min_hours=48.0)},
            layout="the tables of MIMIC-III (PATIENTS, ADMISSIONS, ICUSTAYS, DIAGNOSES_ICD)",
        ),
    ),
    "miniboone": _Entry(
        file="miniboone",
        licence=CC_BY,
        source="UCI MiniBooNE (Roe, 2005)",
        target=None,
    ),
    "susy": _Entry(
        file="susy",
        licence=CC_BY,
        source="UCI SUSY (Whiteson, 2014)",
        target=None,
    ),
    "hepmass": _Entry(
        file="hepmass",
        licence=CC_BY,
        source="UCI HEPMASS (Whiteson, 2016)",
        target=None,
    ),
}
