"""What anyone who knows the plan knows of encoded rows: how columns are encoded, and which values are possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.gram import Block, Grid, OneHot
from kohort.methods.oneshot.design import InputCells
from kohort.tables.blocks import CategoryBlock, ItemsBlock, NumberBlock
from kohort.tables.encoder import Encoder

__all__ = ["blocks_of", "imagined_rows"]

_MOST_STEPS: Final = 1_000
_IMAGINED: Final = 4_000


def blocks_of(encoder: Encoder, cells: InputCells | None = None) -> list[Block]:
    """What an attacker knows of [1, x]: where indicators lie and which values numbers can take, on [0, 1].

    Args:
        encoder: The public encoder.
        cells: Which features were summed; None for all as they are.

    Returns:
        One block per column of a table; a number with a fraction may have any value.
    """
    target = (InputCells.whole(encoder.width) if cells is None else cells).target + 1
    found: list[Block] = []
    column = 0
    for block in encoder.blocks:
        places = target[column : column + len(block.features)]
        column += len(block.features)
        if (places > 0).any():
            found += _block(block, places)
    return found


def _block(block: Any, places: NDArray[np.int64]) -> Iterator[Block]:
    if isinstance(block, CategoryBlock) and len(places) > 1:
        yield OneHot(int(places[places > 0].min()), int(places.max()) + 1)
    elif isinstance(block, ItemsBlock):
        yield from (Grid(int(place), 0.0, 1.0, 2) for place in np.unique(places[places > 0]))
    else:
        steps = _steps(block)
        yield Grid(int(places[0]), 0.0, 1 / steps if steps else 0.0, steps + 1)
        yield from (Grid(int(place), 0.0, 1.0, 2) for place in places[1:] if place > 0)  # whether a value is missing


def _steps(block: CategoryBlock | NumberBlock) -> int:
    """Steps between the values that a column of one number can take; 0 for any number."""
    if isinstance(block, CategoryBlock):
        return max(1, block.size - 1)
    if block.spec.bins is not None:
        return len(block.spec.bins)
    low, high = block.domain.bounds or (0.0, 0.0)
    whole = float(low).is_integer() and float(high).is_integer() and high > low
    return int(high - low) if whole and high - low <= _MOST_STEPS else 0


def imagined_rows(encoder: Encoder, *, seed: int = 0) -> NDArray[np.float64]:
    """Rows as somebody imagines them who knows the public domain alone: every value is as likely as any other.

    Args:
        encoder: The encoder that all sites share.
        seed: Of the draws.

    Returns:
        Encoded inputs, [4000, inputs].
    """
    random = np.random.default_rng(seed)
    parts = []
    for block in encoder.blocks:
        width = len(block.features)
        if isinstance(block, CategoryBlock):
            parts.append(block.rows_of_codes[random.integers(0, block.size, _IMAGINED)].reshape(_IMAGINED, width))
        else:
            parts.append(random.random((_IMAGINED, width)))
    return np.hstack(parts)
