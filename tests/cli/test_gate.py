import datetime
import errno
import json
import pathlib

import polars as pl
import pytest

from kohort.tables.frames import write_table

REQUIRED = {"rows", "shared", "share", "groups", "largest_group", "rule", "unique_on_shared_columns"}
PAPER = ("gate", "adult:train", "--missing", "drop", "--quasi", "age,race,sex")


@pytest.fixture
def table(tmp_path) -> str:
    frame = pl.DataFrame(
        {
            "age": [20, 20, 30, 30, None],
            "zip": ["10001", "10002", "10003", "20001", "20001"],
            "ill": ["x", "y", "x", "x", "y"],
            "person": ["zebra1", "zebra2", "zebra3", "zebra3", "zebra5"],
        }
    )
    path = str(tmp_path / "t.parquet")
    write_table(frame, path)
    return path


# Fisichella, Lax and Russo (2022): 554 and 402 are the thresholds above which nothing passes. The shares in between are
# measured on the same 30,162 rows.
def test_the_paper_largest_group(kohort_here) -> None:
    code, out, _ = kohort_here(*PAPER, "--rule", "k-anonymity", "--k", "554", "--json")
    found = json.loads(out)
    assert code == 0
    assert found.keys() >= REQUIRED
    assert (found["rows"], found["shared"], found["largest_group"]) == (30_162, 554, 554)
    assert (found["dropped_rows"], found["kept"], found["counted"]) == (2_399, 29_608, "rows")


@pytest.mark.parametrize(
    ("arguments", "share", "largest"),
    [
        (("--rule", "k-anonymity", "--k", "100"), 0.8085, 554),
        (("--rule", "k-anonymity", "--k", "300"), 0.4784, 554),
        (("--rule", "k-anonymity", "--k", "554", "--strict"), 0.0, 554),
        (("--rule", "paper-l", "--l", "100", "--sensitive", "income"), 0.7292, 402),
        (("--rule", "paper-l", "--l", "300", "--sensitive", "income"), 0.2235, 402),
    ],
)
def test_the_paper_shares(kohort_here, arguments, share, largest) -> None:
    found = json.loads(kohort_here(*PAPER, *arguments, "--json")[1])
    assert (round(found["share"], 4), found["largest_group"]) == (share, largest)


def test_two_files(kohort_here, table, tmp_path) -> None:
    shared, kept = tmp_path / "shared.csv", tmp_path / "kept.parquet"
    arguments = ("gate", table, "--quasi", "age", "--keep", "zip", "--identifier", "person")
    arguments = (*arguments, "--rule", "k-anonymity", "--k", "2")
    code, out, _ = kohort_here(*arguments, "--out-shared", shared, "--out-kept", kept, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["shared"], found["counted"], found["largest_group"]) == (2, "persons", 2)
    assert found["shared_columns"] == ["age", "zip", "ill"]
    assert shared.read_text().splitlines() == ["age,zip,ill", "20,10001,x", "20,10002,y"]
    assert pl.read_parquet(kept)["person"].to_list() == ["zebra3", "zebra3", "zebra5"]
    code, _, err = kohort_here(*arguments, "--out-shared", shared)
    assert code == 2
    assert "exists" in err
    assert kohort_here(*arguments, "--out-shared", shared, "--force")[0] == 0


def with_birth(table: str, tmp_path, written) -> str:
    """The table again, with dates of birth."""
    path = str(tmp_path / "born.parquet")
    write_table(pl.read_parquet(table).drop("zip").with_columns(written), path)
    return path


BORN = [datetime.date(1980, 3, day) for day in (1, 1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (pl.Series("birth_date", [str(day) for day in BORN]), "is named like a date"),
        (pl.Series("born", BORN), "holds dates or times"),
        (pl.Series("geboren", [f"{day:%d.%m.%Y}" for day in BORN]), "holds values of the shape of a date"),
    ],
)
def test_a_date_of_birth_leaves_only_where_it_is_named(kohort_here, table, tmp_path, written, why: str) -> None:
    path, name, shared = with_birth(table, tmp_path, written), written.name, tmp_path / "s.parquet"
    asked = ("gate", path, "--quasi", "age", "--identifier", "person", "--rule", "k-anonymity", "--k", "2", "--json")
    code, out, err = kohort_here(*asked, "--out-shared", shared)
    found = json.loads(out)
    assert code == 0
    assert found["shared_columns"] == ["age", "ill"] == pl.read_parquet(shared).columns
    assert f"note: column {name!r} {why}, which others may know of a person, so it is not shared" in err
    assert {"what": "columns", "why": "they tell a place or a date and nobody named them", "count": 1} in found[
        "left_out"
    ]
    for option in (("--keep", name), ("--columns", f"age,{name}")):
        assert name in json.loads(kohort_here(*asked, *option)[1])["shared_columns"]
    counted = ("--quasi", name)  # of the persons with a key, none is alone in what leaves
    assert json.loads(kohort_here(*asked, *counted)[1])["shared"] == 2


def test_keys_and_columns(kohort_here, table) -> None:
    arguments = ("gate", table, "--quasi", "age,zip", "--rule", "k-anonymity", "--k", "3", "--json")
    assert json.loads(kohort_here(*arguments)[1])["shared"] == 0
    coarse = (*arguments, "--key", "bins:age=40;mask:zip=1", "--columns", "ill")
    found = json.loads(kohort_here(*coarse)[1])
    assert (found["shared"], found["groups"], found["unique_on_shared_columns"]) == (3, 3, 1)


def test_k_above_the_rows_says_so(kohort_here, table) -> None:
    code, out, err = kohort_here("gate", table, "--quasi", "age", "--rule", "k-anonymity", "--k", "9", "--json")
    assert code == 0
    assert json.loads(out)["shared"] == 0
    assert "no row passes: the largest of 3 groups counts 2" in err
    assert "every row passes" in kohort_here("gate", table, "--quasi", "age", "--rule", "k-anonymity", "--k", "1")[2]


def test_people_get_a_table_and_the_warnings(kohort_here, table) -> None:
    arguments = ("gate", table, "--quasi", "age", "--sensitive", "ill", "--rule", "paper-l", "--l", "2")
    code, out, err = kohort_here(*arguments, "--missing", "drop", "--keep", "zip")
    assert code == 0
    assert "paper-l: 50.00% of the rows may be shared" in out
    assert "1 rows with missing values are left out" in err
    assert "does not hide the label" in err
    assert "2 of 2 shared rows are unique on the 4 shared columns" in err
    assert "zebra" not in out + err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--quasi", "agee", "--rule", "k-anonymity", "--k", "2"), 3, "no column 'agee'. Did you mean 'age'?"),
        (("--quasi", ",", "--rule", "k-anonymity", "--k", "2"), 2, "no quasi-identifier"),
        (("--quasi", "age", "--rule", "k-anonymity", "--k", "0"), 2, "k is 0"),
        (("--quasi", "age", "--rule", "k-anonymity", "--k", "-3"), 2, "k is -3"),
        (("--quasi", "age", "--rule", "k-anonymity", "--k", "two"), 2, "two"),
        (("--quasi", "age", "--rule", "k-anonymity"), 2, "needs k. Add --k"),
        (("--quasi", "age", "--rule", "k-anonymity", "--k", "2", "--t", "1"), 2, "does not use t"),
        (("--quasi", "age", "--rule", "paper-l", "--sensitive", "ill"), 2, "needs l"),
        (("--quasi", "age", "--rule", "paper-l", "--l", "2"), 2, "needs a sensitive column"),
        (("--quasi", "age", "--rule", "l-diversity", "--l", "2"), 2, "needs a sensitive column"),
        (("--quasi", "age", "--rule", "t-closeness", "--t", "0.1"), 2, "needs a sensitive column"),
        (("--quasi", "age", "--rule", "t-closeness", "--t", "0.1", "--sensitive", "ile"), 3, "Did you mean 'ill'?"),
        (("--quasi", "age", "--rule", "l-diversty", "--l", "2"), 2, "Did you mean 'l-diversity'?"),
        (("--quasi", "age", "--rule", "l-diversity", "--l", "2", "--sensitive", "ill,zip"), 2, "one sensitive column"),
        (("--quasi", "age", "--rule", "k-anonymity", "--k", "2", "--identifier", "persn"), 3, "Did you mean 'person'?"),
        (("--quasi", "age", "--rule", "k-anonymity", "--k", "2", "--columns", "sip"), 3, "Did you mean 'zip'?"),
        (("--quasi", "age", "--rule", "k-anonymity", "--k", "2", "--key", "bin:age=1"), 2, "Did you mean 'bins'?"),
        (("--quasi", "age", "--rule", "k-anonymity", "--k", "2", "--missing", "dorp"), 2, "Did you mean 'drop'?"),
        (
            ("--quasi", "age", "--rule", "k-anonymity", "--k", "2", "--identifier", "person", "--columns", "person"),
            2,
            "among the shared columns",
        ),
        (("--quasi", "age"), 2, "--rule"),
    ],
)
def test_errors(kohort_here, table, arguments, code: int, message: str) -> None:
    ended, out, err = kohort_here("gate", table, *arguments)
    assert ended == code
    assert message in err
    assert out == ""
    assert "zebra" not in err


def test_a_table_that_is_not_there(kohort_here) -> None:
    code, _, err = kohort_here("gate", "nowhere.parquet", "--quasi", "a", "--rule", "k-anonymity", "--k", "2")
    assert code == 3
    assert "no file 'nowhere.parquet'" in err


def test_a_forecast_of_a_plan(kohort_here, tmp_path) -> None:
    rows = pl.DataFrame(
        {"age": [20 + i % 4 for i in range(240)], "x": [float(i % 7) for i in range(240)], "y": ["no", "yes"] * 120}
    )
    write_table(rows, str(tmp_path / "rows.csv"))
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f"""[data]
table = "{tmp_path / "rows.csv"}"
target = "y"
quasi = ["age"]
features = ["x"]
[sites]
count = 3
[train]
rounds = 2
[model]
kind = "logistic"
[method]
name = "partial"
[method.gate]
k = 20
release_k = 5
[policy]
min_rows = 5
min_k = 5
"""
    )
    code, out, err = kohort_here("gate", str(plan), "--forecast", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["shared"] == found["rows"]  # four ages, each with at least 20 rows over all sites
    assert found["recommendation"] in {"partial", "averaging"}
    assert found["rare"] is None
    code, out, _ = kohort_here("gate", str(plan), "--forecast", "--set", "method.gate.k=300")
    assert code == 0
    assert "0 of " in out
    assert "recommended: averaging: no row passes" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan.toml", "--forecast", "--k", "5"), "reads the gate from the plan, and --k is given"),
        (("adult:train", "--forecast"), "needs a plan"),
        (("adult:train", "--quasi", "age"), "no rule is named"),
        (("adult:train", "--quasi", "age", "--rule", "k-anonymity", "--set", "a.b=1"), "--set changes a plan"),
    ],
)
def test_a_forecast_and_a_gate_take_their_own_options(kohort_here, arguments, message) -> None:
    code, _, err = kohort_here("gate", *arguments)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_what_a_killed_gate_left_goes_with_the_next_one(kohort_here, table, tmp_path, monkeypatch, ending) -> None:
    """A disk that became read-only let nothing be deleted: the unfinished file then stayed for good."""
    out = tmp_path / "out"
    words = ["gate", table, "--quasi", "zip", "--rule", "k-anonymity", "--k", 2, "--out-shared", out / f"a.{ending}"]
    replace, unlink = pathlib.Path.replace, pathlib.Path.unlink

    def read_only(self, *_, **__):
        raise OSError(errno.EROFS, "read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "replace", read_only)
        patch.setattr(pathlib.Path, "unlink", read_only)
        assert kohort_here(*words)[0] == 2
    assert [path.name for path in out.iterdir()] != []
    assert (pathlib.Path.replace, pathlib.Path.unlink) == (replace, unlink)
    (out / ".b.other.unfinished.csv").write_text("another command's")
    assert kohort_here(*words)[0] == 0
    assert sorted(path.name for path in out.iterdir()) == [".b.other.unfinished.csv", f"a.{ending}"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_interrupt_as_soon_as_a_file_is_there_leaves_nothing(kohort_here, table, tmp_path, monkeypatch, ending):
    touch, out = pathlib.Path.touch, tmp_path / "out"

    def interrupted(self, *args, **options):
        touch(self, *args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "touch", interrupted)
    words = ["gate", table, "--quasi", "zip", "--rule", "k-anonymity", "--k", 2, "--out-shared", out / f"a.{ending}"]
    assert kohort_here(*words)[0] == 130
    assert list(out.iterdir()) == []
