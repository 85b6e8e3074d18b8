"""Pairs of columns over secure sums: the pooled model, no small cell at the hub, and what plans may ask for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, IntegrityError, KohortError
from kohort.methods.additive.config import Additive
from kohort.methods.additive.exact import ExactLearner
from kohort.methods.additive.method import start
from kohort.models.additive.model import AdditiveModel
from kohort.models.files import load_model
from kohort.models.rows import encode_rows
from kohort.protocol.wire import decode
from kohort.report.curves import curves_of_model, curves_page
from kohort.rounds.totals.learner import RowCache, Setting, learn_pooled
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.domain import declared_domain
from kohort.tables.encoder import Encoder
from kohort.testing import listening

ROWS = 300


def tables() -> dict[str, pl.DataFrame]:
    """Four sites: the target depends on whether two columns agree, on neither of them alone, and on a third."""
    random, made = np.random.default_rng(4), {}
    for site in range(4):
        one, two, three = (random.normal(0, 1, ROWS) for _ in range(3))
        town = random.choice(["north", "south", "west"], ROWS, p=[0.6, 0.3, 0.1])
        score = 3 * np.sign(one * two) * np.minimum(np.abs(one * two), 1) + three
        made[f"s{site}"] = pl.DataFrame(
            {
                "one": one,
                "two": [None if gone else value for gone, value in zip(random.random(ROWS) < 0.2, two, strict=True)],
                "three": three,
                "town": town,
                "sick": np.where(random.random(ROWS) < 1 / (1 + np.exp(-score)), "ill", "well"),
                "kind": np.where(random.random(ROWS) < 0.2, "odd", np.where(score > 0, "ill", "well")),
                "cost": score / 10 + random.random(ROWS),
            }
        )
    return made


def plan(target: str = "sick", *, policy: dict[str, Any] | None = None, **own: Any) -> Plan:
    classes = {"sick": ["ill", "well"], "kind": ["ill", "odd", "well"]}
    bounds = {name: [-5, 5] for name in ("one", "two", "three")}
    return load_plan(
        {
            "data": {
                "table": "made",
                "target": target,
                "features": "rest",
                "drop": [name for name in ("sick", "kind", "cost") if name != target],
                "bounds": bounds | ({"cost": [-2, 3]} if target == "cost" else {}),
                "categories": {"town": ["north", "south", "west"]} | {k: v for k, v in classes.items() if k == target},
                "nullable": ["two"],
                "missing": "category",
            },
            "sites": {"split": "files"},
            "method": {"name": "additive", "rounds": 8, **own},
            "policy": {"min_rows": 1, **(policy or {})},
        }
    )


def fitted(target: str = "sick", **own: Any) -> Outcome:
    return run(plan(target, **own), seed=5, tables=tables())


def setting(made: Plan, members: int) -> tuple[Setting, Encoder]:
    from kohort.rng import Streams
    from kohort.runs.simulation import populate

    schema = populate(made, Streams.seeded(5), tables=tables()).schema
    approved = approved_plan_for(made, schema=schema, run="twin", sites=tuple(tables()))
    domain = declared_domain(approved.schema, missing=approved.missing)
    assert domain is not None
    encoder = Encoder(schema, domain, encoding=approved.encoding, dtype=approved.model.dtype)
    return Setting(approved=approved, encoder=encoder, seed=bytes(16), members=members), encoder


def training_rows(made: Plan) -> pl.DataFrame:
    from kohort.rng import Streams
    from kohort.runs.simulation import populate

    frame: pl.DataFrame = populate(made, Streams.seeded(5), tables=tables()).frame
    return frame


def test_a_surface_is_found_where_two_columns_matter_together() -> None:
    alone, found = fitted().model, fitted(pairs=1).model
    assert isinstance(found, AdditiveModel)
    assert found.bins.names[-1] == "one x two"
    rows = pl.concat(tables().values())
    right = [float((model.predict(rows) == rows["sick"]).mean()) for model in (alone, found)]
    assert right[1] > right[0] + 0.05


@pytest.mark.parametrize("target", ["sick", "kind", "cost"])
def test_federated_is_pooled_bit_for_bit(target: str) -> None:
    made, model = plan(target, pairs=2), fitted(target, pairs=2).model
    given, encoder = setting(made, 1)
    whole = encode_rows(encoder, training_rows(made))
    cuts = np.linspace(0, whole.count, 4).astype(int)
    for rows in ([whole], [whole.part(int(a), int(b)) for a, b in pairwise(cuts)]):
        twin = learn_pooled(start, given, rows, 8).model
        assert isinstance(twin, AdditiveModel)
        assert isinstance(model, AdditiveModel)
        assert (twin.weights == model.weights).all()
        assert (twin.bins.flat_pairs() == model.bins.flat_pairs()).all()
        assert twin.bins.pairs


def test_the_hub_is_shown_no_small_cell_of_a_pair() -> None:
    with listening() as heard:
        model = fitted(pairs=3, min_bin=110).model
    assert isinstance(model, AdditiveModel)
    told = [decode(data) for _, task, _, data in heard.replies if task == "additive.disclose"]
    pairs = [payload.arrays["counts"] for payload in told if "pairs" in payload.arrays]
    assert pairs
    assert all(counts.min() >= 110 for counts in pairs)
    assert all(((counts == 128) | (counts % 128 == 64)).all() for counts in pairs)  # ranges
    cells = model.bins.pairs[0].cells
    assert (cells == cells.max()).sum() > 1  # some were withheld
    places = model.bins.of_rows(_codes(model))
    held = np.bincount(places[len(model.bins.columns) :].ravel(), minlength=model.bins.total)
    assert held[model.bins.alone.total :].min() >= 110


def _codes(model: AdditiveModel) -> Any:
    from kohort.models.additive.cells import codes_of

    rows = encode_rows(model.encoder, training_rows(plan()))
    return codes_of(model.bins.columns, rows.x)


def test_sites_refuse_bins_of_pairs_that_hold_few_persons() -> None:
    learner = at_choice()
    chosen = learner.after(choice_total(learner), 1)
    told = chosen.disclosed()
    assert learner.informed(told).disclosed()["counts"].tolist() == told["counts"].tolist()
    for wrong in (np.append(told["counts"][:-1], 3.0), told["counts"][:-1]):
        with pytest.raises(IntegrityError, match="pairs of columns"):
            learner.informed({**told, "counts": wrong})


def at_choice(**own: Any) -> ExactLearner:
    """The learner before pairs are chosen."""
    given, encoder = setting(plan(pairs=2, **own), 1)
    learner, rows, memory = start(given), encode_rows(encoder, training_rows(plan())), RowCache()
    for _ in range(4):
        learner = learner.after(learner.contribution(rows, memory), 1)
    assert isinstance(learner, ExactLearner)
    assert learner.chooses
    assert learner.sealed
    return learner


def choice_total(learner: ExactLearner) -> Any:
    return learner.contribution(encode_rows(learner.setting.encoder, training_rows(plan())), RowCache())


def test_a_learner_with_surfaces_is_restored_at_every_total() -> None:
    given, encoder = setting(plan(pairs=2), 1)
    learner, rows, memory = start(given), encode_rows(encoder, training_rows(plan())), RowCache()
    for _ in range(8):
        again = start(given).restored(learner.checkpoint())
        total = learner.contribution(rows, memory)
        assert (again.contribution(rows, RowCache()) == total).all()
        learner = learner.after(total, 1)
        moved = again.after(total, 1)
        assert moved.model is not None
        assert learner.model is not None
        assert (moved.model.weights == learner.model.weights).all()


def test_a_monotone_column_is_in_no_pair() -> None:
    assert at_choice()._choice.candidates == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert at_choice(monotone={"one": "up"})._choice.candidates == [(1, 2), (1, 3), (2, 3)]


def test_the_model_file_and_the_page_hold_the_surfaces(tmp_path: Path) -> None:
    outcome = fitted(pairs=1)
    outcome.save(tmp_path / "run")
    model = load_model(tmp_path / "run")
    rows = pl.concat(tables().values()).head(20)
    assert model.predict(rows).to_list() == outcome.model.predict(rows).to_list()
    parts = model.row_contributions(rows)[0]
    assert "one x two" in parts
    said = curves_of_model(model)
    assert said is not None
    grid = said["columns"]["one x two"]["grid"]
    assert len(grid["bins"]) == len(grid["rows"])
    assert len(grid["bins"][0]) == len(grid["columns"])
    page = curves_page(said["columns"], title="t", lead=said["lead"], outputs=said["outputs"])
    assert "one (down), two (across)" in page
    assert "share one value" in page
    assert "missing" in page


def test_contributions_and_intercept_add_up_to_the_score() -> None:
    model = fitted(pairs=2).model
    assert isinstance(model, AdditiveModel)
    x = model.encoder.transform(pl.concat(tables().values()))
    assert np.allclose(model.contributions(x).sum(axis=1) + model.intercept, model.scores(x))


def test_in_clear_pairs_need_a_policy_that_opens_them() -> None:
    with pytest.raises(KohortError, match="pairs"):
        fitted(pairs=1, secure={"sum": "none"})
    opened = run(plan(pairs=1, secure={"sum": "none"}, policy={"pairs": "open"}), seed=5, tables=tables()).model
    assert opened.weights.tolist() == fitted(pairs=1).model.weights.tolist()


@pytest.mark.parametrize("keys", [{"metric": "gram"}, {"rounds": 3}, {"dp": {"epsilon": 1.0, "delta": 1e-5}}])
def test_what_does_not_go_with_pairs_is_named(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="pairs of columns need"):
        load_plan({"data": {"table": "made", "target": "y"}, "method": {"name": "additive", "pairs": 1, **keys}})
    assert Additive(pairs=0).pair_round is None
