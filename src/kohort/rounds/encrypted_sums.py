"""Encrypted sums over requests and replies: a key from the key-holder, one message per site, and one total to open."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np

from kohort.crypto.sums.scheme import Integers, SumContext, SumScheme
from kohort.crypto.sums.session import SumSession
from kohort.errors import ConfigError
from kohort.protocol.hub import Ask, Coordinator, Expect, Replies, RoundEnd
from kohort.protocol.task import find_task
from kohort.protocol.wire import Payload

__all__ = ["encrypted_sum"]


def encrypted_sum(
    hub: Coordinator,
    scheme: SumScheme,
    session: SumSession,
    context: SumContext,
    task: str,
    first: Callable[..., Ask],
    *,
    least: int,
) -> Generator[Ask | RoundEnd, Any, tuple[Integers, tuple[str, ...], bytes]]:
    """Run one encrypted sum; replies are added as they come in.

    Args:
        hub: The coordinator.
        scheme: The scheme of the sum.
        session: Who takes part.
        context: What binds the sum.
        task: The name of the task whose contributions are added. It keeps the requests of two sums of one round apart.
        first: Makes the request to the sites, given `take`.
        least: The fewest sites of the total; the key-holder signs it, and never goes below its own minimum.

    Returns:
        The opened total, the sites in it, and the key-holder's signature on it, where the task asks for one.

    Raises:
        ConfigError: The run has no key-holder.
    """
    from kohort.crypto.sums.encrypted import EncryptedSum, join_ciphertexts
    from kohort.crypto.sums.key_holder import Offered
    from kohort.protocol.key_holder import KEYS, OPEN, SiteInboxes

    if hub.key_holder is None or not isinstance(scheme, EncryptedSum):
        raise ConfigError(
            f"a sum by {scheme.name!r} needs a key-holder, and this run has none", hint="Use method.secure.sum = masks"
        )
    which = Payload(
        metrics={"length": context.length, "modulus": context.modulus, "bits": context.bits, "least": least},
        blobs={
            "task": task.encode(),
            "view": context.view,
            **session.fields,
        },
    )
    keys: Replies = yield Ask(
        task=KEYS, to=(hub.key_holder,), payload=which, round=context.round, expect=Expect(blobs=("offer", "boxes"))
    )
    blobs = next(keys.payloads()).blobs
    offered = Offered(blobs["offer"], blobs["boxes"])
    side = scheme.encrypted_hub(context)
    ask = first(take=partial(side.take, 0))
    yield ask._replace(payload=Payload(), each=SiteInboxes(ask.payload, offered, context.index))
    claimed = np.fromiter((context.index[site] for site in side.claimed), dtype=np.uint32, count=len(side.claimed))
    opened: Replies = yield Ask(
        task=OPEN,
        to=(hub.key_holder,),
        payload=Payload(
            arrays={"claimed": claimed},
            metrics=which.metrics,
            blobs={**which.blobs, "totals": join_ciphertexts(side.totals())},
        ),
        round=context.round,
        expect=Expect(
            arrays={"total": ("<u8", (context.length,))},
            blobs=("signature",) if find_task(task).signed else (),
        ),
    )
    answer = next(opened.payloads())
    side.set_total(answer.arrays["total"])
    return (*side.total(), answer.blobs.get("signature", b""))
