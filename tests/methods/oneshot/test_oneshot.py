"""One secure sum and a closed form: the fit of pooled rows, whoever holds them, and nothing too small is opened."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.crypto.sums import encrypted as encrypted_module
from kohort.crypto.sums.he import BFV, PublicKey, SecretKey
from kohort.crypto.sums.masks import SCHEME as MASKS
from kohort.errors import ConfigError, DataError, IntegrityError, KohortError, RefusedError
from kohort.evaluate.attacks.gram import OneHot, singled_out
from kohort.methods.oneshot.design import InputCells, Layout, OneShotSection
from kohort.methods.oneshot.fit import PENALTIES, check_before, chosen_notes, decoded
from kohort.methods.oneshot.state import FILE, Batch, OneShotState, join, leave, load_state, save_state
from kohort.models.closed_form.design import OneLayer
from kohort.models.closed_form.statistics import unpack
from kohort.models.files import load_model
from kohort.protocol import engine as engine_module
from kohort.protocol.engine import LocalEngine
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, Progress, run
from kohort.tables.domain import Domain, declared_domain
from kohort.tables.encoder import Encoder
from kohort.tables.schema import Schema

SCHEMES = ("none", "masks", "bfv", "ckks")
BOUNDS = {"age": [0, 100], "dose": [0, 10]}
CATEGORIES = {"outcome": ["ill", "well"], "ward": ["east", "north", "south", "west"]}


def tables(sizes: dict[str, int] | None = None, *, seed: int = 3) -> dict[str, pl.DataFrame]:
    random = np.random.default_rng(seed)
    made = {}
    for name, rows in (sizes or {"a": 90, "b": 130, "c": 61, "d": 45}).items():
        age, ward = random.integers(20, 80, rows), random.choice(CATEGORIES["ward"], rows)
        dose = random.normal(4.0, 1.0, rows).round(2)
        ill = (age + 10 * (ward == "west") + 5 * dose + random.normal(0, 8, rows)) > 75
        made[name] = pl.DataFrame({"age": age, "dose": dose, "ward": ward, "outcome": np.where(ill, "ill", "well")})
    return made


def plan(
    scheme: str = "none", oneshot: dict[str, Any] | None = None, method: dict[str, Any] | None = None, **sections: Any
) -> Plan:
    in_clear = {"min_rows": 10} if scheme == "none" else {}
    base: dict[str, dict[str, Any]] = {
        "data": {
            "table": "memory",
            "target": "outcome",
            "features": "rest",
            "bounds": BOUNDS,
            "categories": CATEGORIES,
            "test": 0.2,
        },
        "sites": {"split": "files"},
        "model": {"dtype": "float64"},
        "method": {
            "name": "oneshot",
            "secure": {"sum": scheme},
            "oneshot": {**in_clear, **(oneshot or {})},
            **(method or {}),
        },
        "policy": {"min_rows": 1, "pairs": "open"},
    }
    return load_plan({name: {**part, **sections.get(name, {})} for name, part in base.items()})


def state_of(outcome: Outcome) -> OneShotState:
    return load_state(outcome.files[FILE])


def total_of(outcome: Outcome) -> np.ndarray[Any, Any]:
    (batch,) = state_of(outcome).batches
    return batch.total


def one_table(parts: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(parts.values())


def test_every_scheme_opens_the_same_integers_and_gives_the_same_model() -> None:
    outcomes = {scheme: run(plan(scheme), tables=tables(), seed=1) for scheme in SCHEMES}
    first = outcomes["none"]
    for outcome in outcomes.values():
        assert (total_of(outcome) == total_of(first)).all()
        assert (outcome.model.weights == first.model.weights).all()
        assert outcome.metrics["accuracy"] == first.metrics["accuracy"]


def test_the_model_is_the_ridge_regression_of_pooled_rows() -> None:
    parts = tables()
    outcome = run(plan("masks", data={"test": 0.0}), tables=parts, seed=1)
    pooled = one_table(parts)
    ward = pooled["ward"].replace_strict({name: code / 3 for code, name in enumerate(CATEGORIES["ward"])})
    x = np.stack([pooled["age"].to_numpy() / 100, pooled["dose"].to_numpy() / 10, ward.to_numpy()], axis=1)
    y = np.where(pooled["outcome"] == "well", np.log(19), -np.log(19))
    z = np.concatenate([np.ones((len(x), 1)), (x - x.mean(axis=0)) / x.std(axis=0)], axis=1)
    # The classifier is ridge regression with alpha = lambda / 0.0475^2 (0.95 * 0.05 is the slope at the wanted value).
    weights = np.linalg.solve(z.T @ z + 1e-3 / 0.0475**2 * np.eye(4), z.T @ y)
    scale = weights[1:] / x.std(axis=0)
    expected = [*scale, weights[0] - x.mean(axis=0) @ scale]
    np.testing.assert_allclose(outcome.model.weights, expected, rtol=1e-4)  # inputs are rounded to 2^-16


def test_how_rows_are_dealt_out_changes_no_bit() -> None:
    table = {"all": one_table(tables())}
    totals = [
        total_of(run(plan(sites={"count": count, "split": split}), tables=table, seed=1))
        for count, split in ((3, "iid"), (7, "sorted"), (1, "iid"))
    ]
    assert (totals[0] == totals[1]).all()
    assert (totals[0] == totals[2]).all()


@pytest.mark.parametrize("scheme", ["masks", "bfv", "ckks"])
def test_bounds_that_are_not_declared_are_learned_by_a_secure_count_and_clip(scheme: str) -> None:
    found = run(plan(scheme, data={"bounds": {"age": [0, 100]}}), tables=tables(), seed=1)
    assert found.model.encoder.domain.columns["dose"].counted
    assert found.accuracy > 0.6


def test_without_a_secure_sum_bounds_are_described() -> None:
    found = run(plan("none", data={"bounds": {"age": [0, 100]}}), tables=tables(), seed=1)
    assert not found.model.encoder.domain.columns["dose"].counted


def test_one_site_alone_hides_behind_nobody() -> None:
    alone = {"a": tables()["b"]}
    with pytest.raises(RefusedError, match="needs three sites, and 1 take part"):
        run(plan("bfv"), tables=alone, seed=1)
    assert run(plan("none"), tables=alone, seed=1).accuracy > 0.5


def test_a_small_site_sits_out_and_is_named_where_nothing_hides_it() -> None:
    parts = tables({"a": 90, "b": 130, "tiny": 7})
    outcome = run(plan("none", data={"test": 0.0}), tables=parts, seed=1)
    assert list(outcome.dropped) == ["tiny"]
    assert "sits out" in outcome.dropped["tiny"]
    without = run(plan("none", data={"test": 0.0}), tables={name: parts[name] for name in "ab"}, seed=1)
    assert (total_of(outcome) == total_of(without)).all()
    assert not run(plan("masks"), tables=parts, seed=1).dropped


def test_constant_and_collinear_columns_are_harmless() -> None:
    parts = {name: part.with_columns(same=pl.lit(5.0), twice=pl.col("dose") * 2) for name, part in tables().items()}
    bounds = {**BOUNDS, "same": [0, 10], "twice": [0, 20]}
    outcome = run(plan("masks", data={"bounds": bounds}), tables=parts, seed=1)
    assert np.isfinite(outcome.model.weights).all()
    assert abs(outcome.accuracy - run(plan("masks"), tables=tables(), seed=1).accuracy) < 0.05
    assert outcome.model.weights[list(outcome.model.encoder.feature_names).index("same")] == 0


def test_a_class_may_be_absent_at_a_site_but_not_everywhere() -> None:
    parts = tables()
    parts["a"] = parts["a"].with_columns(outcome=pl.lit("ill"))
    assert run(plan("masks"), tables=parts, seed=1).accuracy > 0.6
    nobody = {**CATEGORIES, "outcome": ["dead", "ill", "well"]}
    with pytest.raises(DataError, match="occur at no site") as caught:
        run(plan("masks", data={"categories": nobody}), tables=parts, seed=1)
    assert caught.value.exit_code == 3


def test_a_class_of_too_few_rows_is_refused() -> None:
    parts = {name: part.with_columns(outcome=pl.lit("well")) for name, part in tables().items()}
    parts["a"] = parts["a"].with_columns(
        outcome=pl.when(pl.int_range(pl.len()) < 5).then(pl.lit("ill")).otherwise("outcome")
    )
    with pytest.raises(RefusedError, match="fewer than 10 rows") as caught:
        run(plan("bfv", data={"test": 0.0}), tables=parts, seed=1)
    assert caught.value.exit_code == 4


def test_a_total_of_too_few_rows_is_never_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []
    real = LocalEngine.exchange

    def exchange(self: LocalEngine, ask: Any) -> Any:
        asked.append((ask.task.name, ask.payload.metrics.get("step")))
        return real(self, ask)

    monkeypatch.setattr(LocalEngine, "exchange", exchange)
    with pytest.raises(RefusedError, match="too few for totals"):
        run(plan("masks"), tables=tables({"a": 12, "b": 12, "c": 12}), seed=1)
    assert asked == [("prepare", None), ("sum.setup", 0)], "keys came along, and no vector"
    assert MASKS.contributes_at > 0


def test_numbers_that_are_not_finite_are_refused() -> None:
    parts = tables()
    parts["b"] = parts["b"].with_columns(dose=pl.when(pl.int_range(pl.len()) == 3).then(np.inf).otherwise("dose"))
    with pytest.raises(DataError) as caught:
        run(plan("masks"), tables=parts, seed=1)
    assert caught.value.exit_code == 3
    grid = state_of(run(plan("none"), tables=tables(), seed=1)).layout.grid(3)
    assert grid.encode(np.array([np.nan, np.inf])).tolist() == grid.encode(np.array([0.0, grid.bound])).tolist()


def test_what_would_overflow_is_refused_with_the_bound() -> None:
    section = OneShotSection(precision=24)
    layout = Layout(section, InputCells.whole(2), np.ones(2, dtype=bool), OneLayer(inputs=2, classes=2), ())
    with pytest.raises(RefusedError, match="the bound is 2,731"):
        check_before(layout, [3_000, 10, 10])
    grid = layout.grid(3)
    assert grid.encode(np.array([3e3])) == grid.encode(np.array([grid.bound]))  # clipped: an error would tell of rows
    check_before(layout, [2_000, 10, 10])


def _altered(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def _of_another_key(data: bytes) -> bytes:
    del data
    ring = BFV.smaller
    assert ring is not None
    other = PublicKey(ring, SecretKey(ring, bytes(64)).public)
    slots = np.zeros(ring.slots, dtype=np.int64)
    return encrypted_module.join_ciphertexts([other.encrypt(slots, sites=4, seed=bytes(64))])


@pytest.mark.parametrize("spoil", [lambda data: data[:-7], _altered, _of_another_key], ids=["cut", "bit", "other key"])
def test_a_ciphertext_that_is_not_the_sites_own_ends_the_run(spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = encrypted_module._EncryptingSite.reply

    def answer(self: Any, step: int, inbox: bytes, vector: Any) -> bytes:
        data = real(self, step, inbox, vector)
        return spoil(data) if self.name == "b" else data

    monkeypatch.setattr(encrypted_module._EncryptingSite, "reply", answer)
    with pytest.raises(KohortError) as caught:
        run(plan("bfv"), tables=tables(), seed=1)
    assert isinstance(caught.value, IntegrityError) or "tags" in caught.value.message
    assert caught.value.exit_code == 6


def _vanish(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """From the step on at which they would contribute, these sites answer nothing: their keys are out already."""
    calls = iter(range(1000))

    def absent(faults: Any, to: Any, streams: Any, *, task: str, round_number: int) -> dict[str, str]:
        del faults, streams, round_number
        if task != "oneshot.statistics" or next(calls) < MASKS.contributes_at:
            return {}
        return {name: "dropped" for name in to if name in names}

    monkeypatch.setattr(engine_module, "absent_sites", absent)


def test_sites_that_vanish_after_the_key_exchange_are_not_in_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tables({f"s{number:02d}": 30 for number in range(20)})
    gone = [f"s{number:02d}" for number in range(6)]
    survivors = run(
        plan("none", data={"test": 0.0}),
        tables={name: part for name, part in parts.items() if name not in gone},
        seed=1,
    )
    _vanish(monkeypatch, gone)
    outcome = run(plan("masks", data={"test": 0.0}), tables=parts, seed=1)
    assert set(outcome.dropped) == set(gone)
    assert (total_of(outcome) == total_of(survivors)).all()


def test_below_the_threshold_nothing_opens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = tables({f"s{number:02d}": 30 for number in range(20)})
    _vanish(monkeypatch, [f"s{number:02d}" for number in range(9)])
    with pytest.raises(KohortError, match="11 of 20 sites sent a vector"):
        run(plan("masks"), tables=parts, seed=1, out=tmp_path / "run")
    assert not (tmp_path / "run" / "hub").exists()
    assert not (tmp_path / "run" / "model").exists()


def test_a_batch_that_leaves_is_retraining_without_it(tmp_path: Path) -> None:
    parts = tables(dict.fromkeys("abcdefghi", 60))
    quiet = plan("bfv", data={"test": 0.0})

    def state(names: str) -> OneShotState:
        run(quiet, tables={name: parts[name] for name in names}, seed=1, out=tmp_path / names)
        return load_state(tmp_path / names / "hub" / FILE)

    first, late = state("abcdef"), state("ghi")
    both = join(first, late)
    assert (both.fit().coefficients[0] == state("abcdefghi").fit().coefficients[0]).all()
    alone = leave(both, "ghi").fit().coefficients[0]
    retrained = first.fit().coefficients[0]
    assert np.abs(alone - retrained).max() / np.abs(retrained).max() < 1e-8
    parted = leave(both, "abc", state("abc"))
    expected = state("defghi").fit().coefficients[0]
    assert np.abs(parted.fit().coefficients[0] - expected).max() / np.abs(expected).max() < 1e-8
    assert parted.model().predict(parts["a"]).len() == 60
    assert load_state(save_state(parted)).members == set("defghi")


def test_two_openings_that_would_isolate_a_few_are_refused() -> None:
    parts = tables(dict.fromkeys("abcdefg", 60))
    whole = state_of(run(plan("masks"), tables=parts, seed=1))
    with pytest.raises(RefusedError, match="isolate 1 contributions"):
        leave(whole, "a")
    five = state_of(run(plan("masks"), tables={name: parts[name] for name in "abcde"}, seed=1))
    with pytest.raises(RefusedError, match="isolate 2 contributions"):
        leave(whole, "abcde", five)
    three = state_of(run(plan("masks"), tables={name: parts[name] for name in "abc"}, seed=1))
    parted = leave(whole, "abc", three)
    with pytest.raises(RefusedError, match="not known"):
        leave(state_of(run(plan("masks"), tables=parts, seed=1)), "abc")
    with pytest.raises(ConfigError, match="are not in"):
        leave(parted, "abc")
    with pytest.raises(RefusedError, match="were in before"):
        join(parted, three)
    two = replace(three, batches=(replace(three.batches[0], members=frozenset({"x", "y"})),))
    with pytest.raises(RefusedError, match="isolate 2"):
        join(whole, two)


def test_new_rows_come_in_under_a_name_of_their_own() -> None:
    old, new = tables(dict.fromkeys("abc", 60)), tables({f"{name}#2": 50 for name in "abc"}, seed=8)
    quiet = plan("masks", data={"test": 0.0})
    both = join(state_of(run(quiet, tables=old, seed=1)), state_of(run(quiet, tables=new, seed=1)))
    merged = {name: pl.concat([old[name], new[f"{name}#2"]]) for name in "abc"}
    assert (both.fit().coefficients[0] == state_of(run(quiet, tables=merged, seed=1)).fit().coefficients[0]).all()


def test_states_of_other_sums_and_damaged_ones_are_refused() -> None:
    parts = tables()
    one = run(plan("masks"), tables=parts, seed=1)
    other = run(plan("masks", {"precision": 15}), tables={f"{name}2": part for name, part in parts.items()}, seed=1)
    with pytest.raises(RefusedError, match="section differ"):
        join(state_of(one), state_of(other))
    with pytest.raises(IntegrityError, match="damaged"):
        load_state(one.files[FILE][:-1] + b"?")
    with pytest.raises(ConfigError, match="no state"):
        load_state(Path("nowhere"))


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_an_encrypted_run_goes_on_to_the_same_bytes(scheme: str, tmp_path: Path) -> None:
    """Ciphertexts are made again from the same seeds, so the digests in the ledger are those of a run in one go."""
    made, parts = plan(scheme, {"rounds": 3}), tables()
    run(made, tables=parts, seed=1, out=tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made, tables=parts, seed=1, out=tmp_path / "cut", watch=stop, resume=True)
    run(made, tables=parts, seed=1, out=tmp_path / "cut", resume=True)
    for name in ("model/model.safetensors", "ledger/ledger.jsonl", "ledger/head.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_newton_steps_lower_the_cross_entropy_and_resume(tmp_path: Path) -> None:
    parts = tables()
    losses = []
    for rounds in (1, 2, 6):
        outcome = run(plan("masks", {"rounds": rounds}, data={"test": 0.0}), tables=parts, seed=1)
        pooled = one_table(parts)
        truth = outcome.model.encoder.target(pooled).astype(int)
        losses.append(-np.log(outcome.model.predict_proba(pooled)[np.arange(len(truth)), truth]).mean())
    assert losses[0] > losses[1] > losses[2] - 1e-12

    def stop(progress: Progress) -> None:
        if progress.round == 3:
            raise InterruptedError

    steps = plan("masks", {"rounds": 6})
    with pytest.raises(InterruptedError):
        run(steps, tables=parts, seed=1, out=tmp_path / "run", watch=stop)
    resumed = run(steps, tables=parts, seed=1, out=tmp_path / "run", resume=True)
    straight = run(steps, tables=parts, seed=1, out=tmp_path / "other")
    assert (resumed.model.weights == straight.model.weights).all()
    assert resumed.history == straight.history
    lines = [(tmp_path / name / "ledger" / "ledger.jsonl").read_bytes() for name in ("run", "other")]
    assert lines[0] == lines[1]


ONEHOT = {"encoding": "onehot", "categories": {"outcome": CATEGORIES["outcome"], "ward": ["a", "b", "c", "d", "e"]}}


def wards(counts: dict[str, int]) -> dict[str, pl.DataFrame]:
    """The usual tables with wards dealt out so that each occurs so often, spread over the sites."""
    parts = tables()
    names = [name for name, count in counts.items() for _ in range(count)]
    rows = sum(part.height for part in parts.values())
    column = pl.Series("ward", (["a"] * (rows - len(names)) + names)).sample(fraction=1.0, shuffle=True, seed=2)
    whole = one_table(parts).with_columns(column)
    ends = np.cumsum([0, *(part.height for part in parts.values())])
    return {name: whole[int(ends[i]) : int(ends[i + 1])] for i, name in enumerate(parts)}


@pytest.mark.parametrize("scheme", ["none", "masks", "bfv"])
def test_rare_categories_become_one_before_anything_is_summed(scheme: str) -> None:
    outcome = run(plan(scheme, data={**ONEHOT, "test": 0.0}), tables=wards({"b": 40, "c": 4, "d": 7, "e": 1}), seed=1)
    state = state_of(outcome)
    assert state.cells.inputs == 2 + 3  # age, dose; a, b, other
    names = list(outcome.model.encoder.feature_names)
    weight = {name[-1]: outcome.model.weights[names.index(f"ward={name[-1]}")] for name in names if "ward" in name}
    assert weight["c"] == weight["d"] == weight["e"]
    assert weight["a"] != weight["b"] != weight["c"]
    gram = unpack(state.layout.design, decoded(state.layout, state.batches[0].total)[0, 0]).gram
    assert singled_out(gram, [OneHot(3, 6)]).count == 0
    assert gram[5, 5] == 12


def test_categories_that_are_rare_even_together_take_no_part() -> None:
    parts = wards({"b": 40, "e": 3})
    outcome = run(plan("masks", data={**ONEHOT, "test": 0.0}), tables=parts, seed=1)
    assert state_of(outcome).cells.left_out == ("ward",)
    state = state_of(outcome)
    statistics = unpack(state.layout.design, decoded(state.layout, state.batches[0].total)[0, 0])
    assert statistics.rows == one_table(parts).height - 3
    assert any("left out in: ward" in note for note in outcome.notes)


def test_persons_are_counted_and_not_rows() -> None:
    parts = wards({"b": 40, "c": 20})
    # The 20 rows of ward c are those of two persons, all others are persons of their own.
    parts = {
        name: part.with_columns(
            person=pl.when(pl.col("ward") == "c")
            .then(pl.lit("c") + (pl.int_range(pl.len()) % 2).cast(pl.String))
            .otherwise(pl.lit(name) + pl.int_range(pl.len()).cast(pl.String))
        )
        for name, part in parts.items()
    }
    without = run(plan("masks", data={**ONEHOT, "drop": ["person"], "test": 0.0}), tables=parts, seed=1)
    assert state_of(without).cells.inputs == 2 + 3
    merged = run(plan("masks", data={**ONEHOT, "identifiers": ["person"], "test": 0.0}), tables=parts, seed=1)
    assert state_of(merged).cells.left_out == ("ward",)


def test_a_rare_class_ends_the_run_before_statistics_where_categories_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    real = LocalEngine.exchange
    monkeypatch.setattr(LocalEngine, "exchange", lambda self, ask: (asked.append(ask.task.name), real(self, ask))[1])
    parts = {
        name: part.with_columns(
            outcome=pl.when(pl.int_range(pl.len()) < 1).then(pl.lit("ill")).otherwise(pl.lit("well"))
        )
        for name, part in wards({"b": 40}).items()
    }
    with pytest.raises(RefusedError, match="1 of 2 classes have fewer than 10 persons"):
        run(plan("masks", data={**ONEHOT, "test": 0.0}), tables=parts, seed=1)
    assert "oneshot.statistics" not in asked


BUDGET = {"dp": {"epsilon": 1.0, "delta": 1e-6, "clip": 1.5}}


def test_noise_on_the_totals_is_as_large_as_claimed_and_charged(tmp_path: Path) -> None:
    parts = tables({f"s{number}": 100 for number in range(10)})
    clipped = {**BUDGET["dp"], "epsilon": 40.0}  # so little noise that it does not show beside that of epsilon 1
    spread = []
    for seed in range(6):
        noisy = run(plan("none", method=BUDGET, data={"test": 0.0}), tables=parts, seed=seed)
        generous = {"epsilon": 40.0}  # above the default cap of a policy
        clean = run(plan("none", method={"dp": clipped}, data={"test": 0.0}, policy=generous), tables=parts, seed=seed)
        state = state_of(noisy)
        difference = decoded(state.layout, total_of(noisy) - total_of(clean)).reshape(-1)
        spread.append(difference / state.batches[0].noise)
    # 84 draws of a standard normal: the deviation is within 25 % with probability 0.999; half the noise would not be.
    assert 0.75 < np.std(spread) < 1.25
    outcome = run(plan("masks", method=BUDGET), tables=parts, seed=0, out=tmp_path / "run")
    assert outcome.epsilon is not None
    assert 0.9 < outcome.epsilon <= 1.0
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger" / "ledger.jsonl").read_text().splitlines()]
    kinds = {(line["what"], line["guarantee"]["kind"]) for line in lines if line["event"] == "release"}
    assert {("dp.reserve", "dp"), ("oneshot.statistics", "secure-sum")} <= kinds


def test_random_features_are_one_network_and_the_folds_choose() -> None:
    parts = tables(dict.fromkeys("abc", 700))
    outcome = run(plan("masks", {"features": 16, "lambda": "folds", "folds": 2}), tables=parts, seed=1)
    assert outcome.model.network.hidden in {(4,), (8,), (16,)}  # type: ignore[union-attr]
    assert any("folds chose lambda" in note for note in outcome.notes)
    again = run(plan("none", {"features": 16, "lambda": "folds", "folds": 2}), tables=parts, seed=1)
    assert (total_of(outcome) == total_of(again)).all()
    ensemble = run(plan("masks", {"features": 10, "patches": 4, "columns": 2}), tables=parts, seed=1)
    assert ensemble.model.network.hidden == (40,)  # type: ignore[union-attr]
    linear = run(plan("masks"), tables=parts, seed=1)
    assert min(outcome.accuracy, ensemble.accuracy) > linear.accuracy - 0.05


def test_random_fourier_units_give_one_model_under_every_scheme_that_is_read_back(tmp_path: Path) -> None:
    section = {"features": 16, "units": "fourier", "scale": 2.0, "lambda": "folds", "folds": 2}
    parts = tables(dict.fromkeys("abc", 700))
    outcome = run(plan("bfv", section), tables=parts, seed=1, out=tmp_path / "run")
    assert outcome.model.network.activation == "cos"  # type: ignore[union-attr]
    for scheme in ("masks", "none"):
        assert (total_of(run(plan(scheme, section), tables=parts, seed=1)) == total_of(outcome)).all()
    tanh = run(plan("none", {**section, "units": "tanh"}), tables=parts, seed=1)
    assert (total_of(tanh) != total_of(outcome)).any()
    assert outcome.accuracy > tanh.accuracy - 0.05
    again = load_model(tmp_path / "run" / "model")
    assert (again.predict(parts["a"]) == outcome.model.predict(parts["a"])).all()


def test_a_number_is_predicted_too() -> None:
    parts = {name: part.with_columns(weight=50 + part["age"] * 0.5) for name, part in tables().items()}
    data = {"target": "weight", "bounds": {**BOUNDS, "weight": [40, 120]}}
    for activation in ("linear", "logistic"):
        outcome = run(plan("bfv", {"activation": activation}, data=data), tables=parts, seed=1)
        assert outcome.metrics["r2"] > 0.97
    with pytest.raises(ConfigError, match="fits no network"):
        run(plan("bfv", {"activation": "softplus"}, data=data), tables=parts, seed=1)


def test_softplus_has_a_gram_a_class() -> None:
    outcome = run(plan("masks", {"activation": "softplus"}), tables=tables(), seed=1)
    assert outcome.accuracy > 0.7


@pytest.mark.parametrize(
    ("oneshot", "method", "word"),
    [
        ({"rounds": 2, "features": 4, "patches": 2}, {}, "Newton steps"),
        ({"rounds": 2}, BUDGET, "Newton steps"),
        ({"patches": 2}, {}, "random layers"),
        ({"mode": "paper", "features": 3}, {}, "one layer"),
        ({}, {"dp": {"mechanism": "after"}}, "in shares"),
    ],
)
def test_settings_that_do_not_go_together(oneshot: dict[str, Any], method: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        run(plan("masks", oneshot, method), tables=tables(), seed=1)
    assert caught.value.exit_code == 2


def test_lambda_is_a_key_of_plans_and_comes_back() -> None:
    made = plan("bfv", {"lambda": 0.5})
    assert made.config.oneshot.lambda_ == 0.5
    mapping = made.to_mapping()
    assert mapping["method"]["oneshot"]["lambda"] == 0.5
    assert load_plan(mapping, complete=True) == made
    assert load_plan({"data": {"table": "x"}, "method": {"name": "oneshot"}}).config.secure.sum == "bfv"
    with pytest.raises(ConfigError, match="lamda") as caught:
        plan("bfv", {"lamda": 1})
    assert "lambda" in str(caught.value.hint)


def _reachable(root: Any, seen: set[int]) -> list[Any]:
    if id(root) in seen or isinstance(root, str | bytes | int | float | np.ndarray | type | pl.DataFrame):
        return []
    seen.add(id(root))
    inner = root.values() if isinstance(root, dict) else root if isinstance(root, list | tuple | set) else ()
    inner = [*inner, *getattr(root, "__dict__", {}).values()]
    return [root, *(found for item in inner for found in _reachable(item, seen))]


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_nobody_but_the_key_holder_ever_holds_a_secret_key(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[Any] = []
    holders: list[Any] = []
    real = LocalEngine.exchange

    def exchange(self: LocalEngine, ask: Any) -> Any:
        replies = real(self, ask)
        # What the sites remember, what the plan was handed back, and, in its closure, what the hub's side holds.
        handed.extend([*self.sites.values(), replies])
        handed.extend(cell.cell_contents for cell in (getattr(ask.take, "__closure__", None) or ()))
        holders.extend(self.parties.values())
        return replies

    monkeypatch.setattr(LocalEngine, "exchange", exchange)
    made: list[SecretKey] = []
    begin = SecretKey.__init__
    monkeypatch.setattr(SecretKey, "__init__", lambda self, *args: (begin(self, *args), made.append(self))[0])
    run(plan(scheme), tables=tables(), seed=1)
    assert made, "no key was made: the test would pass for anything"
    seen: set[int] = set()
    for holder in holders:
        seen.add(id(holder))
    found = [item for root in handed for item in _reachable(root, seen) if isinstance(item, SecretKey)]
    assert not found
    assert all(key._opener is None for key in made), "a key outlived its sum"


def test_the_papers_mode_gives_the_same_labels_and_warns() -> None:
    parts = tables({"a": 90, "b": 130, "c": 61, "small": 12})
    outcome = run(plan("none", {"mode": "paper", "degree": 8192}), tables=parts, seed=1)
    ours = run(plan("none"), tables=parts, seed=1)
    pooled = one_table(parts)
    assert (outcome.model.predict(pooled) == ours.model.predict(pooled)).mean() > 0.98
    assert any("1 sites have 16 rows or fewer" in note for note in outcome.notes)
    assert not outcome.files
    tiny = run(plan("none", {"mode": "paper", "degree": 8192}), tables=tables({"a": 90, "b": 130, "t": 5}), seed=1)
    assert "sits out" in tiny.dropped["t"]


@given(
    target=st.lists(st.integers(-1, 5), min_size=1, max_size=9).filter(lambda found: max(found) >= 0),
    seed=st.integers(0, 99),
)
def test_weights_of_merged_inputs_say_the_same_of_encoded_rows(target: list[int], seed: int) -> None:
    cells = InputCells(np.array(target), max(target) + 1)
    random = np.random.default_rng(seed)
    x, weights = random.random((4, len(target))), random.random((cells.inputs, 2))
    np.testing.assert_allclose(cells.apply(x) @ weights, x @ cells.spread(weights), atol=1e-12)


@given(steps=st.lists(st.sets(st.sampled_from("abcdefghijkl"), min_size=1), max_size=6))
@examples(20, 60)
def test_no_sequence_of_leaving_isolates_fewer_than_the_minimum(steps: list[set[str]]) -> None:
    everybody = frozenset("abcdefghijkl")
    state = _bare_state(everybody)
    openings = [everybody]
    for going in steps:
        leavers = frozenset(going) & state.members
        opened = _bare_state(*(batch.members & leavers for batch in state.batches if batch.members & leavers))
        try:
            state = leave(state, leavers, opened)
        except (RefusedError, ConfigError):
            continue
        openings += [batch.members for batch in (*opened.batches, *state.batches)]
    # Reference: everything sums, differences and intersections of openings could tell apart.
    for member in everybody:
        together = set(everybody)
        for opening in openings:
            together &= opening if member in opening else everybody - opening
        assert len(together) >= 3


def _bare_state(*batches: frozenset[str]) -> OneShotState:
    total = np.zeros(3, dtype=np.uint64)
    return OneShotState(
        section=OneShotSection(),
        encoder=_ENCODER,
        cells=InputCells.whole(1),
        clip=None,
        batches=tuple(Batch(members, total) for members in batches),
    )


_SCHEMA = Schema.of(target="y", features=("x",), bounds={"x": (0, 1)}, categories={"y": ("n", "p")}).resolve(["x", "y"])
_ENCODER = Encoder(_SCHEMA, declared_domain(_SCHEMA) or Domain())


@pytest.mark.parametrize("penalty", [1e12, float("inf"), float("nan")])
def test_a_lambda_that_leaves_nothing_of_the_rows_is_refused(penalty: float) -> None:
    with pytest.raises(ConfigError, match="lambda"):
        run(plan("masks", {"lambda": penalty}), tables=tables(), seed=1)


def test_what_the_folds_chose_is_said_and_so_is_the_end_of_their_grid() -> None:
    layout = Layout.of(OneShotSection(lambda_="folds"), _ENCODER, InputCells.whole(1))
    (inside,) = chosen_notes(layout, [0.1], [1])
    (edge,) = chosen_notes(layout, [PENALTIES[-1]], [1])
    assert "end of what they choose among" not in inside
    assert "end of what they choose among: set method.oneshot.lambda" in edge
