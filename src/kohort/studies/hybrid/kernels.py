"""Trains a plan of the study with the sites' kernels alone: no messages, doors or ledgers.

A table of the study takes some thousand runs, and most of a run's time is spent on what travels and is written down.
Here the same functions train the same rows in the same order, from the same first weights, with the same keys of rows
and noise multipliers from the same account; only the keys of the noise are others. A test compares the weights with
those of `kohort run` under the same noise for every column, and each study has runs through the doors beside these.

Known: phases of `kohort.studies.hybrid.plans` alone, that is SGD among peers, and with the hub SGD, DP-SGD at sites, or
DP-SGD over a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, RefusedError
from kohort.evaluate.utility import accuracy_of
from kohort.models.dense.network import FloatArray, Network
from kohort.models.dp_sgd.fit import PrivateSteps, clipped_sums, fit_private, gaussian
from kohort.models.network_model import NetworkModel
from kohort.models.rows import Rows, StackedRows, encode_rows
from kohort.privacy.dp.account import Shares
from kohort.privacy.dp.accounting import check_budget
from kohort.protocol.enrolment import encoder_for
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import DPSection, TrainingPhase
from kohort.rng import Streams
from kohort.rounds.aggregators.registry import find_aggregator
from kohort.rounds.loop import WeightAverage
from kohort.rounds.phase_training import phase_rounds
from kohort.rounds.plan_account import plan_account
from kohort.rounds.server_optimizers import find_server_optimizer
from kohort.rounds.totals.summed_model import SummedModel, deviation_of
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import Plan
from kohort.runs.results.observer import HISTORY_ROWS
from kohort.runs.results.outcome import Outcome
from kohort.runs.simulation import Population
from kohort.studies.harness.runs import Change, RunSummary, Tables, declared, population_of
from kohort.tables.domain import declared_domain
from kohort.tables.encoder import Encoder

__all__ = ["EncodedSites", "TrainedWeights", "encode_sites", "kernel_group", "train"]


@dataclass(frozen=True, eq=False)
class EncodedSites:
    """The encoded rows of all sites, low-risk rows first, and those to measure on."""

    encoder: Encoder
    rows: Rows
    starts: NDArray[np.int64]
    low: NDArray[np.int64]
    clusters: NDArray[np.int64]
    names: tuple[str, ...]
    test: Rows
    test_sites: NDArray[np.int64]
    """The place of the site of each row to measure on; -1 where that site has no row for training."""
    few: Rows
    """Of these rows, those that are measured on after every round."""

    @classmethod
    def of(cls, population: Population, encoder: Encoder) -> EncodedSites:
        """Encode a population, once for all plans on the same rows."""
        if population.clusters is None or population.low is None or population.test_sites is None:
            raise AssertionError("the study's plans have clusters, rows of low risk and test rows")
        test = encode_rows(encoder, population.test)
        some = slice(None, None, max(1, -(-test.count // HISTORY_ROWS)))
        places = {name: place for place, name in enumerate(population.names)}
        return cls(
            encoder=encoder,
            rows=encode_rows(encoder, population.frame),
            starts=population.starts,
            low=population.low,
            clusters=population.clusters,
            names=population.names,
            test=test,
            test_sites=np.asarray([places.get(name, -1) for name in population.test_sites], dtype=np.int64),
            few=Rows.of(test.x[some], test.y[some], dtype=encoder.dtype),
        )

    def counts(self, part: str) -> NDArray[np.int64]:
        """How many rows of a part each site has."""
        every = np.diff(self.starts)
        return {"all": every, "low": self.low, "high": every - self.low}[part]

    def stacked(self, part: str, taking: NDArray[np.int64]) -> StackedRows:
        """The rows of a part at the sites that take part; none is copied."""
        begins = self.starts[:-1] + (self.low if part == "high" else 0)
        return StackedRows(self.rows.x, self.rows.y, self.rows.weight, begins[taking], self.counts(part)[taking])


@dataclass(frozen=True, eq=False)
class TrainedWeights:
    """The final weights, and the accuracy on the rows to measure on, at the end and after every round with the hub."""

    weights: FloatArray
    """Of the common model; [sites, parameters] where there is none."""
    accuracy: float
    curve: tuple[float, ...]
    epsilon: float | None
    void: bool
    """Whether the delta of some site is too large for a claim of differential privacy."""


def encode_sites(plan: Plan, population: Population) -> EncodedSites:
    """Encode the sites of a plan, once for all plans on the same rows.

    Args:
        plan: The plan.
        population: Its sites, with declared domains.

    Returns:
        The encoded sites.

    Raises:
        ConfigError: A domain is not declared.
    """
    approved = _approved(plan, population)
    domain = declared_domain(population.schema, missing=approved.missing)
    if domain is None:
        raise ConfigError("a column has no declared domain", hint="Declare the domains first")
    return EncodedSites.of(population, encoder_for(approved, domain))


def _approved(plan: Plan, population: Population) -> ApprovedPlan:
    return approved_plan_for(plan, schema=population.schema, run="kernels", sites=population.names)


def train(plan: Plan, population: Population, sites: EncodedSites, seed: int, *, curve: bool = True) -> TrainedWeights:
    """Train a plan of the study.

    Args:
        plan: The plan.
        population: Its sites, with declared domains.
        sites: The same, encoded.
        seed: The seed of the run.
        curve: Whether to measure after every round with the hub, too.

    Returns:
        The model and its accuracy.
    """
    return _Training(_approved(plan, population), sites, Streams.seeded(seed), curve=curve).run()


class _Training:
    """One training: who takes part, their keys and their noise, phase by phase."""

    def __init__(self, approved: ApprovedPlan, sites: EncodedSites, streams: Streams, *, curve: bool) -> None:
        network = approved.model.network(sites.encoder)
        if not isinstance(network, Network):
            raise AssertionError("the study's model is one of kohort's own networks")
        self.approved, self.encoder, self.network, self.sites = approved, sites.encoder, network, sites
        self.hub = Streams(streams.bytes("hub"), streams.seed)
        self.void = False
        """Whether some site's rows make the claim void."""
        accounts = [self._account(place) for place in range(len(sites.names))]
        kept = [place for place, account in enumerate(accounts) if account is not None]
        self.taking = np.asarray(kept, dtype=np.int64)
        self.sigmas = np.asarray([accounts[place] for place in kept])
        """Noise multipliers by site and phase."""
        self.streams = [Streams(streams.bytes("site", sites.names[place]), streams.seed) for place in kept]
        self.keys = np.asarray([own.key("rows") for own in self.streams], dtype=np.uint64)
        self.start: FloatArray = self._first()
        self.hidden = False
        """Whether only sites know the model, after a phase among peers."""
        self.curve: list[float] = []
        self.measures = curve

    def _account(self, place: int) -> tuple[float, ...] | None:
        """The noise multipliers of a site; None where it has too few rows to take part."""
        phases = self.approved.phases
        if all(phase.dp is None for phase in phases):
            return (0.0,) * len(phases)

        def count(phase: TrainingPhase) -> int:
            return int(self.sites.counts(phase.rows)[place])

        try:
            self.void |= any(_is_void(phase.dp, count(phase)) for phase in phases if phase.dp is not None)
            return plan_account(self.approved, counts=count).sigmas
        except RefusedError:
            return None

    def _first(self) -> FloatArray:
        if self.approved.secure is not None:
            return SummedModel.start(self.network, self.hub.bytes("start", length=16)).weights
        return self.network.start(self.hub.generator("start"))

    def run(self) -> TrainedWeights:
        """All phases."""
        for number, phase in enumerate(self.approved.phases):
            rows = self.sites.stacked(phase.rows, self.taking)
            if phase.topology:
                self._peers(phase, number, rows)
            elif self.approved.secure is not None and phase.dp is not None:
                self._summed(phase, phase.dp, number, rows)
            else:
                self._server(phase, number, rows)
        return TrainedWeights(self.start, self._accuracy(), tuple(self.curve), self._epsilon(), self.void)

    def _epsilon(self) -> float | None:
        budgets = [phase.dp.epsilon for phase in self.approved.phases if phase.dp is not None]
        return budgets[0] if budgets else None

    def _peers(self, phase: TrainingPhase, number: int, rows: StackedRows) -> None:
        """Every site trains, then has the mean of its cluster, weighted by rows."""
        weights = np.broadcast_to(self.start, (rows.sites, self.network.parameter_count))
        clusters = self.sites.clusters[self.taking]
        for round_number in phase_rounds(self.approved, number):
            fitted = self.network.fit(
                weights, rows, training=phase.training, keys=self.keys, round=round_number
            ).weights
            weights = np.empty_like(fitted)
            for cluster in np.unique(clusters):
                own = clusters == cluster
                shares = rows.counts[own] / rows.counts[own].sum()
                weights[own] = (shares @ fitted[own].astype(np.float64)).astype(fitted.dtype)
        self.start, self.hidden = weights, True

    def _server(self, phase: TrainingPhase, number: int, rows: StackedRows) -> None:
        """Everybody trains from one model, which moves to the mean of what they send."""
        train = phase.train
        aggregate, optimizer = find_aggregator(train.aggregate), find_server_optimizer(train.hub)
        state = optimizer.start(self.network.parameter_count)
        rounds = phase_rounds(self.approved, number)
        average = WeightAverage.of(
            train, first=rounds.start, share=0.0 if phase.dp is None else phase.dp.average or 0.0
        )
        weights = self.start
        for round_number in rounds:
            stack = self._locally(phase, number, rows, weights, round_number)
            before = self._first() if self.hidden else weights
            mean = aggregate(stack, rows.counts, before, self.network)
            if self.hidden:  # the hub does not know where the sites started
                weights, self.hidden = mean.astype(stack.dtype), False
            else:
                weights, state = optimizer.step(weights, mean, state)
            average.take(round_number, weights)
            self._note(weights)
        self.start = average.averaged(weights)

    def _locally(
        self, phase: TrainingPhase, number: int, rows: StackedRows, start: FloatArray, round_number: int
    ) -> FloatArray:
        if phase.dp is None:
            return self.network.fit(start, rows, training=phase.training, keys=self.keys, round=round_number).weights
        taken = [phase.steps_and_rate(count) for count in rows.counts.tolist()]
        private = PrivateSteps(
            clip=phase.dp.clip,
            sigma=self.sigmas[:, number],
            rate=np.asarray([rate for _, rate in taken]),
            steps=np.asarray([steps for steps, _ in taken], dtype=np.int64),
            keys=self._noise_keys(round_number),
        )
        return fit_private(self.network, start, rows, training=phase.training, private=private).weights

    def _summed(self, phase: TrainingPhase, dp: DPSection, number: int, rows: StackedRows) -> None:
        """One step per round, from the sum of clipped gradients and everybody's share of the noise."""
        secure = self.approved.secure
        assert secure is not None  # noqa: S101 - asked for sums alone
        shares, parameters = Shares(rows.sites, secure.colluders), self.network.parameter_count
        sigma = float(self.sigmas[0, number])
        deviation = deviation_of(phase, sigma, shares)
        model, rounds = SummedModel.of(self.start), phase_rounds(self.approved, number)
        for passed, round_number in enumerate(rounds):
            sums = clipped_sums(self.network, model.weights, rows, clip=dp.clip)
            for place, key in enumerate(self._noise_keys(round_number)):
                sums[place] += deviation * gaussian(key, parameters)
            total = sums.sum(axis=0)
            model = model.stepped(phase, passed, total, rows=rows.count, members=rows.sites, sigma=sigma)
            self._note(model.weights)
        self.start = model.weights

    def _noise_keys(self, round_number: int) -> tuple[bytes, ...]:
        return tuple(own.bytes("dp", round_number) for own in self.streams)

    def _note(self, weights: FloatArray) -> None:
        if self.measures:
            self.curve.append(accuracy_of(NetworkModel(self.network, weights, self.encoder), self.sites.few))

    def _accuracy(self) -> float:
        """On all rows to measure on; after peers alone, of each row by the model of its own site."""
        if not self.hidden:
            return accuracy_of(NetworkModel(self.network, self.start, self.encoder), self.sites.test)
        right = total = 0
        for index, place in enumerate(self.taking.tolist()):
            own = self.sites.test_sites == place
            found = NetworkModel(self.network, self.start[index], self.encoder).codes(self.sites.test.x[own])
            right, total = right + int((found == self.sites.test.y[own]).sum()), total + int(own.sum())
        return right / total


def _is_void(dp: DPSection, units: int) -> bool:
    return check_budget(epsilon=dp.epsilon, delta=dp.delta, units=units, allow_large_delta=dp.allow_large_delta)


def kernel_group(
    plans: Sequence[Plan],
    seed: int,
    tables: Tables | None,
    summarise: Callable[[Outcome], RunSummary],
    change: Change | None = None,
) -> Iterator[RunSummary]:
    """Plans on the same rows at the same sites, trained by kernels alone; as `kohort.studies.harness.runs.run_group`.

    Args:
        plans: The plans.
        seed: The seed of all of them.
        tables: The tables that replace the plans' own.
        summarise: Not asked: there is no outcome of a run.
        change: What the sites become first.

    Yields:
        One summary per plan: accuracy, accuracy by round and epsilon.
    """
    del summarise
    population = population_of(plans[0], seed, tables)
    if change is not None:
        population = change(population, Streams.seeded(seed))
    population = declared(population, plans[0])
    sites = encode_sites(plans[0], population)
    # Sites that were changed are for tuning, which asks for the end alone.
    for plan in plans:
        trained = train(plan, population, sites, seed, curve=change is None)
        yield RunSummary.of_accuracy(trained.accuracy, trained.curve, epsilon=trained.epsilon, void=trained.void)
