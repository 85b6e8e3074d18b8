"""Tables 3 and 4: the paper lists other authors' results; here the same kinds of classifier see the same rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kohort.rng import Streams
from kohort.studies.harness.lines import row
from kohort.studies.oneshot.figures import Part
from kohort.studies.oneshot.paper import ACCURACY, BASELINES
from kohort.studies.oneshot.runs import Runs, Table, oneshot_plan
from kohort.studies.registry import Say
from kohort.tables.splits import hold_out

__all__ = ["baselines"]

SLOW: Final = {"support vectors": 6_000, "multilayer perceptron": 20_000, "gradient boosting": 50_000}
"""Whose time grows faster than the rows: they are trained on no more than these."""


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


def baselines(tables: Mapping[str, Table], runs: Runs, *, most_rows: int, say: Say) -> Part:
    """Every classifier on the split of the runs; mean and median without ours, as the paper has them."""
    out = []
    for name, table in tables.items():
        ours = runs.of(oneshot_plan(table, sites=20), table).accuracy
        out.append(row(f"{name}: one shot", ACCURACY[name], ours))
        found = {}
        for kind, make in _classifiers(0).items():
            say(f"{name}: {kind}")
            found[kind] = _score(table, make(), min(most_rows, SLOW.get(kind, most_rows)))
            out.append(row(f"{name}: {kind}", BASELINES[kind].get(name), found[kind]))
        out.append(row(f"{name}: mean of the others", None, fmean(found.values())))
        out.append(row(f"{name}: median of the others", None, median(found.values())))
    note = (
        "The paper copies Tables 3 and 4 from other authors, each with a split of its own. Here scikit-learn's "
        f"classifiers with their defaults see z-scored rows of one split, at most {most_rows:,}; "
        + ", ".join(f"{kind} at most {rows:,}" for kind, rows in SLOW.items())
        + "."
    )
    return Part(tables=({"name": "Other classifiers (%)", "source": "Tables 3 and 4", "rows": out},), notes=(note,))


def _score(table: Table, model: Any, most_rows: int) -> float:
    x, y, test = _split(table)
    train = np.flatnonzero(~test)
    chosen = np.random.default_rng(0).permutation(train)[:most_rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a perceptron that stops early says so
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
