"""What an attacker who knows the population may find: k-map, bounds of risk, delta-presence.

A bound of the risk is a size of classes: 1/k where the attacker knows who is in the table, 1/F (k-map) where a class
has F candidates in the population. F is counted in a table of the population, or estimated from its size.

How makers meet these rules: they form classes of k rows, and of more while the checker finds that a class has too few
candidates, or that a person's presence can be told. The smallest and the largest classes that fail are also joined
where they do (`joining`), and what loses least is kept. At last all quasi-identifiers are suppressed.

Guarantee: `PopulationRule.check` refuses exactly what even the table without its quasi-identifiers does not meet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from kohort.anonymity.relational.classes import FormedClasses
from kohort.anonymity.relational.problem import Partition, Problem
from kohort.anonymity.relational.recode import ColumnCells
from kohort.errors import ConfigError, RefusedError
from kohort.tables.cells import SUPPRESSED

__all__ = ["PopulationRule", "k_of_risk", "nothing_shown", "sizes_to_try"]

GROWTH = 1.5


@dataclass(frozen=True, kw_only=True)
class PopulationRule:
    """What must hold beside a table of the population.

    Attributes:
        frame: The population, one row per person; None: nothing is asked.
        k_map: Fewest candidates of a class; 0 asks for nothing.
        presence: Bounds of the chance that a person of the population is in the release; None asks for nothing.
    """

    frame: pl.DataFrame | None = None
    k_map: int = 0
    presence: tuple[float, float] | None = None

    def check(self, units: int) -> None:
        """Refuse what no release of so many rows or persons can meet.

        Args:
            units: Rows of the table, or persons where they are counted.

        Raises:
            ConfigError: The bounds mean nothing, or no population is given for them.
            RefusedError: Even a release that shows no quasi-identifier does not meet them.
        """
        if self.frame is None:
            if self.k_map or self.presence is not None:
                raise ConfigError("k-map and presence are about a population and none is given",
                                  hint="Give a table of the population")  # fmt: skip
            return
        size = self.frame.height
        if size < units:
            raise ConfigError("the population is smaller than the table", hint="It holds at least the table's persons")
        if self.k_map > size:
            raise RefusedError(f"{size:,} persons of the population cannot be a {self.k_map:,}-map",
                               hint=f"k-map of at most {size:,} can be met")  # fmt: skip
        if self.presence is None:
            return
        low, high = self.presence
        if not 0.0 <= low <= high <= 1.0:
            raise ConfigError("the bounds of presence are no chances", hint="Use two numbers from 0 to 1, low first")
        chance = units / size
        if not low - 1e-12 <= chance <= high + 1e-12:
            raise RefusedError(
                f"{chance:.3g} of the population are in the table, so no release keeps presence within these bounds",
                hint=f"Bounds that hold {chance:.3g} between them can be met",
            )


def k_of_risk(risk: float, population: int | None, units: int) -> int:
    """The k at which no row is re-identified with a higher chance than `risk`.

    Args:
        risk: The chance; 0 asks for nothing.
        population: Rows of the population that the table is drawn from; None: the attacker knows who is in the table.
        units: Rows of the table, or persons where they are counted.

    Returns:
        The fewest rows of a class: a class of f rows is estimated to stand for f / units x population persons.

    Raises:
        ConfigError: The risk is not a share, or the population is smaller than the table.

    Example:
        >>> k_of_risk(0.05, None, 1000), k_of_risk(0.05, 5000, 1000)
        (20, 4)
    """
    if not 0.0 <= risk <= 1.0:
        raise ConfigError(f"the risk is {risk:g}", hint="Use a chance such as 0.05")
    if population is not None and population < units:
        raise ConfigError("the population is smaller than the table", hint="It holds at least the rows of the table")
    if risk == 0.0:
        return 1
    share = 1.0 if population is None else units / population
    return max(math.ceil(share / risk - 1e-9), 1)


def sizes_to_try(problem: Problem, population: PopulationRule) -> Iterator[Problem]:
    """The problem, then the same with larger and larger k where a population is given, up to one class of everybody.

    Args:
        problem: The coded table and the rule.
        population: What must hold beside a table of the population.

    Yields:
        The problem with the next k to try.
    """
    yield problem
    k = problem.rule.k
    while population.frame is not None and k < problem.sensitive.units:
        k = min(math.ceil(k * GROWTH), problem.sensitive.units)
        yield problem.with_k(k)


def nothing_shown(problem: Problem) -> FormedClasses:
    """All rows as one class whose cells are suppressed.

    Args:
        problem: The coded table.

    Returns:
        The one class, at a loss of 1.
    """
    rows = problem.table.rows
    cells = tuple(
        ColumnCells(column.name, (SUPPRESSED,), np.zeros(1, np.int64), True) for column in problem.table.columns
    )
    everybody = Partition.of_labels(np.zeros(rows, np.int64))
    return FormedClasses(everybody, lambda: cells, np.zeros(0, np.int64), {}, "none", lambda: 1.0)
