"""Slow, obvious forms of the compiled loops, for tests to compare with. Lists and dictionaries, nothing clever.

A table is a list of columns of codes; a class is a set of row numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from kohort.anonymity.relational.problem import Problem
from kohort.anonymity.relational.rule import ROUNDING, Rule

__all__ = ["class_loss", "clusters", "meets", "strict_mondrian", "thesis_classes"]


def meets(problem: Problem, rows: Sequence[int]) -> bool:
    """Whether some rows would be a class that meets the rule."""
    rule = problem.rule
    if len(rows) < rule.k:
        return False
    for position in range(len(problem.sensitive.names)):
        whole = [int(code) for code in problem.sensitive.codes[position]]
        part = [whole[row] for row in rows]
        ordered = bool(problem.sensitive.ordered[position])
        if rule.l > 0 and not _diverse(part, rule):
            return False
        if rule.t > 0 and _distance(part, whole, ordered, rule.t_kind) > rule.t + ROUNDING:
            return False
    return True


def _diverse(part: Sequence[int], rule: Rule) -> bool:
    counts = sorted(Counter(part).values(), reverse=True)
    if rule.l_kind == "distinct":
        return len(counts) >= rule.l
    if rule.l_kind == "entropy":
        shares = [count / len(part) for count in counts]
        return math.exp(-sum(p * math.log(p) for p in shares)) >= rule.l - ROUNDING
    tail = sum(counts[int(rule.l) - 1 :])
    return tail > 0 and counts[0] / tail < rule.c


def _distance(part: Sequence[int], whole: Sequence[int], ordered: bool, kind: str) -> float:
    values = sorted(set(whole))
    p = [part.count(value) / len(part) for value in values]
    q = [whole.count(value) / len(whole) for value in values]
    if kind == "kl":
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
    if not ordered:
        return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    if len(values) == 1:
        return 0.0
    run, area = 0.0, 0.0
    for a, b in zip(p, q, strict=True):
        run += a - b
        area += abs(run)
    return area / (len(values) - 1)


def class_loss(problem: Problem, rows: Sequence[int]) -> float:
    """Penalty of one row of a class, summed over the quasi-identifiers."""
    total = 0.0
    for column, codes in zip(problem.table.columns, problem.table.codes, strict=True):
        held = {int(codes[row]) for row in rows}
        if column.is_number:
            total += min(column.points[max(held)] - column.points[min(held)], 1.0)
        elif len(held) > 1:
            total += len(held) / column.distinct
    return total


def strict_mondrian(problem: Problem, *, look_ahead: bool = False) -> set[frozenset[int]]:
    """Cut nearest to the middle of the widest column, or of the column whose parts lose least, while the rule holds."""
    done: set[frozenset[int]] = set()
    waiting = [list(range(problem.table.rows))]
    while waiting:
        rows = waiting.pop()
        for left, right in _cuts(problem, rows, look_ahead=look_ahead):
            if meets(problem, left) and meets(problem, right):
                waiting += [left, right]
                break
        else:
            done.add(frozenset(rows))
    return done


def _cuts(problem: Problem, rows: list[int], *, look_ahead: bool) -> list[tuple[list[int], list[int]]]:
    candidates = []
    for position, (column, codes) in enumerate(zip(problem.table.columns, problem.table.codes, strict=True)):
        held = [int(codes[row]) for row in rows]
        low, high = min(held), max(held)
        if low == high:
            continue
        if column.is_number:
            span = min(column.points[high] - column.points[low], 1.0)
        else:
            span = (high - low + 1) / column.distinct
        best: tuple[int, int] | None = None
        for value in sorted(set(held))[:-1]:
            below = sum(code <= value for code in held)
            if below < problem.rule.k or len(rows) - below < problem.rule.k:
                continue
            gap = abs(2 * below - len(rows))
            if best is None or gap < best[0]:
                best = gap, value
        if best is None:
            continue
        left = [row for row in rows if codes[row] <= best[1]]
        right = [row for row in rows if codes[row] > best[1]]
        loss = len(left) * class_loss(problem, left) + len(right) * class_loss(problem, right)
        candidates.append((loss if look_ahead else -span, position, left, right))
    return [(left, right) for _, _, left, right in sorted(candidates, key=lambda one: one[:2])]


def thesis_classes(problem: Problem, values: Sequence[Sequence[float]]) -> set[frozenset[int]]:
    """Widest relative span first; numbers below the median left, the first half of a category's values left.

    `values[c][code]` is the number a code of a number column stands for.
    """
    done: set[frozenset[int]] = set()
    waiting = [list(range(problem.table.rows))]
    while waiting:
        rows = waiting.pop()
        spans = []
        for position, (column, codes) in enumerate(zip(problem.table.columns, problem.table.codes, strict=True)):
            held = sorted({int(codes[row]) for row in rows})
            if len(held) == 1:
                continue
            whole = values[position][column.distinct - 1] - values[position][0] if column.is_number else column.distinct
            extent = values[position][held[-1]] - values[position][held[0]] if column.is_number else len(held)
            spans.append((-extent / whole, position, held))
        for _, position, held in sorted(spans):
            codes = problem.table.codes[position]
            if problem.table.columns[position].is_number:
                numbers = sorted(values[position][codes[row]] for row in rows)
                median = (numbers[(len(rows) - 1) // 2] + numbers[len(rows) // 2]) / 2
                left = [row for row in rows if values[position][codes[row]] < median]
            else:
                left = [row for row in rows if codes[row] in held[: len(held) // 2]]
            right = [row for row in rows if row not in set(left)]
            if meets(problem, left) and meets(problem, right):
                waiting += [left, right]
                break
        else:
            done.add(frozenset(rows))
    return done


def clusters(problem: Problem) -> list[list[int]]:
    """Greedy k-member clusters for a rule about k alone; rows that are left over are in none.

    A cluster starts with the waiting row farthest from the last one; a row that leaves is replaced by the last waiting.
    """
    waiting = list(range(problem.table.rows))
    found: list[list[int]] = []
    place = 0
    while len(waiting) >= problem.rule.k:
        members: list[int] = []
        while True:
            members.append(waiting[place])
            waiting[place] = waiting[-1]
            waiting.pop()
            if len(members) == problem.rule.k:
                break
            losses = [class_loss(problem, [*members, row]) for row in waiting]
            place = losses.index(min(losses))
        found.append(members)
        losses = [class_loss(problem, [*members, row]) for row in waiting]
        place = losses.index(max(losses)) if losses else 0
    return found
