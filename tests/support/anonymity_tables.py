"""Random tables for the tests of the anonymisers."""

from __future__ import annotations

import polars as pl
from hypothesis import strategies as st

from kohort.anonymity.relational.problem import Partition, Problem, code_table
from kohort.anonymity.relational.rule import Rule, SensitiveColumns

RULES = (
    {"k": 2},
    {"k": 3, "l": 2},
    {"k": 2, "l": 1.6, "l_kind": "entropy"},
    {"k": 2, "l": 2, "l_kind": "recursive", "c": 2.5},
    {"k": 2, "t": 0.3},
    {"k": 3, "t": 0.25, "t_kind": "kl"},
    {"k": 2, "l": 2, "t": 0.4},
)


@st.composite
def tables(draw: st.DrawFn, *, dyadic: bool = False, least: int = 1, most: int = 60) -> pl.DataFrame:
    """Numbers with nulls, categories with nulls, a constant column, sensitive columns of both kinds.

    `dyadic` tables have losses that floats hold exactly, so that ties are ties.
    """
    rows = draw(st.integers(least, most))
    small = st.integers(0, 8) if dyadic else st.integers(-3, 12)
    number = small if dyadic else st.one_of(st.none(), small)
    letter = st.sampled_from("abcd") if dyadic else st.one_of(st.none(), st.sampled_from("abcde*"))

    def column(values: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    first, second = column(number), column(letter)
    if dyadic:
        # Both ends of the range and all four letters, so that every loss is a multiple of an eighth.
        first[:2], second[:4] = [0, 8][:rows], ["a", "b", "c", "d"][:rows]
    return pl.DataFrame(
        {
            "number": pl.Series(first, dtype=pl.Int64),
            "letter": pl.Series(second, dtype=pl.String),
            "flag": pl.Series(column(st.booleans()), dtype=pl.Boolean),
            "constant": pl.Series(["same"] * rows, dtype=pl.String),
            "illness": pl.Series(column(st.sampled_from(["flu", "cold", "gout"])), dtype=pl.String),
            "income": pl.Series(column(st.integers(0, 4)), dtype=pl.Int64),
        }
    )


QUASI = ["number", "letter", "flag", "constant"]


def problem_of(frame: pl.DataFrame, rule: Rule, *, quasi: list[str] = QUASI, by_value: bool = False) -> Problem:
    private = ["illness", "income"] if rule.needs_sensitive else []
    return Problem(code_table(frame, quasi, by_value=by_value), SensitiveColumns.of(frame, private), rule)


def as_sets(partition: Partition) -> set[frozenset[int]]:
    bounds = zip(partition.starts[:-1], partition.starts[1:], strict=True)
    return {frozenset(partition.order[start:end].tolist()) for start, end in bounds}
