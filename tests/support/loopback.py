"""A deployment in one process: the sites of a simulation behind the same messages, servers and ClientApps.

For tests and for trying a plan out: what works here works over Flower, and gives the very bits of the local engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kohort.testing.site_servers import ServedSites
from kohort.transport.flower.client_app import client_app, message_bytes, message_content
from kohort.transport.remote_engine import Carrier

__all__ = ["LoopBack", "LoopBackBackend"]


@dataclass(frozen=True)
class LoopBack:
    """Carries messages to ClientApps in this process: what a federation does, without machines."""

    apps: Mapping[str, Any]

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Every site replies at once."""
        del deadline
        from flwr.app import Context, Message, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        replies = {}
        for number, (name, data) in enumerate(messages.items(), 1):
            message = Message(message_content(data), dst_node_id=number, message_type="query")
            context = Context(run_id=1, node_id=number, node_config={}, state=RecordDict(), run_config={}, series_id=1)
            replies[name] = message_bytes(self.apps[name](message, context))
        return replies, {}


@dataclass
class LoopBackBackend(ServedSites):
    """Every simulated site behind a site_server and a ClientApp of its own."""

    name: str = "loopback"

    def carrier(self) -> Carrier:
        """What brings messages to the site_servers."""
        return LoopBack({name: client_app(site_server.reply) for name, site_server in self.site_servers.items()})
