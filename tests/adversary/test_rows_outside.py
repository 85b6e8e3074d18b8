"""Rows outside the domain: a hub that chooses the domain must not see at which site, or whether, there are any.

Every test compares what leaves a site whose table has such rows with what leaves it when it has none: the counts in
replies, lines and claims, the status of every reply, and how long the ledger is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import KohortError, counted
from kohort.privacy.ledger import ledger as ledgers
from kohort.privacy.ledger.chain import canonical, quoted
from kohort.privacy.ledger.verify import read_lines
from kohort.privacy.ledger.verify_receipts import compare_ledgers
from kohort.protocol import answers, enrolment
from kohort.protocol.plan.phases import TrainingPhase
from kohort.protocol.wire import decode
from kohort.rounds import dp_accounts, phase_training
from kohort.rounds.domains import noisy
from kohort.rounds.phase_rows import rows_of
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run
from kohort.tables.domain import Domain
from kohort.testing.site_servers import DirectCarrier, ServedSites
from kohort.transport.deployment import site_run
from kohort.transport.deployment.site_run import SiteResources
from kohort.transport.messages import ReplyMessage, RequestMessage, read_reply, read_request, split_messages

ROWS = 150
DECLARED = {"bounds": {"age": (0, 99)}, "categories": {"ward": ["north", "south"], "y": ["no", "yes"]}}
BUDGET = {"epsilon": 4.0, "delta": 1e-5}
TRAIN = {"rounds": 1, "lr": 0.1, "batch": 0, "optimizer": "sgd"}
MASKS = {"secure": {"sum": "masks"}}
FEDAVG, ADDITIVE = {"name": "fedavg"}, {"name": "additive", "rounds": 2}
METHODS = [
    pytest.param(FEDAVG | {"dp": BUDGET}, id="fedavg-budget"),
    pytest.param(FEDAVG | {"dp": BUDGET} | MASKS, id="fedavg-budget-masks"),
    pytest.param(FEDAVG | MASKS, id="fedavg-masks"),
    pytest.param(ADDITIVE | {"dp": BUDGET}, id="additive-budget-masks"),
    pytest.param(ADDITIVE | {"dp": BUDGET, "secure": {"sum": "none"}}, id="additive-budget"),
    pytest.param(ADDITIVE, id="additive-masks"),
    pytest.param({"name": "trees", "steps": 1, "depth": 2}, id="trees-masks"),
]
OWN_ROWS = {"name": "silo", "model": {"kind": "additive", "rounds": 2, "secure": {"sum": "masks"}}}


def tables(*, outside: int, rows: int = ROWS) -> dict[str, pl.DataFrame]:
    """Three sites; so many rows of the second have a class that the plan does not name."""
    random, found = np.random.default_rng(1), {}
    for name in ("s0", "s1", "s2"):
        count = rows if name == "s1" else ROWS
        target = random.choice(["no", "yes"], count).astype(object)
        if name == "s1":
            target[:outside] = "rare"
        ages, wards = random.integers(20, 80, count), random.choice(["north", "south"], count)
        found[name] = pl.DataFrame({"age": ages, "ward": wards, "y": target})
    return found


def plan_of(method: dict[str, Any], *, data: dict[str, Any] | None = None, train: dict[str, Any] | None = None) -> Plan:
    network = (
        {"train": TRAIN if train is None else train, "model": {"kind": "logistic"}}
        if method["name"] == "fedavg"
        else {}
    )
    about = {"table": "memory", "target": "y", "features": ["age", "ward"], "test": 0}
    about |= DECLARED if data is None else data
    return load_plan(
        {"data": about, "sites": {"split": "files"}, **network, "method": method, "policy": {"min_rows": 1}}
    )


@dataclass
class Listening(ServedSites):
    """Sites behind servers, and everything that a hub gets from them."""

    heard: list[tuple[RequestMessage, str, ReplyMessage]] = field(default_factory=list)

    def carrier(self) -> DirectCarrier:
        return _Carrier(self.site_servers, self)


@dataclass(frozen=True)
class _Carrier(DirectCarrier):
    sites: Any = None

    def carry(self, messages: Any, *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        replies, missing = super().carry(messages, deadline=deadline)
        for name, data in replies.items():
            asked = [read_request(part, hub=self.sites.hub.public) for part in split_messages(messages[name])]
            key = self.sites.identities[name].public
            said = [read_reply(part, site=key) for part in split_messages(data)]
            self.sites.heard += [(one, name, reply) for one, reply in zip(asked, said, strict=True)]
        return replies, missing


def heard(
    found: dict[str, pl.DataFrame], plan: Plan, *, folder: Path | None = None, fails: bool = False
) -> list[tuple[RequestMessage, str, ReplyMessage]]:
    sites = Listening(tables=found, folder=folder)
    try:
        run(plan, seed=2, backend=sites)
    except KohortError:
        assert fails
    return sites.heard


def seen(found: dict[str, pl.DataFrame], plan: Plan, *, fails: bool = False) -> list[Any]:
    """What a hub sees of the second site beside what is noisy or masked."""
    return [
        (asked.task, reply.status, reply.code, reply.rows, _metric(reply), dict(reply.guarantee), reply.length)
        for asked, name, reply in heard(found, plan, fails=fails)
        if name == "s1"
    ]


def _metric(reply: ReplyMessage) -> Any:
    return decode(reply.body).metrics.get("rows") if reply.body else None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("outside", [1, ROWS], ids=["one-row", "all-rows"])
def test_a_hub_sees_nothing_of_rows_outside_a_declared_domain(method: dict[str, Any], outside: int) -> None:
    usual = seen(tables(outside=0), plan_of(method))
    assert ROWS in {said[3] for said in usual}
    assert seen(tables(outside=outside), plan_of(method)) == usual


def test_the_sampling_rate_in_a_claim_is_that_of_all_rows() -> None:
    plan = plan_of(FEDAVG | {"dp": BUDGET}, train=TRAIN | {"batch": 30})
    usual = seen(tables(outside=0), plan)
    assert any("sampl" in str(said[5]) or "rate" in str(said[5]) for said in usual)
    assert seen(tables(outside=40), plan) == usual


def test_counts_of_the_rows_that_take_part_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(FEDAVG | {"dp": BUDGET})
    monkeypatch.setattr(answers, "rows_to_say", lambda site, rows, guarantee: rows)
    monkeypatch.setattr(phase_training, "reported_rows", lambda site, phase: rows_of(site, phase).count)
    assert {said[3] for said in seen(tables(outside=1), plan)} == {ROWS - 1}
    monkeypatch.undo()
    note = enrolment._note_left_out
    monkeypatch.setattr(
        enrolment, "_note_left_out", lambda site, count, **about: note(site, count, **about) if count else None
    )
    lengths = [[said[-1] for said in seen(tables(outside=outside), plan)] for outside in (0, 1)]
    assert [more - less for less, more in zip(*lengths, strict=True)] == [1] * len(lengths[0])


def _chosen(monkeypatch: pytest.MonkeyPatch, classes: tuple[str, ...]) -> None:
    """A hub that hands out classes of its choice."""
    honest = noisy.noisy_domain

    def lying(hub: Any) -> Any:
        domain, sites = yield from honest(hub)
        return Domain(columns={**domain.columns, "y": replace(domain.columns["y"], categories=classes)}), sites

    monkeypatch.setattr(noisy, "noisy_domain", lying)


@pytest.mark.parametrize("method", [METHODS[0], METHODS[1], METHODS[3]])
def test_a_hub_that_chooses_the_classes_sees_nothing(method: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plan, found = plan_of(method, data={}), tables(outside=1)
    _chosen(monkeypatch, ("no", "rare", "yes"))
    with_it = seen(found, plan)
    _chosen(monkeypatch, ("no", "yes"))
    assert seen(found, plan) == with_it


BY_MECHANISM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dp-sgd": ({}, TRAIN),
    "ftrl": ({}, {"rounds": 2, "lr": 0.1}),
    "after": ({}, TRAIN),
    "statistics": ({}, {}),
    "output": ({"delta": 0.0}, {"rounds": 1, "l2": 0.1}),
    "objective": ({"delta": 0.0}, {"rounds": 1, "l2": 0.1}),
}


@pytest.mark.parametrize("mechanism", list(BY_MECHANISM))
def test_a_small_site_answers_alike_with_and_without_rows_in_the_domain(mechanism: str) -> None:
    budget, train = BY_MECHANISM[mechanism]
    plan = plan_of(FEDAVG | {"dp": BUDGET | {"mechanism": mechanism} | budget}, train=train)
    usual, none, one = (seen(tables(outside=outside, rows=15), plan) for outside in (0, 15, 14))
    assert usual == none == one
    assert {said[1] for said in usual} == {"answer"}
    assert {said[3] for said in usual} == {15}


JUST_ABOVE = 1 / (10 * ROWS) * 1.001
"""A delta that is too large for 150 rows, and would do for one row less."""


@pytest.mark.parametrize(
    ("budget", "train"),
    [
        ({"delta": JUST_ABOVE}, TRAIN),
        ({}, TRAIN | {"batch": ROWS}),
        ({"mechanism": "ftrl"}, {"rounds": ROWS, "lr": 0.1}),
    ],
    ids=["delta", "batch", "single-pass"],
)
def test_whether_a_budget_is_reserved_does_not_depend_on_one_row(
    budget: dict[str, Any], train: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(FEDAVG | {"dp": BUDGET | budget}, train=train)

    def reserved(outside: int) -> Any:
        found = heard(tables(outside=outside), plan, fails=True)
        return [(name, reply.status, reply.code) for asked, name, reply in found if asked.task == "dp.reserve"]

    assert reserved(1) == reserved(0)
    monkeypatch.setattr(dp_accounts, "reported_rows", lambda site, phase: rows_of(site, phase).count)
    assert reserved(1) != reserved(0), "judged by the rows that take part, one row shows"


def test_the_rate_that_is_accounted_for_is_the_one_rows_are_sampled_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from kohort.models.dp_sgd import fit

    sampled: list[Any] = []
    honest = fit.fit_private

    def listen(network: Any, weights: Any, rows: Any, **options: Any) -> Any:
        sampled.append((rows.counts.tolist(), options["private"]))
        return honest(network, weights, rows, **options)

    monkeypatch.setattr(fit, "fit_private", listen)
    charged: list[int] = []
    steps_and_rate = TrainingPhase.steps_and_rate

    def asked(phase: TrainingPhase, count: int) -> tuple[int, float]:
        charged.append(count)
        return steps_and_rate(phase, count)

    monkeypatch.setattr(TrainingPhase, "steps_and_rate", asked)
    result = run(plan_of(FEDAVG | {"dp": BUDGET}, train=TRAIN | {"batch": 30}), seed=2, tables=tables(outside=50))
    assert result is not None
    [(counts, private)] = sampled
    assert counts == [ROWS, ROWS - 50, ROWS]
    assert private.rate.tolist() == [30 / ROWS] * 3
    assert private.declared.tolist() == [ROWS] * 3
    assert set(charged) == {ROWS}


def test_the_hubs_ledger_and_the_sites_agree_where_rows_are_outside(tmp_path: Path) -> None:
    sites = Listening(tables=tables(outside=1), folder=tmp_path / "sites")
    run(plan_of(FEDAVG | {"dp": BUDGET}), seed=2, backend=sites, out=tmp_path / "run")
    for name in ("s0", "s1", "s2"):
        [place] = [path.parent for path in (tmp_path / "sites").rglob("ledger.jsonl") if name in path.parts]
        assert compare_ledgers(place, tmp_path / "run").releases == 3
        own = [line["reason"] for line in read_lines(place / "ledger.jsonl") if line["event"] == "note"]
        count = 1 if name == "s1" else 0
        assert own == [f"{count} rows have a category or class outside the agreed domain and take no part"]


GUESSES = [f"column 'age' is declared a number but has none in {counted(count, 'row')}" for count in range(1, 50)]


def _failing(rows: int) -> tuple[dict[str, pl.DataFrame], Plan]:
    """Tables in which an age is no number in so many rows of the second site, and a plan that says that ages are."""
    found = {name: table.with_columns(pl.col("age").cast(pl.String)) for name, table in tables(outside=0).items()}
    ages = found["s1"]["age"].to_list()
    ages[:rows] = ["unknown"] * rows
    found["s1"] = found["s1"].with_columns(age=pl.Series(ages))
    return found, plan_of(ADDITIVE, data=DECLARED | {"kinds": {"age": "number"}})


def _guessed(found: list[tuple[RequestMessage, str, ReplyMessage]], lines: dict[str, str]) -> str:
    """Which of the reasons explains the head of a reply that failed: `lines` are what came before in the chain."""
    [(asked, reply)] = [(asked, reply) for asked, name, reply in found if name == "s1" and reply.status == "failed"]
    fields = f'"event":"note","what":{quoted(asked.task)},"to":"hub","via":"","round":{asked.round}'
    for reason in GUESSES:
        body = f'{{"site":"s1","seq":{reply.length - 1},{lines["prev"]}{fields},"request":"{asked.request.digest}"'
        body += f',"reason":{canonical(reason)}'
        if hashlib.blake2b(body.encode(), digest_size=32).hexdigest() == reply.head:
            return reason
    return ""


def test_the_head_of_a_ledger_does_not_tell_why_a_site_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    found, plan = _failing(7)

    def listened() -> tuple[list[Any], dict[str, str]]:
        sites = Listening(tables=found)
        with pytest.raises(KohortError):
            run(plan, seed=2, backend=sites)
        line = sites.site_servers["s1"].ledger.lines[-1]
        return sites.heard, {"prev": line[line.index('"prev"') : line.index('"event"')]}

    assert not _guessed(*listened())
    monkeypatch.setattr(ledgers, "_reason", lambda chain, reason: f'"reason":{canonical(reason)}')
    assert _guessed(*listened()) == GUESSES[6], "without a keyed digest, the count is read from the head"


def test_every_line_of_a_ledger_has_a_keyed_digest(tmp_path: Path) -> None:
    heard(*_failing(7), folder=tmp_path, fails=True)
    lines = [line for path in tmp_path.rglob("ledger.jsonl") for line in read_lines(path)]
    assert {line["event"] for line in lines} >= {"open", "note", "release"}
    assert all(len(line["digest"]) == 64 for line in lines)


def _with_gaps(monkeypatch: pytest.MonkeyPatch, gaps: int) -> None:
    """So many rows of the second site get a missing value that no simulation drops before: the site drops them."""

    def made(**given: Any) -> Any:
        frame = given["frame"]
        if given["identity"].name == "s1":
            lacks = pl.int_range(frame.height) < gaps
            given["frame"] = frame.with_columns(ward=pl.when(lacks).then(None).otherwise("ward"))
        return SiteResources(**given)

    monkeypatch.setattr("kohort.testing.site_servers.SiteResources", made)


@pytest.mark.parametrize("method", [METHODS[0], METHODS[1], METHODS[3]])
def test_a_hub_sees_nothing_of_rows_dropped_for_a_missing_value_under_a_budget(
    method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, found = plan_of(method, data=DECLARED | {"missing": "drop"}), tables(outside=0)
    usual = seen(found, plan)
    with monkeypatch.context() as patched:
        _with_gaps(patched, 3)
        assert seen(found, plan) == usual
    with monkeypatch.context() as patched:
        _with_gaps(patched, 3)
        patched.setattr(site_run, "_before", lambda *_: None)
        assert {said[3] for said in seen(found, plan)} >= {ROWS - 3}
