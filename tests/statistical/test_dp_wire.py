"""The noise, the clip, the draws and the epsilon of every mechanism, recomputed from what left the door."""

from __future__ import annotations

import json
from math import ceil, exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats
from tests.support.wire import (
    DELTA,
    FEATURES,
    LR,
    PARAMETERS,
    ROWS,
    SITES,
    alike,
    assert_covers,
    carried,
    epsilon,
    gaussian_events,
    normals,
    pair,
    starts,
    tables,
)

from kohort.testing.noise import LARGE, SMALL, known_normals

WORDS = PARAMETERS + 2
"""Words of noise per step: a normal per parameter and one for a count, made in pairs."""
CLIP = 0.25
"""Below half the norm of a row, so every row's gradient is clipped."""


def fedavg(mechanism: str = "dp-sgd", *, secure: dict[str, Any] | None = None, **dp: Any) -> dict[str, Any]:
    budget = {"epsilon": 2.0, "delta": DELTA, "clip": CLIP, "mechanism": mechanism, **dp}
    return {"name": "fedavg", "dp": budget, **({} if secure is None else {"secure": secure})}


def sums_of(wire: Any, *, expected: float = ROWS) -> np.ndarray[Any, Any]:
    """[rounds, sites, numbers]: the noisy sums of clipped gradients behind the weights."""
    return (starts(wire) - wire.weights()) * expected / LR


@pytest.mark.parametrize("epochs", [1, 3])
def test_dp_sgd_on_whole_batches(epochs: int, tmp_path: Path) -> None:
    found = pair(fedavg(), tmp_path, local_epochs=epochs)
    large, small = sums_of(found.large), sums_of(found.small)
    sigma = found.scale(large - small, PARAMETERS + 1) / epochs / CLIP
    words = [draw.words for draw in found.large.draws if draw.label == b"noise"]
    assert sum(words) == SITES * 2 * epochs * WORDS
    signal = large - epochs * sigma * CLIP * known_normals(LARGE, PARAMETERS + 2)[:PARAMETERS]
    assert np.linalg.norm(signal, axis=-1) == pytest.approx(epochs * ROWS * CLIP, rel=1e-3)
    assert np.linalg.norm(signal, axis=-1).max() <= epochs * ROWS * CLIP * (1 + 1e-4)
    measured = epsilon(sigma, steps=2 * epochs)
    for claim in found.large.claims:
        assert_covers(claim["epsilon"], measured)
    assert found.large.outcome.epsilon == pytest.approx(claim["epsilon"])
    assert claim["delta"] == DELTA


def test_dp_sgd_on_sampled_batches(tmp_path: Path) -> None:
    """A fourth of the rows per step, four steps per round."""
    batch, rounds = 15, 24
    found = pair(fedavg(), tmp_path, batch=batch, rounds=rounds)
    steps = sum(draw.words for draw in found.large.draws if draw.label == b"noise") // (SITES * rounds * WORDS)
    large, small = (sums_of(wire, expected=batch) for wire in (found.large, found.small))
    # Rows are drawn anew for every request; the first one is the same in both runs.
    sigma = found.scale(large[0] - small[0], PARAMETERS + 1) / steps / CLIP
    signal = large - steps * sigma * CLIP * known_normals(LARGE, PARAMETERS + 2)[:PARAMETERS]
    drawn = np.rint(np.linalg.norm(signal, axis=-1) / CLIP)
    rate = float(drawn.mean() / ROWS / steps)
    assert rate == pytest.approx(batch / ROWS, rel=0.05)
    # Poisson batches: as many rows as independent coins would give, and as unlike each other.
    assert drawn.var() == pytest.approx(ROWS * steps * rate * (1 - rate), rel=0.5)
    claim = found.large.claims[0]
    assert_covers(claim["epsilon"], epsilon(sigma, steps=rounds * steps, rate=batch / ROWS), waste=0.06)
    ((steps_claimed, said, counted),) = gaussian_events(claim)
    assert (steps_claimed, said) == (rounds * steps, pytest.approx(sigma, rel=0.01))
    assert batch / ROWS <= counted <= 1.03 * batch / ROWS


def test_dp_adaptive_clipping(tmp_path: Path) -> None:
    """The count of rows below the bound moves the next bound; both noises together are one mechanism."""
    found = pair(fedavg(quantile=0.5), tmp_path)
    large, small = sums_of(found.large), sums_of(found.small)
    sigma = found.scale(large[0] - small[0], PARAMETERS + 1) / CLIP
    z = {word: known_normals(word, PARAMETERS + 2) for word in (LARGE, SMALL)}
    clips = {}
    for word, sums in ((LARGE, large), (SMALL, small)):
        direction = (sums[0] - sigma * CLIP * z[word][:PARAMETERS]) / CLIP  # 60 rows at the bound
        clips[word] = float(np.median(sums[1] / (direction + sigma * z[word][:PARAMETERS])))
    # bound' = bound exp(-0.2 (share - quantile)), share = rows below the bound plus noise, over the rows
    shares = {word: 0.5 - log(clip / CLIP) / 0.2 for word, clip in clips.items()}
    place = PARAMETERS  # the normal after those of the parameters
    count_noise = (shares[LARGE] - shares[SMALL]) * ROWS / (z[LARGE][place] - z[SMALL][place])
    both = 1 / sqrt(1 / sigma**2 + (0.5 / count_noise) ** 2)
    assert_covers(found.large.claims[0]["epsilon"], epsilon(both, steps=2), slack=0.01)


@pytest.mark.parametrize("unit", ["row", "site"])
def test_dp_noise_after_training(unit: str, tmp_path: Path) -> None:
    clip = 1e-3
    found = pair(fedavg("after", clip=clip, unit=unit), tmp_path, lr=0.5)
    moved = {}
    for name, wire in (("large", found.large), ("small", found.small)):
        moved[name] = wire.weights() - starts(wire)
    scale = found.scale(moved["large"] - moved["small"])
    bare = moved["large"] - scale * known_normals(LARGE, PARAMETERS)
    met = np.linalg.norm(bare, axis=-1).max()
    assert met == pytest.approx(clip, rel=1e-3)
    assert met <= clip * (1 + 1e-6)
    assert_covers(found.large.claims[0]["epsilon"], epsilon(scale / (2 * met), steps=2))


def test_dp_noise_at_the_hub(tmp_path: Path) -> None:
    clip = 1e-3
    method = fedavg("hub", clip=clip, unit="site", delta=1e-3)
    found = pair(method, tmp_path, lr=0.5, rounds=1)
    sent = (found.large.weights() - starts(found.large))[0]
    assert np.linalg.norm(sent, axis=-1).max() <= clip * (1 + 1e-6)
    assert np.linalg.norm(sent, axis=-1).max() == pytest.approx(clip, rel=1e-3)
    ends = [np.asarray(wire.outcome.model.weights) for wire in (found.large, found.small)]
    scale = found.scale((ends[0] - ends[1]) * SITES)
    assert found.large.outcome.epsilon is not None
    assert_covers(found.large.outcome.epsilon, epsilon(scale / clip, steps=1, delta=1e-3))


def test_dp_a_site_that_does_not_clip_is_clipped_by_the_hub(tmp_path: Path) -> None:
    from unittest import mock

    from kohort.rounds import phase_training

    method = fedavg("hub", clip=1e-3, unit="site", delta=1e-3)
    with mock.patch.object(phase_training, "_clipped", lambda weights, start, clip: weights):
        wire = carried(method, SMALL, tmp_path / "run", lr=0.5, rounds=1)
    scale = pair(method, tmp_path, lr=0.5, rounds=1)
    noise = np.asarray(scale.small.outcome.model.weights)
    assert np.linalg.norm(wire.weights() - starts(wire), axis=-1).max() > 0.1
    assert np.asarray(wire.outcome.model.weights) == pytest.approx(noise, abs=1e-6)


def test_dp_output_perturbation(tmp_path: Path) -> None:
    penalty = 0.05
    method = fedavg("output", delta=0.0)
    found = pair(method, tmp_path, rounds=1, l2=penalty)
    size = PARAMETERS
    balls = []
    for word in (LARGE, SMALL):
        direction, length = known_normals(word, size), np.square(known_normals(word, 2 * size)).sum() / 2
        balls.append(direction / np.linalg.norm(direction) * length)
    difference = found.large.weights()[0] - found.small.weights()[0]
    scale = float(np.mean(difference @ (balls[0] - balls[1]) / np.square(balls[0] - balls[1]).sum()))
    assert difference == pytest.approx(np.broadcast_to(scale * (balls[0] - balls[1]), difference.shape), rel=1e-4)
    # Replacing a row by its opposite moves the minimum by at most 2 / (n penalty).
    other = carried(
        method, SMALL, tmp_path / "other", rounds=1, l2=penalty,
        site_tables=tables(**{f"x{place}": -1.0 for place in range(FEATURES)}, y="yes"),
    )  # fmt: skip
    moved = np.linalg.norm(other.weights()[0, 0] - found.small.weights()[0, 0])
    bound = 2 / (ROWS * penalty)
    assert 0.01 * bound < moved <= bound
    claim = found.large.claims[0]
    assert_covers(claim["epsilon"], bound / scale, waste=0.001)
    assert (claim["relation"], claim["delta"]) == ("replace-one", 0.0)


def test_dp_objective_perturbation(tmp_path: Path) -> None:
    penalty = 0.05
    found = pair(fedavg("objective", delta=0.0), tmp_path, rounds=1, l2=penalty)
    z = np.append(np.ones(FEATURES), 1.0)
    z /= np.linalg.norm(z)
    tilts = []
    for wire in (found.large, found.small):
        w = wire.weights()[0, 0]
        tilts.append(-ROWS * (-z / (1 + exp(z @ w)) + penalty * w))  # the gradient of the tilted loss is zero there
    size = PARAMETERS
    scales = []
    for word, tilt in zip((LARGE, SMALL), tilts, strict=True):
        direction, length = known_normals(word, size), np.square(known_normals(word, 2 * size)).sum() / 2
        scales.append(float(tilt @ direction / np.linalg.norm(direction) / length))
    assert scales[0] == pytest.approx(scales[1], rel=1e-3)
    ratio = 0.25 / (ROWS * penalty)
    measured = 2 / scales[0] + log(1 + 2 * ratio + ratio**2)
    assert_covers(found.large.claims[0]["epsilon"], measured, waste=0.002)


def test_dp_noisy_statistics(tmp_path: Path) -> None:
    method = fedavg("statistics", clip=1.0)
    found = pair(method, tmp_path)
    large, small = (wire.weights("dp.statistics", "sums") for wire in (found.large, found.small))
    scale = found.scale(large - small)
    radius = sqrt(1 + FEATURES / 4)
    fewer = carried(method, SMALL, tmp_path / "fewer", site_tables=tables() | {"site-0": alike(ROWS - 1)})
    moved = np.linalg.norm(fewer.weights("dp.statistics", "sums")[0, 0] - small[0, 0])
    bound = radius * sqrt(radius**2 + 1)
    assert 0.5 * bound < moved <= bound * (1 + 1e-9)
    assert_covers(found.large.claims[0]["epsilon"], epsilon(scale / bound, steps=1))


@pytest.mark.parametrize(("scheme", "sites"), [("none", 11), ("masks", 4)])
def test_dp_noise_in_shares(scheme: str, sites: int, tmp_path: Path) -> None:
    """Of 11 sites 10 must answer, and one may show its share: nine shares make the noise."""
    rows = 30
    method = fedavg(secure={"sum": scheme, "colluders": 1})
    found = pair(method, tmp_path, site_tables=tables(rows, sites), rounds=1)
    twice = carried(method, LARGE, tmp_path / "twice", site_tables=tables(rows, sites), rounds=1, lr=2 * LR)
    ends = [np.asarray(wire.outcome.model.weights) for wire in (found.large, found.small, twice)]
    share = found.scale((ends[1] - ends[0]) * rows * sites / LR) / sites
    needed = ceil(0.9 * sites) - 1
    sigma = share * sqrt(needed) / CLIP
    total = (ends[0] - ends[2]) * rows * sites / LR - share * sites * known_normals(LARGE, PARAMETERS)
    assert np.linalg.norm(total) == pytest.approx(rows * sites * CLIP, rel=1e-3)
    claim = found.large.claims[0]
    assert_covers(claim["epsilon"], epsilon(sigma, steps=1))
    assert_covers(claim["epsilon_all"], epsilon(share / CLIP, steps=1))


def test_dp_the_judge(tmp_path: Path) -> None:
    server = {"kind": "server", "rows": "high", "rounds": 1, "batch": 0, "dp": {"epsilon": 1.0, "delta": DELTA}}
    method = {
        "name": "hybrid", "phases": [{**server, "rows": "low", "dp": {"epsilon": 0.5, "delta": DELTA}}, server],
        "judge": {"rows": "high", "epsilon": 0.4, "delta": 1e-5, "share": 0.3},
    }  # fmt: skip
    found = pair(method, tmp_path, sites={"low_risk": 0.4})
    large, small = (wire.weights("peers.judge", "gained") for wire in (found.large, found.small))
    # One number: how many more rows one model gets right, which one row moves by one.
    sigma = found.scale(large - small, 1)
    assert_covers(0.4, epsilon(sigma, steps=1, delta=1e-5))
    trained = found.large.weights() - found.small.weights()
    claim = found.large.claims[0]
    events = gaussian_events(claim)
    assert len(events) == 3  # both phases and the judge
    assert (1, pytest.approx(sigma, rel=0.01), 1.0) in events
    assert trained.shape[0] == 2
    mu = sqrt(sum(steps / said**2 for steps, said, _ in events))
    assert claim["delta"] == pytest.approx(2 * DELTA + 1e-5)
    assert_covers(claim["epsilon"], epsilon(1 / mu, steps=1, delta=2 * DELTA + 1e-5))


def additive_rows(*, together: bool) -> dict[str, pl.DataFrame]:
    """Rows of which no column says the class; with `together`, two columns do."""
    rng, frames = np.random.default_rng(3), {}
    for number in range(SITES):
        x = {f"x{place}": rng.uniform(-1, 1, 400).round(3) for place in range(FEATURES)}
        drawn = rng.choice(["no", "yes"], 400)
        y = np.where(x["x0"] * x["x1"] > 0, "yes", "no") if together else drawn
        frames[f"site-{number}"] = pl.DataFrame(x | {"y": y})
    return frames


def additive_noises(method: dict[str, Any], frames: dict[str, pl.DataFrame], folder: Path) -> tuple[Any, list[float]]:
    """A run with small noise, and the scale of the noise of every round.

    Large noise is in one round at a time: what follows from it differs, so only that round is compared.
    """

    def noisy(number: int | None) -> Any:
        words = lambda draw: LARGE if draw // SITES == number else SMALL  # noqa: E731 - it is used once
        return carried(method, words, folder / f"large-{number}", site_tables=frames)

    small, scales = noisy(None), []
    task = next(name for name in small.left if name.startswith("additive"))
    for number in range(method["rounds"]):
        sent = [wire.left[task]["site-0", number].arrays["numbers"].astype(float) for wire in (noisy(number), small)]
        known = normals(len(sent[0]))
        scales.append(float((sent[0] - sent[1]) @ known / (known @ known)))
        assert sent[0] - sent[1] == pytest.approx(scales[-1] * known, abs=1.0)  # rounded to the grid
    return small, scales


def test_dp_additive_totals(tmp_path: Path) -> None:
    frames = additive_rows(together=False)
    method = {"name": "additive", "rounds": 3, "dp": {"epsilon": 4.0, "delta": DELTA}, "secure": {"sum": "none"}}
    small, scales = additive_noises(method, frames, tmp_path)
    # A row is in one cell of every column and in one of the target; later in one bin of every column.
    bounds = [COUNT_GRID * sqrt(FEATURES + 1), *[RESIDUAL_GRID * CUT * sqrt(FEATURES)] * 2]
    precision = sum((bound / scale) ** 2 for bound, scale in zip(bounds, scales, strict=True))
    fewer = frames | {"site-0": frames["site-0"].head(399)}
    other = carried(method, SMALL, tmp_path / "fewer", site_tables=fewer)
    task = next(name for name in small.left if name.startswith("additive"))
    sent = [wire.left[task]["site-0", 0].arrays["numbers"].astype(float) for wire in (other, small)]
    assert np.linalg.norm(sent[0] - sent[1]) == pytest.approx(COUNT_GRID * sqrt(FEATURES + 1))
    claim = next(line["guarantee"] for line in small.ledger if line.get("what") == "dp.reserve")
    assert_covers(claim["epsilon"], epsilon(1 / sqrt(precision), steps=1))


def test_dp_additive_totals_with_surfaces(tmp_path: Path) -> None:
    """One total is about all pairs of columns, too, and later ones about the pairs that act together."""
    method = {"name": "additive", "rounds": 11, "dp": {"epsilon": 40.0, "delta": DELTA}, "secure": {"sum": "none"}}
    small, scales = additive_noises(method, additive_rows(together=True), tmp_path)
    pairs, surfaces = FEATURES * (FEATURES - 1) // 2, len(small.outcome.model.bins.pairs)
    assert surfaces >= 1
    # A row is in one bin of every column and in one cell of every pair, where it is counted once, at a fifth.
    alone, looking = CUT * sqrt(FEATURES), sqrt(CUT**2 * (FEATURES + pairs) + pairs * 0.2**2)
    residuals = [*[alone] * 3, looking, *[CUT * sqrt(FEATURES + surfaces)] * 6]
    bounds = [COUNT_GRID * sqrt(FEATURES + 1), *(RESIDUAL_GRID * bound for bound in residuals)]
    spent = [(bound / scale) ** 2 for bound, scale in zip(bounds, scales, strict=True)]
    assert spent[1:] == pytest.approx([spent[1]] * 10, rel=1e-3), "sums of residuals have equal parts"
    claim = next(line["guarantee"] for line in small.ledger if line.get("what") == "dp.reserve")
    assert_covers(claim["epsilon"], epsilon(1 / sqrt(sum(spent)), steps=1))


def test_dp_additive_rows_meet_the_bound_of_pairs(tmp_path: Path) -> None:
    """A site with equal rows is counted in one cell of every pair, so many times as one row would be."""
    frames, copies = additive_rows(together=True), 12
    frames["site-0"] = pl.DataFrame({f"x{place}": [0.9] * copies for place in range(FEATURES)} | {"y": ["no"] * copies})
    method = {"name": "additive", "rounds": 11, "dp": {"epsilon": 40.0, "delta": DELTA}, "secure": {"sum": "none"}}
    wire = carried(method, SMALL, tmp_path / "pairs", site_tables=frames)
    task = next(name for name in wire.left if name.startswith("additive"))
    sent = wire.left[task]["site-0", 4].arrays["numbers"].astype(float)
    known, pairs = known_normals(SMALL, len(sent)), FEATURES * (FEATURES - 1) // 2
    numbers = (sent - float(np.median(sent / known)) * known) / copies / RESIDUAL_GRID
    filled = np.abs(numbers[np.abs(numbers) > 1e-3])  # a bin per column; of a pair one count and one sum
    assert len(filled) == FEATURES + 2 * pairs
    residual = filled[0]
    assert residual <= CUT * (1 + 1e-6)
    assert np.sort(filled) == pytest.approx(np.sort([0.2] * pairs + [residual] * (FEATURES + pairs)), rel=1e-3)


COUNT_GRID, RESIDUAL_GRID = 2.0**10, 2.0**28
"""Steps of the grids on which counts and residuals are summed."""
CUT = 0.8
"""Residuals of two equally frequent classes count up to here."""


def test_dp_additive_residuals_are_cut(tmp_path: Path) -> None:
    """A site with equal rows that all others speak against sends so many times the contribution of one."""
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, (SITES - 1, 600)).round(3)
    frames = {
        f"site-{number + 1}": pl.DataFrame(
            {f"x{place}": own for place in range(FEATURES)} | {"y": np.where(own > 0, "yes", "no")}
        )
        for number, own in enumerate(x)
    }
    copies = 12
    alone = pl.DataFrame({f"x{place}": [0.9] * copies for place in range(FEATURES)} | {"y": ["no"] * copies})
    dp = {"epsilon": 40.0, "delta": DELTA}
    method = {"name": "additive", "rounds": 11, "pairs": 0, "dp": dp, "secure": {"sum": "none"}}  # curves alone
    wire = carried(method, SMALL, tmp_path / "cut", site_tables={"site-0": alone, **frames})
    task = next(name for name in wire.left if name.startswith("additive"))
    moved = []
    for number in range(1, 11):
        sent = wire.left[task]["site-0", number].arrays["numbers"].astype(float)
        known = known_normals(SMALL, len(sent))
        numbers = sent - float(np.median(sent / known)) * known  # all bins but those of the rows hold noise alone
        moved.append(np.linalg.norm(numbers) / copies / RESIDUAL_GRID / sqrt(FEATURES))
    assert max(moved) == pytest.approx(CUT, rel=1e-3)


def test_dp_noisy_domains(tmp_path: Path) -> None:
    """Counts of values have the noise that was paid for, and what one row alone has stays below the threshold."""
    values = [f"v{number:03d}" for number in range(1, 240, 3)]
    column = [value for number, value in enumerate(values) for _ in range(3 * number + 1)]
    frame = pl.DataFrame({"ward": column, "y": ["no", "yes"] * (len(column) // 2) + ["no"] * (len(column) % 2)})
    frames = {f"site-{number}": frame for number in range(SITES)}
    delta, share = 1e-6, 0.1
    method = fedavg(epsilon=1.0, delta=delta, domain_share=share)
    data = {"bounds": {}, "categories": {"y": ["no", "yes"]}, "encoding": "onehot"}
    found = pair(method, tmp_path, site_tables=frames, data=data)
    counts = [released(wire) for wire in (found.large, found.small)]
    both = sorted(counts[0].keys() & counts[1].keys())
    z = {word: known_normals(word, len(values)) for word in (LARGE, SMALL)}
    places = [values.index(text) for text in both]
    difference = np.asarray([counts[0][text] - counts[1][text] for text in both], dtype=float)
    known = (z[LARGE] - z[SMALL])[places]
    deviation = float(difference @ known / (known @ known))
    threshold = 1 + deviation * stats.norm.isf(share * delta / 2)  # one column, so one count per row
    noisy = [3 * number + 1 + deviation * z[SMALL][number] for number in range(len(values))]
    edge = [text for text, count in zip(values, noisy, strict=True) if count > threshold]
    assert sorted(counts[1]) == edge
    line = next(line["guarantee"] for line in found.large.ledger if line.get("what") == "domain.values")
    assert line["delta"] == pytest.approx(share * delta)
    assert_covers(line["epsilon"], epsilon(deviation, steps=1, delta=share * delta / 2), slack=0.02, waste=0.03)
    # The rest of the plan takes what is left.
    sums = [sums_of_many(wire, len(column)) for wire in (found.large, found.small)]
    size = min(len(one[0, 0]) for one in sums)
    assert size > 1
    reserved = found.large.claims[0]
    (steps, sigma, _), (_, counted, _) = gaussian_events(reserved)
    assert counted == pytest.approx(deviation, rel=0.03)
    mu = sqrt(steps / sigma**2 + 1 / counted**2)
    assert_covers(reserved["epsilon"], epsilon(1 / mu, steps=1, delta=delta * (1 - share / 2)))
    assert reserved["delta"] == pytest.approx(delta)


def released(wire: Any) -> dict[str, int]:
    _, values, _ = json.loads(wire.left["domain.values"]["site-0", 0].blobs["domain"])
    return {text: count for _, text, count in values}


def sums_of_many(wire: Any, rows: int) -> np.ndarray[Any, Any]:
    return (starts(wire) - wire.weights()) * rows / LR


def test_dp_every_site_and_round_has_noise_of_its_own(tmp_path: Path) -> None:
    wire = carried(fedavg(), None, tmp_path / "run", rounds=3)
    keys = [draw.key for draw in wire.draws if draw.label == b"noise"]
    assert len(set(keys)) == SITES * 3
    noise = (sums_of(wire) - sums_of(wire).mean(axis=(0, 1))).reshape(-1, PARAMETERS)
    assert np.abs(np.corrcoef(noise)[np.triu_indices(9, 1)]).max() < 0.995
