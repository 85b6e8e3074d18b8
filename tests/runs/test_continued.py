"""Sites join and leave a one-shot run, behind the servers that real sites run: each model is that of retraining."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr")

import dp_accounting
import dp_accounting.pld

from kohort.crypto.identity.signers import signer_of
from kohort.crypto.sealed import Identity
from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError
from kohort.methods.oneshot import state as states
from kohort.methods.oneshot.state import FILE, load_state
from kohort.models.files import load_model
from kohort.privacy.dp.gaussian import gaussian_mu
from kohort.privacy.ledger.bound import check_run_folder
from kohort.protocol.wire import Payload, decode, encode
from kohort.rng import Streams
from kohort.runs import continued
from kohort.runs.backend import RunContext
from kohort.runs.config import Plan, load_plan
from kohort.runs.continued import join_run, leave_run
from kohort.runs.run import run
from kohort.testing.site_servers import ServedSites
from kohort.transport.remote_engine import RemoteEngine

SEED = 1
FIRST, LATE, LATER = tuple("abcde"), tuple("fgh"), tuple("ijk")


def tables() -> dict[str, pl.DataFrame]:
    made = {}
    for number, name in enumerate((*FIRST, *LATE, *LATER)):
        generator = np.random.default_rng(number)
        x = generator.normal(size=(60, 2)).clip(-3, 3)
        label = np.where(x[:, 0] + 0.2 * number * x[:, 1] + generator.normal(size=60) > 0, "yes", "no")
        made[name] = pl.DataFrame({"u": x[:, 0], "v": x[:, 1], "y": label})
    return made


def plan(**oneshot: Any) -> Plan:
    return load_plan(
        {
            "data": {
                "table": "memory", "target": "y", "features": ["u", "v"], "test": 0.0,
                "bounds": {"u": [-3.0, 3.0], "v": [-3.0, 3.0]}, "categories": {"y": ["no", "yes"]},
            },
            "sites": {"split": "files"},
            "method": {"name": "oneshot", "secure": {"sum": "masks"}, "oneshot": oneshot},
            "policy": {"min_rows": 1, "pairs": "open"},
        }
    )  # fmt: skip


class Lasting(ServedSites):
    """Sites and a hub that keep their keys, whatever a run's own seed is."""

    def hub_identity(self, streams: Streams) -> Identity | None:
        return super().hub_identity(Streams.seeded(SEED))

    def engine(self, ready: RunContext) -> RemoteEngine:
        return super().engine(replace(ready, streams=Streams.seeded(SEED)))


class Deployment:
    """Eight sites with folders of their own, so that their books last over all runs, and the hub's run folders."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked, self.runs = root, list[tuple[str, ...]](), 0
        self.signer = signer_of(Identity.from_secret("hub", Streams.seeded(SEED).bytes("hub identity")))

    @contextmanager
    def places(self, names: Sequence[str]) -> Iterator[Lasting]:
        self.asked.append(tuple(names))
        rows = tables()
        yield Lasting(tables={name: rows[name] for name in names}, folder=self.root / "sites")

    def first(self, asked: Plan, names: Sequence[str] = FIRST) -> Path:
        with self.places(names) as backend:
            run(asked, seed=SEED, out=self.root / "first", backend=backend)
        self.asked.clear()
        return self.root / "first"

    def join(self, asked: Plan, earlier: Path, names: Sequence[str], out: str) -> Path:
        self.runs += 1
        given = {"out": self.root / out, "places": self.places, "signer": self.signer, "seed": SEED + self.runs}
        join_run(asked, earlier, names, **given)  # type: ignore[arg-type]
        return self.root / out

    def leave(self, asked: Plan, earlier: Path, names: Sequence[str], out: str) -> Path:
        self.runs += 1
        given = {"out": self.root / out, "places": self.places, "signer": self.signer, "seed": SEED + self.runs}
        leave_run(asked, earlier, names, **given)  # type: ignore[arg-type]
        return self.root / out


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def weights(folder: Path) -> Any:
    return load_model(folder / "model").weights  # type: ignore[attr-defined]


def retrained(names: Sequence[str]) -> Any:
    rows = tables()
    return run(plan(), seed=SEED, tables={name: rows[name] for name in names}).model.weights  # type: ignore[attr-defined]


def test_three_join_three_leave_and_one_is_refused(made: Deployment) -> None:
    first = made.first(plan())
    second = made.join(plan(), first, LATE, "second")
    assert made.asked == [LATE]
    assert np.array_equal(weights(second), retrained((*FIRST, *LATE)))
    with pytest.raises(RefusedError, match="isolate 1 contributions"):
        made.leave(plan(), second, ["f"], "alone")
    made.asked.clear()
    third = made.leave(plan(), second, LATE, "third")
    assert not made.asked, "nobody is asked where a whole batch leaves"
    assert np.array_equal(weights(third), retrained(FIRST))
    assert np.array_equal(weights(third), weights(first))
    for folder, sites in ((second, 8), (third, 5)):
        check_run_folder(folder)
        record = json.loads((folder / "run.json").read_bytes())
        assert record["sites"] == len(record["site_rows"]) == len(record["facts"]["members"]) == sites
        assert load_state(folder / "hub" / FILE).members == set(record["facts"]["members"])
    assert "8 sites" in next((second / "model").glob("*.md")).read_text()


def test_of_one_batch_the_stayers_open_their_sum(made: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a budget nobody is asked: the difference of two totals would be that of three sites, cell by cell."""
    first = made.first(plan(), (*FIRST, *LATE))
    with pytest.raises(RefusedError, match="cells of few persons"):
        made.leave(plan(), first, LATE, "refused")
    assert not made.asked
    monkeypatch.setattr(continued, "_require_noise", lambda _: None)
    second = made.leave(plan(), first, LATE, "second")
    assert made.asked == [FIRST]
    assert np.array_equal(weights(second), retrained(FIRST))
    with pytest.raises(RefusedError, match="isolate 2 contributions"):
        made.leave(plan(), second, ["a", "b"], "third")


def test_sites_refuse_what_a_lying_hub_would_open(made: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own check is patched away: the books of the sites are what holds."""
    first = made.first(plan())
    monkeypatch.setattr(states, "_large_enough", lambda *_: None)
    monkeypatch.setattr(continued, "_require_noise", lambda _: None)
    with pytest.raises(KohortError):
        made.leave(plan(), first, ["a"], "second")
    assert made.asked == [("b", "c", "d", "e")]
    assert not (made.root / "second" / "model").exists()


def test_who_was_in_before_and_few_are_refused(made: Deployment) -> None:
    first = made.first(plan())
    with pytest.raises(RefusedError, match="3 of the joining contributions were in before"):
        made.join(plan(), first, ["a", "b", "c"], "again")
    assert not made.asked
    with pytest.raises(RefusedError, match="needs three sites, and 2 take part"):
        made.join(plan(), first, ["f", "g"], "two")
    with pytest.raises(ConfigError, match="are not in"):
        made.leave(plan(), first, LATE, "strangers")


def test_another_plan_or_a_changed_state_is_refused(made: Deployment) -> None:
    first = made.first(plan())
    with pytest.raises(ConfigError, match="plan differs"):
        made.join(plan(precision=15), first, LATE, "other")
    place = first / "hub" / FILE
    place.write_bytes(place.read_bytes()[:-1] + b"?")
    with pytest.raises(IntegrityError):
        made.join(plan(), first, LATE, "second")


def test_newton_steps_cannot_be_joined() -> None:
    rows = tables()

    def state(names: Sequence[str]) -> states.OneShotState:
        return load_state(run(plan(rounds=3), seed=SEED, tables={name: rows[name] for name in names}).files[FILE])

    first = state(FIRST)
    for change in (
        lambda: states.join(first, state(LATE)),
        lambda: states.leave(first, "abc"),
        lambda: states.split_batches(first, "abc"),
        first.model,
    ):
        with pytest.raises(RefusedError, match="Newton steps are taken with all sites at once"):
            change()


def test_noise_of_batches_adds_up_and_older_states_are_read() -> None:
    rows = tables()
    state = load_state(run(plan(), seed=SEED, tables={name: rows[name] for name in FIRST}).files[FILE])
    one = replace(state.batches[0], noise=3.0)
    part = states.Batch(frozenset("ab"), one.total, 4.0)
    assert one.without(part).noise == 5.0
    assert one.without(part).members == set("cde")
    assert load_state(states.save_state(replace(state, batches=(one,)))).batches[0].noise == 3.0
    many = replace(state, batches=tuple(replace(one, members=frozenset({str(n)})) for n in range(3000)))
    assert len(load_state(states.save_state(many)).batches) == 3000
    older = as_before(state)
    assert load_state(older).batches[0].noise == 0.5
    assert np.array_equal(load_state(older).batches[0].total, state.batches[0].total)


def as_before(state: states.OneShotState) -> bytes:
    """A state as it was written before batches had noise of their own: one array per batch, one number for all."""
    payload = decode(states.save_state(state)[32:])
    facts = {**json.loads(payload.blobs["facts"]), "noise": 0.5}
    arrays = {"cells": payload.arrays["cells"], "total-0": payload.arrays["totals"][0]}
    content = encode(Payload(arrays=arrays, blobs={"facts": json.dumps(facts).encode()}))
    return hashlib.blake2b(content, digest_size=32).digest() + content


def with_budget(asked: Plan) -> Plan:
    raw = asked.to_mapping()
    return load_plan(
        {
            "data": {key: raw["data"][key] for key in ("table", "target", "features", "test", "bounds", "categories")},
            "sites": {"split": "files"},
            "method": {"name": "oneshot", "secure": {"sum": "masks"}, "dp": {"epsilon": 1.0, "delta": 1e-5}},
            "policy": {"min_rows": 1, "pairs": "open", "epsilon": 5.0},
        }
    )


def test_under_a_budget_stayers_pay_twice_and_the_folder_says_so(made: Deployment) -> None:
    """Both totals were opened to the hub: two full-batch Gaussian releases, which is one of sqrt(2) times the ratio."""
    asked = with_budget(plan())
    first = made.first(asked, (*FIRST, *LATE))
    once = json.loads((first / "run.json").read_bytes())
    twice = json.loads((made.leave(asked, first, LATE, "second") / "run.json").read_bytes())
    assert made.asked == [FIRST]
    account = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    sigma = 1 / gaussian_mu(1.0, 1e-5)
    account.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(sigma), 2))
    assert once["epsilon"] == pytest.approx(1.0, rel=0.01)
    assert twice["epsilon"] == pytest.approx(account.get_epsilon(2e-5), rel=0.01)
    assert twice["delta"] == pytest.approx(2e-5)
    assert twice["dp"]["epsilon_all"] == pytest.approx(
        once["dp"]["epsilon_all"] + told_alone(made.root / "second"), rel=1e-6
    )
    assert "Some rows were in 2 sums" in twice["notes"][-1]
    third = json.loads((made.join(asked, made.root / "second", LATER, "third") / "run.json").read_bytes())
    assert (third["epsilon"], third["delta"]) == (twice["epsilon"], twice["delta"])


def told_alone(folder: Path) -> float:
    """What the reservations of a folder's own run say of collusion."""
    lines = map(json.loads, (folder / "ledger" / "ledger.jsonl").read_text().splitlines())
    return max(line["guarantee"]["epsilon_all"] for line in lines if line.get("what") == "dp.reserve")


def test_under_a_budget_joining_costs_nobody_anything_twice(made: Deployment) -> None:
    asked = with_budget(plan())
    joined = json.loads((made.join(asked, made.first(asked), LATE, "second") / "run.json").read_bytes())
    assert joined["epsilon"] == pytest.approx(1.0, rel=0.01)
    assert len(joined["facts"]["paid"]) == 1
