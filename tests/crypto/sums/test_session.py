"""Secure-sum sessions: one member list, many sums, and sites that form the list themselves."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from kohort.crypto.identity.parties import Identity
from kohort.crypto.sums.scheme import SumContext, Trust, find_scheme
from kohort.crypto.sums.session import SiteSession, SumSession
from kohort.errors import IntegrityError, RefusedError, SiteError
from kohort.rng import Streams

NAMES = tuple(f"site-{number}" for number in range(6))


def session(**changes: object) -> SumSession:
    return SumSession(**{"run": "r", "plan_hash": "p", "members": NAMES, **changes})  # type: ignore[arg-type]


def test_the_id_covers_run_plan_and_ordered_members() -> None:
    swapped = (NAMES[1], NAMES[0], *NAMES[2:])
    joined = (NAMES[0] + NAMES[1], *NAMES[2:])
    made = [
        session(),
        session(run="q"),
        session(plan_hash="q"),
        session(members=swapped),
        session(members=NAMES[:5]),
        session(members=joined),
    ]
    assert len({each.id for each in made}) == len(made)
    assert session().id == session().id


def test_a_site_forms_the_members_a_request_names() -> None:
    hub, site = session(), session()
    members = tuple(name for name in NAMES if name not in {"site-1", "site-4"})
    named = hub.over(members)
    assert named.members == members
    assert set(hub.over(NAMES).fields) == {"session"}, "the whole list needs no words"
    assert len(named.fields["left_out"]) == 8
    found = site.find(named.fields)
    assert found.members == members
    assert found.id == named.id
    assert site.find(named.fields) is found, "simulated sites share it"


def test_another_list_is_refused() -> None:
    named = session().over(NAMES[:4])
    for site in (session(run="q"), session(plan_hash="q"), session(members=NAMES[::-1]), session(members=())):
        with pytest.raises((RefusedError, IntegrityError)):
            site.find(named.fields)
    with pytest.raises(RefusedError, match="another list of sites"):
        session().find({**named.fields, "session": session().id})
    with pytest.raises(RefusedError, match="another list of sites"):
        session().find({})


@pytest.mark.parametrize("places", [[6], [2, 1], [1, 1], [2**31]])
def test_places_that_cannot_be_right_are_found_out(places: list[int]) -> None:
    with pytest.raises(IntegrityError, match="leaves out"):
        session().without(np.asarray(places, dtype="<u4").tobytes())
    with pytest.raises(IntegrityError, match="leaves out"):
        session().without(b"abc")


def test_the_hub_names_no_strangers_and_keeps_the_order() -> None:
    for members in (("stranger", *NAMES), NAMES[::-1], (*NAMES[:2], "stranger")):
        with pytest.raises(SiteError, match="plan's order"):
            session().over(members)


def test_a_site_that_is_left_out_takes_no_part() -> None:
    SiteSession(session(), "site-5")
    with pytest.raises(RefusedError, match="not among the sites"):
        SiteSession(session().over(NAMES[:5]), "site-5")


def test_sums_are_named_by_task_and_round_and_bind_the_names() -> None:
    made = session()
    first = made.context("t", 1, length=4, modulus=0, bits=40, view=b"")
    assert first is made.context("t", 1, length=4, modulus=0, bits=40, view=b"")
    others = [
        made.context("u", 1, length=4, modulus=0, bits=40, view=b""),
        made.context("t", 2, length=4, modulus=0, bits=40, view=b""),
        made.over(NAMES[:5]).context("t", 1, length=4, modulus=0, bits=40, view=b""),
    ]
    assert len({each.transcript for each in (first, *others)}) == 4
    assert first == SumContext(run="r", round=1, request="p:t", sites=NAMES, length=4)
    for length in (0, -1, 1 << 27):
        with pytest.raises(RefusedError, match="out of range"):
            made.context("t", 1, length=length, modulus=0, bits=40, view=b"")


def test_a_hub_cannot_fill_a_sites_memory_with_sessions() -> None:
    made = session(members=tuple(map(str, range(40))))
    for place in range(40):
        part = made.without(np.asarray([place], dtype="<u4").tobytes())
        part.context("t", place, length=1, modulus=0, bits=40, view=b"")
    assert len(made._parts) <= 8


def test_a_sum_of_several_steps_begins_once_and_is_resumed() -> None:
    known = {name: Identity.from_secret(name, Streams.seeded(4).bytes(name)) for name in NAMES}
    trust = Trust(known["site-0"], None, 3, lambda name: known[name].public)
    scheme = find_scheme("masks")
    keys = {
        name: scheme.session_keys(session(), name, Streams.seeded(1), replace(trust, identity=known[name]))
        for name in NAMES
    }
    keys["site-0"].agree(NAMES, scheme.gather({name: made.announcement for name, made in keys.items()}))
    own = SiteSession(session(), "site-0", keys["site-0"])
    context = own.session.context("t", 0, length=4, modulus=0, bits=40, view=b"")
    with pytest.raises(SiteError, match="not begun here"):
        own.resume("t", 0, step=1)
    part = own.begin(scheme, context, "t", Streams.seeded(1), trust, {"weights": b"w"})
    assert own.resume("t", 0, step=1) is part
    assert part.inputs == {"weights": b"w"}
    for place in (("u", 0), ("t", 1)):
        with pytest.raises(SiteError, match="not begun here"):
            own.resume(*place, step=1)
    with pytest.raises(IntegrityError, match="begun here before"):
        own.begin(scheme, context, "t", Streams.seeded(1), trust, {})
    own.end("t", 0)
    with pytest.raises(SiteError, match="not begun here"):
        own.resume("t", 0, step=1)


def test_federated_averaging_imports_no_encryption() -> None:
    """Nor masks, unless the plan sums by them, nor mappings of classes, closed forms or forests."""
    code = """
import sys
from kohort.methods.registry import find_method
from kohort.runs.config import load_plan
from kohort.runs.demo import demo_plan
from kohort.runs.run import run
raw = demo_plan(find_method("fedavg"), rounds=1).to_mapping()
heavy = {f"kohort.crypto.sums.{name}" for name in ("he", "packing", "encrypted", "key_holder", "bfv", "ckks")}
heavy |= {"kohort.methods.syntactic.mapping", "kohort.models.closed_form", "kohort.models.trees"}
masks = {f"kohort.crypto.sums.{name}" for name in ("masks", "mask_hub", "mask_messages", "mask_streams", "shamir")}
for secure in ({}, {"secure": {"sum": "masks"}}):
    raw["method"].pop("secure", None)
    raw["method"] |= secure
    run(load_plan(raw, complete=True), seed=1)
    found = sorted((heavy | {"tenseal"}) & set(sys.modules))
    assert not found, found
    assert masks & set(sys.modules) == (masks if secure else set())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("least", "sizes"), [(1, [1] * 6), (2, [2, 2, 2]), (3, [3, 3]), (4, [6]), (6, [6]), (7, [6]), (5, [6])]
)
def test_public_groups_are_of_at_least_so_many_members_in_order(least: int, sizes: list[int]) -> None:
    groups = session().groups(least)
    assert [len(group) for group in groups] == sizes
    assert tuple(name for group in groups for name in group) == NAMES


def test_the_last_public_group_takes_the_members_that_are_left() -> None:
    assert [len(group) for group in session(members=NAMES[:5]).groups(2)] == [2, 3]
