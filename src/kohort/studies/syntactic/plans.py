"""The study's plans, and how much of them is run.

All are on `diabetes_130us`: one row per patient, readmitted at all against not, ten sites, 70 % of the rows for
training. A seed draws the split, the sites and the starting weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kohort.runs.config import Plan, load_plan, only_read
from kohort.runs.gain import reference_plans
from kohort.studies.harness.session import Depth

__all__ = [
    "BOUND", "CENTRAL", "FIRST", "FL", "LEARNERS", "MERGE", "SITES", "K", "SyntacticDepth", "federated", "noisy",
    "perturbed", "quasi_only", "syntactic",
]  # fmt: skip

K: Final = 10
"""The k that the paper's conclusions are about."""
SITES: Final = 10
TEST: Final = 0.3
MERGE, BOUND = "all", 0.5
"""How clusters join unless cross-validation says otherwise, and the paper's delta: the largest relational loss that
joining them may lead to."""
AMPLE: Final = 0.3
"""From this epsilon on DP-SGD makes all its steps."""
DELTA: Final = 1e-5
"""Of DP-SGD: below 1 / (10 n) at a site with 5,000 rows. Output and objective perturbation have none."""
LEARNERS: Final[Mapping[str, float]] = {"logistic": 0.2, "svm": 0.05, "perceptron": 0.05}
"""Each learner's rate; a perceptron's changes nothing but the scale of its weights."""
FIRST, *_ = LEARNERS
CENTRAL, FL = "central", "fedavg"
EPOCHS: Final = 4
AVERAGE: Final = 0.8
"""A single model's threshold changes from round to round, above all a perceptron's; the mean of models is stable."""
WEIGHTS: Final = {"NO": 0.83, "other": 1.25}
"""1 / (2 x the published shares of the classes)."""
IDS: Final = {"quasi": ["age", "gender", "race"], "items": ["diagnoses"], "identifiers": ["patient_nbr"]}
ITEM_LABELS: Final[Mapping[str, Any]] = {"hierarchies": {"diagnoses": "icd9"}, "ancestors": ["diagnoses"]}
AGES: Final = [f"[{low}-{low + 10})" for low in range(0, 100, 10)]
BINS: Final[Mapping[str, Sequence[float]]] = {
    **dict.fromkeys(("number_inpatient", "number_emergency", "number_outpatient"), (0.5, 1.5, 2.5)),
    "num_medications": (5.5, 10.5, 15.5, 20.5, 30.5),
    "number_diagnoses": (3.5, 5.5, 7.5, 8.5),
}
"""Counts that are mostly small: as they are they span little of 0 to 1, and every learner trains slowly on them."""
CODES: Final = ("admission_type_id", "discharge_disposition_id", "admission_source_id")
FEATURES: Final = (
    "weight", *CODES, "time_in_hospital", "payer_code", "medical_specialty", "num_lab_procedures", "num_procedures",
    "num_medications", "number_outpatient", "number_emergency", "number_inpatient", "number_diagnoses",
    "max_glu_serum", "a1c_result", "metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride",
    "acetohexamide", "glipizide", "glyburide", "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose", "miglitol",
    "troglitazone", "tolazamide", "examide", "citoglipton", "insulin", "glyburide_metformin", "glipizide_metformin",
    "glimepiride_pioglitazone", "metformin_rosiglitazone", "metformin_pioglitazone", "change", "diabetes_med",
)  # fmt: skip
"""All columns that are not quasi-identifiers; released unchanged."""


def federated(
    learner: str,
    method: Mapping[str, Any],
    *,
    rounds: int,
    train: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    weighted: bool = True,
) -> Plan:
    """A plan on this table for any method. Of the training keys, the method gets those that it reads.

    Args:
        learner: The model kind; a key of `LEARNERS`, which has its rate.
        method: `[method]` with its name.
        rounds: The rounds.
        train: Keys of `[train]` that win over the study's own.
        data: Keys of `[data]` that win over the study's own.
        weighted: Weigh classes in the loss.

    Returns:
        The plan.
    """
    return load_plan(
        only_read(
            {
                "data": {
                    "table": "diabetes_130us",
                    "target": "readmitted",
                    "categories": {"readmitted": ["NO"], "age": AGES},
                    "other": ["readmitted", "diagnoses"],
                    **IDS,
                    **ITEM_LABELS,
                    "ordered": ["age"],
                    "drop": ["encounter_id"],
                    "kinds": dict.fromkeys(CODES, "category"),
                    "missing": "category",
                    "encoding": "onehot",
                    "bins": BINS,
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


def syntactic(
    learner: str,
    k: int,
    *,
    rounds: int,
    data: Mapping[str, Any] | None = None,
    merge: str = MERGE,
    delta: float = BOUND,
) -> Plan:
    """A plan on (k, k^2)-anonymous rows.

    In rows that hold a rare pair of codes, one of them goes up its hierarchy until no pair is rare.

    Args:
        learner: The model kind.
        k: The smallest number of rows that share quasi-identifiers, and that hold a pair of codes.
        rounds: The rounds.
        data: Keys of `[data]` that win over the study's own.
        merge: How clusters join, as `method.anonymise.merge`.
        delta: Clusters join as long as the quasi-identifiers lose at most this.

    Returns:
        The plan.
    """
    anonymise = {"k": k, "m": 2, "delta": delta, "merge": merge}
    return federated(learner, {"name": "syntactic", "anonymise": anonymise}, rounds=rounds, data=data)


def quasi_only() -> dict[str, Any]:
    """The `[data]` keys that leave only quasi-identifiers and items to learn from."""
    left = [name for name in FEATURES if name not in CODES]
    return {"drop": ["encounter_id", *CODES, *left], "kinds": {}, "bins": {}}


def _without_items() -> dict[str, Any]:
    """Noise grows with the number of features, so noisy learners do better without the 900 of the diagnoses."""
    return {
        "items": [],
        "drop": ["encounter_id", "diagnoses"],
        "other": ["readmitted"],
        "hierarchies": {},
        "ancestors": [],
    }


def noisy(learner: str, epsilon: float, *, rounds: int) -> Plan:
    """A plan with tuned DP-SGD: whole sites as batches, Adam on the noisy gradients, the mean of the last models.

    Args:
        learner: The model kind.
        epsilon: The budget of all rounds together.
        rounds: The rounds.

    Returns:
        The plan, without items: noise grows with the number of features.
    """
    budget = {"epsilon": epsilon, "delta": DELTA, "clip": 4.0, "average": 0.5}
    train = {"local_epochs": 1, "batch": 0, "optimizer": "adam", "state": "keep", "lr": 0.05, "average": 0.0}
    return federated(learner, {"name": FL, "dp": budget}, rounds=rounds, train=train, data=_without_items())


def perturbed(mechanism: str, epsilon: float) -> Plan:
    """A plan of the paper's baseline: one private logistic regression per site, averaged once.

    Args:
        mechanism: How noise is added, as `method.dp.mechanism`.
        epsilon: The budget, with delta = 0.

    Returns:
        The plan, without items. Its loss has no class weights.
    """
    budget = {"mechanism": mechanism, "epsilon": epsilon, "delta": 0}
    train, data = {"local_epochs": 1, "l2": 0.01, "average": 0.0}, _without_items()
    return federated("logistic", {"name": FL, "dp": budget}, rounds=1, train=train, data=data, weighted=False)


@dataclass(frozen=True, kw_only=True)
class SyntacticDepth(Depth):
    """How much of the study is run."""

    rounds: int
    noisy_rounds: int
    """Of DP-SGD; an eighth of it with an epsilon below `AMPLE`, where more steps add more noise than they learn."""
    ks: tuple[int, ...]
    other_ks: tuple[int, ...]
    """For the learners after the first."""
    epsilons: tuple[float, ...]
    other_epsilons: tuple[float, ...]
    """For the learners after the first."""
    rates: Mapping[str, tuple[float, ...]]
    """The rates that cross-validation chooses among; a learner that is absent has that of `LEARNERS`."""
    merges: tuple[tuple[str, float], ...]
    """The ways to join clusters that it chooses among: `merge` and `delta`."""

    def plain(self, learner: str, method: str) -> Plan:
        """Central learning or FL."""
        return federated(learner, {"name": method}, rounds=self.rounds)

    def anonymous(self, learner: str, k: int = K) -> Plan:
        """FL on (k, k^m)-anonymous rows."""
        return syntactic(learner, k, rounds=self.rounds)

    def deleted(self, learner: str) -> Plan:
        """FL without quasi-identifiers and items."""
        return reference_plans(self.anonymous(learner))[1]

    def by_k(self, learner: str) -> dict[float, Plan]:
        """The (k, k^m)-anonymous plans of a learner."""
        return {k: self.anonymous(learner, k) for k in (self.ks if learner == FIRST else self.other_ks)}

    def by_epsilon(self) -> dict[str, dict[float, Plan]]:
        """The plans under a budget: every learner with DP-SGD, and logistic regression with two perturbations."""
        made = {
            f"{learner}, DP-SGD": {
                epsilon: noisy(learner, epsilon, rounds=self.noisy_rounds_of(epsilon))
                for epsilon in (self.epsilons if learner == FIRST else self.other_epsilons)
            }
            for learner in LEARNERS
        }
        for mechanism in ("output", "objective"):
            made[f"logistic, {mechanism} perturbation"] = {
                epsilon: perturbed(mechanism, epsilon) for epsilon in self.epsilons
            }
        return made

    def noisy_rounds_of(self, epsilon: float) -> int:
        """Steps of DP-SGD."""
        return self.noisy_rounds if epsilon >= AMPLE else max(self.noisy_rounds // 8, 1)

    def private(self, learner: str) -> list[Plan]:
        """Every plan of a learner under a budget."""
        return [
            plan for name, plans in self.by_epsilon().items() if name.startswith(learner) for plan in plans.values()
        ]

    def quasi(self) -> dict[str, Plan]:
        """Plans that learn from quasi-identifiers and items alone."""
        return {
            "FL": federated("logistic", {"name": FL}, rounds=self.rounds, data=quasi_only()),
            f"(k, k^m), k = {K}": syntactic("logistic", K, rounds=self.rounds, data=quasi_only()),
        }

    def four_ways(self, learner: str) -> dict[str, Sequence[Plan]]:
        """The plans of Figure 4, and FL without the columns that the others anonymise or add noise for."""
        return {
            "central": [self.plain(learner, CENTRAL)],
            "FL": [self.plain(learner, FL)],
            "FL, epsilon-DP": self.private(learner),
            "FL, (k, k^m)": list(self.by_k(learner).values()),
            "FL, columns deleted": [self.deleted(learner)],
        }

    def plans(self) -> list[Plan]:
        """Every plan of the study."""
        ways = [plan for learner in LEARNERS for plans in self.four_ways(learner).values() for plan in plans]
        return [*ways, *self.quasi().values()]
