"""Enrolment, the first step of every run: agree on the columns' domains, encode at each site, declare row counts.

When the schema declares every domain, nothing is asked about values. In a plan with a budget, others are learned by
noisy counts, in one with a secure sum by a secure count (`kohort.rounds.domains`). Otherwise each site sends the values
and ranges that occur in its rows. That is a disclosure: it passes the door, and the ledger lists it as `domain`.

Guarantee: a site takes declared bounds and categories from its own schema, and others that it verified where the plan
hides them; under a budget, those that hold every value the site itself named. A domain that says something else is
refused, and so is a second one in the same run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import IntegrityError, RefusedError
from kohort.models.rows import encode_rows
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import DomainClaim, Guarantee, Public
from kohort.privacy.ledger.ledger import LedgerContext, canonical
from kohort.protocol.hub import Ask, Expect, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site, SiteTable
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Releases, Request, Task
from kohort.protocol.wire import Payload
from kohort.tables.domain import (
    OTHER,
    Domain,
    column_kind,
    declared_column,
    learn_domain,
    merge_domains,
    undeclared_columns,
)
from kohort.tables.encoder import Encoder
from kohort.tables.schema import ColumnKind

__all__ = [
    "DESCRIBE",
    "PREPARE",
    "DomainState",
    "Enrolled",
    "declared_rows",
    "encoder_for",
    "enrol",
    "enrolment_contract",
    "rows_to_say",
    "take_appended",
]

_ROW_COUNT = Public(what="row count")


def encoder_for(approved: ApprovedPlan, domain: Domain) -> Encoder:
    """The encoder that hub and sites each build from the agreed schema and domain.

    Args:
        approved: The approved plan.
        domain: The agreed values and ranges of the columns.

    Returns:
        The encoder; equal at every participant.
    """
    return Encoder(
        approved.schema,
        domain,
        encoding=approved.encoding,
        dtype=approved.model.dtype,
        class_weights=approved.train.known_class_weights,
        impute=approved.impute,
        unseen=approved.unseen,
    )


@dataclass
class DomainState(TaskState):
    """What a site knows about the domain of the run."""

    learned: Domain | None = None
    """The domain that the site verified by a secure count."""
    named: Mapping[str, tuple[str, ...]] | None = None
    """Under a budget: the values that the site released by noisy counts, by undeclared column."""
    adopted: Domain | None = None
    """The domain that it enrolled with."""
    rows: int | None = None
    """Its rows when it enrolled, those outside the domain included; under a budget, those left out before, too."""
    whole: SiteTable | None = None
    """Under a budget or a secure sum: its table then and what was appended, with the rows that take no part."""
    encoded: str = ""
    """The digest of the request for which its rows were encoded together with those of other sites."""


def rows_to_say(site: Site, rows: int, guarantee: Guarantee) -> int:
    """How many rows a ledger line and a message say that a release was computed from.

    Under a budget or a secure sum nobody may see how many of a site's rows lie within the domain. A task that is about
    a part of the rows says itself how many that is (`Release.said`).

    Args:
        site: The site.
        rows: How many rows the release was computed from.
        guarantee: What it claims; what is public is about no rows, but for the row count itself.

    Returns:
        Under a budget or a secure sum, the rows that the site declared where all that take part are meant; else `rows`.
    """
    if not site.plan.hides_domains or site.state(DomainState).rows is None or rows != site.count:
        return rows
    is_about_rows = not isinstance(guarantee, Public) or guarantee == _ROW_COUNT
    return declared_rows(site) if is_about_rows else rows


def _describe(site: Site, request: Request) -> Release:
    del request  # the approved plan holds everything it needs
    approved = site.plan
    if approved.hides_domains:
        raise RefusedError("a plan with a budget or a secure sum learns no domain in clear")
    domain = learn_domain(site.table.rows(), approved.schema, missing=approved.missing)
    payload = Payload(blobs={"domain": canonical(domain.to_mapping()).encode()})
    return Release(payload=payload, guarantee=DomainClaim(columns=domain.learned), rows=site.count)


def _read_domain(blob: bytes) -> Domain:
    try:
        return Domain.from_mapping(json.loads(blob))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IntegrityError("a received domain is malformed") from error


def _domain_in(payload: Payload, columns: Sequence[str]) -> Domain:
    """A site's domain, checked for the agreed columns and finite bounds: one bad site would spoil the union."""
    domain = _read_domain(payload.blobs["domain"])
    if columns and set(domain.columns) != set(columns):
        raise IntegrityError(
            f"a received domain has {len(domain.columns)} columns that are not the {len(columns)} agreed ones"
        )
    for name, column in domain.columns.items():
        low, high = column.bounds or (0.0, 0.0)
        if column.kind not in get_args(ColumnKind) or not (isfinite(low) and isfinite(high) and low <= high):
            raise IntegrityError(f"a received domain is malformed in column {name!r}")
    return domain


def _prepare_one(site: Site, request: Request) -> Release:
    encoded = site.state(DomainState).encoded == request.digest
    encoder = site.encoder if encoded else _adopt([site], request)
    _set_aside_rows(site, encoder, request)
    if not site.plan.own_rows and not encoded:
        site.training_rows = encode_rows(encoder, site.table.rows())
    return Release(payload=Payload(metrics={"rows": declared_rows(site)}), guarantee=_ROW_COUNT, rows=site.count)


def _left_out(approved: ApprovedPlan, encoder: Encoder, frame: pl.DataFrame) -> NDArray[np.bool_] | None:
    """Which rows lie outside the domain and take no part; None where a plan has its domains described in clear.

    Under a budget or a secure sum, whether a row lies outside must not be seen: an error would tell it.
    """
    return ~encoder.within(frame) if approved.hides_domains else None


def _set_aside_rows(site: Site, encoder: Encoder, request: Request) -> None:
    """Leave rows outside the domain out of training."""
    rows, table = site.table.rows(), site.table
    outside = _left_out(site.plan, encoder, rows)
    if outside is None:
        return
    _note_left_out(site, int(outside.sum()), request=request.digest)
    if not outside.any():
        return
    kept = rows.filter(pl.Series(~outside))
    low = None if table.low is None else table.low - int(outside[: table.low].sum())
    site.table = SiteTable(kept, 0, kept.height, low=low, low_by_row=table.low_by_row)


def _note_left_out(site: Site, count: int, *, request: str, round_number: int = 0, rows: str = "rows") -> None:
    """A line in the site's own ledger, once per request and for no rows, too: every reply tells the ledger's length."""
    reason = f"{count} {rows} have a category or class outside the agreed domain and take no part"
    context = LedgerContext(what=PREPARE.name, request=request, round=round_number)
    site.ledger.note(site.chain, context, reason=reason)


def take_appended(site: Site, round_number: int, *, request: str = "") -> None:
    """Let a site read its table again, and take the rows that were appended to it.

    Args:
        site: The site, which has enrolled.
        round_number: The round before which the plan asks for it.
        request: The digest of the request that opens the round.

    Raises:
        RefusedError: The site cannot read its table again, or rows that the run knows were changed.
        DataError: The table cannot be read, or its columns are of other types.
    """
    if site.read_appended is None:
        raise RefusedError("the table of this site cannot be read again")
    rows = site.read_appended(round_number)
    inside, state = site.encoder.within(rows), site.state(DomainState)
    if site.plan.hides_domains or not inside.all():
        left_out = int((~inside).sum())
        _note_left_out(site, left_out, request=request, round_number=round_number, rows="appended rows")
    site.append(rows, inside)
    if state.whole is not None:
        state.whole = state.whole.longer(rows)


def declared_rows(site: Site) -> int:
    """How many rows a site declares: as many as it enrolled with, and those that were appended since.

    Args:
        site: The site.

    Returns:
        The number. Rows that take no part are among them, for how many these are must not be seen.
    """
    enrolled = site.state(DomainState).rows
    return (site.count - site.rows_appended if enrolled is None else enrolled) + site.rows_appended


def _prepare_many(sites: Sequence[Site], request: Request) -> Releases | None:
    """Encode the frame that all sites share once, and give each site its part without copying.

    Where the domain hides rows, each site then answers alone, because each writes a line of its own first.
    """
    frame = sites[0].table.frame
    if any(site.table.frame is not frame for site in sites):
        return None
    encoder = _adopt(sites, request)
    outside = _left_out(sites[0].plan, encoder, frame)
    if outside is not None and outside.any():
        return None
    if not sites[0].plan.own_rows:
        whole = encode_rows(encoder, frame)
        for site in sites:
            site.training_rows = whole.part(site.table.start, site.table.stop)
    if outside is not None:  # each site writes a line of its own, which one site after the other does
        for site in sites:
            site.state(DomainState).encoded = request.digest
        return None
    counts = [site.count for site in sites]
    return Releases(
        arrays={},
        metrics={"rows": np.asarray(counts, dtype=np.int64)},
        guarantees=[_ROW_COUNT] * len(sites),
        rows=counts,
    )


def _adopt(sites: Sequence[Site], request: Request) -> Encoder:
    approved = sites[0].plan
    domain = _read_domain(request.payload.blobs["domain"])
    hidden = approved.hides_domains and bool(undeclared_columns(approved.schema))
    _check_declared(approved, domain)
    for site in sites:
        if hidden and approved.has_budget:
            _check_named(site, domain)
        state = site.state(DomainState)
        _check_domain(state, domain, hidden=hidden and not approved.has_budget)
        if state.rows is None:
            # Under a budget, how many rows were dropped for a missing value must not be seen, either.
            whole = site.table if site.before is None or not approved.has_budget else site.before
            state.rows, state.whole = whole.count, whole if approved.hides_domains else None
    encoder = encoder_for(approved, domain)
    network = approved.model.network(encoder)
    for site in sites:
        site.state(DomainState).adopted = domain
        site.enrol(encoder, network)
    return encoder


def _check_domain(state: DomainState, domain: Domain, *, hidden: bool) -> None:
    """Refuse a domain that the site did not verify, where the plan hides it, and a second one in the same run."""
    if state.adopted is not None and state.adopted != domain:
        raise RefusedError("a second domain came in for the same run")
    if hidden and (state.learned is None or state.learned != domain):
        raise RefusedError("a domain came in that was not learned by a secure count")


def _check_named(site: Site, domain: Domain) -> None:
    """Refuse a domain, learned under a budget, without values that this site named, or that could fail on its rows.

    What a value outside the domain becomes must not depend on the hub: an error, or a refusal, would tell of rows.
    """
    named, approved, kinds = site.state(DomainState).named, site.plan, site.table.frame.schema
    if named is None:
        raise RefusedError("a domain came in that was not learned by noisy counts")
    for name in undeclared_columns(approved.schema):
        said, is_target = domain.columns.get(name), name == approved.schema.target
        kind = column_kind(approved.schema.columns[name], kinds[name])
        if said is None or said.kind != kind or not said.counted:
            raise RefusedError(f"the hub's domain for column {name!r} has another kind or was not counted")
        if said.missing != (approved.missing == "category" and not is_target):
            raise RefusedError(f"the hub's domain for column {name!r} gives missing values another place")
        known = said.categories or ()
        if kind != "number" and not (is_target or OTHER in known):
            raise RefusedError(f"the hub's domain for column {name!r} has no 'other' category")
        if not {*named[name]} <= {*known} and (kind != "number" or said.categories is not None):
            raise RefusedError(f"the hub's domain for column {name!r} lacks values this site named")


def _check_declared(approved: ApprovedPlan, domain: Domain) -> None:
    """Refuse other bounds or categories than the schema declares.

    A place for missing values may be added, because rows of other sites need it, unless the plan hides domains.
    """
    schema, undeclared = approved.schema, undeclared_columns(approved.schema)
    for name in (*schema.inputs, *(() if schema.target is None else (schema.target,))):
        if name in undeclared:
            continue
        own, said = declared_column(schema, name, missing=approved.missing), domain.columns.get(name)
        if said is not None and not approved.hides_domains:
            own = replace(own, missing=own.missing or said.missing, declared=said.declared)
        if said != own:
            raise RefusedError(f"a domain came in that changes what is declared for column {name!r}")


DESCRIBE = Task(name="describe", one=_describe)
PREPARE = Task(name="prepare", one=_prepare_one, many=_prepare_many)


def enrolment_contract(approved: ApprovedPlan, learn: Sequence[Step] = ()) -> Contract:
    """What every plan asks of a site before its method begins.

    Args:
        approved: The approved plan.
        learn: How the domain is learned where a budget or a secure sum forbids to ask for it.

    Returns:
        The domain, where the schema leaves one open; then the row count.
    """
    schema = approved.schema
    columns = (*schema.inputs, *(() if schema.target is None else (schema.target,)))
    describe = Step(
        task=DESCRIBE.name,
        says="the values and ranges that occur in columns that the plan declares none for",
        claims=(DomainClaim(columns=columns),),
    )
    prepare = Step(task=PREPARE.name, says="your row count", claims=(_ROW_COUNT,), required=True)
    if approved.hides_domains:
        return Contract.of(learn, [prepare])
    return Contract.of([describe] if undeclared_columns(schema) else [], [prepare])


class Enrolled(NamedTuple):
    """The result of enrolment.

    `domain` is what the sites agreed on, `rows` the row count per site, and `opened` the method's own first request
    with its replies, if it has one.
    """

    domain: Domain
    rows: dict[str, int]
    opened: tuple[Ask, Replies] | None


def enrol(
    sites: tuple[str, ...],
    *,
    declared: Domain | None,
    columns: Sequence[str] = (),
    settle: Callable[[Domain, tuple[str, ...]], Ask | None] = lambda *_: None,
    learn: Generator[Ask | RoundEnd, Any, tuple[Domain, tuple[str, ...]]] | None = None,
) -> Generator[Ask | RoundEnd, Any, Enrolled]:
    """Agree on a domain, let the sites encode their rows, and collect their row counts.

    Args:
        sites: The sites that approved the plan.
        declared: The domain when the schema declares every column's; None to ask the sites.
        columns: The columns a site's domain must have; a site with others, or a malformed domain, is left out.
        settle: Called at the hub with the agreed domain and the sites before they encode. It may raise for a problem
            in the plan or the data, and may return a request that is sent together with the next one.
        learn: Learns a domain that is not declared without showing it, and says which sites know it; None to ask the
            sites for it in clear.

    Returns:
        The agreed domain, the row counts, and the replies to the request of `settle`.
    """
    domain = declared
    if domain is None and learn is not None:
        domain, sites = yield from learn
    elif domain is None:
        expect = Expect(blobs=("domain",), check=lambda payload: _domain_in(payload, columns))
        described: Replies = yield Ask(task=DESCRIBE, to=sites, expect=expect)
        domain = merge_domains([_domain_in(payload, columns) for payload in described.payloads()])
        sites = described.sites
    opening = settle(domain, sites)
    prepared: Replies = yield Ask(
        task=PREPARE,
        to=sites,
        payload=Payload(blobs={"domain": canonical(domain.to_mapping()).encode()}),
        expect=Expect(metrics=("rows",)),
        then=opening,
    )
    rows = dict(zip(prepared.sites, prepared.metric("rows").tolist(), strict=True))
    opened = None if opening is None or prepared.then is None else (opening, prepared.then)
    return Enrolled(domain, rows, opened)
