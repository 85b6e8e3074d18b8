"""Sites train on verified (k, k^m)-anonymous rows, publish their classes, and rows to predict go through them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.anonymity.checker.measures import measure
from kohort.errors import ConfigError, DataError, IntegrityError, KohortError, RefusedError, SiteError
from kohort.evaluate.tables import predict_table
from kohort.methods.syntactic import exchange as mappings
from kohort.methods.syntactic import method as syntactic
from kohort.methods.syntactic.exchange import read_mappings
from kohort.methods.syntactic.mapped_encoder import MappedEncoder, encode_in_classes
from kohort.methods.syntactic.mapping.assign import costs, map_rows
from kohort.methods.syntactic.mapping.build import union
from kohort.methods.syntactic.mapping.mapping import SiteMapping
from kohort.methods.syntactic.method import AnonymiseSection, anonymise_rows
from kohort.models import files as export
from kohort.models.files import load_model, save_model
from kohort.models.network_model import NetworkModel
from kohort.protocol.task import find_task
from kohort.runs import backend
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Progress, run
from kohort.tables.encoder import Encoder

SIZES = {"a": 120, "b": 160, "c": 90}
CODES = [f"{number:03d}" for number in range(12)]
Sites = dict[str, Any]


def tables(*, seed: int = 4, lists: bool = True) -> dict[str, pl.DataFrame]:
    random = np.random.default_rng(seed)
    made = {}
    for name, rows in SIZES.items():
        age, ward = random.integers(20, 60, rows), random.choice(["north", "south", "west"], rows)
        dose = random.normal(4.0, 1.0, rows).round(2)
        sets = [sorted(random.choice(CODES, random.integers(0, 4), replace=False).tolist()) for _ in range(rows)]
        sick = np.array(["003" in held for held in sets])
        ill = (age / 10 + 2 * sick + dose + random.normal(0, 1, rows)) > 9
        made[name] = pl.DataFrame(
            {
                "age": age,
                "dose": dose,
                "ward": ward,
                "codes": pl.Series(sets, dtype=pl.List(pl.String)) if lists else [";".join(held) for held in sets],
                "outcome": np.where(ill, "ill", "well"),
                "person": np.arange(rows),
            }
        )
    return made


def plan(*, anonymise: dict[str, Any] | None = None, share: str = "hub", **sections: dict[str, Any]) -> Plan:
    base: dict[str, dict[str, Any]] = {
        "data": {
            "table": "memory",
            "target": "outcome",
            "quasi": ["age", "ward"],
            "items": ["codes"],
            "identifiers": ["person"],
            "features": "rest",
            "encoding": "onehot",
            "test": 0.2,
        },
        "sites": {"split": "files"},
        "model": {"kind": "logistic"},
        "train": {"rounds": 3, "batch": 16, "lr": 0.1, "optimizer": "sgd"},
        "method": {"name": "syntactic", "share": share, "anonymise": {"k": 4, "m": 2, **(anonymise or {})}},
        "policy": {"min_rows": 1, "min_k": 2},
    }
    return load_plan({name: {**part, **sections.get(name, {})} for name, part in base.items()})


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Sites:
    """The sites of the next run, to look into their memories afterwards."""
    caught: Sites = {}
    real = backend.simulated_sites

    def keep(*arguments: Any) -> Any:
        made = real(*arguments)
        caught.update(made)
        return made

    monkeypatch.setattr(backend, "simulated_sites", keep)
    return caught


def published(site: Any) -> mappings.Published:
    found = site.state(mappings.MappingState).published
    assert found is not None
    return found


def without_classes(model: NetworkModel) -> dict[str, Any]:
    return {name: value for name, value in model.encoder.to_mapping().items() if name != "mappings"}


def ledger_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("hierarchy", ["none", "auto", "icd9"])
@pytest.mark.parametrize("encoding", ["label", "onehot"])
def test_sites_train_on_what_the_checker_passes(sites: Sites, hierarchy: str, encoding: str) -> None:
    outcome = run(
        plan(anonymise={"item_hierarchy": hierarchy, "suppression_limit": 1.0}, data={"encoding": encoding, "test": 0}),
        seed=1,
        tables=tables(),
    )
    for site in sites.values():
        frame, encoder = site.table.rows(), site.encoder
        config = AnonymiseSection(k=4, item_hierarchy=hierarchy, suppression_limit=1.0)
        codes = pl.Series(encoder.target(frame))
        made = anonymise_rows(frame, site.schema, config, k=4, codes=codes)
        found = measure(made.released, quasi=["age", "ward"], items=["codes"], m=2)
        assert found.k >= 4
        assert found.km is not None
        assert found.km >= 4
        raw = measure(frame, quasi=["age", "ward"], items=["codes"], m=2)
        assert raw.k < 4, "rows that were anonymous before prove nothing"
        # What a site trains on is the released table, encoded by the code that reads any generalised table.
        hierarchies = {} if made.result.item_hierarchy is None else {"codes": made.result.item_hierarchy}
        expected = encoder.transform(made.released, generalised=True, hierarchies=hierarchies)
        np.testing.assert_allclose(site.training_rows.x, expected, atol=1e-6)
    assert outcome.facts["dearer_class"] == 0


def test_the_run_tells_what_the_classes_do_to_rows(sites: Sites) -> None:
    outcome = run(plan(), seed=1, tables=tables())
    facts, encoder = outcome.facts, outcome.model.encoder
    assert isinstance(encoder, MappedEncoder)
    assert facts["training_rows"] == sum(site.count for site in sites.values())
    assert facts["classes"] == sum(published(site).mapping.count for site in sites.values())
    assert facts["dearer_class"] == 0
    assert 0.5 < facts["same_class_own"] <= 1
    assert "same_class" not in facts, "no count among the classes of others leaves a site"
    assert facts["test_rows"] == outcome.metrics["confusion"][0][0] + sum(
        map(sum, [outcome.metrics["confusion"][0][1:], outcome.metrics["confusion"][1]])
    )
    assert 0 <= facts["test_rows_without_class"] <= facts["test_rows"]
    assert outcome.to_mapping()["facts"] == facts
    text = " ".join(outcome.notes)
    assert "0 get one that costs more" in text
    assert "no class is legitimate for" in text
    own = [mappings.place_rows(site.table.rows(), published(site)) for site in sites.values()]
    assert sum(item.own for item in own) / facts["training_rows"] == facts["same_class_own"]
    for site in sites.values():  # among all classes, too, no row gets one that costs it more
        joint = union(encoder.mappings)
        trained = joint.first_class(site.name) + published(site).class_of
        broken, cost = costs(site.table.rows(), joint, trained)
        among = map_rows(site.table.rows(), joint, prefer=trained)
        assert ((among.violated < broken) | ((among.violated == broken) & (among.loss <= cost))).all()


def test_a_dearer_class_would_be_counted(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plan(), seed=1, tables=tables())
    real = mappings.map_rows

    def worst(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        return replace(found, loss=found.loss + 1.0)

    monkeypatch.setattr(mappings, "map_rows", worst)
    site = sites["a"]
    placed = mappings.place_rows(site.table.rows(), published(site))
    assert placed.dearer == placed.rows


def test_peers_get_the_classes_and_the_hub_does_not(tmp_path: Path, sites: Sites) -> None:
    hub = run(plan(), seed=1, tables=tables(), out=tmp_path / "hub")
    ours = [published(site).mapping.to_bytes() for site in sites.values()]
    peers = run(plan(share="peers"), seed=1, tables=tables(), out=tmp_path / "peers")
    assert isinstance(hub.model.encoder, MappedEncoder)
    assert not isinstance(peers.model.encoder, MappedEncoder)
    assert any("the hub has no classes" in note for note in peers.notes)
    assert peers.model.weights.tobytes() == hub.model.weights.tobytes()
    assert peers.facts["same_class_own"] == hub.facts["same_class_own"]
    for site in sites.values():  # every site knows what the hub knew in the other run
        assert {one.site: one.to_bytes() for one in site.state(mappings.MappingState).known} == dict(
            zip(SIZES, ours, strict=True)
        )
    sealed = [line for line in ledger_lines(tmp_path / "peers") if line.get("what") == "mappings.seal"]
    assert {(line["to"], line["via"], line["guarantee"]["kind"]) for line in sealed} == {("peers", "hub", "k-km")}
    whats = {line.get("what") for line in ledger_lines(tmp_path / "peers")}
    assert "mappings.publish" not in whats


def test_what_the_hub_carries_for_peers_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from kohort.protocol import engine

    carried: list[bytes] = []
    real = engine.answer

    def listen(*arguments: Any, **options: Any) -> Any:
        answers = real(*arguments, **options)
        carried.extend(bytes(part) for part in (answers.encoded if isinstance(answers.encoded, list) else []))
        return answers

    monkeypatch.setattr(engine, "answer", listen)
    run(plan(), seed=1, tables=tables())
    assert any(b'"sizes"' in part for part in carried), "the clear form has this text"
    carried.clear()
    run(plan(share="peers"), seed=1, tables=tables())
    assert carried
    assert not any(b'"sizes"' in part for part in carried)


def test_a_saved_model_places_rows_before_it_predicts(tmp_path: Path) -> None:
    outcome = run(plan(), seed=1, tables=tables(), out=tmp_path / "run")
    loaded = load_model(tmp_path / "run")
    new = tables(seed=9)["b"]
    assert isinstance(loaded.encoder, MappedEncoder)
    assert loaded.encoder.transform(new).tobytes() == outcome.model.encoder.transform(new).tobytes()
    found, skipped, _ = predict_table(loaded, new.drop("outcome"), proba=True)
    assert skipped == 0
    assert found["predicted_outcome"].equals(outcome.model.predict(new).alias("predicted_outcome"))
    plain = NetworkModel(loaded.network, loaded.weights, Encoder.from_mapping(without_classes(loaded)))
    assert not np.allclose(plain.predict_proba(new), loaded.predict_proba(new)), "rows were not placed"
    alone = tmp_path / "alone"  # a model by itself: files of a run are bound to its ledger
    shutil.copytree(tmp_path / "run" / "model", alone)
    card = json.loads((alone / "model.json").read_text())
    assert (card["format"], card["kind"]) == (3, "syntactic")
    old = {"format": 2, **card.pop("model"), **{name: card[name] for name in ("weights_sha256", "versions", "about")}}
    _rewrite(alone / "model.json", old)
    assert load_model(alone).predict(new).equals(loaded.predict(new)), "a file of format 2"
    card = {**old, "format": 1}
    _rewrite(alone / "model.json", card)
    with pytest.raises(IntegrityError, match="does not fit together"):  # an older reader would not place the rows
        load_model(alone)
    save_model(plain, tmp_path / "plain")
    assert json.loads((tmp_path / "plain" / "model.json").read_text())["kind"] == "dense"


def _rewrite(path: Path, card: dict[str, Any]) -> None:
    card["sha256"] = export._card_hash(card)
    path.write_bytes(export._card_bytes(card))


def test_a_stored_mapping_of_another_schema_is_refused() -> None:
    encoder = run(plan(), seed=1, tables=tables()).model.encoder
    assert isinstance(encoder, MappedEncoder)
    stored = encoder.to_mapping()
    assert MappedEncoder.from_mapping(stored).to_mapping() == stored
    foreign = replace(encoder.mappings[0], schema="another")
    with pytest.raises(IntegrityError, match="another schema") as caught:
        MappedEncoder.from_mapping({**stored, "mappings": [foreign.to_bytes().decode()]})
    assert caught.value.exit_code == 6
    with pytest.raises(IntegrityError, match="another schema"):
        replace(encoder, mappings=(foreign,))
    with pytest.raises(ConfigError, match="no mapping of a site"):
        encoder.only("nobody")
    assert encoder.only("b").sites == ("b",)


def test_at_a_site_rows_go_to_its_own_classes(sites: Sites) -> None:
    encoder = run(plan(), seed=1, tables=tables()).model.encoder
    assert isinstance(encoder, MappedEncoder)
    site = sites["b"]
    frame, own = site.table.rows(), published(site)
    placed = encoder.only("b").place(frame)
    expected = encode_in_classes(encoder, frame, own.mapping, placed.class_of)
    assert encoder.only("b").transform(frame).tobytes() == expected.tobytes()


def test_rows_outside_every_class_are_flagged_and_predicted() -> None:
    outcome = run(plan(), seed=1, tables=tables())
    encoder = outcome.model.encoder
    assert isinstance(encoder, MappedEncoder)
    strange = (
        tables(seed=9)["a"]
        .head(3)
        .with_columns(
            pl.Series("age", [45, 300, 45]),
            pl.Series("codes", [["003"], ["003"], ["no such code"]], dtype=pl.List(pl.String)),
        )
    )
    placed = encoder.place(strange)
    assert placed.flagged.tolist() == [False, True, True]
    assert len(outcome.model.predict(strange)) == 3


@pytest.mark.parametrize("name", ["age", "codes"])
def test_a_table_that_lacks_a_column_is_refused(name: str) -> None:
    outcome = run(plan(), seed=1, tables=tables())
    with pytest.raises(DataError, match=f"lacks columns: {name}"):
        outcome.model.predict(tables()["a"].drop(name))


def test_a_policy_raises_k_at_its_site_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = backend.simulated_sites

    def stricter(*arguments: Any) -> Any:
        made = real(*arguments)
        made["b"].policy = replace(made["b"].policy, min_k=9)
        return made

    monkeypatch.setattr(backend, "simulated_sites", stricter)
    outcome = run(plan(), seed=1, tables=tables(), out=tmp_path / "run")
    lines = [line for line in ledger_lines(tmp_path / "run") if line.get("what") == "mappings.publish"]
    assert {line["site"]: line["guarantee"]["k"] for line in lines} == {"a": 4, "b": 9, "c": 4}
    encoder = outcome.model.encoder
    assert isinstance(encoder, MappedEncoder)
    assert min(encoder.only("b").mappings[0].sizes) >= 9
    assert any("k differs by site, from 4 to 9" in note for note in outcome.notes)


def test_persons_are_counted_and_not_rows(sites: Sites) -> None:
    twice = {name: pl.concat([part, part]) for name, part in tables().items()}
    run(plan(data={"test": 0}), seed=1, tables=twice)
    for site in sites.values():
        classes = pl.DataFrame({"person": site.table.rows()["person"], "class": published(site).class_of})
        assert int(classes.group_by("class").agg(pl.col("person").n_unique())["person"].min() or 0) >= 4
    run(plan(data={"test": 0, "identifiers": [], "drop": ["person"]}), seed=1, tables=twice)
    assert min(min(published(site).mapping.sizes) for site in sites.values()) < 8, "persons would need 8 rows"


def test_published_classes_are_in_the_release_account(sites: Sites) -> None:
    """Other classes of the same persons would cross those that were published: the site refuses them."""
    from kohort.privacy.releases import units_of

    run(plan(data={"test": 0}), seed=1, tables=tables())
    for site in sites.values():
        units, classes = units_of(site.table.rows(), "person"), published(site).class_of
        crossed = np.arange(len(classes)) % (len(classes) // 5)
        with pytest.raises(RefusedError, match="isolates persons"):
            site.releases.admit("another run", units, crossed, meets=lambda rows: True)
        site.releases.admit("everybody as one class", units, np.zeros_like(classes), meets=lambda rows: True)


def test_weak_quasi_identifiers_are_dropped_before_anonymising(sites: Sites) -> None:
    section = {"importance": {"method": "forest", "top": 1}}
    run(plan(anonymise=section, data={"test": 0}), seed=1, tables=tables())
    for site in sites.values():
        mapping = published(site).mapping
        suppressed = [set(line) == {"*"} for line in mapping.cells]
        assert sum(suppressed) == 1
        ward = slice(None) if suppressed[1] else None
        if ward is not None:  # nothing of the dropped column is left in what the site trains on
            start = site.encoder.feature_names.index("ward=north")
            assert len(np.unique(site.training_rows.x[:, start : start + 3], axis=0)) == 1


@pytest.mark.parametrize("method", ["rfe", "extra-trees"])
def test_every_ranking_gives_classes(method: str) -> None:
    outcome = run(plan(anonymise={"importance": {"method": method}}), seed=1, tables=tables())
    assert outcome.facts["dearer_class"] == 0


def test_rows_without_items_are_k_anonymous(sites: Sites) -> None:
    bare = {name: part.drop("codes") for name, part in tables().items()}
    outcome = run(plan(data={"items": []}), seed=1, tables=bare)
    assert outcome.facts["items"] == 0
    assert all(published(site).mapping.items is None for site in sites.values())
    assert min(min(published(site).mapping.sizes) for site in sites.values()) >= 4


def test_the_data_version_follows_the_rows_and_tells_nothing(sites: Sites) -> None:
    run(plan(), seed=1, tables=tables())
    first = {name: published(site).mapping for name, site in sites.items()}
    run(plan(train={"rounds": 1}), seed=1, tables=tables())
    again = {name: published(site).mapping for name, site in sites.items()}
    assert {name: one.to_bytes() for name, one in first.items()} == {
        name: one.to_bytes() for name, one in again.items()
    }
    run(plan(), seed=2, tables=tables())
    other = {name: published(site).mapping for name, site in sites.items()}
    assert all(first[name].data_version != other[name].data_version for name in first)


def test_a_site_asked_out_of_turn_gives_nothing(sites: Sites) -> None:
    run(plan(), seed=1, tables=tables())
    site = sites["a"]
    site.state(mappings.MappingState).published = None
    for task in ("mappings.publish", "mappings.seal", "mappings.place"):
        with pytest.raises(SiteError, match="before it had any"):
            find_task(task).one(site, None)  # type: ignore[arg-type]


def test_mappings_of_others_than_their_senders_stop_the_run(sites: Sites) -> None:
    run(plan(), seed=1, tables=tables())
    mapping: SiteMapping = published(sites["a"]).mapping
    good = {"a": mapping.to_bytes()}
    assert list(read_mappings(good, schema=mapping.schema, least_k=4)) == ["a"]
    for texts, schema, least in (
        ({"b": mapping.to_bytes()}, mapping.schema, 4),
        (good, "another schema", 4),
        (good, mapping.schema, 5),
        ({"a": b"{}"}, mapping.schema, 4),
    ):
        with pytest.raises(IntegrityError) as caught:
            read_mappings(texts, schema=schema, least_k=least)
        assert caught.value.exit_code == 6


def test_a_site_notices_classes_it_did_not_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mappings.pack_boxes

    def swap(boxes: Any) -> bytes:
        if not boxes or b'"sizes"' not in next(iter(boxes.values())):
            return real(boxes)
        changed = {}
        for name, content in boxes.items():
            one = SiteMapping.from_bytes(content)
            changed[name] = replace(one, sizes=(one.sizes[0] + 1, *one.sizes[1:])).to_bytes()
        return real(changed)

    monkeypatch.setattr(mappings, "pack_boxes", swap)
    with pytest.raises(IntegrityError, match="did not publish"):
        run(plan(), seed=1, tables=tables())


def test_items_may_come_as_texts() -> None:
    lists = run(plan(), seed=1, tables=tables())
    texts = run(plan(), seed=1, tables=tables(lists=False))
    assert texts.model.weights.tobytes() == lists.model.weights.tobytes()
    assert texts.metrics == lists.metrics


def test_empty_item_sets_are_read() -> None:
    empty = {
        name: part.with_columns(
            pl.Series("codes", [[]] * (part.height - 40) + [["003"]] * 40, dtype=pl.List(pl.String))
        )
        for name, part in tables().items()
    }
    assert run(plan(), seed=1, tables=empty).facts["items"] > 0


@pytest.mark.parametrize("anonymise", [{"m": 3}, {"delta": 0.0}], ids=["m above the longest set", "no merge"])
def test_bounds_that_ask_nothing_change_no_guarantee(anonymise: dict[str, Any]) -> None:
    short = {name: part.with_columns(pl.col("codes").list.head(1)) for name, part in tables().items()}
    assert run(plan(anonymise=anonymise), seed=1, tables=short).facts["dearer_class"] == 0


@pytest.mark.parametrize(
    ("anonymise", "code", "text"),
    [
        ({"k": 1000}, 4, "cannot be 1,000-anonymous"),
        ({"k": 30, "item_hierarchy": "auto", "suppression_limit": 0.0}, 4, "items would be suppressed"),
        ({"m": 4}, 2, "m is 4"),
        ({"m": 5}, 2, "less than or equal to 4"),
        ({"delta": 1.5}, 2, "less than or equal to 1"),
        ({"item_hierarchy": "icd"}, 2, "unknown item hierarchy"),
        ({"importance": {"method": "forest", "top": 3}}, 2, "importance.top is 3"),
        ({"importance": {"top": 1}}, 2, "importance.top is 1"),
    ],
)
def test_what_cannot_be_met_ends_the_run(anonymise: dict[str, Any], code: int, text: str) -> None:
    with pytest.raises(KohortError, match=text) as caught:
        run(plan(anonymise=anonymise), seed=1, tables=tables())
    assert caught.value.exit_code == code


def test_an_item_unknown_to_the_hierarchy_ends_the_run(tmp_path: Path) -> None:
    known = CODES[:-1]
    place = tmp_path / "codes.csv"
    place.write_text("".join(f"{code};all\n" for code in known))
    with pytest.raises(SiteError, match="hierarch") as caught:
        run(plan(anonymise={"item_hierarchy": str(place)}), seed=1, tables=tables())
    assert caught.value.exit_code == 5
    assert CODES[-1] not in caught.value.message
    place.write_text("".join(f"{code};all\n" for code in CODES))
    assert run(plan(anonymise={"item_hierarchy": str(place), "suppression_limit": 1.0}), seed=1, tables=tables()).facts


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"quasi": [], "items": [], "drop": ["codes"]}, "needs quasi-identifiers or sets of items"),
        ({"quasi": ["age", "outcome"]}, "also a quasi-identifier"),
    ],
)
def test_plans_that_make_no_sense_are_refused(data: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        run(plan(data=data), seed=1, tables=tables())
    assert caught.value.exit_code == 2


def test_class_weights_count_in_training_and_not_in_measuring(sites: Sites) -> None:
    weighted = run(plan(train={"class_weights": {"ill": 3.0}}), seed=1, tables=tables())
    for site in sites.values():
        rows, encoder = site.training_rows, site.encoder
        assert rows.weight is not None
        assert set(rows.weight[rows.y == encoder.classes.index("ill")]) == {3.0}
        assert set(rows.weight[rows.y == encoder.classes.index("well")]) == {1.0}
    plain = run(plan(), seed=1, tables=tables())
    assert weighted.model.weights.tobytes() != plain.model.weights.tobytes()
    confusion = np.asarray(weighted.metrics["confusion"])
    assert weighted.metrics["accuracy"] == pytest.approx(np.trace(confusion) / confusion.sum())
    with pytest.raises(ConfigError, match="does not exist has a weight"):
        run(plan(train={"class_weights": {"sick": 3.0}}), seed=1, tables=tables())
    with pytest.raises(ConfigError, match="greater than 0"):
        plan(train={"class_weights": {"ill": 0.0}})


class CrashError(Exception):
    """Stands for a crash."""


def test_a_resumed_run_ends_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = run(plan(), seed=1, tables=tables(), out=tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise CrashError

    with pytest.raises(CrashError):
        run(plan(), seed=1, tables=tables(), out=tmp_path / "run", watch=stop)
    resumed = run(plan(), seed=1, tables=tables(), out=tmp_path / "run", resume=True)
    assert resumed.model.weights.tobytes() == whole.model.weights.tobytes()
    assert resumed.history == whole.history
    assert resumed.facts == whole.facts
    for name in ("ledger.jsonl", "receipts.jsonl"):
        assert (tmp_path / "run" / "ledger" / name).read_bytes() == (tmp_path / "whole" / "ledger" / name).read_bytes()


@pytest.mark.parametrize("kind", ["svm", "perceptron"])
def test_the_papers_other_learners_train(kind: str) -> None:
    outcome = run(plan(model={"kind": kind}), seed=1, tables=tables())
    assert np.isfinite(outcome.model.weights).all()
    assert outcome.metrics["auc"] is not None


def test_history_is_measured_through_the_classes() -> None:
    outcome = run(plan(), seed=1, tables=tables())
    assert outcome.history[-1]["accuracy"] == pytest.approx(outcome.metrics["accuracy"])


def test_the_claim_before_the_run_is_about_weights() -> None:
    made = syntactic.claims(plan().config, 100)
    assert [claim.kind for claim in made] == ["aggregate"]
