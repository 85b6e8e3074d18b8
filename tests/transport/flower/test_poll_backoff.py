"""How often messages are looked for: at once after one, seldom when none is expected."""

from __future__ import annotations

import math

import pytest

from kohort.transport.flower import poll_backoff as module
from kohort.transport.flower.poll_backoff import BUSY_FOR, PollBackoff


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_the_wait_grows_with_the_time_since_the_last_message(clock: Clock) -> None:
    backoff = PollBackoff(0.1, 0.4, 3.0)
    waits = []
    for clock.now in (0.0, 0.8, 1.2, 30.0, BUSY_FOR):
        waits.append(backoff.seconds)
    assert waits == pytest.approx([0.1, 0.2, 0.3, 0.4, 3.0])

    backoff.touch()
    assert backoff.seconds == pytest.approx(0.1)


def test_a_message_waits_a_quarter_of_the_step_before_it_and_few_looks_are_made(clock: Clock) -> None:
    for step in (0.3, 1.0, 10.0):
        backoff = PollBackoff(0.05, 5.0, 9.0)
        start, looks = clock.now, 0
        while clock.now - start < step:
            clock.now += backoff.seconds
            looks += 1
        assert clock.now - start - step <= 0.25 * step
        # Four looks until a quarter of the time is longer than the first wait, then each wait is 1.25 times as long.
        assert looks <= 5 + math.log(step / 0.2, 1.25)
