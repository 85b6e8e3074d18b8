"""Each silo anonymises alone, trains on what the checker passed, and says so in its ledger."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.errors import ConfigError, RefusedError, SiteError
from kohort.methods import fedavg, silo
from kohort.methods.registry import find_method
from kohort.methods.silo import Anonymise, anonymise_rows, claims, encode_anonymised
from kohort.privacy.guarantee import Aggregate, KAnonymous
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Progress, run
from kohort.runs.simulation import schema_of
from kohort.tables.encoder import Encoder, learn_domain

SIZES = {"a": 90, "b": 130, "c": 61}


def tables(sizes: dict[str, int] | None = None, *, seed: int = 4) -> dict[str, pl.DataFrame]:
    random = np.random.default_rng(seed)
    made = {}
    for name, rows in (sizes or SIZES).items():
        age, ward = random.integers(20, 80, rows), random.choice(["north", "south", "west"], rows)
        dose = random.normal(4.0, 1.0, rows).round(2)
        ill = (age + 10 * (ward == "west") + 5 * dose + random.normal(0, 8, rows)) > 75
        made[name] = pl.DataFrame({"age": age, "dose": dose, "ward": ward, "outcome": np.where(ill, "ill", "well")})
    return made


def plan(*, anonymise: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Plan:
    base: dict[str, dict[str, Any]] = {
        "data": {
            "table": "memory",
            "target": "outcome",
            "quasi": ["age", "ward"],
            "sensitive": ["outcome"],
            "features": "rest",
        },
        "sites": {"split": "files"},
        "model": {"hidden": [5]},
        "train": {"rounds": 3, "batch": 16, "lr": 0.01},
        "method": {"name": "silo", "anonymise": {"k": 4, **(anonymise or {})}},
        "policy": {"min_rows": 1, "min_k": 2},
    }
    return load_plan({name: {**part, **sections.get(name, {})} for name, part in base.items()})


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The sites of the next run, to look into their memories afterwards."""
    from kohort.runs import backend

    caught: dict[str, Any] = {}
    real = backend.simulated_sites

    def keep(*arguments: Any) -> Any:
        made = real(*arguments)
        caught.update(made)
        return made

    monkeypatch.setattr(backend, "simulated_sites", keep)
    return caught


def ledger_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("encoding", ["label", "onehot"])
def test_a_site_trains_on_classes_of_k_rows(sites: dict[str, Any], encoding: str) -> None:
    made = plan(data={"encoding": encoding})
    outcome = run(made, seed=1, tables=tables())
    names = outcome.model.encoder.feature_names
    quasi = [place for place, name in enumerate(names) if not name.startswith("dose")]
    assert len(sites) == 3
    for site in sites.values():
        trained: Any = site.training_rows
        raw = outcome.model.encoder.transform(site.table.rows())
        assert np.unique(trained.x[:, quasi], axis=0, return_counts=True)[1].min() >= 4
        assert not np.array_equal(trained.x[:, quasi], raw[:, quasi])
        if trained.count == site.count:  # columns that are no quasi-identifiers are as they were, in the same order
            assert np.array_equal(np.delete(trained.x, quasi, axis=1), np.delete(raw, quasi, axis=1))


@pytest.mark.parametrize(
    "anonymise",
    [
        {"algorithm": "mondrian"},
        {"algorithm": "thesis"},
        {"algorithm": "lattice", "hierarchies": "intervals", "keep_exact": False},
        {"algorithm": "lattice", "hierarchies": "intervals", "suppression_limit": 0.1},
        {"l": 2, "t": 0.4, "t_kind": "kl"},
    ],
    ids=str,
)
def test_every_way_to_anonymise_is_trained_on(sites: dict[str, Any], anonymise: dict[str, Any]) -> None:
    outcome = run(plan(anonymise=anonymise), seed=1, tables=tables())
    assert set(sites) == set(SIZES)
    for site in sites.values():
        trained: Any = site.training_rows
        quasi = [place for place, name in enumerate(outcome.model.encoder.feature_names) if name != "dose"]
        assert 0 < trained.count <= site.count
        assert np.unique(trained.x[:, quasi], axis=0, return_counts=True)[1].min() >= 4
    left = sum(site.training_rows.count for site in sites.values())
    suppressed = sum(site.count for site in sites.values()) - left
    assert any("suppressed" in note for note in outcome.notes) == (suppressed > 0)


def test_hierarchies_come_from_a_folder_at_the_site(tmp_path: Path, sites: dict[str, Any]) -> None:
    decades = [f"{age};{age // 10 * 10} to {age // 10 * 10 + 9};*" for age in range(20, 80)]
    (tmp_path / "age.csv").write_text("\n".join(decades) + "\n")
    (tmp_path / "ward.csv").write_text("north;outer;*\nsouth;outer;*\nwest;inner;*\n")
    run(plan(anonymise={"hierarchies": str(tmp_path)}), seed=1, tables=tables())
    assert all(site.training_rows.count for site in sites.values())
    with pytest.raises(SiteError, match="no folder"):
        run(plan(anonymise={"hierarchies": str(tmp_path / "absent")}), seed=1, tables=tables())


def test_a_category_that_looks_like_a_generalised_cell_is_read_as_it_is(sites: dict[str, Any]) -> None:
    """Columns that anonymising leaves alone are encoded plainly, whatever their texts look like."""
    marks = {"north": "*", "south": "[1, 2]", "west": "{a, b}"}
    changed = {name: table.with_columns(kind=pl.col("ward").replace_strict(marks)) for name, table in tables().items()}
    outcome = run(plan(), seed=1, tables=changed)
    place = outcome.model.encoder.feature_names.index("kind")
    for site in sites.values():
        plain = outcome.model.encoder.transform(site.table.rows())[:, place]
        assert np.array_equal(site.training_rows.x[:, place], plain)


def test_the_ledger_holds_the_verdict_and_only_counts_leave(tmp_path: Path) -> None:
    run(plan(anonymise={"l": 2}), out=tmp_path / "run", seed=1, tables=tables())
    lines = [line for line in ledger_lines(tmp_path / "run") if line.get("what") == "silo.anonymise"]
    assert {line["site"] for line in lines} == set(SIZES)
    for line in lines:
        assert line["guarantee"]["kind"] == "k-anonymous"
        assert (line["guarantee"]["k"], line["guarantee"]["l"]) == (4, 2)
        assert line["guarantee"]["verified"] is True
        assert line["size"] < 200
    trained = [line for line in ledger_lines(tmp_path / "run") if line.get("what") == "train"]
    assert {line["guarantee"]["kind"] for line in trained} == {"aggregate"}
    left = {line["site"]: line["rows"] for line in lines}
    assert all(line["guarantee"]["rows"] == line["rows"] == left[line["site"]] for line in trained)


def test_a_policy_with_a_larger_k_refuses_before_anything_leaves(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="min_k"):
        run(plan(policy={"min_k": 5}), out=tmp_path / "run", seed=1, tables=tables())
    assert {line["event"] for line in ledger_lines(tmp_path / "run")} == {"open", "refusal"}


def test_a_silo_too_small_for_k_takes_no_part_and_trains_on_nothing(sites: dict[str, Any]) -> None:
    outcome = run(plan(anonymise={"k": 9}), seed=1, tables=tables({**SIZES, "tiny": 9}))
    assert set(outcome.dropped) == {"tiny"}
    assert "9-anonymous" in outcome.dropped["tiny"]
    assert sites["tiny"].training_rows is None
    assert outcome.rounds == 3


def test_when_no_silo_can_meet_it_the_run_ends() -> None:
    with pytest.raises(RefusedError, match="anonymous"):
        run(plan(anonymise={"k": 500}), seed=1, tables=tables())


def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    whole = run(plan(), out=tmp_path / "whole", seed=2, tables=tables())
    with pytest.raises(KeyboardInterrupt):
        run(plan(), out=tmp_path / "cut", seed=2, tables=tables(), watch=stop)
    resumed = run(plan(), out=tmp_path / "cut", seed=2, tables=tables(), resume=True)
    assert resumed.model.weights.tobytes() == whole.model.weights.tobytes()
    for name in ("ledger.jsonl", "receipts.jsonl", "head.json"):
        assert (tmp_path / "cut" / "ledger" / name).read_bytes() == (tmp_path / "whole" / "ledger" / name).read_bytes()


def test_the_unguarded_step_of_the_thesis_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"method\.anonymise\.keep_exact"):
        plan(anonymise={"keep_exact": "thesis"})


def test_without_quasi_identifiers_there_is_nothing_to_anonymise() -> None:
    with pytest.raises(ConfigError, match="quasi"):
        run(plan(data={"quasi": []}), seed=1, tables=tables())


def test_an_unknown_algorithm_is_the_plan_s_fault() -> None:
    with pytest.raises(ConfigError, match="mondrain") as caught:
        run(plan(anonymise={"algorithm": "mondrain"}), seed=1, tables=tables())
    assert "mondrian" in caught.value.hint


@pytest.mark.parametrize(("word", "meant"), [("intervalls", "Did you mean 'intervals'?"), ("x", "Valid: ")])
def test_unknown_hierarchies_are_the_plan_s_fault(word: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown method\.anonymise\.hierarchies") as caught:
        run(plan(anonymise={"hierarchies": word}), seed=1, tables=tables())
    assert meant in caught.value.hint
    assert "./folder" in caught.value.hint
    assert caught.value.exit_code == 2


def test_a_target_cannot_be_a_quasi_identifier() -> None:
    with pytest.raises(ConfigError, match="outcome"):
        run(plan(data={"quasi": ["age", "outcome"]}), seed=1, tables=tables())


def test_l_and_t_need_a_sensitive_column() -> None:
    with pytest.raises(ConfigError, match="sensitive"):
        run(plan(anonymise={"l": 2}, data={"sensitive": []}), seed=1, tables=tables())


def test_claims_say_what_the_sites_will_be_asked_for() -> None:
    config = silo.Silo(anonymise=Anonymise(k=4, l=2, t=0.3))
    assert claims(config, 70) == (KAnonymous(k=4, l=2, t=0.3, rows=70, verified=True), Aggregate(rows=70))
    nothing = claims(silo.Silo(), 70)[0]
    assert nothing == KAnonymous(k=5, l=1, t=None, rows=70, verified=True)  # the policy's default min_k


@pytest.mark.parametrize("t", [0.05, 0.3])
def test_a_bound_on_kl_claims_an_earth_mover_s_distance_that_holds(t: float) -> None:
    frame = tables()["b"]
    config = Anonymise(k=3, t=t, t_kind="kl")
    schema = schema_of(plan().data, frame.columns, codebook=None, default=None)
    made = anonymise_rows(frame, schema, config)
    found = measure(made.frame, quasi=["age", "ward"], sensitive=["outcome"])
    claimed = claims(silo.Silo(anonymise=config), frame.height)[0]
    assert isinstance(claimed, KAnonymous)
    assert found.t_kl is not None
    assert found.t_emd is not None
    assert claimed.t is not None
    assert found.t_kl <= t + 1e-9
    assert found.t_emd <= claimed.t


def test_a_number_to_predict_keeps_its_scale() -> None:
    frame = tables()["b"].with_columns(pl.col("dose") * 100)
    section = load_plan({"data": {"table": "m", "target": "dose", "quasi": ["age", "ward"], "drop": ["outcome"]}}).data
    schema = schema_of(section, frame.columns, codebook=None, default=None)
    encoder = Encoder(schema, learn_domain(frame, schema, missing="drop"))
    rows = encode_anonymised(encoder, anonymise_rows(frame, schema, Anonymise(k=3)), frame)
    assert rows.y.min() == 0.0
    assert rows.y.max() == 1.0


@pytest.mark.parametrize("name", ["silo", "partial"])
def test_a_hub_that_skips_the_methods_own_task_gets_nothing_trained(
    name: str, sites: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enrolment leaves no rows to train on, so raw ones cannot be had by asking for them early."""
    impatient = replace(find_method(name), protocol=lambda config, hub: fedavg.protocol(fedavg.FedAvg(), hub))
    monkeypatch.setattr("kohort.runs.run.find_method", lambda _: impatient)
    as_partial = {**plan().to_mapping(), "method": {"name": "partial"}}
    made = plan() if name == "silo" else load_plan(as_partial, complete=True)
    with pytest.raises(SiteError, match="before it had rows"):
        run(made, seed=1, tables=tables())
    assert all(site.training_rows is None for site in sites.values())


def test_rows_of_one_patient_are_not_a_crowd() -> None:
    """Where rows say whom they are about, a silo's classes hold k persons, and its claim says so."""
    frame = tables({"a": 240})["a"].sort("ward", "age").with_columns(pl.Series("who", np.repeat(np.arange(60), 4)))
    schema = schema_of(plan(data={"identifiers": ["who"]}).data, frame.columns, codebook=None, default=None).resolve(
        frame.columns
    )
    made = anonymise_rows(frame, schema, Anonymise(k=4))
    judged = made.frame.with_columns(frame["who"])
    assert measure(judged, quasi=["age", "ward"], persons="who").k >= 4
    by_rows = anonymise_rows(frame.drop("who"), replace_identifiers(schema), Anonymise(k=4)).frame
    assert measure(by_rows.with_columns(frame["who"]), quasi=["age", "ward"], persons="who").k < 4
    step = next(iter(find_method("silo").contract(approved_for(schema))))
    assert step.claims[0].unit == "person"


def replace_identifiers(schema: Any) -> Any:
    kept = {name: spec for name, spec in schema.columns.items() if name != "who"}
    return replace(schema, columns=kept)


def approved_for(schema: Any) -> Any:
    from kohort.protocol.plan.approved import ApprovedPlan

    return ApprovedPlan(run="r", plan_hash="h", method="silo", config=silo.Silo(), schema=schema)
