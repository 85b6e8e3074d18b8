"""What lying sites do to each aggregator.

Fifty sites hold random shares of Adult; ten of them send updates with the sign flipped and ten times the size. Each run
goes through the real engine, doors and ledgers; only `train.aggregate` differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from bench.harness import Row
from kohort.runs.config import read_plan
from kohort.runs.run import run

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "robust"
SITES, ROUNDS, SEEDS = 50, 60, (1, 2, 3)
LIARS, SCALE = 0.2, 10
SUMMARY = (
    f"Accuracy on the published Adult test rows after {ROUNDS} rounds (SGD 0.3, MLP 12) over {SITES} sites with random "
    f"rows, of which {LIARS:.0%} send updates with the sign flipped and {SCALE} times the size; mean of {len(SEEDS)} "
    "seeds. A robust aggregator may lose 3 points against the weighted mean when nobody lies; the attacked mean must "
    "be no better than always saying the commonest class, or the attack would prove nothing."
)
ALLOWED_LOSS = 3.0
ROBUST = ("trimmed", "median", "multi-krum")
SHOWN = ("krum", "clip")
"""Without a target: Krum leaves most rows unused, and clipping bounds harm only."""

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "fedavg_plain.toml"


@dataclass(frozen=True)
class Score:
    """Per cent of the test rows that get their class, mean over the seeds; and what the commonest class would get."""

    accuracy: float
    commonest: float


def measure() -> list[Row]:
    clean = _score("mean", lying=False)
    attacked = {name: _score(name, lying=True).accuracy for name in ("mean", *ROBUST, *SHOWN)}
    collapse = Row(
        setting="mean, attacked",
        ours=attacked["mean"],
        peer="commonest class",
        peer_value=clean.commonest,
        unit="%",
        ratio=attacked["mean"] / clean.commonest,
        target=1.0,
        goal="at most",
    )
    stand = [
        Row(
            setting=f"{name}, attacked",
            ours=attacked[name],
            peer="mean, nobody lies",
            peer_value=clean.accuracy,
            unit="%",
            ratio=attacked[name] / clean.accuracy,
            target=1 - ALLOWED_LOSS / clean.accuracy if name in ROBUST else None,
        )
        for name in (*ROBUST, *SHOWN)
    ]
    return [collapse, *stand]


def _score(aggregate: str, *, lying: bool) -> Score:
    byzantine = f'{{byzantine = {{kind = "sign-flip", share = {LIARS}, scale = {SCALE}}}}}'
    plan = read_plan(
        EXAMPLE,
        overrides=[
            "data.test=adult:test",
            f"sites.count={SITES}",
            "sites.split=iid",
            *([f"sites.faults={byzantine}"] if lying else []),
            f"train.rounds={ROUNDS}",
            "train.optimizer=sgd",
            "train.lr=0.3",
            f"train.aggregate={aggregate}",
        ],
    )
    outcomes = [run(plan, seed=seed) for seed in SEEDS]
    of_class = np.sum(outcomes[0].metrics["confusion"], axis=1)
    return Score(100 * fmean(outcome.accuracy for outcome in outcomes), 100 * float(of_class.max() / of_class.sum()))
