"""Which columns are suspected to identify persons, and which are not."""

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.tables.roles import guess_columns, person_of, suspected
from kohort.tables.schema import Schema

ROWS = 200
RANDOM = np.random.default_rng(1)
SUSPECTS = {
    "code": [f"K{number * 7919 % 9973}" for number in range(ROWS)],
    "patient_id": [number // 3 + 1000 for number in range(ROWS)],
    "case_id": RANDOM.permutation(ROWS * 10)[:ROWS],
    "row": np.arange(ROWS),
    "shuffled": RANDOM.permutation(ROWS),
    "mail": [f"u{number % 50}@example.org" for number in range(ROWS)],
    "reach": [f"+49301{number % 40:06d}" for number in range(ROWS)],
    "note": [f"the patient came in with complaint number {number} and left well again" for number in range(ROWS)],
    "mrn": [float(number + 5) for number in range(ROWS)],
}
PLAIN = {
    "area": RANDOM.normal(size=ROWS),
    "weight": RANDOM.permutation(10_000_000)[:ROWS],
    "age": RANDOM.integers(20, 90, ROWS),
    "ward": ["a", "b", "c", "d"] * (ROWS // 4),
    "admission_type_id": RANDOM.integers(1, 9, ROWS),
    "device_id": ["d1", "d2"] * (ROWS // 2),
    "smoker": [True, False] * (ROWS // 2),
    "city": [f"town {number % 60}" for number in range(ROWS)],
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_a_column_that_tells_persons_apart_is_suspected(name: str) -> None:
    assert suspected(pl.DataFrame({name: SUSPECTS[name]})).keys() == {name}


@pytest.mark.parametrize("name", PLAIN)
def test_a_measurement_or_a_category_is_not(name: str) -> None:
    assert suspected(pl.DataFrame({name: PLAIN[name]})) == {}


def test_what_the_user_names_is_not_suspected_and_reasons_hold_no_cell() -> None:
    frame = pl.DataFrame(SUSPECTS)
    assert suspected(frame, declared=["code", "mail"]).keys() == SUSPECTS.keys() - {"code", "mail"}
    said = " ".join(suspected(frame).values())
    assert "K7919" not in said
    assert "example" not in said
    assert [guess.name for guess in guess_columns(frame)] == list(SUSPECTS)


def test_several_identifiers_need_a_person() -> None:
    assert person_of(["a"], None) == "a"
    assert person_of([], None) is None
    assert person_of(["a", "b"], "b") == "b"
    with pytest.raises(ConfigError, match="several identifiers"):
        person_of(["a", "b"], None)
    with pytest.raises(ConfigError, match="several identifiers"):
        Schema.of(identifiers=["a", "b"], target="y")
    schema = Schema.of(identifiers=["a", "b"], person="b", target="y")
    assert schema.identifiers == ("b", "a")
    assert Schema.from_mapping(schema.to_mapping()) == schema
    assert schema.resolve(["a", "b", "y"]).identifiers == ("b", "a")
    assert Schema.of(person="p", target="y").identifiers == ("p",)


@pytest.mark.parametrize(
    "texts",
    [[f"{number * 37 % 991},{number % 100:02d} EUR" for number in range(ROWS)],
     [f"{number * 37 % 991}.5 kg" for number in range(ROWS)],
     [f"€ {number * 37 % 991},{number % 100:02d}" for number in range(ROWS)]],
)  # fmt: skip
def test_a_measurement_written_as_text_is_no_identifier(texts: list[str]) -> None:
    assert pl.Series(texts).n_unique() > 0.9 * ROWS
    assert not suspected(pl.DataFrame({"debt": texts}))


def test_reasons_are_said_in_english() -> None:
    (guess,) = guess_columns(pl.DataFrame({"iban": [f"DE{number:020d}" for number in range(ROWS)]}))
    assert guess.suspicion == "is named like an account number"
