"""How many messages a run takes, and messages that travel together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from tests.support.loopback import LoopBackBackend

from kohort.errors import IntegrityError, RefusedError
from kohort.methods.registry import Method, find_method
from kohort.privacy.ledger.verify import verify_ledger
from kohort.protocol import answers
from kohort.protocol.hub import Ask
from kohort.runs.config import Plan, load_plan
from kohort.runs.run import Outcome, run
from kohort.transport.messages import join_messages, split_messages
from kohort.transport.remote_engine import RemoteEngine

SITES = ("east", "north", "south", "west")


def tables(rows: int = 60) -> dict[str, pl.DataFrame]:
    made = {}
    for number, name in enumerate(SITES):
        random = np.random.default_rng(number)
        a, b = random.uniform(0, 1, rows).round(3), random.uniform(0, 1, rows).round(3)
        ill = np.where(a + b + random.normal(0, 0.3, rows) > 1, "ill", "well")
        made[name] = pl.DataFrame({"a": a, "b": b, "outcome": ill})
    return made


def one_shot(scheme: str, **data: Any) -> Plan:
    return load_plan(
        {
            "data": {
                "table": "memory",
                "target": "outcome",
                "features": ["a", "b"],
                "bounds": {"a": [0, 1], "b": [0, 1]},
                "categories": {"outcome": ["ill", "well"]},
                **data,
            },
            "sites": {"split": "files"},
            "method": {"name": "oneshot", "oneshot": {"min_cell": 2}, "secure": {"sum": scheme}},
            "policy": {"min_rows": 1, "pairs": "open"},
        }
    )


@dataclass
class Counter:
    """A carrier that counts the messages each site gets."""

    backend: LoopBackBackend
    messages: dict[str, int] = field(default_factory=dict)

    def carry(self, messages: dict[str, bytes], *, deadline: float) -> tuple[dict[str, bytes], dict[str, str]]:
        for name in messages:
            self.messages[name] = self.messages.get(name, 0) + 1
        return {name: self.reply(name, message) for name, message in messages.items()}, {}

    def reply(self, name: str, message: bytes) -> bytes:
        return self.backend.site_servers[name].reply(message)


class Backend(LoopBackBackend):
    """A loop-back that counts."""

    kind: type[Counter] = Counter

    def carrier(self) -> Counter:
        self.counter = self.kind(self)
        return self.counter


def carried(plan: Plan, kind: type[Counter] = Counter, out: Path | None = None) -> tuple[Outcome, Counter]:
    backend = Backend(tables=tables(), folder=None if out is None else out / "sites")
    backend.kind = kind
    return run(plan, seed=4, backend=backend, out=None if out is None else out / "run"), backend.counter


@pytest.mark.parametrize(("scheme", "most"), [("masks", 6), ("bfv", 3), ("none", 2)])
def test_a_one_shot_run_takes_few_messages_and_gives_the_model_of_one_process(scheme: str, most: int) -> None:
    if scheme == "bfv":
        pytest.importorskip("tenseal")
    found, counter = carried(one_shot(scheme))
    assert max(counter.messages[name] for name in SITES) <= most
    here = run(one_shot(scheme), seed=4, tables=tables())
    assert np.array_equal(found.model.weights, here.model.weights)
    assert found.bytes == here.bytes
    assert found.files == here.files


def test_every_letter_of_a_message_stands_in_the_ledgers_of_both_sides(tmp_path: Path) -> None:
    carried(one_shot("masks"), out=tmp_path)
    for name in SITES:
        checked = verify_ledger(tmp_path / "sites" / name)
        # Enrolment with keys, agreement, shares, vector, confirmations, opening: seven letters in six messages.
        assert checked.releases == 7
    assert verify_ledger(tmp_path / "run").releases == 7 * len(SITES)


class Losing(Counter):
    """Cuts the second message off one site's first answer."""

    def reply(self, name: str, message: bytes) -> bytes:
        answer = super().reply(name, message)
        return split_messages(answer)[0] if name == "west" and len(split_messages(answer)) > 1 else answer


def test_a_site_whose_second_letter_is_lost_is_left_out_of_the_sum() -> None:
    found, _ = carried(one_shot("masks"), Losing)
    assert "west" in found.dropped
    assert found.sites == ("east", "north", "south")


class Repeating(RemoteEngine):
    """A hub that begins a sum a second time, under another number, to open it in two ways."""

    def exchange(self, ask: Ask) -> Any:
        replies = super().exchange(ask)
        if ask.task.name == "oneshot.statistics":
            if ask.payload.metrics.get("step") == 0:
                blobs = {**ask.payload.blobs, "again": b"1"}
                self.first = type(ask.payload)(metrics=ask.payload.metrics, blobs=blobs)
            else:
                super().exchange(Ask(task=ask.task, to=ask.to, payload=self.first, round=ask.round, expect=ask.expect))
        return replies


def test_a_sum_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kohort.testing.site_servers.RemoteEngine", Repeating)
    with pytest.raises(RefusedError, match=r"oneshot\.statistics"):  # by the contract
        carried(one_shot("masks"))
    monkeypatch.setattr(answers, "admit", lambda *_, **__: None)
    with pytest.raises(IntegrityError):  # by the session, if the contract let it pass
        carried(one_shot("masks"))


def test_nothing_goes_with_the_enrolment_where_something_must_come_first() -> None:
    method: Method = find_method("oneshot")
    few = dict(list(tables().items())[:2])
    with pytest.raises(RefusedError, match="needs three sites, and 2 take part"):
        run(one_shot("masks"), seed=4, tables=few)
    assert method.opening is not find_method("fedavg").opening


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=16))
def test_letters_come_out_of_a_message_as_they_went_in(messages: list[bytes]) -> None:
    assert split_messages(join_messages(messages)) == messages


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=2, max_size=4), st.integers(1, 30))
def test_a_message_that_is_cut_short_is_no_set_of_messages(messages: list[bytes], cut: int) -> None:
    message = join_messages(messages)
    whole = split_messages(message[: max(1, len(message) - cut)])
    assert whole != messages
    assert len(whole) < len(messages)
