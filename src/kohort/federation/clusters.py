"""Clusters of sites whose targets are distributed alike, for those who have no clusters given.

Each site tells how its target is distributed, which is a release; the hub joins the sites that are closest.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import ConfigError
from kohort.federation.jobs import jobs_of, rows_of
from kohort.federation.plan import Ask, Expect, Hub, Mark, Replies
from kohort.federation.site import Site
from kohort.federation.task import Release, Request, Task
from kohort.federation.training import network_of, setting_of
from kohort.federation.wire import Payload

__all__ = ["LABELS", "clusters_of", "form_clusters"]


def _labels(site: Site, request: Request) -> Release:
    job = jobs_of(setting_of(site))[int(request.payload.metrics["phase"])]
    classes = network_of(site).classes
    if not classes:
        raise ConfigError("clusters by labels need classes", hint="Give the clusters in [sites]")
    rows = rows_of(site, job)
    shares = np.bincount(rows.y.astype(np.int64), minlength=classes) / max(rows.count, 1)
    return Release(payload=Payload(arrays={"shares": shares}), guarantee=site.aggregate(rows.count), rows=rows.count)


LABELS = Task(name="clusters.labels", one=_labels)


def form_clusters(hub: Hub, count: int, number: int) -> Generator[Ask | Mark, Any, dict[str, str]]:
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
