"""Public sources of the named datasets: download, unpack, parse.

Guarantees: only https addresses are opened; sizes are bounded before anything is unpacked; a parser gives the columns
that the registry knows, or a DataError; nothing is cached or trusted here: the caller verifies the content.
"""

from __future__ import annotations

import gzip
import http.client
import io
import re
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import polars as pl

from kohort.errors import DataError, ResourceError
from kohort.tables.frames import read_table

__all__ = ["SOURCES", "Source", "download", "snake_case"]

MAX_BYTES = 1 << 30
CHUNK = 1 << 16
TIMEOUT_SECONDS = 30
UCI = "https://archive.ics.uci.edu/static/public"
GITHUB = "https://raw.githubusercontent.com"
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
HOW_TO_GO_ON = "Set KOHORT_DATA to a folder that holds the file, or try again with a network"

# What parsers and unpackers raise on bytes of another kind.
MALFORMED = (
    DataError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    ElementTree.ParseError,
    KeyError,
    IndexError,
    ValueError,
    pl.exceptions.PolarsError,
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a dataset is published and how its bytes become a table."""

    url: str
    parse: Callable[[bytes], pl.DataFrame]


def download(name: str, source: Source) -> pl.DataFrame:
    """Fetch and parse a public dataset, with a progress bar on stderr. The caller must verify the content.

    Args:
        name: Name of the dataset, for errors.
        source: Its address and its parser.

    Returns:
        The table.

    Raises:
        DataError: It cannot be fetched, or its content cannot be parsed.
        ResourceError: It is larger than a gigabyte.
    """
    content = _fetch(name, source.url)
    try:
        return _compact(source.parse(content))
    except MALFORMED:
        raise DataError(f"the public source of {name!r} is not what it was", hint=HOW_TO_GO_ON) from None


def snake_case(name: str) -> str:
    """A name as words in lower case, joined by `_`.

    Args:
        name: A name such as `MajorAxisLength` or `marital-status`.

    Returns:
        The name, such as `major_axis_length` or `marital_status`.
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[^0-9a-z]+", "_", spaced.lower()).strip("_")


def _fetch(name: str, url: str) -> bytes:
    if not url.startswith("https://"):
        raise DataError(f"the source of {name!r} is not an https address", hint=HOW_TO_GO_ON)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn(f"downloading {name}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    pieces: list[bytes] = []
    received = 0
    try:
        # The scheme was checked above, so no local file can be opened.
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer, bar:  # noqa: S310
            length = answer.headers.get("Content-Length")
            job = bar.add_task(name, total=int(length) if length and length.isdigit() else None)
            while piece := answer.read(CHUNK):
                received += len(piece)
                if received > MAX_BYTES:
                    raise ResourceError(f"the download of {name!r} exceeds {MAX_BYTES:,} bytes", hint=HOW_TO_GO_ON)
                pieces.append(piece)
                bar.advance(job, len(piece))
    except (OSError, http.client.HTTPException) as problem:
        kind = type(problem).__name__
        raise DataError(f"cannot download {name!r} from its public source ({kind})", hint=HOW_TO_GO_ON) from None
    return b"".join(pieces)


def _member(content: bytes, ending: str) -> bytes:
    """The file of a zip archive whose name ends so."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        matching = [entry for entry in archive.infolist() if entry.filename.lower().endswith(ending.lower())]
        if not matching:
            raise KeyError(ending)
        found = matching[0]
        if found.file_size > MAX_BYTES:
            raise ResourceError(f"an archive member exceeds {MAX_BYTES:,} bytes", hint=HOW_TO_GO_ON)
        return archive.read(found)


def _gunzip(content: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        unpacked = stream.read(MAX_BYTES + 1)
    if len(unpacked) > MAX_BYTES:
        raise ResourceError(f"an archive member exceeds {MAX_BYTES:,} bytes", hint=HOW_TO_GO_ON)
    return unpacked


def _with_header(content: bytes, columns: Sequence[str], separator: str = ",") -> pl.DataFrame:
    header = separator.join(columns).encode() + b"\n"
    return _as_published(header + content.lstrip(b"\r\n"), separator)


def _as_published(content: bytes, separator: str = ",") -> pl.DataFrame:
    """A table whose checksum is known: nothing about it is guessed."""
    return read_table(io.BytesIO(content), separator=separator, null_markers=("", "?"), dates=False)


def _compact(frame: pl.DataFrame) -> pl.DataFrame:
    """Whole numbers as the smallest integers that hold them: some sources write 41.0 for 41."""
    columns = []
    for column in frame:
        whole = column.dtype.is_float() and bool((column.drop_nulls() == column.drop_nulls().floor()).all())
        columns.append(column.cast(pl.Int64) if whole else column)
    return pl.DataFrame([column.shrink_dtype() if column.dtype.is_integer() else column for column in columns])


def parse_dutch(content: bytes) -> pl.DataFrame:
    """ARFF of the Dutch census; codes for sex and occupation get names."""
    frame = parse_arff(content)
    return frame.with_columns(
        pl.col("sex").cast(pl.String).replace_strict({"1": "male", "2": "female"}),
        pl.col("occupation").replace_strict({"2_1": "2_1_high", "5_4_9": "5_4_9_low"}),
    )


def parse_arff(content: bytes) -> pl.DataFrame:
    """The attributes and the comma-separated rows of an ARFF file."""
    text = content.decode("utf-8")
    names = [
        snake_case(match.group(1).strip("'\""))
        for match in re.finditer(r"^@attribute\s+('[^']*'|\"[^\"]*\"|\S+)", text, flags=re.IGNORECASE | re.MULTILINE)
    ]
    start = re.search(r"^@data[^\n]*\n", text, flags=re.IGNORECASE | re.MULTILINE)
    if start is None:
        raise ValueError("no @data")
    lines = (line.strip() for line in text[start.end() :].splitlines())
    rows = "\n".join(line for line in lines if line and not line.startswith("%"))
    return _with_header(rows.encode(), names)


def parse_csv(content: bytes) -> pl.DataFrame:
    """A CSV file with a header."""
    frame = _as_published(content)
    return frame.rename({name: snake_case(name) for name in frame.columns})


def parse_arx(content: bytes) -> pl.DataFrame:
    """The adult table of ARX: `;` between cells."""
    frame = _as_published(content, ";")
    return frame.rename({name: snake_case(name) for name in frame.columns})


def parse_mammographic(content: bytes) -> pl.DataFrame:
    """A zip archive with a file that has no header."""
    return _with_header(_member(content, "mammographic_masses.data"), MAMMOGRAPHIC)


def parse_covertype(content: bytes) -> pl.DataFrame:
    """A zip archive with a gzip file that has no header."""
    return _with_header(_gunzip(_member(content, "covtype.data.gz")), COVERTYPE)


def parse_skin(content: bytes) -> pl.DataFrame:
    """A zip archive with a file of tab-separated numbers."""
    return _with_header(_member(content, "skin_nonskin.txt"), SKIN, separator="\t")


def parse_higgs(content: bytes) -> pl.DataFrame:
    """A CSV sample; single precision, as the detector simulation gave it, label first."""
    frame = _as_published(content)
    frame = frame.rename({name: name.lower().replace("btag", "b_tag") for name in frame.columns})
    features = [name for name in frame.columns if name != "label"]
    return frame.select("label", pl.col(features).cast(pl.Float32))


def parse_diabetes(content: bytes) -> pl.DataFrame:
    """A zip archive with one CSV; codes of diagnoses stay text."""
    frame = parse_csv(_member(content, "diabetic_data.csv")).rename({"a1cresult": "a1c_result"})
    return frame.with_columns(pl.col("diag_1", "diag_2", "diag_3").cast(pl.String))


def parse_dry_bean(content: bytes) -> pl.DataFrame:
    """A zip archive with a workbook, which alone has all digits."""
    rows = read_sheet(_member(content, "dry_bean_dataset.xlsx"))
    frame = pl.DataFrame(rows[1:], schema=[snake_case(name) for name in rows[0]], orient="row")
    return frame.with_columns(pl.exclude("class").cast(pl.Float64))


def read_sheet(content: bytes) -> list[list[str]]:
    """The cells, as text, of the first sheet of an xlsx workbook without gaps."""
    # expat, below ElementTree, bounds the growth of entities itself.
    texts = [
        "".join(part.text or "" for part in entry.iter(f"{SHEET}t"))
        for entry in ElementTree.fromstring(_member(content, "xl/sharedstrings.xml")).iter(f"{SHEET}si")  # noqa: S314
    ]
    rows: list[list[str]] = []
    for row in ElementTree.fromstring(_member(content, "xl/worksheets/sheet1.xml")).iter(f"{SHEET}row"):  # noqa: S314
        cells = [(cell.get("t"), cell.findtext(f"{SHEET}v") or "") for cell in row.iter(f"{SHEET}c")]
        rows.append([texts[int(value)] if kind == "s" else value for kind, value in cells])
    return rows


MAMMOGRAPHIC = ("bi_rads", "age", "shape", "margin", "density", "severity")
SKIN = ("b", "g", "r", "skin")
COVERTYPE = (
    "elevation",
    "aspect",
    "slope",
    "horizontal_distance_to_hydrology",
    "vertical_distance_to_hydrology",
    "horizontal_distance_to_roadways",
    "hillshade_9am",
    "hillshade_noon",
    "hillshade_3pm",
    "horizontal_distance_to_fire_points",
    *(f"wilderness_area{index}" for index in range(1, 5)),
    *(f"soil_type{index}" for index in range(1, 41)),
    "cover_type",
)

# Commits are pinned, so that an address always means the same bytes.
SOURCES: dict[str, Source] = {
    "dutch": Source(
        url=f"{GITHUB}/tailequy/fairness_dataset/43157fba374c1722daf209f493438a44620fa496"
        "/Dutch_census/dutch_census_2001.arff",
        parse=parse_dutch,
    ),
    "california_housing": Source(
        url=f"{GITHUB}/ageron/handson-ml2/aa555aa16b9d0af6c84e67c7757f3317d05acb12/datasets/housing/housing.csv",
        parse=parse_csv,
    ),
    "mammographic": Source(url=f"{UCI}/161/mammographic+mass.zip", parse=parse_mammographic),
    "covertype": Source(url=f"{UCI}/31/covertype.zip", parse=parse_covertype),
    "dry_bean": Source(url=f"{UCI}/602/dry+bean+dataset.zip", parse=parse_dry_bean),
    "skin": Source(url=f"{UCI}/229/skin+segmentation.zip", parse=parse_skin),
    "higgs": Source(
        url=f"{GITHUB}/sassoftware/sas-viya-workbench-examples/6a96e990172cd4c60572ba033633a9605b6b751a/data/higgs.csv",
        parse=parse_higgs,
    ),
    "diabetes_130us": Source(url=f"{UCI}/296/diabetes+130-us+hospitals+for+years+1999-2008.zip", parse=parse_diabetes),
    "arx_adult": Source(
        url=f"{GITHUB}/arx-deidentifier/arx/20f9724951f256e1b71bae5ddd77c2d74fbe13c3/data/adult.csv",
        parse=parse_arx,
    ),
}
