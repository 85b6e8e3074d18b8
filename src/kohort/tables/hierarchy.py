"""Generalisation hierarchies: which label stands above which values of one column.

The file layout is the one of ARX: one line per value, `;` between levels, most specific first, no header.

Guarantees of a `Hierarchy`: every value has the same number of levels; a value has one chain of ancestors; a label at
one level always has the same parent; a label that occurs at two levels names nested sets. So `leaves` has one answer.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kohort.errors import ConfigError, DataError, counted
from kohort.files import require_new, write_atomic
from kohort.tables.cells import SUPPRESSED, Label, Suppressed

__all__ = ["ROOT_LABEL", "Hierarchy", "read_hierarchies"]

ROOT_LABEL = "*"
FILE_MARK = "hierarchy_"


@dataclass(frozen=True)
class Hierarchy:
    """The generalisation hierarchy of one column: a chain of labels per value, from the value up to its root.

    Raises:
        DataError: The hierarchy is empty, ragged, cyclic or inconsistent.

    Example:
        >>> zips = Hierarchy.of("zip", {"1145": ["114*", "*"], "1146": ["114*", "*"]})
        >>> zips.leaves("114*")
        ('1145', '1146')
    """

    column: str
    chains: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not self.chains:
            raise DataError(f"the hierarchy of column {self.column!r} is empty", hint="Give one line per value")
        self._check_lengths()
        self._check_parents()
        self._check_nesting()

    @classmethod
    def of(cls, column: str, chains: Mapping[str, Iterable[str]]) -> Hierarchy:
        """From a mapping of each value to its ancestors, nearest first."""
        return cls(column, tuple((value, *above) for value, above in chains.items()))

    @classmethod
    def read(cls, path: str | Path, column: str | None = None) -> Hierarchy:
        """Read an ARX hierarchy file; without `column` the file name tells it."""
        source = Path(path)
        try:
            text = source.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise DataError(f"no hierarchy file {str(path)!r}", hint="Check the path") from None
        except UnicodeDecodeError:
            raise DataError(f"the hierarchy file {str(path)!r} is not UTF-8", hint="Save it as UTF-8") from None
        except OSError as problem:
            kind = type(problem).__name__
            raise DataError(f"cannot open {str(path)!r} ({kind})", hint="Check its permissions") from None
        try:
            rows = [tuple(row) for row in csv.reader(io.StringIO(text, newline=""), delimiter=";") if row]
        except csv.Error:
            raise DataError(f"{str(path)!r} is not a hierarchy file", hint="Use ; between levels") from None
        if rows and all(len(row) == 1 and "," in row[0] for row in rows):
            raise DataError(f"no line of {str(path)!r} has a ; in it", hint="Use ; between levels, not a comma")
        return cls(column if column is not None else _column_of(source), tuple(dict.fromkeys(rows)))

    def write(self, path: str | Path, *, force: bool = False) -> None:
        """Write the ARX layout, whole or not at all."""
        target = Path(path)
        require_new(target, force=force)
        buffer = io.StringIO(newline="")
        csv.writer(buffer, delimiter=";", lineterminator="\n").writerows(self.chains)
        write_atomic(target, buffer.getvalue().encode())

    @property
    def levels(self) -> int:
        """How many levels there are, the values themselves included."""
        return len(self.chains[0])

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The values at level 0."""
        return tuple(self._chain_of)

    @cached_property
    def _chain_of(self) -> dict[str, tuple[str, ...]]:
        return {chain[0]: chain for chain in self.chains}

    @cached_property
    def _leaves_at(self) -> tuple[dict[str, tuple[str, ...]], ...]:
        grouped: list[dict[str, list[str]]] = [{} for _ in range(self.levels)]
        for value, chain in self._chain_of.items():
            for level, label in enumerate(chain):
                grouped[level].setdefault(label, []).append(value)
        return tuple({label: tuple(found) for label, found in level.items()} for level in grouped)

    def ancestor(self, value: str, level: int) -> str:
        """The label of `value` at `level`; level 0 is the value itself.

        Raises:
            ConfigError: There is no such level.
            DataError: The hierarchy lacks the value.
        """
        if not 0 <= level < self.levels:
            hint = f"Use 0 to {self.levels - 1}"
            raise ConfigError(f"the hierarchy of column {self.column!r} has no level {level}", hint=hint)
        chain = self._chain_of.get(value)
        if chain is None:
            raise self._not_covered(1)
        return chain[level]

    def cell(self, value: str, level: int) -> str | Label | Suppressed:
        """What to release for `value` at `level`: the value, a label, or nothing where the label is `*`."""
        label = self.ancestor(value, level)
        if level == 0:
            return value
        return SUPPRESSED if label == ROOT_LABEL else Label(label)

    def leaves(self, label: str) -> tuple[str, ...]:
        """The values below a label; where it occurs at several levels, those below the highest.

        Raises:
            DataError: The label is not in the hierarchy.
        """
        for level in reversed(self._leaves_at):
            if label in level:
                return level[label]
        hint = "Use the hierarchies the table was generalised with"
        raise DataError(f"a label of column {self.column!r} is not in its hierarchy", hint=hint)

    def check_covers(self, domain: Iterable[str]) -> None:
        """Every value of a domain must have a chain; the error counts the others and shows none."""
        missing = sum(value not in self._chain_of for value in set(domain))
        if missing:
            raise self._not_covered(missing)

    def _not_covered(self, count: int) -> DataError:
        hint = "Add a line for each value of the column"
        return DataError(f"the hierarchy of column {self.column!r} lacks {counted(count, 'value')}", hint=hint)

    def _check_lengths(self) -> None:
        counts: dict[int, int] = {}
        for chain in self.chains:
            counts[len(chain)] = counts.get(len(chain), 0) + 1
        if len(counts) > 1:
            seen = ", ".join(f"{count:,} with {length}" for length, count in sorted(counts.items()))
            hint = "Repeat the last label so that all have the same number"
            raise DataError(f"ragged hierarchy of column {self.column!r}: values have {seen} levels", hint=hint)

    def _check_parents(self) -> None:
        if len(self._chain_of) != len(set(self.chains)):
            repeated = len(set(self.chains)) - len(self._chain_of)
            hint = "Give each value one line"
            message = f"the hierarchy of column {self.column!r} has two chains for {counted(repeated, 'value')}"
            raise DataError(message, hint=hint)
        for level in range(1, self.levels - 1):
            pairs = {(chain[level], chain[level + 1]) for chain in self.chains}
            excess = len(pairs) - len({label for label, _ in pairs})
            if excess:
                raise self._inconsistent(excess, f"with two parents at level {level + 1}")

    def _check_nesting(self) -> None:
        below: dict[str, set[str]] = {}
        clashes = 0
        for level in self._leaves_at:
            for label, leaves in level.items():
                clashes += not below.get(label, set()) <= set(leaves)
                below[label] = set(leaves)
        if clashes:
            raise self._inconsistent(clashes, "used in a cycle, or at two levels for different values")

    def _inconsistent(self, count: int, what: str) -> DataError:
        message = f"cyclic or inconsistent hierarchy of column {self.column!r}: {counted(count, 'label')} {what}"
        return DataError(message, hint="Give such labels different names")


def read_hierarchies(folder: str | Path) -> dict[str, Hierarchy]:
    """Read the hierarchies of a folder, one CSV file per column.

    Args:
        folder: Holds `age.csv`, or `anything_hierarchy_age.csv`; `-` in a column's name reads as `_`.

    Returns:
        The hierarchies by column.

    Raises:
        DataError: There is no folder, no file in it, or a file is no hierarchy.
    """
    source = Path(folder)
    if not source.is_dir():
        raise DataError(f"no folder {str(folder)!r}", hint="Give the folder that holds one CSV a column")
    found = {hierarchy.column: hierarchy for hierarchy in map(Hierarchy.read, sorted(source.glob("*.csv")))}
    if not found:
        raise DataError(f"no hierarchy in {str(folder)!r}", hint="Give one CSV a column, `;` between levels")
    return found


def _column_of(path: Path) -> str:
    return path.stem.rsplit(FILE_MARK, 1)[-1].replace("-", "_")
