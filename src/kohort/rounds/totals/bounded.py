"""What a site adds to a private total: gradients of rows, or of persons, each bounded by the clip of the budget.

Three ways to bound a gradient, all with the same norm at most, so with the same event in the account:

- a row's gradient is clipped (the default; of a person one row is used);
- `dp.person_rows = "all"`: the mean of the gradients of all rows of a person is clipped, so every row takes part;
- `dp.normalise`: gradients are scaled to the clip whatever their norm was, so that no clip has to be chosen (Bu, Wang,
  Zha, Karypis: Automatic Clipping, NeurIPS 2023). Below a ten-thousandth of the clip a gradient keeps its direction and
  is scaled by a constant: one that is almost zero, as of a row that is predicted well, stays small.

A Poisson sample (`dp.sample`) is one of rows or of persons, by a coin that nobody else knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.models.dense.network import FloatArray, Network
from kohort.models.dp_sgd import fit
from kohort.models.dp_sgd.draws import RowSampler
from kohort.models.rows import Rows, StackedRows, stack
from kohort.protocol.plan.phases import DPSection, TrainingPhase
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Request
from kohort.rounds.phase_rows import rows_of, stacked_rows

__all__ = ["bounded_gradients"]

SMALLEST = 1e-4
"""Of the clip: gradients above this share of it are scaled to the clip, with `dp.normalise`."""
_NO_BOUND = 1e30
_PERSONS_AT_ONCE = 4096


@dataclass
class PersonsState(TaskState):
    """Cache: all rows of a site, those of one person side by side."""

    persons: StackedRows | None = None


def bounded_gradients(site: Site, request: Request, phase: TrainingPhase, start: FloatArray) -> NDArray[np.float64]:
    """The sum of the bounded gradients of a site's rows or persons, or of a sample of them.

    Args:
        site: The site.
        request: The request, which keys the sample.
        phase: The phase, with a budget.
        start: The weights.

    Returns:
        One number per weight; it protects nobody without noise.

    Raises:
        ConfigError: The model has no gradients of single rows.
        SiteError: A gradient is not finite.
    """
    network, dp = site.network, phase.dp
    if dp is None or not isinstance(network, Network):
        raise ConfigError("sums of clipped gradients need one of kohort's own networks", hint="Use mlp or logistic")
    if dp.person_rows == "all":
        return _of_persons(network, start, _drawn(site, request, _persons_of(site), dp), dp)
    chosen = stacked_rows([site], phase)
    if dp.sample < 1:
        chosen = stack([_rows_at(rows_of(site, phase), _places(site, request, rows_of(site, phase).count, dp.sample))])
    return _of_rows(network, start, chosen, dp)


def _of_rows(network: Network, start: FloatArray, rows: StackedRows, dp: DPSection) -> NDArray[np.float64]:
    """Every row's gradient, bounded."""
    if not dp.normalise:
        return np.asarray(fit.clipped_sums(network, start, rows, clip=dp.clip)[0])
    return np.asarray(fit.clipped_sums(network, start, rows, clip=SMALLEST * dp.clip)[0] / SMALLEST)


def _of_persons(network: Network, start: FloatArray, persons: StackedRows, dp: DPSection) -> NDArray[np.float64]:
    """The mean gradient of every person, bounded."""
    alone = np.flatnonzero(persons.counts == 1)
    rows = Rows(persons.x, persons.y, persons.weight)
    total = _of_rows(network, start, stack([_rows_at(rows, persons.starts[alone])]), dp)
    several = np.flatnonzero(persons.counts > 1)
    for begin in range(0, len(several), _PERSONS_AT_ONCE):
        some = persons.take(several[begin : begin + _PERSONS_AT_ONCE])
        means = fit.clipped_sums(network, start, some, clip=_NO_BOUND) / some.counts[:, None]
        bound = SMALLEST * dp.clip if dp.normalise else dp.clip
        total = total + fit.clip_update(means, bound).sum(axis=0) * (dp.clip / bound)
    return np.asarray(total)


def _persons_of(site: Site) -> StackedRows:
    """All rows of a site, those of one person side by side, persons in the order of their first rows."""
    state, every = site.state(PersonsState), site.training_rows
    if every is None or not site.schema.identifiers:
        raise ConfigError(
            'dp.person_rows = "all" needs a column that tells persons apart', hint="Name it in data.person"
        )
    if state.persons is None:
        column = site.table.rows()[site.schema.identifiers[0]].alias("person").to_frame().with_row_index("place")
        grouped = column.group_by("person", maintain_order=True).agg(pl.col("place"))
        counts = grouped["place"].list.len().to_numpy().astype(np.int64)
        order = grouped["place"].explode().to_numpy().astype(np.int64)
        rows = _rows_at(every, order)
        state.persons = StackedRows(rows.x, rows.y, rows.weight, np.cumsum(counts) - counts, counts)
    return state.persons


def _drawn(site: Site, request: Request, persons: StackedRows, dp: DPSection) -> StackedRows:
    return persons if dp.sample == 1 else persons.take(_places(site, request, persons.sites, dp.sample))


def _places(site: Site, request: Request, count: int, rate: float) -> NDArray[np.int64]:
    """A Poisson sample of places; it may be empty."""
    sampler = RowSampler(site.streams.bytes("sample", request.digest), rate=rate, count=count)
    places, begins, ends = sampler.batches(1)
    return np.asarray(places[begins[0] : ends[0]], dtype=np.int64)


def _rows_at(rows: Rows, places: NDArray[np.int64]) -> Rows:
    return Rows(rows.x[places], rows.y[places], None if rows.weight is None else rows.weight[places])
