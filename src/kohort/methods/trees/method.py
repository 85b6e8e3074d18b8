"""Boosted forests from sums of histograms (Friedman 2001; second-order splits as in Chen and Guestrin 2016).

In each boosting step several trees are grown side by side, level by level. For every open node, column and bin, sites
add up the gradients, the curvatures and the rows; every site finds the same splits from the total, and tells the hub
the splits alone. All numbers are whole numbers of a grid, made row by row, so the model is bit for bit the one that
pooled rows give.

Threat model: a hub that lies, without a site on its side (totals are checked by sites); with `secure.sum = "none"`, a
hub that is trusted with each site's own sums.

Guarantee: SecureSum over at least three sites; Aggregate without a secure sum.

Sharp edges: the totals are not cell-safe. Deep nodes have bins of few persons, and every site, or a hub with a site on
its side, reads their counts and gradients; a hub alone does not. A policy with `min_sum_cell` above 1 refuses the plan
unless `min_cell` joins small cells before gradients are summed; totals of different trees still overlap. Held-out rows
are chosen by a hash of the person's identifier or, where none is declared, of the row's content: rows of one person, or
equal rows, are held out together. Leaves count rows, not persons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError, DataError, IntegrityError
from kohort.methods.registry import Method
from kohort.methods.strengths import Strength, with_sum
from kohort.methods.trees.config import TELLS, Trees, options_of, tree_rounds, words_of
from kohort.models.rows import Rows
from kohort.models.trees.learner import TreeLearner, TreeRows
from kohort.models.trees.model import TreeModel
from kohort.models.trees.options import MOST_WEIGHT
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import Cells, Guarantee
from kohort.protocol.hub import Hub, ProtocolGenerator, Result
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import TrainingPhase
from kohort.protocol.plan.reads import Reads
from kohort.protocol.state import StateArrays
from kohort.rounds.totals.checked_training import CheckedTraining
from kohort.rounds.totals.learner import Learner, RowCache, Setting, Whole

__all__ = ["METHOD", "TRAINING", "ForestLearner", "fit"]

MOST_CLASSES = 100
NOT_CELL_SAFE = (
    "the totals are not cell-safe: nodes deep in a tree have bins of few persons, whose counts and gradients every "
    "site reads; the hub is told the splits alone"
)


@dataclass(frozen=True, eq=False)
class ForestLearner(Learner):
    """A forest under way, as hub and sites carry it over checked totals."""

    inner: TreeLearner

    @classmethod
    def start(cls, setting: Setting) -> ForestLearner:
        """The learner before the first total.

        Raises:
            ConfigError: There are too many classes, or a class weight is larger than sums have room for.
        """
        encoder, config = replace(setting.encoder, marks_unknown=True), setting.config
        if len(encoder.classes or ()) > MOST_CLASSES:
            raise ConfigError(
                f"a forest tells at most {MOST_CLASSES} classes apart: each has trees of its own",
                hint="Merge classes, or declare bounds for the target if it is a number",
            )
        weights = (encoder.class_weights or {}).values()
        if max(weights, default=1.0) > MOST_WEIGHT:
            raise ConfigError(
                "a class weight is too large for sums of gradients", hint=f"Set it to {MOST_WEIGHT:g} at most"
            )
        if config.min_cell > 1 and encoder.schema.identifiers:
            raise ConfigError(
                "method.min_cell counts rows, and the rows of this plan are about persons who may have several",
                hint="Use the method additive, which counts persons, or drop method.min_cell",
            )
        options = options_of(config, len(encoder.classes or ()))
        least = max(options.min_leaf, setting.approved.min_cell)
        options = replace(options, min_leaf=least, soft=setting.units > 1)
        return cls(TreeLearner(encoder, options, setting.seed))

    @property
    def finished(self) -> bool:
        """Whether the last step was judged, or none helped."""
        return self.inner.done

    @property
    def length(self) -> int:
        """How many numbers the next total has."""
        return self.inner.length

    @property
    def sealed(self) -> bool:
        """Whether the hub must not read the next total; its cells may hold few persons."""
        return self.inner.sealed

    @property
    def least(self) -> int:
        """Fewest rows of a leaf and of a bin."""
        return self.inner.options.min_leaf

    @property
    def tells(self) -> Mapping[str, tuple[str, tuple[int | None, ...]]]:
        """Bins, or how nodes split and which cells are joined, and the loss of held-out rows."""
        return self.inner.tells

    def disclosed(self) -> StateArrays:
        """What follows from a total, without its numbers."""
        return self.inner.disclosed()

    def informed(self, arrays: Mapping[str, NDArray[Any]]) -> ForestLearner:
        """The learner after a sealed total, by what sites tell of it.

        Raises:
            IntegrityError: The arrays do not fit.
        """
        try:
            return ForestLearner(self.inner.informed(arrays))
        except ValueError:
            raise IntegrityError("sites told of bins or splits that do not fit the columns") from None

    def contribution(self, rows: Rows, memory: RowCache) -> Whole:
        """Counts of cells at first; then gradients, curvatures and rows per node, column and bin."""
        return self.inner.contribution(rows, memory.get(TreeRows, lambda: self.inner.rows_of(rows)))

    def after(self, total: Whole, sites: int) -> ForestLearner:
        """The learner that follows from the next total."""
        del sites
        return ForestLearner(self.inner.after(total))

    def check(self) -> None:
        """Refuse to go on with too few rows, or after a step without a single split: too few rows differ."""
        forest = self.inner.forest
        if forest is not None and self.inner.rows < 2 * self.inner.options.min_leaf:
            raise DataError(
                "there are too few rows over all sites for a single split", hint="Lower method.min_leaf, or add rows"
            )
        if forest is not None and len(forest.trees) and not (forest.trees.split >= 0).any():
            raise DataError(
                f"no column can be split into two parts of {self.inner.options.min_leaf} rows with different targets",
                hint="Add columns whose values differ, or rows, or lower method.min_leaf",
            )

    @property
    def model(self) -> TreeModel | None:
        """The forest of the steps that are done; None while the trees of a step grow."""
        inner = self.inner
        if inner.forest is None or (inner.growth is not None and inner.growth.level):
            return None
        return TreeModel(inner.encoder, inner.forest)

    def checkpoint(self) -> StateArrays:
        """Bins, finished trees, and those that grow; at a site with the cells of their open nodes."""
        return self.inner.arrays()

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> ForestLearner:
        """The inverse of `checkpoint`."""
        return ForestLearner(self.inner.restored(arrays))


TRAINING = CheckedTraining(
    "trees",
    ForestLearner.start,
    lambda approved: tree_rounds(approved.config),
    lambda approved: words_of(approved.config),
    seals=lambda approved: range(tree_rounds(approved.config)),
    tells=TELLS,
)


def phases(config: Trees, train: TrainSection) -> tuple[TrainingPhase, ...]:
    """One phase over all rows."""
    del config
    return (TrainingPhase(train=train),)


def protocol(config: Trees, hub: Hub) -> ProtocolGenerator:
    """One total for the bins, one per level of each step, and one for the loss after the last step."""
    return (yield from fit(config, hub, TRAINING))


def fit(config: Trees, hub: Hub, training: CheckedTraining) -> ProtocolGenerator:
    """Grow a forest from the sites' training rows.

    Args:
        config: The keys of the learner.
        hub: The coordinator.
        training: Of which sites know the tasks.

    Returns:
        The forest, and how many steps of it are kept.

    Raises:
        DataError: The plan has too few rounds for a forest.
    """
    learner = yield from training.learn(hub)
    if not isinstance(learner, ForestLearner) or learner.inner.forest is None:
        raise DataError("the plan ended before a forest was grown")
    inner = learner.inner
    model = TreeModel(inner.encoder, learner.inner.forest)
    steps = len(model.forest.trees) // (inner.options.trees * inner.outputs)
    planned = inner.options.steps
    early = steps < planned
    notes = [] if config.secure.sum == "none" else [_about_cells(config)]
    if early:
        notes.append(f"{steps} of {planned} boosting steps are kept: the loss on held-out rows was smallest then")
    facts = {"steps": steps, "holdout_loss": [round(loss, 6) for loss in inner.rounded_history]}
    return Result(
        model=model,
        rounds=inner.totals,
        stopped_by="holdout" if early else "rounds",
        notes=tuple(notes),
        facts={"trees": facts},
    )


def _about_cells(config: Trees) -> str:
    if config.min_cell == 1:
        return NOT_CELL_SAFE
    return f"bins with fewer than {config.min_cell} rows were joined before sites read their sums"


def claims(config: Trees, rows: int) -> Sequence[Guarantee]:
    """Shares of sums, whose totals have cells of any size, unless small ones are joined."""
    return (find_scheme(config.secure.sum).claim(3, rows), Cells(least=config.min_cell))


def contract(approved: ApprovedPlan) -> Contract:
    """One sum per round."""
    return TRAINING.contract(approved)


def reads(config: Trees) -> Reads:
    """Weights of classes; everything else is in `[method]`."""
    del config
    because = "a forest is grown by the keys of [method]"
    return Reads(frozenset({"train.class_weights"}), because={"train.rounds": because}, model_kind="trees")


METHOD = Method(
    name="trees",
    summary="Boosted forests from secure sums of histograms: bit for bit the pooled model.",
    config=Trees,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="Friedman 2001; Chen and Guestrin 2016",
    reads=reads,
    phases=phases,
    secure=lambda config: config.secure,
    example="steps = 1\ndepth = 2\ntrees = 1\nbins = 8\nmin_leaf = 5",
    demo="",
    totals=lambda _: TRAINING,
    strengths=(with_sum("none"), with_sum("masks"), Strength("masks, cells of 20", "masks", ("method.min_cell=20",))),
)
