"""Events read back as written, and impossible ones are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kohort.errors import ConfigError
from kohort.privacy.dp.events import AnyEvent, Event, PrivateEvent, describe, parse_events

EVENTS: dict[str, AnyEvent] = {
    "600 x gaussian(sigma=8, rate=0.1)": Event(sigma=8.0, rate=0.1, steps=600),
    "1 x gaussian(sigma=1.5, rate=1)": Event(sigma=1.5),
    "pure(epsilon=0.5)": PrivateEvent(epsilon=0.5),
    "private(epsilon=0.5, delta=0, replace-one)": PrivateEvent(epsilon=0.5, relation="replace-one"),
    "private(epsilon=0.5, delta=1e-05, replace-one)": PrivateEvent(epsilon=0.5, delta=1e-5, relation="replace-one"),
    "private(epsilon=0, delta=1e-05, add-or-remove-one)": PrivateEvent(epsilon=0.0, delta=1e-5),
}


@pytest.mark.parametrize("text", EVENTS)
def test_an_event_has_one_text_and_is_read_from_it(text: str) -> None:
    assert describe([EVENTS[text]]) == text
    assert parse_events(text) == (EVENTS[text],)


def test_lists_of_events_keep_their_order() -> None:
    assert parse_events(describe(list(EVENTS.values()))) == tuple(EVENTS.values())
    assert parse_events("") == ()
    assert describe([]) == ""


@pytest.mark.parametrize(
    "text", ["noise", "pure(epsilon=x)", "1.5 x gaussian(sigma=1, rate=1)", "private(epsilon=1, delta=0, both)", "; "]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a list of privacy events"):
        parse_events(text)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_noise_is_a_finite_number_above_nothing(sigma: float) -> None:
    with pytest.raises(ConfigError, match="noise multiplier"):
        Event(sigma=sigma)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, math.nan])
def test_a_rate_is_a_probability_above_nothing(rate: float) -> None:
    with pytest.raises(ConfigError, match="sampling rate"):
        Event(sigma=1.0, rate=rate)


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_steps_are_a_whole_number_above_nothing(steps: Any) -> None:
    with pytest.raises(ConfigError, match="number of steps"):
        Event(sigma=1.0, steps=steps)


def test_a_private_release_has_a_possible_epsilon_and_delta() -> None:
    assert PrivateEvent(epsilon=0.0, delta=0.0).epsilon == 0
    for epsilon in (-0.1, math.inf, math.nan):
        with pytest.raises(ConfigError, match="not a finite number of at least 0"):
            PrivateEvent(epsilon=epsilon)
    for delta in (-1e-9, 1.0, math.nan):
        with pytest.raises(ConfigError, match="not a probability below 1"):
            PrivateEvent(epsilon=1.0, delta=delta)
    both: Any = "both"
    with pytest.raises(ConfigError, match="unknown neighbouring relation 'both'"):
        PrivateEvent(epsilon=1.0, relation=both)
