"""The training task that all iterative methods share: a few local epochs, starting from the hub's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kohort.errors import SiteError
from kohort.models.dense.training import Fitted, OptimiserState, Training
from kohort.models.rows import Rows, StackedRows, read_only, stack
from kohort.models.trainable import Trainable
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Aggregate
from kohort.protocol.hub import Expect
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.plan.corrections import find_correction
from kohort.protocol.site import Site
from kohort.protocol.state import StateArrays, TaskState
from kohort.protocol.task import Release, Releases, Request, Task
from kohort.protocol.wire import Payload

__all__ = [
    "TRAIN",
    "TRAIN_SCAFFOLD",
    "TrainingState",
    "expected_update",
    "keep_optimizer_state",
    "optimizer_state",
    "training_step",
    "training_task",
]


@dataclass
class TrainingState(TaskState):
    """What a site keeps between rounds of training."""

    NAME: ClassVar[str] = "training"

    optimizer: OptimiserState | None = None
    """The optimizer's state, when the plan says `train.state = "keep"`."""
    control: NDArray[Any] | None = None
    """The site's control variate (SCAFFOLD's c_i)."""
    clip: NDArray[Any] | None = None
    """The current bound of adaptive clipping."""
    model: NDArray[Any] | None = None
    """A model trained with its peers, which the hub does not know."""
    group: _Group | None = None
    """Cache: the stacked rows of all sites that train in one call; only the first of them stores it."""

    def checkpoint(self) -> StateArrays:
        """Optimizer state, control variate, clipping bound and own model, as far as they exist."""
        arrays: StateArrays = {}
        if self.optimizer is not None:
            arrays = {"first": self.optimizer.first, "second": self.optimizer.second, "steps": self.optimizer.steps}
        own = {"control": self.control, "clip": self.clip, "model": self.model}
        return arrays | {name: array for name, array in own.items() if array is not None}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `checkpoint`."""
        if "first" in arrays:
            self.optimizer = OptimiserState(*(arrays[name].copy() for name in ("first", "second", "steps")))
        self.control, self.clip, self.model = (
            arrays[name].copy() if name in arrays else None for name in ("control", "clip", "model")
        )


def training_task(approved: ApprovedPlan) -> Task:
    """The training task that a plan needs.

    Args:
        approved: The approved plan.

    Returns:
        `TRAIN_SCAFFOLD` when `train.correction` needs control variates, otherwise `TRAIN`.
    """
    return TRAIN_SCAFFOLD if find_correction(approved.train.correction).scaffold else TRAIN


def training_step(approved: ApprovedPlan) -> Step:
    """What the plan's training rounds ask of a site.

    Args:
        approved: The approved plan.

    Returns:
        The step, once per round.
    """
    losses = " and their training loss" if approved.train.stop is not None else ""
    return Step(
        task=training_task(approved).name,
        says=f"weights trained on your rows{losses}, from weights the hub chooses: a lying hub can read rows from them",
        claims=(Aggregate(rows=0),),
        rounds=range(approved.train.rounds),
    )


def expected_update(network: Trainable, approved: ApprovedPlan) -> Expect:
    """What a reply to the training task must look like.

    Args:
        network: The model.
        approved: The approved plan.

    Returns:
        Names, types and shapes of its parts.
    """
    parts = ("weights", "control") if find_correction(approved.train.correction).scaffold else ("weights",)
    flat = (np.dtype(network.dtype).str, (network.parameter_count,))
    return Expect(
        arrays=dict.fromkeys(parts, flat), metrics=("rows", "loss") if approved.train.stop is not None else ("rows",)
    )


@dataclass(frozen=True, eq=False)
class _Group:
    """What stays the same while the same sites train on the same rows; building it is slow."""

    rows: list[Rows]
    stacked: StackedRows
    keys: NDArray[np.uint64]
    training: Training
    counts: tuple[int, ...]
    reported_counts: NDArray[np.int64]
    """The same counts as an array, as replies hold them."""
    guarantees: tuple[Aggregate, ...]


_training_rows = attrgetter("training_rows")


def _rows_of(site: Site) -> Rows:
    """The rows the site may train on. Only a task of the method sets them, whatever the hub asks first."""
    rows = site.training_rows
    if rows is None:
        raise SiteError(f"site {site.name!r} was asked to train before it had rows to train on")
    return rows


def _group_of(sites: Sequence[Site]) -> _Group:
    """The stacked rows of these sites; cached while the same sites train on the same rows."""
    first = sites[0].state(TrainingState)
    known = first.group
    if known is not None and len(known.rows) == len(sites) and all(map(is_, known.rows, map(_training_rows, sites))):
        return known
    rows = [_rows_of(site) for site in sites]
    counts = tuple([part.count for part in rows])
    claims = {count: Aggregate(rows=count) for count in counts}
    first.group = _Group(
        rows=rows,
        stacked=stack(rows),
        keys=read_only(np.fromiter((site.row_key for site in sites), dtype=np.uint64, count=len(sites))),
        training=sites[0].plan.train.training(),
        counts=counts,
        reported_counts=np.asarray(counts, dtype=np.int64),
        guarantees=tuple([claims[count] for count in counts]),
    )
    return first.group


_Losses = NDArray[np.float64] | None


def _train(sites: Sequence[Site], request: Request) -> tuple[dict[str, NDArray[Any]], _Losses, _Group]:
    """Train. Returns arrays stacked over the sites, losses if early stopping needs them, and the group."""
    approved, network = sites[0].plan, sites[0].network
    group = _group_of(sites)
    keep = approved.train.state == "keep"
    start = request.payload.arrays["weights"]
    shift = None
    if "control" in request.payload.arrays:
        own = np.stack([_control(site, start) for site in sites])
        shift = request.payload.arrays["control"] - own
    fitted = network.fit(
        start,
        group.stacked,
        training=group.training,
        keys=group.keys,
        round=request.round,
        state=optimizer_state(sites) if keep else None,
        shift=shift,
        measure_loss=approved.train.stop is not None,
        keep_state=keep,
    )
    if keep:
        keep_optimizer_state(sites, fitted)
    arrays: dict[str, NDArray[Any]] = {"weights": fitted.weights}
    if shift is not None:
        arrays["control"] = _changed_controls(sites, request.payload.arrays, fitted.weights, group)
    return arrays, fitted.losses, group


def _changed_controls(
    sites: Sequence[Site], sent: Mapping[str, NDArray[Any]], trained: NDArray[Any], group: _Group
) -> NDArray[Any]:
    """SCAFFOLD, option II: c_i becomes c_i - c + (x - y_i) / (K lr). Stores c_i at the sites, returns its change.

    K counts full mini-batches: a shorter last one moves the weights by its share of a full step.
    """
    start, control = sent["weights"], sent["control"]
    training, counts = group.training, group.reported_counts[:, None]
    full = np.minimum(training.batch, counts) if training.batch else counts
    steps = training.epochs * counts / np.maximum(full, 1)
    moved = (start.astype(np.float64) - trained) / (np.maximum(steps, 1) * training.lr)
    changes: NDArray[Any] = np.where(steps > 0, moved - control, 0.0).astype(start.dtype)
    for index, site in enumerate(sites):
        site.state(TrainingState).control = _control(site, start) + changes[index]
    return changes


def _control(site: Site, start: NDArray[Any]) -> NDArray[Any]:
    known = site.state(TrainingState).control
    return np.zeros_like(start) if known is None else known


def optimizer_state(sites: Sequence[Site]) -> OptimiserState | None:
    """Stack the sites' optimizer states.

    Args:
        sites: The sites.

    Returns:
        The stacked states, zero for a site that never trained; None when no site has trained yet.
    """
    known = [site.state(TrainingState).optimizer for site in sites]
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


def keep_optimizer_state(sites: Sequence[Site], fitted: Fitted) -> None:
    """Store every site's optimizer state for the next round.

    Args:
        sites: The sites.
        fitted: What training them together gave.
    """
    if fitted.state is not None:
        for index, site in enumerate(sites):
            site.state(TrainingState).optimizer = fitted.state.take(slice(index, index + 1))


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
    metrics: dict[str, Any] = {"rows": group.reported_counts}
    if losses is not None:
        metrics["loss"] = losses
    return Releases(arrays=arrays, metrics=metrics, guarantees=group.guarantees, rows=group.counts)


TRAIN = Task(name="train", one=_train_one, many=_train_many, replayed=False, public=False)
TRAIN_SCAFFOLD = Task(name="train.scaffold", one=_train_one, many=_train_many, replayed=False, public=False)
