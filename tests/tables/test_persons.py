"""Rows of a person belong together: how persons are numbered, held out, and drawn alike at all sites."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError, DataError
from kohort.tables.persons import SeveralSites, hold_out, persons_at_several_sites, persons_of, shared_draws


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_draw_follows_the_identifier_wherever_the_row_is() -> None:
    column = pl.Series(["17", "4", None, "17", "99"])
    drawn, named = shared_draws(column, "folds")
    assert named.tolist() == [True, True, False, True, True]
    assert drawn[0] == drawn[3]
    assert len({*drawn[named].tolist()}) == 3
    elsewhere, _ = shared_draws(pl.Series([4, 17]), "folds")  # read as a number at another site
    assert elsewhere.tolist() == [drawn[1], drawn[0]]
    other, _ = shared_draws(column, "held out")
    assert not (set(other.tolist()) & set(drawn[named].tolist()))


def test_draws_are_spread_evenly() -> None:
    drawn, _ = shared_draws(pl.Series(range(20_000)), "folds")
    assert np.abs(np.bincount((drawn % np.uint64(5)).astype(np.int64)) / 4000 - 1).max() < 0.05
    assert abs((drawn < np.uint64(2**64 // 10)).mean() - 0.1) < 0.01


def test_no_rows_have_no_draws() -> None:
    drawn, named = shared_draws(pl.Series([], dtype=pl.String), "folds")
    assert len(drawn) == len(named) == 0
    assert not shared_draws(pl.Series([None, None], dtype=pl.Int64), "folds")[1].any()


def test_persons_at_several_sites_are_counted() -> None:
    persons, site = np.array([0, 0, 1, 1, 1, 2, 3, 3]), np.array([0, 0, 0, 1, 2, 1, 2, 0])
    assert persons_at_several_sites(persons, site) == SeveralSites(persons=2, most=3)
    assert persons_at_several_sites(None, site) == SeveralSites(persons=0, most=1)


@given(st.integers(2, 500), st.floats(0.001, 0.999))
def test_hold_out_keeps_both_parts(n: int, share: float) -> None:
    mask = hold_out(n, share, rng())
    assert mask.sum() == min(max(round(share * n), 1), n - 1)


def test_hold_out_limits() -> None:
    assert hold_out(5, 0, rng()).sum() == 0
    for share in (1.0, -0.1):
        with pytest.raises(ConfigError):
            hold_out(5, share, rng())
    with pytest.raises(DataError):
        hold_out(1, 0.3, rng())


def test_nobody_is_held_out_in_part() -> None:
    column = pl.Series([f"p{number % 40}" if number % 7 else None for number in range(300)])
    persons = persons_of(column)
    assert persons is not None
    mask = hold_out(300, 0.3, rng(), persons)
    assert abs(int(mask.sum()) - 90) <= 4
    sides = (
        pl.DataFrame({"person": column, "held": mask}).drop_nulls().group_by("person").agg(pl.col("held").n_unique())
    )
    assert sides["held"].to_list() == [1] * sides.height
    assert len(set(persons[column.is_null().to_numpy()])) == column.null_count(), "rows without a person are apart"


def test_persons_of_one_row_each_are_held_out_as_rows_are() -> None:
    assert persons_of(pl.Series(["c", "a", None, "b", None])) is None
    assert (hold_out(50, 0.3, rng(), np.arange(50)) == hold_out(50, 0.3, rng())).all()


def test_one_person_cannot_be_divided() -> None:
    with pytest.raises(DataError, match="person"):
        hold_out(5, 0.3, rng(), np.zeros(5, dtype=np.int64))
