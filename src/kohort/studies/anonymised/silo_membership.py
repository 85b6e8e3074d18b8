"""Membership inference on the federated model of silos, before and after they anonymise their rows.

The attack is the loss threshold of Yeom et al. (CSF 2018): a row whose label the model finds likely passes for one that
it was trained on. Members are the silos' training rows as they are, the others the test rows. Silos of a few hundred
rows and many rounds make the model fit its rows closely: on rows as they are the attack must succeed there, or it
measures nothing. A guess has an area under the curve of 0.5.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.models.base import Model
from kohort.rng import Streams
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import run
from kohort.runs.simulation import populate
from kohort.studies.anonymised.silo import silo_plan
from kohort.studies.anonymised.tables import AnonymisedCase, AnonymisedSession
from kohort.studies.harness.found import Found, Part, ResultTable

__all__ = ["loss_threshold_area", "silo_membership"]

ROWS: Final = 1500
ROUNDS: Final = 200
RATE: Final = 0.1
LEAST: Final = 1e-12


def silo_membership(session: AnonymisedSession, adult: AnonymisedCase) -> Part:
    """The attack on the model of three small silos of Adult, as they are and 3-anonymous.

    Args:
        session: The running study, whose depth says how often the attack is repeated.
        adult: Adult.

    Returns:
        One table with the area under the curve, and the accuracy of the attacked models.
    """
    session.say("Silos: membership inference")
    rows = []
    for label, method in (("rows as they are", "fedavg"), ("each silo 3-anonymous", "silo")):
        found = [_attacked(adult, _small(method), repeat) for repeat in range(session.depth.attacks)]
        rows.append(Found.mean(f"{label}: area", [area for area, _ in found], interval=True))
        rows.append(Found.mean(f"{label}: accuracy on test rows", [accuracy for _, accuracy in found]))
    title = f"Membership inference on the model of three silos of {ROWS * 7 // 30:,} rows each"
    return Part([ResultTable(title, "Section 7.3, a claim without a figure", rows)])


def _small(method: str) -> Plan:
    raw = silo_plan(method, rounds=ROUNDS).to_mapping()
    data = {**raw["data"], "features": "rest", "drop": []}  # the study's table has no column to drop
    return load_plan({**raw, "data": data, "train": {**raw["train"], "lr": RATE}}, complete=True)


def _attacked(adult: AnonymisedCase, plan: Plan, repeat: int) -> tuple[float, float]:
    """Area under the curve of the attack, and the model's accuracy."""
    order = Streams.seeded(0).generator("silo members", str(repeat)).permutation(adult.frame.height)
    tables = {"": adult.frame[order[:ROWS]]}  # a table in memory has no codebook
    outcome = run(plan, seed=repeat, tables=tables)
    population = populate(plan, Streams.seeded(repeat), tables=tables)
    return loss_threshold_area(outcome.model, population.frame, population.test), outcome.accuracy


def loss_threshold_area(model: Model, members: pl.DataFrame, others: pl.DataFrame) -> float:
    """Area under the curve of a threshold on the loss.

    Args:
        model: The model that is attacked.
        members: Rows that it was trained on, as they are.
        others: Rows that it never saw.

    Returns:
        The area; 0.5 is a guess.
    """
    from sklearn.metrics import roc_auc_score

    scores = [_likelihood(model, frame) for frame in (members, others)]
    is_member = np.repeat([True, False], [len(one) for one in scores])
    return float(roc_auc_score(is_member, np.concatenate(scores)))


def _likelihood(model: Model, frame: pl.DataFrame) -> NDArray[np.float64]:
    """Log likelihood of each row's own label."""
    known = frame.filter(pl.Series(model.encoder.within(frame)))
    codes = model.encoder.target(known).astype(np.int64)
    shares = np.asarray(model.predict_proba(known), dtype=np.float64)
    return np.asarray(np.log(np.maximum(shares[np.arange(len(codes)), codes], LEAST)))
