"""Groups of items whose persons have similar outcomes, above the labels of a declared hierarchy.

A code that too few rows of a class share becomes a label that stands for several codes. Where that label is chosen by
what the codes are about, such as a chapter of ICD-9, it joins codes that mean different things to a model. Here the
labels above the lowest ones are groups of codes by outcome: 16 of them, then 8, 4, 2 and the root.

Every site counts the persons of each code in each of the two classes. A code with fewer than `least` persons in one of
them is counted at the label above it, and so on; what is too small at the root is left out. The counts of all sites are
added up by a secure sum, over the public nodes of the hierarchy. The hub orders the lowest labels by the share of the
second class, which few persons draw towards that of the label above, and cuts the order into groups of equally many
occurrences. All sites recode with these groups.

Guarantees: a filled cell of a site's own counts, and so of the total, has at least `least` persons. Groups depend on
the total alone. A site accepts groups of its own nodes under the names that are used here and nothing else. Which
groups a hub sends changes what is lost and not what is promised: the checker judges the released rows.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import polars as pl
from annotated_types import Ge, Le
from numpy.typing import NDArray

from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import Integers, SumContext
from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.contract import Step
from kohort.protocol.hub import Ask, Hub, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.phases import SecureSumSection
from kohort.protocol.site import Site
from kohort.protocol.task import Request
from kohort.rounds.summing import secure_sum, sum_steps, sum_task
from kohort.tables.codes import CodeTree
from kohort.tables.domain import Domain, item_lists
from kohort.tables.encoder import Encoder
from kohort.tables.schema import Schema

__all__ = [
    "OUTCOMES",
    "Nodes",
    "OutcomeSection",
    "adopt_groups",
    "check_outcome",
    "grouped_schema",
    "learn_groups",
    "lines_of",
    "outcome_steps",
    "read_groups",
    "rolled_up",
    "with_groups",
]

TWO = 2
DRAWN = 100.0
"""As many persons of a label as count like the label above it."""
Lines = tuple[tuple[str, ...], ...]
Counts = NDArray[np.int64]
Persons = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class OutcomeSection:
    """`outcome = {...}`: how many groups of codes by outcome, and how many persons a count must have."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic, not a field

    groups: Annotated[int, Ge(2), Le(64)] = 16
    """The finest groups, a power of 2; above them stand half as many, down to two."""
    least: Annotated[int, Ge(2)] = 10
    """Fewest persons of a code, or label, in each class for them to be counted there."""
    secure: SecureSumSection | None = None
    """How the counts of all sites are added up; by masks where it does not say."""


@dataclass(frozen=True)
class Nodes:
    """The codes of a column that are known to all sites and the labels above them, the root last.

    Attributes:
        names: Each node; a node stands before what is above it.
        parent: The place of the node above, -1 for the root.
        lowest: The labels that stand directly above codes; the root is none of them.
    """

    names: tuple[str, ...]
    parent: tuple[int, ...]
    lowest: frozenset[str]

    @classmethod
    def of(cls, tree: CodeTree, codes: tuple[str, ...]) -> Nodes:
        """The nodes of a hierarchy over some codes."""
        above: dict[str, str] = {}
        height: dict[str, int] = {}
        for code in codes:
            chain = (code, *dict.fromkeys(tree.declared(code)))
            above.update(pairwise(chain))
            height.update({label: len(chain) - place for place, label in enumerate(chain)})
        names = sorted(height, key=lambda name: (-height[name], name))
        place = {name: at for at, name in enumerate(names)}
        parent = tuple(place[above[name]] if name in above else -1 for name in names)
        return cls(tuple(names), parent, frozenset(above[code] for code in codes) & {*above})

    @property
    def labels(self) -> tuple[int, ...]:
        """The places of the labels, the root among them."""
        return tuple(sorted({above for above in self.parent if above >= 0}))


def rolled_up(held: Sequence[Sequence[Persons]], nodes: Nodes, least: int) -> Counts:
    """Persons by node and class without small counts: a node that has one is counted at the node above it.

    Args:
        held: The persons of each node, for each class.
        nodes: The nodes.
        least: Fewest persons of a node in each class.

    Returns:
        The counts; every cell is 0, or at least `least`, and a node has both classes or neither. A person with several
        codes that are counted at one node counts there once.
    """
    found = np.zeros((len(nodes.names), TWO), np.int64)
    from_below: list[list[Sequence[Persons]]] = [[] for _ in nodes.names]
    for place, above in enumerate(nodes.parent):
        own = [np.unique(np.concatenate(parts)) for parts in zip(held[place], *from_below[place], strict=True)]
        if min(map(len, own)) >= least:
            found[place] = [len(persons) for persons in own]
        elif above >= 0:
            from_below[above].append(own)
    return found


def lines_of(total: Counts, nodes: Nodes, groups: int) -> Lines:
    """What stands above each label instead of the hierarchy: its groups, from the finest to the coarsest.

    Args:
        total: Persons of each node in each class, where a node below was not counted by itself.
        nodes: The nodes.
        groups: The number of finest groups, a power of 2.

    Returns:
        A line per label: the lowest ones share the groups out evenly; one above them, which stands for codes that are
        not known, has the groups of its own share.
    """
    below = total.astype(np.float64)
    for place, above in enumerate(nodes.parent):
        if above >= 0:
            below[above] += below[place]
    persons = below.sum(axis=1)
    share = np.full(len(persons), 0.5)
    for place in reversed(range(len(persons))):  # what is above comes first
        above = nodes.parent[place]
        if above < 0:
            share[place] = below[place, 1] / persons[place] if persons[place] else share[place]
        else:
            share[place] = (below[place, 1] + DRAWN * share[above]) / (persons[place] + DRAWN)
    lowest = [place for place, name in enumerate(nodes.names) if name in nodes.lowest]
    order = sorted(lowest, key=lambda place: (share[place], nodes.names[place]))
    ends = np.cumsum(persons[order])
    middle = (ends - persons[order] / 2) / max(float(ends[-1]) if len(ends) else 0.0, 1.0)
    at = dict(zip(order, middle.tolist(), strict=True))
    ranked = share[order]
    lines = []
    for place in nodes.labels:
        near = min(int(np.searchsorted(ranked, share[place])), len(order) - 1)
        group = int(at.get(place, middle[near]) * groups)
        lines.append((nodes.names[place], *_labels(min(group, groups - 1), groups)))
    return tuple(lines)


def _labels(group: int, groups: int) -> tuple[str, ...]:
    """The names of a finest group and of those above it."""
    found = []
    while groups > 1:
        found.append(f"outcome group {group + 1} of {groups}")
        group, groups = group // 2, groups // 2
    return tuple(found)


def grouped_schema(schema: Schema, groups: Mapping[str, Lines]) -> Schema:
    """A schema in which these groups stand above the labels of its item columns.

    Args:
        schema: The schema, which stays as it is.
        groups: By column, the line of groups above each label (`lines_of`). Other columns keep what they have.

    Returns:
        The new schema.
    """
    columns = {name: replace(spec, groups=groups.get(name, spec.groups)) for name, spec in schema.columns.items()}
    return replace(schema, columns=columns)


def read_groups(text: bytes, schema: Schema, domain: Domain, section: OutcomeSection) -> dict[str, Lines]:
    """The groups that a hub sends, by column.

    Args:
        text: What came in.
        schema: The schema of the plan.
        domain: The agreed values.
        section: The keys of the plan.

    Returns:
        The lines of each column of items.

    Raises:
        IntegrityError: These are not groups of the labels above the known codes.
    """
    wrong = IntegrityError("the hub sent groups of items that are none of this plan")
    try:
        given = {str(name): tuple(tuple(map(str, line)) for line in lines) for name, lines in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        raise wrong from None
    if list(given) != list(schema.items):
        raise wrong
    known = {_labels(group, section.groups) for group in range(section.groups)}
    for name, lines in given.items():
        nodes = _nodes(schema, domain, name)
        if [line[:1] for line in lines] != [(nodes.names[place],) for place in nodes.labels]:
            raise wrong
        if any(line[1:] not in known for line in lines):
            raise wrong
    return given


def _nodes(schema: Schema, domain: Domain, name: str) -> Nodes:
    tree = schema.columns[name].tree(name)
    if tree is None:
        raise ConfigError(
            f"column {name!r} has no hierarchy", hint='Declare one, as in data.hierarchies = {x = "icd9"}'
        )
    nodes = Nodes.of(tree, tuple(domain.columns[name].categories or ()))
    if not nodes.lowest:
        hint = "Declare labels between the items and the root"
        raise ConfigError(f"nothing but the root stands above the items of column {name!r}", hint=hint)
    return nodes


def _section(approved: ApprovedPlan) -> OutcomeSection:
    found: OutcomeSection | None = approved.config.anonymise.outcome
    if found is None:
        raise ConfigError("the plan has no groups by outcome", hint="Set method.anonymise.outcome")
    return found


def _persons(site: Site, name: str, nodes: Nodes) -> list[list[Persons]]:
    """The persons of each known code of a column, for each class."""
    frame, schema = site.table.rows(), site.encoder.schema
    own = schema.identifiers
    who = frame[own[0]].rank("dense").cast(pl.Int64) if own else pl.Series(np.arange(frame.height))
    codes = pl.Series(np.asarray(site.encoder.target(frame), dtype=np.int64))
    table = pl.DataFrame({"item": item_lists(frame[name]), "who": who, "code": codes})
    held = table.explode("item").drop_nulls("item").group_by("item", "code").agg(pl.col("who").unique())
    place = {node: at for at, node in enumerate(nodes.names)}
    nobody = np.zeros(0, np.int64)
    found = [[nobody] * TWO for _ in nodes.names]
    for item, code, persons in held.iter_rows():
        if item in place and 0 <= code < TWO:
            found[place[item]][code] = np.asarray(persons, dtype=np.int64)
    return found


def _contribute(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    """The counts of one site, without small ones."""
    del request, inputs
    schema, domain = site.encoder.schema, site.encoder.domain
    least = max(_section(site.plan).least, site.policy.min_k)
    parts = [
        rolled_up(_persons(site, name, nodes), nodes, least).reshape(-1)
        for name in schema.items
        for nodes in (_nodes(schema, domain, name),)
    ]
    vector = np.concatenate(parts).astype(np.uint64)
    if len(vector) != context.length:
        raise IntegrityError("the counts by outcome are a sum of another length")
    return vector, site.count


OUTCOMES = sum_task("syntactic.outcomes", _contribute, scheme=ApprovedPlan.sum_scheme, modulus=P61, family="rows")


def outcome_steps(approved: ApprovedPlan) -> list[Step]:
    """What learning the groups asks of a site.

    Args:
        approved: The approved plan.

    Returns:
        The steps of one secure sum; nothing where the plan has no such groups.
    """
    section: OutcomeSection | None = approved.config.anonymise.outcome
    if section is None:
        return []
    says = f"persons of each item in each class, where they are {section.least} at least at your site"
    return sum_steps(approved, OUTCOMES, says=says)


def learn_groups(hub: Hub) -> Generator[Ask | RoundEnd, Any, tuple[Hub, bytes]]:
    """Count outcomes over all sites and form the groups.

    Args:
        hub: The coordinator.

    Returns:
        The hub with the encoder and the network of the grouped items, and the groups as sites read them.
    """
    encoder, section = hub.encoder, _section(hub.approved)
    nodes = {name: _nodes(encoder.schema, encoder.domain, name) for name in encoder.schema.items}
    length = sum(TWO * len(own.names) for own in nodes.values())
    total = yield from secure_sum(hub, OUTCOMES, length=length)
    groups, first = {}, 0
    for name, own in nodes.items():
        size = TWO * len(own.names)
        counts = total.values[first : first + size].astype(np.int64).reshape(-1, TWO)
        groups[name], first = lines_of(counts, own, section.groups), first + size
    made = with_groups(encoder, groups)
    hub = replace(hub, sites=total.sites, encoder=made, network=hub.approved.model.network(made))
    return hub, json.dumps(groups).encode()


def with_groups(encoder: Encoder, groups: Mapping[str, Lines]) -> Encoder:
    """The encoder of items with these groups above them.

    Args:
        encoder: The encoder, which stays as it is.
        groups: As for `grouped_schema`.

    Returns:
        The new encoder.
    """
    return replace(encoder, schema=grouped_schema(encoder.schema, groups))


def adopt_groups(site: Site, request: Request) -> None:
    """Let a site encode, recode and train with the groups that came with a request.

    Args:
        site: The site.
        request: What the hub sent.

    Raises:
        IntegrityError: They are no groups of this plan.
    """
    section = _section(site.plan)
    given = read_groups(request.payload.blobs.get("groups", b""), site.plan.schema, site.encoder.domain, section)
    encoder = with_groups(site.encoder, given)
    site.enrol(encoder, site.plan.model.network(encoder))


def check_outcome(section: OutcomeSection | None, schema: Schema, encoder: Encoder) -> None:
    """Refuse, before any site is asked, groups by outcome that every site would fail on.

    Args:
        section: The keys of the plan; None where it has no such groups.
        schema: The schema of the plan.
        encoder: The encoder, which knows the classes.

    Raises:
        ConfigError: There are no items with a hierarchy, the target has not two classes, or the number of groups is no
            power of 2.
    """
    if section is None:
        return
    if not schema.items or any(schema.columns[name].hierarchy is None for name in schema.items):
        raise ConfigError(
            "groups by outcome stand above a hierarchy of the items, and there is none",
            hint='Declare one, as in data.hierarchies = {diagnoses = "icd9"}',
        )
    if encoder.classes is None or len(encoder.classes) != TWO:
        raise ConfigError("groups by outcome are for a target of two classes", hint="Drop method.anonymise.outcome")
    if section.groups & (section.groups - 1):
        raise ConfigError(f"outcome.groups is {section.groups}", hint="Use a power of 2, such as 8 or 16")
