"""Parsers on small files in the layouts of the public sources; no test here opens the network."""

import gzip
import io
import urllib.error
import urllib.request
import zipfile

import polars as pl
import pytest

from kohort.errors import DataError, ResourceError
from kohort.tables.datasets import sources
from kohort.tables.datasets.sources import COVERTYPE, SOURCES, Source, download, snake_case


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return buffer.getvalue()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch):
    """Serve bytes in place of the network."""

    def serve(name: str, content: bytes) -> pl.DataFrame:
        monkeypatch.setattr(sources, "_fetch", lambda *_: content)
        return download(name, SOURCES[name])

    return serve


def test_names_become_snake_case() -> None:
    names = ["MajorAxisLength", "ShapeFactor1", "marital-status", "Marital_status", "diabetesMed", " roundness "]
    expected = ["major_axis_length", "shape_factor1", "marital_status", "marital_status", "diabetes_med", "roundness"]
    assert [snake_case(name) for name in names] == expected


def test_dutch_arff(served) -> None:
    text = (
        "% comment\n@relation census\n@attribute sex {2,1}\n@ATTRIBUTE 'age' {4,5}\n@attribute Marital_status {1,2}\n"
        "@attribute occupation {5_4_9,2_1}\n\n@data\n\n1,4,1,2_1\n% comment\n2,5,2,5_4_9\n"
    )
    frame = served("dutch", text.encode())
    assert frame.columns == ["sex", "age", "marital_status", "occupation"]
    assert frame.rows() == [("male", 4, 1, "2_1_high"), ("female", 5, 2, "5_4_9_low")]


def test_housing_csv_stores_whole_numbers_as_integers(served) -> None:
    text = "longitude,total_rooms,total_bedrooms,ocean_proximity\n-122.23,880.0,129.0,NEAR BAY\n-122.0,7.0,,INLAND\n"
    frame = served("california_housing", text.encode())
    assert frame.rows() == [(-122.23, 880, 129, "NEAR BAY"), (-122.0, 7, None, "INLAND")]
    assert frame.schema["total_rooms"].is_integer()
    assert frame.schema["longitude"] == pl.Float64


def test_mammographic(served) -> None:
    frame = served("mammographic", zipped(mammographic_masses_dot_data=b"5,67,3,5,3,1\n4,?,1,1,?,0\n"))
    assert frame.rows() == [(5, 67, 3, 5, 3, 1), (4, None, 1, 1, None, 0)]
    assert frame.columns[0] == "bi_rads"


def test_covertype(served) -> None:
    row = ",".join(str(value % 7) for value in range(len(COVERTYPE)))
    frame = served("covertype", zipped(covtype_dot_data_dot_gz=gzip.compress(f"{row}\n{row}\n".encode())))
    assert frame.shape == (2, 55)
    assert frame.row(0) == tuple(value % 7 for value in range(55))


def test_skin(served) -> None:
    frame = served("skin", zipped(Skin_NonSkin_dot_txt=b"74\t85\t123\t1\r\n73\t84\t122\t2\r\n"))
    assert frame.columns == ["b", "g", "r", "skin"]
    assert frame.rows() == [(74, 85, 123, 1), (73, 84, 122, 2)]


def test_higgs(served) -> None:
    frame = served("higgs", b"lepton_pT,jet_1_btag,label\n0.34186098,2.173076153,1\n1.5,0,0\n")
    assert frame.columns == ["label", "lepton_pt", "jet_1_b_tag"]
    assert frame.schema["lepton_pt"] == pl.Float32
    assert frame["label"].to_list() == [1, 0]


def test_diabetes(served) -> None:
    text = (
        "encounter_id,patient_nbr,race,diag_1,diag_2,diag_3,max_glu_serum,A1Cresult,glyburide-metformin,diabetesMed\n"
        "2278392,8222157,Caucasian,250.83,?,?,None,>8,No,Yes\n149190,55629189,?,276,250.01,255,None,None,No,Yes\n"
    )
    frame = served("diabetes_130us", zipped(dataset__diabetic_data_dot_csv=text.encode(), IDS_dot_csv=b"x"))
    assert frame.columns[-4:] == ["max_glu_serum", "a1c_result", "glyburide_metformin", "diabetes_med"]
    assert frame.schema["diag_3"] == pl.String
    assert frame["race"].to_list() == ["Caucasian", None]
    assert frame["max_glu_serum"].to_list() == ["None", "None"]


def test_arx_adult(served) -> None:
    frame = served("arx_adult", b"sex;age;marital-status\nMale;39;Never-married\n")
    assert frame.columns == ["sex", "age", "marital_status"]


def test_dry_bean_workbook(served) -> None:
    space = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    strings = f"<sst {space}><si><t>Area</t></si><si><t>AspectRation</t></si><si><r><t>Cl</t></r><r><t>ass</t></r></si>"
    strings += "<si><t>SEKER</t></si></sst>"
    sheet = (
        f"<worksheet {space}><sheetData>"
        '<row><c t="s"><v>0</v></c><c t="s"><v>1</v></c><c t="s"><v>2</v></c></row>'
        '<row><c><v>28395</v></c><c><v>1.1971914241160242</v></c><c t="s"><v>3</v></c></row>'
        "</sheetData></worksheet>"
    )
    ledger = zipped(xl__sharedStrings_dot_xml=strings.encode(), xl__worksheets__sheet1_dot_xml=sheet.encode())
    frame = served("dry_bean", zipped(DryBeanDataset__Dry_Bean_Dataset_dot_xlsx=ledger))
    assert frame.columns == ["area", "aspect_ration", "class"]
    assert frame.row(0) == (28395, 1.1971914241160242, "SEKER")


@pytest.mark.parametrize("name", sorted(SOURCES))
@pytest.mark.parametrize("content", [b"", b"a,b;c\n1\n", b"\x00\xff", zipped(other_dot_txt=b"x"), b"PK\x03\x04broken"])
def test_a_source_that_changed_is_one_clear_line(served, name: str, content: bytes) -> None:
    with pytest.raises(DataError, match=f"public source of '{name}' is not what it was"):
        served(name, content)


def test_no_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    with pytest.raises(DataError, match=r"cannot download 'skin'.*KOHORT_DATA") as caught:
        download("skin", SOURCES["skin"])
    assert caught.value.exit_code == 3


class Answer(io.BytesIO):
    headers = {"Content-Length": "12"}  # noqa: RUF012


def test_bytes_arrive_and_progress_stays_off_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Answer(b"sex;age\nM;39\n"))
    assert download("arx_adult", SOURCES["arx_adult"]).rows() == [("M", 39)]
    assert capsys.readouterr().out == ""


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 10)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Answer(b"x" * 100))
    with pytest.raises(ResourceError, match="exceeds 10 bytes"):
        download("arx_adult", SOURCES["arx_adult"])
    monkeypatch.setattr(sources, "_fetch", lambda *_: zipped(mammographic_masses_dot_data=b"1,2,3,4,5,6\n"))
    with pytest.raises(ResourceError, match="archive member"):
        download("mammographic", SOURCES["mammographic"])


def test_only_https_is_opened() -> None:
    with pytest.raises(DataError, match="not an https address"):
        download("x", Source(url="file:///etc/hostname", parse=sources.parse_csv))
    assert all(source.url.startswith("https://") for source in SOURCES.values())
