"""A forest as a model: files, importances, contributions."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.models.trees.test_learner import OPTIONS, _encoded, _learned, _model, _table

from kohort.errors import ConfigError, DataError, IntegrityError
from kohort.models.base import SavedModel
from kohort.models.files import load_model, save_model
from kohort.models.rows import encode_rows
from kohort.models.trees.model import TreeModel, load_trees
from kohort.tables.encoder import Encoder, learn_domain
from kohort.tables.frames import read_table
from kohort.tables.schema import Schema

GOLDEN = Path(__file__).parents[2] / "golden" / "model-trees"


def _of(target: str) -> TreeModel:
    encoder, rows = _encoded(target)
    return _model(_learned(encoder, [rows]))


@pytest.mark.parametrize("target", ["ill", "grade", "cost"])
def test_files_give_the_same_model(target: str, tmp_path: Path) -> None:
    model = _of(target)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert again.predict(_table()).to_list() == model.predict(_table()).to_list()
    assert again.describe() == model.describe()


@pytest.mark.parametrize("name", ["trees.split", "trees.output", "bins.rank", "bins.codes", "base", "trees.value"])
def test_arrays_that_point_outside_are_refused(name: str) -> None:
    saved = _of("ill").save()
    array = saved.arrays[name]
    wrong = array[..., :-1] if array.dtype in (np.uint8, np.float64) else np.full_like(array, 99)
    with pytest.raises((ValueError, IndexError)):
        load_trees(SavedModel(facts=saved.facts, arrays={**saved.arrays, name: wrong}))


def test_altered_files_are_refused(tmp_path: Path) -> None:
    save_model(_of("ill"), tmp_path)
    place = tmp_path / "model.safetensors"
    content = bytearray(place.read_bytes())
    content[-1] ^= 1
    place.write_bytes(bytes(content))
    with pytest.raises(IntegrityError):
        load_model(tmp_path)


@pytest.mark.parametrize("target", ["ill", "grade", "cost"])
def test_contributions_add_up_to_the_scores(target: str) -> None:
    model = _of(target)
    frame = _table().head(50)
    found = model.contributions(frame)
    scores = model.scores(model.encoder.transform(frame))
    assert found.columns == model.encoder.schema.inputs
    assert found.base + found.values.sum(axis=2) == pytest.approx(scores, abs=1e-12)
    assert not found.values[:, :, found.columns.index("same")].any()


def test_columns_that_decide_matter_most() -> None:
    shares = _of("grade").importances()
    assert sum(shares.values()) == pytest.approx(1)
    assert set(list(shares)[:2]) == {"age", "ward"}
    assert shares["same"] == 0.0


@pytest.mark.parametrize("target", ["ill", "grade", "cost"])
def test_one_walk_gives_what_two_give(target: str) -> None:
    model = _of(target)
    x = model.encoder.transform(_table())
    found, shares = model.judged(x)
    assert np.array_equal(found, model.codes(x))
    if target == "cost":
        assert shares is None
    else:
        assert np.array_equal(np.asarray(shares), model.probabilities(x))


def test_numbers_have_no_probabilities() -> None:
    with pytest.raises(ConfigError, match="no class probabilities"):
        _of("cost").predict_proba(_table())


def test_an_unseen_category_is_read_as_other_where_that_is_declared_and_refused_elsewhere() -> None:
    unseen = _table().head(3).with_columns(pl.lit("never").alias("ward"))
    strict = _of("ill")
    assert strict.unseen(unseen) == {"ward": 3}
    strict = replace(strict, encoder=replace(strict.encoder, unseen="error"))
    with pytest.raises(DataError, match="'ward' has 3 row"):
        strict.predict(unseen)
    frame = _table().select("ward", "ill")
    wards = [*"abcdef", "other"]
    schema = Schema.of(target="ill", features=("ward",), categories={"ward": wards}, other=("ward",))
    encoder = Encoder(schema, learn_domain(frame, schema))
    model = _model(_learned(encoder, [encode_rows(encoder, frame)]))
    chances = model.predict_proba(pl.DataFrame({"ward": ["never", *"abcdef"]}))[:, 1]
    assert min(chances[1:]) < chances[0] < max(chances[1:])


@pytest.mark.parametrize("encoding", ["label", "onehot"])
def test_an_unseen_category_is_a_rare_one_or_goes_with_the_larger_part(encoding: Any) -> None:
    frame = pl.DataFrame(
        {
            "ward": ["a"] * 60 + ["b"] * 30 + ["c"] * 30 + ["d"] * 4 + ["e"] * 4,
            "ill": ["no"] * 60 + ["yes"] * 30 + ["no"] * 30 + ["yes"] * 8,
        }
    )
    options = replace(OPTIONS, holdout=0.0, columns=1.0, min_leaf=3, l2=1.0)

    def chance_of(rows: pl.DataFrame, least: int, ward: str) -> float:
        schema = Schema.of(target="ill", features=("ward",))
        encoder = Encoder(schema, learn_domain(rows, schema), encoding)
        learned = _learned(encoder, [encode_rows(encoder, rows)], replace(options, min_leaf=least))
        model = load_trees(_model(learned).save())
        with pytest.warns(UserWarning, match="ward") if ward == "never" else nullcontext():
            return float(model.predict_proba(pl.DataFrame({"ward": [ward]}))[0, 1])

    # Four rows of "d" are too few for a code of their own at least = 5; with those of "e" they stand for what is rare.
    assert chance_of(frame, 5, "never") == chance_of(frame, 5, "d")
    # Alone they are too few for that, too.
    few = frame.filter(pl.col("ward") != "e")
    assert chance_of(few, 5, "never") == chance_of(few, 5, "a")
    # With no rare category, the middle code would be "b"; an unseen one follows the larger part of every split.
    common = frame.filter(~pl.col("ward").is_in(["d", "e"]))
    assert chance_of(common, 5, "never") == chance_of(common, 5, "a")
    assert chance_of(common, 5, "b") > 0.5 > chance_of(common, 5, "never")


def test_the_first_format_is_read_for_ever() -> None:
    """`expected.json` is what the file predicted when it was written, probabilities rounded to six digits."""
    model, rows = load_model(GOLDEN), read_table(GOLDEN / "rows.csv")
    expected = json.loads((GOLDEN / "expected.json").read_bytes())
    with pytest.warns(UserWarning, match="ward"):  # the last row has a ward that nobody had
        assert model.predict(rows).to_list() == expected["predicted"]
    with pytest.warns(UserWarning, match="ward"):
        assert np.abs(model.predict_proba(rows) - np.array(expected["probabilities"])).max() < 2e-6
