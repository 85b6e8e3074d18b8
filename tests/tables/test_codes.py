"""What stands above codes, in schemas, plans and encoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, DataError
from kohort.runs.config import load_plan
from kohort.runs.plan.mapping import with_hierarchies
from kohort.tables.codes import CodeTree, icd10
from kohort.tables.encoder import Encoder, learn_domain
from kohort.tables.schema import Schema

PLACES = (("Paris", "France", "Europe"), ("Lyon", "France", "Europe"), ("Rome", "Italy", "Europe"))


@pytest.mark.parametrize(
    ("code", "above"),
    [
        ("E11.65", ("E11.6x", "E11.x", "E10-E19", "endocrine, nutritional and metabolic diseases", "*")),
        ("e1165", ("E11.6x", "E11.x", "E10-E19", "endocrine, nutritional and metabolic diseases", "*")),
        ("I10", ("I10.x", "I10.x", "I10-I19", "circulatory system", "*")),
        ("D49.9", ("D49.9x", "D49.x", "D40-D49", "neoplasms", "*")),
        ("D50", ("D50.x", "D50.x", "D50-D59", "blood and blood-forming organs", "*")),
        ("C7A.010", ("C7A.0x", "C7A.x", "C70-C79", "neoplasms", "*")),
        ("250.01", ("no ICD-10 code: 250.01", "no ICD-10 code: 250.01", "no ICD-10 code", "no ICD-10 code", "*")),
    ],
)
def test_icd10_codes_by_their_structure(code: str, above: tuple[str, ...]) -> None:
    assert CodeTree("codes", "icd10").chain(code) == above


def test_icd10_makes_a_hierarchy_of_any_codes() -> None:
    tree = icd10("codes", ["E11.65", "E11.9", "I10", "nothing"])
    assert tree.leaves("E11.x") == ("E11.65", "E11.9")
    assert tree.leaves("*") == ("E11.65", "E11.9", "I10", "nothing")


def test_an_unseen_code_has_labels() -> None:
    tree = CodeTree("codes", "icd9")
    assert tree.nearest("250.99", {"250.x", "*"}) == "250.x"
    assert tree.nearest("250.99", {"249.x", "*"}) == "*"
    assert CodeTree("place", PLACES).chain("Bonn") == ("*",)
    assert CodeTree("place", PLACES).chain("Rome") == ("Italy", "Europe", "*")


def test_contradicting_chains_and_unknown_systems_are_refused() -> None:
    with pytest.raises(DataError, match="inconsistent"):
        CodeTree("place", (("Paris", "France", "Europe"), ("Lyon", "France", "Asia")))
    with pytest.raises(ConfigError, match="unknown hierarchy 'icd11'"):
        Schema.of(items=["codes"], hierarchies={"codes": "icd11"})
    with pytest.raises(ConfigError, match="nothing reads"):
        Schema.of(features=["place"], hierarchies={"place": PLACES})
    with pytest.raises(ConfigError, match="no labels above its items"):
        Schema.of(items=["codes"], ancestors=["codes"])
    with pytest.raises(ConfigError, match="cannot be ordered"):
        Schema.of(items=["codes"], ordered=["codes"])


def test_schemas_with_hierarchies_read_back() -> None:
    schema = Schema.of(
        quasi=["place", "age"], categories={"age": ["young", "old"]}, ordered=["age"], hierarchies={"place": PLACES}
    )
    again = Schema.from_mapping(schema.to_mapping())
    assert again == schema
    assert again.fingerprint() == schema.fingerprint() != Schema.of(quasi=["place", "age"]).fingerprint()


def test_a_plan_holds_the_content_of_a_hierarchy_file(tmp_path: Path) -> None:
    (tmp_path / "places.csv").write_text("Paris;France;Europe\nRome;Italy;Europe\n")
    raw = {"data": {"table": "x.csv", "quasi": ["place"], "hierarchies": {"place": "places.csv", "codes": "icd9"}}}
    read = with_hierarchies(raw, tmp_path)["data"]["hierarchies"]
    assert read == {"place": [["Paris", "France", "Europe"], ["Rome", "Italy", "Europe"]], "codes": "icd9"}
    plan = load_plan(with_hierarchies(raw, tmp_path) | {"method": {"name": "fedavg"}})
    assert plan.data.hierarchies["place"] == (("Paris", "France", "Europe"), ("Rome", "Italy", "Europe"))


def encoder(**options: object) -> tuple[Encoder, pl.DataFrame]:
    frame = pl.DataFrame({"codes": [["250.01", "401"], ["250.02"], ["414", "V45"], []], "y": ["a", "b", "a", "b"]})
    schema = Schema.of(items=["codes"], target="y", hierarchies={"codes": "icd9"}, ancestors=["codes"], **options)  # type: ignore[arg-type]
    schema = schema.resolve(frame.columns)
    return Encoder(schema, learn_domain(frame, schema), encoding="onehot", dtype="float64"), frame


def test_ancestors_are_features_once_for_each_set_of_codes() -> None:
    made, frame = encoder()
    assert made.feature_names == (
        "codes=250.01",
        "codes=250.02",
        "codes=401",
        "codes=414",
        "codes=V45",
        "codes=<250.x>",
        "codes=<circulatory system (390-459)>",
    )
    assert made.transform(frame).tolist() == [
        [1, 0, 1, 0, 0, 1, 1],
        [0, 1, 0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1, 0, 1],
        [0, 0, 0, 0, 0, 0, 0],
    ]


def test_a_label_is_the_mean_of_its_codes_and_surely_what_stands_above_them() -> None:
    made, _ = encoder()
    cells = pl.DataFrame({"codes": [["<250.x>"], ["<390-459>", "250.01"], ["<*>"]]}).with_columns(
        codes=pl.Series([["<250.x>"], ["<circulatory system (390-459)>", "250.01"], ["<*>"]])
    )
    found = made.transform(cells, generalised=True)
    assert found[0].tolist() == [0.5, 0.5, 0, 0, 0, 1, 0]
    assert found[1].tolist() == [1, 0, 0.5, 0.5, 0, 1, 1]
    assert found[2].tolist() == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.2, 0.4, 0.4])


@pytest.mark.parametrize("options", [{}, {"other": ["codes"]}])
def test_an_unseen_code_is_any_code_below_its_lowest_known_label(options: dict[str, object]) -> None:
    made, _ = encoder(**options)
    rows = pl.DataFrame({"codes": [["250.99"], ["250.01", "250.99"], ["E849.0"]]})
    found, unseen = made.inputs(rows)
    names = list(made.feature_names)
    shown = {name: found[:, names.index(name)].tolist() for name in ("codes=250.01", "codes=250.02", "codes=<250.x>")}
    assert shown["codes=<250.x>"] == pytest.approx([1, 1, 0.4])
    assert shown["codes=250.01"] == pytest.approx([0.5, 1, 0.2])
    assert unseen == {"codes": 3}
    assert np.isfinite(found).all()


def test_stored_encoders_keep_the_ancestors() -> None:
    made, frame = encoder()
    again = Encoder.from_mapping(made.to_mapping())
    assert again.feature_names == made.feature_names
    assert (again.transform(frame) == made.transform(frame)).all()
