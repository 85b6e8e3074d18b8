"""Messages between hub and sites: only the right ones count, each once, all others are written down; crashes change
nothing; sites that are silent are left out and named."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from tests.support.loopback import LoopBackBackend

from kohort.crypto.identity.signers import signer_of
from kohort.crypto.sealed import Identity
from kohort.errors import ConfigError, IntegrityError, RefusedError, SiteError
from kohort.privacy.codes import CODES
from kohort.privacy.ledger import ledger as ledger_module
from kohort.privacy.ledger.ledger import head_digest
from kohort.privacy.ledger.signing import Signer
from kohort.privacy.ledger.verify import verify_ledger
from kohort.purposes import Purpose
from kohort.rng import Streams
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run
from kohort.tables.schema import Schema
from kohort.transport.deployment.site_run import hub_schema
from kohort.transport.flower.bundle import bundle, bundle_hash
from kohort.transport.flower.client_app import client_app
from kohort.transport.messages import (
    ReplyMessage,
    RequestMessage,
    fresh_number,
    join_messages,
    read_reply,
    read_request,
    split_messages,
    write_reply,
    write_request,
)
from kohort.transport.remote_engine import SiteReceipts
from kohort.transport.site_ledger import SiteLedger, open_site_ledger
from kohort.transport.site_server import SiteServer
from kohort.transport.site_store import ReplayGuard

SEED = 3
HUB = Identity.from_secret("hub", Streams.seeded(SEED).bytes("hub identity"))
STRANGER = Identity.from_secret("hub", bytes(48))
SITE = Identity.from_secret("north", bytes(range(48)))


def tables(rows: int = 40) -> dict[str, pl.DataFrame]:
    random = np.random.default_rng(0)
    made = {}
    for name in ("east", "north", "south", "west"):
        dose = random.normal(size=rows).round(3)
        ward = random.choice(["x", "y"], rows)
        ill = np.where(dose + random.normal(size=rows) > 0, "ill", "well")
        made[name] = pl.DataFrame({"dose": dose, "ward": ward, "outcome": ill})
    return made


def plan_of(**sections: dict[str, Any]) -> Plan:
    base: dict[str, dict[str, Any]] = {
        "data": {"table": "memory", "target": "outcome", "features": ["dose", "ward"]},
        "sites": {"split": "files"},
        "model": {"hidden": [3]},
        "train": {"rounds": 3, "batch": 8, "lr": 0.05},
        "policy": {"min_rows": 1},
    }
    return load_plan({name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})


Messages = Mapping[str, bytes]


@dataclass
class Meddler:
    """A carrier that does as it likes with messages on their way."""

    backend: LoopBackBackend
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    exchanges: int = 0

    def carry(self, messages: Messages, *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        self.exchanges += 1
        self.seen += messages.items()
        came = {name: self.deliver(name, message) for name, message in messages.items() if self.reaches(name)}
        return came, {}

    def reaches(self, name: str) -> bool:
        return True

    def deliver(self, name: str, message: bytes) -> bytes:
        return self.backend.site_servers[name].reply(message)


class Backend(LoopBackBackend):
    """A loop-back with a carrier of the test's choice."""

    kind: type[Meddler] = Meddler

    def carrier(self) -> Meddler:
        self.meddler = self.kind(self)
        return self.meddler


def carried_out(plan: Plan, kind: type[Meddler] = Meddler, folder: Path | None = None) -> tuple[Outcome, Backend]:
    backend = Backend(tables=tables(), folder=folder)
    backend.kind = kind
    out = None if folder is None else folder / "run"
    return run(plan, seed=SEED, backend=backend, out=out), backend


def events(ledger: SiteLedger) -> list[str]:
    return [json.loads(line)["event"] for line in ledger.lines]


# Messages


def test_letters_come_back_as_they_were() -> None:
    asked = RequestMessage(site="north", fresh=fresh_number(), run="r", task="train", round=4, body=b"\1\2", plan=b"{}")
    assert read_request(write_request(asked, HUB), hub=HUB.public) == asked
    answer = ReplyMessage(site="north", fresh="f", status="answer", guarantee={"kind": "public"}, rows=3, seconds=0.5)
    assert read_reply(write_reply(answer, SITE), site=SITE.public) == answer


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_changed_byte_anywhere_is_noticed(place: int, change: int) -> None:
    message = bytearray(write_request(RequestMessage(site="north", fresh="f" * 32, body=b"abc"), HUB))
    message[place % len(message)] ^= change
    with pytest.raises(IntegrityError):
        read_request(bytes(message), hub=HUB.public)


@given(st.binary(max_size=400))
def test_noise_is_no_letter(noise: bytes) -> None:
    with pytest.raises(IntegrityError):
        read_request(noise, hub=HUB.public)


def test_a_signature_counts_for_its_owner_and_its_purpose() -> None:
    asked = write_request(RequestMessage(site="north", fresh="f"), HUB)
    with pytest.raises(IntegrityError, match="did not sign"):
        read_request(asked, hub=STRANGER.public)
    with pytest.raises(IntegrityError, match="did not sign"):
        read_reply(asked, site=HUB.public)
    with pytest.raises(IntegrityError, match="another site"):
        read_reply(write_reply(ReplyMessage(site="south", fresh="f", status="answer"), SITE), site=replace(SITE.public))


def test_a_signed_letter_with_parts_of_the_wrong_kind_is_refused() -> None:
    for change in ({"round": -1}, {"round": True}, {"task": 3}, {"attempt": "0"}):
        message = write_request(RequestMessage(**{"site": "north", "fresh": "f", **change}), HUB)  # type: ignore[arg-type]
        with pytest.raises(IntegrityError, match="malformed"):
            read_request(message, hub=HUB.public)


# What a site turns away


def _hostile(kind: int, backend: Backend, number: int) -> tuple[str, bytes]:
    """One of the ways to get at a site; (site, message)."""
    name, genuine = backend.meddler.seen[number % len(backend.meddler.seen)]
    asked = read_request(genuine, hub=HUB.public)
    fresh = replace(asked, fresh=fresh_number())
    match kind:
        case 0:  # a key nobody registered
            return name, write_request(fresh, STRANGER)
        case 1:  # a repeated message
            return name, genuine
        case 2:  # a downgraded policy, under the approved plan's hash
            return name, write_request(replace(fresh, plan=LAX, run="00" * 8), HUB)
        case 3:  # somebody else's message
            return name, write_request(replace(fresh, site="elsewhere"), HUB)
        case 4:  # a task the plan does not have
            return name, write_request(replace(fresh, task="central.ship", nonce=fresh_number()), HUB)
        case 5:  # another schema
            return name, write_request(replace(fresh, run="11" * 8, plan=PLAN, schema="0" * 64), HUB)
        case _:  # a run that was never begun
            return name, write_request(replace(fresh, run="22" * 8, plan=b""), HUB)


PLAN = json.dumps(plan_of().to_mapping()).encode()
LAX = json.dumps(plan_of(policy={"min_rows": 1, "raw": True, "min_k": 2}).to_mapping()).encode()


def test_of_a_thousand_attempts_none_is_accepted_and_all_are_recorded() -> None:
    _, backend = carried_out(plan_of())
    before = {name: len(site_server.ledger.lines) for name, site_server in backend.site_servers.items()}
    attempts = 1000
    for number in range(attempts):
        name, message = _hostile(number % 7, backend, number)
        answer = read_reply(backend.site_servers[name].reply(message), site=_public(name))
        assert answer.status in {"dropped", "refused"}, number
        assert answer.body == b""
        assert answer.code in CODES
        assert (answer.rows, answer.guarantee) == (0, {})
    lines = [
        json.loads(line)
        for name, site_server in backend.site_servers.items()
        for line in site_server.ledger.lines[before[name] :]
    ]
    assert len(lines) == attempts
    assert {line["event"] for line in lines} == {"note", "refusal"}


def _public(name: str) -> Any:
    return Identity.from_secret(name, Streams(Streams.seeded(SEED).bytes("site", name), SEED).bytes("identity")).public


def test_a_repeat_is_turned_away_after_a_restart_too(tmp_path: Path) -> None:
    numbers = ReplayGuard(tmp_path / "numbers")
    numbers.accept("ab" * 16)
    with pytest.raises(IntegrityError, match="before"):
        ReplayGuard(tmp_path / "numbers").accept("ab" * 16)
    with pytest.raises(IntegrityError, match="malformed"):
        numbers.accept("../../etc")


def test_the_same_request_in_a_new_letter_gets_the_same_bytes_and_no_second_line() -> None:
    _, backend = carried_out(plan_of())
    name, message = backend.meddler.seen[-1]
    asked = read_request(message, hub=HUB.public)
    site_server = backend.site_servers[name]
    lines = len(site_server.ledger.lines)
    answers = []
    for _ in range(3):
        again = write_request(replace(asked, fresh=fresh_number()), HUB)
        answers.append(read_reply(site_server.reply(again), site=_public(name)))
    assert len({answer.body for answer in answers}) == 1
    assert answers[0].body
    assert answers[0].status == "answer"
    assert len(site_server.ledger.lines) == lines


def test_a_plan_can_tighten_a_sites_policy_and_not_loosen_it() -> None:
    tight = plan_of(policy={"min_rows": 10**6})
    with pytest.raises(RefusedError, match="its policy forbids it"):
        carried_out(tight)


# Silent and lying carriers


class Deaf(Meddler):
    """North hears nothing from the third exchange on."""

    def reaches(self, name: str) -> bool:
        return name != "north" or self.exchanges < 3


def test_silent_sites_are_left_out_and_named(tmp_path: Path) -> None:
    outcome, _ = carried_out(plan_of(), Deaf, tmp_path)
    assert outcome.rounds == 3
    assert list(outcome.dropped) == ["north"]
    notes = [json.loads(line) for line in (tmp_path / "run" / "ledger" / "ledger.jsonl").read_text().splitlines()]
    assert {line["site"] for line in notes if line["event"] == "note"} == {"north"}
    verify_ledger(tmp_path / "run")


def test_fewer_than_the_quorum_end_the_run() -> None:
    with pytest.raises(SiteError, match="fewer than the quorum"):
        carried_out(plan_of(sites={"quorum": 1.0}), Deaf)


class Forger(Meddler):
    """Answers for north himself, and hands south's reply to the message before."""

    last: bytes = b""

    def deliver(self, name: str, message: bytes) -> bytes:
        answer = super().deliver(name, message)
        if self.exchanges < 3:
            self.last = answer if name == "south" else self.last
            return answer
        if name == "north":
            return write_reply(read_reply(answer, site=_public("north")), STRANGER)
        return self.last if name == "south" else answer


def test_forged_and_stray_answers_do_not_count() -> None:
    outcome, _ = carried_out(plan_of(), Forger)
    assert set(outcome.dropped) == {"north", "south"}
    assert "did not sign" in outcome.dropped["north"]
    assert "another message" in outcome.dropped["south"]


def test_trouble_is_for_simulations() -> None:
    with pytest.raises(ConfigError, match="simulations"):
        carried_out(plan_of(sites={"faults": {"drop": 0.1}}))


# Crashes


class Crashing(Meddler):
    """Every site loses its memory before every message."""

    def deliver(self, name: str, message: bytes) -> bytes:
        self.backend.site_servers[name].close()
        self.backend.site_servers[name] = self.backend.makers[name]()
        return super().deliver(name, message)


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"rounds": 4, "state": "keep"}},
        {"train": {"rounds": 3, "optimizer": "sgd", "correction": "scaffold"}},
        {"method": {"name": "partial", "gate": {"k": 2}}, "data": {"quasi": ["ward"], "features": ["dose"]}},
        {
            "method": {"name": "partial", "gate": {"k": 2, "count": "local"}},
            "data": {"quasi": ["ward"], "features": ["dose"]},
        },
    ],
    ids=["keep", "scaffold", "partial", "partial-local"],
)
def test_a_site_that_loses_its_memory_between_any_two_letters_answers_alike(
    sections: dict[str, Any], tmp_path: Path
) -> None:
    plan = plan_of(**{**sections, "policy": {"min_rows": 1, "raw": True, "min_k": 2}})
    local = run(plan, seed=SEED, tables=tables())
    crashed, _ = carried_out(plan, Crashing, tmp_path)
    assert crashed.model.weights.tobytes() == local.model.weights.tobytes()
    assert crashed.bytes == local.bytes
    for name in tables():
        found = verify_ledger(tmp_path / name)
        assert found.refusals == 0
        # The last receipt waits at the hub for the next request.
        assert found.receipts == found.releases - 1
    assert verify_ledger(tmp_path / "run").releases == sum(verify_ledger(tmp_path / n).releases for n in tables())


def test_what_a_site_keeps_is_its_owners_alone(tmp_path: Path) -> None:
    carried_out(plan_of(), Meddler, tmp_path)
    kept = [path for path in (tmp_path / "north" / "runs").rglob("*") if path.is_file()]
    assert len(kept) > 4
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)


def test_a_full_disk_at_a_site_lets_nothing_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, backend = carried_out(plan_of(), Meddler, tmp_path)
    name, message = backend.meddler.seen[-1]
    asked = read_request(message, hub=HUB.public)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(ledger_module, "write_whole", full)
    site_server = backend.site_servers[name]
    answer = read_reply(
        site_server.reply(write_request(replace(asked, round=77, fresh=fresh_number()), HUB)), site=_public(name)
    )
    assert (answer.status, answer.body, answer.fresh != "") == ("failed", b"", True)
    assert site_server.broken is not None
    assert site_server.broken.exit_code == 7


def test_a_changed_policy_goes_on_in_the_same_chain_and_says_so(tmp_path: Path) -> None:
    signer = Signer.from_secret(bytes(32))
    for policy in ({"min_k": 5}, {"min_k": 5}, {"min_k": 3}):
        ledger, _ = open_site_ledger(tmp_path, signer=signer, hub_key="")
        ledger.open_chain("north", secret=bytes(32), binding={"policy": policy})
        ledger.close()
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["open", "note"]
    assert '"min_k":3' in lines[1]["reason"]


# Schemas, bundle, ClientApp


def test_a_hub_without_rows_needs_the_columns_named() -> None:
    plan = plan_of(data={"features": "rest"})
    with pytest.raises(ConfigError, match="rest"):
        hub_schema(plan, None)
    assert hub_schema(plan, ["ward", "dose", "outcome"]).inputs == ("ward", "dose")
    named = hub_schema(plan_of(), None)
    assert isinstance(named, Schema)
    assert set(named.columns) == {"dose", "ward", "outcome"}


def test_the_bundle_is_the_same_bytes_and_holds_no_code() -> None:
    bundle.cache_clear()
    first = bundle()
    bundle.cache_clear()
    assert first == bundle()
    assert b"import kohort" not in first
    assert len(bundle_hash()) == 64


def test_a_client_app_is_nothing_but_the_desk() -> None:
    from flwr.clientapp import ClientApp

    assert isinstance(client_app(lambda message: message), ClientApp)
    assert SiteServer.reply.__doc__


def headless(reply: ReplyMessage, before: ReplyMessage | None, site: Identity) -> ReplyMessage:
    del before, site
    return replace(reply, length=0, head="", head_signature="")


def of_another_key(reply: ReplyMessage, before: ReplyMessage | None, site: Identity) -> ReplyMessage:
    del before
    return _with_head(reply, reply.length, reply.head, Identity.from_secret(site.name, bytes(48)))


def of_another_purpose(reply: ReplyMessage, before: ReplyMessage | None, site: Identity) -> ReplyMessage:
    del before
    digest = head_digest(site.name, reply.length, reply.head).encode()
    return replace(reply, head_signature=site.sign(digest, purpose=Purpose.RECEIPT).hex())


def gone_back(reply: ReplyMessage, before: ReplyMessage | None, site: Identity) -> ReplyMessage:
    return reply if before is None else _with_head(reply, before.length - 1, "0" * 64, site)


def rewritten(reply: ReplyMessage, before: ReplyMessage | None, site: Identity) -> ReplyMessage:
    return reply if before is None else _with_head(reply, before.length, "0" * 64, site)


def without_a_line(reply: ReplyMessage, before: ReplyMessage | None, site: Identity) -> ReplyMessage:
    return reply if before is None else _with_head(reply, before.length, before.head, site)


def _with_head(reply: ReplyMessage, length: int, head: str, signer: Identity) -> ReplyMessage:
    signature = signer.sign(head_digest(reply.site, length, head).encode(), purpose=Purpose.LEDGER_HEAD)
    return replace(reply, length=length, head=head, head_signature=signature.hex())


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (headless, "without the signed head"),
        (of_another_key, "without the signed head"),
        (of_another_purpose, "without the signed head"),
        (gone_back, "went back"),
        (rewritten, "went back"),
        (without_a_line, "is not a line of its ledger"),
    ],
)
def test_an_answer_that_its_site_could_deny_is_not_accepted(lie: Any, said: str, tmp_path: Path) -> None:
    class Denier(Meddler):
        def deliver(self, name: str, message: bytes) -> bytes:
            genuine = self.backend.site_servers[name].reply(message)
            if name != "north":
                return genuine
            identity = self.backend.identities[name]
            replies = []
            for part in split_messages(genuine):
                honest = read_reply(part, site=identity.public)
                replies.append(write_reply(lie(honest, getattr(self, "before", None), identity), identity))
                self.before = honest
            return join_messages(replies)

    carried_out(plan_of(sites={"split": "files", "quorum": 0.5}), Denier, tmp_path)
    received = (tmp_path / "run" / "ledger" / "ledger.jsonl").read_text()
    lines = [json.loads(line) for line in received.splitlines()]
    north = [line for line in lines if line["site"] == "north"]
    assert any(said in line.get("reason", "") for line in north)
    if lie in (headless, of_another_key, of_another_purpose):  # from its first reply on
        assert not [line for line in north if line["event"] == "release"]
    verify_ledger(tmp_path / "run")


def test_a_hub_that_was_stopped_takes_the_answers_that_it_did_not_see(tmp_path: Path) -> None:
    site, signer = Identity.generate("north"), signer_of(Identity.generate("hub"))

    def said(length: int, request: str) -> ReplyMessage:
        answer = ReplyMessage(site="north", fresh="1", status="answer", request=request)
        return _with_head(answer, length, f"{length:064x}", site)

    def take(receipts: SiteReceipts, answer: ReplyMessage) -> None:
        receipts.check(answer, site.public)
        receipts.acknowledge(answer)

    before = SiteReceipts("north", signer=signer, folder=tmp_path)
    take(before, said(3, "a" * 32))
    with pytest.raises(IntegrityError, match="is not a line"):
        before.check(said(3, "b" * 32), site.public)
    # The site answered b and wrote line 4; the hub was killed before the answer came, and asks for a and b again.
    resumed = SiteReceipts("north", signer=signer, folder=tmp_path)
    take(resumed, said(4, "a" * 32))
    take(resumed, said(4, "b" * 32))
    with pytest.raises(IntegrityError, match="is not a line"):
        resumed.check(said(4, "c" * 32), site.public)
    take(resumed, said(5, "c" * 32))
    with pytest.raises(IntegrityError, match="is not a line"):
        resumed.check(said(5, "d" * 32), site.public)
    # What peers remember of the site's ledger may be ahead of what the hub saw, too.
    again = SiteReceipts("north", signer=signer, folder=tmp_path)
    claimed = said(6, "d" * 32)
    again.returned((claimed.length, claimed.head, claimed.head_signature), site.public)
    take(again, claimed)
    with pytest.raises(IntegrityError, match="is not a line"):
        again.check(said(6, "e" * 32), site.public)
