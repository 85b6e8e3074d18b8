"""The nine classifiers of the thesis on encoded rows, one job each, on as many processes as asked.

Guarantee: a job's scores depend on its arrays and its seed only, so any number of processes gives the same figures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLASSIFIERS", "SVM_ROWS", "Job", "Scored", "run_jobs"]

SVM_ROWS: Final = 6_000
"""A kernel machine's time grows with the square of the rows: it sees no more than these."""
GRID_ROWS: Final = 3_000

Floats = NDArray[np.floating[Any]]
Codes = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """One classifier to train and test; `key` is whatever the caller wants to find the result by."""

    key: tuple[str, ...]
    classifier: str
    x: Floats
    y: Codes
    x_test: Floats
    y_test: Codes
    seed: int


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Accuracy, and F1, precision and recall averaged over the classes."""

    key: tuple[str, ...]
    classifier: str
    accuracy: float
    f1: float
    precision: float
    recall: float


def _extra_trees(seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(n_estimators=100, random_state=seed)


def _random_forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=100, random_state=seed)


def _gradient_boosting(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=seed)


def _svm(seed: int) -> Any:
    from sklearn.svm import SVC

    return SVC(random_state=seed)


def _logistic_regression(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000, random_state=seed)


def _sgd(seed: int) -> Any:
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(random_state=seed)


def _gaussian_nb(seed: int) -> Any:
    from sklearn.naive_bayes import GaussianNB

    del seed  # nothing is drawn
    return GaussianNB()


def _knn(seed: int) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    del seed
    return KNeighborsClassifier()


def _mlp(seed: int, **chosen: Any) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(random_state=seed, max_iter=200, early_stopping=True, **chosen)


CLASSIFIERS: Final[dict[str, Callable[[int], Any]]] = {
    "extra trees": _extra_trees,
    "random forest": _random_forest,
    "gradient boosting": _gradient_boosting,
    "SVM": _svm,
    "logistic regression": _logistic_regression,
    "SGD": _sgd,
    "Gaussian NB": _gaussian_nb,
    "KNN": _knn,
    "MLP": _mlp,
}


def run_jobs(jobs: Iterable[Job], *, processes: int) -> Iterator[Scored]:
    """The scores of every job, in the order of the jobs, each as soon as it and those before it are done."""
    if processes == 1:
        yield from map(score, jobs)
        return
    from sklearn.utils.parallel import Parallel, delayed

    yield from Parallel(n_jobs=processes, return_as="generator")(delayed(score)(job) for job in jobs)


def score(job: Job) -> Scored:
    """Train on the job's rows and measure on its test rows."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support
    from threadpoolctl import threadpool_limits

    # Jobs run side by side; threads inside one would only get in each other's way.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # defaults are compared as they are, done or not
        found = _fitted(job).predict(job.x_test)
    precision, recall, f1, _ = precision_recall_fscore_support(job.y_test, found, average="macro", zero_division=0)
    return Scored(
        key=job.key,
        classifier=job.classifier,
        accuracy=float(accuracy_score(job.y_test, found)),
        f1=float(f1),
        precision=float(precision),
        recall=float(recall),
    )


def _fitted(job: Job) -> Any:
    order = np.random.default_rng(job.seed).permutation(len(job.y))
    make = CLASSIFIERS[job.classifier]
    rows = order
    if job.classifier == "SVM":
        rows = order[:SVM_ROWS]
    elif job.classifier == "MLP":
        make = partial(_mlp, **_best_of_grid(job, order[:GRID_ROWS]))
    return make(job.seed).fit(job.x[rows], job.y[rows])


def _best_of_grid(job: Job, rows: NDArray[np.int64]) -> dict[str, Any]:
    """The thesis searches a grid for its network; it prints neither grid nor winner."""
    from sklearn.model_selection import GridSearchCV

    grid = {"hidden_layer_sizes": [(32,), (64, 32)], "learning_rate_init": [1e-3, 1e-2]}
    search = GridSearchCV(_mlp(job.seed), grid, cv=3, refit=False).fit(job.x[rows], job.y[rows])
    return dict(search.best_params_)
