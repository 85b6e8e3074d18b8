"""The values of one column over all sites: which sites have them, or how many do, where a count told only that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kohort.tables.harmonise.profiles import ColumnProfile
from kohort.tables.harmonise.words import is_missing_word

__all__ = ["READ_TEXT", "CountedValue", "Values", "counted_values", "profiled_values", "quoted"]

READ_TEXT: Final = "text"
"""The kind of a counted text that reads as a number or a date: it is no spelling of a category."""


@dataclass(frozen=True)
class CountedValue:
    """A value that enough persons share over all sites, as a secure count tells it.

    Attributes:
        kind: What the column is where it is written so: category, text, boolean, number or items.
        text: The value.
        holders: How many sites have it.
    """

    kind: str
    text: str
    holders: int


@dataclass(frozen=True)
class Values:
    """The values of a column.

    Attributes:
        holders: Per value, how many sites have it.
        kinds: Per value, what the column is where it is written so.
        by_site: Per site its values, where that is known; None after a count.
        everybody: How many sites have the column.
    """

    holders: Mapping[str, int]
    kinds: Mapping[str, frozenset[str]]
    by_site: Mapping[str, Sequence[str]] | None
    everybody: int
    spelt: frozenset[str] = field(default=frozenset())
    """Values that are spellings of categories or items, and not texts of numbers or dates."""

    def forms(self, means: Callable[[str], bool], *, spelt: bool = False) -> list[str]:
        """The values of one meaning, in the order in which sites name them.

        Args:
            means: Whether a text has the meaning.
            spelt: Whether to look at spellings of categories and items alone.
        """
        return [text for text in self.holders if means(text) and (not spelt or text in self.spelt)]

    def most(self, forms: Iterable[str]) -> str:
        """The one that most sites have; the earliest of equally frequent ones."""
        return max(forms, key=lambda text: self.holders[text])

    def sites_with(self, texts: Iterable[str]) -> tuple[str, ...]:
        """The sites that have one of the values; none after a count, which does not name sites."""
        wanted = {*texts}
        return tuple(sorted(site for site, own in (self.by_site or {}).items() if wanted & {*own}))

    def words(self, texts: Iterable[str] | None = None) -> str:
        """Who has which of the values, or of `texts`.

        Args:
            texts: The values to speak of; all by default.
        """
        chosen = {*self.holders} if texts is None else {*texts}
        if self.by_site is None:
            return ", ".join(f"{text!r} at {_sites(n)}" for text, n in self.holders.items() if text in chosen)
        own = {site: [text for text in several if text in chosen] for site, several in self.by_site.items()}
        return "; ".join(f"{quoted(several)} at {site}" for site, several in own.items() if several)


def profiled_values(known: Mapping[str, ColumnProfile]) -> Values:
    """The values that the profiles of sites name, without markers of missing values.

    Args:
        known: The profiles of one column, by site.

    Returns:
        The values, with the sites that have each.
    """
    by_site = {site: _without_markers(profile.values or (), profile.codes) for site, profile in known.items()}
    holders: dict[str, int] = {}
    kinds: dict[str, frozenset[str]] = {}
    spelt: set[str] = set()
    for site, several in by_site.items():
        for text in several:
            holders[text] = holders.get(text, 0) + 1
            kinds[text] = kinds.get(text, frozenset()) | {known[site].kind}
        if known[site].kind in ("category", "items") and known[site].reads_as is None:
            spelt |= {*several}
    return Values(holders, kinds, by_site, len(known), frozenset(spelt))


def counted_values(found: Iterable[CountedValue], known: Mapping[str, ColumnProfile]) -> Values:
    """The values that a secure count names, without markers of missing values.

    Args:
        found: The counted values of one column.
        known: The profiles of the column, by site, which name no value.

    Returns:
        The values, with the number of sites that have each.
    """
    codes = [code for profile in known.values() for code in profile.codes]
    holders: dict[str, int] = {}
    kinds: dict[str, frozenset[str]] = {}
    for one in sorted(found, key=lambda one: (one.text, one.kind)):
        if one.text in _without_markers([one.text], codes):
            holders[one.text] = holders.get(one.text, 0) + one.holders
            kind = "category" if one.kind == READ_TEXT else one.kind
            kinds[one.text] = kinds.get(one.text, frozenset()) | {kind}
    spelt = frozenset(one.text for one in found if one.kind in ("category", "items"))
    return Values(holders, kinds, None, len(known), spelt)


def quoted(texts: Iterable[str]) -> str:
    """Texts in quotes, with commas.

    Args:
        texts: The texts.

    Returns:
        One text, such as `'a', 'b'`.
    """
    return ", ".join(repr(text) for text in texts)


def _without_markers(texts: Iterable[str], codes: Iterable[str]) -> list[str]:
    left_out = {*codes}
    return [text for text in texts if text not in left_out and not is_missing_word(text)]


def _sites(count: int) -> str:
    return "1 site" if count == 1 else f"{count} sites"
