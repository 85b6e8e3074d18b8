"""Generalised additive models over secure sums (Hastie and Tibshirani 1990; on bins as in Lou, Caruana, Gehrke 2012).

y ~ link(b + sum over columns of f(x)), each f constant on at most 32 bins: one readable curve per column. Sites count
public cells once; bins follow from the total. Then each total holds the sum of residuals per bin, and sites take the
same step of L-BFGS. The model is that of pooled rows, bit for bit.

Threat model: a hub that lies. It sees the bins, with about how many persons each holds, and the finished model, to half
of its standard errors; never a site's own numbers, never a cell with fewer than `min_bin` persons and, without a
budget, no total. Sites see the totals over all sites; a hub with a site on its side sees them, too.

Guarantee: SecureSum; DP with `method.dp`, by noise in shares; Aggregate, or DP with all noise added at each site, where
`secure.sum = "none"`.

Pairs of columns with a surface of their own are found from sums over all rows; the chosen ones form no cycle, and only
their cells are counted, sealed like those of columns. With a budget, noisy sums over cells of all pairs say which get a
surface, where the budget is large enough for the table.

Sharp edges: a bin that holds enough persons may hold few of one class; totals without a budget say so of bins, not of
persons. Numbers outside their bounds count at the ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError
from kohort.methods.additive.config import Additive, unread_keys
from kohort.methods.additive.exact import ExactLearner
from kohort.methods.additive.private import PrivateLearner
from kohort.methods.registry import Method
from kohort.methods.strengths import with_budget, with_sum
from kohort.models.additive.cells import columns_of
from kohort.models.rows import target_range
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import DP, Cells, Guarantee
from kohort.protocol.hub import Hub, ProtocolGenerator, Result
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import TrainingPhase
from kohort.protocol.plan.reads import Reads
from kohort.rounds.dp_accounts import planned_claims, shared_sigma
from kohort.rounds.totals.checked_training import CheckedTraining
from kohort.rounds.totals.learner import Learner, Setting
from kohort.rounds.totals.pairs import rounds_pairs, small_pairs
from kohort.rounds.totals.protection import is_checked

__all__ = ["METHOD", "TRAINING", "Additive", "check_plan", "fit", "start"]


def start(setting: Setting) -> Learner:
    """The learner of a plan, before the first total.

    Args:
        setting: What hub and sites know alike.

    Returns:
        The exact learner, or the private one where the plan has a budget.
    """
    config: Additive = setting.config
    return ExactLearner(setting) if config.dp is None else PrivateLearner(setting)


def check_plan(setting_columns: tuple[str, ...], config: Additive, *, classes: int, low: float) -> None:
    """What would fail at every site is the plan's fault, and is said once.

    Args:
        setting_columns: The columns the model reads.
        config: `[method]`.
        classes: How many classes there are; 0 for a number.
        low: The lowest value of a target that is a number.

    Raises:
        ConfigError: A key does not fit the table.
    """
    unknown = [name for name in config.monotone if name not in setting_columns]
    if unknown:
        raise ConfigError(f"monotone names {unknown[0]!r}, which the model does not read as a number", hint="Drop it")
    if config.monotone and classes > 2:
        raise ConfigError("monotone curves need two classes or a number", hint="Drop method.monotone")
    if config.link == "log" and (classes or low < 0):
        raise ConfigError("the log link is for numbers that are not negative", hint='Set method.link = "identity"')


def _totals(approved: ApprovedPlan) -> int:
    config: Additive = approved.config
    return config.totals


def _pair_rounds(config: Additive) -> range:
    """The rounds whose totals count pairs of bins."""
    return range(1, 2) if config.metric == "gram" else range(0)


def least_pair(approved: ApprovedPlan) -> int | None:
    """The fewest persons of a pair of bins that opens as it is; 1 where all open, None without pairs.

    Of a metric, the key-holder rounds smaller ones. Of surfaces, sites withhold cells of fewer than `min_bin` persons,
    where counts are sealed from the hub.
    """
    config: Additive = approved.config
    found = []
    if config.pair_round is not None:
        found.append(max(config.min_bin, approved.min_cell) if is_checked(approved) else 1)
    if _pair_rounds(config):
        found.append(small_pairs(approved)[1] if rounds_pairs(approved) else 1)
    return min(found, default=None)


def sealed_rounds(config: Additive) -> Sequence[int]:
    """The rounds whose totals sites alone read: all but counts of pairs of bins.

    Args:
        config: The keys of the learner.

    Returns:
        Numbers of rounds.
    """
    pairs = _pair_rounds(config)
    return [number for number in range(config.totals) if number not in pairs]


def disclosing_rounds(config: Additive) -> Sequence[int]:
    """The rounds after which sites tell the hub something: bins, which pairs of columns have bins, and the model.

    Args:
        config: The keys of the learner.

    Returns:
        Numbers of rounds.
    """
    chosen = config.pair_round
    return [0, *([] if chosen is None else [chosen - 1, chosen]), config.totals - 1]


def _words(approved: ApprovedPlan) -> str:
    """What the totals are, for people."""
    says = "persons per fine cell of each column at first, then how far the model is off in each bin"
    config: Additive = approved.config
    if config.noisy_pair_round is not None:
        return f"{says}, and in cells of pairs of columns where the budget pays for them"
    if config.pair_round is None:
        return says
    cells = "persons and residuals per cell of"
    if config.surfaces != "acyclic":
        return f"{says}; in one round, {cells} all pairs of columns that may be chosen"
    curves = "in one round, sums of residuals along smooth curves of two columns"
    return f"{says}; {curves}; in the next, {cells} the pairs chosen from them, which form no cycle"


TELLS = (
    "the bins of all columns, and of pairs where the plan has some, and about how many persons of all sites each "
    "holds; about how many persons each class has, or the mean of a number to half of its largest standard error; "
    "at the end the model, its values to half of their standard errors"
)
"""What sites say of sealed totals, for people."""

TRAINING = CheckedTraining(
    "additive",
    start,
    _totals,
    says=_words,
    pairs=lambda approved: _pair_rounds(approved.config),
    seals=lambda approved: sealed_rounds(approved.config),
    discloses=lambda approved: disclosing_rounds(approved.config),
    tells=TELLS,
)


def phases(config: Additive, train: TrainSection) -> tuple[TrainingPhase, ...]:
    """All rows; one Gaussian budget for all totals together."""
    return (TrainingPhase(train=replace(train, rounds=1, batch=0, local_epochs=1), dp=config.dp),)


def reads(config: Additive) -> Reads:
    """Of `[train]` the class weights, of `[model]` the type of the numbers: the rest is `[method]`."""
    read = frozenset({"model.dtype", "train.class_weights"})
    return Reads(read, model_kind="additive", unread=unread_keys(config))


def protocol(config: Additive, hub: Hub) -> ProtocolGenerator:
    """Count cells, then sum residuals until the plan's totals are used up."""
    return (yield from fit(config, hub, TRAINING))


def fit(config: Additive, hub: Hub, training: CheckedTraining) -> ProtocolGenerator:
    """Fit an additive model to the sites' training rows.

    Args:
        config: The keys of the learner.
        hub: The coordinator.
        training: Of which sites know the tasks.

    Returns:
        The model.
    """
    encoder = hub.encoder
    ordered = tuple(column.name for column in columns_of(encoder) if column.ordered)
    low = 0.0 if encoder.classes else target_range(encoder)[0]
    check_plan(ordered, config, classes=len(encoder.classes or ()), low=low)
    learner = yield from training.learn(hub, sigma=shared_sigma(hub.approved))
    assert learner.model is not None  # noqa: S101 - a plan has two totals at least
    return Result(model=learner.model, rounds=config.totals, stopped_by="rounds")


def claims(config: Additive, rows: int) -> Sequence[Guarantee]:
    """A share of sums, or numbers in clear; the budget where there is one, otherwise how few persons a bin may have."""
    made: list[Guarantee] = list(planned_claims(phases(config, TrainSection()), config.secure))
    clear = find_scheme(config.secure.sum).name == "none"
    if not (clear and any(isinstance(claim, DP) for claim in made)):
        made.append(find_scheme(config.secure.sum).claim(3, rows))
    if config.dp is None:
        made.append(Cells(least=1 if clear else config.min_bin))
    return tuple(made)


def contract(approved: ApprovedPlan) -> Contract:
    """The reservation of a budget, a shared secret, and one total per round.

    Raises:
        ConfigError: Over a secure sum, a pull is no whole number.
    """
    config: Additive = approved.config
    config.check_pulls()
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
    least_pair=least_pair,
    example="rounds = 3",
    demo="",
    totals=lambda _: TRAINING,
    strengths=(with_sum("masks"), with_budget(4.0), with_budget(0.5)),
)
