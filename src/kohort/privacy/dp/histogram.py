"""Noisy histograms over values that nobody listed before: which values of a column many units share.

Every unit (a row, or a person with one row) adds 1 to at most `keys` counts. Gaussian noise of standard deviation s is
added to each count above zero, and a count is released with its value if the noisy count exceeds a threshold. A value
that nobody has is never released, so what is released depends on which values occur. The threshold pays for that.

Guarantee: (epsilon, delta + delta')-differential privacy for one unit, where (epsilon, delta) is that of the Gaussian
mechanism with noise multiplier s / sqrt(keys), and t = 1 + s * Phi^-1((1 - delta')^(1 / keys)).

Proof. Let D' be D with one more unit. The unit adds 1 to at most `keys` counts, so over the values that occur in D the
two vectors of counts differ by at most sqrt(keys) in Euclidean norm: there both runs are the same Gaussian mechanism,
followed by the same post-processing. Values that occur in D' and not in D have count 1 in D'. None of them is released
if all their noise, at most `keys` independent draws, stays at or below t - 1, which has probability at least
Phi((t - 1) / s)^keys = 1 - delta'. Outside an event of probability at most delta' the output on D' is therefore that of
the Gaussian mechanism, and on D it always is. Hence P[D' in A] <= e^epsilon P[D in A] + delta + delta', and the same
with D and D' exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import expm1, log, log1p, sqrt

from kohort.errors import ConfigError
from kohort.privacy.dp.events import AnyEvent, Event, PrivateEvent
from kohort.privacy.dp.gaussian import gaussian_epsilon, gaussian_mu

__all__ = ["LARGEST_SHARE", "DomainBudget", "release_threshold"]

LARGEST_SHARE = 0.5
"""Largest share of a budget that learning domains may take."""


def release_threshold(deviation: float, delta: float, keys: int) -> float:
    """The noisy count above which a value is released.

    Args:
        deviation: Standard deviation of the noise of every count.
        delta: Probability, at most, that any value which one unit alone has is released.
        keys: To how many counts one unit adds 1, at most.

    Returns:
        The threshold, rounded up.

    Raises:
        ConfigError: A parameter is out of range.
    """
    from scipy.special import ndtri_exp

    if not (deviation > 0 and 0 < delta < 1 and keys >= 1):
        raise ConfigError(
            f"no threshold for noise {deviation:g}, delta {delta:g} and {keys} counts", hint="Give a delta above 0"
        )
    # The upper tail q = 1 - (1 - delta)^(1 / keys) is tiny: its logarithm keeps all digits, 1 - q would not.
    tail = -expm1(log1p(-delta) / keys)
    quantile = -float(ndtri_exp(log(tail)))
    return (1 + deviation * quantile) * (1 + 1e-12)


@dataclass(frozen=True, kw_only=True)
class DomainBudget:
    """What learning the domains of undeclared columns takes from a plan's budget of `epsilon` and `delta`.

    Of delta, `share` is set aside: one half pays for the threshold, the other half for the noise of the counts alone.
    The noise is chosen so that the counts take `share` of the squared signal-to-noise ratio that a single Gaussian
    release with the rest of delta would have: later releases then need noise larger by 1 / sqrt(1 - share), not by
    1 / (1 - share).
    """

    epsilon: float
    delta: float
    share: float

    @cached_property
    def event(self) -> Event:
        """All counts of one unit together, as one Gaussian release."""
        return Event(sigma=1 / (sqrt(self.share) * gaussian_mu(self.epsilon, self.later_delta)))

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """The counts and their threshold."""
        return self.event, PrivateEvent(epsilon=0.0, delta=self.threshold_delta)

    @property
    def later_delta(self) -> float:
        """What remains of delta for the releases that follow."""
        return (1 - self.share) * self.delta

    @property
    def threshold_delta(self) -> float:
        """The part of delta that pays for the threshold."""
        return self.share * self.delta / 2

    @property
    def noise_delta(self) -> float:
        """The part of delta at which the noise of the counts is judged by itself."""
        return self.share * self.delta / 2

    @cached_property
    def cost(self) -> tuple[float, float]:
        """Epsilon and delta of the counts, if nothing else is ever released."""
        return gaussian_epsilon(1 / self.event.sigma, self.noise_delta), self.share * self.delta

    def deviation(self, keys: int) -> float:
        """Standard deviation of the noise on every count.

        Args:
            keys: To how many counts one unit adds 1, at most.

        Returns:
            The standard deviation.
        """
        return self.event.sigma * sqrt(keys)

    def threshold(self, keys: int) -> float:
        """The noisy count above which a value becomes known.

        Args:
            keys: To how many counts one unit adds 1, at most.

        Returns:
            The threshold.
        """
        return release_threshold(self.deviation(keys), self.threshold_delta, keys)
