"""Categories that a model has no name for: what is said of them is true, and an error where the plan asks for one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import kohort
from kohort.errors import DataError

ROWS = 900


def rows() -> pl.DataFrame:
    """Two columns with a category that every site has, each with a few persons."""
    random = np.random.default_rng(3)
    age = random.integers(20, 80, ROWS)
    rare = np.arange(ROWS) % 150 == 0
    return pl.DataFrame(
        {
            "age": age,
            "ward": np.where(rare, "attic", np.where(random.random(ROWS) < 0.5, "north", "south")),
            "pay": np.where(np.roll(rare, 7), "coins", np.where(random.random(ROWS) < 0.5, "card", "bill")),
            "ill": np.where(age + random.normal(0, 8, ROWS) > 50, "yes", "no"),
        }
    )


def trained(out: Path | None = None, **options: object) -> kohort.Outcome:
    return kohort.Federation(rows(), target="ill", sites=3, **options).run(rounds=2, out=out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unseen") / "out"


@pytest.fixture(scope="module")
def outcome(folder: Path) -> kohort.Outcome:
    return trained(folder)


def test_a_rare_category_is_not_said_to_be_at_no_site(outcome: kohort.Outcome) -> None:
    assert outcome.model.encoder.domain.columns["ward"].categories == ("north", "south", "other")
    said = [line for line in outcome.warnings if "a category that" in line]
    assert len(said) == 1
    assert "fewer than 10 persons of all sites have, or none, read as other: ward, pay" in said[0]
    assert not any("no site has" in line for line in outcome.warnings)
    assert not any(name in line for line in outcome.warnings for name in ("attic", "coins"))


def test_an_unknown_category_is_an_error_where_the_plan_says_so(outcome: kohort.Outcome) -> None:
    new = rows().head(20).with_columns(pay=pl.lit("card"), ward=pl.Series(["cellar"] * 3 + ["north"] * 17))
    with pytest.warns(UserWarning, match=r"unknown to the model: ward \(3\)"):
        outcome.model.predict(new)
    strict = trained(unseen="error")
    with pytest.raises(DataError, match="'ward' has 3 rows"):
        strict.model.predict(new)
    assert len(strict.model.predict(new.tail(17))) == 17
    (unjudged,) = [entry for entry in strict.left_out if entry.what == "test rows"]
    assert unjudged.why == "a class or category outside the agreed domain"
    declared = trained(unseen="error", other=["ward"])
    assert len(declared.model.predict(new)) == 20


@pytest.mark.usefixtures("outcome")
def test_predict_says_how_it_reads_them(
    kohort_here: Callable[..., tuple[int, str, str]], folder: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.csv"
    rows().head(20).with_columns(pay=pl.lit("card"), ward=pl.lit("cellar")).write_csv(new)
    code, _, said = kohort_here("predict", folder, new, "--out", tmp_path / "p.csv")
    assert code == 0, said
    assert "unknown to the model, read as other: ward (20)" in said
    assert "any of its column" not in said
    code, _, said = kohort_here("predict", folder, new, "--out", tmp_path / "q.csv", "--unseen", "error")
    assert code == 3
    assert "'ward' has 20 rows" in said
