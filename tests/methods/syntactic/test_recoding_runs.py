"""Runs whose items are recoded row by row up a declared hierarchy: facts, prediction, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.evaluate.tables import predict_table
from kohort.methods.syntactic.mapped_encoder import MappedEncoder
from kohort.models.files import load_model
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run

CODES = ["250.01", "250.02", "250.11", "250.40", "401", "401.9", "410", "428"]
AGES = ["young", "middle", "old"]
WARDS = (("north", "up", "*"), ("east", "up", "*"), ("south", "down", "*"), ("west", "down", "*"))


def tables(seed: int = 4) -> dict[str, pl.DataFrame]:
    random = np.random.default_rng(seed)
    made = {}
    for name, rows in (("a", 160), ("b", 120)):
        age, dose = random.integers(0, 3, rows), random.normal(0, 1, rows).round(2)
        sets = [sorted(random.choice(CODES, random.integers(0, 4), replace=False).tolist()) for _ in range(rows)]
        sick = np.array([any(code.startswith("250") for code in held) for held in sets])
        made[name] = pl.DataFrame(
            {
                "age": [AGES[at] for at in age],
                "ward": random.choice([line[0] for line in WARDS], rows),
                "dose": dose,
                "codes": pl.Series(sets, dtype=pl.List(pl.String)),
                "outcome": np.where(age + 2 * sick + dose + random.normal(0, 0.5, rows) > 2, "ill", "well"),
            }
        )
    return made


def plan(anonymise: dict[str, Any] | None = None, *, data: dict[str, Any] | None = None, **method: Any) -> Plan:
    return load_plan(
        {
            "data": {
                "table": "memory",
                "target": "outcome",
                "quasi": ["age", "ward"],
                "items": ["codes"],
                "categories": {"age": AGES},
                "ordered": ["age"],
                "hierarchies": {"codes": "icd9", "ward": WARDS},
                "ancestors": ["codes"],
                "features": "rest",
                "encoding": "onehot",
                "test": 0.3,
                **(data or {}),
            },
            "sites": {"split": "files"},
            "model": {"kind": "logistic"},
            "train": {"rounds": 12, "batch": 16, "lr": 0.4, "optimizer": "sgd"},
            "method": {"name": "syntactic", "anonymise": {"k": 4, **(anonymise or {})}, **method},
            "policy": {"min_rows": 1, "min_k": 2},
        }
    )


def test_a_run_says_what_each_column_lost() -> None:
    found = run(plan(), seed=1, tables=tables())
    facts = found.facts
    assert set(facts["ncp"]) == {"age", "ward", "codes"}
    assert all(0 <= value <= 1 for value in facts["ncp"].values())
    assert facts["ncp"]["codes"] > 0
    assert 0 < facts["suppressed_items"] < facts["items"] / 2
    assert facts["dearer_class"] == 0
    assert any("information loss by column" in note for note in found.notes)


def test_labels_published_are_those_of_the_hierarchies_and_name_no_item_of_a_site() -> None:
    encoder = run(plan(), seed=1, tables=tables()).model.encoder
    assert isinstance(encoder, MappedEncoder)
    joint = encoder.classes_known
    labels = {label for label in joint.groups.labels if label.startswith("<")}
    assert "<250.x>" in labels
    assert labels <= {"<250.x>", "<401.x>", "<400-409>", "<circulatory system (390-459)>", "<*>"}
    known = dict(zip(joint.groups.labels, joint.groups.members, strict=True))
    assert known["<250.x>"] == ("250.01", "250.02", "250.11", "250.40")
    runs = {tuple(AGES[a:b]) for a in range(3) for b in range(a + 1, 4)}
    for text in set(joint.cells[0]):
        shown = [age for age in AGES if age in str(text)]
        assert tuple(shown) in runs, "ages are joined with their neighbours"


def test_predict_says_which_class_and_at_what_cost(tmp_path: Path) -> None:
    run(plan(), seed=1, tables=tables(), out=tmp_path / "run")
    model = load_model(tmp_path / "run")
    new = tables(9)["a"].drop("outcome").head(4)
    unseen = new.with_columns(codes=pl.Series([["250.99"], [], ["V45"], ["250.01"]], dtype=pl.List(pl.String)))
    found, skipped, _ = predict_table(model, unseen)
    assert skipped == 0
    assert found.columns[-4:] == ["class_site", "class", "class_legitimate", "class_cost"]
    assert set(found["class_site"]) <= {"a", "b"}
    assert found["class_legitimate"][0], "250.99 stands below a published label"
    assert (found["class_cost"] >= 0).all()
    encoder = model.encoder
    assert isinstance(encoder, MappedEncoder)
    own = {mapping.site: mapping for mapping in encoder.mappings}
    for site, number in found.select("class_site", "class").rows():
        assert 0 <= number < own[site].count
    strange = unseen.with_columns(age=pl.Series(["young"] * 4), ward=pl.Series(["nowhere"] * 4))
    assert not predict_table(model, strange)[0]["class_legitimate"].any()


def test_the_gain_of_the_columns_is_measured_against_two_references() -> None:
    found = run(plan(gain=True), seed=1, tables=tables())
    facts = found.facts
    assert facts["gain_measure"] == "auc"
    assert facts["gain_deleted"] < facts["gain_plain"]
    share = (found.metrics["auc"] - facts["gain_deleted"]) / (facts["gain_plain"] - facts["gain_deleted"])
    assert facts["gain_kept"] == pytest.approx(share)
    assert any("without the anonymised columns" in note for note in found.notes)
    assert "gain_kept" not in run(plan(), seed=1, tables=tables()).facts


@pytest.mark.parametrize("m", [3, 4])
def test_larger_m_needs_local_recoding(m: int) -> None:
    assert run(plan({"m": m}), seed=1, tables=tables()).facts["m"] == m
    if m == 4:
        with pytest.raises(ConfigError, match="m is 4"):
            run(plan({"m": 4, "rare": "suppress"}), seed=1, tables=tables())


def test_plans_that_lack_what_they_need_are_refused() -> None:
    without = {"hierarchies": {}, "ancestors": []}
    with pytest.raises(ConfigError, match="without a hierarchy"):
        run(plan({"rare": "recode"}, data=without), seed=1, tables=tables())
    with pytest.raises(ConfigError, match="ordered and has no categories"):
        run(plan(data={"categories": {}}), seed=1, tables=tables())


def test_without_a_declared_hierarchy_items_become_groups() -> None:
    encoder = run(plan(data={"hierarchies": {}, "ancestors": []}), seed=1, tables=tables()).model.encoder
    assert isinstance(encoder, MappedEncoder)
    assert not any(label.startswith("<") for label in encoder.classes_known.groups.labels)
