"""Boosted stumps over private tables, by a package that kohort does not know: a method and its kind of model.

Each round every site sends, for each input and each of a few public bins of [0, 1], the sums of gradients and
curvatures of its rows. The hub adds them up and appends the stump, a tree of one split, that lowers the loss most
(Friedman 2001; second-order gains as in Chen and Guestrin 2016). Bins are a plain grid: no row decides where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from kohort.errors import ConfigError, SiteError
from kohort.methods.registry import Method
from kohort.models.base import Model, SavedModel
from kohort.models.registry import ModelKind
from kohort.models.rows import target_range
from kohort.privacy.contract import Contract, Step
from kohort.privacy.guarantee import Aggregate, Guarantee
from kohort.protocol.hub import Ask, Expect, Hub, ProtocolGenerator, Replies, Result, RoundEnd
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.tables.encoder import Encoder

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Stumps:
    """The keys of `[method]`."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
    trees: Annotated[int, Ge(1)] = 20
    bins: Annotated[int, Ge(2), Le(256)] = 16
    rate: Annotated[float, Gt(0), Le(1)] = 0.3


@dataclass(frozen=True, eq=False)
class StumpModel(Model):
    """Stumps [trees, 4]: input, cut, and what is added to the score at or below the cut, and above it."""

    encoder: Encoder
    stumps: Floats
    kind = "stumps"

    def margins(self, x: NDArray[Any]) -> Floats:
        """The sum of what all stumps say of encoded rows."""
        total = np.zeros(len(x))
        for column, cut, low, high in self.stumps:
            total += np.where(x[:, int(column)] <= cut, low, high)
        return total

    def codes(self, x: NDArray[Any]) -> NDArray[Any]:
        """Class codes, or numbers on the target's own scale."""
        if self.task == "classification":
            return (self.margins(x) > 0).astype(np.int64)
        low, width = target_range(self.encoder)
        return self.margins(x) * width + low

    def probabilities(self, x: NDArray[Any]) -> Floats:
        """Of the two classes."""
        if self.task != "classification":
            raise ConfigError("a predicted number has no class probabilities", hint="Use predict")
        second = 1 / (1 + np.exp(-self.margins(x)))
        return np.stack([1 - second, second], axis=1)

    def save(self) -> SavedModel:
        """The encoder as plain values, the stumps as an array."""
        return SavedModel(facts={"encoder": self.encoder.to_mapping()}, arrays={"stumps": self.stumps})

    def describe(self) -> dict[str, Any]:
        """What every model says, and how many trees it has."""
        return {**super().describe(), "trees": len(self.stumps)}


def _load(saved: SavedModel) -> StumpModel:
    return StumpModel(Encoder.from_mapping(saved.facts["encoder"]), saved.arrays["stumps"].reshape(-1, 4))


KIND = ModelKind(name="stumps", load=_load)


def _slopes(site: Site, request: Request) -> Release:
    config: Stumps = site.plan.config
    rows = site.training_rows
    if rows is None:
        raise SiteError("the site is not enrolled yet")
    model = StumpModel(site.encoder, request.payload.arrays["stumps"])
    margins, y = model.margins(rows.x), rows.y.astype(np.float64)
    if model.task == "classification":
        chances = 1 / (1 + np.exp(-margins))
        gradients, curvatures = chances - y, chances * (1 - chances)
    else:
        gradients, curvatures = margins - y, np.ones(len(y))
    places = np.clip(np.ceil(rows.x.astype(np.float64) * config.bins) - 1, 0, config.bins - 1).astype(np.int64)
    sums = np.stack(
        [
            [np.bincount(column, weights=numbers, minlength=config.bins) for numbers in (gradients, curvatures)]
            for column in places.T
        ]
    )
    guarantee = Aggregate(rows=rows.count)
    return Release(payload=Payload(arrays={"sums": sums}), guarantee=guarantee, rows=rows.count)


SLOPES = Task(name="stumps.slopes", one=_slopes)


def protocol(config: Stumps, hub: Hub) -> ProtocolGenerator:
    """Each round: the sites sum slopes over the bins, the hub appends the best stump."""
    if len(hub.encoder.classes or ()) > 2:
        raise ConfigError("boosted stumps tell two classes apart", hint="Use another method for more classes")
    stumps, first = np.empty((0, 4)), 0
    expect = Expect(arrays={"sums": ("<f8", (hub.encoder.width, 2, config.bins))})
    if hub.resume is not None:
        stumps, first = hub.resume.state["stumps"], hub.resume.round + 1
        model, state = StumpModel(hub.encoder, stumps), hub.resume.state
        yield RoundEnd(round=first - 1, rounds=config.trees, model=model, state=state, resumed=True)
    for number in range(first, config.trees):
        payload = Payload(arrays={"stumps": stumps})
        replies: Replies = yield Ask(task=SLOPES, to=hub.sites, payload=payload, round=number, expect=expect)
        stumps = np.vstack([stumps, _best(replies.array("sums").sum(axis=0), rate=config.rate)])
        model, state = StumpModel(hub.encoder, stumps), {"stumps": stumps}
        yield RoundEnd(round=number, rounds=config.trees, model=model, state=state)
    return Result(model=StumpModel(hub.encoder, stumps), rounds=config.trees, stopped_by="rounds")


def _best(sums: Floats, *, rate: float) -> Floats:
    """The stump with the largest gain, from sums [inputs, 2, bins] of gradients and curvatures."""
    left = np.cumsum(sums, axis=2)[:, :, :-1]
    right = sums.sum(axis=2, keepdims=True) - left
    steps = [-part[:, 0] / (part[:, 1] + 1.0) for part in (left, right)]
    gains = -left[:, 0] * steps[0] - right[:, 0] * steps[1]
    column, place = np.unravel_index(np.argmax(gains), gains.shape)
    low, high = (rate * float(step[column, place]) for step in steps)
    return np.array([column, (place + 1) / sums.shape[2], low, high])


def claims(config: Stumps, rows: int) -> Sequence[Guarantee]:
    """Sums over all rows of a site."""
    del config
    return (Aggregate(rows=rows),)


def contract(approved: ApprovedPlan) -> Contract:
    """Sums over all rows of a site, once per tree."""
    rounds = range(approved.config.trees)
    return Contract.of([Step(task=SLOPES.name, says="gradient sums", claims=(Aggregate(rows=0),), rounds=rounds)])


METHOD = Method(
    name="stumps",
    summary="Boosted stumps from sums of gradients over public bins.",
    config=Stumps,
    protocol=protocol,
    claims=claims,
    contract=contract,
    cites="",
    example="trees = 3",
)
