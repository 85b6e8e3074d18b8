"""What noise costs: epsilon of a list of events, and the noise that keeps a budget.

Describing what was released is separate from judging it: a site lists its events, and one composition of all of them
gives its epsilon. The privacy loss distribution ("pld", after Koskela et al., AISTATS 2020, as implemented by
dp-accounting) is the account that counts, with every rounding on the private side. Rényi differential privacy ("rdp",
Mironov, CSF 2017) and the sum of each phase's own Rényi account with delta shared out equally ("basic") stand beside it
for comparison with what papers print.

Guarantee: an epsilon from here is an upper bound under the events as described. Sampling must be true Poisson sampling
that no other party chooses or sees; noise is real-valued here, and floating point is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from kohort.errors import ConfigError, RefusedError
from kohort.privacy.dp.cache import recall, remember
from kohort.privacy.dp.composition import Relation, parts_of, privacy_loss, quiet, renyi
from kohort.privacy.dp.events import AnyEvent, Event, PureEvent, describe, parse_events
from kohort.privacy.dp.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu

__all__ = [
    "MIN_UNITS",
    "Accountant",
    "AnyEvent",
    "Event",
    "PureEvent",
    "calibrate",
    "check_budget",
    "compose_parallel",
    "delta_of",
    "describe",
    "epsilon_of",
    "grid_rate",
    "parse_events",
]

Accountant = Literal["pld", "rdp", "basic"]

MIN_UNITS = 10
"""Fewest units (rows, persons or sites) a differentially private release may speak of: noise that hides one of fewer
leaves nothing to learn, and delta means nothing there."""
GRID = 1.02
"""Sampling rates are rounded up to a power of this, so that sites of similar size share a calibration."""
SLACK = 2e-3
"""How far below its target a calibrated epsilon may end."""
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e7
"""Between these a calibration searches; a sample so small that less noise would do gets the least."""


def epsilon_of(
    events: Sequence[AnyEvent],
    delta: float,
    *,
    accountant: Accountant = "pld",
    relation: Relation = "add-or-remove-one",
) -> float:
    """The epsilon of all events together at `delta`: an upper bound, infinite where there is none.

    "basic" adds up the Rényi epsilon of each event, with delta shared out equally among them.
    """
    _check_delta(delta)
    return _cached_epsilon(tuple(events), delta, accountant, relation)


def delta_of(
    events: Sequence[AnyEvent],
    epsilon: float,
    *,
    accountant: Literal["pld", "rdp"] = "pld",
    relation: Relation = "add-or-remove-one",
) -> float:
    """The delta of all events together at `epsilon`: an upper bound."""
    if not 0 <= epsilon < math.inf:
        raise ConfigError(f"epsilon {epsilon:g} is no guarantee", hint="Give an epsilon of at least 0")
    parts = parts_of(events, relation)
    if accountant == "rdp":
        with quiet():
            return float(min(1.0, renyi(parts).get_delta(epsilon)))
    if accountant != "pld":
        raise ConfigError(f"{accountant!r} gives no delta", hint="Valid: pld, rdp")
    if not parts.sampled and not parts.pure:
        return gaussian_delta(parts.mu, epsilon)
    return float(min(1.0, privacy_loss(parts).get_delta_for_epsilon(epsilon)))


def calibrate(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    accountant: Accountant = "pld",
    before: Sequence[AnyEvent] = (),
) -> float:
    """A noise multiplier for `steps` releases that, on top of the events `before`, stay within (epsilon, delta).

    Errs to the private side: rates are rounded up to a grid of 2 %, the last digit of sigma is rounded up, and
    the sigma returned is one whose own epsilon was computed and found to be at most `epsilon`.
    """
    _check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ConfigError(f"epsilon {epsilon:g} buys no release", hint="Give an epsilon above 0")
    if delta == 0:
        raise ConfigError("Gaussian noise has no guarantee at delta 0", hint="Give a delta above 0")
    Event(sigma=1.0, rate=rate, steps=steps)  # refuses what is no rate and no number of steps
    spent = tuple(_on_grid(event) for event in before)
    return _cached_sigma(epsilon, delta, grid_rate(rate), steps, accountant, spent)


def grid_rate(rate: float) -> float:
    """The sampling rate a calibration uses in place of `rate`: the next one of the grid, never a smaller one."""
    power = math.ceil(math.log(rate) / math.log(GRID) - 1e-9)
    return max(rate, min(1.0, GRID**power))


def check_budget(
    *,
    epsilon: float,
    delta: float,
    units: int,
    allow_large_delta: bool = False,
    pure: bool = False,
    floor: int = MIN_UNITS,
) -> bool:
    """Whether a claim of (epsilon, delta) over `units` units would be void; raises when it is not to be made at all.

    A delta above 1/(10 units) lets a mechanism give a whole unit away now and then, so it is refused; studies that
    repeat a published setting may allow it, and their claim is void.
    """
    if not 0 < epsilon < math.inf:
        raise ConfigError(f"epsilon {epsilon:g} is no budget", hint="Give an epsilon above 0")
    _check_delta(delta)
    if delta == 0 and not pure:
        raise ConfigError("Gaussian noise has no guarantee at delta 0", hint="Give a delta above 0, such as 1e-5")
    if units < floor:
        raise RefusedError(
            f"{units} units are too few for differential privacy, which wants at least {floor}",
            hint="Leave the site out, or join it with another",
        )
    large = delta * 10 * units > 1 + 1e-9
    if large and not allow_large_delta:
        raise RefusedError(
            f"delta {delta:g} is above 1/(10 n) = {1 / (10 * units):.3g} for {units} units",
            hint="Lower delta; studies of published settings may set dp.allow_large_delta, which voids the claim",
        )
    return large


def compose_parallel(parts: Sequence[tuple[float, float]], *, disjoint: bool, unit: str) -> tuple[float, float]:
    """(epsilon, delta) of releases made from parts of a table.

    The largest of them when no row is in two parts and the unit is the row; otherwise their sum, because one person's
    or one site's rows can be in several. `disjoint` must come from a split that depends on the row alone.
    """
    join = max if disjoint and unit == "row" else math.fsum
    return (
        float(join([epsilon for epsilon, _ in parts] or [0.0])),
        float(join([delta for _, delta in parts] or [0.0])),
    )


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ConfigError(f"delta {delta:g} is no probability below 1", hint="Give a delta such as 1e-5")


def _on_grid(event: AnyEvent) -> AnyEvent:
    if isinstance(event, PureEvent):
        return event
    return Event(sigma=event.sigma, rate=grid_rate(event.rate), steps=event.steps)


@lru_cache(maxsize=65536)
def _cached_epsilon(events: tuple[AnyEvent, ...], delta: float, accountant: Accountant, relation: Relation) -> float:
    key = f"epsilon {describe(events)} at {delta!r} by {accountant} for {relation}"
    known = None if _is_closed_form(events, accountant) else recall(key)
    if known is None:
        known = _epsilon(events, delta, accountant, relation)
        if math.isfinite(known) and not _is_closed_form(events, accountant):
            remember(key, known)
    return known


@lru_cache(maxsize=65536)
def _cached_sigma(
    epsilon: float, delta: float, rate: float, steps: int, accountant: Accountant, before: tuple[AnyEvent, ...]
) -> float:
    candidate = Event(sigma=1.0, rate=rate, steps=steps)
    key = f"sigma {describe((*before, candidate))} for {epsilon!r} {delta!r} by {accountant}"
    closed = _is_closed_form((*before, candidate), accountant)
    known = None if closed else recall(key)
    if known is None:
        known = _search(epsilon, delta, candidate, accountant, before)
        if not closed:
            remember(key, known)
    return known


def _is_closed_form(events: tuple[AnyEvent, ...], accountant: Accountant) -> bool:
    return accountant == "pld" and all(isinstance(event, Event) and event.rate == 1 for event in events)


def _search(
    epsilon: float, delta: float, candidate: Event, accountant: Accountant, before: tuple[AnyEvent, ...]
) -> float:
    """The smallest sigma found whose epsilon is at most `epsilon`, by the secant of log epsilon over log sigma."""

    def cost(sigma: float) -> float:
        event = Event(sigma=sigma, rate=candidate.rate, steps=candidate.steps)
        return _epsilon((*before, event), delta, accountant, "add-or-remove-one")

    if before and _epsilon(before, delta, accountant, "add-or-remove-one") >= epsilon:
        raise RefusedError("the phases before spend the whole budget", hint="Raise epsilon, or give them less")
    guess = _first_guess(epsilon, delta, candidate, before)
    bracket = _Bracket(aim=epsilon * (1 - SLACK / 2), sigma=_round_up(max(guess, _LEAST_NOISE)))
    while True:
        found = cost(bracket.sigma)
        enough = bracket.close(found, epsilon)
        if enough is not None:
            return enough
        if bracket.sigma > _MOST_NOISE:
            raise RefusedError(
                f"no noise keeps {candidate.steps} steps within epsilon {epsilon:g} at delta {delta:g}",
                hint="Raise epsilon or delta, or take fewer steps",
            )
        bracket.move(found)
        if bracket.sigma >= bracket.high:
            return bracket.high


@dataclass
class _Bracket:
    """The interval a calibration searches, and where it looks next."""

    aim: float
    sigma: float
    low: float = 0.0
    """The largest sigma known to be too small."""
    high: float = math.inf
    """The smallest known to be enough."""
    slope: float = -1.0
    last: tuple[float, float] = (0.0, 0.0)

    def close(self, found: float, epsilon: float) -> float | None:
        """Take up the epsilon `found` at `sigma`; the answer, once it is near enough."""
        if found <= epsilon:
            self.high = min(self.high, self.sigma)
            if found >= epsilon * (1 - SLACK) or self.sigma <= _LEAST_NOISE:
                return self.high
        else:
            self.low = max(self.low, self.sigma)
        return self.high if self.low and self.high / self.low - 1 < SLACK else None

    def move(self, found: float) -> None:
        """Look next where the secant points, or halfway where it leaves the interval."""
        if 0 < found < math.inf:
            before, then = self.last
            if then and before != self.sigma and then != found:
                self.slope = math.log(found / then) / math.log(self.sigma / before)
            self.last = (self.sigma, found)
            step = math.log(self.aim / found) / min(self.slope, -0.2)
            self.sigma *= math.exp(max(-2.0, min(2.0, step)))
        else:
            self.sigma *= 0.5 if found == 0 else 2.0
        if not self.low < self.sigma < self.high:
            self.sigma = self._middle()
        self.sigma = _round_up(max(self.sigma, _LEAST_NOISE))

    def _middle(self) -> float:
        if self.low and self.high < math.inf:
            return math.sqrt(self.low * self.high)
        return self.high / 2 if self.low == 0 else self.low * 2


def _first_guess(epsilon: float, delta: float, candidate: Event, before: tuple[AnyEvent, ...]) -> float:
    """The sigma at which the central limit of all events together has the epsilon asked for."""
    left = gaussian_mu(epsilon, delta) ** 2 - parts_of(before, "add-or-remove-one").variance
    ratio = max(left, 1e-3 * epsilon**2) / (candidate.steps * candidate.rate**2)
    return 1 / math.sqrt(math.log1p(ratio)) if candidate.rate < 1 else 1 / math.sqrt(ratio)


def _round_up(sigma: float) -> float:
    """Six digits, so that the number in the ledger is the number used."""
    unit = 10.0 ** (math.floor(math.log10(sigma)) - 5)
    rounded = float(f"{math.ceil(sigma / unit - 1e-9) * unit:.6g}")
    return rounded if rounded >= sigma else float(f"{rounded + unit:.6g}")


@lru_cache(maxsize=256)  # what a calibration computed last is what its result is then asked for
def _epsilon(events: tuple[AnyEvent, ...], delta: float, accountant: Accountant, relation: Relation) -> float:
    parts = parts_of(events, relation)
    if not parts.sampled and not parts.mu and delta == 0:
        return math.fsum(parts.pure.elements())
    if accountant == "pld":
        if not parts.sampled and not parts.pure:
            return gaussian_epsilon(parts.mu, delta)
        if delta == 0:
            return math.inf
        return float(privacy_loss(parts).get_epsilon_for_delta(delta))
    if delta == 0:
        return math.inf
    if accountant == "rdp":
        with quiet():
            return float(renyi(parts).get_epsilon(delta))
    if accountant == "basic":
        share = delta / max(1, len(events))
        return math.fsum(
            event.epsilon if isinstance(event, PureEvent) else _epsilon((event,), share, "rdp", relation)
            for event in events
        )
    raise ConfigError(f"there is no accountant {accountant!r}", hint="Valid: pld, rdp, basic")
