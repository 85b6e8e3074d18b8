"""The study of syntactic federated learning: its plans, its arithmetic, and the whole of it on a small table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.methods.syntactic import importance
from kohort.runs.config import Plan, load_plan, read_plan
from kohort.studies.harness.runs import Runs, summarise
from kohort.studies.registry import find_study
from kohort.studies.syntactic import plans as syntactic_plans
from kohort.studies.syntactic import study as syntactic
from kohort.studies.syntactic.figures import positive_share
from kohort.studies.syntactic.plans import (
    LEARNERS,
    WEIGHTS,
    SyntacticDepth,
    federated,
    noisy,
    perturbed,
    quasi_only,
)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def small_rows(rows: int = 1200) -> pl.DataFrame:
    """A table with the columns the study names, with something to learn in every part."""
    random = np.random.default_rng(3)
    age, gender = random.integers(2, 9, rows), random.choice(["Female", "Male"], rows)
    visits = random.poisson(0.8, rows)
    codes = [sorted(random.choice(["250", "401", "414", "428", "486"], 2, replace=False).tolist()) for _ in range(rows)]
    heart = np.array(["428" in held for held in codes])
    again = (0.3 * age + visits + heart + random.normal(0, 1, rows)) > 3.4
    return pl.DataFrame(
        {
            "encounter_id": np.arange(rows),
            "patient_nbr": np.arange(rows),
            "race": pl.Series(random.choice(["A", "B", ""], rows, p=[0.6, 0.3, 0.1])).replace("", None),
            "gender": gender,
            "age": [f"[{ten}0-{ten + 1}0)" for ten in age],
            "admission_type_id": random.integers(1, 4, rows),
            "discharge_disposition_id": random.integers(1, 4, rows),
            "admission_source_id": random.integers(1, 4, rows),
            "number_inpatient": visits,
            "number_emergency": visits // 2,
            "number_outpatient": visits // 3,
            "num_medications": 5 + 2 * visits,
            "number_diagnoses": 3 + visits,
            "change": random.choice(["Ch", "No"], rows),
            "readmitted": np.where(again, random.choice(["<30", ">30"], rows), "NO"),
            "diagnoses": pl.Series(codes, dtype=pl.List(pl.String)),
        }
    )


@pytest.fixture
def small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every plan of the study on a small table, over three sites."""
    path = tmp_path / "small.parquet"
    small_rows().write_parquet(path)

    def on_small_table(raw: Mapping[str, Any]) -> Plan:
        data = {**raw["data"], "table": str(path), "features": "rest"}
        data["drop"] = [name for name in data["drop"] if name in small_rows(1).columns]
        return load_plan({**raw, "data": data, "sites": {"count": 3}, "policy": {**raw["policy"], "void_dp": True}})

    monkeypatch.setattr(syntactic_plans, "load_plan", on_small_table)
    monkeypatch.setenv("KOHORT_PROCESSES", "1")
    return path


TINY = SyntacticDepth(
    quick=True,
    seeds=(0,),
    rounds=2,
    noisy_rounds=1,
    ks=(3, 10),
    other_ks=(10,),
    epsilons=(0.9,),
    other_epsilons=(0.9,),
    rates={"logistic": (0.2,)},
    merges=(("all", 0.5),),
)


def test_the_whole_study_on_a_small_table(small_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "TREES", 3)
    monkeypatch.setenv("KOHORT_DATA", str(tmp_path))
    said: list[str] = []
    assert find_study("syntactic").run is syntactic.run_study
    found = syntactic.run_study(tmp_path, True, said.append, depth=TINY)
    assert found["name"] == "syntactic"
    assert said
    for figure in found["figures"]:
        assert (tmp_path / figure).read_text().startswith("<svg")
    tables = {table["name"]: {row["setting"]: row for row in table["rows"]} for table in found["tables"]}
    costs, classes = tables["Cost of k = 10"], tables["Effect of the equivalence classes on rows"]
    ways = tables["Four ways to learn"]
    for learner in LEARNERS:
        ours = tables["Utility by k"][f"{learner}, k = 10: macro F1"]["ours"]
        plain = ways[f"{learner}, FL: macro F1"]["ours"]
        share = costs[f"{learner}: macro F1 at k = 10, share of FL's"]["ours"]
        assert share == pytest.approx(ours / plain)
        assert costs[f"{learner}: at least 97% of it"]["ours"] == ("yes" if share >= 0.97 else "no")
        budgets = tables["Utility by epsilon"].items()
        areas = [row["ours"] for name, row in budgets if name.startswith(learner) and name.endswith("AUC")]
        assert costs[f"{learner}: best AUC under a budget"]["ours"] == max(areas)
    assert classes["k = 10: training rows mapped to a class of higher cost"]["ours"] == 0
    assert classes["k = 3: classes of 10 sites"]["ours"] >= 3, "every site has a class"
    always = {
        name.partition(": ")[2]: row["ours"]
        for name, row in tables["Baselines to compare with"].items()
        if name.startswith("baseline (always the positive class)")
    }
    assert always["macro F1"] == pytest.approx(always["F1"] / 2)
    assert always["AUC"] == 0.5
    assert all(row["paper"] in (None, "yes") for table in tables.values() for row in table.values())
    assert any("The MIMIC-III layout is skipped" in note for note in found["notes"])
    assert any("proprietary" in note for note in found["notes"])
    assert any("does better than k = 10 by AUC here" in note for note in found["notes"])


def test_the_positive_share_is_that_of_the_table(small_table: Path) -> None:
    (share,) = Runs((0,), summarise=summarise).values(
        federated("logistic", {"name": "fedavg"}, rounds=1), positive_share
    )
    frame = pl.read_parquet(small_table)
    assert share == pytest.approx(float((frame["readmitted"] != "NO").mean() or 0), abs=0.06)


def test_budgets_leave_the_items_out_and_say_what_they_are() -> None:
    by_noise = noisy("svm", 0.3, rounds=7)
    assert by_noise.data.items == ()
    assert by_noise.train.class_weights == WEIGHTS
    assert by_noise.config.dp.epsilon == 0.3
    once = perturbed("objective", 0.3)
    assert (once.train.rounds, once.config.dp.delta, once.train.class_weights) == (1, 0, None)
    assert set(quasi_only()["drop"]).isdisjoint({"age", "gender", "race", "diagnoses"})


def test_the_study_weighs_classes_and_anonymises_as_the_example_does_but_for_groups_by_outcome() -> None:
    example = read_plan(EXAMPLES / "syntactic.toml")
    ours = syntactic_plans.syntactic("logistic", 10, rounds=example.train.rounds)
    assert ours.config.anonymise.outcome is None
    assert ours.config == replace(example.config, anonymise=replace(example.config.anonymise, outcome=None))
    assert ours.train == example.train
    assert ours.model == example.model
    assert ours.data.quasi == example.data.quasi
    assert ours.data.items == example.data.items
    assert ours.data.categories == example.data.categories


@pytest.mark.skipif("KOHORT_DATA" not in os.environ, reason="needs the table of diabetes_130us")
def test_class_weights_are_those_of_the_published_shares() -> None:
    from kohort.tables.datasets.catalogue import open_table

    readmitted = open_table("diabetes_130us").frame["readmitted"]
    share = float((readmitted == "NO").mean() or 0)
    assert WEIGHTS["NO"] == pytest.approx(1 / (2 * share), abs=0.005)
    assert WEIGHTS["other"] == pytest.approx(1 / (2 * (1 - share)), abs=0.005)
    assert set(syntactic_plans.FEATURES) | {
        "encounter_id", "patient_nbr", "readmitted", "age", "gender", "race", "diagnoses",
    } == set(open_table("diabetes_130us").frame.columns)  # fmt: skip


def test_full_is_the_papers_range() -> None:
    # Choudhury et al. 2020, section 4.2: k from 3 to 50, epsilon from 0.01 to 0.9, three learners.
    full = syntactic.FULL
    assert (min(full.ks), max(full.ks)) == (3, 50)
    assert (min(full.epsilons), max(full.epsilons)) == (0.01, 0.9)
    assert set(LEARNERS) == {"logistic", "svm", "perceptron"}
    assert {0, 1, 2}.isdisjoint(full.seeds), "settings were chosen on these splits"
    assert {0, 1, 2}.isdisjoint(syntactic.QUICK.seeds)
    assert tuple(replace(full, ks=(3,)).by_k("svm")) == full.other_ks
