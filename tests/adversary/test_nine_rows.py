"""Nine attacks that worked before sites kept to a contract: each gets nothing now, and succeeds without the check.

Rows 3, 5 and 8 attack the inside of masks, counts and encryption, whose tests stand in files of their own:
`test_masks.py` (two survivor lists), `test_counting.py` (a hub between the sites) and `test_encrypted_sums.py` (payload
and check of all but one zeroed). docs/threats.md names the test of every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.adversary.changed_requests import ChangedRequests, any_request
from tests.adversary.plans import PLANS, honest
from tests.support.contracts import ANY_STEP

from kohort.errors import KohortError
from kohort.models.dense.shape import DenseShape
from kohort.privacy.contract import Asked, Contract, Position, Step
from kohort.privacy.dp.histogram import DomainBudget
from kohort.privacy.openings import OpeningBook
from kohort.protocol import enrolment
from kohort.protocol.public_inputs import PublicInputs
from kohort.protocol.site import Site
from kohort.protocol.wire import Payload, decode, encode
from kohort.rounds.domains import noisy as noisy_domains
from kohort.rounds.totals import summed_tasks
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run
from kohort.testing import (
    ContractViolation,
    Exchange,
    HonestRun,
    ServedSites,
    Victim,
    adversary,
    few_rows,
    lies,
    site_servers,
)
from kohort.testing.canary import CANARY
from kohort.testing.recorded import VICTIM
from kohort.testing.site_servers import DirectCarrier
from kohort.transport.messages import (
    RequestMessage,
    fresh_number,
)
from kohort.transport.remote_engine import Carrier, RemoteEngine

LOW, HIGH = -10.0, 20.0
"""The declared bounds of the canary's column."""


def _until(found: HonestRun, task: str) -> tuple[list[Exchange], Exchange]:
    """The honest exchanges before the first one of a task, and that one."""
    script = found.script(VICTIM)
    place = next(place for place, exchange in enumerate(script) if exchange.asked.task == task)
    return script[:place], script[place]


# 1: the plain task in a plan with a budget and masks


def _any_step(self: Contract, asked: Asked) -> tuple[Step, Position]:
    del self
    return ANY_STEP, (0, asked.round, 0, asked.round, asked.part)


def _trap(shape: DenseShape) -> np.ndarray[Any, Any]:
    """Weights under which the first hidden unit is active for the canary's row alone."""
    flat = np.zeros(shape.parameter_count, dtype=shape.dtype)
    (matrix, bias), (out, _) = shape.layers(flat)
    matrix[1, 0], bias[0] = 1.0, -0.9  # the column `dose`, above 17 of its 20
    out[0, :] = 20.0 * np.arange(1, out.shape[1] + 1)
    return flat


def _asked_in_clear(victim: Victim, base: RequestMessage, weights: Any, nonce: str = "1" * 24) -> Any:
    body = encode(Payload(arrays={"weights": weights}))
    lie = replace(base, fresh=fresh_number(), task="train", round=0, body=body, nonce=nonce)
    return victim.send(lie, "plain training")


def test_row_1_plain_training_in_a_plan_with_a_budget_and_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = honest("fedavg, masks and dp")
    before, first = _until(found, "sum.updates")
    victim = Victim(found, VICTIM)
    victim.follow(before)
    outputs = 1 if _parameters(victim) == 16 else 2
    shape = DenseShape(inputs=3, hidden=(3,), outputs=outputs, loss="logistic" if outputs == 1 else "softmax")
    trap = _trap(shape)
    refused = _asked_in_clear(victim, first.asked, trap)
    assert (refused.status, refused.code, refused.body) == ("refused", "contract", b"")
    monkeypatch.setattr(Contract, "find", _any_step)
    answered = _asked_in_clear(victim, first.asked, trap, nonce="2" * 24)
    assert answered.guarantee["kind"] == "aggregate"
    change = decode(answered.body).arrays["weights"] - trap
    (matrix, bias), _ = shape.layers(change)
    read = matrix[1, 0] / bias[0] * (HIGH - LOW) + LOW
    assert read == pytest.approx(CANARY, abs=0.02), "the canary's value was read out of one answer"


def _parameters(victim: Victim) -> int:
    (opened,) = victim._server._runs.values()
    return int(opened.site.network.parameter_count)


def test_row_1_needs_the_doors_comparison_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = honest("fedavg, masks and dp")
    before, first = _until(found, "sum.updates")
    victim = Victim(found, VICTIM)
    victim.follow(before)
    sum_step = next(step for step in found.approved.contract if step.task == "sum.updates")
    monkeypatch.setattr(Contract, "find", lambda self, asked: (sum_step, (9, 0, 0, asked.round, asked.part)))
    refused = _asked_in_clear(victim, first.asked, np.zeros(_parameters(victim), dtype=np.float32))
    assert (refused.status, refused.code) == ("refused", "policy"), "the release claims less than the step demands"


# 2: other public inputs at one site of a secure sum


@dataclass
class _LiedTo(ServedSites):
    change: Callable[[RequestMessage], RequestMessage] = lambda message: message
    dropped: frozenset[str] = frozenset()

    def carrier(self) -> Carrier:
        return _Dropping(ChangedRequests(DirectCarrier(self.site_servers), self, self.change), self.dropped)


@dataclass(frozen=True)
class _Dropping:
    """Loses every message to some sites."""

    carrier: Carrier
    sites: frozenset[str] = frozenset()

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        sent = {name: data for name, data in messages.items() if name not in self.sites}
        replies, missing = self.carrier.carry(sent, deadline=deadline) if sent else ({}, {})
        return replies, {**missing, **dict.fromkeys(self.sites & set(messages), "lost")}


def _other_start(message: RequestMessage) -> RequestMessage:
    """Another seed of the first weights."""
    payload = decode(message.body)
    if "start" not in payload.blobs:
        return message
    return replace(message, body=encode(replace(payload, blobs={**payload.blobs, "start": b"\1" * 16})))


def test_row_2_other_inputs_at_one_site_of_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteEngine, "_opened", any_request)
    plan = PLANS["fedavg, masks"]()
    with pytest.raises(KohortError):
        run(plan, seed=5, backend=_LiedTo(tables=few_rows(), change=_other_start))
    monkeypatch.setattr(PublicInputs, "view", lambda self, own: bytes(32))
    got = run(plan, seed=5, backend=_LiedTo(tables=few_rows(), change=_other_start))
    assert np.isfinite(got.model.weights).all(), "the sum opened although one site saw other inputs"


# 4: more sites, or the same ones again, in a later step


def test_row_4_longer_lists_thin_no_noise() -> None:
    found = honest("fedavg, masks and dp")
    before, first = _until(found, "sum.setup")
    longer = [
        lie for lie in lies.every_list(found, VICTIM, len(before)) if "made-up" in lie.name or "times" in lie.name
    ]
    assert longer
    for lie in longer:
        victim = Victim(found, VICTIM)
        victim.follow(before)
        victim.follow([first])
        assert all(victim.ask(message, lie.name).status != "answer" for message in lie.messages)


def test_row_4_a_list_that_were_believed_would_thin_the_noise() -> None:
    found = honest("fedavg, masks and dp")
    victim = Victim(found, VICTIM)
    victim.follow(_until(found, "sum.updates")[0])
    (opened,) = victim._server._runs.values()
    planned, believed = (summed_tasks._own_deviation(opened.site, 0, count) for count in (4, 400))
    assert believed < planned / 5


# 6: the same statistic over one site fewer, in another run


def _statistics_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Two runs over the same sites, whose books outlive the first; a hub loses one site in the second."""
    described = PLANS["oneshot"]().to_mapping()
    described["sites"] |= {"quorum": 0.7}
    plan = load_plan(described, complete=True)
    books: dict[str, OpeningBook] = {}

    def book(path: Path) -> OpeningBook:
        return books.setdefault(path.parent.name, OpeningBook())

    monkeypatch.setattr(site_servers, "OpeningBook", book)
    monkeypatch.setattr(Site, "data_version", "the same rows")  # simulated sites key it by the run's seed
    run(plan, seed=5, backend=_LiedTo(tables=few_rows(), folder=folder / "first"))
    fewer = _LiedTo(tables=few_rows(), folder=folder / "second", dropped=frozenset({"d-fourth"}))
    return run(plan, seed=6, backend=fewer)


def test_row_6_one_site_fewer_in_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KohortError):
        _statistics_twice(tmp_path / "checked", monkeypatch)
    monkeypatch.setattr(OpeningBook, "admit", lambda *_, **__: None)
    assert _statistics_twice(tmp_path / "unchecked", monkeypatch).model is not None


# 7: chosen domains, and words as an oracle


def _tell_domain_lies(found: HonestRun) -> None:
    for lie in lies.every_field(found, VICTIM, 0):
        if "categories" in lie.name:
            adversary._Pair(found, VICTIM).tell(lie, 0)


def test_row_7_chosen_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    found = honest("fedavg")
    _tell_domain_lies(found)
    monkeypatch.setattr(enrolment, "_check_declared", lambda *_: None)
    with pytest.raises(ContractViolation, match="only row values differ"):
        _tell_domain_lies(found)


# 9: nobody lies


def test_row_9_undeclared_domains_under_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ward of one patient is named by no site, unless its noisy count is compared with a wrong threshold."""
    described = PLANS["fedavg, dp-sgd"]().to_mapping()
    del described["data"]["categories"]
    plan, rare = load_plan(described, complete=True), "ward-of-one-patient"
    tables = {
        name: pl.concat([frame] * 12).with_columns(
            ward=pl.when(pl.int_range(pl.len()) == 0).then(pl.lit(rare)).otherwise("ward")
        )
        for name, frame in few_rows().items()
    }
    domain = run(plan, seed=5, backend=ServedSites(tables=tables)).model.encoder.domain
    assert rare not in (domain.columns["ward"].categories or ())
    monkeypatch.setattr(DomainBudget, "threshold", lambda self, keys: -5 * self.deviation(keys))
    monkeypatch.setattr(noisy_domains, "max", min, raising=False)  # nor does the policy's own minimum hold
    domain = run(plan, seed=5, backend=ServedSites(tables=tables)).model.encoder.domain
    assert rare in (domain.columns["ward"].categories or ())
