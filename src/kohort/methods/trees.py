"""Boosted forests from sums of histograms (Friedman 2001; second-order splits as in Chen and Guestrin 2016).

In each boosting step several trees are grown side by side, level by level. For every open node, column and bin, sites
add up the gradients, the curvatures and the rows; hub and sites find the same splits from the total. All numbers are
whole numbers of a grid, made row by row, so the model is bit for bit the one that pooled rows give.

Threat model: a hub that lies, without a site on its side (totals are checked by sites); with `secure.sum = "none"`, a
hub that is trusted with each site's own sums.

Guarantee: SecureSum over at least three sites; Aggregate without a secure sum.

Sharp edges: the totals are not cell-safe. Deep nodes have bins of few persons, and the hub sees their counts and
gradients; a policy with `min_sum_cell` above 1 refuses the plan. Held-out rows are chosen by a hash of the row's
content: equal rows are held out together. Leaves count rows, not persons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from kohort.crypto.sums.scheme import find_scheme
from kohort.errors import ConfigError, DataError
from kohort.methods.registry import Method
from kohort.models.rows import Rows
from kohort.models.trees.learner import TreeLearner, TreeRows
from kohort.models.trees.model import TreeModel
from kohort.models.trees.options import MOST_DEPTH, MOST_WEIGHT, TreeOptions
from kohort.privacy.contract import Contract
from kohort.privacy.guarantee import Cells, Guarantee
from kohort.protocol.hub import Hub, ProtocolGenerator, Result
from kohort.protocol.plan.approved import ApprovedPlan, TrainSection
from kohort.protocol.plan.phases import SecureSumSection, TrainingPhase
from kohort.protocol.plan.reads import Reads
from kohort.protocol.state import StateArrays
from kohort.rounds.checked_training import CheckedTraining
from kohort.rounds.learner import Learner, Memory, Setting, Whole

__all__ = ["METHOD", "TRAINING", "ForestLearner", "Trees", "options_of"]

MOST_CLASSES = 100
NOT_CELL_SAFE = (
    "the opened totals are not cell-safe: nodes deep in a tree have bins of few persons, whose counts and gradients "
    "the hub sees"
)


@dataclass(frozen=True, kw_only=True)
class Trees:
    """`[method]` of boosted forests."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    steps: Annotated[int, Ge(1), Le(1000)] = 10
    """Boosting steps; each has one round per level of its trees."""
    depth: Annotated[int, Ge(1), Le(MOST_DEPTH)] = 6
    """Levels of splits, so at most 2^depth leaves per tree."""
    trees: Annotated[int, Ge(1), Le(256)] | None = None
    """Trees per step, side by side; 16, or 8 per class where there are more than two."""
    rate: Annotated[float, Gt(0), Le(2)] | None = None
    """What the mean of these trees is multiplied by; 1.0, or 0.6 where there are more than two classes."""
    columns: Annotated[float, Gt(0), Le(1)] = 0.5
    """Share of the columns that each tree may split on."""
    bins: Annotated[int, Ge(2), Le(255)] = 64
    """Most bins per number in the histograms of one tree."""
    l2: Annotated[float, Ge(0)] = 5.0
    """Added to the curvature of a node: larger values give smaller steps and fewer splits."""
    min_leaf: Annotated[int, Ge(1)] = 20
    """Fewest rows of a leaf, of a bin, and of a category that is told from others."""
    holdout: Annotated[float, Ge(0), Lt(0.9)] = 0.1
    """Share of the rows that no tree is fitted to; their loss decides how many steps are kept. 0 keeps all steps."""
    patience: Annotated[int, Ge(1)] = 2
    """Steps without a smaller loss on held-out rows before boosting ends."""
    secure: SecureSumSection = field(default_factory=lambda: SecureSumSection(sum="masks"))
    """How totals are protected; `sum = "none"` shows the hub each site's own sums."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secure", self.secure.or_scheme("masks"))


def options_of(config: Trees, classes: int) -> TreeOptions:
    """How a forest is grown under a config.

    Args:
        config: `[method]` of the plan.
        classes: How many classes the target has; 0 for a number.

    Returns:
        The options, with the defaults for so many classes.
    """
    several = classes > 2
    return TreeOptions(
        steps=config.steps,
        depth=config.depth,
        trees=config.trees or (8 if several else 16),
        rate=config.rate or (0.6 if several else 1.0),
        columns=config.columns,
        bins=config.bins,
        l2=config.l2,
        min_leaf=config.min_leaf,
        holdout=config.holdout,
        patience=config.patience,
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
        encoder, config = setting.encoder, setting.approved.config
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
        options = options_of(config, len(encoder.classes or ()))
        return cls(TreeLearner(encoder, options, setting.seed))

    @property
    def finished(self) -> bool:
        """Whether the last step was judged, or none helped."""
        return self.inner.done

    @property
    def length(self) -> int:
        """How many numbers the next total has."""
        return self.inner.length

    def contribution(self, rows: Rows, memory: Memory) -> Whole:
        """Counts of cells at first; then gradients, curvatures and rows per node, column and bin."""
        part = memory.get("rows")
        if not isinstance(part, TreeRows):
            part = memory["rows"] = self.inner.rows_of(rows)
        return self.inner.contribution(rows, part)

    def after(self, total: Whole, sites: int) -> ForestLearner:
        """The learner that follows from the next total.

        Raises:
            DataError: There are too few rows over all sites to split once.
        """
        del sites
        found = self.inner.after(total)
        if self.inner.stage == "bins" and found.rows < 2 * found.options.min_leaf:
            raise DataError(
                "there are too few rows over all sites for a single split", hint="Lower method.min_leaf, or add rows"
            )
        return ForestLearner(found)

    @property
    def model(self) -> TreeModel | None:
        """The forest of the steps that are done; None while the trees of a step grow."""
        inner = self.inner
        if inner.forest is None or (inner.growth is not None and inner.growth.level):
            return None
        return TreeModel(inner.encoder, inner.forest)

    def checkpoint(self) -> StateArrays:
        """All public numbers: bins, finished trees, and those that grow with the cells of their open nodes."""
        return self.inner.arrays()

    def restored(self, arrays: Mapping[str, NDArray[Any]]) -> ForestLearner:
        """The inverse of `checkpoint`."""
        return ForestLearner(self.inner.restored(arrays))


def _rounds(approved: ApprovedPlan) -> int:
    config: Trees = approved.config
    return 1 + config.steps * config.depth + (config.holdout > 0)


TRAINING = CheckedTraining(
    "trees",
    ForestLearner.start,
    _rounds,
    "rows per fine cell of every column at first, then gradients, curvatures and rows per node, column and bin of "
    "growing trees. Not cell-safe: a bin of a deep node may hold a single person's numbers",
)


def phases(config: Trees, train: TrainSection) -> tuple[TrainingPhase, ...]:
    """One phase over all rows."""
    del config
    return (TrainingPhase(train=train),)


def protocol(config: Trees, hub: Hub) -> ProtocolGenerator:
    """One total for the bins, one per level of each step, and one for the loss after the last step."""
    learner = yield from TRAINING.learn(hub)
    if not isinstance(learner, ForestLearner) or learner.inner.forest is None:
        raise DataError("the plan ended before a forest was grown")
    inner = learner.inner
    model = TreeModel(inner.encoder, learner.inner.forest)
    steps = len(model.forest.trees) // (inner.options.trees * inner.outputs)
    early = steps < config.steps
    notes = [NOT_CELL_SAFE] if config.secure.sum != "none" else []
    if early:
        notes.append(f"{steps} of {config.steps} boosting steps are kept: the loss on held-out rows was smallest then")
    facts = {"steps": steps, "holdout_loss": [round(loss, 6) for loss in inner.history]}
    return Result(
        model=model,
        rounds=inner.totals,
        stopped_by="holdout" if early else "rounds",
        notes=tuple(notes),
        facts={"trees": facts},
    )


def claims(config: Trees, rows: int) -> Sequence[Guarantee]:
    """Shares of sums, whose totals have cells of any size."""
    return (find_scheme(config.secure.sum).claim(3, rows), Cells(least=1))


def contract(approved: ApprovedPlan) -> Contract:
    """One sum per round."""
    return TRAINING.contract(approved)


def reads(config: Trees) -> Reads:
    """Weights of classes; everything else is in `[method]`."""
    del config
    because = "a forest is grown by the keys of [method]"
    return Reads(frozenset({"train.class_weights"}), because={"train.rounds": because, "model.kind": because})


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
)
