"""What a site's server checks before anything of a run is looked at: signatures, numbers, approvals and limits.

And two lies that need all sites: a forged total announced to everybody, and a step that claims to be for the peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.adversary.changed_requests import ChangedRequests, any_request
from tests.adversary.plans import PLANS, honest

from kohort.crypto.sealed import Identity
from kohort.errors import IntegrityError, KohortError, RefusedError
from kohort.privacy.contract import Asked, Place, Step, admit, note
from kohort.privacy.guarantee import Aggregate, Public
from kohort.protocol.wire import decode, encode
from kohort.runs.run import run
from kohort.testing import HonestRun, ServedSites, Victim, few_rows, site_servers
from kohort.testing.recorded import VICTIM
from kohort.testing.site_servers import DirectCarrier
from kohort.transport.deployment.site_run import SiteResources
from kohort.transport.messages import ReplyMessage, RequestMessage, fresh_number, read_reply, write_request
from kohort.transport.remote_engine import Carrier, RemoteEngine


@pytest.fixture(scope="module")
def found() -> HonestRun:
    """A plain run: what the server itself checks is the same for every plan."""
    return honest("fedavg")


def _sent(found: HonestRun, message: RequestMessage, hub: Identity | None = None) -> bytes:
    signer = hub or found.served.hub
    assert signer is not None
    return write_request(replace(message, fresh=fresh_number()), signer)


def _said(found: HonestRun, data: bytes) -> ReplyMessage:
    return read_reply(data, site=found.served.identities[VICTIM].public)


def test_a_message_that_the_hub_did_not_sign_is_dropped(found: HonestRun) -> None:
    server, first = found.serve(VICTIM), found.script(VICTIM)[0].asked
    stranger = Identity.from_secret("hub", bytes(32))
    reply = _said(found, server.reply(_sent(found, first, stranger)))
    assert (reply.status, reply.code, reply.body) == ("dropped", "tampered", b"")


def test_a_message_counts_once(found: HonestRun) -> None:
    server, first = found.serve(VICTIM), found.script(VICTIM)[0].asked
    data = _sent(found, first)
    assert _said(found, server.reply(data)).status == "answer"
    assert _said(found, server.reply(data)).status == "dropped"


@dataclass
class _Operator:
    """What an operator decides while a run is under way."""

    approved: bool = True
    open: bool = True
    asked: list[str] = field(default_factory=list)

    def approve(self, plan_hash: str) -> None:
        self.asked.append(plan_hash)
        if not self.approved:
            raise RefusedError("not approved", code="approval")

    def limit(self, tasks: Any, begins: bool) -> None:
        del tasks, begins
        if not self.open:
            raise RefusedError("a limit is reached", code="limits")


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> _Operator:
    made = _Operator()
    resources = partial(SiteResources, approve=made.approve, limit=made.limit)
    monkeypatch.setattr(site_servers, "SiteResources", resources)
    return made


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("what", "code"), [("approved", "approval"), ("open", "limits")])
def test_a_withdrawn_approval_and_a_reached_limit_act_at_the_next_request(
    place: int, what: str, code: str, found: HonestRun, operator: _Operator
) -> None:
    victim, script = Victim(found, VICTIM), found.script(VICTIM)
    victim.follow(script[:place])
    setattr(operator, what, False)
    reply = victim.ask(script[place].asked, "after the operator withdrew")
    assert (reply.status, reply.code) == ("refused", code)
    setattr(operator, what, True)
    victim.follow(script[place:])


@dataclass
class _AllLiedTo(ServedSites):
    """A hub that tells every site the same lie."""

    change: Any = None

    def carrier(self) -> Carrier:
        carrier: Carrier = DirectCarrier(self.site_servers)
        for name in self.site_servers:
            carrier = ChangedRequests(carrier, self, self.change, name)
        return carrier


def _other_total(message: RequestMessage) -> RequestMessage:
    """The total of the round before, with its first number changed."""
    payload = decode(message.body)
    if len(payload.blobs.get("total", b"")) < 8:
        return message
    total = np.frombuffer(payload.blobs["total"], dtype="<u8").copy()
    total[0] = (int(total[0]) + 2**40) % (2**61 - 1)
    return replace(message, body=encode(replace(payload, blobs={**payload.blobs, "total": total.tobytes()})))


def _weights_move(plan: str) -> Iterator[str]:
    backend = _AllLiedTo(tables=few_rows(), change=_other_total)
    try:
        yield str(run(PLANS[plan](), seed=5, backend=backend).model.weights)
    except KohortError:
        return


@pytest.mark.parametrize("plan", ["fedavg, masks", "fedavg, bfv"])
def test_a_forged_total_moves_no_weights(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kohort.rounds import summing
    from kohort.rounds.totals import summed_tasks

    monkeypatch.setattr(RemoteEngine, "_opened", any_request)
    monkeypatch.setattr(summing.PublicInputs, "view", lambda self, own: bytes(32))  # the hub's view is its own business
    assert not list(_weights_move(plan))
    monkeypatch.setattr(summed_tasks, "proven_total", lambda secret, binding, names, total: total[:-1])
    assert list(_weights_move(plan)), "without the check, sites take steps that the hub chose"


def test_a_step_for_the_peers_is_not_answered_to_the_hub() -> None:
    step = Step(task="seal", says="sealed", claims=(Aggregate(rows=1),), to="peers")
    assert step.allows(Aggregate(rows=2), "c-third")
    assert not step.allows(Aggregate(rows=2), "hub")
    assert not replace(step, to="hub").allows(Aggregate(rows=2), "c-third")
    assert not step.allows(Public(what="anything"), "c-third")


def _asked(part: int, digest: str) -> Asked:
    return Asked("sum", 0, part, None, 0, digest)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_step_is_answered_to_one_request_also_where_it_has_no_place(ordered: bool) -> None:
    step = Step(task="sum", says="a sum", claims=(), parts=3, ordered=ordered)
    place = Place()
    with pytest.raises(RefusedError, match="before step 0"):
        admit([place], step, (0, 0, 0, 0, 1), _asked(1, "first"))
    admit([place], step, (0, 0, 0, 0, 0), _asked(0, "first"))
    note([place], step, (0, 0, 0, 0, 0), _asked(0, "first"))
    admit([place], step, (0, 0, 0, 0, 0), _asked(0, "first"))
    with pytest.raises(RefusedError, match="answered to another request"):
        admit([place], step, (0, 0, 0, 0, 0), _asked(0, "second"))
    admit([place], step, (0, 0, 0, 0, 1), _asked(1, "third"))
    with pytest.raises(RefusedError, match="before step 1"):
        admit([place], step, (0, 0, 0, 0, 2), _asked(2, "fourth"))
    with pytest.raises(RefusedError, match="answered to another request"):
        admit([place], replace(step, ordered=False), (0, 0, 0, 0, 0), _asked(False, "a truth value"))


def test_a_reply_with_another_word_is_no_reply(found: HonestRun) -> None:
    from kohort.transport.messages import write_reply

    identity = found.served.identities[VICTIM]
    reply = ReplyMessage(site=VICTIM, fresh=fresh_number(), status="refused", code="17 rows")
    with pytest.raises(IntegrityError, match="none of the agreed words"):
        read_reply(write_reply(reply, identity), site=identity.public)
