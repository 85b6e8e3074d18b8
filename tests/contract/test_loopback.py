"""Law 4 across engines: behind messages, site servers and ClientApps every method gives the bits of the local engine.

The hub's ledger of such a run says what the sites' own ledgers say, line by line, and both verify.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr")

from tests.support.loopback import LoopBack, LoopBackBackend

from kohort.crypto.identity.keys import load_identity
from kohort.errors import ConfigError, KohortError, RefusedError, SiteError
from kohort.methods.registry import methods
from kohort.models.files import load_model
from kohort.privacy.ledger.verify import verify_ledger
from kohort.rng import Streams
from kohort.rounds import peers
from kohort.runs.backend import Simulation
from kohort.runs.config import Plan, load_plan, only_read
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import Population
from kohort.testing import SITE_SIZES, RecordedRun, carry_out, listening, plan_of, tables
from kohort.transport.deployment.files import Invitation, Registration
from kohort.transport.deployment.hub import FlowerBackend, HubFolder
from kohort.transport.deployment.site import SiteFolder
from kohort.transport.flower.client_app import client_app

ALL = sorted(methods())
TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keep": {"state": "keep", "fraction": 0.75, "optimizer": "adam"},
}
REFUSED = {("additive", "keep"), ("central", "keep"), ("hybrid", "keep"), ("oneshot", "keep"), ("trees", "keep")}
"""Methods that do not read these keys of `[train]`."""


def _arrays(outcome: Outcome) -> dict[str, bytes]:
    """What the model is made of, for any kind of model."""
    return {name: array.tobytes() for name, array in outcome.model.save().arrays.items()}


def _same(local: RecordedRun, folder: Path, plan: Any) -> LoopBackBackend:
    backend = LoopBackBackend(tables=tables())
    outcome = run(plan, out=folder, seed=local.seed, backend=backend)
    assert _arrays(outcome) == _arrays(local.outcome)
    assert outcome.history == local.outcome.history
    assert outcome.metrics == local.outcome.metrics
    assert outcome.bytes == local.outcome.bytes
    assert outcome.disclosed == local.outcome.disclosed
    assert (outcome.engine, local.outcome.engine) == ("loopback", "local")
    return backend


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("method", ALL)
def test_messages_change_no_bit(method: str, training: str, tmp_path: Path) -> None:
    if (method, training) in REFUSED:
        with pytest.raises(ConfigError, match="does not read"):
            plan_of(method, train=TRAININGS[training])
        return
    plan = plan_of(method, train=TRAININGS[training])
    local = carry_out(plan, tmp_path / "local", many=False)
    backend = _same(local, tmp_path / "loopback", plan)
    hub = verify_ledger(tmp_path / "loopback")
    assert hub.releases == len(local.carried.replies)
    own = [line for site_server in backend.site_servers.values() for line in site_server.ledger.lines]
    assert sum('"event":"release"' in line for line in own) == hub.releases


@pytest.mark.parametrize("scheme", ["none", "masks", "bfv", "ckks"])
def test_secure_sums_and_their_key_holder_pass_messages_too(scheme: str, tmp_path: Path) -> None:
    described = plan_of("partial").to_mapping()
    described["method"]["secure"]["sum"] = scheme
    plan = load_plan(described, complete=True)
    backend = _same(carry_out(plan, tmp_path / "local", many=False), tmp_path / "loopback", plan)
    assert ("key-holder" in backend.site_servers) == (scheme in {"bfv", "ckks"})
    verify_ledger(tmp_path / "loopback")


def test_a_key_holders_book_is_in_its_folder(tmp_path: Path) -> None:
    described = plan_of("partial").to_mapping()
    described["method"]["secure"]["sum"] = "bfv"
    backend = LoopBackBackend(tables=tables(), folder=tmp_path / "sites")
    run(load_plan(described, complete=True), out=tmp_path / "run", seed=1, backend=backend)
    lines = (tmp_path / "sites" / "key-holder" / "openings").read_text().splitlines()
    opened = [line for line in (tmp_path / "run/ledger/ledger.jsonl").read_text().splitlines() if '"sum.open"' in line]
    assert [line.partition(" ")[0] for line in lines] == ["offer", "open"] * len(opened)
    assert len(set(lines)) == 2 * len(opened) >= 6  # at least size, table and proof of the count
    assert list((tmp_path / "sites").rglob("openings")) == [tmp_path / "sites/key-holder/openings"]


@pytest.mark.parametrize("method", ALL)
def test_a_policy_that_answers_nothing_lets_no_byte_out(method: str, tmp_path: Path) -> None:
    plan = plan_of(method, policy={"tasks": ["no-such-task"]})
    backend = LoopBackBackend(tables=tables())
    with listening() as carried, pytest.raises(RefusedError):
        run(plan, out=tmp_path / "run", seed=1, backend=backend)
    assert carried.replies == []
    for site_server in backend.site_servers.values():
        events = [line.split('"event":"')[1].split('"')[0] for line in site_server.ledger.lines]
        assert events == ["open", "refusal"]
    assert set(backend.site_servers) == set(SITE_SIZES)
    assert verify_ledger(tmp_path / "run").refusals == len(SITE_SIZES)


def test_a_real_site_refuses_the_papers_mode_whose_key_the_hub_knows(tmp_path: Path) -> None:
    described = plan_of("oneshot").to_mapping()
    described["method"] = {"name": "oneshot", "oneshot": {"mode": "paper", "degree": 8192}, "secure": {"sum": "none"}}
    plan, backend = load_plan(described, complete=True), LoopBackBackend(tables=tables())
    run(plan, seed=1, tables=tables())  # simulated sites take part
    with pytest.raises(KohortError):
        run(plan, out=tmp_path / "run", seed=1, backend=backend)
    for site_server in backend.site_servers.values():
        assert "mode paper is for simulations" in site_server.ledger.lines[-1]


# Low-risk rows and clusters

PHASES = [
    {"kind": "peers", "rows": "low", "rounds": 2, "optimizer": "sgd", "lr": 0.2},
    {"kind": "server", "rows": "high", "rounds": 2, "batch": 0, "dp": {"epsilon": 2.0, "delta": 1e-5}},
]


@pytest.mark.parametrize("low_risk", [0.4, "below:age:45"])
@pytest.mark.parametrize("own", [{}, {"judge": {"rows": "low"}}, {"secure": {"sum": "masks"}}], ids=str)
def test_low_risk_rows_and_given_clusters_pass_messages(low_risk: float | str, own: Any, tmp_path: Path) -> None:
    described = plan_of("hybrid").to_mapping()
    described["sites"] |= {"split": "iid", "count": 2, "clusters": 2, "low_risk": low_risk}
    phases = [{**phase, "optimizer": "sgd"} for phase in PHASES]
    described["method"] = {"name": "hybrid", "phases": phases, **own}
    plan = load_plan(described, complete=True)
    whole = {"all": pl.concat(tables().values())}
    here = run(plan, out=tmp_path / "local", seed=3, tables=whole, many=False)
    backend = LoopBackBackend(tables=whole)
    there = run(plan, out=tmp_path / "loopback", seed=3, backend=backend)
    assert there.model.weights.tobytes() == here.model.weights.tobytes()
    assert (there.bytes, there.disclosed, there.metrics) == (here.bytes, here.disclosed, here.metrics)
    assert verify_ledger(tmp_path / "loopback").releases == verify_ledger(tmp_path / "local").releases


LOW = {
    "a-small": ("column:calm", pl.col("calm") == 1),
    "b-large": ("below:age:45", pl.col("age") < 45),
    "c-odd": ("below:dose:4.5", pl.col("dose") < 4.5),
    "d-even": ("column:calm", pl.col("calm") == 1),
}
CLUSTERS = {"a-small": "north", "b-large": "south", "c-odd": "north", "d-even": "south"}


def _marked_tables() -> dict[str, pl.DataFrame]:
    """The contract tables with a column of marks, which nobody learns from and which is missing here and there."""
    random = np.random.default_rng(8)
    return {
        name: table.with_columns(
            pl.Series("calm", random.choice(np.array([0, 1, None]), table.height).tolist(), dtype=pl.Int64)
        )
        for name, table in tables().items()
    }


@dataclass(frozen=True)
class _Declared(Simulation):
    """Simulated sites with the low-risk rows of `LOW` and the clusters of `CLUSTERS`."""

    tables: dict[str, pl.DataFrame] | None = field(default_factory=tables)
    many: bool = False

    def check(self, plan: Plan) -> None:
        """The sites declare what the plan leaves open."""

    def populate(self, plan: Plan, streams: Streams) -> Population:
        population = super().populate(plan, streams)
        parts, low = [], []
        for name, table in _marked_tables().items():
            is_low = table.select(LOW[name][1].fill_null(False)).to_series()
            rows = table.select(population.frame.columns)
            parts += [rows.filter(is_low), rows.filter(~is_low)]
            low.append(int(is_low.sum()))
        names = sorted(set(CLUSTERS.values()))
        return replace(
            population,
            frame=pl.concat(parts),
            low=np.asarray(low),
            low_by_row=True,
            clusters=np.asarray([names.index(CLUSTERS[name]) for name in population.names]),
        )


@dataclass
class _Deployment:
    """The folders of a hub and of real sites, whose ClientApps are called in this process."""

    root: Path
    plan: Plan
    settings: dict[str, dict[str, str]]
    """What each site says of itself under [site]."""

    def found(self) -> None:
        hub = HubFolder.init(self.root / "hub", address="127.0.0.1:9092", insecure=True)
        invitation = Invitation.read(hub.path / "invitation.json")
        for name, table in _marked_tables().items():
            marked = self.settings[name].get("low_risk") == "column:calm"
            (table if marked else table.drop("calm")).write_parquet(self.root / f"{name}.parquet")
            site = SiteFolder.init(
                self.root / name, name=name, table=self.root / f"{name}.parquet", invitation=invitation, plan=self.plan
            )
            text = (site.path / "site.toml").read_text().replace("min_rows = 100", "min_rows = 1")
            said = "".join(f'{key} = "{value}"\n' for key, value in self.settings[name].items())
            (site.path / "site.toml").write_text(text.replace("[site]\n", f"[site]\nseed = 3\n{said}"))
            site.approvals.approve(self.plan.digest())
            hub.add(Registration.read(site.path / "registration.json"))
        for name in self.settings:
            for peer, registration in hub.sites().items():
                SiteFolder(self.root / name).trust(peer, registration.site.fingerprint)

    def run(self, out: Path) -> Outcome:
        hub = HubFolder(self.root / "hub")
        site_servers = {name: SiteFolder(self.root / name).site_server() for name in self.settings}
        carrier: Any = LoopBack({name: client_app(site_server.reply) for name, site_server in site_servers.items()})
        everyone = {name: item.site for name, item in hub.sites().items()}
        backend = FlowerBackend(
            hub=hub, run=carrier, identity=load_identity(hub.path / "identity.key"), everyone=everyone
        )
        try:
            return run(self.plan, out=out, seed=3, backend=backend)
        finally:
            for site_server in site_servers.values():
                site_server.close()


def _deployed_plan(root: Path, **method: Any) -> Plan:
    tables(seed=12)["b-large"].write_csv(root / "test.csv")
    described = plan_of("hybrid").to_mapping()
    described["data"] |= {"features": ["dose"], "test": str(root / "test.csv")}
    described["method"] = {"name": "hybrid", "phases": PHASES, **method}
    described["sites"] = {"split": "files"}  # real sites declare their clusters and risk themselves
    return load_plan(only_read(described))


def _said() -> dict[str, dict[str, str]]:
    return {name: {"low_risk": LOW[name][0], "cluster": CLUSTERS[name]} for name in SITE_SIZES}


@pytest.mark.parametrize(
    "clusters", ["given", {"north": ["a-small", "c-odd"], "south": ["b-large", "d-even"]}, "labels:2"]
)
def test_what_real_sites_say_of_themselves_gives_the_bits_of_one_process(clusters: Any, tmp_path: Path) -> None:
    plan = _deployed_plan(tmp_path, clusters=clusters)
    made = _Deployment(tmp_path, plan, _said())
    made.found()
    there = made.run(tmp_path / "there")
    here = run(plan, out=tmp_path / "here", seed=3, backend=_Declared())
    assert there.model.weights.tobytes() == here.model.weights.tobytes()
    assert there.metrics == here.metrics
    assert (there.epsilon, there.delta, there.dropped) == (here.epsilon, here.delta, {})
    asked = 4 if clusters == "given" else 0  # real sites are asked for their clusters
    assert verify_ledger(tmp_path / "there").releases == verify_ledger(tmp_path / "here").releases + asked


def test_a_hub_cannot_put_others_into_a_cluster_the_plan_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _deployed_plan(tmp_path, clusters={"north": ["a-small", "c-odd"], "south": ["b-large", "d-even"]})
    made = _Deployment(tmp_path, plan, _said())
    made.found()
    monkeypatch.setattr(peers._Relay, "members", lambda *_: "\n".join(SITE_SIZES).encode())
    with pytest.raises(SiteError, match="it refused"):
        made.run(tmp_path / "there")
    for name in SITE_SIZES:
        ledger = (tmp_path / name / "ledger" / "ledger.jsonl").read_text()
        assert "peers.exchange" not in ledger
        assert "in another cluster" in ledger


@pytest.mark.parametrize("rule", [{}, {"low_risk": "below:age:-1"}])
def test_a_site_that_calls_no_row_low_risk_sits_out_and_shows_nothing(rule: dict[str, str], tmp_path: Path) -> None:
    settings = {**_said(), "a-small": {"cluster": "north", **rule}}
    made = _Deployment(tmp_path, _deployed_plan(tmp_path), settings)
    made.found()
    outcome = made.run(tmp_path / "there")
    assert "its own ledger says why" in outcome.refused["a-small"]
    own = (tmp_path / "a-small" / "ledger" / "ledger.jsonl").read_text()
    assert "no usable row here was called so in site.toml" in own
    for place in (tmp_path / "there", tmp_path / "a-small"):
        lines = [line for line in (place / "ledger" / "ledger.jsonl").read_text().splitlines() if "a-small" in line]
        assert ['"event":"release"' in line for line in lines].count(True) == 0
        assert ['"event":"refusal"' in line for line in lines].count(True) == 1
        verify_ledger(place)


def test_without_declared_rows_a_phase_on_high_risk_rows_has_them_all(tmp_path: Path) -> None:
    plan = _deployed_plan(tmp_path, phases=[{**PHASES[1], "rounds": 1}])
    made = _Deployment(tmp_path, plan, {name: {} for name in SITE_SIZES})
    made.found()
    made.run(tmp_path / "there")
    lines = (tmp_path / "a-small" / "ledger" / "ledger.jsonl").read_text().splitlines()
    trained = [line for line in lines if '"what":"train.phase"' in line]
    assert len(trained) == 1
    assert f'"rows":{SITE_SIZES["a-small"]}' in trained[0]


def test_a_site_in_no_cluster_sits_out_and_without_any_no_budget_is_spent(tmp_path: Path) -> None:
    settings = _said()
    del settings["b-large"]["cluster"]
    made = _Deployment(tmp_path, _deployed_plan(tmp_path), settings)
    made.found()
    outcome = made.run(tmp_path / "there")
    assert any("1 of 4 sites are in no cluster" in note for note in outcome.notes)
    assert "train.phase" not in (tmp_path / "b-large" / "ledger" / "ledger.jsonl").read_text()
    nobody = tmp_path / "nobody"
    nobody.mkdir()
    made = _Deployment(nobody, _deployed_plan(nobody), {name: {"low_risk": LOW[name][0]} for name in SITE_SIZES})
    made.found()
    with pytest.raises(ConfigError, match="peers need clusters"):
        made.run(nobody / "there")
    assert "dp.reserve" not in (nobody / "a-small" / "ledger" / "ledger.jsonl").read_text()


def test_a_plan_that_ends_among_peers_leaves_the_models_at_the_sites(tmp_path: Path) -> None:
    described = plan_of("hybrid").to_mapping()
    del described["method"]["phases"][1:]
    plan = load_plan(described, complete=True)
    local = carry_out(plan, tmp_path / "local", many=False)
    backend = LoopBackBackend(tables=tables(), folder=tmp_path / "sites")
    outcome = run(plan, out=tmp_path / "hub", seed=local.seed, backend=backend)
    assert outcome.disclosed == local.outcome.disclosed
    assert outcome.clusters == local.outcome.clusters
    assert not outcome.site_models
    assert not outcome.metrics
    assert not (tmp_path / "hub" / "sites").exists()
    with pytest.raises(ConfigError, match="no common model; clusters: "):
        load_model(tmp_path / "hub").predict(tables()["b-large"])
    for name, simulated in local.outcome.site_models.items():
        (place,) = (tmp_path / "sites" / name).rglob("model.json")
        assert np.array_equal(load_model(place).save().arrays["weights"], simulated.save().arrays["weights"])
        assert place.stat().st_mode & 0o077 == 0
