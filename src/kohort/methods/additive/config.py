"""`[method]` of additive models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le

from kohort.errors import ConfigError
from kohort.privacy.policy import Policy
from kohort.protocol.plan.phases import DPSection, SecureSumSection

__all__ = ["Additive", "unread_keys"]

LEAST_TOTALS = 10
"""With fewer totals there are no pairs of columns unless a plan asks for them: the curves need them all."""


@dataclass(frozen=True, kw_only=True)
class Additive:
    """`[method]` of additive models: how columns become bins, how many totals there are, how they are protected."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    bins: Annotated[int, Ge(2), Le(255)] = 32
    """Most bins of a number."""
    min_bin: Annotated[int, Ge(1)] = 20
    """Fewest persons of a bin, and of a class; counts are told as wider ranges. A larger `policy.min_cell` holds
    instead."""
    rounds: Annotated[int, Ge(2), Le(200)] | None = None
    """Totals in all, the counts for the bins included; by default 12, 11 with a budget, 10 with `metric = "gram"`."""
    metric: Literal["counts", "gram"] = "counts"
    """What steps are measured by: the counts of bins; or one more total that counts pairs of bins, which needs fewer
    steps where columns go together."""
    pairs: Annotated[int, Ge(0), Le(64)] | Literal["acyclic"] | None = None
    """Pairs of columns with a surface of their own, found after half of the totals; monotone columns are in none. Those
    that pay and form no cycle (`acyclic`; none with more than two classes), or so many of all. By default `acyclic`
    where sums are secure, there are ten totals or more and bins hold at least the ten persons that policies ask for,
    and 0 with `metric = "gram"`. With a budget 0, or by default as many as the budget pays for."""
    ridge: Annotated[float, Ge(0)] = 1.0
    """Pull of every value towards 0, in rows. Not read with a budget."""
    smooth: Annotated[float, Ge(0)] | None = None
    """Pull of neighbouring bins towards each other, in rows; by default 3, and 10 with more than two classes. Not read
    with a budget."""
    link: Literal["identity", "log"] = "identity"
    """Of a target that is a number: its mean, or the logarithm of its mean, for amounts and counts."""
    monotone: Mapping[str, Literal["up", "down"]] = field(default_factory=dict)
    """Columns whose curve must not fall, or not rise."""
    dp: DPSection | None = None
    """A budget: a tenth of it counts cells, the rest is spent on sums of residuals."""
    secure: SecureSumSection = field(default_factory=lambda: SecureSumSection(sum="masks"))
    """How sums are protected; `sum = "none"` where the hub is trusted with each site's own numbers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "secure", self.secure.or_scheme("masks"))
        if self.rounds is None:
            object.__setattr__(self, "rounds", 11 if self.dp is not None else 10 if self.metric == "gram" else 12)
        if self.metric == "gram" and (self.dp is not None or self.totals < 3):
            raise ConfigError(
                'metric = "gram" needs three rounds and no budget',
                hint='Set method.metric = "counts", or drop method.dp',
            )
        if self.surfaces and (self.dp is not None or self.metric == "gram" or self.totals < 4):
            raise ConfigError(
                'pairs of columns need four rounds, metric = "counts" and no budget',
                hint="Drop method.pairs, or method.dp and method.metric",
            )
        if self.dp is not None and not self.dp.is_plain:
            raise ConfigError(
                "the noise of an additive model goes on its sums", hint="Drop dp.mechanism, dp.quantile and dp.sample"
            )

    def check_pulls(self) -> None:
        """Refuse pulls between whole numbers over a secure sum: plans with pulls close to each other would tell the
        digits that rounded values leave out.

        Raises:
            ConfigError: A pull is no whole number.
        """
        if self.dp is not None or self.secure.sum == "none":
            return
        for name, value in (("ridge", self.ridge), ("smooth", self.smooth)):
            if value is not None and value != int(value):
                raise ConfigError(
                    f"over a secure sum method.{name} is a whole number: plans with pulls close to each other would"
                    " tell the hub counts of few persons",
                    hint=f"Use {round(value)}",
                )

    @property
    def pair_round(self) -> int | None:
        """The total from which pairs of columns are chosen; None where there are none."""
        if self.surfaces == "acyclic":
            return self.totals * 7 // 12  # curves that are almost fitted say more clearly what is left for pairs
        return self.totals // 2 if self.surfaces else None

    @property
    def noisy_pair_round(self) -> int | None:
        """With a budget, the total from which pairs of columns are chosen if the budget pays for them; None for none.

        Few rows or a small epsilon pay for none: `kohort.models.additive.noisy_pairs.grid_for` decides.
        """
        asked = self.dp is not None and self.pairs is None and self.totals >= LEAST_TOTALS
        return self.totals * 4 // 11 if asked else None

    @property
    def surfaces(self) -> int | str:
        """Most pairs of columns, or how they are chosen: `pairs`, or what holds where the plan does not say."""
        if self.pairs is not None:
            return self.pairs
        able = self.dp is None and self.metric == "counts" and self.totals >= LEAST_TOTALS
        hidden = self.secure.sum != "none" and self.min_bin >= Policy.min_cell
        return "acyclic" if able and hidden else 0

    @property
    def totals(self) -> int:
        """Totals in all."""
        return 12 if self.rounds is None else self.rounds


def unread_keys(config: Additive) -> dict[str, str]:
    """Keys of `[method]` that are not read under this config, and why.

    Args:
        config: `[method]`.

    Returns:
        The reason for each, by its dotted name.
    """
    found = dict.fromkeys(("method.dp.average", "method.dp.lower_rate"), "steps and mean of noisy sums are fixed")
    if config.dp is not None:
        found |= dict.fromkeys(
            ("method.ridge", "method.smooth"), "with a budget the noise says how far values are pulled"
        )
    return found
