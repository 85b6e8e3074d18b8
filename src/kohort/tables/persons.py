"""Which rows are about one person: rows of a person count, move and are held out together.

A person is known by the identifier that a plan names in `data.person`. A row without one is about a person of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import ConfigError, DataError, counted
from kohort.tables.domain import category_text

__all__ = ["SeveralSites", "hold_out", "persons_at_several_sites", "persons_of", "shared_draws"]


def persons_of(column: pl.Series) -> NDArray[np.int64] | None:
    """The person each row is about, numbered from 0 on in the order of their first rows.

    Args:
        column: The identifier of a person. A row without one is about a person of its own.

    Returns:
        The numbers; None where nobody has several rows.
    """
    row, named = pl.col("row"), column.alias("person").to_frame().with_row_index("row")
    first = named.select(pl.when(pl.col("person").is_null()).then(row).otherwise(row.first().over("person")))
    starts, persons = np.unique(first.to_series().to_numpy(), return_inverse=True)
    return None if len(starts) == len(column) else persons.astype(np.int64)


def shared_draws(column: pl.Series, purpose: str) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """A number per row that is the same for all rows of a person, at whichever site they are.

    It is a hash of the identifier as text and of nothing else, so nobody chooses it, no seed changes it, and rows that
    are added or moved to another site leave it as it is.

    Args:
        column: The identifier of a person.
        purpose: What the number decides; numbers of two purposes have nothing to do with one another.

    Returns:
        Uniform numbers of 64 bits, and which rows have one: those with an identifier. The others' number is 0.
    """
    texts = category_text(column)
    named = texts.drop_nulls().unique()
    key = purpose.encode()
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8, key=key).digest() for text in named)
    numbers = pl.Series(np.frombuffer(digests, dtype="<u8").astype(np.uint64))
    found = texts.replace_strict(named, numbers, default=None, return_dtype=pl.UInt64)
    return found.fill_null(0).to_numpy(), texts.is_not_null().to_numpy()


@dataclass(frozen=True)
class SeveralSites:
    """How many persons have rows at several sites, and at how many sites one of them has rows at most."""

    persons: int = 0
    most: int = 1


def persons_at_several_sites(persons: NDArray[np.int64] | None, site: NDArray[np.int64]) -> SeveralSites:
    """Count the persons whose rows are at several sites.

    Args:
        persons: The person each row is about, from 0 on; None where nobody has several rows.
        site: The site of each row.

    Returns:
        The count, and the largest number of sites.
    """
    if persons is None:
        return SeveralSites()
    pairs = np.unique(np.stack([persons, site]), axis=1)
    sites = np.bincount(pairs[0])
    return SeveralSites(int((sites > 1).sum()), int(sites.max()))


def hold_out(
    n: int, share: float, generator: np.random.Generator, persons: NDArray[np.int64] | None = None
) -> NDArray[np.bool_]:
    """Choose rows at random to test on.

    Args:
        n: Number of rows.
        share: Share of the rows to hold out; both parts keep at least one row unless it is 0.
        generator: Source of randomness.
        persons: The person each row is about, from 0 on; all rows of a person are on one side. By default every row is
            about another one.

    Returns:
        A mask with round(share * n) rows set; with persons of several rows, as near to it as whole persons allow.

    Raises:
        ConfigError: The share is not in [0, 1).
        DataError: There are fewer than two rows, or persons, to divide.
    """
    if not 0 <= share < 1:
        raise ConfigError(f"a held-out share of {share} is not a share", hint="Use a number from 0 up to, not with, 1")
    if share == 0:
        return np.zeros(n, dtype=bool)
    persons = np.arange(n) if persons is None else persons
    sizes = np.bincount(persons)
    if len(sizes) < 2:
        what = counted(len(sizes), "row" if len(sizes) == n else "person")
        raise DataError(f"{what} cannot be split into training and test", hint="Give more, or test = 0")
    order = generator.permutation(len(sizes))
    reached = np.cumsum(sizes[order])[:-1]
    chosen = np.zeros(len(sizes), dtype=bool)
    chosen[order[: 1 + int(np.argmin(np.abs(reached - round(share * n))))]] = True
    return chosen[persons]
