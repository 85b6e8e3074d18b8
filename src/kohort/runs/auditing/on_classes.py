"""Attacks on classes that sites published: which finer values do they tell of the rows in them?"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from kohort.evaluate.attacks.downcoding import ATTACK, Recoded, downcode
from kohort.evaluate.attacks.finding import Finding, not_attacked
from kohort.methods.syntactic.anonymising import CODES, anonymise_rows
from kohort.methods.syntactic.exchange import PUBLISH
from kohort.methods.syntactic.item_columns import joined
from kohort.methods.syntactic.mapped_encoder import labels_of
from kohort.methods.syntactic.mapping.mapping import SiteMapping
from kohort.runs.auditing.on_model import NO_TEST_ROWS
from kohort.runs.auditing.replay import Replay

__all__ = ["classes_findings"]

_BY: Final = "anyone with the model"
_ON: Final = "classes of all sites"


def classes_findings(replay: Replay, *, seed: int = 0) -> list[Finding]:
    """Attack the classes that sites sent to the hub, which the model carries too.

    Args:
        replay: The run.
        seed: Of the draws.

    Returns:
        One finding; none where no site published classes.
    """
    recorded = next((replies for ask, replies in replay.recorded if ask.task.name == PUBLISH.name), None)
    if recorded is None:
        return []
    if not replay.population.test.height:
        return [not_attacked(ATTACK, "attribute", on=_ON, by=_BY, why=NO_TEST_ROWS)]
    mappings = [SiteMapping.from_bytes(payload.blobs["mapping"]) for payload in recorded.payloads()]
    if not mappings[0].quasi:
        return [not_attacked(ATTACK, "attribute", on=_ON, by=_BY, why="the classes hold items alone")]
    return [downcode(_recoded(replay, mappings), replay.population.test, on=_ON, by=_BY, seed=seed)]


def _recoded(replay: Replay, mappings: list[SiteMapping]) -> Recoded:
    """The published classes, and the rows in them."""
    cells = [
        pl.DataFrame({name: list(own) for name, own in zip(one.quasi, one.cells, strict=True)}) for one in mappings
    ]
    first = np.cumsum([0, *(one.count for one in mappings)])
    placed = [_rows_of(replay, one, int(begin)) for one, begin in zip(mappings, first[:-1], strict=True)]
    return Recoded(
        pl.concat(cells),
        np.repeat(np.arange(len(mappings)), [one.count for one in mappings]),
        pl.concat([rows for rows, _ in placed]),
        np.concatenate([classes for _, classes in placed]),
        labels_of(mappings[0], replay.population.schema),
    )


def _rows_of(
    replay: Replay, mapping: SiteMapping, first: int
) -> tuple[pl.DataFrame, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """A site's rows and their classes, made again: bets are judged by it, and never see it."""
    population, plan = replay.population, replay.plan
    place = population.names.index(mapping.site)
    rows = population.frame[int(population.starts[place]) : int(population.starts[place + 1])]
    encoder = replay.outcome.model.encoder
    codes = pl.Series(CODES, encoder.target(rows))
    sets = joined(rows, population.schema)
    made = anonymise_rows(sets, population.schema, plan.config.anonymise, k=mapping.k, codes=codes)
    return rows, made.result.cluster.astype(np.int64) + first
