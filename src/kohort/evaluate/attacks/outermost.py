"""Gradient inversion through many steps of Adam: a lying hub that asks for the outermost row along many directions.

Adam divides a gradient by its size plus 1e-8, so sizes are kept only while gradients are far smaller than that. A unit
that a single row of the site makes active has one gradient in a pass: the hub makes the last layer so small that this
gradient is tiny, and later steps only repeat its movement, more and more weakly. Each unit reads rows along a direction
of its own, beyond a threshold. Where no row is there, the threshold is lowered; where several are, it is raised; where
one is, the quotient of the movements of weights and bias is that row (see `gradients`). So a request reads a row per
unit at best, those at the edge of the site's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.gradients import Claims, snapped
from kohort.evaluate.attacks.gram import Block
from kohort.models.dense.shape import DenseShape
from kohort.models.options import Training

__all__ = ["OutermostHub"]

_SCALE: Final = 1e-4
_STEP: Final = 1e-2
"""How far one row shall move a unit, as a share of the first layer's size."""
_FINEST: Final = 1e-5
_ECHO: Final = (0.02, 3.0)
"""How far one row may move a bias, as a multiple of what it moves at once: less after it, and more by its echo."""
Floats = NDArray[np.float64]


@dataclass
class _Unit:
    """A direction, and between which thresholds the outermost row along it must be."""

    direction: Floats
    low: float
    high: float

    @property
    def cut(self) -> float:
        """The threshold to try."""
        return (self.low + self.high) / 2


class OutermostHub:
    """What a lying hub sends, and what it reads from one site's replies; see `gradients.LyingHub` for the arguments."""

    def __init__(
        self,
        network: DenseShape,
        blocks: Sequence[Block],
        likely: Floats,
        *,
        training: Training,
        rows: int,
        seed: int = 0,
    ) -> None:
        self._network, self._blocks, self._likely = network, blocks, likely
        self._random = np.random.default_rng(seed)
        self._units = [self._new_unit() for _ in range(network.hidden[0])]
        batch = min(training.batch, rows) if training.batch else rows
        self._out = 2 * _STEP * _SCALE * batch * training.epsilon / training.lr
        self._moves = training.lr * self._out / batch / training.epsilon
        self.claims = Claims(network.inputs)
        self.sent = self._weights()

    def read(self, returned: NDArray[np.floating]) -> None:
        """Take the site's reply to `sent`, and prepare what is sent next.

        Args:
            returned: The weights that the site sent back.
        """
        now, was = (
            self._network.layers(np.asarray(one, dtype=self._network.dtype))[0] for one in (returned, self.sent)
        )
        weights, bias = now[0].astype(np.float64) - was[0], now[1].astype(np.float64) - was[1]
        for number, unit in enumerate(self._units):
            self._units[number] = self._next(unit, weights[:, number], float(bias[number]))
        self.sent = self._weights()

    def _next(self, unit: _Unit, step: Floats, tip: float) -> _Unit:
        """What a unit is to try after its movements were seen."""
        if max(float(np.abs(step).max()), abs(tip)) < _ECHO[0] * self._moves:
            unit.high = unit.cut  # nobody is beyond it
        else:
            one = _ECHO[0] < abs(tip) / self._moves < _ECHO[1]
            row = snapped(step / tip, self._blocks) if one else None
            if row is not None and row @ unit.direction > unit.cut - 1e-6:
                self.claims.add(row)
                return self._new_unit()
            unit.low = unit.cut
        return unit if unit.high - unit.low > _FINEST else self._new_unit()

    def _new_unit(self) -> _Unit:
        direction = self._random.normal(size=self._network.inputs)
        ends = self._likely @ direction
        return _Unit(direction, float(np.median(ends)), float(ends.max()) + 0.5 * float(np.ptp(ends)))

    def _weights(self) -> NDArray[np.floating]:
        network = self._network
        directions = np.stack([unit.direction for unit in self._units], axis=1)
        layers = [(_SCALE * directions, -_SCALE * np.array([unit.cut for unit in self._units]))]
        before = network.hidden[0]
        for width in network.hidden[1:]:
            layers.append((np.full((before, width), 1.0 / width), np.zeros(width)))
            before = width
        signs = np.where(np.arange(network.outputs) % 2, 1.0, -1.0)
        away = 12.0 if network.loss == "squared" else 0.0
        layers.append((np.tile(self._out * signs, (before, 1)), np.full(network.outputs, away)))
        typed = [(np.asarray(w, network.dtype), np.asarray(b, network.dtype)) for w, b in layers]
        return np.asarray(network.flatten(typed), dtype=network.dtype)
