"""A table that is anonymised in parts: the same cells and the same figures as where it is held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kohort.anonymity.relational import distinct_combinations, in_parts, makers
from kohort.anonymity.relational.algorithms import refine
from kohort.anonymity.relational.anonymise import anonymise
from kohort.anonymity.relational.in_parts import anonymise_in_parts
from kohort.tables import parts
from kohort.tables.scanning import scan_parquet

QUASI = ("age", "place", "sex", "weight", "minor")
OPTIONS: dict[str, dict[str, Any]] = {
    "k alone": {"k": 3},
    "k alone, exact classes": {"k": 4, "algorithm": "exact-cluster"},
    "k alone, exact rows not kept": {"k": 4, "algorithm": "exact-cluster", "keep_exact": False},
    "k alone, sets of any size": {"k": 5, "max_set": None},
    "k alone, a column that counts more": {"k": 5, "weights": {"age": 4.0}},
    "k alone, no target": {"k": 3, "sensitive": ()},
    "k alone, another target": {"k": 3, "target": "outcome"},
    "complete rows": {"k": 3, "missing": "drop"},
    "a risk": {"k": 2, "risk": 0.2},
    "a risk in a population": {"k": 2, "risk": 0.1, "population": 2_000},
    "l": {"k": 3, "l": 2},
    "entropy l": {"k": 3, "l": 1.5, "l_kind": "entropy"},
    "recursive l": {"k": 3, "l": 2, "l_kind": "recursive", "c": 4.0},
    "t": {"k": 3, "t": 0.35},
    "alpha and beta": {"k": 3, "alpha": 0.9, "beta": 2.0},
    "l and t, one algorithm": {"k": 3, "l": 2, "t": 0.4, "algorithm": "mondrian"},
    "two sensitive columns": {"k": 3, "l": 2, "sensitive": ("illness", "outcome")},
    "mondrian": {"k": 3, "algorithm": "mondrian"},
    "cluster": {"k": 3, "algorithm": "cluster"},
    "mondrian with labels": {"k": 3, "algorithm": "mondrian", "hierarchies": "intervals"},
    "lattice": {"k": 3, "algorithm": "lattice"},
    "lattice, no target": {"k": 3, "algorithm": "lattice", "sensitive": ()},
    "lattice over intervals": {"k": 3, "hierarchies": "intervals"},
    "lattice with l": {"k": 3, "l": 2, "algorithm": "lattice"},
    "lattice that leaves rows out": {"k": 3, "algorithm": "lattice", "suppression_limit": 0.1},
    "levels": {"k": 2, "hierarchies": "intervals",
               "levels": {"age": 3, "place": 1, "sex": 1, "weight": 3, "minor": 1}},
    "rows left out": {"k": 3, "suppression_limit": 0.1},
    "rows left out at a price": {"k": 3, "suppression_limit": 0.1, "balance": 0.5},
    "rows left out with t": {"k": 3, "t": 0.35, "suppression_limit": 0.1},
    "persons": {"k": 3, "person": "who"},
    "persons with l": {"k": 3, "l": 2, "person": "who"},
    "persons, lattice": {"k": 3, "person": "who", "algorithm": "lattice"},
    "persons left out": {"k": 3, "person": "who", "algorithm": "mondrian", "suppression_limit": 0.1},
    "dates": {"k": 3, "quasi": ("born", "sex", "place")},
    "dates, exact classes": {"k": 3, "quasi": ("born", "sex", "place"), "algorithm": "exact-cluster"},
}  # fmt: skip


def table(seed: int, rows: int = 260) -> pl.DataFrame:
    """Rows with missing values, of which some are alike."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, rows // 6, rows)  # rows of one kind share their quasi-identifiers

    def drawn(values: list[Any], *, lacking: float = 0.05) -> pl.Series:
        chosen = random.integers(0, len(values), rows // 6)
        gone = random.random(rows // 6) < lacking
        return pl.Series([None if gone[kind] else values[chosen[kind]] for kind in kinds.tolist()])

    days = [date(1950, 1, 1) + timedelta(days=int(day)) for day in random.integers(0, 20_000, 40)]
    return pl.DataFrame(
        {
            "note": pl.Series(random.integers(0, 9, rows)).cast(pl.String) + " é",
            "age": drawn(list(range(18, 80))).cast(pl.Int16),
            "place": drawn([f"{place:03d}" for place in range(90)]),
            "sex": drawn(["f", "m"], lacking=0.0),
            "weight": drawn([50.5, 61.25, 70.0, 88.125, 93.5, 0.0, -0.0, -3.5]),
            "minor": drawn([True, False]),
            "born": drawn(days).cast(pl.Date),
            "illness": pl.Series(random.choice(["flu", "cold", "cough"], rows)),
            "outcome": pl.Series(random.integers(0, 3, rows)),
            "measured": pl.Series(np.where(random.random(rows) < 0.1, np.nan, random.normal(size=rows))),
            "who": pl.Series(random.integers(0, rows // 2, rows)).cast(pl.String),
        }
    )


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of some twenty rows."""
    monkeypatch.setattr(parts, "PART_BYTES", 2_000)


@pytest.fixture
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Small tables are treated as large ones; the list says of each whether its large classes were not held."""
    monkeypatch.setattr(makers, "MANY_CELLS", 0)
    monkeypatch.setattr(distinct_combinations, "MANY_CELLS", 0)
    monkeypatch.setattr(makers, "FEW_CELLS", 0)
    monkeypatch.setattr(refine, "PAIRS_OF_SIZES", 0)
    found: list[bool] = []
    usual = in_parts.classes_of_combinations

    def spied(*given: Any, **options: Any) -> Any:
        made = usual(*given, **options)
        found.append(made is not None)
        return made

    monkeypatch.setattr(in_parts, "classes_of_combinations", spied)
    return iter([found]).__next__()


def both(frame: pl.DataFrame, folder: Path, options: Mapping[str, Any]) -> tuple[Any, Any, pl.DataFrame, pl.DataFrame]:
    """The reports and the tables, held and in parts."""
    asked = {"quasi": QUASI, "sensitive": ("illness",), **options}
    person = asked.get("person")
    chosen = frame if person is not None else frame.drop("who")
    chosen.write_parquet(folder / "table.parquet", row_group_size=33)
    held = anonymise(scan_parquet(str(folder / "table.parquet")).collect(), keep=None, **asked)
    out = folder / "released.parquet"
    made = anonymise_in_parts(scan_parquet(str(folder / "table.parquet")), out, **asked)
    assert [one.name for one in folder.iterdir() if one.name.startswith(".")] == []
    assert made.hierarchies == held.hierarchies
    return held.report, made.report, held.frame, pl.read_parquet(out)


def assert_same(held: Any, made: Any) -> None:
    """Equal counts and words; equal shares but for the order of sums."""
    one, other = held.to_mapping(), made.to_mapping()
    for name in ("seconds",):
        del one[name], other[name]
    floats = [name for name, value in one.items() if isinstance(value, float)]
    for name in floats:
        assert other.pop(name) == pytest.approx(one.pop(name), rel=1e-9, abs=1e-12), name
    for name in ("tried",):
        assert other.pop(name) == pytest.approx(one.pop(name))
    assert other == one


@pytest.mark.parametrize("name", OPTIONS)
def test_a_release_in_parts_has_the_cells_of_one_that_is_held(name: str, tmp_path: Path) -> None:
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        held, made, expected, found = both(table(seed), folder, OPTIONS[name])
        assert_frame_equal(found, expected)
        assert_same(held, made)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name.startswith(("k alone", "complete", "a risk"))])
def test_rows_of_large_classes_need_not_be_held(name: str, tmp_path: Path, as_if_large: list[bool]) -> None:
    for seed in range(4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        held, made, expected, found = both(table(seed, 900 if seed % 2 else 260), folder, OPTIONS[name])
        assert_frame_equal(found, expected)
        assert_same(held, made)
    assert len(as_if_large) == 4
    assert all(as_if_large[1::2])
    assert sum(as_if_large) >= 3  # of the others, fewer than k rows are left
