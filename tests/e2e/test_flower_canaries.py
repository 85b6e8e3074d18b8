"""Values planted in identifiers, quasi-identifiers and features never reach the hub, but where a site released them.

The plan declares every column's categories (with "other") or bounds, so no site tells its domain: a category that was
learned from rows would be the value itself. What is approved to leave, by policy and ledger, is then

- under fedavg, oneshot, silo, partial, hybrid, and syntactic with classes sealed to peers: no planted value at all. The
  rows with planted values have quasi-identifiers of their own, so partial's gate keeps them;
- under syntactic with classes shared with the hub: the classes' cells, in which at least k rows agree;
- under central, which the sites' policies allow (`raw`): rows as they are, but for identifiers.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.canaries import TAX, WEALTH, plant, search, search_messages
from tests.support.flower_federation import Federation, federation, lines_of, method_section, write_plan

pytest.importorskip("flwr")

from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol.wire import decode
from kohort.transport.flower.run import FlowerRun
from kohort.transport.messages import SIGNATURE, split_messages

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PLAN = """
[data]
table = [{tables}]
target = "outcome"
identifiers = ["person"]
quasi = ["village", "tax"]
sensitive = ["outcome"]
features = ["age", "note", "wealth"]
bounds = {{tax = {tax}, wealth = {wealth}, age = [0.0, 100.0]}}
categories = {{village = ["coast", "hills"], note = ["plain"], outcome = ["ill", "well"]}}
other = ["village", "note"]
test = "{root}/test.csv"
[sites]
split = "files"
deadline = 120
[model]
hidden = [4]
[train]
rounds = 1
batch = 16
[policy]
min_rows = 1
raw = true
min_k = 2
pairs = "open"
overlapping_releases = true
"""
PEERS = {"kind": "peers", "rows": "low", "rounds": 1}
SERVER = {"kind": "server", "rows": "high", "rounds": 1, "batch": 0, "dp": {"epsilon": 2.0, "delta": 1e-5}}
SILENT: dict[str, dict[str, Any]] = {
    **{method: method_section(method) for method in ("fedavg", "oneshot", "silo", "partial")},
    "hybrid": {"name": "hybrid", "phases": [PEERS, SERVER]},
    "syntactic": {**method_section("syntactic"), "share": "peers"},
}
RELEASES = {"syntactic": "mappings.publish", "central": "central.ship"}
"""Methods that release values, and the task under which a site's ledger says so."""
TABLES, PLANTED = plant(3)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    root = tmp_path_factory.mktemp("planted")
    plant(4)[0]["site-03"].filter(pl.col("note") == "plain").drop("person").with_columns(
        person=pl.lit("nobody")
    ).write_csv(root / "test.csv")
    plan = root / "plan.toml"
    tables = ", ".join(f'"{root}/tables/{name}.csv"' for name in TABLES)
    plan.write_text(PLAN.format(tables=tables, root=root, tax=list(TAX), wealth=list(WEALTH)))
    says = dict.fromkeys(TABLES, 'low_risk = "below:age:50"\ncluster = "all"\n')
    with federation(root, plan, TABLES, says=says) as made:
        yield made


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Everything that was handed to the hub, as it came."""
    came: list[bytes] = []
    carry = FlowerRun.carry

    def listening(self: FlowerRun, messages: Mapping[str, bytes], *, deadline: float) -> Any:
        answers, missing = carry(self, messages, deadline=deadline)
        came.extend(answers.values())
        return answers, missing

    monkeypatch.setattr(FlowerRun, "carry", listening)
    return came


def carry_out(made: Federation, name: str, method: dict[str, Any]) -> Path:
    path = write_plan(made.root / f"{name}.toml", {**tomllib.loads(made.plan.read_text()), "method": method})
    made.approve(path, *TABLES)
    out = made.root / f"{name}-flower"
    outcome = made.run_here(out, path)
    assert (outcome.refused, outcome.dropped, outcome.sites) == ({}, {}, tuple(TABLES))
    verify_ledger(out)
    return out


def written(made: Federation) -> list[Path]:
    """All that the hub has on its disk: its folder (database, receipts, state, logs), its runs and what it printed."""
    return [made.hub, made.root / "hub.process.log", *made.root.glob("*-flower")]


def test_the_search_finds_what_is_there(planted: Federation) -> None:
    everywhere = search([planted.root / "tables"], PLANTED)
    assert set().union(*everywhere.values()) == {*PLANTED.texts, *map(repr, PLANTED.numbers)}
    assert PLANTED.count > 200
    tax, wealth = (next(n for n, bounds in PLANTED.numbers.items() if bounds == wanted) for wanted in (TAX, WEALTH))
    for array in (
        pl.Series([int(tax)]).to_numpy(),
        pl.Series([wealth], dtype=pl.Float32).to_numpy(),
        pl.Series([wealth / WEALTH[1]], dtype=pl.Float32).to_numpy(),
    ):
        assert len(PLANTED.in_array(array)) == 1
        assert array.dtype.itemsize == 4 or len(PLANTED.in_bytes(b"..." + array.tobytes())) == 1


def test_no_planted_value_reaches_the_hub_and_releases_hold_no_more_than_they_say(
    planted: Federation, handed: list[bytes]
) -> None:
    for name, method in SILENT.items():
        out = carry_out(planted, f"silent-{name}", method)
        assert not any(line.get("what") == "describe" for line in lines_of(out)), "a domain is not among what may leave"
    assert len(handed) > 3 * len(SILENT)
    assert search_messages(handed, PLANTED) == set()
    assert search(written(planted), PLANTED) == {}

    # What is approved from here on: classes of k rows, then raw rows without identifiers. Both are found, or else the
    # search would be blind to what travels.
    for name, task in RELEASES.items():
        handed.clear()
        out = carry_out(planted, name, method_section(name))
        released, rest = by_task(handed, out, task)
        approved = search_messages(released, PLANTED)
        assert approved
        assert not any(canary.startswith("canary-person") for canary in approved)
        assert search_messages(rest, PLANTED) == set()
        assert set().union(*search(written(planted), PLANTED).values()) <= approved
    rows = {canary for canary in PLANTED.texts if not canary.startswith("canary-person")}
    assert approved == rows | set(map(repr, PLANTED.numbers))


def by_task(handed: list[bytes], out: Path, task: str) -> tuple[list[bytes], list[bytes]]:
    """The messages the hub's ledger lists as releases under `task`, and all others."""
    requests = {line["request"] for line in lines_of(out) if line["event"] == "release" and line["what"] == task}
    messages = [message for message in handed for message in split_messages(message)]
    heads = [json.loads(decode(message[:-SIGNATURE]).blobs["head"]) for message in messages]
    named = [head["request"] in requests for head in heads]
    assert any(named)
    return (
        [message for message, is_named in zip(messages, named, strict=True) if is_named],
        [message for message, is_named in zip(messages, named, strict=True) if not is_named],
    )
