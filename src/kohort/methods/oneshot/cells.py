"""Minimum cell counts: merge rare categories before any statistics are summed.

A total can disclose a person: the row of a Gram matrix for a country that occurs once is that person's record. So all
sites count, with keys hidden by a secret that the hub does not know, how many persons have each indicator and each
class. Indicators of at least `min_cell` persons stay; the others of a column are merged into "other". If even these are
too few together, their rows take no part. A class with too few persons ends the run before anything is summed.

What is disclosed: the hub sees capped totals of opaque keys and, from the sites, which indicators are frequent; a site
learns the same. Nobody learns a count below `min_cell`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.methods.oneshot.closed_counting import ClosedCount
from kohort.methods.oneshot.design import InputCells, is_indicator, section_of
from kohort.models.closed_form.statistics import fold_of
from kohort.models.rows import Rows
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Public
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.counting import KeyCounts
from kohort.tables.blocks import CategoryBlock
from kohort.tables.encoder import Encoder
from kohort.tables.persons import shared_draws

__all__ = ["CELLS", "COUNT", "agree_on_cells", "cells_at", "cells_blocks", "needs_cells", "rows_at"]

_ABSENT = "~"
_FREQUENT = Public(what="categories that enough persons share")


@dataclass
class CellsState(TaskState):
    """What a site knows about rare categories."""

    frequent: NDArray[np.bool_] | None = None
    """Which features enough persons share."""
    classes: bool = True
    """Whether every class has enough persons."""
    others: NDArray[np.bool_] | None = None
    """Which columns have enough persons among their rare categories."""


def needs_cells(approved: ApprovedPlan, encoder: Encoder) -> bool:
    """Whether sites count categories before the statistics are summed.

    Args:
        approved: The approved plan. With a budget nothing is counted: noise covers a person, and a count would cost
            budget.
        encoder: The encoder that all sites share.

    Returns:
        True if some feature is an indicator and the plan has no budget.
    """
    return bool(is_indicator(encoder).any()) and approved.phase(0).dp is None


def rows_at(site: Site) -> Rows:
    """The site's encoded training rows, those of rare categories included.

    Args:
        site: The site.

    Returns:
        The rows.

    Raises:
        SiteError: The site has not enrolled.
    """
    rows = site.training_rows
    if rows is None:
        raise SiteError(f"site {site.name!r} was asked for statistics before it enrolled")
    return rows


def cells_at(site: Site) -> tuple[InputCells, NDArray[np.bool_] | None]:
    """Which features are inputs, and which rows of this site take part.

    Args:
        site: The site, which has enrolled.

    Returns:
        The cells after rare categories were merged, and one truth value per row; None where all rows take part.

    Raises:
        RefusedError: Rare categories have not been counted yet, a class has too few persons, or no category is
            frequent.
        SiteError: The site has not enrolled.
    """
    encoder = site.encoder
    if not needs_cells(site.plan, encoder):
        return InputCells.whole(encoder.width), None
    state = site.state(CellsState)
    frequent, others = state.frequent, state.others
    if frequent is None or others is None:
        raise RefusedError(f"site {site.name!r} was asked for statistics before rare categories were counted")
    if not state.classes:
        raise RefusedError(f"a class has fewer persons than min_cell, so site {site.name!r} takes no part")
    cells = InputCells.merged(encoder, frequent, others)
    if not cells.left_out:
        return cells, None
    return cells, np.asarray(~_rare_rows(site, encoder, frequent)[:, ~others].any(axis=1))


def _counted_by_person(site: Site, present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many persons, or rows where no identifier is declared, have each column of `present`."""
    identifiers = site.schema.identifiers
    if not identifiers:
        return np.asarray(present.sum(axis=0, dtype=np.int64))
    person = site.table.rows()[identifiers[0]].rank("dense").to_numpy().astype(np.int64)
    seen = [len(np.unique(person[column])) for column in present.T]
    return np.asarray(seen, dtype=np.int64)


def _keys(encoder: Encoder) -> list[bytes]:
    """Keys of every indicator, of the absence of lone indicators, and of every class, in the order of `_present`."""
    lone = _stands_alone(encoder)
    names = [name for name, own in zip(encoder.feature_names, is_indicator(encoder), strict=True) if own]
    absent = [name + _ABSENT for name, own in zip(encoder.feature_names, lone, strict=True) if own]
    return [key.encode() for key in (*names, *absent, *(f"={label}" for label in encoder.classes or ()))]


def _stands_alone(encoder: Encoder) -> NDArray[np.bool_]:
    """Indicators that do not add up to one with others: items, missing values."""
    found = [not isinstance(block, CategoryBlock) for block in encoder.blocks for _ in block.features]
    return np.asarray(is_indicator(encoder) & np.asarray(found, dtype=bool))


def _present(site: Site, encoder: Encoder) -> NDArray[np.bool_]:
    rows = rows_at(site)
    has = rows.x > 0.5
    classes = rows.y[:, None] == np.arange(len(encoder.classes or ()))
    return np.concatenate([has[:, is_indicator(encoder)], ~has[:, _stands_alone(encoder)], classes], axis=1)


def _rare_rows(site: Site, encoder: Encoder, frequent: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows have a rare indicator of each column, [rows, columns]; rare items are ignored instead."""
    has = (rows_at(site).x > 0.5) & ~frequent & ~_items(encoder)
    ends = np.cumsum([len(block.features) for block in encoder.blocks])
    parts = np.split(has, ends[:-1], axis=1)
    return np.stack([part.any(axis=1) for part in parts], axis=1)


def _items(encoder: Encoder) -> NDArray[np.bool_]:
    found = [block.spec.kind == "items" for block in encoder.blocks for _ in block.features]
    return np.asarray(found, dtype=bool)


def _counts(site: Site) -> KeyCounts:
    """First the counts of all indicators; once the frequent ones are known, those of the merged rest of each column."""
    encoder = site.encoder
    frequent = site.state(CellsState).frequent
    if frequent is None:
        keys, present = _keys(encoder), _present(site, encoder)
    else:
        keys = [f"{block.name}={_ABSENT}".encode() for block in encoder.blocks]
        present = _rare_rows(site, encoder, frequent)
    folds = range(section_of(site.plan).deals)
    dealt = folds_at(site, len(folds))
    counts = np.concatenate([_counted_by_person(site, present & (dealt == fold)[:, None]) for fold in folds])
    keys = in_folds(keys, len(folds))
    there = np.flatnonzero(counts)
    return KeyCounts(
        keys=[keys[index] for index in there.tolist()],
        counts=counts[there],
        rows=len(present),
        cap=section_of(site.plan).min_cell,
    )


def folds_at(site: Site, folds: int) -> NDArray[np.int64]:
    """The fold of each of the site's rows: one partition per data version, whichever rows take part later.

    Rows of a person are in one fold, at all sites, by a hash of the identifier alone; other rows by their place and a
    key of the site.

    Args:
        site: The site, which has enrolled.
        folds: How many folds are opened.

    Returns:
        A fold per row; all zero where there is one.
    """
    rows = rows_at(site)
    dealt = fold_of(rows.count, folds=folds, key=site.row_key)
    if rows.person is None or folds == 1:
        return dealt
    of_person, named = shared_draws(rows.person, "folds of a one-shot fit")
    return np.where(named, (of_person % np.uint64(folds)).astype(np.int64), dealt)


def in_folds(keys: list[bytes], folds: int) -> list[bytes]:
    """The keys of every fold: where folds are opened, a category must be frequent in each of them.

    Args:
        keys: The keys of the whole table.
        folds: How many folds are opened.

    Returns:
        The same keys for a single fold; otherwise all keys of the first fold, then of the next.
    """
    return keys if folds == 1 else [key + f"#{fold}".encode() for fold in range(folds) for key in keys]


def _closed_keys(site: Site) -> list[bytes]:
    """All keys of the count that comes next, in every fold that is opened."""
    encoder, folds = site.encoder, section_of(site.plan).deals
    if site.state(CellsState).frequent is None:
        return in_folds(_keys(encoder), folds)
    return in_folds([f"{block.name}={_ABSENT}".encode() for block in encoder.blocks], folds)


COUNT = ClosedCount("oneshot.count", keys_of=_closed_keys, counts_of=_counts, scheme=ApprovedPlan.sum_scheme)


def _learn(site: Site, request: Request) -> Release:
    """Store which keys of the agreed domain are proven to be frequent, and report it; all sites report the same."""
    encoder, state = site.encoder, site.state(CellsState)
    if request.round == 0:
        good = _proven(site, request)
        indicators, lone = is_indicator(encoder), _stands_alone(encoder)
        frequent = np.ones(encoder.width, dtype=bool)
        frequent[indicators] = good[: indicators.sum()]
        frequent[lone] &= good[indicators.sum() : indicators.sum() + lone.sum()]
        state.classes = bool(good[indicators.sum() + lone.sum() :].all())
        state.frequent, state.others = frequent, np.zeros(len(encoder.blocks), dtype=bool)
        said = np.concatenate([frequent, good[indicators.sum() + lone.sum() :]])
    else:
        said = state.others = _proven(site, request)
    return Release(
        payload=Payload(arrays={"enough": said.astype(np.uint8)}),
        guarantee=_FREQUENT,
        rows=0,
    )


def _proven(site: Site, request: Request) -> NDArray[np.bool_]:
    """Which keys enough persons have in every fold that is opened, by the announced histogram."""
    payload, folds = request.payload, section_of(site.plan).deals
    good = COUNT.frequent(site, request.round, payload.arrays["totals"], payload.blobs["sites"])
    return np.asarray(good.reshape(folds, -1).all(axis=0))


CELLS = Task(name="oneshot.cells", one=_learn)


def cells_blocks(approved: ApprovedPlan) -> list[list[Step]]:
    """The part of the contract that counts categories: twice across sites, and each site says what it learned.

    Args:
        approved: The approved plan.

    Returns:
        One block of steps. Round 0 counts every category and class; round 1 counts, per column, the persons of its rare
        categories together.
    """
    learned = Step(task=CELLS.name, says="which categories enough persons share", claims=(_FREQUENT,), rounds=range(2))
    count = COUNT.steps(approved, says="how many persons have each category", stages=range(2))
    return [[*count, learned]]


def agree_on_cells(hub: Hub) -> Generator[Ask | RoundEnd, Any, InputCells]:
    """Count the indicators over all sites, and merge the rare ones.

    Args:
        hub: The hub and its sites, which have enrolled.

    Returns:
        Which features are inputs, the same at the hub and at every site.

    Raises:
        RefusedError: A class has too few persons, or no category is frequent.
        IntegrityError: The sites report different results.
    """
    encoder, section = hub.encoder, section_of(hub.approved)
    said = yield from _count(hub, 0, len(_keys(encoder)), encoder.width + len(encoder.classes or ()))
    frequent, classes = said[: encoder.width], said[encoder.width :]
    if not classes.all():
        raise RefusedError(
            f"{int((~classes).sum())} of {len(classes)} classes have fewer than {section.min_cell} persons",
            hint="Merge the class with another, add sites, or lower method.oneshot.min_cell",
        )
    others = np.zeros(len(encoder.blocks), dtype=bool)
    if not frequent.all():
        others = yield from _count(hub, 1, len(encoder.blocks), len(encoder.blocks))
    return InputCells.merged(encoder, frequent, others)


def _count(hub: Hub, stage: int, keys: int, length: int) -> Generator[Ask | RoundEnd, Any, NDArray[np.bool_]]:
    total = yield from COUNT.run_closed(hub, keys=keys * section_of(hub.approved).deals, stage=stage)
    replies: Replies = yield Ask(
        task=CELLS,
        to=hub.sites,
        payload=Payload(arrays={"totals": total.values}, blobs={"sites": hub.approved.places_of(total.sites)}),
        round=stage,
        expect=Expect(arrays={"enough": ("|u1", (length,))}),
    )
    said = replies.array("enough")
    if (said != said[0]).any():
        raise IntegrityError("the sites do not agree on which categories are frequent")
    return np.asarray(said[0] == 1)
