"""The sections `[data]` and `[sites]` of a plan: the table, and how its rows become sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Le, Lt

from kohort.protocol.faults import Faults
from kohort.tables.dialect import ReadingOptions
from kohort.tables.harmonise.mapping import TableMapping
from kohort.tables.sources.addresses import refuse_password

__all__ = ["DEPLOYED", "DataSection", "SitesSection"]

_FORBID = {"extra": "forbid"}
DEPLOYED: Final = "flower"
"""The engine whose sites are other machines, with tables of their own."""


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """`[data]`: the table, what its columns are, and which rows are kept for testing."""

    __pydantic_config__ = _FORBID

    table: str | tuple[str, ...]
    """A named dataset, a path, or the address of a database; several for `sites.split = "files"`."""
    query: str | None = None
    """A SELECT statement, where `table` is the address of a database, or several of them."""
    target: str | None = None
    quasi: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    person: str | None = None
    """The identifier that names the person a row is about; needed where several identifiers are named."""
    keep: tuple[str, ...] = ()
    """Columns that are used although they look like identifiers."""
    task: Literal["classification", "regression"] | None = None
    """What is learned; by default classes for texts, truth values, two values or few whole numbers, else a number."""
    reading: ReadingOptions | None = None
    """How files are written, where that cannot be found from them."""
    items: tuple[str, ...] = ()
    features: tuple[str, ...] | Literal["rest"] = ()
    drop: tuple[str, ...] = ()
    kinds: Mapping[str, Literal["number", "category", "items"]] = field(default_factory=dict)
    bins: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Public cut points that turn a number into an ordinal code."""
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    other: tuple[str, ...] = ()
    """Columns whose unseen categories become "other" instead of an error."""
    nullable: tuple[str, ...] = ()
    hierarchies: Mapping[str, str | tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """What stands above the values of quasi-identifiers and items: icd9, icd10, or lines of a value and its labels; a
    plan file may name a CSV instead."""
    ancestors: tuple[str, ...] = ()
    """Columns of items with a hierarchy, for which the labels above an item are features too."""
    ordered: tuple[str, ...] = ()
    """Columns whose `categories` are listed in their order."""
    missing: Literal["impute", "category", "drop"] = "impute"
    """impute: a number is the middle of its agreed bounds, a category has a level for it, and an indicator says so.
    category: the same with 0 for numbers. drop: rows with a missing value are left out, and counted."""
    weight: str | None = None
    """A column that says how much a row counts in training, for methods that train a network without a budget."""
    consent: str | None = None
    """A column that says what may be done with a row: share (yes), train (learned from, never sent), none (no, or
    nothing: the row takes no part)."""
    unseen: Literal["other", "error"] = "other"
    """What a category that the model has no name for is in rows to predict: "other" where its column has that, else any
    of its column, counted; or an error, but for columns in `other`."""
    encoding: Literal["label", "onehot"] = "label"
    test: Annotated[float, Ge(0), Lt(1)] | str = 0.3
    """Share of the rows kept for testing, or a table of their own; 0 keeps none, and nothing is measured."""
    validation: Annotated[float, Gt(0), Lt(1)] | None = None
    """Share of the training rows the hub holds to judge updates by (`train.reject`)."""
    preflight: Literal["none", "first", "only"] = "none"
    """first: sites compare their tables, through the door and by a secure count, before anything is learned. only: they
    do nothing else (`kohort harmonise PLAN.toml --hub HUB`)."""
    mapping: Mapping[str, Any] | None = None
    """What makes the sites' tables agree (`kohort harmonise`); a plan file may name a TOML file instead."""

    @property
    def table_mapping(self) -> TableMapping:
        """The mapping as it is applied; an empty one changes nothing."""
        return TableMapping.from_plain(self.mapping or {}, "data.mapping")

    def __post_init__(self) -> None:
        if self.mapping is not None:
            _ = self.table_mapping  # refuses what cannot be read
        for table in (self.table,) if isinstance(self.table, str) else self.table:
            refuse_password(table, "data.table")
        if isinstance(self.test, str):
            refuse_password(self.test, "data.test")


@dataclass(frozen=True, kw_only=True)
class SitesSection:
    """`[sites]`: how the rows are dealt out, and how many sites must answer."""

    __pydantic_config__ = _FORBID

    count: Annotated[int, Ge(1)] = 10
    split: str = "iid"
    """iid | interval:COLUMN (equal rows) | width:COLUMN | column:NAME | dirichlet | sorted | files"""
    clusters: Annotated[int, Ge(1)] | str | None = None
    alpha: Annotated[float, Gt(0)] | tuple[Annotated[float, Gt(0)], ...] = 1.0
    low_risk: Annotated[float, Gt(0), Lt(1)] | str | None = None
    """Share of each site's rows that carry a low risk, or "below:COLUMN:NUMBER" for those below it."""
    min_rows: Annotated[int, Ge(1)] = 1
    quorum: Annotated[float, Gt(0), Le(1)] = 0.5
    """Smallest share of the asked sites whose answers must count for a run to go on."""
    deadline: Annotated[float, Gt(0)] | None = None
    """Seconds a site has for an answer; later ones are left out and named."""
    arrive: str | None = None
    """Rows come in over time, as in "20%/10 rounds"; for methods that share rows. "appended/10 rounds": real sites read
    their tables again every ten rounds, and take the rows that were appended."""
    faults: Faults = field(default_factory=Faults)
    """Fault injection: drop-outs, stragglers and Byzantine sites."""

    def reads(self, engine: str) -> frozenset[str]:
        """Which keys of this section an engine and the split read, as dotted names; the others are the method's.

        Args:
            engine: The engine's name. "flower" has sites with tables of their own; all others deal rows out.
        """
        kind = self.split.partition(":")[0]
        keys = {"quorum", "deadline"}
        if engine == DEPLOYED:
            keys |= {"split"} if kind == "files" else set()
        else:
            keys |= {"split", "faults"}
            keys |= {"files": set[str](), "column": {"min_rows"}}.get(kind, {"min_rows", "count"})
            # Sites by the values of a column stay as they are: a number of clusters only groups them. With files, that
            # rows cannot be dealt out has an error of its own.
            keys |= set() if kind == "column" and isinstance(self.clusters, int) else {"clusters"}
            keys |= {"alpha"} if kind == "dirichlet" else set()
        return frozenset(f"sites.{key}" for key in keys)

    @property
    def skews_risk(self) -> bool:
        """Whether `alpha` skews which rows are of low risk, too."""
        return isinstance(self.low_risk, float) and isinstance(self.alpha, tuple) and len(self.alpha) > 2
