"""Settings chosen by cross-validation, in every split's own training rows.

A split's training rows are five folds, by patient. Every candidate learns from four of them and is measured on the
fifth, five times, through doors and ledgers; the candidate with the highest mean AUC is what the split's runs have.
First each learner's rate is chosen, on rows as they are; then how clusters join, with logistic regression at k = 10.
Test rows are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import TypeVar

from kohort.runs.config import Plan
from kohort.runs.run import Outcome, run
from kohort.studies.harness.found import Found, ResultTable
from kohort.studies.harness.runs import (
    Change,
    Runs,
    RunSummary,
    SharedRows,
    Tables,
    has_budget,
    population_of,
    summarise,
)
from kohort.studies.syntactic.folds import FOLDS, measured_on_fold
from kohort.studies.syntactic.plans import CENTRAL, FIRST, FL, LEARNERS, SITES, K, SyntacticDepth, federated, syntactic

__all__ = ["CandidateSetting", "CrossValidation", "cross_validate", "on_fold"]

R = TypeVar("R", bound=RunSummary)


@dataclass(frozen=True)
class CandidateSetting:
    """Each learner's rate, and how clusters join: `merge` and `delta`, None for what a plan says itself."""

    rates: Mapping[str, float]
    merging: tuple[str, float] | None = None

    def applied(self, plan: Plan) -> Plan:
        """A plan of the study with this setting. One with a budget stays as it is.

        Args:
            plan: The plan.

        Returns:
            The plan with its learner's rate, and with clusters that join so where it anonymises rows.
        """
        if has_budget(plan):
            return plan
        # In a pass over all rows the hub makes as many times the steps of a site as there are sites.
        rate = self.rates[str(plan.model.kind)] / (SITES if plan.method == CENTRAL else 1)
        made = replace(plan, train=replace(plan.train, lr=rate))
        if plan.method != "syntactic" or self.merging is None:
            return made
        merge, delta = self.merging
        anonymise = replace(plan.config.anonymise, merge=merge, delta=delta)
        return replace(made, config=replace(plan.config, anonymise=anonymise))


@dataclass(frozen=True)
class CrossValidation:
    """The setting of every split, and the candidates it was chosen among."""

    settings: Mapping[int, CandidateSetting]
    rows: Sequence[Found] = field(repr=False)

    def table(self) -> ResultTable:
        """Mean AUC over the folds of every candidate, and what was chosen."""
        return ResultTable(f"Settings chosen by {FOLDS} folds of the training rows", "Section 4.2", self.rows)


def on_fold(
    plans: Sequence[Plan],
    seed: int,
    tables: Tables | None,
    summarise: Callable[[Outcome], R],
    change: Change | None = None,
    *,
    number: int,
    settings: Mapping[int, CandidateSetting],
) -> Iterator[R]:
    """Runs of plans that have the same rows at the same sites, without a fold and measured on it.

    Args:
        plans: The plans.
        seed: The seed of all of them.
        tables: The tables that replace a plan's own.
        summarise: What is kept of a run.
        change: Not used here.
        number: The fold.
        settings: The settings of the seeds that have one; plans with other seeds stay as they are.

    Yields:
        The summaries.
    """
    del change
    whole = population_of(plans[0], seed, tables)
    backend = SharedRows(population=measured_on_fold(whole, seed, number))
    for plan in plans:
        chosen = settings.get(seed)
        yield summarise(run(plan if chosen is None else chosen.applied(plan), seed=seed, backend=backend))


def cross_validate(depth: SyntacticDepth, *, processes: int) -> CrossValidation:
    """Choose the setting of every split of the study. What has one candidate is not run.

    Args:
        depth: The splits and the candidates.
        processes: How many runs are made at the same time. The choice does not depend on it.

    Returns:
        The settings and the figures behind them.
    """
    rows: list[Found] = []
    rates: dict[int, dict[str, float]] = {seed: dict(LEARNERS) for seed in depth.seeds}
    for learner, grid in depth.rates.items():
        plans = {
            f"{learner}, rate {rate:g}": federated(learner, {"name": FL}, rounds=depth.rounds, train={"lr": rate})
            for rate in grid
        }
        best = _best(plans, depth.seeds, {}, rows, processes=processes)
        for seed, place in best.items():
            rates[seed][learner] = grid[place]
    settings = {seed: CandidateSetting(found) for seed, found in rates.items()}
    plans = {
        f"k = {K}, merge {merge}, delta {delta:g}": syntactic(FIRST, K, rounds=depth.rounds, merge=merge, delta=delta)
        for merge, delta in depth.merges
    }
    best = _best(plans, depth.seeds, settings, rows, processes=processes)
    return CrossValidation(
        {seed: replace(settings[seed], merging=depth.merges[place]) for seed, place in best.items()}, rows
    )


def _best(
    plans: Mapping[str, Plan],
    seeds: Sequence[int],
    settings: Mapping[int, CandidateSetting],
    rows: list[Found],
    *,
    processes: int,
) -> dict[int, int]:
    """Which plan has the highest mean AUC over the folds of each seed; the first of equals. Adds rows for a table."""
    if len(plans) == 1:
        return dict.fromkeys(seeds, 0)
    found: dict[tuple[str, int], list[float]] = {(name, seed): [] for name in plans for seed in seeds}
    for number in range(FOLDS):
        group = partial(on_fold, number=number, settings=settings)
        runs: Runs[RunSummary] = Runs(seeds, summarise=summarise, processes=processes, group=group)
        runs.prepare(list(plans.values()))
        for name, plan in plans.items():
            for seed, area in zip(seeds, runs.values(plan, lambda one: float(one.metrics["auc"])), strict=True):
                found[name, seed].append(area)
    best = {}
    for seed in seeds:
        names = list(plans)
        means = [fmean(found[name, seed]) for name in names]
        best[seed] = means.index(max(means))
        rows += [
            Found.mean(f"split {seed}, {name}: AUC{', chosen' * (place == best[seed])}", found[name, seed])
            for place, name in enumerate(names)
        ]
    return best
