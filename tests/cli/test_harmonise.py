"""Three hospital files that disagree in six ways: they are named, a mapping mends them, and the model is the same."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.hospitals import NAMES, clean_hospital, write_hospitals

from kohort import Federation
from kohort.errors import DataError
from kohort.runs.config import read_plan

Here = Callable[..., tuple[int, str, str]]

PLAN = """
[data]
table = {tables}
target = "outcome"
features = ["age", "sex", "weight", "smoker", "ward"]
missing = "category"
{extra}
[sites]
split = "files"
[model]
kind = "logistic"
[train]
rounds = 5
lr = 0.1
[policy]
min_rows = 1
"""
SIX = {
    ("name", "sex", "west"),
    ("type", "age", "south"),
    ("unit", "weight", "south"),
    ("yes/no", "smoker", "south"),
    ("spelling", "sex", "west"),
    ("spelling", "ward", "west"),
    ("missing marker", "ward", "west"),
}
"""Six ways to disagree; two columns are spelt differently."""


@pytest.fixture
def hospitals(tmp_path: Path) -> dict[str, list[str]]:
    return write_hospitals(tmp_path)


def plan(path: Path, tables: list[str], extra: str = "") -> Path:
    path.write_text(PLAN.format(tables=json.dumps(tables), extra=extra))
    return path


def run(kohort_here: Here, path: Path) -> tuple[dict[str, Any], bytes]:
    out = path.with_suffix(".out")
    code, shown, said = kohort_here("run", path, "--out", out, "--json")
    assert code == 0, said
    return json.loads(shown), (out / "model" / "model.safetensors").read_bytes()


def kinds(disagreements: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(one["kind"], one["column"], ", ".join(one["sites"])) for one in disagreements}


def test_the_mapping_mends_all_six_and_the_model_is_that_of_clean_files(
    hospitals: dict[str, list[str]], tmp_path: Path, kohort_here: Here
) -> None:
    _, expected = run(kohort_here, plan(tmp_path / "clean.toml", hospitals["clean"]))

    messy = plan(tmp_path / "messy.toml", hospitals["messy"])
    code, _, said = kohort_here("run", messy, "--out", tmp_path / "refused")
    assert code == 3
    for part in ("lacks columns: sex", "age is a number at north, west, text at south", "name of sex (west)",
                 "unit of weight (south)", "yes/no of smoker (south)", "spelling of ward (west)",
                 "spelling of sex (west)", "missing marker of ward (west)", "kohort harmonise"):  # fmt: skip
        assert part in said
    for value in ("female", "unknown", "INTENSIVE", "true"):
        assert value not in said
    assert not (tmp_path / "refused").exists()

    mapping = tmp_path / "mapping.toml"
    code, out, said = kohort_here("harmonise", messy, "--out", mapping, "--json")
    assert code == 0, said
    found = json.loads(out)
    assert kinds(found["disagreements"]) == SIX
    assert all(one["mended"] for one in found["disagreements"])

    result, mended = run(kohort_here, plan(tmp_path / "mended.toml", hospitals["messy"], 'mapping = "mapping.toml"'))
    assert mended == expected
    assert not [note for note in result["notes"] if "disagree" in note]

    def predicted(model: str, table: str, *more: str) -> list[str]:
        out = tmp_path / f"{model}-{Path(table).stem}.csv"
        code, _, said = kohort_here("predict", tmp_path / model, table, "--out", out, *more)
        assert code == 0, said
        written = pl.read_csv(out, infer_schema=False)
        assert written.columns[:-1] == pl.read_csv(table, infer_schema=False).columns  # the table's own columns
        return written[written.columns[-1]].to_list()

    for clean, messy in zip(hospitals["clean"], hospitals["messy"], strict=True):
        site = Path(messy).stem
        assert predicted("mended.out", messy, "--site", site) == predicted("clean.out", clean)
    code, _, said = kohort_here("evaluate", tmp_path / "mended.out", hospitals["clean"][0], "--site", "nowhere")
    assert code == 0
    assert "no rules for site 'nowhere' alone" in said


def test_tables_on_the_command_line_are_compared_alike(hospitals: dict[str, list[str]], kohort_here: Here) -> None:
    code, out, _ = kohort_here("harmonise", *hospitals["messy"], "--target", "outcome", "--json")
    assert code == 0
    found = json.loads(out)
    assert kinds(found["disagreements"]) == SIX
    assert not found["agree"]
    assert list(found["sites"]) == list(NAMES)
    code, out, _ = kohort_here("harmonise", *hospitals["clean"])
    assert code == 0
    assert "They agree in all columns" in out


def test_a_mapping_can_be_tried_before_it_is_used(
    hospitals: dict[str, list[str]], tmp_path: Path, kohort_here: Here
) -> None:
    mapping = tmp_path / "mapping.toml"
    code, out, _ = kohort_here("harmonise", *hospitals["messy"], "--out", mapping)
    assert code == 0
    assert "7 of them fixed by the proposed mapping" in out
    _, out, _ = kohort_here("harmonise", *hospitals["messy"], "--mapping", mapping, "--json")
    assert json.loads(out)["agree"]
    code, _, said = kohort_here("harmonise", *hospitals["messy"], "--out", mapping)
    assert code == 2
    assert "--force" in said


def test_profiles_of_sites_give_the_same_answer_as_their_tables(
    hospitals: dict[str, list[str]], tmp_path: Path, kohort_here: Here
) -> None:
    profiles = [str(tmp_path / f"{name}.json") for name in NAMES]
    for table, profile in zip(hospitals["messy"], profiles, strict=True):
        code, _, said = kohort_here("harmonise", table, "--profile", profile)
        assert code == 0
        assert "Read it before it leaves" in said
    _, by_profile, _ = kohort_here("harmonise", *profiles, "--json")
    _, by_table, _ = kohort_here("harmonise", *hospitals["messy"], "--json")
    assert by_profile == by_table


def test_suspected_identifiers_are_not_compared(tmp_path: Path, kohort_here: Here) -> None:
    for index, name in enumerate(("a", "b")):
        clean = clean_hospital(index).with_row_index("patient_id", offset=index * 10**6)
        clean.write_csv(tmp_path / f"{name}.csv")
    code, out, said = kohort_here("harmonise", tmp_path / "a.csv", tmp_path / "b.csv", "--json")
    assert code == 0
    assert json.loads(out)["agree"]
    assert json.loads(out)["left_out"] == [{"what": "columns", "why": "suspected identifiers", "count": 1}]
    assert "patient_id" in said


def test_the_odd_table_may_come_first(hospitals: dict[str, list[str]], tmp_path: Path, kohort_here: Here) -> None:
    path = plan(tmp_path / "plan.toml", hospitals["messy"][::-1])
    code, _, said = kohort_here("run", path, "--out", tmp_path / "out")
    assert code == 3
    assert "site 'west' lacks columns: sex" in said
    assert "name of sex (west)" in said


def test_with_rest_every_column_that_most_sites_have_counts(tmp_path: Path, kohort_here: Here) -> None:
    paths = []
    for index, name in enumerate(NAMES):
        table = clean_hospital(index)
        paths.append(str(tmp_path / f"{name}.csv"))
        (table.drop("ward") if name == "south" else table).write_csv(paths[-1])
    path = tmp_path / "plan.toml"
    path.write_text(
        f'[data]\ntable = {json.dumps(paths)}\ntarget = "outcome"\nfeatures = "rest"\n[sites]\nsplit = "files"\n'
    )
    _, out, _ = kohort_here("harmonise", path, "--json")
    assert kinds(json.loads(out)["disagreements"]) == {("absent", "ward", "south")}


def test_a_mapping_in_python(hospitals: dict[str, list[str]], tmp_path: Path, kohort_here: Here) -> None:
    mapping = tmp_path / "mapping.toml"
    kohort_here("harmonise", *hospitals["messy"], "--out", mapping)
    tables = {name: pl.read_csv(path) for name, path in zip(NAMES, hospitals["messy"], strict=True)}
    options: dict[str, Any] = {"target": "outcome", "missing": "category", "policy": {"min_rows": 1}}
    with pytest.raises(DataError, match="lacks columns: sex"):
        Federation(tables, **options).run("fedavg", rounds=1)
    mended = Federation(tables, mapping=str(mapping), **options).run("fedavg", rounds=1)
    assert not [note for note in mended.notes if "disagree" in note]


def test_the_hash_of_a_plan_covers_the_content_of_its_mapping(hospitals: dict[str, list[str]], tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.toml"
    path = plan(tmp_path / "plan.toml", hospitals["messy"], 'mapping = "mapping.toml"')
    mapping.write_text('[values.sex]\nF = ["female"]\n')
    first = read_plan(path)
    assert first.to_mapping()["data"]["mapping"] == {"values": {"sex": {"F": ["female"]}}}
    mapping.write_text('[values.sex]\nM = ["female"]\n')
    assert read_plan(path).digest() != first.digest()


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["one.csv"], 2, "nothing to disagree with"),
        (["one.csv", "sub/one.csv"], 2, "the same name"),
        (["one.csv", "two.csv", "--profile", "x.json"], 2, "for one table"),
        (["one.csv", "two.csv", "--person", "id"], 3, "has no column 'id'"),
        (["one.csv", "two.csv", "--mapping", "absent.toml"], 2, "no mapping at"),
        (["bad.json", "bad.json"], 3, "not the profile"),
    ],
)
def test_mistakes_are_one_clear_line(
    arguments: list[str], code: int, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kohort_here: Here
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    for name in ("one.csv", "two.csv", "sub/one.csv"):
        Path(name).write_text("a,b\n1,canary-4711\n")
    Path("bad.json").write_text("canary-4711")
    ended, _, said = kohort_here("harmonise", *arguments)
    assert ended == code
    assert part in said
    assert len(said.strip().splitlines()) == 1
    assert "canary" not in said


def test_the_page_shows_the_mapping_of_these_hospitals(hospitals: dict[str, list[str]], kohort_here: Here) -> None:
    page = (Path(__file__).parents[2] / "docs" / "harmonise.md").read_text()
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0]
    _, out, _ = kohort_here("harmonise", *hospitals["messy"], "--json")
    assert tomllib.loads(shown) == json.loads(out)["mapping"]


def test_a_plan_whose_sites_share_one_table_has_nothing_to_harmonise(plan_file: Path, kohort_here: Here) -> None:
    code, _, said = kohort_here("harmonise", plan_file)
    assert code == 2
    assert "share one table" in said
