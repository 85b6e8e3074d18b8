"""The study's golden figures and its pieces, on tables small enough for seconds."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.loss import theils_u
from kohort.errors import ConfigError
from kohort.runs.config import read_plan
from kohort.studies.anonymised import conclusions as conclude
from kohort.studies.anonymised import protocols
from kohort.studies.anonymised import study as anonymised
from kohort.studies.anonymised.charts import association_bars, lines_by_k
from kohort.studies.anonymised.classifiers import CLASSIFIERS, Job, run_jobs
from kohort.studies.anonymised.loss import association_tables, education_tables, measure_variant, row
from kohort.studies.anonymised.paper import CLASSIFIERS as PRINTED
from kohort.studies.anonymised.paper import EDUCATION, PARTITIONS
from kohort.studies.anonymised.protocols import Effort, Figure, Found, score_case
from kohort.studies.anonymised.release import release, told
from kohort.studies.anonymised.silo import silo_plan
from kohort.studies.anonymised.tables import VARIANTS, Case, case_named
from kohort.studies.registry import find_study
from kohort.tables.cells import SUPPRESSED, Label, canonical_text, parse_cell

DATA = os.environ.get("KOHORT_DATA")
needs_mammographic = pytest.mark.skipif(
    not (DATA and (Path(DATA) / "mammographic_mass.parquet").is_file()), reason="KOHORT_DATA has no mammographic_mass"
)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def adult() -> Case:
    return case_named("adult")


def tiny_case(rows: int = 240) -> Case:
    """Columns that Tables 5.1 and 5.2 know, rows made up."""
    random = np.random.default_rng(3)
    age, shape = random.integers(20, 70, rows), random.choice(["a", "b", "c", "d"], rows)
    ill = (age > 45) ^ (shape == "d") ^ (random.random(rows) < 0.1)
    frame = pl.DataFrame({"age": age, "shape": shape, "dose": random.random(rows), "ill": np.where(ill, "yes", "no")})
    variants = tuple(VARIANTS[key] for key in ("k3-exact", "k3", "l2", "t0.2"))
    return Case(name="mammographic", title="Tiny", frame=frame, quasi=("age", "shape"), target="ill", variants=variants)


def test_education_shares_are_those_of_table_2_2(adult: Case) -> None:
    shares, groups = education_tables(adult)
    assert len(shares["rows"]) == len(EDUCATION) == 16
    for line, (income, _) in zip(shares["rows"], EDUCATION.values(), strict=True):
        assert line["setting"].endswith(f"share of {income}")
        assert abs(line["delta"]) < 1e-4  # Saleh 2022, Table 2.2, truncated at four decimals
    assert {line["ours"] for line in groups["rows"][:-1]} == {"yes"}  # Saleh 2022, section 2.5, the six groups
    assert groups["rows"][-1]["ours"] == 6


@needs_mammographic
def test_mammographic_meets_tables_5_1_and_5_3() -> None:
    case = case_named("mammographic")
    assert case.frame.height == 830
    plain, exact = measure_variant(case, VARIANTS["k3"]), measure_variant(case, VARIANTS["k3-exact"])
    before, _ = association_tables(case, plain)
    assert before["source"] == "Table 5.1"
    assert all(abs(line["delta"]) < 1e-3 for line in before["rows"])  # Saleh 2022, Table 5.1
    assert plain.partitions == pytest.approx(199, rel=0.1)  # Saleh 2022, Table 5.3
    assert min(plain.k, exact.k) >= 3
    losses = [measure_variant(case, VARIANTS[key]).loss for key in ("k3", "l2", "t0.2")]
    assert losses == sorted(set(losses))
    assert exact.loss <= plain.loss


@needs_mammographic
def test_the_step_as_printed_breaks_k() -> None:
    case = case_named("mammographic")
    found = measure_variant(case, replace(VARIANTS["k3-exact"], keep_exact="thesis"))
    assert found.k < 3
    assert found.rows_below > 0


def test_adult_partitions_are_near_table_5_4(adult: Case) -> None:
    assert adult.frame.height == 48_842
    made = release(adult.frame, adult, VARIANTS["k3"])
    assert made.partitions == pytest.approx(9246, rel=0.15)  # Saleh 2022, Table 5.4


def test_the_thesis_tables_are_whole() -> None:
    for name, by_variant in PRINTED.items():
        assert set(by_variant) == {"none", "k3-exact", "k3", "l2", "t0.2"}
        for scores in by_variant.values():
            assert set(scores) == set(CLASSIFIERS)
            assert all(0 < accuracy < 1 and 0 < f1 < 1 for accuracy, f1 in scores.values())
        assert set(by_variant) - {"none"} <= set(PARTITIONS[name])


def test_a_row_has_a_difference_only_between_numbers() -> None:
    assert row("a", 0.5, 0.75)["delta"] == 0.25
    assert row("a", None, 0.75)["delta"] is None
    assert row("a", "yes", "no")["delta"] is None


def test_a_silent_cell_tells_nothing_and_all_others_what_theil_s_u_says() -> None:
    random = np.random.default_rng(0)
    target = random.integers(0, 3, 500)
    cells = (target + random.integers(0, 2, 500)) % 4
    frame = pl.DataFrame({"cell": cells, "target": target})
    assert told(cells, target) == pytest.approx(theils_u(frame, of="target", given="cell"))
    hidden = np.where(random.random(500) < 0.5, -1, cells)
    assert 0 < told(hidden, target, silent=-1) < told(cells, target)
    assert told(np.full(500, -1), target, silent=-1) == 0.0
    marked = np.where(target == 0, -1, 7)  # the mark goes with one target value: counted as a value it would tell all
    assert told(marked, target, silent=-1) < told(marked, target)


def test_a_release_keeps_rows_and_columns_and_its_labels_cover_the_values() -> None:
    case = tiny_case()
    made = release(case.frame, case, VARIANTS["k3"])
    assert made.frame.columns == case.frame.columns
    assert made.frame["dose"].equals(case.frame["dose"])
    for name in case.quasi:
        for value, text in zip(case.frame[name].to_list(), made.frame[name].to_list(), strict=True):
            cell = parse_cell(text)
            assert cell is SUPPRESSED or (
                isinstance(cell, Label) and canonical_text(value) in made.hierarchies[name].leaves(cell.text)
            )


def found_of(after: float, raw: float) -> Found:
    """Gradient boosting and KNN at k = 3 under both protocols."""
    found: Found = {}
    for protocol, accuracy in (("after", after), ("raw", raw)):
        found[protocol, "k3", "gradient boosting", "accuracy"] = Figure(mean=accuracy, sd=None)
        found[protocol, "k3", "KNN", "accuracy"] = Figure(mean=0.6, sd=None)
    return found


def test_a_gap_between_the_protocols_is_said_and_a_small_one_is_not() -> None:
    case = tiny_case()
    (note,) = conclude.protocol_notes([case], {case.name: found_of(0.79, 0.41)})
    assert "0.790" in note
    assert "0.410" in note
    assert conclude.protocol_notes([case], {case.name: found_of(0.79, 0.78)}) == []


def test_ranks_and_best_classifier() -> None:
    assert conclude._spearman([0.0, 0.1, 0.5, 0.9], [0.9, 0.8, 0.7, 0.1]) == pytest.approx(-1.0)
    assert conclude._spearman([0.0, 0.1], [0.5, 0.5]) is None
    assert conclude._best(found_of(0.79, 0.41), "after", "k3") == "gradient boosting"
    assert conclude._best(found_of(0.79, 0.41), "raw", "k3") == "KNN"


def separable(classifier: str, seed: int = 0) -> Job:
    random = np.random.default_rng(1)
    x = random.random((200, 2))
    y = (x[:, 0] > 0.5).astype(np.int64)
    return Job(key=("a", "b"), classifier=classifier, x=x[:150], y=y[:150], x_test=x[150:], y_test=y[150:], seed=seed)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_every_classifier_learns_a_line_and_repeats_itself(classifier: str) -> None:
    first, again = run_jobs([separable(classifier), separable(classifier)], processes=1)
    assert first.accuracy > 0.8
    assert first.f1 > 0.8
    assert first == again


def test_processes_do_not_change_the_figures() -> None:
    jobs = [separable(name, seed) for seed in (0, 1) for name in ("random forest", "SGD")]
    assert list(run_jobs(jobs, processes=2)) == list(run_jobs(jobs, processes=1))


def test_raw_test_rows_are_raw_and_both_protocols_hold_out_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    case = tiny_case()
    seen: dict[tuple[str, ...], Job] = {}

    def listen(jobs: list[Job], *, processes: int) -> Any:
        assert processes == 1
        seen.update({job.key: job for job in jobs})
        return run_jobs(jobs, processes=1)

    monkeypatch.setattr(protocols, "run_jobs", listen)
    effort = Effort(classifiers=("KNN",), repeats=1, processes=1)
    score_case(case, [VARIANTS["k3"]], effort, lambda _: None)
    plain, raw, after = seen["raw", "none"], seen["raw", "k3"], seen["after", "k3"]
    assert np.array_equal(raw.x_test, plain.x_test)
    assert np.array_equal(raw.y_test, plain.y_test)
    assert np.array_equal(after.y_test, plain.y_test)
    assert not np.array_equal(after.x_test, plain.x_test)
    place = case.encoder().feature_names.index("dose")
    assert np.array_equal(np.sort(raw.x[:, place]), np.sort(plain.x[:, place]))  # no quasi-identifier: untouched
    for job in (raw, after):
        quasi = np.delete(np.vstack([job.x, job.x_test]) if job is after else job.x, place, axis=1)
        assert np.unique(quasi, axis=0, return_counts=True)[1].min() >= 3


def test_fewer_rows_to_fit_are_fewer_rows() -> None:
    mask = np.ones(50, dtype=bool)
    assert protocols._capped(mask, 20, np.random.default_rng(0)).sum() == 20
    assert protocols._capped(mask, 0, np.random.default_rng(0)).sum() == 50


def test_charts_are_files_that_name_what_they_show(tmp_path: Path) -> None:
    bars = association_bars(tmp_path / "a.svg", title="by column", values={"age": 0.2, "ward": 0.1}, top=0.3)
    rows = [{"variant": name, "k": k, "loss": k / 20, "partitions": 90 // k} for name in ("x", "y") for k in (3, 9)]
    lines = lines_by_k(tmp_path / "b.svg", title="by k", rows=rows)
    for path, words in ((bars, ("age", "ward", "by column")), (lines, ("by k", "partitions", "information loss"))):
        text = path.read_text()
        assert text.startswith("<svg")
        assert all(word in text for word in words)


def test_the_example_is_the_study_s_plan() -> None:
    assert read_plan(EXAMPLES / "silo.toml").digest() == silo_plan("silo").digest()


def test_the_study_runs_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    depth = replace(anonymised.QUICK, ks=(3, 5), repeats={"mammographic": 2}, classifiers=("gradient boosting", "KNN"))
    monkeypatch.setattr(anonymised, "QUICK", depth)
    monkeypatch.setattr(anonymised, "case_named", lambda _: tiny_case())
    result = anonymised.run_study(tmp_path, True, said.append, processes=1, names=("mammographic",))
    assert find_study("anonymised").run is anonymised.run_study
    assert set(result) == {"name", "tables", "figures", "notes"}
    assert {name for table in result["tables"] for line in table["rows"] for name in line} == {
        "setting", "paper", "ours", "sd", "delta",
    }  # fmt: skip
    names = [table["name"] for table in result["tables"]]
    assert len(set(names)) == len(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(result["figures"])
    assert [f"figure-5-{place:02}.svg" for place in range(1, 6)] == result["figures"][:5]
    scored = next(table for table in result["tables"] if table["source"] == "Table 5.6")
    best = {line["setting"]: line["ours"] for line in scored["rows"]}
    assert best["gradient boosting: accuracy"] > 0.7
    assert said


@pytest.mark.parametrize("text", ["0", "two", "-1"])
def test_a_wrong_number_of_processes_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KOHORT_PROCESSES", text)
    with pytest.raises(ConfigError, match="KOHORT_PROCESSES"):
        anonymised.run_study(Path(), True, lambda _: None, names=())
