"""Privacy accountants: the epsilon of a list of events, and the noise multiplier that keeps a budget.

Describing what was released is separate from accounting for it: a site lists its events, and one composition of all of
them gives its epsilon. The default accountant uses the privacy loss distribution ("pld", after Koskela et al., AISTATS
2020, as implemented by dp-accounting), with every rounding on the private side. Two others exist for comparison with
the numbers that papers print: Rényi differential privacy ("rdp", Mironov, CSF 2017), and the sum of each phase's own
Rényi epsilon with delta divided equally among them ("basic").

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
from kohort.privacy.dp.composition import parts_of, privacy_loss, quiet, renyi
from kohort.privacy.dp.events import AnyEvent, Event, PrivateEvent, Relation, describe, parse_events
from kohort.privacy.dp.gaussian import gaussian_epsilon, gaussian_mu

__all__ = [
    "MIN_UNITS",
    "Accountant",
    "AnyEvent",
    "Event",
    "PrivateEvent",
    "Relation",
    "calibrate",
    "check_budget",
    "compose_parallel",
    "describe",
    "epsilon_of",
    "grid_rate",
    "parse_events",
]

Accountant = Literal["pld", "rdp", "basic"]

MIN_UNITS = 10
"""Minimum number of units (rows, persons or sites) behind a differentially private release.

With fewer units, noise that hides one of them leaves nothing to learn, and delta is meaningless."""
GRID = 1.02
"""Sampling rates are rounded up to a power of this, so that sites of similar size share a calibration."""
SLACK = 2e-3
"""Relative tolerance of a calibration: how far below its target the epsilon may end."""
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e7
"""Range of noise multipliers a calibration searches; it returns the smallest where even less noise would do."""


def epsilon_of(
    events: Sequence[AnyEvent],
    delta: float,
    *,
    accountant: Accountant = "pld",
    relation: Relation = "add-or-remove-one",
) -> float:
    """The epsilon of all events together at `delta`.

    Args:
        events: What was released.
        delta: The delta of the guarantee, at least 0 and below 1.
        accountant: "pld", "rdp", or "basic" (the sum of each event's Rényi epsilon, delta divided equally).
        relation: Which tables count as neighbours.

    Returns:
        An upper bound on epsilon; infinity where no finite one exists.

    Raises:
        ConfigError: `delta`, the accountant or the relation is not valid.
    """
    _check_delta(delta)
    return _cached_epsilon(tuple(events), delta, accountant, relation)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    accountant: Accountant = "pld",
    before: Sequence[AnyEvent] = (),
    relation: Relation = "add-or-remove-one",
) -> float:
    """A noise multiplier for `steps` Gaussian releases that, after the events `before`, stay within (epsilon, delta).

    Guarantee: it errs on the private side. Sampling rates are rounded up to a grid of 2 %, the last digit of sigma is
    rounded up, and the epsilon of the returned sigma was computed and found to be at most `epsilon`.

    Args:
        epsilon: The budget's epsilon, above 0.
        delta: The budget's delta, above 0 and below 1.
        rate: The probability that a unit is in a step's Poisson sample; 1.0 for full batches.
        steps: How many noisy steps there will be.
        accountant: How events are composed.
        before: Events that already use part of the same budget.
        relation: Which tables count as neighbours.

    Returns:
        The noise multiplier sigma, in units of the clipping bound.

    Raises:
        ConfigError: A parameter is out of range.
        RefusedError: The earlier events spend the whole budget, or no amount of noise keeps it.
    """
    _check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ConfigError(f"epsilon {epsilon:g} is not a finite number above 0", hint="Give an epsilon above 0")
    if delta == 0:
        raise ConfigError("Gaussian noise has no guarantee at delta 0", hint="Give a delta above 0")
    Event(sigma=1.0, rate=rate, steps=steps)  # raises for an invalid rate or number of steps
    spent = tuple(_on_grid(event) for event in before)
    return _cached_sigma(epsilon, delta, grid_rate(rate), steps, accountant, spent, relation)


def grid_rate(rate: float) -> float:
    """Round a sampling rate up to the calibration grid, so that sites of similar size share a calibration.

    Args:
        rate: The true sampling rate, above 0 and at most 1.

    Returns:
        The rate to account for: never smaller than `rate`, at most 1.
    """
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
    where: str = "",
) -> bool:
    """Check whether a budget gives a meaningful guarantee for `units` units.

    With a delta above 1/(10 units) a mechanism may disclose a whole unit now and then, so such a budget is refused.
    Studies that repeat a published setting may allow it; their claim is then void.

    Args:
        epsilon: The budget's epsilon.
        delta: The budget's delta.
        units: How many units (rows, persons or sites) the release speaks of.
        allow_large_delta: Whether a delta above 1/(10 units) is allowed and makes the claim void.
        pure: Whether the mechanism needs no delta.
        floor: Minimum number of units.
        where: What errors begin with, such as "phase 2: ".

    Returns:
        Whether the claim is void.

    Raises:
        ConfigError: Epsilon or delta is out of range.
        RefusedError: There are too few units, or delta is too large for them.
    """
    if not 0 < epsilon < math.inf:
        raise ConfigError(
            f"the budget's epsilon {epsilon:g} is not a finite number above 0", hint="Give an epsilon above 0"
        )
    _check_delta(delta)
    if delta == 0 and not pure:
        raise ConfigError("Gaussian noise has no guarantee at delta 0", hint="Give a delta above 0, such as 1e-5")
    if units < floor:
        raise RefusedError(
            f"{where}{units} units are too few for differential privacy, which needs at least {floor}",
            hint="Leave the site out, or merge it with another",
        )
    large = delta * 10 * units > 1 + 1e-9
    if large and not allow_large_delta:
        raise RefusedError(
            f"{where}delta {delta:g} is above 1/(10 n) = {1 / (10 * units):.3g} for {units} units",
            hint="Lower delta; studies of published settings may set dp.allow_large_delta, which voids the claim",
        )
    return large


def compose_parallel(parts: Sequence[tuple[float, float]], *, disjoint: bool, unit: str) -> tuple[float, float]:
    """Parallel composition: (epsilon, delta) of releases made from parts of a table.

    It is the largest of the parts when no row is in two parts and the unit is the row; otherwise their sum, because one
    person's or one site's rows can be in several parts.

    Args:
        parts: (epsilon, delta) of each part.
        disjoint: Whether no row can be in two parts. The split must depend on each row alone.
        unit: The unit of privacy: row, person or site.

    Returns:
        (epsilon, delta) of all parts together.
    """
    join = max if disjoint and unit == "row" else math.fsum
    return (
        float(join([epsilon for epsilon, _ in parts] or [0.0])),
        float(join([delta for _, delta in parts] or [0.0])),
    )


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ConfigError(f"delta {delta:g} is not a probability below 1", hint="Give a delta such as 1e-5")


def _on_grid(event: AnyEvent) -> AnyEvent:
    if isinstance(event, PrivateEvent):
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
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    accountant: Accountant,
    before: tuple[AnyEvent, ...],
    relation: Relation,
) -> float:
    candidate = Event(sigma=1.0, rate=rate, steps=steps)
    key = f"sigma {describe((*before, candidate))} for {epsilon!r} {delta!r} by {accountant} for {relation}"
    closed = _is_closed_form((*before, candidate), accountant)
    known = None if closed else recall(key)
    if known is None:
        known = _search(epsilon, delta, candidate, accountant, before, relation)
        if not closed:
            remember(key, known)
    return known


def _is_closed_form(events: tuple[AnyEvent, ...], accountant: Accountant) -> bool:
    return accountant == "pld" and all(
        event.rate == 1 if isinstance(event, Event) else event.epsilon == 0 for event in events
    )


def _search(
    epsilon: float,
    delta: float,
    candidate: Event,
    accountant: Accountant,
    before: tuple[AnyEvent, ...],
    relation: Relation,
) -> float:
    """The smallest sigma found whose epsilon is at most `epsilon`, by the secant of log epsilon over log sigma."""

    def cost(sigma: float) -> float:
        event = Event(sigma=sigma, rate=candidate.rate, steps=candidate.steps)
        return _epsilon((*before, event), delta, accountant, relation)

    if before and _epsilon(before, delta, accountant, relation) >= epsilon:
        raise RefusedError(
            "the earlier phases already spend the whole privacy budget", hint="Raise epsilon, or give them less of it"
        )
    guess = _first_guess(epsilon, delta, candidate, before, relation)
    bracket = _Bracket(aim=epsilon * (1 - SLACK / 2), sigma=_round_up(max(guess, _LEAST_NOISE)))
    while True:
        found = cost(bracket.sigma)
        enough = bracket.close(found, epsilon)
        if enough is not None:
            return enough
        if bracket.sigma > _MOST_NOISE:
            raise RefusedError(
                f"no amount of noise keeps {candidate.steps} steps within epsilon {epsilon:g} at delta {delta:g}",
                hint="Raise epsilon or delta, or take fewer steps",
            )
        bracket.move(found)
        if bracket.sigma >= bracket.high:
            return bracket.high


@dataclass
class _Bracket:
    """The search interval of a calibration, and the sigma to try next."""

    aim: float
    sigma: float
    low: float = 0.0
    """The largest sigma known to be too small."""
    high: float = math.inf
    """The smallest sigma known to be enough."""
    slope: float = -1.0
    last: tuple[float, float] = (0.0, 0.0)

    def close(self, found: float, epsilon: float) -> float | None:
        """Narrow the interval by the epsilon `found` at `sigma`; returns the final sigma once it is close enough."""
        if found <= epsilon:
            self.high = min(self.high, self.sigma)
            if found >= epsilon * (1 - SLACK) or self.sigma <= _LEAST_NOISE:
                return self.high
        else:
            self.low = max(self.low, self.sigma)
        return self.high if self.low and self.high / self.low - 1 < SLACK else None

    def move(self, found: float) -> None:
        """Choose the next sigma by the secant method, or by bisection where that would leave the interval."""
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


def _first_guess(
    epsilon: float, delta: float, candidate: Event, before: tuple[AnyEvent, ...], relation: Relation
) -> float:
    """The sigma that meets the target in the central-limit (Gaussian) approximation of all events together."""
    left = gaussian_mu(epsilon, delta) ** 2 - parts_of(before, relation).variance
    ratio = max(left, 1e-3 * epsilon**2) / (candidate.steps * candidate.rate**2)
    return 1 / math.sqrt(math.log1p(ratio)) if candidate.rate < 1 else 1 / math.sqrt(ratio)


def _round_up(sigma: float) -> float:
    """Round up to six significant digits, so that the ledger shows exactly the number used."""
    unit = 10.0 ** (math.floor(math.log10(sigma)) - 5)
    rounded = float(f"{math.ceil(sigma / unit - 1e-9) * unit:.6g}")
    return rounded if rounded >= sigma else float(f"{rounded + unit:.6g}")


@lru_cache(maxsize=256)  # the result of a calibration is usually asked for its epsilon next
def _epsilon(events: tuple[AnyEvent, ...], delta: float, accountant: Accountant, relation: Relation) -> float:
    parts = parts_of(events, relation)
    if accountant == "basic":
        share = delta / max(1, len(events))
        noisy = (event for event in events if isinstance(event, Event))
        return math.fsum([*parts.pure.elements(), *(_epsilon((event,), share, "rdp", relation) for event in noisy)])
    delta -= parts.leak
    if delta < 0:
        return math.inf
    if not parts.sampled and not parts.mu and (delta == 0 or not parts.pure):
        return math.fsum(parts.pure.elements())
    if accountant == "pld" and not parts.sampled and not parts.pure:
        return gaussian_epsilon(parts.mu, delta)
    if delta == 0:
        return math.inf
    if accountant == "pld":
        return float(privacy_loss(parts).get_epsilon_for_delta(delta))
    if accountant == "rdp":
        with quiet():
            return float(renyi(parts).get_epsilon(delta))
    raise ConfigError(f"there is no accountant {accountant!r}", hint="Valid: pld, rdp, basic")
