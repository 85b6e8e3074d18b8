"""A lying hub in training over secure sums: it chooses weights, changes totals, and leaves sites out.

Sites are those of a real run, unmodified. Each attack gets nothing; with the one check patched away it goes through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kohort.crypto.sums import checked
from kohort.errors import IntegrityError, KohortError
from kohort.protocol.hub import Ask
from kohort.rounds import summing
from kohort.rounds.totals import summed_tasks
from kohort.rounds.totals.summed import SummedPhases
from kohort.runs.config import Plan
from kohort.runs.run import Outcome, run
from kohort.testing import plan_of, tables

Tamper = Callable[[dict[str, bytes]], dict[str, bytes]]


def plan(scheme: str = "masks", **own: Any) -> Plan:
    return plan_of("fedavg", own={"secure": {"sum": scheme}, **own}, train={"rounds": 3})


def outcome(scheme: str = "masks") -> Outcome:
    return run(plan(scheme), seed=5, tables=tables())


def lie(monkeypatch: pytest.MonkeyPatch, change: Tamper, *, round_number: int = 1) -> None:
    """Let the hub announce something else in one round."""
    honest = SummedPhases.inputs

    def inputs(self: SummedPhases, number: int) -> dict[str, bytes]:
        said = honest(self, number)
        return change(said) if number == round_number else said

    monkeypatch.setattr(SummedPhases, "inputs", inputs)


def raised(said: dict[str, bytes]) -> dict[str, bytes]:
    """A total that moves one weight far: a hub that reads rows through weights of its choice begins like this."""
    total = np.frombuffer(said["total"], dtype="<u8").copy()
    total[0] = (total[0] + 2**40) % (2**61 - 1)
    return {**said, "total": total.tobytes()}


def tripled(said: dict[str, bytes]) -> dict[str, bytes]:
    """Every number and the check value, times three: a linear check would pass."""
    total = [int(number) * 3 % (2**61 - 1) for number in np.frombuffer(said["total"], dtype="<u8")]
    return {**said, "total": np.asarray(total, dtype="<u8").tobytes()}


def fewer(said: dict[str, bytes]) -> dict[str, bytes]:
    """The same total, over a site less than were in it."""
    return {**said, "sites": said["sites"][:-4]}


@pytest.mark.parametrize("scheme", ["masks", "bfv"])
@pytest.mark.parametrize("change", [raised, tripled, fewer])
def test_sites_take_no_step_from_a_total_that_is_not_theirs(
    scheme: str, change: Tamper, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie(monkeypatch, change)
    with pytest.raises(IntegrityError, match="not the sum of what the listed sites contributed"):
        outcome(scheme)


@pytest.mark.parametrize("change", [raised, tripled, fewer])
def test_without_the_check_a_hub_chooses_the_weights(change: Tamper, monkeypatch: pytest.MonkeyPatch) -> None:
    lie(monkeypatch, change)

    def believed(secret: bytes, transcript: bytes, sites: Any, announced: Any) -> Any:
        del secret, transcript, sites
        return announced[: -checked.CHECKS]

    monkeypatch.setattr(summed_tasks, "proven_total", believed)
    assert outcome().rounds == 3


def test_weights_do_not_come_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else a request carries, a site reads no weights from it."""
    honest, asked = summing.step_request, []

    def with_weights(*arguments: Any, **options: Any) -> Ask:
        ask = honest(*arguments, **options)
        asked.append(ask)
        return ask

    monkeypatch.setattr(summing, "step_request", with_weights)
    size = outcome().model.weights.size
    sums = [ask for ask in asked if ask.task is summed_tasks.SUM_UPDATES]
    assert sums
    for ask in sums:
        for name, blob in ask.payload.blobs.items():
            assert name in {"inbox", "session", "left_out", "start", "total", "sites"}
            assert name != "start" or len(blob) == 16
        assert not ask.payload.arrays
    assert size > 4


def test_a_seed_is_no_weight_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    lie(monkeypatch, lambda said: {"start": bytes(64)}, round_number=0)
    with pytest.raises(KohortError, match="seed of the first weights"):
        outcome()


def test_other_public_inputs_at_one_site_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another seed to one site: its masks are of another transcript."""
    honest = summing.step_request

    def per_site(task: Any, session: Any, step: int, inboxes: Any, **options: Any) -> Ask:
        ask = honest(task, session, step, inboxes, **options)
        if task is not summed_tasks.SUM_UPDATES or step != 0 or ask.each is not None:
            return ask
        first, *_ = ask.to
        other = {**ask.payload.blobs, "start": bytes(16)}
        each = {
            name: type(ask.payload)(metrics=ask.payload.metrics, blobs=other if name == first else ask.payload.blobs)
            for name in ask.to
        }
        return ask._replace(each=each)

    monkeypatch.setattr(summing, "step_request", per_site)
    with pytest.raises(KohortError, match="told other public inputs"):
        outcome()


def test_a_total_without_one_site_of_a_group_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sites are one group: a hub that claims a drop-out opens nothing."""
    from kohort.crypto.sums.mask_hub import MaskingHub

    honest = MaskingHub._take_vector

    def forget_last(self: MaskingHub, index: int, reply: bytes) -> None:
        if (
            index != len(self.context.sites) - 1
            or self.context.request.rpartition(":")[2] != summed_tasks.SUM_UPDATES.name
        ):
            honest(self, index, reply)

    monkeypatch.setattr(MaskingHub, "_take_vector", forget_last)
    monkeypatch.setattr(MaskingHub, "_require_whole_groups", lambda self: None)
    with pytest.raises(KohortError, match="leave out some sites of a group"):
        outcome()


@pytest.mark.parametrize("missing", ["start", "total", "sites"])
def test_a_round_without_its_inputs_is_refused(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(said: dict[str, bytes]) -> dict[str, bytes]:
        return {name: data for name, data in said.items() if name != missing}

    lie(monkeypatch, dropped, round_number=0 if missing == "start" else 1)
    with pytest.raises(KohortError):
        outcome()
