"""Descriptions of noisy releases, the input of the privacy accountants."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kohort.errors import ConfigError

__all__ = ["AnyEvent", "Event", "PureEvent", "describe", "parse_events"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """`steps` releases of a Gaussian mechanism with noise `sigma` (in units of the clip) on a Poisson sample.

    Every unit is in a step's sample with probability `rate`, independently; 1.0 means all units in every step.
    """

    sigma: float
    rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.sigma < math.inf:
            raise ConfigError(
                f"the noise multiplier {self.sigma:g} is not a finite number above 0", hint="Give a sigma such as 1.0"
            )
        if not 0 < self.rate <= 1:
            raise ConfigError(
                f"the sampling rate {self.rate:g} is not a probability above 0",
                hint="Give a rate above 0 and at most 1",
            )
        if self.steps < 1 or self.steps != int(self.steps):
            raise ConfigError(
                f"the number of steps {self.steps} is not a whole number above 0",
                hint="Give a whole number of at least 1",
            )


@dataclass(frozen=True, kw_only=True)
class PureEvent:
    """One release that is epsilon-differentially private by itself, such as Laplace noise or output perturbation."""

    epsilon: float

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ConfigError(
                f"epsilon {self.epsilon:g} is not a finite number of at least 0", hint="Give an epsilon such as 1.0"
            )


AnyEvent = Event | PureEvent


def describe(events: Sequence[AnyEvent]) -> str:
    """The canonical text of a list of events, as guarantees in the ledger hold it.

    Args:
        events: What was released.

    Returns:
        The text; `parse_events` is its inverse.

    Example:
        >>> describe([Event(sigma=8.0, rate=0.1, steps=600)])
        '600 x gaussian(sigma=8, rate=0.1)'
    """
    return "; ".join(
        f"pure(epsilon={_number(event.epsilon)})"
        if isinstance(event, PureEvent)
        else f"{event.steps} x gaussian(sigma={_number(event.sigma)}, rate={_number(event.rate)})"
        for event in events
    )


_PURE = re.compile(r"\Apure\(epsilon=(\S+)\)\Z")
_GAUSSIAN = re.compile(r"\A(\d+) x gaussian\(sigma=(\S+), rate=(\S+)\)\Z")


def parse_events(text: str) -> tuple[AnyEvent, ...]:
    """Read a text written by `describe`.

    Args:
        text: The text; empty for no events.

    Returns:
        The events.

    Raises:
        ConfigError: The text was not written by `describe`.
    """
    events: list[AnyEvent] = []
    for part in text.split("; ") if text else ():
        pure, gaussian = _PURE.match(part), _GAUSSIAN.match(part)
        try:
            if pure:
                events.append(PureEvent(epsilon=float(pure[1])))
            elif gaussian:
                events.append(Event(steps=int(gaussian[1]), sigma=float(gaussian[2]), rate=float(gaussian[3])))
        except ValueError:
            pure = gaussian = None
        if not pure and not gaussian:
            raise ConfigError("the text is not a list of privacy events", hint="Give a text that describe() wrote")
    return tuple(events)


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")
