"""Replace the noise of a run by known numbers, to measure from what leaves a site how much of it was added.

All noise comes from ChaCha20 streams (`kohort.models.dp_sgd.draws`). Here a stream yields one fixed word instead, so
that every normal is known; rows are sampled as ever. Two runs with different words differ by the noise alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from kohort.models.dp_sgd.draws import KeyStream
from kohort.models.dp_sgd.fit import gaussian

__all__ = ["LARGE", "SMALL", "Draw", "drawn_noise", "known_normals"]

LARGE = 0x0000FFFFFFFFFFFF
"""A word whose normals are about 4.7 and 0.02."""
SMALL = 0x8000000000000000
"""A word whose normals are about 1.1 and 0.5."""
_ROWS = b"rows"


@dataclass(frozen=True)
class Draw:
    """Words that one stream was asked for."""

    key: bytes
    label: bytes
    words: int


@contextmanager
def drawn_noise(word: int | Callable[[int], int] | None = None) -> Iterator[list[Draw]]:
    """Note every draw of noise, and replace it where a word is given.

    Args:
        word: What every stream of noise yields, again and again, or a function of the number of the draw that says so;
            None leaves the noise as it is.

    Yields:
        The draws, which grow while a run is under way.
    """
    draws: list[Draw] = []
    names: dict[int, tuple[bytes, bytes]] = {}
    begin, fill = KeyStream.__init__, KeyStream.fill

    def begun(stream: Any, key: bytes, label: bytes) -> None:
        begin(stream, key, label)
        names[id(stream)] = (key, label)

    def filled(stream: Any, words: NDArray[np.uint64]) -> None:
        key, label = names[id(stream)]
        if label == _ROWS:
            fill(stream, words)
            return
        draws.append(Draw(key, label, words.size))
        if word is None:
            fill(stream, words)
        else:
            words[...] = np.uint64(word if isinstance(word, int) else word(len(draws) - 1))

    with mock.patch.object(KeyStream, "__init__", begun), mock.patch.object(KeyStream, "fill", filled):
        yield draws


def known_normals(word: int, count: int) -> NDArray[np.float64]:
    """The normals that a stream of one word gives.

    Args:
        word: The word.
        count: How many normals.

    Returns:
        The normals, as `gaussian` makes them of such a stream.
    """
    with drawn_noise(word):
        return gaussian(bytes(32), count)
