"""The study's plans: three tables, two settings, and the columns: ways to train that are compared.

Rounds and batches are stated; one procedure tunes rate, clip and the number of full-batch steps of every column
(`kohort.studies.hybrid.tuning`). The server phase of the hybrid is the server's own plan with another
starting model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from kohort.runs.config import Plan, load_plan
from kohort.studies.hybrid.paper import DELTAS, EPSILONS

__all__ = [
    "CASES",
    "CLIPS",
    "COVERTYPE",
    "DUTCH",
    "FL",
    "HYBRID",
    "HYBRID_STEPS",
    "INCOME",
    "LOW_RISK",
    "NO_DP_COLUMN",
    "ONCE",
    "ONE_HOT",
    "PEERS_ONLY",
    "REACHES",
    "SHIFTED",
    "STEPS",
    "STEP_FACTORS",
    "HybridCase",
    "HybridCell",
    "HybridChoice",
    "HybridColumn",
    "HybridSetting",
    "HybridTraining",
    "LowRisk",
    "printed",
    "published",
]  # fmt: skip

LowRisk = float | str
"""The share of low-risk rows, or the rule that names them."""
TEST: Final = 0.2
CODES: Final = (
    "sex", "household_position", "household_size", "prev_residence_place", "citizenship", "country_birth", "edu_level",
    "economic_status", "cur_eco_activity", "marital_status",
)  # fmt: skip
"""Columns of the Dutch census that hold codes, not amounts."""


@dataclass(frozen=True, kw_only=True)
class HybridTraining:
    """Local passes over batches; with batch 0, one full-batch step per round, momentum 0.9 and averaged models."""

    rounds: int
    epochs: int = 1
    batch: int = 32

    @property
    def average(self) -> float:
        """The share of the rounds, at the end, whose models are averaged."""
        return 0.0 if self.batch else 0.5

    def __str__(self) -> str:
        if not self.batch:
            return f"{self.rounds} full-batch steps, momentum 0.9, last half averaged"
        epochs = f" x {self.epochs} passes" if self.epochs > 1 else ""
        return f"{self.rounds} rounds{epochs}, batches of {self.batch}"


@dataclass(frozen=True, order=True)
class HybridChoice:
    """What tuning chooses: how far a step goes at most (rate times clip); the clip, which matters under noise; and a
    factor of the number of full-batch steps."""

    reach: float
    clip: float = 1.0
    steps: float = 1.0

    @property
    def lr(self) -> float:
        """The rate."""
        return self.reach / self.clip

    def __str__(self) -> str:
        steps = "" if self.steps == 1 else f", {self.steps:g} times the steps"
        return f"rate {self.lr:g}, clip {self.clip:g}{steps}"


REACHES: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Tried first, at clip 1; the search goes on from the best of them."""
CLIPS: Final = (0.1, 0.3, 1.0, 3.0)
STEP_FACTORS: Final = (1.0, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class HybridCase:
    """One table and how models are trained on it."""

    name: str
    title: str
    table: str
    data: Mapping[str, Any]
    clusters: int | str
    sites: int
    """Per cluster."""
    alpha: float
    """Of the Dirichlet split in the authors' published configuration."""
    peers: HybridTraining
    server: HybridTraining
    steps: HybridTraining = HybridTraining(rounds=30, batch=0)
    """Full-batch training, private or not."""
    least: int = 0
    """Minimum number of rows per site; 0 takes it from the paper's delta."""

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The budgets of its table."""
        return EPSILONS[self.name]

    @property
    def least_rows(self) -> int:
        """Minimum number of rows per site: the printed delta is one over the training rows of the smallest site."""
        return self.least or ceil(1 / DELTAS[self.name] / (1 - TEST))


@dataclass(frozen=True, kw_only=True)
class HybridSetting:
    """How rows are split over the sites, and the delta."""

    name: str
    alpha: float
    delta: float


def printed(case: HybridCase) -> HybridSetting:
    """The settings of the paper's text.

    Args:
        case: The table.

    Returns:
        alpha = 0.5, and the delta that the paper prints for the table.
    """
    return HybridSetting(name="printed settings", alpha=0.5, delta=DELTAS[case.name])


def published(case: HybridCase) -> HybridSetting:
    """The settings of the authors' published configuration.

    Args:
        case: The table.

    Returns:
        The table's alpha, and delta = 1e-5.
    """
    return HybridSetting(name="published settings", alpha=case.alpha, delta=1e-5)


DUTCH = HybridCase(
    name="dutch", title="Dutch", table="dutch", data={"target": "occupation"}, clusters=5, sites=15, alpha=5.0,
    peers=HybridTraining(rounds=5, epochs=4),
    server=HybridTraining(rounds=20),
)  # fmt: skip
ONE_HOT: Final = replace(
    DUTCH,
    title="Dutch, one-hot",
    data={**DUTCH.data, "encoding": "onehot", "kinds": dict.fromkeys(CODES, "category")},
)
# With low-risk rows of the youngest, a site's share of them varies: sites must be large enough for either part.
SHIFTED: Final = replace(ONE_HOT, least=250)
INCOME = HybridCase(
    name="income", title="Income (50 regions: no California, a third of Florida)", table="acs_income",
    data={
        "target": "PINCP_GT_50K",
        "features": ["AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P"],
        "drop": ["ST"],  # forms clusters, and is not learned from
        "kinds": {"PINCP_GT_50K": "category"},
    },
    clusters="column:ST", sites=5, alpha=5.0,
    peers=HybridTraining(rounds=5, epochs=2),
    server=HybridTraining(rounds=10, batch=64),
)  # fmt: skip
COVERTYPE = HybridCase(
    name="covertype", title="Covertype", table="covertype",
    data={"target": "cover_type", "kinds": {"cover_type": "category"}}, clusters=20, sites=5, alpha=1.0,
    peers=HybridTraining(rounds=5, epochs=2),
    server=HybridTraining(rounds=10),
)  # fmt: skip
CASES: Final = (DUTCH, INCOME, COVERTYPE)


def _plan(
    case: HybridCase, setting: HybridSetting, low: LowRisk, *phases: Mapping[str, Any], secure: bool = False
) -> Plan:
    train: dict[str, Any] = {}
    if any(phase["batch"] == 0 for phase in phases) and not secure:
        train["hub"] = "momentum"
    if any(phase["batch"] == 0 and phase["kind"] == "server" for phase in phases):
        train["average"] = case.steps.average
    # Sums in clear: masks cancel in integers, so the total, and every figure, is the same with them.
    own = {"secure": {"sum": "none"}} if secure else {}
    return load_plan(
        {
            "data": {"table": case.table, "features": "rest", "encoding": "label", "test": TEST, **case.data},
            "sites": {
                "count": case.sites,
                "clusters": case.clusters,
                "split": "dirichlet",
                "alpha": [setting.alpha] * 3,
                "low_risk": low,
                "min_rows": case.least_rows,
            },
            "model": {"kind": "logistic"},
            "train": train,
            "method": {"name": "hybrid", "phases": [dict(phase) for phase in phases], **own},
            # Simulated sites: small updates leave, and so do claims whose delta makes them void, marked as such.
            "policy": {"min_rows": 1, "void_dp": True, "delta": 0.05},
        }
    )


def _keys(training: HybridTraining, chosen: HybridChoice) -> dict[str, Any]:
    """The keys of a phase."""
    return {
        "rounds": training.rounds if training.batch else round(training.rounds * chosen.steps),
        "local_epochs": training.epochs,
        "batch": training.batch,
        "lr": chosen.lr,
    }


@dataclass(frozen=True, kw_only=True)
class HybridCell:
    """What a plan of the study is about; `epsilon` is None where there is no noise."""

    case: HybridCase
    setting: HybridSetting
    low: LowRisk
    epsilon: float | None = None

    def budget(self, chosen: HybridChoice) -> dict[str, Any]:
        """The budget's key of a phase."""
        if self.epsilon is None:
            return {}
        dp = {"epsilon": self.epsilon, "delta": self.setting.delta, "clip": chosen.clip, "allow_large_delta": True}
        return {"dp": dp}


@dataclass(frozen=True)
class HybridColumn:
    """One way to train: its name, whether it is private, and its plan for a cell.

    `make` gets the cell, what tuning chose for it, and what tuning chose for the peers' phase.
    """

    name: str
    private: bool
    make: Callable[[HybridCell, HybridChoice, HybridChoice], Plan]
    has_peers: bool = False
    full_batch: bool = False
    """Whether the number of its steps is tuned; passes over batches are as many as in the paper."""


def _server(
    cell: HybridCell, training: HybridTraining, chosen: HybridChoice, rows: str = "high", optimizer: str = "sgd"
) -> dict[str, Any]:
    own = {"kind": "server", "rows": rows, "optimizer": optimizer}
    return {**own, **_keys(training, chosen), **cell.budget(chosen)}


def _peers(cell: HybridCell, chosen: HybridChoice) -> dict[str, Any]:
    return {"kind": "peers", "rows": "low", "optimizer": "sgd", **_keys(cell.case.peers, chosen)}


def _of(cell: HybridCell, *phases: Mapping[str, Any], secure: bool = False) -> Plan:
    return _plan(cell.case, cell.setting, cell.low, *phases, secure=secure)


NO_DP_COLUMN = HybridColumn("no DP", False, lambda cell, own, _: _of(cell, _server(cell, cell.case.server, own)))
"""The paper's baseline: all sites train with the hub on high-risk rows, without noise."""
LOW_RISK = HybridColumn(
    "low-risk only",
    False,
    lambda cell, own, _: _of(cell, _server(cell, cell.case.steps, own, "low")),
    full_batch=True,
)
"""All sites train with the hub on low-risk rows alone, without noise."""
PEERS_ONLY = HybridColumn("P2P only", False, lambda cell, own, _: _of(cell, _peers(cell, own)))
"""The first phase alone; each row is judged by the model that its own site has with its peers."""
FL = HybridColumn("FL", True, lambda cell, own, _: _of(cell, _server(cell, cell.case.server, own)))
"""The paper's "FL": DP-SGD over batches at every site, on high-risk rows."""
HYBRID = HybridColumn(
    "P2P+FL",
    True,
    lambda cell, own, peers: _of(cell, _peers(cell, peers), _server(cell, cell.case.server, own)),
    has_peers=True,
)
"""The paper's "P2P+FL": peers on low-risk rows without noise, then as `FL`."""
STEPS = HybridColumn(
    "tuned server",
    True,
    lambda cell, own, _: _of(cell, _server(cell, cell.case.steps, own)),
    full_batch=True,
)
"""Server alone with full batches, momentum and averaged models; noise at every site."""
ONCE = HybridColumn(
    "noise once",
    True,
    lambda cell, own, _: _of(cell, _server(cell, cell.case.steps, own, optimizer="momentum"), secure=True),
    full_batch=True,
)
"""The same over a sum: noise is added once, not once per site."""
HYBRID_STEPS = HybridColumn(
    "P2P, then tuned server",
    True,
    lambda cell, own, peers: _of(cell, _peers(cell, peers), _server(cell, cell.case.steps, own)),
    has_peers=True,
    full_batch=True,
)
