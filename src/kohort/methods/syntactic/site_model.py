"""The model as a site has it where classes were sealed past the hub: the finished weights, under the site's classes.

After the last round the hub sends the weights to every site. A site puts them together with the classes that its peers
sealed to it and keeps the result; with it the site predicts as every reader of the model could if the hub had the
classes.

Guarantees: nothing of the classes leaves; the answer says that the model was kept, and no more. Weights of another
shape than the approved plan's model, or that are not finite, are an IntegrityError.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from kohort.errors import IntegrityError, SiteError
from kohort.methods.syntactic.anonymising import mapping_weights
from kohort.methods.syntactic.exchange import MappingState
from kohort.methods.syntactic.mapped_encoder import MappedEncoder
from kohort.methods.syntactic.mapped_model import MappedModel
from kohort.models.options import FloatArray
from kohort.privacy.contract import Step
from kohort.privacy.guarantee import Public
from kohort.protocol.hub import Ask, Expect, Hub, Replies, RoundEnd
from kohort.protocol.site import Site
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload

__all__ = ["KEEP", "handed_to_sites", "keep_step"]

_KEPT = Public(what="that it has the model")


def _keep(site: Site, request: Request) -> Release:
    """Keep the finished weights under the classes of all sites."""
    known = site.state(MappingState).known
    if not known:
        raise SiteError(f"site {site.name!r} was handed a model before it had the classes")
    site.keep_model(
        MappedModel(
            site.network,
            _checked(site, request),
            MappedEncoder.over(site.encoder, known, weights=mapping_weights(site.plan.config.anonymise.importance)),
        )
    )
    return Release(payload=Payload(), guarantee=_KEPT, rows=0)


def _checked(site: Site, request: Request) -> FloatArray:
    """The weights of a request, if they are a model of the approved plan."""
    sent = request.payload.arrays.get("weights")
    shape, dtype = (site.network.parameter_count,), np.dtype(site.network.dtype)
    if sent is None or sent.shape != shape or sent.dtype != dtype:
        raise IntegrityError("the hub handed out weights of another model than the plan's")
    if not np.isfinite(sent).all():
        raise IntegrityError("the hub handed out weights that are not finite")
    return sent.copy()


KEEP = Task(name="mappings.keep", one=_keep)


def keep_step() -> Step:
    """The step that hands the finished model to a site.

    Returns:
        The step, once after the last round.
    """
    return Step(
        task=KEEP.name, says="that you have the finished model, to predict with under the classes", claims=(_KEPT,)
    )


def handed_to_sites(hub: Hub, weights: FloatArray) -> Generator[Ask | RoundEnd, Any, tuple[str, ...]]:
    """Send the finished weights to every site.

    Args:
        hub: The hub and its sites.
        weights: The weights.

    Returns:
        The sites that keep the model.
    """
    replies: Replies = yield Ask(task=KEEP, to=hub.sites, payload=Payload(arrays={"weights": weights}), expect=Expect())
    return replies.sites
