"""A release judged by brute force, straight from the definitions: lists and dictionaries, nothing of the package.

Rows are tuples of released texts; a person counts once per class, and once per value in a distribution.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["broken_rules", "candidates", "covers", "presence"]

SLACK = 1e-8


def broken_rules(
    keys: Sequence[tuple], persons: Sequence[Any], sensitive: Mapping[str, Sequence[Any]], rule: Mapping[str, Any]
) -> list[str]:
    """The rules that some class breaks.

    Args:
        keys: The released quasi-identifiers of each row.
        persons: Whom each row is about.
        sensitive: The sensitive columns.
        rule: k, l, l_kind, c, t, t_kind, alpha, beta, beta_kind, delta.
    """
    classes: dict[tuple, list[int]] = {}
    for row, key in enumerate(keys):
        classes.setdefault(key, []).append(row)
    found = []
    for rows in classes.values():
        if len({persons[row] for row in rows}) < rule["k"]:
            found.append("k")
        for values in sensitive.values():
            whole = Counter(value for _, value in {(persons[row], values[row]) for row in range(len(keys))})
            part = Counter(value for _, value in {(persons[row], values[row]) for row in rows})
            found += _broken(part, whole, rule, ordered=all(not isinstance(v, str) for v in values))
    return sorted(set(found))


def _broken(part: Counter, whole: Counter, rule: Mapping[str, Any], *, ordered: bool) -> list[str]:
    p = {value: part[value] / part.total() for value in whole}
    q = {value: count / whole.total() for value, count in whole.items()}
    tests: list[tuple[str, Callable[[], bool]]] = [
        ("l", lambda: _diverse(part, rule)),
        ("t", lambda: _distance(p, q, rule.get("t_kind", "emd"), ordered=ordered) <= rule["t"] + SLACK),
        ("alpha", lambda: max(p.values()) <= rule["alpha"] + SLACK),
        ("beta", lambda: all((p[v] - q[v]) / q[v] <= _gain(q[v], rule) + SLACK for v in q)),
        ("delta", lambda: all(p[v] > 0 and abs(math.log(p[v] / q[v])) < rule["delta"] for v in q)),
    ]
    return [name for name, holds in tests if rule.get(name) and not holds()]


def _gain(share: float, rule: Mapping[str, Any]) -> float:
    return min(rule["beta"], -math.log(share)) if rule.get("beta_kind") == "enhanced" else rule["beta"]


def _diverse(part: Counter, rule: Mapping[str, Any]) -> bool:
    kind, falling = rule.get("l_kind", "distinct"), sorted(part.values(), reverse=True)
    if kind == "distinct":
        return len(falling) >= rule["l"]
    if kind == "entropy":
        shares = [count / part.total() for count in falling]
        return math.exp(-sum(share * math.log(share) for share in shares)) >= rule["l"] - SLACK
    return falling[0] < rule["c"] * sum(falling[int(rule["l"]) - 1 :])


def _distance(p: Mapping[Any, float], q: Mapping[Any, float], kind: str, *, ordered: bool) -> float:
    if kind == "kl":
        return sum(p[v] * math.log(p[v] / q[v]) for v in q if p[v] > 0)
    if not ordered:
        return sum(abs(p[v] - q[v]) for v in q) / 2
    values = sorted(q, key=lambda value: (value is not None, value if value is not None else 0))
    if len(values) == 1:
        return 0.0
    runs = [sum(p[v] - q[v] for v in values[: end + 1]) for end in range(len(values))]
    return sum(abs(run) for run in runs) / (len(values) - 1)


def covers(text: Any, value: Any) -> bool:
    """Whether a released cell without labels covers a value: a number in its interval, a text in its set."""
    if text == "*":
        return True
    shown = None if value is None else str(value)
    if isinstance(text, str) and text.startswith("[") and text.endswith("]"):
        parts = text[1:-1].split(", ")
        return parts[-1] == r"\N" if value is None else float(parts[0]) <= float(value) <= float(parts[1])
    if isinstance(text, str) and text.startswith("{") and text.endswith("}"):
        return (r"\N" if shown is None else shown) in text[1:-1].split(", ")
    if isinstance(value, (int, float)) and text is not None:
        return float(text) == float(value)
    return text == shown


def candidates(keys: Sequence[tuple], population: Sequence[tuple]) -> dict[tuple, list[int]]:
    """The persons of the population that the cells of each class cover."""
    return {
        key: [
            place
            for place, values in enumerate(population)
            if all(covers(text, value) for text, value in zip(key, values, strict=True))
        ]
        for key in set(keys)
    }


def presence(keys: Sequence[tuple], persons: Sequence[Any], population: Sequence[tuple]) -> tuple[float, float]:
    """The least and the largest chance of somebody in the population to be in the release."""
    low, high = [0.0] * len(population), [0.0] * len(population)
    for key, found in candidates(keys, population).items():
        held = len({person for person, own in zip(persons, keys, strict=True) if own == key})
        for place in found:
            low[place] = max(low[place], held / len(found))
            high[place] += held / len(found)
    return min(low), min(max(high), 1.0)
