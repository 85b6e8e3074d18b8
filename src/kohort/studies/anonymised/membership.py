"""Membership inference on anonymised rows: the thesis (chapters 6 and 7) says that anonymising helps against it.

Members are the rows a model was trained on, the others as many rows of the same table that it never saw. The attacker
knows a row as it is and how the model was made (classifier, k, l, t). He asks the model for the log odds of the row's
true label and takes off the mean log odds of reference models, which he made the same way from other rows, so that a
row that is easy for any model does not pass for a member. Rows as they are and anonymised rows meet the same attack:

- `model`: he asks with the row as it is;
- `table and model`: he also sees the table behind the model and asks with a row of it that could stand for his;
- `table`: he takes for a member every row that one of the table's could stand for, its label included.

A guess has an area under the curve of 0.5 and finds 5 % of the members at 5 % false alarms. Extra trees grow until
every training row is fitted: on rows as they are the attack must succeed there, or it measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.evaluate.attacks.released import could_stand_for
from kohort.rng import Streams
from kohort.studies.anonymised.classifiers import classifier
from kohort.studies.anonymised.protocols import NOT_ANONYMISED
from kohort.studies.anonymised.release import release
from kohort.studies.anonymised.tables import VARIANTS, AnonymisedCase, AnonymisedSession
from kohort.studies.harness.found import Found, Part, ResultTable
from kohort.studies.harness.parallel import in_parallel
from kohort.tables.hierarchy import Hierarchy

__all__ = ["attack", "membership"]

MODELS: Final = ("extra trees", "gradient boosting", "logistic regression")
KEYS: Final = (NOT_ANONYMISED, "k3", "l2", "t0.2")
REFERENCES: Final = 2
FALSE_ALARMS: Final = 0.05
SURE: Final = 1e-3

Floats = NDArray[np.floating[Any]]


def membership(session: AnonymisedSession, cases: Sequence[AnonymisedCase]) -> Part:
    """The attacks on every table, as it is and anonymised, with 95 % intervals over draws of rows.

    Args:
        session: The running study.
        cases: The tables to attack.

    Returns:
        One table, with a note where the attack fails on overfitted models and therefore shows nothing.
    """
    rows, notes = [], []
    for case in cases:
        session.say(f"{case.title}: membership inference")
        draws = range(session.depth.attacks)
        jobs = [(case, key, repeat, session.depth.attack_rows) for key in KEYS for repeat in draws]
        results = list(in_parallel(attack, jobs, session.runs.processes))
        for place, key in enumerate(KEYS):
            label = "rows as they are" if key == NOT_ANONYMISED else VARIANTS[key].label
            made = results[place * len(draws) : (place + 1) * len(draws)]
            found = [Found.mean(f"{case.title}, {label}, {what}", [one[what] for one in made], interval=True)
                     for what in made[0]]  # fmt: skip
            rows += found
            if key == NOT_ANONYMISED and (found[0].interval or (0.0, 1.0))[0] <= 0.5:
                notes.append(f"{case.title}: the attack does not succeed on overfitted extra trees: it shows nothing.")
    return Part([ResultTable("Membership inference", "Section 7.3, a claim without a figure", rows)], notes=notes)


def attack(case: AnonymisedCase, key: str, repeat: int, most: int) -> dict[str, float]:
    """Attack models of one draw of rows, as they are or anonymised.

    Args:
        case: The table.
        key: The variant; "none" for rows as they are.
        repeat: The number of the draw, which decides the rows.
        most: The largest number of members; there are as many others.

    Returns:
        For each attack and classifier the area under the curve, and the share of members found at 5 % false alarms.
    """
    from threadpoolctl import threadpool_limits

    size = min(most, case.frame.height // (2 + REFERENCES))
    order = Streams.seeded(0).generator("members", case.name, repeat).permutation(case.frame.height)
    members, others, *more = (
        case.frame[order[begin : begin + size]] for begin in range(0, size * (2 + REFERENCES), size)
    )
    encoder, asked = case.encoder(), pl.concat([members, others])
    y, is_member = encoder.target(asked).astype(np.int64), np.arange(2 * size) < size
    hierarchies: Mapping[str, Hierarchy] = {}
    shown, trained = members, []
    for part in (members, *more):
        made = None if key == NOT_ANONYMISED else release(part, case, VARIANTS[key])
        x = encoder.transform(part) if made is None else made.encode(encoder)
        trained.append((x, encoder.target(part).astype(np.int64)))
        if made is not None and part is members:
            shown, hierarchies = made.frame, made.hierarchies
    stands = could_stand_for(shown, asked, encoder.schema.inputs, hierarchies)
    plain = encoder.transform(asked)
    questions = {"model": plain}
    if key != NOT_ANONYMISED:
        known = np.any(stands, axis=1, keepdims=True)
        questions["table and model"] = np.where(known, trained[0][0][stands.argmax(axis=1)], plain)
    found: dict[str, float] = {}
    with threadpool_limits(limits=1):
        for name in MODELS:
            models = [classifier(name, repeat).fit(*rows) for rows in trained]
            for how, x in questions.items():
                own, *usual = (_log_odds(model, x, y) for model in models)
                area, hits = _judged(own - np.mean(usual, axis=0), is_member)
                found |= {f"{how}, {name}: area": area, f"{how}, {name}: found at 5 %": hits}
    same = stands & (y[:, None] == trained[0][1])
    return {**found, "table: area": _judged(same.any(axis=1), is_member)[0]}


def _log_odds(model: Any, x: Floats, y: NDArray[np.int64]) -> Floats:
    shares = np.zeros((len(y), int(y.max()) + 1))
    shares[:, model.classes_] = model.predict_proba(x)
    share = np.clip(shares[np.arange(len(y)), y], SURE, 1 - SURE)
    return np.asarray(np.log(share / (1 - share)))


def _judged(score: NDArray[Any], is_member: NDArray[np.bool_]) -> tuple[float, float]:
    from sklearn.metrics import roc_auc_score

    threshold = np.quantile(score[~is_member].astype(np.float64), 1 - FALSE_ALARMS)
    return float(roc_auc_score(is_member, score)), float((score[is_member] > threshold).mean())
