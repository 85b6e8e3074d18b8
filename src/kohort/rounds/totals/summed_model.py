"""The model of a training over secure sums, as hub and sites each compute it from the same totals.

Everything here is public: it follows from the approved plan, from what all sites were told, and from opened totals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.crypto.sums.checked import from_residues
from kohort.crypto.sums.scheme import FixedPoint, Integers
from kohort.errors import IntegrityError, RefusedError
from kohort.models.dense.network import FloatArray
from kohort.models.trainable import Trainable
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import DPSection, TrainingPhase
from kohort.rounds.dp_accounts import Shares
from kohort.rounds.phase_training import phase_rounds
from kohort.rounds.private_defaults import lowered_rate

__all__ = [
    "EXTRA",
    "LARGEST",
    "HubPart",
    "SummedModel",
    "deviation_of",
    "grid_of",
    "mean_of",
    "phase_at",
    "summed_rounds_of",
]

LEAST_GRID_UNITS = 8
"""Rounding must be fine compared with a share of the noise."""
PRECISION = 2.0**-24
"""Grid of a sum without noise, relative to the largest number it allows for."""
LARGEST = 1e3
"""No weight and no number of an update is larger in a sum without a budget."""
EXTRA = 1
"""Numbers besides the update: the row count."""
_ROOM = 2.0**59
"""A total lies within this bound either way, so that it is told apart modulo 2^61 - 1."""


def phase_at(approved: ApprovedPlan, round_number: int) -> int:
    """The phase that a round belongs to.

    Args:
        approved: The approved plan.
        round_number: The round of the run.

    Returns:
        The number of the phase, from 0.

    Raises:
        IntegrityError: The plan has no such round.
    """
    for number in range(len(approved.phases)):
        if round_number in phase_rounds(approved, number):
            return number
    raise IntegrityError(f"the approved plan has no round {round_number}")


def summed_rounds_of(approved: ApprovedPlan, number: int) -> range:
    """The rounds of all phases with the hub that follow each other without a phase among peers in between.

    Args:
        approved: The approved plan.
        number: One of these phases.

    Returns:
        Their rounds.
    """
    first = last = number
    while first > 0 and not approved.phases[first - 1].topology:
        first -= 1
    while last + 1 < len(approved.phases) and not approved.phases[last + 1].topology:
        last += 1
    return range(phase_rounds(approved, first).start, phase_rounds(approved, last).stop)


def grid_of(phase: TrainingPhase, sites: int, deviation: float) -> FixedPoint:
    """The fixed point everybody uses: fine enough for the noise, with headroom for all sites.

    Args:
        phase: What is trained.
        sites: How many sites the sum is over.
        deviation: Standard deviation of one site's share of the noise; 0 without a budget.

    Returns:
        The fixed point.
    """
    if deviation > 0:
        scale = 2.0 ** ceil(log2(LEAST_GRID_UNITS * 64 / deviation))
    else:
        scale = 1 / (PRECISION * (phase.dp.clip if phase.dp is not None else 1.0))
    return FixedPoint(bound=_ROOM / (scale * sites), scale=scale, sites=sites)


def deviation_of(phase: TrainingPhase, sigma: float, shares: Shares) -> float:
    """Standard deviation of one site's share.

    Args:
        phase: What is trained.
        sigma: The noise multiplier of the phase.
        shares: How the sites share the noise.

    Returns:
        The deviation; 0 without a budget.
    """
    return 0.0 if phase.dp is None else sigma * phase.dp.clip / float(np.sqrt(shares.needed))


@dataclass(frozen=True, eq=False)
class HubPart:
    """What the hub trained in a round on rows that it was sent: its weights, and how many rows they are of.

    The hub sends it and nobody can check it: it can choose the weights that sites train from. It is told to all sites
    alike, because it is among the inputs of the next sum.
    """

    weights: NDArray[np.float64]
    rows: int

    def to_bytes(self) -> bytes:
        """As it is announced."""
        return self.rows.to_bytes(8, "little") + self.weights.astype("<f8").tobytes()

    @classmethod
    def read(cls, data: bytes, network: Trainable) -> HubPart:
        """The inverse of `to_bytes`.

        Args:
            data: The bytes.
            network: The model's network.

        Returns:
            The hub's part.

        Raises:
            IntegrityError: They are of another model, or no weights that a training over sums can have.
        """
        if len(data) != 8 * (1 + network.parameter_count):
            raise IntegrityError("what the hub trained is of another model")
        weights = np.frombuffer(data[8:], dtype="<f8")
        if not np.isfinite(weights).all() or float(np.abs(weights).max(initial=0.0)) > LARGEST:
            raise IntegrityError("what the hub trained are no weights of this training")
        return cls(weights, int.from_bytes(data[:8], "little"))


@dataclass(frozen=True, eq=False)
class SummedModel:
    """Weights, momentum, and the sum of the weights that are averaged at the end of a phase."""

    weights: FloatArray
    velocity: NDArray[np.float64]
    weight_sum: NDArray[np.float64]
    counted: int = 0
    """How many weights are in `weight_sum`."""

    @classmethod
    def of(cls, weights: FloatArray) -> SummedModel:
        """A model at the beginning of a phase."""
        return cls(weights, np.zeros(len(weights)), np.zeros(len(weights)))

    @classmethod
    def start(cls, network: Trainable, seed: bytes) -> SummedModel:
        """The first weights, drawn from a public seed: a hub can choose the seed and not the weights.

        Args:
            network: The model's network.
            seed: 16 bytes.

        Returns:
            The model.

        Raises:
            IntegrityError: The seed has another length.
        """
        if len(seed) != 16:
            raise IntegrityError("the seed of the first weights has another length")
        return cls.of(network.start(np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little")))))

    def moved(
        self,
        phase: TrainingPhase,
        passed: int,
        grid: FixedPoint,
        total: Integers,
        members: int,
        sigma: float,
        beside: HubPart | None = None,
    ) -> SummedModel:
        """The next model from a total: a gradient step, or a mean of updates; the average at the end of the phase.

        Args:
            phase: How it is trained.
            passed: Rounds of the phase before this one.
            grid: The fixed point of the sum.
            total: The opened numbers, without their check value.
            members: How many sites the session has.
            sigma: The noise multiplier of the phase.
            beside: What the hub trained in the same round; averaged in by rows.

        Returns:
            The next model.

        Raises:
            IntegrityError: The total holds no row.
        """
        step, rows = _decoded(grid, total, len(self.weights))
        return self.stepped(phase, passed, step, rows=rows, members=members, sigma=sigma, beside=beside)

    def stepped(
        self,
        phase: TrainingPhase,
        passed: int,
        step: NDArray[np.float64],
        *,
        rows: int,
        members: int,
        sigma: float,
        beside: HubPart | None = None,
    ) -> SummedModel:
        """The next model from the numbers of a total.

        Args:
            phase: How it is trained.
            passed: Rounds of the phase before this one.
            step: The sum of what sites added, noise included.
            rows: The rows behind it.
            members: How many sites the session has.
            sigma: The noise multiplier of the phase.
            beside: What the hub trained in the same round; averaged in by rows.

        Returns:
            The next model.
        """
        velocity = self.velocity
        if phase.dp is not None and phase.dp.mechanism == "dp-sgd":
            momentum = phase.train.momentum if phase.train.optimizer == "momentum" else 0.0
            velocity = momentum * velocity + step / (rows * phase.dp.sample)
            change = -_rate(phase, phase.dp, rows, sigma, len(step)) * velocity
        else:
            change = step / (rows if phase.dp is None else members)
        weights = self.weights + change
        if beside is not None:
            weights = (rows * weights + beside.rows * beside.weights) / (rows + beside.rows)
        moved = replace(self, weights=weights.astype(self.weights.dtype), velocity=velocity)
        return moved._averaged(phase, passed)

    def _averaged(self, phase: TrainingPhase, passed: int) -> SummedModel:
        rounds = phase.train.rounds
        share = phase.train.average if phase.dp is None or not phase.dp.average else phase.dp.average
        model = self
        if passed >= rounds - round(share * rounds):
            model = replace(self, weight_sum=self.weight_sum + self.weights, counted=self.counted + 1)
        if passed + 1 < rounds:
            return model
        ended = model.weight_sum / model.counted if model.counted else model.weights
        return SummedModel.of(ended.astype(self.weights.dtype))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays to store in a checkpoint, where the sum of weights keeps its first name, `tail`."""
        counted = np.asarray([self.counted], dtype=np.int64)
        return {"weights": self.weights, "velocity": self.velocity, "tail": self.weight_sum, "counted": counted}

    @classmethod
    def stored(cls, arrays: Mapping[str, NDArray[Any]]) -> SummedModel:
        """The inverse of `arrays`."""
        weights, velocity, summed = (arrays[name].copy() for name in ("weights", "velocity", "tail"))
        return cls(weights, velocity.astype(np.float64), summed.astype(np.float64), int(arrays["counted"][0]))


def mean_of(grid: FixedPoint, total: Integers, network: Trainable) -> FloatArray:
    """The mean of models, each weighted by its rows, from their total.

    Args:
        grid: The fixed point of the sum.
        total: The opened numbers, without their check value.
        network: The models' network.

    Returns:
        The weights.

    Raises:
        IntegrityError: The total holds no row.
    """
    weights, rows = _decoded(grid, total, network.parameter_count)
    return np.asarray(weights / rows, dtype=network.dtype)


def _rate(phase: TrainingPhase, dp: DPSection, rows: int, sigma: float, parameters: int) -> float:
    steps = phase.train.rounds
    return lowered_rate(phase.train, dp, rows=rows, sigma=sigma, steps=steps, parameters=parameters, rate=dp.sample)


def _decoded(grid: FixedPoint, total: Integers, length: int) -> tuple[NDArray[np.float64], int]:
    numbers, rows = grid.decode(from_residues(total[:-EXTRA])), int(total[-1])
    if len(numbers) != length or rows < 0:
        raise IntegrityError("the total of a round is not one of this model")
    if rows == 0:
        raise RefusedError(
            "no site added rows to the sum",
            hint='Lower policy.min_rows; with partial, set a budget or method.kept = "weights"',
        )
    return numbers, rows
