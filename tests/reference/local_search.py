"""The local search over classes, step by step on lists of rows: what the compiled one must do row for row.

Losses must be numbers that floats hold exactly, so that ties are ties.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.partitions import class_loss, meets

from kohort.anonymity.relational.problem import Problem

__all__ = ["LocalSearch"]

LEAST = 1e-9


class LocalSearch:
    """Classes as lists of rows, those that came last first.

    Args:
        problem: The table and the rule.
        labels: The class of each row; below 0 where it is left out.
        count: How many classes there are.
    """

    def __init__(self, problem: Problem, labels: Sequence[int], count: int) -> None:
        self.problem, self.k, self.labels = problem, problem.rule.k, list(labels)
        self.classes = [[row for row, label in enumerate(labels) if label == j] for j in range(count)]

    def unit(self, rows: Sequence[int]) -> float:
        """What each of some rows loses as a class."""
        return class_loss(self.problem, rows) if rows else 0.0

    def loss(self, rows: Sequence[int]) -> float:
        """What they lose together."""
        return len(rows) * self.unit(rows)

    def put(self, row: int, j: int) -> None:
        """Take a row out of its class, and into another."""
        if row in self.classes[self.labels[row]]:
            self.classes[self.labels[row]].remove(row)
        self.classes[j].insert(0, row)
        self.labels[row] = j

    def home(self, row: int, bound: float) -> int:
        """The other class that a row costs least, the first from its own one on; -1 if none costs less than `bound`."""
        own, best, chosen = self.labels[row], bound, -1
        for at in range(len(self.classes)):
            j = (max(own, 0) + at) % len(self.classes)
            rows = self.classes[j]
            if j == own or not rows or not meets(self.problem, sorted([*rows, row])):
                continue
            added = self.loss([*rows, row]) - self.loss(rows)
            if added < best:
                best, chosen = added, j
        return chosen

    def move(self, passes: int) -> int:
        """Rows move to where they cost less; a pass that moves no twentieth of the rows is the last."""
        moved = 0
        for _ in range(passes):
            before = moved
            for row, own in enumerate(self.labels):
                rows = self.classes[own] if own >= 0 else []
                rest = [other for other in rows if other != row]
                if len(rows) <= self.k or not self.unit(rows) or not meets(self.problem, sorted(rest)):
                    continue
                b = self.home(row, self.loss(rows) - self.loss(rest) - LEAST)
                if b >= 0:
                    self.put(row, b)
                    moved += 1
            if moved - before <= len(self.labels) // 20:
                break
        return moved

    def dissolve(self) -> int:
        """Classes are shared out where that saves something, those that lose most per row first."""
        gone = 0
        for j in sorted(range(len(self.classes)), key=lambda j: -self.unit(self.classes[j])):
            rows = list(self.classes[j])
            if not self.unit(rows):
                break
            before, added, moved = self.loss(rows), 0.0, list[int]()
            for row in rows:
                b = self.home(row, before - added - LEAST)
                if b < 0:
                    break
                added -= self.loss(self.classes[b])
                self.put(row, b)
                added += self.loss(self.classes[b])
                moved.append(row)
            if len(moved) == len(rows):
                gone += 1
                continue
            for row in reversed(moved):
                self.put(row, j)
        return gone

    def replace(self) -> int:
        """Rows leave classes of k rows, each replaced by the row of a larger class that its class then costs least."""
        replaced = 0
        for row, a in enumerate(self.labels):
            rows = self.classes[a] if a >= 0 else []
            rest = [other for other in rows if other != row]
            before = self.loss(rows)
            if len(rows) != self.k or not before or before - self.k * self.unit(rest) - LEAST <= 0:
                continue
            refill = self._refill(rest, a, before - LEAST)
            replaced += refill >= 0 and self._replaced(row, refill, before)
        return replaced

    def _refill(self, rest: Sequence[int], a: int, bound: float) -> int:
        best, chosen = bound, -1
        for other, c in enumerate(self.labels):
            if c < 0 or c == a or len(self.classes[c]) <= self.k:
                continue
            found = self.k * self.unit([*rest, other]) - self.unit(self.classes[c])
            if found < best:
                best, chosen = found, other
        return chosen

    def _replaced(self, row: int, refill: int, before: float) -> bool:
        a, c = self.labels[row], self.labels[refill]
        gain = before + self.loss(self.classes[c])
        self.classes[a].remove(row)
        self.put(refill, a)
        gain -= self.loss(self.classes[c]) + self.loss(self.classes[a]) + LEAST
        b = self.home(row, gain) if gain > 0 else -1
        if b < 0:
            self.put(refill, c)
            self.classes[a].insert(0, row)
        else:
            self.put(row, b)
        return b >= 0
