"""What the SuperLink keeps in memory: nodes with lasting numbers, and nothing of runs that ended."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SubStatus
from flwr.server.superlink.linkstate import linkstate_factory
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.config_loader import get_federation_manager

from kohort.transport.flower.link_state import keep_in_memory, node_number

KEYS = (b"key of north", b"key of south")


@pytest.fixture
def superlink(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the state that a SuperLink of these keys begins with."""
    monkeypatch.setattr(linkstate_factory, "InMemoryLinkState", linkstate_factory.InMemoryLinkState)

    def begun(*keys: bytes) -> Any:
        name = keep_in_memory(keys)
        manager = get_federation_manager(is_simulation=False)
        return linkstate_factory.LinkStateFactory(name, manager, ObjectStoreFactory(name)).state()

    return begun


def test_nodes_are_known_at_once_and_have_the_same_numbers_after_a_restart(superlink: Any) -> None:
    first, again = superlink(*KEYS), superlink(*KEYS)
    for key in KEYS:
        number = first.get_node_id_by_public_key(key)
        assert number == again.get_node_id_by_public_key(key) == node_number(key)
        assert 1 < number < 1 << 64
    assert node_number(KEYS[0]) != node_number(KEYS[1])
    assert first.get_node_id_by_public_key(b"key of nobody") is None
    assert {node.node_id for node in first.get_node_info(owner_aids=[NOOP_FLWR_AID])} == set(map(node_number, KEYS))


def test_a_node_that_looks_for_messages_after_a_restart_is_connected(superlink: Any) -> None:
    state = superlink(*KEYS)
    north, south = map(node_number, KEYS)
    assert state.get_node_info(statuses=[NodeStatus.ONLINE]) == []
    assert state.get_message_ins(node_id=north, limit=1) == []
    assert [node.node_id for node in state.get_node_info(statuses=[NodeStatus.ONLINE])] == [north]
    # One that said that it ends stays disconnected, whatever of it is still under way.
    state.activate_node(south, HEARTBEAT_DEFAULT_INTERVAL)
    state.deactivate_node(south)
    state.get_message_ins(node_id=south, limit=1)
    assert [node.node_id for node in state.get_node_info(statuses=[NodeStatus.ONLINE])] == [north]


def test_who_was_forgotten_is_not_let_in_until_added_again(superlink: Any) -> None:
    state = superlink(*KEYS)
    north = node_number(KEYS[0])
    state.delete_node(NOOP_FLWR_AID, north)
    assert state.get_node_id_by_public_key(KEYS[0]) is None
    state.get_message_ins(node_id=north, limit=1)
    assert state.get_node_id_by_public_key(KEYS[0]) is None
    made = state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, KEYS[0], HEARTBEAT_DEFAULT_INTERVAL)
    assert made == state.get_node_id_by_public_key(KEYS[0]) == north
    with pytest.raises(ValueError, match="already in use"):
        state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, KEYS[0], HEARTBEAT_DEFAULT_INTERVAL)


@pytest.mark.parametrize("killed", [False, True])
def test_what_is_left_of_a_run_goes_when_it_ends(superlink: Any, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    """By its hub's word, or because its hub is not heard of any more."""
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    state = superlink(*KEYS)
    run = state.create_run(None, None, None, {}, "federation", None, NOOP_FLWR_AID, TaskType.SERVER_APP)
    (task,) = state.get_tasks()
    assert state.claim_task(task.task_id)
    assert state.activate_task(task.task_id)
    part = get_object_id(b"what a site sent")
    state.object_store.preregister(run, ObjectTree(object_id=part))
    assert part in state.object_store
    if killed:
        record = state.task_token_store[task.task_id]
        monkeypatch.setattr(record, "active_until", record.active_until.replace(year=2000))
        state.get_run_status({run})
    else:
        assert state.finish_task(task.task_id, SubStatus.COMPLETED, "")
    assert part not in state.object_store
