"""Lists of sites as requests carry them."""

from __future__ import annotations

import numpy as np
import pytest

from kohort.errors import IntegrityError
from kohort.protocol.plan.approved import ApprovedPlan
from kohort.tables.schema import Schema

NAMES = ("a", "b", "c")


def plan() -> ApprovedPlan:
    schema = Schema.of(target="y", features=("x",)).resolve(["x", "y"], None)
    return ApprovedPlan(run="r", plan_hash="p" * 64, method="m", config=None, schema=schema, sites=NAMES)


@pytest.mark.parametrize("names", [("a",), ("c", "a"), NAMES])
def test_a_list_reads_back_in_its_order(names: tuple[str, ...]) -> None:
    approved = plan()
    assert approved.sites_at(approved.places_of(names)) == list(names)


@pytest.mark.parametrize(
    "places", [[], [0, 0], [0, 1, 0], [3], [0, 2**32 - 1]], ids=["none", "twice", "again", "beyond", "far"]
)
def test_a_list_that_cannot_be_right_is_refused(places: list[int]) -> None:
    sent = np.asarray(places, dtype="<u4").tobytes()
    for read in (plan().sites_at, plan().read_places):
        with pytest.raises(IntegrityError, match="cannot be right"):
            read(sent)
        with pytest.raises(IntegrityError, match="cannot be right"):
            read(b"\0\0\0\0\1")
