"""Batches for release: the checker's verdict on random tables, and what single values may not be read off."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.anonymity.checker.measures import measure
from kohort.errors import RefusedError
from kohort.methods.partial.release import GRID, generalise_batch
from kohort.tables.domain import Domain, learn_domain
from kohort.tables.schema import Schema

SCHEMA = Schema.of(
    target="y", quasi=["age"], sensitive=["y"], features=["gain", "hours", "phase"], bins={"hours": [20, 40]},
    bounds={"age": [0, 100], "gain": [0, 1000]}, categories={"phase": ["a", "b", "c"], "y": ["no", "yes"]},
)  # fmt: skip


def table(rows: int, seed: int) -> pl.DataFrame:
    generator = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": generator.integers(0, 101, rows),
            "gain": np.where(generator.random(rows) < 0.9, 0, generator.integers(1, 1000, rows)),
            "hours": generator.integers(0, 60, rows),
            "phase": generator.choice(["a", "b", "c"], rows),
            "y": generator.choice(["no", "yes"], rows, p=[0.8, 0.2]),
        }
    )


def settled(frame: pl.DataFrame) -> tuple[Schema, Domain]:
    schema = SCHEMA.resolve(frame.columns)
    return schema, learn_domain(frame, schema, missing="drop")


@given(st.integers(30, 200), st.integers(0, 10_000), st.sampled_from([2, 5, 10]))
@examples(20, 40)
def test_every_batch_holds_k_and_l(rows: int, seed: int, k: int) -> None:
    frame = table(rows, seed)
    schema, domain = settled(frame)
    if frame["y"].n_unique() < 2:
        return
    released = generalise_batch(frame, schema=schema, domain=domain, k=k, l=2)
    seen = measure(released, quasi=["age", "gain", "hours", "phase"], sensitive=["y"])
    assert seen.k >= k
    assert seen.l_distinct is not None
    assert seen.l_distinct >= 2
    assert released["y"].equals(frame["y"])
    assert released.columns == frame.columns


@pytest.mark.parametrize("seed", range(5))
def test_item_sets_go_out_as_the_items_of_most_of_the_class(seed: int) -> None:
    generator, names = np.random.default_rng(seed), np.asarray(["cough", "fever", "pain", "rash"])
    has = generator.random((200, 4)) < [0.9, 0.6, 0.3, 0.02]
    frame = table(200, seed).with_columns(signs=pl.Series([names[row].tolist() for row in has]))
    schema = Schema.of(
        target="y", quasi=["age"], sensitive=["y"], items=["signs"], bounds={"age": [0, 100]},
        categories={"signs": names.tolist(), "y": ["no", "yes"]}, drop=["gain", "hours", "phase"],
    ).resolve(frame.columns)  # fmt: skip
    domain = learn_domain(frame, schema, missing="drop")
    released = generalise_batch(frame, schema=schema, domain=domain, k=10, l=1)
    shown = list(zip(released["age"], map(tuple, released["signs"]), strict=True))
    classes = {cell: np.asarray([other == cell for other in shown]) for cell in set(shown)}
    assert min(map(np.sum, classes.values())) >= 10
    assert len(classes) > 5
    for (_, items), rows in classes.items():
        # Classes that look alike count as one here, and what most of each have most of both have.
        assert set(items) == set(names[2 * has[rows].sum(axis=0) > rows.sum()])
    assert "rash" not in {item for _, items in shown for item in items}


def test_numbers_lie_on_the_public_grid() -> None:
    frame = table(300, 1)
    schema, domain = settled(frame)
    released = generalise_batch(frame, schema=schema, domain=domain, k=5, l=2)
    for name, width in (("age", 100), ("gain", 1000)):
        steps = released[name].to_numpy() / width * GRID * 2  # means on the grid, middles on half of it
        assert np.allclose(steps, np.rint(steps))


def test_a_lone_large_value_cannot_be_read_off_the_mean() -> None:
    frame = table(60, 2).with_columns(gain=pl.lit(0))
    frame = frame.with_columns(gain=pl.when(pl.int_range(pl.len()) == 7).then(777).otherwise(0))
    schema, domain = settled(frame)
    released = generalise_batch(frame, schema=schema, domain=domain, k=60, l=2)
    shown = float(released["gain"][0])
    assert shown != pytest.approx(777 / 60, abs=1e-9)
    assert abs(shown * 60 - 777) > 100  # neither can the value be had back by multiplying


def test_too_few_rows_are_not_released() -> None:
    frame = table(60, 3)
    schema, domain = settled(frame)
    with pytest.raises(RefusedError, match="61"):
        generalise_batch(frame, schema=schema, domain=domain, k=61, l=2)
    with pytest.raises(RefusedError):
        generalise_batch(frame.filter(pl.col("y") == "no"), schema=schema, domain=domain, k=2, l=2)
