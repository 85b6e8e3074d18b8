"""How gradients are bounded in totals, measured from what the totals moved: persons with several rows, and normalised
gradients. Noise, clip and draws are found as in `test_dp_wire.py`, and epsilon is computed from them."""

from __future__ import annotations

from math import ceil, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.support.wire import DELTA, LR, PARAMETERS, Pair, alike, assert_covers, carried, epsilon, pair, tables

from kohort.errors import ConfigError
from kohort.protocol.plan.phases import DPSection, SecureSumSection
from kohort.testing.noise import LARGE, known_normals

SITES, PERSONS, EACH = 4, 12, 3
NEEDED = ceil(0.9 * SITES) - 1


def summed(clip: float, **dp: Any) -> dict[str, Any]:
    section = {"epsilon": 1.0, "delta": DELTA, "clip": clip, **dp}
    return {"name": "fedavg", "dp": section, "secure": {"sum": "none", "colluders": 1}}


def of_persons(opposed: int = 0) -> dict[str, pl.DataFrame]:
    """Persons with equal rows; `opposed` of the first site have rows whose gradients nearly cancel."""
    found = {}
    for site in range(SITES):
        frame = alike(PERSONS * EACH).with_columns(person=pl.Series(np.repeat(np.arange(PERSONS), EACH)))
        if site == 0 and opposed:
            few = pl.Series(np.tile(["yes", "no", "yes"], PERSONS))
            frame = frame.with_columns(y=pl.when(pl.col("person") < opposed).then(few).otherwise(pl.lit("yes")))
        found[f"site-{site}"] = frame
    return found


def moved(method: dict[str, Any], folder: Path, units: int, **options: Any) -> tuple[Pair, float, float]:
    """The pair of runs, a site's share of the noise, and the norm of the total without noise."""
    found = pair(method, folder, rounds=1, **options)
    twice = carried(method, LARGE, folder / "twice", rounds=1, lr=2 * LR, **options)
    ends = [np.asarray(wire.outcome.model.weights) for wire in (found.large, found.small, twice)]
    scale = units * method["dp"].get("sample", 1.0) / LR
    share = found.scale((ends[1] - ends[0]) * scale) / SITES
    total = (ends[0] - ends[2]) * scale - share * SITES * known_normals(LARGE, PARAMETERS)
    return found, share, float(np.linalg.norm(total))


def covered(found: Pair, share: float, clip: float, rate: float = 1.0) -> None:
    """The claim is what the measured noise is worth, by dp-accounting and by Opacus."""
    assert_covers(found.large.claims[0]["epsilon"], epsilon(share * sqrt(NEEDED) / clip, steps=1, rate=rate))


PERSON = {"data": {"identifiers": ["person"], "person": "person"}}


def test_dp_all_rows_of_a_person_are_clipped_as_one(tmp_path: Path) -> None:
    clip = 0.3
    method = summed(clip, unit="person", person_rows="all")
    found, share, norm = moved(method, tmp_path, SITES * PERSONS, site_tables=of_persons(), **PERSON)
    assert norm == pytest.approx(SITES * PERSONS * clip, rel=1e-3)
    covered(found, share, clip)


def test_dp_every_row_of_a_person_takes_part(tmp_path: Path) -> None:
    """With one row per person, rows that contradict the first one would change nothing."""
    clip = 5.0  # above every gradient, so that the mean shows
    norms = []
    for rows in (None, "all"):
        method = summed(clip, unit="person", **({} if rows is None else {"person_rows": rows}))
        options = {"site_tables": of_persons(opposed=6), **PERSON}
        norms.append(moved(method, tmp_path / str(rows), SITES * PERSONS, **options)[2])
    one = norms[0] / (
        SITES * PERSONS
    )  # the norm of a row's gradient; with the other answer it is the rest of the row's
    other = sqrt(PARAMETERS) - one
    mean = (2 * one - other) / 3  # yes, no, yes
    assert norms[1] == pytest.approx((SITES * PERSONS - 6) * one + 6 * mean, rel=5e-3)


def test_dp_rows_of_a_person_are_sampled_together(tmp_path: Path) -> None:
    clip, rate = 0.3, 0.5
    method = summed(clip, unit="person", person_rows="all", sample=rate)
    found, share, norm = moved(method, tmp_path, SITES * PERSONS, site_tables=of_persons(), **PERSON)
    drawn = norm / clip
    assert drawn == pytest.approx(round(drawn), abs=0.02)  # whole persons
    assert 0.2 * SITES * PERSONS < drawn < 0.8 * SITES * PERSONS
    covered(found, share, clip, rate)


@pytest.mark.parametrize("clip", [0.01, 40.0])
def test_dp_normalised_gradients_have_the_norm_of_the_clip(clip: float, tmp_path: Path) -> None:
    """Whether the clip is far below or far above the gradients, each row moves the total by exactly the clip."""
    rows = 30
    found, share, norm = moved(summed(clip, normalise=True), tmp_path, SITES * rows, site_tables=tables(rows, SITES))
    assert norm == pytest.approx(SITES * rows * clip, rel=1e-3)
    covered(found, share, clip)


def test_dp_normalised_gradients_of_a_person(tmp_path: Path) -> None:
    clip = 40.0
    method = summed(clip, unit="person", person_rows="all", normalise=True)
    found, share, norm = moved(method, tmp_path, SITES * PERSONS, site_tables=of_persons(), **PERSON)
    assert norm == pytest.approx(SITES * PERSONS * clip, rel=1e-3)
    covered(found, share, clip)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"person_rows": "all"}, "persons"),
        ({"person_rows": "all", "unit": "person", "mechanism": "after"}, "persons"),
        ({"normalise": True, "quantile": 0.5}, "normalise"),
        ({"normalise": True, "mechanism": "after"}, "normalise"),
    ],
)
def test_dp_bounds_that_do_not_go_together_are_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DPSection(**section)


@pytest.mark.parametrize("section", [{"normalise": True}, {"person_rows": "all", "unit": "person"}])
def test_dp_bounds_of_totals_need_a_sum(section: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="secure sums"):
        DPSection(**section).refuse_sample(None)
    DPSection(**section).refuse_sample(SecureSumSection(sum="masks"))
