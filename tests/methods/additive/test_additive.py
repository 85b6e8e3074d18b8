"""Additive models: the pooled model bit for bit, every kind of target, and noise that is what the budget says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from kohort.cli.app import build
from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError
from kohort.methods.additive import exact
from kohort.methods.additive.config import Additive
from kohort.methods.additive.method import start
from kohort.methods.additive.private import COUNT_STEPS, PrivateLearner
from kohort.methods.oneshot.ridge import RidgeLearner
from kohort.models.additive.cells import codes_of
from kohort.models.additive.model import AdditiveModel
from kohort.models.rows import encode_rows
from kohort.privacy.dp.accounting import calibrate
from kohort.protocol.wire import decode
from kohort.rounds.totals import checked_training
from kohort.rounds.totals.learner import RowCache, Setting, learn_pooled
from kohort.rounds.totals.protocol import TotalsProtocol
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.domain import declared_domain
from kohort.tables.encoder import Encoder
from kohort.testing import listening

TOWNS = ("north", "south", "west")


def tables(sites: int = 4, rows: int = 120, seed: int = 1) -> dict[str, pl.DataFrame]:
    """One table per site: a bent effect of age, one of dose, one of the town, and missing doses."""
    random, made = np.random.default_rng(seed), {}
    for number in range(sites):
        age, dose = random.integers(20, 80, rows), random.normal(4, 1.5, rows).round(2)
        town = random.choice(TOWNS, rows)
        score = np.abs(age - 50) / 8 - 2 + 0.4 * (dose - 4) + (town == "west")
        ill = random.random(rows) < 1 / (1 + np.exp(-score))
        third = random.random(rows) < 0.2
        made[f"s{number}"] = pl.DataFrame(
            {
                "age": age,
                "dose": [None if gone else value for gone, value in zip(random.random(rows) < 0.1, dose, strict=True)],
                "town": town,
                "sick": np.where(ill, "ill", "well"),
                "kind": np.where(third, "odd", np.where(ill, "ill", "well")),
                "cost": np.exp(score / 3) + random.random(rows) / 10,
            }
        )
    return made


def plan(
    target: str = "sick",
    *,
    train: Mapping[str, Any] | None = None,
    sites: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    **own: Any,
) -> Plan:
    """A plan with every domain declared."""
    classes = {"sick": ["ill", "well"], "kind": ["ill", "odd", "well"]}
    others = [name for name in ("sick", "kind", "cost") if name != target]
    return load_plan(
        {
            "data": {
                "table": "made",
                "target": target,
                "features": "rest",
                "drop": others,
                "bounds": {"age": [0, 100], "dose": [-5, 15]} | ({"cost": [0, 10]} if target == "cost" else {}),
                "categories": {"town": list(TOWNS)} | {name: classes[name] for name in classes if name == target},
                "nullable": ["dose"],
                "missing": "category",
            },
            "sites": {"split": "files", **(sites or {})},
            "method": {"name": "additive", **own},
            **({"train": dict(train)} if train else {}),
            "policy": {"min_rows": 1, **(policy or {})},
        }
    )


def fitted(target: str = "sick", **own: Any) -> Outcome:
    return run(plan(target, **own), seed=5, tables=tables())


def pooled(target: str, parts: int, **own: Any) -> AdditiveModel:
    """The central twin, on rows in one table or in several."""
    made, given = plan(target, **own), tables()
    schema = _schema_of(made, given)
    approved = approved_plan_for(made, schema=schema, run="twin", sites=tuple(given))
    domain = declared_domain(approved.schema, missing=approved.missing)
    assert domain is not None
    encoder = Encoder(schema, domain, encoding=approved.encoding, dtype=approved.model.dtype)
    whole = encode_rows(encoder, _training_rows(made, given))
    cuts = np.linspace(0, whole.count, parts + 1).astype(int)
    rows = [whole.part(int(a), int(b)) for a, b in pairwise(cuts)]
    setting = Setting(approved=approved, encoder=encoder, seed=bytes(16), members=parts)
    model = learn_pooled(start, setting, rows, made.config.totals).model
    assert isinstance(model, AdditiveModel)
    return model


def _population(made: Plan, given: dict[str, pl.DataFrame]) -> Any:
    from kohort.rng import Streams
    from kohort.runs.simulation import populate

    return populate(made, Streams.seeded(5), tables=given)


def _schema_of(made: Plan, given: dict[str, pl.DataFrame]) -> Any:
    return _population(made, given).schema


def _training_rows(made: Plan, given: dict[str, pl.DataFrame]) -> pl.DataFrame:
    frame: pl.DataFrame = _population(made, given).frame
    return frame


@pytest.mark.parametrize("target", ["sick", "kind", "cost"])
def test_federated_is_pooled_bit_for_bit(target: str) -> None:
    federated = fitted(target, rounds=5).model
    one, three = pooled(target, 1, rounds=5), pooled(target, 3, rounds=5)
    assert federated.weights.tobytes() == one.weights.tobytes() == three.weights.tobytes()
    assert (federated.counts == one.counts).all()


def test_all_sums_give_the_same_model() -> None:
    models = {scheme: fitted(rounds=3, secure={"sum": scheme}).model for scheme in ("none", "masks", "bfv")}
    assert len({model.weights.tobytes() for model in models.values()}) == 1


def test_a_bent_curve_is_found_and_beats_the_larger_class() -> None:
    outcome = fitted()
    curve = outcome.model.curves()["age"]
    middle = [value for label, value in zip(curve["bins"], curve["values"], strict=True) if label.startswith("4")]
    assert outcome.metrics["accuracy"] > 0.7
    assert max(middle) > max(curve["values"][0], curve["values"][-1])  # "well" is the second class
    assert all(
        low < value < high for low, value, high in zip(curve["low"], curve["values"], curve["high"], strict=True)
    )


def test_missing_values_drop_no_row_and_have_a_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "rounded_counts", lambda counts, least: counts)
    model = fitted(rounds=3).model
    dose = model.curves()["dose"]
    assert dose["bins"][-1] == "missing"
    assert sum(dose["counts"]) == sum(model.curves()["town"]["counts"])


def test_numbers_by_identity_and_log_link() -> None:
    straight, log = fitted("cost"), fitted("cost", link="log")
    assert straight.metrics["r2"] > 0.6
    assert log.metrics["r2"] > 0.6
    assert (np.asarray(log.model.predict(tables(seed=9)["s0"])) > 0).all()


def test_a_monotone_curve_never_falls() -> None:
    free, rising = fitted(rounds=6).model, fitted(rounds=6, monotone={"age": "up"}).model
    assert (np.diff(rising.curves()["age"]["values"]) >= -1e-12).all()
    assert (np.diff(free.curves()["age"]["values"]) < 0).any()
    with pytest.raises(ConfigError, match="monotone names 'town'"):
        fitted(monotone={"town": "up"})


def test_class_weights_move_predictions_towards_the_heavier_class() -> None:
    plain = fitted(rounds=6).model
    heavy = run(plan(rounds=6, train={"class_weights": {"ill": 5.0}}), seed=5, tables=tables()).model
    rows = tables(seed=8)["s0"]
    assert (heavy.predict(rows) == "ill").sum() > (plain.predict(rows) == "ill").sum() + 5


def test_contributions_and_intercept_add_up_to_the_score() -> None:
    model, rows = fitted(rounds=4).model, tables(seed=8)["s0"]
    parts = model.row_contributions(rows)
    assert np.allclose([sum(row.values()) for row in parts], model.scores(model.encoder.transform(rows))[:, 0])


def test_a_class_of_few_rows_is_refused() -> None:
    made = tables()
    rare = {name: table.with_columns(pl.lit("well").alias("sick")) for name, table in made.items()}
    rare["s0"] = made["s0"]
    with pytest.raises(RefusedError, match="1 of 2 classes"):
        run(plan(min_bin=100), seed=5, tables=rare)


# Sealed counts.


def _opened_counts(monkeypatch: pytest.MonkeyPatch) -> np.ndarray[Any, Any]:
    """What the hub opens of the first total."""
    opened, honest = [], TotalsProtocol.keep

    def keep(self: TotalsProtocol, number: int, total: Any, sites: Any) -> None:
        opened.append(total.copy())
        honest(self, number, total, sites)

    monkeypatch.setattr(TotalsProtocol, "keep", keep)
    fitted(rounds=2)
    return np.asarray(opened[0][:-1])


def test_the_hub_cannot_read_the_counts_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _opened_counts(monkeypatch)
    assert (seen > 2**40).mean() > 0.99


def test_without_the_seal_it_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_training, "sealed", lambda secret, binding, vector: vector)
    monkeypatch.setattr(checked_training, "unsealed", lambda secret, binding, sites, total: total)
    assert _opened_counts(monkeypatch).max() < 1000


def test_a_site_that_tells_other_bins_than_the_others_is_outvoted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = checked_training.CheckedTraining._tell
    usual = fitted(rounds=3).model

    def lying(self: Any, site: Any, request: Any) -> Any:
        release = honest(self, site, request)
        arrays = dict(release.payload.arrays)
        if site.name != "s1" or "counts" not in arrays:
            return release
        arrays["counts"] = arrays["counts"] * 2
        return replace(release, payload=replace(release.payload, arrays=arrays))

    monkeypatch.setattr(checked_training.CheckedTraining, "_tell", lying)
    assert fitted(rounds=3).model.weights.tobytes() == usual.weights.tobytes()


def test_sites_take_no_step_from_a_total_that_is_not_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TotalsProtocol.inputs

    def inputs(self: TotalsProtocol, number: int) -> dict[str, bytes]:
        said = honest(self, number)
        if number == 2:
            total = np.frombuffer(said["total"], dtype="<u8").copy()
            total[0] = (total[0] + 2**40) % (2**61 - 1)
            said = {**said, "total": total.tobytes()}
        return said

    monkeypatch.setattr(TotalsProtocol, "inputs", inputs)
    with pytest.raises(IntegrityError, match="not the sum of what the listed sites contributed"):
        fitted(rounds=4)
    monkeypatch.setattr(checked_training, "proven_total", lambda secret, binding, sites, total: total[:-1])
    assert fitted(rounds=4).rounds == 4


def test_sites_that_miss_rounds_catch_up() -> None:
    faults = {"faults": {"drop": 0.3}, "quorum": 0.2}
    with listening() as carried:
        outcome = run(plan(rounds=6, secure={"sum": "none"}, sites=faults), seed=3, tables=tables(sites=6))
    assert any(task == "additive.catch-up" for _, task, _, _ in carried.replies)
    assert {number for _, task, number, _ in carried.replies if task == "additive.own"} == set(range(6))
    assert outcome.rounds == 6
    assert outcome.metrics["accuracy"] > 0.6


# With a budget.

BUDGET = {"epsilon": 8.0, "delta": 1e-4}


def test_with_a_budget_it_still_learns() -> None:
    assert fitted(dp=BUDGET, rounds=6).metrics["accuracy"] > 0.65


def _private(target: str) -> tuple[PrivateLearner, Any]:
    made, given = plan(target, dp=BUDGET), tables()
    schema = _schema_of(made, given)
    approved = approved_plan_for(made, schema=schema, run="twin", sites=tuple(given))
    domain = declared_domain(approved.schema, missing=approved.missing)
    assert domain is not None
    encoder = Encoder(schema, domain)
    learner = start(Setting(approved=approved, encoder=encoder, seed=bytes(16), members=4, sigma=0.5))
    assert isinstance(learner, PrivateLearner)
    return learner, encode_rows(encoder, given["s0"])


@pytest.mark.parametrize("target", ["sick", "kind", "cost"])
def test_one_row_adds_no_more_than_the_sensitivity(target: str) -> None:
    learner, rows = _private(target)
    for number in range(3):
        without = learner.contribution(rows.part(1, rows.count), RowCache())
        norms = [
            float(np.linalg.norm((learner.contribution(rows.part(a, a + 1), RowCache())).astype(float)))
            for a in range(40)
        ]
        whole = learner.contribution(rows, RowCache())
        assert float(np.linalg.norm((whole - without).astype(float))) <= learner.sensitivity * (1 + 1e-9)
        assert max(norms) <= learner.sensitivity * (1 + 1e-9)
        if number == 0 and target != "cost":
            assert max(norms) >= 0.999 * learner.sensitivity, "the bound is not loose"
        learner = learner.after(whole * 4, 4)


def test_residuals_of_two_classes_are_cut_but_not_below_those_of_a_rare_class() -> None:
    learner, rows = _private("sick")
    assert learner._cut(np.asarray([600.0, 400.0])) == 0.8
    assert learner._cut(np.asarray([950.0, 50.0])) == pytest.approx(0.95)
    assert learner._cut(np.asarray([-3.0, 99.0])) == pytest.approx(0.99), "noise may make a count negative"
    counted = learner.after(learner.contribution(rows, RowCache()) * 4, 4)
    assert counted.sensitivity == pytest.approx(2.0**28 * counted.cut * sqrt(len(counted.columns)))
    sure = replace(counted, w=np.vstack([counted.w[:-1], [[9.0]]]))  # of one class, whatever the row
    largest = max(np.abs(sure.contribution(rows.part(row, row + 1), RowCache())).max() for row in range(20))
    assert 0.999 * counted.cut <= largest / 2.0**28 <= counted.cut < 0.9
    again = learner.restored(counted.checkpoint())
    assert again.sensitivity == counted.sensitivity, "a restored learner adds the same noise"


def test_shares_of_the_budget_add_up_to_all_of_it() -> None:
    learner, rows = _private("sick")
    spent = 0.0
    while not learner.finished:
        spent += learner.share
        learner = learner.after(learner.contribution(rows, RowCache()) * 4, 4)
    assert spent == pytest.approx(1.0)


@pytest.mark.parametrize(("scheme", "needed"), [("none", 1), ("masks", 3)])
def test_a_share_of_the_noise_is_what_the_plan_says(scheme: str, needed: int) -> None:
    learner, _ = _private("sick")
    made = plan("sick", dp=BUDGET, secure={"sum": scheme})
    approved = replace(learner.setting.approved, config=made.config, secure=made.config.secure)
    setting = replace(learner.setting, approved=approved)
    assert setting.deviation(2.0, 0.25) == pytest.approx(0.5 * 2.0 / 0.5 / np.sqrt(needed))


def test_noise_that_leaves_a_site_has_the_planned_deviation() -> None:
    with listening() as carried:
        run(plan("sick", dp=BUDGET, secure={"sum": "none"}, rounds=3), seed=5, tables=tables())
    learner, _ = _private("sick")
    given = tables()
    population = _population(plan("sick", dp=BUDGET), given)
    noises = []
    for index, name in enumerate(population.names):
        reply = next(
            data for site, task, number, data in carried.replies if (site, task, number) == (name, "additive.own", 0)
        )
        frame = population.frame[int(population.starts[index]) : int(population.starts[index + 1])]
        exact = learner.contribution(encode_rows(learner.setting.encoder, frame), RowCache())
        noises.append(decode(reply).arrays["numbers"] - exact)
    sigma = calibrate(epsilon=8.0, delta=1e-4, rate=1.0, steps=1)
    planned = sigma * COUNT_STEPS * np.sqrt(3 + 1) / np.sqrt(0.1)
    found = float(np.std(np.concatenate(noises)))
    assert found == pytest.approx(planned, rel=0.06)


def test_a_budget_too_small_for_any_bin_is_refused() -> None:
    with pytest.raises(KohortError, match="too small for any column"):
        fitted(dp={"epsilon": 0.01, "delta": 1e-4})


# Awkward tables.


def awkward(rows: int = 900) -> pl.DataFrame:
    """A constant column, 300 categories, an item set, a number with declared bins, a target beyond its bounds."""
    random = np.random.default_rng(4)
    code, level = random.integers(0, 300, rows), random.normal(0, 1, rows)
    items = [";".join(random.choice(["i", "j", "k"], random.integers(0, 3), replace=False)) for _ in range(rows)]
    return pl.DataFrame(
        {
            "same": np.full(rows, 3.0),
            "code": [f"c{number:03d}" for number in np.where(random.random(rows) < 0.6, code % 3, code)],
            "things": items,
            "level": level,
            "sick": np.where(random.random(rows) < 1 / (1 + np.exp(-2 * level)), "a", "b"),
            "cost": level * 4,
        }
    )


@pytest.mark.parametrize("encoding", ["label", "onehot"])
@pytest.mark.parametrize("target", ["sick", "cost"])
def test_awkward_columns_are_read(target: str, encoding: str) -> None:
    frame = awkward()
    other = "cost" if target == "sick" else "sick"
    data = {
        "table": "made",
        "target": target,
        "features": "rest",
        "keep": ["code"],
        "items": ["things"],
        "drop": [other],
        "bins": {"level": [-1.0, 0.0, 1.0]},
        "bounds": {"same": [0, 5]} | ({"cost": [-1, 1]} if target == "cost" else {}),
        "encoding": encoding,
        "test": 0.3,
    }
    made = {"data": data, "sites": {"count": 3, "split": "iid"}, "method": {"name": "additive", "rounds": 6}}
    outcome = run(load_plan({**made, "policy": {"min_rows": 1}}), seed=2, tables={"made": frame})
    curves = outcome.model.curves()
    assert curves["same"]["bins"] == ["all"]
    assert curves["level"]["bins"] == ["up to -1", "-1 to 0", "0 to 1", "above 1"]
    assert next(iter(curves)) == "level"
    assert {name for name in curves if name.startswith("things")} >= {"things=i", "things=j", "things=k"}
    assert len(curves["code"]["bins"]) < 60
    assert not outcome.model.diverged


def test_a_site_with_one_class_takes_part() -> None:
    made = tables()
    made["s0"] = made["s0"].filter(pl.col("sick") == "ill")
    assert run(plan(rounds=5), seed=5, tables=made).metrics["accuracy"] > 0.6


def test_a_person_with_many_rows_counts_once_for_a_bin() -> None:
    """Bins hold persons: a value that one person repeats gets no bin of its own."""
    made = {
        name: table.with_columns(pl.Series("who", [f"{name}-{number}" for number in range(table.height)]))
        for name, table in tables().items()
    }
    lonely = made["s0"].with_columns(pl.lit(99).alias("age"), pl.lit("s0-x").alias("who"))
    made["s0"] = pl.concat([made["s0"], lonely], how="vertical_relaxed")
    raw = plan(rounds=3).in_effect()
    raw["data"] |= {"identifiers": ["who"]}
    model = run(load_plan(raw), seed=5, tables=made).model
    last = model.curves()["age"]
    assert not last["bins"][-1].startswith("above 9")
    assert min(last["counts"]) >= 20


@pytest.mark.parametrize("secure", ["masks", "none"])
def test_a_budget_works_where_no_domain_is_declared(secure: str) -> None:
    """Hub and sites once took noise of different sizes: learning the domain is part of the budget for both."""
    random = np.random.default_rng(3)
    rows = 2400
    age, dose = random.integers(20, 80, rows), random.normal(5, 2, rows).round(1)
    ill = np.where(age / 40 + dose / 5 + random.normal(0, 0.5, rows) > 2.4, "ill", "well")
    frame = pl.DataFrame({"age": age, "dose": dose, "ward": random.choice(["a", "b"], rows), "outcome": ill})
    plan = load_plan(
        {
            "data": {"table": "memory", "target": "outcome", "features": "rest"},
            "sites": {"count": 3},
            "method": {"name": "additive", "dp": {"epsilon": 3.0, "delta": 1e-5}, "secure": {"sum": secure}},
        }
    )
    found = run(plan, seed=1, tables={"": frame})
    assert found.rounds > 1
    assert found.epsilon == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("target", ["sick", "kind", "cost"])
def test_the_gram_metric_comes_nearer_to_the_optimum_where_columns_go_together(target: str) -> None:
    given = {
        site: frame.with_columns(dose=(pl.col("age") / 10 + pl.col("dose").fill_null(4.0) / 5).round(2))
        for site, frame in tables().items()
    }

    def model(**own: Any) -> AdditiveModel:
        made = plan(target, secure={"sum": "none"}, policy={"pairs": "open"}, **own)
        found = run(made, seed=5, tables=given).model
        assert isinstance(found, AdditiveModel)
        return found

    best = model(rounds=100)
    assert _distance(model(rounds=7, metric="gram"), best) < 0.5 * _distance(model(rounds=7), best)


def _distance(one: AdditiveModel, other: AdditiveModel) -> float:
    return float(np.sqrt(np.mean(np.square(one.values - other.values))))


def test_pairs_open_by_masks_only_where_the_policy_says_so_and_give_the_pooled_model() -> None:
    with pytest.raises(RefusedError, match="pairs"):
        fitted(rounds=4, metric="gram")
    model = fitted(rounds=4, metric="gram", policy={"pairs": "open"}).model
    twin = pooled("sick", 3, rounds=4, metric="gram", policy={"pairs": "open"})
    assert model.weights.tobytes() == twin.weights.tobytes()


def test_a_key_holder_rounds_small_pairs_before_the_hub_sees_them() -> None:
    rounded = plan(rounds=9, metric="gram", secure={"sum": "bfv"}, policy={"min_cell": 20})
    with listening() as carried:
        outcome = run(rounded, seed=5, tables=tables())
    (opened,) = [data for _, task, number, data in carried.replies if (task, number) == ("sum.open", 1)]
    counts = decode(opened).arrays["total"]
    assert set(np.unique(counts[counts < 20])) == {0}
    assert (counts == 20).sum() > 5
    true = _pair_counts()
    assert ((true > 0) & (true < 20)).sum() > 20, "there was something to round"
    assert (counts[true >= 20] == true[true >= 20]).all()
    assert outcome.metrics["accuracy"] > 0.7


def _pair_counts() -> np.ndarray:
    """Counted row by row, by the values that the test's table has."""
    model = fitted(rounds=4).model
    places = model.bins.of_rows(codes_of(model.bins.columns, model.encoder.transform(_training_rows(plan(), tables()))))
    found = []
    for one in range(3):
        for two in range(one + 1, 3):
            seen = Counter(zip(places[one].tolist(), places[two].tolist(), strict=True))
            spans = [range(int(model.bins.starts[at]), int(model.bins.starts[at + 1])) for at in (one, two)]
            found += [seen[a, b] for a in spans[0] for b in spans[1]]
    return np.asarray(found)


def test_a_rounded_total_that_the_key_holder_did_not_sign_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TotalsProtocol.inputs

    def inputs(self: TotalsProtocol, number: int) -> dict[str, bytes]:
        said = honest(self, number)
        if number == 2:
            total = np.frombuffer(said["total"], dtype="<u8").copy()
            total[0] += 20
            said = {**said, "total": total.tobytes()}
        return said

    asked = {"rounds": 4, "metric": "gram", "secure": {"sum": "bfv"}}
    monkeypatch.setattr(TotalsProtocol, "inputs", inputs)
    with pytest.raises(IntegrityError, match="not what the key-holder opened"):
        fitted(**asked)
    monkeypatch.setattr(checked_training, "signed_total", lambda *given: given[-1][:-8])
    assert fitted(**asked).rounds == 4


def test_more_bins_than_a_gram_matrix_can_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MOST_BINS", 10)
    with pytest.raises(RefusedError, match="too many pairs"):
        fitted(rounds=4, metric="gram", policy={"pairs": "open"})
    with pytest.raises(ConfigError, match="no budget"):
        plan(metric="gram", dp=BUDGET)


def test_a_report_shows_the_curves_and_importances_of_the_model(tmp_path: Path) -> None:
    outcome = run(plan(rounds=4), seed=5, tables=tables(), out=tmp_path / "run")
    page = outcome.report()
    assert page.count("<svg viewBox") == 3 + 3, "a curve and a bar for each of three columns"
    for name in ("age", "dose", "town"):
        assert f"<h2>{name} <small>importance" in page
    written = write_and_read(tmp_path / "run")
    assert written.count("<svg viewBox") == 6
    assert "<h2>age <small>importance" in written
    private = run(plan(dp=BUDGET, rounds=4), seed=5, tables=tables()).report()
    assert 'fill-opacity="0.2"' in page
    assert 'fill-opacity="0.2"' not in private, "no intervals under a budget"


def write_and_read(folder: Path) -> str:
    """The page that `kohort report` writes about a run folder."""
    result = CliRunner().invoke(build(), ["report", str(folder), "--title", "A run of additive"])
    assert result.exit_code == 0, result.output
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", ["gram", "ridge"])
def test_a_learner_with_pairs_is_restored_at_every_total(method: str) -> None:
    made, given = plan(metric="gram", rounds=5, policy={"pairs": "open"}), tables()
    schema = _schema_of(made, given)
    approved = approved_plan_for(made, schema=schema, run="twin", sites=tuple(given))
    domain = declared_domain(approved.schema, missing=approved.missing)
    assert domain is not None
    encoder = Encoder(schema, domain)
    own = Additive(rounds=2) if method == "ridge" else None
    setting = Setting(approved=approved, encoder=encoder, seed=bytes(16), members=4, own=own)
    begin = RidgeLearner if method == "ridge" else start
    rows, learner = encode_rows(encoder, _training_rows(made, given)), begin(setting)
    while not learner.finished:
        learner = begin(setting).restored(learner.checkpoint())
        learner = learner.after(learner.contribution(rows, RowCache()), 4)
    whole = learn_pooled(begin, setting, [rows], 5).model
    assert learner.model is not None
    assert whole is not None
    assert learner.model.weights.tobytes() == whole.weights.tobytes()


def test_sites_that_miss_the_total_of_pairs_catch_up_by_its_signature() -> None:
    faults = {"faults": {"drop": 0.25}, "quorum": 0.2}
    asked = plan(rounds=7, metric="gram", secure={"sum": "none"}, sites=faults, policy={"pairs": "open"})
    with listening() as carried:
        outcome = run(asked, seed=3, tables=tables(sites=6))
    assert any(task == "additive.catch-up" for _, task, _, _ in carried.replies)
    assert outcome.metrics["accuracy"] > 0.6


def test_fewer_persons_than_bins_need_are_a_clear_line() -> None:
    few = {site: frame.head(6) for site, frame in tables().items()}
    with pytest.raises(KohortError, match="classes have fewer than 20 persons") as caught:
        run(plan(rounds=3), seed=5, tables=few)
    assert caught.value.exit_code == 4


def test_a_table_of_constant_columns_is_a_clear_line() -> None:
    same = {
        site: frame.with_columns(age=pl.lit(40), dose=pl.lit(2.0), town=pl.lit("west"))
        for site, frame in tables().items()
    }
    with pytest.raises(KohortError, match="no column has two bins") as caught:
        run(plan(rounds=3), seed=5, tables=same)
    assert caught.value.exit_code == 3


def test_a_target_outside_its_bounds_is_clipped_and_counted() -> None:
    given = {name: frame.with_columns(cost=pl.col("cost") + pl.lit(20.0)) for name, frame in tables().items()}
    outcome = run(plan("cost", rounds=3), seed=5, tables=given)
    told = [entry for entry in outcome.left_out if entry.what == "values of cost"]
    assert [(entry.why, entry.done) for entry in told] == [("outside the bounds", "clipped")]
    assert outcome.model.predict(given["s0"]).max() <= 10.0 + 1e-6
