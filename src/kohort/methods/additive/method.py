"""Generalised additive models over secure sums (Hastie and Tibshirani 1990; on bins as in Lou, Caruana, Gehrke 2012).

y ~ link(b + sum over columns of f(x)), each f constant on at most 32 bins: one readable curve per column. Sites count
public cells once; bins follow from the total. Then each total holds the sum of residuals per bin, and hub and sites
take the same step of L-BFGS. The model is that of pooled rows, bit for bit.

Threat model: a hub that lies. It sees the bins, with how many persons each holds, and one sum of residuals per bin and
round, over all sites; never a site's own numbers and never a cell with fewer than `min_bin` persons. Sites see the
counts of single cells over all sites; a hub with a site on its side sees them, too.

Guarantee: SecureSum; DP with `method.dp`, by noise in shares; Aggregate, or DP with all noise added at each site, where
`secure.sum = "none"`.

Sharp edges: a bin that holds enough persons may hold few of one class; totals without a budget say so of bins, not of
persons. Numbers outside their bounds count at the ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kohort.crypto.sums.scheme import find_scheme
from kohort.methods.additive.config import Additive
from kohort.methods.additive.learner import check_plan, start
from kohort.methods.registry import Method
from kohort.models.additive.cells import columns_of
from kohort.models.rows import target_range
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import DP, Guarantee
from kohort.protocol.hub import Hub, ProtocolGenerator, Result
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import TrainingPhase
from kohort.protocol.plan.reads import Reads
from kohort.rounds.checked_training import CheckedTraining
from kohort.rounds.dp_accounts import planned_claims, shared_sigma

__all__ = ["METHOD", "TRAINING", "Additive"]


def _totals(approved: ApprovedPlan) -> int:
    config: Additive = approved.config
    return config.totals


TRAINING = CheckedTraining(
    "additive",
    start,
    _totals,
    says="counts of cells in the first round, and sums of residuals per bin in the others",
    seals=range(1),
    tells="the bins of all columns and how many persons of all sites each holds",
)


def phases(config: Additive, train: TrainSection) -> tuple[TrainingPhase, ...]:
    """All rows; one Gaussian budget for all totals together."""
    return (TrainingPhase(train=replace(train, rounds=1, batch=0, local_epochs=1), dp=config.dp),)


def reads(config: Additive) -> Reads:
    """Of `[train]` the class weights, of `[model]` the type of the numbers: the rest is `[method]`."""
    del config
    return Reads(frozenset({"model.dtype", "train.class_weights"}), model_kind="additive")


def protocol(config: Additive, hub: Hub) -> ProtocolGenerator:
    """Count cells, then sum residuals until the plan's totals are used up."""
    encoder = hub.encoder
    ordered = tuple(column.name for column in columns_of(encoder) if column.ordered)
    low = 0.0 if encoder.classes else target_range(encoder)[0]
    check_plan(ordered, config, classes=len(encoder.classes or ()), low=low)
    learner = yield from TRAINING.learn(hub, sigma=shared_sigma(hub.approved, steps=1))
    assert learner.model is not None  # noqa: S101 - a plan has two totals at least
    return Result(model=learner.model, rounds=config.totals, stopped_by="rounds")


def claims(config: Additive, rows: int) -> Sequence[Guarantee]:
    """A share of sums, or numbers in clear; the budget where there is one."""
    made: list[Guarantee] = list(planned_claims(phases(config, TrainSection()), config.secure))
    clear = find_scheme(config.secure.sum).name == "none"
    if not (clear and any(isinstance(claim, DP) for claim in made)):
        made.append(find_scheme(config.secure.sum).claim(3, rows))
    return tuple(made)


def contract(approved: ApprovedPlan) -> Contract:
    """The reservation of a budget, a shared secret, and one total per round."""
    return TRAINING.contract(approved)


METHOD = Method(
    name="additive",
    summary="Sites sum residuals per bin of every column; the result is one readable curve per column.",
    config=Additive,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="Hastie and Tibshirani 1990; Lou et al. 2012",
    reads=reads,
    phases=phases,
    secure=lambda config: config.secure,
    example="rounds = 3",
    demo="",
)
