"""The pre-flight: what sites disagree about, column by column, before they learn anything together.

Every site sends the profile of the plan's columns (`kohort.tables.harmonise.profiles`) without any value: types,
whether texts read as numbers or dates, three quantiles as cells of a public grid, numbers that stand for missing
values, classes of shares and of sizes. Values are counted over all sites by a secure count, and those that at least
`min_cell` persons share become known by name, with the number of sites that have them. The rows of each class of the
target, and those that would take no part, are told as totals where as many persons are behind them.

Guarantee: a site says of itself only facts about at least `min_cell` of its persons, besides names and types of columns
and the class of its number of rows; which site has which value is not told. It is a `domain` release, which a policy
can forbid. It is not differentially private: one person can tip a count over the minimum, so a plan with a budget has
no pre-flight.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from struct import Struct
from typing import Any, Final

import numpy as np
import polars as pl

from kohort.crypto.sums.scheme import MIN_SITES
from kohort.errors import ConfigError, IntegrityError, KohortError, RefusedError, SiteError
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import DomainClaim
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.hub import Ask, Coordinator, Expect, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.counting import KeyCounts
from kohort.rounds.domains.names import NAME_BYTES, NamedCount, NamedKeys, value_counts, values_of
from kohort.rounds.domains.unused import unused_in, unused_persons, unused_rows
from kohort.tables.domain import category_text
from kohort.tables.harmonise.profiles import MAX_WHOLE_VALUES, ColumnProfile, TableProfile, is_size_class, profile_table
from kohort.tables.harmonise.values import READ_TEXT, CountedValue
from kohort.tables.harmonise.words import MISSING_CODES
from kohort.tables.schema import Schema

__all__ = ["Preflight", "check_preflight", "preflight", "preflight_steps"]

_HEAD: Final = Struct("<cHc")
_VALUE: Final = b"v"
_KINDS: Final = {"category": b"c", READ_TEXT: b"t", "boolean": b"b", "number": b"n", "items": b"i"}
_CODES: Final = frozenset(f"{code:g}" for code in MISSING_CODES)
_LARGEST: Final = 1 << 20
"""Bytes that no honest profile has."""


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What a pre-flight told.

    Attributes:
        profiles: One per site, without values.
        counted: Per column, the values that enough persons share over all sites.
        classes: The rows of each class of the target over all sites.
        unused: Rows that would take no part, by reason; 0 below the minimum.
        sites: The sites that were counted.
    """

    profiles: tuple[TableProfile, ...]
    counted: Mapping[str, Sequence[CountedValue]]
    classes: Mapping[str, int]
    unused: Mapping[str, int]
    sites: tuple[str, ...]


@dataclass
class PreflightState(TaskState):
    """What a site found in its own table, once."""

    profile: TableProfile | None = None
    counts: KeyCounts | None = None


def check_preflight(approved: ApprovedPlan) -> None:
    """Refuse a pre-flight that could not be kept private, before anything is asked.

    Args:
        approved: The approved plan.

    Raises:
        ConfigError: It has a budget, or its sums are not secure.
    """
    if approved.has_budget:
        raise ConfigError(
            "a pre-flight tells exact facts, which a budget does not cover",
            hint="Leave data.preflight out here, and run it with a plan without [method.dp]",
        )
    if not approved.sums_securely:
        raise ConfigError(
            "a pre-flight counts values by a secure sum, and this plan has none",
            hint='Set method.secure.sum = "masks", or compare files that sites write: kohort site profile',
        )


def preflight_steps(approved: ApprovedPlan) -> list[Step]:
    """What a pre-flight asks of a site.

    Args:
        approved: The approved plan, which has one.

    Returns:
        The steps.
    """
    least = approved.min_cell
    says = (
        f"the types of the plan's columns, and what at least {least} of your persons share: three quantiles of numbers "
        "as ranges, the class of the share of missing values; and the class of your number of rows"
    )
    profile = Step(task=PROFILE.name, says=says, claims=(DomainClaim(columns=_columns(approved.schema)),))
    named = (
        f"names of values that at least {least} persons share, how many rows each class of the target has, and how "
        "many rows would take no part"
    )
    return [profile, *NAMES.steps(approved, counted="how many persons have each value of these columns", named=named)]


def preflight(hub: Coordinator) -> Generator[Ask | RoundEnd, Any, Preflight]:
    """Ask the sites for profiles, and count their values.

    Args:
        hub: The coordinator.

    Returns:
        What was told.

    Raises:
        KohortError: Sites refuse, or somebody sent what no honest party sends.
    """
    approved = hub.approved
    expect = Expect(blobs=("profile",), check=lambda payload: _profile_in(payload, approved))
    replies: Replies = yield Ask(task=PROFILE, to=hub.sites, expect=expect)
    if len(replies.sites) < MIN_SITES:
        silent = ", ".join(site for site in hub.sites if site not in replies.sites)
        raise SiteError(
            f"a pre-flight needs {MIN_SITES} sites, and {silent} refused or failed: their own ledgers say why",
            hint="A site lets its profile out with policy.domain = true",
        )
    profiles = tuple(
        replace(_profile_in(payload, approved), site=site)
        for site, payload in zip(replies.sites, replies.payloads(), strict=True)
    )
    named = yield from NAMES.run(hub)
    counted, classes = _read(approved.schema, named)
    return Preflight(profiles=profiles, counted=counted, classes=classes, unused=unused_in(named), sites=named.sites)


def _columns(schema: Schema) -> tuple[str, ...]:
    return (*schema.inputs, *(() if schema.target is None else (schema.target,)))


def _own_profile(site: Site) -> TableProfile:
    """The site's profile, values included, which stay at home.

    Raises:
        RefusedError: The plan's minimum is below the policy's.
    """
    state, approved = site.state(PreflightState), site.plan
    if site.policy.min_cell > approved.min_cell:
        raise RefusedError(f"the plan's min_cell {approved.min_cell} is below the policy's {site.policy.min_cell}")
    if state.profile is None:
        state.profile = profile_table(
            site.table.rows(),
            site=site.name,
            least=approved.min_cell,
            columns=_columns(site.schema),
            person=site.schema.identifiers[0] if site.schema.identifiers else None,
        )
    return state.profile


def _profile(site: Site, request: Request) -> Release:
    del request  # the approved plan holds everything it needs
    own = _own_profile(site)
    without_values = replace(own, columns={name: _without_values(column) for name, column in own.columns.items()})
    payload = Payload(blobs={"profile": canonical(without_values.to_plain()).encode()})
    return Release(payload=payload, guarantee=DomainClaim(columns=tuple(without_values.columns)), rows=0)


def _without_values(column: ColumnProfile) -> ColumnProfile:
    """The same without any value; an empty list says that there are some, and that they are counted."""
    return replace(column, values=None if column.values is None else (), more=False)


PROFILE = Task(name="preflight.profile", one=_profile)


def _counts(site: Site) -> KeyCounts:
    """The site's keys: its values, and the rows that would take no part; counted once."""
    state = site.state(PreflightState)
    if state.counts is None:
        counted = unused_persons(site)
        for place, name in enumerate(_columns(site.schema)):
            counted |= dict(_column_keys(site, place, name))
        kept = sorted(key for key in counted if len(key) <= NAME_BYTES)
        counts = np.asarray([counted[key] for key in kept], dtype=np.int64)
        state.counts = KeyCounts(keys=kept, counts=counts, rows=site.count, cap=site.plan.min_cell)
    return state.counts


def _column_keys(site: Site, place: int, name: str) -> Iterator[tuple[bytes, int]]:
    """The values of one column, each with the persons that have it; none of dates and of numbers with many values."""
    kind = _counted_kind(_own_profile(site).columns[name], site.table.rows()[name])
    if kind is not None:
        for text, persons in value_counts(values_of(site, name), items=kind == "items"):
            yield _key(place, kind, text), persons


def _counted_kind(column: ColumnProfile, values: pl.Series) -> str | None:
    """What the column counts as; None where its values are not counted."""
    if column.values is None:
        return None
    if column.reads_as is None:
        return column.kind
    return READ_TEXT if values.n_unique() <= MAX_WHOLE_VALUES else None


def _key(place: int, kind: str, text: str) -> bytes:
    return _HEAD.pack(_VALUE, place, _KINDS[kind]) + text.encode()


def _tallies(site: Site) -> dict[bytes, int]:
    """The site's rows of each class of the target, and those that would take no part."""
    tallies, target = unused_rows(site), site.schema.target
    if target is None:
        return tallies
    kind = _counted_kind(_own_profile(site).columns[target], site.table.rows()[target])
    if kind is None or kind == "items":
        return tallies
    counted = category_text(site.table.rows()[target].drop_nulls()).alias("value").value_counts(name="n")
    place = _columns(site.schema).index(target)
    return tallies | {_key(place, kind, text): n for text, n in counted.iter_rows()}


NAMES = NamedCount("preflight", counts_of=_counts, tallies_of=_tallies)


def _read(schema: Schema, named: NamedKeys) -> tuple[dict[str, list[CountedValue]], dict[str, int]]:
    """The counted values by column, and the rows of each class of the target."""
    columns, kinds = _columns(schema), {tag: kind for kind, tag in _KINDS.items()}
    counted: dict[str, list[CountedValue]] = {}
    classes: dict[str, int] = {}
    for key, holders, tally in zip(named.keys, named.holders, named.tallies, strict=True):
        if not key.startswith(_VALUE):
            continue
        try:
            _, place, tag = _HEAD.unpack_from(key)
            one, column = CountedValue(kinds[tag], key[_HEAD.size :].decode(), holders), columns[place]
        except (KeyError, IndexError, UnicodeDecodeError) as error:
            raise IntegrityError("a counted value cannot be read: a site sent something else") from error
        counted.setdefault(column, []).append(one)
        if column == schema.target and tally:
            classes[one.text] = classes.get(one.text, 0) + tally
    return counted, classes


def _profile_in(payload: Payload, approved: ApprovedPlan) -> TableProfile:
    """A site's profile, checked: of the plan's columns, without values, with finite numbers and known words.

    Raises:
        IntegrityError: It is none.
    """
    blob = payload.blobs["profile"]
    try:
        if len(blob) > _LARGEST:
            raise ValueError
        profile = TableProfile.from_plain(json.loads(blob))
        known = {*_columns(approved.schema)}
        if not {*profile.columns} <= known or not all(map(_is_sound, profile.columns.values())):
            raise ValueError
        if not is_size_class(profile.rows):
            raise ValueError
    except (KohortError, ValueError, TypeError, RecursionError) as error:
        raise IntegrityError("a received profile is malformed") from error
    return profile


def _is_sound(column: ColumnProfile) -> bool:
    quantiles = column.quantiles
    return (
        column.values in (None, ())
        and column.more is False
        and column.reads_as in (None, "number", "date")
        and column.decimal in (None, ".", ",")
        and {*column.codes} <= _CODES
        and (quantiles is None or (len(quantiles) == 3 and all(isfinite(number) for number in quantiles)))
    )
