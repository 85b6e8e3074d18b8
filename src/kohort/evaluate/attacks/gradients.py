"""Gradient inversion: rows read from the weights that one site sends back, by a hub that chooses what it sends.

In a dense layer the gradient of a unit's weights is the sum over rows of c x, and that of its bias the sum of c, with
the same c for both. Where one row alone moves a unit, their quotient is that row (Phong et al., 2018). A lying hub
makes such units: all of them read the rows along one direction, with thresholds in rising order, and the layers after
treat them alike. Then two neighbouring units differ by the rows between their thresholds alone, and the quotient of the
differences is a row where there is one (Fowl et al., "Robbing the Fed", ICLR 2022). What is no possible row is several,
and the next request puts its thresholds between them: every round of the plan is one more request.

The layers are as small as each other, so that no step of a plain optimizer moves one of them by much and many steps add
up like one. Adam divides by the size of a gradient plus 1e-8: in its first step, a hub that makes gradients far smaller
than that is answered in proportion, too. After that step the last layer is no longer small, and the attack ends: with
Adam and several steps per round it cannot see (`can_read`), which protects nobody from an attacker who can.

Where it applies: the hub chooses weights and sees the reply of one site. A network without a hidden layer has one unit,
which one row alone moves only where a site trains on one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.gram import Block, OneHot
from kohort.models.dense.shape import DenseShape
from kohort.models.options import Training

__all__ = ["NEAR", "LyingHub", "can_read", "snapped"]

NEAR: Final = 0.005
"""How near every input of a rebuilt row must be to the true one, on the scale of the model's inputs."""
_SCALE: Final = 0.05
"""Size of the first layer's weights: small, so that small steps are not lost to rounding."""
_STEP: Final = 2e-5 * _SCALE
"""How far one row shall move a unit in a step of Adam."""
_APART: Final = 0.3
"""How far a value may be off its place on a grid, in steps, before it counts as a mixture of rows."""
_SURE: Final = 0.15
"""How far the movement of a bias may be off that of one row."""
_FINEST: Final = 1e-7
Floats = NDArray[np.float64]


class LyingHub:
    """What a lying hub sends, and what it reads from one site's replies.

    Args:
        network: The model that sites train.
        blocks: How the columns of [1, x] are encoded.
        likely: Inputs as the hub imagines them, drawn from the public domain [rows, inputs].
        training: How sites train; it is in the plan.
        rows: How many rows the site declared.
        seed: Of the direction.
    """

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
        self._network, self._blocks = network, blocks
        random = np.random.default_rng(seed)
        self._direction = random.uniform(0.5, 1.5, network.inputs) * random.choice([-1.0, 1.0], network.inputs)
        ends = likely @ self._direction
        room = 0.5 * (float(np.ptp(ends)) or 1.0)
        self._cuts = np.linspace(float(ends.min()) - room, float(ends.max()) + room, max(2, self._units))
        self._open: list[tuple[float, float]] = []
        batch = min(training.batch, rows) if training.batch else rows
        adam = training.optimizer == "adam"
        self._out = 2 * _STEP * batch * training.epsilon / training.lr if adam else _SCALE
        per_pull = training.lr * self._out / batch / (training.epsilon if adam else 1.0)
        self._moves = 0.5 * per_pull
        self._of_one_row = _tips_of_one_row(network, training, rows, per_pull)
        self._found: dict[bytes, Floats] = {}
        self.sent = self._weights()

    @property
    def claims(self) -> Floats:
        """The rows that were read so far, as the model's inputs."""
        return np.array(list(self._found.values())).reshape(len(self._found), self._network.inputs)

    def read(self, returned: NDArray[np.floating]) -> None:
        """Take the site's reply to `sent`, and prepare what is sent next.

        Args:
            returned: The weights that the site sent back.
        """
        weights, bias = (now.astype(np.float64) - was for now, was in self._first(returned))
        if not self._network.hidden:
            self._take(weights.T, bias, [])
            return
        places = list(zip(self._cuts[:-1], self._cuts[1:], strict=True))
        self._take((weights[:, :-1] - weights[:, 1:]).T, bias[:-1] - bias[1:], places)
        self._take(weights.T[-1:], bias[-1:], [])
        self._cuts = self._next_cuts()
        self.sent = self._weights()

    @property
    def _units(self) -> int:
        return self._network.hidden[0] if self._network.hidden else 0

    def _take(self, moved: Floats, tips: Floats, places: Sequence[tuple[float, float]]) -> None:
        """Keep quotients that are possible rows; where several rows are, look closer later."""
        for number, (step, tip) in enumerate(zip(moved, tips, strict=True)):
            if max(float(np.abs(step).max()), abs(float(tip))) < 0.05 * self._moves:
                continue
            row = snapped(step / tip, self._blocks) if self._is_of_one_row(float(tip)) else None
            if row is not None:
                self._found[np.rint(row * 1e4).astype(np.int64).tobytes()] = row
            elif places and places[number][1] - places[number][0] > _FINEST:
                self._open.append(places[number])

    def _is_of_one_row(self, tip: float) -> bool:
        """Whether a bias moved as far as one row moves it: two rows move it twice as far, or not at all."""
        known = self._of_one_row
        return tip != 0.0 and (known is None or bool((np.abs(np.abs(tip) / known - 1.0) < _SURE).any()))

    def _next_cuts(self) -> Floats:
        """Thresholds within the widest intervals that hold several rows."""
        self._open.sort(key=lambda place: place[0] - place[1])
        share = max(3, min(self._units, self._units // max(1, len(self._open))))
        chosen = self._open[: max(1, self._units // share)]
        self._open = self._open[len(chosen) :]
        cuts = np.concatenate([np.linspace(low, high, share) for low, high in chosen] or [self._cuts])
        spare = self._units - len(cuts)
        return np.sort(np.concatenate([cuts, np.full(max(0, spare), cuts.max() + 1e6)]))[: self._units]

    def _weights(self) -> NDArray[np.floating]:
        network = self._network
        if not network.hidden:
            return np.zeros(network.parameter_count, dtype=network.dtype)
        units = self._units
        layers = [(_SCALE * np.tile(self._direction[:, None], (1, units)), -_SCALE * self._cuts[:units])]
        before = units
        for width in network.hidden[1:]:
            layers.append((np.full((before, width), 1.0 / width), np.zeros(width)))
            before = width
        signs = np.where(np.arange(network.outputs) % 2, 1.0, -1.0)
        start = 10.0 if network.loss == "squared" else 0.0  # no target is so large: every row pulls
        layers.append((np.tile(signs[None, :] * self._out, (before, 1)), np.full(network.outputs, start)))
        typed = [(np.asarray(w, network.dtype), np.asarray(b, network.dtype)) for w, b in layers]
        return np.asarray(network.flatten(typed), dtype=network.dtype)

    def _first(self, flat: NDArray[np.floating]) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Weights and biases of the first layer, each now and before."""
        now, was = (self._network.layers(np.asarray(one, dtype=self._network.dtype))[0] for one in (flat, self.sent))
        return list(zip(now, was, strict=True))


def snapped(row: Floats, blocks: Sequence[Block]) -> Floats | None:
    """A vector of inputs as the nearest possible row; None where it is none, such as a mixture of rows.

    Args:
        row: Inputs, not quite exact.
        blocks: How the columns of [1, x] are encoded.

    Returns:
        The inputs with indicators 0 or 1 and numbers on their grids.
    """
    made = np.array(row)
    for block in blocks:
        if isinstance(block, OneHot):
            part = made[block.start - 1 : block.stop - 1]
            whole = np.rint(part)
            if np.abs(part - whole).max() > 0.1 or whole.sum() != 1.0 or whole.min() < 0.0:
                return None
            part[:] = whole
        elif block.step > 0:
            place = (made[block.column - 1] - block.low) / block.step
            near = round(float(place))
            if abs(place - near) > _APART or not 0 <= near < block.count:
                return None
            made[block.column - 1] = block.low + near * block.step
        elif not -0.01 <= made[block.column - 1] <= 1.01:
            return None
    return made


def _tips_of_one_row(network: DenseShape, training: Training, rows: int, per_pull: float) -> Floats | None:
    """How far one row moves a unit's bias in a round, for every class; None where it depends on when it is read."""
    if not network.hidden or training.optimizer == "momentum" or network.loss not in ("softmax", "logistic"):
        return None
    signs = np.where(np.arange(network.outputs) % 2, 1.0, -1.0)
    pulls = np.abs(signs.sum() / network.outputs - signs) if network.loss == "softmax" else np.array([0.5])
    batch = min(training.batch, rows) if training.batch else rows
    last = rows % batch or batch
    one = training.epochs * per_pull * np.unique(pulls)
    return np.unique(np.concatenate([one, one * batch / last]))


def can_read(training: Training, rows: int) -> bool:
    """Whether replies of a site with so many rows keep the sizes of gradients: not after several steps of Adam."""
    return training.optimizer != "adam" or (training.epochs == 1 and (not training.batch or training.batch >= rows))
