"""Classes by two ways: with a number per row, and sizes alone."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.anonymity.checker.classes import class_sizes, group_rows
from kohort.errors import DataError

CELLS = st.tuples(st.sampled_from(["a", "b", "row", None]), st.sampled_from([0.5, -0.0, 0.0, None]), st.booleans())


@given(st.lists(CELLS, min_size=1, max_size=40), st.lists(st.sampled_from(["row", "key0", "rows"]), unique=True))
def test_sizes_alone_are_those_of_the_classes(
    cells: list[tuple[str | None, float | None, bool]], by: list[str]
) -> None:
    frame = pl.DataFrame(cells, schema={"row": pl.String, "key0": pl.Float64, "rows": pl.Boolean}, orient="row")
    assert class_sizes(frame, by).tolist() == sorted(group_rows(frame, by).sizes.tolist())
    assert class_sizes(frame, by).sum() == frame.height


def test_a_column_of_lists_or_none_at_all_is_refused() -> None:
    frame = pl.DataFrame({"codes": [["a"], []]})
    with pytest.raises(DataError, match="hold lists: codes"):
        class_sizes(frame, ["codes"])
    with pytest.raises(DataError, match="no column 'age'"):
        class_sizes(frame, ["age"])
