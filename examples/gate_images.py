"""A gate for images: which handwritten digits look like at least k others, and what do sites learn from them?

Images have no quasi-identifiers to compare for equality, so a key function says when two images are "the same". Here
it is a similarity hash: each image is reduced to a few coarse brightnesses, and every bit of its key says on which side
of a fixed random plane they fall. Similar images fall on the same sides. The planes come from a fixed seed and from no
image, so any two sites give the same image the same key.

Fewer bits make images more alike: more of them may be shared, and the key promises less. The last column shows what the
key does not promise: pixel by pixel every image stays unique.

Then four sites learn digits together. Kohort's own similarity, `key = "similarity:8"`, decides which images go to the
hub. The key is a rule of the gate and no proof that images are anonymous. So what leaves is generalised: groups of at
least `release_k` images of one site are replaced by their mean, and the checker has verified that on every pixel. Run:

    python examples/gate_images.py
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
from sklearn.datasets import load_digits

from kohort.anonymity.gate.gate import apply_gate
from kohort.runs.config import load_plan
from kohort.runs.run import Outcome, run

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
    print(f"12 bits, and at least 3 different digits per group: {diverse.share:.1%} shared")


def learn(*, released: str, key: str, k: int = 20) -> Outcome:
    """Let four sites learn digits, and share the images that pass the gate."""
    digits = load_digits()
    pixels = [f"pixel{position}" for position in range(SIDE * SIDE)]
    table = pl.DataFrame(digits.data, schema=pixels).with_columns(digit=pl.Series(digits.target).cast(pl.String))
    plan = {
        "data": {
            "table": "digits",
            "target": "digit",
            "quasi": pixels,
            "bounds": dict.fromkeys(pixels, (0, BRIGHTEST)),
            "categories": {"digit": [str(number) for number in range(10)]},
        },
        "sites": {"count": 4},
        "model": {"hidden": [32]},
        "train": {"rounds": 10, "lr": 0.01, "batch": 32},
        "policy": {"raw": released == "raw", "trust_counts": released == "raw"},
        "method": {"name": "partial", "gate": {"k": k, "key": key, "released": released, "release_k": 5}},
    }
    return run(load_plan(plan), seed=0, tables={"digits": table})


def compare() -> None:
    """Print what sites learn with and without the gate, and in which form images leave."""
    for key, released in (("exact", "generalised"), ("similarity:8", "generalised"), ("similarity:8", "raw")):
        found = learn(released=released, key=key)
        shared = 0 if found.received is None else found.received.height
        print(
            f"{key}, {released}: {shared:,} of {sum(found.site_rows.values()):,} shared, accuracy {found.accuracy:.3f}"
        )


if __name__ == "__main__":
    main()
    compare()
