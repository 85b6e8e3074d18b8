import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import DataError
from kohort.tables.cells import (
    SUPPRESSED,
    Cell,
    Interval,
    Label,
    ValueSet,
    canonical_text,
    format_cell,
    parse_cell,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
tricky = st.text(alphabet="ab*[]{}<>\\,N \n", max_size=8) | st.text(max_size=6)
intervals = st.builds(lambda a, b, m: Interval(min(a, b), max(a, b), m), finite, finite, st.booleans())
sets = st.lists(tricky | st.none(), min_size=1, max_size=4).map(lambda members: ValueSet(tuple(members)))
cells = intervals | sets | tricky.map(Label) | st.just(SUPPRESSED)


@given(cells)
def test_cells_read_back_exactly(cell: Cell) -> None:
    assert parse_cell(format_cell(cell)) == cell


@given(tricky)
def test_plain_texts_read_back_exactly(text: str) -> None:
    assert parse_cell(format_cell(text)) == text


@given(st.lists(cells | tricky, min_size=2, max_size=2))
def test_different_cells_have_different_texts(pair: list[Cell | str]) -> None:
    assert (format_cell(pair[0]) == format_cell(pair[1])) == (pair[0] == pair[1])


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Interval(20, 30), "[20, 30]"),
        (Interval(-0.5, 1e20), "[-0.5, 1e+20]"),
        (Interval(20, 30, missing=True), r"[20, 30, \N]"),
        (ValueSet(("b", "a", "a")), "{a, b}"),
        (ValueSet(("a,b", None)), r"{a\,b, \N}"),
        (Label("Higher education"), "<Higher education>"),
        (SUPPRESSED, "*"),
        ("Private", "Private"),
        ("<=50K", "<=50K"),
        ("[0-10)", "[0-10)"),
        ("*", r"\*"),
        ("{x}", r"\{x}"),
        (5, "5"),
        (5.0, "5"),
        (True, "true"),
        (None, None),
    ],
)
def test_documented_forms(cell, text) -> None:
    assert format_cell(cell) == text


@pytest.mark.parametrize("text", ["[1]", "[a, b]", "[2, 1]", "[1, inf]", "{a,b}", "{a{b}", r"{\x}", r"{a\N}"])
def test_malformed_cells_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_cell(text)
    assert text not in str(caught.value)


def test_empty_set_and_bad_interval_cannot_be_made() -> None:
    with pytest.raises(DataError):
        ValueSet(())
    with pytest.raises(DataError):
        Interval(math.nan, 1)


def test_canonical_text() -> None:
    assert [canonical_text(value) for value in (1, 1.0, 0.5, False, "x", -0.0)] == ["1", "1", "0.5", "false", "x", "0"]
