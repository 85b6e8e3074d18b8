"""Simulated sites hold whole persons where rows are drawn; where a column decides, it is said who is at several."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.rng import Streams
from kohort.runs.config import load_plan
from kohort.runs.simulation import Population, populate

SEVERAL = "have rows at several sites, at most at"


def visits(persons: int = 120, each: int = 4) -> pl.DataFrame:
    draw = np.random.default_rng(1)
    rows = persons * each
    return pl.DataFrame(
        {
            "patient": np.arange(rows) % persons,
            "age": draw.integers(20, 90, rows),
            "clinic": draw.choice(["north", "south", "west"], rows),
            "ill": draw.choice(["no", "yes"], rows),
        }
    )


def population(
    split: str, *, tables: dict[str, pl.DataFrame] | None = None, data: Any = (), dp: Any = None, **sites: Any
) -> Population:
    named = {"table": "given", "target": "ill", "features": ["age"], "person": "patient", "drop": ["clinic"], "test": 0}
    method = {"name": "hybrid" if "low_risk" in sites else "fedavg"} | (
        {} if dp is None else {"dp": {"mechanism": "dp-sgd", "epsilon": 1.0, **dp}}
    )
    declared = {"bounds": {"age": [0, 100]}, "categories": {"ill": ["no", "yes"]}}
    made = {"split": split, **({} if split in ("files", "column:clinic") else {"count": 3}), **sites}
    plan = load_plan({"data": {**named, **declared, **dict(data)}, "sites": made, "method": method})
    return populate(plan, Streams.seeded(5), tables=tables or {"given": visits()})


def at_sites(found: Population) -> list[set[int]]:
    return [
        set(found.frame["patient"][int(a) : int(b)]) for a, b in zip(found.starts[:-1], found.starts[1:], strict=True)
    ]


@pytest.mark.parametrize("sites", [{}, {"clusters": 2}, {"low_risk": 0.5}])
@pytest.mark.parametrize("split", ["iid", "dirichlet"])
def test_whole_persons_are_dealt_out(split: str, sites: dict[str, Any]) -> None:
    found = population(split, **sites)
    persons = at_sites(found)
    assert sum(map(len, persons)) == len(set().union(*persons)) == 120
    assert not any(SEVERAL in note for note in found.notes)


@pytest.mark.parametrize("split", ["interval:age", "column:clinic", "sorted"])
def test_persons_at_several_sites_are_counted_in_a_note(split: str) -> None:
    found = population(split)
    where = [sum(person in site for site in at_sites(found)) for person in range(120)]
    several = sum(count > 1 for count in where)
    assert several > 0
    assert any(
        note.startswith(f"{several:,} persons (patient) {SEVERAL} {max(where)}, because") for note in found.notes
    )


def test_an_epsilon_per_person_holds_for_all_sites_of_a_person_or_is_refused() -> None:
    for dp in ({"unit": "person"}, {"unit": "person", "overlap": 2}):
        with pytest.raises(ConfigError, match=r'epsilon of dp\.unit = "person" would hold for fewer sites') as caught:
            population("column:clinic", dp=dp)
        assert str(caught.value.hint).startswith("Set dp.overlap = 3, or sites.split")
    assert population("column:clinic", dp={"unit": "person", "overlap": 3}).notes
    population("column:clinic", dp={"unit": "row"})
    population("iid", dp={"unit": "person"})


def test_equal_identifiers_in_tables_of_several_sites_are_said() -> None:
    table = visits().drop("clinic")
    tables = {"a": table[:240], "b": table[240:]}
    data = {"drop": []}
    said = "120 values of patient occur at several sites, at most at 2"
    assert said in population("files", tables=tables, data=data).notes
    warned = population("files", tables=tables, data=data, dp={"unit": "person"}).warnings
    assert f"{said}: if they are the same persons, set dp.overlap = 2, or epsilon is understated" in warned
    assert not population("files", tables=tables, data=data, dp={"unit": "person", "overlap": 2}).warnings


def test_sites_may_go_by_a_column_that_is_dropped() -> None:
    found = population("column:clinic")
    assert found.names == ("clinic=north", "clinic=south", "clinic=west")
    assert "clinic" not in found.frame.columns
    assert np.diff(found.starts).tolist() == visits()["clinic"].value_counts().sort("clinic")["count"].to_list()
