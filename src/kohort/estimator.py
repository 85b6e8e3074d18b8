"""scikit-learn estimators for federated training: `FederatedClassifier` and `FederatedRegressor`.

    FederatedClassifier(rounds=60).fit(X, y, sites=hospital_of_each_row).predict(new_rows)
    FederatedClassifier().fit([north, south, west], "outcome")

**The sites are simulated.** Every row is in this process already, so a policy protects nobody here; unless `policy`
says otherwise, sites answer however few rows they have (`min_rows = 1`, where a real site asks for 100), and categories
become known however few rows share them (`min_cell = 1`, where a real site asks for 10). What a federation of such
sites would have disclosed stands in `outcome_`.

With three or more sites the updates of "fedavg" are summed by masks, unless `method_options` has `dp` or `secure`.
Options that need each site's own update, such as a median, ask for `method_options={"secure": None}`: plain averaging,
the baseline, where rows can be read by a lying hub.

Guarantees: the same parameters and rows give the same model; arrays behave as scikit-learn prescribes (its estimator
checks pass); text columns of frames are read as categories, and a `UserWarning` names those that are left out because
they look like identifiers or have too many values; a class unknown to a site is known to all, for the set of classes is
declared, and so is no disclosure. No rows are kept for testing unless `data` says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Literal, Self

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from kohort.runs.config import Plan, only_read
from kohort.runs.plan.overrides import dotted_keys, without_keys
from kohort.runs.run import Outcome, run
from kohort.runs.secure_default import load_secured, with_secure_sum
from kohort.runs.undeclared import undeclared_columns
from kohort.tables.cells import canonical_text
from kohort.tables.frames import from_native
from kohort.tables.reading import with_dates

__all__ = ["FederatedClassifier", "FederatedRegressor"]

SIMULATED_POLICY = {"min_rows": 1, "min_cell": 1, "pairs": "open"}
NO_PROBABILITIES = ("svm", "perceptron")
_KEYS = {
    "rounds": "train.rounds",
    "local_epochs": "train.local_epochs",
    "batch": "train.batch",
    "optimizer": "train.optimizer",
    "lr": "train.lr",
    "model": "model.kind",
    "hidden": "model.hidden",
    "dtype": "model.dtype",
}
"""The key of a plan that each parameter of training and model is."""


@dataclass(frozen=True)
class _Given:
    """Rows as they were given: a frame or an array, the target beside it, and the site of each row when known."""

    x: Any
    y: Any
    sites: Any
    target: str | None
    weight: NDArray[Any] | None = None


class _Federated(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """What classifier and regressor share: parameters, and the way from rows to a plan."""

    def __init__(
        self,
        *,
        method: str = "fedavg",
        n_sites: int = 5,
        split: str = "iid",
        rounds: int = 50,
        local_epochs: int = 5,
        batch: int = 32,
        optimizer: str = "adam",
        lr: float = 0.01,
        model: str = "mlp",
        hidden: Sequence[int] = (12,),
        dtype: str = "float64",
        seed: int = 0,
        policy: Mapping[str, Any] | None = None,
        train: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        method_options: Mapping[str, Any] | None = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
    ) -> None:
        self.method = method
        self.n_sites = n_sites
        self.split = split
        self.rounds = rounds
        self.local_epochs = local_epochs
        self.batch = batch
        self.optimizer = optimizer
        self.lr = lr
        self.model = model
        self.hidden = hidden
        self.dtype = dtype
        self.seed = seed
        self.policy = policy
        self.train = train
        self.data = data
        self.method_options = method_options
        self.class_weight = class_weight

    def set_output(self, *, transform: Literal["default", "pandas"] | None = None) -> Self:
        """Choose what predictions are.

        Parameters
        ----------
        transform : "default": arrays; "pandas": a Series, or a DataFrame with a column per class, with the index of X.
        """
        if transform not in (None, "default", "pandas"):
            raise ValueError(f'transform={transform!r} is neither "default" nor "pandas"')
        if transform is not None:
            self._output = transform
        return self

    def _given_back(self, values: NDArray[Any], X: Any, columns: Any = None) -> Any:
        """Predictions as `set_output` asks for them."""
        if getattr(self, "_output", "default") != "pandas":
            return values
        import pandas as pd

        index = getattr(X, "index", None)
        if columns is not None:
            return pd.DataFrame(values, index=index, columns=list(columns))
        return pd.Series(values, index=index, name=self.outcome_.model.target)

    def _train(
        self,
        given: _Given,
        target: pl.Series,
        declared: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
    ) -> Outcome:
        frame = with_dates(self._as_frame(given.x, reset=False))
        name = given.target or _free_name("target", frame.columns)
        is_array = not _is_frame(given.x)
        kinds = dict.fromkeys(frame.columns, "number") if is_array else {}
        data: dict[str, Any] = {
            "table": "in-memory table",
            "target": name,
            "features": "rest",
            "test": 0,
            **{key: {name: value} for key, value in declared.items()},
        }
        data["kinds"] = {**kinds, **data.get("kinds", {})}
        for key, value in (self.data or {}).items():
            if key in {"table", "target"}:
                raise ValueError(f"data may not hold {key!r}: X and y of fit say it")
            data[key] = {**data[key], **value} if isinstance(data.get(key), dict) else value
        data.setdefault("missing", "impute" if any(column.null_count() for column in frame) else "drop")
        if self.method != "additive":
            data.setdefault("encoding", "onehot")
        whole = frame.with_columns(target.alias(name))
        if given.weight is not None:
            data["weight"] = _free_name("sample_weight", whole.columns)
            whole = whole.with_columns(pl.Series(data["weight"], given.weight))
        tables, sites = self._deal(whole, given.sites)
        site_count = len(tables) if len(tables) > 1 else None if self.split.startswith("column:") else sites["count"]
        plan = self._plan(data, sites, site_count, weights)
        _warn_of(undeclared_columns(tables, plan, default=None).names)
        return run(plan, seed=self.seed, tables=tables)

    def _plan(
        self,
        data: Mapping[str, Any],
        sites: Mapping[str, Any],
        site_count: int | None,
        weights: Mapping[str, float] | None,
    ) -> Plan:
        """The plan of these rows; parameters that were left alone and that the method does not read are not in it."""
        hidden = (self.hidden,) if isinstance(self.hidden, int | np.integer) else self.hidden
        raw: dict[str, Any] = {
            "data": data,
            "sites": sites,
            "model": {"kind": self.model, "hidden": [int(units) for units in hidden], "dtype": self.dtype},
            "train": {
                **({} if weights is None else {"class_weights": weights}),
                "rounds": self.rounds,
                "local_epochs": self.local_epochs,
                "batch": self.batch,
                "optimizer": self.optimizer,
                "lr": self.lr,
                **(self.train or {}),
            },
            "policy": dict(SIMULATED_POLICY if self.policy is None else self.policy),
            "method": {"name": self.method, **(self.method_options or {})},
        }
        made = with_secure_sum(raw, sites=site_count)
        unread = dotted_keys(made) - dotted_keys(only_read(made))
        read = without_keys(made, unread & self._left_alone())
        return load_secured(read, asked=raw, plainly='method_options={"secure": None}')

    def _left_alone(self) -> set[str]:
        """The keys of a plan whose parameters have their defaults."""
        parameters = signature(_Federated.__init__).parameters
        usual = {key for name, key in _KEYS.items() if np.array_equal(getattr(self, name), parameters[name].default)}
        return usual - {f"train.{key}" for key in self.train or {}}

    def _deal(self, frame: pl.DataFrame, sites: Any) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
        """One table per site, or one table and how to deal it out."""
        if sites is None:
            if frame.height < self.n_sites:
                raise ValueError(f"n_samples={frame.height} rows cannot be dealt out to n_sites={self.n_sites} sites")
            return {"": frame}, {"count": self.n_sites, "split": self.split}
        labels = column_or_1d(np.asarray(sites))
        check_consistent_length(frame, labels)
        names, codes = np.unique(labels, return_inverse=True)
        if len(names) == 1:
            return {"": frame}, {"count": 1, "split": "iid"}
        parts = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
        return {str(name): frame[part] for name, part in zip(names, parts, strict=True)}, {"split": "files"}

    def _as_frame(self, X: Any, *, reset: bool) -> pl.DataFrame:
        """X as a table; names and numbers of columns are remembered or compared as scikit-learn does it."""
        if _is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return from_native(X)[0]
        checked = validate_data(self, X, reset=reset, dtype=np.float64)
        return pl.DataFrame(checked, schema=[f"x{place}" for place in range(checked.shape[1])])

    def _inputs(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self, "outcome_")
        return np.asarray(self.outcome_.model.encoder.transform(self._as_frame(X, reset=False)))


def _warn_of(columns: Sequence[str]) -> None:
    """Say which columns are not learned from; `outcome_.notes` has the reason for each."""
    if columns:
        warnings.warn(
            "not learned from, because they look like identifiers or are texts with too many values: "
            f'{", ".join(columns)}. To use them give data={{"keep": [...]}}, to leave them out data={{"drop": [...]}}',
            UserWarning,
            stacklevel=4,
        )


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier trained over simulated sites.

    Parameters
    ----------
    method : one of `kohort methods`; `method_options` holds the keys of its own section of a plan. "fedavg" sums
        updates by masks when there are three or more sites; `method_options={"secure": None}` averages them in clear.
    n_sites, split : how rows are dealt out when `fit` is not told their sites ("iid", "interval:COLUMN", "dirichlet").
    rounds, local_epochs, batch, optimizer, lr : training; `train` holds further keys of `[train]`, such as `aggregate`.
    model, hidden, dtype : "mlp" with these hidden layers, "logistic", "linear", "svm" or "perceptron".
    seed : the same seed gives the same model.
    policy : keys of `[policy]`. **None is {"min_rows": 1, "min_cell": 1, "pairs": "open"}: simulated sites that
        answer however few rows they have, and name every category.**
    data : further keys of `[data]`, such as `quasi`, `bounds`, `missing` or `test`. Missing values of frames are
        imputed unless `missing` says otherwise.
    class_weight : how much a row of each class counts, by class, or "balanced" as in scikit-learn.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in scikit-learn.
    outcome_ : what `kohort.run` gave back: `outcome_.model`, `outcome_.history`, and the ledger's summary
        `outcome_.disclosed` with its head `outcome_.ledger_head`.
    """

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> Self:
        """Train on rows, `sites` naming the site of each; or on a list or mapping of tables, one per site.

        With frames, `y` may be the name of the column to predict. `sample_weight` says how much each row counts, for
        methods that train a network.
        """
        given, target = _sort_out(self, X, y, sites, numeric=False, sample_weight=sample_weight)
        check_classification_targets(target)
        self.classes_, codes = np.unique(target, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs two classes at least, and y has {len(self.classes_)} class")
        texts = [canonical_text(value) for value in self.classes_.tolist()]
        if len(set(texts)) < len(texts):
            texts = [str(code) for code in range(len(texts))]
        column = pl.Series(texts, dtype=pl.String).gather(codes)
        by_class = None
        if self.class_weight is not None:
            given_weights = compute_class_weight(self.class_weight, classes=self.classes_, y=target)
            by_class = {text: float(weight) for text, weight in zip(texts, given_weights, strict=True)}
        self.outcome_ = self._train(given, column, {"categories": texts}, by_class)
        return self

    def predict(self, X: Any) -> Any:
        """The class of every row."""
        x = self._inputs(X)
        return self._given_back(self.classes_[self.outcome_.model.codes(x)], X)

    @available_if(lambda self: self.model not in NO_PROBABILITIES)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Class probabilities, in the order of `classes_`."""
        x = self._inputs(X)
        return self._given_back(np.asarray(self.outcome_.model.ranking(x)), X, self.classes_)

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Scores before any softmax: one per class, or for two classes one number that is positive for the second."""
        x = self._inputs(X)
        raw = self.outcome_.model.scores(x)
        if len(self.classes_) > 2:
            return np.asarray(raw)
        return np.asarray(raw[:, 0] if raw.shape[1] == 1 else raw[:, 1] - raw[:, 0])


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor trained over simulated sites; parameters and attributes as of `FederatedClassifier`, without classes.

    `model` is "mlp" or "linear".
    """

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> Self:
        """Train on rows, `sites` naming the site of each; or on a list or mapping of tables, one per site.

        With frames, `y` may be the name of the column to predict. `sample_weight` says how much each row counts, for
        methods that train a network.
        """
        if self.class_weight is not None:
            raise ValueError("class_weight is for classes, and this is a regressor: leave it out")
        given, target = _sort_out(self, X, y, sites, numeric=True, sample_weight=sample_weight)
        self.outcome_ = self._train(given, pl.Series(target), {"kinds": "number"})
        return self

    def predict(self, X: Any) -> Any:
        """The number for every row."""
        x = self._inputs(X)
        return self._given_back(np.asarray(self.outcome_.model.codes(x)), X)


def _sort_out(
    estimator: _Federated, X: Any, y: Any, sites: Any, *, numeric: bool, sample_weight: Any
) -> tuple[_Given, NDArray[Any]]:
    """Rows in one piece, and the target checked as scikit-learn checks it."""
    given = _in_one_piece(X, y, sites)
    estimator._as_frame(given.x, reset=True)
    if given.y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    options: dict[str, Any] = {"dtype": np.float64} if numeric else {"dtype": None}
    target = column_or_1d(check_array(given.y, ensure_2d=False, input_name="y", **options), warn=True)
    check_consistent_length(given.x, target)
    if sample_weight is None:
        return given, target
    weight = _check_sample_weight(sample_weight, target.reshape(-1, 1), ensure_non_negative=True)
    return replace(given, weight=np.asarray(weight, dtype=np.float64)), target


def _in_one_piece(X: Any, y: Any, sites: Any) -> _Given:
    if not _is_several_tables(X):
        return _split_target(X, y, sites)
    if sites is not None:
        raise ValueError("several tables are one per site; leave out sites=")
    tables = list(X.values()) if isinstance(X, Mapping) else list(X)
    names = (
        [str(name) for name in X] if isinstance(X, Mapping) else [f"site-{place + 1:02d}" for place in range(len(X))]
    )
    if isinstance(y, str):
        pairs = [_split_target(table, y, None) for table in tables]
    else:
        targets = list(y.values()) if isinstance(y, Mapping) else list(y)
        if len(targets) != len(tables):
            raise ValueError(f"{len(tables)} tables need {len(tables)} targets, and y has {len(targets)}")
        pairs = [_split_target(table, target, None) for table, target in zip(tables, targets, strict=True)]
    for part in pairs:
        check_consistent_length(part.x, part.y)
    lengths = [len(part.y) for part in pairs]
    return _Given(
        x=_stacked([part.x for part in pairs]),
        y=np.concatenate([np.asarray(part.y) for part in pairs]),
        sites=np.repeat(names, lengths),
        target=pairs[0].target,
    )


def _split_target(X: Any, y: Any, sites: Any) -> _Given:
    if not isinstance(y, str):
        return _Given(X, y, sites, None)
    if not _is_frame(X):
        raise ValueError("y names a column, and X is not a frame")
    frame = nw.from_native(X, eager_only=True)
    if y not in frame.columns:
        raise ValueError(f"the table has no column {y!r}")
    return _Given(frame.drop(y).to_native(), frame[y].to_numpy(), sites, y)


def _stacked(parts: Sequence[Any]) -> Any:
    if not all(_is_frame(part) for part in parts):
        return np.vstack([check_array(part, dtype=np.float64) for part in parts])
    frames = [from_native(part)[0] for part in parts]
    columns = frames[0].columns
    odd = sorted({name for frame in frames for name in set(columns) ^ set(frame.columns)})
    if odd:
        raise ValueError(f"the tables differ in columns: {', '.join(odd)}")
    return pl.concat([frame.select(columns) for frame in frames], how="vertical_relaxed")


def _is_several_tables(X: Any) -> bool:
    if isinstance(X, Mapping) and not hasattr(X, "shape"):  # some sparse matrices are mappings too
        return True
    return isinstance(X, list | tuple) and bool(X) and all(_is_frame(part) or np.ndim(part) == 2 for part in X)


def _is_frame(X: Any) -> bool:
    """A frame with names for its columns; one of pandas with other labels is an array to scikit-learn."""
    named = nw.dependencies.is_into_dataframe(X)
    return bool(named) and all(isinstance(column, str) for column in getattr(X, "column_names", X.columns))


def _free_name(wanted: str, taken: Sequence[str]) -> str:
    while wanted in taken:
        wanted += "_"
    return wanted
