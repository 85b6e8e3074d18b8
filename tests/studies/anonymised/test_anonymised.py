"""The study's golden figures and its pieces, on tables small enough for seconds."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.loss import association
from kohort.anonymity.relational.algorithms.mondrian import thesis_mondrian
from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.hierarchy_builders import RHOS, frequent_targets, group_values
from kohort.anonymity.relational.problem import Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns
from kohort.evaluate.attacks.released import could_stand_for
from kohort.runs.config import read_plan
from kohort.studies.anonymised import conclusions as conclude
from kohort.studies.anonymised import membership as member
from kohort.studies.anonymised import protocols
from kohort.studies.anonymised import study as anonymised
from kohort.studies.anonymised.classifiers import Job, Scored, score
from kohort.studies.anonymised.loss import association_tables, education_tables, measure_variant
from kohort.studies.anonymised.membership import attack
from kohort.studies.anonymised.paper import CLASSIFIERS, EDUCATION, NAMES, PARTITIONS
from kohort.studies.anonymised.protocols import Scores, jobs_of
from kohort.studies.anonymised.release import entropy_coefficient, release
from kohort.studies.anonymised.silo import silo_plan
from kohort.studies.anonymised.tables import VARIANTS, AnonymisedCase, case_named
from kohort.studies.harness.parallel import in_parallel
from kohort.studies.registry import find_study

DATA = os.environ.get("KOHORT_DATA")
needs_mammographic = pytest.mark.skipif(
    not (DATA and (Path(DATA) / "mammographic_mass.parquet").is_file()), reason="KOHORT_DATA has no mammographic_mass"
)
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def adult() -> AnonymisedCase:
    return case_named("adult")


def tiny_case(rows: int = 240) -> AnonymisedCase:
    """Columns that Tables 5.1 and 5.2 know, rows made up."""
    random = np.random.default_rng(3)
    age, shape = random.integers(20, 70, rows), random.choice(["a", "b", "c", "d"], rows)
    ill = (age > 45) ^ (shape == "d") ^ (random.random(rows) < 0.1)
    frame = pl.DataFrame({"age": age, "shape": shape, "dose": random.random(rows), "ill": np.where(ill, "yes", "no")})
    variants = tuple(VARIANTS[key] for key in ("k3-exact", "k3", "l2", "t0.2"))
    return AnonymisedCase(
        name="mammographic", title="Tiny", frame=frame, quasi=("age", "shape"), target="ill", variants=variants
    )


def test_education_shares_are_those_of_table_2_2(adult: AnonymisedCase) -> None:
    shares, groups = education_tables(adult)
    assert len(shares.rows) == len(EDUCATION) == 16
    for found, (income, _) in zip(shares.rows, EDUCATION.values(), strict=True):
        assert found.setting.endswith(f"share of {income}")
        assert found.delta is not None
        assert abs(found.delta) < 1e-4  # Saleh 2022, Table 2.2, truncated at four decimals
    assert all(found.ours is True for found in groups.rows[:-1])  # Saleh 2022, section 2.5, the six groups
    assert groups.rows[-1].ours == 6


# Partitions: re-counted independently. Losses: ours, by product recoding; the thesis's stand in paper.PARTITIONS.
PARTITIONS_HELD = {
    "mammographic": {"k3": 187, "l2": 94, "t0.2": 23, "t0.3": 53, "t0.4": 77},
    "adult": {"k3": 9739, "l2": 4123, "t0.2": 1904, "t0.4": 7690},
    "housing": {"k3": 5331, "l2": 2770, "l3": 939, "t0.2": 119, "t0.3": 355, "t0.4": 982},
}
LOSSES_HELD = {  # suppression tells nothing, suppression is a value, NCP
    ("adult", "k3"): (0.0240, -0.0005, 0.1450), ("adult", "k3-exact"): (-0.0054, -0.0239, 0.1278),
    ("adult", "l2"): (-0.0554, -0.4126, 0.3802), ("adult", "t0.2"): (0.6598, 0.5580, 0.5882),
    ("adult", "t0.3"): (0.2828, -0.4342, 0.3050),
    ("housing", "l2"): (0.8665, 0.8513, 0.6724),
    ("housing", "k3"): (0.4587, 0.4412, 0.4950), ("housing", "t0.2"): (0.9957, 0.9955, 0.9305),
    ("mammographic", "k3"): (0.1459, 0.1024, 0.0850), ("mammographic", "k3-exact"): (0.1308, 0.0975, 0.0718),
}  # fmt: skip


def table_of(name: str) -> AnonymisedCase:
    file = {"mammographic": "mammographic_mass", "housing": "california_housing", "adult": "adult"}[name]
    if name != "adult" and not (DATA and (Path(DATA) / f"{file}.parquet").is_file()):
        pytest.skip(f"KOHORT_DATA has no {file}")
    return case_named(name)


@pytest.mark.parametrize("name", PARTITIONS_HELD)
def test_partitions_are_those_counted_independently(name: str) -> None:
    case = table_of(name)
    coded, private = code_table(case.frame, case.quasi, by_value=True), SensitiveColumns.of(case.frame, [case.target])
    counted = {}
    for key in PARTITIONS_HELD[name]:
        rule = Rule(k=3, l=VARIANTS[key].l, t=VARIANTS[key].t, t_kind="kl")
        counted[key] = thesis_mondrian(Problem(coded, private, rule)).count
    assert counted == PARTITIONS_HELD[name]


@pytest.mark.parametrize("name", PARTITIONS_HELD)
def test_losses_of_tables_5_3_to_5_5_are_held(name: str) -> None:
    case = table_of(name)
    for key, wanted in ((key, figures) for (table, key), figures in LOSSES_HELD.items() if table == name):
        found = measure_variant(case, VARIANTS[key])
        assert tuple(found.losses.values()) == pytest.approx(wanted, abs=1e-4)
        assert found.k >= 3
        assert found.partitions == PARTITIONS_HELD[name].get(key.removesuffix("-exact"), found.partitions)


def test_the_reproduced_losses_are_the_thesis_s() -> None:
    printed = PARTITIONS
    assert LOSSES_HELD["housing", "k3"][1] == pytest.approx(
        printed["housing"]["k3"][1], abs=0.002
    )  # Table 5.5: 44.02 %
    assert LOSSES_HELD["mammographic", "k3-exact"][0] == pytest.approx(
        printed["mammographic"]["k3-exact"][1], abs=0.003
    )


@needs_mammographic
def test_mammographic_meets_table_5_1() -> None:
    case = case_named("mammographic")
    assert case.frame.height == 830
    before, _ = association_tables(case, measure_variant(case, VARIANTS["k3"]))
    assert before.source == "Table 5.1"
    assert all(abs(found.delta or 0) < 1e-3 for found in before.rows)  # Saleh 2022, Table 5.1


@needs_mammographic
def test_the_step_as_printed_breaks_k() -> None:
    case = case_named("mammographic")
    found = measure_variant(case, replace(VARIANTS["k3-exact"], keep_exact="thesis"))
    assert found.k < 3
    assert found.rows_below > 0


def test_the_thesis_tables_are_whole() -> None:
    for name, by_variant in CLASSIFIERS.items():
        assert set(by_variant) == {"none", "k3-exact", "k3", "l2", "t0.2"}
        for scores in by_variant.values():
            assert tuple(scores) == NAMES
            assert all(0 < accuracy < 1 and 0 < f1 < 1 for accuracy, f1 in scores.values())
        assert set(by_variant) - {"none"} <= set(PARTITIONS[name])


def test_a_suppressed_cell_carries_no_information_and_all_others_that_of_theil_s_u() -> None:
    random = np.random.default_rng(0)
    target = random.integers(0, 3, 500)
    cells = (target + random.integers(0, 2, 500)) % 4
    frame = pl.DataFrame({"cell": cells, "target": target})
    expected = association(frame, columns=["cell"], target="target")["cell"]
    assert entropy_coefficient(cells, target) == pytest.approx(expected)
    hidden = np.where(random.random(500) < 0.5, -1, cells)
    assert 0 < entropy_coefficient(hidden, target, hidden=-1) < entropy_coefficient(cells, target)
    assert entropy_coefficient(np.full(500, -1), target, hidden=-1) == 0.0
    marked = np.where(
        target == 0, -1, 7
    )  # the mark goes with one target value: counted as a value it would disclose it
    assert entropy_coefficient(marked, target, hidden=-1) < entropy_coefficient(marked, target)


def test_a_release_keeps_rows_and_columns_and_its_cells_cover_the_values() -> None:
    case = tiny_case()
    made = release(case.frame, case, VARIANTS["k3"])
    assert made.frame.columns == case.frame.columns
    assert made.frame["dose"].equals(case.frame["dose"])
    stands = could_stand_for(made.frame, case.frame, case.quasi, made.hierarchies)
    assert stands.diagonal().all()
    assert not stands.all()


@pytest.mark.parametrize("key", ["k3-exact", "k3", "l2"])
def test_the_recoding_is_the_product_s(key: str) -> None:
    case, variant = tiny_case(), VARIANTS[key]
    shares = [one.share for name in case.quasi for one in frequent_targets(case.frame, name, case.target)]
    assert max(shares) == 1.0  # the study has no bucket of its own for these either
    product = anonymise(
        case.frame, quasi=case.quasi, sensitive=[case.target], k=3, l=variant.l, algorithm="thesis",
        keep_exact=variant.keep_exact == "yes",
    )  # fmt: skip
    assert release(case.frame, case, variant).frame.equals(product.frame)


@pytest.mark.parametrize("rho", RHOS)
def test_a_share_of_100_percent_is_in_the_last_bucket_of_every_rho(rho: float) -> None:
    frame = pl.DataFrame({"a": ["x"] * 5 + ["y"] * 500, "b": ["u"] * 504 + ["v"]})
    assert group_values(frequent_targets(frame, "a", "b"), rho) == (("x", "y"),)


def memorised(rows: int = 800) -> AnonymisedCase:
    """A label that nothing tells: whoever predicts it better for members has remembered them."""
    random = np.random.default_rng(5)
    frame = pl.DataFrame({"age": random.integers(0, 90, rows), "zip": random.integers(0, 90, rows),
                          "ill": random.choice(["yes", "no"], rows)})  # fmt: skip
    return AnonymisedCase(
        name="mammographic", title="Noise", frame=frame, quasi=("age", "zip"), target="ill", variants=()
    )


def test_the_membership_attack_succeeds_on_an_overfitted_model_and_guesses_on_a_stiff_one() -> None:
    plain = attack(memorised(), "none", 0, 200)
    assert plain["model, extra trees: area"] > 0.95
    assert plain["model, extra trees: found at 5 %"] > 0.8
    assert plain["table: area"] > 0.95
    assert abs(plain["model, logistic regression: area"] - 0.5) < 0.1
    hidden = attack(memorised(), "k3", 0, 200)
    assert hidden["model, extra trees: area"] < plain["model, extra trees: area"] - 0.2
    assert 0.5 <= hidden["table: area"] < plain["table: area"]


def test_unscaled_rows_are_the_codes_and_numbers_themselves() -> None:
    case = tiny_case()
    codes = case.unscaled(case.encoder().transform(case.frame))
    names = case.encoder().feature_names
    assert np.allclose(codes[:, names.index("age")], case.frame["age"].to_numpy())
    assert set(codes[:, names.index("shape")].round(9)) == {0.0, 1.0, 2.0, 3.0}
    jobs = list(jobs_of(case, [(VARIANTS["k3"], [])], repeats=1, unscaled=["KNN"]))
    assert [(job.protocol, job.variant) for job in jobs] == [("unscaled", "none"), ("unscaled", "k3")]
    assert jobs[0].x.max() > 60
    scores = Scores()
    scores.add(jobs[0], Scored(accuracy=0.7, f1=0.5, precision=0.5, recall=0.5))
    assert list(scores.found) == [("unscaled", "none", "KNN")]  # a scaled score is another one


def scores_of(after: float, raw: float) -> Scores:
    """Gradient boosting and KNN at k = 3 under both protocols."""
    scores = Scores()
    for protocol, accuracy in (("after", after), ("raw", raw)):
        for name, value in (("gradient boosting", accuracy), ("KNN", 0.6)):
            scored = Scored(accuracy=value, f1=0.5, precision=0.5, recall=0.5)
            scores.add(replace(separable(name), protocol=protocol, variant="k3"), scored)
    return scores


def test_a_gap_between_the_protocols_is_noted_and_a_small_one_is_not() -> None:
    case = tiny_case()
    (note,) = conclude.protocol_notes([case], {case.name: scores_of(0.79, 0.41)})
    assert "0.790" in note
    assert "0.410" in note
    assert conclude.protocol_notes([case], {case.name: scores_of(0.79, 0.78)}) == []


def test_ranks_and_best_classifier() -> None:
    assert conclude._spearman([0.0, 0.1, 0.5, 0.9], [0.9, 0.8, 0.7, 0.1]) == pytest.approx(-1.0)
    assert conclude._spearman([0.0, 0.1], [0.5, 0.5]) is None
    assert scores_of(0.79, 0.41).best("after", "k3") == "gradient boosting"
    assert scores_of(0.79, 0.41).best("raw", "k3") == "KNN"


def test_rows_without_anonymisation_count_under_both_protocols() -> None:
    scores = Scores()
    scores.add(separable("KNN"), Scored(accuracy=0.7, f1=0.5, precision=0.5, recall=0.5))
    assert scores.accuracy("after", "none", "KNN") == scores.accuracy("raw", "none", "KNN") == 0.7


def separable(classifier: str, seed: int = 0) -> Job:
    random = np.random.default_rng(1)
    x = random.random((200, 2))
    y = (x[:, 0] > 0.5).astype(np.int64)
    return Job(
        protocol="raw", variant="none", classifier=classifier, x=x[:150], y=y[:150], x_test=x[150:], y_test=y[150:],
        seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("classifier", NAMES)
def test_every_classifier_learns_a_line_and_repeats_itself(classifier: str) -> None:
    first, again = score(separable(classifier)), score(separable(classifier))
    assert first.accuracy > 0.8
    assert first.f1 > 0.8
    assert first == again


def test_processes_do_not_change_the_figures() -> None:
    jobs = [(separable(name, seed),) for seed in (0, 1) for name in ("random forest", "SGD")]
    assert list(in_parallel(score, jobs, 2)) == list(in_parallel(score, jobs, 1))


def test_raw_test_rows_are_raw_and_both_protocols_hold_out_the_same_rows() -> None:
    case = tiny_case()
    jobs = {(job.protocol, job.variant): job for job in jobs_of(case, [(VARIANTS["k3"], ["KNN"])], repeats=1)}
    plain, raw, after = jobs["raw", "none"], jobs["raw", "k3"], jobs["after", "k3"]
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


def test_the_example_is_the_study_s_plan() -> None:
    assert read_plan(EXAMPLES / "silo.toml").digest() == silo_plan("silo").digest()


def test_the_study_runs_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    depth = replace(anonymised.QUICK, ks=(3, 5), repeats={"mammographic": 2}, classifiers=("gradient boosting", "KNN"),
                    unscaled=("KNN",), attacks=2, attack_rows=40)  # fmt: skip
    monkeypatch.setattr(anonymised, "case_named", lambda _: tiny_case())
    monkeypatch.setattr(member, "KEYS", ("none", "k3"))
    monkeypatch.setenv("KOHORT_PROCESSES", "1")
    result = anonymised.run_study(tmp_path, True, said.append, depth=depth, names=("mammographic",))
    assert find_study("anonymised").run is anonymised.run_study
    assert set(result) == {"name", "tables", "figures", "notes"}
    assert {name for table in result["tables"] for line in table["rows"] for name in line} == {
        "setting", "paper", "ours", "sd", "delta", "interval",
    }  # fmt: skip
    names = [table["name"] for table in result["tables"]]
    assert len(set(names)) == len(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(result["figures"])
    assert [f"figure-5-{place:02}.svg" for place in range(1, 6)] == result["figures"][:5]
    scored = next(table for table in result["tables"] if table["source"] == "Table 5.6")
    best = {line["setting"]: line["ours"] for line in scored["rows"]}
    assert best["gradient boosting: accuracy"] > 0.7
    assert said
