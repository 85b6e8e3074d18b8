"""Chapter 5's classifier tables under two protocols, side by side.

`after`: the whole table is anonymised, then split; training and test rows are both generalised. The thesis seems to do
this. `raw`: the table is split first, the training rows are anonymised alone, and the test rows stay as they are, which
is what a model meets in use. Both hold out the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.rng import Streams
from kohort.studies.anonymised.classifiers import CLASSIFIERS, Job, Scored, run_jobs
from kohort.studies.anonymised.release import Released, release
from kohort.studies.anonymised.tables import Case, Variant
from kohort.studies.registry import Say
from kohort.tables.encoder import Encoder
from kohort.tables.splits import hold_out

__all__ = ["PROTOCOLS", "Effort", "Figure", "Found", "score_case"]

Protocol = Literal["after", "raw"]
PROTOCOLS: Final[dict[Protocol, str]] = {"after": "split after anonymising", "raw": "raw test rows"}
TEST_SHARE: Final = 0.3
NO_VARIANT: Final = "none"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is run: classifiers, repeated splits, and at most so many training rows (0: all)."""

    classifiers: tuple[str, ...] = tuple(CLASSIFIERS)
    repeats: int = 3
    fit_rows: int = 0
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Mean over the repeated splits, and their standard deviation when there are two or more."""

    mean: float
    sd: float | None


Found = dict[tuple[str, str, str, str], Figure]
"""(protocol, variant, classifier, measure) to the figure. Rows that were never anonymised are under both protocols."""


def score_case(
    case: Case, variants: Sequence[Variant], effort: Effort, say: Say, *, extra: Sequence[Variant] = ()
) -> Found:
    """Every classifier on the table as it is and under each of `variants`; gradient boosting alone under `extra`."""
    jobs = list(_jobs(case, variants, effort, extra))
    scored: dict[tuple[str, str, str], list[Scored]] = {}
    for done, result in enumerate(run_jobs(jobs, processes=effort.processes), start=1):
        protocol, variant = result.key
        for place in PROTOCOLS if variant == NO_VARIANT else (protocol,):
            scored.setdefault((place, variant, result.classifier), []).append(result)
        if done % max(1, len(jobs) // 10) == 0:
            say(f"{case.title}: {done} of {len(jobs)} classifiers trained")
    return {
        (*place, measure): _figure([getattr(result, measure) for result in results])
        for place, results in scored.items()
        for measure in ("accuracy", "f1", "precision", "recall")
    }


def _figure(values: Sequence[float]) -> Figure:
    return Figure(mean=fmean(values), sd=stdev(values) if len(values) > 1 else None)


def _jobs(case: Case, variants: Sequence[Variant], effort: Effort, extra: Sequence[Variant]) -> Iterator[Job]:
    encoder = case.encoder()
    x, y = encoder.transform(case.frame), encoder.target(case.frame).astype(np.int64)
    planned: list[tuple[Variant, tuple[str, ...]]] = [(variant, effort.classifiers) for variant in variants]
    planned += [(variant, ("gradient boosting",)) for variant in extra]
    whole = {variant.key: release(case.frame, case, variant) for variant, _ in planned}
    streams = Streams.seeded(effort.seed)
    for repeat in range(effort.repeats):
        is_test = hold_out(case.frame.height, TEST_SHARE, streams.generator("test", case.name, repeat))
        capped = _capped(~is_test, effort.fit_rows, streams.generator("cap", case.name, repeat))
        options: dict[str, Any] = {"seed": effort.seed + repeat}
        as_it_is: dict[str, Any] = {"x": x[capped], "y": y[capped], "x_test": x[is_test], "y_test": y[is_test]}
        for name in effort.classifiers:
            yield Job(key=("raw", NO_VARIANT), classifier=name, **as_it_is, **options)
        for variant, classifiers in planned:
            for key, parts in (
                ("after", _after(whole[variant.key], encoder, y, is_test, capped)),
                ("raw", _raw(case, variant, encoder, x, y, is_test, capped)),
            ):
                for name in classifiers:
                    yield Job(key=(key, variant.key), classifier=name, **parts, **options)


def _after(
    whole: Released, encoder: Encoder, y: NDArray[np.int64], is_test: NDArray[np.bool_], capped: NDArray[np.bool_]
) -> Mapping[str, Any]:
    x = whole.encode(encoder)
    return {"x": x[capped], "y": y[capped], "x_test": x[is_test], "y_test": y[is_test]}


def _raw(
    case: Case,
    variant: Variant,
    encoder: Encoder,
    x: NDArray[Any],
    y: NDArray[np.int64],
    is_test: NDArray[np.bool_],
    capped: NDArray[np.bool_],
) -> Mapping[str, Any]:
    made = release(case.frame.filter(pl.Series(~is_test)), case, variant)
    used = capped[~is_test]
    return {"x": made.encode(encoder)[used], "y": y[capped], "x_test": x[is_test], "y_test": y[is_test]}


def _capped(mask: NDArray[np.bool_], rows: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """`mask` with at most `rows` of its rows, chosen at random; all of them when `rows` is 0."""
    members = np.flatnonzero(mask)
    if not rows or rows >= len(members):
        return mask
    chosen = np.zeros_like(mask)
    chosen[generator.permutation(members)[:rows]] = True
    return chosen
