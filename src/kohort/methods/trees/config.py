"""`[method]` of boosted forests."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isclose
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from kohort.errors import ConfigError
from kohort.models.trees.options import MOST_DEPTH, TreeOptions
from kohort.protocol.plan.phases import SecureSumSection

__all__ = ["MAY_BE_SMALL", "TELLS", "Trees", "options_of", "shape_of", "tree_rounds", "words_of"]

_PARTS = 20
"""Parts of a table's rows; held-out rows are some of them, so that totals of two plans differ by whole parts."""
LEAST_RATE, MOST_STEPS = 0.3, 100
"""Over secure sums. With 400 steps at a rate of 0.02 a third of the counts of a column could be solved for exactly."""
MAY_BE_SMALL = (
    "rows per fine cell of every column at first, then gradients, curvatures and rows per node, column and bin of "
    "growing trees; a bin of a deep node may hold a single person's numbers"
)
FEW_CLASSES = (10, 6)
"""Steps and depth for two classes or a number."""
SEVERAL_CLASSES = (7, 8)
"""Steps and depth for more classes."""


@dataclass(frozen=True, kw_only=True)
class Trees:
    """`[method]` of boosted forests."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    steps: Annotated[int, Ge(1), Le(1000)] | None = None
    """Boosting steps; each has one round per level of its trees. By default 10, or 7 where there are more than two
    classes and no `depth` is given."""
    depth: Annotated[int, Ge(1), Le(MOST_DEPTH)] | None = None
    """Levels of splits, so at most 2^depth leaves per tree. By default 6, or 8 where there are more than two classes
    and no `steps` are given: several classes need finer leaves, in about as many rounds."""
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
    """Fewest rows of a leaf, of a bin, and of a category that is told from others. A larger `policy.min_cell` holds
    instead."""
    holdout: Annotated[float, Ge(0), Lt(0.9)] = 0.1
    """Share of the rows that no tree is fitted to; their loss decides how many steps are kept. 0 keeps all steps. Steps
    of 0.05: two plans whose shares are close to each other would show the few rows between."""
    min_cell: Annotated[int, Ge(1)] = 1
    """Fewest rows, over all sites, of a filled cell whose gradients are summed. Above 1, sites count the rows of cells
    first, and join bins that hold too few. That takes two rounds per level."""
    patience: Annotated[int, Ge(1)] = 2
    """Steps without a smaller loss on held-out rows before boosting ends."""
    secure: SecureSumSection = field(default_factory=lambda: SecureSumSection(sum="masks"))
    """How totals are protected; `sum = "none"` shows the hub each site's own sums."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secure", self.secure.or_scheme("masks"))
        if not isclose(self.holdout * _PARTS, round(self.holdout * _PARTS), abs_tol=1e-9):
            raise ConfigError(
                "method.holdout takes out twentieths of the rows: otherwise totals of two plans differ by few rows",
                hint="Set it to a multiple of 0.05",
            )
        if self.secure.sum != "none":
            self._check_equations()
        if self.min_cell > 1 and self.secure.sum == "none":
            raise ConfigError(
                "without a secure sum the hub sees each site's cells, so none can be withheld",
                hint='Drop method.min_cell, or set method.secure.sum = "masks"',
            )

    def _check_equations(self) -> None:
        """Refuse what tells more than a forest needs: every rounded value bounds a sum over rows at known scores, so
        many small steps bound the counts of rows from all sides.

        Raises:
            ConfigError: Steps are too many or too small, or their penalty is too fine or too small.
        """
        reason = "over a secure sum, many small steps of trees would tell the hub how many rows there are of each kind"
        if self.rate is not None and self.rate < LEAST_RATE:
            raise ConfigError(f"{reason}: method.rate is {self.rate:g}", hint=f"Use {LEAST_RATE:g} or more")
        if self.steps is not None and self.steps > MOST_STEPS:
            raise ConfigError(f"{reason}: method.steps is {self.steps:,}", hint=f"Use {MOST_STEPS} or fewer")
        if self.l2 < 1 or self.l2 != int(self.l2):
            raise ConfigError(f"{reason}: method.l2 is {self.l2:g}", hint="Use a whole number from 1 on")


def options_of(config: Trees, classes: int) -> TreeOptions:
    """How a forest is grown under a config.

    Args:
        config: `[method]` of the plan.
        classes: How many classes the target has; 0 for a number.

    Returns:
        The options, with the defaults for so many classes.
    """
    several = classes > 2
    steps, depth = shape_of(config, classes)
    return TreeOptions(
        steps=steps,
        depth=depth,
        trees=config.trees or (8 if several else 16),
        rate=config.rate or (0.6 if several else 1.0),
        columns=config.columns,
        bins=config.bins,
        l2=config.l2,
        min_leaf=max(config.min_leaf, config.min_cell),
        min_cell=config.min_cell,
        holdout=config.holdout,
        patience=config.patience,
    )


def shape_of(config: Trees, classes: int) -> tuple[int, int]:
    """Boosting steps, and levels of splits.

    Args:
        config: `[method]` of the plan.
        classes: How many classes the target has; 0 for a number.

    Returns:
        Both, with the defaults for so many classes.
    """
    if config.steps is None and config.depth is None and classes > 2:
        return SEVERAL_CLASSES
    return config.steps or FEW_CLASSES[0], config.depth or FEW_CLASSES[1]


def tree_rounds(config: Trees) -> int:
    """The most totals of a plan: the bins, one or two per level of each step, and the loss after the last step.

    A plan need not say how many classes there are; with more than two, a few totals fewer are needed.

    Args:
        config: `[method]` of the plan.

    Returns:
        The number of rounds that the contract allows.
    """
    levels = max(steps * depth for steps, depth in (shape_of(config, 0), shape_of(config, 3)))
    return 1 + levels * (2 if config.min_cell > 1 else 1) + (config.holdout > 0)


def words_of(config: Trees) -> str:
    """What the totals are, in words that a site's operator approves.

    Args:
        config: `[method]` of the plan.

    Returns:
        The words, which also say that totals may be of few rows.
    """
    if config.min_cell == 1:
        return MAY_BE_SMALL
    return (
        "rows per cell, and then gradients, curvatures and rows per node, column and bin of growing trees, where bins "
        f"are joined until filled ones have {config.min_cell} rows. Totals of different trees overlap, and what they "
        "differ by may be fewer rows"
    )


TELLS = (
    "the bins of all columns, which nodes of growing trees split where, the rounded values of their children and which "
    "of them has fewer rows, the rounded loss of held-out rows, and with min_cell which bins are joined"
)
"""What sites say of sealed totals, for people."""
