"""Composition of all events of a site with dp-accounting, which is imported when it is first needed."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kohort.errors import ConfigError
from kohort.privacy.dp.events import AnyEvent, PrivateEvent, Relation

__all__ = ["ComposedLosses", "Relation", "parts_of", "privacy_loss", "quiet", "renyi"]


@dataclass(frozen=True, kw_only=True)
class ComposedLosses:
    """Events grouped by how they compose.

    `mu` is the signal-to-noise ratio of all full-batch Gaussian releases together; `sampled` counts equal steps by
    (sigma, rate); `pure` counts equal pure releases by epsilon. `leak` is the sum of the deltas of releases that are
    private by themselves: an (epsilon, delta)-private release is, but for an event of probability delta, an
    epsilon-private one (Kairouz, Oh, Viswanath, ICML 2015), so the rest is judged at what remains of a delta.
    """

    mu: float
    sampled: Counter[tuple[float, float]]
    pure: Counter[float]
    leak: float = 0.0

    @property
    def spreads(self) -> list[tuple[float, int]]:
        """For each group of equal steps: the standard deviation of one step's privacy loss, and how many steps."""
        found = [(self.mu, 1)] if self.mu else []
        for (sigma, rate), steps in self.sampled.items():
            moment = math.expm1(min(1 / sigma**2, 60.0))
            found.append((min(rate * math.sqrt(moment), _reach(sigma)), steps))
        return found + [(epsilon, count) for epsilon, count in self.pure.items() if epsilon]

    @property
    def variance(self) -> float:
        """Variance of the total privacy loss (central-limit approximation)."""
        return math.fsum(steps * spread**2 for spread, steps in self.spreads)


def _reach(sigma: float) -> float:
    """The largest privacy loss of one step, up to negligible probabilities."""
    return 1 / (2 * sigma**2) + 8 / sigma


def parts_of(events: Sequence[AnyEvent], relation: Relation) -> ComposedLosses:
    """Group events by how they compose.

    Args:
        events: What was released.
        relation: Which tables count as neighbours.

    Returns:
        The grouped events.

    Raises:
        ConfigError: The relation is unknown, or nothing is proved about one of the events under it.
    """
    if relation not in {"add-or-remove-one", "replace-one"}:
        raise ConfigError(
            f"unknown neighbouring relation {relation!r}", hint="Valid: add-or-remove-one, replace-one (full batches)"
        )
    twice = 2.0 if relation == "replace-one" else 1.0  # replacing is removing and adding
    precision = leak = 0.0
    sampled: Counter[tuple[float, float]] = Counter()
    pure: Counter[float] = Counter()
    for event in events:
        if isinstance(event, PrivateEvent):
            epsilon, delta = _under(event, relation)
            leak += delta
            if epsilon:
                pure[epsilon] += 1
        elif event.rate == 1:
            precision += event.steps * (twice / event.sigma) ** 2
        elif twice > 1:
            raise ConfigError(
                "sampled steps can be accounted for under add-or-remove-one only", hint="Use relation add-or-remove-one"
            )
        else:
            sampled[event.sigma, event.rate] += event.steps
    return ComposedLosses(mu=math.sqrt(precision), sampled=sampled, pure=pure, leak=leak)


def _under(event: PrivateEvent, relation: Relation) -> tuple[float, float]:
    """Epsilon and delta of a release under a relation; replacing a unit is group privacy of two."""
    if event.relation == relation:
        return event.epsilon, event.delta
    if relation == "replace-one":
        return 2 * event.epsilon, (1 + math.exp(min(event.epsilon, 700.0))) * event.delta
    raise ConfigError(
        "output and objective perturbation are private where a unit is replaced, and nothing is known of them where "
        "one is added or removed",
        hint="Use relation replace-one for all releases",
    )


def _interval(parts: ComposedLosses) -> float:
    """The grid on which privacy losses are discretised: epsilon grows by tenths of a percent, and computing stays fast.

    Rounding a loss to a grid adds about a sixth of the squared interval to its variance at every step.
    """
    steps = sum(count for _, count in parts.spreads) or 1
    total = math.sqrt(parts.variance)
    fine = 0.12 * total / math.sqrt(steps)
    single = max((_reach(sigma) for sigma, _ in parts.sampled), default=0.0)
    widest = max((total**2 / 2 + 8 * total) / 5e5, single / 2e4)
    return min(max(fine, widest, 1e-9), max(1e-2, widest))


def privacy_loss(parts: ComposedLosses) -> Any:
    """The privacy loss distribution of all events; every rounding is pessimistic.

    Args:
        parts: The grouped events.

    Returns:
        The `PrivacyLossDistribution` of dp-accounting.
    """
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


def renyi(parts: ComposedLosses, orders: Sequence[float] | None = None) -> Any:
    """The Rényi accountant after all events.

    Args:
        parts: The grouped events.
        orders: The orders to account at; by default those of dp-accounting.

    Returns:
        The `RdpAccountant` of dp-accounting.
    """
    import dp_accounting
    from dp_accounting import rdp

    account = rdp.RdpAccountant(orders)
    if parts.mu:
        account.compose(dp_accounting.GaussianDpEvent(1 / parts.mu))
    for (sigma, rate), steps in sorted(parts.sampled.items()):
        account.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)), steps)
    for epsilon, count in sorted(parts.pure.items()):
        # An epsilon-DP release has a Rényi divergence of at most order times epsilon^2 / 2 (Bun and Steinke, TCC 2016).
        account.compose(dp_accounting.ZCDpEvent(epsilon**2 / 2), count)
    return account


@contextmanager
def quiet() -> Iterator[None]:
    """Silence dp-accounting's warnings about Rényi orders it skips: skipping one only makes the bound larger."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
