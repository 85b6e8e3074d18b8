"""What a release shows to somebody who knows the population it was drawn from: k-map and delta-presence.

A person of the population is a candidate for a class if every released cell of the class covers the person's value.
k-map (Sweeney, 2002; El Emam and Dankar, 2008): every class has at least k candidates. delta-presence (Nergiz, Atzori
and Clifton, 2007): for every person of the population, the chance to be in the released table lies between two bounds.
A class of f released persons and F candidates gives each of them the chance f / F. Where classes overlap, a person is a
candidate of several: the chances add up for the upper bound, the largest one counts for the lower.

Guarantee: exact counts, from the two tables and the hierarchies of the labels alone; no code is shared with what
anonymises. With disjoint classes these are the published definitions. No result holds a cell value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.anonymity.checker.classes import as_frame, group_rows, require_columns
from kohort.errors import ConfigError, DataError
from kohort.tables.cells import SUPPRESSED, Interval, Label, ValueSet, canonical_text, parse_cell
from kohort.tables.hierarchy import Hierarchy

__all__ = ["InPopulation", "in_population", "rows_unmet_in_population", "unmet_in_population"]

TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class InPopulation:
    """What holds for a release beside its population.

    Attributes:
        population: Persons of the population.
        k_map: Fewest candidates of a class.
        presence_low: Smallest chance of a person of the population to be in the release.
        presence_high: Largest chance.
        short: Classes with fewer candidates than released persons: the release is no part of the population.
    """

    population: int
    k_map: int
    presence_low: float
    presence_high: float
    short: int

    def to_mapping(self) -> dict[str, Any]:
        """JSON values."""
        return {"population": self.population, "k_map": self.k_map, "presence": [self.presence_low, self.presence_high]}


def in_population(
    released: Any,
    population: Any,
    *,
    quasi: Sequence[str],
    hierarchies: Mapping[str, Hierarchy] | None = None,
    persons: str | None = None,
) -> InPopulation:
    """Measure k-map and delta-presence.

    Args:
        released: The released table.
        population: The population, one row per person, with the quasi-identifiers as they are.
        quasi: Names of the quasi-identifiers.
        hierarchies: Hierarchies of the columns that were released as taxonomy labels.
        persons: Column of the released table that says whom a row is about; rows are counted when None.

    Returns:
        The figures.

    Raises:
        ConfigError: The hierarchy of a label is not given.
        DataError: A table has no rows or lacks a column.

    Example:
        >>> shown = pl.DataFrame({"age": ["[20, 30]", "[20, 30]"]})
        >>> in_population(shown, pl.DataFrame({"age": [22, 25, 30, 41]}), quasi=["age"]).k_map
        3
    """
    found = _Counted.of(released, population, quasi, hierarchies, persons)
    low, high = found.chances()
    return InPopulation(
        population=int(found.sizes.sum()),
        k_map=int(found.candidates.min()),
        presence_low=float(low.min()),
        presence_high=min(float(high.max()), 1.0),
        short=int((found.candidates < found.held).sum()),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Counted:
    """The classes of a release beside the population, whose persons of equal values are one key.

    Attributes:
        of_row: Class of each released row.
        held: Released rows, or persons, of each class.
        candidates: Persons of the population that each class may stand for.
        sizes: Persons of each key.
        columns: Of each quasi-identifier, whether a cell covers a value, the cell of each class, the value of each key.
    """

    of_row: NDArray[np.int64]
    held: NDArray[np.int64]
    candidates: NDArray[np.int64]
    sizes: NDArray[np.int64]
    columns: list[tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]]

    @classmethod
    def of(
        cls,
        released: Any,
        population: Any,
        quasi: Sequence[str],
        hierarchies: Mapping[str, Hierarchy] | None,
        persons: str | None,
    ) -> _Counted:
        table, people = as_frame(released), as_frame(population)
        names = require_columns(table, quasi)
        require_columns(people, names)
        classes = group_rows(table, names)
        held = classes.sizes
        if persons is not None:
            pairs = pl.DataFrame({"class": classes.of_row, "person": table[persons]}).unique()
            held = np.bincount(pairs["class"].to_numpy(), minlength=classes.count)
        _, first = np.unique(classes.of_row, return_index=True)
        keys = people.select(names).group_by(names).len("people of the population")
        sizes = keys["people of the population"].to_numpy().astype(np.int64)
        columns = [_column(table[name][first], keys[name], (hierarchies or {}).get(name)) for name in names]
        found = cls(of_row=classes.of_row, held=held, candidates=np.zeros(classes.count, np.int64), sizes=sizes,
                    columns=columns)  # fmt: skip
        for number in range(classes.count):
            found.candidates[number] = sizes[found.covered(number)].sum()
        return found

    def covered(self, number: int) -> NDArray[np.bool_]:
        """Whether a class covers each key."""
        found = np.ones(len(self.sizes), np.bool_)
        for covers, cell_of, value_of in self.columns:
            found &= covers[cell_of[number]][value_of]
        return found

    def chance(self, number: int) -> float:
        """The chance to be in the release that a class gives each of its candidates."""
        return float(self.held[number] / self.candidates[number]) if self.candidates[number] else 0.0

    def chances(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each key, the largest chance that one class gives, and the sum over classes."""
        low, high = np.zeros(len(self.sizes)), np.zeros(len(self.sizes))
        for number in range(len(self.held)):
            covered = self.covered(number)
            high[covered] += self.chance(number)
            low[covered] = np.maximum(low[covered], self.chance(number))
        return low, high


def rows_unmet_in_population(
    released: Any,
    population: Any,
    *,
    quasi: Sequence[str],
    hierarchies: Mapping[str, Hierarchy] | None = None,
    persons: str | None = None,
    k_map: int = 0,
    presence: tuple[float, float] | None = None,
) -> NDArray[np.bool_]:
    """Which released rows are in classes that have too few candidates, or tell too surely who is in the release.

    Args:
        released: The released table.
        population: The population, one row per person.
        quasi: Names of the quasi-identifiers.
        hierarchies: Hierarchies of the columns that were released as taxonomy labels.
        persons: Column of the released table that says whom a row is about.
        k_map: Fewest candidates of a class; 0 asks for nothing.
        presence: Bounds of the chance to be in the release; None asks for nothing. That persons are below the lower
            one is the fault of no class.

    Returns:
        True for the rows of such classes.

    Raises:
        ConfigError: As for `in_population`.
        DataError: As for `in_population`.
    """
    found = _Counted.of(released, population, quasi, hierarchies, persons)
    wrong = (found.candidates < found.held) | (found.candidates < k_map)
    if presence is not None:
        surely = found.chances()[1] > presence[1] + TOLERANCE
        wrong |= np.array([bool((found.covered(number) & surely).any()) for number in range(len(wrong))])
    rows: NDArray[np.bool_] = wrong[found.of_row]
    return rows


def unmet_in_population(
    released: Any,
    population: Any,
    *,
    quasi: Sequence[str],
    hierarchies: Mapping[str, Hierarchy] | None = None,
    persons: str | None = None,
    k_map: int = 0,
    presence: tuple[float, float] | None = None,
) -> tuple[str, ...]:
    """The asked rules about the population that do not hold; empty when all hold.

    Args:
        released: The released table.
        population: The population, one row per person.
        quasi: Names of the quasi-identifiers.
        hierarchies: Hierarchies of the columns that were released as taxonomy labels.
        persons: Column of the released table that says whom a row is about.
        k_map: Fewest candidates of a class; 0 asks for nothing.
        presence: Bounds of the chance to be in the release; None asks for nothing.

    Returns:
        One sentence per rule that does not hold, with what was found.

    Raises:
        ConfigError: As for `in_population`.
        DataError: As for `in_population`.
    """
    found = in_population(released, population, quasi=quasi, hierarchies=hierarchies, persons=persons)
    problems = []
    if found.short:
        problems.append(f"{found.short:,} classes have more persons than the population has candidates for them")
    if found.k_map < k_map:
        problems.append(f"k-map is {found.k_map}, not {k_map}")
    if presence is not None:
        if found.presence_low < presence[0] - TOLERANCE:
            problems.append(f"the smallest chance of presence is {found.presence_low:.6g}, not >= {presence[0]:g}")
        if found.presence_high > presence[1] + TOLERANCE:
            problems.append(f"the largest chance of presence is {found.presence_high:.6g}, not <= {presence[1]:g}")
    return tuple(problems)


def _column(
    cells: pl.Series, values: pl.Series, hierarchy: Hierarchy | None
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Whether each distinct cell covers each distinct value; the cell of each class; the value of each key."""
    known_cells, known_values = cells.unique(maintain_order=True), values.unique(maintain_order=True)
    texts = [None if value is None else canonical_text(value) for value in known_values.to_list()]
    numbers = values.dtype.is_numeric()
    compared = known_values.to_list() if numbers else texts
    rows = []
    for cell in known_cells.to_list():
        read = parse_cell(cell) if cells.dtype == pl.String else cell
        pairs = zip(compared, texts, strict=True)
        rows.append([_covers(read, value, text, hierarchy, cells.name) for value, text in pairs])
    places_cells = {cell: place for place, cell in enumerate(known_cells.to_list())}
    places_values = {value: place for place, value in enumerate(known_values.to_list())}
    return (
        np.array(rows, dtype=np.bool_),
        np.array([places_cells[cell] for cell in cells.to_list()], dtype=np.int64),
        np.array([places_values[value] for value in values.to_list()], dtype=np.int64),
    )


def _covers(cell: Any, value: Any, text: str | None, hierarchy: Hierarchy | None, column: str) -> bool:
    if cell is SUPPRESSED:
        return True
    if isinstance(cell, Interval):
        if value is None:
            return cell.missing
        if isinstance(value, str):
            raise DataError(f"column {column!r} is a number in the release and text in the population",
                            hint="Read both in the same way")  # fmt: skip
        return bool(cell.low <= value <= cell.high)
    if isinstance(cell, ValueSet):
        return text in cell.values
    if isinstance(cell, Label):
        if hierarchy is None:
            raise ConfigError(f"column {column!r} holds taxonomy labels and its hierarchy is not given",
                              hint="Pass the hierarchies the table was generalised with")  # fmt: skip
        return text is not None and text in hierarchy.leaves(cell.text)
    return text == (None if cell is None else canonical_text(cell))
