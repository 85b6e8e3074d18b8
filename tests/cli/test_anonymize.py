"""`kohort anonymize`: the keys of its JSON, its files, its exit codes."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.files import FolderLock
from kohort.privacy.releases import ReleaseAccount
from kohort.tables.hierarchy import read_hierarchies

KEYS = {
    "rows", "rows_out", "classes", "k", "l_distinct", "t_emd", "t_kl", "km", "ncp", "entropy_loss", "item_loss",
    "suppressed_rows", "suppressed_cells", "algorithm", "verified", "seconds", "out",
}  # fmt: skip


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_json_has_its_keys_and_the_file_is_what_it_says(kohort_here, table_file, tmp_path, ending):
    out = tmp_path / f"out.{ending}"
    code, text, _ = kohort_here(
        "anonymize",
        table_file,
        "--quasi",
        "age,ward",
        "--sensitive",
        "outcome",
        "--keep",
        "dose",
        "--k",
        5,
        "--l",
        2,
        "--out",
        out,
        "--json",
    )
    assert code == 0
    found = json.loads(text)
    assert set(found) >= KEYS
    assert found["verified"] is True
    assert found["out"] == str(out)
    released = pl.read_parquet(out) if ending == "parquet" else pl.read_csv(out)
    judged = measure(released, quasi=["age", "ward"], sensitive=["outcome"])
    assert (judged.k, judged.l_distinct, judged.classes) == (found["k"], found["l_distinct"], found["classes"])
    assert judged.k >= 5
    assert released["dose"].to_list() == pl.read_csv(table_file)["dose"].to_list()


def test_hierarchies_are_read_and_written(kohort_here, table_file, tmp_path):
    given = ["anonymize", table_file, "--quasi", "age,ward", "--keep", "dose,outcome", "--k", 5]
    written = tmp_path / "levels"
    code, _, _ = kohort_here(
        *given, "--hierarchies", "intervals", "--write-hierarchies", written, "--out", tmp_path / "a.csv"
    )
    assert code == 0
    assert set(read_hierarchies(written)) == {"age", "ward"}
    code, text, _ = kohort_here(*given, "--hierarchies", written, "--out", tmp_path / "b.csv", "--json")
    assert code == 0
    assert json.loads(text)["algorithm"] == "lattice"
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_what_cannot_be_met_ends_with_four_and_leaves_no_file(kohort_here, table_file, tmp_path):
    out = tmp_path / "out.csv"
    code, _, error = kohort_here("anonymize", table_file, "--quasi", "age", "--drop", "rest", "--k", 500, "--out", out)
    assert code == 4
    assert "k of at most 120" in error
    assert not out.exists()
    code, _, error = kohort_here(
        "anonymize", table_file, "--quasi", "age", "--sensitive", "outcome", "--drop", "rest", "--l", 3, "--out", out
    )
    assert code == 4
    assert "l of at most 2" in error


def test_existing_output_is_kept_unless_forced(kohort_here, table_file, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("mine")
    code, _, _ = kohort_here("anonymize", table_file, "--quasi", "age", "--drop", "rest", "--out", out)
    assert code == 2
    assert out.read_text() == "mine"
    code, shown, _ = kohort_here("anonymize", table_file, "--quasi", "age", "--drop", "rest", "--out", out, "--force")
    assert code == 0
    assert "smallest class" in shown


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (("--quasi", "nope"), 3),
        (("--quasi", ","), 2),
        (("--quasi", "age", "--algorithm", "magic"), 2),
        (("--quasi", "age", "--keep-exact", "maybe"), 2),
        (("--quasi", "age", "--l-kind", "odd"), 2),
        (("--quasi", "age", "--target", "age"), 2),
        (("--quasi", "age", "--hierarchies", "no/such/folder"), 3),
    ],
)
def test_wrong_requests_have_their_exit_codes(kohort_here, table_file, tmp_path, wrong, code):
    ended, _, error = kohort_here("anonymize", table_file, *wrong, "--drop", "rest", "--out", tmp_path / "out.csv")
    assert ended == code
    assert error.count("\n") == 1


def test_the_unguarded_step_is_reported(kohort_here, tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "out.csv"
    pl.DataFrame({"a": [1, 1, 1, 5]}).write_csv(table)
    given = ["anonymize", table, "--quasi", "a", "--k", 2, "--algorithm", "thesis", "--out", out]
    code, _, error = kohort_here(*given, "--keep-exact", "thesis")
    assert code == 0
    assert "breaks its rule" in error


def test_an_account_is_read_and_written_by_one_process_at_a_time(kohort_here, table_file, tmp_path, monkeypatch):
    real, held = ReleaseAccount.admit, list[bool]()

    def admit(self, *given, **more):
        held.append(not FolderLock(tmp_path).take())
        real(self, *given, **more)

    monkeypatch.setattr(ReleaseAccount, "admit", admit)
    given = ["--quasi", "age,ward", "--drop", "rest", "--account", tmp_path / "releases.jsonl"]
    assert kohort_here("anonymize", table_file, *given, "--k", 5, "--out", tmp_path / "first.csv")[0] == 0
    assert held == [True]
    assert FolderLock(tmp_path).take()


def test_an_account_refuses_a_release_that_crosses_an_earlier_one(kohort_here, table_file, tmp_path):
    account = tmp_path / "releases.jsonl"
    given = ["anonymize", table_file, "--quasi", "age,ward", "--drop", "rest", "--account", account]
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    assert kohort_here(*given, "--k", 5, "--out", first)[0] == 0
    code, _, said = kohort_here(*given, "--k", 7, "--out", second)
    assert code == 4
    assert "isolates persons" in said
    assert not second.exists()
    assert kohort_here("anonymize", *given[1:-2], "--k", 7, "--out", second)[0] == 0  # without the account
    code, text, _ = kohort_here("check", first, second, "--quasi", "age,ward", "--json")
    assert code == 0
    found = json.loads(text)["together"]
    assert found["isolated"] > 0
    assert found["k"] < found["promised"]
    said = " ".join(kohort_here("check", first, second, "--quasi", "age,ward")[1].split())
    assert f"together they are k-anonymous with k = {found['k']}; {found['isolated']} of {found['rows']} rows" in said
    assert f"smaller than the {found['promised']} each release promises" in said
    same = json.loads(kohort_here("check", first, first, "--quasi", "age,ward", "--json")[1])["together"]
    assert (same["isolated"], same["k"]) == (0, same["promised"])


@pytest.mark.parametrize("person", [(), ("--person", "who")])
@pytest.mark.parametrize(
    ("rule", "added", "code"),
    [
        ((), ["hiv"], 4),
        ((), ["flu"] * 5, 0),
        (("--l", "2"), ["flu"] * 5, 4),
        (("--l", "2"), ["flu", "hiv"] * 3, 0),
        (("--t", "0.2"), ["hiv"] * 6, 4),
        (("--risk", "0.1"), ["flu", "cold"] * 4, 4),
    ],
)
def test_rows_that_were_added_since_a_release_are_a_class_or_wait(kohort_here, tmp_path, person, rule, added, code):
    """Two releases of which the second had one row more once gave that row's diagnosis away."""
    place = pl.int_range(120, eager=True)
    table = pl.DataFrame({
        "who": place + 1000, "band": pl.Series(["20s", "30s", "40s"]).gather(place % 3),
        "ill": pl.Series(["flu", "cold"]).gather(place // 3 % 2),
    })  # fmt: skip
    more = pl.DataFrame({"who": pl.int_range(5000, 5000 + len(added), eager=True), "band": "40s", "ill": added})
    table.write_csv(tmp_path / "first.csv")
    pl.concat([table, more]).write_csv(tmp_path / "second.csv")
    roles = ["--quasi", "band", "--sensitive", "ill", "--k", 5, *rule, *(person or ("--drop", "who"))]
    codes = []
    for name in ("first", "second"):
        words = [
            tmp_path / f"{name}.csv",
            *roles,
            "--account",
            tmp_path / "account",
            "--out",
            tmp_path / f"{name}-out.csv",
        ]
        ended, _, said = kohort_here("anonymize", *words)
        codes.append(ended)
    assert codes == [0, code], said
    assert (tmp_path / "second-out.csv").exists() == (code == 0)
    assert "hiv" not in said


def test_items_of_rows_that_were_added_since_a_release_are_judged_too(kohort_here, tmp_path):
    place = pl.int_range(60, eager=True)
    codes = pl.Series(["a;b", "b;c"]).gather(place % 2)
    table = pl.DataFrame({"band": pl.Series(["20s", "30s"]).gather(place // 2 % 2), "codes": codes})
    table.write_csv(tmp_path / "first.csv")
    more = pl.DataFrame({"band": ["20s"] * 6, "codes": ["a;b"] * 5 + ["b;c"]})
    pl.concat([table, more]).write_csv(tmp_path / "second.csv")
    pl.concat([table, more.head(5)]).write_csv(tmp_path / "third.csv")
    ended = []
    for name in ("first", "second", "third"):
        words = [
            "--quasi",
            "band",
            "--items",
            "codes",
            "--separator",
            ";",
            "--k",
            5,
            "--m",
            2,
            "--account",
            tmp_path / "account",
        ]
        ended.append(
            kohort_here("anonymize", tmp_path / f"{name}.csv", *words, "--out", tmp_path / f"{name}-out.csv")[0]
        )
    assert ended == [0, 4, 0]


def test_persons_are_counted_and_not_released(kohort_here, tmp_path):
    rows = pl.DataFrame({"patient": [n // 6 for n in range(120)], "age": [20 + n // 6 for n in range(120)]})
    table, out = tmp_path / "visits.csv", tmp_path / "out.csv"
    rows.write_csv(table)
    code, text, _ = kohort_here(
        "anonymize", table, "--quasi", "age", "--person", "patient", "--k", 4, "--out", out, "--json"
    )
    assert code == 0
    assert json.loads(text)["k"] >= 4
    released = pl.read_csv(out)
    assert released.columns == ["age"]
    judged = released.with_columns(rows["patient"]).group_by("age").agg(pl.col("patient").n_unique())
    assert judged["patient"].min() >= 4


def test_the_order_of_rows_does_not_tell_about_persons(kohort_here, tmp_path):
    """Rows in the order of the input would keep visits of one person together, and ranks where a column was sorted."""
    random = np.random.default_rng(2)
    rows = pl.DataFrame(
        {
            "patient": [n // 4 for n in range(240)],
            "age": [20 + n // 4 for n in range(240)],
            "ill": random.choice(list("abc"), 240),
        }
    )
    table, out = tmp_path / "visits.csv", tmp_path / "out.csv"
    rows.write_csv(table)
    given = ["anonymize", table, "--quasi", "age", "--sensitive", "ill", "--k", 5, "--out", out, "--force", "--json"]
    for who in (["--person", "patient"], ["--drop", "patient"]):
        found = json.loads(kohort_here(*given, *who)[1])
        assert any("order" in note for note in found["notes"])
        released = pl.read_csv(out)
        assert released.equals(released.sort("age", "ill"))
        assert json.loads(kohort_here(*given, *who, "--keep-order")[1])["notes"] == []
        assert pl.read_csv(out)["ill"].to_list() == rows["ill"].to_list()


def test_rows_sorted_by_a_dropped_column_are_put_in_another_order(kohort_here, tmp_path):
    """The rank of a patient's number would tell whose row it is."""
    random = np.random.default_rng(3)
    rows = pl.DataFrame(
        {"number": range(200), "age": random.integers(20, 60, 200), "ill": random.choice(list("abc"), 200)}
    )
    out = tmp_path / "out.csv"
    given = ["--quasi", "age", "--sensitive", "ill", "--k", 5, "--drop", "rest", "--out", out, "--force", "--json"]
    for table, moved in ((rows, True), (rows.sample(fraction=1.0, shuffle=True, seed=1), False)):
        table.write_csv(tmp_path / "people.csv")
        found = json.loads(kohort_here("anonymize", tmp_path / "people.csv", *given)[1])
        assert any("order" in note for note in found["notes"]) is moved
        released = pl.read_csv(out, infer_schema=False)
        assert (released["ill"].to_list() == table["ill"].to_list()) is not moved


def test_a_population_and_techniques_on_the_command_line(kohort_here, tmp_path):
    random = np.random.default_rng(4)
    people = pl.DataFrame({"age": random.integers(20, 60, 900), "pay": random.normal(3000, 500, 900).round(2)})
    population, table, out = tmp_path / "people.csv", tmp_path / "table.csv", tmp_path / "out.csv"
    people.write_csv(population)
    people.sample(150, seed=1).write_csv(table)
    given = ["anonymize", table, "--quasi", "age", "--keep", "pay", "--out", out, "--force", "--json"]
    code, text, _ = kohort_here(*given, "--k", 2, "--risk", 0.05, "--population", population, "--presence", "0,0.4")
    assert code == 0
    judged = json.loads(kohort_here("check", out, "--quasi", "age", "--population", population, "--json")[1])
    assert judged["population"]["k_map"] >= 20
    assert judged["population"]["presence"][1] <= 0.4 + 1e-9
    code, text, _ = kohort_here(*given, "--k", 5, "--round", "pay=100", "--top", "age=50", "--mean", "age")
    assert code == 0
    assert len(json.loads(text)["notes"]) == 2
    assert pl.read_csv(out)["age"].max() <= 50
    assert kohort_here(*given, "--presence", "0,0.1", "--population", population)[0] == 4
    assert kohort_here(*given, "--presence", "zero", "--population", population)[0] == 2
    assert kohort_here(*given, "--round", "age=five")[0] == 2


def test_items_alone_need_no_quasi_identifier(kohort_here, tmp_path):
    random = np.random.default_rng(2)
    sets = [sorted({*random.choice(list("abcdefgh"), 3).tolist()}) for _ in range(80)]
    table, out = tmp_path / "t.parquet", tmp_path / "out.parquet"
    pl.DataFrame({"x": np.arange(80), "codes": sets}).write_parquet(table)
    asked = [str(table), "--items", "codes", "--k", "4", "--m", "2", "--drop", "x", "--out", str(out), "--json"]
    code, text, _ = kohort_here("anonymize", *asked)
    assert code == 0
    assert json.loads(text)["km"] >= 4
    released = pl.read_parquet(out)
    assert released.columns == ["codes"]
    assert measure(released.with_columns(one=pl.lit(1)), quasi=["one"], items=["codes"], m=2).km >= 4
    code, _, said = kohort_here("anonymize", str(table), "--k", "4", "--drop", "rest", "--out", tmp_path / "no.parquet")
    assert code == 2
    assert "no quasi-identifier is named" in said


LEAKY = ["--quasi", "age,ward", "--sensitive", "outcome", "--drop", "rest", "--k", "5"]


@pytest.fixture
def others_file(tmp_path, table_file):
    """Rows like those of the table, of other persons."""
    table = pl.read_csv(table_file)
    random = np.random.default_rng(5)
    pl.DataFrame({name: random.permutation(table[name].to_numpy()) for name in table.columns}).write_csv(
        tmp_path / "others.csv"
    )
    return tmp_path / "others.csv"


def test_a_release_is_attacked_with_its_makers_classes_as_referee(kohort_here, table_file, others_file, tmp_path):
    call = ["anonymize", table_file, *LEAKY, "--audit", tmp_path / "audit.json", "--out", tmp_path / "a.csv"]
    code, text, _ = kohort_here(*call, "--control", others_file, "--json")
    assert code == 0
    found = json.loads(text)["audit"]
    assert found == json.loads((tmp_path / "audit.json").read_text())["audits"][0]
    kinds = {one["attack"].split(" (")[0] for one in found["findings"] if one["by"] == "whoever gets the table"}
    assert {
        "attribute: classes with one value of outcome",
        "attribute: inference of outcome",
        "linkage: singling out",
        "linkage: two sources by the table",
        "attribute: finer values than released",
    } <= kinds
    assert found["risk"]["before"]["unique"] > found["risk"]["after"]["unique"] == 0.0
    assert found["risk"]["after"]["largest"] <= 0.2


def test_without_others_the_questions_that_need_them_are_left_and_that_is_said(kohort_here, table_file, tmp_path):
    call = ["anonymize", table_file, *LEAKY, "--out", tmp_path / "a.csv"]
    code, out, _ = kohort_here(*call, "--audit", tmp_path / "audit.json")
    assert code == 0
    flat = " ".join(out.split())
    assert "give rows of others, made alike, by --control" in flat
    assert "unique rows by age, ward" in flat
    code, _, err = kohort_here(*call, "--control", table_file, "--force")
    assert code == 2
    assert "--control is for --audit" in err
    code, _, err = kohort_here("anonymize", table_file, *LEAKY, "--audit", tmp_path / "audit.json", "--out", "b.csv")
    assert code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--audit", "{file}/x.html"], "is no folder"),
        (["--audit", "{here}"], "is a folder"),
        (["--account", "{out}"], "the same file"),
        (["--write-hierarchies", "{file}"], "is a file"),
        (["--population", "9" * 23], "population"),
    ],
)
def test_places_that_cannot_be_written_are_refused_before_the_release(
    kohort_here, table_file, tmp_path, words, message
):
    out = tmp_path / "out.csv"
    given = [word.format(file=table_file, here=tmp_path, out=out) for word in words]
    roles = ("--quasi", "age", "--drop", "rest", "--k", "3")
    code, _, said = kohort_here("anonymize", table_file, *roles, "--out", out, *given)
    assert (code, said.count("\n")) == (2, 1), said
    assert message in said
    assert not out.exists()


def test_a_release_without_hierarchies_says_so(kohort_here, table_file, tmp_path):
    words = ("--quasi", "age", "--drop", "rest", "--k", "3", "--write-hierarchies", tmp_path / "labels")
    code, _, said = kohort_here("anonymize", table_file, *words, "--out", tmp_path / "out.csv")
    assert code == 0
    assert "no released label has a hierarchy" in said
