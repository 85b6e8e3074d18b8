"""A lying hub in the Newton steps of a one-shot fit: weights of its choice would count the rows near a plane alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kohort.errors import IntegrityError
from kohort.methods.oneshot import method, sums
from kohort.runs.run import Outcome, run
from kohort.testing import plan_of, tables


def outcome(scheme: str = "masks") -> Outcome:
    own = {"oneshot": {"rounds": 3, "min_cell": 2}, "secure": {"sum": scheme}}
    return run(plan_of("oneshot", own=own), seed=5, tables=tables())


def announce(monkeypatch: pytest.MonkeyPatch, change: Any, *, round_number: int) -> None:
    """Let the hub announce another total before a step."""
    honest = method.secure_sum

    def lying(hub: Any, task: Any, **options: Any) -> Any:
        if task is sums.NEWTON and options["round_number"] == round_number:
            options["inputs"] = change(dict(options["inputs"]))
        return (yield from honest(hub, task, **options))

    monkeypatch.setattr(method, "secure_sum", lying)


def raised(inputs: dict[str, bytes]) -> dict[str, bytes]:
    total = np.frombuffer(inputs["total"], dtype="<u8").copy()
    total[1] = (total[1] + 2**30) % (2**61 - 1)
    return {**inputs, "total": total.tobytes()}


@pytest.mark.parametrize("scheme", ["masks", "bfv"])
@pytest.mark.parametrize("round_number", [1, 2])
def test_a_step_follows_the_sites_own_totals_alone(
    scheme: str, round_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(monkeypatch, raised, round_number=round_number)
    with pytest.raises(IntegrityError, match="not the sum of what the listed sites contributed"):
        outcome(scheme)


def test_without_the_check_the_hub_moves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, raised, round_number=2)
    monkeypatch.setattr(sums, "proven_total", lambda secret, transcript, sites, announced: announced[:-1])
    assert outcome().rounds == 3


def test_no_request_carries_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def listen(inputs: dict[str, bytes]) -> dict[str, bytes]:
        seen.append(set(inputs))
        return {**inputs, "weights": bytes(8)}

    honest = outcome()
    announce(monkeypatch, listen, round_number=1)
    assert np.array_equal(outcome().model.weights, honest.model.weights)  # what is added is read by nobody
    assert seen == [{"total", "sites"}]


def test_all_schemes_take_the_same_steps() -> None:
    one, other = outcome("masks"), outcome("bfv")
    assert np.array_equal(one.model.weights, other.model.weights)
