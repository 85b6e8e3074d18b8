"""What stands above a code: ICD-9-CM and ICD-10 by their public structure, or the chains of a table.

| hierarchy | labels above a code, nearest first |
|---|---|
| icd9  | category, ten categories, chapter, root; what is no ICD-9 code is a chapter of its own |
| icd10 | subcategory, category, ten categories, chapter, root; the same |
| chains | those of the line that begins with the code; the root alone for a code without a line |

Above the lowest labels others may stand instead (`groups`), such as groups of codes that were learned.

Guarantees: labels depend on the code alone, so every code has labels, one that no site has seen included; all chains of
a tree have the same length and end with the same root.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from kohort.errors import ConfigError, nearest
from kohort.tables.hierarchy import ROOT_LABEL, Hierarchy

__all__ = ["CODE_SYSTEMS", "CodeTree", "HierarchyText", "JoinedTrees", "icd9", "icd10", "in_column"]

CODE_SYSTEMS = ("icd9", "icd10")
NO_CODE = ("no ICD-9 code", "no ICD-10 code")
HierarchyText = str | tuple[tuple[str, ...], ...]
"""The name of a code system, or lines of a value and the labels above it."""

# First category of each chapter of ICD-9-CM, and what it is about.
ICD9_CHAPTERS = (
    (1, "infectious and parasitic diseases"),
    (140, "neoplasms"),
    (240, "endocrine, nutritional, metabolic and immunity disorders"),
    (280, "blood and blood-forming organs"),
    (290, "mental disorders"),
    (320, "nervous system and sense organs"),
    (390, "circulatory system"),
    (460, "respiratory system"),
    (520, "digestive system"),
    (580, "genitourinary system"),
    (630, "pregnancy, childbirth and the puerperium"),
    (680, "skin and subcutaneous tissue"),
    (710, "musculoskeletal system and connective tissue"),
    (740, "congenital anomalies"),
    (760, "conditions of the perinatal period"),
    (780, "symptoms, signs and ill-defined conditions"),
    (800, "injury and poisoning"),
    (1000, ""),
)
ICD9_NUMERIC = re.compile(r"(\d{1,3})(?:\.\d{0,2})?|(\d{3})\d{1,2}")
ICD9_LETTER = re.compile(r"(?:(V)(\d{1,2})(?:\.?\d{0,2})|(E)(\d{3})(?:\.?\d)?)")
# First category of each chapter of ICD-10, and what it is about.
ICD10_CHAPTERS = (
    ("A00", "infectious and parasitic diseases"),
    ("C00", "neoplasms"),
    ("D50", "blood and blood-forming organs"),
    ("E00", "endocrine, nutritional and metabolic diseases"),
    ("F00", "mental and behavioural disorders"),
    ("G00", "nervous system"),
    ("H00", "eye and adnexa"),
    ("H60", "ear and mastoid process"),
    ("I00", "circulatory system"),
    ("J00", "respiratory system"),
    ("K00", "digestive system"),
    ("L00", "skin and subcutaneous tissue"),
    ("M00", "musculoskeletal system and connective tissue"),
    ("N00", "genitourinary system"),
    ("O00", "pregnancy, childbirth and the puerperium"),
    ("P00", "conditions of the perinatal period"),
    ("Q00", "congenital malformations and chromosomal abnormalities"),
    ("R00", "symptoms, signs and abnormal findings"),
    ("S00", "injury and poisoning"),
    ("U00", "codes for special purposes"),
    ("V00", "external causes"),
    ("Z00", "factors influencing health status"),
)
ICD10_CODE = re.compile(r"([A-Z])(\d)([0-9A-Z])(?:\.?([0-9A-Z]{1,4}))?")


@dataclass(frozen=True)
class CodeTree:
    """The labels above every code of a column.

    Args:
        column: Its name.
        text: The name of a code system, or chains.
        groups: Lines of a label, and what stands instead above the lowest labels at and below it, nearest first; of
            several lines the lowest label's counts. The root is not among them.

    Raises:
        ConfigError: There is no such code system.
        DataError: The chains are ragged, cyclic or inconsistent.

    Example:
        >>> CodeTree("diagnoses", "icd9").chain("250.99")[0]
        '250.x'
    """

    column: str
    text: HierarchyText
    groups: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.text, str) and self.text not in CODE_SYSTEMS:
            raise ConfigError(
                f"column {self.column!r} has an unknown hierarchy {self.text!r}", hint=nearest(self.text, CODE_SYSTEMS)
            )
        _ = self._given  # refuses chains that contradict each other

    @cached_property
    def _given(self) -> dict[str, tuple[str, ...]]:
        if isinstance(self.text, str):
            return {}
        return {value: tuple(above) for value, *above in Hierarchy(self.column, self.text).chains}

    @cached_property
    def _regrouped(self) -> dict[str, tuple[str, ...]]:
        return {line[0]: (*line[1:], ROOT_LABEL) for line in self.groups}

    def chain(self, code: str) -> tuple[str, ...]:
        """The labels above a code, nearest first, the root last."""
        declared = self.declared(code)
        above = next((self._regrouped[label] for label in declared if label in self._regrouped), None)
        return declared if above is None or len(declared) == 1 else (declared[0], *above)

    def declared(self, code: str) -> tuple[str, ...]:
        """The labels above a code without groups, nearest first, the root last."""
        if self.text == "icd9":
            return (*_icd9_labels(code), ROOT_LABEL)
        if self.text == "icd10":
            return (*_icd10_labels(code), ROOT_LABEL)
        found = self._given.get(code)
        if found is None:
            return (ROOT_LABEL,)
        return found if found[-1] == ROOT_LABEL else (*found, ROOT_LABEL)

    def lacks(self, code: str) -> bool:
        """Whether a code is none of the code system, or stands in none of the chains."""
        if isinstance(self.text, str):
            return self.declared(code)[-2] in NO_CODE
        return code not in self._given

    def lacks_most(self, codes: Sequence[str]) -> bool:
        """Whether more than half of some codes are none of the code system."""
        return 2 * sum(self.lacks(code) for code in codes) > len(codes)

    def hierarchy(self, codes: Iterable[str]) -> Hierarchy:
        """The hierarchy of some codes; one that a table of chains lacks stands below the root alone."""
        chains = {code: self.chain(code) for code in sorted(set(codes))}
        levels = max((len(chain) for chain in chains.values()), default=1)
        padded = {code: (*chain, *[chain[-1]] * (levels - len(chain))) for code, chain in chains.items()}
        return Hierarchy.of(self.column, padded)

    def nearest(self, code: str, labels: Iterable[str]) -> str | None:
        """The lowest of some labels that stands above a code, if any does."""
        known = set(labels)
        return next((label for label in self.chain(code) if label in known), None)


def in_column(column: str, text: str) -> str:
    """The text of an item or a label with the column it is of, for items of several columns that are one set.

    Args:
        column: Name of the column.
        text: The item or label.

    Returns:
        `column=text`.
    """
    return f"{column}={text}"


@dataclass(frozen=True)
class JoinedTrees(CodeTree):
    """The labels above the items of several columns that are one set; nothing stands above two columns.

    An item of a column without a hierarchy stands below the root of its column alone.

    Raises:
        ConfigError: The name of a column would make a text ambiguous.
    """

    trees: tuple[tuple[str, CodeTree | None], ...] = ()

    def __post_init__(self) -> None:
        wrong = [name for name, _ in self.trees if "=" in name]
        if wrong:
            raise ConfigError(f"several columns hold items, and {wrong[0]!r} has = in its name", hint="Rename it")

    @cached_property
    def _by_column(self) -> dict[str, CodeTree | None]:
        return dict(self.trees)

    def chain(self, code: str) -> tuple[str, ...]:
        """The labels above an item, nearest first, the root of its column last."""
        column, _, item = code.partition("=")
        tree = self._by_column.get(column)
        return tuple(in_column(column, label) for label in (tree.chain(item) if tree is not None else (ROOT_LABEL,)))

    def lacks(self, code: str) -> bool:
        """Whether its column has a hierarchy, and the item is not in it."""
        column, _, item = code.partition("=")
        tree = self._by_column.get(column)
        return tree is not None and tree.lacks(item)


def icd9(column: str, items: Sequence[str]) -> Hierarchy:
    """A hierarchy of ICD-9-CM codes: code, category, ten categories, chapter, `*`.

    Args:
        column: Name of the column.
        items: The codes, with or without their dot; a text that is no code gets labels of its own kind.

    Returns:
        The hierarchy.
    """
    return CodeTree(column, "icd9").hierarchy(items)


def icd10(column: str, items: Sequence[str]) -> Hierarchy:
    """A hierarchy of ICD-10 codes: code, subcategory, category, ten categories, chapter, `*`.

    Args:
        column: Name of the column.
        items: The codes, with or without their dot; a text that is no code gets labels of its own kind.

    Returns:
        The hierarchy.
    """
    return CodeTree(column, "icd10").hierarchy(items)


def _icd9_labels(code: str) -> tuple[str, str, str]:
    text = code.strip().upper()
    letters = ICD9_LETTER.fullmatch(text)
    if letters is not None:
        letter, digits = ("V", letters[2]) if letters[1] else ("E", letters[4])
        width, number = (2, int(digits)) if letter == "V" else (3, int(digits))
        first = number - number % 10
        chapter = "supplementary classification (V)" if letter == "V" else "external causes (E)"
        category = f"{letter}{number:0{width}d}.x"
        return category, f"{letter}{first:0{width}d}-{letter}{first + 9:0{width}d}", chapter
    numeric = ICD9_NUMERIC.fullmatch(text)
    number = int(numeric[1] or numeric[2]) if numeric is not None else 0
    for (first, about), (after, _) in pairwise(ICD9_CHAPTERS):
        if first <= number < after:
            tens = number - number % 10
            return f"{number:03d}.x", f"{max(tens, 1):03d}-{tens + 9:03d}", f"{about} ({first:03d}-{after - 1:03d})"
    return _not_of(NO_CODE[0], code)


def _icd10_labels(code: str) -> tuple[str, str, str, str]:
    found = ICD10_CODE.fullmatch(code.strip().upper())
    if found is None:
        return (_not_of(NO_CODE[1], code)[0], *_not_of(NO_CODE[1], code))
    letter, ten, one, rest = found.groups()
    category = f"{letter}{ten}{one}"
    chapter = next(about for first, about in reversed(ICD10_CHAPTERS) if first <= category)
    # A category without subcategories stands for itself.
    sub = f"{category}.{rest[0]}x" if rest else f"{category}.x"
    return sub, f"{category}.x", f"{letter}{ten}0-{letter}{ten}9", chapter


def _not_of(what: str, code: str) -> tuple[str, str, str]:
    return f"{what}: {code}", what, what
