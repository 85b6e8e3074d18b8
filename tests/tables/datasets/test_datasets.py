import hashlib
import io
import json
import os
import zipfile
from importlib import resources
from pathlib import Path

import polars as pl
import pytest

from kohort.errors import ConfigError, DataError, IntegrityError
from kohort.tables.datasets import catalogue as datasets
from kohort.tables.datasets import sources
from kohort.tables.datasets.catalogue import content_checksum, list_datasets, load_dataset, open_table
from kohort.tables.encoder import Encoder, learn_domain
from kohort.tables.frames import handle_missing, read_table, write_table
from kohort.tables.schema import Role, Schema

EMBEDDED = resources.files("kohort.tables.datasets").joinpath("embedded")
PUBLISHED = os.environ.get("KOHORT_DATA", "")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No KOHORT_DATA, an empty cache, and no network."""
    monkeypatch.delenv("KOHORT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_fetch", lambda name, url: pytest.fail(f"{name} would be downloaded from {url}"))
    return tmp_path / "cache" / "kohort"


def needs(file: str) -> Path:
    path = Path(PUBLISHED) / f"{file}.parquet"
    if not PUBLISHED or not path.is_file():
        pytest.skip(f"KOHORT_DATA does not hold {file}.parquet")
    return path


def test_the_embedded_table_is_the_published_one() -> None:
    known = json.loads(EMBEDDED.joinpath("checksums.json").read_text())["adult"]
    content = EMBEDDED.joinpath("adult.parquet").read_bytes()
    assert hashlib.sha256(content).hexdigest() == known["file_sha256"]
    frame = read_table(io.BytesIO(content), format="parquet")
    assert content_checksum(frame) == known["sha256"]
    assert "CC BY 4.0" in EMBEDDED.joinpath("LICENSE-adult.txt").read_text()


def test_adult_parts(alone: Path) -> None:
    # Rows of adult.data and adult.test (UCI Adult, adult.names), and the complete rows of the first.
    whole, train, test = (load_dataset(name) for name in ("adult", "adult:train", "adult:test"))
    assert [part.frame.height for part in (whole, train, test)] == [48_842, 32_561, 16_281]
    assert handle_missing(train.frame, train.frame.columns, "drop").height == 30_162
    assert "split" not in [*whole.frame.columns, *train.frame.columns]
    assert train.target == "income"
    assert train.source.startswith("adult:train (embedded)")
    assert train.frame["income"].value_counts().sort("income")["count"].to_list() == [24_720, 7_841]


@pytest.mark.parametrize("missing", ["drop", "category"])
def test_the_adult_codebook_declares_everything(alone: Path, missing) -> None:
    adult = load_dataset("adult")
    schema = Schema.of(target="income", quasi=["age"]).with_defaults(adult.schema_defaults)
    resolved = schema.resolve(adult.frame.columns, default=adult.default_role)
    frame = handle_missing(adult.frame, adult.frame.columns, missing)
    domain = learn_domain(frame, resolved, missing=missing)
    assert domain.learned == ()
    values = Encoder(resolved, domain).transform(frame)
    assert values.min() == 0
    assert values.max() == 1
    assert all(
        list(spec.categories) == sorted(adult.frame[name].drop_nulls().unique())
        for name, spec in adult.schema_defaults.columns.items()
        if spec.categories
    )


def test_unknown_names_point_to_the_nearest(alone: Path) -> None:
    with pytest.raises(ConfigError, match="'adult'"):
        open_table("adlut")
    with pytest.raises(ConfigError, match="adult:train"):
        load_dataset("adult:trian")
    with pytest.raises(ConfigError, match="no variant"):
        load_dataset("skin:x2")
    with pytest.raises(DataError, match="no file"):
        open_table("absent.csv")
    with pytest.raises(DataError, match="no file"):
        open_table("some/where.csv")


def test_paths_and_streams_have_no_default_role(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,x\n")
    for source in (str(path), path, io.BytesIO(path.read_bytes())):
        table = open_table(source)
        assert table.frame.rows() == [(1, "x")]
        assert table.default_role is None
    assert open_table("adult:test").default_role is Role.FEATURE


def test_datasets_that_cannot_be_downloaded_say_what_they_need(alone: Path) -> None:
    for name in ("mimic3", "miniboone", "susy", "hepmass", "acs_income"):
        with pytest.raises(DataError, match="Set KOHORT_DATA"):
            load_dataset(name)


def test_the_list_downloads_nothing(alone: Path) -> None:
    rows = {row.name: row for row in list_datasets()}
    assert rows["adult"].found == "embedded"
    assert rows["adult"].rows == 48_842
    assert rows["skin"].found == "not here, can be downloaded"
    assert rows["mimic3"].found == "not here, needs KOHORT_DATA"
    assert rows["diabetes_130us"].variants == ("diabetes_130us:raw",)


FAKE = pl.DataFrame({"b": [1, 2], "g": [3, 4], "r": [5, 6], "skin": [1, 2]})


@pytest.fixture
def fake_skin(alone: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tiny table takes the place of the published one; what is fetched is listed."""
    fetched: list[str] = []
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("Skin_NonSkin.txt", "1\t3\t5\t1\n2\t4\t6\t2\n")

    def fetch(name: str, url: str) -> bytes:
        fetched.append(url)
        return buffer.getvalue()

    monkeypatch.setattr(sources, "_fetch", fetch)
    known = {"skin_segmentation": {"rows": 2, "sha256": content_checksum(FAKE)}}
    monkeypatch.setattr(datasets, "_checksums", lambda: known)
    return fetched


def test_source_then_cache_then_folder(
    fake_skin: list[str], alone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert load_dataset("skin").source.startswith("skin (public source)")
    assert load_dataset("skin").source.startswith("skin (cache)")
    assert len(fake_skin) == 1
    assert [path.name for path in alone.iterdir()] == ["skin_segmentation.parquet"]
    monkeypatch.setenv("KOHORT_DATA", str(tmp_path))
    write_table(FAKE, tmp_path / "skin_segmentation.csv")
    assert load_dataset("skin").source.startswith("skin (KOHORT_DATA)")
    assert load_dataset("skin").frame.rows() == FAKE.rows()


def test_wrong_content_is_refused_wherever_it_comes_from(
    fake_skin: list[str], alone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed = FAKE.with_columns(g=pl.Series([3, 5]))
    write_table(changed, alone / "skin_segmentation.parquet")
    with pytest.raises(IntegrityError, match=r"cached file.*checksum differs") as caught:
        load_dataset("skin")
    assert caught.value.exit_code == 6
    monkeypatch.setenv("KOHORT_DATA", str(tmp_path))
    write_table(changed, tmp_path / "skin_segmentation.parquet")
    with pytest.raises(IntegrityError, match="KOHORT_DATA"):
        load_dataset("skin")
    monkeypatch.delenv("KOHORT_DATA")
    (alone / "skin_segmentation.parquet").unlink()
    monkeypatch.setattr(datasets, "_checksums", lambda: {"skin_segmentation": {"rows": 2, "sha256": "0"}})
    with pytest.raises(IntegrityError, match="public source"):
        load_dataset("skin")
    assert not (alone / "skin_segmentation.parquet").exists()


@pytest.mark.parametrize("name", ["california_housing", "arx_adult", "higgs", "dutch"])
def test_a_page_in_place_of_a_table_is_never_cached(alone: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sources, "_fetch", lambda *_: b"<html>\n<p>moved</p>\n")
    with pytest.raises((DataError, IntegrityError), match="public source"):
        load_dataset(name)
    assert not alone.exists()


def test_the_checksum_sees_values_and_not_widths() -> None:
    frame = pl.DataFrame({"n": [1, None], "t": ["a", None], "b": [True, False]})
    base = content_checksum(frame)
    assert content_checksum(frame.with_columns(pl.col("n").cast(pl.Float32))) == base
    different = [
        frame.with_columns(n=pl.Series([1, 0])),
        frame.with_columns(t=pl.Series(["a", "b"])),
        frame.with_columns(t=pl.Series(["a", ""])),
        frame.rename({"n": "m"}),
        frame.reverse(),
        frame.select("t", "n", "b"),
    ]
    assert base not in {content_checksum(other) for other in different}


def test_one_row_a_patient() -> None:
    frame = pl.DataFrame(
        {
            "encounter_id": [9, 2, 5],
            "patient_nbr": [1, 1, 2],
            "diag_1": ["250", "401", None],
            "diag_2": ["250", "401", "V45"],
            "diag_3": [None, "250", "V45"],
        }
    )
    out = datasets.first_encounters(frame)
    assert out.columns == ["encounter_id", "patient_nbr", "diagnoses"]
    assert out.rows() == [(2, 1, ["401", "250"]), (5, 2, ["V45"])]


# Rows and target frequencies of the published tables.
@pytest.mark.parametrize(
    ("name", "file", "shape"),
    [
        ("dutch", "dutch_census_2001", (60_420, 12)),
        ("california_housing", "california_housing", (20_640, 10)),
        ("mammographic", "mammographic_mass", (961, 6)),
        ("dry_bean", "dry_bean", (13_611, 17)),
        ("dry_bean:x10", "dry_bean", (136_110, 17)),
        ("skin", "skin_segmentation", (245_057, 4)),
        ("higgs:x4", "higgs_sample", (43_936, 29)),
        ("diabetes_130us", "diabetes_130us", (71_518, 48)),
        ("diabetes_130us:raw", "diabetes_130us", (101_766, 50)),
        ("arx_adult", "arx_adult", (30_162, 9)),
    ],
)
def test_published_tables(name: str, file: str, shape: tuple[int, int]) -> None:
    needs(file)
    table = load_dataset(name)
    assert table.frame.shape == shape
    assert table.target in table.frame.columns


def as_arff(frame: pl.DataFrame) -> bytes:
    codes = frame.with_columns(
        pl.col("sex").replace({"male": "1", "female": "2"}),
        pl.col("occupation").str.replace("_(high|low)", ""),
    )
    header = "".join(f"@attribute {name} {{x}}\n" for name in frame.columns)
    return f"@relation r\n{header}@data\n{codes.write_csv(include_header=False)}".encode()


def as_mammographic(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("mammographic_masses.data", frame.write_csv(include_header=False, null_value="?"))
    return buffer.getvalue()


def as_housing(frame: pl.DataFrame) -> bytes:
    return frame.with_columns(pl.selectors.numeric().cast(pl.Float64)).write_csv().encode()


@pytest.mark.parametrize(
    ("name", "file", "publish"),
    [
        ("dutch", "dutch_census_2001", as_arff),
        ("mammographic", "mammographic_mass", as_mammographic),
        ("california_housing", "california_housing", as_housing),
    ],
)
def test_a_whole_table_in_its_public_layout_passes_the_checksum(
    alone: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, publish
) -> None:
    stored = read_table(needs(file))
    monkeypatch.setattr(sources, "_fetch", lambda *_: publish(stored))
    found = load_dataset(name)
    assert found.source.startswith(f"{name} (public source)")
    assert found.frame.schema == stored.schema
    assert found.frame.equals(stored)
