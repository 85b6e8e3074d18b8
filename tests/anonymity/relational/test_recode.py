"""Released cells: they cover every value of the class, are as tight as can be, and read back."""

from __future__ import annotations

import datetime

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tests.support.anonymity_tables import QUASI, problem_of, tables
from tests.support.examples import examples

from kohort.anonymity.relational.algorithms.mondrian import mondrian
from kohort.anonymity.relational.hierarchy_builders import data_independent
from kohort.anonymity.relational.hierarchy_levels import levels_by_column
from kohort.anonymity.relational.problem import Partition, code_table
from kohort.anonymity.relational.recode import label_cells, release, set_cells
from kohort.anonymity.relational.rule import Rule
from kohort.tables.cells import SUPPRESSED, Interval, Label, ValueSet, canonical_text, parse_cell


def covers(cell, value, hierarchy=None):
    if cell is SUPPRESSED:
        return True
    if isinstance(cell, Interval):
        return cell.missing if value is None else cell.low <= value <= cell.high
    if isinstance(cell, ValueSet):
        return (None if value is None else canonical_text(value)) in cell.values
    if isinstance(cell, Label):
        return canonical_text(value) in hierarchy.leaves(cell.text)
    return cell == (None if value is None else canonical_text(value))


def read_back(released, name):
    column = released[name]
    if column.dtype == pl.String:
        return [parse_cell(text) for text in column.to_list()]
    return [None if value is None else canonical_text(value) for value in column.to_list()]


@examples(40, 150)
@given(frame=tables(), k=st.integers(1, 6))
def test_sets_and_intervals_are_tight(frame, k):
    problem = problem_of(frame, Rule(k=k))
    found = mondrian(problem)
    released = release(frame, found, set_cells(problem.table, found))
    assert released.columns == frame.columns
    assert released["income"].equals(frame["income"])
    for name in QUASI:
        cells, values = read_back(released, name), frame[name].to_list()
        for start, end in zip(found.starts[:-1], found.starts[1:], strict=True):
            rows = found.order[start:end].tolist()
            held = {values[row] for row in rows}
            (cell,) = {cells[row] for row in rows}
            assert all(covers(cell, value) for value in held)
            if isinstance(cell, Interval):
                known = held - {None}
                assert (cell.low, cell.high, cell.missing) == (min(known), max(known), None in held)
            if isinstance(cell, ValueSet):
                assert len(cell.values) == len(held)


@examples(25, 100)
@given(frame=tables(), k=st.integers(1, 6))
def test_labels_cover_what_they_stand_for(frame, k):
    problem = problem_of(frame, Rule(k=k))
    found = mondrian(problem)
    given_ = data_independent(frame, QUASI)
    released = release(frame, found, label_cells(problem.table, found, levels_by_column(problem.table, given_)))
    for name in QUASI:
        pairs = zip(read_back(released, name), frame[name].to_list(), strict=True)
        assert all(covers(cell, value, given_[name]) for cell, value in pairs)


def test_a_column_that_is_not_generalised_keeps_its_type():
    frame = pl.DataFrame({"a": [1, 1, 2, 2], "b": [0.5, 0.7, 0.5, 0.5]})
    coded = code_table(frame, ["a", "b"])
    found = Partition.of_labels((frame["a"] - 1).to_numpy())
    released = release(frame, found, set_cells(coded, found))
    assert released["a"].equals(frame["a"])
    assert released["b"].to_list() == ["[0.5, 0.7]", "[0.5, 0.7]", "0.5", "0.5"]


def test_many_categories_dates_and_marks_read_back():
    frame = pl.DataFrame(
        {
            "code": [f"c{i}" for i in range(100)],
            "day": [datetime.date(2020, 1, 1) + datetime.timedelta(days=i) for i in range(100)],
            "mark": ["*", "[1, 2]", "{a, b}", "\\"] * 25,
        }
    )
    coded = code_table(frame, frame.columns)
    found = Partition.of_labels((pl.Series(range(100)) // 3).to_numpy())
    released = release(frame, found, set_cells(coded, found))
    for name in frame.columns:
        pairs = zip(read_back(released, name), frame[name].to_list(), strict=True)
        assert all(covers(cell, value) for cell, value in pairs)
