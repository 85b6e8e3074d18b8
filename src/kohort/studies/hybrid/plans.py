"""The study's plans: three tables, two settings, and the ways to train that are compared.

All ways share a table's hyper-parameters, chosen once on seed 0 and stated in the notes. The server phase of the hybrid
is the server-only plan with another starting model, and the baselines without noise leave the noise out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from kohort.runs.config import Plan, load_plan
from kohort.studies.hybrid.paper import DELTAS, EPSILONS

__all__ = [
    "CASES", "COVERTYPE", "DIGITS", "DUTCH", "INCOME", "ONE_HOT", "SHIFTED", "Case", "LowRisk", "Setting",
    "Training", "hybrid", "low_risk_only", "no_dp", "peers_only", "printed", "published", "server_only", "summed",
    "tuned", "tuned_hybrid",
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
class Training:
    """Local passes over batches; with batch 0, one full-batch step per round and momentum 0.9 at the hub."""

    rounds: int
    lr: float
    epochs: int = 1
    batch: int = 32
    clip: float = 0.5
    average: float = 0.0
    """The share of the rounds, at the end, whose models are averaged under a budget."""

    def keys(self) -> dict[str, Any]:
        """The keys of a phase or of `[train]`."""
        return {"rounds": self.rounds, "local_epochs": self.epochs, "batch": self.batch, "lr": self.lr}

    def budget(self, setting: Setting, epsilon: float) -> dict[str, Any]:
        """The keys of `dp`."""
        own = {"clip": self.clip, "average": self.average, "allow_large_delta": True}
        return {"epsilon": epsilon, "delta": setting.delta, **own}

    def __str__(self) -> str:
        if not self.batch:
            steps = f"{self.rounds} full-batch steps, rate {self.lr:g}, clip {self.clip:g}"
            return f"{steps}, last {self.average:.0%} averaged"
        epochs = f" x {self.epochs} epochs" if self.epochs > 1 else ""
        return f"{self.rounds} rounds{epochs}, batches of {self.batch}, rate {self.lr:g}"


@dataclass(frozen=True, kw_only=True)
class Case:
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
    peers: Training
    server: Training
    tuned: Training
    low_risk: Training | None = None
    """How low-risk rows alone are trained, where it is not `tuned`: without noise more steps cost nothing."""
    least: int = 0
    """Minimum number of rows per site; 0 takes it from the paper's delta."""

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The budgets of its table."""
        return EPSILONS[self.name]

    @property
    def noiseless(self) -> Training:
        """How low-risk rows alone are trained."""
        return self.low_risk or self.tuned

    @property
    def least_rows(self) -> int:
        """Minimum number of rows per site: the printed delta is one over the training rows of the smallest site."""
        return self.least or ceil(1 / DELTAS[self.name] / (1 - TEST))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How rows are split over the sites, and the delta."""

    name: str
    alpha: float
    delta: float


def printed(case: Case) -> Setting:
    """The settings of the paper's text."""
    return Setting(name="printed settings", alpha=0.5, delta=DELTAS[case.name])


def published(case: Case) -> Setting:
    """The settings of the authors' published configuration."""
    return Setting(name="published settings", alpha=case.alpha, delta=1e-5)


# The paper prints no rates. The server's rate here gives the paper's no-DP baseline, mean over the three shares; the
# peers' is the one of 0.5, 0.6 and 0.75 that comes nearest to its P2P+FL cells.
DUTCH = Case(
    name="dutch", title="Dutch", table="dutch", data={"target": "occupation"}, clusters=5, sites=15, alpha=5.0,
    peers=Training(rounds=5, epochs=4, lr=0.75),
    server=Training(rounds=20, lr=0.34),
    tuned=Training(rounds=60, batch=0, lr=4.0, clip=0.3, average=0.3),
)  # fmt: skip
ONE_HOT: Final = replace(
    DUTCH,
    title="Dutch, one-hot",
    data={**DUTCH.data, "encoding": "onehot", "kinds": dict.fromkeys(CODES, "category")},
    tuned=replace(DUTCH.tuned, lr=2.0),
)
# With low-risk rows of the youngest, a site's share of them varies: sites must be large enough for either part.
SHIFTED: Final = replace(ONE_HOT, least=250)
INCOME = Case(
    name="income", title="Income (50 regions: no California, a third of Florida)", table="acs_income",
    data={
        "target": "PINCP_GT_50K",
        "features": ["AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P"],
        "identifiers": ["ST"],  # kept to form clusters, not learned from
        "kinds": {"PINCP_GT_50K": "category"},
    },
    clusters="column:ST", sites=5, alpha=5.0,
    peers=Training(rounds=5, epochs=2, lr=1.0),
    server=Training(rounds=10, batch=64, lr=1.0),
    tuned=Training(rounds=60, batch=0, lr=4.0, clip=0.3, average=0.3),
)  # fmt: skip
COVERTYPE = Case(
    name="covertype", title="Covertype", table="covertype",
    data={"target": "cover_type", "kinds": {"cover_type": "category"}}, clusters=20, sites=5, alpha=1.0,
    peers=Training(rounds=5, epochs=2, lr=2.0),
    server=Training(rounds=10, lr=2.0),
    tuned=Training(rounds=100, batch=0, lr=1.0, clip=1.0, average=0.3),
    low_risk=Training(rounds=200, batch=0, lr=2.0),
)  # fmt: skip
DIGITS = Case(
    name="digits", title="Digits", table="digits",
    data={"target": "digit", "bounds": {f"pixel_{place:02d}": [0, 16] for place in range(64)}},
    clusters=2, sites=3, alpha=5.0, least=120,
    peers=Training(rounds=5, epochs=4, lr=0.5),
    server=Training(rounds=10, lr=0.5),
    tuned=Training(rounds=40, batch=0, lr=1.0, clip=0.3, average=0.3),
)  # fmt: skip
CASES: Final = (DUTCH, INCOME, COVERTYPE)


def _plan(
    case: Case,
    setting: Setting,
    low: LowRisk,
    *phases: Mapping[str, Any],
    method: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
) -> Plan:
    momentum = {"hub": "momentum"} if any(phase["batch"] == 0 for phase in phases) else {}
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
            "train": {"optimizer": "sgd", **momentum, **(train or {})},
            "method": dict(method or {"name": "hybrid", "phases": [dict(phase) for phase in phases]}),
            # Simulated sites: small updates leave, and so do claims whose delta makes them void, marked as such.
            "policy": {"min_rows": 1, "void_dp": True, "delta": 0.05},
        }
    )


def _peers(case: Case) -> dict[str, Any]:
    return {"kind": "peers", "rows": "low", **case.peers.keys()}


def _server(training: Training, rows: str = "high", dp: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"kind": "server", "rows": rows, **training.keys(), **({} if dp is None else {"dp": dp})}


def no_dp(case: Case, setting: Setting, low: LowRisk) -> Plan:
    """The paper's baseline: all sites train with the hub on high-risk rows, without noise."""
    return _plan(case, setting, low, _server(case.server))


def server_only(case: Case, setting: Setting, low: LowRisk, epsilon: float) -> Plan:
    """The paper's "FL": the same under DP-SGD."""
    return _plan(case, setting, low, _server(case.server, dp=case.server.budget(setting, epsilon)))


def hybrid(case: Case, setting: Setting, low: LowRisk, epsilon: float) -> Plan:
    """The paper's "P2P+FL": peers on low-risk rows without noise, then as `server_only`."""
    return _plan(case, setting, low, _peers(case), _server(case.server, dp=case.server.budget(setting, epsilon)))


def peers_only(case: Case, setting: Setting, low: LowRisk) -> Plan:
    """The first phase alone; the model is the mean of the clusters' models."""
    return _plan(case, setting, low, _peers(case))


def low_risk_only(case: Case, setting: Setting, low: LowRisk) -> Plan:
    """All sites train with the hub on low-risk rows alone, without noise."""
    return _plan(case, setting, low, _server(case.noiseless, "low"))


def tuned(case: Case, setting: Setting, low: LowRisk, epsilon: float) -> Plan:
    """Server-only with full batches, momentum at the hub and the mean of the last models."""
    return _plan(case, setting, low, _server(case.tuned, dp=case.tuned.budget(setting, epsilon)))


def tuned_hybrid(case: Case, setting: Setting, low: LowRisk, epsilon: float) -> Plan:
    """Peers first, then as `tuned`."""
    return _plan(case, setting, low, _peers(case), _server(case.tuned, dp=case.tuned.budget(setting, epsilon)))


def summed(case: Case, setting: Setting, low: LowRisk, epsilon: float) -> Plan:
    """As `tuned` over a sum: noise is added once, not once per site. All rows train, and all are protected.

    Updates are summed in clear: masks cancel in integers, so the total, and every figure, is the same with them.
    """
    method = {"name": "fedavg", "dp": case.tuned.budget(setting, epsilon), "secure": {"sum": "none"}}
    return _plan(case, setting, low, method=method, train={**case.tuned.keys(), "optimizer": "momentum"})
