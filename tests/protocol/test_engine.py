"""The engine: one receipt per request, costs as carried, tasks found by name at the site and nowhere else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.support.contracts import open_contract

from kohort.errors import ConfigError, IntegrityError, RefusedError, SiteError
from kohort.privacy.guarantee import DP, Aggregate, Public
from kohort.privacy.ledger.ledger import Ledger, canonical
from kohort.privacy.ledger.receipts import Receipts
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import verify_ledger
from kohort.privacy.policy import Policy
from kohort.protocol import task as task_module
from kohort.protocol.engine import LocalEngine, drive
from kohort.protocol.enrolment import PREPARE
from kohort.protocol.hub import Ask, Expect, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site, SiteTable
from kohort.protocol.task import Release, Releases, Request, Task, find_task
from kohort.protocol.wire import Payload, encode
from kohort.rng import Streams
from kohort.tables.schema import Schema

NAMES = ("a", "b", "c")
ROWS = 10


@pytest.fixture(autouse=True)
def _fresh_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    known = dict(task_module._TASKS)
    yield
    task_module._TASKS.clear()
    task_module._TASKS.update(known)


def make_engine(folder: Path, *, policy: Policy | None = None, **options: Any) -> LocalEngine:
    streams = Streams.seeded(4)
    ledger = Ledger(signer=Signer.from_secret(streams.bytes("sites")), folder=folder, run="r")
    receipts = Receipts(signer=Signer.from_secret(streams.bytes("hub")), folder=folder)
    frame = pl.DataFrame({"x": np.arange(ROWS * len(NAMES)), "y": ["p", "q"] * (ROWS * len(NAMES) // 2)})
    schema = Schema.of(target="y", features=("x",)).resolve(["x", "y"], None)
    sites = {
        name: Site(
            name=name,
            table=SiteTable(frame, index * ROWS, (index + 1) * ROWS),
            schema=schema,
            policy=policy or Policy(min_rows=1),
            streams=Streams(streams.bytes("site", name), 4),
            ledger=ledger,
        )
        for index, name in enumerate(NAMES)
    }
    approved = ApprovedPlan(
        run="r", plan_hash="p" * 64, method="m", config=None, schema=schema, contract=open_contract()
    )
    engine = LocalEngine(sites=sites, approved=approved, streams=streams, receipts=receipts, **options)
    engine.declared = dict.fromkeys(NAMES, ROWS)
    for site in sites.values():
        site.approved = approved
    return engine


def seal(engine: LocalEngine, folder: Path) -> None:
    ledger = engine.sites["a"].ledger
    ledger.seal(receipts=(engine.receipts.length, engine.receipts.head), hub_key=engine.receipts.public)
    ledger.close()
    engine.receipts.close()
    found = verify_ledger(folder)
    assert found.receipts == engine.receipts.length


def echo(site: Site, request: Request) -> Release:
    payload = Payload(arrays=dict(request.payload.arrays), metrics={"rows": site.count})
    return Release(payload=payload, guarantee=Aggregate(rows=site.count), rows=site.count)


def test_a_question_for_all_is_one_receipt(tmp_path: Path) -> None:
    engine, task = make_engine(tmp_path), Task(name="test.echo", one=echo)
    payload = Payload(arrays={"x": np.arange(3.0)})
    replies = engine.exchange(
        Ask(task=task, to=NAMES, payload=payload, expect=Expect(arrays={"x": ("<f8", (3,))}, metrics=("rows",)))
    )
    assert replies.sites == NAMES
    assert replies.array("x").tolist() == [[0.0, 1.0, 2.0]] * 3
    assert replies.metric("rows").tolist() == [ROWS] * 3
    assert engine.costs.bytes_down == 3 * len(encode(payload))
    assert engine.receipts.length == 1
    seal(engine, tmp_path)


@pytest.mark.parametrize("same", [True, False], ids=["same question", "own question"])
def test_a_question_for_each_is_a_receipt_each(same: bool, tmp_path: Path) -> None:
    """Also when the sites are asked the very same thing: the requests stay apart."""
    engine, task = make_engine(tmp_path), Task(name="test.echo", one=echo)
    each = {name: Payload(arrays={"x": np.full(2, 0 if same else index)}) for index, name in enumerate(NAMES)}
    expect = Expect(arrays={"x": ("<i8", (None,))}, metrics=("rows",))
    replies = engine.exchange(Ask(task=task, to=NAMES, each=each, expect=expect))
    assert replies.array("x")[:, 0].tolist() == ([0, 0, 0] if same else [0, 1, 2])
    assert engine.receipts.length == 3
    sizes = {name: len(encode(payload)) for name, payload in each.items()}
    assert engine.costs.bytes_down == sum(sizes.values())
    assert engine.costs.most_bytes_a_site < engine.costs.bytes_up + engine.costs.bytes_down
    assert engine.costs.slowest_site <= engine.costs.sites
    seal(engine, tmp_path)


def test_many_and_one_by_one_give_the_same_ledger_also_when_some_refuse(tmp_path: Path) -> None:
    def claim(site: Site) -> DP:
        return DP(epsilon=0.6, delta=0.0)

    def one(site: Site, request: Request) -> Release:
        payload = Payload(arrays={"x": np.full(2, site.count, dtype=np.float32)}, metrics={"rows": site.count})
        return Release(payload=payload, guarantee=claim(site), rows=site.count)

    def many(sites: Any, request: Request) -> Releases:
        counts = np.asarray([site.count for site in sites])
        return Releases(
            arrays={"x": np.repeat(counts[:, None], 2, axis=1).astype(np.float32)},
            metrics={"rows": counts},
            guarantees=[claim(site) for site in sites],
            rows=counts.tolist(),
        )

    expect = Expect(arrays={"x": ("<f4", (2,))}, metrics=("rows",))
    files = []
    for grouped in (True, False):
        folder = tmp_path / str(grouped)
        engine = make_engine(folder, policy=Policy(epsilon=1.0), many=grouped, quorum=0.3)
        task = Task(name="test.sum", one=one, many=many)
        engine.sites["b"].policy = Policy(epsilon=0.5)
        first = engine.exchange(Ask(task=task, to=NAMES, expect=expect))
        assert first.sites == ("a", "c")
        assert [(item.site, item.kind) for item in first.excluded] == [("b", "refused")]
        with pytest.raises(RefusedError):  # 0.6 and 0.6 are more than 1
            engine.exchange(Ask(task=task, to=NAMES, round=1, expect=expect))
        seal(engine, folder)
        files.append([(folder / name).read_bytes() for name in ("ledger.jsonl", "head.json", "receipts.jsonl")])
    assert files[0] == files[1]


def test_approval_comes_before_anything_leaves_and_counts_the_whole_plan(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, policy=Policy(epsilon=1.0))
    twice = (DP(epsilon=0.6, delta=0.0), DP(epsilon=0.6, delta=0.0))
    with pytest.raises(RefusedError, match="3 of 3"):
        engine.approve(lambda site: twice)
    assert {json.loads(line)["event"] for line in (tmp_path / "ledger.jsonl").read_bytes().splitlines()} == {
        "open",
        "refusal",
    }
    assert make_engine(tmp_path / "2", policy=Policy(epsilon=1.2)).approve(lambda site: twice) == NAMES


def test_a_plan_whose_task_a_site_does_not_answer_is_refused_at_once(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, policy=Policy(min_rows=1, tasks=("m.plan", "prepare")))
    assert engine.approve(lambda site: (Public(what="x"),), tasks=["prepare"]) == NAMES
    with pytest.raises(RefusedError, match="'train'"):
        engine.approve(lambda site: (Public(what="x"),), tasks=["prepare", "train"])


def test_the_quorum_counts_those_who_were_asked(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, quorum=0.5)
    task = Task(name="test.echo", one=echo)
    with pytest.raises(SiteError, match="0 of 3"):
        engine.exchange(Ask(task=task, to=NAMES, expect=Expect(metrics=("other",))))
    with pytest.raises(SiteError, match="0 of 0"):
        engine.exchange(Ask(task=task, to=()))


def test_only_what_is_installed_at_the_site_runs() -> None:
    with pytest.raises(RefusedError, match=r"'os\.system'"):
        find_task("os.system")


def test_two_tasks_of_one_name_are_refused_unless_one_module_made_both() -> None:
    Task(name="test.twice", one=echo)
    Task(name="test.twice", one=echo)

    def stranger(site: Site, request: Request) -> Release:
        return echo(site, request)

    stranger.__module__ = "somebody.else"
    with pytest.raises(ConfigError, match=r"test\.twice"):
        Task(name="test.twice", one=stranger)
    assert find_task("test.twice").one is echo


def test_a_request_is_bound_to_everything_it_says() -> None:
    fields: dict[str, Any] = {
        "run": "r", "plan_hash": "p", "task": "t", "round": 1, "attempt": 0, "nonce": "n", "payload": Payload(),
    }  # fmt: skip
    digests = {Request(**fields).digest}
    changes = {"run": "R", "plan_hash": "P", "task": "T", "round": 2, "attempt": 1, "nonce": "N"}
    for name, value in {**changes, "payload": Payload(metrics={"m": 1})}.items():
        digests.add(Request(**{**fields, name: value}).digest)
    assert len(digests) == 8


def test_a_request_is_known_by_the_canonical_form_of_what_it_says() -> None:
    payload = Payload(metrics={"m": 1})
    said: list[Any] = ['a "run"', "p\n", "tâche", 12, 3, "n\\"]
    names = ("run", "plan_hash", "task", "round", "attempt", "nonce")
    request = Request(**dict(zip(names, said, strict=True)), payload=payload)
    wanted = hashlib.blake2b(canonical(said).encode() + b"\0" + encode(payload), digest_size=32).hexdigest()
    assert request.digest == request.ledger_context.request == wanted
    assert request.encoded == encode(payload)


def test_a_plan_is_driven_to_its_end_and_observed(tmp_path: Path) -> None:
    engine, task = make_engine(tmp_path), Task(name="test.echo", one=echo)
    seen: list[int] = []

    def plan() -> Generator[Ask | RoundEnd, Any, str]:
        for number in range(3):
            replies = yield Ask(task=task, to=NAMES[:2], round=number, expect=Expect(metrics=("rows",)))
            assert replies.sites == NAMES[:2]
            assert (yield RoundEnd(round=number, rounds=3, model=None)) is None
        return "done"

    assert drive(plan(), engine, observe=lambda mark: seen.append(mark.round)) == "done"
    assert seen == [0, 1, 2]
    seal(engine, tmp_path)


def test_a_hub_that_sees_a_replaced_ledger_stops(tmp_path: Path) -> None:
    engine, task = make_engine(tmp_path), Task(name="test.echo", one=echo)
    for number in range(2):
        engine.exchange(Ask(task=task, to=NAMES, round=number, expect=Expect(metrics=("rows",))))
    engine.sites["b"].chain.length = 0
    with pytest.raises(IntegrityError, match="'b' is shorter than at its last receipt"):
        engine.exchange(Ask(task=task, to=NAMES, round=2, expect=Expect(metrics=("rows",))))


def test_what_a_key_holder_reads_of_a_task_is_declared_on_every_task() -> None:
    plain = find_task(PREPARE.name)
    assert (plain.family, plain.signed, plain.small_cells) == ("", False, None)
    assert type(plain) is Task
