"""The training task every iterative method shares: some epochs from the hub's weights on the site's encoded rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kohort.errors import SiteError
from kohort.models.dense.training import Fitted, OptimiserState, Training
from kohort.models.rows import Rows, StackedRows, read_only, stack
from kohort.models.trainable import Trainable
from kohort.privacy.door import Company
from kohort.privacy.guarantee import Aggregate
from kohort.protocol.corrections import find_correction
from kohort.protocol.hub import Expect
from kohort.protocol.plan import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Releases, Request, Task
from kohort.protocol.wire import Payload

__all__ = [
    "CLIP",
    "CONTROL",
    "MODEL",
    "OPTIMISER",
    "TRAIN",
    "TRAIN_SCAFFOLD",
    "approved_plan_of",
    "expected_update",
    "keep_state",
    "kept_by",
    "kept_state",
    "network_of",
    "put_back",
    "training_task",
]

OPTIMISER = "optimiser"
"""Where a site keeps its optimiser's state when the plan says so."""
GROUP = "group"
"""Where the first of a group of sites keeps what they share in a joint call."""
CONTROL = "control"
"""Where a site keeps its control variate (SCAFFOLD's c_i)."""
CLIP = "clip"
"""Where a site keeps the bound its adaptive clipping has come to."""
MODEL = "model"
"""Where a site keeps a model of its own, trained with its peers, that the hub does not know."""


def approved_plan_of(site: Site) -> ApprovedPlan:
    """The plan the site approved."""
    if site.approved is None:
        raise SiteError(f"site {site.name!r} was asked before it approved a plan")
    return site.approved


def network_of(site: Site) -> Trainable:
    """The network, built at the site from the approved plan."""
    network: Trainable | None = site.memory.get("network")
    if network is None:
        raise SiteError(f"site {site.name!r} was asked to train before it enrolled")
    return network


def training_task(approved: ApprovedPlan) -> Task:
    """The task a plan's correction needs."""
    return TRAIN_SCAFFOLD if find_correction(approved.train.correction).scaffold else TRAIN


def expected_update(network: Trainable, approved: ApprovedPlan) -> Expect:
    """What a training reply looks like."""
    parts = ("weights", "control") if find_correction(approved.train.correction).scaffold else ("weights",)
    flat = (np.dtype(network.dtype).str, (network.parameter_count,))
    return Expect(
        arrays=dict.fromkeys(parts, flat), metrics=("rows", "loss") if approved.train.stop is not None else ("rows",)
    )


def kept_by(site: Site) -> dict[str, NDArray[Any]]:
    """What a checkpoint must hold of a site so that its next round goes on as if nothing had happened."""
    kept: dict[str, NDArray[Any]] = {}
    state = site.memory.get(OPTIMISER)
    if state is not None:
        kept |= {"first": state.first, "second": state.second, "steps": state.steps}
    kept |= {name: site.memory[name] for name in (CONTROL, CLIP, MODEL) if name in site.memory}
    return kept


def put_back(site: Site, kept: dict[str, NDArray[Any]]) -> None:
    """The inverse of `kept_by`."""
    if "first" in kept:
        site.memory[OPTIMISER] = OptimiserState(kept["first"].copy(), kept["second"].copy(), kept["steps"].copy())
    for name in (CONTROL, CLIP, MODEL):
        if name in kept:
            site.memory[name] = kept[name].copy()


@dataclass(frozen=True, eq=False)
class _Group:
    """What stays the same as long as the same sites train on the same rows; making it anew each round would be slow."""

    rows: list[Rows]
    stacked: StackedRows
    keys: NDArray[np.uint64]
    training: Training
    counts: tuple[int, ...]
    told: NDArray[np.int64]
    """The counts as the replies tell them."""
    guarantees: tuple[Aggregate, ...]


def _rows_of(site: Site) -> Rows:
    """What the site may train on; none before its method's own tasks put it there, whatever the hub asks first."""
    rows = site.training_rows
    if rows is None:
        raise SiteError(f"site {site.name!r} was asked to train before it had rows to train on")
    return rows


def _group_of(sites: Sequence[Site]) -> _Group:
    if not isinstance(sites, Company):
        return _group_with_the_first(sites)
    rows_given, group = sites.shared.get(GROUP, (-1, None))
    if group is None or rows_given != Site.rows_given:
        group = _group_with_the_first(sites)
        sites.shared[GROUP] = Site.rows_given, group
    found: _Group = group
    return found


def _group_with_the_first(sites: Sequence[Site]) -> _Group:
    """The group the first of the sites keeps, if it is of the very rows of these, or a new one."""
    known: _Group | None = sites[0].memory.get(GROUP)
    rows = [_rows_of(site) for site in sites]
    if known is not None and len(known.rows) == len(rows) and all(map(is_, known.rows, rows)):
        return known
    counts = tuple([part.count for part in rows])
    group = _Group(
        rows=rows,
        stacked=stack(rows),
        keys=read_only(np.fromiter((site.row_key for site in sites), dtype=np.uint64, count=len(sites))),
        training=approved_plan_of(sites[0]).train.training(),
        counts=counts,
        told=np.asarray(counts, dtype=np.int64),
        guarantees=tuple([site.aggregate(count) for site, count in zip(sites, counts, strict=True)]),
    )
    sites[0].memory[GROUP] = group
    return group


_Losses = NDArray[np.float64] | None


def _train(sites: Sequence[Site], request: Request) -> tuple[dict[str, NDArray[Any]], _Losses, _Group]:
    """What training gave, stacked over the sites: arrays, losses where they are asked for; and the group."""
    approved, network = approved_plan_of(sites[0]), network_of(sites[0])
    group = _group_of(sites)
    keep = approved.train.state == "keep"
    start = request.payload.arrays["weights"]
    shift = None
    if "control" in request.payload.arrays:
        own = np.stack([site.memory.get(CONTROL, np.zeros_like(start)) for site in sites])
        shift = request.payload.arrays["control"] - own
    fitted = network.fit(
        start,
        group.stacked,
        training=group.training,
        keys=group.keys,
        round=request.round,
        state=kept_state(sites) if keep else None,
        shift=shift,
        measure_loss=approved.train.stop is not None,
        keep_state=keep,
    )
    if keep:
        keep_state(sites, fitted)
    arrays: dict[str, NDArray[Any]] = {"weights": fitted.weights}
    if shift is not None:
        arrays["control"] = _changed_controls(sites, request.payload.arrays, fitted, approved.train.lr)
    return arrays, fitted.losses, group


def _changed_controls(
    sites: Sequence[Site], sent: Mapping[str, NDArray[Any]], fitted: Fitted, lr: float
) -> NDArray[Any]:
    """SCAFFOLD, option II: c_i becomes c_i - c + (x - y_i) / (K lr). Keeps c_i at the sites, returns its change."""
    start, control = sent["weights"], sent["control"]
    steps = np.maximum(fitted.steps, 1)[:, None]
    moved = (start.astype(np.float64) - fitted.weights) / (steps * lr)
    changes: NDArray[Any] = np.where(fitted.steps[:, None] > 0, moved - control, 0.0).astype(start.dtype)
    for index, site in enumerate(sites):
        site.memory[CONTROL] = site.memory.get(CONTROL, np.zeros_like(start)) + changes[index]
    return changes


def kept_state(sites: Sequence[Site]) -> OptimiserState | None:
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


def keep_state(sites: Sequence[Site], fitted: Fitted) -> None:
    """Let every site keep its optimiser's state for the next round."""
    if fitted.state is not None:
        for index, site in enumerate(sites):
            site.memory[OPTIMISER] = fitted.state.take(slice(index, index + 1))


def _train_one(site: Site, request: Request) -> Release:
    arrays, losses, group = _train([site], request)
    count = group.counts[0]
    metrics: dict[str, Any] = {"rows": count}
    if losses is not None:
        metrics["loss"] = float(losses[0])
    payload = Payload(arrays={name: array[0] for name, array in arrays.items()}, metrics=metrics)
    return Release(payload=payload, guarantee=group.guarantees[0], rows=count)


def _train_many(sites: Sequence[Site], request: Request) -> Releases:
    arrays, losses, group = _train(sites, request)
    metrics: dict[str, Any] = {"rows": group.told}
    if losses is not None:
        metrics["loss"] = losses
    return Releases(arrays=arrays, metrics=metrics, guarantees=group.guarantees, rows=group.counts)


TRAIN = Task(name="train", one=_train_one, many=_train_many)
TRAIN_SCAFFOLD = Task(name="train.scaffold", one=_train_one, many=_train_many)
