"""Additive models and forests as the learning part of methods that make the rows to train on.

`model.kind = "additive"` or `"trees"` in a plan of `silo`, `partial` or `syntactic` chooses what learns from the rows;
`[method.additive]` and `[method.trees]` have the keys of the method of that name. Protection and model are so chosen
apart. A generalised cell counts in every bin that it could stand for (`kohort.models.soft`).

Guarantee: that of `additive` or `trees` on the rows that the method made, over sums of at least three sites. A budget
is refused: rows of other persons decide how a row is generalised, so noise on sums of such rows hides nobody.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError
from kohort.methods.additive.config import Additive
from kohort.methods.trees.config import TELLS, Trees, tree_rounds, words_of
from kohort.models.soft import GRID
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import Cells, Guarantee
from kohort.protocol.hub import Ask, Hub, Result, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan, ModelSection, TrainSection
from kohort.protocol.plan.phases import SecureSumSection, TrainingPhase
from kohort.protocol.plan.reads import Reads
from kohort.rounds.totals.checked_training import CheckedTraining
from kohort.rounds.totals.learner import Learner, Setting

__all__ = ["LearnerKeys", "Learners", "learner_of", "with_model"]


@dataclass(frozen=True, kw_only=True)
class LearnerKeys:
    """The keys of `[method]` by which a learner is chosen; `with_model` fills in those of the plan's `model.kind`."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    additive: Additive | None = None
    """`[method.additive]`, with `model.kind = "additive"`: the keys of the method of that name."""
    trees: Trees | None = None
    """`[method.trees]`, with `model.kind = "trees"`: the keys of the method of that name."""


def learner_of(config: LearnerKeys) -> Additive | Trees | None:
    """The keys of the learner that a plan chose; None where it trains a network.

    Args:
        config: `[method]` of the plan.

    Returns:
        The keys.
    """
    return config.additive if config.additive is not None else config.trees


def with_model(config: LearnerKeys, model: ModelSection) -> LearnerKeys:
    """`[method]` of a plan with the keys of the learner that its `model.kind` names.

    Args:
        config: `[method]` as it was given.
        model: `[model]`.

    Returns:
        The config with one learner, or none where the plan trains a network.

    Raises:
        ConfigError: Keys of another learner are given, or a budget.
    """
    kind = model.kind
    given = {name: keys for name, keys in (("additive", config.additive), ("trees", config.trees)) if keys is not None}
    unread = [name for name in given if name != kind]
    if unread:
        raise ConfigError(
            f"[method.{unread[0]}] is not read with model.kind = {kind!r}",
            hint=f'Drop it, or set model.kind = "{unread[0]}"',
        )
    if config.additive is not None and config.additive.dp is not None:
        raise ConfigError(
            "a budget does not hold over anonymised rows: other persons decide how a row is generalised",
            hint="Drop method.additive.dp, or use the method additive",
        )
    if config.additive is not None and (config.additive.metric == "gram" or config.additive.pairs):
        raise ConfigError(
            "pairs of bins are counted over rows as they are, not over anonymised ones",
            hint="Drop method.additive.metric and method.additive.pairs, or use the method additive",
        )
    if config.additive is not None:
        config.additive.check_pulls()
    if kind == "additive":
        return replace(config, additive=replace(config.additive or Additive(), pairs=0))
    return replace(config, trees=config.trees or Trees()) if kind == "trees" else config


class Learners:
    """Both learners for one method. Creating one registers the tasks of its sites.

    Args:
        method: The method's name, which the tasks' names begin with.
        hub_knows_rows: Whether the hub has some of the rows, so that it can subtract them from every total.
    """

    def __init__(self, method: str, *, hub_knows_rows: bool = False) -> None:
        self._hub_knows_rows = hub_knows_rows
        self.trainings = {
            "additive": CheckedTraining(
                f"{method}.additive",
                _start_additive,
                lambda approved: _additive(approved).totals,
                says="persons per fine cell of each column at first, then how far the model is off in each bin",
                seals=lambda approved: range(_additive(approved).totals),
                discloses=lambda approved: (0, _additive(approved).totals - 1),
                tells="the bins of all columns, about how many persons of all sites each holds, about how many persons "
                "each class has or the rounded mean of a number, and at the end the model",
                own_keys=_additive,
                units=GRID,
            ),
            "trees": CheckedTraining(
                f"{method}.trees",
                _start_trees,
                lambda approved: tree_rounds(_trees(approved)),
                says=lambda approved: words_of(_trees(approved)),
                seals=lambda approved: range(tree_rounds(_trees(approved))),
                tells=TELLS,
                own_keys=_trees,
                units=GRID,
            ),
        }

    def of(self, config: LearnerKeys) -> CheckedTraining:
        """The training of the chosen learner.

        Args:
            config: `[method]` of the plan.

        Returns:
            The training, of which sites know the tasks.
        """
        return self.trainings["trees" if isinstance(learner_of(config), Trees) else "additive"]

    def chosen(self, config: LearnerKeys) -> CheckedTraining | None:
        """As `of`; None where the plan trains a network."""
        return None if learner_of(config) is None else self.of(config)

    def fit(self, config: LearnerKeys, hub: Hub) -> Generator[Ask | RoundEnd, Any, Result]:
        """Learn from the rows that sites made.

        Args:
            config: `[method]` of the plan.
            hub: The coordinator, with the sites that have rows.

        Returns:
            The result of the learner.
        """
        keys, training = learner_of(config), self.of(config)
        if isinstance(keys, Trees):
            from kohort.methods.trees.method import fit as fit_trees

            return (yield from fit_trees(keys, hub, training))
        from kohort.methods.additive.method import fit as fit_additive

        return (yield from fit_additive(keys or Additive(), hub, training))

    def contract(self, approved: ApprovedPlan) -> Contract:
        """What learning asks of a site."""
        return self.of(approved.config).contract(approved)

    def claims(self, config: LearnerKeys, rows: int) -> Sequence[Guarantee]:
        """What a site releases: shares of sums, whose totals are tables."""
        keys = learner_of(config)
        if keys is None:
            return ()
        made: list[Guarantee] = [find_scheme(keys.secure.sum).claim(3, rows)]
        own = keys.min_cell if isinstance(keys, Trees) else keys.min_bin
        clear = find_scheme(keys.secure.sum).name == "none"
        return (*made, Cells(least=1 if clear or self._hub_knows_rows else own))

    def phases(self, config: LearnerKeys, train: TrainSection) -> tuple[TrainingPhase, ...]:
        """One phase over all rows; none where a network is trained."""
        if learner_of(config) is None:
            return ()
        return (TrainingPhase(train=replace(train, rounds=1, batch=0, local_epochs=1)),)

    def secure(self, config: LearnerKeys) -> SecureSumSection | None:
        """How the learner's sums are protected."""
        keys = learner_of(config)
        return None if keys is None else keys.secure

    def reads(self, config: LearnerKeys) -> Reads | None:
        """What a learner reads of a plan; None where a network is trained."""
        if learner_of(config) is None:
            return None
        kind = "trees" if isinstance(learner_of(config), Trees) else "additive"
        keys = frozenset({"model.kind", "model.dtype", "train.class_weights"})
        return Reads(keys, when=f'with model.kind = "{kind}"')


def _additive(approved: ApprovedPlan) -> Additive:
    config: LearnerKeys = approved.config
    return config.additive or Additive()


def _trees(approved: ApprovedPlan) -> Trees:
    config: LearnerKeys = approved.config
    return config.trees or Trees()


def _start_additive(setting: Setting) -> Learner:
    from kohort.methods.additive.method import start

    return start(setting)


def _start_trees(setting: Setting) -> Learner:
    from kohort.methods.trees.method import ForestLearner

    return ForestLearner.start(setting)
