"""MDAV: maximum distance to the average vector (Domingo-Ferrer and Mateo-Sanz, 2002; generic: 2005).

Numbers are standardised, categories are alike or not. The row farthest from the mean of the waiting rows takes its
k - 1 nearest rows with it, then the row farthest from that one does the same, until fewer than 3k rows wait. It is the
partition that microaggregation by means is usually based on. Groups that do not meet a rule about more than k rows are
merged with the group whose centre is nearest.

Guarantee: every class meets the rule if the whole table does. Same table, same classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kohort.anonymity.relational.problem import Integers, Partition, Problem
from kohort.errors import ConfigError

__all__ = ["mdav"]

MOST_ROWS = 50_000

Points = NDArray[np.float64]


def mdav(problem: Problem) -> Partition:
    """The classes of a table by MDAV.

    Args:
        problem: The coded table and the rule.

    Returns:
        Classes that meet the rule.

    Raises:
        ConfigError: The table is so large that distances between all its rows would take too long.
    """
    if problem.table.rows > MOST_ROWS:
        hint = "Use algorithm cluster, which works on blocks of rows"
        raise ConfigError(f"mdav compares all rows, and {problem.table.rows:,} are too many", hint=hint)
    points = _points(problem)
    groups = _groups(points, problem.rule.k)
    return _merged(problem, points, groups)


def _points(problem: Problem) -> Points:
    """One line of coordinates per row: a standardised number, or one coordinate per value of a category."""
    parts: list[Points] = []
    for position, (column, codes) in enumerate(zip(problem.table.columns, problem.table.codes, strict=True)):
        weight = np.sqrt(problem.weight(position))
        if column.is_number:
            spread = np.clip(column.points, -1.0, 2.0)[codes]
            parts.append(weight * (spread - spread.mean())[:, None] / (spread.std() or 1.0))
        else:
            parts.append(weight * np.sqrt(0.5) * np.eye(column.distinct)[codes])
    return np.concatenate(parts, axis=1)


def _groups(points: Points, k: int) -> list[Integers]:
    waiting = np.arange(len(points), dtype=np.int64)
    found: list[Integers] = []
    while len(waiting) >= 3 * k:
        centre = points[waiting].mean(axis=0)
        far = waiting[int(np.argmax(_distances(points[waiting], centre)))]
        waiting, group = _taken(points, waiting, points[far], k)
        found.append(group)
        other = waiting[int(np.argmax(_distances(points[waiting], points[far])))]
        waiting, group = _taken(points, waiting, points[other], k)
        found.append(group)
    if len(waiting) >= 2 * k:
        centre = points[waiting].mean(axis=0)
        far = waiting[int(np.argmax(_distances(points[waiting], centre)))]
        waiting, group = _taken(points, waiting, points[far], k)
        found.append(group)
    return [*found, waiting]


def _taken(points: Points, waiting: Integers, centre: Points, k: int) -> tuple[Integers, Integers]:
    """The waiting rows without the k nearest to a point, and those."""
    order = np.argsort(_distances(points[waiting], centre), kind="stable")
    return np.sort(waiting[order[k:]]), waiting[order[:k]]


def _distances(points: Points, centre: Points) -> Points:
    found: Points = ((points - centre) ** 2).sum(axis=1)
    return found


def _merged(problem: Problem, points: Points, groups: list[Integers]) -> Partition:
    """Groups that do not meet the rule joined with their nearest ones."""
    met = problem.rule_test()
    centres = [points[group].mean(axis=0) for group in groups]
    at = 0
    while at < len(groups):
        if met(groups[at]) or len(groups) == 1:
            at += 1
            continue
        distances = _distances(np.array(centres), centres[at])
        distances[at] = np.inf
        nearest = int(np.argmin(distances))
        joined = np.concatenate([groups[at], groups[nearest]])
        for gone in sorted((at, nearest), reverse=True):
            del groups[gone], centres[gone]
        groups.append(joined)
        centres.append(points[joined].mean(axis=0))
        at = max(at - 1, 0) if nearest < at else at
    labels = np.empty(problem.table.rows, np.int64)
    for number, group in enumerate(groups):
        labels[group] = number
    return Partition.of_labels(labels)
