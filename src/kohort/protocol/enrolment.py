"""Enrolment, the first step of every run: agree on the columns' domains, encode at each site, declare row counts.

When the schema declares every domain, nothing is asked about values. Otherwise each site sends the values and ranges
that occur in its rows. That is a disclosure: it passes the door, and the ledger lists it as `domain`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from math import isfinite
from typing import Any, NamedTuple, get_args

import numpy as np

from kohort.errors import IntegrityError
from kohort.models.rows import encode_rows
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Domain as DomainClaim
from kohort.privacy.guarantee import Public
from kohort.privacy.ledger.ledger import canonical
from kohort.protocol.hub import Ask, Expect, Replies, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Releases, Request, Task
from kohort.protocol.wire import Payload
from kohort.tables.domain import Domain, declared_domain, learn_domain, merge_domains
from kohort.tables.encoder import Encoder
from kohort.tables.schema import ColumnKind

__all__ = ["DESCRIBE", "PREPARE", "Enrolled", "encoder_for", "enrol", "enrolment_contract"]

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
        class_weights=approved.train.class_weights,
    )


def _describe(site: Site, request: Request) -> Release:
    del request  # the approved plan holds everything it needs
    approved = site.plan
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
    encoder = _adopt([site], request)
    frame = site.table.rows()
    if not site.plan.own_rows:
        site.training_rows = encode_rows(encoder, frame)
    return Release(payload=Payload(metrics={"rows": site.count}), guarantee=_ROW_COUNT, rows=site.count)


def _prepare_many(sites: Sequence[Site], request: Request) -> Releases | None:
    """Encode the frame that all sites share once, and give each site its part without copying."""
    frame = sites[0].table.frame
    if any(site.table.frame is not frame for site in sites):
        return None
    encoder = _adopt(sites, request)
    if not sites[0].plan.own_rows:
        whole = encode_rows(encoder, frame)
        for site in sites:
            site.training_rows = whole.part(site.table.start, site.table.stop)
    counts = [site.count for site in sites]
    return Releases(
        arrays={},
        metrics={"rows": np.asarray(counts, dtype=np.int64)},
        guarantees=[_ROW_COUNT] * len(sites),
        rows=counts,
    )


def _adopt(sites: Sequence[Site], request: Request) -> Encoder:
    approved = sites[0].plan
    encoder = encoder_for(approved, _read_domain(request.payload.blobs["domain"]))
    network = approved.model.network(encoder)
    for site in sites:
        site.enrol(encoder, network)
    return encoder


DESCRIBE = Task(name="describe", one=_describe)
PREPARE = Task(name="prepare", one=_prepare_one, many=_prepare_many)


def enrolment_contract(approved: ApprovedPlan) -> Contract:
    """What every plan asks of a site before its method begins.

    Args:
        approved: The approved plan.

    Returns:
        The domain, where the schema leaves one open and no budget or secure sum forbids it; then the row count.
    """
    schema = approved.schema
    columns = (*schema.inputs, *(() if schema.target is None else (schema.target,)))
    describe = Step(
        task=DESCRIBE.name,
        says="the values and ranges that occur in columns whose domain is not declared",
        claims=(DomainClaim(columns=columns),),
    )
    prepare = Step(task=PREPARE.name, says="your row count", claims=(_ROW_COUNT,))
    is_open = declared_domain(schema, missing=approved.missing) is None
    return Contract.of([describe] if is_open else [], [prepare])


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
) -> Generator[Ask | RoundEnd, Any, Enrolled]:
    """Agree on a domain, let the sites encode their rows, and collect their row counts.

    Args:
        sites: The sites that approved the plan.
        declared: The domain when the schema declares every column's; None to ask the sites.
        columns: The columns a site's domain must have; a site with others, or a malformed domain, is left out.
        settle: Called at the hub with the agreed domain and the sites before they encode. It may raise for a problem
            in the plan or the data, and may return a request that is sent together with the next one.

    Returns:
        The agreed domain, the row counts, and the replies to the request of `settle`.
    """
    domain = declared
    if domain is None:
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
