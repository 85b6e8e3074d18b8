"""Runs of a study's plans by seed: in parallel processes, each made once.

Every figure of a study is a run of the real method, through doors and ledgers. Plans with the same `[data]` and
`[sites]` have the same rows at the same sites for the same seed, so those are read and split once for all of them.
Plans with a budget need declared domains: those of the published table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import polars as pl

from kohort.methods.registry import find_method
from kohort.rng import Streams
from kohort.runs.backend import Simulation
from kohort.runs.config import Plan
from kohort.runs.run import Outcome, run
from kohort.runs.simulation import Population, populate
from kohort.studies.harness.found import Found
from kohort.studies.harness.parallel import in_parallel
from kohort.tables.domain import learn_domain

__all__ = [
    "Change",
    "RunSummary",
    "Runs",
    "SharedRows",
    "StudyRunStore",
    "Tables",
    "declared",
    "has_budget",
    "population_of",
    "run_group",
    "summarise",
]  # fmt: skip

Tables = Callable[[Plan], dict[str, pl.DataFrame] | None]
"""The tables that replace the plan's own; None keeps those."""
Change = Callable[[Population, Streams], Population]
"""What sites of a seed become before they run, as for tuning on validation rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSummary:
    """What a study keeps of a run. A study that needs more adds fields."""

    accuracy: float
    curve: tuple[float, ...]
    """Accuracy on the test rows after every round that measured it."""
    metrics: Mapping[str, Any] = field(repr=False)
    seconds: Mapping[str, float] = field(repr=False)
    bytes: Mapping[str, int] = field(repr=False)
    watt_hours: float
    epsilon: float | None
    void: bool
    """Whether the delta of some site was too large for a claim of differential privacy."""
    facts: Mapping[str, Any] = field(repr=False)

    @classmethod
    def fields_of(cls, outcome: Outcome) -> dict[str, Any]:
        """The fields that every summary has, of a finished run."""
        return {
            "accuracy": outcome.accuracy,
            "curve": tuple(point["accuracy"] for point in outcome.history if "accuracy" in point),
            "metrics": outcome.metrics,
            "seconds": outcome.seconds,
            "bytes": outcome.bytes,
            "watt_hours": outcome.watt_hours,
            "epsilon": outcome.epsilon,
            "void": bool((outcome.dp or {}).get("void")),
            "facts": dict(outcome.facts),
        }

    @classmethod
    def of_accuracy(cls, accuracy: float, curve: Sequence[float], *, epsilon: float | None, void: bool) -> Self:
        """A summary that keeps accuracy and claim alone.

        Args:
            accuracy: On the test rows, at the end.
            curve: After every round that measured it.
            epsilon: What was claimed, if anything was.
            void: Whether the claim is void.
        """
        return cls(
            accuracy=accuracy,
            curve=tuple(curve),
            metrics={},
            seconds={},
            bytes={},
            watt_hours=0.0,
            epsilon=epsilon,
            void=void,
            facts={},
        )

    def to_kept(self) -> dict[str, Any]:
        """What is kept of a run in a file, as values of JSON: accuracy and claim alone."""
        return {"accuracy": self.accuracy, "curve": list(self.curve), "epsilon": self.epsilon, "void": self.void}

    @classmethod
    def from_kept(cls, line: Mapping[str, Any]) -> Self:
        """The summary that `to_kept` was asked for."""
        return cls.of_accuracy(
            line["accuracy"], tuple(line["curve"]), epsilon=line["epsilon"], void=bool(line["void"])
        )  # fmt: skip


def summarise(outcome: Outcome) -> RunSummary:
    """The summary of a finished run, for studies that need no fields of their own.

    Args:
        outcome: The run.

    Returns:
        Accuracy, curve, measures, costs and claim; neither the model nor rows are kept.
    """
    return RunSummary(**RunSummary.fields_of(outcome))


R = TypeVar("R", bound=RunSummary)


class StudyRunStore(Protocol[R]):
    """Keeps finished runs, also where the study is stopped; `kohort.studies.harness.kept` has one."""

    def find(self, digest: str, seed: int) -> R | None:
        """The run of a plan and a seed, if it is kept."""
        ...

    def add(self, digest: str, seed: int, run: R) -> None:
        """Keep a finished run."""
        ...


class Runs(Generic[R]):
    """Runs by plan and seed.

    Args:
        seeds: The seeds every plan is run with.
        summarise: What is kept of a run; called in the process that made it.
        processes: How many processes run at the same time. The figures do not depend on it.
        tables: The tables that replace a plan's own.
        change: What the sites of a seed become first.
        group: Makes the runs of plans that have the same rows at the same sites, one after the other; by default
            `run_group`.
        store: Keeps every run as soon as it is made, and gives back those that were kept before.

    Example:
        >>> runs = Runs((0, 1, 2), summarise=summarise)
        >>> runs.mean(plan)  # doctest: +SKIP
        0.842
    """

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        summarise: Callable[[Outcome], R],
        processes: int = 1,
        tables: Tables | None = None,
        change: Change | None = None,
        group: Callable[..., Iterable[R]] | None = None,
        store: StudyRunStore[R] | None = None,
    ) -> None:
        self.seeds = tuple(seeds)
        self.processes = processes
        self._summarise = summarise
        self._tables, self._change = tables, change
        self._group: Callable[..., Iterable[R]] = group or run_group
        self._store = store
        self._known: dict[tuple[str, int], R] = {}

    def prepare(self, plans: Sequence[Plan], *, seeds: Sequence[int] | None = None) -> None:
        """Make the runs of these plans that were not made before."""
        by_digest = {plan.digest(): plan for plan in plans}
        groups: dict[tuple[str, int], list[str]] = {}
        for digest, plan in by_digest.items():
            for seed in seeds or self.seeds:
                if not self._is_known(digest, seed):
                    groups.setdefault((_rows_key(plan), seed), []).append(digest)
        # Large groups are divided, so that no process waits for another one's.
        cuts = 1 if self.processes == 1 else -(-2 * self.processes // max(1, len(groups)))
        parts = [
            (seed, digests)
            for (_, seed), group in groups.items()
            for digests in (group[cut::cuts] for cut in range(cuts))
            if digests
        ]
        how = (self._tables, self._summarise, self._change)
        jobs = [(self._group, self._store, [by_digest[digest] for digest in digests], seed, *how)
                for seed, digests in parts]  # fmt: skip
        for (seed, digests), found in zip(parts, in_parallel(_made, jobs, self.processes), strict=True):
            self._known |= {(digest, seed): one for digest, one in zip(digests, found, strict=True)}

    def _is_known(self, digest: str, seed: int) -> bool:
        """Whether a run was made in this study, or kept from before it was stopped."""
        if (digest, seed) not in self._known and self._store is not None:
            kept = self._store.find(digest, seed)
            if kept is not None:
                self._known[digest, seed] = kept
        return (digest, seed) in self._known

    def of(self, plan: Plan, *, seeds: Sequence[int] | None = None) -> list[R]:
        """The summaries of a plan's runs, one per seed."""
        self.prepare([plan], seeds=seeds)
        return [self._known[plan.digest(), seed] for seed in seeds or self.seeds]

    def values(self, plan: Plan, read: Callable[[R], float]) -> list[float]:
        """One value per seed."""
        return [read(one) for one in self.of(plan)]

    def accuracies(self, plan: Plan, *, after: int | None = None, seeds: Sequence[int] | None = None) -> list[float]:
        """Accuracy on the test rows, one per seed; at the end, or after so many rounds."""
        return [one.accuracy if after is None else one.curve[after - 1] for one in self.of(plan, seeds=seeds)]

    def mean(self, plan: Plan) -> float:
        """Mean accuracy over the seeds."""
        return fmean(self.accuracies(plan))

    def curve(self, plan: Plan) -> list[float]:
        """Mean accuracy over the seeds after every round."""
        return [float(value) for value in np.mean([one.curve for one in self.of(plan)], axis=0)]

    def found(self, setting: str, plan: Plan, paper: float | None = None, *, after: int | None = None) -> Found:
        """The accuracy of a plan as a row of a table; at the end, or after so many rounds."""
        return Found.mean(setting, self.accuracies(plan, after=after), paper)


@dataclass(frozen=True, kw_only=True)
class SharedRows(Simulation):
    """A simulation whose rows were read and split before."""

    population: Population = field(repr=False)

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """The population of all plans with the same rows."""
        del plan, streams
        return self.population


def _made(
    group: Callable[..., Iterable[R]], store: StudyRunStore[R] | None, plans: Sequence[Plan], seed: int, *how: object
) -> list[R]:
    """The runs of a group, each kept as soon as it is made."""
    found = []
    for plan, one in zip(plans, group(plans, seed, *how), strict=True):
        if store is not None:
            store.add(plan.digest(), seed, one)
        found.append(one)
    return found


def run_group(
    plans: Sequence[Plan],
    seed: int,
    tables: Tables | None,
    summarise: Callable[[Outcome], R],
    change: Change | None = None,
) -> Iterator[R]:
    """Run plans that have the same rows at the same sites, which are read and split once.

    Args:
        plans: The plans, at least one; all with the same `[data]` and `[sites]`.
        seed: The seed of every run.
        tables: Makes the tables that replace a plan's own; None reads what the plans name.
        summarise: Makes what is kept of a run.
        change: Changes the rows once they are split; None leaves them. A single plan without a budget or a change reads
            its rows as `kohort run` does.

    Returns:
        The summaries, one per plan and in their order, each made when it is asked for.
    """
    if change is None and len(plans) == 1 and not has_budget(plans[0]):
        yield summarise(run(plans[0], seed=seed, tables=None if tables is None else tables(plans[0])))
        return
    population = population_of(plans[0], seed, tables)
    if change is not None:
        population = change(population, Streams.seeded(seed))
    backend, known = SharedRows(population=population), SharedRows(population=declared(population, plans[0]))
    for plan in plans:
        yield summarise(run(plan, seed=seed, backend=known if has_budget(plan) else backend))


def population_of(plan: Plan, seed: int, tables: Tables | None) -> Population:
    """The sites of a plan and a seed.

    Args:
        plan: The plan.
        seed: The seed.
        tables: The tables that replace the plan's own.

    Returns:
        The sites and the rows to test on.
    """
    return populate(plan, Streams.seeded(seed), tables=None if tables is None else tables(plan))


def has_budget(plan: Plan) -> bool:
    """Whether some phase of a plan is differentially private.

    Args:
        plan: The plan.

    Returns:
        True where one of its phases has `dp`.
    """
    return any(phase.dp is not None for phase in find_method(plan.method).phases(plan.config, plan.train))


def declared(population: Population, plan: Plan) -> Population:
    """The same rows with every domain declared: a study's tables are published, and so are the values in them.

    Args:
        population: The sites of a plan.
        plan: The plan.

    Returns:
        The sites, their schema complete.
    """
    schema = population.schema
    rows = pl.concat([population.frame, population.test], how="vertical_relaxed")
    columns = dict(schema.columns)
    for name, domain in learn_domain(rows, schema, missing=plan.data.missing).columns.items():
        spec = columns[name]
        if domain.categories is not None and spec.categories is None:
            columns[name] = replace(spec, categories=domain.categories, nullable=domain.missing)
        elif domain.categories is None and spec.bounds is None and spec.bins is None:
            columns[name] = replace(spec, bounds=domain.bounds, nullable=domain.missing)
    return replace(population, schema=replace(schema, columns=columns))


def _rows_key(plan: Plan) -> str:
    """Equal for plans that have the same rows at the same sites."""
    mapping = plan.to_mapping()
    return json.dumps([mapping["data"], mapping["sites"]], sort_keys=True)
