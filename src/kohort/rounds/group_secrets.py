"""A secret that the sites of a run share: agreed on once, by requests and replies the hub carries and cannot read."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from kohort.crypto.group_secret import KEYS_CLAIM, SEALED_CLAIM, STEPS, GroupHub, GroupSite
from kohort.errors import IntegrityError, SiteError
from kohort.privacy.contract import Step
from kohort.protocol.hub import Ask, Coordinator, Hub, Replies, RoundEnd
from kohort.protocol.site import Site
from kohort.protocol.state import TaskState
from kohort.protocol.task import Release, Request, Task
from kohort.protocol.wire import Payload
from kohort.rounds.summing import join_session, step_request, trust_of

__all__ = ["SECRET", "agree_on_secret", "carry_secret", "secret_of", "secret_step"]


@dataclass
class SecretState(TaskState):
    """The site's part in the run's shared secret."""

    group: GroupSite | None = field(default=None, repr=False)


def _agree(site: Site, request: Request) -> Release:
    step, state = int(request.payload.metrics["step"]), site.state(SecretState)
    if step == 0:
        if state.group is not None:
            raise IntegrityError("the sites' shared secret was begun here before")
        session, approved, trust = join_session(site, request, 0).session, site.plan, trust_of(site)
        binding = f"{approved.run}:{approved.plan_hash}:{SECRET.name}:".encode() + session.id
        state.group = GroupSite(
            session.members,
            site.name,
            binding,
            site.streams,
            trust.identity,
            trust.find_peer,
            colluders=trust.colluders,
        )
    if state.group is None:
        raise SiteError(f"site {site.name!r} was asked about a secret that was not begun here")
    blob = state.group.reply(step, request.payload.blobs["inbox"])
    return Release(payload=Payload(blobs={"answer": blob}), guarantee=state.group.claim(step), rows=0, said=0)


SECRET = Task(name="sum.secret", one=_agree, public=False)


def secret_step() -> Step:
    """The agreement on a shared secret, once per run."""
    says = "your part of a secret that the sites share, so that they can check what the hub tells them"
    return Step(task=SECRET.name, says=says, claims=(SEALED_CLAIM, KEYS_CLAIM), parts=STEPS)


def secret_of(site: Site) -> bytes:
    """The secret the sites of this run share.

    Args:
        site: The site.

    Returns:
        The secret.

    Raises:
        SiteError: The sites have not agreed on one.
    """
    group = site.state(SecretState).group
    if group is None or group.secret is None:
        raise SiteError(f"site {site.name!r} was asked for a checked sum before the sites agreed on a secret")
    return group.secret


def agree_on_secret(hub: Hub) -> Generator[Ask | RoundEnd, Any, tuple[str, ...]]:
    """Let the sites of a run agree on a shared secret.

    Args:
        hub: The coordinator.

    Returns:
        The sites that share it.
    """
    return (yield from carry_secret(hub, SECRET))


def carry_secret(
    hub: Coordinator, task: Task, round_number: int = 0
) -> Generator[Ask | RoundEnd, Any, tuple[str, ...]]:
    """Carry the sites' messages until they hold a group's secret.

    Args:
        hub: The coordinator.
        task: The sites' part.
        round_number: The round of the requests.

    Returns:
        The sites that answered to the end.
    """
    session, side = hub.approved.session.over(hub.sites), GroupHub(hub.sites)
    inboxes = dict.fromkeys(hub.sites, b"")
    there: tuple[str, ...] = hub.sites
    for step in range(STEPS):
        replies: Replies = yield step_request(task, session, step, inboxes, round_number=round_number)
        sent = {site: payload.blobs["answer"] for site, payload in zip(replies.sites, replies.payloads(), strict=True)}
        inboxes, there = side.route(step, sent), replies.sites
    return there
