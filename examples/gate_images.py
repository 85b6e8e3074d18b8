"""A gate for images: which handwritten digits look like at least k others?

Images have no quasi-identifiers to compare for equality, so a key function says when two images are "the same". Here
it is a similarity hash: each image is reduced to a few coarse brightnesses, and every bit of its key says on which side
of a fixed random plane they fall. Similar images fall on the same sides. The planes come from a fixed seed and from no
image, so any two sites give the same image the same key.

Fewer bits make images more alike: more of them may be shared, and the key promises less. The last column shows what the
key does not promise: pixel by pixel every image stays unique. Run:

    python examples/gate_images.py
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
from sklearn.datasets import load_digits

from kohort.anonymity.gate.gate import apply_gate

SIDE, BLOCK = 8, 2
BRIGHTEST = 16.0


def similarity_key(bits: int, *, seed: int = 0) -> Callable[[pl.DataFrame], np.ndarray]:
    """A key function: pixels in, one row of `bits` true-or-false values an image out."""
    blocks = SIDE // BLOCK
    planes = np.random.default_rng(seed).normal(size=(blocks * blocks, bits))

    def key(pixels: pl.DataFrame) -> np.ndarray:
        images = pixels.to_numpy().reshape(-1, blocks, BLOCK, blocks, BLOCK)
        coarse = images.mean(axis=(2, 4)).reshape(len(images), -1) / BRIGHTEST
        centred: np.ndarray = coarse - coarse.mean(axis=1, keepdims=True)
        return centred @ planes > 0

    return key


def main(k: int = 10) -> None:
    """Print what passes for keys of several lengths."""
    digits = load_digits()
    pixels = [f"pixel{position}" for position in range(SIDE * SIDE)]
    table = pl.DataFrame(digits.data, schema=pixels).with_columns(pl.Series("digit", digits.target))
    print(f"{table.height:,} images, k = {k}")
    print("bits  groups  largest  shared  unique pixel by pixel")
    for bits in (4, 8, 12, 16, 24):
        gated = apply_gate(table, quasi=pixels, rule="k-anonymity", k=k, key=similarity_key(bits))
        unique = gated.unique_on(table, pixels)
        print(f"{bits:4}  {gated.groups:6,}  {gated.largest_group:7,}  {gated.share:6.1%}  {unique:,}")
    diverse = apply_gate(table, quasi=pixels, sensitive="digit", rule="l-diversity", l=3, k=k, key=similarity_key(12))
    print(f"12 bits, and at least 3 different digits a group: {diverse.share:.1%} shared")


if __name__ == "__main__":
    main()
