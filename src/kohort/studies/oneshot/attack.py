"""What the messages disclose: rows rebuilt from U S, from secure sums and from opened totals, on one-hot Adult."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks import (
    Block,
    Grid,
    OneHot,
    factor_of_gram,
    recover_rows,
    recovery_rate,
    singled_out,
    unscaled,
)
from kohort.methods.oneshot.design import Cells, Layout, OneShotSection
from kohort.methods.oneshot.fit import decoded
from kohort.methods.oneshot.paper_factors import factor_of_site
from kohort.methods.oneshot.state import FILE, load_state
from kohort.models.closed_form.statistics import unpack
from kohort.models.rows import Rows, encode_rows
from kohort.rng import Streams
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run
from kohort.runs.simulation import populate
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.registry import Say
from kohort.tables.blocks import CategoryBlock
from kohort.tables.encoder import Encoder

__all__ = ["adult_onehot", "attack", "blocks_of", "opened_total", "paper_factor"]

NUMBERS = {"age": 74, "education_num": 16, "hours_per_week": 99}
"""Whole numbers and how many values each can take."""


def adult_onehot(*, sites: int, scheme: str = "masks", min_cell: int = 10) -> Plan:
    """Adult with indicators, the encoding on which the attack works best."""
    return load_plan(
        {
            "data": {
                "table": "adult:train",
                "target": "income",
                "drop": ["education", "fnlwgt", "capital_gain", "capital_loss"],
                "missing": "drop",
                "encoding": "onehot",
                "test": 0.0,
            },
            "sites": {"count": sites},
            "model": {"dtype": "float64"},
            "method": {
                "name": "oneshot",
                "secure": {"sum": scheme},
                "oneshot": {"min_rows": 1, "min_cell": min_cell},
            },
            "policy": {"min_rows": 1, "pairs": "open"},
        }
    )


def blocks_of(encoder: Encoder, cells: Cells | None = None) -> list[Block]:
    """What an attacker knows of [1, x]: where indicators lie and which values numbers can take, on [0, 1]."""
    target = (Cells.whole(encoder.width) if cells is None else cells).target + 1
    found: list[Block] = []
    column = 0
    for block in encoder.blocks:
        places = target[column : column + len(block.features)]
        if isinstance(block, CategoryBlock):
            found.append(OneHot(int(places[places > 0].min()), int(places.max()) + 1))
        else:
            steps = NUMBERS[block.name] - 1
            found.append(Grid(int(places[0]), 0.0, 1 / steps, steps + 1))
        column += len(block.features)
    return found


def _adult() -> tuple[Encoder, Rows]:
    from kohort.tables.domain import declared_domain

    population = populate(adult_onehot(sites=1), Streams.seeded(0))
    domain = declared_domain(population.schema, missing="drop")
    if domain is None:
        raise AssertionError("Adult's codebook declares every column")
    encoder = Encoder(population.schema, domain, encoding="onehot", dtype="float64")
    return encoder, encode_rows(encoder, population.frame)


def paper_factor(encoder: Encoder, rows: Rows) -> NDArray[np.float64]:
    """What a site sends in mode paper, as the hub reads it: the public scale and slope taken off."""
    layout = Layout.of(OneShotSection(mode="paper"), encoder, Cells.whole(encoder.width))
    sent = factor_of_site(layout.design, layout.inputs(rows.x), rows.y).factors[0] / layout.design.slopes[1]
    half = np.where(layout.numeric, 0.5, 0.0)
    return unscaled(sent, half, np.where(layout.numeric, 0.5, 1.0))


@dataclass(frozen=True, eq=False)
class Opened:
    """The total of a run as an attacker reads it: the Gram matrix of [1, x] with x on [0, 1], and its columns."""

    gram: NDArray[np.float64]
    blocks: list[Block]
    indicators: list[int]
    """Rows of the matrix that belong to a category."""

    @property
    def rarest(self) -> int:
        """Persons of the rarest category in it."""
        return round(float(np.diag(self.gram)[self.indicators].min()))

    @property
    def persons(self) -> int:
        """Records read off the row of a category that occurs once."""
        return singled_out(self.gram, self.blocks).count

    def rebuilt(self, *, most_nodes: int = 20_000) -> int:
        """Rows the search finds in the matrix as a whole."""
        return recover_rows(factor_of_gram(self.gram), self.blocks, most_nodes=most_nodes).count


def opened_total(files: bytes) -> Opened:
    """The total that the hub of a run opened."""
    state = load_state(files)
    layout = state.layout
    gram = unpack(layout.design, decoded(layout, state.batches[0].total)[0, 0]).gram
    half = np.where(layout.numeric, 0.5, 0.0)
    factor = unscaled(factor_of_gram(gram), half, np.where(layout.numeric, 0.5, 1.0))
    indicators = (np.flatnonzero(~layout.numeric) + 1).tolist()
    return Opened(factor @ factor.T, blocks_of(state.encoder, state.cells), indicators)


def attack(*, sizes: Sequence[int], sites: int, say: Say) -> Part:
    """Shares of sites rebuilt whole from U S, and persons read off totals with and without minimum cells."""
    encoder, rows = _adult()
    blocks, random = blocks_of(encoder), np.random.default_rng(1)
    lines = []
    for size in sizes:
        say(f"attack: sites of {size} rows")
        truth, factors = [], []
        for _ in range(sites):
            chosen = np.sort(random.choice(rows.count, size, replace=False))
            own = Rows(np.ascontiguousarray(rows.x[chosen]), np.ascontiguousarray(rows.y[chosen]))
            truth.append(np.concatenate([np.ones((size, 1)), own.x], axis=1))
            factors.append(paper_factor(encoder, own))
        found = recovery_rate(truth, factors, blocks)
        lines.append(Found(f"mode paper, {size} rows: sites rebuilt whole (%)", 100 * found.sites))
        masked = [random.integers(0, 2**62, factor.shape).astype(np.float64) / 2**32 for factor in factors]
        hidden = recovery_rate(truth, masked, blocks)
        lines.append(Found(f"default mode, {size} rows: rows rebuilt from a message (%)", 100 * hidden.rows))
    for least, words in ((1, "without minimum cells"), (10, "with minimum cells of 10 persons")):
        outcome = run(adult_onehot(sites=10, scheme="none", min_cell=least), seed=0)
        opened = opened_total(outcome.files[FILE])
        lines += [
            Found(f"opened total of Adult, {words}: persons of the rarest category", opened.rarest),
            Found(f"opened total of Adult, {words}: persons read off", opened.persons),
            Found(f"opened total of Adult, {words}: rows rebuilt", opened.rebuilt(most_nodes=2_000)),
        ]
    return Part([ResultTable("Rows rebuilt from what the hub receives", "not in the paper", lines)])
