"""Slow, obvious forms of what (k, k^m)-anonymity needs, for tests to compare with. Sets and dictionaries.

`attacker_view` is the definition itself: everyone who knows a row's released quasi-identifiers and up to m of its
released items, and how many persons that leaves. `generalise_slowly` takes the steps of the compiled loop one by one,
counting everything anew after each.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations

__all__ = ["attacker_view", "generalise_slowly", "suppress_slowly"]

Row = frozenset[int]


def attacker_view(
    quasi: Sequence[Hashable], items: Sequence[Sequence[str]], m: int, persons: Sequence[Hashable] | None = None
) -> int:
    """The fewest persons that share the quasi-identifiers and up to m items of some row."""
    who = list(range(len(quasi))) if persons is None else list(persons)
    fewest = len(set(who))
    for known, held in zip(quasi, items, strict=True):
        for size in range(m + 1):
            for guess in combinations(sorted(set(held)), size):
                left = {
                    who[row]
                    for row, (other, theirs) in enumerate(zip(quasi, items, strict=True))
                    if other == known and set(guess) <= set(theirs)
                }
                fewest = min(fewest, len(left))
    return fewest


def generalise_slowly(
    rows: Sequence[Sequence[int]],
    classes: Sequence[int],
    persons: Sequence[Hashable],
    *,
    parent: Sequence[int],
    sizes: Sequence[int],
    domain: int,
    k: int,
    m: int,
    tree: bool,
) -> list[list[int]]:
    """The node of each occurrence of the rows of one scope, -1 where it is suppressed. Items count alike."""
    nodes = [list(row) for row in rows]
    size = list(sizes)
    while True:
        bad = _too_few(nodes, classes, persons, k, m)
        if not bad:
            return nodes
        held = _occurrences(nodes)
        a = min({node for _, node in bad}, key=lambda node: (held[node], node))
        leaving = {c for c, node in bad if node == a}
        going = sum(row.count(a) for row, c in zip(nodes, classes, strict=True) if c in leaving)
        best, target = going * (domain - _loss(size[a])), -1
        if tree:
            p = parent[a]
            below = [node for node in held if p >= 0 and _is_below(node, p, parent)]
            raised = sum(held[node] * (_loss(size[p]) - _loss(size[node])) for node in below)
            if p >= 0 and size[p] < domain and raised <= best:
                target = p
        else:
            below = [a]
            for b in sorted(held):
                together = size[a] + size[b]
                cost = held[a] * (_loss(together) - _loss(size[a])) + held[b] * (_loss(together) - _loss(size[b]))
                if b != a and together < domain and (cost < best or (cost == best and target < 0)):
                    best, target = cost, b
            if target >= 0:
                size[target] += size[a]
        for row, c in zip(nodes, classes, strict=True):
            for place, node in enumerate(row):
                if target >= 0 and node in below:
                    row[place] = target
                elif target < 0 and node == a and c in leaving:
                    row[place] = -1


def _too_few(
    nodes: Sequence[Sequence[int]], classes: Sequence[int], persons: Sequence[Hashable], k: int, m: int
) -> set[tuple[int, int]]:
    """(class, node) of every node in a combination that fewer than k persons of its class hold."""
    holders: dict[tuple[int, Row], set[Hashable]] = {}
    for row, c, person in zip(nodes, classes, persons, strict=True):
        shown = sorted({node for node in row if node >= 0})
        for length in range(1, m + 1):
            for guess in combinations(shown, length):
                holders.setdefault((c, frozenset(guess)), set()).add(person)
    return {(c, node) for (c, guess), found in holders.items() if len(found) < k for node in guess}


def _occurrences(nodes: Sequence[Sequence[int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in nodes:
        for node in row:
            if node >= 0:
                found[node] = found.get(node, 0) + 1
    return found


def _is_below(node: int, top: int, parent: Sequence[int]) -> bool:
    while node >= 0 and node != top:
        node = parent[node]
    return node == top


def _loss(size: int) -> int:
    return 0 if size <= 1 else size


def suppress_slowly(
    rows: Sequence[Sequence[int]], classes: Sequence[int], persons: Sequence[Hashable], *, k: int, m: int
) -> list[set[int]]:
    """The nodes that each row still shows when none shows a combination of up to m that fewer than k persons of its
    class show."""
    shown = [{node for node in row if node >= 0} for row in rows]
    while True:
        holders: dict[tuple[int, tuple[int, ...]], set[Hashable]] = {}
        for row, c, person in zip(shown, classes, persons, strict=True):
            for size in range(1, m + 1):
                for guess in combinations(sorted(row), size):
                    holders.setdefault((c, guess), set()).add(person)
        rare = {guess for guess, who in holders.items() if len(who) < k}
        if not rare:
            return shown
        for row, c in zip(shown, classes, strict=True):
            while True:
                whole = [guess for where, guess in rare if where == c and row.issuperset(guess)]
                if not whole:
                    break
                blamed = {node: sum(node in guess for guess in whole) for guess in whole for node in guess}
                row.remove(max(blamed, key=lambda node: (blamed[node], len(holders[c, (node,)]), node)))
