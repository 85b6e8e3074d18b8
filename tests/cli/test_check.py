import json
import sys

import polars as pl
import pytest

from kohort.tables.frames import write_table

REQUIRED = {"rows", "classes", "k", "l_distinct", "l_entropy", "t_emd", "t_kl", "uniques", "risk"}
RISK = {"prosecutor_max", "prosecutor_mean", "marketer", "rows_above"}


@pytest.fixture
def table(tmp_path) -> str:
    frame = pl.DataFrame(
        {
            "age": [20, 20, 30, 30, None],
            "job": ["a", "a", "b", "b", "b"],
            "ill": ["x", "y", "x", "x", "y"],
            "codes": [["p", "q"], ["p", "q"], ["p"], ["p"], []],
            "secret_name": ["zebra1", "zebra2", "zebra3", "zebra4", "zebra5"],
        }
    )
    path = str(tmp_path / "t.parquet")
    write_table(frame, path)
    return path


def test_json_has_the_documented_keys(kohort_here, table) -> None:
    code, out, err = kohort_here("check", table, "--quasi", "age,job", "--sensitive", "ill", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found.keys() >= REQUIRED
    assert found["risk"].keys() >= RISK
    assert (found["rows"], found["classes"], found["k"], found["uniques"]) == (5, 3, 1, 1)
    assert found["l_distinct"] == 1
    assert found["risk"]["prosecutor_max"] == 1.0
    assert found["risk"]["prosecutor_mean"] == pytest.approx(3 / 5)
    assert found["risk"]["rows_above"] == {"0.05": 5, "0.1": 5, "0.2": 5, "0.33": 5, "0.5": 1}
    assert found["km"] is None
    undeclared = {one["column"] for one in found["warnings"] if one["reason"] == "undeclared"}
    assert undeclared == {"codes", "secret_name"}
    assert "zebra" not in out


def test_without_sensitive_column_l_and_t_are_null(kohort_here, table) -> None:
    _, out, _ = kohort_here("check", table, "--quasi", "job", "--json")
    found = json.loads(out)
    assert [found[key] for key in ("l_distinct", "l_entropy", "t_emd", "t_kl")] == [None] * 4
    assert found["k"] == 2


def test_items(kohort_here, table) -> None:
    arguments = ("check", table, "--quasi", "job", "--items", "codes", "--json")
    assert json.loads(kohort_here(*arguments)[1])["km"] == 2
    found = json.loads(kohort_here(*arguments, "--m", "1")[1])
    assert (found["km"], found["m"]) == (2, 1)


def test_missing_rows_are_dropped_on_request(kohort_here, table) -> None:
    _, out, _ = kohort_here("check", table, "--quasi", "age,job", "--missing", "drop", "--json")
    found = json.loads(out)
    assert (found["rows"], found["k"], found["dropped_rows"]) == (4, 2, 1)


def test_adult_without_missing_values(kohort_here) -> None:
    # Fisichella et al. (2022): the largest (age, race, sex) group of the 30,162 complete rows has 554 rows.
    _, out, _ = kohort_here("check", "adult:train", "--quasi", "age,race,sex", "--missing", "drop", "--json")
    found = json.loads(out)
    assert (found["rows"], found["largest_class"]) == (30_162, 554)


def test_population(kohort_here, table) -> None:
    _, out, _ = kohort_here("check", table, "--quasi", "age,job", "--population", "500", "--json")
    risk = json.loads(out)["risk"]
    assert risk["journalist_max"] == pytest.approx(0.01)
    assert risk["population_uniqueness"]["population_size"] == 500


def test_people_get_a_table_and_a_verdict(kohort_here, table) -> None:
    code, out, err = kohort_here("check", table, "--quasi", "age,job", "--sensitive", "ill", "--items", "codes")
    assert code == 0
    assert "not anonymous: 1 of 5 rows are unique" in out
    assert "which discloses it" in out
    assert "prosecutor risk" in out
    assert "have no role: secret_name" in err
    assert "zebra" not in out + err
    assert "2-anonymous" in kohort_here("check", table, "--quasi", "job")[1]
    assert (
        "rows with missing values are left out" in kohort_here("check", table, "--quasi", "job", "--missing", "drop")[2]
    )


def test_csv_from_standard_input(kohort_here, monkeypatch, tmp_path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("q,s\n1,a\n1,b\n")
    with path.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        _, out, _ = kohort_here("check", "-", "--quasi", "q", "--sensitive", "s", "--json")
    assert json.loads(out)["l_distinct"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--quasi", "agee"), 3, "no column 'agee'. Did you mean 'age'?"),
        (("--quasi", "age", "--sensitive", "ile"), 3, "Did you mean 'ill'?"),
        (("--quasi", "age", "--items", "age"), 3, "holds no item sets"),
        (("--quasi", "codes"), 3, "hold lists"),
        (("--quasi", ","), 2, "no quasi-identifier"),
        (("--quasi", "age", "--m", "2"), 2, "--m needs --items"),
        (("--quasi", "age", "--items", "codes", "--m", "0"), 2, "m is 0"),
        (("--quasi", "age", "--missing", "dorp"), 2, "Did you mean 'drop'?"),
        (("--quasi", "age", "--population", "3"), 2, "smaller than the 5 rows"),
        ((), 2, "--quasi"),
    ],
)
def test_errors(kohort_here, table, arguments, code: int, message: str) -> None:
    ended, out, err = kohort_here("check", table, *arguments)
    assert ended == code
    assert message in err
    assert out == ""
    assert "zebra" not in err


def test_a_header_without_rows(kohort_here, tmp_path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("a,b\n")
    code, _, err = kohort_here("check", str(path), "--quasi", "a")
    assert code == 3
    assert "no rows" in err
