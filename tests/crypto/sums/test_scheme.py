"""Numbers in fixed point, what a sum is bound to, and what a scheme without a set-up says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kohort.crypto.sums.plain import SCHEME
from kohort.crypto.sums.scheme import FixedPoint, SumContext, find_scheme
from kohort.errors import ConfigError, RefusedError
from kohort.rng import Streams


def test_small_bounds_and_coarse_scales_are_fixed_point_too() -> None:
    point = FixedPoint(bound=0.5, scale=0.5, sites=1)
    assert point.decode(point.encode(np.array([0.0]))).tolist() == [0.0]
    for wrong in ({"bound": 0.0}, {"bound": -1.0}, {"scale": 0.0}, {"scale": -1.0}, {"sites": 0}, {"bound": np.nan}):
        with pytest.raises(ConfigError, match="fixed point needs"):
            replace(point, **wrong)


def test_headroom_is_for_all_sites_at_the_bound() -> None:
    FixedPoint(bound=2.0**40, scale=2.0**20, sites=7)
    for sites in (8, 9):
        with pytest.raises(RefusedError, match="does not fit 64 bits"):
            FixedPoint(bound=2.0**40, scale=2.0**20, sites=sites)


def test_numbers_are_rounded_clipped_and_never_missing() -> None:
    point = FixedPoint(bound=2.0, scale=10.0, sites=3)
    given = np.array([0.14, -0.16, 2.0, 2.5, -9.0, np.nan, np.inf, -np.inf])
    encoded = point.encode(given)
    assert encoded.dtype == np.uint64
    assert encoded.view(np.int64).tolist() == [1, -2, 20, 20, -20, 0, 20, -20]
    assert point.decode(encoded + encoded).tolist() == pytest.approx([0.2, -0.4, 4, 4, -4, 0, 4, -4])


CONTEXT = SumContext(run="r", round=1, request="q", sites=("a", "b", "c"), length=4, view=b"v")


@pytest.mark.parametrize(
    "change",
    [
        {"run": "s"}, {"round": 2}, {"request": "p"}, {"sites": ("a", "b")}, {"sites": ("b", "a", "c")}, {"length": 5},
        {"modulus": 7}, {"bits": 41}, {"view": b""}, {"run": "rq", "request": ""}, {"sites": ("a", "bc", "")},
    ],
)  # fmt: skip
def test_a_sum_is_bound_to_everything_it_is_about(change: dict[str, object]) -> None:
    assert CONTEXT.transcript == replace(CONTEXT).transcript
    assert len(CONTEXT.transcript) == 32
    assert replace(CONTEXT, **change).transcript != CONTEXT.transcript


def test_the_places_of_sites_are_those_of_the_list() -> None:
    assert CONTEXT.index == {"a": 0, "b": 1, "c": 2}


def test_a_scheme_without_a_set_up_says_so() -> None:
    session: Any = None  # nothing of it is read
    with pytest.raises(ConfigError, match="a sum by 'none' has no set-up"):
        SCHEME.session_keys(session, "a", Streams.seeded(1), session, b"")
    assert find_scheme("none") is SCHEME
    with pytest.raises(ConfigError, match="'mask'"):
        find_scheme("mask")
