"""Attacks on the totals of a one-shot fit: from what the hub opened, or what each site sent it in mode "paper"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.evaluate.attacks.gram import (
    Block,
    Grid,
    OneHot,
    Recovered,
    factor_of_gram,
    recover_rows,
    singled_out,
    unscaled,
)
from kohort.evaluate.attacks.rebuilt import rebuilt_finding
from kohort.methods.oneshot.design import Cells, Layout
from kohort.methods.oneshot.fit import decoded
from kohort.methods.oneshot.paper import SEND_FACTORS
from kohort.methods.oneshot.state import FILE, OneShotState, load_state
from kohort.models.closed_form.statistics import Statistics, statistics_of_sites, unpack
from kohort.models.rows import Rows, encode_rows, stack
from kohort.runs.auditing.replay import Replay
from kohort.tables.blocks import CategoryBlock, ItemsBlock, NumberBlock
from kohort.tables.encoder import Encoder

__all__ = ["OpenedTotal", "blocks_of", "opened_totals", "scaled_back", "totals_findings"]

NODES: Final = 2_000
"""How long the search through an opened total may take; those of few rows end by themselves long before."""
_BY_HUB: Final = "hub"
_NEAR: Final = 1e-3
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OpenedTotal:
    """One opened total as an attacker reads it: the Gram matrix of [1, x] with x on [0, 1], and what its columns are.

    Attributes:
        gram: The matrix.
        blocks: How columns are encoded.
        indicators: Its rows that belong to a category.
    """

    gram: Floats
    blocks: Sequence[Block]
    indicators: Sequence[int]

    @property
    def rarest(self) -> int:
        """Persons of the rarest category in it."""
        return round(float(np.diag(self.gram)[list(self.indicators)].min()))

    def read_off(self) -> Recovered:
        """Records read off the line of a category that occurs once."""
        return singled_out(self.gram, self.blocks)

    def rebuilt(self, *, most_nodes: int = NODES) -> Recovered:
        """Rows that the search finds in the matrix as a whole."""
        return recover_rows(factor_of_gram(self.gram), self.blocks, most_nodes=most_nodes)


def blocks_of(encoder: Encoder, cells: Cells | None = None) -> list[Block]:
    """What an attacker knows of [1, x]: where indicators lie and which values numbers can take, on [0, 1].

    Args:
        encoder: The public encoder.
        cells: Which features were summed; None for all as they are.

    Returns:
        One block per column of a table; a number with a fraction may have any value.
    """
    target = (Cells.whole(encoder.width) if cells is None else cells).target + 1
    found: list[Block] = []
    column = 0
    for block in encoder.blocks:
        places = target[column : column + len(block.features)]
        column += len(block.features)
        if (places > 0).any():
            found += _block(block, places)
    return found


def _block(block: Any, places: NDArray[np.int64]) -> Iterator[Block]:
    if isinstance(block, CategoryBlock) and len(places) > 1:
        yield OneHot(int(places[places > 0].min()), int(places.max()) + 1)
    elif isinstance(block, ItemsBlock):
        yield from (Grid(int(place), 0.0, 1.0, 2) for place in np.unique(places[places > 0]))
    else:
        steps = _steps(block)
        yield Grid(int(places[0]), 0.0, 1 / steps if steps else 0.0, steps + 1)
        yield from (Grid(int(place), 0.0, 1.0, 2) for place in places[1:] if place > 0)  # whether a value is missing


def _steps(block: CategoryBlock | NumberBlock) -> int:
    """Steps between the values that a column of one number can take; 0 for any number."""
    if isinstance(block, CategoryBlock):
        return max(1, block.size - 1)
    if block.spec.bins is not None:
        return len(block.spec.bins)
    low, high = block.domain.bounds or (0.0, 0.0)
    whole = float(low).is_integer() and float(high).is_integer() and high > low
    return int(high - low) if whole and high - low <= 1_000 else 0


def scaled_back(factor: Floats, layout: Layout) -> Floats:
    """A factor of [1, x] with x on [0, 1], out of one on the layout's scale."""
    half = np.where(layout.numeric, 0.5, 0.0)
    return unscaled(factor, half, np.where(layout.numeric, 0.5, 1.0))


def opened_totals(files: bytes) -> list[OpenedTotal]:
    """Every total that the hub of a run opened: one per batch and fold.

    Args:
        files: The hub's file of a one-shot fit.

    Returns:
        The totals.
    """
    state = load_state(files)
    layout, found = state.layout, []
    for batch in (*state.batches, *state.left):
        found += [_opened(state, unpack(layout.design, fold)) for fold in decoded(layout, batch.total)[0]]
    return found


def _opened(state: OneShotState, statistics: Statistics) -> OpenedTotal:
    layout = state.layout
    factor = scaled_back(factor_of_gram(statistics.gram), layout)
    indicators = (np.flatnonzero(~layout.numeric) + 1).tolist()
    return OpenedTotal(factor @ factor.T, blocks_of(state.encoder, state.cells), indicators)


def totals_findings(replay: Replay) -> list[Finding]:
    """Attack what a one-shot fit sent: U S of every site in mode "paper", or the totals that were opened.

    Args:
        replay: The run.

    Returns:
        The findings; none for other methods.
    """
    if replay.plan.method != "oneshot":
        return []
    section = replay.plan.config.oneshot
    if section.mode == "paper":
        return [_on_factors(replay)]
    if FILE not in replay.outcome.files or section.features:
        why = "sums of random or binned features are not searched: rows are not on a grid there"
        if FILE not in replay.outcome.files:
            why = "the hub has no totals: sites sent them to each other"
        return [_not(why)]
    state = load_state(replay.outcome.files[FILE])
    if state.noise:
        return [_not("the totals have noise, and their epsilon bounds every attack")]
    return [_on_totals(replay, state), _by_all_but_one(replay, state)]


def _not(why: str) -> Finding:
    return not_attacked("reconstruction: opened totals", "reconstruction", on="totals of rows", by=_BY_HUB, why=why)


def _on_factors(replay: Replay) -> Finding:
    """Rebuild every site from its U S."""
    encoder = replay.outcome.model.encoder
    ask, replies = next((ask, replies) for ask, replies in replay.heard if ask.task.name == SEND_FACTORS.name)
    del ask
    layout = Layout.of(replay.plan.config.oneshot, encoder, Cells.whole(encoder.width))
    blocks, found, truth = blocks_of(encoder), [], []
    for site, payload in zip(replies.sites, replies.payloads(), strict=True):
        sent = payload.arrays["factors"][0] / layout.design.slopes[1]
        found.append(recover_rows(scaled_back(sent, layout), blocks, most_nodes=NODES))
        truth.append(_inputs(replay, site, None))
    return _rebuilt("reconstruction: rows from U S", truth, found, on="U S of each site, in clear", by=_BY_HUB)


def _on_totals(replay: Replay, state: OneShotState) -> Finding:
    """Read persons off the totals of all batches and folds."""
    truth = np.concatenate([_inputs(replay, site, state.cells) for site in replay.population.names])
    found = []
    for total in opened_totals(replay.outcome.files[FILE]):
        found += [total.read_off(), total.rebuilt()]
    return _rebuilt(
        "reconstruction: opened totals",
        [truth],
        [_merged(found)],
        on=f"totals of {len(state.members)} sites",
        by=_BY_HUB,
    )


def _by_all_but_one(replay: Replay, state: OneShotState) -> Finding:
    """The smallest site's own total is the opened one minus those of all others."""
    sizes = dict(zip(replay.population.names, np.diff(replay.population.starts).tolist(), strict=True))
    alone = min(state.members, key=lambda name: (sizes[name], name))
    layout, by = state.layout, "hub and all sites but one"
    total = np.sum([decoded(layout, batch.total)[0].sum(axis=0) for batch in state.batches], axis=0)
    rest = stack([_rows(replay, site) for site in sorted(state.members - {alone})])
    own = unpack(
        layout.design, total - statistics_of_sites(layout.design, rest, transform=layout.transform).sum(axis=0)
    )
    kept = _inputs(replay, alone, state.cells)
    if abs(own.rows - len(kept)) > 0.5:
        return not_attacked(
            "reconstruction: difference of totals", "reconstruction", on="the last site's own total", by=by,
            why="rows with rare categories took no part, so that the coalition's totals do not add up",
        )  # fmt: skip
    opened = _opened(state, own)
    found = _merged([opened.read_off(), opened.rebuilt()])
    return _rebuilt(
        "reconstruction: difference of totals",
        [kept],
        [found],
        on=f"the total of one site of {len(kept):,} rows",
        by=by,
    )


def _rows(replay: Replay, site: str) -> Rows:
    names, starts = replay.population.names, replay.population.starts
    place = names.index(site)
    encoder = replay.outcome.model.encoder
    frame = replay.population.frame[int(starts[place]) : int(starts[place + 1])]
    return encode_rows(encoder, frame.filter(encoder.within(frame)))


def _inputs(replay: Replay, site: str, cells: Cells | None) -> Floats:
    """The true rows [1, x] of a site, as the attack would have them."""
    x = _rows(replay, site).x
    own = x.astype(np.float64) if cells is None else np.asarray(cells.apply(x), dtype=np.float64)
    return np.hstack([np.ones((len(own), 1)), own])


def _merged(found: Sequence[Recovered]) -> Recovered:
    """All that is certain, once each."""
    certain = [row for one in found for row, sure in zip(one.rows, one.certain, strict=True) if sure]
    rows = np.unique(np.round(certain, 6), axis=0) if certain else np.zeros((0, found[0].rows.shape[1]))
    return Recovered(rows, np.ones(len(rows), dtype=bool), all(one.complete for one in found))


def _rebuilt(attack: str, truth: Sequence[Floats], found: Sequence[Recovered], *, on: str, by: str) -> Finding:
    """What is certain, counted against the true rows."""
    gave_up = not all(one.complete for one in found)
    return rebuilt_finding(
        attack,
        truth,
        [one.rows[one.certain] for one in found],
        near=_NEAR,
        on=on,
        by=by,
        note="the search gave up on some totals: too many rows fit the numbers" if gave_up else "",
    )
