"""What the messages disclose: rows rebuilt from U S and from opened totals, on one-hot Adult."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kohort.evaluate.attacks.gram import recovery_rate
from kohort.methods.oneshot.design import InputCells, Layout, OneShotSection
from kohort.methods.oneshot.paper_factors import factor_of_site
from kohort.methods.oneshot.state import FILE
from kohort.models.rows import Rows, encode_rows
from kohort.rng import Streams
from kohort.runs.auditing.encoded import blocks_of
from kohort.runs.auditing.on_totals import OpenedTotal, opened_totals, scaled_back
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run
from kohort.runs.simulation import populate
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.registry import Say
from kohort.tables.encoder import Encoder

__all__ = ["adult_onehot", "attack", "opened_total", "paper_factor"]


def adult_onehot(*, sites: int, scheme: str = "masks", min_cell: int = 10) -> Plan:
    """Adult with indicators, the encoding on which the attack works best.

    Args:
        sites: The number of sites.
        scheme: The secure sum.
        min_cell: The fewest persons of a category; 1 merges none.

    Returns:
        The plan, without test rows.
    """
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
                "oneshot": {**({"min_rows": 1} if scheme == "none" else {}), "min_cell": min_cell},
            },
            "policy": {"min_rows": 1, "pairs": "open"},
        }
    )


def _adult() -> tuple[Encoder, Rows]:
    from kohort.tables.domain import declared_domain

    population = populate(adult_onehot(sites=1), Streams.seeded(0))
    domain = declared_domain(population.schema, missing="drop")
    if domain is None:
        raise AssertionError("Adult's codebook declares every column")
    encoder = Encoder(population.schema, domain, encoding="onehot", dtype="float64")
    return encoder, encode_rows(encoder, population.frame)


def paper_factor(encoder: Encoder, rows: Rows) -> NDArray[np.float64]:
    """What the hub reads in a site's message in mode "paper": U S, without the public scale and slope.

    Args:
        encoder: The encoder that all sites share.
        rows: The site's encoded rows.

    Returns:
        A factor of [1, x], [1 + inputs, rank].
    """
    layout = Layout.of(OneShotSection(mode="paper"), encoder, InputCells.whole(encoder.width))
    sent = factor_of_site(layout.design, layout.inputs(rows.x), rows.y).factors[0] / layout.design.slopes[1]
    return scaled_back(sent, layout)


def opened_total(files: bytes) -> OpenedTotal:
    """The total that the hub of a run without folds opened.

    Args:
        files: The content of the file in which the hub keeps opened totals.

    Returns:
        The only total in it.
    """
    (total,) = opened_totals(files)
    return total


def attack(*, sizes: Sequence[int], sites: int, say: Say) -> Part:
    """Shares of sites rebuilt whole from U S, and persons read off totals with and without minimum cells.

    Args:
        sizes: Numbers of rows per site.
        sites: How many sites are drawn of each size.
        say: Takes lines about progress.

    Returns:
        One table.
    """
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
    for least, words in ((1, "without minimum cells"), (10, "with minimum cells of 10 persons")):
        outcome = run(adult_onehot(sites=10, scheme="none", min_cell=least), seed=0)
        opened = opened_total(outcome.files[FILE])
        lines += [
            Found(f"opened total of Adult, {words}: persons of the rarest category", opened.rarest),
            Found(f"opened total of Adult, {words}: persons read off", opened.read_off().count),
            Found(f"opened total of Adult, {words}: rows rebuilt", opened.rebuilt().count),
        ]
    return Part([ResultTable("Rows rebuilt from what the hub receives", "not in the paper", lines)])
