"""Combinations: a table in parts gives the figures of the table as a whole, and those of rows counted one by one."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.anonymity.checker import combinations
from kohort.anonymity.checker.combinations import combine
from kohort.anonymity.checker.measures import judged, measure, measure_combinations
from kohort.errors import DataError

CELLS = st.tuples(
    st.sampled_from(["a", "b", "count", None]),
    st.sampled_from([0.5, -0.0, 0.0, None]),
    st.sampled_from([3, 9, 4, None]),
    st.booleans(),
    st.integers(0, 5),
)
SCHEMA = {"count": pl.String, "place": pl.Float64, "n": pl.Int64, "column0": pl.Boolean, "who": pl.Int64}


def frame_of(cells: list[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(cells, schema=SCHEMA, orient="row")


def in_parts(frame: pl.DataFrame, patched: pytest.MonkeyPatch, persons: str | None) -> combinations.Combinations:
    """The same table with slices of three rows, and parts of about one combination."""
    patched.setattr(combinations, "SLICE_ROWS", 3)
    patched.setattr(combinations, "LARGEST_PART", 60)
    patched.setattr(combinations, "SMALL_TABLE", 2)
    return combine(frame.lazy(), quasi=["count", "place"], sensitive=["n", "column0"], persons=persons)


@given(st.lists(CELLS, min_size=1, max_size=40), st.sampled_from([None, "who"]))
def test_parts_give_the_figures_of_the_whole(cells: list[tuple[object, ...]], persons: str | None) -> None:
    frame = frame_of(cells)
    expected = measure(frame, quasi=["count", "place"], sensitive=["n", "column0"], persons=persons)
    with pytest.MonkeyPatch.context() as patched:
        counted = in_parts(frame, patched, persons)
        assert measure_combinations(counted).to_mapping() == expected.to_mapping()
        assert counted.rows == frame.height
        assert sorted(counted.sizes("count")) == sorted(frame.group_by("count").len()["len"])


@given(st.lists(CELLS, min_size=1, max_size=40), st.sampled_from([None, "who"]))
def test_a_query_is_judged_in_parts_as_its_rows_are(cells: list[tuple[object, ...]], persons: str | None) -> None:
    frame = frame_of(cells)
    asked: dict[str, object] = {"k": 2, "l": 2, "l_kind": "recursive", "c": 1.5, "t": 0.2, "alpha": 0.6}
    roles = {"quasi": ["count", "place"], "sensitive": ["n", "column0"], "persons": persons}
    expected = judged(frame, **roles, **asked)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(combinations, "SLICE_ROWS", 3)
        patched.setattr(combinations, "LARGEST_PART", 60)
        found, problems = judged(frame.lazy(), **roles, **asked)
    assert (found.to_mapping(), problems) == (expected[0].to_mapping(), expected[1])


def test_a_table_of_many_combinations_really_is_read_in_parts() -> None:
    cells = [("a", float(row), row, True, row) for row in range(40)]
    with pytest.MonkeyPatch.context() as patched:
        counted = in_parts(frame_of(cells), patched, None)
        parts = list(counted.parts())
    assert counted.whole is None
    assert len(parts) > 10
    assert sum(part.classes.count for part in parts) == 40


@given(st.lists(CELLS, min_size=1, max_size=40))
def test_persons_of_each_value_are_counted_once(cells: list[tuple[object, ...]]) -> None:
    people = defaultdict(set)
    for cell in cells:
        people[cell[2]].add(cell[4])
    expected = [len(people[value]) for value in sorted(people, key=lambda value: (value is not None, value))]
    frame = frame_of(cells)
    with pytest.MonkeyPatch.context() as patched:
        assert in_parts(frame, patched, "who").values("n").counts.tolist() == expected
    assert combine(frame.lazy(), quasi=[], sensitive=["n"], persons="who").values("n").counts.tolist() == expected


def test_classes_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combinations, "_hash", lambda columns: pl.col(columns[0]).cast(pl.UInt64) % 3)
    monkeypatch.setattr(combinations, "SMALL_TABLE", 2)
    frame = pl.DataFrame({"q": [0, 3, 1, 4, 4, 2, 0], "s": list("abcdeab")})
    (part,) = combine(frame.lazy(), quasi=["q"], sensitive=["s"]).parts()
    assert sorted(part.classes.sizes.tolist()) == [1, 1, 1, 2, 2]


def test_rows_left_out_are_not_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    frame = pl.DataFrame({"q": rng.integers(0, 4, 500), "s": rng.integers(0, 3, 500)})
    frame = frame.with_columns(pl.when(pl.col("s") > 0).then(pl.col("s")).alias("s"))
    frame.write_parquet(tmp_path / "t.parquet", row_group_size=90)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(combinations, "SLICE_ROWS", 120)
        scanned = pl.scan_parquet(tmp_path / "t.parquet")
        counted = combine(scanned, quasi=["q"], sensitive=["s"], where=pl.col("s").is_not_null())
    kept = frame.drop_nulls()
    assert counted.rows == kept.height
    assert measure_combinations(counted) == measure(kept, quasi=["q"], sensitive=["s"])


def test_what_cannot_be_counted_is_refused() -> None:
    lists = pl.LazyFrame({"codes": [["a"], []], "q": [1, 2], "who": [1, None]})
    with pytest.raises(DataError, match="hold lists: codes"):
        combine(lists, quasi=["codes"])
    with pytest.raises(DataError, match="'codes' holds lists"):
        combine(lists, quasi=["q"], sensitive=["codes"])
    with pytest.raises(DataError, match="no column 'age'"):
        combine(lists, quasi=["age"])
    with pytest.raises(DataError, match="1 rows do not say in column 'who'"):
        combine(lists, quasi=["q"], persons="who")
    with pytest.raises(DataError, match="no rows"):
        combine(lists, quasi=["q"], where=pl.col("q") > 5)
