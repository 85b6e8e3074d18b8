"""Options of `kohort anonymize`: their text read, and those refused that do not fit together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.cli.common import names

if TYPE_CHECKING:
    import polars as pl

    from kohort.anonymity.itemsets.hierarchy import ItemHierarchy
    from kohort.tables.hierarchy import Hierarchy

__all__ = [
    "check_item_options",
    "check_places",
    "check_relational_options",
    "check_rule",
    "column_numbers",
    "given_hierarchies",
    "hierarchies",
    "item_hierarchy",
    "keep_exact",
    "levels",
    "population_of",
    "presence_of",
    "with_own",
]

LARGEST_POPULATION = 10**12
KEEP_EXACT: Mapping[str, bool | str] = {"yes": True, "no": False, "thesis": "thesis"}


def keep_exact(text: str) -> bool | str:
    """What --keep-exact means."""
    from kohort.errors import ConfigError, nearest

    if text not in KEEP_EXACT:
        raise ConfigError(f"unknown --keep-exact {text!r}", hint=nearest(text, KEEP_EXACT))
    return KEEP_EXACT[text]


def check_places(out: Path, *, audit: Path | None, account: Path | None, hierarchies: Path | None) -> None:
    """Refuse places of output that are the same, or that cannot be written, before anything is.

    Args:
        out: Where the release goes.
        audit: Where what attacks found goes.
        account: The account of releases.
        hierarchies: The folder of hierarchies.

    Raises:
        ConfigError: Two of them are one file, or one cannot be written.
    """
    from kohort.errors import ConfigError

    given = {"--out": out, "--audit": audit, "--account": account, "--write-hierarchies": hierarchies}
    places: dict[Path, str] = {}
    for option, path in given.items():
        if path is None:
            continue
        first = places.setdefault(path.resolve(), option)
        if first != option:
            raise ConfigError(f"{first} and {option} are the same file {path}", hint="Name two files")
        _check_place(option, path, is_folder=option == "--write-hierarchies")


def _check_place(option: str, path: Path, *, is_folder: bool) -> None:
    """Refuse a path that cannot become a file, or a folder."""
    from kohort.errors import ConfigError
    from kohort.files import disk_errors

    with disk_errors(path):
        exists = path.exists()
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if exists and path.is_dir() != is_folder:
        raise ConfigError(f"{option} {path} is a {'file' if is_folder else 'folder'}", hint="Name another place")
    if not exists and not there.is_dir():
        raise ConfigError(f"cannot write {path}: {there} is no folder", hint=f"Choose another {option}")
    if not os.access(there, os.W_OK):
        raise ConfigError(f"cannot write {path}: permission denied", hint=f"Choose another {option}")


def check_rule(k: int, l: float, t: float) -> None:  # noqa: E741
    """Refuse bounds that ask for nothing or cannot be met."""
    from kohort.errors import ConfigError

    if k < 2:
        raise ConfigError(f"--k {k} hides nobody: a class of one row is that row", hint="Use 2 or more, such as 10")
    if l < 0:
        raise ConfigError("--l is negative", hint="Use 2 or more, or 0 for no bound")
    if not 0 <= t <= 1:
        raise ConfigError(f"--t {t:g} is no distance between distributions", hint="Use a number from 0 to 1")


def check_relational_options(algorithm: str, *, m: int | None) -> None:
    """Refuse options of (k, k^m)-anonymity where no item set is named."""
    from kohort.errors import ConfigError

    if algorithm == "kkm" or m is not None:
        raise ConfigError("(k, k^m)-anonymity is about item sets and none is named", hint="Give --items COLUMN")


def check_item_options(
    algorithm: str,
    *,
    l: float,  # noqa: E741 - the literature's own letter
    t: float,
    levels: str | None,
    suppression: float,
    others: Mapping[str, object],
) -> None:
    """Refuse options that (k, k^m)-anonymity would otherwise ignore."""
    from kohort.errors import ConfigError

    ignored = [name for name, value in others.items() if value]
    if ignored:
        raise ConfigError(f"not enforced together with --items: {', '.join(ignored)}", hint="Leave them out")

    if algorithm not in ("auto", "kkm"):
        hint = "Use --algorithm kkm, or leave --items out"
        raise ConfigError(f"--items goes with --algorithm kkm, not {algorithm}", hint=hint)

    if l or t:
        hint = "Leave them out, or anonymise without --items"
        raise ConfigError("--l and --t are not enforced together with --items", hint=hint)
    if levels is not None:
        raise ConfigError("--levels is for lattice, not for item sets", hint="Leave it out")
    if suppression:
        hint = "Use --item-suppression for the share of items"
        raise ConfigError("--suppression is about rows, and with --items no row is left out", hint=hint)


def item_hierarchy(text: str, column: str) -> ItemHierarchy:
    """The hierarchy of items that a word or a file names."""
    from kohort.anonymity.itemsets.hierarchy import ITEM_HIERARCHIES
    from kohort.tables.hierarchy import Hierarchy

    return text if text in ITEM_HIERARCHIES else Hierarchy.read(text, column)  # type: ignore[return-value]


def given_hierarchies(
    text: str, frame: pl.DataFrame, quasi: tuple[str, ...], target: str | None
) -> Mapping[str, Hierarchy] | None:
    """Hierarchies of the quasi-identifiers for (k, k^m); with auto none: released cells are intervals and sets."""
    if text == "auto":
        return None
    from kohort.anonymity.relational.techniques import find_hierarchy_technique

    found = hierarchies(text)
    return find_hierarchy_technique(found)(frame, quasi, target) if isinstance(found, str) else found


def levels(text: str | None) -> dict[str, int] | None:
    """The levels of --levels, by column; None where there are none."""
    if text is None:
        return None
    from kohort.errors import ConfigError

    try:
        return {name: int(level) for name, level in (part.split("=") for part in names(text))}
    except ValueError:
        raise ConfigError("--levels is not a list of column=level", hint="Write such as age=2,sex=1") from None


def column_numbers(option: str, given: list[str] | None) -> dict[str, float]:
    """The numbers of an option such as --weight age=3."""
    from kohort.errors import ConfigError

    found = {}
    for text in given or ():
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(f"{option} is not column=number", hint=f"Write such as {option} age=3") from None
    return found


def with_own(
    hierarchies: str | dict[str, Hierarchy], own: list[str] | None, quasi: tuple[str, ...]
) -> str | dict[str, Hierarchy]:
    """The hierarchies with those of single columns; columns without one are left to be made."""
    if not own:
        return hierarchies
    from kohort.errors import ConfigError, nearest
    from kohort.tables.hierarchy import Hierarchy

    found = {} if isinstance(hierarchies, str) else dict(hierarchies)
    for text in own:
        name, _, path = text.partition("=")
        if name not in quasi or not path:
            raise ConfigError(f"--hierarchy is for a quasi-identifier, not {name!r}", hint=nearest(name, quasi))
        found[name] = Hierarchy.read(path, name)
    return found


def hierarchies(text: str) -> str | dict[str, Hierarchy]:
    """The word of a technique, or the hierarchies in a folder."""
    from kohort.anonymity.relational.techniques import hierarchy_techniques
    from kohort.tables.hierarchy import read_hierarchies

    if text in hierarchy_techniques():
        return text
    return read_hierarchies(text)


def population_of(text: str | None, quasi: tuple[str, ...]) -> Any:
    """A population as its number of rows, or as the table in a file.

    Args:
        text: A number, a path or the name of a dataset; None for none.
        quasi: The columns that the table must have.

    Returns:
        The number, the quasi-identifiers of the table, or None.

    Raises:
        ConfigError: The number is larger than any population.
        DataError: The table cannot be read or lacks a column.
    """
    from kohort.errors import ConfigError, DataError, nearest_column

    if text is None:
        return None
    if text.isdigit():
        if int(text) > LARGEST_POPULATION:
            raise ConfigError(f"the population is above {LARGEST_POPULATION:,}", hint="Give the number of its persons")
        return int(text)
    from kohort.tables.prepared import Declared, prepare

    frame = prepare(text, Declared(quasi=quasi, drop=("rest",))).frame
    for name in quasi:
        if name not in frame.columns:
            hint = nearest_column(name, frame.columns, quasi)
            raise DataError(f"the population has no column {name!r}", hint=hint)
    return frame.select(quasi)


def presence_of(text: str | None) -> tuple[float, float] | None:
    """The bounds of --presence.

    Args:
        text: Two numbers with a comma between them; None for no bounds.

    Returns:
        Both bounds.

    Raises:
        ConfigError: The text is not that.
    """
    if text is None:
        return None
    from kohort.errors import ConfigError

    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError("--presence is not two numbers", hint="Write such as --presence 0,0.5") from None
    return low, high
