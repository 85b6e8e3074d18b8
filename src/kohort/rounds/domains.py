"""Learn the domains of undeclared columns by a secure count: what few persons have becomes known to nobody.

Every site turns the values of its undeclared columns into keys: categories, items, and cells of a public grid for
numbers (`kohort.tables.grid`). All sites count the persons behind each key (`kohort.rounds.counting`). The keys that at
least `min_cell` persons share are proven to the sites, and only then are their names added up: per key the number of
sites that hold it, and the name's bytes times that number. Both are in a checked sum, so every site verifies the names,
and that they belong to the proven keys. Hub and sites form the same domain from them.

Guarantee: a category of fewer than `min_cell` persons over all sites, and a value beyond the outermost cells of so
many, is in no message in clear. What is learned: of each frequent key its name, how many sites hold it, and its capped
count; of the others how many there are, and their capped totals, without names. A hub with a colluding site can also
look up the total of a key that it can guess. A hub adds nothing to a domain. It can leave out a value that is frequent
over all sites and at none of them alone; what is frequent at a site, that site misses.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import polars as pl

from kohort.crypto.counting import fingerprints
from kohort.crypto.sums.checked import CHECKS, proven_total, with_check
from kohort.crypto.sums.modular import P61, multiply
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
from kohort.rounds.counting import KeyCounts, SecureCount
from kohort.rounds.summing import sum_steps, sum_task
from kohort.tables.domain import (
    MAX_INTEGER_CLASSES,
    OTHER,
    ColumnDomain,
    Domain,
    category_text,
    column_kind,
    declared_column,
    item_lists,
    number,
    sort_categories,
    undeclared_columns,
)
from kohort.tables.grid import Cell, grid_bounds, grid_cells
from kohort.tables.schema import ColumnKind, ColumnSpec

__all__ = ["COUNT", "MAX_SITES", "check_domains", "count_domain", "domain_steps"]

MAX_SITES = 500
"""Each site seals its part of the group secret to every other one."""
_MIN_SITES = 3
_LIMB, _LIMBS = 7, 18
NAME_BYTES = _LIMB * _LIMBS - 1
"""Longest key; a longer category is treated as a rare one."""
_HEAD = Struct("<cH")
_KIND, _VALUE, _CELL, _MANY = b"k", b"v", b"n", b"m"
_KNOWN = Public(what="that the domain was learned")


@dataclass
class DomainCountState(TaskState):
    """A site's part in learning domains."""

    counts: KeyCounts | None = None
    names: tuple[bytes, frozenset[str]] | None = None
    """The transcript of the sum of names, and the sites in it."""


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
    count = COUNT.steps(approved, says="how many persons have each value of undeclared columns", stages=range(1))
    names = sum_steps(approved, NAMES, says=f"names of values that at least {least} persons share")
    return [*count, *names, Step(task=LEARN.name, says="that the domain was learned", claims=(_KNOWN,))]


def _counts(site: Site) -> KeyCounts:
    """The site's keys, counted once."""
    state, approved = site.state(DomainCountState), site.plan
    if site.policy.min_cell > approved.min_cell:
        raise RefusedError(f"the plan's min_cell {approved.min_cell} is below the policy's {site.policy.min_cell}")
    if state.counts is None:
        counted: dict[bytes, int] = {}
        for place, name in enumerate(undeclared_columns(approved.schema)):
            counted |= dict(_column_keys(site, place, name))
        kept = sorted(key for key in counted if len(key) <= NAME_BYTES)
        counts = np.asarray([counted[key] for key in kept], dtype=np.int64)
        state.counts = KeyCounts(keys=kept, counts=counts, rows=site.count, cap=approved.min_cell)
    return state.counts


def _column_keys(site: Site, place: int, name: str) -> Iterator[tuple[bytes, int]]:
    """The keys of one column, each with the persons that have it."""
    frame, schema = site.table.rows(), site.plan.schema
    person = pl.Series("person", np.arange(frame.height))
    if site.schema.identifiers:
        person = frame[site.schema.identifiers[0]].rank("dense").alias("person")
    column, spec = frame[name], schema.columns[name]
    kind = column_kind(spec, column.dtype)
    values = pl.DataFrame([column.alias("value"), person]).drop_nulls()
    yield _HEAD.pack(_KIND, place) + kind.encode(), values["person"].n_unique()
    if kind != "number":
        yield from _value_keys(values, place, kind)
        return
    yield from _cell_keys(values, place)
    if name == schema.target and column.dtype.is_integer() and spec.kind is None:
        yield from _class_keys(values, place)


def _value_keys(values: pl.DataFrame, place: int, kind: ColumnKind) -> Iterator[tuple[bytes, int]]:
    column = values["value"]
    texts = item_lists(column) if kind == "items" else category_text(column)
    found = values.with_columns(texts.alias("value"))
    if kind == "items":
        found = found.explode("value").drop_nulls()
    for text, persons in _by_person(found, "value"):
        yield _HEAD.pack(_VALUE, place) + str(text).encode(), persons


def _cell_keys(values: pl.DataFrame, place: int) -> Iterator[tuple[bytes, int]]:
    numbers = number(values["value"]).to_numpy()
    for level, sign, index in grid_cells(numbers):
        cells = pl.DataFrame({"sign": sign, "index": index, "person": values["person"]})
        for side, at, persons in _by_person(cells, "sign", "index"):
            yield _HEAD.pack(_CELL, place) + b"%d %d %d" % (level, side, at), persons


def _class_keys(values: pl.DataFrame, place: int) -> Iterator[tuple[bytes, int]]:
    """Integers of the target as classes, and a key that says they are too many for that."""
    distinct = values["value"].n_unique()
    if distinct > MAX_INTEGER_CLASSES or 3 * distinct > values.height:
        yield _HEAD.pack(_MANY, place), values["person"].n_unique()
    yield from _value_keys(values, place, "category")


def _by_person(frame: pl.DataFrame, *keys: str) -> Iterator[tuple[Any, ...]]:
    yield from frame.group_by(*keys).agg(pl.col("person").n_unique()).select(*keys, "person").iter_rows()


def _scheme(approved: ApprovedPlan) -> str:
    if approved.secure is None:
        raise RefusedError("the approved plan sums nothing")
    return approved.secure.sum


COUNT = SecureCount("domain.count", counts_of=_counts, scheme=_scheme)


def _add_names(site: Site, request: Request, context: SumContext, inputs: Mapping[str, bytes]) -> tuple[Integers, int]:
    """The names of the proven keys that this site holds; nothing before they are proven."""
    proven = COUNT.proven(site, request.round, np.frombuffer(inputs.get("totals", b""), dtype="<u8"))
    if proven is None:
        raise RefusedError(f"site {site.name!r} was asked for names of values that were not proven to be frequent")
    if context.length != len(proven.f) * (1 + _LIMBS) + CHECKS:
        raise IntegrityError("the names of a domain are a sum of another length")
    mine = COUNT.prints(site)
    own = dict(zip(zip(mine.f.tolist(), mine.h.tolist(), strict=True), _counts(site).keys, strict=True))
    vector = np.zeros((len(proven.f), 1 + _LIMBS), dtype=np.uint64)
    wanted = enumerate(zip(proven.f.tolist(), proven.h.tolist(), strict=True))
    held = {place: own[print_pair] for place, print_pair in wanted if print_pair in own}
    vector[list(held), 0] = 1
    vector[list(held), 1:] = _limbs(list(held.values()))
    state = site.state(DomainCountState)
    if state.names is not None and state.names[0] != context.transcript:
        raise IntegrityError("the names of a domain were asked for before, in another way")
    state.names = (context.transcript, COUNT.same_sites(site, request, inputs))
    return with_check(COUNT.secret_of(site), context.transcript, site.name, vector.reshape(-1)), _counts(site).rows


NAMES = sum_task("domain.names", _add_names, scheme=_scheme, modulus=P61, family="rows", over=COUNT.same_sites)


def _limbs(keys: Sequence[bytes]) -> Integers:
    """Each key as a row of numbers of 56 bits: its length, its bytes, zeros."""
    padded = b"".join((bytes([len(key)]) + key).ljust(_LIMB * _LIMBS, b"\0") for key in keys)
    words = np.zeros((len(keys), _LIMBS, 8), dtype=np.uint8)
    words[:, :, :_LIMB] = np.frombuffer(padded, dtype=np.uint8).reshape(len(keys), _LIMBS, _LIMB)
    return words.view("<u8").reshape(len(keys), _LIMBS).astype(np.uint64, copy=False)


def _names_in(total: Integers, sites: int) -> list[bytes]:
    """The keys that a total of names spells.

    Raises:
        IntegrityError: It spells none: a site sent something else.
    """
    table = total.reshape(-1, 1 + _LIMBS)
    holders = table[:, 0]
    if ((holders < 1) | (holders > sites)).any():
        raise IntegrityError("the names of a domain cannot be read: a site sent something else")
    inverses = {count: pow(count, -1, P61) for count in set(holders.tolist())}
    shares = np.array([inverses[count] for count in holders.tolist()], dtype=np.uint64)
    numbers = multiply(table[:, 1:] % np.uint64(P61), shares[:, None])
    if (numbers >= 1 << (8 * _LIMB)).any():
        raise IntegrityError("the names of a domain cannot be read: two sites spell one differently")
    words = numbers.astype("<u8").view(np.uint8).reshape(len(table), _LIMBS, 8)
    return [padded[1 : 1 + padded[0]] for padded in map(bytes, words[:, :, :_LIMB].reshape(len(table), -1))]


def _learn(site: Site, request: Request) -> Release:
    """Verify the names, and form the domain that the site enrols with."""
    state, count = site.state(DomainCountState), request.payload.arrays
    proven = COUNT.proven(site, request.round, count["counts"])
    if state.names is None or proven is None:
        raise RefusedError(f"site {site.name!r} took no part in the count that it is told the result of")
    transcript, sites = state.names
    secret = COUNT.secret_of(site)
    names = _names_in(proven_total(secret, transcript, sorted(sites), count["names"]), len(sites))
    prints = fingerprints(secret, names)
    if (prints.f != proven.f).any() or (prints.h != proven.h).any():
        raise IntegrityError("a name of a domain is not that of a frequent value")
    _require_own(site, names)
    site.state(DomainState).learned = _domain_of(site.plan, names)
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
    counted = yield from COUNT.run(hub, threshold=approved.min_cell)
    if not len(counted.f):
        raise _unknown(undeclared_columns(approved.schema), approved.min_cell)
    length = len(counted.f) * (1 + _LIMBS) + CHECKS
    proof = {"totals": counted.totals.astype("<u8").tobytes()}
    total = yield from COUNT.sum_again(hub, NAMES, counted.sites, length, 0, proof)
    domain = _domain_of(approved, _names_in(total.values[:-CHECKS], len(counted.sites)))
    arrays = {"counts": counted.totals, "names": total.values}
    learned: Replies = yield Ask(task=LEARN, to=hub.sites, payload=Payload(arrays=arrays), expect=Expect())
    return domain, learned.sites


def _unknown(columns: Sequence[str], least: int) -> DataError:
    return DataError(
        f"fewer than {least} persons have a value in {', '.join(columns)}",
        hint="Declare data.bounds or data.categories, drop the column, or lower policy.min_cell",
    )


def _domain_of(approved: ApprovedPlan, keys: Sequence[bytes]) -> Domain:
    """The domain that the frequent keys make, with the declared columns as they are."""
    schema = approved.schema
    by_column: dict[int, list[tuple[bytes, str]]] = {}
    for key in keys:
        tag, place = _HEAD.unpack_from(key)
        by_column.setdefault(place, []).append((tag, key[_HEAD.size :].decode(errors="replace")))
    undeclared = undeclared_columns(schema)
    columns: dict[str, ColumnDomain] = {}
    for name in (*schema.inputs, *(() if schema.target is None else (schema.target,))):
        if name in undeclared:
            found = by_column.get(undeclared.index(name), [])
            columns[name] = _column_of(approved, name, schema.columns[name], found)
        else:
            columns[name] = declared_column(schema, name, missing=approved.missing)
    return Domain(columns=columns)


def _column_of(approved: ApprovedPlan, name: str, spec: ColumnSpec, keys: Sequence[tuple[bytes, str]]) -> ColumnDomain:
    kinds = [text for tag, text in keys if tag == _KIND]
    if not kinds:
        raise _unknown([name], approved.min_cell)
    if len(kinds) > 1:
        hint = "Declare its kind (or its categories or bounds) in the schema"
        raise DataError(f"sites disagree whether column {name!r} is a number or a category", hint=hint)
    is_target = name == approved.schema.target
    missing = approved.missing == "category" and not is_target
    values = sort_categories([text for tag, text in keys if tag == _VALUE])
    if kinds[0] == "number":
        bounds = grid_bounds([Cell(*map(int, text.split())) for tag, text in keys if tag == _CELL])
        classes = 1 < len(values) <= MAX_INTEGER_CLASSES and all(tag != _MANY for tag, _ in keys)
        categories = values if classes else None
        return ColumnDomain(kind="number", categories=categories, bounds=bounds, missing=missing, counted=True)
    if not is_target or spec.other:
        values = (*(text for text in values if text != OTHER), OTHER)
    kind: ColumnKind = "items" if kinds[0] == "items" else "category"
    return ColumnDomain(kind=kind, categories=values, missing=missing, counted=True)
