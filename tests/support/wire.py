"""What leaves the doors of a private run, measured by code that shares nothing with the sites' accounts.

A run is carried out with two known streams of noise. What leaves differs by the noise alone, so its scale is exact; all
rows of a site are alike and lie beyond the clip, so what they add up to shows the clip and how many rows were drawn.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from numpy.typing import NDArray

from kohort.protocol import engine as engine_module
from kohort.protocol.wire import Payload, decode
from kohort.runs.config import load_plan, only_read
from kohort.runs.run import Outcome, run
from kohort.testing.federation import listening
from kohort.testing.noise import LARGE, SMALL, Draw, drawn_noise, known_normals

DELTA = 1e-4
ROWS, SITES, FEATURES = 60, 3, 5
PARAMETERS = FEATURES + 1
LR = 1e-5


@dataclass
class Wire:
    """One run: its outcome, everything that left, by task, site and round, and every draw of noise."""

    outcome: Outcome
    left: dict[str, dict[tuple[str, int], Payload]]
    draws: list[Draw]
    ledger: list[dict[str, Any]] = field(repr=False, default_factory=list)
    first: NDArray[np.float64] | None = None
    """The weights that the hub sent first."""

    def weights(self, task: str = "train.phase", name: str = "weights") -> NDArray[np.float64]:
        """[rounds, sites, numbers] of a task."""
        found = self.left[task]
        sites, rounds = sorted({site for site, _ in found}), sorted({number for _, number in found})
        return np.stack([[found[site, number].arrays[name] for site in sites] for number in rounds]).astype(float)

    @property
    def claims(self) -> list[dict[str, Any]]:
        """The claims of the reservations."""
        return [line["guarantee"] for line in self.ledger if line.get("what") == "dp.reserve"]


def alike(count: int, *, last: Mapping[str, Any] | None = None) -> pl.DataFrame:
    """Rows that are all the same; the last one may be another."""
    row: dict[str, Any] = {f"x{place}": 1.0 for place in range(FEATURES)} | {"y": "yes"}
    return pl.DataFrame([row] * (count - 1) + [{**row, **(last or {})}])


def tables(rows: int = ROWS, sites: int = SITES, **first: Any) -> dict[str, pl.DataFrame]:
    """Sites of equal size; `first` changes the last row of the first one."""
    return {f"site-{number}": alike(rows, last=first if number == 0 else None) for number in range(sites)}


def carried(
    method: Mapping[str, Any],
    word: int | Callable[[int], int] | None,
    folder: Path,
    *,
    site_tables: Mapping[str, pl.DataFrame] | None = None,
    data: Mapping[str, Any] | None = None,
    sites: Mapping[str, Any] | None = None,
    **train: Any,
) -> Wire:
    """Run a plan with known noise and write down what leaves."""
    raw = {
        "data": {
            "table": "memory", "target": "y", "features": "rest", "test": 0.0,
            "bounds": {f"x{place}": [-1, 1] for place in range(FEATURES)}, "categories": {"y": ["no", "yes"]},
            **(data or {}),
        },
        "sites": {"split": "files", **(sites or {})},
        "model": {"kind": "logistic", "dtype": "float64"},
        "train": {"optimizer": "sgd", "lr": LR, "rounds": 2, "batch": 0},
        "method": dict(method),
        "policy": {"min_rows": 1, "min_cell": 1, "epsilon": 50.0, "delta": 0.5},
    }  # fmt: skip
    kept = only_read(raw)
    kept["train"] = {**kept.get("train", {}), **train}
    given = tables() if site_tables is None else site_tables
    sent: list[NDArray[np.float64]] = []
    with drawn_noise(word) as draws, listening() as heard, _first_weights(sent):
        outcome = run(load_plan(kept), seed=11, tables=dict(given), out=folder)
    left: dict[str, dict[tuple[str, int], Payload]] = {}
    for site, task, number, data_sent in heard.replies:
        left.setdefault(task, {})[site, number] = decode(data_sent)
    lines = [json.loads(line) for line in (folder / "ledger" / "ledger.jsonl").read_text().splitlines()]
    return Wire(outcome, left, list(draws), lines, sent[0] if sent else None)


@contextmanager
def _first_weights(sent: list[NDArray[np.float64]]) -> Iterator[None]:
    """Note the weights that requests carry."""
    answer = engine_module.answer

    def noted(sites: Any, request: Any, *, many: bool = True) -> Any:
        if "weights" in request.payload.arrays:
            sent.append(np.asarray(request.payload.arrays["weights"], dtype=float))
        return answer(sites, request, many=many)

    with mock.patch.object(engine_module, "answer", noted):
        yield


@dataclass(frozen=True)
class Pair:
    """The same run with large and with small noise."""

    large: Wire
    small: Wire

    def scale(self, difference: NDArray[np.float64], count: int | None = None) -> float:
        """By what the normals were multiplied, from the difference of two releases of `count` numbers."""
        size = difference.shape[-1]
        known = normals(count or size)[..., :size]
        ratios = difference / known
        spread = np.abs(ratios - ratios.mean()).max()
        assert spread <= 0.02 * abs(ratios.mean()), "not every number got the same noise"
        return float(ratios.mean())


def normals(count: int) -> NDArray[np.float64]:
    """The difference of the two known streams."""
    return known_normals(LARGE, count) - known_normals(SMALL, count)


def pair(method: Mapping[str, Any], folder: Path, **options: Any) -> Pair:
    """Run a plan twice, with large and with small noise."""
    return Pair(*(carried(method, word, folder / f"{word:x}", **options) for word in (LARGE, SMALL)))


def starts(wire: Wire) -> NDArray[np.float64]:
    """[rounds, 1, numbers]: what sites of equal size start each round from, the mean of the round before."""
    means = wire.weights().mean(axis=1, keepdims=True)
    assert wire.first is not None
    return np.concatenate([wire.first[None, None], means[:-1]])


def epsilon(sigma: float, *, steps: int, rate: float = 1.0, delta: float = DELTA) -> float:
    """Epsilon of so many steps, by dp-accounting; where Opacus is installed, its accountants must agree."""
    step = GaussianDpEvent(sigma) if rate == 1 else PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
    account = PLDAccountant(value_discretization_interval=1e-3 if rate < 1 else 1e-4)
    account.compose(SelfComposedDpEvent(step, steps))
    found = float(account.get_epsilon(delta))
    if find_spec("opacus") is not None:  # it is part of kohort[torch], which CI installs
        from opacus.accountants import PRVAccountant, RDPAccountant

        loose, numeric = RDPAccountant(), PRVAccountant()
        loose.history = numeric.history = [(sigma, rate, steps)]
        assert loose.get_epsilon(delta) >= 0.99 * found
        assert math.isclose(numeric.get_epsilon(delta, eps_error=0.01), found, rel_tol=0.02, abs_tol=0.02)
    return found


def assert_covers(claimed: float, found: float, *, slack: float = 0.005, waste: float = 0.03) -> None:
    """The claim is at least what was measured, and not much more: noise that nobody asked for is a bug, too."""
    assert found <= claimed * (1 + slack), f"epsilon {found:.4g} left under a claim of {claimed:.4g}"
    assert found >= claimed * (1 - waste), f"noise for epsilon {found:.4g} under a claim of {claimed:.4g}"


def gaussian_events(claim: Mapping[str, Any]) -> list[tuple[int, float, float]]:
    """(steps, sigma, rate) of a claim's text."""
    found = re.findall(r"(\d+) x gaussian\(sigma=([\d.e+-]+), rate=([\d.e+-]+)\)", claim["event"])
    return [(int(steps), float(sigma), float(rate)) for steps, sigma, rate in found]
