"""Runs over Flower's Grid: messages to the sites' nodes, and their replies before a deadline of ours."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from kohort.errors import SiteError
from kohort.transport.flower.bundle import bundle
from kohort.transport.flower.client_app import message_bytes, message_content
from kohort.transport.flower.environment import ACQUIRE_TASK, LONGEST_UPLOAD, hasten, require_flower
from kohort.transport.flower.long_polling import LONGEST_HOLD, HoldRequest
from kohort.transport.flower.poll_backoff import PollBackoff
from kohort.transport.flower.superlink import Connection, control_client, runtime_client

__all__ = ["FlowerRun", "flower_run"]

REPLY_POLL = 0.05, 0.2, 0.5
"""Seconds between the hub's looks for replies, where the SuperLink does not hold them: see `PollBackoff`."""
HELD = 0.5
"""A look that took so many seconds was held: the next one may follow at once."""
LAST_LOOK = 0.5
"""Seconds for the parts of a reply that was announced before the deadline, and is looked at after it."""


class FlowerRun:
    """One run of the SuperLink, driven from this process over the Grid."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._silent: dict[int, float] = {}
        self._ends = 0.0
        self.nodes: dict[str, int] = {}
        """The node of each site."""

    def online(self) -> dict[int, bytes]:
        """The nodes that are connected now, with their keys.

        Flower takes a node for connected up to a minute after its last heartbeat. One that let a deadline pass and was
        not heard of since does not count: it is not waited for again.
        """
        here = {node.node_id: node for node in self._grid.get_nodes()}
        for number in list(self._silent):
            if number in here and here[number].online_until > self._silent[number]:
                del self._silent[number]
        return {number: node.public_key for number, node in here.items() if number not in self._silent}

    def carry(self, messages: Mapping[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        """Push one message per site, and collect answers until all are there or the time is over."""
        here = self.online()
        missing = {name: "not connected" for name in messages if self.nodes.get(name) not in here}
        sent = {self.nodes[name]: data for name, data in messages.items() if name not in missing}
        came = self.exchange(sent, deadline=deadline)
        names = {node: name for name, node in self.nodes.items()}
        answers = {names[node]: data for node, data in came.items()}
        late = [name for name in messages if name not in answers and name not in missing]
        if late:
            known = {node.node_id: node.online_until for node in self._grid.get_nodes()}
            self._silent |= {self.nodes[name]: known.get(self.nodes[name], 0.0) for name in late}
        return answers, missing | dict.fromkeys(late, f"no answer within {deadline:g} seconds")

    def exchange(self, messages: Mapping[int, bytes], *, deadline: float) -> dict[int, bytes]:
        """The same by node number."""
        from flwr.app import Message

        ends = time.monotonic() + deadline
        # A message must not outlive its request: a node that comes back later is asked anew.
        outgoing = [
            Message(message_content(data), dst_node_id=node, message_type="query", ttl=deadline + 60)
            for node, data in messages.items()
        ]
        waiting = set(self._grid.push_messages(outgoing)) if outgoing else set()
        came: dict[int, bytes] = {}
        backoff, self._ends = PollBackoff(*REPLY_POLL), ends
        _give_up_at(ends)
        while waiting and (began := time.monotonic()) < ends:
            replies = list(self._grid.pull_messages(waiting))
            for reply in replies:
                waiting.discard(reply.metadata.reply_to_message_id)
                backoff.touch()
                if reply.has_content():
                    came[reply.metadata.src_node_id] = message_bytes(reply)
            if waiting and not replies and time.monotonic() - began < HELD:
                time.sleep(backoff.seconds)
        return came

    def longest_hold(self) -> float:
        """How many seconds a poll for replies may be held: not beyond the deadline."""
        return min(LONGEST_HOLD, self._ends - time.monotonic())


def _give_up_at(ends: float) -> None:
    """Let no sender that died in the middle of its answer keep this process beyond a deadline of ours.

    The Grid collects announced answers one by one, and waits for the parts of each.
    """
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.superlink.grid import http_grid

    def pull(*arguments: Any, **options: Any) -> Any:
        left = max(LAST_LOOK, min(LONGEST_UPLOAD, ends - time.monotonic()))
        return pull_objects(*arguments, **{**options, "max_time": left})

    internals: Any = http_grid
    internals.pull_objects = pull


@contextmanager
def flower_run(connection: Connection, *, superexec: bytes) -> Iterator[FlowerRun]:
    """Begin a run at the SuperLink and be its server side; the run ends with the block.

    Args:
        connection: How to reach the SuperLink.
        superexec: The SuperLink's secret for whoever runs its tasks.

    Yields:
        The run. The SuperLink notes it as completed, or as failed where the block raises.

    Raises:
        SiteError: The SuperLink cannot be reached, refuses, or gave the run to another server.
        ConfigError: Flower is not installed.
    """
    require_flower()
    from flwr.common.constant import SubStatus
    from flwr.common.serde import fab_to_proto, run_from_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.fab import Fab
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    hasten()
    content = bundle()
    with control_client(connection) as control:
        control.StartRun(StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))))
    acquiring = runtime_client(
        RuntimeHttpClient,
        connection,
        SuperExecAuthHttpInterceptor(master_secret=superexec, protected_methods={ACQUIRE_TASK}),
        name="SuperExec",
    )
    try:
        taken = acquiring.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
    finally:
        acquiring.close()
    if not taken.token:
        raise SiteError(
            "no process took this run from the SuperLink", hint="Stop other servers of this hub, then try again"
        )
    grid = HttpGrid(
        runtime_api_address=connection.address,
        insecure=connection.ca is None,
        root_certificates=connection.ca,
        token=taken.token,
    )
    run = FlowerRun(grid)
    client = grid._client = runtime_client(
        RuntimeHttpClient,
        connection,
        RuntimeTokenHttpInterceptor(token=taken.token),
        HoldRequest(run.longest_hold),
        name="flwr-serverapp",
        retry=make_simple_http_retry_invoker(),
    )
    heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
    status, details = SubStatus.FAILED, "interrupted"
    try:
        heart.start()
        begun = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = begun.task_id, begun.run.run_id
        TaskIdentity.node_id = begun.context.node_id
        grid.set_run(run_from_proto(begun.run))
        yield run
        status, details = SubStatus.COMPLETED, ""
    finally:
        with suppress(Exception):
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        with suppress(Exception):
            heart.stop()
        grid.close()
