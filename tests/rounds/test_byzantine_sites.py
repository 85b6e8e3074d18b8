"""Sites that lie, fail or refuse are excluded and recorded by name; the run continues while enough sites are left."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import DataError, RefusedError, SiteError
from kohort.methods.central import SHIP
from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol import answers
from kohort.protocol import task as task_module
from kohort.protocol.enrolment import DESCRIBE, PREPARE
from kohort.protocol.task import Release, Task
from kohort.protocol.wire import Payload
from kohort.rounds.training import TRAIN
from kohort.runs.config import Plan, load_plan, only_read
from kohort.runs.run import run

SIZES = {"one": 40, "two": 55, "three": 60, "four": 45, "five": 50}
BAD = "three"
Twist = Callable[[Release], Release]


def site_tables() -> dict[str, pl.DataFrame]:
    random = np.random.default_rng(3)
    made = {}
    for name, rows in SIZES.items():
        x = random.normal(size=rows).round(3)
        y = np.where(x + random.normal(0, 0.5, rows) > 0, "yes", "no")
        made[name] = pl.DataFrame({"x": x, "group": random.choice(["a", "b"], rows), "y": y})
    return made


def a_plan(method: str = "fedavg", **sections: dict[str, Any]) -> Plan:
    raw: dict[str, dict[str, Any]] = {
        "data": {"table": "in-memory table", "target": "y", "features": "rest"},
        "sites": {"split": "files"},
        "model": {"hidden": [3]},
        "train": {"rounds": 2, "batch": 16, "stop": {"patience": 50}},
        "method": {"name": method},
        "policy": {"min_rows": 1, "raw": True},
    }
    for name, values in sections.items():
        raw[name] = {**raw[name], **values}
    return load_plan(only_read(raw))


@pytest.fixture
def bend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let chosen sites answer a task with something else than its honest release."""

    def make(task: Task, twist: Twist, *, sites: tuple[str, ...] = (BAD,), keep_many: bool = False) -> None:
        honest = task.one

        @functools.wraps(honest)
        def one(site: Any, request: Any) -> Release:
            release = honest(site, request)
            return twist(release) if site.name in sites else release

        monkeypatch.setitem(task_module._TASKS, task.name, task)
        replace(task, one=one, many=task.many if keep_many else None)  # making a task registers it

    return make


def arrays(**changes: Any) -> Twist:
    def twist(release: Release) -> Release:
        parts = dict(release.payload.arrays)
        for name, change in changes.items():
            parts[name] = change(parts[name])
        return replace(release, payload=replace(release.payload, arrays=parts))

    return twist


def metrics(**values: Any) -> Twist:
    def twist(release: Release) -> Release:
        return replace(release, payload=replace(release.payload, metrics={**release.payload.metrics, **values}))

    return twist


def without(kind: str, name: str) -> Twist:
    def twist(release: Release) -> Release:
        parts = {key: value for key, value in getattr(release.payload, kind).items() if key != name}
        return replace(release, payload=replace(release.payload, **{kind: parts}))

    return twist


def poisoned(value: float) -> Callable[[Any], Any]:
    def change(weights: Any) -> Any:
        weights = weights.copy()
        weights[1] = value
        return weights

    return change


LIES: dict[str, Twist] = {
    "NaN": arrays(weights=poisoned(np.nan)),
    "infinity": arrays(weights=poisoned(np.inf)),
    "minus infinity": arrays(weights=poisoned(-np.inf)),
    "1e30": arrays(weights=poisoned(1e30)),
    "-1e30": arrays(weights=poisoned(-1e30)),
    "one weight more": arrays(weights=lambda weights: np.append(weights, weights[:1])),
    "one weight less": arrays(weights=lambda weights: weights[1:]),
    "no weights": arrays(weights=lambda weights: weights[:0]),
    "another axis": arrays(weights=lambda weights: weights[None]),
    "a number": arrays(weights=lambda weights: weights[0]),
    "doubles": arrays(weights=lambda weights: weights.astype(np.float64)),
    "integers": arrays(weights=lambda weights: weights.astype(np.int32)),
    "truth values": arrays(weights=lambda weights: weights > 0),
    "missing weights": without("arrays", "weights"),
    "missing rows": without("metrics", "rows"),
    "missing loss": without("metrics", "loss"),
    "something more": metrics(extra=1.0),
    "no rows": metrics(rows=0),
    "negative rows": metrics(rows=-5),
    "a row too many": metrics(rows=SIZES[BAD]),  # the hold-out leaves the site fewer
    "absurd rows": metrics(rows=2**62),
    "fractional rows": metrics(rows=3.5),
    "rows as NaN": metrics(rows=float("nan")),
    "rows as truth": metrics(rows=True),
    "loss NaN": metrics(loss=float("nan")),
    "loss infinite": metrics(loss=float("-inf")),
    "loss absurd": metrics(loss=1e300),
    "a blob": lambda release: replace(release, payload=replace(release.payload, blobs={"more": b"x"})),
    "nothing": lambda release: replace(release, payload=Payload()),
}


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_site_is_named_and_the_others_go_on(lie: str, bend: Callable[..., None], tmp_path: Path) -> None:
    bend(TRAIN, LIES[lie])
    outcome = run(a_plan(), out=tmp_path / "run", seed=1, tables=site_tables())
    assert set(outcome.dropped) == {BAD}
    assert outcome.refused == {}
    assert np.isfinite(outcome.model.weights).all()
    notes = [line for line in lines_of(tmp_path / "run") if line["event"] == "note"]
    assert [(line["site"], line["what"], line["round"]) for line in notes] == [(BAD, "train", 0), (BAD, "train", 1)]
    assert {line["reason"] for line in notes} == {outcome.dropped[BAD]}
    verify_ledger(tmp_path / "run")


def test_the_model_is_as_if_the_liar_had_not_been_asked(bend: Callable[..., None]) -> None:
    rounds: dict[str, Any] = {"rounds": 1, "stop": None}
    honest = run(a_plan(train=rounds), seed=1, tables=site_tables())
    bend(TRAIN, LIES["NaN"])
    without_liar = run(a_plan(train=rounds), seed=1, tables=site_tables())
    bend(TRAIN, LIES["absurd rows"])
    other_lie = run(a_plan(train=rounds), seed=1, tables=site_tables())
    assert without_liar.model.weights.tobytes() == other_lie.model.weights.tobytes()
    assert without_liar.model.weights.tobytes() != honest.model.weights.tobytes()


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"KHRT" + b"\xff" * 60, b"\0" * 4096])
def test_garbage_bytes_are_excluded(garbage: bytes, bend: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    bend(TRAIN, metrics(rows=-77))
    real = answers.encode

    def encode(payload: Payload) -> bytes:
        return garbage if payload.metrics.get("rows") == -77 else real(payload)

    monkeypatch.setattr(answers, "encode", encode)
    outcome = run(a_plan(), seed=1, tables=site_tables())
    assert set(outcome.dropped) == {BAD}


def test_a_site_that_fails_is_named_and_the_fast_path_falls_back(
    bend: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(release: Release) -> Release:
        raise SiteError("the disk of the site is broken")

    bend(TRAIN, fail, keep_many=True)
    bent = task_module.find_task("train")
    honest_many = bent.many
    assert honest_many is not None

    def many(sites: Any, request: Any) -> Any:
        if any(site.name == BAD for site in sites):
            raise SiteError("one of them failed")
        return honest_many(sites, request)

    object.__setattr__(bent, "many", many)
    outcome = run(a_plan(), out=tmp_path / "run", seed=1, tables=site_tables())
    assert outcome.dropped == {BAD: "the disk of the site is broken"}
    assert [line["site"] for line in lines_of(tmp_path / "run") if line["event"] == "note"] == [BAD, BAD]
    verify_ledger(tmp_path / "run")


@pytest.mark.parametrize(
    ("byzantine_sites", "quorum", "ends"),
    [(2, 0.5, False), (3, 0.5, True), (1, 1.0, True), (4, 0.2, False), (5, 0.2, True)],
)
def test_below_the_quorum_the_run_ends(
    byzantine_sites: int, quorum: float, ends: bool, bend: Callable[..., None]
) -> None:
    bend(TRAIN, LIES["NaN"], sites=tuple(SIZES)[:byzantine_sites])
    plan = a_plan(sites={"quorum": quorum})
    if not ends:
        assert len(run(plan, seed=1, tables=site_tables()).dropped) == byzantine_sites
        return
    with pytest.raises(SiteError, match=f"{5 - byzantine_sites} of 5 sites answered 'train'") as caught:
        run(plan, seed=1, tables=site_tables())
    assert caught.value.exit_code == 5


def test_when_every_site_refuses_no_training_byte_leaves(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="5 of 5 sites refuse the plan") as caught:
        run(a_plan(policy={"min_rows": 1000}), out=tmp_path / "run", seed=1, tables=site_tables())
    assert caught.value.exit_code == 4
    lines = lines_of(tmp_path / "run")
    assert sorted(line["event"] for line in lines) == ["open"] * 5 + ["refusal"] * 5
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "run.json").exists()
    verify_ledger(tmp_path / "run")


def test_a_small_site_refuses_and_the_others_go_on(tmp_path: Path) -> None:
    least = 30
    outcome = run(a_plan(policy={"min_rows": least}), out=tmp_path / "run", seed=1, tables=site_tables())
    assert outcome.refused
    assert all(rows >= least for rows in outcome.site_rows.values())
    assert set(outcome.refused) | set(outcome.sites) == set(SIZES)
    left = {line["site"] for line in lines_of(tmp_path / "run") if line["event"] == "release"}
    assert left == set(outcome.sites)


def test_a_row_count_that_is_not_public_stays_inside(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="rows"):
        run(a_plan(policy={"public": []}), out=tmp_path / "run", seed=1, tables=site_tables())
    left = {line["what"] for line in lines_of(tmp_path / "run") if line["event"] == "release"}
    assert left <= {"describe"}


def test_a_private_domain_stays_inside(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="domain"):
        run(a_plan(policy={"domain": False}), out=tmp_path / "run", seed=1, tables=site_tables())
    assert not [line for line in lines_of(tmp_path / "run") if line["event"] == "release"]


def domain_of(**changes: Any) -> bytes:
    number = {"kind": "number", "categories": None, "bounds": [-3.0, 3.0], "missing": False, "declared": False}
    group = {"kind": "category", "categories": ["a", "b"], "bounds": None, "missing": False, "declared": False}
    target = {**group, "categories": ["no", "yes"]}
    return json.dumps({"x": {**number, **changes}, "group": group, "y": target}).encode()


DOMAINS = {
    "empty": b"",
    "no columns": b"{}",
    "a list": b"[]",
    "null": b"null",
    "no text": b"\xff",
    "deep": b"[" * 100_000,
    "not columns": b'{"columns": 5}',
    "other columns": domain_of().replace(b'"x"', b'"z"'),
    "odd kind": domain_of(kind="odd"),
    "endless": domain_of(bounds=[-float("inf"), float("inf")]),
    "no number": domain_of(bounds=[float("nan"), 1.0]),
    "reversed": domain_of(bounds=[3.0, -3.0]),
    "three bounds": domain_of(bounds=[1, 2, 3]),
    "text bounds": domain_of(bounds=["a", "b"]),
}


def test_the_made_up_domain_itself_is_sound(bend: Callable[..., None]) -> None:
    bend(DESCRIBE, lambda release: replace(release, payload=Payload(blobs={"domain": domain_of()})))
    assert run(a_plan(), seed=1, tables=site_tables()).dropped == {}


@pytest.mark.parametrize("name", DOMAINS)
def test_a_malformed_domain_excludes_its_site(name: str, bend: Callable[..., None]) -> None:
    bend(DESCRIBE, lambda release: replace(release, payload=Payload(blobs={"domain": DOMAINS[name]})))
    outcome = run(a_plan(), seed=1, tables=site_tables())
    assert set(outcome.dropped) == {BAD}
    assert BAD not in outcome.sites


@pytest.mark.parametrize("rows", [0, -1, 10**9])
def test_a_false_row_count_at_enrolment_excludes_its_site(rows: int, bend: Callable[..., None]) -> None:
    bend(PREPARE, metrics(rows=rows))
    outcome = run(a_plan(), seed=1, tables=site_tables())
    assert set(outcome.dropped) == {BAD}
    assert BAD not in outcome.sites


def test_nobody_speaks_of_more_rows_than_were_declared(bend: Callable[..., None]) -> None:
    """A site that enrols with few rows cannot weigh more later."""
    bend(PREPARE, metrics(rows=2))
    outcome = run(a_plan(), seed=1, tables=site_tables())
    assert outcome.site_rows[BAD] == 2
    assert set(outcome.dropped) == {BAD}
    assert "declared rows" in outcome.dropped[BAD]


TABLES: dict[str, Twist] = {
    "no table": without("blobs", "table"),
    "garbage": lambda release: replace(release, payload=replace(release.payload, blobs={"table": b"garbage"})),
    "empty": lambda release: replace(release, payload=replace(release.payload, blobs={"table": b""})),
    "fewer rows announced": metrics(rows=1),
    "more rows announced": metrics(rows=SIZES[BAD] + 1),
}


@pytest.mark.parametrize("lie", TABLES)
def test_a_malformed_table_excludes_its_site(lie: str, bend: Callable[..., None]) -> None:
    bend(SHIP, TABLES[lie])
    outcome = run(a_plan("central"), seed=1, tables=site_tables())
    assert set(outcome.dropped) == {BAD}
    assert outcome.received is not None
    assert outcome.received.height == sum(rows for name, rows in outcome.site_rows.items() if name != BAD)


def test_a_failure_at_a_site_shows_no_cell(bend: Callable[..., None], tmp_path: Path) -> None:
    tables = site_tables()
    tables[BAD] = tables[BAD].with_columns(pl.lit("canary-7391").alias("group"))

    def fail(release: Release) -> Release:
        raise DataError("column 'group' cannot be used", hint="Declare it")

    bend(TRAIN, fail)
    outcome = run(a_plan(), out=tmp_path / "run", seed=1, tables=tables)
    assert outcome.dropped == {BAD: "column 'group' cannot be used"}
    assert b"canary" not in (tmp_path / "run" / "ledger" / "ledger.jsonl").read_bytes()
