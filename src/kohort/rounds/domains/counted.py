"""Learn the domains of undeclared columns by a secure count: what few persons have becomes known to nobody.

Every site turns the values of its undeclared columns into keys: categories, items, and cells of a public grid for
numbers (`kohort.tables.grid`). All sites count the persons behind each key (`kohort.rounds.counting`). The keys that at
least `min_cell` persons share are proven to the sites, and only then named (`kohort.rounds.domains.names`), so that
every site verifies the names. Rows that real sites left out are keys too, and told with their number. Hub and sites
form the same domain from the names. A last sum proves to the sites that the hub left nothing out that decides ranges or
classes: cells further out or finer than those taken, and persons whose class is not in the domain, number fewer than
`min_cell` each (`kohort.crypto.sums.below`).

Guarantee: a category of fewer than `min_cell` persons over all sites, and a value beyond the outermost cells of so
many, is in no message in clear. What is learned: of each frequent key its name, how many sites hold it, and its capped
count; of the others how many there are, and their capped totals, without names. A hub with a colluding site can also
look up the total of a key that it can guess.

A hub adds nothing to a domain, and chooses neither ranges nor classes. It can pass over a category or item of an input
that is frequent over all sites and at none of them alone: it then counts as "other", or is not read. Whatever the hub
sees afterwards is a sum of what it would have seen with that category, so it gains nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import polars as pl

from kohort.crypto.sums.below import contribution, is_below, length_of, prove, totals_of
from kohort.crypto.sums.modular import P61
from kohort.crypto.sums.scheme import Integers, SumContext
from kohort.errors import ConfigError, DataError, IntegrityError, RefusedError
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Public
from kohort.protocol.enrolment import DomainState
from kohort.protocol.hub import Ask, Coordinator, Expect, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.counting import KeyCounts
from kohort.rounds.domains.columns import disagreement, learned_column, learned_domain
from kohort.rounds.domains.names import NAME_BYTES, NamedCount, NamedKeys, by_person, value_counts, values_of
from kohort.rounds.domains.unused import unused_in, unused_persons, unused_rows
from kohort.rounds.summing import sum_steps, sum_task
from kohort.tables.domain import (
    MAX_INTEGER_CLASSES,
    OTHER,
    ColumnDomain,
    Domain,
    category_text,
    column_kind,
    number,
    undeclared_columns,
)
from kohort.tables.grid import Cell, grid_bounds, grid_cells, passed_over
from kohort.tables.schema import ColumnKind

__all__ = ["COUNT", "MAX_SITES", "check_domains", "count_domain", "domain_steps"]

MAX_SITES = 500
"""Each site seals its part of the group secret to every other one."""
_MIN_SITES = 3
_HEAD = Struct("<cH")
_KIND, _VALUE, _CELL, _MANY = b"k", b"v", b"n", b"m"
_KNOWN = Public(what="that the domain was learned")


@dataclass(frozen=True)
class _Rest:
    """A domain whose names were verified, and the sum over what must be rare for it to be complete."""

    transcript: bytes
    public: bytes
    domain: Domain
    counts: int


@dataclass
class DomainCountState(TaskState):
    """A site's part in learning domains."""

    counts: KeyCounts | None = None
    rest: _Rest | None = None
    """What the site knows after the sum that shows that nothing frequent was left out."""


def check_domains(approved: ApprovedPlan, sites: int) -> None:
    """Refuse a plan whose domains would have to be learned and cannot be, before anything is asked.

    Args:
        approved: The approved plan.
        sites: How many sites take part.

    Raises:
        ConfigError: It has too few or too many sites for a secure count.
    """
    columns = undeclared_columns(approved.schema)
    if not columns or not approved.hides_domains:
        return
    hint = f"Declare them in data.bounds and data.categories: {', '.join(columns)}"
    if not _MIN_SITES <= sites <= MAX_SITES:
        raise ConfigError(
            f"domains are learned by a secure count over {_MIN_SITES} to {MAX_SITES} sites, and {sites} take part",
            hint=hint,
        )


def domain_steps(approved: ApprovedPlan) -> list[Step]:
    """What learning the domains asks of a site; nothing where they are declared, or learned under a budget.

    Args:
        approved: The approved plan. Without columns, as at a key-holder, its sums are allowed in any case.

    Returns:
        The steps.
    """
    is_open = bool(undeclared_columns(approved.schema)) or not approved.schema.columns
    if not is_open or approved.has_budget or not approved.sums_securely:
        return []
    least = approved.min_cell
    learned = NAMES.steps(
        approved,
        counted="how many persons have each value of columns that the plan declares no values for",
        named=f"names of values that at least {least} persons share, and how many rows take no part",
    )
    says = f"how many persons lie outside these ranges and classes, without saying which; fewer than {least} each"
    rest = sum_steps(approved, REST, says=says)
    return [
        *learned,
        *rest,
        Step(task=LEARN.name, says="that your site checked these values and ranges", claims=(_KNOWN,)),
    ]


def _counts(site: Site) -> KeyCounts:
    """The site's keys, counted once."""
    state, approved = site.state(DomainCountState), site.plan
    if site.policy.min_cell > approved.min_cell:
        raise RefusedError(f"the plan's min_cell {approved.min_cell} is below the policy's {site.policy.min_cell}")
    if state.counts is None:
        counted: dict[bytes, int] = {}
        for place, name in enumerate(undeclared_columns(approved.schema)):
            counted |= dict(_column_keys(site, place, name))
        counted |= unused_persons(site)
        kept = sorted(key for key in counted if len(key) <= NAME_BYTES)
        counts = np.asarray([counted[key] for key in kept], dtype=np.int64)
        state.counts = KeyCounts(keys=kept, counts=counts, rows=site.count, cap=approved.min_cell)
    return state.counts


def _column_keys(site: Site, place: int, name: str) -> Iterator[tuple[bytes, int]]:
    """The keys of one column, each with the persons that have it."""
    schema, values = site.plan.schema, values_of(site, name)
    column, spec = values["value"], schema.columns[name]
    kind = column_kind(spec, column.dtype)
    yield _HEAD.pack(_KIND, place) + kind.encode(), values["person"].n_unique()
    if kind != "number":
        yield from _value_keys(values, place, kind)
        return
    yield from _cell_keys(values, place, name)
    if name == schema.target and column.dtype.is_integer() and spec.kind is None:
        yield from _class_keys(values, place)


def _value_keys(values: pl.DataFrame, place: int, kind: ColumnKind) -> Iterator[tuple[bytes, int]]:
    for text, persons in value_counts(values, items=kind == "items"):
        yield _HEAD.pack(_VALUE, place) + text.encode(), persons


def _cell_keys(values: pl.DataFrame, place: int, name: str) -> Iterator[tuple[bytes, int]]:
    numbers = number(values["value"].alias(name)).to_numpy()
    for level, sign, index in grid_cells(numbers):
        cells = pl.DataFrame({"sign": sign, "index": index, "person": values["person"]})
        for side, at, persons in by_person(cells, "sign", "index"):
            yield _cell_key(place, Cell(level, side, at)), persons


def _cell_key(place: int, cell: Cell) -> bytes:
    return _HEAD.pack(_CELL, place) + b"%d %d %d" % cell


def _class_keys(values: pl.DataFrame, place: int) -> Iterator[tuple[bytes, int]]:
    """Integers of the target as classes, and a key that says they are too many for that."""
    distinct = values["value"].n_unique()
    if distinct > MAX_INTEGER_CLASSES or (distinct > 2 and 3 * distinct > values.height):
        yield _HEAD.pack(_MANY, place), values["person"].n_unique()
    yield from _value_keys(values, place, "category")


NAMES = NamedCount("domain", counts_of=_counts, tallies_of=unused_rows)
COUNT = NAMES.count


def _rest_cells(approved: ApprovedPlan, names: Sequence[bytes]) -> list[tuple[int, Cell]]:
    """The cells of all number columns that must be rare for the learned bounds to be the only ones."""
    texts: dict[int, list[bytes]] = {}
    numbers = set()
    for key in names:
        (tag, place), text = _HEAD.unpack_from(key), key[_HEAD.size :]
        if tag == _CELL:
            texts.setdefault(place, []).append(text)
        elif (tag, text) == (_KIND, b"number"):
            numbers.add(place)
    return [
        (place, cell)
        for place in sorted(numbers.intersection(range(len(undeclared_columns(approved.schema)))))
        for cell in passed_over([Cell(*map(int, text.split())) for text in texts.get(place, ())])
    ]


def _outside_classes(site: Site, domain: Domain) -> int:
    """How many persons have a class outside the domain, whose rows take no part; 0 where such rows do."""
    target = site.plan.schema.target
    classes = None if target is None else domain.columns[target].categories
    if target is None or classes is None or OTHER in classes or target not in undeclared_columns(site.plan.schema):
        return 0
    values = values_of(site, target)
    known = category_text(values["value"]).is_in(list(classes))
    return int(values.filter(~known)["person"].n_unique())


def _add_rest(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    """How many persons of this site lie where a frequent value would change the ranges and classes."""
    state, own = site.state(DomainCountState), _counts(site)
    names = NAMES.verified(site, request.round, inputs)
    _require_own(site, names)
    domain, cells = _domain_of(site.plan, names), _rest_cells(site.plan, names)
    if state.rest is not None or context.length != length_of(len(cells) + 1, own.cap):
        raise IntegrityError("the sum of uncounted values has another length, or was asked for before")
    COUNT.same_sites(site, request, inputs)
    persons = dict(zip(own.keys, own.counts.tolist(), strict=True))
    counts = [*(persons.get(_cell_key(*cell), 0) for cell in cells), _outside_classes(site, domain)]
    state.rest = _Rest(context.transcript, _public(inputs["names"]), domain, len(counts))
    drawn = site.streams.bytes("rest of a domain", context.transcript.hex(), length=32)
    secret = COUNT.secret_of(site)
    return contribution(secret, context.transcript, site.name, counts, least=own.cap, randomness=drawn), own.rows


REST = sum_task(
    "domain.rest", _add_rest, scheme=ApprovedPlan.sum_scheme, modulus=P61, family="rows", over=COUNT.same_sites
)


def _public(names: bytes) -> bytes:
    return hashlib.blake2b(names, digest_size=32, person=b"kohort-rest").digest()


def _learn(site: Site, request: Request) -> Release:
    """Take the domain that the site enrols with, once it is proven that nothing frequent was left out of it."""
    state, least = site.state(DomainCountState), _counts(site).cap
    rest, proof = state.rest, request.payload.arrays["proof"]
    _, sites = NAMES.summed(site)
    if rest is None:
        raise RefusedError(f"site {site.name!r} got the result of a count it took no part in")
    state.rest = None
    secret = COUNT.secret_of(site)
    if not is_below(secret, rest.transcript, rest.public, sorted(sites), proof, counts=rest.counts, least=least):
        raise IntegrityError("a learned domain lacks a range or class that is frequent over all sites")
    site.state(DomainState).learned = rest.domain
    return Release(payload=Payload(), guarantee=_KNOWN, rows=0)


def _require_own(site: Site, names: Sequence[bytes]) -> None:
    """Refuse a domain without a value that enough persons share at this site alone: the hub left it out.

    Raises:
        IntegrityError: One is missing.
    """
    own = _counts(site)
    frequent = {key for key, count in zip(own.keys, own.counts.tolist(), strict=True) if count >= own.cap}
    if not frequent <= {*names}:
        raise IntegrityError("a learned domain lacks a value that is frequent at this site", hint="Begin a new run")


LEARN = Task(name="domain.learn", one=_learn)


def count_domain(hub: Coordinator) -> Generator[Ask | RoundEnd, Any, tuple[Domain, tuple[str, ...]]]:
    """Learn the domain of the undeclared columns.

    Args:
        hub: The coordinator.

    Returns:
        The domain of all columns, and the sites that verified it.

    Raises:
        DataError: A column has too few values that enough persons share, or sites disagree about its kind.
        IntegrityError: Somebody sent what no honest party sends.
    """
    approved = hub.approved
    named = yield from NAMES.run(hub)
    if not named.keys:
        raise _unknown(undeclared_columns(approved.schema), approved.min_cell)
    domain = _domain_of(approved, named.keys)
    rest = yield from _sum_rest(hub, named)
    hub.unused.update(unused_in(named))
    payload = Payload(arrays={"proof": rest})
    learned: Replies = yield Ask(task=LEARN, to=hub.sites, payload=payload, expect=Expect())
    return domain, learned.sites


def _sum_rest(hub: Coordinator, named: NamedKeys) -> Generator[Ask | RoundEnd, Any, Integers]:
    """What proves to the sites that nothing frequent was left out of ranges and classes."""
    approved, least = hub.approved, hub.approved.min_cell
    counts = len(_rest_cells(approved, named.keys)) + 1
    rest = yield from COUNT.sum_again(hub, REST, named.sites, length_of(counts, least), 0, named.inputs)
    if max(totals_of(rest.values, counts)) >= least:
        raise DataError(
            f"classes of {approved.schema.target!r} that fewer than {least} persons have are {least} persons or more",
            hint="Declare data.categories for it, merge rare classes, or lower policy.min_cell",
        )
    return prove(rest.values, _public(named.inputs["names"]), counts=counts, least=least)


def _unknown(columns: Sequence[str], least: int) -> DataError:
    return DataError(
        f"fewer than {least} persons have a value in {', '.join(columns)}",
        hint="Declare data.bounds or data.categories, drop the column, or lower policy.min_cell",
    )


def _domain_of(approved: ApprovedPlan, keys: Sequence[bytes]) -> Domain:
    """The domain that the frequent keys make, with the declared columns as they are."""
    by_column: dict[int, list[tuple[bytes, str]]] = {}
    for key in keys:
        tag, place = _HEAD.unpack_from(key)
        by_column.setdefault(place, []).append((tag, key[_HEAD.size :].decode(errors="replace")))
    return learned_domain(
        approved,
        lambda place, name: _column_of(approved, name, by_column.get(place, [])),
        unknown=lambda names: _unknown(names, approved.min_cell),
    )


def _column_of(approved: ApprovedPlan, name: str, keys: Sequence[tuple[bytes, str]]) -> ColumnDomain | None:
    kinds = [text for tag, text in keys if tag == _KIND]
    if len(kinds) > 1:
        raise disagreement(name)
    if not kinds:
        return None
    values = [text for tag, text in keys if tag == _VALUE]
    if kinds[0] != "number":
        return learned_column(approved, name, kinds[0], values, None)
    bounds = grid_bounds([Cell(*map(int, text.split())) for tag, text in keys if tag == _CELL])
    classes = len(values) <= MAX_INTEGER_CLASSES and all(tag != _MANY for tag, _ in keys)
    return learned_column(approved, name, "number", values if classes else (), bounds)
