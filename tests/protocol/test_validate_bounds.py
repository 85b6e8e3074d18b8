"""No bound is so large that a number which is not finite passes."""

from __future__ import annotations

import numpy as np
import pytest

from kohort.protocol.hub import Expect
from kohort.protocol.validate import validate
from kohort.protocol.wire import encode_many


@pytest.mark.parametrize("largest", [1e9, 1e200, np.inf])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_excluded_whatever_the_bound(largest: float, bad: float) -> None:
    weights = np.ones((3, 4))
    weights[1, 2] = bad
    expect = Expect(arrays={"weights": ("<f8", (4,))}, largest=largest)
    kept, _, excluded = validate(("a", "b", "c"), encode_many({"weights": weights}, {}), expect, {})
    assert list(kept) == ["a", "c"]
    assert [item.reason for item in excluded] == ["weights is not finite"]


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_the_bound_itself_is_good_and_a_step_beyond_it_is_not(dtype: str) -> None:
    weights = np.full((2, 3), 1e9, dtype=dtype)
    weights[1, 0] = np.nextafter(weights[0, 0], np.array(np.inf, dtype=dtype))
    expect = Expect(arrays={"weights": (dtype, (3,))}, largest=1e9)
    kept, _, excluded = validate(("a", "b"), encode_many({"weights": weights}, {}), expect, {})
    assert list(kept) == ["a"]
    assert [item.reason for item in excluded] == ["weights is absurdly large"]
