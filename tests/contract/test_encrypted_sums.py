"""Encrypted sums through requests, doors and ledgers: equal totals, a key-holder of its own, and no way around it."""

from __future__ import annotations

import gc
import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from tests.support.contracts import opened

from kohort.crypto.sums.encrypted import EncryptedHub
from kohort.crypto.sums.he import SecretKey
from kohort.crypto.sums.scheme import KEY_HOLDER, FixedPoint, Integers, SumContext, find_scheme
from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError
from kohort.privacy.guarantee import parse_guarantee
from kohort.privacy.ledger.ledger import Ledger
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol import engine as engine_module
from kohort.protocol.engine import LocalEngine, drive
from kohort.protocol.hub import Ask, Hub, RoundEnd
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.rng import Streams
from kohort.rounds.summing import Total, secure_sum, sum_task
from kohort.runs.agreed import approved_plan_for
from kohort.runs.backend import RunContext, Simulation
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Progress, run

SCHEMES = ["none", "masks", "bfv", "ckks"]
POINT = FixedPoint(bound=1.0, scale=2**30, sites=12)
LENGTH = 30


def values_of(site: Site, length: int = LENGTH) -> Integers:
    return POINT.encode(site.streams.generator("test values").uniform(-1, 1, length))


def contribute(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    del request, inputs
    return values_of(site, context.length), site.count


TASK = sum_task("test.encrypted-sum", contribute, scheme=lambda approved: str(approved.config.secure.sum))


def plan(scheme: str, *, sites: int = 4, rounds: int = 1, drop: float = 0.0, **policy: Any) -> Plan:
    return load_plan(
        {
            "data": {
                "table": "memory",
                "target": "y",
                "quasi": ["a"],
                "features": ["x"],
                "test": 0.1,
                # Declared, because sites would learn domains in clear without a secure sum, and by a count with one.
                "bounds": {"a": [1, 9], "x": [0, 1]},
                "categories": {"y": ["n", "y"]},
            },
            "sites": {"count": sites, "faults": {"drop": drop}, "quorum": 0.2},
            "train": {"rounds": rounds, "optimizer": "sgd", "lr": 0.1},
            "model": {"kind": "logistic"},
            "policy": {"raw": True, "trust_counts": True, "min_rows": 1, **policy},
            "method": {"name": "partial", "gate": {"k": 5, "released": "raw"}, "secure": {"sum": scheme}},
        }
    )


def table(rows: int = 120) -> pl.DataFrame:
    random = np.random.default_rng(4)
    return pl.DataFrame(
        {"a": random.zipf(1.6, rows).clip(max=9), "x": random.random(rows), "y": random.choice(["n", "y"], rows)}
    )


def engine_of(made: Plan, *, seed: int = 5) -> LocalEngine:
    """A simulated federation that has agreed to a plan."""
    streams, backend = Streams.seeded(seed), Simulation(tables={"": table()})
    population = backend.populate(made, streams)
    ready = RunContext(
        plan=made,
        population=population,
        approved=opened(approved_plan_for(made, schema=population.schema, run="run", sites=population.names)),
        streams=streams,
        ledger=Ledger(signer=Signer.from_secret(streams.bytes("s")), run="run"),
        receipts=Receipts(signer=Signer.from_secret(streams.bytes("h"))),
    )
    engine = backend.engine(ready)
    engine.approve(lambda _: ())
    engine.inject_faults(made.sites.faults)
    return engine


def total_of(engine: LocalEngine, *, length: int = LENGTH) -> Total:
    hub = Hub(
        sites=tuple(engine.sites),
        rows={},
        encoder=cast(Any, None),
        network=cast(Any, None),
        approved=engine.approved,
        streams=engine.streams,
        inputs=engine.inputs,
        key_holder=next(iter(engine.parties), None),
    )

    def asks() -> Generator[Ask | RoundEnd, Any, Total]:
        return (yield from secure_sum(hub, TASK, length=length))

    return drive(asks(), engine)


def lines_of(engine: LocalEngine) -> list[dict[str, Any]]:
    ledger = next(iter(engine.sites.values())).ledger
    return [json.loads(line) for line in ledger.lines]


@pytest.mark.parametrize("length", [LENGTH, 4500])
def test_every_scheme_gives_the_same_bits(length: int) -> None:
    found = {}
    for scheme in SCHEMES:
        made = plan(scheme)
        engine = engine_of(made)
        found[scheme] = total_of(engine, length=length)
    for total in found.values():
        assert total.sites == found["none"].sites
        assert np.array_equal(total.values, found["none"].values)


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_sites_that_do_not_answer_are_not_in_the_total(scheme: str) -> None:
    made = plan(scheme, sites=12, drop=0.3)
    engine = engine_of(made)
    total = total_of(engine)
    assert 3 <= len(total.sites) < 12
    wanted = sum(values_of(engine.sites[name]) for name in total.sites)
    assert np.array_equal(total.values, wanted)
    opened = [line for line in lines_of(engine) if line.get("what") == "sum.open"]
    assert opened[0]["guarantee"]["sites"] == len(total.sites)


def test_the_ledger_tells_who_gave_what_to_whom() -> None:
    made = plan("bfv")
    engine = engine_of(made)
    total_of(engine)
    released = [line for line in lines_of(engine) if line["event"] == "release"]
    assert sum(line["size"] for line in released) == engine.costs.bytes_up
    by_holder = {line["what"]: line["guarantee"] for line in released if line["site"] == KEY_HOLDER}
    assert by_holder["sum.keys"]["kind"] == "public"
    assert by_holder["sum.open"]["kind"] == "secure-sum"
    assert by_holder["sum.open"]["opens"] == "hub: the total over 4 sites"
    assert parse_guarantee(next(line["guarantee"] for line in released if line["what"] == TASK.name)) == find_scheme(
        "bfv"
    ).claim(4, 30)
    by_site = [line["guarantee"] for line in released if line["site"] != KEY_HOLDER]
    assert len(by_site) == 4
    for claim in by_site:
        assert (claim["kind"], claim["sites"], claim["threshold"], claim["colluders"]) == ("secure-sum", 4, 3, 1)
        assert claim["opens"] == "key-holder: the total, encrypted with bfv"


def test_replies_are_taken_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan("bfv", sites=7)
    whole = total_of(engine_of(made))
    held: list[int] = []
    real = LocalEngine._collect

    def collect(self: LocalEngine, sites: Any, ask: Ask, *rest: Any) -> Any:
        if ask.take is not None:
            held.append(len(sites))
        return real(self, sites, ask, *rest)

    monkeypatch.setattr(engine_module, "AT_A_TIME", 3)
    monkeypatch.setattr(LocalEngine, "_collect", collect)
    parts = total_of(engine_of(made))
    assert held == [3, 3, 1]
    assert np.array_equal(parts.values, whole.values)
    assert parts.sites == whole.sites


def test_a_run_gives_the_same_rows_and_model_under_every_scheme(tmp_path: Path) -> None:
    found = {}
    for scheme in SCHEMES:
        outcome = run(plan(scheme), out=tmp_path / scheme, seed=2, tables={"": table()})
        found[scheme] = outcome
        listed = [
            json.loads(line) for line in (tmp_path / scheme / "ledger" / "ledger.jsonl").read_bytes().splitlines()
        ]
        assert sum(line["size"] for line in listed if line["event"] == "release") == outcome.bytes["up"]
        assert verify_ledger(tmp_path / scheme).head == outcome.ledger_head
        assert (KEY_HOLDER in {line["site"] for line in listed}) == (scheme in {"bfv", "ckks"})
    for outcome in found.values():
        assert np.array_equal(outcome.model.weights, found["none"].model.weights)
    alive = [item for item in gc.get_objects() if issubclass(type(item), SecretKey) and item._opener is not None]
    assert alive == []


def test_same_seed_same_ledger_one_by_one_and_resumed(tmp_path: Path) -> None:
    made = plan("bfv", rounds=3)
    whole = run(made, out=tmp_path / "whole", seed=2, tables={"": table()})
    assert run(made, seed=2, tables={"": table()}, many=False).ledger_head == whole.ledger_head

    def stop(progress: Progress) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(made, out=tmp_path / "cut", seed=2, tables={"": table()}, watch=stop)
    resumed = run(made, out=tmp_path / "cut", seed=2, tables={"": table()}, resume=True)
    assert resumed.ledger_head == whole.ledger_head
    assert np.array_equal(resumed.model.weights, whole.model.weights)


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_a_hub_that_lies_about_the_sites_ends_with_exit_6(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = EncryptedHub.take

    def forget(self: EncryptedHub, step: int, site: str, reply: bytes) -> None:
        if len(self.claimed) == 2:
            self.claimed[site] = None  # claimed, and not in the total
        else:
            real(self, step, site, reply)

    monkeypatch.setattr(EncryptedHub, "take", forget)
    made = plan(scheme)
    with pytest.raises(IntegrityError, match="check of a total") as caught:
        total_of(engine_of(made))
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("harm", ["cut", "altered"])
def test_a_broken_ciphertext_ends_with_exit_6(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = EncryptedHub.take

    def harmed(self: EncryptedHub, step: int, site: str, reply: bytes) -> None:
        bad = reply[:-50] if harm == "cut" else reply[:9000] + bytes([reply[9000] ^ 1]) + reply[9001:]
        real(self, step, site, bad if not self.claimed else reply)

    monkeypatch.setattr(EncryptedHub, "take", harmed)
    made = plan("bfv")
    with pytest.raises(KohortError) as caught:
        total_of(engine_of(made))
    assert caught.value.exit_code == 6


def test_the_policys_minimum_holds_for_encrypted_sums() -> None:
    made = plan("bfv", min_sum_sites=5)
    with pytest.raises(RefusedError, match="below 5"):
        total_of(engine_of(made))
    engine = engine_of(plan("bfv", sites=12, drop=0.6, min_sum_sites=11))
    with pytest.raises(RefusedError, match="below 11"):
        total_of(engine)


def test_no_headroom_is_an_error_that_tells_the_bound() -> None:
    wide = sum_task(
        "test.wide-sum",
        lambda site, _, context, inputs: (np.full(context.length, 2**38, dtype=np.uint64), site.count),
        scheme=lambda approved: str(approved.config.secure.sum),
    )
    made = plan("bfv")
    engine = engine_of(made)
    hub = Hub(
        sites=tuple(engine.sites),
        rows={},
        encoder=cast(Any, None),
        network=cast(Any, None),
        approved=engine.approved,
        streams=engine.streams,
        inputs=engine.inputs,
        key_holder=KEY_HOLDER,
    )
    with pytest.raises(KohortError, match="above 137438953471"):
        drive(secure_sum(hub, wide, length=3), engine)


def test_nobody_else_can_be_the_key_holder() -> None:
    made = load_plan(
        {
            "data": {"table": "memory", "target": "y", "quasi": ["a"], "features": ["x"]},
            "sites": {"split": "files"},
            "policy": {"raw": True, "trust_counts": True, "min_rows": 1},
            "method": {"name": "partial", "gate": {"k": 5, "released": "raw"}, "secure": {"sum": "bfv"}},
        }
    )
    names = ("north", "south", KEY_HOLDER)
    with pytest.raises(ConfigError, match="cannot be called"):
        run(made, seed=1, tables={name: table() for name in names})
    engine = engine_of(plan("bfv"))
    engine.parties.clear()
    with pytest.raises(ConfigError, match="needs a key-holder"):
        total_of(engine)
