"""DP-FTRL: what the rounds of a site show together, recomputed from what left its door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.wire import (
    DELTA,
    LR,
    PARAMETERS,
    ROWS,
    SITES,
    Wire,
    assert_covers,
    carried,
    epsilon,
    gaussian_events,
    normals,
    starts,
)

from kohort.errors import ConfigError, KohortError
from kohort.runs.agreed import approved_plan_for
from kohort.runs.config import load_plan
from kohort.tables.schema import Schema
from kohort.testing.federation import carry_out, plan_of
from kohort.testing.noise import LARGE, SMALL, known_normals

CLIP, ROUNDS = 0.25, 4


def method(**dp: Any) -> dict[str, Any]:
    return {"name": "fedavg", "dp": {"epsilon": 2.0, "delta": DELTA, "clip": CLIP, "mechanism": "ftrl", **dp}}


def single(word: Any, folder: Path, rounds: int = ROUNDS, **dp: Any) -> Wire:
    return carried(method(**dp), word, folder, rounds=rounds)


def sums_of(wire: Wire, rounds: int = ROUNDS) -> NDArray[np.float64]:
    """[rounds, sites, numbers]: the noisy sums of clipped gradients behind the weights."""
    return (starts(wire) - wire.weights()) * (ROWS / rounds) / LR


def labelled(wire: Wire, earlier: int) -> list[int]:
    """The numbers of the draws that made the noise of one round's z."""
    label = b"gaussian" + earlier.to_bytes(4, "little")
    return [number for number, draw in enumerate(wire.draws) if draw.label == label]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[NDArray[np.float64], Wire]:
    """How much of each z is in each round's release at the first site, one z after the other made large."""
    folder = tmp_path_factory.mktemp("ftrl")
    small = single(SMALL, folder / "small")
    matrix = np.zeros((ROUNDS, ROUNDS))
    for earlier in range(ROUNDS):
        chosen = set(labelled(small, earlier))
        large = single(lambda draw, chosen=chosen: LARGE if draw in chosen else SMALL, folder / f"{earlier}")
        ratios = (sums_of(large) - sums_of(small))[:, 0] / normals(PARAMETERS)
        assert np.abs(ratios - ratios.mean(axis=1, keepdims=True)).max() <= 0.02 * np.abs(ratios).max()
        matrix[:, earlier] = ratios.mean(axis=1)
    return matrix, small


def test_dp_ftrl_all_rounds_of_a_site_are_one_mechanism(released: tuple[NDArray[np.float64], Wire]) -> None:
    matrix, wire = released
    # Given what left before, a row moves one round's sum by at most the clip; the noise has covariance matrix matrix^T.
    precision = np.linalg.inv(matrix @ matrix.T)
    worst = CLIP * float(np.sqrt(precision.diagonal().max()))
    claim = wire.claims[0]
    assert_covers(claim["epsilon"], epsilon(1 / worst, steps=1))
    ((steps, sigma, rate),) = gaussian_events(claim)
    assert (steps, rate) == (1, 1.0)
    assert sigma == pytest.approx(1 / worst, rel=0.01)
    # Running sums carry less noise than as many independent releases of the same price would.
    running = np.linalg.norm(np.cumsum(matrix, axis=0), axis=1)
    assert running[-1] < 0.9 * sigma * CLIP * np.sqrt(ROUNDS)


def test_dp_ftrl_each_row_is_in_one_round(released: tuple[NDArray[np.float64], Wire]) -> None:
    """All gradients are at the clip and point one way, so a sum's length counts its rows."""
    matrix, wire = released
    noise = matrix.sum(axis=1)[:, None] * known_normals(SMALL, PARAMETERS)
    rows = np.linalg.norm(sums_of(wire)[:, 0] - noise, axis=1) / CLIP
    assert rows == pytest.approx(np.rint(rows), abs=0.05)
    assert np.rint(rows).sum() == ROWS
    assert np.rint(rows).max() < ROWS / 2


def test_dp_ftrl_sites_and_runs_have_noise_of_their_own(tmp_path: Path) -> None:
    wire = single(None, tmp_path / "one")
    keys = {draw.key for draw in wire.draws if draw.label.startswith(b"gaussian")}
    assert len(keys) == SITES
    other = carried(method(epsilon=2.5), None, tmp_path / "other", rounds=ROUNDS)
    assert not keys & {draw.key for draw in other.draws if draw.label.startswith(b"gaussian")}


def test_dp_ftrl_costs_the_same_however_many_rounds(tmp_path: Path) -> None:
    """A row is in one round: the noise of a single release, times the norm of the first column of a square root."""
    few, many = (single(SMALL, tmp_path / f"{rounds}", rounds=rounds) for rounds in (1, ROUNDS))
    assert gaussian_events(few.claims[0]) == gaussian_events(many.claims[0])
    whole = carried(method(mechanism="dp-sgd"), SMALL, tmp_path / "sgd", rounds=1)
    assert gaussian_events(whole.claims[0]) == gaussian_events(few.claims[0])


DATA = {"table": "memory", "target": "y", "features": "rest", "bounds": {"x": [-1, 1]}, "categories": {"y": ["a", "b"]}}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"unit": "site"}, "dp.mechanism"),
        ({"quantile": 0.5}, "dp.quantile"),
        ({"sample": 0.5}, "dp.sample"),
        ({"normalise": True}, "dp.normalise"),
    ],
)
def test_dp_ftrl_refuses_what_its_proof_does_not_cover(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan({"data": DATA, "method": method(**keys)})
    assert named in f"{caught.value} {caught.value.hint}"


def test_dp_ftrl_reads_no_batch_because_rounds_make_it() -> None:
    with pytest.raises(ConfigError, match=r"train\.batch"):
        load_plan({"data": DATA, "train": {"batch": 32}, "method": method()}).require_read("local")


def test_dp_ftrl_is_refused_over_secure_sums_by_whoever_derives_the_contract() -> None:
    plan = load_plan({"data": DATA, "method": {**method(), "secure": {"sum": "masks"}}})
    with pytest.raises(ConfigError, match=r"ftrl.*method\.secure"):
        approved_plan_for(plan, schema=Schema(), run="run", sites=("a", "b", "c"))


def test_dp_ftrl_a_round_without_rows_has_noise_and_nothing_else(tmp_path: Path) -> None:
    """With as many rounds as rows, coins leave some rounds empty; who sees the step cannot tell."""
    wire = single(SMALL, tmp_path / "empty", rounds=ROWS)
    assert wire.weights().shape == (ROWS, SITES, PARAMETERS)
    assert np.isfinite(wire.weights()).all()
    assert np.all(np.abs(starts(wire) - wire.weights()).max(axis=-1) > 0)


def test_dp_ftrl_needs_as_many_rows_as_rounds(tmp_path: Path) -> None:
    with pytest.raises(KohortError, match="rounds"):
        single(None, tmp_path / "many", rounds=ROWS + 1)


def test_dp_ftrl_one_by_one_equals_many_at_once(tmp_path: Path) -> None:
    plan = plan_of("fedavg", own={"dp": method()["dp"]}, policy={"epsilon": 20.0, "delta": 0.1, "min_rows": 1})
    made = [carry_out(plan, tmp_path / str(many), many=many).outcome.model for many in (True, False)]
    assert np.array_equal(*(np.asarray(model.weights) for model in made))  # type: ignore[attr-defined]
