"""Descriptions of noisy releases, the input of the privacy accountants."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kohort.errors import ConfigError

__all__ = ["AnyEvent", "Event", "PrivateEvent", "Relation", "describe", "parse_events"]

Relation = Literal["add-or-remove-one", "replace-one"]
"""Which tables count as neighbours."""


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
class PrivateEvent:
    """One release that is (epsilon, delta)-differentially private by itself, for neighbours under `relation`.

    Output perturbation has delta 0 and replaces a unit. A release with epsilon 0 discloses anything, with probability
    delta at most: the threshold of a noisy histogram.
    """

    epsilon: float
    delta: float = 0.0
    relation: Relation = "add-or-remove-one"

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ConfigError(
                f"epsilon {self.epsilon:g} is not a finite number of at least 0", hint="Give an epsilon such as 1.0"
            )
        if not 0 <= self.delta < 1:
            raise ConfigError(f"delta {self.delta:g} is not a probability below 1", hint="Give a delta such as 1e-5")
        if self.relation not in get_args(Relation):
            raise ConfigError(
                f"unknown neighbouring relation {self.relation!r}", hint=f"Valid: {', '.join(get_args(Relation))}"
            )


AnyEvent = Event | PrivateEvent


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
    return "; ".join(map(_described, events))


def _described(event: AnyEvent) -> str:
    if isinstance(event, Event):
        return f"{event.steps} x gaussian(sigma={_number(event.sigma)}, rate={_number(event.rate)})"
    if not event.delta and event.relation == "add-or-remove-one":
        return f"pure(epsilon={_number(event.epsilon)})"
    return f"private(epsilon={_number(event.epsilon)}, delta={_number(event.delta)}, {event.relation})"


_PURE = re.compile(r"\Apure\(epsilon=(\S+)\)\Z")
_PRIVATE = re.compile(r"\Aprivate\(epsilon=(\S+), delta=(\S+), (add-or-remove-one|replace-one)\)\Z")
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
    try:
        return tuple(_parsed(part) for part in (text.split("; ") if text else ()))
    except ValueError as error:
        raise ConfigError(
            "the text is not a list of privacy events", hint="Give a text that describe() wrote"
        ) from error


def _parsed(part: str) -> AnyEvent:
    if found := _GAUSSIAN.match(part):
        return Event(steps=int(found[1]), sigma=float(found[2]), rate=float(found[3]))
    if found := _PURE.match(part):
        return PrivateEvent(epsilon=float(found[1]))
    if found := _PRIVATE.match(part):
        relation: Relation = "replace-one" if found[3] == "replace-one" else "add-or-remove-one"
        return PrivateEvent(epsilon=float(found[1]), delta=float(found[2]), relation=relation)
    raise ValueError(part)


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")
