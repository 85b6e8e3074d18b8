"""Additive models and forests on anonymised rows: what is learned, from which rows, and what is claimed of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.methods.test_silo import tables

from kohort.errors import ConfigError, RefusedError
from kohort.methods.learners import LearnerKeys, learner_of
from kohort.methods.registry import find_method
from kohort.methods.silo import LEARN
from kohort.models.files import load_model
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import Aggregate, Cells, KAnonymous, SecureSum
from kohort.rng import Streams
from kohort.rounds.totals.learner import RowCache, learn_pooled
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan, load_plan
from kohort.runs.explain import explain_plan
from kohort.runs.run import Outcome, Progress, run
from kohort.tables.schema import Schema

SIZES = {"a": 190, "b": 230, "c": 161}
DECLARED = {
    "bounds": {"age": [20, 80], "dose": [0, 8]},
    "categories": {"ward": ["north", "south", "west"], "outcome": ["ill", "well"]},
}
SMALL = {"additive": {"rounds": 3, "min_bin": 5}, "trees": {"steps": 2, "depth": 2, "trees": 2, "min_leaf": 5}}
OWN: dict[str, Any] = {
    "silo": {"anonymise": {"k": 4}},
    "syntactic": {"anonymise": {"k": 4}},
    "partial": {"gate": {"k": 2, "release_k": 5, "release_l": 1, "count": "local", "key": "exact"}},
}
BOTH = pytest.mark.parametrize("kind", ["additive", "trees"])
ALL = pytest.mark.parametrize("method", sorted(OWN))


def _plan(method: str, kind: str, *, scheme: str = "masks", **sections: Any) -> Plan:
    secure = {"secure": {"sum": scheme}}
    own = {**SMALL.get(kind, {}), **({} if method == "partial" else secure)}
    base: dict[str, Any] = {
        "data": {
            "table": "memory",
            "target": "outcome",
            "quasi": ["age", "ward"],
            "sensitive": ["outcome"],
            "features": "rest",
            **DECLARED,
        },
        "sites": {"split": "files"},
        "model": {"kind": kind},
        "method": {"name": method, **OWN[method], kind: own, **(secure if method == "partial" else {})},
        "policy": {"min_rows": 1, "min_k": 2, "min_cell": 1},
    }
    return load_plan({name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})


def _run(plan: Plan, **options: Any) -> Outcome:
    return run(plan, seed=2, tables=tables(SIZES), **options)


def _bytes(outcome: Outcome) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in outcome.model.save().arrays.items()}


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The sites of the next run, to look at the rows they learned from."""
    from kohort.runs import backend

    caught: dict[str, Any] = {}
    real = backend.simulated_sites

    def keep(*arguments: Any) -> Any:
        made = real(*arguments)
        caught.update(made)
        return made

    monkeypatch.setattr(backend, "simulated_sites", keep)
    return caught


@ALL
@BOTH
def test_sums_in_clear_and_by_masks_give_the_same_model(method: str, kind: str, sites: dict[str, Any]) -> None:
    masked = _run(_plan(method, kind))
    assert masked.model.kind == kind
    assert masked.accuracy > 0.7
    assert _bytes(_run(_plan(method, kind, scheme="none"))) == _bytes(masked)
    for site in sites.values():
        soft = [column.first for column in site.training_rows.soft]
        assert bool(soft) == (method != "partial"), "generalised cells are spread; partial releases means"


@BOTH
def test_rows_of_all_sites_in_one_place_give_the_same_model(kind: str, sites: dict[str, Any]) -> None:
    plan = _plan("silo", kind)
    outcome = _run(plan)
    streams, encoder = Streams.choose(2, secure=False), outcome.model.encoder
    seed = Streams(streams.bytes("hub"), streams.seed).bytes("start", length=16)
    schema = encoder.schema
    approved = approved_plan_for(plan, schema=schema, run="any", sites=tuple(sites))
    training = LEARN.of(plan.config)
    setting = training.setting(approved, encoder, seed, 3, 0.0)
    rows = [site.training_rows for site in sites.values()]
    model = learn_pooled(training.start, setting, rows, training.rounds(approved)).model
    assert model is not None
    assert {name: array.tobytes() for name, array in model.save().arrays.items()} == _bytes(outcome)


@ALL
@BOTH
def test_an_interrupted_run_goes_on_to_the_same_bytes(method: str, kind: str, tmp_path: Path) -> None:
    class _StopError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise _StopError

    plan = _plan(method, kind)
    whole = _run(plan, out=tmp_path / "whole")
    with pytest.raises(_StopError):
        _run(plan, out=tmp_path / "cut", watch=stop)
    resumed = run(plan, seed=2, tables=tables(SIZES), out=tmp_path / "cut", resume=True)
    assert _bytes(resumed) == _bytes(whole)
    ledgers = [(tmp_path / part / "ledger" / "ledger.jsonl").read_bytes() for part in ("whole", "cut")]
    assert len(ledgers[0].splitlines()) == len(ledgers[1].splitlines())
    loaded = load_model(tmp_path / "cut")
    frame = tables(SIZES)["a"]
    assert loaded.predict(frame).to_list() == resumed.model.predict(frame).to_list()


@BOTH
def test_only_the_anonymised_cells_of_quasi_identifiers_are_learned_from(kind: str, sites: dict[str, Any]) -> None:
    """Whatever encoded number stands in place of a generalised cell, it adds nothing of its own to any total."""
    plan = _plan("silo", kind)
    outcome = _run(plan)
    site, training = sites["a"], LEARN.of(plan.config)
    setting = training.setting(site.plan, site.encoder, b"sixteen bytes ok", 3, 0.0)
    rows = site.training_rows
    assert 0 in {column.first for column in rows.soft}, "ages are intervals"
    x = rows.x.copy()
    for column in rows.soft:
        x[column.of_row >= 0, column.first] = 0.123
    learner, other = training.start(setting), replace(rows, x=x)
    assert outcome.model.kind == kind
    found = [learner.contribution(part, RowCache()) for part in (rows, other)]
    if kind == "additive":
        assert (found[0] == found[1]).all()
        return
    # Forests draw by a hash of the encoded row: the drawn values differ, their number does not.
    assert found[0].sum() == found[1].sum()


def test_claims_say_what_opens() -> None:
    silo, partial = find_method("silo"), find_method("partial")
    made = silo.claims(_plan("silo", "additive").config, 500)
    assert [type(claim) for claim in made] == [KAnonymous, SecureSum, Cells]
    assert [type(claim) for claim in silo.claims(_plan("silo", "trees").config, 500)] == [KAnonymous, SecureSum, Cells]
    assert Cells(least=1) in partial.claims(_plan("partial", "additive").config, 500)
    network = load_plan({"data": {"table": "memory"}, "method": {"name": "silo"}}).config
    assert [type(claim) for claim in silo.claims(network, 500)] == [KAnonymous, Aggregate]


def _contract(method: str, kind: str) -> Contract:
    plan = _plan(method, kind)
    schema = Schema.of(target="outcome", features=("dose",), quasi=("age", "ward"))
    return approved_plan_for(plan, schema=schema, run="any", sites=("a", "b", "c")).contract


def test_the_contract_names_the_sums_and_no_weights() -> None:
    steps = {step.task: step.says for step in _contract("silo", "additive")}
    assert "off in each bin" in steps["silo.additive.total"]
    assert not any("weights" in says for says in steps.values())
    assert not any("your classes" in step.says for step in _contract("syntactic", "trees"))
    assert explain_plan(_plan("silo", "additive")).method == "silo"


def test_a_policy_with_a_minimum_cell_refuses_what_the_hub_could_subtract_from() -> None:
    with pytest.raises(RefusedError, match="min_sum_cell 5"):
        _run(_plan("partial", "additive", policy={"min_rows": 1, "min_k": 2, "min_cell": 1, "min_sum_cell": 5}))


@pytest.mark.parametrize(
    ("method", "kind", "own", "said"),
    [
        ("silo", "additive", {"trees": {"steps": 3}}, r"\[method.trees\] is not read"),
        ("silo", "mlp", {"additive": {}}, r"\[method.additive\] is not read"),
        ("silo", "additive", {"additive": {"dp": {"epsilon": 1.0}}}, "budget does not hold over anonymised rows"),
        ("partial", "trees", {"trees": {"secure": {"sum": "none"}}}, "method.trees.secure is not read"),
        ("fedavg", "trees", {}, "'fedavg' does not learn a model of kind 'trees'"),
    ],
)
def test_what_does_not_go_together_is_refused(method: str, kind: str, own: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_plan({"data": {"table": "m"}, "model": {"kind": kind}, "method": {"name": method, **own}})


def test_keys_of_a_network_are_not_read() -> None:
    with pytest.raises(ConfigError, match=r'with model\.kind = "additive" does not read train\.lr'):
        _plan("silo", "additive", train={"lr": 0.1})


def test_a_plan_spelt_out_is_the_same_plan() -> None:
    plan = _plan("silo", "trees")
    again = load_plan(plan.to_mapping(), complete=True)
    assert again.digest() == plan.digest()
    assert isinstance(again.config, LearnerKeys)
    assert learner_of(again.config) == learner_of(plan.config)


def test_generalised_item_sets_are_learned_from() -> None:
    generator = np.random.default_rng(3)
    frames = {}
    for name in "abc":
        codes = [sorted(generator.choice(list("pqrstu"), 2, replace=False).tolist()) for _ in range(160)]
        ill = ["ill" if "p" in held and generator.random() < 0.9 else "well" for held in codes]
        frames[name] = pl.DataFrame({"age": generator.integers(20, 80, 160), "codes": codes, "outcome": ill})
    plan = load_plan(
        {
            "data": {
                "table": "memory",
                "target": "outcome",
                "quasi": ["age"],
                "items": ["codes"],
                "features": "rest",
                "bounds": {"age": [20, 80]},
                "categories": {"codes": list("pqrstu"), "outcome": ["ill", "well"]},
            },
            "sites": {"split": "files"},
            "model": {"kind": "additive"},
            "method": {"name": "syntactic", "anonymise": {"k": 4, "m": 2}, "additive": {"rounds": 6, "min_bin": 5}},
            "policy": {"min_rows": 1, "min_k": 2, "min_cell": 1},
        }
    )
    outcome = run(plan, seed=1, tables=frames)
    assert outcome.accuracy > 0.75
