"""Pairs of columns by default: found from sums over all rows, without a cycle, and nothing small at the hub."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.methods.additive.test_pairs import fitted, plan, setting, tables, training_rows

from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.methods.additive import exact
from kohort.methods.additive.config import Additive
from kohort.methods.additive.exact import ExactLearner
from kohort.methods.additive.method import METHOD, start
from kohort.models.additive.bins import Bins
from kohort.models.additive.model import AdditiveModel
from kohort.models.rows import encode_rows
from kohort.privacy.guarantee import Pairs
from kohort.protocol.plan.phases import SecureSumSection
from kohort.protocol.wire import decode
from kohort.rounds.totals.learner import RowCache, learn_pooled
from kohort.runs.config import load_plan
from kohort.runs.run import run
from kohort.testing import listening

ROUNDS = 12


def surfaces(model: Any) -> list[str]:
    assert isinstance(model, AdditiveModel)
    return list(model.bins.names[len(model.bins.columns) :])


def test_a_plan_that_says_nothing_finds_columns_that_matter_together() -> None:
    found, alone = fitted(rounds=ROUNDS).model, fitted(rounds=ROUNDS, pairs=0).model
    assert "one x two" in surfaces(found)
    assert not surfaces(alone)
    rows = pl.concat(tables().values())
    right = [float((model.predict(rows) == rows["sick"]).mean()) for model in (alone, found)]
    assert right[1] > right[0] + 0.05


def test_of_three_classes_there_are_none_and_no_total_is_lost() -> None:
    found, alone = (fitted("kind", rounds=ROUNDS, **own).model for own in ({}, {"pairs": 0}))
    assert found.weights.tobytes() == alone.weights.tobytes()


@pytest.mark.parametrize("target", ["sick", "cost"])
def test_federated_is_pooled_bit_for_bit(target: str) -> None:
    made, model = plan(target, rounds=ROUNDS), fitted(target, rounds=ROUNDS).model
    given, encoder = setting(made, 1)
    whole = encode_rows(encoder, training_rows(made))
    cuts = np.linspace(0, whole.count, 4).astype(int)
    for rows in ([whole], [whole.part(int(a), int(b)) for a, b in pairwise(cuts)]):
        twin = learn_pooled(start, given, rows, ROUNDS).model
        assert isinstance(twin, AdditiveModel)
        assert surfaces(twin)
        assert twin.weights.tobytes() == model.weights.tobytes()
        assert (twin.bins.flat_pairs() == model.bins.flat_pairs()).all()


def test_it_is_restored_at_every_total() -> None:
    given, encoder = setting(plan(rounds=ROUNDS), 1)
    learner, rows, memory = start(given), encode_rows(encoder, training_rows(plan())), RowCache()
    for _ in range(ROUNDS):
        again = start(given).restored(learner.checkpoint())
        total = learner.contribution(rows, memory)
        assert (again.contribution(rows, RowCache()) == total).all()
        told = again.tells
        learner, moved = learner.after(total, 1), again.after(total, 1)
        if told:
            kept = start(given).restored(moved.checkpoint()).disclosed()
            assert all((kept[name] == array).all() for name, array in learner.disclosed().items())
        assert moved.model is not None
        assert learner.model is not None
        assert (moved.model.weights == learner.model.weights).all()
    assert surfaces(learner.model)


def test_no_total_is_lost_where_no_pair_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = fitted(rounds=ROUNDS, pairs=0).model
    monkeypatch.setattr("kohort.models.additive.choice.NOISES", 1e9)
    found = fitted(rounds=ROUNDS).model
    assert not surfaces(found)
    assert found.weights.tobytes() == alone.weights.tobytes()


def opened(least: int) -> tuple[AdditiveModel, dict[str, Any], dict[str, Any]]:
    """A model of a table in which few values are missing, and what sites told the hub of its columns and pairs."""
    filled = pl.when(pl.int_range(pl.len()) % 10 < 7).then(pl.col("three"))
    few = {name: frame.with_columns(two=pl.coalesce("two", filled)) for name, frame in tables().items()}
    with listening() as heard:
        model = run(plan(rounds=ROUNDS, min_bin=least), seed=5, tables=few).model
    told = [decode(data).arrays for _, task, _, data in heard.replies if task == "additive.disclose"]
    assert isinstance(model, AdditiveModel)
    return model, *(next(arrays for arrays in told if name in arrays) for name in ("bins", "pairs"))  # type: ignore[return-value]


@pytest.mark.parametrize("least", [20, 60])
def test_no_difference_of_nested_opened_cells_is_small(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the bytes that sites sent: groups of a column's bins less all sums of cells that lie in them.

    It holds of exact counts, too: that these are told as ranges comes on top.
    """
    monkeypatch.setattr(exact, "rounded_counts", lambda counts, least: counts)
    model, of_columns, of_pairs = opened(least)
    bins = Bins.of_flat(model.bins.columns, of_columns["bins"], of_pairs["pairs"])
    counts = np.concatenate([of_columns["counts"], of_pairs["counts"]])
    assert bins.pairs
    assert small_differences(bins, counts, least) == []
    withheld = [int((np.bincount(pair.cells.ravel()) > 1).sum()) for pair in bins.pairs]
    assert any(withheld) == (least == 20)
    hit = counts.copy()
    hit[bins.alone.total] -= 3  # as if a shown cell had left out three persons of its row
    assert small_differences(bins, hit, least)


def small_differences(bins: Bins, counts: Any, least: int) -> list[float]:
    """All differences of an opened set and opened sets inside it that hold few persons, but somebody."""
    found = [float(count) for count in counts if 0 < count < least]
    for place, pair in enumerate(bins.pairs, start=len(bins.columns)):
        held = counts[bins.starts[place] : bins.starts[place + 1]]
        alone = np.bincount(pair.cells.ravel())[pair.cells] == 1
        for column, groups, table in (
            (pair.left, pair.left_groups, pair.cells),
            (pair.right, pair.right_groups, pair.cells.T),
        ):
            shown = alone if table is pair.cells else alone.T
            own = counts[bins.starts[column] : bins.starts[column + 1]]
            for group, line in enumerate(table):
                inside = [float(held[cell]) for cell, out in zip(line, shown[group], strict=True) if out]
                sums = {0.0}
                for count in inside:
                    sums |= {other + count for other in sums}
                whole = float(own[groups == group].sum())
                found += [whole - part for part in sums if 0 < abs(whole - part) < least]
    return found


def test_the_pairs_form_no_cycle_and_sites_refuse_others() -> None:
    learner = at_choice()
    assert learner.looked_at
    assert len(learner.looked_at) < len({column for pair in learner.looked_at for column in pair})
    rows = encode_rows(learner.setting.encoder, training_rows(plan()))
    chosen = learner.after(learner.contribution(rows, RowCache()), 1)
    told = chosen.disclosed()
    heard = learner.informed(told)
    assert heard.descent is None  # a hub is told bins, not values
    assert heard.disclosed()["counts"].tolist() == told["counts"].tolist()
    others = replace(learner, looked_at=((0, 2), (2, 3)))
    with pytest.raises(IntegrityError, match="pairs of columns"):
        others.informed(told)
    with pytest.raises(IntegrityError, match="pairs of columns"):
        learner.informed({**told, "pairs": np.tile(told["pairs"], 2), "counts": np.tile(told["counts"], 2)})
    with pytest.raises(IntegrityError, match="pairs of columns"):
        learner.informed({**told, "counts": told["counts"][:-1]})


def at_choice(**own: Any) -> ExactLearner:
    """The learner before the cells of pairs are counted."""
    given, encoder = setting(plan(rounds=ROUNDS, **own), 1)
    learner, rows, memory = start(given), encode_rows(encoder, training_rows(plan())), RowCache()
    for _ in range(7):
        assert learner.sealed
        learner = learner.after(learner.contribution(rows, memory), 1)
    assert isinstance(learner, ExactLearner)
    assert learner.sealed
    return learner


def test_a_monotone_column_is_in_no_pair() -> None:
    looked_at = at_choice(monotone={"three": "down"}).looked_at
    assert looked_at
    assert all(2 not in pair for pair in looked_at)


def test_where_the_default_has_no_pairs() -> None:
    clear, dp = SecureSumSection(sum="none"), {"epsilon": 1.0, "delta": 1e-5}
    assert Additive().surfaces == "acyclic"
    assert (Additive().pair_round, Additive(pairs=3).pair_round, Additive(pairs=0).pair_round) == (7, 6, None)
    assert [Additive(**own).surfaces for own in ({"rounds": 9}, {"metric": "gram"}, {"secure": clear})] == [0, 0, 0]
    data = {"table": "made", "target": "y"}
    assert load_plan({"data": data, "method": {"name": "additive", "dp": dp}}).config.pair_round is None
    with pytest.raises(ConfigError, match="pairs of columns need"):
        load_plan({"data": data, "method": {"name": "additive", "dp": dp, "pairs": "acyclic"}})


def test_a_policy_judges_the_smallest_cell_of_a_pair() -> None:
    asked = plan(rounds=ROUNDS, policy={"min_cell": 15})
    approved = setting(asked, 3)[0].approved
    assert [claim.least for claim in METHOD.planned(approved, 300) if isinstance(claim, Pairs)] == [20]
    few = setting(plan(rounds=ROUNDS, pairs="acyclic", min_bin=5, policy={"min_cell": 15}), 3)[0].approved
    assert [claim.least for claim in METHOD.planned(few, 300) if isinstance(claim, Pairs)] == [15]
    with pytest.raises(RefusedError, match="pairs"):
        fitted(rounds=ROUNDS, pairs="acyclic", secure={"sum": "none"})


def test_in_clear_and_by_masks_the_model_is_the_same() -> None:
    asked = plan(rounds=ROUNDS, pairs="acyclic", secure={"sum": "none"}, policy={"pairs": "open"})
    assert run(asked, seed=5, tables=tables()).model.weights.tobytes() == fitted(rounds=ROUNDS).model.weights.tobytes()


@pytest.mark.parametrize(("least", "expected"), [(9, 0), (10, "acyclic")])
def test_there_are_no_surfaces_by_default_where_bins_are_smaller_than_policies_ask_for(
    least: int, expected: int | str
) -> None:
    assert Additive(min_bin=least).surfaces == expected
