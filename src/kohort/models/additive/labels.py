"""What the bins of an additive model's columns are called: ranges of numbers and names of categories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from kohort.models.additive.cells import Column
from kohort.models.additive.pairs import Pair
from kohort.tables.encoder import Encoder

__all__ = ["group_labels", "labels_of", "pair_labels"]

MISSING = "missing"


def labels_of(encoder: Encoder, column: Column, bins: NDArray[np.int32]) -> list[str]:
    """What the bins of a column are called.

    Args:
        encoder: Knows bounds and categories.
        column: The column.
        bins: The bin of each of its cells.

    Returns:
        Ranges of numbers, names of categories (the first of those merged, and how many more), "other", "missing".
    """
    size = int(bins.max()) + 1
    if column.kind == "item":
        return ["no", "yes"] if size == 2 else ["all"]
    return _ranges(encoder, column, bins, size) if column.ordered else _names(encoder, column, bins, size)


def group_labels(labels: Sequence[str], groups: NDArray[np.int32]) -> list[str]:
    """What groups of bins are called.

    Args:
        labels: What the bins are called.
        groups: The group of each.

    Returns:
        For each group its first and last bin, or how many there are where order means nothing.
    """
    found = []
    for group in range(int(groups.max()) + 1):
        inside = np.flatnonzero(groups == group)
        own = [labels[place] for place in inside.tolist()]
        found.append(own[0] if len(own) == 1 else _span(own))
    return found


def _span(labels: Sequence[str]) -> str:
    """The range of neighbouring ranges, or a category and how many others."""
    first, last = labels[0], labels[-1]
    if first.startswith("up to ") and " to " in last:
        return f"up to {last.split(' to ')[-1]}"
    if " to " in first and (" to " in last or last.startswith("above ")):
        begin = first.split(" to ")[0]
        return f"above {begin}" if last.startswith("above ") else f"{begin} to {last.split(' to ')[-1]}"
    return f"{first}, {last}" if len(labels) == 2 else f"{first} and {len(labels) - 1} more"


def pair_labels(pair: Pair, rows: Sequence[str], columns: Sequence[str]) -> list[str]:
    """What the bins of a pair are called.

    Args:
        pair: The pair.
        rows: What the groups of the left column are called.
        columns: Those of the right one.

    Returns:
        Both names of a cell; "rest" for the cells that have no bin of their own.
    """
    found = ["rest"] * pair.size
    for place in range(pair.size):
        cells = np.argwhere(pair.cells == place)
        if len(cells) == 1:
            row, column = cells[0].tolist()
            found[place] = f"{rows[row]}; {columns[column]}"
    return found


def _names(encoder: Encoder, column: Column, bins: NDArray[np.int32], size: int) -> list[str]:
    known = [*(encoder.domain.columns[column.name].categories or ()), *([MISSING] if column.missing else [])]
    order = [*column.listed, *(cell for cell in range(column.cells) if cell not in column.listed)]
    labels = []
    for place in range(size):
        inside = [cell for cell in order if bins[cell] == place]
        named = [known[cell] for cell in inside if cell != column.other and known[cell] is not MISSING]
        if named:  # what else is in its bin was too rare for one of its own
            labels.append(named[0] if len(named) == 1 else _span(named))
        else:
            labels.append(MISSING if len(inside) == 1 and inside[0] != column.other else "other")
    return labels


def _ranges(encoder: Encoder, column: Column, bins: NDArray[np.int32], size: int) -> list[str]:
    values = bins[: column.cells - column.missing]
    if column.kind == "steps":
        edges = np.asarray([-np.inf, *(encoder.schema.columns[column.name].bins or ())])
    else:
        low, high = encoder.domain.columns[column.name].bounds or (0.0, 1.0)
        edges = low + column.starts() * (high - low)
    last = int(values.max())
    firsts = [float(edges[int(np.argmax(values == place))]) for place in range(last + 1)]
    show = _shown_as(encoder.schema.columns[column.name].answer)
    labels = [
        _range(a, b, first=place == 0, show=show)
        for place, (a, b) in enumerate(zip(firsts, [*firsts[1:], None], strict=True))
    ]
    return labels + [MISSING] * (size - last - 1)


def _range(begin: float, end: float | None, *, first: bool, show: Callable[[float], str]) -> str:
    if end is None:
        return "all" if first else f"above {show(begin)}"
    return f"up to {show(end)}" if first else f"{show(begin)} to {show(end)}"


def _shown_as(answer: str | None) -> Callable[[float], str]:
    """How the numbers of a column are written: days and microseconds as dates."""
    steps = {"date": timedelta(days=1), "time": timedelta(microseconds=1)}
    if answer not in steps:
        return _four_digits
    step, ends = steps[answer], 10 if answer == "date" else 16
    return lambda number: (datetime(1970, 1, 1) + number * step).isoformat(" ")[:ends]


def _four_digits(value: float) -> str:
    """Four digits that count, without an exponent where a number has a few more."""
    rounded = f"{value:.4g}"
    return f"{float(rounded):.0f}" if 1e4 <= abs(value) < 1e12 else rounded
