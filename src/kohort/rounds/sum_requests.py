"""The requests of a sum, step by step, and whom a site relies on in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kohort.crypto.sums.scheme import KEY_HOLDER, Trust
from kohort.crypto.sums.session import SumSession
from kohort.protocol.hub import Ask, Expect
from kohort.protocol.site import Site
from kohort.protocol.task import Task
from kohort.protocol.wire import Payload

__all__ = ["step_request", "trust_of"]


def step_request(
    task: Task,
    session: SumSession,
    step: int,
    inboxes: Mapping[str, bytes],
    *,
    numbers: Mapping[str, int] | None = None,
    round_number: int = 0,
    inputs: Mapping[str, bytes] | None = None,
    members: bool = False,
    take: Callable[[str, bytes], None] | None = None,
) -> Ask:
    """The request of one step of a sum, or of anything else that members of a session do in steps.

    Args:
        task: What the sites run.
        session: Who takes part. Sums name its members with their first step, later steps its id alone.
        step: Which step.
        inboxes: What each site gets; one request goes to all where that is the same.
        numbers: What the request says besides the step.
        round_number: The round of the run.
        inputs: Public inputs, which every site gets.
        members: Whether a later step names the members, too.
        take: Gets each site's reply as it comes in.

    Returns:
        The request.
    """
    metrics = {"step": step, **(numbers or {})}
    texts = {**(inputs or {}), **(session.fields if step == 0 or members else {"session": session.id})}
    each = {site: Payload(metrics=metrics, blobs={**texts, "inbox": inbox}) for site, inbox in inboxes.items()}
    alike = len(set(inboxes.values())) == 1  # one request to all is made, hashed and receipted once
    return Ask(
        task=task,
        to=tuple(each),
        payload=next(iter(each.values())) if alike else Payload(),
        each=None if alike else each,
        round=round_number,
        expect=Expect(blobs=("answer",)),
        take=None if take is None else _taking(take),
    )


def _taking(take: Callable[[str, bytes], None]) -> Callable[[str, Payload], None]:
    return lambda site, payload: take(site, payload.blobs["answer"])


def trust_of(site: Site) -> Trust:
    """Whom a site relies on in a sum: its roster says who is a peer, and whether there is a key-holder.

    Args:
        site: The site, with its approved plan.

    Returns:
        Its keys, its roster, the key-holder or None, its policy's least number of sites, and the colluders that the
        plan allows for (1 without a secure sum).
    """
    secure = site.plan.secure
    return Trust(
        site.identity,
        site.find_peer(KEY_HOLDER),
        site.policy.min_sum_sites,
        site.find_peer,
        colluders=1 if secure is None else secure.colluders,
    )
