"""What a gate would do, before a plan with one is approved: rows shared, work at the sites, accuracy, and who loses.

The rows that would be shared are counted by the plan's own gate at every site, over all training rows; nothing is
generalised for that. The rest is learned on four fifths of every site's training rows and measured on the fifth left
out: once as the plan says, and once with a gate that lets nothing pass, which is averaging. Thresholds that count rows
are reduced alike.

Guarantee: no test row is trained on, measured on or described. Everything happens in this process, over tables that
whoever asks has at hand; nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from math import sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.gate.gate import count_groups, count_keys, count_unit, person_codes
from kohort.errors import ConfigError
from kohort.methods.partial.config import Gate, Partial, config_of, person_column, rules_at, threshold_of
from kohort.methods.partial.method import require_released
from kohort.methods.partial.tasks import SHARE, rows_to_share
from kohort.models.base import Model
from kohort.protocol.engine import LocalEngine
from kohort.protocol.faults import absent_sites
from kohort.protocol.hub import Ask, Replies
from kohort.rng import Streams
from kohort.runs.backend import RunContext, Simulation
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run
from kohort.runs.simulation import Population, populate
from kohort.tables.domain import category_text

__all__ = ["Forecast", "GroupForecast", "forecast"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
HELD_OUT = 0.2
"""Share of every site's training rows that is measured on."""
REPEATS = 2
CERTAIN = 1.96
"""Standard errors that a difference must exceed to be called one."""


@dataclass(frozen=True, kw_only=True)
class GroupForecast:
    """What a group of held-out rows would gain.

    Attributes:
        rows: Held-out rows of the group, over all repetitions.
        partial: Accuracy (for a number: R2) with the gate.
        averaging: The same without it.
        gain: The difference.
        margin: Half the width of its 95 % interval, from the rows and from the repetitions.
    """

    rows: int
    partial: float
    averaging: float
    gain: float
    margin: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a gate would do.

    Attributes:
        rows: Training rows of all sites.
        shared: Rows that the hub would receive; exact.
        share: The same as a share of all rows.
        sites: Sites that take part.
        training_sites: Sites that keep enough rows to train on.
        largest_site: The most rows that one site trains on per round, without a gate and with it.
        site_seconds: Seconds of the slowest site, here, with four fifths of the rows: of a whole run by averaging, and
            of a run with the gate until rows have left, without the messages of a secure count.
        metric: "accuracy", or "r2" where the target is a number.
        everybody: Accuracy on all held-out rows.
        rare: On held-out rows whose key is too rare to pass; None where there are none.
        frequent: On the others; None where there are none.
        recommendation: "partial" or "averaging".
        because: Why, in one sentence.
        notes: What to know beside it.
    """

    rows: int
    shared: int
    share: float
    sites: int
    training_sites: int
    largest_site: tuple[int, int]
    site_seconds: Mapping[str, float]
    metric: Literal["accuracy", "r2"]
    everybody: GroupForecast
    rare: GroupForecast | None
    frequent: GroupForecast | None
    recommendation: Literal["partial", "averaging"]
    because: str
    notes: tuple[str, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """The forecast as JSON has it."""
        return asdict(self) | {"largest_site": list(self.largest_site), "notes": list(self.notes)}


class _Enough(Exception):  # noqa: N818 - nothing went wrong
    """Ends a run whose rows are counted."""


@dataclass(frozen=True, kw_only=True)
class _Fixed(Simulation):
    """A simulation over rows that were dealt out before. It notes how long sites take until rows have left."""

    population: Population = field(repr=False)
    until_shared: list[float] = field(default_factory=list)
    """Seconds of the slowest site, one entry per run with a gate."""

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """The rows given."""
        del plan, streams
        return self.population

    def engine(self, ready: RunContext) -> LocalEngine:
        """The engine of a simulation, watched when rows are asked for."""
        made = super().engine(ready)
        exchange = made.exchange

        def watched(ask: Ask) -> Replies:
            return self.at_gate(made, ask, exchange) if ask.task is SHARE else exchange(ask)

        setattr(made, "exchange", watched)  # noqa: B010 - one engine is watched, not its class
        return made

    def at_gate(self, engine: LocalEngine, ask: Ask, exchange: Callable[[Ask], Replies]) -> Replies:
        """Ask for the rows that pass the gate."""
        replies = exchange(ask)
        self.until_shared.append(engine.costs.slowest_site)
        return replies


@dataclass(frozen=True, kw_only=True)
class _Counting(_Fixed):
    """The same up to the gate: sites count the rows that they would send, and the run ends there."""

    counted: dict[str, int] = field(default_factory=dict)

    def at_gate(self, engine: LocalEngine, ask: Ask, exchange: Callable[[Ask], Replies]) -> Replies:
        """Count the rows that pass the gate of every site that would answer.

        Raises:
            RefusedError: Keys passed the gate, and no site can release a row.
        """
        del exchange
        absent = absent_sites(engine.faults, ask.to, engine.streams, task=ask.task.name, round_number=ask.round)
        request = ask.request(engine.approved, engine.streams, ask.payload, "")
        for name in ask.to:
            if name not in absent:
                self.counted[name] = rows_to_share(engine.sites[name], request)
        approved = ask.payload.arrays.get("f", ())
        require_released(config_of(engine.approved).gate, sum(self.counted.values()), len(approved))
        raise _Enough


@dataclass(frozen=True)
class _Compared:
    """One repetition: the score of every held-out row with and without the gate, and which keys are rare."""

    partial: Floats
    averaging: Floats
    rare: Mask
    seconds: Mapping[str, float]
    """Of the slowest site, by averaging and until the gate let rows out."""
    is_classifier: bool


def forecast(plan: Plan, *, seed: int = 0, tables: dict[str, pl.DataFrame] | None = None) -> Forecast:
    """Forecast what the gate of a plan would do.

    Args:
        plan: A plan of the method `partial`.
        seed: Which rows a run with this seed would train on; the same seed gives the same forecast.
        tables: By name, instead of the files that the plan names.

    Returns:
        The forecast.

    Raises:
        ConfigError: The plan has another method, or its rows arrive over time.
        KohortError: The plan or its tables are at fault, as in a run.
    """
    _gate_of(plan)
    if plan.sites.arrive is not None:
        raise ConfigError("rows arrive over time in this plan", hint="Forecast without sites.arrive")
    whole = _without_test(populate(plan, Streams.seeded(seed), tables=tables))
    sent = _count(plan, whole, seed)
    plans = _plans_of(plan, whole)
    rare = _rare(plan, whole)
    compared = [_compare(plans, whole, rare, seed + repeat) for repeat in range(REPEATS)]
    return _summed_up(plan, whole, sent, compared)


def _count(plan: Plan, whole: Population, seed: int) -> dict[str, int]:
    """How many rows each site would send."""
    place = _Counting(population=whole)
    with suppress(_Enough):
        run(_counted_here(plan), seed=seed, backend=place)
    return place.counted


def _gate_of(plan: Plan) -> Gate:
    if not isinstance(plan.config, Partial):
        raise ConfigError(
            f"a forecast is about the gate of a partial federation, and the method is {plan.method!r}",
            hint='Write [method] name = "partial" and [method.gate]',
        )
    return plan.config.gate


def _without_test(population: Population) -> Population:
    """The same sites, blind to the test rows."""
    return replace(population, test=population.test.head(0), test_sites=None)


def _changed(plan: Plan, **sections: Mapping[str, Any]) -> Plan:
    """The plan with some keys of some sections replaced."""
    raw = plan.to_mapping()
    return load_plan({**raw, **{name: {**raw[name], **keys} for name, keys in sections.items()}}, complete=True)


def _with_gate(plan: Plan, **keys: Any) -> Plan:
    gate = {**plan.to_mapping()["method"]["gate"], **keys}
    if gate["released"] == "raw":  # then the plan's own policy decides about raw rows, and about counts in clear, too
        return _changed(plan, method={"gate": gate})
    return _changed(plan, method={"gate": gate}, policy={"raw": True})


def _counted_here(plan: Plan, **keys: Any) -> Plan:
    """The plan with a count in clear: it lets the same rows pass as a secure one, and only this process sees it."""
    return _with_gate(plan, **keys, count="local" if _gate_of(plan).count == "local" else "global")


class _Plans(NamedTuple):
    """What is run in every repetition."""

    gated: Plan
    averaging: Plan


def _plans_of(plan: Plan, whole: Population) -> _Plans:
    """The plan for fewer rows, and one whose gate lets no row pass."""
    closed = {"rule": "k-anonymity", "k": whole.frame.height + 1, "l": None, "t": None, "per_site": {}}
    return _Plans(_counted_here(plan, **_reduced(_gate_of(plan))), _with_gate(plan, **closed, count="local"))


def _compare(plans: _Plans, whole: Population, rare: Mask, seed: int) -> _Compared:
    part, aside, places = _held_out(whole, seed)
    place = _Fixed(population=part)
    shared = run(plans.gated, seed=seed, backend=place)
    averaged = run(plans.averaging, seed=seed, backend=place)
    known = aside.filter(pl.Series(usable := _predictable(averaged.model, aside)))
    return _Compared(
        partial=_scores(shared.model, known),
        averaging=_scores(averaged.model, known),
        rare=rare[places][usable],
        seconds={"averaging": averaged.seconds["slowest_site"], "gate": place.until_shared[0]},
        is_classifier=averaged.model.encoder.classes is not None,
    )


def _reduced(gate: Gate) -> dict[str, Any]:
    """The thresholds that count rows, as many times lower as there are fewer rows; of the plan and of single sites."""
    counted = ("k", "l") if count_unit(gate.rule) == "key+sensitive" else ("k",)

    def lower(key: str, value: float) -> float:
        return max(2, round(value * (1 - HELD_OUT))) if key in counted else value

    own = {
        site: {key: lower(key, value) for key, value in rules.given().items()} for site, rules in gate.per_site.items()
    }
    return {key: lower(key, value) for key in counted if (value := getattr(gate, key)) is not None} | {"per_site": own}


def _held_out(whole: Population, seed: int) -> tuple[Population, pl.DataFrame, NDArray[np.int64]]:
    """The sites without a fifth of their rows, or persons; those rows; and their places among all."""
    generator = Streams.seeded(seed).generator("forecast", "validation")
    person = person_column(whole.schema)
    who = np.arange(whole.frame.height) if person is None else person_codes(whole.frame, person)
    aside = np.zeros(whole.frame.height, dtype=bool)
    for begin, end in zip(whole.starts[:-1], whole.starts[1:], strict=True):
        persons = np.unique(who[begin:end])
        chosen = generator.permutation(persons)[: round(HELD_OUT * len(persons))]
        aside[begin:end] = np.isin(who[begin:end], chosen)
    aside = np.isin(who, who[aside])  # a person with rows at several sites is held out at all of them
    sizes = np.add.reduceat(~aside, whole.starts[:-1])
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    part = replace(whole, frame=whole.frame.filter(pl.Series(~aside)), starts=starts)
    return part, whole.frame.filter(pl.Series(aside)), np.flatnonzero(aside)


def _rare(plan: Plan, whole: Population) -> Mask:
    """Which training rows have a key that too few rows, or persons, share for the plan's gate."""
    gate, schema = _gate_of(plan), whole.schema
    person = person_column(schema)
    cuts = whole.starts if gate.count == "local" else np.array([0, whole.frame.height])
    found = []
    for begin, end in pairwise(cuts.tolist()):
        frame = whole.frame[begin:end]
        keys = count_keys(frame, quasi=schema.quasi, sensitive=schema.target, rule=gate.rule, key=gate.key)
        counts = count_groups(keys, None if person is None else person_codes(frame, person))
        found.append(counts[keys.codes])
    thresholds = [threshold_of(rules_at(gate, site)) for site in whole.names]
    rare: Mask = np.concatenate(found) < np.repeat(thresholds, np.diff(whole.starts))
    return rare


def _predictable(model: Model, frame: pl.DataFrame) -> Mask:
    return np.asarray(model.encoder.predictable(frame), dtype=bool)


def _scores(model: Model, frame: pl.DataFrame) -> Floats:
    """Per row: whether the class is right; of a number 1 minus the squared error over the target's variance."""
    target = str(model.encoder.schema.target)
    said, truth = model.predict(frame), frame[target]
    if model.encoder.classes is not None:
        right = category_text(pl.Series(said)) == category_text(truth)
        return np.asarray(right.fill_null(value=False).to_numpy(), dtype=np.float64)
    numbers = truth.cast(pl.Float64).to_numpy()
    spread = float(np.var(numbers)) or 1.0
    return np.asarray(1 - np.square(np.asarray(said, dtype=np.float64) - numbers) / spread, dtype=np.float64)


def _group(compared: list[_Compared], which: list[Mask]) -> GroupForecast | None:
    """Both scores of a group of rows and their difference, with a margin; None where no row is in it."""
    pairs = [(one.partial[rows], one.averaging[rows]) for one, rows in zip(compared, which, strict=True) if rows.any()]
    if not pairs:
        return None
    gains = np.concatenate([with_gate - without for with_gate, without in pairs])
    between = np.array([float((with_gate - without).mean()) for with_gate, without in pairs])
    spread = float(between.var(ddof=1)) / len(between) if len(between) > 1 else 0.0
    return GroupForecast(
        rows=len(gains),
        partial=float(np.concatenate([one for one, _ in pairs]).mean()),
        averaging=float(np.concatenate([one for _, one in pairs]).mean()),
        gain=float(gains.mean()),
        margin=CERTAIN * sqrt(float(gains.var()) / len(gains) + spread),
    )


def _summed_up(plan: Plan, whole: Population, sent: Mapping[str, int], compared: list[_Compared]) -> Forecast:
    sizes = dict(zip(whole.names, np.diff(whole.starts).tolist(), strict=True))
    kept = {name: size - sent.get(name, 0) for name, size in sizes.items()}
    trains = {name: count for name, count in kept.items() if count >= plan.policy.min_rows}
    everybody = _group(compared, [np.ones(len(one.rare), dtype=bool) for one in compared])
    if everybody is None:
        raise ConfigError("no row is left to measure on", hint="Forecast with larger tables")
    rare = _group(compared, [one.rare for one in compared])
    shared = sum(sent.values())
    recommendation, because = _recommended(shared, everybody, rare)
    return Forecast(
        rows=whole.frame.height,
        shared=shared,
        share=shared / whole.frame.height,
        sites=len(sizes),
        training_sites=len(trains),
        largest_site=(max(sizes.values()), max(trains.values(), default=0)),
        site_seconds={name: max(one.seconds[name] for one in compared) for name in ("averaging", "gate")},
        metric="accuracy" if compared[0].is_classifier else "r2",
        everybody=everybody,
        rare=rare,
        frequent=_group(compared, [~one.rare for one in compared]),
        recommendation=recommendation,
        because=because,
        notes=_notes(plan, whole, kept, trains),
    )


def _recommended(
    shared: int, everybody: GroupForecast, rare: GroupForecast | None
) -> tuple[Literal["partial", "averaging"], str]:
    """What to do, and why."""
    said = f"{100 * everybody.gain:+.1f} points (95 %: within {100 * everybody.margin:.1f})"
    if not shared:
        return "averaging", "no row passes the gate, so it only costs a count"
    if everybody.gain < -everybody.margin:
        return "averaging", f"the gate costs accuracy: {said}"
    if everybody.gain <= everybody.margin:
        return "averaging", f"no clear gain: {said}, and averaging shares no rows"
    if rare is not None and rare.gain < -rare.margin:
        lost = f"{100 * rare.gain:+.1f} points (within {100 * rare.margin:.1f})"
        return "partial", f"the gate gains {said}, but people with rare keys lose: {lost}"
    return "partial", f"the gate gains {said}, and people with rare keys do not clearly lose"


def _notes(plan: Plan, whole: Population, kept: Mapping[str, int], trains: Mapping[str, int]) -> tuple[str, ...]:
    idle = {name: count for name, count in kept.items() if name not in trains and count}
    notes = [
        f"measured on a fifth of every site's training rows, {REPEATS} times; no test row was looked at",
        "seconds are of this machine with four fifths of the rows, without the messages of a secure count; a gate is a "
        "single stage",
    ]
    if idle:
        notes.append(
            f"{sum(idle.values()):,} of {whole.frame.height:,} rows would be learned by nobody: {len(idle)} sites keep "
            f"fewer than policy.min_rows = {plan.policy.min_rows} rows"
        )
    return tuple(notes)
