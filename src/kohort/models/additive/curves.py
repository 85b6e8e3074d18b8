"""An additive model in words and numbers: what each column's bins are called, and what they add to the score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kohort.models.additive.cells import Column
from kohort.tables.encoder import Encoder

if TYPE_CHECKING:
    from kohort.models.additive.model import AdditiveModel

__all__ = ["curves_of", "labels_of"]

_NORMAL_95 = 1.96
MISSING = "missing"


def curves_of(model: AdditiveModel) -> dict[str, dict[str, Any]]:
    """One curve per column.

    Args:
        model: The model.

    Returns:
        By column, the most important first: `importance`, `bins` (their names), `values` (what each adds to the score;
        a list per class where there are more than two), `counts`, `ordered`, and `low` and `high`, the ends of 95 %
        intervals given the other columns, where the model has them.
    """
    found = {}
    importances = model.importances()
    for number, column in enumerate(model.bins.columns):
        part = slice(int(model.bins.starts[number]), int(model.bins.starts[number + 1]))
        values = model.values[part]
        curve: dict[str, Any] = {
            "importance": importances[column.name],
            "bins": labels_of(model.encoder, column, model.bins.of_cell[number]),
            "values": _plain(values),
            "counts": [round(float(count)) for count in model.counts[part]],
            "ordered": column.ordered,
        }
        if len(model.errors):
            width = _NORMAL_95 * model.errors[part]
            curve |= {"low": _plain(values - width), "high": _plain(values + width)}
        found[column.name] = curve
    return dict(sorted(found.items(), key=lambda item: -item[1]["importance"]))


def _plain(values: NDArray[np.float64]) -> list[Any]:
    plain: list[Any] = (values[:, 0] if values.shape[1] == 1 else values).tolist()
    return plain


def labels_of(encoder: Encoder, column: Column, bins: NDArray[np.int32]) -> list[str]:
    """What the bins of a column are called.

    Args:
        encoder: Knows bounds and categories.
        column: The column.
        bins: The bin of each of its cells.

    Returns:
        Ranges of numbers, names of categories, "other" for those that were merged, "missing".
    """
    size = int(bins.max()) + 1
    if column.kind == "item":
        return ["no", "yes"] if size == 2 else ["all"]
    return _ranges(encoder, column, bins, size) if column.ordered else _names(encoder, column, bins, size)


def _names(encoder: Encoder, column: Column, bins: NDArray[np.int32], size: int) -> list[str]:
    known = [*(encoder.domain.columns[column.name].categories or ()), *([MISSING] if column.missing else [])]
    labels = []
    for place in range(size):
        inside = [known[cell] for cell in np.flatnonzero(bins == place) if cell != column.other]
        labels.append(inside[0] if len(inside) == 1 else f"{len(inside)} others" if inside else "other")
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
    labels = [
        _range(a, b, first=place == 0) for place, (a, b) in enumerate(zip(firsts, [*firsts[1:], None], strict=True))
    ]
    return labels + [MISSING] * (size - last - 1)


def _range(begin: float, end: float | None, *, first: bool) -> str:
    if first and end is None:
        return "all"
    if first:
        return f"up to {end:.4g}"
    return f"above {begin:.4g}" if end is None else f"{begin:.4g} to {end:.4g}"
