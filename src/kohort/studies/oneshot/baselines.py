"""Tables 3 and 4: the paper lists other authors' results; here the same kinds of classifier see the same rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kohort.rng import Streams
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.oneshot.paper import ACCURACY, BASELINES
from kohort.studies.oneshot.plans import OneshotSession, Table, listed, oneshot_plan
from kohort.tables.persons import hold_out

__all__ = ["baselines"]

SLOW: Final = {"support vectors": 6_000, "multilayer perceptron": 20_000, "gradient boosting": 50_000}
"""The training rows of classifiers whose time grows faster than the number of rows."""


def _classifiers(seed: int) -> dict[str, Callable[[], Any]]:
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC
    from sklearn.tree import DecisionTreeClassifier

    return {
        # One layer under cross-entropy without a penalty, by a quasi-Newton method.
        "single layer, L-BFGS": lambda: LogisticRegression(C=np.inf, max_iter=300),
        "logistic regression": lambda: LogisticRegression(max_iter=300),
        "k nearest neighbours": KNeighborsClassifier,
        "multilayer perceptron": lambda: MLPClassifier(random_state=seed, max_iter=60),
        "support vectors": lambda: SVC(random_state=seed),
        "naive Bayes": GaussianNB,
        "decision tree": lambda: DecisionTreeClassifier(random_state=seed),
        "random forest": lambda: RandomForestClassifier(100, random_state=seed),
        "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=seed),
    }


def baselines(session: OneshotSession, tables: Mapping[str, Table]) -> Part:
    """Every classifier on the split of the runs; mean and median without ours, as in the paper.

    Args:
        session: The running study, whose depth says how many rows a classifier gets at most.
        tables: The tables on this machine, by name.

    Returns:
        One table with accuracies in per cent, and a note on the rows each classifier saw.
    """
    most_rows = session.depth.baseline_rows
    rows = []
    for name, table, printed in listed(tables, ACCURACY):
        (ours,) = session.runs.of(oneshot_plan(table, sites=20), seeds=[0])
        rows.append(Found(f"{name}: one shot", ours.percent, printed))
        found = {}
        for kind, make in _classifiers(0).items():
            session.say(f"{name}: {kind}")
            found[kind] = _score(table, make(), min(most_rows, SLOW.get(kind, most_rows)))
            rows.append(Found(f"{name}: {kind}", found[kind], BASELINES[kind].get(name)))
        rows.append(Found(f"{name}: mean of the others", fmean(found.values())))
        rows.append(Found(f"{name}: median of the others", median(found.values())))
    note = (
        "The paper copies Tables 3 and 4 from other authors, each with a split of its own. Here scikit-learn's "
        f"classifiers with their defaults see z-scored rows of one split, at most {most_rows:,}; "
        + ", ".join(f"{kind} at most {rows:,}" for kind, rows in SLOW.items())
        + "."
    )
    return Part([ResultTable("Other classifiers (%)", "Tables 3 and 4", rows)], notes=[note])


def _score(table: Table, model: Any, most_rows: int) -> float:
    x, y, test = _split(table)
    train = np.flatnonzero(~test)
    chosen = np.random.default_rng(0).permutation(train)[:most_rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the perceptron warns when it has not converged
        model.fit(x[chosen], y[chosen])
    return 100 * float((model.predict(x[test]) == y[test]).mean())


def _split(table: Table) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    """The rows and the held-out ones of seed 0, as `kohort run` has them."""
    frame = table.frame.drop_nulls()
    x = frame.select(table.inputs).to_numpy().astype(np.float64)
    y = frame[table.target].rank("dense").to_numpy().astype(np.int64)
    test = hold_out(len(y), 0.3, Streams.seeded(0).generator("test"))
    centre, spread = x[~test].mean(axis=0), x[~test].std(axis=0)
    return (x - centre) / np.where(spread > 0, spread, 1.0), y, test
