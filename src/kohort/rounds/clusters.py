"""Clusters that only the sites can tell: each names its own, or tells how its target is distributed.

Both are releases. Sites that name the same cluster are in it; of target distributions the hub joins those that are
closest. Who is in a cluster with whom is proposed here and decided by each site's own roster.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.guarantee import Public
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.plan import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.phase_rows import rows_of

__all__ = [
    "LABELS",
    "NAMED",
    "check_cluster_name",
    "clusters_of",
    "form_clusters",
    "join_cluster",
    "named_clusters",
    "planned_mates",
]

LONGEST_NAME = 64
_CLUSTER = "cluster"
_NO_NAME = "Use up to 64 printable characters"


def check_cluster_name(name: str) -> str:
    """The name, if it can be one."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise ConfigError("a cluster's name is empty, too long or not printable", hint=_NO_NAME)
    return name


def planned_mates(approved: ApprovedPlan, site: str) -> frozenset[str] | None:
    """Whom the approved plan itself puts into the site's cluster; None when it leaves that to sites or hub."""
    if approved.clusters is None:
        return None
    return frozenset(next((members for members in approved.clusters.values() if site in members), (site,)))


@dataclass
class ClusterState(TaskState):
    """The trusted cluster a site's operator named."""

    name: str = ""


def join_cluster(site: Site, name: str) -> None:
    """What the site will say when it is asked for its cluster; an empty name for none."""
    site.state(ClusterState).name = name


def _named(site: Site, request: Request) -> Release:
    """The cluster this site's operator named; nothing when none was."""
    del request  # the question is in the approved plan
    name = site.state(ClusterState).name
    return Release(payload=Payload(blobs={_CLUSTER: name.encode()}), guarantee=Public(what="its cluster"), rows=0)


NAMED = Task(name="clusters.named", one=_named)


def named_clusters(hub: Hub) -> Generator[Ask | RoundEnd, Any, dict[str, str]]:
    """Ask the sites which cluster each belongs to; those that name none are left out."""
    replies: Replies = yield Ask(task=NAMED, to=hub.sites, expect=Expect(blobs=(_CLUSTER,), check=_name_in))
    named = zip(replies.sites, map(_name_in, replies.payloads()), strict=True)
    return {site: name for site, name in named if name}


def _name_in(payload: Payload) -> str:
    name = payload.blobs[_CLUSTER]
    try:
        return check_cluster_name(name.decode()) if name else ""
    except (UnicodeDecodeError, ConfigError) as error:
        raise IntegrityError("the name of a cluster came in malformed") from error


def _labels(site: Site, request: Request) -> Release:
    phase = site.plan.phase(int(request.payload.metrics["phase"]))
    classes = site.network.classes
    if not classes:
        raise ConfigError("clusters by labels need classes", hint="Give the clusters in [sites]")
    rows = rows_of(site, phase)
    shares = np.bincount(rows.y.astype(np.int64), minlength=classes) / max(rows.count, 1)
    return Release(payload=Payload(arrays={"shares": shares}), guarantee=site.aggregate(rows.count), rows=rows.count)


LABELS = Task(name="clusters.labels", one=_labels)


def form_clusters(hub: Hub, count: int, number: int) -> Generator[Ask | RoundEnd, Any, dict[str, str]]:
    """Ask the sites how the targets of phase `number` are distributed, and join those that are alike."""
    expect = Expect(arrays={"shares": ("<f8", (hub.network.classes,))})
    replies: Replies = yield Ask(task=LABELS, to=hub.sites, payload=Payload(metrics={"phase": number}), expect=expect)
    found = clusters_of(replies.array("shares"), count)
    return {site: f"cluster-{cluster + 1:02d}" for site, cluster in zip(replies.sites, found.tolist(), strict=True)}


def clusters_of(shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """At most `count` clusters by average linkage of the Hellinger distance, numbered as they first appear."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(shares) <= 2 or count == 1:
        return np.zeros(len(shares), dtype=np.int64) if count == 1 else np.arange(len(shares)) % count
    labels = fcluster(linkage(np.sqrt(shares), method="average"), t=count, criterion="maxclust")
    _, first = np.unique(labels, return_index=True)
    order = {int(labels[place]): rank for rank, place in enumerate(sorted(first.tolist()))}
    return np.asarray([order[int(label)] for label in labels], dtype=np.int64)
