"""The training task every iterative method shares: some epochs from the hub's weights on the site's encoded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kohort.errors import SiteError
from kohort.federation.plan import Expect
from kohort.federation.setting import Setting
from kohort.federation.site import Site
from kohort.federation.task import Release, Releases, Request, Task
from kohort.federation.wire import Payload
from kohort.learn.network import Network
from kohort.learn.rows import Rows, stack
from kohort.learn.training import Fitted, OptimiserState, fit_many

__all__ = ["OPTIMISER", "ROWS", "TRAIN", "expected_update", "network_of", "setting_of"]

ROWS = "rows"
"""Where a site keeps the encoded rows it trains on."""
OPTIMISER = "optimiser"
"""Where a site keeps its optimiser's state when the plan says so."""


def setting_of(site: Site) -> Setting:
    """The plan the site approved."""
    if site.setting is None:
        raise SiteError(f"site {site.name!r} was asked before it approved a plan")
    return site.setting


def network_of(site: Site) -> Network:
    """The network, built at the site from the approved plan."""
    network = site.memory.get("network")
    if not isinstance(network, Network):
        raise SiteError(f"site {site.name!r} was asked to train before it enrolled")
    return network


def expected_update(network: Network, setting: Setting) -> Expect:
    """What a training reply looks like."""
    return Expect(
        arrays={"weights": (np.dtype(network.dtype).str, (network.parameter_count,))},
        metrics=_metrics(setting),
    )


def _metrics(setting: Setting) -> tuple[str, ...]:
    return ("rows", "loss") if setting.train.stop is not None else ("rows",)


def _fit(sites: Sequence[Site], request: Request) -> Fitted:
    setting, network = setting_of(sites[0]), network_of(sites[0])
    rows: list[Rows] = [site.memory[ROWS] for site in sites]
    keep = setting.train.state == "keep"
    fitted = fit_many(
        network,
        request.payload.arrays["weights"],
        stack(rows),
        training=setting.train.training(),
        keys=np.fromiter((site.row_key for site in sites), dtype=np.uint64, count=len(sites)),
        round=request.round,
        state=_kept_state(sites) if keep else None,
        measure_loss=setting.train.stop is not None,
        keep_state=keep,
    )
    if keep and fitted.state is not None:
        for index, site in enumerate(sites):
            site.memory[OPTIMISER] = fitted.state.take(slice(index, index + 1))
    return fitted


def _kept_state(sites: Sequence[Site]) -> OptimiserState | None:
    """The sites' optimiser states side by side; a site that never trained starts at zero."""
    known = [site.memory.get(OPTIMISER) for site in sites]
    example = next((state for state in known if state is not None), None)
    if example is None:
        return None
    fresh = OptimiserState(np.zeros_like(example.first), np.zeros_like(example.second), np.zeros_like(example.steps))
    states = [state or fresh for state in known]
    return OptimiserState(
        np.concatenate([state.first for state in states]),
        np.concatenate([state.second for state in states]),
        np.concatenate([state.steps for state in states]),
    )


def _train_one(site: Site, request: Request) -> Release:
    fitted = _fit([site], request)
    count = site.memory[ROWS].count
    metrics: dict[str, Any] = {"rows": count}
    if fitted.losses is not None:
        metrics["loss"] = float(fitted.losses[0])
    payload = Payload(arrays={"weights": fitted.weights[0]}, metrics=metrics)
    return Release(payload=payload, guarantee=site.aggregate(count), rows=count)


def _train_many(sites: Sequence[Site], request: Request) -> Releases:
    fitted = _fit(sites, request)
    counts = [site.memory[ROWS].count for site in sites]
    metrics: dict[str, Any] = {"rows": np.asarray(counts, dtype=np.int64)}
    if fitted.losses is not None:
        metrics["loss"] = fitted.losses
    return Releases(
        arrays={"weights": fitted.weights},
        metrics=metrics,
        guarantees=[site.aggregate(count) for site, count in zip(sites, counts, strict=True)],
        rows=counts,
    )


TRAIN = Task(name="train", one=_train_one, many=_train_many)
