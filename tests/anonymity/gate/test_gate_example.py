"""The example on images runs, and its key behaves as a similarity."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import polars as pl

EXAMPLE = Path(__file__).parents[3] / "examples" / "gate_images.py"


def test_the_image_example_runs(capsys) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "1,797 images, k = 10" in printed
    shares = [float(line.split()[3].rstrip("%")) for line in printed.splitlines()[2:7]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 90 > 50 > shares[-1]
    averaged, generalised, raw = printed.splitlines()[-3:]
    assert averaged.startswith("exact, generalised: 0 of 1,258 shared")  # no image equals others
    assert generalised.partition(" shared")[0].replace("generalised", "raw") == raw.partition(" shared")[0]
    assert all(float(line.rpartition(" ")[2]) > 0.8 for line in (averaged, generalised, raw))


def test_similar_images_share_a_key() -> None:
    key = runpy.run_path(str(EXAMPLE))["similarity_key"](8)
    random = np.random.default_rng(0)
    image = random.integers(0, 17, 64).astype(float)
    images = np.stack([image, image + 1e-9, image[::-1]])
    first, near, far = key(pl.DataFrame(images)).tolist()
    assert first == near != far
