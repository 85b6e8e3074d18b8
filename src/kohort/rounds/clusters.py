"""Clusters of sites, formed from what the sites disclose: a cluster's name, or the distribution of their target.

Both disclosures are releases. Sites that give the same name form a cluster; from target distributions the hub groups
the closest ones. The hub only proposes clusters: each site accepts peers by its own roster.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError, IntegrityError
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Aggregate, Public
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.phase_rows import reported_rows, rows_of
from kohort.rounds.sealed_messages import CLUSTER_TASK, PeerState

__all__ = [
    "LABELS",
    "NAMED",
    "NAMED_STEP",
    "check_cluster_name",
    "clusters_of",
    "form_clusters",
    "join_cluster",
    "labels_step",
    "named_clusters",
]

LONGEST_NAME = 64
_CLUSTER = "cluster"
_NO_NAME = "Use up to 64 printable characters"


def check_cluster_name(name: str) -> str:
    """Check the name of a cluster.

    Args:
        name: The name.

    Returns:
        The same name.

    Raises:
        ConfigError: It is empty, too long, not printable, or begins or ends with a space.
    """
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise ConfigError("a cluster's name is empty, too long or not printable", hint=_NO_NAME)
    return name


@dataclass
class ClusterState(TaskState):
    """The trusted cluster a site's operator named."""

    name: str = ""


def join_cluster(site: Site, name: str) -> None:
    """Set the cluster that a site names when it is asked.

    Args:
        site: The site.
        name: The cluster's name; empty for none.
    """
    site.state(ClusterState).name = site.state(PeerState).cluster = name


_OWN_CLUSTER = Public(what="its cluster")


def _named(site: Site, request: Request) -> Release:
    """The cluster that this site's operator named; empty for none."""
    del request  # the approved plan holds everything it needs
    name = site.state(ClusterState).name
    return Release(payload=Payload(blobs={_CLUSTER: name.encode()}), guarantee=_OWN_CLUSTER, rows=0)


NAMED = Task(name=CLUSTER_TASK, one=_named)
NAMED_STEP = Step(task=NAMED.name, says="the name of your cluster", claims=(_OWN_CLUSTER,))


def named_clusters(hub: Hub) -> Generator[Ask | RoundEnd, Any, dict[str, str]]:
    """Ask every site for the name of its cluster.

    Args:
        hub: The hub's side of the run.

    Returns:
        The cluster's name by site; sites that name none are left out.
    """
    replies: Replies = yield Ask(task=NAMED, to=hub.sites, expect=Expect(blobs=(_CLUSTER,), check=_name_in))
    named = zip(replies.sites, map(_name_in, replies.payloads()), strict=True)
    return {site: name for site, name in named if name}


def _name_in(payload: Payload) -> str:
    name = payload.blobs[_CLUSTER]
    try:
        return check_cluster_name(name.decode()) if name else ""
    except (UnicodeDecodeError, ConfigError) as error:
        raise IntegrityError("a received cluster name is malformed") from error


def _labels(site: Site, request: Request) -> Release:
    phase = site.plan.phase(int(request.payload.metrics["phase"]))
    classes = site.network.classes
    if not classes:
        raise ConfigError(
            "clusters by label distribution need a classification target", hint="List the clusters in the plan instead"
        )
    rows = rows_of(site, phase)
    shares = np.bincount(rows.y.astype(np.int64), minlength=classes) / max(rows.count, 1)
    claim, said = site.aggregate(rows.count), reported_rows(site, phase)
    return Release(payload=Payload(arrays={"shares": shares}), guarantee=claim, rows=rows.count, said=said)


LABELS = Task(name="clusters.labels", one=_labels)


def labels_step(number: int) -> Step:
    """The release of a site's label distribution, by which clusters are formed.

    Args:
        number: The phase whose rows are counted, from 0.

    Returns:
        The step.
    """
    says = "the shares of the target's classes among your rows"
    return Step(task=LABELS.name, says=says, claims=(Aggregate(rows=0),), phase=number)


def form_clusters(hub: Hub, count: int, number: int) -> Generator[Ask | RoundEnd, Any, dict[str, str]]:
    """Ask the sites for the distribution of their target, and group similar sites.

    Args:
        hub: The hub's side of the run.
        count: At most how many clusters to form.
        number: The phase whose rows are counted, from 0.

    Returns:
        The cluster's name by site.
    """
    expect = Expect(arrays={"shares": ("<f8", (hub.network.classes,))})
    replies: Replies = yield Ask(task=LABELS, to=hub.sites, payload=Payload(metrics={"phase": number}), expect=expect)
    found = clusters_of(replies.array("shares"), count)
    return {site: f"cluster-{cluster + 1:02d}" for site, cluster in zip(replies.sites, found.tolist(), strict=True)}


def clusters_of(shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Hierarchical clustering of distributions: average linkage of the Hellinger distance.

    Args:
        shares: One distribution per site, [sites, classes].
        count: At most how many clusters to form.

    Returns:
        The cluster of each site, numbered in order of first appearance.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(shares) <= 2 or count == 1:
        return np.zeros(len(shares), dtype=np.int64) if count == 1 else np.arange(len(shares)) % count
    labels = fcluster(linkage(np.sqrt(shares), method="average"), t=count, criterion="maxclust")
    _, first = np.unique(labels, return_index=True)
    order = {int(labels[place]): rank for rank, place in enumerate(sorted(first.tolist()))}
    return np.asarray([order[int(label)] for label in labels], dtype=np.int64)
