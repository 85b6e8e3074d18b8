"""What each column of a table is: its role, and what is publicly known about its values.

A schema is explicit. Every column of a table has a role or is dropped by name; nothing is used by accident. Categories,
bounds and cut points written here are declared, hence public: only what is not declared is ever learned from rows.

Guarantees: a resolved schema names exactly the columns of its table, in table order; `inputs` never holds the target or
an identifier; `to_mapping` and `from_mapping` are inverse; equal schemas have equal fingerprints.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, TypeVar, cast, get_args

from kohort.errors import ConfigError, DataError, nearest, nearest_column
from kohort.tables.codes import CodeTree, HierarchyText

__all__ = ["ColumnKind", "ColumnSpec", "Role", "Schema"]

T = TypeVar("T")
ColumnKind = Literal["number", "category", "items"]
Answer = Literal["boolean", "integer", "float", "text", "date", "time"]
"""The type that a target's values have in the table, and predictions get."""


class Role(StrEnum):
    """What a column is for."""

    IDENTIFIER = "identifier"
    QUASI = "quasi"
    SENSITIVE = "sensitive"
    TARGET = "target"
    FEATURE = "feature"
    ITEMS = "items"
    WEIGHT = "weight"
    CONSENT = "consent"


INPUT_ROLES = frozenset({Role.QUASI, Role.FEATURE, Role.ITEMS, Role.SENSITIVE})


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    """Roles of one column and what is declared, and so public, about its values.

    `bins` are cut points that turn a number into a code from 0 to len(bins): a value <= bins[0] is 0, a value in
    (bins[i-1], bins[i]] is i, a value above the last is len(bins). `other` sends unseen categories to a category named
    "other". `nullable` declares that missing values can occur. A `kind` of None follows the type of the column.
    `answer` is the type of a target's values, so that predictions have it too, and of dates, which are shown as such.
    `hierarchy` says what stands above the values (`kohort.tables.codes`), `ancestors` that labels above items are
    features too, and `ordered` that categories are listed in their order. `groups` are lines of a value or label and
    what stands above it instead of the hierarchy's labels; no plan declares them, a method may learn them.
    """

    roles: frozenset[Role] = frozenset()
    kind: ColumnKind | None = None
    categories: tuple[str, ...] | None = None
    bounds: tuple[float, float] | None = None
    other: bool = False
    bins: tuple[float, ...] | None = None
    nullable: bool = False
    answer: Answer | None = None
    hierarchy: HierarchyText | None = None
    ancestors: bool = False
    ordered: bool = False
    groups: tuple[tuple[str, ...], ...] = ()

    @property
    def declared_kind(self) -> ColumnKind | None:
        """The kind that the declarations imply, None when only the type of the column can tell."""
        if self.kind is not None:
            return self.kind
        if Role.ITEMS in self.roles:
            return "items"
        if self.bins is not None or self.bounds is not None:
            return "number"
        return "category" if self.categories is not None or self.other else None

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values; only what differs from the default."""
        out: dict[str, Any] = {"roles": sorted(self.roles)}
        for name in ("kind", "categories", "bounds", "bins", "answer"):
            value = getattr(self, name)
            if value is not None:
                out[name] = list(value) if isinstance(value, tuple) else value
        if self.hierarchy is not None:
            out["hierarchy"] = self.hierarchy if isinstance(self.hierarchy, str) else [*map(list, self.hierarchy)]
        if self.groups:
            out["groups"] = [*map(list, self.groups)]
        out.update({name: True for name in ("other", "nullable", "ancestors", "ordered") if getattr(self, name)})
        return out

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ColumnSpec:
        """The inverse of `to_mapping`."""
        known = (
            "roles", "kind", "categories", "bounds", "bins", "other", "nullable", "answer", "hierarchy", "ancestors",
            "ordered", "groups",
        )  # fmt: skip
        _refuse_unknown(mapping, known, "column")
        return cls(
            roles=frozenset(_role(name) for name in mapping.get("roles", ())),
            kind=mapping.get("kind"),
            categories=_optional_tuple(mapping.get("categories"), str),
            bounds=cast("tuple[float, float] | None", _optional_tuple(mapping.get("bounds"), float)),
            other=bool(mapping.get("other", False)),
            bins=_optional_tuple(mapping.get("bins"), float),
            nullable=bool(mapping.get("nullable", False)),
            answer=mapping.get("answer"),
            hierarchy=_hierarchy_text(mapping.get("hierarchy")),
            ancestors=bool(mapping.get("ancestors", False)),
            ordered=bool(mapping.get("ordered", False)),
            groups=tuple(tuple(map(str, line)) for line in mapping.get("groups", ())),
        )

    def tree(self, name: str) -> CodeTree | None:
        """What stands above the values of this column, called `name`; None where nothing is declared."""
        return None if self.hierarchy is None else CodeTree(name, self.hierarchy, self.groups)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table by name, the names that are dropped, and whether the rest are features.

    `person` is the identifier that names the person a row is about; with one identifier it need not be said.
    """

    columns: Mapping[str, ColumnSpec] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    rest: bool = False
    person: str | None = None

    def __post_init__(self) -> None:
        for name, spec in self.columns.items():
            _check_column(name, spec)
        targets = [name for name, spec in self.columns.items() if Role.TARGET in spec.roles]
        if len(targets) > 1:
            raise ConfigError(f"more than one target: {', '.join(targets)}", hint="Name one target column")
        both = sorted(set(self.dropped) & {name for name, spec in self.columns.items() if spec.roles})
        if both:
            raise ConfigError(
                f"columns with a role are also dropped: {', '.join(both)}",
                hint="Remove them from drop or from the role",
            )
        if self.person is not None and Role.IDENTIFIER not in self.columns.get(self.person, ColumnSpec()).roles:
            raise ConfigError(f"the person column {self.person!r} is no identifier", hint="List it in identifiers")

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    @classmethod
    def of(
        cls,
        *,
        target: str | None = None,
        quasi: Iterable[str] = (),
        sensitive: Iterable[str] = (),
        identifiers: Iterable[str] = (),
        items: Iterable[str] = (),
        features: Iterable[str] | Literal["rest"] = (),
        drop: Iterable[str] = (),
        kinds: Mapping[str, ColumnKind] | None = None,
        bins: Mapping[str, Sequence[float]] | None = None,
        bounds: Mapping[str, Sequence[float]] | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
        other: Iterable[str] = (),
        nullable: Iterable[str] = (),
        person: str | None = None,
        weight: str | None = None,
        consent: str | None = None,
        hierarchies: Mapping[str, HierarchyText] | None = None,
        ancestors: Iterable[str] = (),
        ordered: Iterable[str] = (),
    ) -> Schema:
        """A schema from lists of names.

        Args:
            target: Column to predict.
            quasi: Quasi-identifiers.
            sensitive: Sensitive columns.
            identifiers: Direct identifiers.
            items: Columns of item sets.
            features: Features; "rest" makes every column without another role one.
            drop: Columns that are not used.
            kinds: Kind of some columns.
            bins: Cut points of some numbers.
            bounds: Bounds of some numbers.
            categories: Categories of some columns.
            other: Columns whose unseen categories become "other".
            nullable: Columns that may have missing values.
            person: The identifier that names the person; it need not be listed among `identifiers`.
            weight: How much a row counts in training.
            consent: What may be done with a row (`kohort.tables.consent`).
            hierarchies: What stands above the values of some columns: "icd9", "icd10", or lines of a value and the
                labels above it.
            ancestors: Columns of items for which the labels above an item are features too.
            ordered: Columns whose categories are declared in their order.

        Raises:
            ConfigError: Roles or declarations of a column contradict one another, a name is listed twice, or there are
                several identifiers and none is said to name the person.
        """
        rest = features == "rest"
        listed = _names(identifiers, "identifiers")
        person = person or None
        if person is None and len(listed) > 1:
            raise ConfigError(
                f"several identifiers are named: {', '.join(listed)}",
                hint="Say which one names a person: --person, or data.person in a plan",
            )
        by_role = {
            Role.TARGET: () if target is None else (target,),
            Role.QUASI: _names(quasi, "quasi"),
            Role.SENSITIVE: _names(sensitive, "sensitive"),
            Role.IDENTIFIER: listed if person is None or person in listed else (*listed, person),
            Role.ITEMS: _names(items, "items"),
            Role.FEATURE: () if rest else _names(features, "features"),
            Role.WEIGHT: (weight,) if weight else (),
            Role.CONSENT: (consent,) if consent else (),
        }
        roles: dict[str, set[Role]] = {}
        for role, members in by_role.items():
            for name in members:
                roles.setdefault(name, set()).add(role)
        other_names, nullable_names = _names(other, "other"), _names(nullable, "nullable")
        above, ancestor_names = hierarchies or {}, _names(ancestors, "ancestors")
        ordered_names = _names(ordered, "ordered")
        declared = (kinds or {}, bins or {}, bounds or {}, categories or {}, other_names, nullable_names)
        for group in (*declared, above, ancestor_names, ordered_names):
            for name in group:
                roles.setdefault(name, set())
        columns = {
            name: ColumnSpec(
                roles=frozenset(found),
                kind=(kinds or {}).get(name),
                categories=_optional_tuple((categories or {}).get(name), str),
                bounds=cast("tuple[float, float] | None", _optional_tuple((bounds or {}).get(name), float)),
                other=name in other_names,
                bins=_optional_tuple((bins or {}).get(name), float),
                nullable=name in nullable_names,
                hierarchy=_hierarchy_text(above.get(name)),
                ancestors=name in ancestor_names,
                ordered=name in ordered_names,
            )
            for name, found in roles.items()
        }
        return cls(columns=columns, dropped=_names(drop, "drop"), rest=rest, person=person)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Schema:
        """The inverse of `to_mapping`."""
        _refuse_unknown(mapping, ("columns", "dropped", "rest", "person"), "schema")
        try:
            return cls(
                columns={name: ColumnSpec.from_mapping(spec) for name, spec in mapping["columns"].items()},
                dropped=tuple(mapping.get("dropped", ())),
                rest=bool(mapping.get("rest", False)),
                person=mapping.get("person"),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError("this is not a stored schema", hint="Use what Schema.to_mapping gave") from None

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values that `from_mapping` reads back exactly, column order included."""
        return {
            "columns": {name: spec.to_mapping() for name, spec in self.columns.items()},
            "dropped": list(self.dropped),
            "rest": self.rest,
            **({} if self.person is None else {"person": self.person}),
        }

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the canonical JSON; the order of columns counts, for it is the order of model inputs."""
        mapping = self.to_mapping()
        mapping["columns"] = list(mapping["columns"].items())
        text = json.dumps(mapping, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def with_defaults(self, defaults: Schema) -> Schema:
        """Fill in what this schema leaves undeclared from a public codebook; what is declared here wins."""
        columns = dict(self.columns)
        for name, known in defaults.columns.items():
            if name in self.dropped:
                continue
            own = columns.get(name, ColumnSpec())
            merged = own
            if not _declares(own):
                merged = known
            elif own.declared_kind in (None, known.declared_kind):
                merged = replace(
                    own,
                    kind=own.kind or known.kind,
                    categories=own.categories or known.categories,
                    bounds=own.bounds or known.bounds,
                    bins=own.bins or known.bins,
                    nullable=own.nullable or known.nullable,
                    hierarchy=own.hierarchy or known.hierarchy,
                    ancestors=own.ancestors or known.ancestors,
                    ordered=own.ordered or (known.ordered and own.categories is None),
                )
            columns[name] = replace(merged, roles=own.roles or known.roles)
        return replace(self, columns=columns)

    def resolve(self, columns: Sequence[str], default: Role | None = None) -> Schema:
        """This schema for a table with these columns: every one has a role or is dropped, in table order.

        Raises:
            DataError: The table lacks a column of the schema.
            ConfigError: A column has no role.
        """
        for name in (asked := (*self.columns, *self.dropped)):
            if name not in columns:
                raise DataError(f"the table has no column {name!r}", hint=nearest_column(name, columns, asked))
        fallback = Role.FEATURE if self.rest else default
        resolved: dict[str, ColumnSpec] = {}
        without: list[str] = []
        for name in columns:
            if name in self.dropped:
                continue
            spec = self.columns.get(name, ColumnSpec())
            if not spec.roles and fallback is None:
                without.append(name)
            else:
                resolved[name] = spec if spec.roles else replace(spec, roles=frozenset({cast(Role, fallback)}))
        if without:
            raise ConfigError(
                f"columns without a role: {', '.join(without)}",
                hint='List each in features or in drop, or set features = "rest"',
            )
        dropped = tuple(name for name in columns if name in self.dropped)
        return Schema(columns=resolved, dropped=dropped, person=self.person)

    def with_role(self, role: Role) -> tuple[str, ...]:
        """Names of the columns that have this role."""
        return tuple(name for name, spec in self.columns.items() if role in spec.roles)

    @property
    def target(self) -> str | None:
        """The column to predict, if there is one."""
        return next(iter(self.with_role(Role.TARGET)), None)

    @property
    def quasi(self) -> tuple[str, ...]:
        """Quasi-identifiers."""
        return self.with_role(Role.QUASI)

    @property
    def sensitive(self) -> tuple[str, ...]:
        """Sensitive columns."""
        return self.with_role(Role.SENSITIVE)

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Direct identifiers; the one that names the person comes first."""
        found = self.with_role(Role.IDENTIFIER)
        return found if self.person is None else (self.person, *(name for name in found if name != self.person))

    @property
    def items(self) -> tuple[str, ...]:
        """Columns whose cells are sets of codes."""
        return self.with_role(Role.ITEMS)

    @property
    def features(self) -> tuple[str, ...]:
        """Columns declared to be features."""
        return self.with_role(Role.FEATURE)

    @property
    def consent(self) -> str | None:
        """The column that says what may be done with a row; None where every row takes part."""
        return next(iter(self.with_role(Role.CONSENT)), None)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What a model may see: quasi, feature, items and sensitive columns, never the target or an identifier."""
        return tuple(
            name
            for name, spec in self.columns.items()
            if spec.roles & INPUT_ROLES and not spec.roles & {Role.TARGET, Role.IDENTIFIER}
        )


def _declares(spec: ColumnSpec) -> bool:
    return replace(spec, roles=frozenset()) != ColumnSpec()


def _role(name: str) -> Role:
    try:
        return Role(name)
    except ValueError:
        raise ConfigError(f"unknown role {name!r}", hint=nearest(name, [role.value for role in Role])) from None


def _refuse_unknown(mapping: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for key in mapping:
        if key not in known:
            raise ConfigError(f"unknown key {key!r} in the {what}", hint=nearest(key, known))


def _names(names: Iterable[str], argument: str) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ConfigError(f"{argument} is one string", hint=f'Write a list: {argument} = ["{names}"]')
    found = tuple(names)
    repeated = sorted({name for name in found if found.count(name) > 1})
    if repeated:
        raise ConfigError(f"{argument} lists a column twice: {', '.join(repeated)}", hint="List each name once")
    return found


def _optional_tuple(values: Iterable[Any] | None, convert: Callable[[Any], T]) -> tuple[T, ...] | None:
    if isinstance(values, str):
        raise ConfigError("a list was expected, not one string", hint="Write [..., ...]")
    return None if values is None else tuple(convert(value) for value in values)


def _hierarchy_text(text: Any) -> HierarchyText | None:
    """The name of a code system, or lines of texts."""
    return text if text is None or isinstance(text, str) else tuple(tuple(map(str, line)) for line in text)


def _check_column(name: str, spec: ColumnSpec) -> None:
    if Role.IDENTIFIER in spec.roles and len(spec.roles) > 1:
        others = ", ".join(sorted(role for role in spec.roles if role is not Role.IDENTIFIER))
        hint = "An identifier is never released or learned from: give it that role alone"
        raise ConfigError(f"column {name!r} is an identifier and also {others}", hint=hint)
    if {Role.TARGET, Role.FEATURE} <= spec.roles:
        raise ConfigError(f"column {name!r} is the target and also a feature", hint="Choose one of the two")
    if {Role.TARGET, Role.ITEMS} <= spec.roles:
        raise ConfigError(f"column {name!r} is the target and also items", hint="A target is one value per row")
    if spec.kind is not None and spec.kind not in get_args(ColumnKind):
        raise ConfigError(f"column {name!r} has an unknown kind", hint=nearest(str(spec.kind), get_args(ColumnKind)))
    _check_declarations(name, spec)
    _check_order(name, spec)


def _check_order(name: str, spec: ColumnSpec) -> None:
    if spec.ancestors and (spec.hierarchy is None or Role.ITEMS not in spec.roles):
        hint = "Ancestors are for items with a hierarchy: list it in data.hierarchies"
        raise ConfigError(f"column {name!r} has no labels above its items", hint=hint)
    if not spec.ordered and spec.hierarchy is None:
        return
    _ = spec.tree(name)  # refuses an unknown code system and chains that contradict each other
    if spec.ordered and (spec.hierarchy is not None or Role.ITEMS in spec.roles):
        raise ConfigError(f"column {name!r} cannot be ordered", hint="Order is for categories without a hierarchy")
    if spec.hierarchy is not None and not spec.roles & {Role.ITEMS, Role.QUASI}:
        hint = "Hierarchies are for quasi-identifiers and items"
        raise ConfigError(f"column {name!r} has a hierarchy that nothing reads", hint=hint)


def _check_declarations(name: str, spec: ColumnSpec) -> None:
    numeric = spec.bounds is not None or spec.bins is not None
    textual = spec.categories is not None or spec.other
    if numeric and (textual or spec.kind in ("category", "items") or Role.ITEMS in spec.roles):
        hint = "Bounds and bins are for numbers; categories and other are for categories and items"
        raise ConfigError(f"column {name!r} is declared both as a number and as a category", hint=hint)
    if textual and spec.kind == "number":
        raise ConfigError(f"column {name!r} is a number with categories", hint='Use kind = "category" or bounds')
    if spec.bounds is not None:
        ordered = len(spec.bounds) == 2 and spec.bounds[0] <= spec.bounds[1]
        if not ordered or not all(math.isfinite(bound) for bound in spec.bounds):
            raise ConfigError(f"the bounds of column {name!r} are not [low, high]", hint="Give two finite numbers")
    if spec.bins is not None:
        rising = all(low < high for low, high in zip(spec.bins, spec.bins[1:], strict=False))
        if not spec.bins or not rising or not all(math.isfinite(cut) for cut in spec.bins):
            raise ConfigError(f"the bins of column {name!r} do not rise", hint="Give finite, rising cut points")
    if spec.categories is not None and (not spec.categories or len(set(spec.categories)) != len(spec.categories)):
        raise ConfigError(f"the categories of column {name!r} are empty or repeat", hint="List each one once")
