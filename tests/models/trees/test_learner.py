"""What a forest learns from totals, and that nothing but totals matters."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.methods.trees.config import Trees
from kohort.models.rows import Rows, encode_rows
from kohort.models.trees import learner as learner_module
from kohort.models.trees.bins import Bins, count_cells
from kohort.models.trees.columns import tree_columns
from kohort.models.trees.learner import TreeLearner
from kohort.models.trees.model import TreeModel
from kohort.models.trees.options import TreeOptions
from kohort.tables.encoder import Encoder, learn_domain
from kohort.tables.schema import Schema

SEED = b"sixteen bytes ok"
OPTIONS = TreeOptions(steps=4, depth=3, trees=4, bins=16, min_leaf=5)


@cache
def _table(rows: int = 900) -> pl.DataFrame:
    generator = np.random.default_rng(5)
    age, dose = generator.uniform(0, 100, rows), generator.exponential(3, rows)
    ward = generator.choice(list("abcdef"), rows)
    high = np.isin(ward, ["b", "e"])
    late = generator.random(rows) < 0.2
    chance = 0.1 + 0.5 * (age > 40) * high + 0.3 * late
    return pl.DataFrame(
        {
            "age": pl.Series(age),
            "dose": pl.Series(np.where(late, np.nan, dose)).fill_nan(None),
            "ward": ward,
            "same": np.full(rows, 7.0),
            "ill": np.where(generator.random(rows) < chance, "yes", "no"),
            "grade": np.where(age > 60, "three", np.where(high, "two", "one")),
            "cost": 20 + 3 * (age > 40) + 5 * high + generator.normal(0, 0.3, rows),
        }
    )


def _encoded(target: str, *, weights: dict[str, float] | None = None, encoding: Any = "label") -> tuple[Encoder, Rows]:
    frame = _table().select("age", "dose", "ward", "same", target)
    schema = Schema.of(target=target, features=("age", "dose", "ward", "same"))
    encoder = Encoder(schema, learn_domain(frame, schema, missing="category"), encoding, class_weights=weights)
    return encoder, encode_rows(encoder, frame)


def _learned(
    encoder: Encoder, tables: list[Rows], options: TreeOptions = OPTIONS, *, until: int = 10**6
) -> TreeLearner:
    learner = TreeLearner(encoder, options, SEED)
    parts = [learner.rows_of(rows) for rows in tables]
    while not learner.done and learner.totals < until:
        given = [learner.contribution(rows, part) for rows, part in zip(tables, parts, strict=True)]
        assert {len(numbers) for numbers in given} == {learner.length}
        learner = learner.after(np.sum(given, axis=0))
    return learner


def _bytes(learner: TreeLearner) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in learner.arrays().items()}


def _model(learner: TreeLearner) -> TreeModel:
    assert learner.forest is not None
    return TreeModel(learner.encoder, learner.forest)


@pytest.mark.parametrize("target", ["ill", "grade", "cost"])
def test_rows_give_the_same_forest_however_they_are_distributed(target: str) -> None:
    encoder, rows = _encoded(target)
    order = np.argsort(rows.y, kind="stable")  # sites of one class
    shuffled = Rows(np.ascontiguousarray(rows.x[order]), np.ascontiguousarray(rows.y[order]))
    parts = [shuffled.part(0, 1), shuffled.part(1, 400), shuffled.part(400, 400), shuffled.part(400, rows.count)]
    assert _bytes(_learned(encoder, parts)) == _bytes(_learned(encoder, [rows]))


@pytest.mark.parametrize(("target", "least"), [("ill", 0.72), ("grade", 0.97), ("cost", 0.9)])
def test_a_forest_predicts_what_depends_on_columns_together(target: str, least: float) -> None:
    encoder, rows = _encoded(target)
    model = _model(_learned(encoder, [rows]))
    found, frame = model.codes(rows.x), _table()
    if target == "cost":
        right = 1 - np.var(found - frame[target].to_numpy()) / np.var(frame[target].to_numpy())
    else:
        right = float(np.mean(found == rows.y))
        assert model.probabilities(rows.x).sum(axis=1) == pytest.approx(1)
    assert right >= least


def test_missing_numbers_go_where_they_fit_better() -> None:
    encoder, rows = _encoded("ill")
    model, frame = _model(_learned(encoder, [rows])), _table()
    missing = frame["dose"].is_null().to_numpy()
    chances = model.probabilities(rows.x)[:, 1]
    assert chances[missing].mean() > chances[~missing].mean() + 0.15


def test_indicators_and_codes_of_a_category_give_the_same_forest() -> None:
    label, coded = _encoded("ill")
    onehot, indicated = _encoded("ill", encoding="onehot")
    options = replace(OPTIONS, holdout=0.0)  # held-out rows are chosen by the encoded row
    mine, other = _learned(label, [coded], options), _learned(onehot, [indicated], options)
    assert mine.forest is not None
    assert other.forest is not None
    assert mine.forest.trees.value.tobytes() == other.forest.trees.value.tobytes()


def test_class_weights_move_predictions_towards_the_class() -> None:
    shares = []
    for weight in (1.0, 5.0):
        encoder, rows = _encoded("ill", weights={"yes": weight})
        shares.append(float(_model(_learned(encoder, [rows])).codes(rows.x).mean()))
    assert shares[1] > shares[0] + 0.2


def test_a_learner_goes_on_from_its_arrays_at_any_level() -> None:
    encoder, rows = _encoded("grade")
    whole = _bytes(_learned(encoder, [rows]))
    for until in (0, 1, 3, 5):
        stored = _learned(encoder, [rows], until=until).arrays()
        learner = TreeLearner(encoder, OPTIONS, SEED).restored(stored)
        part = learner.rows_of(rows)
        while not learner.done:
            learner = learner.after(learner.contribution(rows, part))
        assert _bytes(learner) == whole


def test_rows_that_are_ahead_are_brought_back() -> None:
    encoder, rows = _encoded("ill")
    start = TreeLearner(encoder, OPTIONS, SEED)
    part, early = start.rows_of(rows), _learned(encoder, [rows], until=2)
    late = _learned(encoder, [rows], until=9)
    expected = early.contribution(rows, start.rows_of(rows))
    late.contribution(rows, part)
    assert early.contribution(rows, part).tobytes() == expected.tobytes()


def test_a_total_changes_no_earlier_learner() -> None:
    encoder, rows = _encoded("ill")
    learner = _learned(encoder, [rows], until=2)
    before, part = _bytes(learner), learner.rows_of(rows)
    learner.after(learner.contribution(rows, part))
    assert _bytes(learner) == before


def test_steps_that_raise_the_loss_on_held_out_rows_are_dropped() -> None:
    generator = np.random.default_rng(0)
    encoder, rows = _encoded("ill")
    noise = Rows(rows.x, generator.permutation(rows.y))
    options = replace(OPTIONS, steps=10, depth=6, rate=2.0, l2=0.1, min_leaf=1, holdout=0.3, patience=2)
    learner = _learned(encoder, [noise], options)
    best = int(np.argmin(learner.history))
    assert best == learner.best
    assert len(learner.history) == best + 3
    assert len(_model(learner).forest.trees) == best * options.trees
    assert learner.totals < 1 + 10 * 6


def test_a_hub_does_not_choose_the_held_out_rows_by_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern of runs in which a cell of one person is empty would say which row that person has."""
    encoder, rows = _encoded("cost")

    def held(seed: bytes) -> list[bool]:
        found: list[bool] = TreeLearner(encoder, OPTIONS, seed).rows_of(rows).held_out.tolist()
        return found

    assert held(SEED) == held(bytes(16)) == held(b"a hub's choice..")
    monkeypatch.setattr(learner_module, "_HELD_OUT", np.uint64(5))
    other = held(SEED)
    monkeypatch.undo()
    assert other != held(SEED)  # where the key differs, so do the rows


def test_held_out_rows_of_two_plans_differ_by_no_single_row() -> None:
    """With one row more held out, the difference of two totals would be that row: all its bins, and its target."""
    encoder, rows = _encoded("cost")

    def held(share: float) -> Any:
        return TreeLearner(encoder, replace(OPTIONS, holdout=share), SEED).rows_of(rows).held_out

    close = next(share for share in 0.1 + np.arange(1, 100) / 1e4 if (held(share) != held(0.1)).sum() == 1)
    with pytest.raises(ConfigError, match="holdout"):
        Trees(holdout=float(close))
    shares = [Trees(holdout=part / 20).holdout for part in range(18)]
    assert min((held(high) != held(low)).sum() for low, high in pairwise(shares)) > 20


def _of_persons() -> tuple[Encoder, Rows]:
    """The same rows as before, nine of them about each of 100 persons."""
    encoder, rows = _encoded("ill")
    return encoder, replace(rows, person=pl.Series([f"p{number % 100}" for number in range(rows.count)]))


def test_a_person_is_held_out_with_all_rows_or_none() -> None:
    encoder, rows = _of_persons()
    held = TreeLearner(encoder, replace(OPTIONS, holdout=0.3), SEED).rows_of(rows).held_out
    of_person = held.reshape(9, 100)
    assert (of_person == of_person[0]).all()
    assert 0.15 < held.mean() < 0.45
    # Without an identifier, a row goes by what it holds.
    some = replace(rows, person=rows.person.set(pl.Series(np.arange(900) < 50), None))  # type: ignore[union-attr]
    plain = TreeLearner(encoder, replace(OPTIONS, holdout=0.3), SEED).rows_of(replace(rows, person=None)).held_out
    mixed = TreeLearner(encoder, replace(OPTIONS, holdout=0.3), SEED).rows_of(some).held_out
    assert (mixed[:50] == plain[:50]).all()
    assert (mixed[50:] == held[50:]).all()


def test_whoever_holds_the_rows_of_a_person_the_forest_is_the_same() -> None:
    encoder, rows = _of_persons()
    pooled = _bytes(_learned(encoder, [rows]))
    order = np.random.default_rng(3).permutation(rows.count)
    for places in (np.split(order, [200, 650]), [np.arange(0, 900, 2), np.arange(1, 900, 2)]):
        assert _bytes(_learned(encoder, [rows.take(part) for part in places])) == pooled
    assert _bytes(_learned(encoder, [replace(rows, person=None)])) != pooled


def test_held_out_rows_change_no_split() -> None:
    encoder, rows = _encoded("cost")
    learner = TreeLearner(encoder, OPTIONS, SEED)
    held = learner.rows_of(rows).held_out
    assert 0.06 < held.mean() < 0.15
    first = _learned(encoder, [rows], until=2)
    part = first.rows_of(rows)
    before = first.contribution(rows, part)
    part = first.rows_of(rows)
    part.y = np.where(part.held_out, 0.0, part.y)
    assert first.contribution(rows, part).tobytes() == before.tobytes()
    part = first.rows_of(rows)
    part.y = np.where(part.held_out, part.y, 0.0)
    assert first.contribution(rows, part).tobytes() != before.tobytes()


def test_trees_of_a_step_see_half_of_the_columns_each() -> None:
    encoder, rows = _encoded("ill")
    growth = _learned(encoder, [rows], until=1).growth
    assert growth is not None
    assert growth.columns.shape == (4, 2)
    assert len({tuple(chosen) for chosen in growth.columns.tolist()}) > 1


def test_many_categories_share_codes_beyond_what_one_byte_tells() -> None:
    generator = np.random.default_rng(3)
    code = generator.integers(0, 600, 6000)
    frame = pl.DataFrame({"code": [f"c{number}" for number in code], "y": np.where(code % 2, "a", "b")})
    schema = Schema.of(target="y", features=("code",))
    encoder = Encoder(schema, learn_domain(frame, schema), "label")
    rows = encode_rows(encoder, frame)
    total = count_cells(tree_columns(encoder), rows.x, np.zeros((1, rows.count), dtype=np.int64))
    bins = Bins.learned(tree_columns(encoder), total, outputs=1, least=5)
    assert bins.sizes.tolist() == [255]
    assert len(np.unique(bins.code_of[0])) == 255


def test_bins_do_not_tell_of_a_category_that_few_rows_have() -> None:
    """Neither that somebody has it, nor which target: the hub is told the bins, and they are in the model."""
    frame = pl.DataFrame({"kind": ["a"] * 200 + ["b"] * 200, "y": ["n", "p"] * 150 + ["n"] * 100})
    schema = Schema.of(target="y", features=("kind",), categories={"kind": ("a", "b", "rare"), "y": ("n", "p")})
    encoder = Encoder(schema, learn_domain(frame, schema), "label")
    columns, told = tree_columns(encoder), set()
    for rare in (0, 1, 19):
        for target in (0, 1 << 20):
            rows = encode_rows(encoder, pl.concat([frame, pl.DataFrame({"kind": ["rare"] * rare, "y": ["n"] * rare})]))
            targets = np.where(
                rows.x[:, 0] > 0.9, target, (np.arange(rows.count) % 2 << 20) * (np.arange(rows.count) < 300)
            )
            total = count_cells(columns, rows.x, targets[None].astype(np.int64))
            total[1] = 150 << 20  # means of all rows are not what this is about
            total[0] = 400
            bins = Bins.learned(columns, total, outputs=1, least=20)
            told.add(b"".join(array.tobytes() for array in bins.arrays().values()))
    assert len(told) == 1


def test_rare_categories_share_one_code_and_heavy_cells_stay_alone() -> None:
    frame = pl.DataFrame(
        {
            "kind": ["a"] * 500 + ["b"] * 490 + ["c"] * 6 + ["d"] * 4,
            "gain": [0.0] * 900 + list(range(1, 101)),
            "y": ["n", "p"] * 500,
        }
    )
    schema = Schema.of(target="y", features=("kind", "gain"))
    encoder = Encoder(schema, learn_domain(frame, schema), "label")
    rows, columns = encode_rows(encoder, frame), tree_columns(encoder)
    bins = Bins.learned(columns, count_cells(columns, rows.x, np.zeros((1, 1000), np.int64)), outputs=1, least=20)
    codes = bins.codes(columns, rows.x)
    assert codes[990:, 0].tolist() == [2] * 10
    assert set(codes[:900, 1]) == {0}
    counts = np.bincount(codes[:, 1])
    assert counts.min() >= 20
    assert len(counts) == 6


def test_bins_do_not_tell_the_value_of_one_row() -> None:
    """Most rows have cost 0, one has less than all others: where a bin ends must not depend on what it has."""
    generator = np.random.default_rng(1)
    schema = Schema.of(target="ill", features=("cost",))

    def codes(smallest: float) -> bytes:
        cost = np.concatenate([np.zeros(600), [smallest], generator.uniform(4000, 9000, 399)])
        ill = np.where(np.arange(1000) % 3 == 0, "yes", "no")
        declared = pl.DataFrame({"cost": [0.0, 9000.0], "ill": ["yes", "no"]})
        encoder = Encoder(schema, learn_domain(declared, schema), "label")
        rows = encode_rows(encoder, pl.DataFrame({"cost": cost, "ill": ill}))
        learner = TreeLearner(encoder, OPTIONS, SEED)
        forest = learner.after(learner.contribution(rows, learner.rows_of(rows))).forest
        assert forest is not None
        assert forest.bins.sizes[0] > 2
        return forest.bins.code_of[0][:400].tobytes()

    assert codes(123.0) == codes(1870.0) == codes(2999.0)
