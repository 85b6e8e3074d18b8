import json

import polars as pl
import pytest

from kohort.errors import ConfigError, DataError
from kohort.tables.domain import ColumnDomain, Domain, learn_domain, merge_domains
from kohort.tables.schema import Schema

FRAME = pl.DataFrame(
    {
        "age": [30, 20, None],
        "city": ["b", "a", None],
        "score": ["10", "9", "1"],
        "codes": [["x", "y"], [], ["y"]],
        "y": [0, 1, 1],
    }
)


def schema(**options) -> Schema:
    return Schema.of(target="y", items=["codes"], features="rest", **options).resolve(FRAME.columns)


def test_everything_undeclared_is_learned_and_named() -> None:
    domain = learn_domain(FRAME, schema())
    assert domain.columns["age"] == ColumnDomain(kind="number", bounds=(20, 30), missing=True)
    assert domain.columns["city"] == ColumnDomain(kind="category", categories=("a", "b"), missing=True)
    assert domain.columns["score"].categories == ("1", "9", "10")  # by number, not by text
    assert domain.columns["codes"] == ColumnDomain(kind="items", categories=("x", "y"))
    assert domain.learned == ("age", "city", "score", "codes", "y")


def test_declared_columns_do_not_depend_on_rows() -> None:
    declared = schema(
        bounds={"age": (0, 99)},
        categories={"city": ["z", "a"], "score": ["1", "2"], "codes": ["q"], "y": ["0", "1", "2"]},
        nullable=["age", "city"],
    )
    domain = learn_domain(FRAME, declared)
    assert domain.learned == ()
    assert learn_domain(FRAME.head(1), declared) == domain
    assert domain.columns["city"].categories == ("z", "a")  # the declared order is kept
    assert domain.columns["y"].categories == ("0", "1", "2")


def test_a_null_that_was_not_declared_is_learned() -> None:
    declared = schema(bounds={"age": (0, 99)})
    assert not learn_domain(FRAME, declared).columns["age"].declared
    dropped = learn_domain(FRAME.drop_nulls(), declared, missing="drop").columns["age"]
    assert dropped.declared
    assert not dropped.missing


def test_dropping_leaves_no_place_for_nulls() -> None:
    domain = learn_domain(FRAME.drop_nulls(), schema(nullable=["age", "city"]), missing="drop")
    assert not any(column.missing for column in domain.columns.values())


def test_other_is_a_last_category() -> None:
    domain = learn_domain(FRAME, schema(other=["city"]))
    assert domain.columns["city"].categories == ("a", "b", "other")


def test_merging_is_a_union_in_any_order() -> None:
    parts = [learn_domain(FRAME[[row]], schema(bounds={"age": (0, 99)})) for row in range(3)]
    whole = learn_domain(FRAME, schema(bounds={"age": (0, 99)}))
    assert merge_domains(parts) == whole
    assert merge_domains(parts[::-1]) == whole
    assert merge_domains([whole]) == whole


def test_a_target_of_integers_is_classes_up_to_twenty_over_all_sites() -> None:
    roles = Schema.of(target="y", features=["x"])
    few = pl.DataFrame({"x": range(30), "y": [value % 15 for value in range(30)]})
    more = few.with_columns(y=pl.col("y") + 10)
    domains = [learn_domain(frame, roles) for frame in (few, more)]
    assert all(domain.columns["y"].categories is not None for domain in domains)
    merged = merge_domains(domains).columns["y"]
    assert merged.categories is None  # 25 distinct values together
    assert merged.bounds == (0, 24)


def test_sites_that_disagree_are_told() -> None:
    text = pl.DataFrame({"x": ["a", "b"], "y": [0, 1]})
    numbers = pl.DataFrame({"x": [1, 2], "y": [0, 1]})
    roles = Schema.of(target="y", features=["x"])
    with pytest.raises(DataError, match=r"disagree whether column 'x'"):
        merge_domains([learn_domain(text, roles), learn_domain(numbers, roles)])
    with pytest.raises(DataError, match="disagree about columns: x"):
        merge_domains([learn_domain(text, roles), Domain(columns={"y": ColumnDomain(kind="category")})])
    with pytest.raises(ConfigError):
        merge_domains([])


def test_mapping_round_trip() -> None:
    domain = learn_domain(FRAME, schema(bounds={"age": (0, 99)}))
    assert Domain.from_mapping(json.loads(json.dumps(domain.to_mapping()))) == domain
    with pytest.raises(ConfigError, match="not a stored domain"):
        Domain.from_mapping({"x": {"kind": "number"}})


def test_bad_columns() -> None:
    with pytest.raises(DataError, match="lacks columns: age"):
        learn_domain(FRAME.drop("age"), schema())
    with pytest.raises(DataError, match="'age' has no value"):
        learn_domain(FRAME.with_columns(age=pl.lit(None, dtype=pl.Int64)), schema())
    with pytest.raises(DataError, match=r"declared a number but has none in 2 rows"):
        learn_domain(FRAME, schema(kinds={"city": "number"}))
