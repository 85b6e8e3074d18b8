"""The study's plans, and what it keeps of their runs.

Every figure is a run of a real method through doors and ledgers, on `diabetes_130us`: one row a patient, readmitted at
all against not, ten sites, 70 % of the rows for training. A seed draws the split, the sites and the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kohort.runs.config import Plan, load_plan, only_read
from kohort.runs.run import run
from kohort.studies.harness.side_by_side import spread

__all__ = [
    "CENTRAL",
    "FL",
    "LEARNERS",
    "SITES",
    "Found",
    "Runs",
    "federated",
    "noisy",
    "perturbed",
    "quasi_only",
    "syntactic",
]

SITES: Final = 10
TEST: Final = 0.3
DELTA: Final = 1e-5
"""Of DP-SGD: below 1 / (10 n) at a site with 5,000 rows. Output and objective perturbation have none."""
LEARNERS: Final[Mapping[str, float]] = {"logistic": 0.2, "svm": 0.05, "perceptron": 0.05}
"""Each learner's rate; a perceptron's changes nothing but the scale of its weights."""
CENTRAL, FL = "central", "fedavg"
EPOCHS: Final = 4
AVERAGE: Final = 0.8
"""A learner's last step, a perceptron's most of all, can turn its threshold: the mean of models stands still."""
WEIGHTS: Final = {"NO": 0.83, "other": 1.25}
"""1 / (2 x the published shares of the classes)."""
IDS: Final = {"quasi": ["age", "gender", "race"], "items": ["diagnoses"], "identifiers": ["patient_nbr"]}
CODES: Final = ("admission_type_id", "discharge_disposition_id", "admission_source_id")
FEATURES: Final = (
    "weight", *CODES, "time_in_hospital", "payer_code", "medical_specialty", "num_lab_procedures", "num_procedures",
    "num_medications", "number_outpatient", "number_emergency", "number_inpatient", "number_diagnoses",
    "max_glu_serum", "a1c_result", "metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride",
    "acetohexamide", "glipizide", "glyburide", "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose", "miglitol",
    "troglitazone", "tolazamide", "examide", "citoglipton", "insulin", "glyburide_metformin", "glipizide_metformin",
    "glimepiride_pioglitazone", "metformin_rosiglitazone", "metformin_pioglitazone", "change", "diabetes_med",
)  # fmt: skip
"""Everything that is no quasi-identifier; kept as it is."""


def federated(
    learner: str,
    method: Mapping[str, Any],
    *,
    rounds: int,
    train: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    weighted: bool = True,
) -> Plan:
    """A plan of this table for any method, of the training keys those that it reads."""
    return load_plan(
        only_read(
            {
                "data": {
                    "table": "diabetes_130us",
                    "target": "readmitted",
                    "categories": {"readmitted": ["NO"]},
                    "other": ["readmitted", "diagnoses"],
                    **IDS,
                    "drop": ["encounter_id"],
                    "kinds": dict.fromkeys(CODES, "category"),
                    "missing": "category",
                    "encoding": "onehot",
                    "test": TEST,
                    **(data or {}),
                },
                "sites": {"count": SITES},
                "model": {"kind": learner},
                "train": {
                    "rounds": rounds,
                    "local_epochs": EPOCHS,
                    "batch": 64,
                    "optimizer": "sgd",
                    # In a pass over all rows the hub makes as many times the steps of a site as there are sites.
                    "lr": LEARNERS[learner] / (SITES if method["name"] == CENTRAL else 1),
                    "average": AVERAGE,
                    **({"class_weights": WEIGHTS} if weighted else {}),
                    **(train or {}),
                },
                "method": dict(method),
                "policy": {"raw": method["name"] == CENTRAL, "min_k": 2},
            }
        )
    )


def syntactic(learner: str, k: int, *, rounds: int, data: Mapping[str, Any] | None = None) -> Plan:
    """(k, k^2)-anonymous rows; each site keeps the quasi-identifier that tells it most about the target, and takes rare
    pairs of items apart instead of making groups that pairs of are common."""
    anonymise = {
        "k": k,
        "m": 2,
        "delta": 0.95,
        "merge": "all",
        "rare": "suppress",
        "suppression_limit": 1.0,
        "importance": {"method": "forest", "top": 1},
    }
    return federated(learner, {"name": "syntactic", "anonymise": anonymise}, rounds=rounds, data=data)


def quasi_only() -> dict[str, Any]:
    """What is left of the table when only quasi-identifiers and items are learned from."""
    left = [name for name in FEATURES if name not in CODES]
    return {"drop": ["encounter_id", *CODES, *left], "kinds": {}}


def _without_items() -> dict[str, Any]:
    """Noise grows with the number of features, so noisy learners do better without the 900 of the diagnoses."""
    return {"items": [], "drop": ["encounter_id", "diagnoses"], "other": ["readmitted"]}


def noisy(learner: str, epsilon: float, *, rounds: int) -> Plan:
    """Tuned DP-SGD: whole sites as batches, Adam on the noisy gradients, the mean of the last models."""
    budget = {"epsilon": epsilon, "delta": DELTA, "clip": 4.0, "average": 0.5}
    train = {"local_epochs": 1, "batch": 0, "optimizer": "adam", "state": "keep", "lr": 0.05, "average": 0.0}
    return federated(learner, {"name": FL, "dp": budget}, rounds=rounds, train=train, data=_without_items())


def perturbed(mechanism: str, epsilon: float) -> Plan:
    """The paper's baseline: one private logistic regression a site, averaged. Its loss knows no class weights."""
    budget = {"mechanism": mechanism, "epsilon": epsilon, "delta": 0}
    train, data = {"local_epochs": 1, "l2": 0.01, "average": 0.0}, _without_items()
    return federated("logistic", {"name": FL, "dp": budget}, rounds=1, train=train, data=data, weighted=False)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the study keeps of a run."""

    f1: float
    macro: float
    auc: float
    positives: float
    """Share of the test rows that were readmitted."""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def above_chance(self) -> float:
        """AUC - 0.5."""
        return self.auc - 0.5


class Runs:
    """Runs by plan and seed, each made once, several side by side."""

    def __init__(self, seeds: Sequence[int], *, processes: int = 1) -> None:
        self.seeds = tuple(seeds)
        self._processes = processes
        self._known: dict[tuple[str, int], Found] = {}

    def prepare(self, plans: Sequence[Plan]) -> None:
        """Make what is still missing of these plans."""
        wanted = {(plan.digest(), seed): (plan, seed) for plan in plans for seed in self.seeds}
        missing = {place: job for place, job in wanted.items() if place not in self._known}
        self._known |= dict(zip(missing, spread(made, list(missing.values()), self._processes), strict=True))

    def of(self, plan: Plan) -> list[Found]:
        """One run a seed."""
        self.prepare([plan])
        return [self._known[plan.digest(), seed] for seed in self.seeds]


def made(plan: Plan, seed: int) -> Found:
    """One run."""
    outcome = run(plan, seed=seed)
    (_, no_as_yes), (yes_as_no, yes) = outcome.metrics["confusion"]
    (no, _), _ = outcome.metrics["confusion"]
    return Found(
        f1=outcome.metrics["f1"],
        macro=outcome.metrics["f1_macro"],
        auc=outcome.metrics["auc"],
        positives=(yes_as_no + yes) / (no + no_as_yes + yes_as_no + yes),
        facts=dict(outcome.facts),
    )
