"""A contract that cannot fail is worth nothing: with the door taken out or the fast path bent, the suite notices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.contract import carry_out, check_law_1, check_law_2, check_law_4, check_round_trip, plan_of

from kohort.errors import KohortError
from kohort.privacy.ledger.ledger import Ledger
from kohort.protocol import site as site_module
from kohort.protocol import task as task_module
from kohort.rounds.training import TRAIN


def _let_everything_out(sites: Any, encoded: Any, **_: Any) -> list[None]:
    return [None] * len(sites)


@pytest.mark.parametrize("method", ["fedavg", "central"])
@pytest.mark.parametrize("many", [True, False])
def test_without_the_door_law_1_fails(method: str, many: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "door", _let_everything_out)
    # Whether the hub already refuses to sign for a chain that did not grow, or the comparison fails: it is noticed.
    with pytest.raises((AssertionError, KohortError)):
        check_law_1(carry_out(plan_of(method), tmp_path / "run", many=many))


def test_a_door_that_does_not_ask_the_policy_breaks_law_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.privacy.policy.Policy.judge", lambda *_, **__: None)
    with pytest.raises(AssertionError):
        check_law_2("fedavg", tmp_path)


def test_a_ledger_that_understates_sizes_breaks_law_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Ledger.record

    def record(self: Ledger, chains: Any, ledger_context: Any, *, payloads: Any, **rest: Any) -> None:
        real(self, chains, ledger_context, payloads=[bytes(data)[:-1] for data in payloads], **rest)

    monkeypatch.setattr(Ledger, "record", record)
    ran = carry_out(plan_of("fedavg"), tmp_path / "run")
    with pytest.raises(AssertionError):
        check_law_1(ran)


def test_a_fast_path_off_by_one_bit_breaks_law_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TRAIN.many
    assert honest is not None

    def bent(sites: Any, request: Any) -> Any:
        releases = honest(sites, request)
        assert releases is not None
        weights = releases.arrays["weights"]
        weights[0, 0] = np.nextafter(weights[0, 0], np.float32(np.inf))
        return releases

    monkeypatch.setitem(task_module._TASKS, TRAIN.name, TRAIN)
    replace(TRAIN, many=bent)  # making a task registers it
    with pytest.raises(AssertionError):
        check_law_4("fedavg", tmp_path)


def test_a_second_byte_form_breaks_the_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = carry_out(plan_of("fedavg"), tmp_path / "run")
    site, task, number, data = ran.carried.replies[0]
    ran.carried.replies[0] = (site, task, number, data + b"\0" * 8)
    with pytest.raises(KohortError):
        check_round_trip(ran)
