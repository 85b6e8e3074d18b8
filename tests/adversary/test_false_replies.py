"""The suite of lying sites and key-holders must bite: planted leaks, and totals that show one site, are found."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.adversary.plans import honest

from kohort.crypto.sealed import Identity
from kohort.crypto.sums.modular import P61
from kohort.errors import IntegrityError
from kohort.protocol import enrolment
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request
from kohort.protocol.wire import Payload
from kohort.testing import false_replies
from kohort.testing.checks import ContractViolation
from kohort.testing.false_replies import LIAR, FalseReply, Sums, every_false_reply, run_with
from kohort.transport import messages
from kohort.transport.messages import ReplyMessage, read_reply, write_reply

NOTHING = FalseReply("nothing false", 0, {})


def test_lies_are_made_of_every_reply() -> None:
    found = honest("fedavg, masks")
    script, lies = found.script(LIAR), list(every_false_reply(found, LIAR))
    assert {lie.place for lie in lies} == set(range(len(script)))
    assert len({lie.name for lie in lies}) == len(lies) > 20 * len(script)
    run_with(found, LIAR, NOTHING)


def test_a_site_that_leaks_beside_a_liar_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, found = enrolment.PREPARE.one, honest("fedavg")

    def leaking(site: Site, request: Request) -> Release:
        release = prepare(site, request)
        leak = Payload(metrics={"rows": float(site.table.rows()["dose"][0])})
        return Release(payload=leak, guarantee=release.guarantee, rows=release.rows)

    object.__setattr__(enrolment.PREPARE, "one", leaking)
    try:
        with pytest.raises(ContractViolation, match="a value of a single row"):
            run_with(found, LIAR, NOTHING)
    finally:
        object.__setattr__(enrolment.PREPARE, "one", prepare)


def test_a_hub_that_a_liar_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: Any, **__: Any) -> None:
        raise KeyError("answer")

    found = honest("fedavg")
    monkeypatch.setattr(false_replies, "run", ends)
    with pytest.raises(ContractViolation, match="KeyError ends the hub's process"):
        run_with(found, LIAR, NOTHING)


def test_totals_that_show_one_site_are_found() -> None:
    random = np.random.default_rng(1)
    mine, yours, theirs = (random.integers(0, P61, 5, dtype=np.uint64) for _ in range(3))
    vectors = {("liar", "t", 0): mine, ("b", "t", 0): yours, ("c", "t", 0): theirs}
    prime = np.uint64(P61)
    everybody = (mine + yours) % prime + theirs
    for totals in (
        [yours.copy()],  # of one site
        [(mine + yours) % prime],  # with the liar's own
        [everybody % prime, (mine + theirs) % prime],  # two that differ by one
        [mine + yours + theirs, mine + theirs],  # the same modulo 2^64
    ):
        assert Sums(vectors, totals).shown("liar") in {("b", "t", 0), ("c", "t", 0)}
    assert Sums(vectors, [everybody % prime]).shown("liar") is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"seconds": float("inf")}, "malformed in 'seconds'"),
        ({"seconds": float("nan")}, "malformed in 'seconds'"),
        ({"seconds": 1e300}, "malformed in 'seconds'"),
        ({"head": "\ud800"}, "is not JSON"),
        ({"seen": {"b": [1, "\ud800", "00"]}}, "is not JSON"),
    ],
    ids=str,
)
def test_numbers_and_texts_that_can_be_written_nowhere_are_no_reply(
    fields: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Identity.from_secret("a", bytes(range(48)))
    monkeypatch.setattr(messages, "canonical", json.dumps)  # which writes them, as a liar can
    written = write_reply(ReplyMessage(site="a", fresh="1", status="answer", **fields), site)
    with pytest.raises(IntegrityError, match=said):
        read_reply(written, site=site.public)
