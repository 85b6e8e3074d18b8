"""What is said beside the figures of a run: baselines, warnings, and everything that was left out or changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from kohort.evaluate.baselines import majority_baseline, trained_baselines
from kohort.models.rows import encode_rows, encode_test_rows
from kohort.protocol.hub import Excluded
from kohort.runs.left_out import LeftOut, public_counts, shown
from kohort.runs.simulation import Population
from kohort.tables.domain import number
from kohort.tables.encoder import Encoder

__all__ = ["Judged", "judge"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a result stands beside.

    Attributes:
        baselines: Measures of the majority class and, in a simulation, of the best site and of pooled rows.
        left_out: What was left out, clipped or changed, as a hub may tell it.
        warnings: Sentences that a reader of the figures must see.
    """

    baselines: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()


def judge(
    encoder: Encoder,
    population: Population,
    test: pl.DataFrame,
    metrics: Mapping[str, Any],
    *,
    excluded: Sequence[Excluded],
    outside: int,
    unlearned: int = 0,
    unused: Sequence[LeftOut] = (),
    unjudged: int,
    min_cell: int,
    has_budget: bool,
    train: bool,
) -> Judged:
    """What is to be said about a run.

    Args:
        encoder: The encoder of the model.
        population: The rows of a simulation; without rows in a deployment.
        test: The test rows that are judged.
        metrics: The measures of the model; empty when nothing was measured.
        excluded: Sites that were left out.
        outside: Rows of sites that lie outside the agreed domain.
        unlearned: Rows that neither a site nor the hub learned from.
        unused: What a secure count told of rows that real sites left out.
        unjudged: Test rows with a class outside the agreed domain, or with a category that the model cannot read.
        min_cell: Fewest rows that may be told apart.
        has_budget: Whether the plan spends a budget.
        train: Whether baselines that have to be trained are wanted.

    Returns:
        Baselines, counts of what was left out, and warnings. Small counts are shown as "<10", and a plan with a budget
        shows none.
    """
    baselines = _baselines(encoder, population, test, train=train) if metrics else {}
    left_out = public_counts(
        [
            *population.left_out,
            *unused,
            LeftOut(what="sites", why="refused, failed or too late", count=len(excluded), of_rows=False),
            LeftOut(what="rows", why="a category or class outside the agreed domain", count=outside),
            LeftOut(what="rows", why="kept at sites that have too few of them to train on", count=unlearned),
            LeftOut(what="test rows", why="a class or category outside the agreed domain", count=unjudged),
            *_unseen(encoder, test, min_cell),
            *_clipped(encoder, population.frame),
        ],
        min_cell=min_cell,
        has_budget=has_budget,
    )
    return Judged(
        baselines=baselines,
        left_out=left_out,
        warnings=(*population.warnings, *_about(metrics, baselines, encoder.classes or ()), *shown(left_out)),
    )


def _baselines(encoder: Encoder, population: Population, test: pl.DataFrame, *, train: bool) -> dict[str, Any]:
    frame = population.frame
    if not frame.height or not test.height:  # the hub of a deployment has no training rows
        return {}
    known = frame.filter(pl.Series(encoder.with_known_target(frame)))
    classes = len(encoder.classes or ())
    found = majority_baseline(encoder.target(known), encoder.target(test), classes=classes)
    code = found.pop("code", None)
    if code is None:
        made: dict[str, Any] = {"mean": found}
    else:
        made = {"majority": {**found, "class": (encoder.classes or ())[code]}}
    if train and bool(encoder.within(frame).all()):
        rows, judged = encode_rows(encoder, frame), encode_test_rows(replace(encoder, marks_unknown=False), test)
        made |= trained_baselines(rows, population.starts.tolist(), population.names, judged, classes=classes)
    return made


def _unseen(encoder: Encoder, test: pl.DataFrame, min_cell: int) -> list[LeftOut]:
    """Values of test rows that have no name in the domain, one entry per reason; the columns are in the reason."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for name, count in encoder.inputs(test)[1].items() if test.height else ():
        read = "read as other" if encoder.has_other(name) else "read as any of its column"
        found.setdefault((_why_unknown(encoder, name, min_cell), read), {})[name] = count
    return [
        LeftOut(
            what="values of test rows",
            why=f"a category that {why}, {read}: {', '.join(columns)}",
            count=sum(columns.values()),
            done="changed",
        )
        for (why, read), columns in found.items()
    ]


def _why_unknown(encoder: Encoder, name: str, min_cell: int) -> str:
    """Why a category of a column has no name: after a count, sites may have it, each with few persons."""
    if encoder.schema.columns[name].categories is not None:
        return "is not declared"
    if encoder.domain.columns[name].counted:
        return f"fewer than {min_cell} persons of all sites have, or none"
    return "no site has"


def _clipped(encoder: Encoder, frame: pl.DataFrame) -> list[LeftOut]:
    """Numbers outside the bounds that are declared or were learned by a secure count, in one entry."""
    found: dict[str, int] = {}
    target = encoder.schema.target
    names = (*encoder.schema.inputs, *([] if target is None else [target]))
    for name in names if frame.height else ():
        spec, domain = encoder.schema.columns[name], encoder.domain.columns[name]
        if domain.kind != "number" or domain.bounds is None or not (spec.bounds is not None or domain.counted):
            continue
        values, (low, high) = number(frame[name]), domain.bounds
        count = int(((values < low) | (values > high)).sum())
        found |= {name: count} if count else {}
    what, count = f"values of {', '.join(found)}", sum(found.values())
    return [LeftOut(what=what, why="outside the bounds", count=count, done="clipped")] if found else []


def _about(metrics: Mapping[str, Any], baselines: Mapping[str, Any], classes: Sequence[str]) -> list[str]:
    said = []
    confusion = metrics.get("confusion")
    if confusion is not None:
        table = np.asarray(confusion)
        predicted, there = table.sum(axis=0) > 0, table.sum(axis=1) > 0
        if predicted.sum() == 1 and there.sum() > 1:
            said.append(f"the model predicts one class for every test row: {classes[int(predicted.argmax())]}")
        majority = baselines.get("majority", {}).get("accuracy")
        if majority is not None and metrics["accuracy"] < majority:
            said.append(f"worse than the majority class: accuracy {metrics['accuracy']:.3f} against {majority:.3f}")
    elif "r2" in metrics and metrics["r2"] is not None and metrics["r2"] < 0:
        said.append(f"worse than predicting the mean: R2 {metrics['r2']:.3f}")
    return said
