"""Gradient inversion: rows read from the weights that one site sends back, by a hub that chooses what it sends.

In a dense layer the gradient of a unit's weights is the sum over rows of c x, and that of its bias the sum of c, with
the same c for both. Where one row alone moves a unit, their quotient is that row (Phong et al., 2018). A lying hub
makes such units: all of them read the rows along one direction, with thresholds in rising order, and the layers after
treat them alike. Then two neighbouring units differ by the rows between their thresholds alone, and the quotient of the
differences is a row where there is one (Fowl et al., "Robbing the Fed", ICLR 2022). What is no possible row is several,
and the next request puts its thresholds between them: every round of the plan is one more request. Where a round is one
step, requests take turns over the classes: the last layer is set so sure of the other classes that rows of one class
alone pull, all in the same direction, and how far a bias moved tells one row from two.

The layers are as small as each other, so that no step of a plain optimizer moves one of them by much and many steps add
up like one. Adam divides by the size of a gradient plus 1e-8: in its first step, a hub that makes gradients far smaller
than that is answered in proportion, too. After that step the last layer is no longer small: through several steps of
Adam the hub reads in another way (`outermost`).

Where it applies: the hub chooses weights and sees the reply of one site. A network without a hidden layer has one unit,
which one row alone moves only where a site trains on one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.gram import Block, OneHot
from kohort.models.dense.shape import DenseShape
from kohort.models.options import Training

__all__ = ["NEAR", "Claims", "LyingHub", "can_read", "snapped"]

NEAR: Final = 0.005
"""How near every input of a rebuilt row must be to the true one, on the scale of the model's inputs."""
_SCALE: Final = 0.05
"""Size of the first layer's weights, and of the last one's where a round has several steps."""
_SCALE_OF_ONE_STEP: Final = 1e-3
"""The same where a round is one step: nothing comes after it that could move a threshold."""
_SCALE_OF_ADAM: Final = 1e-4
_STEP: Final = 1e-2
"""How far one row shall move a unit in a step of Adam, as a share of the first layer's size."""
_APART: Final = 0.3
"""How far a value may be off its place on a grid, in steps, before it counts as a mixture of rows."""
_SURE: Final = 0.15
"""How far the movement of a bias may be off that of one row."""
_AWAY: Final = 12.0
"""How sure the last layer is of other classes, in log odds: rows of those hardly pull."""
_FINEST: Final = 1e-7
Floats = NDArray[np.float64]


@dataclass
class _Search:
    """Where a hub looks for the rows of one class: thresholds now, and intervals that hold several rows."""

    cuts: Floats
    several: list[tuple[float, float]] = field(default_factory=list)
    asked: list[tuple[float, float]] | None = None

    def note(self, low: float, high: float) -> None:
        """Several rows are between two thresholds: worth a look, unless it is a gap between those asked about."""
        inside = self.asked is None or any(begin <= low and high <= end for begin, end in self.asked)
        if inside and high - low > _FINEST:
            self.several.append((low, high))

    def look_closer(self) -> None:
        """Thresholds within the widest intervals that hold several rows."""
        units = len(self.cuts)
        self.several.sort(key=lambda place: place[0] - place[1])
        share = max(3, units // max(1, len(self.several)))
        chosen = self.several[: max(1, units // share)]
        self.several, self.asked = self.several[len(chosen) :], chosen
        cuts = np.concatenate([np.linspace(low, high, min(share, units)) for low, high in chosen] or [self.cuts])
        spare = np.full(max(0, units - len(cuts)), cuts.max() + 1e6)
        self.cuts = np.sort(np.concatenate([cuts, spare]))[:units]


class Claims:
    """Rows that a lying hub read so far, each once."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self._found: dict[bytes, Floats] = {}

    def add(self, row: Floats) -> None:
        """Note a row; one that is known already, to four places, counts once."""
        self._found[np.rint(row * 1e4).astype(np.int64).tobytes()] = row

    @property
    def rows(self) -> Floats:
        """[rows, inputs], as the model's inputs."""
        return np.array(list(self._found.values())).reshape(len(self._found), self._inputs)


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
        units = network.hidden[0] if network.hidden else 0
        first = np.linspace(float(ends.min()) - room, float(ends.max()) + room, max(2, units))
        batch = min(training.batch, rows) if training.batch else rows
        adam, one_step = training.optimizer == "adam", training.epochs == 1 and batch == rows
        # Rows that all pull in one direction would move the thresholds while a round of several steps goes on.
        self._in_turn = one_step and network.classes > 1
        self._searches = [_Search(first) for _ in range(network.classes if self._in_turn else 1)]
        self._turn = 0
        self._scale = _SCALE_OF_ADAM if adam else _SCALE_OF_ONE_STEP if one_step else _SCALE
        self._out = self._scale
        if adam:
            self._out = 2 * _STEP * self._scale * batch * training.epsilon / training.lr
        elif one_step:  # as large as it can be while every row still pulls
            self._out = 0.1 / (max(1, units) * self._scale * 4 * room)
        per_pull = training.lr * self._out / batch / (training.epsilon if adam else 1.0)
        self._least = 0.05 * per_pull
        self._of_one_row = None if not network.hidden else self._tips_of_one_row(training, rows, per_pull)
        self.claims = Claims(network.inputs)
        self.sent = self._weights()

    def read(self, returned: NDArray[np.floating]) -> None:
        """Take the site's reply to `sent`, and prepare what is sent next.

        Args:
            returned: The weights that the site sent back.
        """
        weights, bias = (now.astype(np.float64) - was for now, was in self._first(returned))
        search = self._searches[self._turn]
        if not self._network.hidden:
            self._take(weights.T, bias, [], search)
            return
        places = list(zip(search.cuts[:-1], search.cuts[1:], strict=True))
        self._take((weights[:, :-1] - weights[:, 1:]).T, bias[:-1] - bias[1:], places, search)
        self._take(weights.T[-1:], bias[-1:], [], search)
        search.look_closer()
        self._turn = (self._turn + 1) % len(self._searches)
        self.sent = self._weights()

    def _take(self, moved: Floats, tips: Floats, places: Sequence[tuple[float, float]], search: _Search) -> None:
        """Keep quotients that are possible rows; where several rows are, look closer later."""
        for number, (step, tip) in enumerate(zip(moved, tips, strict=True)):
            if max(float(np.abs(step).max()), abs(float(tip))) < self._least:
                continue
            row = snapped(step / tip, self._blocks) if self._is_of_one_row(float(tip)) else None
            if row is not None:
                self.claims.add(row)
            elif places:
                search.note(*places[number])

    def _is_of_one_row(self, tip: float) -> bool:
        """Whether a bias moved as far as one row moves it: two rows move it twice as far."""
        known = self._of_one_row
        return tip != 0.0 and (known is None or bool((np.abs(np.abs(tip) / known - 1.0) < _SURE).any()))

    def _weights(self) -> NDArray[np.floating]:
        network, cuts = self._network, self._searches[self._turn].cuts
        if not network.hidden:
            return np.zeros(network.parameter_count, dtype=network.dtype)
        units = network.hidden[0]
        layers = [(self._scale * np.tile(self._direction[:, None], (1, units)), -self._scale * cuts[:units])]
        before = units
        for width in network.hidden[1:]:
            layers.append((np.full((before, width), 1.0 / width), np.zeros(width)))
            before = width
        layers.append(self._last(before))
        typed = [(np.asarray(w, network.dtype), np.asarray(b, network.dtype)) for w, b in layers]
        return np.asarray(network.flatten(typed), dtype=network.dtype)

    def _last(self, before: int) -> tuple[Floats, Floats]:
        """The last layer: rows of one class pull, in its turn, or those of two classes in two directions."""
        outputs = self._network.outputs
        if not self._in_turn:
            away = _AWAY if self._network.loss == "squared" else 0.0  # no target is so large: every row pulls
            return np.tile(self._out * _signs(outputs), (before, 1)), np.full(outputs, away)
        out, start = np.zeros((before, outputs)), np.zeros(outputs)
        place = self._turn if outputs > 1 else 0
        out[:, place] = self._out
        start[place] = _AWAY if outputs == 1 and self._turn == 0 else -_AWAY
        return out, start

    def _tips_of_one_row(self, training: Training, rows: int, per_pull: float) -> Floats | None:
        """How far one row moves a unit's bias in a round; None where that depends on when it is read, or on the row."""
        network = self._network
        if training.optimizer == "momentum" or network.loss not in ("softmax", "logistic"):
            return None
        signs = _signs(network.outputs)
        pulls = np.abs(signs.mean() - signs) if network.loss == "softmax" else np.array([0.5])
        batch = min(training.batch, rows) if training.batch else rows
        last = rows % batch or batch
        one = training.epochs * per_pull * (np.ones(1) if self._in_turn else np.unique(pulls))
        return np.unique(np.concatenate([one, one * batch / last]))

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


def _signs(outputs: int) -> Floats:
    return np.where(np.arange(outputs) % 2, 1.0, -1.0)


def can_read(training: Training, rows: int) -> bool:
    """Whether a site's reply keeps the ratios of its gradients, which this attack reads; several steps of Adam do not.

    Args:
        training: How the site trains: optimizer, epochs and batch size.
        rows: How many rows the site has.

    Returns:
        True without Adam, and with Adam where the site takes one step: one epoch of one batch.
    """
    return training.optimizer != "adam" or (training.epochs == 1 and (not training.batch or training.batch >= rows))
