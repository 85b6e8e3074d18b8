"""Phases, budgets, sealed peers and noise shares of the hybrid federation and of private federated averaging."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, IntegrityError, RefusedError
from kohort.models.files import load_model
from kohort.privacy.dp.accounting import Event, epsilon_of
from kohort.privacy.ledger.verify import read_lines
from kohort.protocol import answers
from kohort.rng import Streams
from kohort.rounds import peers, sealed_messages
from kohort.rounds.clusters import clusters_of
from kohort.rounds.peers import neighbours, pack_boxes, unpack_boxes
from kohort.rounds.training import TrainingState
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import load_plan, only_read
from kohort.runs.explain import explain_plan, plan_schema
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import populate

PEERS: dict[str, Any] = {"kind": "peers", "rows": "low", "rounds": 2}
SERVER: dict[str, Any] = {
    "kind": "server", "rows": "high", "rounds": 3, "batch": 0, "dp": {"epsilon": 1.0, "delta": 1e-4},
}  # fmt: skip

DECLARED: dict[str, Any] = {"bounds": {"age": (20, 80), "dose": (-2, 2)}, "categories": {"ill": ["no", "yes"]}}
"""A plan with a budget learns no domain."""


def table(rows: int = 6000, seed: int = 1) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    age, dose = random.integers(20, 80, rows), random.uniform(-2, 2, rows)
    chance = 1 / (1 + np.exp(-(age - 50) / 8 - 2 * dose))
    person = np.arange(rows) // 4
    return pl.DataFrame(
        {"person": person, "age": age, "dose": dose, "ill": np.where(random.random(rows) < chance, "yes", "no")}
    )


def carry_out(method: dict[str, Any], **options: Any) -> Outcome:
    """Run a small hybrid plan over six sites in two clusters."""
    sites = {"count": 3, "clusters": 2, "split": "iid", "low_risk": 0.4, **options.pop("sites", {})}
    raw = {
        "data": {"table": "memory", "target": "ill", "features": "rest", "identifiers": ["person"], **DECLARED}
        | options.pop("data", {}),
        "sites": sites,
        "model": {"kind": "logistic", **options.pop("model", {})},
        "train": {"batch": 16, "optimizer": "sgd", "lr": 4.0, "rounds": 3},
        "method": method,
        "policy": {"min_rows": 1, **options.pop("policy", {})},
    }
    described = only_read(raw)
    described["train"] |= options.pop("train", {})
    frame = options.pop("frame", None)
    return run(load_plan(described), seed=3, tables={"all": table() if frame is None else frame}, **options)


def hybrid(*phases: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "hybrid", "phases": list(phases), **more}


def test_peers_then_server_learns_and_says_what_it_spent() -> None:
    outcome = carry_out(hybrid(PEERS, SERVER))
    assert outcome.metrics["accuracy"] > 0.7
    assert outcome.epsilon is not None
    assert 0.9 < outcome.epsilon <= 1.0
    assert outcome.unit == "row"
    recipients = {item.what: item.recipient for item in outcome.disclosed}
    assert recipients["peers.exchange"] == "peers"
    scopes = [item.guarantee for item in outcome.disclosed if item.what == "train.phase"]
    assert "rows of high risk; rows of low risk: no guarantee" in scopes[0]


@pytest.mark.parametrize(
    ("peers", "server", "said"),
    [
        ("low", "high", "rows of high risk; rows of low risk: no guarantee"),
        ("low", "all", "rows of high risk; rows of low risk: no guarantee"),
        ("all", "high", "no rows; all rows: no guarantee"),
        ("all", "all", "no rows; all rows: no guarantee"),
        ("low", "low", "no rows; rows of low risk: no guarantee"),
    ],
)
def test_a_row_that_a_phase_trains_on_without_noise_has_no_guarantee(peers: str, server: str, said: str) -> None:
    outcome = carry_out(hybrid({**PEERS, "rows": peers}, {**SERVER, "rows": server}))
    scopes = [item.guarantee for item in outcome.disclosed if item.what == "train.phase"]
    assert f"for each row, {said}" in scopes[0]


def test_phases_that_all_have_a_budget_cover_all_their_rows() -> None:
    outcome = carry_out(hybrid({**PEERS, "dp": SERVER["dp"]}, SERVER))
    scopes = [item.guarantee for item in outcome.disclosed if item.what == "train.phase"]
    assert "all rows" in scopes[0]
    assert "none" not in scopes[0]


def test_the_hub_never_sees_a_peer_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message the hub relays in the peer phase is opened by nobody but the peers."""
    relayed: list[bytes] = []
    sealed: list[bytes] = []
    original, seal = peers._Relay.collect, sealed_messages.seal

    def collect(self: Any, replies: Any) -> None:
        relayed.extend(payload.blobs["boxes"] for payload in replies.payloads())
        original(self, replies)

    def spying_seal(payload: bytes, **keywords: Any) -> bytes:
        sealed.append(payload)
        return seal(payload, **keywords)

    monkeypatch.setattr(peers._Relay, "collect", collect)
    monkeypatch.setattr(sealed_messages, "seal", spying_seal)
    carry_out(hybrid(PEERS, SERVER))
    assert len(sealed) == 2 * 6 * 2  # two rounds, six sites, two neighbours each
    assert relayed
    assert not any(model[8:] in bundle for model in sealed for bundle in relayed)


@pytest.mark.parametrize("hub", ["momentum", "fedadam"])
def test_a_server_optimizer_does_not_carry_on_what_peers_trained(hub: str) -> None:
    """After peers, the hub does not know where the sites started: that way is no step for its momentum to repeat."""
    server = {"kind": "server", "rows": "high", "lr": 1e-9, "optimizer": "sgd", "local_epochs": 1}
    models = [
        carry_out(hybrid(PEERS, {**server, "rounds": rounds}), train={"hub": {"name": hub, **more}})
        for rounds, more in ((1, {}), (4, {"lr": 1e-3} if hub == "fedadam" else {}))
    ]
    once, often = (np.asarray(outcome.model.weights) for outcome in models)  # type: ignore[attr-defined]
    assert np.linalg.norm(once) > 1.0
    assert often == pytest.approx(once, abs=1e-2)


def test_full_clusters_end_with_one_model_each() -> None:
    """After the last round every peer of a full cluster averaged the same models."""
    models: dict[str, Any] = {}
    original = peers._settle

    def settle(site: Any, request: Any) -> Any:
        released = original(site, request)
        models[site.name] = site.state(TrainingState).model.copy()
        return released

    task = peers.SETTLE
    object.__setattr__(task, "one", settle)
    try:
        carry_out(hybrid(PEERS, SERVER))
    finally:
        object.__setattr__(task, "one", original)
    clusters = [[models[name] for name in models if name.startswith(f"cluster-0{number}")] for number in (1, 2)]
    assert [len(cluster) for cluster in clusters] == [3, 3]
    for cluster in clusters:
        assert np.allclose(cluster, cluster[0], atol=1e-6)
    assert not np.allclose(clusters[0][0], clusters[1][0])


@pytest.mark.parametrize("place", [20, 200, -1])
def test_an_altered_box_stops_the_run_and_names_the_sender(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    original = peers._Relay.collect

    def tamper(self: Any, replies: Any) -> None:
        original(self, replies)
        recipient = next(iter(self._inboxes))
        sender = next(iter(self._inboxes[recipient]))
        box = bytearray(self._inboxes[recipient][sender])
        box[place] ^= 1
        self._inboxes[recipient][sender] = bytes(box)

    monkeypatch.setattr(peers._Relay, "collect", tamper)
    with pytest.raises(IntegrityError, match="cluster-01-site-02"):
        carry_out(hybrid(PEERS, SERVER))


def test_a_stranger_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    from kohort.protocol import engine

    def without_one(here: engine.LocalEngine) -> Any:
        return lambda name: None if name.endswith("02") else here.sites[name].identity.public

    monkeypatch.setattr(engine, "_roster_of", without_one)
    with pytest.raises(Exception, match="roster"):
        carry_out(hybrid(PEERS, SERVER))


def test_a_peer_that_disappears_is_left_out_and_named() -> None:
    outcome = carry_out(hybrid(PEERS, SERVER), sites={"faults": {"drop": 0.2}, "count": 4})
    assert outcome.dropped
    assert outcome.metrics["accuracy"] > 0.6


def test_two_budgets_beyond_the_policy_are_refused_before_training() -> None:
    private = {**PEERS, "batch": 0, "dp": {"epsilon": 0.7, "delta": 1e-4}}
    with pytest.raises(RefusedError, match="refuse the plan"):
        carry_out(hybrid(private, SERVER), policy={"epsilon": 1.15})
    fits = carry_out(hybrid(private, SERVER), policy={"epsilon": 1.2})
    assert fits.epsilon is not None
    assert fits.epsilon < 1.2  # 0.7 and 1.0 compose to less than their sum


def test_parts_told_from_each_row_alone_compose_side_by_side() -> None:
    private = {**PEERS, "batch": 0, "dp": {"epsilon": 0.7, "delta": 1e-4}}
    together = carry_out(hybrid(private, SERVER))
    apart = carry_out(hybrid(private, SERVER), sites={"low_risk": "below:age:45"})
    assert together.epsilon is not None
    assert apart.epsilon is not None
    assert apart.epsilon <= 1.0 < together.epsilon


def test_a_person_counts_once_when_the_unit_is_the_person() -> None:
    phase = {**SERVER, "rows": "all", "dp": {"epsilon": 1.0, "delta": 1e-4, "unit": "person"}}
    outcome = carry_out(hybrid(phase))
    assert outcome.unit == "person"
    trained = next(item for item in outcome.disclosed if item.what == "train.phase")
    frame = table()
    assert trained.rows < 0.9 * 0.7 * frame.height  # of two rows of a person at one site, one is used


def test_noise_after_training_and_at_the_hub_are_told_apart() -> None:
    after = carry_out(hybrid({**SERVER, "dp": {"epsilon": 5.0, "delta": 1e-4, "mechanism": "after", "clip": 0.5}}))
    assert after.unit == "row"
    assert after.epsilon is not None
    hub = carry_out(
        hybrid({**SERVER, "dp": {"epsilon": 5.0, "delta": 1e-3, "mechanism": "hub", "unit": "site", "clip": 0.5}})
    )
    assert hub.unit == "site"
    assert hub.epsilon is not None
    assert hub.epsilon <= 5.0
    assert all(item.kind != "dp" for item in hub.disclosed)  # to the hub itself it is no protection


def test_judging_on_low_risk_rows_keeps_the_better_model() -> None:
    ruined = {**SERVER, "lr": 500.0, "dp": {"epsilon": 0.005, "delta": 1e-4}}
    kept = carry_out(hybrid(PEERS, ruined, judge={"rows": "low"}))
    lost = carry_out(hybrid(PEERS, ruined))
    assert "chose the earlier model" in kept.notes[-1]
    assert kept.metrics["accuracy"] > lost.metrics["accuracy"]


def test_judging_on_high_risk_rows_is_paid_for() -> None:
    free = carry_out(hybrid(PEERS, SERVER, judge={"rows": "low"}))
    paid = carry_out(hybrid(PEERS, SERVER, judge={"rows": "high", "epsilon": 0.3, "delta": 1e-5}))
    assert free.epsilon is not None
    assert paid.epsilon is not None
    assert paid.epsilon > free.epsilon


def test_ending_among_peers_the_hub_has_no_model_and_every_cluster_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leaves the sites for the hub, and what the hub's part of the folder holds, has none of the models."""
    seen: list[bytes] = []
    original = answers.encode

    def spy(payload: Any) -> bytes:
        seen.append(original(payload))
        return seen[-1]

    monkeypatch.setattr(answers, "encode", spy)
    out = tmp_path / "run"
    outcome = carry_out(hybrid(PEERS), out=out)
    assert outcome.metrics["accuracy"] > 0.7
    assert {item.what for item in outcome.disclosed if item.recipient != "peers"}.isdisjoint({"peers.reveal"})
    assert any("the hub has none" in said for said in outcome.warnings)
    assert any("judged by the model that its own site has" in note for note in outcome.notes)
    assert {name: len(sites) for name, sites in outcome.clusters.items()} == {"cluster-01": 3, "cluster-02": 3}
    secrets = [model.weights.tobytes() for model in outcome.site_models.values()]
    outside = [path.read_bytes() for path in out.rglob("*") if path.is_file() and "sites" not in path.parts]
    assert seen
    assert outside
    assert not any(secret in text for secret in secrets for text in (*seen, *outside))
    with pytest.raises(ConfigError, match="clusters: cluster-01, cluster-02"):
        outcome.predict(table(10))
    with pytest.raises(ConfigError, match="clusters: cluster-01, cluster-02"):
        load_model(out).predict(table(10))
    with pytest.raises(ConfigError, match="no cluster 'north'"):
        load_model(out, cluster="north")
    for name in outcome.clusters:
        own = outcome.predict(table(500), cluster=name)
        assert own.equals(load_model(out, cluster=name).predict(table(500)))
    assert not np.array_equal(outcome.cluster_model("cluster-01").weights, outcome.cluster_model("cluster-02").weights)


def test_the_measure_of_clusters_is_that_of_each_site_s_own_model() -> None:
    outcome = carry_out(hybrid(PEERS))
    rows = populate(outcome.plan, Streams.seeded(3), tables={"all": table()})
    sites = np.asarray(rows.test_sites)
    right = 0
    for name, model in outcome.site_models.items():
        own = rows.test.filter(pl.Series(sites == name))
        right += int((model.predict(own) == own["ill"]).sum())
    assert outcome.accuracy == pytest.approx(right / rows.test.height)
    assert set(outcome.metrics["by_site"]) == set(outcome.site_models)


def test_a_run_with_a_common_model_keeps_the_clusters_models_beside_it(tmp_path: Path) -> None:
    outcome = carry_out(hybrid(PEERS, SERVER), out=tmp_path / "run")
    common, own = load_model(tmp_path / "run"), load_model(tmp_path / "run", cluster="cluster-02")
    assert np.array_equal(common.weights, outcome.model.weights)
    assert np.array_equal(own.weights, outcome.site_models[outcome.clusters["cluster-02"][0]].weights)
    assert not np.array_equal(common.weights, own.weights)
    sites = tmp_path / "run" / "sites"
    one, other = (sites / outcome.clusters[name][0] / "model" for name in ("cluster-01", "cluster-02"))
    for file in ("model.json", "model.safetensors"):
        (other / file).write_bytes((one / file).read_bytes())  # a whole model, but not this cluster's
    with pytest.raises(IntegrityError, match="sites/"):
        load_model(tmp_path / "run", cluster="cluster-02")
    (sites / "clusters.json").write_text('{"cluster-02": {"elsewhere": "../../elsewhere"}}')
    with pytest.raises(IntegrityError, match="altered"):
        load_model(tmp_path / "run", cluster="cluster-02")


def test_a_plan_that_ends_among_peers_has_no_step_that_shows_the_hub_a_model() -> None:
    described = {"data": {"table": "memory", "target": "ill"}, "method": hybrid(PEERS)}
    plan = load_plan(only_read(described))
    assert "the hub gets none" in explain_plan(plan).text
    contract = approved_plan_for(plan, schema=plan_schema(plan), run="").contract
    assert {step.task for step in contract if step.task.startswith(("peers.", "sum."))} == {
        "peers.keys", "peers.exchange", "peers.settle",
    }  # fmt: skip


@pytest.mark.parametrize("topology", ["full", "ring", "regular:2"])
def test_topologies_are_symmetric(topology: str) -> None:
    members = tuple("abcdefg")
    edges = {(name, other) for name in members for other in neighbours(topology, members, name)}
    assert edges == {(other, name) for name, other in edges}
    assert all(len(neighbours(topology, members, name)) == (6 if topology == "full" else 2) for name in members)
    assert neighbours(topology, ("a", "b"), "a") == ("b",)
    assert neighbours(topology, ("a",), "a") == ()


def test_clusters_by_labels_join_those_that_are_alike() -> None:
    shares = np.asarray([[0.9, 0.1], [0.1, 0.9], [0.85, 0.15], [0.2, 0.8]])
    assert clusters_of(shares, 2).tolist() == [0, 1, 0, 1]


def test_bundles_survive_the_way_and_cuts_are_noticed() -> None:
    boxes = {"a": b"12345", "b": b""}
    assert unpack_boxes(pack_boxes(boxes)) == boxes
    with pytest.raises(IntegrityError):
        unpack_boxes(pack_boxes(boxes)[:-1] + b"")


@pytest.mark.parametrize("method", ["hybrid", "fedavg"])
def test_resume_gives_the_same_model_and_never_a_smaller_epsilon(method: str, tmp_path: Path) -> None:
    """Stopped after every possible round, a run goes on to the same bytes and the same account."""
    config = hybrid(PEERS, SERVER) if method == "hybrid" else {"name": "fedavg", "dp": SERVER["dp"]}
    train = {"batch": 0} if method == "fedavg" else {}
    # A site may have any name; these have spaces.
    sites = {"count": 3, "split": "interval:age"}
    tight = {"epsilon": 1.0}  # what was paid before the interruption must not be asked for again
    whole = carry_out(config, train=train, policy=tight, sites=sites, out=tmp_path / "whole")

    class StopNowError(Exception):
        pass

    rounds = 5 if method == "hybrid" else 3
    for number in range(1, rounds):

        def stop(progress: Any, number: int = number) -> None:
            if progress.round == number:
                raise StopNowError

        out = tmp_path / f"cut-{number}"
        with pytest.raises(StopNowError):
            carry_out(config, train=train, policy=tight, sites=sites, out=out, watch=stop)
        again = carry_out(config, train=train, policy=tight, sites=sites, out=out, resume=True)
        assert np.array_equal(again.model.weights, whole.model.weights)
        assert again.epsilon == whole.epsilon
        assert (out / "ledger" / "ledger.jsonl").read_bytes() == (tmp_path / "whole/ledger/ledger.jsonl").read_bytes()


def fedavg(**more: Any) -> dict[str, Any]:
    return {"name": "fedavg", **more}


FULL = {"batch": 0, "rounds": 20, "lr": 4.0}


def test_secure_sums_of_updates_give_the_plain_average() -> None:
    plain = carry_out(fedavg())
    for scheme in ("none", "masks"):
        summed = carry_out(fedavg(secure={"sum": scheme}))
        assert np.allclose(summed.model.weights, plain.model.weights, atol=1e-5)
    kinds = {item.kind for item in summed.disclosed if item.what == "sum.updates"}
    assert kinds <= {"secure-sum", "public", "encrypted"}


def test_noise_in_shares_is_less_noise_and_its_trust_is_said() -> None:
    dp = {"epsilon": 1.0, "delta": 1e-4}
    shared = carry_out(fedavg(dp=dp, secure={"sum": "masks"}), train=FULL)
    again = carry_out(fedavg(dp=dp, secure={"sum": "none"}), train=FULL)
    alone = carry_out(fedavg(dp=dp), train=FULL)
    assert min(shared.metrics["accuracy"], again.metrics["accuracy"]) > alone.metrics["accuracy"] - 0.02
    reserved = next(item.guarantee for item in shared.disclosed if item.what == "dp.reserve")
    assert "collude with the hub" in reserved
    assert "if all others collude" in reserved
    assert shared.epsilon is not None
    assert shared.epsilon <= 1.0


def test_shares_add_up_to_at_least_the_planned_noise() -> None:
    """Six shares, of which 6 (0.9 of 6, rounded up) must answer and one may be known: five make the noise."""
    from kohort.rounds.dp_accounts import Shares

    shares = Shares(6, 1)
    assert (shares.quorum, shares.needed) == (6, 5)
    assert shares.quorum * (1 / shares.needed) >= 1  # variance of the total, in units of the planned one
    alone = epsilon_of([Event(sigma=5.0 / np.sqrt(5), steps=8)], 1e-4)
    assert alone > epsilon_of([Event(sigma=5.0, steps=8)], 1e-4)


@pytest.mark.parametrize(
    ("method", "train", "word"),
    [
        (fedavg(dp={"epsilon": 1.0, "delta": 0.0}), {}, "delta"),
        (fedavg(dp={"epsilon": 0.0}), {}, "epsilon"),
        (fedavg(dp={"epsilon": -1.0}), {}, "epsilon"),
        (fedavg(dp={"clip": 0.0}), {}, "clip"),
        (fedavg(dp={"unit": "site"}), {}, "dp-sgd"),
        (fedavg(dp={}, secure={}), {}, "one full step"),
        (fedavg(dp={}), {"stop": {"patience": 1}}, "does not read train.stop"),
        (fedavg(secure={}), {"aggregate": "median"}, "aggregate"),
        (fedavg(secure={"sum": "nonesuch"}), {}, "secure sum"),
        (hybrid({**PEERS, "topology": "star"}, SERVER), {}, "topology"),
        (hybrid(PEERS, SERVER, clusters="labels"), {}, "clusters"),
        (hybrid(), {}, "phase"),
    ],
)
def test_what_cannot_be_meant_is_refused(method: dict[str, Any], train: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        carry_out(method, train=train)


@pytest.mark.parametrize("dp", [{"epsilon": 1.0, "delta": 0.01}, {"epsilon": 1.0, "delta": 1e-4, "unit": "person"}])
def test_budgets_no_site_can_keep_end_the_run(dp: dict[str, Any]) -> None:
    frame = table(60) if dp["delta"] < 0.01 else None
    with pytest.raises(Exception, match=r"quorum|refuse"):
        carry_out(fedavg(dp=dp), frame=frame, policy={"delta": 0.5})


def test_a_batch_larger_than_a_site_is_said() -> None:
    with pytest.raises(Exception, match="batch of 900 rows"):
        carry_out(fedavg(dp={"epsilon": 1.0, "delta": 1e-4}), train={"batch": 900})


@pytest.mark.parametrize("mechanism", ["output", "objective"])
def test_pure_mechanisms_release_once_and_claim_no_delta(mechanism: str) -> None:
    dp = {"epsilon": 2.0, "delta": 0.0, "mechanism": mechanism}
    outcome = carry_out(fedavg(dp=dp), train={"rounds": 1, "l2": 0.01})
    assert (outcome.epsilon, outcome.delta) == (2.0, 0.0)
    assert outcome.metrics["accuracy"] > 0.6
    with pytest.raises(Exception, match="releases once"):
        carry_out(fedavg(dp=dp), train={"rounds": 2, "l2": 0.01})


def test_noisy_statistics_are_one_release_and_near_the_rounds() -> None:
    outcome = carry_out(fedavg(dp={"epsilon": 1.0, "delta": 1e-4, "mechanism": "statistics"}))
    assert outcome.metrics["accuracy"] > 0.75
    assert outcome.epsilon is not None
    assert outcome.epsilon <= 1.0
    released = next(item for item in outcome.disclosed if item.what == "dp.statistics")
    assert released.releases == 6
    with pytest.raises(ConfigError, match="without hidden layers"):
        carry_out(fedavg(dp={"epsilon": 1.0, "delta": 1e-4, "mechanism": "statistics"}), model={"kind": "mlp"})


def test_a_round_beyond_the_plan_is_refused() -> None:
    """A hub that goes on asking after the phase's last round gets no further noisy answer."""
    from kohort.rounds import phase_training as job_training

    seen: list[str] = []
    train_phase = job_training.train_phase

    def late(sites: Any, request: Any, number: int, start: Any) -> Any:
        trained = train_phase(sites, request, number, start)
        try:
            train_phase(sites, replace(request, round=99), number, start)
        except RefusedError as error:
            seen.append(error.message)
        return trained

    job_training.train_phase = late
    try:
        carry_out(fedavg(dp={"epsilon": 1.0, "delta": 1e-4}), train={"batch": 0})
    finally:
        job_training.train_phase = train_phase
    assert seen
    assert all("no round 99" in message for message in seen)


def test_rows_outside_the_domain_show_in_no_count_of_any_phase(tmp_path: Path) -> None:
    """Also not in phases of a part of the rows, nor among those held out: a hub sees these counts of each site."""
    noisy = {"dp": {"epsilon": 2.0, "delta": 1e-4}, "batch": 0}
    method = hybrid(PEERS | noisy, SERVER, judge={"rows": "high", "epsilon": 0.5})

    def counts(name: str, outside: int) -> list[Any]:
        frame = table().with_columns(
            ill=pl.when(pl.int_range(pl.len()) % 50 < outside).then(pl.lit("unknown")).otherwise("ill")
        )
        carry_out(method, frame=frame, out=tmp_path / name, data={"kinds": {"ill": "category"}})
        lines = read_lines(tmp_path / name / "ledger" / "ledger.jsonl")
        return [
            (line["site"], line["what"], line["round"], line["rows"], line["guarantee"].get("rows"))
            for line in lines
            if line["event"] == "release"
        ]

    usual = counts("usual", 0)
    assert {line[1] for line in usual} >= {"peers.exchange", "train.phase", "peers.judge"}
    assert counts("outside", 7) == usual
