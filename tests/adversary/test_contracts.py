"""A lying hub against every registered method and every option that claims a protection.

`kohort.testing.adversary` generates the lies. This suite tells a share of them, the same ones every time; all are told
by `make thorough`. The tests at the end hold the harness to account: it must find planted leaks, and its twins must get
as far as the sites they are compared with.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.adversary.plans import PLANS, honest

from kohort.protocol import enrolment
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request
from kohort.protocol.wire import Payload, decode, encode
from kohort.testing import adversary
from kohort.testing.adversary import ADVERSARY_CHECKS, AdversaryCheck, check_trust
from kohort.testing.canary import CANARY, shows_canary
from kohort.testing.checks import ContractViolation
from kohort.testing.copies import Saved
from kohort.testing.federation import plan_of
from kohort.testing.recorded import VICTIM
from kohort.testing.watch import Victim, handed_back

ROWS = {"raw", "k-anonymous", "k-km"}
"""The kinds of claims under which rows, or classes of them, leave."""


@pytest.mark.parametrize("check", ADVERSARY_CHECKS, ids=str)
@pytest.mark.parametrize("plan", PLANS, scope="module")
def test_a_lying_hub_gets_what_the_contract_says(plan: str, check: AdversaryCheck) -> None:
    check(honest(plan))


def test_one_call_raises_what_any_check_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(_: object) -> None:
        raise ContractViolation("a planted leak")

    seen: list[object] = []
    heard, leaks = AdversaryCheck("heard", "", seen.append), AdversaryCheck("leaks", "", leak)
    monkeypatch.setattr(adversary, "ADVERSARY_CHECKS", (heard, leaks))
    with pytest.raises(ContractViolation, match="planted"):
        check_trust(plan_of("silo"), share=0.01)
    assert len(seen) == 1


@pytest.mark.parametrize("plan", PLANS, scope="module")
def test_twins_follow_the_honest_run(plan: str) -> None:
    """Only a request that hands the site its own published classes fits no other rows."""
    assert handed_back(honest(plan), VICTIM) == (
        "mappings.place" if plan in {"syntactic", "syntactic, recoded", "syntactic, outcomes"} else ""
    )

    rows = {step.task for step in honest(plan).approved.contract if step.rows}
    for one in honest(plan).script(VICTIM):
        holds = dict(one.reply.guarantee).get("kind") in ROWS and decode(one.reply.body).blobs
        assert not holds or one.asked.task in rows, "whoever lets rows out has to say so: the door looks at consents"


@pytest.mark.parametrize("plan", ["fedavg, masks", "additive, pairs by bfv", "partial", "hybrid, masks"])
def test_a_site_that_is_copied_after_every_request_follows_the_honest_run(plan: str) -> None:
    """And the ones it was copied from still answer as they would have: what is told to a copy, is told to it alone."""
    for party in honest(plan).parties:
        script = honest(plan).script(party)
        former = [Victim(honest(plan), party)]
        for exchange in script:
            former.append(Saved(former[-1], shared=[honest(plan)]).restore())
            former[-1].follow([exchange])
        for place in (0, len(script) // 2, len(script)):
            former[place].follow(script[place:])


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_a_canary_is_found_as_it_stands_and_as_a_models_input(dtype: str) -> None:
    for value in (CANARY, (CANARY + 10) / 30):
        inner = Payload(arrays={"numbers": np.asarray([0.5, value], dtype=dtype)})
        assert shows_canary(encode(inner))
        assert shows_canary(encode(Payload(blobs={"inside": encode(inner)})))
    assert shows_canary(encode(Payload(blobs={"text": f'{{"dose": {CANARY}}}'.encode()})))
    assert not shows_canary(encode(Payload(arrays={"numbers": np.asarray([0.5, 19.9], dtype=dtype)})))


def test_a_task_that_sends_a_row_is_found() -> None:
    prepare = enrolment.PREPARE.one

    def leaking(site: Site, request: Request) -> Release:
        release = prepare(site, request)
        leak = Payload(metrics={"rows": float(site.table.rows()["dose"][0])})
        return Release(payload=leak, guarantee=release.guarantee, rows=release.rows)

    found = honest("fedavg")
    object.__setattr__(enrolment.PREPARE, "one", leaking)
    try:
        with pytest.raises(ContractViolation, match="a value of a single row"):
            Victim(found, VICTIM).ask(found.script(VICTIM)[0].asked)
    finally:
        object.__setattr__(enrolment.PREPARE, "one", prepare)
