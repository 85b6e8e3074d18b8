import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError, DataError
from kohort.tables.schema import ColumnSpec, Role, Schema

COLUMNS = ["id", "age", "sex", "city", "income", "codes", "note"]


def full_schema() -> Schema:
    return Schema.of(
        target="income",
        quasi=["age", "sex"],
        sensitive=["income"],
        identifiers=["id"],
        items=["codes"],
        features=["city", "age"],
        drop=["note"],
        bins={"age": [30, 50]},
        categories={"sex": ["f", "m"]},
        other=["city"],
        nullable=["city"],
    )


def test_roles_and_inputs_follow_table_order() -> None:
    schema = full_schema().resolve(COLUMNS)
    assert schema.target == "income"
    assert schema.quasi == ("age", "sex")
    assert schema.sensitive == ("income",)
    assert schema.identifiers == ("id",)
    assert schema.items == ("codes",)
    assert schema.features == ("age", "city")
    assert schema.inputs == ("age", "sex", "city", "codes")
    assert schema.dropped == ("note",)


def test_a_target_that_is_quasi_is_legal_but_no_input() -> None:
    schema = Schema.of(target="y", quasi=["y", "a"]).resolve(["a", "y"])
    assert schema.quasi == ("a", "y")
    assert schema.inputs == ("a",)


def test_a_sensitive_column_that_is_not_the_target_is_an_input() -> None:
    assert Schema.of(target="y", sensitive=["s"]).resolve(["s", "y"]).inputs == ("s",)


def test_mapping_round_trip_through_json() -> None:
    schema = full_schema().resolve(COLUMNS)
    again = Schema.from_mapping(json.loads(json.dumps(schema.to_mapping())))
    assert again == schema
    assert again.fingerprint() == schema.fingerprint()
    assert hash(again) == hash(schema)


names = st.text(min_size=1, max_size=5)


@given(st.dictionaries(names, st.sets(st.sampled_from([Role.QUASI, Role.SENSITIVE, Role.FEATURE]), min_size=1)))
def test_any_schema_round_trips(roles: dict[str, set[Role]]) -> None:
    schema = Schema(columns={name: ColumnSpec(roles=frozenset(found)) for name, found in roles.items()})
    assert Schema.from_mapping(json.loads(json.dumps(schema.to_mapping()))) == schema


def test_fingerprint_sees_every_difference() -> None:
    one = Schema.of(target="y", features=["a", "b"])
    assert one.fingerprint() == Schema.of(target="y", features=["a", "b"]).fingerprint()
    others = [
        Schema.of(target="y", features=["b", "a"]),
        Schema.of(target="y", features=["a"], quasi=["b"]),
        Schema.of(target="y", features=["a", "b"], bounds={"a": (0, 1)}),
        Schema.of(target="y", features=["a", "b"], drop=["c"]),
    ]
    assert len({schema.fingerprint() for schema in [one, *others]}) == 5


def test_a_column_without_a_role_is_listed() -> None:
    with pytest.raises(ConfigError, match=r"without a role: b, c.*rest"):
        Schema.of(target="y", features=["a"]).resolve(["a", "b", "c", "y"])


def test_rest_and_default_make_features() -> None:
    by_rest = Schema.of(target="y", features="rest", drop=["b"]).resolve(["a", "b", "c", "y"])
    assert by_rest.features == ("a", "c")
    assert Schema.of(target="y", drop=["b"]).resolve(["a", "b", "c", "y"], default=Role.FEATURE) == by_rest


@pytest.mark.parametrize("schema", [Schema.of(quasi=["agee"]), Schema.of(drop=["agee"]), Schema.of(target="agee")])
def test_a_name_the_table_lacks_points_to_the_nearest(schema: Schema) -> None:
    with pytest.raises(DataError, match=r"'agee'.*'age'"):
        schema.resolve(["age", "sex"], default=Role.FEATURE)


@pytest.mark.parametrize(
    "arguments",
    [
        {"target": "a", "identifiers": ["a"]},
        {"target": "a", "features": ["a"]},
        {"target": "a", "items": ["a"]},
        {"identifiers": ["a"], "quasi": ["a"]},
        {"quasi": ["a"], "drop": ["a"]},
        {"quasi": ["a", "a"]},
        {"quasi": "age"},
        {"features": ["a"], "bounds": {"a": (2, 1)}},
        {"features": ["a"], "bounds": {"a": (0, float("inf"))}},
        {"features": ["a"], "bins": {"a": [1, 1]}},
        {"features": ["a"], "bins": {"a": []}},
        {"features": ["a"], "categories": {"a": ["x", "x"]}},
        {"features": ["a"], "categories": {"a": ["x"]}, "bounds": {"a": (0, 1)}},
        {"features": ["a"], "kinds": {"a": "number"}, "categories": {"a": ["x"]}},
        {"features": ["a"], "kinds": {"a": "text"}},
    ],
)
def test_contradictions_are_refused(arguments) -> None:
    with pytest.raises(ConfigError):
        Schema.of(**arguments)


def test_two_targets_are_refused() -> None:
    spec = ColumnSpec(roles=frozenset({Role.TARGET}))
    with pytest.raises(ConfigError, match="more than one target"):
        Schema(columns={"a": spec, "b": spec})


def test_stored_schemas_are_checked() -> None:
    with pytest.raises(ConfigError, match="unknown role"):
        Schema.from_mapping({"columns": {"a": {"roles": ["quasy"]}}})
    with pytest.raises(ConfigError, match="not a stored schema"):
        Schema.from_mapping({"columns": [1]})
    with pytest.raises(ConfigError, match="unknown key"):
        Schema.from_mapping({"columns": {}, "drop": []})


def test_defaults_fill_gaps_and_never_override() -> None:
    codebook = Schema.of(categories={"sex": ["f", "m"]}, bounds={"age": (0, 120), "pay": (0, 9)}, nullable=["sex"])
    own = Schema.of(quasi=["sex", "age"], features=["pay"], bounds={"age": (18, 99)}, kinds={"pay": "category"})
    merged = own.with_defaults(codebook)
    assert merged.columns["sex"] == ColumnSpec(roles=frozenset({Role.QUASI}), categories=("f", "m"), nullable=True)
    assert merged.columns["age"].bounds == (18, 99)
    assert merged.columns["pay"].bounds is None
    assert Schema.of(drop=["sex"]).with_defaults(codebook).columns.keys() == {"age", "pay"}


def test_a_table_with_none_of_the_columns_is_not_described() -> None:
    """Its first line may hold cells."""
    schema = Schema.of(target="ill", features=("age", "town"))
    with pytest.raises(DataError) as caught:
        schema.resolve(["73007", "zqxsouth", "yes"], None)
    assert "first line" in str(caught.value)
    assert "zqxsouth" not in str(caught.value)
    with pytest.raises(DataError, match="Valid: age, place"):
        schema.resolve(["place", "age"], None)
    with pytest.raises(DataError, match="Did you mean 'agee'"):
        schema.resolve(["ill", "agee", "town"], None)
    with pytest.raises(DataError, match="Did you mean 'towns'"):
        Schema.of(target="town", features=("x",)).resolve(["towns", "y"], None)
