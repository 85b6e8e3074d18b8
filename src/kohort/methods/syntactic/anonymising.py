"""How one site makes its rows (k, k^m)-anonymous: what a plan says about it, and what it does to the rows.

Quasi-identifiers are ranked and selected, then rows are anonymised and verified by the checker. Hierarchies and orders
of columns are those that the plan declares, the same at every site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import polars as pl
from annotated_types import Ge, Le

from kohort.errors import ConfigError, nearest
from kohort.methods.syntactic.item_columns import codes_of, items_tree, joint_items
from kohort.methods.syntactic.outcome_groups import OutcomeSection
from kohort.tables.cells import SUPPRESSED, Interval, Label, Suppressed, ValueSet, format_cell, parse_cell
from kohort.tables.domain import Domain, category_text
from kohort.tables.hierarchy import Hierarchy
from kohort.tables.schema import Schema

if TYPE_CHECKING:
    from kohort.anonymity.itemsets.kkm import KKmResult
    from kohort.methods.syntactic.importance import Importance

__all__ = [
    "CODES",
    "AnonymiseSection",
    "AnonymisedRows",
    "ImportanceSection",
    "anonymise_rows",
    "check_hierarchies",
    "check_importance",
    "item_members",
    "mapping_weights",
    "quasi_hierarchies",
]

ITEM_HIERARCHIES = ("declared", "none", "auto", "icd9", "icd10")
LARGEST_M = 3
NO_ITEMS, CODES = "no items", "target codes"


@dataclass(frozen=True, kw_only=True)
class ImportanceSection:
    """`importance = {...}`: how a site ranks its quasi-identifiers, and how many of them it trains on."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    method: Literal["none", "rfe", "extra-trees", "forest", "declared"] = "none"
    """none: all are kept and weigh the same | declared: `weights`, the same at all sites and in the mapping's cost"""
    top: Annotated[int, Ge(1)] | None = None
    """Quasi-identifiers to keep; the others are suppressed. Items are always kept."""
    weights: Mapping[str, Annotated[float, Ge(0), Le(1)]] = field(default_factory=dict)
    """What a loss in each quasi-identifier and in the items counts. Public; a site's own ranking stays there."""


@dataclass(frozen=True, kw_only=True)
class AnonymiseSection:
    """`[method.anonymise]`: what an attacker may know and is still left with k rows, and what that may cost."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    k: Annotated[int, Ge(2)] = 10
    m: Annotated[int, Ge(1), Le(4)] = 2
    """Items an attacker may know; 4 with local recoding alone."""
    delta: Annotated[float, Ge(0), Le(1)] = 0.95
    """Largest relational loss that joining clusters may lead to."""
    item_hierarchy: str = "declared"
    """declared: that of data.hierarchies, or groups of items where there is none | none | auto | icd9 | icd10 | a CSV
    of item, parent, ..., at the site"""
    groups: Literal["per-cluster", "table-wide"] = "per-cluster"
    rare: Literal["auto", "recode", "generalise", "suppress"] = "auto"
    """Items that too few hold together: in the rows that hold them an item goes up the hierarchy, to its root, before
    it is suppressed (recode) | they become groups in all rows (generalise) | the rows that hold them lose an item
    (suppress). auto: recode with a declared hierarchy, else generalise."""
    merge: Literal["paying", "all", "printed", "none"] = "paying"
    """printed: as the paper prints it | all, paying: partners by the loss of the union, always or where it pays"""
    suppression_limit: Annotated[float, Ge(0), Le(1)] = 0.5
    """Share of a site's item occurrences that may be left out, if they must."""
    importance: ImportanceSection = field(default_factory=ImportanceSection)
    outcome: OutcomeSection | None = None
    """Above the lowest labels of declared item hierarchies, groups of items with similar outcomes, learned by a secure
    sum over all sites."""

    def has_hierarchy(self, schema: Schema) -> bool:
        """Whether there is anything above the items."""
        return items_tree(schema) is not None if self.item_hierarchy == "declared" else self.item_hierarchy != "none"

    def recodes(self, schema: Schema) -> bool:
        """Whether items are recoded row by row."""
        declared = self.item_hierarchy == "declared" and items_tree(schema) is not None
        return self.rare == "recode" or (self.rare == "auto" and declared)


@dataclass(frozen=True)
class AnonymisedRows:
    """The result of anonymising a site's rows, and the released table, with its quasi-identifiers as text."""

    result: KKmResult
    released: pl.DataFrame


def anonymise_rows(
    frame: pl.DataFrame, schema: Schema, config: AnonymiseSection, *, k: int, codes: pl.Series
) -> AnonymisedRows:
    """Rank and select quasi-identifiers, then anonymise and verify the rows of one site. It is deterministic.

    Args:
        frame: The rows, items of several columns also as one set (`item_columns.joined`).
        schema: The roles of their columns.
        config: `[method.anonymise]`.
        k: Fewest rows per class: the plan's, or the site's policy's if that is larger.
        codes: The encoded target of each row, for the ranking.

    Returns:
        The result, and the released table. Quasi-identifiers that were not selected are suppressed in it.

    Raises:
        RefusedError: The rows cannot meet (k, k^m)-anonymity within the limit of suppression.
    """
    from kohort.anonymity.itemsets.kkm import anonymise_items

    items = joint_items(schema) or NO_ITEMS
    if not schema.items:
        frame = frame.with_columns(pl.lit([], dtype=pl.List(pl.String)).alias(NO_ITEMS))
    found = _importance(frame, schema, config.importance, codes)
    quasi = [name for name in schema.quasi if found is None or name in found.kept]
    made = anonymise_items(
        frame,
        quasi=quasi,
        items=items,
        k=k,
        m=config.m,
        delta=config.delta,
        weights=None if found is None else _shares(found, quasi),
        item_weights=None if found is None or not schema.items else found.item_weights,
        item_hierarchy=_item_hierarchy(config.item_hierarchy, schema),
        groups=config.groups,
        rare="recode" if config.recodes(schema) else "generalise" if config.rare == "auto" else config.rare,
        hierarchies=_hierarchies(frame, schema, quasi),
        ordered={name: schema.columns[name].categories or () for name in quasi if schema.columns[name].ordered},
        merge=config.merge,
        suppression_limit=config.suppression_limit,
        identifier=next(iter(schema.identifiers), None),
    )
    cells = {column.name: pl.Series(column.name, map(_text, column.cells), dtype=pl.String) for column in made.cells}
    released = made.frame.with_columns(
        # Quasi-identifiers that were not selected are suppressed, in training and in the release.
        *(pl.lit(format_cell(SUPPRESSED)).alias(name) for name in schema.quasi if name not in cells),
        *(cells[column.name].gather(column.of_class[made.cluster]) for column in made.cells),
    )
    return AnonymisedRows(made, released)


def _text(cell: Any) -> str | None:
    """The text of a cell; dates and other values without a format of their own use `str`."""
    known = cell is None or isinstance(cell, (str, int, float, Interval, ValueSet, Label, Suppressed))
    return format_cell(cell if known else str(cell))


def _importance(frame: pl.DataFrame, schema: Schema, section: ImportanceSection, codes: pl.Series) -> Importance | None:
    if section.method == "none":
        return None
    from kohort.methods.syntactic.importance import declared, rank

    items = joint_items(schema)
    if section.method == "declared":
        return declared(section.weights, quasi=schema.quasi, top=section.top)
    found = rank(
        frame.with_columns(codes.alias(CODES)),
        quasi=schema.quasi,
        items=items,
        target=CODES,
        method=section.method,
    )
    ranked = [name for name in found.kept if name != items]
    return replace(found, kept=tuple(ranked[: section.top]))


def _shares(found: Importance, quasi: Sequence[str]) -> dict[str, float] | None:
    """Weights relative to the most important selected quasi-identifier; None when no weight is positive."""
    most = max(found.weights[name] for name in quasi)
    return {name: found.weights[name] / most for name in quasi} if most > 0 else None


def _item_hierarchy(word: str, schema: Schema) -> Any:
    if word == "declared":
        return items_tree(schema) or "none"
    return word if word in ITEM_HIERARCHIES else Hierarchy.read(word)


def _hierarchies(frame: pl.DataFrame, schema: Schema, quasi: Sequence[str]) -> dict[str, Hierarchy] | None:
    """The declared hierarchies of the quasi-identifiers, over the values of the rows."""
    found = {name: schema.columns[name].tree(name) for name in quasi}
    made = {
        name: tree.hierarchy(category_text(frame[name]).drop_nulls().unique().to_list())
        for name, tree in found.items()
        if tree is not None
    }
    return made or None


def quasi_hierarchies(schema: Schema, domain: Domain) -> dict[str, Hierarchy]:
    """The declared hierarchies of the quasi-identifiers, over their agreed values.

    Args:
        schema: The columns, with their hierarchies.
        domain: The values that hub and sites agreed on.

    Returns:
        The hierarchy of each quasi-identifier that has one and has agreed categories, by column.
    """
    found = {}
    for name in schema.quasi:
        tree, known = schema.columns[name].tree(name), domain.columns.get(name)
        if tree is not None and known is not None and known.categories:
            found[name] = tree.hierarchy(known.categories)
    return found


def item_members(made: KKmResult, schema: Schema, domain: Domain) -> dict[str, tuple[str, ...]]:
    """What each released item stands for: a label of a declared hierarchy for the known codes below it.

    Args:
        made: The anonymised rows.
        schema: The columns, with their hierarchies.
        domain: The values that hub and sites agreed on. Codes that it does not list are not among the members.

    Returns:
        The members of each group of items, by its released text.
    """
    found = {group.text: group.members for group in made.groups}
    tree = items_tree(schema)
    if tree is None:
        return found
    below: dict[str, list[str]] = {}
    for code in codes_of(schema, domain):
        for label in dict.fromkeys(tree.chain(code)):
            below.setdefault(label, []).append(code)
    for text in found:
        cell = parse_cell(text)
        if isinstance(cell, Label) and cell.text in below:
            found[text] = tuple(below[cell.text])
    return found


def mapping_weights(section: ImportanceSection) -> Mapping[str, float] | None:
    """The weights of the mapping's cost: those that the plan declares.

    Rankings that a site made of its own rows are not used: a class must cost the same wherever a row is mapped.

    Args:
        section: `[method.anonymise.importance]`.

    Returns:
        The weight of each column; None where all columns count alike.
    """
    return dict(section.weights) if section.method == "declared" else None


def check_importance(section: ImportanceSection, schema: Schema) -> None:
    """Refuse, before any site is asked, a ranking or weights that do not fit the columns.

    Args:
        section: `[method.anonymise.importance]`.
        schema: The roles of the columns.

    Raises:
        ConfigError: `top` has no ranking or is out of range, weights are given and not declared, are incomplete, or
            name another column, or no quasi-identifier weighs anything.
    """
    if section.method != "none" and not schema.quasi:
        raise ConfigError("there are no quasi-identifiers to rank", hint="Drop method.anonymise.importance")
    if section.top is not None and (section.method == "none" or section.top > len(schema.quasi)):
        hint = f"Choose a ranking, and keep 1 to {len(schema.quasi)} quasi-identifiers"
        raise ConfigError(f"importance.top is {section.top}", hint=hint)
    if section.method != "declared":
        if section.weights:
            raise ConfigError("importance.weights are given and not used", hint='Set importance.method = "declared"')
        return
    known = (*schema.quasi, *((joint_items(schema),) if joint_items(schema) else ()))
    _check_weights(section.weights, known)
    if not any(section.weights[name] > 0 for name in schema.quasi):
        raise ConfigError("no quasi-identifier has a weight", hint="Give at least one more than 0")


def _check_weights(weights: Mapping[str, float], known: Sequence[str]) -> None:
    for name in weights:
        if name not in known:
            raise ConfigError(f"importance.weights names {name!r}", hint=nearest(name, known))
    absent = [name for name in known if name not in weights]
    if absent:
        hint = "Weigh every quasi-identifier and the items, from 0 to 1"
        raise ConfigError(f"importance.weights lacks: {', '.join(absent)}", hint=hint)


def check_hierarchies(config: AnonymiseSection, schema: Schema) -> None:
    """Refuse, before any site is asked, hierarchies, orders and an m that every site would fail on.

    Args:
        config: `[method.anonymise]`.
        schema: The columns, with their hierarchies.

    Raises:
        ConfigError: The item hierarchy is unknown, an ordered column has no categories, or local recoding or an m of 4
            lacks what it needs.
    """
    word = config.item_hierarchy
    if word not in ITEM_HIERARCHIES and not word.endswith(".csv"):
        raise ConfigError(f"unknown item hierarchy {word!r}", hint=nearest(word, ITEM_HIERARCHIES))
    for name, spec in schema.columns.items():
        if spec.ordered and not spec.categories:
            raise ConfigError(f"column {name!r} is ordered and has no categories", hint="List them in data.categories")
    if config.rare == "recode" and schema.items and not config.has_hierarchy(schema):
        hint = 'Declare one, as in data.hierarchies = {diagnoses = "icd9"}'
        raise ConfigError("items cannot be recoded row by row without a hierarchy", hint=hint)
    if config.m > LARGEST_M and not config.recodes(schema):
        raise ConfigError(f"m is {config.m}", hint=f"Use 1 to {LARGEST_M}, or recode items up a declared hierarchy")
