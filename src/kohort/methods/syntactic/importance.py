"""Which quasi-identifiers tell most about the target at a site (Choudhury et al., 2020, section 3.2).

Three rankings, all of scikit-learn: recursive feature elimination with a linear support vector classifier down to 50
features, extra trees, and a random forest. Categories and items are one indicator a value; a column counts as much as
its features together. The columns that matter least can be dropped before anonymising: what is not learned from need
not be generalised.

Guarantees: the same rows and seed give the same ranking; weights are at least 0 and those of the kept columns add up to
1; nothing is released here, and a weight that is shared is a release of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, nearest
from kohort.tables.domain import category_text, item_lists

__all__ = ["Importance", "Method", "declared", "rank"]

Method = Literal["rfe", "extra-trees", "forest"]
RFE_FEATURES = 50
RFE_STEP = 0.1
"""The share of the features that one step of the elimination drops."""
TREES = 100
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Importance:
    """The kept columns, most important first, with weights that add up to 1; and the dropped ones.

    `item_weights` has every item of a kept items column, relative to the most important item: between 0 and 1, as the
    loss of item labels takes them.
    """

    weights: Mapping[str, float]
    item_weights: Mapping[str, float]
    kept: tuple[str, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class _Encoded:
    """A sparse matrix of features, the column each belongs to, and the items of the features of the items column."""

    matrix: Any
    column_of: NDArray[np.int64]
    items: tuple[str, ...]


def rank(
    frame: pl.DataFrame,
    *,
    quasi: Sequence[str],
    target: str,
    items: str | None = None,
    method: Method = "extra-trees",
    top: int | None = None,
    seed: int = 0,
) -> Importance:
    """Rank the quasi-identifiers and the items column by what they tell about the target.

    Args:
        frame: The table.
        quasi: Names of the quasi-identifiers.
        target: Column to predict.
        items: Name of the items column.
        method: Ranking to use.
        top: Number of columns to keep; all when None.
        seed: Seed of the ranking.

    Returns:
        The columns that are kept, most important first, with their weights, and those that are dropped. Rows without a
        target are ignored.

    Raises:
        ConfigError: The method or `top` is unknown, or columns repeat or hold the target.
        DataError: A column is absent, or the target has fewer than two classes.
    """
    if method not in get_args(Method):
        raise ConfigError(f"no ranking named {method!r}", hint=nearest(str(method), get_args(Method)))
    names = [*quasi, *([items] if items is not None else [])]
    if not names or len(set(names)) < len(names) or target in names:
        raise ConfigError("the columns to rank are none, repeat or hold the target", hint="Name each column once")
    if top is not None and not 1 <= top <= len(names):
        raise ConfigError(f"top is {top} of {len(names)} columns", hint=f"Use 1 to {len(names)}")
    absent = [name for name in (*names, target) if name not in frame.columns]
    if absent:
        raise DataError(f"the table lacks columns: {', '.join(absent)}", hint="Check the names")
    known = frame.filter(pl.col(target).is_not_null())
    labels = category_text(known[target]).rank("dense").to_numpy().astype(np.int64) if known.height else np.zeros(0)
    if len(np.unique(labels)) < 2:
        hint = "A ranking needs rows of at least two classes"
        raise DataError(f"the target {target!r} has fewer than two classes here", hint=hint)
    encoded = _encode(known, quasi, items)
    by_feature = _importances(encoded.matrix, labels, method, seed)
    by_column: Floats = np.bincount(encoded.column_of, weights=by_feature, minlength=len(names)).astype(np.float64)
    order = np.argsort(-by_column, kind="stable")[: top or len(names)]
    kept = tuple(names[at] for at in order)
    return Importance(
        weights=dict(zip(kept, _shares(by_column[order]), strict=True)),
        item_weights=_item_weights(encoded, by_feature) if items in kept else {},
        kept=kept,
        dropped=tuple(name for name in names if name not in kept),
    )


def declared(weights: Mapping[str, float], *, quasi: Sequence[str], top: int | None = None) -> Importance:
    """The ranking that a plan declares, without a look at the rows.

    Args:
        weights: What a loss in each column counts, from 0 to 1.
        quasi: Names of the quasi-identifiers.
        top: Number of quasi-identifiers to keep; all when None.

    Returns:
        The columns that are kept, largest weight first, with weights that add up to 1; equal weights keep the order of
        `quasi`.
    """
    order = np.argsort([-weights[name] for name in quasi], kind="stable")
    ranked = [quasi[at] for at in order]
    total = sum(weights[name] for name in ranked[:top])
    return Importance(
        weights={name: weights[name] / total for name in ranked[:top]},
        item_weights={},
        kept=tuple(ranked[:top]),
        dropped=tuple(ranked[top:] if top else ()),
    )


def _shares(values: Floats) -> list[float]:
    """Parts of 1; equal parts when no column tells anything."""
    total = float(values.sum())
    shares = values / total if total > 0 else np.full(len(values), 1 / len(values))
    return [float(share) for share in shares]


def _item_weights(encoded: _Encoded, by_feature: Floats) -> dict[str, float]:
    if not encoded.items:
        return {}
    own = by_feature[len(by_feature) - len(encoded.items) :]
    most = float(own.max())
    scaled = own / most if most > 0 else np.ones(len(own))
    return {item: float(weight) for item, weight in zip(encoded.items, scaled, strict=True)}


def _encode(frame: pl.DataFrame, quasi: Sequence[str], items: str | None) -> _Encoded:
    """Numbers scaled to [0, 1] with an indicator of missing ones, categories and items as indicators; items last."""
    from scipy import sparse

    parts, column_of = [], []
    for at, name in enumerate(quasi):
        part = _numbers(frame[name]) if frame[name].dtype.is_numeric() else _indicators(category_text(frame[name]))
        parts.append(part)
        column_of.append(np.full(part.shape[1], at))
    codes: tuple[str, ...] = ()
    if items is not None:
        lists = item_lists(frame[items])
        pairs = pl.DataFrame({"item": lists}).with_row_index("row").explode("item").drop_nulls("item")
        codes = tuple(pairs["item"].unique().sort().to_list())
        place = pairs["item"].cast(pl.Enum(list(codes))).to_physical().to_numpy()
        ones = np.ones(len(place))
        parts.append(sparse.csr_matrix((ones, (pairs["row"].to_numpy(), place)), (frame.height, len(codes))))
        column_of.append(np.full(len(codes), len(quasi)))
    return _Encoded(sparse.csr_matrix(sparse.hstack(parts)), np.concatenate(column_of).astype(np.int64), codes)


def _numbers(column: pl.Series) -> Any:
    from scipy import sparse

    values = column.cast(pl.Float64)
    known = values.drop_nulls().to_numpy()
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    scaled = (values.fill_null(low).to_numpy() - low) / ((high - low) or 1.0)
    features = [scaled]
    if values.null_count():
        features.append(values.is_null().to_numpy().astype(np.float64))
    return sparse.csr_matrix(np.stack(features, axis=1))


def _indicators(texts: pl.Series) -> Any:
    from scipy import sparse

    codes = texts.rank("dense").fill_null(0).to_numpy().astype(np.int64)
    used, place = np.unique(codes, return_inverse=True)
    return sparse.csr_matrix((np.ones(len(place)), (np.arange(len(place)), place)), (len(place), len(used)))


def _importances(matrix: Any, labels: NDArray[Any], method: Method, seed: int) -> Floats:
    """One number per feature, at least 0. A feature that was eliminated has 0."""
    if method == "rfe":
        return _by_elimination(matrix, labels, seed)
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    forest = ExtraTreesClassifier if method == "extra-trees" else RandomForestClassifier
    fitted = forest(n_estimators=TREES, random_state=seed, class_weight="balanced", min_samples_leaf=5, n_jobs=1)
    found: Floats = np.asarray(fitted.fit(matrix, labels).feature_importances_, np.float64)
    return found


def _by_elimination(matrix: Any, labels: NDArray[Any], seed: int) -> Floats:
    from sklearn.feature_selection import RFE
    from sklearn.svm import LinearSVC

    classifier = LinearSVC(random_state=seed, class_weight="balanced", dual="auto", max_iter=2000)
    chosen = RFE(classifier, n_features_to_select=min(RFE_FEATURES, matrix.shape[1]), step=RFE_STEP)
    chosen.fit(matrix, labels)
    found = np.zeros(matrix.shape[1])
    found[chosen.support_] = np.abs(chosen.estimator_.coef_).sum(axis=0)
    return found
