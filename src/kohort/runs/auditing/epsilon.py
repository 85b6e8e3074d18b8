"""Audit the epsilon of a plan: plant canaries at its sites, run its budget, and measure what leaves them.

The audited run has the plan's sites with as many rows each, and the plan's budget, rounds, batches, epochs and secure
sum. Its rows are canaries, half of them drawn by fair coins, and neutral rows for the rest; its model is a logistic
regression in which every canary has categories of its own, so that gradients of canaries hardly overlap and all are
clipped. The rate is tiny and nothing follows the noise, so that weights are plain sums of noisy gradients. The auditor
sees what the hub sees. Runs with new coins and new noise are stacked until there are canaries enough.

What it covers: noise, clipping, sampling and steps of gradients (`mechanism = "dp-sgd"`), at the sites or in shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.evaluate.gaussian_audit import EpsilonAudit, audit_scores
from kohort.methods.registry import find_method
from kohort.protocol.hub import Ask, Replies
from kohort.protocol.plan.phases import DPSection, SecureSumSection, TrainingPhase
from kohort.rng import Streams
from kohort.runs.auditing.replay import RecordingSimulation
from kohort.runs.backend import Simulation
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run

__all__ = ["CANARIES", "audit_epsilon"]

CANARIES = 4000
MOST_PLANTED = 64
"""Canaries per site, or over all sites where only totals open."""
LR = 1e-6
_TASK = "train.phase"
Floats = NDArray[np.float64]


def audit_epsilon(plan: Plan, *, canaries: int = CANARIES, seed: int = 0, phase: int | None = None) -> EpsilonAudit:
    """A lower bound of the epsilon that a plan's noise is worth.

    Args:
        plan: The plan.
        canaries: How many canaries to plant, over all runs.
        seed: Seed of coins and noise.
        phase: Which phase to audit, counted from 1; by default the first with gradient noise.

    Returns:
        The bound beside the claim.

    Raises:
        ConfigError: No phase of the plan adds noise to gradients.
    """
    chosen = _chosen(plan, phase)
    sizes = _site_sizes(plan, seed)
    secure = find_method(plan.method).secure(plan.config)
    design = _Design(dp=chosen.dp or DPSection(), sizes=sizes, shared=secure is not None)
    audited = _audited_plan(chosen, secure, design)
    scores: list[Floats] = []
    coins: list[NDArray[np.bool_]] = []
    number = 0
    while sum(len(own) for own in coins) < canaries:
        generator = np.random.default_rng([seed, number])
        drawn = [generator.random(count) < 0.5 for count in design.planted]
        scores.append(_scores(audited, design, drawn, seed=seed * 1000 + number))
        coins.append(np.concatenate(drawn))
        number += 1
    dp = design.dp
    return audit_scores(np.concatenate(scores), np.concatenate(coins), epsilon=dp.epsilon, delta=dp.delta)


def _chosen(plan: Plan, number: int | None) -> TrainingPhase:
    """The phase to audit."""
    phases = find_method(plan.method).phases(plan.config, plan.train)
    private = {
        place: phase
        for place, phase in enumerate(phases, 1)
        if phase.dp is not None and phase.dp.mechanism == "dp-sgd" and plan.method in {"fedavg", "hybrid"}
    }
    if number is None and private:
        return next(iter(private.values()))
    if number not in private:
        listed = ", ".join(map(str, private)) or "none"
        raise ConfigError(
            "canaries measure the noise of clipped gradients, and the plan adds none there",
            hint=f'Audit a phase of fedavg or hybrid with dp.mechanism = "dp-sgd" (here: {listed})',
        )
    return private[number]


def _site_sizes(plan: Plan, seed: int) -> list[int]:
    """How many rows each site of the plan has."""
    population = Simulation().populate(plan, Streams.seeded(seed))
    return [int(size) for size in np.diff(population.starts)]


@dataclass(frozen=True)
class _Design:
    """Where canaries are, and in which directions they pull."""

    dp: DPSection
    sizes: list[int]
    shared: bool
    """Whether only the total of all sites opens: canaries of different sites then need different columns."""

    @property
    def columns(self) -> list[str]:
        """So many columns that a canary's gradient is clipped while the model has learned nothing."""
        return [f"c{place}" for place in range(max(5, ceil((2.5 * self.dp.clip) ** 2)))]

    @property
    def categories(self) -> list[str]:
        """One per canary, and that of neutral rows."""
        return ["neutral", *(f"canary-{number:03d}" for number in range(MOST_PLANTED))]

    @property
    def planted(self) -> list[int]:
        """Canaries per site."""
        if not self.shared:
            return [min(MOST_PLANTED, size // 2) for size in self.sizes]
        left, found = MOST_PLANTED, []
        for place, size in enumerate(self.sizes):
            found.append(min(ceil(left / (len(self.sizes) - place)), size // 2))
            left -= found[-1]
        return found

    def names_of(self, site: int) -> list[str]:
        """The categories of a site's canaries."""
        first = sum(self.planted[:site]) if self.shared else 0
        return self.categories[1 + first : 1 + first + self.planted[site]]

    def table(self, coins: list[NDArray[np.bool_]]) -> pl.DataFrame:
        """The rows of all sites: canaries whose coins say so, and neutral rows."""
        values: list[str] = []
        answers: list[str] = []
        for site, size in enumerate(self.sizes):
            inside = [name for name, coin in zip(self.names_of(site), coins[site], strict=True) if coin]
            values += inside + ["neutral"] * (size - len(inside))
            answers += ["yes"] * len(inside) + ["no", "yes"] * (size // 2 + 1)
            del answers[len(values) :]
        site_names = np.repeat([f"site-{site:04d}" for site in range(len(self.sizes))], self.sizes)
        frame = pl.DataFrame({"site": site_names, "person": np.arange(len(values)), "answer": answers})
        return frame.with_columns(pl.Series(name, values) for name in self.columns)

    def directions(self, encoder: Any, names: list[str]) -> Floats:
        """[categories, parameters]: minus the clipped gradient of rows of these categories, in units of the clip."""
        rows = pl.DataFrame(dict.fromkeys(self.columns, names) | {"answer": ["yes"] * len(names)})
        found, _ = encoder.inputs(rows)
        whole = np.concatenate([np.asarray(found, dtype=np.float64), np.ones((len(names), 1))], axis=1)
        return np.asarray(whole / np.linalg.norm(whole, axis=1, keepdims=True))


def _audited_plan(phase: TrainingPhase, secure: SecureSumSection | None, design: _Design) -> Plan:
    """The plan of the audited run."""
    dp, train = design.dp, phase.train
    budget = {
        name: getattr(dp, name)
        for name in ("unit", "overlap", "epsilon", "delta", "clip", "accountant", "allow_large_delta")
    }
    if dp.quantile is not None:
        budget["quantile"] = dp.quantile
    sums = {} if secure is None else {"secure": {"sum": secure.sum, "colluders": secure.colluders}}
    categories = dict.fromkeys(design.columns, design.categories)
    return load_plan(
        {
            "data": {
                "table": "canaries",
                "target": "answer",
                "features": design.columns,
                "identifiers": ["site", "person"],
                "person": "person",
                "categories": {**categories, "answer": ["no", "yes"]},
                "encoding": "onehot",
                "test": 0.0,
            },
            "sites": {"split": "column:site", "min_rows": 1},
            "model": {"kind": "logistic", "dtype": "float64"},
            "train": {
                "rounds": train.rounds,
                "local_epochs": train.local_epochs,
                "batch": train.batch,
                "optimizer": "sgd",
                "lr": LR,
            },
            "method": {"name": "fedavg", "dp": budget, **sums},
            "policy": {"min_rows": 1, "epsilon": 1e3, "delta": 0.5, "void_dp": True},
        }
    )


def _scores(plan: Plan, design: _Design, coins: list[NDArray[np.bool_]], *, seed: int) -> Floats:
    """One run: how much of every canary is in what left, all sites one after the other."""
    place = RecordingSimulation(tables={"canaries": design.table(coins)})
    model: Any = run(plan, seed=seed, backend=place).model
    encoder, sites = model.encoder, range(len(coins))
    if design.shared:
        start = _public_start(place.recorded, model)
        pull = (np.asarray(model.weights, dtype=np.float64) - start) * sum(design.sizes) / LR
        return _shares_of(design, encoder, [name for site in sites for name in design.names_of(site)], pull)
    pulls = _pulls(place.recorded)
    own = zip(sites, sorted(pulls), strict=True)  # names of sites rise as their numbers do
    return np.concatenate(
        [
            _shares_of(design, encoder, design.names_of(site), pulls[name] * design.sizes[site] / LR)
            for site, name in own
        ]
    )


def _pulls(recorded: list[tuple[Ask, Replies]]) -> dict[str, Floats]:
    """How far each site moved the weights in all rounds."""
    moved: dict[str, Floats] = {}
    for ask, replies in recorded:
        if ask.task.name == _TASK:
            sent = np.asarray(ask.payload.arrays["weights"], dtype=np.float64)
            for name, weights in zip(replies.sites, replies.array("weights"), strict=True):
                moved[name] = moved.get(name, np.zeros(len(sent))) + (weights - sent)
    return moved


def _public_start(recorded: list[tuple[Ask, Replies]], model: Any) -> Floats:
    """The first weights of training over sums, from the seed that the hub sent."""
    seeds = (ask.payload.blobs.get("start") for ask, _ in recorded)
    seed = next(found for found in seeds if found)
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little")))
    return np.asarray(model.network.start(generator), dtype=np.float64)


def _shares_of(design: _Design, encoder: Any, names: list[str], pull: Floats) -> Floats:
    """The share of every canary in a pull; neutral rows pull in a direction of their own."""
    known = design.directions(encoder, [*names, "neutral"])
    return np.asarray(np.linalg.lstsq(known.T, pull, rcond=None)[0][:-1])
