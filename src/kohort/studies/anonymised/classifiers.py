"""The nine classifiers of the thesis on encoded rows.

Guarantee: a job's scores depend on its arrays and its seed only, so any number of processes gives the same figures.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["SVM_ROWS", "Job", "Scored", "classifier", "score"]

SVM_ROWS: Final = 6_000
"""Training rows of the SVM, whose time grows with the square of their number."""
GRID_ROWS: Final = 1_500


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """One classifier to train and test."""

    protocol: str
    variant: str
    classifier: str
    x: NDArray[np.floating[Any]]
    y: NDArray[np.integer[Any]]
    x_test: NDArray[np.floating[Any]]
    y_test: NDArray[np.integer[Any]]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Accuracy, and F1, precision and recall averaged over the classes."""

    accuracy: float
    f1: float
    precision: float
    recall: float


def classifier(name: str, seed: int, **chosen: Any) -> Any:
    """One of the thesis's classifiers, not yet fitted.

    Args:
        name: One of `NAMES`, such as "extra trees".
        seed: Of classifiers that draw random numbers.
        chosen: Options of the network alone, which its grid search chose.

    Returns:
        scikit-learn's classifier with its default options.
    """
    from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression, SGDClassifier
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    return {
        "extra trees": lambda: ExtraTreesClassifier(n_estimators=100, random_state=seed),
        "random forest": lambda: RandomForestClassifier(n_estimators=100, random_state=seed),
        "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=seed),
        "SVM": lambda: SVC(random_state=seed),
        "logistic regression": lambda: LogisticRegression(max_iter=1000, random_state=seed),
        "SGD": lambda: SGDClassifier(random_state=seed),
        "Gaussian NB": GaussianNB,
        "KNN": KNeighborsClassifier,
        "MLP": lambda: MLPClassifier(random_state=seed, max_iter=200, early_stopping=True, **chosen),
    }[name]()


def score(job: Job) -> Scored:
    """Train on the job's rows and measure on its test rows.

    Args:
        job: The classifier, its rows and its seed. An SVM trains on at most `SVM_ROWS` of them, drawn at random.

    Returns:
        The scores. They do not depend on the number of processes; one thread is used.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support
    from threadpoolctl import threadpool_limits

    # Jobs run in parallel processes, so each uses one thread.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the defaults are compared, converged or not
        found = _fitted(job).predict(job.x_test)
    precision, recall, f1, _ = precision_recall_fscore_support(job.y_test, found, average="macro", zero_division=0)
    accuracy = float(accuracy_score(job.y_test, found))
    return Scored(accuracy=accuracy, f1=float(f1), precision=float(precision), recall=float(recall))


def _fitted(job: Job) -> Any:
    rows = np.random.default_rng(job.seed).permutation(len(job.y))
    chosen: dict[str, Any] = {}
    if job.classifier == "SVM":
        rows = rows[:SVM_ROWS]
    elif job.classifier == "MLP":
        chosen = _best_of_grid(job, rows[:GRID_ROWS])
    return classifier(job.classifier, job.seed, **chosen).fit(job.x[rows], job.y[rows])


def _best_of_grid(job: Job, rows: NDArray[np.int64]) -> dict[str, Any]:
    """The thesis searches a grid for its network; it prints neither the grid nor the result."""
    from sklearn.model_selection import GridSearchCV

    grid = {"hidden_layer_sizes": [(32,), (64, 32)], "learning_rate_init": [1e-3, 1e-2]}
    search = GridSearchCV(classifier("MLP", job.seed), grid, cv=3, refit=False).fit(job.x[rows], job.y[rows])
    return dict(search.best_params_)
