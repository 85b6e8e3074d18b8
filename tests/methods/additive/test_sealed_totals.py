"""What a hub learns of training without a budget: bins, pairs and the finished model; sums of residuals are sealed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.methods.additive.test_pairs import fitted, plan, setting, tables
from tests.runs.auditing.test_on_linked import people

from kohort.crypto.sums.checked import from_residues
from kohort.errors import RefusedError
from kohort.evaluate.attacks.linked_totals import LinkedSums, counts_by_chance, counts_that_follow
from kohort.methods.additive import exact
from kohort.methods.additive.learner import RESIDUAL_STEPS
from kohort.methods.additive.method import METHOD, disclosing_rounds
from kohort.models.additive.model import AdditiveModel, means_of
from kohort.models.additive.precision import rounded_mean
from kohort.protocol.wire import decode
from kohort.rounds.totals.checked_training import CheckedTraining
from kohort.rounds.totals.protocol import TotalsProtocol
from kohort.runs.config import load_plan
from kohort.runs.run import run
from kohort.testing import listening

VALUES = 6
TOLD = {
    "bins": ["bins", "counts", "target"],
    "looked": ["length", "looked_at"],
    "pairs": ["counts", "pairs"],
    "values": ["errors", "values"],
}


def small_plan(**own: Any) -> Any:
    """Two columns of six values: so few combinations that sums of known values tell all of them."""
    values = [f"v{code}" for code in range(VALUES)]
    data = {
        "table": "memory", "target": "outcome", "features": "rest", "test": 0.0,
        "categories": {"c0": values, "c1": values, "outcome": ["o0", "o1"]},
    }  # fmt: skip
    policy = {"min_cell": 1, "min_rows": 1}
    return load_plan({"data": data, "sites": {"count": 3}, "policy": policy, "method": {"name": "additive", **own}})


def opened(monkeypatch: pytest.MonkeyPatch, **own: Any) -> tuple[list[tuple[Any, Any]], AdditiveModel]:
    """The hub's learner before each total and the numbers that it opens, without the check value; and the model."""
    heard: list[tuple[Any, Any]] = []
    honest = TotalsProtocol.keep

    def keep(self: TotalsProtocol, number: int, total: Any, sites: Any) -> None:
        heard.append((self.learner, from_residues(total[:-1]).view(np.int64)))
        honest(self, number, total, sites)

    monkeypatch.setattr(TotalsProtocol, "keep", keep)
    model = run(small_plan(pairs=0, **own), seed=0, tables={"": people(2)}).model
    assert isinstance(model, AdditiveModel)
    return heard, model


def solved(heard: list[tuple[Any, Any]], model: AdditiveModel) -> tuple[float, float]:
    """The shares of small combinations that the attack on linked totals finds, and that chance finds.

    The attack is given the exact counts of bins, of which the hub is told ranges.
    """
    codes = np.indices((VALUES, VALUES)).reshape(2, -1)
    places = codes + np.asarray([[0], [VALUES]])
    rounds = []
    for learner, numbers in heard[1:]:
        w = learner.descent.w if learner.descent is not None else np.vstack([model.values, model.intercept])
        expected = means_of("logit", (w[places[0]] + w[places[1]] + w[-1]))
        rounds.append(LinkedSums(numbers[: 2 * VALUES].reshape(-1, 1) / RESIDUAL_STEPS, expected))
    own = np.stack([people(2)[f"c{column}"].str.slice(1).cast(int).to_numpy() for column in range(2)])
    truth = np.bincount(np.ravel_multi_index(tuple(own), (VALUES, VALUES)), minlength=VALUES**2)
    counts = np.concatenate([np.bincount(values, minlength=VALUES) for values in own]).astype(float)
    follow = counts_that_follow(rounds, places, counts, columns=2, step=1.0 / RESIDUAL_STEPS)
    small = (truth > 0) & (truth < 20)
    found = [np.rint(each) == truth for each in (follow, counts_by_chance(places, counts, 2))]
    return float(found[0][small].mean()), float(found[1][small].mean())


def test_no_small_combination_follows_from_what_the_hub_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    share, chance = solved(*opened(monkeypatch))
    assert share <= max(chance, 0.2)


def numbers_read(monkeypatch: pytest.MonkeyPatch) -> float:
    """The share of the numbers of all totals that the hub opens as they are."""
    true: dict[int, Any] = {}
    taken = exact.ExactLearner.after

    def after(self: exact.ExactLearner, total: Any, sites: int) -> Any:
        true.setdefault(self.number, np.array(total))
        return taken(self, total, sites)

    monkeypatch.setattr(exact.ExactLearner, "after", after)
    heard = [numbers for _, numbers in opened(monkeypatch)[0]]
    assert len(heard) == len(true) > 5
    equal = [heard[number][: len(total)] == total for number, total in true.items()]
    return float(np.concatenate(equal)[np.concatenate(list(true.values())) != 0].mean())


def test_no_number_of_a_total_is_in_what_the_hub_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers_read(monkeypatch) == 0.0


def test_numbers_would_be_if_sums_were_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact.ExactLearner, "sealed", property(lambda self: self.number == 0))
    assert numbers_read(monkeypatch) > 0.5


def test_all_would_follow_if_sums_were_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact.ExactLearner, "sealed", property(lambda self: self.number == 0))
    monkeypatch.setattr(exact, "rounded_counts", lambda counts, least: counts)  # so that the hub takes the same steps
    share, chance = solved(*opened(monkeypatch))
    assert share == 1.0
    assert chance < 0.5


@pytest.mark.parametrize("scheme", ["masks", "bfv"])
def test_the_hub_is_told_bins_pairs_and_the_model_and_nothing_else(scheme: str) -> None:
    with listening() as heard:
        outcome = fitted(rounds=10, secure={"sum": scheme})
    told = [
        (number, sorted(decode(data).arrays)) for _, task, number, data in heard.replies if task == "additive.disclose"
    ]
    assert sorted({number for number, _ in told}) == disclosing_rounds(plan(rounds=10).config)
    assert {tuple(names) for _, names in told} <= {tuple(names) for names in TOLD.values()}
    assert outcome.model.weights.tobytes() == fitted(rounds=10).model.weights.tobytes()


def test_the_hub_has_no_model_between_the_bins_and_the_last_total(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, _ = opened(monkeypatch, rounds=6)
    known = [learner.model is not None for learner, _ in heard]
    assert known == [False, True, False, False, False, False]  # after the bins, the share of the classes


def test_whole_numbers_of_targets_do_not_show_in_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the best values, what is expected of a bin is how many of it have the class: a whole number.

    With all digits that would be an equation about combinations, as exact as the digits.
    """
    table = people(2)
    codes = np.stack([table[f"c{column}"].str.slice(1).cast(int).to_numpy() for column in range(2)])
    distances = {}
    monkeypatch.setattr(exact, "CHAIN", 0.0)
    for name in ("told", "exact"):
        if name == "exact":
            monkeypatch.setattr(exact, "rounded_values", lambda w, errors, alike, **_: w)
        own = {"pairs": 0, "rounds": 80, "ridge": 0.0, "smooth": 0.0}
        model = run(small_plan(**own), seed=0, tables={"": table}).model
        assert isinstance(model, AdditiveModel)
        parts = [model.values[codes[column] + VALUES * column, 0] for column in range(2)]
        expected = means_of("logit", (sum(parts) + model.intercept[0])[:, None])[:, 0]
        sums = np.concatenate([np.bincount(own, weights=expected) for own in codes])
        distances[name] = np.abs(sums - np.rint(sums)).mean()
    assert distances["exact"] < 1e-3
    assert distances["told"] > 0.12  # of evenly spread numbers it is 0.25


def test_the_contract_lists_what_is_told_and_seals_every_total() -> None:
    approved = setting(plan(rounds=10), 3)[0].approved
    steps = {step.task: step for block in METHOD.contract(approved).blocks for step in block}
    assert list(steps["additive.disclose"].rounds) == [0, 4, 5, 9]
    assert "sites alone can read the totals" in steps["additive.total"].says


def test_a_site_that_tells_another_model_is_outvoted(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, honest = fitted(rounds=3).model, CheckedTraining._tell

    def lying(self: Any, site: Any, request: Any) -> Any:
        release = honest(self, site, request)
        if site.name != "s1" or "values" not in release.payload.arrays:
            return release
        arrays = {name: 2 * array for name, array in release.payload.arrays.items()}
        return replace(release, payload=replace(release.payload, arrays=arrays))

    monkeypatch.setattr(CheckedTraining, "_tell", lying)
    assert run(plan(rounds=3), seed=5, tables=tables()).model.weights.tobytes() == usual.weights.tobytes()


def heard_of_the_target(table: pl.DataFrame, **data: Any) -> np.ndarray:
    """What sites tell the hub of the target after the first total."""
    made = load_plan(
        {
            "data": {"table": "memory", "target": "y", "features": ["x"], "bounds": {"x": [0, 1]}, "test": 0.0, **data},
            "sites": {"count": 3},
            "policy": {"min_cell": 1, "min_rows": 1},
            "method": {"name": "additive", "rounds": 3, "min_bin": 20},
        }
    )
    with listening() as heard, suppress(RefusedError):
        run(made, seed=0, tables={"": table})
    told = [
        decode(data).arrays for _, task, number, data in heard.replies if task == "additive.disclose" and not number
    ]
    assert len(told) == 3
    return np.asarray(told[0]["target"])


def test_a_rare_class_does_not_follow_from_the_rows_of_the_others() -> None:
    """The number of all rows is public, so one class less is one equation too many."""
    told = []
    for rare in (2, 3):
        y = ["rare"] * rare + ["some"] * 100 + ["most"] * (300 - rare)
        table = pl.DataFrame({"x": np.random.default_rng(0).random(400), "y": y})
        told.append(heard_of_the_target(table, categories={"y": ["most", "rare", "some"]}))
    assert told[0].tolist() == told[1].tolist() == [20, 0, 20]


def test_the_hub_is_not_told_the_sum_of_a_number() -> None:
    random = np.random.default_rng(0)
    x, y = random.random((2, 400))
    told = [
        heard_of_the_target(pl.DataFrame({"x": x, "y": values}), bounds={"x": [0, 1], "y": [0, 1]})
        for values in (y, np.append(y[:-1], y[-1] - 0.3))
    ]
    assert told[0].tolist() == told[1].tolist()
    assert told[0][0] == pytest.approx(y.mean(), rel=0.02)
    assert told[0][0] != pytest.approx(y.mean(), rel=1e-6)
    assert told[0][1] == 1.0  # and not how many of the declared rows lie within the domain
    assert rounded_mean(0.0, 0.0).tolist() == [0.0, 1.0]
