"""Federated averaging and its variants, each with options chosen from a grid of its own.

Ten sites hold one age interval of Adult each, so their rows differ as hospitals' do. Options are chosen for each number
of rounds on a validation split of the published training rows; the published test rows give the figures. The grids are
not of one size, so a variant with more options has had more tries: a lead of a few tenths of a point says little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

from bench.harness import Row
from kohort.errors import SiteError
from kohort.runs.config import read_plan
from kohort.runs.run import run

__all__ = ["NAME", "SUMMARY", "measure"]

NAME = "variants"
HORIZONS = (20, 60, 100)
TUNING_SEEDS, SEEDS = (11, 12), (1, 2, 3)
SUMMARY = (
    "Accuracy on the published Adult test rows, ten age sites, MLP 12, local SGD with batches of 64; mean of "
    f"{len(SEEDS)} seeds. For every number of rounds the options are those best on a fifth of the training rows, "
    f"kept for validation ({len(TUNING_SEEDS)} seeds). Beside plain averaging with the same number of rounds. "
    "Grids: FedAvg and SCAFFOLD 3 points, FedProx 9, FedAdam, FedYogi and FedAdagrad 18, so a few tenths of "
    "a point are no ranking."
)
REQUIRED = 82.5
"""Per cent that plain averaging with SGD 0.3 to 0.5 must reach in 100 rounds."""
PLAIN_RATES = (0.3, 0.5)

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "fedavg_plain.toml"


@dataclass(frozen=True, kw_only=True)
class Options:
    """One point of a grid."""

    lr: float
    hub: str = "plain"
    correction: str = "none"

    def __str__(self) -> str:
        extra = [choice.partition(":")[2] for choice in (self.correction, self.hub)]
        return ", ".join([f"SGD {self.lr:g}", *filter(None, extra)])

    def history(self, *, test: str, seed: int) -> list[float]:
        """Per cent of right classes after each round."""
        plan = read_plan(
            EXAMPLE,
            overrides=[
                f"data.test={test}",
                f"train.rounds={max(HORIZONS)}",
                "train.optimizer=sgd",
                f"train.lr={self.lr}",
                f"train.hub={self.hub}",
                f"train.correction={self.correction}",
            ],
        )
        return [100 * mark["accuracy"] for mark in run(plan, seed=seed).history]


def _grid(name: str) -> Iterator[Options]:
    """The options tried: the same local rates for each variant, times its own options around their usual values."""
    rates = (0.1, 0.3, 0.5)
    if name == "FedAvg":
        yield from (Options(lr=lr) for lr in rates)
    elif name == "FedProx":
        yield from (Options(lr=lr, correction=f"fedprox:mu={mu}") for lr, mu in product(rates, (0.001, 0.01, 0.1)))
    elif name == "SCAFFOLD":
        yield from (Options(lr=lr, correction="scaffold") for lr in rates)
    else:
        for lr, hub_lr, tau in product(rates, (0.03, 0.1, 0.3), (0.001, 0.01)):
            yield Options(lr=lr, hub=f"{name.lower()}:lr={hub_lr},tau={tau}")


VARIANTS = ("FedAvg", "FedProx", "SCAFFOLD", "FedAdam", "FedYogi", "FedAdagrad")


def measure() -> list[Row]:
    tuned = {name: _tuned(name) for name in VARIANTS}
    figures = {(name, rounds): _figure(tuned[name][rounds], rounds) for name, rounds in product(VARIANTS, HORIZONS)}
    last = max(HORIZONS)
    plain = [_required(Options(lr=lr), last) for lr in PLAIN_RATES]
    compared = [
        Row(
            setting=f"{name} ({tuned[name][rounds]}), {rounds} rounds",
            ours=figures[name, rounds],
            peer="FedAvg, tuned",
            peer_value=figures["FedAvg", rounds],
            unit="%",
            ratio=figures[name, rounds] / figures["FedAvg", rounds],
        )
        for rounds, name in product(HORIZONS, VARIANTS)
    ]
    return [*plain, *compared]


def _required(options: Options, rounds: int) -> Row:
    accuracy = _figure(options, rounds)
    return Row(
        setting=f"FedAvg ({options}), {rounds} rounds",
        ours=accuracy,
        peer="required",
        peer_value=REQUIRED,
        unit="%",
        ratio=accuracy / REQUIRED,
        target=1.0,
    )


def _tuned(name: str) -> dict[int, Options]:
    """For each number of rounds the options with the best mean accuracy on the validation rows."""
    histories = {options: found for options in _grid(name) if (found := _validated(options)) is not None}
    if not histories:
        raise RuntimeError(f"{name} diverged with every option that was tried")

    def best(rounds: int) -> Options:
        return max(histories, key=lambda options: fmean(history[rounds - 1] for history in histories[options]))

    return {rounds: best(rounds) for rounds in HORIZONS}


def _validated(options: Options) -> list[list[float]] | None:
    """The histories of the tuning seeds; None when a run diverged, so that no site's weights could be accepted."""
    try:
        return [options.history(test="0.2", seed=seed) for seed in TUNING_SEEDS]
    except SiteError:
        return None


def _figure(options: Options, rounds: int) -> float:
    return fmean(options.history(test="adult:test", seed=seed)[rounds - 1] for seed in SEEDS)
