"""The study's plans: three tables, two settings, and the ways to train that are compared.

All ways share a table's hyper-parameters, chosen once on seed 0 and stated in the notes: the server phase of the hybrid
is the server-only plan begun from another model, and the baselines without noise leave the noise out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from kohort.runs.config import Plan, load_plan
from kohort.studies.hybrid.paper import DELTAS, EPSILONS

__all__ = [
    "CASES",
    "COVERTYPE",
    "DUTCH",
    "INCOME",
    "ONE_HOT",
    "Case",
    "Descent",
    "Local",
    "Setting",
    "hybrid",
    "low_risk_only",
    "no_dp",
    "peers_only",
    "printed",
    "published",
    "server_only",
    "summed",
    "tuned",
    "tuned_hybrid",
]

TEST: Final = 0.2
CODES: Final = (
    "sex", "household_position", "household_size", "prev_residence_place", "citizenship", "country_birth", "edu_level",
    "economic_status", "cur_eco_activity", "marital_status",
)  # fmt: skip
"""Columns of the Dutch census that hold codes, not amounts."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """Local passes over small batches."""

    rounds: int
    epochs: int = 1
    batch: int = 32
    lr: float

    def phase(self) -> dict[str, Any]:
        """As a phase says it."""
        return {"rounds": self.rounds, "local_epochs": self.epochs, "batch": self.batch, "lr": self.lr}

    def __str__(self) -> str:
        epochs = f" x {self.epochs} epochs" if self.epochs > 1 else ""
        return f"{self.rounds} rounds{epochs}, batches of {self.batch}, rate {self.lr:g}"


@dataclass(frozen=True, kw_only=True)
class Descent:
    """One full-batch step a round, with momentum 0.9 at the hub."""

    rounds: int
    lr: float
    clip: float
    average: float = 0.3

    def phase(self) -> dict[str, Any]:
        """As a phase says it."""
        return {"rounds": self.rounds, "local_epochs": 1, "batch": 0, "lr": self.lr}

    def __str__(self) -> str:
        return f"{self.rounds} full-batch steps, rate {self.lr:g}, clip {self.clip:g}, last {self.average:.0%} averaged"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One of the paper's tables."""

    name: str
    title: str
    table: str
    data: Mapping[str, Any]
    clusters: int | str
    sites: int
    """Of a cluster."""
    alpha: float
    """Of the authors' published configuration."""
    peers: Local
    server: Local
    clip: float
    descent: Descent
    longer: Descent | None = None
    """What low-risk rows alone are trained with, where it is not `descent`: without noise more steps cost nothing."""
    rows: int = 0
    """So many rows drawn from the table; 0 is all of them."""
    least: int = 0
    """Rows a site has at least, where the paper's own number is not meant."""

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The budgets of its table."""
        return EPSILONS[self.name]

    @property
    def undisturbed(self) -> Descent:
        """How low-risk rows alone are trained, which no noise disturbs."""
        return self.longer or self.descent

    @property
    def least_rows(self) -> int:
        """Rows a site has at least: the printed delta is one over the training rows of the smallest."""
        return self.least or ceil(1 / DELTAS[self.name] / (1 - TEST))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How rows are dealt out, and the delta."""

    name: str
    alpha: float
    delta: float


def printed(case: Case) -> Setting:
    """What the paper's text says."""
    return Setting(name="printed settings", alpha=0.5, delta=DELTAS[case.name])


def published(case: Case) -> Setting:
    """What the authors' published configuration says."""
    return Setting(name="published settings", alpha=case.alpha, delta=1e-5)


DUTCH = Case(
    name="dutch",
    title="Dutch",
    table="dutch",
    data={"target": "occupation"},
    clusters=5,
    sites=15,
    alpha=5.0,
    # The paper prints no rates. The server's is the one that gives its no-DP baseline, mean over the three shares; the
    # peers' the nearest to its P2P+FL cells of 0.5, 0.6 and 0.75.
    peers=Local(rounds=5, epochs=4, lr=0.75),
    server=Local(rounds=20, lr=0.34),
    clip=0.5,
    descent=Descent(rounds=60, lr=4.0, clip=0.3),
)
ONE_HOT: Final = replace(
    DUTCH,
    title="Dutch, one-hot",
    data={**DUTCH.data, "encoding": "onehot", "kinds": dict.fromkeys(CODES, "category")},
    descent=Descent(rounds=60, lr=2.0, clip=0.3),
)
INCOME = Case(
    name="income",
    title="Income (50 regions: no California, a third of Florida)",
    table="acs_income",
    data={
        "target": "PINCP_GT_50K",
        "features": ["AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P"],
        "identifiers": ["ST"],  # kept to form clusters, not learned from
        "kinds": {"PINCP_GT_50K": "category"},
    },
    clusters="column:ST",
    sites=5,
    alpha=5.0,
    peers=Local(rounds=5, epochs=2, lr=1.0),
    server=Local(rounds=10, batch=64, lr=1.0),
    clip=0.5,
    descent=Descent(rounds=60, lr=4.0, clip=0.3),
)
COVERTYPE = Case(
    name="covertype",
    title="Covertype",
    table="covertype",
    data={"target": "cover_type", "kinds": {"cover_type": "category"}},
    clusters=20,
    sites=5,
    alpha=1.0,
    peers=Local(rounds=5, epochs=2, lr=2.0),
    server=Local(rounds=10, lr=2.0),
    clip=0.5,
    descent=Descent(rounds=100, lr=1.0, clip=1.0),
    longer=Descent(rounds=200, lr=2.0, clip=1.0),
)
CASES: Final = (DUTCH, INCOME, COVERTYPE)


def _plan(
    case: Case, setting: Setting, method: Mapping[str, Any], *, low: float | str, train: Mapping[str, Any] | None = None
) -> Plan:
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
            "train": {"optimizer": "sgd", **(train or {})},
            "method": dict(method),
            # Simulated sites: small updates leave, and so do claims whose delta makes them void, marked as such.
            "policy": {"min_rows": 1, "void_dp": True, "delta": 0.05},
        }
    )


def _phases(*phases: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "hybrid", "phases": [dict(phase) for phase in phases]}


def _budget(setting: Setting, epsilon: float, *, clip: float, average: float = 0.0) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": setting.delta, "clip": clip, "average": average, "allow_large_delta": True}


def _peers(case: Case) -> dict[str, Any]:
    return {"kind": "peers", "rows": "low", **case.peers.phase()}


def _server(case: Case) -> dict[str, Any]:
    return {"kind": "server", "rows": "high", **case.server.phase()}


def no_dp(case: Case, setting: Setting, low: float | str) -> Plan:
    """The paper's baseline: everybody with the hub on high-risk rows, no noise."""
    return _plan(case, setting, _phases(_server(case)), low=low)


def server_only(case: Case, setting: Setting, low: float | str, epsilon: float) -> Plan:
    """The paper's "FL": the same under DP-SGD."""
    dp = _budget(setting, epsilon, clip=case.clip)
    return _plan(case, setting, _phases({**_server(case), "dp": dp}), low=low)


def hybrid(case: Case, setting: Setting, low: float | str, epsilon: float) -> Plan:
    """The paper's "P2P+FL": peers on low-risk rows without noise, then as `server_only`."""
    dp = _budget(setting, epsilon, clip=case.clip)
    return _plan(case, setting, _phases(_peers(case), {**_server(case), "dp": dp}), low=low)


def peers_only(case: Case, setting: Setting, low: float | str) -> Plan:
    """The first phase alone; the model is the mean of the clusters' models."""
    return _plan(case, setting, _phases(_peers(case)), low=low)


def low_risk_only(case: Case, setting: Setting, low: float | str) -> Plan:
    """Everybody with the hub on low-risk rows, no noise: what their lack of risk allows."""
    phase = {"kind": "server", "rows": "low", **case.undisturbed.phase()}
    return _plan(case, setting, _phases(phase), low=low, train={"hub": "momentum"})


def tuned(case: Case, setting: Setting, low: float | str, epsilon: float) -> Plan:
    """Server-only with full batches, momentum at the hub and the mean of the last models."""
    dp = _budget(setting, epsilon, clip=case.descent.clip, average=case.descent.average)
    phase = {"kind": "server", "rows": "high", **case.descent.phase(), "dp": dp}
    return _plan(case, setting, _phases(phase), low=low, train={"hub": "momentum"})


def tuned_hybrid(case: Case, setting: Setting, low: float | str, epsilon: float) -> Plan:
    """Peers first, then as `tuned`."""
    dp = _budget(setting, epsilon, clip=case.descent.clip, average=case.descent.average)
    phase = {"kind": "server", "rows": "high", **case.descent.phase(), "dp": dp}
    return _plan(case, setting, _phases(_peers(case), phase), low=low, train={"hub": "momentum"})


def summed(case: Case, setting: Setting, low: float | str, epsilon: float) -> Plan:
    """As `tuned` over a sum: noise is added once, not once a site. All rows train, and all are protected.

    Updates are summed in clear: masks cancel in integers, so the total, and every figure, is the same with them.
    """
    descent = case.descent
    return _plan(
        case,
        setting,
        {
            "name": "fedavg",
            "dp": _budget(setting, epsilon, clip=descent.clip, average=descent.average),
            "secure": {"sum": "none"},
        },
        low=low,
        train={**descent.phase(), "optimizer": "momentum"},
    )
