"""How sites publish their classes and receive those of the others: through the hub, or encrypted past it.

A site that anonymised its rows keeps the mapping of its classes, and the class of each row. It sends the mapping to the
hub, which sends the union to all sites; or it encrypts the mapping to every other site of its own roster, and the hub
relays messages that it cannot decrypt. A site that has all classes reports how its own classes map its rows: how many
are mapped to the class they were trained in, and how many to a class with a higher cost (which should be none).

Guarantees: a mapping leaves under the KKm claim that the checker verified. Within a run it is made once, and every
request for it gets the same bytes. A mapping that is malformed, has another schema or is another site's stops the run.
No number that a site reports depends on classes it was handed: a hub that invents one of a single combination of values
would otherwise read off how many rows have it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kohort.errors import IntegrityError, SiteError
from kohort.methods.syntactic.anonymising import mapping_weights
from kohort.methods.syntactic.item_columns import items_tree, joined
from kohort.methods.syntactic.mapping.assign import costs, map_rows
from kohort.methods.syntactic.mapping.build import union
from kohort.methods.syntactic.mapping.mapping import SiteMapping
from kohort.privacy.guarantee import KKm
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.peers import (
    KEYS,
    learn_peers,
    members_of,
    open_boxes,
    pack_boxes,
    passed_around,
    seal_to,
    unpack_boxes,
)
from kohort.tables.codes import CodeTree

__all__ = [
    "KEYS",
    "PLACE",
    "PUBLISH",
    "SEAL",
    "Placed",
    "Published",
    "keep_published",
    "place_rows",
    "published_to_hub",
    "sealed_to_peers",
]

_COUNTS = ("rows", "own", "dearer", "suppressed", "items", "lost")


@dataclass(frozen=True, kw_only=True, eq=False)
class Published:
    """A site's mapping, the class of each of its rows, the number of its items, how many were suppressed, and what all
    of them lose."""

    mapping: SiteMapping
    class_of: NDArray[np.integer[Any]]
    items: int
    suppressed: int
    lost: float

    @property
    def claim(self) -> KKm:
        """The claim that the checker verified."""
        return KKm(k=self.mapping.k, m=self.mapping.m, rows=len(self.class_of), verified=True)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """How the classes of each site map its training rows, counted over all sites.

    `own` rows are mapped to the class they were trained in, `dearer` rows to a class with a higher cost than that one.
    """

    rows: int
    own: int
    dearer: int
    items: int
    suppressed: int
    lost: float


@dataclass
class MappingState(TaskState):
    """The classes a site knows."""

    published: Published | None = None
    """The site's own classes."""
    known: tuple[SiteMapping, ...] = ()
    """The classes of all sites."""


def keep_published(site: Site, published: Published) -> None:
    """Store a site's classes for the tasks of this module.

    Args:
        site: The site.
        published: Its mapping and the class of each of its rows. Classes that it stored before are replaced.
    """
    site.state(MappingState).published = published


def _published(site: Site) -> Published:
    found = site.state(MappingState).published
    if found is None:
        raise SiteError(f"site {site.name!r} was asked for its classes before it had any")
    return found


def _publish(site: Site, request: Request) -> Release:
    del request
    own = _published(site)
    payload = Payload(blobs={"mapping": own.mapping.to_bytes()})
    return Release(payload=payload, guarantee=own.claim, rows=len(own.class_of))


PUBLISH = Task(name="mappings.publish", one=_publish)


def _seal(site: Site, request: Request) -> Release:
    """The site's mapping, encrypted to every peer."""
    own, members = _published(site), members_of(site, request)
    learn_peers(site, request.payload.blobs["keys"], members)
    return seal_to(site, request, own.mapping.to_bytes(), members, guarantee=own.claim, rows=len(own.class_of))


SEAL = Task(name="mappings.seal", one=_seal, public=False)


def _place(site: Site, request: Request) -> Release:
    """Store the classes of all sites, and count how the site's own classes map its rows."""
    own, blobs = _published(site), request.payload.blobs
    others = _opened(site, request) if "inbox" in blobs else unpack_boxes(blobs["mappings"])
    known = read_mappings(others, schema=site.encoder.schema.fingerprint())
    mine = known.setdefault(site.name, own.mapping)
    if mine.to_bytes() != own.mapping.to_bytes():
        raise IntegrityError(f"the hub hands out classes of site {site.name!r} that it did not publish")
    state = site.state(MappingState)
    # In the same order at every site: of classes that cost the same the first is taken.
    members = members_of(site, request) if "inbox" in blobs else tuple(known)
    state.known = tuple(known[name] for name in members if name in known)
    counted = place_rows(
        joined(site.table.rows(), site.encoder.schema),
        own,
        weights=mapping_weights(site.plan.config.anonymise.importance),
        tree=items_tree(site.encoder.schema),
    )
    numbers = (counted.rows, counted.own, counted.dearer, counted.suppressed, counted.items, counted.lost)
    metrics = dict(zip(_COUNTS, numbers, strict=True))
    return Release(payload=Payload(metrics=metrics), guarantee=site.aggregate(counted.rows), rows=counted.rows)


PLACE = Task(name="mappings.place", one=_place, public=False)


def _opened(site: Site, request: Request) -> dict[str, bytes]:
    """The mappings that the peers encrypted to this site."""
    members = members_of(site, request)
    learn_peers(site, request.payload.blobs["keys"], members)
    return open_boxes(site, request, members)


def place_rows(
    frame: pl.DataFrame, own: Published, *, weights: Mapping[str, float] | None = None, tree: CodeTree | None = None
) -> Placed:
    """Map a site's own rows to its own classes; ties go to the class of training.

    Args:
        frame: The rows.
        own: The site's classes.
        weights: What a loss in each column counts; all alike when None.
        tree: What stands above the items.

    Returns:
        How many rows are mapped to the class they were trained in, and how many to a class that costs more.
    """
    found = map_rows(frame, own.mapping, prefer=own.class_of, weights=weights, tree=tree)
    broken, cost = costs(frame, union([own.mapping]), own.class_of, weights=weights, tree=tree)
    dearer = (found.violated > broken) | ((found.violated == broken) & (found.loss > cost))
    return Placed(
        rows=frame.height,
        own=int((found.class_of == own.class_of).sum()),
        dearer=int(dearer.sum()),
        items=own.items,
        suppressed=own.suppressed,
        lost=own.lost,
    )


def read_mappings(texts: Mapping[str, bytes], *, schema: str, least_k: int = 1) -> dict[str, SiteMapping]:
    """Decode and check mappings.

    Args:
        texts: The bytes that each site sent.
        schema: The fingerprint that their schema must have.
        least_k: The smallest k that they may have.

    Raises:
        IntegrityError: A mapping is malformed, has another schema or site, or a smaller k.
    """
    found = {}
    for site, content in texts.items():
        mapping = SiteMapping.from_bytes(content, schema=schema)
        if mapping.site != site:
            raise IntegrityError(f"site {site!r} sent a mapping of another site")
        if mapping.k < least_k:
            raise IntegrityError(f"the mapping of site {site!r} has k = {mapping.k}, and the plan asks for {least_k}")
        found[site] = mapping
    return found


def published_to_hub(
    hub: Hub, *, least_k: int
) -> Generator[Ask | RoundEnd, Any, tuple[tuple[SiteMapping, ...], Placed]]:
    """Send every site's mapping to the hub, and the union back.

    Args:
        hub: The hub and its sites.
        least_k: The smallest k that a mapping may have.

    Returns:
        The mappings in the order of the sites that replied, and how they map the rows of all sites.

    Raises:
        IntegrityError: A mapping is malformed, or has a smaller k.
    """
    replies: Replies = yield Ask(task=PUBLISH, to=hub.sites, expect=Expect(blobs=("mapping",)))
    texts = {site: payload.blobs["mapping"] for site, payload in zip(replies.sites, replies.payloads(), strict=True)}
    found = read_mappings(texts, schema=hub.encoder.schema.fingerprint(), least_k=least_k)
    placed: Replies = yield Ask(
        task=PLACE,
        to=replies.sites,
        payload=Payload(blobs={"mappings": pack_boxes(texts)}),
        expect=Expect(metrics=_COUNTS),
    )
    return tuple(found.values()), _total(placed)


def sealed_to_peers(hub: Hub) -> Generator[Ask | RoundEnd, Any, Placed]:
    """Send every site's mapping, encrypted, to every other site. The hub relays, and cannot read any of them.

    Args:
        hub: The hub and its sites.

    Returns:
        How the mappings map the rows of all sites.
    """
    handed = yield from passed_around(hub, SEAL)
    placed: Replies = yield Ask(task=PLACE, to=tuple(handed), each=handed, round=1, expect=Expect(metrics=_COUNTS))
    return _total(placed)


def _total(replies: Replies) -> Placed:
    rows, own, dearer, suppressed, items = (int(replies.metric(name).sum()) for name in _COUNTS[:-1])
    lost = float(replies.metric(_COUNTS[-1]).sum())
    return Placed(rows=rows, own=own, dearer=dearer, items=items, suppressed=suppressed, lost=lost)
