"""What the checker finds: the figures of a table, and of each sensitive column.

Guarantee: figures alone; no result holds a cell value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["RECURSIVE_L", "Anonymity", "SensitiveDisclosure"]

Number = TypeVar("Number", int, float)

RECURSIVE_L = 2
"""The l of the recursive (c, l)-diversity that is measured."""


@dataclass(frozen=True, kw_only=True)
class SensitiveDisclosure:
    """What the worst class gives away about one sensitive column.

    `recursive_c` belongs to l = 2: recursive (c, 2)-diversity holds for every c above it. `beta_enhanced` and `delta`
    are infinite when no value would do.
    """

    column: str
    l_distinct: int
    l_entropy: float
    recursive_c: float
    t_emd: float
    t_kl: float
    alpha: float
    beta: float
    beta_enhanced: float
    delta: float

    def to_mapping(self) -> dict[str, Any]:
        """JSON values; an infinite figure is null."""
        return {name: _finite(value) for name, value in vars(self).items() if name != "column"}


@dataclass(frozen=True, kw_only=True)
class Anonymity:
    """What holds for a table. `histogram` lists (size, number of classes of that size), sizes rising."""

    quasi: tuple[str, ...]
    rows: int
    classes: int
    k: int
    uniques: int
    largest_class: int
    histogram: tuple[tuple[int, int], ...]
    sensitive: tuple[SensitiveDisclosure, ...] = ()
    km: int | None = None
    m: int | None = None

    @property
    def average_class(self) -> float:
        """Rows for each class."""
        return self.rows / self.classes

    @property
    def l_distinct(self) -> int | None:
        """Fewest values of a sensitive column in a class."""
        return self._worst(min, lambda found: found.l_distinct)

    @property
    def l_entropy(self) -> float | None:
        """Smallest exp(entropy) of a class."""
        return self._worst(min, lambda found: found.l_entropy)

    @property
    def recursive_c(self) -> float | None:
        """Recursive (c, 2)-diversity holds for every c above this."""
        return self._worst(max, lambda found: found.recursive_c)

    @property
    def t_emd(self) -> float | None:
        """Largest earth mover's distance of a class from the table."""
        return self._worst(max, lambda found: found.t_emd)

    @property
    def t_kl(self) -> float | None:
        """Largest KL(class || table), in nats."""
        return self._worst(max, lambda found: found.t_kl)

    @property
    def alpha(self) -> float | None:
        """Largest share of one value in a class."""
        return self._worst(max, lambda found: found.alpha)

    @property
    def beta(self) -> float | None:
        """Basic beta-likeness holds for every beta from this on."""
        return self._worst(max, lambda found: found.beta)

    @property
    def beta_enhanced(self) -> float | None:
        """Enhanced beta-likeness holds for every beta from this on."""
        return self._worst(max, lambda found: found.beta_enhanced)

    @property
    def delta(self) -> float | None:
        """Delta-disclosure privacy holds for every delta above this."""
        return self._worst(max, lambda found: found.delta)

    def to_mapping(self) -> dict[str, Any]:
        """JSON values; null where no sensitive or items column was named, and for an infinite figure."""
        recursive = None if not self.sensitive else {"l": RECURSIVE_L, "c_above": _finite(self.recursive_c)}
        return {
            "rows": self.rows,
            "classes": self.classes,
            "k": self.k,
            "l_distinct": self.l_distinct,
            "l_entropy": _finite(self.l_entropy),
            "t_emd": _finite(self.t_emd),
            "t_kl": _finite(self.t_kl),
            "km": self.km,
            "m": self.m,
            "alpha": _finite(self.alpha),
            "recursive": recursive,
            "beta": _finite(self.beta),
            "beta_enhanced": _finite(self.beta_enhanced),
            "delta": _finite(self.delta),
            "uniques": self.uniques,
            "average_class": self.average_class,
            "largest_class": self.largest_class,
            "histogram": {str(size): count for size, count in self.histogram},
            "sensitive": {found.column: found.to_mapping() for found in self.sensitive},
        }

    def _worst(self, choose: Callable[..., Number], figure: Callable[[SensitiveDisclosure], Number]) -> Number | None:
        return choose(figure(found) for found in self.sensitive) if self.sensitive else None


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None
