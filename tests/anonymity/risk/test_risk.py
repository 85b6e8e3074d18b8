import math
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.anonymity.checker.combinations import combine
from kohort.anonymity.checker.measures import measure, measure_combinations
from kohort.anonymity.risk.identifiers import identifier_warnings
from kohort.anonymity.risk.reidentification import (
    PopulationUniqueness,
    assess_risk,
    distinguishability,
    pitman_log_likelihood,
    risk_of_classes,
)
from kohort.errors import ConfigError, DataError
from kohort.tables.cells import format_cell
from kohort.tables.datasets.catalogue import open_table
from kohort.tables.hierarchy import read_hierarchies

DATA = os.environ.get("KOHORT_DATA")
needs_data = pytest.mark.skipif(
    not (DATA and (Path(DATA) / "arx_adult.parquet").is_file()), reason="KOHORT_DATA has no arx_adult"
)
KEYS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 3)), min_size=1, max_size=30)


def frame_of(rows) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"q": pl.String, "r": pl.Int64}, orient="row")


@given(KEYS)
def test_prosecutor_risk_row_by_row(rows) -> None:
    risk = assess_risk(frame_of(rows), quasi=["q", "r"])
    each = [1 / rows.count(row) for row in rows]
    assert risk.prosecutor_max == max(each)
    assert risk.prosecutor_mean == pytest.approx(sum(each) / len(each))
    assert risk.marketer == risk.prosecutor_mean
    assert risk.sample_uniqueness == pytest.approx(each.count(1.0) / len(rows))
    assert risk.rows_above == {limit: sum(one > limit for one in each) for limit in (0.05, 0.1, 0.2, 0.33, 0.5)}
    assert risk.journalist_max is None
    assert risk.population is None


def test_a_risk_equal_to_the_threshold_is_not_above_it() -> None:
    frame = pl.DataFrame({"q": [1] * 5 + [2] * 10 + [3] * 20 + [4] * 2})
    assert assess_risk(frame, quasi=["q"]).to_mapping()["rows_above"] == {
        "0.05": 17, "0.1": 7, "0.2": 2, "0.33": 2, "0.5": 0,
    }  # fmt: skip


@given(KEYS, st.integers(0, 10))
def test_journalist_and_marketer_by_population_table(rows, extra: int) -> None:
    everyone = rows * 2 + rows[:1] * extra
    risk = assess_risk(frame_of(rows), quasi=["q", "r"], population=frame_of(everyone))
    each = [1 / everyone.count(row) for row in rows]
    assert risk.journalist_max == pytest.approx(max(each))
    assert risk.journalist_mean == pytest.approx(sum(each) / len(each))
    assert risk.marketer == risk.journalist_mean


def test_journalist_by_sampling_fraction() -> None:
    frame = pl.DataFrame({"q": [1, 1, 1, 2]})
    by_fraction = assess_risk(frame, quasi=["q"], sampling_fraction=0.1)
    assert by_fraction == assess_risk(frame, quasi=["q"], population_size=40)
    assert by_fraction.journalist_max == pytest.approx(0.1)
    assert by_fraction.marketer == pytest.approx(0.05)
    assert by_fraction.prosecutor_max == 1.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sampling_fraction": 0.0}, ConfigError, "sampling fraction is 0"),
        ({"population_size": 1}, ConfigError, "smaller than the 2 rows"),
        ({"population_size": 10**20}, ConfigError, "larger than any there is"),
        ({"sampling_fraction": 1e-300}, ConfigError, "larger than any there is"),
        ({"population_size": 9, "sampling_fraction": 0.1}, ConfigError, "twice"),
        ({"population": pl.DataFrame({"q": [1, 1]})}, DataError, "1 of 2 classes have fewer rows"),
        ({"population": pl.DataFrame({"q": ["1", "2"]})}, DataError, "another type"),
    ],
)
def test_bad_populations(options, error, message: str) -> None:
    with pytest.raises(error, match=message):
        assess_risk(pl.DataFrame({"q": [1, 2]}), quasi=["q"], **options)


@given(KEYS)
def test_distinction_and_separation_pair_by_pair(rows) -> None:
    counted = combine(frame_of(rows).lazy(), quasi=["q", "r"])
    found = distinguishability(counted, measure_combinations(counted).histogram)
    assert [one.columns for one in found] == [("q",), ("r",), ("q", "r")]
    for one, keys in zip(found, [[row[0] for row in rows], [row[1] for row in rows], rows], strict=True):
        pairs = [(left, right) for at, left in enumerate(keys) for right in keys[:at]]
        assert one.distinction == pytest.approx(len(set(keys)) / len(keys))
        assert one.separation == pytest.approx(sum(a != b for a, b in pairs) / len(pairs) if pairs else 0.0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.floats(0.01, 0.99), st.floats(0.0, 50.0))
def test_pitman_likelihood_is_the_sampling_formula(sizes: list[int], alpha: float, theta: float) -> None:
    opened = sum(math.log(theta + at * alpha) for at in range(1, len(sizes)))
    drawn = sum(math.log(theta + at) for at in range(1, sum(sizes)))
    grown = sum(math.log(at - alpha) for size in sizes for at in range(1, size))
    size, count = np.unique(sizes, return_counts=True)
    assert pitman_log_likelihood(theta, alpha, size, count) == pytest.approx(opened - drawn + grown, abs=1e-6)


def pitman_population(theta: float, alpha: float, rows: int, rng: np.random.Generator) -> list[int]:
    """Row n + 1 joins a class with probability (its size - alpha) / (theta + n), and else opens a new one."""
    of_row, sizes = [0], [1]
    for held in range(1, rows):
        chosen = of_row[rng.integers(held)]
        joins = rng.random() * (theta + held) < held and rng.random() * sizes[chosen] < sizes[chosen] - alpha
        if not joins:
            sizes.append(0)
            chosen = len(sizes) - 1
        of_row.append(chosen)
        sizes[chosen] += 1
    return of_row


def uniqueness(sizes: list[int], *, population_size: int) -> PopulationUniqueness:
    """The estimate for a sample with classes of these sizes."""
    size, count = np.unique(sizes, return_counts=True)
    histogram = list(zip(size.tolist(), count.tolist(), strict=True))
    found = risk_of_classes(histogram, population_size=population_size).population
    assert found is not None
    return found


def test_pitman_estimate_finds_the_uniques_of_a_known_population() -> None:
    rng = np.random.default_rng(7)
    population = pitman_population(50.0, 0.5, 12_000, rng)
    truth = np.count_nonzero(np.bincount(population) == 1) / len(population)
    sample = rng.choice(population, 1_200, replace=False)
    sizes = np.unique(sample, return_counts=True)[1]
    found = uniqueness(sizes.tolist(), population_size=len(population))
    assert found.model == "pitman"
    assert found.share == pytest.approx(truth, rel=0.25)
    # The sample's own uniqueness would be far off.
    assert np.count_nonzero(sizes == 1) / len(sample) > 2 * truth


def test_zayatz_by_hand_and_at_the_ends() -> None:
    # N = 6, n = 4, sizes 1, 1, 2: h(1) = 4/6; h(2) = 2 * C(4, 3) / C(6, 4) = 8/15; P = (2 * 2/3) / (2 * 2/3 + 8/15).
    found = uniqueness([1, 1, 2], population_size=6)
    assert found.model == "zayatz"
    assert found.share == pytest.approx(2 * (4 / 3) / (4 / 3 + 8 / 15) / 4)
    assert uniqueness([1, 1, 2], population_size=4).share == pytest.approx(0.5)
    assert uniqueness([2, 3], population_size=1000).share == 0.0
    assert uniqueness([1, 1], population_size=1000).share == pytest.approx(1.0)


@needs_data
def test_arx_figures_before_anonymisation() -> None:
    # ARX, risk analysis of its own example table data/adult.csv, all nine columns as quasi-identifiers: average
    # prosecutor risk 0.6465751608, highest 1.0, sample uniqueness 0.5142895.
    frame = open_table("arx_adult").frame
    risk = assess_risk(frame, quasi=frame.columns)
    assert risk.prosecutor_mean == pytest.approx(0.6465751608, abs=5e-11)
    assert risk.prosecutor_max == 1.0
    assert risk.sample_uniqueness == pytest.approx(0.5142895, abs=5e-8)


@needs_data
def test_arx_levels_give_exactly_five() -> None:
    # The same table at these levels of ARX's own hierarchies is 5-anonymous, and not 6-anonymous.
    levels = {
        "sex": 1, "age": 2, "race": 1, "marital_status": 1, "education": 3,
        "native_country": 2, "workclass": 2, "occupation": 1, "salary_class": 1,
    }  # fmt: skip
    hierarchies = read_hierarchies(Path(str(DATA)) / "hierarchies" / "adult")
    frame = open_table("arx_adult").frame.cast(pl.String)
    released = frame.with_columns(
        frame[name].replace_strict(
            {value: format_cell(hierarchies[name].cell(value, level)) for value in hierarchies[name].values}
        )
        for name, level in levels.items()
    )
    found = measure(released, quasi=list(levels))
    assert (found.k, found.classes, found.rows) == (5, 48, 30_162)


def suspicions(frame: pl.DataFrame, **roles) -> dict[str, tuple[str, str]]:
    found = identifier_warnings(frame, **roles)
    return {one.column: (one.kind, one.reason) for one in found if one.reason != "undeclared"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Last Name", "person's name"),
        ("patientName", "person's name"),
        ("SSN", "social security number"),
        ("home_phone", "telephone number"),
        ("e-mail", "email address"),
        ("MRN", "medical record number"),
        ("patient_nbr", "medical record number"),
        ("IP address", "IP address"),
        ("website", "web address"),
        ("zip", "place"),
        ("date_of_birth", "date"),
        ("admittime", "date"),
        ("account_number", "account number"),
        ("licence", "certificate or licence number"),
        ("device_id", "device identifier"),
        ("fingerprint", "biometric record"),
        ("photo", "photograph"),
        ("id", "record identifier"),
    ],
)
def test_names_of_the_hipaa_identifiers(name: str, kind: str) -> None:
    assert suspicions(pl.DataFrame({name: [1.5, 2.5]}), sensitive=[name]) == {name: (kind, "name")}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a@b.org", "c@d.example"], "email address"),
        (["123-45-6789", None], "social security number"),
        (["(617) 555-0100", "617.555.0199"], "telephone number"),
        (["10.0.0.1", "192.168.1.7"], "IP address"),
        (["https://a.org/x", "www.b.org"], "web address"),
        (["2020-01-02", "2021-12-31 10:00"], "date"),
        (["3/4/1970", "12.11.1999"], "date"),
        (["02139-1234", "10001-0001"], "place"),
        (["00:1A:2b:3c:4d:5e"], "device identifier"),
        (["123e4567-e89b-12d3-a456-426614174000"], "record identifier"),
    ],
)
def test_shapes_of_values(values, kind: str) -> None:
    found = identifier_warnings(pl.DataFrame({"x": values}), sensitive=["x"])
    assert [(one.kind, one.reason) for one in found] == [(kind, "values")]
    assert not any(value in one.message for one in found for value in values if value)


def test_ordinary_columns_raise_no_suspicion() -> None:
    frame = open_table("adult").frame
    assert suspicions(frame, quasi=["age"]) == {}
    assert suspicions(frame) == {"age": ("age", "values")}


def test_declared_roles_decide_what_is_said() -> None:
    frame = pl.DataFrame({"zip": ["a", "b"], "name": ["c", "d"], "x": [1, 2]})
    found = identifier_warnings(frame, quasi=["zip"], identifiers=["name"])
    assert [(one.column, one.reason) for one in found] == [("x", "undeclared")]
    assert suspicions(frame, quasi=["zip", "name"]) == {"name": ("person's name", "name")}
    assert identifier_warnings(frame, quasi=["zip"], identifiers=["name"], others=["x"]) == ()


def test_an_undeclared_column_that_tells_rows_apart_is_named() -> None:
    frame = pl.DataFrame({"code": range(50), "half": [at // 2 for at in range(50)]})
    assert suspicions(frame) == {"code": ("record identifier", "unique")}
    assert suspicions(frame, others=["code"]) == {}
    with_dates = frame.with_columns(when=pl.date(2020, 1, 1))
    assert suspicions(with_dates, quasi=["code"]) == {"when": ("date", "values")}
