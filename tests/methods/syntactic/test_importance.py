"""Ranking quasi-identifiers: what tells about the target comes first, columns count as a whole, ties are repeatable."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError, DataError
from kohort.methods.syntactic.importance import Method, rank

METHODS: tuple[Method, ...] = ("rfe", "extra-trees", "forest")
QUASI = ["age", "noise", "ward"]


def patients(rows: int = 400) -> pl.DataFrame:
    """The outcome follows ward (four values) and item A; age and noise tell nothing."""
    random = np.random.default_rng(5)
    ward = random.choice(["east", "north", "south", "west"], rows)
    held = random.random((rows, 4)) < 0.5
    score = 1.0 * np.isin(ward, ["east", "west"]) + 1.0 * held[:, 0] + random.normal(0, 0.3, rows)
    age = random.integers(20, 80, rows)
    return pl.DataFrame(
        {
            "age": np.where(random.random(rows) < 0.1, np.nan, age),
            "noise": random.normal(0, 1, rows),
            "ward": ward,
            "codes": [[code for code, has in zip("ABCD", line, strict=True) if has] for line in held],
            "outcome": np.where(score > 1, "ill", "well"),
        }
    ).with_columns(pl.col("age").fill_nan(None))


@pytest.mark.parametrize("method", METHODS)
def test_what_tells_most_is_kept(method: Method) -> None:
    found = rank(patients(), quasi=QUASI, target="outcome", items="codes", method=method, top=2)
    assert set(found.kept) == {"ward", "codes"}
    assert set(found.dropped) == {"age", "noise"}
    assert sum(found.weights.values()) == pytest.approx(1.0)
    assert list(found.weights) == list(found.kept)
    assert max(found.item_weights, key=lambda item: found.item_weights[item]) == "A"
    assert found.item_weights["A"] == 1.0
    assert set(found.item_weights) == set("ABCD")


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_ranking(method: Method) -> None:
    first, second = (rank(patients(), quasi=QUASI, target="outcome", method=method, seed=3) for _ in range(2))
    assert first == second
    assert first.item_weights == {}
    assert set(first.kept) == set(QUASI)
    assert first.dropped == ()


def test_a_column_counts_as_much_as_all_its_features() -> None:
    """Ten values split the signal of two: the column that has it all in one feature must not win for that."""
    random = np.random.default_rng(2)
    many = random.integers(0, 10, 1000)
    weak = np.where(random.random(1000) < 0.75, many < 5, random.random(1000) < 0.5)
    frame = pl.DataFrame({"many": [f"v{v}" for v in many], "weak": weak.astype(float), "y": (many < 5).astype(int)})
    found = rank(frame, quasi=["weak", "many"], target="y")
    assert found.kept[0] == "many"


def test_elimination_keeps_fifty_features() -> None:
    random = np.random.default_rng(4)
    codes = [[f"c{code}" for code in random.choice(120, 6, replace=False)] for _ in range(300)]
    outcome = [int("c7" in some or "c8" in some) for some in codes]
    frame = pl.DataFrame({"age": random.integers(20, 80, 300), "codes": codes, "y": outcome})
    found = rank(frame, quasi=["age"], target="y", items="codes", method="rfe")
    used = sum(weight > 0 for weight in found.item_weights.values())
    assert used + (found.weights["age"] > 0) <= 50
    assert min(found.item_weights["c7"], found.item_weights["c8"]) > 0.5


def test_columns_that_tell_nothing_weigh_the_same() -> None:
    frame = pl.DataFrame({"a": [1.0] * 20, "b": ["x"] * 20, "y": [0, 1] * 10})
    assert rank(frame, quasi=["a", "b"], target="y").weights == {"a": 0.5, "b": 0.5}


def test_bad_questions_are_errors() -> None:
    frame = patients(40)
    with pytest.raises(ConfigError, match="ranking"):
        rank(frame, quasi=QUASI, target="outcome", method="forrest")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="top"):
        rank(frame, quasi=QUASI, target="outcome", top=4)
    with pytest.raises(ConfigError, match="target"):
        rank(frame, quasi=["age", "outcome"], target="outcome")
    with pytest.raises(DataError, match="nowhere"):
        rank(frame, quasi=["nowhere"], target="outcome")
    with pytest.raises(DataError, match="two classes"):
        rank(frame.filter(pl.col("outcome") == "ill"), quasi=QUASI, target="outcome")
