"""Test and validation rows are held out by person, so that a model is never judged on persons it was trained on."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.rng import Streams
from kohort.runs.config import load_plan
from kohort.runs.simulation import populate


def visits(persons: int = 200, each: int = 5) -> pl.DataFrame:
    """Rows of a person are alike, and the answer is the person's own coin."""
    draw = np.random.default_rng(3)
    of_row = np.repeat(np.arange(persons), each)
    return pl.DataFrame(
        {
            "patient_id": of_row + 1000,
            "z": draw.integers(0, 10**6, persons)[of_row] / 10.0,
            "ill": draw.integers(0, 2, persons)[of_row],
        }
    )


@pytest.mark.parametrize("validation", [None, 0.2])
def test_nobody_is_in_two_parts(validation: float | None) -> None:
    data = {"table": "given", "target": "ill", "features": ["z"], "identifiers": ["patient_id"], "test": 0.3}
    keys = {} if validation is None else {"validation": validation}
    plan = load_plan(
        {"data": {**data, **keys}, "sites": {"count": 4, "split": "iid"}, "method": {"name": "fedavg"}}
        | ({} if validation is None else {"train": {"reject": 3.0}})
    )
    found = populate(plan, Streams.seeded(1), tables={"given": visits()})
    parts = [found.frame, found.test, *([] if found.validation is None else [found.validation])]
    assert len(parts) == (2 if validation is None else 3)
    persons = [set(part["patient_id"]) for part in parts]
    assert sum(map(len, persons)) == len(set().union(*persons)) == 200
    assert found.test.height == 300
    assert "rows are held out by person (patient_id): nobody is in both parts" in found.notes


def test_rows_of_different_persons_are_held_out_as_before() -> None:
    table = visits(each=1)
    data = {"table": "given", "target": "ill", "features": ["z"], "test": 0.3}
    sites = {"count": 4, "split": "iid"}
    named = load_plan({"data": {**data, "identifiers": ["patient_id"]}, "sites": sites, "method": {"name": "fedavg"}})
    plain = load_plan({"data": {**data, "drop": ["patient_id"]}, "sites": sites, "method": {"name": "fedavg"}})
    one, other = (populate(plan, Streams.seeded(1), tables={"given": table}) for plan in (named, plain))
    assert one.test["z"].to_list() == other.test["z"].to_list()
    assert not [note for note in one.notes if "by person" in note]
