"""A site answers every step of its contract once, in its order, and nothing else."""

from __future__ import annotations

import pytest

from kohort.errors import RefusedError
from kohort.privacy.contract import ATTEMPTS, Asked, Contract, Place, Step, admit, note
from kohort.privacy.guarantee import Aggregate, Guarantee, Public, Raw


def step(task: str, **changes: object) -> Step:
    return Step(task=task, says=task, claims=(), **changes)


def asked(task: str, round: int = 0, *, part: int = 0, phase: int | None = None, attempt: int = 0) -> Asked:
    return Asked(task, round, part, phase, attempt, f"{task} {round} {part} {phase}")


SCRIPT = Contract.of(
    [step("enrol", required=True)],
    [],
    [step("count", every=2, rounds=range(6)), step("train", rounds=range(3), parts=2, sites=3)],
    [step("train", rounds=range(3, 5), phase=1), step("evaluate", rounds=range(3, 5), required=True)],
)


def answer(places: list[Place], request: Asked) -> None:
    found, position = SCRIPT.find(request)
    admit(places, found, position, request)
    note(places, found, position, request)


def test_a_request_is_found_with_its_place_in_the_script() -> None:
    assert SCRIPT.find(asked("enrol"))[1] == (0, 0, 0, 0, 0)
    assert SCRIPT.find(asked("count", 5))[1] == (1, 2, 0, 5, 0)  # two rounds of it per turn of its block
    assert SCRIPT.find(asked("train", 2, part=1))[1] == (1, 2, 1, 2, 1)
    found, position = SCRIPT.find(asked("train", 3, phase=1))
    assert (found.phase, position) == (1, (2, 3, 0, 3, 0))
    assert [one.task for one in SCRIPT] == ["enrol", "count", "train", "train", "evaluate"]


@pytest.mark.parametrize(
    "request_",
    [
        asked("enrol", 1), asked("train", 0, part=2), asked("train", 0, part=-1), asked("train", 0, phase=0),
        asked("train", 3), asked("train", 2, phase=1), asked("train", 5, phase=1), asked("else"),
    ],
)  # fmt: skip
def test_what_the_script_has_not_is_refused(request_: Asked) -> None:
    with pytest.raises(RefusedError, match="asks for no"):
        SCRIPT.find(request_)


def test_a_secure_sum_is_found_in_its_rounds_alone() -> None:
    assert SCRIPT.sum_step("train", 2).sites == 3
    for task, round_number in (("train", 3), ("count", 0), ("else", 0)):  # phase 1 of training is no sum
        with pytest.raises(RefusedError, match="no secure sum"):
            SCRIPT.sum_step(task, round_number)


def test_later_blocks_wait_for_the_required_steps_of_earlier_ones() -> None:
    assert [SCRIPT.required_before(block) for block in range(4)] == [(), ("enrol",), ("enrol",), ("enrol", "evaluate")]
    place, request = Place(), asked("count")
    found, position = SCRIPT.find(request)
    with pytest.raises(RefusedError, match="'enrol' must be answered first"):
        admit([place], found, position, request, required=("enrol",))
    answer([place], asked("enrol"))
    admit([place], found, position, request, required=("enrol",))
    with pytest.raises(RefusedError, match="'enrol' must be answered first"):
        admit([place, Place()], found, position, request, required=("enrol",))


def test_steps_are_answered_in_order_and_the_same_request_again() -> None:
    places = [Place(), Place()]
    for request in (asked("enrol"), asked("count", 0), asked("count", 1), asked("train", 0)):
        answer(places, request)
        answer(places, request)  # the same bytes again
    assert {place.furthest for place in places} == {(1, 0, 1, 0, 0)}
    for behind in (asked("count", 0)._replace(digest="other"), asked("train", 0)._replace(digest="other")):
        with pytest.raises(RefusedError, match="was answered to another request before"):
            answer(places, behind)
    answer(places, asked("train", 2))
    for behind in (asked("train", 1), asked("count", 3)):
        with pytest.raises(RefusedError, match="lies behind"):
            answer(places, behind)
    answer(places, asked("enrol"))  # what was answered may be repeated, and moves nothing back
    assert {place.furthest for place in places} == {(1, 2, 1, 2, 0)}
    with pytest.raises(RefusedError, match="another attempt"):
        answer(places, asked("train", 2, part=1, attempt=1))


def test_what_only_one_site_answered_before_is_refused_for_all() -> None:
    ahead, behind = Place(), Place()
    answer([ahead], asked("train", 1))
    with pytest.raises(RefusedError, match="lies behind"):
        answer([behind, ahead], asked("train", 0))
    with pytest.raises(RefusedError, match="lies behind"):
        answer([ahead, behind], asked("train", 0))
    assert behind.answered == {}


def test_parts_of_a_sum_come_one_after_the_other() -> None:
    place = Place()
    with pytest.raises(RefusedError, match="step 1 of 'train' was asked for before step 0"):
        answer([place], asked("train", 0, part=1))
    answer([place], asked("train", 0))
    answer([place], asked("train", 0, part=1))
    with pytest.raises(RefusedError, match="before step 0"):
        answer([place], asked("train", 1, part=1))  # part 0 of another round does not count


def test_a_step_without_order_leaves_the_place_as_it_is() -> None:
    place, free = Place(), step("set up", rounds=range(9), ordered=False)
    script = Contract.of([step("train", rounds=range(9))], [free])
    for request in (asked("train", 3), asked("set up", 1)):
        found, position = script.find(request)
        admit([place], found, position, request)
        note([place], found, position, request)
    assert place.furthest == (0, 3, 0, 3, 0)
    found, position = script.find(asked("train", 4))
    admit([place], found, position, asked("train", 4))  # the set-up, of a later block, did not move it on


def test_a_step_that_repeats_is_answered_to_other_requests_too() -> None:
    place, opening = Place(), step("open", repeats=True)
    first, second = asked("open"), asked("open")._replace(digest="another sum")
    note([place], opening, (0, 0, 0, 0, 0), first)
    for again in (first, second):
        admit([place], opening, (0, 0, 0, 0, 0), again)
    assert place.answered == {first.which: first.digest}


def test_a_step_that_failed_too_often_is_not_asked_for_again() -> None:
    place, request = Place(), asked("enrol")
    found, position = SCRIPT.find(request)
    for _ in range(ATTEMPTS):
        admit([place], found, position, request)
        place.fail(request)
    assert ATTEMPTS == 3
    with pytest.raises(RefusedError, match="asked for too often"):
        admit([place], found, position, request)
    other = asked("count")
    admit([place], *SCRIPT.find(other), other)  # each step has its own attempts


def test_a_release_answers_a_step_at_least_as_strong_and_for_its_recipient() -> None:
    low, high = Aggregate(rows=50), Aggregate(rows=100)
    claims: tuple[Guarantee, ...] = (low,)
    plain = Step(task="t", says="t", claims=claims, per_site=(("strict", (high,)),))
    assert plain.allows(low, "hub")
    assert plain.allows(high, "hub")
    assert not plain.allows(Raw(rows=50), "hub")
    assert not plain.allows(low, "peers")
    assert plain.allows(low, "hub", "another")
    assert plain.allows(high, "hub", "strict")
    assert not plain.allows(low, "hub", "strict")
    peers = Step(task="t", says="t", claims=(Public(what="x"),), to="peers")
    assert peers.allows(Public(what="x"), "peers")
    assert not peers.allows(Public(what="x"), "hub")
    assert not Step(task="t", says="t", claims=()).allows(low, "hub")


def test_a_step_takes_from_a_site_no_more_than_it_says() -> None:
    bare = step("t")
    assert (bare.times, bare.parts, bare.every, bare.sites, bare.phase) == (1, 1, 1, 0, None)
    assert (bare.ordered, bare.repeats, bare.required, bare.rows, bare.booked, bare.grouped) == (True, *(False,) * 5)
    assert step("t", rounds=range(4)).times == 4
    assert (Contract.of([bare]) + SCRIPT).blocks == ((bare,), *SCRIPT.blocks)
