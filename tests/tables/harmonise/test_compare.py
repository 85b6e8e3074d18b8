"""What is named as a disagreement, what is mended, and what is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from kohort.errors import ConfigError
from kohort.tables.harmonise.compare import ProfileComparison, compare_profiles
from kohort.tables.harmonise.profiles import profile_table


def compare(*tables: dict[str, Any], target: str | None = None, columns: tuple[str, ...] = ()) -> ProfileComparison:
    frames = [pl.DataFrame(table) for table in tables]
    profiles = [profile_table(frame, site="abcd"[index]) for index, frame in enumerate(frames)]
    found = compare_profiles(profiles, target=target, columns=columns)
    mended = [found.mapping.apply(frame, site="abcd"[index])[0] for index, frame in enumerate(frames)]
    again = compare_profiles(
        [profile_table(frame, site="abcd"[index]) for index, frame in enumerate(mended)], target=target, columns=columns
    )
    left = {(one.kind, one.column) for one in again.disagreements}
    assert not left & {(one.kind, one.column) for one in found.disagreements if one.mended}
    return found


def kinds(found: ProfileComparison) -> list[tuple[str, str | None]]:
    return [(one.kind, one.column) for one in found.disagreements]


NUMBERS = np.random.default_rng(5).normal(70, 10, 300)


@pytest.mark.parametrize(
    ("name", "factor", "offset"),
    [
        ("weight", 2.2046226218487757, 0.0),
        ("height_cm", 1 / 2.54, 0.0),
        ("body_temp", 1.8, 32.0),
        ("glucose", 1 / 18.016, 0.0),
        ("creatinine", 88.42, 0.0),
        ("anything", 1000.0, 0.0),
        ("anything", 0.01, 0.0),
    ],
)
def test_common_units_are_recognised_and_mended(name: str, factor: float, offset: float) -> None:
    base = NUMBERS / 2 if "temp" in name else NUMBERS
    found = compare({name: base}, {name: base * factor + offset}, {name: base[::-1] * 1.03})
    assert kinds(found) == [("unit", name)]
    mended, _ = found.mapping.apply(pl.DataFrame({name: base * factor + offset}), site="b")
    np.testing.assert_allclose(mended[name].to_numpy(), base, rtol=1e-9)


def test_other_ranges_are_named_but_not_mended() -> None:
    found = compare({"cost": NUMBERS}, {"cost": NUMBERS}, {"cost": NUMBERS * 3.3})
    assert kinds(found) == [("range", "cost")]
    assert found.mapping.is_empty
    assert "[sites.c.columns.cost] factor" in found.suggestions[0]


def test_populations_may_differ_without_a_word() -> None:
    old, young = NUMBERS, NUMBERS * 0.7
    assert kinds(compare({"age": old, "gain": old * 0}, {"age": young, "gain": young * 0})) == []
    assert kinds(compare({"weight": NUMBERS}, {"weight": NUMBERS * 1.4})) == []


def test_spellings_of_sex_agree_on_what_most_sites_write() -> None:
    found = compare({"sex": ["F", "M"] * 20}, {"sex": ["female", "male"] * 20}, {"sex": ["F", "m"] * 20})
    assert kinds(found) == [("spelling", "sex")]
    assert found.mapping.general.values["sex"] == {"F": ("female",), "M": ("m", "male")}
    assert found.disagreements[0].sites == ("b", "c")


def test_f_is_false_beside_t_and_female_beside_m() -> None:
    found = compare({"ok": ["t", "f"] * 20}, {"ok": [True, False] * 20}, {"ok": [True, False] * 20})
    assert kinds(found) == [("yes/no", "ok")]
    assert found.mapping.apply(pl.DataFrame({"ok": ["t", "f"]}), site="a")[0]["ok"].to_list() == [True, False]


def test_yes_true_and_one_agree_and_keep_the_type_of_most() -> None:
    found = compare({"ok": [1, 0] * 20}, {"ok": [True, False] * 20}, {"ok": [1, 0] * 20}, {"ok": ["yes", "no"] * 20})
    assert kinds(found) == [("yes/no", "ok")]
    for site, values in (("b", [True, False]), ("d", ["yes", "no"])):
        assert found.mapping.apply(pl.DataFrame({"ok": values}), site=site)[0]["ok"].to_list() == [1, 0]


def test_spellings_that_differ_in_case_blanks_and_accents() -> None:
    found = compare({"ward": ["Général", "Intensive care"] * 20}, {"ward": ["GENERAL", "intensive-care"] * 20})
    assert found.mapping.general.values["ward"] == {
        "Général": ("GENERAL",),
        "Intensive care": ("intensive-care",),
    }


def test_close_spellings_are_suggested_and_numbers_in_them_are_not_mixed_up() -> None:
    found = compare(
        {"d": ["diabetes", "stage 1"] * 20}, {"d": ["diabetes", "stage 1"] * 20}, {"d": ["diabetis", "stage 2"] * 20}
    )
    assert found.mapping.is_empty
    assert found.suggestions == ("[values.d] 'diabetes' = ['diabetis'], if they mean the same",)


def test_text_among_numbers_is_mended_where_it_is_numbers() -> None:
    found = compare({"x": NUMBERS}, {"x": [f"{value:.2f}".replace(".", ",") for value in NUMBERS]})
    assert kinds(found) == [("type", "x")]
    assert found.mapping.sites["b"].columns["x"].decimal == ","
    found = compare({"x": NUMBERS}, {"x": ["low", "high"] * 20})
    assert kinds(found) == [("type", "x")]
    assert not found.disagreements[0].mended


def test_dates_as_text_are_dates() -> None:
    days = [f"2020-01-{day:02d}" for day in range(1, 29)]
    found = compare({"day": pl.Series(days).str.to_date()}, {"day": days})
    assert kinds(found) == [("type", "day")]
    assert found.mapping.general.columns["day"].type == "date"


def test_codes_and_words_for_missing_values_become_missing() -> None:
    found = compare(
        {"x": [*NUMBERS, *[-999.0] * 20], "w": ["a"] * 320}, {"x": NUMBERS, "w": ["a"] * 200 + ["n/a"] * 100}
    )
    assert kinds(found) == [(kind, name) for name in "xw" for kind in ("missing marker", "missing share")]
    assert found.mapping.general.columns["x"].missing == ("-999",)
    assert found.mapping.general.columns["w"].missing == ("n/a",)


def test_names_are_the_same_without_case_unit_and_punctuation() -> None:
    found = compare({"Body Weight": NUMBERS}, {"weight_kg": NUMBERS}, {"weight": NUMBERS}, columns=("weight",))
    assert kinds(found) == [("name", "weight")]
    assert found.mapping.general.columns["weight"].names == ("Body Weight", "weight_kg")


def test_two_columns_of_one_site_are_never_taken_for_one() -> None:
    both = {"weight_kg": NUMBERS, "weight_lb": NUMBERS * 2.2}
    assert kinds(compare(both, both)) == []


def test_absent_columns_and_classes_are_named() -> None:
    found = compare(
        {"y": ["ill", "well"] * 20, "dose": NUMBERS[:40]}, {"y": ["well"] * 40, "dosis": NUMBERS[:40]}, target="y",
        columns=("y", "dose"),
    )  # fmt: skip
    assert kinds(found) == [("absent", "dose"), ("classes", "y")]
    assert "['dosis']" in found.suggestions[0]


def test_sizes_of_very_different_classes_are_named() -> None:
    found = compare({"x": NUMBERS[:50]}, {"x": np.tile(NUMBERS, 20)})
    assert kinds(found) == [("size", None)]
    assert kinds(compare({"x": NUMBERS[:99]}, {"x": NUMBERS[:101]})) == []


def test_what_notes_say_holds_no_value() -> None:
    found = compare({"w": ["canary one"] * 20}, {"w": ["Canary-One"] * 20})
    assert found.disagreements[0].brief == "spelling of w (b)"


def test_one_table_or_two_of_one_site_cannot_be_compared() -> None:
    profile = profile_table(pl.DataFrame({"x": [1]}), site="a")
    with pytest.raises(ConfigError, match="nothing to disagree"):
        compare_profiles([profile])
    with pytest.raises(ConfigError, match="same name"):
        compare_profiles([profile, profile])
