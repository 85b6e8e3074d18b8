"""What the SuperLink knows while it serves: nodes, runs and messages, in memory.

Flower keeps it in an SQLite file, with over two hundred statements for every message and site; most of the time of a
short exchange went there. Nothing of it has to outlive the hub's process but the numbers of the nodes, and a node's
number follows from its key here. A hub that died begins a new Flower run anyway when a run is resumed. What sites sent
is in no file of the hub until a run keeps it.

This module imports Flower, so it is imported on demand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.server.superlink.linkstate import linkstate_factory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NodeStatus

__all__ = ["MemoryState", "keep_in_memory", "node_number"]

_NUMBER_BYTES = 8


def node_number(key: bytes) -> int:
    """The number of the node with this public key: the same after every start of the hub.

    A SuperNode keeps its number as long as it runs, and so over restarts of the hub.

    Args:
        key: The node's public key, as it is registered.

    Returns:
        A number of 64 bits. Flower draws as many.
    """
    return int.from_bytes(hashlib.blake2b(key, digest_size=_NUMBER_BYTES, person=b"kohort node").digest(), "little")


def keep_in_memory(keys: Iterable[bytes]) -> str:
    """Let the next SuperLink of this process keep its state in memory, and know these nodes from its first request on.

    A node that the SuperLink does not know is turned away for good, so they are known before it listens.

    Args:
        keys: The public keys of the nodes that may connect.

    Returns:
        The name under which Flower takes its state for one in memory.
    """
    known = tuple(keys)

    def made(*arguments: Any, **options: Any) -> MemoryState:
        state = MemoryState(*arguments, **options)
        for key in known:
            state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, HEARTBEAT_DEFAULT_INTERVAL)
        return state

    internals: Any = linkstate_factory
    internals.InMemoryLinkState = made
    return str(FLWR_IN_MEMORY_DB_NAME)


class MemoryState(InMemoryLinkState):
    """Flower's own, with lasting numbers of nodes, and without what is left of runs that ended."""

    def create_node(
        self, owner_aid: str, owner_name: str, public_key: bytes, heartbeat_interval: float, **more: Any
    ) -> int:
        """As Flower's, but that the number follows from the key, and that who left may come back."""
        with self.lock:
            if public_key in self.node_public_key_to_node_id and self.get_node_id_by_public_key(public_key) is None:
                self._forget(public_key)
            drawn = super().create_node(owner_aid, owner_name, public_key, heartbeat_interval, **more)
            node, number = self.nodes.pop(drawn), node_number(public_key)
            node.node_id = number
            self.nodes[number] = node
            self.node_public_key_to_node_id[public_key] = number
            self.owner_to_node_ids[owner_aid].discard(drawn)
            self.owner_to_node_ids[owner_aid].add(number)
            return number

    def _forget(self, public_key: bytes) -> None:
        node = self.nodes.pop(self.node_public_key_to_node_id.pop(public_key))
        self.owner_to_node_ids[node.owner_aid].discard(node.node_id)

    def get_message_ins(self, node_id: int, limit: int | None, **more: Any) -> list[Any]:
        """As Flower's; a node that was connected before the hub's restart counts from its first look on."""
        with self.lock:
            node = self.nodes.get(node_id)
            if node is not None and node.status == NodeStatus.REGISTERED:
                self.acknowledge_node_heartbeat(node_id, HEARTBEAT_DEFAULT_INTERVAL)
        return list(super().get_message_ins(node_id, limit, **more))

    def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
        """As Flower's; what nobody fetched of a run that ended is dropped."""
        ended = self._runs_of([self.task_store[task_id]]) if task_id in self.task_store else []
        finished = bool(super().finish_task(task_id, sub_status, details))
        self._drop(ended if finished else [])
        return finished

    def _on_task_tokens_expired(self, tasks: list[Any]) -> None:
        """As Flower's; the same for a run whose hub went away."""
        ended = self._runs_of(tasks)
        super()._on_task_tokens_expired(tasks)
        self._drop(ended)

    def _runs_of(self, tasks: Iterable[Any]) -> list[int]:
        """The runs that end with these tasks."""
        return [task.run_id for task in tasks if self._is_primary_task(task.task_id)]

    def _drop(self, runs: Iterable[int]) -> None:
        for run in runs:
            self.cleanup_run(run)
