"""Attacks on the totals of a one-shot fit: from what the hub opened, or what each site sent it in mode "paper"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.evaluate.attacks.gram import (
    Block,
    Recovered,
    factor_of_gram,
    recover_rows,
    singled_out,
    unscaled,
)
from kohort.evaluate.attacks.rebuilt import rebuilt_finding
from kohort.methods.oneshot.design import InputCells, Layout
from kohort.methods.oneshot.fit import decoded
from kohort.methods.oneshot.paper import SEND_FACTORS
from kohort.methods.oneshot.state import FILE, OneShotState, load_state
from kohort.models.closed_form.statistics import Statistics, statistics_of_sites, unpack
from kohort.models.rows import Rows, encode_rows, stack
from kohort.runs.auditing.encoded import blocks_of
from kohort.runs.auditing.replay import Replay

__all__ = ["OpenedTotal", "opened_totals", "scaled_back", "totals_findings"]

NODES: Final = 2_000
"""How long the search through an opened total may take; those of few rows end by themselves long before."""
_BY_HUB: Final = "hub"
_NEAR: Final = 1e-3
_WHOLE: Final = 0.5
_WITH_KEY_HOLDER: Final = ("bfv", "ckks")
_MOST_SITES: Final = 20
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


def scaled_back(factor: Floats, layout: Layout) -> Floats:
    """The factor of [1, x] with numbers of x on [0, 1], from a factor on the layout's scale, which is [-1, 1].

    Args:
        factor: A factor of the sites' total, [1 + columns, rank].
        layout: Which columns are numbers.

    Returns:
        The factor [1 + columns, rank]; categories stay as they are.
    """
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
    if replay.plan.config.dp is not None:
        return [_not("the totals have noise, and their epsilon bounds every attack")]
    return [_on_totals(replay, state), *_by_coalitions(replay, state)]


def _not(why: str) -> Finding:
    return not_attacked("reconstruction: opened totals", "reconstruction", on="totals of rows", by=_BY_HUB, why=why)


def _on_factors(replay: Replay) -> Finding:
    """Rebuild every site from its U S."""
    encoder = replay.outcome.model.encoder
    ask, replies = next((ask, replies) for ask, replies in replay.recorded if ask.task.name == SEND_FACTORS.name)
    del ask
    layout = Layout.of(replay.plan.config.oneshot, encoder, InputCells.whole(encoder.width))
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


def _by_coalitions(replay: Replay, state: OneShotState) -> list[Finding]:
    """Hub and all sites but one have the last site's total; hub and key-holder can open every site's."""
    sizes = dict(zip(replay.population.names, np.diff(replay.population.starts).tolist(), strict=True))
    ordered = sorted(state.members, key=lambda name: (sizes[name], name))
    attack = "reconstruction: difference of totals"
    found = [_on_sites(replay, state, ordered[:1], attack, by="hub and all sites but one")]
    if replay.plan.config.secure.sum in _WITH_KEY_HOLDER:
        attack = "reconstruction: totals of single sites"
        found.append(_on_sites(replay, state, ordered[:_MOST_SITES], attack, by="hub and key-holder", decrypts=True))
    return found


def _on_sites(
    replay: Replay, state: OneShotState, sites: Sequence[str], attack: str, *, by: str, decrypts: bool = False
) -> Finding:
    """Attack the totals of single sites: what a site encrypted, or the opened total minus what all others sent."""
    layout = state.layout
    total = np.sum([decoded(layout, batch.total)[0].sum(axis=0) for batch in state.batches], axis=0)
    names = sorted(state.members)
    each = statistics_of_sites(
        layout.design, stack([_rows(replay, name) for name in names]), transform=layout.transform
    )
    truth, found = [], []
    for site in sites:
        sent = each[names.index(site)]
        own = unpack(layout.design, sent if decrypts else total - (each.sum(axis=0) - sent))
        kept = _inputs(replay, site, state.cells)
        if abs(own.rows - len(kept)) > _WHOLE:
            why = "rows with rare categories took no part, so that totals of single sites do not add up"
            return not_attacked(attack, "reconstruction", on="totals of single sites", by=by, why=why)
        opened = _opened(state, own)
        truth.append(kept)
        found.append(_merged([opened.read_off(), opened.rebuilt()]))
    return _rebuilt(attack, truth, found, on=f"totals of {len(sites)} of the smallest sites", by=by)


def _rows(replay: Replay, site: str) -> Rows:
    names, starts = replay.population.names, replay.population.starts
    place = names.index(site)
    encoder = replay.outcome.model.encoder
    frame = replay.population.frame[int(starts[place]) : int(starts[place + 1])]
    return encode_rows(encoder, frame.filter(encoder.within(frame)))


def _inputs(replay: Replay, site: str, cells: InputCells | None) -> Floats:
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
