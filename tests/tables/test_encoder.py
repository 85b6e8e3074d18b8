"""The encoder against a slow reference that walks cell by cell, and its behaviour on bad tables."""

import json
from bisect import bisect_left

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kohort.errors import ConfigError, DataError
from kohort.tables.cells import SUPPRESSED, Interval, Label, ValueSet, canonical_text, format_cell
from kohort.tables.encoder import Encoder, learn_domain, merge_domains
from kohort.tables.hierarchy import Hierarchy
from kohort.tables.schema import Schema

FRAME = pl.DataFrame(
    {
        "age": [20, 30, 50, None],
        "city": ["b", "a", None, "c"],
        "level": [2, 10, 1, 2],
        "codes": [["x", "y"], [], None, ["y"]],
        "y": ["no", "yes", "no", "yes"],
    }
)


def make(frame: pl.DataFrame = FRAME, encoding="label", dtype="float64", **options) -> Encoder:
    arguments = {"target": "y", "items": ["codes"], "features": "rest", **options}
    schema = Schema.of(**arguments).resolve(frame.columns)
    return Encoder(schema, learn_domain(frame, schema), encoding, dtype)


def reference_row(encoder: Encoder, row: dict) -> list[float]:
    out: list[float] = []
    for name in encoder.schema.inputs:
        domain, spec, value = encoder.domain.columns[name], encoder.schema.columns[name], row[name]
        if domain.kind == "number":
            if value is None:
                scaled = 0.0
            elif spec.bins is not None:
                scaled = bisect_left(spec.bins, value) / len(spec.bins)
            else:
                low, high = domain.bounds
                clipped = min(max(value, low), high) if spec.bounds else value
                scaled = 0.0 if low == high else (clipped - low) / (high - low)
            out += [scaled] + ([float(value is None)] if domain.missing else [])
            continue
        size = len(domain.categories)
        if domain.kind == "items":
            out += [float(item in (value or [])) for item in domain.categories]
            out += [float(value is None)] if domain.missing else []
            continue
        if value is None:
            code = size
        elif canonical_text(value) in domain.categories:
            code = domain.categories.index(canonical_text(value))
        else:
            code = domain.categories.index("other")
        total = size + domain.missing
        if encoder.encoding == "label":
            out.append(code / (total - 1) if total > 1 else 0.0)
        else:
            out += [float(code == index) for index in range(total)]
    return out


rows = st.fixed_dictionaries(
    {
        "age": st.integers(-5, 90) | st.none(),
        "income": st.floats(-10, 10) | st.none(),
        "city": st.sampled_from(["a", "b", "c d", ""]) | st.none(),
        "grade": st.sampled_from([1.0, 2.0, 10.0, 0.5]),
        "flag": st.booleans(),
        "codes": st.lists(st.sampled_from(["x", "y", "z"]), max_size=3, unique=True) | st.none(),
        "y": st.sampled_from(["no", "yes"]),
    }
)
TYPES = {
    "age": pl.Int64, "income": pl.Float64, "city": pl.String, "grade": pl.Float64, "flag": pl.Boolean,
    "codes": pl.List(pl.String), "y": pl.String,
}  # fmt: skip


@examples(20, 60)
@given(
    train=st.lists(rows, min_size=2, max_size=8),
    test=st.lists(rows, min_size=1, max_size=8),
    encoding=st.sampled_from(["label", "onehot"]),
    with_bins=st.booleans(),
)
def test_encoder_equals_the_reference(train, test, encoding, with_bins) -> None:
    train = [{**train[0], "y": "no", "income": 1.0}, {**train[1], "y": "yes"}, *train[2:]]
    schema = Schema.of(
        target="y",
        items=["codes"],
        features="rest",
        bins={"age": [10, 18, 65]} if with_bins else {},
        bounds={} if with_bins else {"age": (0, 80)},
        kinds={"grade": "category"},
        categories={"codes": ["x", "y", "z"]},
        other=["city", "grade"],
        nullable=["age", "income", "city"],
    ).resolve(list(TYPES))
    encoder = Encoder(schema, learn_domain(pl.DataFrame(train, schema=TYPES), schema), encoding, "float64")
    if not encoder.domain.columns["flag"].categories or len({row["flag"] for row in train}) < 2:
        test = [{**row, "flag": train[0]["flag"]} for row in test]
    got = encoder.transform(pl.DataFrame(test, schema=TYPES))
    assert got.shape == (len(test), encoder.width)
    assert got.flags.c_contiguous
    np.testing.assert_allclose(got, [reference_row(encoder, row) for row in test], atol=1e-12)


def test_names_and_values_of_a_small_table() -> None:
    encoder = make()
    assert encoder.feature_names == (
        "age", "age?missing", "city", "level", "codes=x", "codes=y", "codes?missing",
    )  # fmt: skip
    expected = [
        [0, 0, 1 / 3, 1 / 9, 1, 1, 0],
        [1 / 3, 0, 0, 1, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 1],
        [0, 1, 2 / 3, 1 / 9, 0, 1, 0],
    ]
    np.testing.assert_allclose(encoder.transform(FRAME), expected)
    assert encoder.target(FRAME).tolist() == [0, 1, 0, 1]
    assert encoder.classes == ("no", "yes")


def test_onehot_names() -> None:
    names = make(encoding="onehot").feature_names
    assert names[2:6] == ("city=a", "city=b", "city=c", "city?missing")


def test_order_and_extra_columns_do_not_matter() -> None:
    encoder = make()
    shuffled = FRAME.with_columns(extra=pl.lit(1)).select(reversed([*FRAME.columns, "extra"]))
    np.testing.assert_array_equal(encoder.transform(shuffled), encoder.transform(FRAME))
    np.testing.assert_array_equal(encoder.transform(FRAME.drop("y")), encoder.transform(FRAME))


def test_delimited_text_is_a_set_too() -> None:
    text = FRAME.with_columns(codes=pl.Series(["x; y;x", "", None, "y"]))
    np.testing.assert_array_equal(make().transform(text), make().transform(FRAME))


def test_float_type_and_round_trip() -> None:
    encoder = make(dtype="float32", encoding="onehot")
    assert encoder.transform(FRAME).dtype == np.float32
    again = Encoder.from_mapping(json.loads(json.dumps(encoder.to_mapping())))
    assert again == encoder
    assert again.transform(FRAME).tobytes() == encoder.transform(FRAME).tobytes()
    with pytest.raises(ConfigError, match="not a stored encoder"):
        Encoder.from_mapping({})


def test_learned_bounds_continue_and_declared_bounds_clip() -> None:
    wide = pl.DataFrame({"x": [-10.0, 0.0, 20.0], "y": ["a", "b", "a"]})
    train = pl.DataFrame({"x": [0.0, 10.0], "y": ["a", "b"]})
    learned = make(train, items=[])
    declared = make(train, items=[], bounds={"x": (0, 10)})
    assert learned.transform(wide)[:, 0].tolist() == [-1.0, 0.0, 2.0]
    assert declared.transform(wide)[:, 0].tolist() == [0.0, 0.0, 1.0]


def test_bins_are_closed_on_the_right() -> None:
    frame = pl.DataFrame({"x": [9, 10, 11, 20, 21], "y": ["a", "b", "a", "b", "a"]})
    encoder = make(frame, items=[], bins={"x": [10, 20]})
    assert encoder.transform(frame)[:, 0].tolist() == [0.0, 0.0, 0.5, 0.5, 1.0]
    assert encoder.domain.learned == ("y",)


def test_constant_columns_are_zero() -> None:
    frame = pl.DataFrame({"x": [3, 3], "c": ["k", "k"], "y": ["a", "b"]})
    assert make(frame, items=[]).transform(frame).tolist() == [[0, 0], [0, 0]]


def test_dates_are_numbers() -> None:
    frame = pl.DataFrame({"d": ["2020-01-01", "2020-01-11", "2020-01-06"], "y": ["a", "b", "a"]})
    frame = frame.with_columns(pl.col("d").str.to_date())
    assert make(frame, items=[]).transform(frame)[:, 0].tolist() == [0.0, 1.0, 0.5]


def test_unseen_categories_go_to_other_or_are_an_error() -> None:
    new = FRAME.with_columns(city=pl.Series(["Zurich", "a", None, "Zurich"]))
    with pytest.raises(DataError, match="column 'city' has 2 rows") as caught:
        make().transform(new)
    assert "Zurich" not in str(caught.value)
    encoder = make(other=["city"])
    assert encoder.transform(new)[:, 2].tolist() == [3 / 4, 0, 1, 3 / 4]


def test_a_natural_category_named_other_is_no_catch_all() -> None:
    train = FRAME.with_columns(city=pl.Series(["other", "a", None, "b"]))
    with pytest.raises(DataError, match="city"):
        make(train).transform(FRAME)


def test_unexpected_nulls_and_missing_columns_are_errors() -> None:
    encoder = make(FRAME.drop_nulls())
    with pytest.raises(DataError, match="'age' has 1 missing"):
        encoder.transform(FRAME)
    with pytest.raises(DataError, match="lacks columns: age, level"):
        encoder.transform(FRAME.drop("age", "level"))


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        ([0.0, 1.0], "regression", None),
        ([0, 1], "classification", ("0", "1")),
        ([10, 9], "classification", ("9", "10")),
        (list(range(20)), "classification", tuple(map(str, range(20)))),
        (list(range(21)), "regression", None),
        ([True, False], "classification", ("false", "true")),
        (["b", "a"], "classification", ("a", "b")),
    ],
)
def test_the_task_follows_the_target(values, task, classes) -> None:
    frame = pl.DataFrame({"x": range(len(values)), "y": values})
    encoder = make(frame, items=[])
    assert (encoder.task, encoder.classes) == (task, classes)
    expected = [float(value) for value in values] if classes is None else [
        classes.index(canonical_text(value)) for value in values
    ]  # fmt: skip
    assert encoder.target(frame).tolist() == expected


def test_a_declared_kind_decides_the_task() -> None:
    frame = pl.DataFrame({"x": range(3), "y": [1, 2, 1]})
    assert make(frame, items=[], kinds={"y": "number"}).task == "regression"
    many = pl.DataFrame({"x": range(30), "y": range(30)})
    assert make(many, items=[], kinds={"y": "category"}).task == "classification"
    assert make(many.with_columns(pl.col("y").cast(float)), items=[], kinds={"y": "category"}).classes[10] == "10"


def test_the_task_is_the_same_at_a_site_with_one_class() -> None:
    schema = Schema.of(target="y", features=["x"])
    sites = [pl.DataFrame({"x": [1, 2], "y": [label, label]}) for label in (0, 1)]
    encoder = Encoder(schema, merge_domains([learn_domain(site, schema) for site in sites]))
    assert [encoder.target(site).tolist() for site in sites] == [[0, 0], [1, 1]]


def test_bad_targets() -> None:
    with pytest.raises(DataError, match="'y' is missing in 1 row"):
        make().target(FRAME.with_columns(y=pl.Series(["no", None, "no", "yes"])))
    with pytest.raises(DataError, match="has only one class"):
        make(FRAME.with_columns(y=pl.lit("no")))
    with pytest.raises(DataError, match="lacks the target column 'y'"):
        make().target(FRAME.drop("y"))
    with pytest.raises(DataError, match="'y' has 4 rows"):
        make().target(FRAME.with_columns(y=pl.lit("maybe")))
    free = make(FRAME.drop("y"), target=None)
    assert free.classes is None
    for ask in (lambda: free.task, lambda: free.target(FRAME)):
        with pytest.raises(ConfigError, match="no target"):
            ask()


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="onehot"):
        make(encoding="one-hot")
    with pytest.raises(ConfigError, match="float64"):
        make(dtype="float16")
    encoder = make()
    with pytest.raises(ConfigError, match="lacks columns"):
        Encoder(encoder.schema, learn_domain(FRAME, Schema.of(target="y", features=["age"])))
    with pytest.raises(ConfigError, match="no column is left"):
        make(pl.DataFrame({"y": ["a", "b"]}), items=[])


# Generalised cells ------------------------------------------------------------------------------------------------

EXACT = pl.DataFrame({"age": [0, 10, 20, 40], "city": ["a", "b", "c", "d"], "y": ["n", "p", "n", "p"]})
REGIONS = {
    "city": Hierarchy.of("city", {"a": ["west", "*"], "b": ["west", "*"], "c": ["east", "*"], "d": ["east", "*"]})
}


def generalised(age: list, city: list) -> pl.DataFrame:
    return pl.DataFrame({"age": [format_cell(cell) for cell in age], "city": [format_cell(cell) for cell in city]})


def test_exact_cells_encode_as_without_generalisation() -> None:
    for encoding in ("label", "onehot"):
        encoder = make(EXACT, encoding, items=[])
        texts = EXACT.with_columns(pl.col("age").cast(pl.String))
        np.testing.assert_allclose(encoder.transform(texts, generalised=True), encoder.transform(EXACT))
        np.testing.assert_allclose(encoder.transform(EXACT, generalised=True), encoder.transform(EXACT))


def test_a_cell_is_the_mean_of_what_it_could_stand_for() -> None:
    table = generalised(
        [Interval(10, 30), SUPPRESSED, ValueSet(("10", "40")), Interval(20, 20)],
        [ValueSet(("a", "d")), Label("east"), SUPPRESSED, "b"],
    )
    label = make(EXACT, items=[]).transform(table, generalised=True, hierarchies=REGIONS)
    np.testing.assert_allclose(label, [[0.5, 0.5], [0.5, 2.5 / 3], [0.625, 0.5], [0.5, 1 / 3]])
    onehot = make(EXACT, "onehot", items=[]).transform(table, generalised=True, hierarchies=REGIONS)
    np.testing.assert_allclose(onehot[:, 1:], [[0.5, 0, 0, 0.5], [0, 0, 0.5, 0.5], [0.25] * 4, [0, 1, 0, 0]])


@examples(20, 50)
@given(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), st.sampled_from(["label", "onehot"]))
def test_a_set_equals_the_mean_of_its_members(members: list[str], encoding) -> None:
    encoder = make(EXACT, encoding, items=[])
    single = generalised([0] * len(members), members)
    together = generalised([0], [ValueSet(tuple(members))])
    np.testing.assert_allclose(
        encoder.transform(together, generalised=True)[0], encoder.transform(single, generalised=True).mean(axis=0)
    )


def test_intervals_over_bins_are_averaged_by_length() -> None:
    encoder = make(EXACT, items=[], bins={"age": [10, 20]})
    table = generalised([Interval(0, 40), Interval(5, 5), SUPPRESSED], ["a", "a", "a"])
    # [0, 10] is code 0, (10, 20] code 1, (20, 40] code 2: (10*0 + 10*1 + 20*2) / 40 / 2.
    np.testing.assert_allclose(encoder.transform(table, generalised=True)[:, 0], [0.625, 0.0, 0.5])


def test_missing_values_inside_cells() -> None:
    train = EXACT.with_columns(age=pl.Series([0, None, 20, 40]), city=pl.Series(["a", None, "c", "d"]))
    encoder = make(train, items=[])
    table = generalised([Interval(0, 40, missing=True), None], [ValueSet(("a", None)), None])
    np.testing.assert_allclose(encoder.transform(table, generalised=True), [[0.25, 0.5, 0.5], [0, 1, 1]])


def test_numbers_as_categories_take_intervals() -> None:
    frame = pl.DataFrame({"g": [1, 2, 3], "y": ["a", "b", "a"]})
    encoder = make(frame, items=[], kinds={"g": "category"})
    table = pl.DataFrame({"g": ["[2, 9]", "1"]})
    assert encoder.transform(table, generalised=True)[:, 0].tolist() == [0.75, 0.0]


def test_generalised_items_add_up() -> None:
    frame = pl.DataFrame({"codes": [["x", "y"], ["z"]], "y": ["a", "b"]})
    encoder = make(frame)
    table = pl.DataFrame({"codes": [["{x, y}", "z"], ["x", "{x, y}"], ["*"]]})
    np.testing.assert_allclose(
        encoder.transform(table, generalised=True), [[0.5, 0.5, 1], [1, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]]
    )


def test_bad_generalised_cells() -> None:
    encoder = make(EXACT, items=[])
    for column, cell, message in [
        ("city", "{a, secret}", r"'city' has 1 row"),
        ("city", "secret", r"'city' has 1 row"),
        ("age", "secret", r"'age' has 1 row"),
        ("age", "[secret]", r"'age'.*interval"),
        ("city", "<west>", r"'city'.*no hierarchy"),
        ("city", None, r"'city' has 1 missing"),
    ]:
        table = generalised([0], ["a"]).with_columns(pl.lit(cell, dtype=pl.String).alias(column))
        with pytest.raises(DataError, match=message) as caught:
            encoder.transform(table, generalised=True)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("dtype", [pl.Date, pl.Datetime("us")])
def test_generalised_dates_are_the_mean_of_their_leaves(dtype) -> None:
    days = pl.Series("x", ["2020-01-01", "2020-12-31", "2021-07-01", "2022-01-01"]).str.to_date()
    frame = pl.DataFrame({"x": days.cast(dtype), "y": ["a", "b", "a", "b"]})
    encoder = make(frame, items=[])
    texts = [canonical_text(value) for value in frame["x"].to_list()]
    years = Hierarchy.of("x", {text: [text[:4], "*"] for text in texts})
    years_cut = pl.DataFrame({"x": ["<2020>", "<2021>", "*", "<2022>"]})
    exact = encoder.transform(frame)[:, 0]
    found = encoder.transform(years_cut, generalised=True, hierarchies={"x": years})[:, 0]
    assert found[[0, 1, 3]] == pytest.approx([exact[:2].mean(), exact[2], exact[3]])
