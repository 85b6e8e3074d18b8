"""Choose the constants of private training (`kohort.rounds.private_defaults`) on rows that no test part holds.

    python tools/private_defaults.py            about a CPU-minute; prints a table, and the pair that the rule takes

Rows: those that are test rows of no seed from 0 to 4 (`data.test = 0.2`), 20,000 of each table at most, shuffled. One
half is trained on, the other is validated on. So nothing here was ever a test row of the figures
that docs/methods/hybrid.md reports with these seeds.

The rule: every pair of a limit and a divisor is trained at epsilon 0.2, 1 and 4 on 2,000 training rows and on all of
them, with two draws of noise. The pair with the smallest mean shortfall behind the best pair of its cell is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import sqrt

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.privacy.dp.accounting import calibrate
from kohort.rng import Streams
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.persons import hold_out

LIMITS, DIVISORS = (4.0, 8.0), (10.0, 20.0, 40.0, 80.0, 160.0)
EPSILONS, DELTA, STEPS, NOISES = (0.2, 1.0, 4.0), 1e-5, 60, 2
SEEDS, TEST, MOST = range(5), 0.2, 20_000
TABLES = {
    "dutch": ("occupation", 99),
    "adult": ("income", 20),
    "acs_income": ("PINCP_GT_50K", 30),
    "covertype": ("cover_type", 0),
}
"""The target, and up to how many values a column is one-hot; others are scaled to [0, 1]."""
DROPPED = {"adult": ("fnlwgt", "education"), "acs_income": ("ST",)}
Floats = NDArray[np.float64]


def untested(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of a table that are test rows of no seed."""
    held = np.zeros(frame.height, dtype=bool)
    for seed in SEEDS:
        held |= hold_out(frame.height, TEST, Streams.seeded(seed).generator("test"))
    return frame.filter(pl.Series(~held))


def encoded(name: str) -> tuple[Floats, NDArray[np.int64]]:
    """Inputs with a constant, and class codes, of the rows that no seed tests on."""
    target, most = TABLES[name]
    frame = untested(open_table(name).frame).drop(DROPPED.get(name, ())).drop_nulls()
    frame = frame.sample(n=min(MOST, frame.height), shuffle=True, seed=3)
    parts = []
    for column in frame.drop(target).iter_columns():
        if not column.dtype.is_numeric() or column.n_unique() <= most:
            parts.append(column.cast(pl.String).to_frame().to_dummies().to_numpy().astype(np.float64))
        else:
            values = column.to_numpy().astype(np.float64)
            parts.append(((values - values.min()) / max(values.max() - values.min(), 1e-9))[:, None])
    codes = np.unique(frame[target].cast(pl.String).to_numpy().astype(str), return_inverse=True)[1]
    return np.concatenate([*parts, np.ones((frame.height, 1))], axis=1), codes.astype(np.int64)


def trained(x: Floats, y: NDArray[np.int64], sigma: float, limit: float, divisor: float, seed: int) -> Floats:
    """Weights after the rule's steps: full batches, clip 1, momentum 0.9, noise once, the last half averaged."""
    classes, generator = int(y.max()) + 1, np.random.default_rng(seed)
    answers, lengths = np.eye(classes)[y], np.linalg.norm(x, axis=1)
    w = np.zeros((x.shape[1], classes))
    velocity, tail = np.zeros_like(w), np.zeros_like(w)
    parameters = x.shape[1] * (1 if classes == 2 else classes)
    rate = min(limit, sqrt(STEPS) / sigma * len(x) / (divisor * sqrt(parameters)))
    for step in range(STEPS):
        scores = x @ w
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = odds / odds.sum(axis=1, keepdims=True) - answers
        if classes == 2:  # one score, as a logistic model has
            errors = errors[:, 1:] * np.array([[-1.0, 1.0]])
            norms = lengths * np.abs(errors[:, 1])
        else:
            norms = lengths * np.linalg.norm(errors, axis=1)
        total = x.T @ (errors / np.maximum(norms, 1.0)[:, None])
        if classes == 2:
            noisy = total[:, 1] + sigma * generator.standard_normal(len(total))
            total = np.stack([np.zeros_like(noisy), noisy], axis=1)
        else:
            total = total + sigma * generator.standard_normal(total.shape)
        velocity = 0.9 * velocity + total / len(x)
        w = w - rate * velocity
        tail += w if step >= STEPS // 2 else 0.0
    return tail


def shortfalls() -> Iterator[tuple[str, dict[tuple[float, float], float]]]:
    """Of every cell: how far each pair is behind the best one, in validation accuracy."""
    pairs = list(product(LIMITS, DIVISORS))
    for name in TABLES:
        x, y = encoded(name)
        half = len(x) // 2
        for rows, epsilon in product((2000, half), EPSILONS):
            sigma = calibrate(epsilon=epsilon, delta=DELTA, rate=1.0, steps=STEPS)
            right = {}
            for limit, divisor in pairs:
                found = [trained(x[:rows], y[:rows], sigma, limit, divisor, seed) for seed in range(NOISES)]
                right[limit, divisor] = float(
                    np.mean([np.mean((x[half:] @ w).argmax(axis=1) == y[half:]) for w in found])
                )
            best = max(right.values())
            yield (
                f"{name}, {rows:,} rows, epsilon {epsilon:g} (best {best:.4f})",
                {pair: best - value for pair, value in right.items()},
            )


def main() -> None:
    """Print every cell, and the pair that the rule takes."""
    cells = []
    for name, behind in shortfalls():
        cells.append(behind)
        print(
            name,
            " ".join(f"{limit:g}/{divisor:g}:{value:.4f}" for (limit, divisor), value in behind.items()),
            flush=True,
        )
    mean = {pair: float(np.mean([cell[pair] for cell in cells])) for pair in cells[0]}
    for pair, value in sorted(mean.items(), key=lambda item: item[1]):
        print(f"limit {pair[0]:g}, divisor {pair[1]:g}: mean shortfall {value:.4f}")


if __name__ == "__main__":
    main()
