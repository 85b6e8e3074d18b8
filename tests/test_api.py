"""The Python face: parameters, checks, comparisons, what an outcome can do, and errors in the words of Python."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import kohort
from kohort import Federation, Outcome, Policy
from kohort.errors import KohortError
from kohort.protocol.plan.approved import TrainSection
from kohort.runs.config import DataSection, SitesSection
from kohort.runs.python_words import in_python_words

ROWS = 400


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    random = np.random.default_rng(2)
    age = random.integers(20, 90, ROWS)
    return pd.DataFrame(
        {
            "patient_id": [f"ZQX{n * 7919:07d}" for n in range(ROWS)],
            "seen": [f"2021-{1 + n % 12:02d}-{1 + n % 28:02d}" for n in range(ROWS)],
            "age": age,
            "sex": random.choice(["f", "m"], ROWS),
            "ill": (age + random.normal(0, 10, ROWS) > 55).astype(int),
        },
        index=range(1000, 1000 + ROWS),
    )


@pytest.fixture(scope="module")
def federation(rows: pd.DataFrame) -> Federation:
    return Federation(rows, target="ill", sites=3, policy=Policy(min_rows=1))


@pytest.fixture(scope="module")
def outcome(federation: Federation) -> Outcome:
    return federation.run(rounds=4)


def test_every_key_of_a_plan_is_a_parameter_with_a_word_about_it() -> None:
    of_tables = {item.name for section in (DataSection, SitesSection) for item in fields(section)} - {"table", "count"}
    parameters = inspect.signature(Federation).parameters
    assert of_tables <= set(parameters)
    assert all(f"    {name}: " in str(Federation.__doc__) for name in of_tables)
    of_run = inspect.signature(Federation.run).parameters
    often = {item.name for item in fields(TrainSection)} - {"state", "select", "average", "reject"}
    assert often | {"dp", "secure", "progress"} <= set(of_run)
    named = [name for name in of_run if name not in ("self", "options")]
    assert all(f"    {name}: " in str(Federation.run.__doc__) for name in named)


def test_check_says_what_a_run_would_start_from(federation: Federation, rows: pd.DataFrame) -> None:
    found = federation.check()
    assert (found.task, found.why, found.ok) == ("classification", "two values", True)
    assert found.roles == {"seen": ("feature",), "age": ("feature",), "sex": ("feature",), "ill": ("target",)}
    assert sum(found.sites.values()) + found.test_rows == ROWS
    assert "patient_id" in repr(found)
    assert "data." not in repr(found)
    assert "ZQX" not in repr(found)
    refused = Federation(rows, target="ill", sites=3).check("central")
    assert set(refused.refused) == set(refused.sites)
    assert "raw rows" in repr(refused)


def test_an_outcome_is_shown_in_one_line_and_as_a_small_table(outcome: Outcome) -> None:
    assert repr(outcome).startswith("Outcome(additive, 3 sites, 4 rounds: accuracy 0.")
    assert len(repr(outcome)) < 200
    one = repr(replace(outcome, rounds=1, sites=outcome.sites[:1], warnings=("a",)))
    assert one.startswith("Outcome(additive, 1 site, 1 round: ")
    assert one.endswith(", 1 warning: see outcome.warnings)")
    html = outcome._repr_html_()
    assert "<table>" in html
    assert "majority" in html
    assert "ZQX" not in html


def test_history_has_the_loss_of_every_round_whose_model_the_hub_knows(outcome: Outcome) -> None:
    assert ["loss" in entry for entry in outcome.history] == [True, False, False, True]  # sites alone know the others
    assert outcome.history[-1]["loss"] < outcome.history[0]["loss"]


def test_predictions_keep_type_and_index(outcome: Outcome, rows: pd.DataFrame) -> None:
    found = outcome.predict(rows.iloc[5:25])
    assert found.index.tolist() == rows.index[5:25].tolist()
    assert found.dtype == np.int64
    assert outcome.predict_proba(rows.head(7)).shape == (7, 2)


def test_dates_mean_the_same_as_texts_as_dates_and_as_times(outcome: Outcome, rows: pd.DataFrame) -> None:
    assert outcome.model.encoder.domain.columns["seen"].kind == "number"
    texts = outcome.predict_proba(rows)
    assert np.array_equal(texts, outcome.predict_proba(rows.assign(seen=pd.to_datetime(rows["seen"]))))
    dates = pl.from_pandas(rows).with_columns(pl.col("seen").str.to_date())
    assert np.array_equal(texts, outcome.predict_proba(dates))


def test_dates_are_explained_as_dates_and_the_link_is_said_once(outcome: Outcome, tmp_path: Path) -> None:
    bins = outcome.model.curves()["seen"]["bins"]
    assert all(re.fullmatch(r"(up to |above )?2021-\d\d-\d\d( to 2021-\d\d-\d\d)?|all", name) for name in bins), bins
    card = (outcome.save(tmp_path / "model") / "README.md").read_text()
    assert "logit" in card
    assert "identity" not in card


def test_evaluate_report_save(outcome: Outcome, rows: pd.DataFrame, tmp_path: Path) -> None:
    gaps = rows.assign(ill=rows["ill"].where(rows.index > 1009))
    found = outcome.evaluate(gaps, by="sex")
    assert (found["rows"], found["skipped"]) == (ROWS - 10, 10)
    assert set(found["groups"]) == {"f", "m"}
    page = Path(outcome.report(tmp_path / "report.html"))
    assert "<html" in page.read_text()
    assert "ZQX" not in page.read_text()
    assert outcome.report().startswith("<!")
    saved = outcome.save(tmp_path / "model")
    assert kohort.load_model(saved).predict(rows).equals(outcome.predict(rows))
    with pytest.raises(KohortError, match="force=True"):
        outcome.save(tmp_path / "model")
    outcome.save(tmp_path / "model", force=True)


def test_compare_and_progress(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    found = federation.compare("additive", {"rounds": 3}, seeds=2)
    assert found.table()["variant"].to_list() == ["additive", "rounds=3"]
    assert all(len(some) == 2 for some in found.outcomes.values())
    assert "accuracy" in repr(found)
    federation.run(rounds=3, progress=True)
    assert "round 3 of 3, accuracy 0." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "method", "options", "said"),
    [
        ({}, "partial", {}, 'quasi=["age", "sex"]'),
        ({}, "central", {}, "policy=kohort.Policy(raw=True)"),
        ({}, "fedavg", {"aggregate": "krum"}, "secure=None"),
        ({}, "fedavg", {"lrr": 1}, "has no keyword 'lrr'. Did you mean 'lr'?"),
        ({}, "fedavg", {"hidden": [3]}, 'model={"hidden": ...}'),
        ({"identifiers": ["patient_id", "sex"]}, "auto", {}, "names a person: person="),
        ({"target": "il"}, "auto", {}, "il"),
        ({"sites": 2}, "auto", {}, "a secure sum needs three sites, and 2 take part"),
    ],
)
def test_errors_speak_python(
    rows: pd.DataFrame, change: dict[str, Any], method: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(KohortError) as caught:
        Federation(rows, **{"target": "ill", "sites": 3, "policy": {"min_rows": 1}, **change}).run(method, **options)
    text = str(caught.value)
    assert said in text
    assert not [word for word in ("--", "data.", "train.", "method.", "[method") if word in text], text


def test_commands_that_an_error_names_stay_as_they_are_typed() -> None:
    assert in_python_words("kohort harmonise PLAN.toml --out m.toml: set data.mapping") == (
        "kohort harmonise PLAN.toml --out m.toml: set data.mapping"
    )
    assert in_python_words("Lower train.lr (now 3)") == "Lower lr (now 3)"


def test_a_budget_is_one_number_and_a_sum_one_word(federation: Federation) -> None:
    assert federation.plan(dp=0.5).config.dp.epsilon == 0.5
    assert federation.plan("fedavg", secure="bfv", rounds=2).config.secure.sum == "bfv"
    named = federation.plan("fedavg", dp=1.0)
    assert (named.model.kind, named.data.encoding, named.config.secure.sum) == ("logistic", "onehot", "masks")


def test_classes_are_balanced_on_request(federation: Federation, rows: pd.DataFrame) -> None:
    rare = rows.assign(ill=(rows["age"] > 80).astype(int))
    small = Federation(rare, target="ill", sites=3, policy=Policy(min_rows=1))
    usual, balanced = small.run(rounds=4), small.run(rounds=4, class_weights="balanced")
    assert balanced.metrics["recall"] >= usual.metrics["recall"]
    assert balanced.plan.train.class_weights["1"] > 2 > balanced.plan.train.class_weights["0"]
    assert any("balanced" in note for note in balanced.notes)


def test_a_target_of_dates_is_predicted_as_dates(rows: pd.DataFrame) -> None:
    found = Federation(rows, target="seen", sites=3, policy={"min_rows": 1}).run(rounds=2)
    assert found.task["kind"] == "regression"
    assert found.predict(pl.from_pandas(rows)).dtype == pl.Date
