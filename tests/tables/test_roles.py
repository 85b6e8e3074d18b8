"""Which columns are suspected to identify persons, and which are not."""

from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.tables.roles import guess_columns, indirect, person_of, suspected
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
    "weight": RANDOM.choice(10_000_000, ROWS, replace=False),
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


NUMBERS_OF_PERSONS = (
    "Patienten-ID", "PatientenID", "Pat_Nr", "PatNr", "Versichertennummer", "Versicherten-Nr",
    "Krankenversichertennummer",
    "Fallnummer", "Kundennummer", "Kennung", "Personalnummer", "Personenkennziffer", "Schülernummer", "Steuer-ID",
    "matricule", "numéro_patient", "Numéro de dossier", "numero_securite_sociale", "identifiant_patient",
    "burgerservicenummer", "BSN", "Patiëntnummer", "klantnummer", "verzekerde_nr",
    "codice fiscale", "codice_paziente", "numero_tessera_sanitaria", "numero_paciente", "Número de historia clínica",
    "DNI", "paciente_id", "Nachname", "prénom", "apellidos", "cognome", "achternaam",
)  # fmt: skip
NO_NUMBERS_OF_PERSONS = (
    "Gewicht", "Größe", "Anzahl_Kinder", "Zimmernummer", "Nummer", "Patientenalter", "Versicherungsart",
    "nombre_enfants",
    "numero_hijos", "codice_regione", "code_postal", "number_inpatient", "num_medications", "payer_code", "seq_num",
    "Fallzahl", "Fallkosten", "Ort", "nirgends", "dnipro", "Personen_im_Haushalt", "numero_di_figli", "kvnr_art",
)  # fmt: skip
DATASET_COLUMNS = (Path(__file__).parents[1] / "fixtures/dataset_columns.txt").read_text(encoding="utf-8").split()
"""The columns of the public datasets that name nobody."""


@pytest.mark.parametrize("name", NUMBERS_OF_PERSONS)
def test_a_repeated_number_of_a_person_is_known_by_its_name(name: str) -> None:
    texts = [f"P{number // 4:05d}" for number in range(ROWS)]
    assert suspected(pl.DataFrame({name: texts})).keys() == {name}
    assert suspected(pl.DataFrame({name: [number // 4 for number in range(ROWS)]})).keys() == {name}


@pytest.mark.parametrize("name", [*NO_NUMBERS_OF_PERSONS, *DATASET_COLUMNS])
def test_no_other_name_is_taken_for_one(name: str) -> None:
    assert suspected(pl.DataFrame({name: [number // 4 for number in range(ROWS)]})) == {}
    assert suspected(pl.DataFrame({name: [f"v{number // 4}" for number in range(ROWS)]})) == {}


def test_texts_that_few_rows_share_are_suspected_and_categories_are_not() -> None:
    rows = 600
    frame = pl.DataFrame(
        {
            "remark": [f"no finding {number // 2}" for number in range(rows)],
            "remark_kind": [f"kind {number % 200}" for number in range(rows)],
            "contract_no": [number // 2 * 17 for number in range(rows)],
            "room_no": [number % 250 for number in range(rows)],
            "pay": [number // 2 * 17 for number in range(rows)],
        }
    )
    assert suspected(frame) == {
        "remark": "holds 300 different texts in 600 rows",
        "contract_no": "is named like an identifier and holds 300 numbers in 600 rows",
    }


def test_places_and_dates_are_told_apart_from_identifiers() -> None:
    frame = pl.DataFrame({"Geburtsdatum": ["a"], "seen": [date(2020, 1, 1)], "Wohnort": ["b"], "Laborwert": [1.0]})
    assert indirect(frame, declared=["seen"]) == {
        "Geburtsdatum": "is named like a date",
        "Wohnort": "is named like a place",
    }
    assert indirect(frame)["seen"] == "holds dates or times"
