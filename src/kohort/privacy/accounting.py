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

import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from kohort.errors import ConfigError, RefusedError
from kohort.privacy.accounting_cache import recall, remember
from kohort.privacy.accounting_gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu

__all__ = [
    "MIN_UNITS",
    "Accountant",
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
Relation = Literal["add-or-remove-one", "replace-one"]

MIN_UNITS = 10
"""Fewest units (rows, persons or sites) a differentially private release may speak of: noise that hides one of fewer
leaves nothing to learn, and delta means nothing there."""
GRID = 1.02
"""Sampling rates are rounded up to a power of this, so that sites of similar size share a calibration."""
SLACK = 2e-3
"""How far below its target a calibrated epsilon may end."""
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e7
"""Between these a calibration searches; a sample so small that less noise would do gets the least."""


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
            raise ConfigError(f"a noise multiplier of {self.sigma:g} is none", hint="Give a sigma above 0")
        if not 0 < self.rate <= 1:
            raise ConfigError(f"a sampling rate of {self.rate:g} is none", hint="Give a rate above 0, at most 1")
        if self.steps < 1 or self.steps != int(self.steps):
            raise ConfigError(f"{self.steps} is no number of steps", hint="Give a whole number of at least 1")


@dataclass(frozen=True, kw_only=True)
class PureEvent:
    """One release that is epsilon-differentially private by itself, such as Laplace noise or output perturbation."""

    epsilon: float

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ConfigError(f"epsilon {self.epsilon:g} is no guarantee", hint="Give an epsilon of at least 0")


AnyEvent = Event | PureEvent


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
    parts = _parts(events, relation)
    if accountant == "rdp":
        with _quiet():
            return float(min(1.0, _rdp_accountant(parts).get_delta(epsilon)))
    if accountant != "pld":
        raise ConfigError(f"{accountant!r} gives no delta", hint="Valid: pld, rdp")
    if not parts.sampled and not parts.pure:
        return gaussian_delta(parts.mu, epsilon)
    return float(min(1.0, _composed(parts).get_delta_for_epsilon(epsilon)))


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


def describe(events: Sequence[AnyEvent]) -> str:
    """The one readable text of a list of events, as it stands in a guarantee: `600 x gaussian(sigma=8, rate=0.1)`."""
    return "; ".join(
        f"pure(epsilon={_number(event.epsilon)})"
        if isinstance(event, PureEvent)
        else f"{event.steps} x gaussian(sigma={_number(event.sigma)}, rate={_number(event.rate)})"
        for event in events
    )


_PURE = re.compile(r"\Apure\(epsilon=(\S+)\)\Z")
_GAUSSIAN = re.compile(r"\A(\d+) x gaussian\(sigma=(\S+), rate=(\S+)\)\Z")


def parse_events(text: str) -> tuple[AnyEvent, ...]:
    """The events a text of `describe` stands for; anything else is refused."""
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
            raise ConfigError("this is not the text of a list of events", hint="Such a text is made by describe()")
    return tuple(events)


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


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
    aim = epsilon * (1 - SLACK / 2)
    low, high = 0.0, math.inf  # the largest sigma known to be too small, the smallest known to be enough
    sigma, slope, last = _first_guess(epsilon, delta, candidate, before), -1.0, (0.0, 0.0)
    sigma = _round_up(max(sigma, _LEAST_NOISE))
    while True:
        found = cost(sigma)
        if found <= epsilon:
            high = min(high, sigma)
            if found >= epsilon * (1 - SLACK) or sigma <= _LEAST_NOISE:
                return high
        else:
            low = max(low, sigma)
        if low and high / low - 1 < SLACK:
            return high
        if sigma > _MOST_NOISE:
            raise RefusedError(
                f"no noise keeps {candidate.steps} steps within epsilon {epsilon:g} at delta {delta:g}",
                hint="Raise epsilon or delta, or take fewer steps",
            )
        if 0 < found < math.inf:
            if last[1] and last[0] != sigma and last[1] != found:
                slope = math.log(found / last[1]) / math.log(sigma / last[0])
            last = (sigma, found)
            step = math.log(aim / found) / min(slope, -0.2)
            sigma *= math.exp(max(-2.0, min(2.0, step)))
        else:
            sigma *= 0.5 if found == 0 else 2.0
        if not low < sigma < high:
            sigma = math.sqrt(low * high) if low and high < math.inf else high / 2 if low == 0 else low * 2
        sigma = _round_up(max(sigma, _LEAST_NOISE))
        if sigma >= high:
            return high


def _first_guess(epsilon: float, delta: float, candidate: Event, before: tuple[AnyEvent, ...]) -> float:
    """The sigma at which the central limit of all events together has the epsilon asked for."""
    left = gaussian_mu(epsilon, delta) ** 2 - _parts(before, "add-or-remove-one").variance
    ratio = max(left, 1e-3 * epsilon**2) / (candidate.steps * candidate.rate**2)
    return 1 / math.sqrt(math.log1p(ratio)) if candidate.rate < 1 else 1 / math.sqrt(ratio)


def _round_up(sigma: float) -> float:
    """Six digits, so that the number in the ledger is the number used."""
    unit = 10.0 ** (math.floor(math.log10(sigma)) - 5)
    rounded = float(f"{math.ceil(sigma / unit - 1e-9) * unit:.6g}")
    return rounded if rounded >= sigma else float(f"{rounded + unit:.6g}")


def _epsilon(events: tuple[AnyEvent, ...], delta: float, accountant: Accountant, relation: Relation) -> float:
    parts = _parts(events, relation)
    if not parts.sampled and not parts.mu and delta == 0:
        return math.fsum(parts.pure.elements())
    if accountant == "pld":
        if not parts.sampled and not parts.pure:
            return gaussian_epsilon(parts.mu, delta)
        if delta == 0:
            return math.inf
        return float(_composed(parts).get_epsilon_for_delta(delta))
    if delta == 0:
        return math.inf
    if accountant == "rdp":
        with _quiet():
            return float(_rdp_accountant(parts).get_epsilon(delta))
    if accountant == "basic":
        share = delta / max(1, len(events))
        return math.fsum(
            event.epsilon if isinstance(event, PureEvent) else _epsilon((event,), share, "rdp", relation)
            for event in events
        )
    raise ConfigError(f"there is no accountant {accountant!r}", hint="Valid: pld, rdp, basic")


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Events sorted by how they compose: all full-batch Gaussians are one, equal others are counted."""

    mu: float
    sampled: Counter[tuple[float, float]]
    pure: Counter[float]

    @property
    def spreads(self) -> list[tuple[float, int]]:
        """Standard deviation of one step's privacy loss, and how many such steps there are."""
        found = [(self.mu, 1)] if self.mu else []
        for (sigma, rate), steps in self.sampled.items():
            moment = math.expm1(min(1 / sigma**2, 60.0))
            found.append((min(rate * math.sqrt(moment), _reach(sigma)), steps))
        return found + [(epsilon, count) for epsilon, count in self.pure.items() if epsilon]

    @property
    def variance(self) -> float:
        """Of the whole privacy loss, by the central limit."""
        return math.fsum(steps * spread**2 for spread, steps in self.spreads)


def _reach(sigma: float) -> float:
    """The largest privacy loss of one step, up to chances nobody counts."""
    return 1 / (2 * sigma**2) + 8 / sigma


def _parts(events: Sequence[AnyEvent], relation: Relation) -> _Parts:
    if relation not in {"add-or-remove-one", "replace-one"}:
        raise ConfigError(
            f"there is no relation {relation!r}", hint="Valid: add-or-remove-one, replace-one (full batches)"
        )
    twice = 2.0 if relation == "replace-one" else 1.0  # replacing is removing and adding
    precision = 0.0
    sampled: Counter[tuple[float, float]] = Counter()
    pure: Counter[float] = Counter()
    for event in events:
        if isinstance(event, PureEvent):
            pure[twice * event.epsilon] += 1
        elif event.rate == 1:
            precision += event.steps * (twice / event.sigma) ** 2
        elif twice > 1:
            raise ConfigError("sampled steps are accounted for add-or-remove-one only", hint="Use that relation")
        else:
            sampled[event.sigma, event.rate] += event.steps
    return _Parts(mu=math.sqrt(precision), sampled=sampled, pure=pure)


def _interval(parts: _Parts) -> float:
    """How finely privacy losses are told apart: epsilon gains tenths of a percent, and a calibration takes a moment.

    Rounding a loss to a grid adds about a sixth of the squared interval to its variance at every step.
    """
    steps = sum(count for _, count in parts.spreads) or 1
    total = math.sqrt(parts.variance)
    fine = 0.12 * total / math.sqrt(steps)
    single = max((_reach(sigma) for sigma, _ in parts.sampled), default=0.0)
    widest = max((total**2 / 2 + 8 * total) / 5e5, single / 2e4)
    return min(max(fine, widest, 1e-9), max(1e-2, widest))


def _composed(parts: _Parts) -> Any:
    """The privacy loss distribution of all parts; every rounding is upwards."""
    import dp_accounting.pld.privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    interval = _interval(parts)
    total = pld.identity(value_discretization_interval=interval)
    if parts.mu:
        total = total.compose(pld.from_gaussian_mechanism(1 / parts.mu, value_discretization_interval=interval))
    for (sigma, rate), steps in sorted(parts.sampled.items()):
        one = pld.from_gaussian_mechanism(sigma, value_discretization_interval=interval, sampling_prob=rate)
        total = total.compose(one.self_compose(steps))
    for epsilon, count in sorted(parts.pure.items()):
        one = pld.from_privacy_parameters(DifferentialPrivacyParameters(epsilon, 0.0), interval)
        total = total.compose(one.self_compose(count))
    return total


def _rdp_accountant(parts: _Parts) -> Any:
    import dp_accounting
    from dp_accounting import rdp

    account = rdp.RdpAccountant()
    if parts.mu:
        account.compose(dp_accounting.GaussianDpEvent(1 / parts.mu))
    for (sigma, rate), steps in sorted(parts.sampled.items()):
        account.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)), steps)
    for epsilon, count in sorted(parts.pure.items()):
        # An epsilon-DP release has a Rényi divergence of at most order times epsilon^2 / 2 (Bun and Steinke, TCC 2016).
        account.compose(dp_accounting.ZCDpEvent(epsilon**2 / 2), count)
    return account


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's warnings about orders it leaves out: leaving one out only makes the bound larger."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
