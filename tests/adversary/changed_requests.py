"""A hub that changes the requests to one site of several, and believes the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kohort.protocol.task import Request
from kohort.testing import ServedSites
from kohort.testing.recorded import VICTIM
from kohort.transport.messages import (
    ReplyMessage,
    RequestMessage,
    join_messages,
    read_request,
    split_messages,
    write_request,
)
from kohort.transport.remote_engine import Carrier, RemoteEngine


@dataclass
class ChangedRequests:
    """A hub that changes the requests to one site."""

    carrier: Carrier
    served: ServedSites
    change: Callable[[RequestMessage], RequestMessage]
    site: str = VICTIM

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        assert self.served.hub is not None
        sent = dict(messages)
        if self.site in sent:
            asked = [read_request(one, hub=self.served.hub.public) for one in split_messages(sent[self.site])]
            sent[self.site] = join_messages([write_request(self.change(one), self.served.hub) for one in asked])
        return self.carrier.carry(sent, deadline=deadline)


def any_request(self: RemoteEngine, name: str, reply: ReplyMessage, number: str, request: Request) -> ReplyMessage:
    """A lying hub takes an answer to a request that it changed."""
    del self, name, number, request
    return reply
