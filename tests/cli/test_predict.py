"""`kohort predict` and `kohort evaluate`: columns in any order, no row lost, an unreadable table refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from kohort.models.files import load_model
from kohort.tables.frames import read_table

Call = Callable[..., tuple[int, str, str]]
PLAN = """
[data]
table = "{table}"
target = "outcome"
features = ["age", "dose", "ward"]
{more}

[sites]
count = 3

[train]
rounds = 3
lr = 0.02

[policy]
min_rows = 1
"""


@pytest.fixture
def model(tmp_path: Path, table_file: Path, kohort_here: Call) -> Path:
    """A run folder with a model of the small CSV."""
    return trained(tmp_path, table_file, kohort_here, 'missing = "drop"\nunseen = "error"')


def trained(folder: Path, table: Path, kohort_here: Call, more: str = "") -> Path:
    plan = folder / "plan-of-model.toml"
    plan.write_text(PLAN.format(table=table, more=more))
    assert kohort_here("run", plan, "--out", folder / "run")[0] == 0
    return folder / "run"


@pytest.mark.parametrize("ending", ["csv", "parquet", "feather", "tsv"])
def test_the_table_comes_back_with_one_more_column(
    ending: str, tmp_path: Path, table_file: Path, model: Path, kohort_here: Call
) -> None:
    out = tmp_path / f"predicted.{ending}"
    code, shown, said = kohort_here("predict", model, table_file, "--out", out, "--json")
    assert code == 0, said
    result = json.loads(shown)
    assert {key: result[key] for key in ("rows", "skipped", "column", "out")} == {
        "rows": 120,
        "skipped": 0,
        "column": "predicted_outcome",
        "out": str(out),
    }
    written, table = read_table(out), read_table(table_file)
    assert written.drop("predicted_outcome").equals(table)
    assert written["predicted_outcome"].to_list() == load_model(model).predict(table).to_list()


def test_columns_in_another_order_and_others_beside_them(
    tmp_path: Path, table_file: Path, model: Path, kohort_here: Call
) -> None:
    table = read_table(table_file)
    shuffled = table.select("ward", pl.lit(1).alias("extra"), "dose", "age")
    shuffled.write_parquet(tmp_path / "shuffled.parquet")
    out = tmp_path / "out.csv"
    code, _, said = kohort_here("predict", model, tmp_path / "shuffled.parquet", "--out", out, "--proba")
    assert code == 0
    assert "120 rows" in said
    written = read_table(out)
    assert written.columns == [
        "ward", "extra", "dose", "age", "predicted_outcome", "probability_ill", "probability_well",
    ]  # fmt: skip
    assert written["predicted_outcome"].to_list() == load_model(model).predict(table).to_list()
    assert (written["probability_ill"] + written["probability_well"] - 1).abs().max() < 1e-6
    assert ((written["probability_ill"] > 0.5) == (written["predicted_outcome"] == "ill")).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop("dose", "ward"), ["dose", "ward"]),
        (lambda t: t.with_columns(ward=pl.lit("secret-place")), ["'ward'", "120 rows"]),
        (lambda t: t.with_columns(dose=pl.lit("secret-word")), ["'dose'", "120 rows"]),
        (lambda t: t.with_columns(predicted_outcome=pl.lit(1)), ["already", "predicted_outcome"]),
        (
            lambda t: t.with_columns(
                ward=pl.when(pl.int_range(120) < 7).then(None).otherwise(pl.col("ward")),
                dose=pl.when(pl.int_range(120) < 2).then(None).otherwise(pl.col("dose")),
            ),
            ["ward (7)", "dose (2)", "--missing skip"],
        ),
    ],
    ids=["columns missing", "unseen category", "text for a number", "column there already", "missing cells"],
)
def test_a_table_the_model_cannot_read(
    change: Callable[[pl.DataFrame], pl.DataFrame],
    words: list[str],
    tmp_path: Path,
    table_file: Path,
    model: Path,
    kohort_here: Call,
) -> None:
    change(read_table(table_file)).write_parquet(tmp_path / "other.parquet")
    out = tmp_path / "out.parquet"
    code, _, said = kohort_here("predict", model, tmp_path / "other.parquet", "--out", out)
    assert code == 3
    assert len(said.strip().splitlines()) == 1
    assert all(word in said for word in words), said
    assert "secret" not in said
    assert not out.exists()


def test_a_long_table_is_counted_as_a_whole(tmp_path: Path, table_file: Path, model: Path, kohort_here: Call) -> None:
    long = pl.concat([read_table(table_file)] * 600)  # longer than what is encoded at once
    place = pl.int_range(long.height)
    long.with_columns(ward=pl.when(place % 9000 == 8000).then(pl.lit("new")).otherwise("ward")).write_parquet(
        tmp_path / "long.parquet"
    )
    code, _, said = kohort_here("predict", model, tmp_path / "long.parquet", "--out", tmp_path / "out.parquet")
    assert code == 3
    assert f"{sum(n % 9000 == 8000 for n in range(long.height))} row" in said
    long.write_parquet(tmp_path / "long.parquet")
    assert kohort_here("predict", model, tmp_path / "long.parquet", "--out", tmp_path / "out.parquet")[0] == 0
    written = read_table(tmp_path / "out.parquet")["predicted_outcome"]
    assert written.equals(pl.concat([written[:120]] * 600))


def test_rows_with_missing_cells_can_be_skipped(
    tmp_path: Path, table_file: Path, model: Path, kohort_here: Call
) -> None:
    table = read_table(table_file)
    gaps = table.with_columns(ward=pl.when(pl.int_range(120) % 3 == 1).then(None).otherwise(pl.col("ward")))
    gaps.write_csv(tmp_path / "gaps.csv")
    out = tmp_path / "out.parquet"
    code, shown, said = kohort_here(
        "predict", model, tmp_path / "gaps.csv", "--out", out, "--missing", "skip", "--proba", "--json"
    )
    assert code == 0, said
    assert json.loads(shown)["skipped"] == 40
    written = read_table(out)
    assert written["predicted_outcome"].is_null().to_list() == gaps["ward"].is_null().to_list()
    assert written["probability_ill"].null_count() == 40
    known = written.filter(pl.col("predicted_outcome").is_not_null())
    assert known["predicted_outcome"].to_list() == load_model(model).predict(gaps.drop_nulls("ward")).to_list()
    code, shown, said = kohort_here("evaluate", model, tmp_path / "gaps.csv", "--missing", "skip", "--json")
    assert code == 0, said
    assert (json.loads(shown)["rows"], json.loads(shown)["skipped"]) == (80, 40)
    assert kohort_here("evaluate", model, tmp_path / "gaps.csv")[0] == 3
    assert kohort_here("predict", model, table_file, "--out", tmp_path / "x.csv", "--missing", "forget")[0] == 2


def test_missing_and_unseen_values_the_plan_made_room_for(tmp_path: Path, table_file: Path, kohort_here: Call) -> None:
    table = read_table(table_file)
    table.with_columns(ward=pl.when(pl.int_range(120) < 20).then(None).otherwise(pl.col("ward"))).write_csv(
        tmp_path / "gaps.csv"
    )
    folder = trained(tmp_path, tmp_path / "gaps.csv", kohort_here, 'missing = "category"\nother = ["ward"]')
    table.with_columns(ward=pl.lit("elsewhere")).write_csv(tmp_path / "elsewhere.csv")
    for name in ("gaps.csv", "elsewhere.csv"):
        code, shown, said = kohort_here(
            "predict", folder, tmp_path / name, "--out", tmp_path / "out.csv", "--force", "--json"
        )
        assert code == 0, said
        assert json.loads(shown)["skipped"] == 0


def test_output_is_kept_and_endings_are_known(tmp_path: Path, table_file: Path, model: Path, kohort_here: Call) -> None:
    out = tmp_path / "out.csv"
    out.write_text("precious")
    code, _, said = kohort_here("predict", model, table_file, "--out", out)
    assert code == 2
    assert "--force" in said
    assert out.read_text() == "precious"
    assert kohort_here("predict", model, table_file, "--out", out, "--force")[0] == 0
    assert kohort_here("predict", model, table_file, "--out", tmp_path / "out.xlsx")[0] == 2
    assert kohort_here("predict", tmp_path / "no-model", table_file, "--out", tmp_path / "x.csv")[0] == 2
    assert kohort_here("predict", model, tmp_path / "no-table.csv", "--out", tmp_path / "x.csv")[0] == 3
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_an_altered_model_is_refused(
    name: str, tmp_path: Path, table_file: Path, model: Path, kohort_here: Call
) -> None:
    path = model / "model" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    for command in (["predict", model, table_file, "--out", tmp_path / "x.csv"], ["evaluate", model, table_file]):
        code, _, said = kohort_here(*command)
        assert code == 6
        assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "x.csv").exists()


def test_whole_number_classes_stay_numbers(tmp_path: Path, table_file: Path, kohort_here: Call) -> None:
    table = read_table(table_file).with_columns(outcome=(pl.col("outcome") == "ill").cast(pl.Int64))
    table.write_csv(tmp_path / "numbers.csv")
    folder = trained(tmp_path, tmp_path / "numbers.csv", kohort_here)
    out = tmp_path / "out.parquet"
    assert kohort_here("predict", folder, tmp_path / "numbers.csv", "--out", out)[0] == 0
    assert read_table(out)["predicted_outcome"].dtype == pl.Int64


def test_a_number_has_no_probabilities(tmp_path: Path, table_file: Path, kohort_here: Call) -> None:
    plan = tmp_path / "plan.toml"
    more = 'drop = ["outcome"]'
    text = PLAN.format(table=table_file, more=more).replace(
        '"outcome"\nfeatures = ["age", "dose"', '"dose"\nfeatures = ["age"'
    )
    plan.write_text(text)
    assert kohort_here("run", plan, "--out", tmp_path / "run")[0] == 0
    code, _, said = kohort_here("predict", tmp_path / "run", table_file, "--out", tmp_path / "x.csv", "--proba")
    assert code == 2
    assert "--proba" in said
    assert kohort_here("predict", tmp_path / "run", table_file, "--out", tmp_path / "x.csv")[0] == 0
    assert read_table(tmp_path / "x.csv")["predicted_dose"].dtype == pl.Float64
    code, shown, _ = kohort_here("evaluate", tmp_path / "run", table_file, "--json")
    assert code == 0
    assert set(json.loads(shown)["metrics"]["intervals"]) == {"rmse", "mae", "r2"}


def test_evaluate_measures_with_intervals_and_by_group(table_file: Path, model: Path, kohort_here: Call) -> None:
    code, shown, said = kohort_here("evaluate", model, table_file, "--by", "ward", "--json")
    assert code == 0, said
    result = json.loads(shown)
    table = read_table(table_file)
    found = load_model(model).predict(table)
    assert result["metrics"]["accuracy"] == pytest.approx((found == table["outcome"]).mean())
    assert set(result["groups"]) == {"north", "south", "west"}
    for measured in (result["metrics"], *result["groups"].values()):
        for name, (low, high) in measured["intervals"].items():
            assert low <= measured[name] <= high, name
    assert result == json.loads(kohort_here("evaluate", model, table_file, "--by", "ward", "--json")[1])
    other = json.loads(kohort_here("evaluate", model, table_file, "--by", "ward", "--seed", "1", "--json")[1])
    assert other["metrics"]["accuracy"] == result["metrics"]["accuracy"]
    assert other["metrics"]["intervals"] != result["metrics"]["intervals"]
    code, shown, _ = kohort_here("evaluate", model, table_file, "--by", "ward")
    assert code == 0
    assert "specificity" in shown
    assert "north" in shown


def test_evaluate_needs_the_target_and_a_column_to_group_by(
    tmp_path: Path, table_file: Path, model: Path, kohort_here: Call
) -> None:
    read_table(table_file).drop("outcome").write_csv(tmp_path / "blind.csv")
    code, _, said = kohort_here("evaluate", model, tmp_path / "blind.csv")
    assert code == 3
    assert "'outcome'" in said
    code, _, said = kohort_here("evaluate", model, table_file, "--by", "wrad")
    assert code == 3
    assert "'ward'" in said
    code, _, said = kohort_here("evaluate", model, table_file, "--by", "dose")
    assert code == 3
    assert "groups at most" in said
    assert kohort_here("evaluate", model, table_file, "--resamples", "3")[0] == 2


HYBRID = """
[data]
table = "{table}"
target = "outcome"
features = ["age", "dose", "ward"]
missing = "drop"
categories = {{ward = ["north", "south", "west"], outcome = ["ill", "well"]}}
bounds = {{age = [0, 120], dose = [-10, 100]}}

[sites]
count = 2
clusters = 2
low_risk = 0.5

[model]
kind = "logistic"

[method]
name = "hybrid"
phases = [{{kind = "peers", rows = "low", rounds = 2, lr = 0.5, optimizer = "sgd"}}]

[policy]
min_rows = 1
"""


def test_a_run_that_ended_among_peers_predicts_by_cluster(tmp_path: Path, table_file: Path, kohort_here: Call) -> None:
    plan, ran, out = tmp_path / "peers.toml", tmp_path / "peers", tmp_path / "out.csv"
    plan.write_text(HYBRID.format(table=table_file))
    code, _, said = kohort_here("run", plan, "--out", ran)
    assert code == 0, said
    for command in (("predict", ran, table_file, "--out", out), ("evaluate", ran, table_file)):
        code, _, said = kohort_here(*command)
        assert code == 2
        assert "no common model; clusters: cluster-01, cluster-02" in said
        assert "--cluster" in said
    code, _, said = kohort_here("predict", ran, table_file, "--out", out, "--cluster", "north")
    assert code == 2
    assert "cluster-01, cluster-02" in said
    assert not out.exists()
    code, _, said = kohort_here("predict", ran, table_file, "--out", out, "--cluster", "cluster-02")
    assert code == 0, said
    found = load_model(ran, cluster="cluster-02").predict(read_table(table_file))
    assert read_table(out)["predicted_outcome"].to_list() == found.to_list()
    assert "No common model" in (ran / "model" / "README.md").read_text()


def test_a_run_without_peers_has_no_clusters(tmp_path: Path, table_file: Path, model: Path, kohort_here: Call) -> None:
    code, _, said = kohort_here("predict", model, table_file, "--out", tmp_path / "out.csv", "--cluster", "north")
    assert code == 2
    assert "no models of clusters" in said


@pytest.fixture
def large(tmp_path: Path, table_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The table as Parquet with an identifier, read in parts of about twenty rows."""
    table = pl.read_csv(table_file)
    table = table.with_columns(pl.Series("patient_id", [f"P-{number:05d}" for number in range(table.height)]))
    table.write_parquet(tmp_path / "large.parquet")
    monkeypatch.setattr("kohort.tables.parts.LARGE", 0)
    monkeypatch.setattr("kohort.tables.parts.PART_BYTES", 1_000)
    return tmp_path / "large.parquet"


@pytest.mark.parametrize("more", [[], ["--proba"], ["--keep", "patient_id"]])
def test_a_table_read_in_parts_is_predicted_as_in_one_piece(
    large: Path, model: Path, tmp_path: Path, kohort_here: Call, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    code, _, said = kohort_here("predict", model, large, "--out", tmp_path / "p[1]" / "parts.parquet", *more)
    assert code == 0, said
    assert "read in" in said
    assert ("patient_id" in said) == ("--keep" not in more)
    monkeypatch.setattr("kohort.tables.parts.LARGE", 1 << 40)
    code, _, said = kohort_here("predict", model, large, "--out", tmp_path / "whole.parquet", *more)
    assert code == 0
    assert "read in" not in said
    assert pl.read_parquet(tmp_path / "p[1]" / "parts.parquet", glob=False).equals(
        pl.read_parquet(tmp_path / "whole.parquet")
    )
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_parts_count_what_is_missing_and_unknown_together_and_leave_nothing_behind_on_an_error(
    large: Path, tmp_path: Path, table_file: Path, kohort_here: Call
) -> None:
    folder = trained(tmp_path, table_file, kohort_here, 'missing = "drop"')
    table = pl.read_parquet(large)
    unknown = table.with_columns(
        pl.when(pl.int_range(pl.len()) % 40 == 0).then(pl.lit("new")).otherwise("ward").alias("ward")
    )
    unknown.write_parquet(tmp_path / "unknown.parquet")
    code, shown, _ = kohort_here(
        "predict", folder, tmp_path / "unknown.parquet", "--out", tmp_path / "a.parquet", "--json"
    )
    assert code == 0
    assert json.loads(shown)["unseen"] == {"ward": 3}
    lacking = table.with_columns(pl.when(pl.int_range(pl.len()) == 100).then(None).otherwise("age").alias("age"))
    lacking.write_parquet(tmp_path / "lacking.parquet")
    out = tmp_path / "b.parquet"
    code, _, said = kohort_here("predict", folder, tmp_path / "lacking.parquet", "--out", out)
    assert code == 3, said
    assert not out.exists()
    assert not list(tmp_path.glob(".*"))
    call = ["predict", folder, tmp_path / "lacking.parquet", "--missing", "skip", "--out", out, "--json"]
    code, shown, _ = kohort_here(*call)
    assert code == 0
    assert json.loads(shown)["skipped"] == 1
    assert pl.read_parquet(out)["predicted_outcome"].is_null().sum() == 1


def test_text_files_and_small_tables_are_read_at_once(table_file: Path, tmp_path: Path) -> None:
    from kohort.tables.parts import is_large

    pl.read_csv(table_file).write_parquet(tmp_path / "small.parquet")
    assert not is_large(str(table_file), tmp_path / "a.parquet")
    assert not is_large(str(tmp_path / "small.parquet"), tmp_path / "a.parquet")


@pytest.mark.parametrize("in_parts", [False, True])
def test_unknown_categories_are_counted_beside_missing_values(
    tmp_path: Path, table_file: Path, kohort_here: Call, monkeypatch: pytest.MonkeyPatch, in_parts: bool
) -> None:
    folder = trained(tmp_path, table_file, kohort_here, 'missing = "drop"')
    place = pl.int_range(pl.len())
    strange = read_table(table_file).with_columns(
        ward=pl.when(place % 40 == 0).then(pl.lit("new")).otherwise("ward"),
        age=pl.when(place % 30 == 10).then(None).otherwise("age"),
    )
    lacking = strange["age"].null_count()
    expected = strange.filter(pl.col("age").is_not_null() & (pl.col("ward") == "new")).height
    assert (lacking, expected) == (4, 2)  # one of the three new ones has no age
    strange.write_parquet(tmp_path / "strange.parquet")
    if in_parts:
        monkeypatch.setattr("kohort.tables.parts.LARGE", 0)
        monkeypatch.setattr("kohort.tables.parts.PART_BYTES", 1_000)
    words = ["predict", folder, tmp_path / "strange.parquet", "--missing", "skip", "--out", tmp_path / "out.parquet"]
    code, shown, said = kohort_here(*words, "--json")
    assert code == 0, said
    assert (json.loads(shown)["skipped"], json.loads(shown)["unseen"]) == (lacking, {"ward": expected})
    code, _, said = kohort_here(*words, "--force")
    assert code == 0
    assert "ward (2)" in said
    if not in_parts:
        words = ["evaluate", folder, tmp_path / "strange.parquet", "--missing", "skip"]
        code, shown, said = kohort_here(*words, "--json")
        assert code == 0, said
        assert (json.loads(shown)["skipped"], json.loads(shown)["unseen"]) == (lacking, {"ward": expected})
        assert "ward (2)" in kohort_here(*words)[2]
