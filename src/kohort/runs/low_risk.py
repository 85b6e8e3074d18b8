"""Try settings out on rows of low risk alone.

Every site takes part with those of its rows that carry a low risk, as if they were all it has: some are held out to
measure on, and of the rest the same share as before is treated as the rows of low risk. Nothing is read from the other
rows, so choosing by these runs costs them nothing. The sites are smaller than they will be, and noise weighs more on
them.

Guarantee: no row of high risk and no row of the plan's test part is trained on, measured on or described.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError
from kohort.rng import Streams
from kohort.runs.backend import Simulation
from kohort.runs.config import Plan
from kohort.runs.simulation import Population
from kohort.tables.persons import hold_out, persons_of

__all__ = ["HELD_OUT", "LowRiskSimulation", "low_risk_only"]

HELD_OUT = 0.25
"""The share of the rows of low risk that settings are measured on."""


@dataclass(frozen=True)
class LowRiskSimulation(Simulation):
    """A simulation of the same sites with their rows of low risk alone."""

    def populate(self, plan: Plan, streams: Streams) -> Population:
        """As in a simulation, then without every other row."""
        if plan.data.validation is not None:
            raise ConfigError(
                "data.validation gives the hub rows of any risk",
                hint="Drop it and train.reject, or compare on all rows",
            )
        return low_risk_only(super().populate(plan, streams), streams)


def low_risk_only(whole: Population, streams: Streams) -> Population:
    """The part of a population on which settings are tried out: rows of low risk alone.

    Args:
        whole: The population.
        streams: Of the draw of test rows.

    Returns:
        The low-risk rows at their sites, some of them as test rows.

    Raises:
        ConfigError: The plan calls no row low-risk.
        DataError: There are too few of them.
    """
    if whole.low is None:
        hint = "Set sites.low_risk, or compare on all rows and pay for it"
        raise ConfigError("the plan says of no row that its risk is low", hint=hint)
    total = int(whole.low.sum())
    if total < 2:
        raise DataError(f"{total} rows of low risk cannot be tried out on", hint="Raise sites.low_risk")
    generator = streams.generator("rehearsal")
    of_low = np.concatenate(
        [start + np.arange(count) for start, count in zip(whole.starts[:-1], whole.low, strict=True)]
    )
    identifiers = whole.schema.identifiers
    persons = persons_of(whole.frame[identifiers[0]][of_low]) if identifiers else None
    is_test = hold_out(total, HELD_OUT, generator, persons)
    parts = np.split(is_test, np.cumsum(whole.low)[:-1])
    places, sizes, low, test_places, test_sites, done = [], [], [], [], [], 0
    for name, start, end, part in zip(whole.names, whole.starts[:-1], whole.starts[1:], parts, strict=True):
        who = None if persons is None else persons[done : done + len(part)]
        done += len(part)
        order = _shuffled(len(part), who, generator)
        kept = start + order[~part[order]]
        places.append(kept)
        sizes.append(len(kept))
        wanted = round(len(kept) * len(part) / int(end - start))
        low.append(wanted if who is None else _whole_persons(who[kept - start], wanted))
        test_places.append(start + order[part[order]])
        test_sites += [name] * int(part.sum())
    stays = np.flatnonzero(sizes)
    notes = (
        *whole.notes,
        f"tried out on {total:,} rows of low risk alone, {int(is_test.sum()):,} of them to measure on",
    )
    if len(stays) < len(sizes):
        notes += (f"{len(sizes) - len(stays)} sites have no row of low risk to train on and were left out",)
    return replace(
        whole,
        frame=whole.frame[np.concatenate(places)],
        names=tuple(whole.names[index] for index in stays),
        starts=np.concatenate([[0], np.cumsum(np.asarray(sizes)[stays])]).astype(np.int64),
        test=whole.frame[np.concatenate(test_places)],
        test_sites=tuple(test_sites),
        clusters=None if whole.clusters is None else whole.clusters[stays],
        low=np.asarray(low, dtype=np.int64)[stays],
        low_by_row=False,
        notes=notes,
    )


def _shuffled(rows: int, persons: NDArray[np.int64] | None, generator: np.random.Generator) -> NDArray[np.int64]:
    """Rows in a random order, those of a person side by side."""
    if persons is None:
        return generator.permutation(rows)
    return np.argsort(generator.permutation(int(persons.max(initial=0)) + 1)[persons], kind="stable")


def _whole_persons(persons: NDArray[np.int64], wanted: int) -> int:
    """How many rows from the beginning are nearest to `wanted` and hold all rows of their persons."""
    ends = np.flatnonzero(np.diff(persons)) + 1
    cuts = np.concatenate([[0], ends, [len(persons)]])
    return int(cuts[np.argmin(np.abs(cuts - wanted))])
