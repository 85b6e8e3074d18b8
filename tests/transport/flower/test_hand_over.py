"""A SuperNode and its site wait for each other, not for a clock; so does the hub for replies, until its deadline."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx

from kohort.transport.flower import run as flower_runs
from kohort.transport.flower import runner as flower_runner
from kohort.transport.flower.long_polling import LONGEST_HOLD
from kohort.transport.flower.run import FlowerRun


def later(seconds: float, call: Any) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.start()
    return timer


def took(call: Any) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_a_site_gets_its_task_when_the_message_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_runner, "HOLD_TASK", 10.0)
    hand_over = flower_runner._HandOver(lambda **_: 5, lambda request, state: (request, state))
    later(0.1, hand_over.pull)
    assert 0.05 < took(lambda: hand_over.acquire("request", "state")) < 5
    monkeypatch.setattr(flower_runner, "HOLD_TASK", 0.1)
    assert hand_over.acquire("request", "state") == ("request", "state"), "a look is answered, message or not"


def test_the_loop_goes_on_when_the_site_answered() -> None:
    hand_over = flower_runner._HandOver(lambda **_: None, lambda *_: None)
    stored = hand_over.noticing(lambda *given: given)
    later(0.1, lambda: stored("request", "state", "task"))
    assert 0.05 < took(lambda: hand_over.rest(10.0 * 0.25)) < 2
    assert stored("request") == ("request",)


@pytest.mark.parametrize(("held", "low", "high"), [(True, 0.0, 0.09), (False, 0.09, 2.0)])
def test_a_look_that_the_hub_held_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, held: bool, low: float, high: float
) -> None:
    monkeypatch.setattr(flower_runner, "HELD", 0.05)
    hand_over = flower_runner._HandOver(lambda **_: time.sleep(0.1 if held else 0.0), lambda *_: None)
    assert hand_over.pull() is None
    assert low <= took(lambda: hand_over.rest(3)) < high


def test_a_hub_that_forgot_a_run_ends_no_node() -> None:
    request = httpx.Request("POST", "https://hub.example.org")

    def refused(**_: Any) -> None:
        raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(404, request=request))

    assert flower_runner._HandOver(refused, lambda *_: None).pull() is None

    def broken(**_: Any) -> None:
        raise RuntimeError("anything else does")

    with pytest.raises(RuntimeError):
        flower_runner._HandOver(broken, lambda *_: None).pull()


class Grid:
    """Holds looks for replies as long as it may, and never has one."""

    def __init__(self) -> None:
        self.run = FlowerRun(self)
        self.allowed: list[float] = []

    def push_messages(self, messages: list[Any]) -> list[str]:
        return [f"message {number}" for number, _ in enumerate(messages)]

    def pull_messages(self, waiting: set[str]) -> list[Any]:
        del waiting
        self.allowed.append(self.run.longest_hold())
        time.sleep(max(0.0, self.allowed[-1]))
        return []


def test_no_look_for_replies_is_held_beyond_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_runs, "LONGEST_HOLD", 0.6)
    monkeypatch.setattr(flower_runs, "_give_up_at", lambda _: None)
    from flwr.supercore.task_identity import TaskIdentity

    for name, value in {"_run_id": 1, "_task_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    grid = Grid()
    assert took(lambda: grid.run.exchange({7: b"message"}, deadline=1.0)) < 1.6
    assert grid.allowed[0] == pytest.approx(0.6, abs=0.05)
    assert all(0 < seconds <= 0.6 for seconds in grid.allowed)
    assert grid.allowed[-1] < 0.5
    assert 0 < LONGEST_HOLD <= flower_runner.NODE_POLL[-1]


def test_a_hub_that_is_away_is_tried_again_soon_and_as_long_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from itertools import islice

    from flwr.supercore.retry import http_retry

    from kohort.transport.flower.environment import hasten

    monkeypatch.setattr(http_retry, "exponential", http_retry.exponential)
    hasten()
    waits = list(islice(http_retry.exponential(max_delay=20), 30))
    assert waits[0] <= 1
    assert all(later <= max(1.0, 0.6 * sum(waits[:number])) for number, later in enumerate(waits))
    assert sum(waits) > 300, "thirty tries last five minutes at least"
    assert max(waits) == 20
